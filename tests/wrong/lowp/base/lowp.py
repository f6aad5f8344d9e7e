from dataclasses import dataclass
from math import frexp, inf, isfinite, ldexp, nan

import numpy as np


@dataclass(frozen=True)
class Minifloat:
    """A sign, some exponent bits and `m` mantissa bits."""

    bits: int
    m: int
    bias: int
    last: int  # the largest finite code
    infinity: int  # the code an infinity gets
    has_inf: bool = False

    @property
    def sign(self):
        return 1 << (self.bits - 1)

    @property
    def largest(self):
        return self.decode(self.last)

    def decode(self, code):
        magnitude, negative = code & (self.sign - 1), code & self.sign
        if magnitude > self.last:
            value = inf if self.has_inf and magnitude == self.last + 1 else nan
        else:
            field, rest = divmod(magnitude, 1 << self.m)
            if field:
                rest += 1 << self.m
            value = ldexp(float(rest), max(field, 1) - self.bias - self.m)
        return -value if negative else value

    def table(self):
        return np.array([self.decode(c) for c in range(1 << self.bits)])

    def encode(self, v):
        """Codes of an f64 array."""
        with np.errstate(invalid="ignore"):
            size = np.minimum(np.abs(v), self.largest)
            size = np.where(np.isnan(size), 0.0, size)
            exponent = np.maximum(np.frexp(size)[1] - 1, 1 - self.bias)
            exponent = np.where(size == 0.0, 1 - self.bias, exponent)
            steps = np.rint(np.ldexp(size, self.m - exponent)).astype(np.int64)
        code = ((exponent.astype(np.int64) + self.bias - 1) << self.m) + steps
        code[np.isinf(v)] = self.infinity
        code[np.signbit(v)] += self.sign
        code[np.isnan(v)] = self.sign - 1
        return code.astype(np.uint8)


FP8 = {"e4m3": Minifloat(8, 3, 7, 0x7E, 0x7E), "e5m2": Minifloat(8, 2, 15, 0x7B, 0x7C, has_inf=True)}
E2M1 = Minifloat(4, 1, 1, 7, 7)
ELEM = {"fp4_e2m1": (E2M1, 2), "fp8_e4m3": (FP8["e4m3"], 8)}


def lookup(table, key):
    if isinstance(key, str) and key in table:
        return table[key]
    raise ValueError(f"{key!r} is none of {sorted(table)}")


def as_floats(x):
    if not (isinstance(x, np.ndarray) and x.dtype.name in ("float16", "float32", "float64")):
        raise ValueError("x is not a float array")
    return x


def through_single(x, finite=False):
    with np.errstate(over="ignore"):
        v = as_floats(x).astype(np.float32).astype(np.float64)
    if finite and not np.isfinite(v).all():
        raise ValueError("NaN and infinity have no code here")
    return v


def as_codes(a, limit):
    if not isinstance(a, np.ndarray) or a.dtype.kind not in ("i", "u"):
        raise ValueError("codes are integers")
    if np.any(a < 0) or np.any(a > limit):
        raise ValueError(f"codes are at most {limit}")
    return a.astype(np.int64)


def as_number(v):
    if type(v) is bool or not isinstance(v, (int, float)) or not isfinite(v) or v < 0:
        raise ValueError(f"not a usable number: {v!r}")
    return float(v)


def as_scale(v):
    v = as_number(v)
    if v == 0.0:
        raise ValueError("a scale is above 0")
    return v


def as_block(block, shape):
    if type(block) is bool or not isinstance(block, int) or block < 1:
        raise ValueError("block")
    if not shape:
        raise ValueError("no axis")
    count, rest = divmod(shape[-1], block)
    if rest:
        raise ValueError("partial block")
    return shape[:-1] + (count,)


def fp8_max(fmt):
    return lookup(FP8, fmt).largest


def f32_to_fp8_bits(x, fmt):
    return lookup(FP8, fmt).encode(through_single(x))


def fp8_bits_to_f32(codes, fmt):
    return lookup(FP8, fmt).table().astype(np.float32)[as_codes(codes, 255)]


def fp8_scale(amax, fmt):
    scale = as_number(amax) / fp8_max(fmt)
    return scale if scale > 0.0 else 1.0


def quantize_fp8(x, fmt, scale):
    kind, scale = lookup(FP8, fmt), as_scale(scale)
    with np.errstate(all="ignore"):
        return kind.encode(np.divide(as_floats(x), scale, dtype=np.float64))


def dequantize_fp8(q, fmt, scale):
    kind, scale = lookup(FP8, fmt), as_scale(scale)
    with np.errstate(all="ignore"):
        return (kind.table()[as_codes(q, 255)] * scale).astype(np.float32)


def f32_to_e2m1_bits(x):
    return E2M1.encode(through_single(x, finite=True))


def e2m1_bits_to_f32(codes):
    return E2M1.table().astype(np.float32)[as_codes(codes, 15)]


POWERS = np.array([ldexp(1.0, c - 127) for c in range(255)] + [nan])


def e8m0_to_f32(codes):
    return POWERS.astype(np.float32)[as_codes(codes, 255)]


def e8m0_scale_code(amax, elem):
    _, emax = lookup(ELEM, elem)
    _, exponent = frexp(as_number(amax) or 1.0)
    code = exponent - 1 - emax + 127
    return 0 if code < 0 else 254 if code > 254 else code


def mx_quantize(x, block=32, elem="fp4_e2m1"):
    kind, _ = lookup(ELEM, elem)
    v = through_single(x, finite=True)
    shape = as_block(block, v.shape)
    codes, scales = np.empty(v.shape, np.uint8), np.empty(shape, np.uint8)
    for at in np.ndindex(shape):
        row, j = at[:-1], at[-1]
        here = row + (slice(j * block, (j + 1) * block),)
        part = v[here]
        scales[at] = e8m0_scale_code(float(np.max(np.abs(part))), elem)
        codes[here] = kind.encode(part / POWERS[scales[at]])
    return codes, scales


def mx_dequantize(codes, scales_e8m0, block, elem):
    kind, _ = lookup(ELEM, elem)
    c = as_codes(codes, (1 << kind.bits) - 1)
    s = as_codes(scales_e8m0, 255)
    if as_block(block, c.shape) != s.shape:
        raise ValueError("scales do not fit")
    with np.errstate(all="ignore"):
        return (kind.table()[c] * np.repeat(POWERS[s], block, axis=-1)).astype(np.float32)
