"""The rsqrt oracle against the page, exact rationals where float64 is near to err, NumPy and mpmath."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "rsqrt"
oracle = import_file(FOLDER / "oracle.py", "rsqrt_oracle_under_test")
INF, NAN = np.float32(np.inf), np.float32(np.nan)
ONE, SMALLEST_NORMAL = 0x3F800000, 0x00800000


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def of_bits(*words: int) -> Any:
    return oracle.floats(np.array(words, np.uint32))


def nearest(x: Any) -> Any:
    return oracle.expect({"call": "tl_rsqrtf", "args": {"x": np.float32(x)}})["return"]


def steps_from(y: Any, steps: int) -> Any:
    """The float32 so many places further away from zero."""
    return of_bits(int(oracle.bits(y)[0]) + steps)[0]


# -- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (4.0, 0x3F000000), (0.25, 0x40000000), (1.0, 0x3F800000), (2.0, 0x3F3504F3), (0.15625, 0x4021E89B),
        (2.0**-148, 0x64800000), (0.0, 0x7F800000), (-0.0, 0xFF800000), (np.inf, 0),
    ],
)  # fmt: skip
def test_values_of_the_page(x: float, word: int) -> None:
    assert oracle.bits(f32(nearest(x)))[0] == word


def test_decimals_of_the_page() -> None:
    assert nearest(float.fromhex("0x1.07d788p+0")) == np.float32(0.98502689)
    assert nearest(np.finfo(np.float32).max) == np.float32(5.421011e-20) == 2.0**-64
    assert nearest(2.0**-149) == np.float32(2.6713739e22)


@pytest.mark.parametrize("x", [-1.0, -(2.0**-149), -np.inf, np.nan])
def test_what_is_nan(x: float) -> None:
    assert np.isnan(nearest(x))
    assert oracle.is_within(np.float32(x), NAN)
    assert not oracle.is_within(np.float32(x), np.float32(0))


def newton(x: Any, singles: int, doubles: int) -> Any:
    """The steps of the page's worked example."""
    y = (np.uint32(0x5F3759DF) - (x.view(np.uint32) >> np.uint32(1))).view(np.float32)
    half = x * np.float32(0.5)
    for _ in range(singles):
        y = y * (np.float32(1.5) - half * y * y)
    wide, half_wide = y.astype(np.float64), x.astype(np.float64) * 0.5
    for _ in range(doubles):
        wide = wide * (1.5 - half_wide * wide * wide)
    return wide.astype(np.float32)


def test_steps_of_the_page() -> None:
    four = f32(4)
    said = [(0, 0, 0x3EF759DF), (1, 0, 0x3EFF910F), (2, 0, 0x3EFFFFB7), (2, 1, 0x3F000000)]
    for singles, doubles, word in said:
        assert oracle.bits(newton(four, singles, doubles))[0] == word


# -- every float from 1 to 4, every subnormal -------------------------------------------------------------


def blocks(first: int, n: int) -> Iterator[Any]:
    for start in range(first, first + n, 1 << 18):
        yield oracle.floats(np.arange(start, min(start + (1 << 18), first + n), dtype=np.uint32))


RANGES = [(ONE, 1 << 24), (1, SMALLEST_NORMAL - 1)]


@pytest.mark.parametrize(("first", "n"), RANGES)
def test_no_root_lies_where_float64_would_err(first: int, n: int) -> None:
    """float64 gives 1/sqrt(x) within 2^-52 of it, and y is a multiple of half an ulp of the root: the verdict
    can be wrong only where the root is within 2^-27 of half an ulp. Those are looked at as rationals."""
    near = 0
    for x in blocks(first, n):
        root = 1.0 / np.sqrt(x.astype(np.float64))
        halves = np.ldexp(root, 25 - np.frexp(root)[1])  # 2^24 <= halves < 2^25: half ulps
        for i in np.flatnonzero(np.abs(halves - np.rint(halves)) < 2.0**-26):
            near += 1
            exact = Fraction(float(x[i]))
            grid = np.ldexp(np.rint(halves[i]), int(np.frexp(root[i])[1]) - 25)
            side = Fraction(grid) ** 2 * exact - 1  # > 0: the root is below the grid
            apart = root[i] - grid
            assert (side > 0) == (apart < 0) and (side == 0) == (apart == 0), x[i]
    assert near < 40


@pytest.mark.parametrize(("first", "n"), RANGES)
def test_errors_that_the_page_quotes(first: int, n: int) -> None:
    worst = dict.fromkeys(((2, 0), (3, 0), (2, 1)), 0.0)
    scale, back = (np.float32(1), np.float32(1)) if first == ONE else (np.float32(2**24), np.float32(2**12))
    for x in blocks(first, n):
        for way in worst if first == ONE else [(2, 1)]:
            y = newton(x * scale, *way) * back
            worst[way] = max(worst[way], float(oracle.off(x, y).max()))
    if first == ONE:
        assert (round(worst[2, 0], 1), round(worst[3, 0], 2)) == (73.3, 2.18)
        assert round(worst[2, 1], 5) == 0.50038
    else:
        assert round(worst[2, 1], 5) == 0.50032


# -- one value: rationals, float64, mpmath ----------------------------------------------------------------


def sample(n: int) -> Any:
    kinds = [oracle.values_of(kind, n, 7) for kind in ("normal", "subnormal", "edges")]
    x = np.concatenate([*kinds, oracle.powers(None, near=2)["x"]])
    return x[(x > 0) & (x < INF)]


def test_the_nearest_is_float64_rounded() -> None:
    for x in sample(300):
        assert nearest(x) == np.float32(1.0 / np.sqrt(np.float64(x))), x


def test_nearest_against_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(200):
        for x in sample(60):
            root = 1 / mpmath.sqrt(mpmath.mpf(float(x)))
            ulp = mpmath.mpf(2) ** (int(mpmath.floor(mpmath.log(root, 2))) - 23)
            assert abs(mpmath.mpf(float(nearest(x))) - root) <= ulp / 2, x


def test_ulp_of_the_root() -> None:
    for x in sample(100):
        exact, ulp = Fraction(float(x)), oracle.ulp_of_root(x)
        low = ulp * 2**23
        assert low**2 * exact <= 1 < (2 * low) ** 2 * exact, x


def test_one_and_many_judge_alike() -> None:
    """Five float32 on each side of the nearest: the rationals and float64 say the same of all."""
    x = sample(60)
    for steps in range(-5, 6):
        y = np.array([steps_from(f32(nearest(value)), steps) for value in x], np.float32)
        one = [oracle.is_within(a, b) for a, b in zip(x, y, strict=True)]
        assert (oracle.off(x, y) <= 2).tolist() == one
        if abs(steps) <= 1:
            assert all(one)
        if abs(steps) == 5:
            assert not any(one)


def test_two_ulp_and_not_more() -> None:
    """The root of 1 is 1: four steps below, where they are half as long, and two above."""
    for steps, ok in ((-5, False), (-4, True), (2, True), (3, False)):
        assert oracle.is_within(np.float32(1), steps_from(f32(1), steps)) is ok
    for wrong in (NAN, INF, np.float32(0), np.float32(-1)):
        assert not oracle.is_within(np.float32(1), wrong)


# -- laws -------------------------------------------------------------------------------------------------


def test_long_rows_see_every_kind_of_mistake() -> None:
    x = oracle.values_of("mixed", 4000, 3)
    y = np.array([nearest(value) for value in x], np.float32)
    assert oracle.wrong(x, y) is None
    places = [np.arange(0, 4000, 97), np.flatnonzero(x == 0)[:3], np.flatnonzero(x == INF)[:3]]
    for i in np.concatenate(places):
        broken = y.copy()
        broken[i] = np.float32(1.25) if not np.isfinite(y[i]) or y[i] == 0 else -y[i]
        assert "1 of 4000" in str(oracle.wrong(x, broken)), x[i]
    assert "float64" in str(oracle.wrong(x, y.astype(np.float64)))
    assert "[3999]" in str(oracle.wrong(x, y[1:]))


def test_a_sweep_goes_over_the_end_of_the_words() -> None:
    words = (np.arange(70000, dtype=np.uint64) * 97 + 0xFFFF0000) % 2**32
    x = oracle.floats(words.astype(np.uint32))
    y = np.array([oracle.special(v) if oracle.special(v) is not None else 0 for v in x], np.float32)
    normal = (x > 0) & (x < INF)
    y[normal] = (1.0 / np.sqrt(x[normal].astype(np.float64))).astype(np.float32)
    given = {"first": 0xFFFF0000, "step": 97, "n": 70000}
    answers = oracle.bits(y).copy()
    assert oracle.within(given, {"words": answers}) is None
    answers[-1] += 4
    assert "1 of" in str(oracle.within(given, {"words": answers}))
    assert "words" in str(oracle.within(given, {"words": answers[1:]}))


def test_a_mistake_in_scaling_is_seen() -> None:
    given = oracle.ladder(Chooser(1, 0), 6)
    x = given["x"]
    y = (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32)
    assert oracle.quarter_is_half(given, {"y": y}) is None
    y.view(np.uint32)[700] += 1
    assert "4x gave" in str(oracle.quarter_is_half(given, {"y": y}))


def test_rows_of_every_n() -> None:
    given = {**oracle.shifted(Chooser(1, 0), 5), "most": 5}
    y = np.array([nearest(value) for value in given["x"]], np.float32)
    rows = np.full((6, 4, 13), oracle.MARK, np.uint32)
    for n in range(6):
        for shift in range(4):
            rows[n, shift, 2 + shift : 2 + shift + n] = oracle.bits(y)[shift : shift + n]
    got = {"y": y, "rows": oracle.floats(rows.reshape(-1))}
    assert oracle.every_n(given, got) is None
    for place, words in (((3, 1, 2), "y[-1]"), ((3, 1, 6), "y[3]"), ((3, 1, 5), "y[2]")):
        broken = rows.copy()
        broken[place] ^= 1
        text = oracle.every_n(given, {"y": y, "rows": oracle.floats(broken.reshape(-1))})
        assert f"n = 3, shift 1: {words}" in str(text)


def test_what_lies_behind_a_row() -> None:
    x = f32(4, 1, 0.25)
    y = np.concatenate([f32(0.5, 1), of_bits(oracle.FILL)])
    assert oracle.row_within({"x": x, "n": 2}, {"y": y}) is None
    y[2] = 2
    assert "y[2] was written" in str(oracle.row_within({"x": x, "n": 2}, {"y": y}))


def test_two_answers_must_have_the_same_bits() -> None:
    x, y = f32(1, 2, np.nan), f32(1, 0.7, np.nan)
    z = y.copy()
    given = {"x": x}
    assert oracle.as_before(given, {"y": y, "again": z}) is None
    assert oracle.as_one(given, {"y": y, "row": z}) is None
    z[1] = steps_from(z[1:2], 1)
    assert "forwards" in str(oracle.as_before(given, {"y": y, "again": z}))
    assert "alone" in str(oracle.as_one(given, {"y": y, "row": z}))
    right = np.array([nearest(value) for value in x], np.float32)
    other = right.copy()
    other[0] = steps_from(other[:1], 1)
    assert oracle.in_place_within(given, {"row": right, "same": right}) is None
    assert "in place" in str(oracle.in_place_within(given, {"row": right, "same": other}))


# -- expected values, draws -------------------------------------------------------------------------------


def test_rows_expected_of_the_array_form() -> None:
    args = {"x": f32(4, 1), "y": {"buffer": "f32[3]"}, "n": 1}
    said = oracle.answer("tl_rsqrt_f32", args)["return"]["y"]
    assert oracle.bits(said).tolist() == [0x3F000000, oracle.FILL, oracle.FILL]
    said = oracle.answer("tl_rsqrt_f32", {**args, "y": {"alias": "x"}})
    assert said["return"] is None and said["args"]["x"].tolist() == [0.5, 1]
    assert oracle.answer("tl_rsqrt_f32", {**args, "n": -1})["return"] == {"y": "untouched"}
    assert oracle.answer("tl_rsqrt_f32", {"x": None, "y": None, "n": 0})["return"] is None
    with pytest.raises(NotImplementedError):
        oracle.answer("tl_sqrtf", {})


def test_draws_hold_what_they_promise() -> None:
    normal, small = oracle.values_of("normal", 20000, 1), oracle.values_of("subnormal", 20000, 1)
    assert len(set((oracle.bits(normal) >> 23).tolist())) == oracle.EXPONENTS
    assert (small > 0).all() and (oracle.bits(small) < SMALLEST_NORMAL).all() and (small == of_bits(1)).any()
    mixed = oracle.values_of("mixed", 20000, 1)
    assert np.isnan(mixed).any() and (mixed < 0).any() and (mixed == 0).any() and np.isinf(mixed).any()
    assert set(oracle.bits(oracle.values_of("edges", 2000, 1)).tolist()) == set(oracle.EDGES)
    assert len(oracle.powers(None)["x"]) == 277
    assert all(math.frexp(x)[0] == 0.5 for x in oracle.powers(None)["x"].tolist())
    with pytest.raises(ValueError):
        oracle.values_of("other", 1, 1)


def test_tables_keep_away_from_powers_of_two() -> None:
    for kind, (_, _, n) in oracle.TABLES.items():
        x, y = oracle.table_of(kind, n)
        assert len(x) == len(y) == n
        for value, root in zip(x, y, strict=True):
            assert not oracle.is_within(value, steps_from(f32(root), 3))
            assert not oracle.is_within(value, steps_from(f32(root), -3))
