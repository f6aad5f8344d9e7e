"""The expf oracle against the page, mpmath, the C library and PyTorch, and its law against wrong answers."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "expf"
oracle = import_file(FOLDER / "oracle.py", "expf_oracle_under_test")
INF, NAN, FLT_MAX = np.float32(np.inf), np.float32(np.nan), np.finfo(np.float32).max
TOP, NORMAL, BOTTOM = (np.float32(x) for x in (oracle.TOP, oracle.NORMAL, oracle.BOTTOM))


def row(*values: float) -> Any:
    return np.array(values, np.float32)


def bits(*words: int) -> Any:
    return np.array(words, np.uint32).view(np.float32)


def answers(x: Any) -> Any:
    """Right answers: e^x in float64, rounded to float32; -0 cannot come out of it."""
    with np.errstate(all="ignore"):
        return np.exp(x.astype(np.float64)).astype(np.float32)


def steps(y: Any, n: int) -> Any:
    """n floats up from a positive one."""
    return (y.view(np.int32) + n).astype(np.int32).view(np.float32)


def spread(n: int, low: float = oracle.BOTTOM, high: float = oracle.TOP) -> Any:
    u = (oracle.stream(7, n) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return np.clip((low + u * (high - low)).astype(np.float32), np.float32(low), np.float32(high))


# -- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (10, 0x46AC14EE), (1, 0x402DF854), (-1, 0x3EBC5AB2), (0.5, 0x3FD3094C), (5, 0x431469C5),
        (-20, 0x310DA433), (oracle.TOP, 0x7F7FFF84), (2.0**-149, 0x3F800000), (0.0, 0x3F800000),
        (-0.0, 0x3F800000), (float.fromhex("0x1.62e430p+6"), 0x7F800000), (math.inf, 0x7F800000),
        (float(FLT_MAX), 0x7F800000), (-104, 0), (-1000, 0), (-float(FLT_MAX), 0), (-math.inf, 0),
    ],
)  # fmt: skip
def test_values_of_the_page(x: float, word: int) -> None:
    told = oracle.expect({"call": "tl_expf", "args": {"x": np.float32(x)}})["return"]
    assert told.dtype == np.float32 and int(told.view(np.uint32)) == word
    assert not oracle.wrong(row(x), bits(word)).any()


def test_values_of_the_page_in_decimal() -> None:
    assert oracle.nearest(float.fromhex("0x1.4cbc14p+2")) == np.float32(181.08733)
    assert oracle.nearest(oracle.NORMAL) == np.float32(1.1754997e-38)
    assert math.isnan(oracle.nearest(math.nan))
    with pytest.raises(oracle.Ungraded):
        oracle.nearest(-100.0)
    with pytest.raises(NotImplementedError):
        oracle.answer("tl_log", {})


def test_thresholds_are_what_the_page_says() -> None:
    limits = {
        TOP: (Fraction(float(FLT_MAX)), False), NORMAL: (Fraction(2) ** -126, True),
        BOTTOM: (Fraction(2) ** -150, True),
    }  # fmt: skip
    for x, (limit, from_here_on) in limits.items():
        other = np.nextafter(x, -INF if from_here_on else INF, dtype=np.float32)
        inside, outside = (oracle.exponential(float(v)) for v in (x, other))
        assert (inside > limit > outside) if from_here_on else (inside < limit < outside)


# -- precision --------------------------------------------------------------------------------------------


def test_sixty_digits_against_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(70):
        few = row(2.0**-149, -(2.0**-30), TOP, NORMAL)
        for x in map(float, np.concatenate([spread(400, oracle.NORMAL), few])):
            value = oracle.exponential(x)
            error = mpmath.mpf(value.numerator) / value.denominator / mpmath.exp(mpmath.mpf(x)) - 1
            assert abs(error) < mpmath.mpf(10) ** (2 - oracle.DIGITS)
            assert oracle.nearest(x) == np.float32(oracle.rounded(value))


def test_float64_leaves_the_margin_that_the_law_allows() -> None:
    """The largest error of e^x in float64, in ulp of float32, is well below SLACK; by mpmath."""
    mpmath = pytest.importorskip("mpmath")
    x = np.concatenate([spread(3000), spread(1000, -1e-3, 1e-3), *(x[x <= TOP] for x in near_edges(20))])
    x = x[(x >= BOTTOM) & (x != 0)]
    value, ulp = oracle.reference(x)
    with mpmath.workdps(60):
        exact = [mpmath.exp(mpmath.mpf(float(v))) for v in x]
        off = [abs(mpmath.mpf(float(v)) - e) / float(u) for v, e, u in zip(value, exact, ulp, strict=True)]
        plain = map(float, np.exp(x.astype(np.float64)))
        relative = max(abs(mpmath.mpf(v) / e - 1) for v, e in zip(plain, exact, strict=True))
        powers = [max(int(mpmath.floor(mpmath.log(e, 2))) - 23, -149) for e in exact]
    assert relative < 4 * 2.0**-52  # what the proof in oracle.py starts from
    assert max(off) <= oracle.SLACK
    assert np.array_equal(ulp, np.ldexp(1.0, powers))  # so floor(log2) of the float64 is that of e^x


def test_verdicts_are_those_of_exact_arithmetic() -> None:
    """Two and three ulp up and down, judged with rationals."""
    x = np.concatenate([spread(150), spread(50, -1e-6, 1e-6), row(TOP, NORMAL, BOTTOM)])
    near = np.maximum(answers(x), np.float32(1e-44))
    verdicts = {shift: (steps(near, shift), oracle.wrong(x, steps(near, shift))) for shift in range(-3, 4)}
    for i, one in enumerate(map(float, x)):
        exact = oracle.exponential(one)
        power = max(math.floor(math.log2(exact)), -126)
        assert power == -126 or 2 ** Fraction(power) <= exact < 2 ** Fraction(power + 1)
        for y, bad in verdicts.values():
            gap = abs(Fraction(float(y[i])) - exact) / Fraction(2) ** (power - 23)
            fine = gap <= (1 if one < oracle.NORMAL else 2) or (one < oracle.NORMAL and y[i] == 0)
            assert bad[i] != fine, (one, y[i], float(gap))


def near_edges(width: int) -> list[Any]:
    return [oracle.near_edges(None, width)["x"], oracle.near_multiples(None, 1, 2)["x"]]


# -- the law ----------------------------------------------------------------------------------------------


def test_right_answers_pass() -> None:
    for x in [*near_edges(300), oracle.words_of(Chooser(1, 1), 50000), spread(50000)]:
        y = answers(x)
        assert not oracle.wrong(x, y).any()
        flushed = np.where(x < NORMAL, np.float32(0), y)
        assert not oracle.wrong(x, np.where(np.isnan(x), y, flushed).astype(np.float32)).any()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1.0, 2.718283), (10.0, 22026.473), (88.0, math.inf), (1.0, math.nan), (1.0, -2.7182817),
        (oracle.TOP, math.inf), (oracle.TOP, float(FLT_MAX)), (88.72284, float(FLT_MAX)),
        (math.inf, float(FLT_MAX)), (math.inf, math.nan), (0.0, 0.0), (0.0, 1.0000001), (-0.0, 0.99999994),
        (-100.0, 2.0**-126), (-100.0, -0.0), (-100.0, 4.1e-44), (oracle.BOTTOM, 3e-45), (-104.0, 1e-45),
        (-104.0, -0.0), (-math.inf, -0.0), (-math.inf, math.nan), (math.nan, 1.0), (math.nan, math.inf),
        (oracle.NORMAL, 0.0), (-80.1, 0.0), (-(2.0**-149), 1.0000002), (2.0**-149, 1.0000004),
    ],
)  # fmt: skip
def test_wrong_answers_do_not(x: float, y: float) -> None:
    assert oracle.wrong(row(x), row(y)).all()
    assert oracle.right({"x": np.float32(x)}, np.float32(y)) is not None
    assert oracle.right({"x": row(x), "n": 1}, {"y": row(y)}) is not None


@pytest.mark.parametrize("y", [0.0, 3.6e-44, 3.8e-44])
def test_a_subnormal_result_may_be_zero_or_either_neighbour(y: float) -> None:
    assert not oracle.wrong(row(-100), row(y)).any()


def test_the_text_names_the_first_wrong_element() -> None:
    told = oracle.right({"x": row(0, 1, 1), "n": 3}, {"y": row(1, 2.8, 2)})
    first = "e^1.0 (0x3F800000, element 1) is 2.71828183, got 2.8, 3.428e+05 ulp off"
    assert told == f"{first}; 2 of 3 are wrong"
    assert "ulp" not in (oracle.right({"x": row(1)}, np.float32(np.inf)) or "ulp")


def test_only_the_arrays_that_were_asked_for() -> None:
    given = {"x": row(0), "n": 1}
    assert oracle.right(given, {"y": row(1)}) is None
    for got in ({"y": row(1), "slot": "tl_exp_f32"}, {"y": "untouched"}, {}):
        with pytest.raises(ValueError):
            oracle.right(given, got)


def test_what_stands_behind_n_is_kept() -> None:
    given, kept = {"x": row(0, 0, 0), "n": 1}, 0xA5A5A5A5
    assert oracle.right(given, {"y": bits(0x3F800000, kept, kept)}) is None
    assert oracle.right(given, {"y": bits(0x3F800000, kept, 0)}) == "y[2] was written, n is 1"


def test_three_ways() -> None:
    x = row(1, np.nan, -1, 0)
    y, nan = answers(x), bits(0xFFFFFFFF)
    given, other = {"x": x, "n": 4}, np.concatenate([y[:1], nan, y[2:]])
    assert oracle.three_ways(given, {"one": y, "many": other, "same": y}) is None
    off = np.concatenate([y[:2], steps(y[2:3], 1), y[3:]])
    assert "the array form" in oracle.three_ways(given, {"one": y, "many": off, "same": y})
    assert "in place" in oracle.three_ways(given, {"one": y, "many": y, "same": off})
    assert oracle.three_ways(given, {"one": off, "many": off, "same": off}) is None  # within 2 ulp too
    assert "one by one" in oracle.three_ways(given, dict.fromkeys(("one", "many", "same"), y + np.float32(1)))


def lengths_of(x: Any, most: int) -> Any:
    space = bits(*[oracle.FILL] * oracle.SPACE)
    return np.concatenate([part for n in range(most + 1) for part in (answers(x[most - n :]), space)])


def test_every_length() -> None:
    given = oracle.lengths(Chooser(1, 2), 9)
    y = lengths_of(given["x"], 9)
    assert len(y) == oracle.size_of(given["y"]) and oracle.every_length(given, {"y": y}) is None
    for at in range(len(y)):
        other = y.copy()
        other.view(np.uint32)[at] ^= 0x00C00000
        changed = oracle.every_length(given, {"y": other})
        assert changed is not None or (np.isnan(y[at]) and np.isnan(other[at])), at
    x = row(0.5, 0.5, 0.5)
    y = lengths_of(x, 3)
    y[3] = steps(y[3:4], 1)[0]
    assert "other bits" in oracle.every_length({"x": x, "most": 3}, {"y": y})


def test_alike() -> None:
    x, y = row(0.5, np.nan, 0.5, np.nan), answers(row(0.5, np.nan, 0.5, np.nan))
    given = {"x": x, "n": 4}
    assert oracle.alike(given, {"y": y}) is None
    y[2] = steps(y[2:3], 1)[0]
    assert "x[0] and x[2] are 0.5" in oracle.alike(given, {"y": y})
    assert "are wrong" in oracle.alike(given, {"y": np.where(np.isnan(x), x, np.float32(2))})


# -- the array form of literal cases ----------------------------------------------------------------------


def array(x: Any, y: Any, n: int) -> Any:
    return oracle.expect({"call": "tl_exp_f32", "args": {"x": x, "y": y, "n": n}})


def test_array_form() -> None:
    assert array(None, None, 0) == array(row(1), None, -1) == {"return": None}
    assert array(row(1), {"buffer": "f32[1]"}, 0) == {"return": {"y": "untouched"}}
    assert array(None, {"buffer": "f32[1]"}, -7) == {"return": {"y": "untouched"}}
    told = array(row(0, -INF, 9), {"buffer": "f32[3]"}, 2)["return"]["y"]
    assert told.view(np.uint32).tolist() == [0x3F800000, 0, oracle.FILL]
    told = array(row(0, -INF, 9), {"alias": "x"}, 2)
    assert told["return"] is None and told["args"]["x"].tolist() == [1, 0, 9]


# -- draws ------------------------------------------------------------------------------------------------


def test_runs() -> None:
    given = oracle.run_of(Chooser(1, 1), "0x3f800000", "0x3f800064", 7)
    x = oracle.arguments(given)
    assert len(x) == given["n"] == oracle.size_of(given["y"]) and 1 <= x[0] < steps(row(1), 7)[0]
    assert steps(row(1), 93)[0] < x[-1] <= steps(row(1), 100)[0]
    assert set(np.diff(x.view(np.int32)).tolist()) == {7}
    runs = [oracle.run_of(Chooser(1, i), -87.33654, 88.72283, 11537671, True) for i in range(16)]
    x = np.concatenate([oracle.arguments(given) for given in runs])
    assert len(set(x.tolist())) > 1000000 and x.min() >= NORMAL and x.max() <= TOP


def test_multiples_and_edges() -> None:
    x = oracle.near_multiples(None, 1, 64)["x"]
    assert len(x) == 254 * 129
    left = x.astype(np.float64) / math.log(2)
    assert np.abs(left - np.floor(left) - 0.5).max() < 1e-3
    edges = set(oracle.near_edges(None, 1)["x"].tolist())
    assert {float(TOP), float(NORMAL), float(BOTTOM), 0.0, math.inf} <= edges


def test_words_are_of_all_kinds() -> None:
    x = oracle.words_of(Chooser(2, 3), 20000)
    usual = (x >= BOTTOM) & (x <= TOP)
    assert 0.5 < usual.mean() < 0.95 and np.isnan(x).any() and (x == 0).any() and (x > TOP).any()
    for part in ((x < NORMAL) & (x >= BOTTOM), x < BOTTOM, np.isinf(x), x == TOP, x == NORMAL, x == BOTTOM):
        assert part.any()


def test_repeated_and_all_one() -> None:
    x = oracle.repeated(Chooser(1, 5), 40)["x"]
    assert len(x) == 160 and np.array_equal(x[:40].view(np.uint32), x[40:80][::-1].view(np.uint32))
    x = oracle.all_one(Chooser(1, 6), 30)["x"]
    assert len(set(x.view(np.uint32).tolist())) == 1


# -- peers ------------------------------------------------------------------------------------------------


def peer_inputs() -> Any:
    return np.concatenate([*near_edges(50), spread(20000)])


def test_the_c_library_is_within_the_bound() -> None:
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("there is no libm")
    expf = ctypes.CDLL(name).expf
    expf.argtypes, expf.restype = [ctypes.c_float], ctypes.c_float
    x = peer_inputs()
    assert oracle.first_of(*judged(x, row(*[expf(float(v)) for v in x]))) is None


def test_torch_is_within_the_bound() -> None:
    torch = pytest.importorskip("torch")
    x = peer_inputs()
    assert oracle.first_of(*judged(x, torch.exp(torch.from_numpy(x)).numpy())) is None


def judged(x: Any, y: Any) -> Any:
    return oracle.wrong(x, y), x, y
