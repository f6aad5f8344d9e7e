import numpy as np


def _ladder(exponent_bits, mantissa_bits, bias):
    """All values of the positive codes in ascending order, specials read as numbers."""
    codes = np.arange(1 << (exponent_bits + mantissa_bits))
    e, m = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    whole = np.where(e > 0, 1.0, 0.0) + m / 2.0**mantissa_bits
    return np.ldexp(whole, np.maximum(e, 1) - bias)


E4M3 = _ladder(4, 3, 7)[:0x7F]
E5M2 = _ladder(5, 2, 15)[:0x7C]
E2M1 = _ladder(2, 1, 1)
NAN = np.float64("nan")
LADDERS = {"e4m3": E4M3, "e5m2": E5M2}
INFINITY_CODE = {"e4m3": 0x7E, "e5m2": 0x7C}
DECODE = {
    "e4m3": np.concatenate([E4M3, [NAN], -E4M3, [NAN]]),
    "e5m2": np.concatenate([E5M2, [np.inf, NAN, NAN, NAN], -E5M2, [-np.inf, NAN, NAN, NAN]]),
    "e2m1": np.concatenate([E2M1, -E2M1]),
}
OF_ELEM = {"fp4_e2m1": ("e2m1", 2), "fp8_e4m3": ("e4m3", 8)}


def need(ok, text):
    if not ok:
        raise ValueError(text)


def need_fmt(fmt):
    need(fmt in ("e4m3", "e5m2"), f"fmt: {fmt!r}")


def need_elem(elem):
    need(elem in ("fp4_e2m1", "fp8_e4m3"), f"elem: {elem!r}")


def need_floats(x):
    need(isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.dtype.itemsize in (2, 4, 8), "x: a float array")


def need_codes(a, top):
    need(isinstance(a, np.ndarray) and np.issubdtype(a.dtype, np.integer), "codes: an integer array")
    need(a.size == 0 or (a.min() >= 0 and a.max() <= top), f"codes: 0 to {top}")
    return a.astype(np.intp)


def need_number(v, zero_too):
    need(isinstance(v, (int, float)) and not isinstance(v, bool), "a number")
    need(np.isfinite(v) and (v > 0 or (zero_too and v == 0)), "a number in range")
    return float(v)


def nearest(magnitude, ladder):
    """Codes of non-negative numbers; beyond the last step is the last step."""
    middles = (ladder[1:] + ladder[:-1]) / 2
    below = np.searchsorted(middles, magnitude, side="left")
    inside = np.minimum(below, middles.size - 1)
    tie = (below < middles.size) & (middles[inside] == magnitude)
    return below + (tie & (below % 2 == 1))


def encode8(v, fmt):
    v = np.asarray(v, dtype=np.float64)
    code = nearest(np.abs(v), LADDERS[fmt])
    code = np.where(np.isinf(v), INFINITY_CODE[fmt], code)
    code = np.where(np.signbit(v), code | 0x80, code)
    return np.where(np.isnan(v), 0x7F, code).astype(np.uint8)


def encode4(v):
    code = nearest(np.abs(v), E2M1)
    return np.where(np.signbit(v), code + 8, code).astype(np.uint8)


def to_f32(x):
    need_floats(x)
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float64)


def to_finite_f32(x):
    x = to_f32(x)
    need(np.isfinite(x).all(), "x: no NaN, no infinity")
    return x


def fp8_max(fmt):
    need_fmt(fmt)
    return float(LADDERS[fmt][-1])


def f32_to_fp8_bits(x, fmt):
    need_fmt(fmt)
    return encode8(to_f32(x), fmt)


def fp8_bits_to_f32(codes, fmt):
    need_fmt(fmt)
    return DECODE[fmt][need_codes(codes, 255)].astype(np.float32)


def fp8_scale(amax, fmt):
    need_fmt(fmt)
    return need_number(amax, True) / fp8_max(fmt) or 1.0


def quantize_fp8(x, fmt, scale):
    need_fmt(fmt)
    need_floats(x)
    scale = need_number(scale, False)
    with np.errstate(all="ignore"):
        ratio = x.astype(np.float64) / scale
    return encode8(ratio, fmt)


def dequantize_fp8(q, fmt, scale):
    need_fmt(fmt)
    table = DECODE[fmt] * need_number(scale, False)
    with np.errstate(over="ignore"):
        return table[need_codes(q, 255)].astype(np.float32)


def f32_to_e2m1_bits(x):
    return encode4(to_finite_f32(x))


def e2m1_bits_to_f32(codes):
    return DECODE["e2m1"][need_codes(codes, 15)].astype(np.float32)


def e8m0_wide(codes):
    c = need_codes(codes, 255)
    return np.where(c == 255, NAN, np.ldexp(1.0, c - 127))


def e8m0_to_f32(codes):
    return e8m0_wide(codes).astype(np.float32)


def e8m0_scale_code(amax, elem):
    need_elem(elem)
    amax = need_number(amax, True)
    exponent = np.frexp(amax if amax else 1.0)[1] - 1
    return int(np.clip(exponent - OF_ELEM[elem][1] + 127, 0, 254))


def blocks_of(shape, block):
    need(type(block) is int and block >= 1, "block: an int >= 1")
    need(len(shape) >= 1 and shape[-1] % block == 0, "the last axis: whole blocks")
    return shape[:-1] + (shape[-1] // block,)


def mx_quantize(x, block=32, elem="fp4_e2m1"):
    need_elem(elem)
    v = to_finite_f32(x)
    outer = blocks_of(v.shape, block)
    v = v.reshape(outer + (block,))
    amax = np.abs(v).max(axis=-1)
    scales = np.array([e8m0_scale_code(a, elem) for a in amax.ravel().tolist()], dtype=np.uint8).reshape(outer)
    scaled = v / e8m0_wide(scales)[..., None]
    codes = encode4(scaled) if elem == "fp4_e2m1" else encode8(scaled, "e4m3")
    return codes.reshape(x.shape), scales


def mx_dequantize(codes, scales_e8m0, block, elem):
    need_elem(elem)
    name, _ = OF_ELEM[elem]
    values = DECODE[name][need_codes(codes, len(DECODE[name]) - 1)]
    scales = e8m0_wide(scales_e8m0)
    outer = blocks_of(codes.shape, block)
    need(scales.shape == outer, f"scales: shape {outer}")
    with np.errstate(all="ignore"):
        product = values.reshape(outer + (block,)) * scales[..., None]
        return product.reshape(codes.shape).astype(np.float32)
