"""The reference of lowp: the spec's numbers, the bits of its equivalents and of a peer, every message."""

from __future__ import annotations

import inspect
import math
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import lowp

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "lowp" / "equivalents"
EQUIVALENTS = [import_file(path, f"lowp_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [lowp, *EQUIVALENTS]
FORMATS = ("e4m3", "e5m2")
ELEMENTS = ("fp4_e2m1", "fp8_e4m3")
F32_TOP = float(np.finfo(np.float32).max)


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def bits(value: Any) -> Any:
    """Type, shape and every bit of an answer; all NaN are one."""
    if isinstance(value, tuple):
        return [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        plain = np.where(np.isnan(value), np.float32(math.nan), value)
        return str(value.dtype), value.shape, plain.tobytes()
    return type(value), value


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    x = np.array([0.25, -1.4, 3.1, 11.0], np.float32)
    assert module.f32_to_fp8_bits(np.array([0.3]), "e4m3").tolist() == [0x2A]
    assert module.f32_to_fp8_bits(np.array([0.3]), "e5m2").tolist() == [0x35]
    for elem, codes, scale, back in (
        ("fp4_e2m1", [0, 9, 3, 7], 128, [0.0, -1.0, 3.0, 12.0]),
        ("fp8_e4m3", [0x50, 0xE3, 0x6C, 0x7B], 122, [0.25, -1.375, 3.0, 11.0]),
    ):
        q, scales = module.mx_quantize(x, block=4, elem=elem)
        assert (q.tolist(), scales.tolist()) == (codes, [scale])
        assert module.mx_dequantize(q, scales, 4, elem).tolist() == back


@pytest.mark.parametrize(
    ("fmt", "values", "codes"),
    [
        ("e4m3", [2.0**-10 * (1 + 2.0**-40), 1.0625, 1.1875, 2.0**-10], [0, 0x38, 0x3A, 0]),
        (
            "e4m3",
            [float(np.nextafter(np.float32(2.0**-10), np.float32(1))), -0.0, -(2.0**-10)],
            [1, 128, 128],
        ),
        ("e4m3", [448, 464, 465, -465, math.inf, -math.inf], [0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE]),
        ("e4m3", [math.nan, -math.nan, 1e300, 0.0], [0x7F, 0x7F, 0x7E, 0]),
        ("e5m2", [1e300, -1e300, 1.125, 1.375, 2.0**-17, 1.5 * 2.0**-17], [0x7C, 0xFC, 0x3C, 0x3E, 0, 1]),
        ("e5m2", [57344, 61440, -3e38, math.inf, -math.inf, -math.nan], [0x7B, 0x7B, 0xFB, 0x7C, 0xFC, 0x7F]),
        ("e5m2", [2.0**128 - 2.0**103, 2.0**128 - 2.0**103 - 2.0**75], [0x7C, 0x7B]),
    ],
)
def test_encoding(module: Any, fmt: str, values: list[float], codes: list[int]) -> None:
    assert module.f32_to_fp8_bits(np.array(values, np.float64), fmt).tolist() == codes


def test_small_examples(module: Any) -> None:
    assert [module.fp8_scale(amax, "e4m3") for amax in (3.0, 0, 5e-324)] == [0.006696428571428571, 1.0, 1.0]
    assert module.quantize_fp8(np.array([1.0625 + 2.0**-30]), "e4m3", 1).tolist() == [0x39]
    assert module.quantize_fp8(np.array([0.0, -0.0]), "e4m3", 5e-324).tolist() == [0, 128]  # not 0 * inf
    fours = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 8.0, -7.0, -0.25]
    assert module.f32_to_e2m1_bits(np.array(fours)).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 7, 15, 8]
    amaxes = [0, 7.999, 8, 2.0**-149, 2.0**-124, 2.0**127, 1e300, math.nextafter(8.0, 0.0), 5e-324]
    codes = [module.e8m0_scale_code(amax, "fp4_e2m1") for amax in amaxes]
    assert codes == [125, 127, 128, 0, 1, 252, 254, 127, 0]
    assert [module.e8m0_scale_code(amax, "fp8_e4m3") for amax in (0, 3, 1e300)] == [119, 120, 254]
    assert module.e8m0_scale_code(2**60 - 1, "fp4_e2m1") == 185  # 2^60 as a float64
    values = [2.0**-127, 2.0**-128, 3 * 2.0**-129, 2.0**-149]
    q, scales = module.mx_quantize(np.array(values), 1)
    assert (q.tolist(), scales.tolist()) == ([2, 1, 2, 0], [0, 0, 0, 0])
    assert module.mx_dequantize(np.array([7, 1]), np.array([254, 0]), 1, "fp4_e2m1").tolist() == [
        math.inf,
        2.0**-128,
    ]


# every code, and the equivalents


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_code_comes_back(module: Any, fmt: str) -> None:
    codes = np.arange(256)
    values = module.fp8_bits_to_f32(codes, fmt)
    want = np.where(np.isnan(values), 0x7F, codes)
    assert module.f32_to_fp8_bits(values, fmt).tolist() == want.tolist()
    assert np.isnan(values).sum() == (2 if fmt == "e4m3" else 6)
    positive = values[: 0x7F if fmt == "e4m3" else 0x7D]
    assert (np.diff(positive) > 0).all()
    assert positive[np.isfinite(positive)][-1] == module.fp8_max(fmt)


def test_every_code_of_the_small_formats_comes_back(module: Any) -> None:
    values = module.e2m1_bits_to_f32(np.arange(16, dtype=np.uint8))
    assert module.f32_to_e2m1_bits(values).tolist() == list(range(16))
    powers = module.e8m0_to_f32(np.arange(256, dtype=np.int16))
    assert powers.dtype == np.float32
    assert [float(v) for v in powers[:255]] == [2.0**k for k in range(-127, 128)]
    assert math.isnan(powers[255])


def planted(seed: int) -> np.ndarray[Any, Any]:
    """Values of every binade, codes' values and midpoints of both formats, and their neighbours."""
    r = np.random.default_rng(seed)
    wide = np.ldexp(r.uniform(1, 2, 60), r.integers(-1070, 1023, 60))
    near = np.ldexp(r.uniform(1, 2, 120), r.integers(-20, 20, 120))
    grid = np.concatenate([lowp.fp8_bits_to_f32(np.arange(0x7B), fmt) for fmt in FORMATS]).astype(np.float64)
    grid = np.unique(grid)
    ties = r.choice((grid[1:] + grid[:-1]) / 2, 60)
    edges = [
        448.0,
        464.0,
        480.0,
        57344.0,
        61440.0,
        65536.0,
        F32_TOP,
        2.0**128 - 2.0**103,
        6.0,
        7.0,
        0.0,
        5e-324,
    ]
    x = np.concatenate([wide, near, grid, ties, edges])
    x = np.concatenate([x, np.nextafter(x, 0.0), np.nextafter(x, np.inf), [math.inf, math.nan]])
    return np.copysign(x, r.choice([-1.0, 1.0], len(x)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_equivalents_give_the_same_bits(dtype: Any) -> None:
    assert len(EQUIVALENTS) >= 3
    with np.errstate(all="ignore"):
        x = planted(1).astype(dtype)
        finite = x[np.isfinite(x.astype(np.float32))]
    finite = finite[: len(finite) // 24 * 24].reshape(2, -1, 12)
    scales = [1, 0.37, 2.0**-140, 1e-300, 1e300, 5e-324]
    codes, nibbles = np.arange(256).reshape(4, 64), np.arange(256).reshape(4, 64) % 16

    def answers(m: Any) -> list[Any]:
        out = [m.f32_to_e2m1_bits(finite), m.e2m1_bits_to_f32(nibbles)]
        out += [m.f32_to_fp8_bits(x, fmt) for fmt in FORMATS]
        out += [m.quantize_fp8(x, fmt, scale) for fmt in FORMATS for scale in scales]
        out += [m.dequantize_fp8(codes, fmt, scale) for fmt in FORMATS for scale in scales]
        out += [m.mx_quantize(finite, block, elem) for block in (1, 3, 12) for elem in ELEMENTS]
        for block in (1, 4, 64):
            powers = (np.arange(4 * 64 // block) * 37 % 256).reshape(4, -1)
            out += [m.mx_dequantize(nibbles, powers, block, "fp4_e2m1")]
            out += [m.mx_dequantize(codes, powers, block, "fp8_e4m3")]
        amaxes = [float(v) for v in np.abs(finite.ravel()[:300])]
        out += [tuple(m.e8m0_scale_code(a, elem) for a in amaxes for elem in ELEMENTS)]
        out += [tuple(m.fp8_scale(a, fmt) for a in amaxes for fmt in FORMATS)]
        return [bits(value) for value in out]

    want = answers(lowp)
    for other in EQUIVALENTS:
        assert answers(other) == want, other.__name__


def test_a_peer_agrees_where_its_rules_are_ours() -> None:
    peer = pytest.importorskip("ml_dtypes")
    with np.errstate(all="ignore"):
        x = planted(2).astype(np.float32)
    for fmt, dtype, limit in (("e4m3", peer.float8_e4m3fn, 464.0), ("e5m2", peer.float8_e5m2, 61440.0)):
        inside = x[np.abs(x) < limit]
        assert lowp.f32_to_fp8_bits(inside, fmt).tobytes() == inside.astype(dtype).tobytes()
        codes = np.arange(256, dtype=np.uint8)
        assert bits(lowp.fp8_bits_to_f32(codes, fmt)) == bits(codes.view(dtype).astype(np.float32))
    finite = x[np.isfinite(x)]
    assert lowp.f32_to_e2m1_bits(finite).tobytes() == finite.astype(peer.float4_e2m1fn).tobytes()


# shapes, memory, names


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 8), (2, 3, 4)])
def test_shapes_and_dtypes(module: Any, shape: tuple[int, ...]) -> None:
    x, codes = np.ones(shape, np.float16), np.ones(shape, np.int64)
    for array in (x, codes):
        array.setflags(write=False)
    encoded = [module.f32_to_e2m1_bits(x)]
    encoded += [f(x, fmt, *more) for fmt in FORMATS for f, more in
                ((module.f32_to_fp8_bits, ()), (module.quantize_fp8, (2,)))]  # fmt: skip
    decoded = [module.e2m1_bits_to_f32(codes), module.e8m0_to_f32(codes)]
    decoded += [f(codes, fmt, *more) for fmt in FORMATS for f, more in
                ((module.fp8_bits_to_f32, ()), (module.dequantize_fp8, (2,)))]  # fmt: skip
    for elem in ELEMENTS:
        q, scales = module.mx_quantize(x, 4, elem)
        assert scales.shape == (*shape[:-1], shape[-1] // 4)
        encoded += [q, scales.reshape(-1)[:0].reshape(shape) if x.size == 0 else q]
        decoded.append(module.mx_dequantize(codes, scales, 4, elem))
    assert {(a.dtype, a.shape) for a in encoded} == {(np.dtype(np.uint8), shape)}
    assert {(a.dtype, a.shape) for a in decoded} == {(np.dtype(np.float32), shape)}
    assert all(a.flags.writeable for a in encoded + decoded)


def test_answers_are_new_arrays(module: Any) -> None:
    x, codes = np.ones(8, np.float32), np.ones(8, np.uint8)
    scales = np.full(2, 127, np.uint8)
    answers = [
        (x, module.f32_to_fp8_bits(x, "e4m3")),
        (x, module.f32_to_e2m1_bits(x)),
        (x, module.mx_quantize(x, 4)[0]),
        (codes, module.fp8_bits_to_f32(codes, "e5m2")),
        (codes, module.e8m0_to_f32(codes)),
        (codes, module.mx_dequantize(codes, scales, 4, "fp8_e4m3")),
    ]
    assert not any(np.shares_memory(a, b) for a, b in answers)
    assert (x == 1).all() and (codes == 1).all() and (scales == 127).all()


def test_any_layout_and_any_block_of_nothing(module: Any) -> None:
    wide = np.arange(48, dtype=np.float32).reshape(6, 8)
    for view in (wide.T, wide[::2, ::-1], wide[:, 1::2]):
        plain = np.array(view.tolist(), np.float32)
        assert bits(module.mx_quantize(view, 2)) == bits(module.mx_quantize(plain, 2))
        assert bits(module.f32_to_fp8_bits(view, "e4m3")) == bits(module.f32_to_fp8_bits(plain, "e4m3"))
    q, scales = module.mx_quantize(np.zeros((2, 0)), 10**30)
    assert q.shape == scales.shape == (2, 0)
    assert module.mx_dequantize(q, scales, 10**30, "fp8_e4m3").shape == (2, 0)


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    """What the spec's Shapes block says of names, order and defaults."""
    want: dict[str, list[Any]] = {
        "fp8_max": ["fmt"],
        "f32_to_fp8_bits": ["x", "fmt"],
        "fp8_bits_to_f32": ["codes", "fmt"],
        "fp8_scale": ["amax", "fmt"],
        "quantize_fp8": ["x", "fmt", "scale"],
        "dequantize_fp8": ["q", "fmt", "scale"],
        "f32_to_e2m1_bits": ["x"],
        "e2m1_bits_to_f32": ["codes"],
        "e8m0_to_f32": ["codes"],
        "e8m0_scale_code": ["amax", "elem"],
        "mx_quantize": ["x", ("block", 32), ("elem", "fp4_e2m1")],
        "mx_dequantize": ["codes", "scales_e8m0", "block", "elem"],
    }
    for f, names in want.items():
        parameters = inspect.signature(getattr(module, f)).parameters.values()
        assert [p.name if p.default is p.empty else (p.name, p.default) for p in parameters] == names


def test_nothing_warns() -> None:
    x = np.array([math.nan, math.inf, 1e300, 5e-324, -0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fmt in FORMATS:
            lowp.f32_to_fp8_bits(x, fmt)
            lowp.quantize_fp8(x, fmt, 5e-324)
            lowp.dequantize_fp8(np.arange(256), fmt, 1e308)
        lowp.mx_dequantize(np.arange(256), np.arange(256), 1, "fp8_e4m3")


# errors

X, C, S = np.ones(4, np.float32), np.ones(4, np.uint8), np.full(2, 127, np.uint8)
ONE_OF_FMT, ONE_OF_ELEM = "fmt must be one of e4m3, e5m2, got", "elem must be one of fp4_e2m1, fp8_e4m3, got"
FLOATS, INTEGERS = "x must be a float16, float32 or float64 array, got", "must be an integer array, got"


def bad() -> list[tuple[str, tuple[Any, ...], str]]:
    out: list[tuple[str, tuple[Any, ...], str]] = []
    for fmt in ("E4M3", "e2m1", "fp8_e4m3", "", None, 3, ["e4m3"]):
        out += [("fp8_max", (fmt,), ONE_OF_FMT), ("f32_to_fp8_bits", (X, fmt), ONE_OF_FMT)]
        out += [("fp8_bits_to_f32", (C, fmt), ONE_OF_FMT), ("fp8_scale", (1.0, fmt), ONE_OF_FMT)]
        out += [("quantize_fp8", (X, fmt, 1.0), ONE_OF_FMT), ("dequantize_fp8", (C, fmt, 1.0), ONE_OF_FMT)]
    for elem in ("FP4_E2M1", "e2m1", "fp8_e5m2", None, ["fp4_e2m1"]):
        out += [("e8m0_scale_code", (1.0, elem), ONE_OF_ELEM), ("mx_quantize", (X, 2, elem), ONE_OF_ELEM)]
        out += [("mx_dequantize", (C, S, 2, elem), ONE_OF_ELEM)]
    for x in (C, np.ones(4, bool), np.ones(4, np.int64), "1"):
        out += [("f32_to_fp8_bits", (x, "e4m3"), FLOATS), ("quantize_fp8", (x, "e5m2", 1.0), FLOATS)]
        out += [("f32_to_e2m1_bits", (x,), FLOATS), ("mx_quantize", (x, 2), FLOATS)]
    for value in (math.nan, math.inf, -math.inf, 1e300):
        x = np.array([0.0, value])
        out += [("f32_to_e2m1_bits", (x,), "holds a NaN or an infinity as float32")]
        out += [("mx_quantize", (x, 2, elem), "holds a NaN or an infinity as float32") for elem in ELEMENTS]
    for codes in (X, np.ones(4, bool), np.ones(4, "m8[s]"), "1"):
        out += [
            ("fp8_bits_to_f32", (codes, "e4m3"), INTEGERS),
            ("dequantize_fp8", (codes, "e4m3", 1), INTEGERS),
        ]
        out += [("e2m1_bits_to_f32", (codes,), INTEGERS), ("e8m0_to_f32", (codes,), INTEGERS)]
        out += [("mx_dequantize", (codes, S, 2, "fp8_e4m3"), INTEGERS)]
        out += [("mx_dequantize", (C, codes, 1, "fp4_e2m1"), INTEGERS)]
    for codes in (np.array([-1, 0]), np.array([0, 256]), np.array([2**64 - 1, 0], np.uint64)):
        byte = r"must be in \[0, 255\], got"
        out += [("fp8_bits_to_f32", (codes, "e5m2"), byte), ("dequantize_fp8", (codes, "e5m2", 1), byte)]
        out += [("e8m0_to_f32", (codes,), byte), ("mx_dequantize", (C, codes, 2, "fp4_e2m1"), byte)]
        out += [("mx_dequantize", (codes, S, 1, "fp8_e4m3"), byte)]
    for codes in (np.array([16, 0]), np.array([-1, 0], np.int8)):
        nibble = r"must be in \[0, 15\], got"
        out += [("e2m1_bits_to_f32", (codes,), nibble), ("mx_dequantize", (codes, S, 1, "fp4_e2m1"), nibble)]
    for value in (-1.0, math.nan, math.inf, -5e-324):
        for f, args in (("fp8_scale", (value, "e4m3")), ("e8m0_scale_code", (value, "fp4_e2m1"))):
            out.append((f, args, "amax must be finite and at least 0, got"))
    for value in (-1.0, math.nan, math.inf, 0, -0.0):
        for f, args in (("quantize_fp8", (X, "e4m3", value)), ("dequantize_fp8", (C, "e4m3", value))):
            out.append((f, args, "scale must be finite and above 0, got"))
    for value in (True, "1", None):
        out += [("fp8_scale", (value, "e4m3"), "amax must be an int or a float, got")]
        out += [("e8m0_scale_code", (value, "fp8_e4m3"), "amax must be an int or a float, got")]
        out += [("quantize_fp8", (X, "e4m3", value), "scale must be an int or a float, got")]
        out += [("dequantize_fp8", (C, "e4m3", value), "scale must be an int or a float, got")]
    for block in (0, -1, True, 2.0, None, "2"):
        out += [("mx_quantize", (X, block), "block must be an int of at least 1, got")]
        out += [("mx_dequantize", (C, S, block, "fp4_e2m1"), "block must be an int of at least 1, got")]
    for elem in ELEMENTS:
        out += [("mx_quantize", (X, 3, elem), "the last axis must be a multiple of block 3, got 4")]
        out += [("mx_quantize", (X, 8, elem), "the last axis must be a multiple of block 8, got 4")]
        out += [("mx_dequantize", (C, S, 3, elem), "the last axis must be a multiple of block 3, got 4")]
        out += [("mx_quantize", (np.array(1.0), 1, elem), "must have at least one axis")]
        out += [("mx_dequantize", (np.array(1), S[:1], 1, elem), "must have at least one axis")]
        for scales in (S[:1], np.array(127), S.reshape(1, 2), np.full(4, 127)):
            wrong = r"scales_e8m0 must have the shape \(2,\), got"
            out += [("mx_dequantize", (C, scales, 2, elem), wrong)]
    return out


@pytest.mark.parametrize(("f", "args", "message"), bad())
def test_refused(f: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(lowp, f)(*args)
    for other in EQUIVALENTS:
        with pytest.raises(ValueError):
            getattr(other, f)(*args)
