"""The rejection oracle against exact arithmetic, the page's numbers, and the laws it is there for."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import build, strict_yaml, values
from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "rejection"
oracle = import_file(FOLDER / "oracle.py", "rejection_oracle_under_test")
unit = oracle.Oracle()
LAST = oracle.LAST


def f64(*entries: float) -> Any:
    return np.array(entries, np.float64)


def scripted(*uniforms: float) -> Any:
    return oracle.ScriptedUniforms(uniforms)


P, Q = f64(0.5, 0.25, 0.25, 0), f64(0.25, 0.5, 0, 0.25)
P3, Q3 = f64(0.5, 0.25, 0.25), f64(0.25, 0.25, 0.5)

# -- the generator: published vectors ---------------------------------------------------------------------


def test_pcg32_gives_the_published_outputs() -> None:
    first = [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]
    rng = oracle.PCG32(42)
    assert [rng.next_u32() for _ in first] == first
    assert oracle.PCG32(0).state() == [0x9AE4F7499BA72696, 109]
    rng = oracle.PCG32(1)
    want = [0.6071146506640145, 0.8070064150429078, 0.579079442525411, 0.6869878306011451]
    assert [rng.uniform() for _ in want] == want
    rng = oracle.PCG32(1)
    assert [rng.below(10) for _ in range(16)] == [7, 0, 9, 4, 2, 7, 6, 7, 6, 5, 8, 0, 8, 2, 6, 2]


# -- the worked example -----------------------------------------------------------------------------------


def test_example() -> None:
    assert unit.acceptance_probability(P, Q) == 0.5
    assert unit.residual_distribution(P, Q).tolist() == [0.5, 0, 0.5, 0]
    assert unit.speculative_step(P, Q, 1, 0.25, "anything") == [1, True]
    assert unit.speculative_step(P, Q, 1, 0.75, 0.75) == [2, False]
    assert unit.speculative_step(P, Q, 1, 0.5, 0.25) == [0, False]


def test_example_samples() -> None:
    rng, other = oracle.PCG32(1), oracle.PCG32(1)
    assert unit.rejection_sample(P3, Q3, 2, rng) == [0, 3]
    drawn = [other.uniform() for _ in range(6)]
    assert rng.state() == other.state()
    assert drawn[4:] == [0.13930748004392746, 0.35622445744041753]


@pytest.mark.parametrize(
    ("p_x", "q_x", "u", "want"),
    [
        (0, 0.5, 0, False), (0.5, 0.5, 0.999, True), (0.057, 0.57, 0.1, False),
        (5e-324, 2, 0, False), (1, 5e-324, 0.999, True),
    ],
)  # fmt: skip
def test_small_acceptances(p_x: float, q_x: float, u: float, want: bool) -> None:
    assert unit.rejection_accept(p_x, q_x, u) is want


def test_small_rows() -> None:
    tenths, ninths = f64(*[0.1] * 10), f64(*[1 / 9] * 9)
    assert unit.acceptance_probability(tenths, tenths) == 0.9999999999999999 != np.sum(tenths)
    assert unit.acceptance_probability(ninths, ninths) == 1.0000000000000002 != np.sum(ninths)
    residual = unit.residual_distribution
    assert residual(f64(0.5, 0.3, 0.2), f64(0.2, 0.2, 0.6)).tolist() == [0.75, 0.24999999999999997, 0]
    nearly, halves = f64(0.5, 0.5 - 1e-12), f64(0.5, 0.5)
    assert residual(nearly, halves).tolist() == nearly.tolist()
    assert residual(f64(0.1 + 0.2, 0.7), f64(0.3, 0.7)).tolist() == [1, 0]
    assert unit.speculative_step(nearly, halves, 1, LAST, 0.75) == [1, False]
    one = f64(1, 0)
    assert unit.speculative_step(halves, one, 0, 0.499, 0) == [0, True]
    assert unit.speculative_step(halves, one, 0, 0.5, 0) == [1, False]
    assert oracle.pick([0.5, 0.5 - 1e-9, 0], LAST) == 1
    assert 0.05 / (1.1 * 0.07) == 0.6493506493506492 and 0.05 / 0.07 / 1.1 == 0.6493506493506493
    assert 1.2 * 0.19 == 0.22799999999999998 < 0.228


def test_tolerance_of_the_sum() -> None:
    assert oracle.distribution(f64(0.5, 0.5 + 2e-9), "p")
    with pytest.raises(oracle.Refused, match="p does not sum to 1"):
        oracle.distribution(f64(0.5, 0.5 + 2.1e-9), "p")


# -- the law of the output, exactly -----------------------------------------------------------------------


def rows_of_eighths(n: int) -> list[tuple[int, ...]]:
    return [row for row in itertools.product(range(9), repeat=n) if sum(row) == 8]


def eighths(row: tuple[int, ...]) -> list[float]:
    return [x / 8 for x in row]


def law_of_step(ps: list[float], qs: list[float]) -> list[Fraction]:
    """The law of what comes out, from the oracle's own decisions: its ratio and its residual, as fractions.

    The measure of {u: u < r} is min(1, r); the quotient of two eighths may be rounded, so r is taken exactly,
    and that the rounded one decides like it is looked at on both sides.
    """
    out, left = [Fraction(0)] * len(ps), [Fraction(x) for x in oracle.residual(ps, qs)]
    exact = [max(Fraction(a) - Fraction(b), Fraction(0)) for a, b in zip(ps, qs, strict=True)]
    total = sum(exact)
    if total:
        rounded_shares, left = left, [d / total for d in exact]
        assert all(abs(w - d) <= d / 2**53 for w, d in zip(rounded_shares, left, strict=True))
    for x, b in enumerate(qs):
        if b == 0:
            continue
        kept = min(Fraction(1), Fraction(ps[x]) / Fraction(b))
        rounded = min(1.0, ps[x] / b)
        assert abs(Fraction(rounded) - kept) <= kept * Fraction(1, 2**53)
        if rounded > 0:
            assert oracle.accepts(ps[x], b, math.nextafter(rounded, 0))
        if rounded < 1:
            assert not oracle.accepts(ps[x], b, rounded)
        out[x] += Fraction(b) * kept
        for i, w in enumerate(left):
            out[i] += Fraction(b) * (1 - kept) * w
    return out


@pytest.mark.parametrize("n", [1, 2, 3])
def test_step_has_exactly_the_law_of_p_for_all_eighths(n: int) -> None:
    rows = rows_of_eighths(n)
    for p, q in itertools.product(rows, rows):
        ps, qs = eighths(p), eighths(q)
        assert law_of_step(ps, qs) == [Fraction(x) for x in ps], (p, q)


GRID = [k / 8 for k in range(8)]


def on_grid(row: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether 1/8 is fine enough: every ratio below 1 and every share of the residual is a multiple."""
    missing = [max(a - b, 0) for a, b in zip(row, other, strict=True)]
    over = sum(missing)
    ratios = all(8 * a % b == 0 for a, b in zip(row, other, strict=True) if 0 < a < b)
    return ratios and (over == 0 or all(8 * d % over == 0 for d in missing))


def test_step_called_on_a_grid_has_the_law_of_p() -> None:
    """Every (x, u, u') of the grid through the public function, weighted by q: counts are exactly p."""
    seen = 0
    for p, q in itertools.product(rows_of_eighths(3), repeat=2):
        if not on_grid(p, q):
            continue
        seen += 1
        counts: Counter[int] = Counter()
        for x, weight in enumerate(q):
            for u, again in itertools.product(GRID, GRID) if weight else ():
                counts[unit.speculative_step(f64(*eighths(p)), f64(*eighths(q)), x, u, again)[0]] += weight
        assert [counts[i] * 8 for i in range(3)] == [x * 512 for x in p], (p, q)
    assert seen > 400


def test_one_try_accepts_with_probability_one_over_m_and_the_law_of_p() -> None:
    """Every pair of uniforms of the grid through `rejection_sample` with one try."""
    for p, q, m in (((4, 2, 2), (2, 2, 4), 2), ((4, 4, 0), (4, 2, 2), 2), ((8, 0, 0), (4, 2, 2), 2),
                    ((2, 2, 4), (2, 2, 4), 1), ((2, 5, 1), (2, 4, 2), 4)):  # fmt: skip
        counts: Counter[int] = Counter()
        fine = [k / 32 for k in range(32)]
        for u, again in itertools.product(GRID, fine):
            try:
                x, tries = unit.rejection_sample(
                    f64(*eighths(p)), f64(*eighths(q)), m, scripted(u, again), max_tries=1
                )
            except oracle.Exhausted:
                continue
            assert tries == 1
            counts[x] += 1
        assert sum(counts.values()) * m == 8 * 32
        assert [counts[i] * m * 8 for i in range(3)] == [x * 256 for x in p]


def test_overlap_residual_and_distance_agree_for_all_eighths() -> None:
    for p, q in itertools.product(rows_of_eighths(3), repeat=2):
        given = {"p": f64(*eighths(p)), "q": f64(*eighths(q))}
        overlap, residual = unit.acceptance_probability(**given), unit.residual_distribution(**given)
        assert oracle.is_one_minus_distance(given, overlap) is None
        assert oracle.is_residual(given, residual) is None
        distance = sum(abs(a - b) for a, b in zip(p, q, strict=True))
        assert overlap == 1 - Fraction(distance, 16)


# -- draw accounting --------------------------------------------------------------------------------------


def test_every_try_draws_two() -> None:
    rng = scripted(0.3, 0.6, 0.9, 0.5, 0.0, 0.0, 0.0, 0.0)  # ratios 1, 0.5, 0.25
    assert unit.rejection_sample(P3, Q3, 2, rng) == [0, 3] and rng.used == 6
    rng = scripted(0.0, LAST, 0.0)
    assert unit.rejection_sample(P3, Q3, 2, rng) == [0, 1] and rng.used == 2  # certain, and drawn


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_last_allowed_try(most: int) -> None:
    refused = [0.9, 0.5]
    rng = scripted(*refused * most, 0.0, 0.0)
    with pytest.raises(oracle.Exhausted):
        unit.rejection_sample(P3, Q3, 2, rng, most)
    assert rng.used == 2 * most
    rng = scripted(*refused * most, 0.0, 0.0)
    assert unit.rejection_sample(P3, Q3, 2, rng, most + 1) == [0, most + 1]


def test_tries_are_geometric_with_mean_m() -> None:
    rng, n = oracle.PCG32(76), 4000
    tries = [unit.rejection_sample(P3, Q3, 2.5, rng)[1] for _ in range(n)]
    deviation = math.sqrt(2.5 * 1.5 / n)
    assert abs(sum(tries) / n - 2.5) < 5 * deviation
    assert abs(tries.count(1) / n - 0.4) < 5 * math.sqrt(0.24 / n)


# -- refusals ---------------------------------------------------------------------------------------------

GOOD: dict[str, dict[str, Any]] = {
    "rejection_accept": {"p_x": 0.25, "q_x": 0.5, "u": 0.25},
    "acceptance_probability": {"p": P3, "q": Q3},
    "residual_distribution": {"p": P3, "q": Q3},
    "speculative_step": {"p": P3, "q": Q3, "x": 2, "u_accept": 0.75, "u_resample": 0.5},
    "rejection_sample": {"p": P3, "q": Q3, "m": 2.0, "max_tries": 5},
}
NUMBERS = [True, "0.5", None, math.nan, math.inf, -0.25, [0.5]]
ROWS = [
    f64(), f64([0.5, 0.25, 0.25]), np.array([1, 0, 0]), np.array([True, False, False]), f64(0.5, 0.5),
    f64(0.5, 0.25, 0.25, 0), f64(math.nan, 0.5, 0.5), f64(math.inf, 0, 0), f64(0.75, -0.25, 0.5),
    f64(2, 1, 1), f64(0, 0, 0), np.array([0.1, 0.2, 0.7], np.float32), [0.5, 0.25, 0.25],
]  # fmt: skip
BAD = [
    *[("rejection_accept", name, value) for name in ("p_x", "q_x", "u") for value in NUMBERS],
    ("rejection_accept", "q_x", 0.0), ("rejection_accept", "u", 1.0), ("rejection_accept", "u", 1),
    *[("speculative_step", name, value) for name in ("u_accept", "u_resample") for value in [*NUMBERS, 1.0]],
    *[("speculative_step", "x", value) for value in (-1, 3, True, 1.0, None)],
    *[("rejection_sample", "m", value) for value in [*NUMBERS, 0, 0.999]],
    *[("rejection_sample", "max_tries", value) for value in (0, -1, True, 1.0, None)],
    *[(call, row, value) for call in GOOD if call != "rejection_accept" for row in "pq" for value in ROWS],
]  # fmt: skip


def called(call: str, args: dict[str, Any]) -> tuple[Any, int]:
    rng = scripted(0.9, 0.2)
    more = {"rng": rng} if call == "rejection_sample" else {}
    return getattr(unit, call)(**args, **more), rng.used


@pytest.mark.parametrize("call", sorted(GOOD))
def test_the_good_arguments_are_good(call: str) -> None:
    called(call, GOOD[call])


@pytest.mark.parametrize(("call", "name", "value"), BAD)
def test_bad_arguments_are_refused(call: str, name: str, value: Any) -> None:
    with pytest.raises(oracle.Refused):
        called(call, {**GOOD[call], name: value})


def test_a_refusal_draws_nothing_and_an_envelope_is_exact() -> None:
    rng = scripted(0.0, 0.0)
    for p, q, m in ((f64(0.228, 0.772), f64(0.19, 0.81), 1.2), (f64(0.25, 0.75), f64(0.5, 0.5), 1.25),
                    (f64(0.5, 0.5, 0), f64(0.5, 0, 0.5), 1e6)):  # fmt: skip
        with pytest.raises(oracle.Refused, match="p > m q"):
            unit.rejection_sample(p, q, m, rng)
    assert rng.used == 0
    assert unit.rejection_sample(f64(0.25, 0.75), f64(0.5, 0.5), 1.5, rng) == [0, 1]


def test_what_a_refusal_must_not_depend_on() -> None:
    for anything in (math.nan, 1.0, -1.0, None, "later", [], True):
        assert unit.speculative_step(P, Q, 1, 0.25, anything) == [1, True]
    with pytest.raises(oracle.Refused):
        unit.speculative_step(P, Q, 2, 0.25, 0.5)  # q is 0 there, p is not


# -- a peer -----------------------------------------------------------------------------------------------


def test_scipy_finds_the_output_distributed_like_p() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng, n = oracle.PCG32(2026), 20_000
    p, q = f64(0.35, 0.05, 0.3, 0.2, 0.1), f64(0.1, 0.4, 0.2, 0.2, 0.1)
    stepped, sampled = [0] * 5, [0] * 5
    for _ in range(n):
        x = oracle.pick(q.tolist(), rng.uniform())
        stepped[unit.speculative_step(p, q, x, rng.uniform(), rng.uniform())[0]] += 1
    for _ in range(n // 4):
        sampled[unit.rejection_sample(p, q, 3.5000000000000004, rng)[0]] += 1
    assert stats.chisquare(stepped, p * n).pvalue > 1e-4
    assert stats.chisquare(sampled, p * (n // 4)).pvalue > 1e-4


# -- the files --------------------------------------------------------------------------------------------


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "mutants.yaml":
            found += strict_yaml.load(path.read_bytes(), path.name)["cases"]
    return found


def test_scripts_hold_more_than_a_run_out_of_tries_takes() -> None:
    """A dry script raises a RuntimeError too: the expected one must come with uniforms left."""
    seen = 0
    for case in cases():
        if case.get("expect", {}).get("raises") == "RuntimeError":
            seen += 1
            most = case["args"]["max_tries"]
            assert len(case["objects"][0]["args"]["values"]) >= 2 * most + 2, case["id"]
            assert case["expect"]["after"]["rng"]["return"] == 2 * most, case["id"]
    assert seen >= 2


def test_cases_of_steps_hold_in_exact_arithmetic() -> None:
    """Accepted or not, by fractions; where only rounding decides, the case says so with a flag."""
    seen = 0
    for case in cases():
        if case.get("call") != "speculative_step" or "return" not in case.get("expect", {}):
            continue
        args = build.plain_case(case, FOLDER)["args"]
        ps, qs = (Fraction(float(row[args["x"]])) for row in (args["p"], args["q"]))
        accepted = values.decode(case["expect"]["return"])[1]
        exact = Fraction(args["u_accept"]) < ps / qs
        assert accepted == exact or "Quotient" in case.get("flags", ()), case["id"]
        seen += 1
    assert seen > 15


def test_expect_answers_raises_after_and_steps() -> None:
    rng = {"id": "rng", "new": "testkit.ScriptedUniforms", "args": {"values": [0.9, 0.5, 0.0, 0.0]}}
    args = {"p": P3, "q": Q3, "m": 2, "rng": {"ref": "rng"}, "max_tries": 1}
    case = {"id": "rejection/a", "call": "rejection_sample", "args": args, "objects": [rng], "after": {}}
    assert oracle.expect(case) == {"raises": "RuntimeError", "after": {"rng": 2}}
    more = oracle.expect({**case, "args": {**args, "max_tries": 2}})
    assert more == {"return": [0, 2], "after": {"rng": 4}}
    assert oracle.expect({**case, "args": {**args, "m": 1}}) == {"raises": "ValueError", "after": {"rng": 0}}
    steps = [
        {"call": "rejection_sample", "args": {**args, "max_tries": 5}},
        {"get": "used", "on": "rng", "args": {}},
        {"call": "residual_distribution", "args": {"p": P3, "q": P3}, "save": "r"},
        {"call": "testkit.overwrite", "args": {"array": {"ref": "r"}, "value": 0}},
        {"call": "acceptance_probability", "args": {"p": {"ref": "r"}, "q": Q3}},
    ]
    told = oracle.expect({"id": "rejection/b", "objects": [rng], "steps": steps})
    first = [{"return": [0, 2]}, {"return": 4}, {}, {"return": None}]
    assert told == {"steps": [*first, {"raises": "ValueError"}]}


def test_generate_is_repeatable_and_rejects() -> None:
    document = oracle.generate()["golden.gen.yaml"]
    assert document == oracle.generate()["golden.gen.yaml"]
    samples = [case["steps"][:-1] for case in document["cases"] if "objects" in case]
    steps = [case["steps"] for case in document["cases"] if "objects" not in case]
    assert len(samples) == len(steps) == 3
    assert all(max(step["return"][1] for step in trace) > 1 for trace in samples)
    assert all({step["return"][1] for step in trace} == {True, False} for trace in steps)


# -- draws and laws ---------------------------------------------------------------------------------------


def test_draws_plant_what_they_promise() -> None:
    ties = equal = zeros = refused = resampled = 0
    for i in range(300):
        given = oracle.planted_step(Chooser(5, i))
        ps, qs = oracle.pair(given["p"], given["q"])
        _, accepted = unit.speculative_step(**given)
        equal, zeros = equal + (ps == qs), zeros + (0.0 in ps and 0.0 in qs)
        ties += given["u_accept"] == ps[given["x"]] / qs[given["x"]]
        resampled += not accepted
    assert ties > 40 and equal > 40 and zeros > 40 and resampled > 60
    several = 0
    for i in range(300):
        given = oracle.planted_sample(Chooser(6, i))
        script = oracle.ScriptedUniforms(given["rng"]["args"]["values"])
        try:
            _, tries = unit.rejection_sample(**{**given, "rng": script})
            assert script.used == len(script.values)
            several += tries > 1
        except oracle.Exhausted:
            refused += 1
            again = oracle.ScriptedUniforms(script.values)
            most = given["max_tries"] + 1
            _, tries = unit.rejection_sample(**{**given, "rng": again, "max_tries": most})
            assert tries == most  # one try too many would not go unnoticed
    assert several > 40 and refused > 20


def test_simplest_draws_are_simple() -> None:
    class Zero:
        def below(self, n: int) -> int:
            assert n >= 1
            return 0

    assert [row.tolist() for row in oracle.planted_pair(Zero()).values()] == [[1, 0], [1, 0]]
    assert oracle.planted_step(Zero())["u_accept"] == 0.0
    assert unit.rejection_sample(**{**oracle.planted_sample(Zero()), "rng": scripted(0.0, 0.0)}) == [0, 1]
    assert all(row.shape == (40,) for row in oracle.generic_pair(Zero()).values())


def test_generic_draws_show_another_order_of_sums() -> None:
    pairwise = exact = 0
    for i in range(60):
        given = oracle.generic_pair(Chooser(7, i))
        smaller = np.minimum(given["p"], given["q"])
        overlap = unit.acceptance_probability(**given)
        pairwise, exact = pairwise + (overlap != np.sum(smaller)), exact + (overlap != math.fsum(smaller))
    assert pairwise > 30 and exact > 30


STEP = {"p": f64(1, 0), "q": f64(0.5, 0.5), "x": 0}
LAWS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("is_residual", {"p": P, "q": Q}, f64(0.5, 0, 0.5, 0), f64(0.25, 0, 0.25, 0)),
    ("is_residual", {"p": P, "q": Q}, f64(0.5, 0, 0.5, 0), f64(0.5, 0.25, 0.25, 0)),
    ("is_residual", {"p": P, "q": Q}, f64(0.5, 0, 0.5, 0), f64(1.5, 0, -0.5, 0)),
    ("is_residual", {"p": P, "q": Q}, f64(0.5, 0, 0.5, 0), f64(math.nan, 0, 0.5, 0)),
    ("is_residual", {"p": P3, "q": P3}, P3, f64(0, 0, 1)),
    ("is_residual", {"p": P3, "q": P3}, P3, f64(0, 0, 0)),
    ("is_one_minus_distance", {"p": P, "q": Q}, 0.5, 0.5000000000000001),
    ("is_one_minus_distance", {"p": P, "q": Q}, 0.5, math.nan),
    ("from_the_target", STEP, [0, True], [1, False]),
    ("from_the_target", STEP, [0, False], [2, False]),
    ("from_the_target", {**STEP, "x": 1}, [0, False], [0, True]),
]


@pytest.mark.parametrize(("law", "given", "right", "wrong"), LAWS)
def test_laws_hold_and_can_be_broken(law: str, given: dict[str, Any], right: Any, wrong: Any) -> None:
    assert getattr(oracle, law)(given, right) is None
    assert isinstance(getattr(oracle, law)(given, wrong), str)
