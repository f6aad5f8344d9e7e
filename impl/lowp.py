"""fp8, fp4 and block-scaled numbers: floats to 8-bit and 4-bit codes and back.

    x -> round to f32 (or divide by a scale) -> [sign | nearest multiple of the local step, clamped] -> code
    code -> (-1)^s * 2^(e-B) * (1 + m/2^M) -> times a scale -> f32

One rounding rule serves every format; a format says only where it begins and where it ends.

Spec    spec/lowp.md
Source  Micikevicius et al. 2022, arXiv:2209.05433, section 3 (e4m3, e5m2);
        Rouhani et al. 2023, arXiv:2310.10537, algorithm 1 (MX blocks)
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # float16, float32 or float64
Codes = NDArray[np.integer[Any]]  # any integer dtype


# One row of the spec's table each: s | exponent | mantissa in the low `bits` bits of a byte; `mantissa` is M,
# `bias` B; `largest` is finite, `top` its code, and the codes above are NaN, but for the one of `infinity`.
_E4M3 = SimpleNamespace(bits=8, mantissa=3, bias=7, largest=448.0, top=0x7E, infinity=None, sign=0x80)
_E5M2 = SimpleNamespace(bits=8, mantissa=2, bias=15, largest=57344.0, top=0x7B, infinity=0x7C, sign=0x80)
_E2M1 = SimpleNamespace(bits=4, mantissa=1, bias=1, largest=6.0, top=0x7, infinity=None, sign=0x8)
_FP8 = {"e4m3": _E4M3, "e5m2": _E5M2}
_ELEMENT = {"fp4_e2m1": (_E2M1, 2), "fp8_e4m3": (_E4M3, 8)}  # with emax, the exponent of `largest`
_NAN = 0x7F  # the one code that NaN gets, in both fp8 formats


# fp8


def fp8_max(fmt: str) -> float:
    """Return the largest finite value of a format.

    Shapes
        fmt      str, "e4m3" or "e5m2"
        returns  float

    Errors
        ValueError  fmt is another value

    >>> fp8_max("e4m3"), fp8_max("e5m2")
    (448.0, 57344.0)
    """
    f: SimpleNamespace = _known(_FP8, fmt, "fmt")
    return f.largest  # R17


def f32_to_fp8_bits(x: Floats, fmt: str) -> U8:
    """Encode every value of x as the code of the nearest value of the format, ties to the even code.

    Shapes
        x        f16[...], f32[...] or f64[...]
        fmt      str, "e4m3" or "e5m2"
        returns  u8[...], a new array

    Errors
        ValueError  fmt is another value, or x is not an array of these dtypes

    Numerics
        a float64 is rounded twice: to float32, then to the format; exact otherwise

    >>> f32_to_fp8_bits(np.array([0.3, 1.0625, -0.0, 1e9], np.float32), "e4m3").tolist()
    [42, 56, 128, 126]
    """
    f = _known(_FP8, fmt, "fmt")
    return _encode_fp8(_to_f32(_floats(x)).astype(np.float64), f)  # R7


def fp8_bits_to_f32(codes: Codes, fmt: str) -> F32:
    """Decode every code: (-1)^s * 2^(e-B) * (1 + m/2^M), or (-1)^s * 2^(1-B) * m/2^M where e is 0.

    Shapes
        codes    integers[...], of any integer dtype, in [0, 255]
        fmt      str, "e4m3" or "e5m2"
        returns  f32[...], a new array

    Errors
        ValueError  fmt is another value, codes is not an integer array, or a code is out of range

    >>> fp8_bits_to_f32(np.array([0x2A, 0x7E, 0x01, 0xFF]), "e4m3").tolist()
    [0.3125, 448.0, 0.001953125, nan]
    """
    f = _known(_FP8, fmt, "fmt")
    return _to_f32(_decode(_codes(codes, 255, "codes"), f))


def fp8_scale(amax: float, fmt: str) -> float:
    """Return the scale that maps amax to the largest value of the format: amax / fp8_max.

    Shapes
        amax     int or float, finite, >= 0: the largest magnitude of the array (unit of x)
        fmt      str, "e4m3" or "e5m2"
        returns  float, > 0; 1.0 where the quotient would be 0

    Errors
        ValueError  fmt is another value; amax is negative, infinite, NaN, a bool or no number

    >>> fp8_scale(896.0, "e4m3"), fp8_scale(0, "e4m3")
    (2.0, 1.0)
    """
    scale = _amax(amax) / fp8_max(fmt)
    return scale if scale > 0.0 else 1.0  # R18: also where the quotient underflows


def quantize_fp8(x: Floats, fmt: str, scale: float) -> U8:
    """Encode x / scale, formed in float64, with one rounding.

    Shapes
        x        f16[...], f32[...] or f64[...]
        fmt      str, "e4m3" or "e5m2"
        scale    int or float, finite, > 0 (unit of x)
        returns  u8[...], a new array

    Errors
        ValueError  fmt is another value, x is not an array of these dtypes
        ValueError  scale is zero, negative, infinite, NaN, a bool or no number

    Numerics
        the quotient is one float64 division and is not rounded to float32

    >>> quantize_fp8(np.array([0.5, -2.0, 3.0]), "e4m3", 0.006696428571428571).tolist()
    [105, 249, 126]
    """
    f = _known(_FP8, fmt, "fmt")
    with np.errstate(all="ignore"):
        quotient = _floats(x).astype(np.float64) / _scale(scale)  # R20: no float32 on the way
    return _encode_fp8(quotient, f)


def dequantize_fp8(q: Codes, fmt: str, scale: float) -> F32:
    """Decode every code and multiply by scale.

    Shapes
        q        integers[...], of any integer dtype, in [0, 255]
        fmt      str, "e4m3" or "e5m2"
        scale    int or float, finite, > 0
        returns  f32[...], a new array

    Errors
        ValueError  fmt is another value, q is not an integer array, or a code is out of range
        ValueError  scale is zero, negative, infinite, NaN, a bool or no number

    Numerics
        the product is formed in float64 and rounded once to float32

    >>> dequantize_fp8(np.array([0x69, 0xF9, 0x7E]), "e4m3", 0.006696428571428571).tolist()
    [0.4821428656578064, -1.9285714626312256, 3.0]
    """
    f = _known(_FP8, fmt, "fmt")
    with np.errstate(all="ignore"):
        product = _decode(_codes(q, 255, "q"), f) * _scale(scale)  # R21
    return _to_f32(product)


# e2m1 and e8m0


def f32_to_e2m1_bits(x: Floats) -> U8:
    """Encode every value of x as the 4-bit code of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to even.

    Shapes
        x        f16[...], f32[...] or f64[...], finite as float32
        returns  u8[...], a new array of codes in [0, 15], one a byte

    Errors
        ValueError  x is not an array of these dtypes, or holds a NaN or an infinity as float32

    Numerics
        a float64 is rounded twice: to float32, then to e2m1

    >>> f32_to_e2m1_bits(np.array([0.25, 0.75, 2.5, 100.0, -1.0], np.float32)).tolist()
    [0, 2, 4, 7, 10]
    """
    return _encode(_finite_f32(x), _E2M1)  # R22


def e2m1_bits_to_f32(codes: Codes) -> F32:
    """Decode every 4-bit code: bit 3 is the sign, bits 0-2 count through 0, 0.5, 1, 1.5, 2, 3, 4, 6.

    Shapes
        codes    integers[...], of any integer dtype, in [0, 15]
        returns  f32[...], a new array

    Errors
        ValueError  codes is not an integer array, or a code is out of range

    >>> e2m1_bits_to_f32(np.array([1, 7, 8, 10])).tolist()
    [0.5, 6.0, -0.0, -1.0]
    """
    return _to_f32(_decode(_codes(codes, 15, "codes"), _E2M1))  # R24


def e8m0_to_f32(codes: Codes) -> F32:
    """Decode every scale code: 2^(code - 127), NaN for 255.

    Shapes
        codes    integers[...], of any integer dtype, in [0, 255]
        returns  f32[...], a new array

    Errors
        ValueError  codes is not an integer array, or a code is out of range

    >>> e8m0_to_f32(np.array([126, 127, 130, 255])).tolist()
    [0.5, 1.0, 8.0, nan]
    """
    return _to_f32(_power(_codes(codes, 255, "codes")))


def e8m0_scale_code(amax: float, elem: str) -> int:
    """Return the scale code of a block: floor(log2(amax)) - emax + 127, clamped to [0, 254].

    Shapes
        amax     int or float, finite, >= 0: the largest magnitude of the block; 0 counts as 1
        elem     str, "fp4_e2m1" (emax 2) or "fp8_e4m3" (emax 8)
        returns  int, in [0, 254]

    Errors
        ValueError  elem is another value; amax is negative, infinite, NaN, a bool or no number

    Numerics
        the floor is read from the exponent of the float64 and is exact

    >>> e8m0_scale_code(11.0, "fp4_e2m1"), e8m0_scale_code(7.999, "fp4_e2m1"), e8m0_scale_code(0, "fp8_e4m3")
    (128, 127, 119)
    """
    _, emax = _known(_ELEMENT, elem, "elem")
    return int(_scale_codes(np.float64(_amax(amax)), emax))


# MX blocks


def mx_quantize(x: Floats, block: int = 32, elem: str = "fp4_e2m1") -> tuple[U8, U8]:
    """Encode each block of consecutive values with one power-of-two scale of its own.

    Shapes
        x        f16[..., n], f32[..., n] or f64[..., n], finite as float32; n a multiple of block
        block    int, >= 1, values per scale
        elem     str, "fp4_e2m1" or "fp8_e4m3"
        returns  (codes, scales): u8[..., n] and u8[..., n // block], new arrays

    Errors
        ValueError  elem is another value, block is not an int >= 1, or n is no multiple of it
        ValueError  x is not an array of these dtypes, has no axis, or holds a NaN or an infinity as float32

    Numerics
        x is rounded to float32; the division by the scale is exact, so each element is rounded once more

    >>> codes, scales = mx_quantize(np.array([0.25, -1.4, 3.1, 11.0]), block=4)
    >>> codes.tolist(), scales.tolist()
    ([0, 9, 3, 7], [128])
    """
    f, emax = _known(_ELEMENT, elem, "elem")
    blocks = _blocks(_finite_f32(x), block)  # R27
    scales = _scale_codes(np.abs(blocks).max(axis=-1), emax)
    codes = _encode(np.ldexp(blocks, 127 - scales[..., None]), f)  # R28: an exact division
    return codes.reshape(x.shape), scales.astype(np.uint8)


def mx_dequantize(codes: Codes, scales_e8m0: Codes, block: int, elem: str) -> F32:
    """Decode every element and multiply by the scale of its block: element * 2^(c - 127).

    Shapes
        codes        integers[..., n], of any integer dtype, in [0, 15] or [0, 255] by elem
        scales_e8m0  integers[..., n // block], of any integer dtype, in [0, 255]; 255 makes a block NaN
        block        int, >= 1, values per scale
        elem         str, "fp4_e2m1" or "fp8_e4m3"
        returns      f32[..., n], a new array

    Errors
        ValueError  elem is another value, block is not an int >= 1, or n is no multiple of it
        ValueError  codes has no axis, or scales_e8m0 has not the shape above
        ValueError  codes or scales_e8m0 is not an integer array, or a code is out of range

    Numerics
        exact, but for what is beyond float32: that becomes an infinity

    >>> mx_dequantize(np.array([0, 9, 3, 7]), np.array([128]), 4, "fp4_e2m1").tolist()
    [0.0, -1.0, 3.0, 12.0]
    """
    f, _ = _known(_ELEMENT, elem, "elem")
    elements = _blocks(_decode(_codes(codes, 2 * f.sign - 1, "codes"), f), block)
    scales = _power(_codes(scales_e8m0, 255, "scales_e8m0"))
    if scales.shape != elements.shape[:-1]:  # R30: broadcasting would hide a wrong shape
        raise ValueError(f"scales_e8m0 must have the shape {elements.shape[:-1]}, got {scales.shape}")
    return _to_f32(elements * scales[..., None]).reshape(codes.shape)  # R29


# the one rounding rule, and its inverse


def _encode(v: F64, f: SimpleNamespace) -> U8:
    """Encode finite values by R8 to R12: nearest, ties to even, saturating (an infinity too)."""
    magnitude = np.fmin(np.abs(v), f.largest)  # R12, R13, R22; fmin: a NaN is no trouble here
    e = np.where(magnitude > 0.0, np.frexp(magnitude)[1] - 1, 1 - f.bias)  # floor(log2), exact
    e = np.maximum(e, 1 - f.bias)
    step = e - f.mantissa  # R10: log2 of the distance of two neighbours, constant below the smallest normal
    n = np.rint(np.ldexp(magnitude, -step)).astype(np.int32)  # R8, R9: exact quotient, nearest, ties to even
    code = ((e + f.bias - 1) << f.mantissa) + n  # the leading 1 of n, or its carry, completes the exponent
    return (code | np.where(np.signbit(v), f.sign, 0)).astype(np.uint8)  # R11: also of a zero


def _encode_fp8(v: F64, f: SimpleNamespace) -> U8:
    """Encode values that may be infinite or NaN."""
    codes = _encode(v, f)
    if f.infinity is not None:
        codes = np.where(np.isinf(v), codes & f.sign | f.infinity, codes)  # R13
    return np.where(np.isnan(v), _NAN, codes).astype(np.uint8)  # R14: without the sign


def _decode(codes: NDArray[np.int32], f: SimpleNamespace) -> F64:
    """Decode by R15 and R16, in float64, where a product with a scale is still to come."""
    magnitude = codes & (f.sign - 1)
    e, m = magnitude >> f.mantissa, magnitude & ((1 << f.mantissa) - 1)
    fraction = m / (1 << f.mantissa)
    value = np.where(e > 0, np.ldexp(1.0 + fraction, e - f.bias), np.ldexp(fraction, 1 - f.bias))
    value = np.where(magnitude > f.top, math.nan, value)  # R16: no other code is special
    if f.infinity is not None:
        value = np.where(magnitude == f.infinity, math.inf, value)
    return np.where(codes & f.sign, -value, value)


def _scale_codes(amax: Any, emax: int) -> NDArray[np.int32]:
    """Return floor(log2(amax)) - emax + 127, clamped; log2 itself rounds up just below a power of two."""
    exponent = np.frexp(np.where(amax == 0.0, 1.0, amax))[1] - 1
    return np.clip(exponent - emax + 127, 0, 254)  # R26: 255 is NaN


def _power(codes: NDArray[np.int32]) -> F64:
    """Return 2^(code - 127) in float64 (R25)."""
    return np.where(codes == 255, math.nan, np.ldexp(1.0, codes - 127))


def _to_f32(v: Floats) -> F32:
    """Round to float32, nearest even; what is too large becomes an infinity."""
    with np.errstate(all="ignore"):
        return v.astype(np.float32)


# what is refused


def _known(table: dict[str, Any], name: str, what: str) -> Any:
    """Look up a format by name (R1)."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{what} must be one of {', '.join(table)}, got {name!r}")
    return table[name]


def _floats(x: Floats) -> Floats:
    """Refuse what is no array of floats (R2): integers there are most often codes."""
    if not isinstance(x, np.ndarray) or x.dtype.type not in (np.float16, np.float32, np.float64):
        raise ValueError(f"x must be a float16, float32 or float64 array, got {getattr(x, 'dtype', type(x))}")
    return x


def _finite_f32(x: Floats) -> F64:
    """Round to float32 and refuse what is not finite then (R23)."""
    v = _to_f32(_floats(x)).astype(np.float64)
    if not np.isfinite(v).all():
        raise ValueError("x holds a NaN or an infinity as float32")
    return v


def _codes(codes: Codes, highest: int, what: str) -> NDArray[np.int32]:
    """Refuse what is no array of codes (R3); copy it as int32."""
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        raise ValueError(f"{what} must be an integer array, got {getattr(codes, 'dtype', type(codes))}")
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) <= highest:
        raise ValueError(f"{what} must be in [0, {highest}], got {codes.min()} to {codes.max()}")
    return codes.astype(np.int32)


def _number(value: float, what: str) -> float:
    """Refuse a bool, and what is neither int nor float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be an int or a float, got {value!r}")
    return float(value)


def _scale(scale: float) -> float:
    """Refuse a scale that is not finite and positive (R4)."""
    if not 0.0 < _number(scale, "scale") < math.inf:  # a NaN fails every comparison
        raise ValueError(f"scale must be finite and above 0, got {scale!r}")
    return float(scale)


def _amax(amax: float) -> float:
    """Refuse an amax that is not finite and at least 0 (R19)."""
    if not 0.0 <= _number(amax, "amax") < math.inf:
        raise ValueError(f"amax must be finite and at least 0, got {amax!r}")
    return float(amax)


def _blocks(v: F64, block: int) -> F64:
    """Split the last axis into blocks: [..., n] to [..., n // block, block] (R30)."""
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(f"block must be an int of at least 1, got {block!r}")
    if v.ndim == 0:
        raise ValueError("an array of blocks must have at least one axis")
    n = v.shape[-1]
    if n % block:
        raise ValueError(f"the last axis must be a multiple of block {block}, got {n}")
    return v.reshape(*v.shape[:-1], n // block, block if n else 1)  # without blocks their size is moot
