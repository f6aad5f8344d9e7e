import math

import numpy as np

FP8 = {"e4m3": (3, 7, 0x7E, 448.0), "e5m2": (2, 15, 0x7B, 57344.0)}  # M, B, code of the largest, largest
ELEMS = {"fp4_e2m1": (1, 1, 0x7, 2), "fp8_e4m3": (3, 7, 0x7E, 8)}  # M, B, code of the largest, emax


def _fp8(fmt):
    if not isinstance(fmt, str) or fmt not in FP8:
        raise ValueError("unknown format " + repr(fmt))
    return FP8[fmt]


def _elem(elem):
    if not isinstance(elem, str) or elem not in ELEMS:
        raise ValueError("unknown element format " + repr(elem))
    return ELEMS[elem]


def _floats(x):
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError("x must be a float array")
    return x


def _codes(codes, top):
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        raise ValueError("codes must be an integer array")
    values = codes.ravel().tolist()
    for c in values:
        if c < 0 or c > top:
            raise ValueError("code out of range: " + str(c))
    return values


def _positive(scale):
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise ValueError("scale must be a number")
    scale = float(scale)
    if not math.isfinite(scale) or scale <= 0:
        raise ValueError("scale must be finite and above 0")
    return scale


def _amax(amax):
    if isinstance(amax, bool) or not isinstance(amax, (int, float)):
        raise ValueError("amax must be a number")
    amax = float(amax)
    if not math.isfinite(amax) or amax < 0:
        raise ValueError("amax must be finite and at least 0")
    return amax


def _magnitude(v, M, B, top):
    """The code of a finite v >= 0, without a sign."""
    if v == 0:
        return 0
    E = max(math.frexp(v)[1] - 1, 1 - B)
    n = round(v / 2.0 ** (E - M))
    code = ((E + B - 1) << M) + n
    return min(code, top)


def _fp8_code(v, fmt):
    M, B, top, _ = FP8[fmt]
    if math.isnan(v):
        return 0x7F
    sign = 0x80 if math.copysign(1.0, v) < 0 else 0
    if math.isinf(v):
        return sign | (0x7C if fmt == "e5m2" else top)
    return sign | _magnitude(abs(v), M, B, top)


def _e2m1_code(v):
    sign = 0x8 if math.copysign(1.0, v) < 0 else 0
    return sign | _magnitude(abs(v), 1, 1, 0x7)


def _value(mag, M, B):
    e = mag >> M
    m = mag & ((1 << M) - 1)
    if e == 0:
        return 2.0 ** (1 - B) * m / 2 ** M
    return 2.0 ** (e - B) * (1 + m / 2 ** M)


def _fp8_value(code, fmt):
    M, B, top, _ = FP8[fmt]
    mag = code & 0x7F
    if fmt == "e5m2" and mag == 0x7C:
        v = math.inf
    elif mag > top:
        v = math.nan
    else:
        v = _value(mag, M, B)
    return -v if code & 0x80 else v


def _e2m1_value(code):
    v = _value(code & 0x7, 1, 1)
    return -v if code & 0x8 else v


def fp8_max(fmt):
    return _fp8(fmt)[3]


def f32_to_fp8_bits(x, fmt):
    _fp8(fmt)
    single = _floats(x).astype(np.float32)
    codes = [_fp8_code(v, fmt) for v in single.ravel().tolist()]
    return np.array(codes, dtype=np.uint8).reshape(x.shape)


def fp8_bits_to_f32(codes, fmt):
    _fp8(fmt)
    values = [_fp8_value(c, fmt) for c in _codes(codes, 255)]
    return np.array(values, dtype=np.float32).reshape(codes.shape)


def fp8_scale(amax, fmt):
    largest = fp8_max(fmt)
    quotient = _amax(amax) / largest
    if quotient == 0:
        return 1.0
    return quotient


def quantize_fp8(x, fmt, scale):
    _fp8(fmt)
    scale = _positive(scale)
    codes = []
    for v in np.nditer(_floats(x).astype(np.float64), flags=["zerosize_ok"], order="C"):
        with np.errstate(all="ignore"):
            codes.append(_fp8_code(float(v / scale), fmt))
    return np.array(codes, dtype=np.uint8).reshape(x.shape)


def dequantize_fp8(q, fmt, scale):
    _fp8(fmt)
    scale = _positive(scale)
    products = [_fp8_value(c, fmt) * scale for c in _codes(q, 255)]
    with np.errstate(over="ignore"):
        return np.array(products, dtype=np.float64).astype(np.float32).reshape(q.shape)


def _finite_singles(x):
    with np.errstate(over="ignore"):
        single = _floats(x).astype(np.float32)
    for v in single.ravel().tolist():
        if not math.isfinite(v):
            raise ValueError("x holds a NaN or an infinity")
    return single


def f32_to_e2m1_bits(x):
    codes = [_e2m1_code(v) for v in _finite_singles(x).ravel().tolist()]
    return np.array(codes, dtype=np.uint8).reshape(x.shape)


def e2m1_bits_to_f32(codes):
    values = [_e2m1_value(c) for c in _codes(codes, 15)]
    return np.array(values, dtype=np.float32).reshape(codes.shape)


def e8m0_to_f32(codes):
    values = [math.nan if c == 255 else 2.0 ** (c - 127) for c in _codes(codes, 255)]
    return np.array(values, dtype=np.float32).reshape(codes.shape)


def e8m0_scale_code(amax, elem):
    emax = _elem(elem)[3]
    amax = _amax(amax)
    if amax == 0:
        amax = 1.0
    code = math.frexp(amax)[1] - 1 - emax + 127
    return max(0, min(254, code))


def _block(block):
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError("block must be an int of at least 1")
    return block


def mx_quantize(x, block=32, elem="fp4_e2m1"):
    M, B, top, emax = _elem(elem)
    _block(block)
    single = _finite_singles(x)
    if x.ndim == 0 or x.shape[-1] % block != 0:
        raise ValueError("the last axis is not a whole number of blocks")
    values = single.ravel().tolist()
    codes = []
    scales = []
    for start in range(0, len(values), block):
        part = values[start:start + block]
        amax = 0.0
        for v in part:
            if abs(v) > amax:
                amax = abs(v)
        c = e8m0_scale_code(amax, elem)
        scales.append(c)
        for v in part:
            w = v / 2.0 ** (c - 127)
            if elem == "fp4_e2m1":
                codes.append(_e2m1_code(w))
            else:
                codes.append(_fp8_code(w, "e4m3"))
    shape = x.shape[:-1] + (x.shape[-1] // block,)
    return np.array(codes, dtype=np.uint8).reshape(x.shape), np.array(scales, dtype=np.uint8).reshape(shape)


def mx_dequantize(codes, scales_e8m0, block, elem):
    _elem(elem)
    _block(block)
    elements = _codes(codes, 15 if elem == "fp4_e2m1" else 255)
    scales = _codes(scales_e8m0, 255)
    if codes.ndim == 0 or codes.shape[-1] % block != 0:
        raise ValueError("the last axis is not a whole number of blocks")
    if scales_e8m0.shape != codes.shape[:-1] + (codes.shape[-1] // block,):
        raise ValueError("wrong shape of scales")
    out = []
    for i, code in enumerate(elements):
        c = scales[i // block]
        v = _e2m1_value(code) if elem == "fp4_e2m1" else _fp8_value(code, "e4m3")
        out.append(math.nan if c == 255 else v * 2.0 ** (c - 127))
    with np.errstate(over="ignore"):
        return np.array(out, dtype=np.float64).astype(np.float32).reshape(codes.shape)
