"""Low-precision codecs that work on the bits of a float64."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Spec:
    ebits: int
    mbits: int
    bias: int
    last: int  # code of the largest finite value
    inf: int  # code of an infinity

    @property
    def sign(self) -> int:
        return 1 << (self.ebits + self.mbits)

    @property
    def max(self) -> float:
        e, m = divmod(self.last, 1 << self.mbits)
        return math.ldexp((1 << self.mbits) + m, e - self.bias - self.mbits)


FP8 = {"e4m3": Spec(4, 3, 7, 0x7E, 0x7E), "e5m2": Spec(5, 2, 15, 0x7B, 0x7C)}
FP4 = Spec(2, 1, 1, 0x7, 0x7)
ELEMS = {"fp4_e2m1": (FP4, 2), "fp8_e4m3": (FP8["e4m3"], 8)}


def _spec(fmt: str) -> Spec:
    try:
        return FP8[fmt]
    except (KeyError, TypeError):
        raise ValueError(f"no fp8 format {fmt!r}") from None


def _elem(elem: str) -> tuple[Spec, int]:
    try:
        return ELEMS[elem]
    except (KeyError, TypeError):
        raise ValueError(f"no element format {elem!r}") from None


def _float_array(x: Array) -> Array:
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        raise ValueError(f"a float array is needed, not {x.dtype}")
    return x


def _code_array(codes: Array, top: int) -> Array:
    if codes.dtype.kind not in ("i", "u"):
        raise ValueError(f"an integer array is needed, not {codes.dtype}")
    if ((codes < 0) | (codes > top)).any():
        raise ValueError(f"a code is outside [0, {top}]")
    return codes.astype(np.int64)


def _finite(value: Any, low_ok: bool) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float)):
        raise ValueError("a Python number is needed")
    if math.isnan(value) or math.isinf(value) or value < 0 or (value == 0 and not low_ok):
        raise ValueError(f"{value} is out of range")
    return float(value)


def _as_f32(x: Array) -> F32:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.array(x, dtype=np.float32)


def _encode(v: Array, spec: Spec) -> U8:
    """Round float64 values to codes: shift the significand right, nearest even."""
    bits = np.ascontiguousarray(v, dtype=np.float64).view(np.uint64).reshape(v.shape).astype(object)
    out = np.empty(v.shape, dtype=np.uint8)
    for index, word in np.ndenumerate(bits):
        word = int(word)
        sign = spec.sign if word >> 63 else 0
        field, frac = (word >> 52) & 0x7FF, word & ((1 << 52) - 1)
        if field == 0x7FF:
            out[index] = 0x7F if frac else sign | spec.inf
            continue
        significand = frac | (1 << 52) if field else frac
        exponent = max(field, 1) - 1023
        e = max(exponent, 1 - spec.bias)
        drop = 52 - spec.mbits + (e - exponent)
        kept, lost = significand >> drop, significand & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        if lost > half or (lost == half and kept & 1):
            kept += 1
        code = ((e + spec.bias - 1) << spec.mbits) + kept
        out[index] = sign | min(code, spec.last)
    return out


def _table(spec: Spec) -> npt.NDArray[np.float64]:
    values = []
    for code in range(2 * spec.sign):
        sign = -1.0 if code & spec.sign else 1.0
        rest = code & (spec.sign - 1)
        e, m = rest >> spec.mbits, rest & ((1 << spec.mbits) - 1)
        if rest <= spec.last:
            hidden = (1 << spec.mbits) if e else 0
            values.append(sign * math.ldexp(hidden + m, max(e, 1) - spec.bias - spec.mbits))
        elif rest == spec.inf:
            values.append(sign * math.inf)
        else:
            values.append(math.nan)
    return np.array(values)


def _powers(codes: Array) -> npt.NDArray[np.float64]:
    table = np.array([math.ldexp(1.0, c - 127) for c in range(255)] + [math.nan])
    return table[codes]


def fp8_max(fmt: str) -> float:
    return _spec(fmt).max


def f32_to_fp8_bits(x: Array, fmt: str) -> U8:
    spec = _spec(fmt)
    return _encode(_as_f32(_float_array(x)), spec)


def fp8_bits_to_f32(codes: Array, fmt: str) -> F32:
    spec = _spec(fmt)
    return _table(spec)[_code_array(codes, 255)]


def fp8_scale(amax: float, fmt: str) -> float:
    return _finite(amax, low_ok=True) / _spec(fmt).max or 1.0


def quantize_fp8(x: Array, fmt: str, scale: float) -> U8:
    spec, s = _spec(fmt), _finite(scale, low_ok=False)
    wide = _float_array(x).astype(np.float64)
    with np.errstate(all="ignore"):
        return _encode(np.divide(wide, s), spec)


def dequantize_fp8(q: Array, fmt: str, scale: float) -> F32:
    spec, s = _spec(fmt), _finite(scale, low_ok=False)
    with np.errstate(all="ignore"):
        return _as_f32(np.multiply(_table(spec)[_code_array(q, 255)], s))


def _only_finite(y: F32) -> F32:
    if not np.all(np.isfinite(y)):
        raise ValueError("NaN and infinities cannot be stored")
    return y


def f32_to_e2m1_bits(x: Array) -> U8:
    return _encode(_only_finite(_as_f32(_float_array(x))), FP4)


def e2m1_bits_to_f32(codes: Array) -> F32:
    return _table(FP4)[_code_array(codes, 15)]


def e8m0_to_f32(codes: Array) -> F32:
    return _powers(_code_array(codes, 255))


def e8m0_scale_code(amax: float, elem: str) -> int:
    _, emax = _elem(elem)
    value = _finite(amax, low_ok=True) or 1.0
    _, exponent = math.frexp(value)
    return max(0, min(254, exponent - 1 - emax + 127))


def _grid(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    if not isinstance(block, int) or isinstance(block, bool) or block <= 0:
        raise ValueError("block must be an int >= 1")
    if not shape:
        raise ValueError("an axis is needed")
    whole, rest = divmod(shape[-1], block)
    if rest:
        raise ValueError("a partial block")
    return (*shape[:-1], whole)


def mx_quantize(x: Array, block: int = 32, elem: str = "fp4_e2m1") -> tuple[U8, U8]:
    spec, _ = _elem(elem)
    grid = _grid(_float_array(x).shape, block)
    y = _only_finite(_as_f32(x))
    codes, scales = np.zeros(x.shape, dtype=np.uint8), np.zeros(grid, dtype=np.uint8)
    for index in np.ndindex(*grid):
        *lead, j = index
        where = (*lead, slice(j * block, (j + 1) * block))
        part = y[where].astype(np.float64)
        c = e8m0_scale_code(float(np.max(np.abs(part))), elem)
        scales[index] = c
        codes[where] = _encode(part / 2.0 ** (c - 127), spec)
    return codes, scales


def mx_dequantize(codes: Array, scales_e8m0: Array, block: int, elem: str) -> F32:
    spec, _ = _elem(elem)
    q = _code_array(codes, 2 * spec.sign - 1)
    s = _code_array(scales_e8m0, 255)
    if s.shape != _grid(q.shape, block):
        raise ValueError("scales do not match the blocks")
    out = np.zeros(q.shape, dtype=np.float32)
    for index in np.ndindex(*s.shape):
        *lead, j = index
        where = (*lead, slice(j * block, (j + 1) * block))
        with np.errstate(all="ignore"):
            out[where] = (_table(spec)[q[where]] * _powers(s[index])).astype(np.float32)
    return out
