"""Small floats with array arithmetic: a binade, a step, a rounding."""
from __future__ import annotations

import math

import numpy as np

# mantissa bits, bias, largest finite value
FORMATS = {"e4m3": (3, 7, 448.0), "e5m2": (2, 15, 57344.0)}
E2M1 = (1, 1, 6.0)
EMAX = {"fp4_e2m1": 2, "fp8_e4m3": 8}


# ---- checks ----


def format_of(fmt):
    if not isinstance(fmt, str) or fmt not in FORMATS:
        raise ValueError(f"fmt: {fmt!r} is not a format")
    return FORMATS[fmt]


def check_elem(elem):
    if not isinstance(elem, str) or elem not in EMAX:
        raise ValueError(f"elem: {elem!r} is not an element format")


def floats(x):
    if not isinstance(x, np.ndarray) or x.dtype not in ("float16", "float32", "float64"):
        raise ValueError("x: a float array")
    return x


def integers(codes, top):
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        raise ValueError("codes: an integer array")
    if codes.size and (codes.min() < 0 or codes.max() > top):
        raise ValueError(f"codes: outside 0..{top}")
    return codes.astype(np.int64)


def number(v, name):
    if isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v):
        raise ValueError(f"{name}: a finite number")
    return float(v)


def positive(scale):
    s = number(scale, "scale")
    if s <= 0:
        raise ValueError("scale: above 0")
    return s


def not_negative(amax):
    a = number(amax, "amax")
    if a < 0:
        raise ValueError("amax: at least 0")
    return a


# ---- arithmetic ----


def single(x):
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(np.float32)


def magnitude_codes(v, mbits, bias):
    """Codes without sign of finite v >= 0 that do not exceed the largest finite value."""
    floor_log2 = np.where(v == 0, 1 - bias, np.frexp(v)[1].astype(np.int64) - 1)
    e = np.maximum(floor_log2, 1 - bias)
    n = np.rint(np.ldexp(v, mbits - e)).astype(np.int64)
    return ((e + bias - 1) << mbits) + n


def encode_fp8(x, fmt):
    mbits, bias, top = FORMATS[fmt]
    v = np.abs(x.astype(np.float64))
    nan = np.isnan(v)
    inf = np.isinf(v)
    codes = magnitude_codes(np.minimum(np.where(nan, 0.0, v), top), mbits, bias)
    if fmt == "e5m2":
        codes = np.where(inf, 0x7C, codes)
    codes = codes | (np.signbit(x).astype(np.int64) << 7)
    return np.where(nan, 0x7F, codes).astype(np.uint8)


def encode_e2m1(x):
    v = np.minimum(np.abs(x.astype(np.float64)), E2M1[2])
    codes = magnitude_codes(v, E2M1[0], E2M1[1])
    return (codes | (np.signbit(x).astype(np.int64) << 3)).astype(np.uint8)


def decode(codes, mbits, bias, ebits):
    m = codes & ((1 << mbits) - 1)
    e = (codes >> mbits) & ((1 << ebits) - 1)
    s = (codes >> (mbits + ebits)) & 1
    normal = np.ldexp(1.0 + m / 2.0**mbits, e - bias)
    small = np.ldexp(m / 2.0**mbits, np.full(m.shape, 1 - bias))
    return np.where(s == 1, -1.0, 1.0) * np.where(e > 0, normal, small)


def decode_fp8(codes, fmt):
    mbits, bias, _ = FORMATS[fmt]
    out = decode(codes, mbits, bias, 7 - mbits)
    rest = codes & 0x7F
    if fmt == "e4m3":
        return np.where(rest == 0x7F, np.nan, out)
    out = np.where(rest == 0x7C, np.where(codes >= 128, -np.inf, np.inf), out)
    return np.where(rest > 0x7C, np.nan, out)


def scale_values(codes):
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))


# ---- public ----


def fp8_max(fmt):
    return format_of(fmt)[2]


def f32_to_fp8_bits(x, fmt):
    format_of(fmt)
    return encode_fp8(single(floats(x)), fmt)


def fp8_bits_to_f32(codes, fmt):
    format_of(fmt)
    return decode_fp8(integers(codes, 255), fmt).astype(np.float32)


def fp8_scale(amax, fmt):
    top = fp8_max(fmt)
    scale = not_negative(amax) / top
    return scale if scale > 0 else 1.0


def quantize_fp8(x, fmt, scale):
    format_of(fmt)
    s = positive(scale)
    with np.errstate(all="ignore"):
        quotient = floats(x).astype(np.float64) / s
    return encode_fp8(quotient, fmt)


def dequantize_fp8(q, fmt, scale):
    format_of(fmt)
    s = positive(scale)
    with np.errstate(all="ignore"):
        return single(decode_fp8(integers(q, 255), fmt) * s)


def f32_to_e2m1_bits(x):
    y = single(floats(x))
    if not np.isfinite(y).all():
        raise ValueError("x: NaN or infinity has no e2m1 code")
    return encode_e2m1(y)


def e2m1_bits_to_f32(codes):
    return decode(integers(codes, 15), 1, 1, 2).astype(np.float32)


def e8m0_to_f32(codes):
    return scale_values(integers(codes, 255)).astype(np.float32)


def e8m0_scale_code(amax, elem):
    check_elem(elem)
    a = not_negative(amax)
    if a == 0:
        a = 1.0
    code = math.frexp(a)[1] - 1 - EMAX[elem] + 127
    return min(max(code, 0), 254)


def check_blocks(shape, block):
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError("block: an int of at least 1")
    if len(shape) == 0:
        raise ValueError("at least one axis")
    return shape[:-1] + (-(-shape[-1] // block),)


def mx_quantize(x, block=32, elem="fp4_e2m1"):
    check_elem(elem)
    shape = check_blocks(floats(x).shape, block)
    y = single(x)
    if not np.isfinite(y).all():
        raise ValueError("x: NaN or infinity")
    if y.size == 0:
        return np.zeros(x.shape, np.uint8), np.zeros(shape, np.uint8)
    missing = shape[-1] * block - y.shape[-1]
    y = np.concatenate([y, np.zeros(y.shape[:-1] + (missing,), np.float32)], axis=-1)
    blocks = y.reshape(shape + (block,)).astype(np.float64)
    amax = np.abs(blocks).max(axis=-1)
    scales = np.array([e8m0_scale_code(a, elem) for a in amax.ravel().tolist()]).reshape(shape)
    scaled = blocks / np.ldexp(1.0, scales - 127)[..., None]
    codes = encode_e2m1(scaled) if elem == "fp4_e2m1" else encode_fp8(scaled, "e4m3")
    codes = codes.reshape(y.shape)[..., : x.shape[-1]].copy()
    return codes, scales.astype(np.uint8)


def mx_dequantize(codes, scales_e8m0, block, elem):
    check_elem(elem)
    c = integers(codes, 15 if elem == "fp4_e2m1" else 255)
    s = integers(scales_e8m0, 255)
    if s.shape != check_blocks(c.shape, block):
        raise ValueError("scales_e8m0: the wrong shape")
    if c.size == 0:
        return np.zeros(c.shape, np.float32)
    values = decode(c, 1, 1, 2) if elem == "fp4_e2m1" else decode_fp8(c, "e4m3")
    return single(values * np.repeat(scale_values(s), block, axis=-1)[..., : c.shape[-1]])
