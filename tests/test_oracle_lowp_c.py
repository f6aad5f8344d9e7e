"""The lowp_c oracle against the page, exact rationals, NumPy's half, the oracle of lowp, and ml_dtypes."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
oracle = import_file(FIXTURES / "lowp_c" / "oracle.py", "lowp_c_oracle_under_test")
PEERS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "f16": "float16", "bf16": "bfloat16"}
ALL = sorted(PEERS)
INF, NAN = np.inf, np.nan


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def bits(*words: int) -> Any:
    return np.array(words, np.uint32).view(np.float32)


def encode(fmt: str, x: Any) -> Any:
    return oracle.encode(oracle.FORMS[fmt], x)


def decode(fmt: str, codes: Any) -> Any:
    return oracle.decode(oracle.FORMS[fmt], codes)


def hard(fmt: str) -> Any:
    """What lies around every midpoint, with both signs, and 65536 floats of every exponent."""
    edges = oracle.around(fmt)
    return np.concatenate([edges, -edges, oracle.every_upper_half(Chooser(1, 1), fmt)["x"]])


def rational(fmt: str, code: int) -> Fraction:
    """R10 word for word, without the sign."""
    form = oracle.FORMS[fmt]
    e, m = code >> form.mantissa, code % (1 << form.mantissa)
    if e > 0:
        return Fraction(2) ** (e - form.bias) * (1 + Fraction(m, 1 << form.mantissa))
    return Fraction(2) ** (1 - form.bias) * Fraction(m, 1 << form.mantissa)


def by_the_numerics(fmt: str, x: np.float32) -> int:
    """The formula of the page's section Numerics and rules R4 to R9, in exact integers and rationals."""
    form = oracle.FORMS[fmt]
    if np.isnan(x):
        return int(form.nan)
    sign = form.sign if np.signbit(x) else 0
    if np.isinf(x):
        return int(sign | form.infinity)
    v = abs(Fraction(float(x)))
    if v == 0:
        return int(sign)
    log2 = v.numerator.bit_length() - v.denominator.bit_length()
    log2 -= v < Fraction(2) ** log2
    q = max(log2, 1 - form.bias) - form.mantissa
    n = round(v / Fraction(2) ** q)  # to even, of a Fraction
    code = ((q + form.mantissa + form.bias - 1) << form.mantissa) + n
    return int(sign | (code if code <= form.top else form.over))


# -- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "largest", "normal", "smallest"),
    [
        ("e4m3", (0x7E, 448), (0x08, -6), -9),
        ("e5m2", (0x7B, 57344), (0x04, -14), -16),
        ("f16", (0x7BFF, 65504), (0x0400, -14), -24),
        ("bf16", (0x7F7F, Fraction(float.fromhex("0x1.FEp+127"))), (0x0080, -126), -133),
    ],
)
def test_the_table_of_formats(fmt: str, largest: Any, normal: tuple[int, int], smallest: int) -> None:
    form = oracle.FORMS[fmt]
    assert (form.top, rational(fmt, form.top)) == largest
    assert rational(fmt, normal[0]) == Fraction(2) ** normal[1]
    assert rational(fmt, 1) == Fraction(2) ** smallest
    assert normal[0] == 1 << form.mantissa


def test_the_worked_example() -> None:
    x = f32(0.3)
    assert x.view(np.uint32)[0] == 0x3E99999A
    assert [int(encode(fmt, x)[0]) for fmt in ("e4m3", "e5m2", "f16", "bf16")] == [0x2A, 0x35, 0x34CD, 0x3E9A]
    assert decode("e4m3", np.array([0x2A], np.uint8)) == decode("e5m2", np.array([0x35], np.uint8)) == 0.3125
    assert decode("f16", np.array([0x34CD], np.uint16))[0] == 0.300048828125
    assert encode("e4m3", f32(1.5 * 2.0**-9)).tolist() == [2]


MAX = 3.4028234663852886e38
HALVES = (2.0**-25, 1.5 * 2.0**-25, 1.5 * 2.0**-24)


@pytest.mark.parametrize(
    ("fmt", "x", "codes"),
    [
        ("e4m3", f32(1.0625, 1.1875), [0x38, 0x3A]),
        ("e5m2", f32(1.125, 1.375), [0x3C, 0x3E]),
        ("bf16", f32(1 + 2.0**-8, 1 + 3 * 2.0**-8), [0x3F80, 0x3F82]),
        ("f16", f32(1 + 2.0**-11, 1 + 3 * 2.0**-11), [0x3C00, 0x3C02]),
        ("e4m3", f32(2.0**-10, np.nextafter(np.float32(2.0**-10), np.float32(1)), 2.0**-9), [0, 1, 1]),
        ("e5m2", f32(2.0**-17, 1.5 * 2.0**-17, 2.0**-16), [0, 1, 1]),
        ("f16", f32(*HALVES), [0, 1, 2]),
        ("bf16", bits(0x00000001, 0x00008000, 0x00008001, 0x00010000), [0, 0, 1, 1]),
        ("e4m3", f32(-0.3, -(2.0**-10)), [0xAA, 0x80]),
        ("f16", f32(-0.0), [0x8000]),
        ("bf16", f32(-2), [0xC000]),
        ("e4m3", f32(448, 464, 465, -465, 1e30, INF, -INF), [0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0x7E, 0xFE]),
        ("e5m2", f32(57344, 61440, -3e38, INF, -INF), [0x7B, 0x7B, 0xFB, 0x7C, 0xFC]),
        ("f16", f32(65504, 65519, 65520, -1e10, INF), [0x7BFF, 0x7BFF, 0x7C00, 0xFC00, 0x7C00]),
        ("bf16", bits(0x7F7F0000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF), [0x7F7F, 0x7F7F, 0x7F80, 0x7F80]),
        ("bf16", f32(257, MAX), [0x4380, 0x7F80]),
        ("e4m3", bits(0x7F800001, 0xFFFFFFFF), [0x7F, 0x7F]),
        ("e5m2", bits(0x7F800001, 0xFFFFFFFF), [0x7F, 0x7F]),
        ("f16", bits(0x7F800001, 0xFFFFFFFF), [0x7E00, 0x7E00]),
        ("bf16", bits(0x7F800001, 0xFFFFFFFF), [0x7FC0, 0x7FC0]),
    ],
)
def test_smaller_examples_of_encoding(fmt: str, x: Any, codes: list[int]) -> None:
    assert encode(fmt, x).tolist() == codes


@pytest.mark.parametrize(
    ("fmt", "codes", "values"),
    [
        ("e4m3", [0x01, 0x08, 0x38, 0x80], [2.0**-9, 2.0**-6, 1, -0.0]),
        ("f16", [0x3555], [0.333251953125]),
        ("bf16", [0x0001, 0x3E9A], [2.0**-133, 0.30078125]),
        ("e4m3", [0x78, 0x7E, 0x7F, 0xFF], [256, 448, NAN, NAN]),
        ("e5m2", [0x7C, 0xFC, 0x7D, 0xFF], [INF, -INF, NAN, NAN]),
        ("f16", [0x7C00, 0x7C01], [INF, NAN]),
    ],
)
def test_smaller_examples_of_decoding(fmt: str, codes: list[int], values: list[float]) -> None:
    got = decode(fmt, np.array(codes, oracle.FORMS[fmt].dtype))
    assert got.dtype == np.float32 and np.array_equal(got, f32(*values), equal_nan=True)
    assert np.signbit(got).tolist()[:4] == np.signbit(f32(*values)).tolist()[:4] or np.isnan(got).any()


def test_e5m2_is_no_half_cut_short() -> None:
    x = np.nextafter(f32(1.125), np.float32(2))
    assert encode("e5m2", x).tolist() == [0x3D]
    assert encode("e5m2", x.astype(np.float16).astype(np.float32)).tolist() == [0x3C]


# -- exact rationals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ALL)
def test_values_and_midpoints_are_the_exact_ones(fmt: str) -> None:
    form = oracle.FORMS[fmt]
    exact = [rational(fmt, code) for code in range(form.top + 2)]
    assert [Fraction(x) for x in oracle.values(form)] == exact
    assert exact == sorted(set(exact))  # codes are in the order of the values
    halfway = [(low + high) / 2 for low, high in pairwise(exact)]
    assert [Fraction(x) for x in oracle.midpoints(form)] == halfway
    assert [Fraction(float(x)) for x in oracle.around(fmt)[1::3]] == halfway  # float32 holds them too
    assert [Fraction(float(x)) for x in decode(fmt, np.arange(form.top + 1).astype(form.dtype))] == exact[:-1]


def test_where_the_ranges_end() -> None:
    ends = [464, 61440, 65520, Fraction(float.fromhex("0x1.FFp+127"))]
    for fmt, end in zip(("e4m3", "e5m2", "f16", "bf16"), ends, strict=True):
        assert Fraction(float(oracle.around(fmt)[-2])) == end


@pytest.mark.parametrize("fmt", ALL)
def test_the_formula_of_the_numerics_gives_the_same_codes(fmt: str) -> None:
    x = hard(fmt)
    x = x if len(x) < 70000 else np.concatenate([x[:6000], x[-3000:], x[::37]])
    assert encode(fmt, x).tolist() == [by_the_numerics(fmt, value) for value in x]


@pytest.mark.parametrize("fmt", ALL)
def test_around_a_midpoint(fmt: str) -> None:
    lower = np.arange(oracle.FORMS[fmt].top)  # but for the end of the range
    codes = encode(fmt, oracle.around(fmt)).reshape(-1, 3)[:-1].astype(np.int64)
    assert np.array_equal(codes, np.stack([lower, lower + lower % 2, lower + 1], axis=1))


@pytest.mark.parametrize("fmt", ALL)
def test_every_code_comes_back(fmt: str) -> None:
    codes = oracle.all_codes(fmt)
    x = decode(fmt, codes)
    number = ~np.isnan(x)
    assert np.array_equal(encode(fmt, x)[number], codes[number])
    assert np.array_equal(encode(fmt, x), oracle.back(oracle.FORMS[fmt], codes))
    assert number.sum() == {"e4m3": 254, "e5m2": 250, "f16": 63490, "bf16": 65282}[fmt]


# -- others -----------------------------------------------------------------------------------------------


def test_half_is_that_of_numpy() -> None:
    codes = oracle.all_codes("f16")
    want, got = codes.view(np.float16).astype(np.float32), decode("f16", codes)
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))
    x = hard("f16")
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        assert np.array_equal(encode("f16", x), x.astype(np.float16).view(np.uint16))


def test_bfloat16_is_the_upper_half_of_a_float() -> None:
    codes = oracle.all_codes("bf16")
    got, want = decode("bf16", codes), (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_the_oracle_of_lowp_gives_the_same(fmt: str) -> None:
    lowp = import_file(FIXTURES / "lowp" / "oracle.py", "lowp_oracle_beside_lowp_c")
    x = np.concatenate([hard(fmt)[:3000], hard(fmt)[-(1 << 16) :: 5], bits(0x7F800001, 0xFFFFFFFF)])
    assert np.array_equal(encode(fmt, x), lowp.f32_to_fp8_bits(x, fmt))
    codes = oracle.all_codes(fmt)
    want, got = lowp.fp8_bits_to_f32(codes, fmt), decode(fmt, codes)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(want)[~np.isnan(want)])


def peer(fmt: str) -> Any:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.dtype(getattr(np if fmt == "f16" else ml_dtypes, PEERS[fmt]))


@pytest.mark.parametrize("fmt", ALL)
def test_every_code_decodes_as_the_peer_does(fmt: str) -> None:
    codes = oracle.all_codes(fmt)
    want, got = codes.view(peer(fmt)).astype(np.float32), decode(fmt, codes)
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


@pytest.mark.parametrize("fmt", ALL)
def test_floats_encode_as_the_peer_does(fmt: str) -> None:
    form, x = oracle.FORMS[fmt], hard(fmt)
    with np.errstate(all="ignore"):
        codes, size = x.astype(peer(fmt)).view(form.dtype), np.abs(x.astype(np.float64))
    if form.bits == 8:  # R5 and R6: the peer gives NaN and infinity
        over = (size > float(rational(fmt, form.top))) & ~(np.isinf(x) & form.infinite)
        codes = np.where(over, np.where(np.signbit(x), form.sign | form.top, form.top), codes)
    codes = np.where(np.isnan(x), form.nan, codes)  # R9: the peer keeps the sign
    assert np.flatnonzero(encode(fmt, x) != codes).tolist() == []


# -- what a call gives ------------------------------------------------------------------------------------


def told(call: str, **args: Any) -> Any:
    return oracle.expect({"call": call, "args": args})["return"]


def test_functions_of_one_number() -> None:
    assert told("tl_f32_to_e4m3", x=0.3) == 0x2A and told("tl_f32_to_bf16", x=1e39) == 0x7F80
    assert told("tl_bf16_to_f32", b=0x3E9A) == np.float32(0.30078125)
    steps = [{"call": "tl_f32_to_f16", "args": {"x": -0.0}}, {"call": "tk_allocs", "args": {}}]
    assert oracle.expect({"steps": steps}) == {"steps": [{"return": 0x8000}, {"return": 0}]}


def test_array_forms() -> None:
    x = f32(1, 2, 3)
    assert told("tl_f32_to_e4m3_n", x=x, y={"buffer": "u8[4]"}, n=2)["y"].tolist() == [0x38, 0x40, 0xA5, 0xA5]
    for n in (0, -1):
        assert told("tl_f32_to_f16_n", x=x, y={"buffer": "u16[3]"}, n=n) == {"y": "untouched"}
        assert told("tl_f32_to_f16_n", x=None, y=None, n=n) is None
    with pytest.raises(oracle.Ungraded):
        told("tl_f32_to_f16_n", x=x, y=None, n=1)
    each = told("drv_each_to8", f={"function": "tl_f32_to_e5m2"}, x=x, y={"buffer": "u8[3]"}, n=3)
    assert each["y"].tolist() == [0x3C, 0x40, 0x42]


def test_rows_of_every_size() -> None:
    given = oracle.row_of_sizes(Chooser(1, 1), "tl_f32_to_bf16_n", 3, 2)
    rows = told("drv_sizes_to16", f={"function": "tl_f32_to_bf16_n"}, **given)["y"]
    codes, i = encode("bf16", given["x"]).tolist(), 0
    assert given["y"] == {"buffer": f"u16[{len(rows)}]"} and len(rows) == 4 * 2 * 6
    for n in range(4):
        for at in range(2):
            row = [0xA5A5] * at + codes[at : at + n] + [0xA5A5] * (6 - at - n)
            assert rows[i : i + 6].tolist() == row
            i += 6


def test_there_and_back() -> None:
    ways = {"decode": {"function": "tl_e5m2_to_f32"}, "encode": {"function": "tl_f32_to_e5m2"}}
    x = np.array([0x7B, 0x7C, 0x7D, 0xFF, 0x80], np.uint8)
    assert told("drv_back8", **ways, x=x)["y"].tolist() == [0x7B, 0x7C, 0x7F, 0x7F, 0x80]
    ways["encode"] = {"function": "tl_f32_to_e4m3"}
    with pytest.raises(oracle.Ungraded):
        told("drv_back8", **ways, x=x)


def test_the_rest_says_nothing() -> None:
    assert told("drv_quiet")["kept"].tolist() == told("drv_quiet_n")["kept"].tolist() == [1] * 8
    assert told("tk_fail_after", n=0) is None
    with pytest.raises(NotImplementedError):
        told("tk_misuse")


# -- laws and draws ---------------------------------------------------------------------------------------


def test_laws_name_the_first_difference() -> None:
    given = {"x": f32(1, 1.0625, 3)}
    right = encode("e4m3", given["x"])
    assert oracle.encoded(given, {"y": right}, "e4m3") is None
    wrong = right.copy()
    wrong[1] += 1
    assert oracle.encoded(given, {"y": wrong}, "e4m3") == (
        "x[1] = 1.0625 (bits 0x3F880000): expected 0x38, got 0x39; 1 of 3 differ"
    )
    codes = {"x": np.array([0x8000, 0x7C01, 0x3C00], np.uint16)}
    assert oracle.decoded(codes, {"y": f32(-0.0, -NAN, 1)}, "f16") is None
    assert oracle.decoded(codes, {"y": f32(0.0, NAN, 2)}, "f16") == (
        "x[0] = 0x8000: expected -0.0, got 0.0; 2 of 3 differ"
    )


@pytest.mark.parametrize("fmt", ALL)
def test_draws_hold_what_they_promise(fmt: str) -> None:
    form = oracle.FORMS[fmt]
    edges = oracle.around(fmt)
    assert (np.diff(edges) > 0).all() or fmt == "bf16"  # a midpoint of bf16 may be the float beside another
    assert len(edges) == 3 * (form.top + 1) and np.isfinite(edges).all()
    below = oracle.every_midpoint(Chooser(1, 1), fmt, -1)
    assert np.signbit(below["x"]).all() and below["y"] == {"buffer": f"u{form.bits}[{len(edges)}]"}
    assert np.isnan(oracle.every_nan(Chooser(1, 1), fmt)["x"]).all()
    x = oracle.every_upper_half(Chooser(1, 1), fmt)["x"]
    assert len(set((x.view(np.uint32) >> 16).tolist())) == 1 << 16
    some = oracle.numbers(Chooser(2, 2), fmt, 4000)
    assert np.isnan(some).any() and np.isinf(some).any() and (some < 0).any() and (some == 0).any()
    assert np.isin(np.abs(some), edges).mean() > 0.5
    assert oracle.some(Chooser(3, 3), fmt, 5)["n"] <= 5


def test_arrays() -> None:
    sizes = set()
    for i in range(60):
        given = oracle.array(Chooser(4, i), "tl_f16_to_f32_n", [1, 0, 7])
        room = oracle.size_of(given["y"])
        assert len(given["x"]) == max(given["n"], 1) and 0 <= room - given["n"] <= 2
        assert not np.isnan(decode("f16", given["x"])).any()
        sizes.add(given["n"])
    assert sizes == {0, 1, 7}
    assert oracle.element("tl_f32_to_bf16_n") == "u16" and oracle.element("tl_e5m2_to_f32_n") == "f32"
