"""fp8, fp4 and MX: one element at a time, in plain Python."""
import math
import struct
from bisect import bisect_left

import numpy as np

INF = math.inf
NAN = math.nan


def _value(code, m_bits, bias):
    e, m = divmod(code, 2**m_bits)
    if e == 0:
        return 2.0 ** (1 - bias) * (m / 2**m_bits)
    return 2.0 ** (e - bias) * (1 + m / 2**m_bits)


# finite magnitudes by code
E4M3 = [_value(c, 3, 7) for c in range(0x78)]
E5M2 = [_value(c, 2, 15) for c in range(0x7C)]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP8 = {"e4m3": E4M3, "e5m2": E5M2}


def _nearest(v, table):
    """The code of the entry of table that is nearest to v >= 0; the even one if there are two."""
    if v >= table[-1]:
        return len(table) - 1
    hi = bisect_left(table, v)
    if table[hi] == v:
        return hi
    lo = hi - 1
    middle = (table[lo] + table[hi]) / 2
    if v < middle:
        return lo
    if v > middle:
        return hi
    return lo if lo % 2 == 0 else hi


def _negative(v):
    return math.copysign(1.0, v) < 0


def _fp8_code(v, fmt):
    if math.isnan(v):
        return 0x7F
    sign = 0x80 if _negative(v) else 0
    if fmt == "e5m2" and math.isinf(v):
        return sign | 0x7C
    return sign | _nearest(abs(v), FP8[fmt])


def _e2m1_code(v):
    return (8 if _negative(v) else 0) | _nearest(abs(v), E2M1)


def _fp8_value(code, fmt):
    sign = -1.0 if code & 0x80 else 1.0
    rest = code & 0x7F
    table = FP8[fmt]
    if rest < len(table):
        return sign * table[rest]
    if rest == {"e4m3": 0x78, "e5m2": 0x7C}[fmt]:
        return sign * INF
    return NAN


def _e2m1_value(code):
    return (-1.0 if code & 8 else 1.0) * E2M1[code & 7]


def _e8m0_value(code):
    return NAN if code == 255 else 2.0 ** (code - 127)


def _to_single(v):
    try:
        return struct.unpack("<f", struct.pack("<f", v))[0]
    except OverflowError:
        return math.copysign(INF, v)


def _divide(v, scale):
    try:
        return v / scale
    except OverflowError:
        return math.copysign(INF, v)


# checking


def _need_format(fmt):
    if fmt not in ("e4m3", "e5m2"):
        raise ValueError("unknown fp8 format")


def _need_elem(elem):
    if elem not in ("fp4_e2m1", "fp8_e4m3"):
        raise ValueError("unknown element format")


def _need_floats(x):
    if x.dtype.type not in (np.float16, np.float32, np.float64):
        raise ValueError("x must be a float array")


def _need_codes(codes, last):
    if not np.issubdtype(codes.dtype, np.integer):
        raise ValueError("codes must be integers")
    for c in codes.ravel().tolist():
        if c < 0 or c > last:
            raise ValueError("code out of range")


def _need_number(v, allow_zero):
    if type(v) is bool or not isinstance(v, (int, float)):
        raise ValueError("must be a number")
    if not math.isfinite(v) or v < 0 or (v == 0 and not allow_zero):
        raise ValueError("number out of range")


def _need_blocks(shape, block):
    if type(block) is not int or block < 1:
        raise ValueError("block must be a positive int")
    if not shape or shape[-1] % block != 0:
        raise ValueError("the last axis must be whole blocks")


def _map(f, array, dtype):
    return np.array([f(v) for v in array.ravel().tolist()], dtype=dtype).reshape(array.shape)


# the unit


def fp8_max(fmt):
    _need_format(fmt)
    return FP8[fmt][-1]


def f32_to_fp8_bits(x, fmt):
    _need_format(fmt)
    _need_floats(x)
    return _map(lambda v: _fp8_code(_to_single(v), fmt), x, np.uint8)


def fp8_bits_to_f32(codes, fmt):
    _need_format(fmt)
    _need_codes(codes, 255)
    return _map(lambda c: _fp8_value(c, fmt), codes, np.float32)


def fp8_scale(amax, fmt):
    _need_format(fmt)
    _need_number(amax, True)
    scale = amax / fp8_max(fmt)
    if scale == 0:
        return 1.0
    return scale


def quantize_fp8(x, fmt, scale):
    _need_format(fmt)
    _need_floats(x)
    _need_number(scale, False)
    scale = float(scale)
    return _map(lambda v: _fp8_code(_divide(v, scale), fmt), x, np.uint8)


def dequantize_fp8(q, fmt, scale):
    _need_format(fmt)
    _need_codes(q, 255)
    _need_number(scale, False)
    scale = float(scale)
    return _map(lambda c: _to_single(_fp8_value(c, fmt) * scale), q, np.float32)


def f32_to_e2m1_bits(x):
    _need_floats(x)

    def one(v):
        v = _to_single(v)
        if not math.isfinite(v):
            raise ValueError("no code for NaN or infinity")
        return _e2m1_code(v)

    return _map(one, x, np.uint8)


def e2m1_bits_to_f32(codes):
    _need_codes(codes, 15)
    return _map(_e2m1_value, codes, np.float32)


def e8m0_to_f32(codes):
    _need_codes(codes, 255)
    return _map(_e8m0_value, codes, np.float32)


def e8m0_scale_code(amax, elem):
    _need_elem(elem)
    _need_number(amax, True)
    emax = {"fp4_e2m1": 2, "fp8_e4m3": 8}[elem]
    if amax == 0:
        amax = 1
    exponent = math.frexp(amax)[1] - 1
    code = exponent - emax + 127
    if code < 0:
        return 0
    if code > 254:
        return 254
    return code


def mx_quantize(x, block=32, elem="fp4_e2m1"):
    _need_elem(elem)
    _need_floats(x)
    _need_blocks(x.shape, block)
    values = [_to_single(v) for v in x.ravel().tolist()]
    for v in values:
        if not math.isfinite(v):
            raise ValueError("NaN or infinity in x")
    codes, scales = [], []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        c = e8m0_scale_code(max(abs(v) for v in part), elem)
        scales.append(c)
        for v in part:
            v = v / 2.0 ** (c - 127)
            codes.append(_e2m1_code(v) if elem == "fp4_e2m1" else _fp8_code(v, "e4m3"))
    return (
        np.array(codes, dtype=np.uint8).reshape(x.shape),
        np.array(scales, dtype=np.uint8).reshape(x.shape[:-1] + (x.shape[-1] // block,)),
    )


def mx_dequantize(codes, scales_e8m0, block, elem):
    _need_elem(elem)
    _need_codes(codes, 15 if elem == "fp4_e2m1" else 255)
    _need_codes(scales_e8m0, 255)
    _need_blocks(codes.shape, block)
    if scales_e8m0.shape != codes.shape[:-1] + (codes.shape[-1] // block,):
        raise ValueError("one scale for each block")
    scales = scales_e8m0.ravel().tolist()
    out = []
    for i, code in enumerate(codes.ravel().tolist()):
        value = _e2m1_value(code) if elem == "fp4_e2m1" else _fp8_value(code, "e4m3")
        out.append(_to_single(value * _e8m0_value(scales[i // block])))
    return np.array(out, dtype=np.float32).reshape(codes.shape)
