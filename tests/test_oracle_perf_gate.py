"""The oracle of unit `perf_gate` against the page's examples, exact arithmetic and peers."""

from __future__ import annotations

import bisect
import doctest
import importlib.util
import itertools
import math
import statistics
import sys
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import build, strict_yaml, testkit, values
from grader.draw import Chooser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "perf_gate"
spec = importlib.util.spec_from_file_location("perf_gate_oracle", FOLDER / "oracle.py")
assert spec is not None and spec.loader is not None
oracle = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = oracle
spec.loader.exec_module(oracle)
unit = oracle.Oracle()
NAN, INF = math.nan, math.inf


def f32(*rows: Any) -> Any:
    return np.array(rows, np.float32)


def f64(*rows: Any) -> Any:
    return np.array(rows, np.float64)


def same(got: Any, want: Any) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want, equal_nan=True)


def timed(readings: list[float], reps: int, min_s: float) -> tuple[list[float], int, list[int]]:
    work = oracle.CountedWork()
    clock = oracle.ScriptedClock(readings, work)
    return unit.measure(work, reps, min_s, clock), work.calls, clock.at


# -- the page's examples ----------------------------------------------------------------------------------


def test_worked_example() -> None:
    readings = [10, 10.25, 20, 20.5, 30, 31, 40, 40.75, 50, 51.5]
    assert timed(readings, 2, 1.0) == ([0.25, 0.1875], 20, [1, 2, 2, 4, 4, 8, 8, 12, 12, 20])
    assert unit.decide([8, 9, 12], [14, 10, 11], 0.25) == "ok"
    assert unit.decide([8, 9, 12], [14, 10.5, 11], 0.25) == "regression"


def test_small_examples_of_kernels() -> None:
    assert same(unit.kata_matmul(f32([1, 2], [3, 4]), f32([5, 6], [7, 8])), f32([19, 22], [43, 50]))
    wide = f32([16777216, 1, -16777216])
    assert same(unit.kata_matmul(wide, f32([1], [1], [1])), f32([1]))
    in_order = np.float32(0)
    for term in wide[0]:
        in_order += term
    assert in_order == 0
    empty = unit.kata_matmul(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))
    assert same(empty, np.zeros((2, 3), np.float32))
    assert same(unit.kata_matmul(f32([0, 1]), f32([INF], [2])), f32([NAN]))
    assert unit.kata_sum(f32(16777216, 1, 1)) == 16777218.0
    assert unit.kata_sum(f32(16777216, 1)) == 16777217.0 != float(np.float32(16777217.0))
    assert same(unit.kata_rmsnorm(f32(1, 7), f32(1, 2), 1e-6), f32(0.2, 2.8))
    assert same(unit.kata_rmsnorm(f32(3e38, 3e38), f32(1, 1)), f32(1, 1))
    assert same(unit.kata_rmsnorm(f32(1, 1), f32(1, 1), 3), f32(0.5, 0.5))
    assert unit.kata_count_below(f64(1, 2, 2, 2, 5), 2) == 1
    assert unit.kata_count_below(f32(0.1), 0.1000000015) == 1 and np.float32(0.1000000015) == f32(0.1)[0]
    assert unit.kata_count_below(f64(1, 2, NAN, NAN), INF) == 2


def test_small_examples_of_measuring_and_deciding() -> None:
    assert timed([0, 1, 10, 11], 2, 1)[:2] == ([1.0, 1.0], 3)
    assert timed([5, 5, 5, 4, 0, 8], 1, 1)[:2] == ([2.0], 8)
    assert timed([7.0] * 34, 1, 1)[:2] == ([0.0], 131072)
    assert unit.decide([8, 8], [10, 10], 0.25) == "ok"
    assert unit.decide([8, 8], [10.000000000000002, 11], 0.25) == "regression"
    assert unit.decide([3, 3], [3.3000000000000003, 4], 0.1) == "ok"


# -- exact arithmetic -------------------------------------------------------------------------------------


def exact_product(a: Any, b: Any) -> list[list[Fraction]]:
    columns = list(zip(*b.tolist(), strict=True)) if b.size else [()] * b.shape[1]
    rows = a.tolist()
    return [[sum(map(lambda u, v: Fraction(u) * Fraction(v), row, col), Fraction(0)) for col in columns]
            for row in rows]  # fmt: skip


@pytest.mark.parametrize("draw", ["exact_matrices", "long_matrices"])
def test_products_are_exact_in_float64_in_every_order(draw: str) -> None:
    for i in range(12):
        given = getattr(oracle, draw)(Chooser(41, i))
        exact = exact_product(given["a"], given["b"])
        assert all(Fraction(float(v)) == v for row in exact for v in row)
        want = np.array([[float(v) for v in row] for row in exact], np.float64)
        want = want.reshape(given["a"].shape[0], given["b"].shape[1]).astype(np.float32)
        assert same(unit.kata_matmul(**given), want)
        wide = (given["a"].astype(np.float64) @ given["b"].astype(np.float64)).astype(np.float32)
        assert same(wide, want)


def test_sums_are_exact_in_every_order() -> None:
    for i in range(30):
        x = oracle.exact_row(Chooser(42, i))["x"]
        exact = sum(map(Fraction, x.tolist()), Fraction(0))
        assert Fraction(unit.kata_sum(x)) == exact
        assert float(np.sum(x, dtype=np.float64)) == float(exact) == sum(reversed(x.tolist()), 0.0)


def exact_norm(x: Any, weight: Any, eps: float) -> Iterator[Decimal]:
    """Every element in 60 digits."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, -9999, 9999
        for row in x.reshape(-1, x.shape[-1]).tolist():
            ms = sum((Decimal(v) ** 2 for v in row), Decimal(0)) / len(row)
            root = (ms + Decimal(eps)).sqrt()
            yield from (Decimal(v) / root * Decimal(w) for v, w in zip(row, weight.tolist(), strict=True))


def halfway(value: float) -> float:
    """How far a float64 is from the nearest place where rounding to float32 turns, relatively."""
    near = np.float32(value)
    if value == 0.0 or float(near) == value or not np.isfinite(near):
        return 1.0
    other = np.nextafter(near, np.float32(INF if value > near else -INF))
    return abs(value - (float(near) + float(other)) / 2) / abs(value)


def test_norms_are_rightly_rounded() -> None:
    for i in range(40):
        given = oracle.rows_and_weight(Chooser(43, i))
        got = unit.kata_rmsnorm(**given)
        for found, exact in zip(got.reshape(-1).tolist(), exact_norm(**given), strict=True):
            if halfway(float(exact)) > 2.0**-45:
                assert np.float32(float(exact)) == np.float32(found)


def test_norm_cases_that_are_compared_exactly_cannot_turn() -> None:
    seen = 0
    for case in cases():
        if case.get("call") != "kata_rmsnorm" or "return" not in case.get("expect", {}):
            continue
        args = {"eps": 1e-6, **build.plain_case(case, FOLDER)["args"]}
        if not all(np.isfinite(args["x"]).reshape(-1)):
            continue
        assert case["expect"]["return"]["cmp"] == "exact"
        seen += 1
        for exact, found in zip(exact_norm(**args), unit.kata_rmsnorm(**args).reshape(-1), strict=True):
            assert halfway(float(exact)) > 2.0**-45 and np.float32(float(exact)) == found, case["id"]
    assert seen > 10


def test_norm_forms_agree_where_nothing_can_turn() -> None:
    for i in range(20):
        given = oracle.plain_rows(Chooser(44, i))
        x, weight = given["x"].astype(np.float64), given["weight"].astype(np.float64)
        root = np.sqrt(np.mean(x * x, -1, keepdims=True) + given["eps"])
        forms = [x / root * weight, x * (1 / root) * weight, x * weight / root, x * (weight / root)]
        turns = np.array([[halfway(v) for v in row] for row in forms[0].tolist()]) < 2.0**-45
        for form in forms:
            gap = np.abs(form.astype(np.float32).view(np.int32) - unit.kata_rmsnorm(**given).view(np.int32))
            assert np.all(gap <= turns)


def test_decisions_on_the_bound() -> None:
    """The page's form and its neighbours: which of them are told apart by the cases flagged Rounded."""
    forms = {
        "ratio": lambda b, h, m: h / b > 1 + m,
        "difference": lambda b, h, m: h - b > b * m,
        "exact": lambda b, h, m: Fraction(h) > Fraction(b) * (1 + Fraction(m)),
    }
    told: set[str] = set()
    for case in cases():
        if "Rounded" in case.get("flags", ()):
            args = case["args"]
            b, h, m = min(args["base"]), min(args["head"]), args["max_regression"]
            verdict = case["expect"]["return"] == "regression"
            told |= {name for name, form in forms.items() if form(b, h, m) != verdict}
            assert abs(h / (b * (1 + m)) - 1) < 1e-15
    assert {"ratio", "difference"} <= told


# -- kernels, more ----------------------------------------------------------------------------------------


def test_nan_and_infinities_of_products() -> None:
    a, b = f32([NAN, 1], [2, 3], [0, 0]), f32([0, 1], [1, INF])
    assert same(unit.kata_matmul(a, b), f32([NAN, NAN], [3, INF], [0, NAN]))
    assert math.isnan(unit.kata_sum(f32(INF, -INF))) and unit.kata_sum(f32(1, -INF)) == -INF
    assert unit.kata_sum(f32()) == 0.0
    got = unit.kata_rmsnorm(f32([INF, -3, INF], [NAN, 0, 1], [1, 1, 1]), f32(1, 2, 3), 3)
    assert same(got, f32([NAN, 0, NAN], [NAN, NAN, NAN], [0.5, 1, 1.5]))


def test_counts_against_numpy_and_bisect() -> None:
    tails = tied = 0
    for i in range(200):
        given = oracle.ascending_and_one(Chooser(45, i))
        finite = [v for v in given["values"].tolist() if not math.isnan(v)]
        found = unit.kata_count_below(**given)
        assert found == bisect.bisect_left(finite, given["x"])
        assert found == np.searchsorted(np.array(finite, np.float64), given["x"])
        tails += len(finite) < len(given["values"])
        tied += given["x"] in finite
    assert tails > 20 and tied > 40


def test_torch_finds_the_same_norms() -> None:
    torch = pytest.importorskip("torch")
    for i in range(10):
        given = oracle.plain_rows(Chooser(46, i))
        x, weight = (torch.from_numpy(given[name].astype(np.float64)) for name in ("x", "weight"))
        peer = torch.nn.functional.rms_norm(x, weight.shape, weight, given["eps"]).numpy()
        assert np.allclose(unit.kata_rmsnorm(**given), peer, rtol=2.0**-23, atol=0)


# -- measuring and deciding, more -------------------------------------------------------------------------


def plain_measure(script: list[float], reps: int, min_s: float) -> list[float]:
    """The page's table, read as a table: times of batches, their sizes, the last one of each repetition."""
    times = [b - a for a, b in zip(script[::2], script[1::2], strict=True)]
    size, samples = 1, []
    for took in times:
        done = took >= min_s or size == 65536
        samples += [took / size] if done else []
        size *= 1 if done else 2
    assert len(samples) == reps
    return samples


def test_scripts_end_where_the_measurement_does() -> None:
    doubled = kept = nan = 0
    for i in range(150):
        given = oracle.clock_script(Chooser(47, i))
        script = given["clock"]["args"]["values"]
        samples, calls, at = timed(script, given["reps"], given["min_s"])
        assert samples == plain_measure(script, given["reps"], given["min_s"]) and len(at) == len(script)
        assert at[::2] == [1, *at[1:-1:2]] and at[-1] == calls
        sizes = [b - a for a, b in zip(at[::2], at[1::2], strict=True)]
        assert all(b in (a, 2 * a) for a, b in itertools.pairwise(sizes)) and sizes[0] == 1
        doubled, kept = doubled + (max(sizes) > 2), kept + any(a == b for a, b in itertools.pairwise(sizes))
        nan += any(map(math.isnan, script))
    assert doubled > 60 and kept > 60 and nan > 30


def test_nothing_is_called_before_the_arguments_are_good() -> None:
    bad_reps: list[Any] = [0, -1, True, 1.0, None, "1"]
    bad_min: list[Any] = [0.0, -1.0, NAN, INF, True, None, "1"]
    for reps, min_s in [*((reps, 1.0) for reps in bad_reps), *((1, min_s) for min_s in bad_min)]:
        work = oracle.CountedWork([1.0])
        clock = oracle.WorkClock(work)
        with pytest.raises(oracle.Refused):
            unit.measure(work, reps, min_s, clock)
        assert work.calls == 0 and clock.at == []


def test_decisions_against_another_wording() -> None:
    seen: dict[str, int] = {}
    bound = 0
    for i in range(400):
        given = oracle.two_sides(Chooser(48, i))
        answer = unit.decide(**given)
        seen[answer] = seen.get(answer, 0) + 1
        numbers = [s if isinstance(s, (int, float)) and s is not True else NAN
                   for s in (*given["base"], *given["head"])]  # fmt: skip
        good = min(len(given["base"]), len(given["head"])) >= 2
        good = good and all(math.isfinite(s) and s > 0 for s in numbers)
        assert good == (answer != "undecided")
        if good:
            old, new = sorted(given["base"])[0], sorted(given["head"])[0]
            limit = old * (1 + given["max_regression"])
            assert (answer == "ok") == (new <= limit)
            bound += new == limit
    assert min(seen.values()) > 40 and len(seen) == 3 and bound > 30


BAD: list[tuple[str, dict[str, Any], str, Any]] = [
    *[("kata_matmul", {"a": f32([1, 2]), "b": f32([1], [2])}, name, value) for name in "ab"
      for value in (f32(1, 2), f32([[1, 2]]), f64([1, 2], [3, 4]), f32([1, 2, 3]), np.array([[1, 2]]), 1.0)],
    *[("kata_sum", {"x": f32(1)}, "x", value) for value in (f32([1]), f64(1), np.array([1]), f32(1)[0])],
    *[("kata_rmsnorm", {"x": f32([1, 2]), "weight": f32(1, 2), "eps": 1e-6}, "weight", value)
      for value in (f32(1), f32([1, 2]), f32(1, 2, 3), f64(1, 2), f32())],
    *[("kata_rmsnorm", {"x": f32([1, 2]), "weight": f32(1, 2), "eps": 1e-6}, "eps", value)
      for value in (0, -1.0, NAN, INF, True, None, "1")],
    *[("kata_count_below", {"values": f64(1, 2), "x": 1.5}, "x", value) for value in (NAN, True, None, "1")],
    *[("kata_count_below", {"values": f64(1, 2), "x": 1.5}, "values", value)
      for value in (f64([1, 2]), np.array([1, 2]), np.array([1, 2], np.float16))],
    *[("decide", {"base": [1, 1], "head": [1, 1], "max_regression": 0.5}, "max_regression", value)
      for value in (0.0, 1.0, 1, 0, -0.5, NAN, INF, True, None, "0.5", 25.0)],
]  # fmt: skip


@pytest.mark.parametrize(("call", "good", "name", "value"), BAD)
def test_bad_arguments_are_refused(call: str, good: dict[str, Any], name: str, value: Any) -> None:
    getattr(unit, call)(**good)
    with pytest.raises(oracle.Refused):
        getattr(unit, call)(**{**good, name: value})


# -- doubles ----------------------------------------------------------------------------------------------


def test_doctests_of_the_doubles() -> None:
    results = doctest.testmod(testkit)
    assert results.attempted >= 9 and results.failed == 0


@pytest.mark.parametrize("kit", [testkit, oracle])
def test_doubles_do_the_same(kit: Any) -> None:
    work = kit.CountedWork([5.0, 0.25], fails_at=4)
    clock = kit.WorkClock(work, start=1.0, reading=0.5)
    now = [clock()]
    for _ in range(3):
        work()
        now.append(clock())
    assert now == [1.0, 6.5, 7.25, 8.0] and clock.at == [0, 1, 2, 3] and work.spent == 5.5
    with pytest.raises(ArithmeticError):
        work()
    assert work.calls == 4
    script = kit.ScriptedClock([3, NAN], work)
    assert script() == 3.0 and math.isnan(script())
    with pytest.raises(RuntimeError):
        script()
    assert script.at == [4, 4] and kit.ScriptedClock([1.5])() == 1.5


# -- the files --------------------------------------------------------------------------------------------


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "mutants.yaml":
            found += strict_yaml.load(path.read_bytes(), path.name)["cases"]
    return found


def test_sample_cases_of_minima_differ_from_other_summaries() -> None:
    """Every decision that claims another summary as a mistake is one where that summary decides otherwise."""
    summaries = {
        "mean-not-minimum": statistics.fmean, "median-not-minimum": statistics.median,
        "maximum-not-minimum": max, "first-not-minimum": lambda side: side[0],
    }  # fmt: skip
    seen = 0
    for case, (name, summary) in itertools.product(cases(), summaries.items()):
        if case.get("call") == "decide" and "args" in case and name in case.get("kills", ()):
            args = {k: values.plain(v) if isinstance(v, dict) else v for k, v in case["args"].items()}
            base, head = summary(args["base"]), summary(args["head"])
            wrong = "regression" if head > base * (1 + args["max_regression"]) else "ok"
            assert wrong != case["expect"]["return"], (case["id"], name)
            seen += 1
    assert seen >= 10


def test_expect_answers_raises_after_and_steps() -> None:
    work = {"id": "work", "new": "testkit.CountedWork", "args": {"fails_at": 3}}
    script = {"values": [0, 1], "work": {"ref": "work"}}
    clock = {"id": "clock", "new": "testkit.ScriptedClock", "args": script}
    args = {"fn": {"ref": "work"}, "reps": 1, "min_s": 1, "clock": {"ref": "clock"}}
    looks = {"work": {"get": "calls"}, "clock": {"get": "at"}}
    case = {"id": "perf_gate/a", "call": "measure", "args": args, "objects": [work, clock], "after": looks}
    assert oracle.expect(case) == {"return": [1.0], "after": {"work": 2, "clock": [1, 2]}}
    longer = oracle.expect({**case, "args": {**args, "min_s": 2}})
    assert longer == {"raises": "RuntimeError", "after": {"work": 2, "clock": [1, 2]}}
    more = {**clock, "args": {**script, "values": [0, 1, 2]}}
    failing = oracle.expect({**case, "args": {**args, "min_s": 2}, "objects": [work, more]})
    assert failing == {"raises": "ArithmeticError", "after": {"work": 3, "clock": [1, 2, 2]}}
    refused = oracle.expect({**case, "args": {**args, "reps": 0}})
    assert refused == {"raises": "ValueError", "after": {"work": 0, "clock": []}}
    steps = [
        {"call": "testkit.given", "args": {"value": f32([1, 2])}, "save": "b"},
        {"call": "kata_matmul", "args": {"a": f32([1], [2]), "b": {"ref": "b"}}, "save": "c"},
        {"call": "testkit.overwrite", "args": {"array": {"ref": "c"}, "value": 0}},
        {"call": "kata_sum", "args": {"x": {"ref": "b"}}},
    ]
    assert oracle.expect({"id": "perf_gate/b", "steps": steps}) == {
        "steps": [{}, {}, {"return": None}, {"raises": "ValueError"}]}  # fmt: skip


# -- draws and laws ---------------------------------------------------------------------------------------


class Zero:
    def below(self, n: int) -> int:
        assert n >= 1
        return 0


def test_simplest_draws_are_simple() -> None:
    assert oracle.exact_matrices(Zero())["a"].tolist() == [[0.0]]
    assert oracle.exact_row(Zero())["x"].shape == (0,)
    assert oracle.rows_and_weight(Zero())["x"].tolist() == [0.0]
    assert oracle.ascending_and_one(Zero())["values"].shape == (0,)
    assert oracle.clock_script(Zero())["clock"]["args"]["values"] == [0.0, 1.0]
    assert unit.decide(**oracle.two_sides(Zero())) == "ok"


LAWS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("keeps_row_sums", {"a": f32([1, 2]), "b": f32([1, 2], [3, 4])}, f32([7, 10]), f32([6, 8])),
    ("keeps_row_sums", {"a": f32([1, 2]), "b": f32([1, 2], [3, 4])}, f32([7, 10]), f32([7, 10], [0, 0])),
    ("has_unit_rows", {"x": f32([1, 1]), "weight": f32(1, 2), "eps": 3.0}, f32([0.5, 1]), f32([1, 2])),
    ("has_unit_rows", {"x": f32([1, 1]), "weight": f32(1, 2), "eps": 3.0}, f32([0.5, 1]), f32([NAN, 1])),
    ("splits", {"values": f64(1, 2, 2), "x": 2.0}, 1, 3),
    ("splits", {"values": f64(1, 2, 2), "x": 2.5}, 3, 2),
    ("splits", {"values": f64(1, 2, 2), "x": 2.5}, 3, 4),
    ("is_some_count", {"values": f64(2, 1), "x": 1.5}, 2, 3),
    ("is_some_count", {"values": f64(2, 1), "x": 1.5}, 0, True),
]


@pytest.mark.parametrize(("law", "given", "right", "wrong"), LAWS)
def test_laws_hold_and_can_be_broken(law: str, given: dict[str, Any], right: Any, wrong: Any) -> None:
    assert getattr(oracle, law)(given, right) is None
    assert isinstance(getattr(oracle, law)(given, wrong), str)
