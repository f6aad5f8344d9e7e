"""The lowp oracle against ml_dtypes on every code, the page's numbers, and its own laws."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "lowp"
PEERS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn"}
oracle = import_file(FOLDER / "oracle.py", "lowp_oracle_under_test")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def peer(name: str) -> Any:
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))


def encode(fmt: str, x: Any) -> Any:
    return oracle.f32_to_e2m1_bits(x) if fmt == "e2m1" else oracle.f32_to_fp8_bits(x, fmt)


def peer_codes(fmt: str, x: Any) -> Any:
    """What ml_dtypes gives, with the page's saturation and its one NaN (R12, R13, R14)."""
    with np.errstate(all="ignore"):
        codes, size = x.astype(peer(PEERS[fmt])).view(np.uint8), np.abs(x.astype(np.float64))
    form = oracle.FORMS[fmt]
    over = size > float(oracle.rational(form, form.top))  # a NaN is not
    if fmt == "e5m2":
        over &= ~np.isinf(x)
    codes = np.where(over, np.where(np.signbit(x), form.sign | form.top, form.top), codes)
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


def midpoint_inputs(fmt: str) -> Any:
    """All midpoints, the float32 on either side, and all values, of both signs."""
    form = oracle.FORMS[fmt]
    edges = np.array(oracle.MIDPOINTS[form], np.float32)
    values = np.array([float(x) for x in oracle.magnitudes(form)], np.float32)
    inf = np.float32(np.inf)
    x = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, inf), values])
    return np.concatenate([x, -x])


# -- ml_dtypes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_fp8_code_decodes_as_the_peer_does(fmt: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    want = codes.view(peer(PEERS[fmt])).astype(np.float32)
    got = oracle.fp8_bits_to_f32(codes, fmt)
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), want[number].view(np.uint32))


def test_every_e2m1_and_e8m0_code_decodes_as_the_peer_does() -> None:
    codes = np.arange(16, dtype=np.uint8)
    want = codes.view(peer("float4_e2m1fn")).astype(np.float32)
    assert np.array_equal(oracle.e2m1_bits_to_f32(codes).view(np.uint32), want.view(np.uint32))
    codes = np.arange(256, dtype=np.uint8)
    want = codes.view(peer("float8_e8m0fnu")).astype(np.float32)
    got = oracle.e8m0_to_f32(codes)
    assert np.isnan(want[255]) and np.isnan(got[255])
    assert np.array_equal(got[:255].view(np.uint32), want[:255].view(np.uint32))


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_every_f16_input_encodes_as_the_peer_does(fmt: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)  # NaN and infinities too
    got, want = encode(fmt, x), peer_codes(fmt, x.astype(np.float32))
    assert np.flatnonzero(got != want).tolist() == []


def test_every_finite_f16_input_encodes_to_e2m1_as_the_peer_does() -> None:
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    got, want = encode("e2m1", x), peer_codes("e2m1", x.astype(np.float32))
    assert np.flatnonzero(got != want).tolist() == []


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e2m1"])
def test_midpoints_and_their_neighbours_encode_as_the_peer_does(fmt: str) -> None:
    x = midpoint_inputs(fmt)
    assert np.flatnonzero(encode(fmt, x) != peer_codes(fmt, x)).tolist() == []


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_wide_float32_inputs_encode_as_the_peer_does(fmt: str) -> None:
    bits = np.random.default_rng(9).integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    assert np.flatnonzero(encode(fmt, x) != peer_codes(fmt, x)).tolist() == []


@pytest.mark.parametrize("elem", ["fp4_e2m1", "fp8_e4m3"])
def test_blocks_are_the_peers_codes_of_the_divided_elements(elem: str) -> None:
    fmt = "e2m1" if elem == "fp4_e2m1" else "e4m3"
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((40, 16)) * 2.0 ** rng.integers(-120, 120, (40, 1))).astype(np.float32)
    codes, scales = oracle.mx_quantize(x, 8, elem)
    units = np.repeat(scales.view(peer("float8_e8m0fnu")).astype(np.float32), 8, axis=-1)
    assert np.array_equal(codes, peer_codes(fmt, (x / units).astype(np.float32)))
    back = codes.view(peer(PEERS[fmt])).astype(np.float32) * units
    assert np.array_equal(oracle.mx_dequantize(codes, scales, 8, elem), back)


# -- the page's numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "smallest", "normal", "largest"),
    [
        ("e4m3", Fraction(1, 512), (0x08, Fraction(1, 64)), (0x7E, 448)),
        ("e5m2", Fraction(1, 2**16), (0x04, Fraction(1, 2**14)), (0x7B, 57344)),
        ("e2m1", Fraction(1, 2), (0x2, 1), (0x7, 6)),
    ],
)
def test_the_table_of_formats(fmt: str, smallest: Fraction, normal: Any, largest: Any) -> None:
    form = oracle.FORMS[fmt]
    assert oracle.rational(form, 1) == smallest
    assert oracle.rational(form, normal[0]) == normal[1]
    assert (form.top, oracle.rational(form, form.top)) == largest
    values = oracle.magnitudes(form)
    assert values == sorted(set(values))  # the codes are in the order of the values


def test_the_worked_example() -> None:
    assert oracle.f32_to_fp8_bits(f32(0.3), "e4m3").tolist() == [0x2A]
    assert oracle.f32_to_fp8_bits(f32(0.3), "e5m2").tolist() == [0x35]
    codes, scales = oracle.mx_quantize(f32(0.25, -1.4, 3.1, 11), 4)
    assert (codes.tolist(), scales.tolist()) == ([0, 9, 3, 7], [128])
    assert oracle.mx_dequantize(codes, scales, 4, "fp4_e2m1").tolist() == [0, -1, 3, 12]


def test_midpoints_go_to_the_even_code_and_neighbours_to_the_near_one() -> None:
    for fmt, form in oracle.FORMS.items():
        edges = np.array(oracle.MIDPOINTS[form], np.float32)
        lower = np.arange(len(edges))
        assert encode(fmt, edges).tolist() == (lower + lower % 2).tolist()
        assert encode(fmt, np.nextafter(edges, np.float32(0))).tolist() == lower.tolist()
        assert encode(fmt, np.nextafter(edges, np.float32(np.inf))).tolist() == (lower + 1).tolist()


def test_midpoints_are_exact_floats() -> None:
    for form in oracle.FORMS.values():
        assert [Fraction(x) for x in oracle.MIDPOINTS[form]] == oracle.midpoints(form)


def test_one_rounding_and_two() -> None:
    x = np.array([1.0625 + 2.0**-30])
    assert oracle.quantize_fp8(x, "e4m3", 1).tolist() == [0x39]
    assert oracle.f32_to_fp8_bits(x, "e4m3").tolist() == [0x38]
    edge = 2.0**128 - 2.0**103
    assert oracle.f32_to_fp8_bits(np.array([edge, math.nextafter(edge, 0)]), "e5m2").tolist() == [0x7C, 0x7B]


def test_floor_log2_is_exact_around_every_power_of_two() -> None:
    for e in range(-1074, 1024):
        x = 2.0**e
        assert oracle.floor_log2(x) == e
        if e > -1074:
            assert oracle.floor_log2(math.nextafter(x, 0.0)) == e - 1
        assert oracle.floor_log2(math.nextafter(x, math.inf)) == (e if e > -1074 else e + 1)


REFUSED = [
    ("f32_to_fp8_bits", (f32(1), "E4M3")),
    ("fp8_max", ("e2m1",)),
    ("f32_to_fp8_bits", (np.array([1]), "e4m3")),
    ("fp8_bits_to_f32", (np.array([256]), "e4m3")),
    ("fp8_bits_to_f32", (f32(1), "e4m3")),
    ("e2m1_bits_to_f32", (np.array([16]),)),
    ("quantize_fp8", (f32(1), "e4m3", 0)),
    ("quantize_fp8", (f32(1), "e4m3", True)),
    ("fp8_scale", (-1.0, "e4m3")),
    ("e8m0_scale_code", (math.inf, "fp4_e2m1")),
    ("f32_to_e2m1_bits", (f32(np.nan),)),
    ("mx_quantize", (np.array([1e300]), 1, "fp8_e4m3")),
    ("mx_quantize", (np.array(1.0, np.float32), 1)),
    ("mx_quantize", (f32(1, 2, 3), 2)),
    ("mx_quantize", (f32(1), True)),
    ("mx_dequantize", (np.array([[1, 1]]), np.array([1]), 2, "fp4_e2m1")),
]


@pytest.mark.parametrize(("name", "args"), REFUSED)
def test_what_the_page_refuses(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(oracle.Refused):
        oracle.FUNCTIONS[name](*args)


# -- laws and draws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_laws_hold_for_the_oracle_and_notice_a_wrong_code(fmt: str) -> None:
    noticed = 0
    for i in range(40):
        x = oracle.floats_near(Chooser(7, i), fmt)
        given, got = {"x": x, "fmt": fmt}, oracle.f32_to_fp8_bits(x, fmt)
        assert oracle.nearest_of_all(given, got) is None
        assert oracle.keeps_order(given, got) is None
        noticed += oracle.nearest_of_all(given, got ^ 1) is not None
    assert noticed > 30


def test_keeps_order_notices_a_swap() -> None:
    given = {"x": f32(1, 2), "fmt": "e4m3"}
    assert oracle.keeps_order(given, np.array([0x40, 0x38])) == "1.0 gets 0x40 and 2.0 gets 0x38"


@pytest.mark.parametrize("elem", ["fp4_e2m1", "fp8_e4m3"])
def test_blocks_come_back_and_the_law_notices_a_wrong_scale(elem: str) -> None:
    noticed = 0
    for i in range(40):
        given = {**oracle.mx_request(Chooser(8, i), elem), "elem": elem}
        codes, scales = oracle.mx_quantize(**given)
        assert oracle.comes_back(given, [codes, scales]) is None
        noticed += oracle.comes_back(given, [codes, np.minimum(scales, 253) + np.uint8(1)]) is not None
    assert noticed > 20


def test_draws_meet_ties_and_only_what_their_function_takes() -> None:
    ties = 0
    for i in range(60):
        for fmt, form in oracle.FORMS.items():
            for dtype in ("f16", "f32", "f64"):
                x = oracle.floats_near(Chooser(i, 0), fmt, dtype)
                assert x.dtype.name == {"f16": "float16", "f32": "float32", "f64": "float64"}[dtype]
                assert np.isfinite(x).all()
                ties += sum(abs(v) in oracle.MIDPOINTS[form] for v in x.tolist())
        for elem in oracle.ELEMS:
            given = oracle.mx_codes(Chooser(i, 1), elem)
            assert not np.isnan(oracle.mx_dequantize(**given, elem=elem)).any()
        assert oracle.scale_of(Chooser(i, 2)) > 0
        assert oracle.e8m0_scale_code(oracle.amax_of(Chooser(i, 3)), "fp4_e2m1") in range(255)
        assert not np.isnan(oracle.f16_chunk(Chooser(i, 4))).any()
        assert not np.isnan(oracle.fp8_bits_to_f32(oracle.codes_of(Chooser(i, 5), "e5m2"), "e5m2")).any()
    assert ties > 500


def test_expect_answers_calls_and_traces() -> None:
    case = {"id": "a", "call": "fp8_max", "args": {"fmt": "e4m3"}}
    assert oracle.expect(case) == {"return": 448.0}
    assert oracle.expect({**case, "args": {"fmt": "x"}}) == {"raises": "ValueError"}
    steps = [
        {"call": "f32_to_e2m1_bits", "args": {"x": f32(6)}, "save": "codes"},
        {"call": "testkit.overwrite", "args": {"array": {"ref": "codes"}, "value": 1}},
        {"call": "e2m1_bits_to_f32", "args": {"codes": {"ref": "codes"}}},
    ]
    told = oracle.expect({"id": "b", "steps": steps})["steps"]
    assert told[0] == {} and told[2]["return"].tolist() == [0.5]


def test_generate_is_the_same_twice_and_has_every_code() -> None:
    document = oracle.generate()["golden.gen.yaml"]
    assert document == oracle.generate()["golden.gen.yaml"]
    cases = {case["id"]: case for case in document["cases"]}
    assert len(cases["lowp/golden-decode-e4m3"]["args"]["codes"]["u8"]) == 254
    assert len(cases["lowp/golden-decode-e5m2"]["args"]["codes"]["u8"]) == 250
