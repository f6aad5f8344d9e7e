"""Weights and a KV cache in 8 and 4 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from impl import lowp, tolerance
from impl.llama import Linear

SCHEMES = ("int8", "q4_g32", "fp8_e4m3", "mxfp4")
FLOATS = (np.float16, np.float32, np.float64)


@dataclass(eq=False)
class Q8Tensor:
    q: Any
    scales: Any


@dataclass(eq=False)
class Q4Tensor:
    packed: Any
    scales: Any
    group: int
    shape: tuple[int, int]


@dataclass(eq=False)
class FP8Tensor:
    codes: Any
    scales: Any
    fmt: str


@dataclass(eq=False)
class MXTensor:
    codes: Any
    scales: Any
    block: int
    elem: str


@dataclass(eq=False)
class KVQuant:
    codes: Any
    scales: Any


def _finite32(a: Any, axes: int) -> Any:
    if not isinstance(a, np.ndarray) or a.dtype.type not in FLOATS:
        raise ValueError("need a float16, float32 or float64 array")
    if a.ndim != axes or 0 in a.shape:
        raise ValueError(f"need {axes} axes, none of them empty, got shape {a.shape}")
    with np.errstate(over="ignore"):
        a32 = np.array(a, dtype=np.float32)
    if not np.isfinite(a32).all():
        raise ValueError("NaN or infinity")
    return a32


def _plain_int(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def quantize_int8_per_channel(w: Any) -> Any:
    w = _finite32(w, 2)
    q = np.zeros(w.shape, np.int8)
    scales = np.zeros(len(w), np.float32)
    for i, row in enumerate(w):
        s = np.float32(np.abs(row).max() / np.float32(127))
        scales[i] = s
        if s == 0:
            continue
        q[i] = np.clip(np.rint(row / s), -127, 127).astype(np.int8)
    return q, scales


def pack_int4(q: Any) -> Any:
    if not isinstance(q, np.ndarray) or q.dtype.kind not in "iu" or q.ndim != 2 or q.shape[1] % 2 != 0:
        raise ValueError("need an integer array with two axes and an even number of columns")
    if q.size and (int(q.min()) < -8 or int(q.max()) > 7):
        raise ValueError("codes must be in [-8, 7]")
    rows, columns = q.shape
    out = np.zeros((rows, columns // 2), np.uint8)
    nibbles = q.astype(np.int16) & 0xF
    for b in range(columns // 2):
        out[:, b] = nibbles[:, 2 * b] | (nibbles[:, 2 * b + 1] << 4)
    return out


def unpack_int4(packed: Any) -> Any:
    if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8 or packed.ndim != 2:
        raise ValueError("need a uint8 array with two axes")
    rows, half = packed.shape
    out = np.zeros((rows, 2 * half), np.int8)
    for b in range(half):
        byte = packed[:, b].astype(np.int16)
        low, high = byte & 0xF, byte >> 4
        out[:, 2 * b] = np.where(low >= 8, low - 16, low)
        out[:, 2 * b + 1] = np.where(high >= 8, high - 16, high)
    return out


def quantize_int4_group(w: Any, group: int = 32) -> Q4Tensor:
    w = _finite32(w, 2)
    rows, columns = w.shape
    if not _plain_int(group) or group < 2 or group % 2 != 0 or columns % group != 0:
        raise ValueError(f"group must be even, at least 2, and divide {columns}; got {group!r}")
    codes = np.zeros((rows, columns), np.int8)
    scales = np.zeros((rows, columns // group), np.float16)
    for i in range(rows):
        for g in range(columns // group):
            part = w[i, g * group : (g + 1) * group]
            with np.errstate(over="ignore", under="ignore"):
                stored = np.float16(np.abs(part).max() / np.float32(7))
            if np.isinf(stored):
                raise ValueError("a scale is infinite in float16")
            scales[i, g] = stored
            if stored == 0:
                continue
            quotient = part / np.float32(stored)
            codes[i, g * group : (g + 1) * group] = np.clip(np.rint(quotient), -8, 7)
    return Q4Tensor(pack_int4(codes), scales, group, (rows, columns))


def _fp8_rows(rows: Any, fmt: str) -> Any:
    """Encode rows[i] with a scale of its own."""
    codes = np.zeros(rows.shape, np.uint8)
    scales = np.ones(len(rows), np.float32)
    for i, row in enumerate(rows):
        s = np.float32(np.abs(row).max() / np.float32(lowp.fp8_max(fmt)))
        if s > 0:
            scales[i] = s
        codes[i] = lowp.quantize_fp8(row, fmt, float(scales[i]))
    return codes, scales


def quantize_fp8_per_channel(w: Any, fmt: str = "e4m3") -> FP8Tensor:
    w = _finite32(w, 2)
    lowp.fp8_max(fmt)
    codes, scales = _fp8_rows(w, fmt)
    return FP8Tensor(codes, scales, fmt)


def quantize_mx(w: Any, block: int = 32, elem: str = "fp4_e2m1") -> MXTensor:
    codes, scales = lowp.mx_quantize(_finite32(w, 2), block, elem)
    return MXTensor(codes, scales, block, elem)


def quantize_kv_fp8(x: Any) -> KVQuant:
    codes, scales = _fp8_rows(_finite32(x, 3), "e4m3")
    return KVQuant(codes, scales)


def _as_q8(q: Any) -> Any:
    """Read the bare pair as a Q8Tensor and leave the rest alone."""
    if type(q) is tuple and len(q) == 2 and all(isinstance(part, np.ndarray) for part in q):
        if q[0].dtype == np.int8 and q[0].ndim == 2 and q[1].dtype == np.float32 and q[1].ndim == 1:
            return Q8Tensor(q[0], q[1])
    return q


def dequantize(q: Any) -> Any:
    q = _as_q8(q)
    with np.errstate(all="ignore"):
        if isinstance(q, Q8Tensor):
            out = np.zeros(q.q.shape, np.float32)
            for i in range(len(out)):
                out[i] = q.q[i].astype(np.float32) * np.float32(q.scales[i])
            return out
        if isinstance(q, Q4Tensor):
            out = unpack_int4(q.packed).astype(np.float32)
            for g in range(q.scales.shape[1]):
                out[:, g * q.group : (g + 1) * q.group] *= q.scales[:, g : g + 1].astype(np.float32)
            return out
        if isinstance(q, (FP8Tensor, KVQuant)):
            fmt = q.fmt if isinstance(q, FP8Tensor) else "e4m3"
            out = lowp.fp8_bits_to_f32(q.codes, fmt)
            for i in range(len(out)):
                out[i] *= np.float32(q.scales[i])
            return out
        if isinstance(q, MXTensor):
            return lowp.mx_dequantize(q.codes, q.scales, q.block, q.elem)
    raise TypeError(f"not a quantized tensor: {type(q).__name__}")


def nbytes(q: Any) -> int:
    q = _as_q8(q)
    if isinstance(q, Q8Tensor):
        return int(q.q.size + 4 * q.scales.size)
    if isinstance(q, Q4Tensor):
        return int(q.packed.size + 2 * q.scales.size)
    if isinstance(q, (FP8Tensor, KVQuant)):
        return int(q.codes.size + 4 * q.scales.size)
    if isinstance(q, MXTensor):
        rows, n = q.codes.shape
        per_row = (n + 1) // 2 if q.elem == "fp4_e2m1" else n
        return int(rows * per_row + q.scales.size)
    raise TypeError(f"not a quantized tensor: {type(q).__name__}")


class QuantLinear:
    def __init__(self, q: Any, bias: Any = None) -> None:
        form = _as_q8(q)
        if isinstance(form, Q8Tensor):
            shape = form.q.shape
        elif isinstance(form, Q4Tensor):
            shape = form.shape
        elif isinstance(form, (FP8Tensor, MXTensor)):
            shape = form.codes.shape
        else:
            raise TypeError(f"not a quantized matrix: {type(q).__name__}")
        self.q = q
        self.out_f, self.in_f = int(shape[0]), int(shape[1])
        self.bias = None
        if bias is not None:
            if not isinstance(bias, np.ndarray) or bias.dtype.type not in FLOATS or bias.shape != (self.out_f,):
                raise ValueError(f"bias must be a float array of shape [{self.out_f}]")
            self.bias = np.array(bias, np.float32)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray) or x.dtype.type not in FLOATS:
            raise ValueError("x must be a float array")
        if x.ndim < 1 or x.shape[-1] != self.in_f:
            raise ValueError(f"the last axis of x must be {self.in_f}, got shape {x.shape}")
        y = x.astype(np.float32) @ dequantize(self.q).T
        if self.bias is not None:
            y = y + self.bias
        return np.asarray(y, np.float32)

    def __call__(self, x: Any) -> Any:
        return self.forward(x)


def _quantized(w: Any, scheme: str) -> Any:
    if scheme == "int8":
        return Q8Tensor(*quantize_int8_per_channel(w))
    if scheme == "q4_g32":
        return quantize_int4_group(w, 32)
    if scheme == "fp8_e4m3":
        return quantize_fp8_per_channel(w, "e4m3")
    return quantize_mx(w, 32, "fp4_e2m1")


def _new_layers(model: Any, scheme: str, skip: Any) -> Any:
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {SCHEMES}")
    if not isinstance(skip, (tuple, list, set)) or not all(isinstance(entry, str) for entry in skip):
        raise TypeError("skip must be a tuple, list or set of names")
    made = {}
    for name, layer in model.named_linears().items():
        if not isinstance(layer, Linear):
            continue
        if name in skip or any(part in skip for part in name.split(".")):
            continue
        made[name] = QuantLinear(_quantized(layer.weight, scheme), layer.bias)
    return made


def quantize_model(model: Any, scheme: str, skip: Any = ("lm_head",)) -> Any:
    for name, layer in _new_layers(model, scheme, skip).items():
        model.set_linear(name, layer)
    return model


def export_q4(model: Any) -> Any:
    tensors = dict(model.tensors())
    groups = set()
    for name, layer in model.named_linears().items():
        if isinstance(layer, QuantLinear) and isinstance(layer.q, Q4Tensor):
            groups.add(layer.q.group)
            tensors[name + ".weight.qweight"] = layer.q.packed
            tensors[name + ".weight.scales"] = layer.q.scales
            if layer.bias is not None:
                tensors[name + ".bias"] = layer.bias
        elif not isinstance(layer, Linear):
            raise ValueError(f"layer {name} cannot be written as int4")
    if len(groups) != 1:
        raise ValueError(f"need int4 layers of one group, got groups {sorted(groups)}")
    return tensors, {"format": "tinyllm", "quant": f"int4-g{groups.pop()}-sym"}


def output_error_bound(w: Any, q: Any, x: Any, dtype: str = "f32") -> Any:
    w = _finite32(w, 2).astype(np.float64)
    read = dequantize(q).astype(np.float64)
    if read.shape != w.shape:
        raise ValueError(f"q has shape {read.shape}, w {w.shape}")
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != w.shape[1]:
        raise ValueError(f"x must be [n, {w.shape[1]}], got {x.shape}")
    bound = tolerance.matmul_error_bound(w, x.T, dtype, np.abs(w - read))
    return np.array(bound.T, np.float64, order="C")


def _ppl(model: Any, ids: Any, ctx_len: int, stride: int) -> float:
    n = len(ids)
    total = 0.0
    scored = 0  # ids 1 .. scored have their loss in total
    b = 0
    while scored < n - 1:
        t = min(ctx_len, n - 1 - b)
        logits = model.forward(ids[None, b : b + t])[0].astype(np.float64)
        for j in range(t):
            target = b + 1 + j
            if target <= scored:
                continue
            row = logits[j] - logits[j].max()
            total += float(np.log(np.exp(row).sum()) - row[ids[target]])
        scored = b + t
        b += stride
    return float(np.exp(total / (n - 1)))


def quant_ppl(
    model: Any, scheme: str, ids: Any, ctx_len: int, stride: int, skip: Any = ("lm_head",)
) -> dict[str, float]:
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) < 2:
        raise ValueError("ids must be at least 2 integers in one axis")
    if int(ids.min()) < 0 or int(ids.max()) >= model.config.vocab_size:
        raise ValueError("an id is outside the vocabulary")
    if not _plain_int(ctx_len) or not 1 <= ctx_len <= model.max_len:
        raise ValueError(f"ctx_len must be an int in [1, {model.max_len}]")
    if not _plain_int(stride) or not 1 <= stride <= ctx_len:
        raise ValueError(f"stride must be an int in [1, {ctx_len}]")
    ids = ids.astype(np.int64)
    made = _new_layers(model, scheme, skip)
    ppl = _ppl(model, ids, ctx_len, stride)
    before = {name: layer for name, layer in model.named_linears().items() if name in made}
    try:
        for name, layer in made.items():
            model.set_linear(name, layer)
        ppl_quant = _ppl(model, ids, ctx_len, stride)
    finally:
        for name, layer in before.items():
            model.set_linear(name, layer)
    return {"ppl": ppl, "ppl_quant": ppl_quant, "delta": ppl_quant - ppl, "ratio": ppl_quant / ppl}
