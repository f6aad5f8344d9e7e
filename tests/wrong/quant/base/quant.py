from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impl.llama import Linear, Llama
from impl.lowp import fp8_bits_to_f32, fp8_max, mx_dequantize, mx_quantize, quantize_fp8
from impl.tolerance import matmul_error_bound

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Q8Tensor:
    q: Array
    scales: Array


@dataclass(frozen=True, eq=False)
class Q4Tensor:
    packed: Array
    scales: Array
    group: int
    shape: tuple[int, int]


@dataclass(frozen=True, eq=False)
class FP8Tensor:
    codes: Array
    scales: Array
    fmt: str


@dataclass(frozen=True, eq=False)
class MXTensor:
    codes: Array
    scales: Array
    block: int
    elem: str


@dataclass(frozen=True, eq=False)
class KVQuant:
    codes: Array
    scales: Array


SCHEMES = ("int8", "q4_g32", "fp8_e4m3", "mxfp4")
_MAKE = {
    "int8": lambda w: Q8Tensor(*quantize_int8_per_channel(w)),
    "q4_g32": lambda w: quantize_int4_group(w, 32),
    "fp8_e4m3": lambda w: quantize_fp8_per_channel(w),
    "mxfp4": lambda w: quantize_mx(w),
}


def is_float(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype in (np.float16, np.float32, np.float64)


def check(ok: bool, text: str, kind: type[Exception] = ValueError) -> None:
    if not ok:
        raise kind(text)


def to_f32(a: Any, ndim: int) -> Array:
    check(is_float(a), "expected an array of floats")
    check(a.ndim == ndim and a.size > 0, f"expected {ndim} axes with elements")
    with np.errstate(over="ignore"):
        v = a.astype(np.float32)
    check(bool(np.isfinite(v).all()), "values must be finite in float32")
    return v


def divide(values: Array, scales: Array) -> Array:
    """float32 quotients, 0 where the scale is 0"""
    return np.divide(values, scales, out=np.zeros_like(values), where=scales != 0)


def quantize_int8_per_channel(w: Array) -> tuple[Array, Array]:
    v = to_f32(w, 2)
    scales = np.abs(v).max(axis=1) / np.float32(127.0)
    q = np.rint(divide(v, scales[:, None])).clip(-127, 127)
    return q.astype(np.int8), scales


def pack_int4(q: Array) -> Array:
    check(isinstance(q, np.ndarray) and np.issubdtype(q.dtype, np.integer), "expected an integer array")
    check(q.ndim == 2 and q.shape[1] % 2 == 0, "expected two axes and an even number of columns")
    check(bool(np.all((q >= -8) & (q <= 7))), "codes must be in [-8, 7]")
    nibbles = q.astype(np.int8).view(np.uint8) & 0xF
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def unpack_int4(packed: Array) -> Array:
    check(isinstance(packed, np.ndarray) and packed.dtype == np.uint8 and packed.ndim == 2, "expected uint8[out, n]")
    both = np.stack([packed << 4, packed], axis=-1).view(np.int8) >> 4  # the arithmetic shift brings the sign down
    return both.reshape(packed.shape[0], -1)


def quantize_int4_group(w: Array, group: int = 32) -> Q4Tensor:
    v = to_f32(w, 2)
    check(type(group) is int and group >= 2 and group % 2 == 0, "group must be an even int of at least 2")
    check(v.shape[1] % group == 0, "group must divide the columns")
    v = v.reshape(v.shape[0], -1, group)
    with np.errstate(over="ignore", under="ignore"):
        scales = (np.abs(v).max(axis=2) / np.float32(7.0)).astype(np.float16)
    check(bool(np.isfinite(scales).all()), "a scale is beyond float16")
    codes = np.rint(divide(v, scales.astype(np.float32)[..., None])).clip(-8, 7).astype(np.int8)
    return Q4Tensor(pack_int4(codes.reshape(w.shape)), scales, group, (int(w.shape[0]), int(w.shape[1])))


def fp8_scales(v: Array, fmt: str) -> Array:
    """one float32 scale for every entry of the first axis"""
    s = np.abs(v).reshape(len(v), -1).max(axis=1) / np.float32(fp8_max(fmt))
    return np.where(s == 0, np.float32(1), s)


def quantize_fp8_per_channel(w: Array, fmt: str = "e4m3") -> FP8Tensor:
    v = to_f32(w, 2)
    scales = fp8_scales(v, fmt)
    return FP8Tensor(np.stack([quantize_fp8(r, fmt, float(s)) for r, s in zip(v, scales)]), scales, fmt)


def quantize_mx(w: Array, block: int = 32, elem: str = "fp4_e2m1") -> MXTensor:
    return MXTensor(*mx_quantize(to_f32(w, 2), block, elem), block, elem)


def quantize_kv_fp8(x: Array) -> KVQuant:
    v = to_f32(x, 3)
    scales = fp8_scales(v, "e4m3")
    return KVQuant(np.stack([quantize_fp8(h, "e4m3", float(s)) for h, s in zip(v, scales)]), scales)


def is_pair(q: Any) -> bool:
    return type(q) is tuple and len(q) == 2 and getattr(q[0], "dtype", None) == np.int8


def arrays(q: Any) -> tuple[Array, Array]:
    """the codes and the scales of any form"""
    return q if isinstance(q, tuple) else tuple(v for v in vars(q).values() if isinstance(v, np.ndarray))


def dequantize(q: Any) -> Array:
    with np.errstate(all="ignore"):
        if is_pair(q):
            q = Q8Tensor(*q)
        if isinstance(q, Q8Tensor):
            return q.q.astype(np.float32) * q.scales[:, None]
        if isinstance(q, Q4Tensor):
            wide = np.repeat(q.scales.astype(np.float32), q.group, axis=1)
            return unpack_int4(q.packed) * wide
        if isinstance(q, FP8Tensor):
            return fp8_bits_to_f32(q.codes, q.fmt) * q.scales[:, None]
        if isinstance(q, KVQuant):
            return fp8_bits_to_f32(q.codes, "e4m3") * q.scales[:, None, None]
        if isinstance(q, MXTensor):
            return mx_dequantize(q.codes, q.scales, q.block, q.elem)
    raise TypeError(f"cannot dequantize a {type(q).__name__}")


def nbytes(q: Any) -> int:
    check(is_pair(q) or isinstance(q, (Q8Tensor, Q4Tensor, FP8Tensor, MXTensor, KVQuant)), "no known form", TypeError)
    codes, scales = arrays(q)
    total = codes.nbytes + scales.nbytes
    if isinstance(q, MXTensor) and q.elem == "fp4_e2m1":
        total -= codes.shape[0] * (codes.shape[1] // 2)  # the odd one at the end of a row has a byte of its own
    return int(total)


class QuantLinear:
    def __init__(self, q: Any, bias: Array | None = None) -> None:
        check(is_pair(q) or isinstance(q, (Q8Tensor, Q4Tensor, FP8Tensor, MXTensor)), "q is no quantized matrix", TypeError)
        self.q = q
        self.out_f, self.in_f = map(int, q.shape if isinstance(q, Q4Tensor) else arrays(q)[0].shape)
        check(bias is None or (is_float(bias) and bias.shape == (self.out_f,)), "bias must be float[out] or None")
        self.bias = None if bias is None else bias.astype(np.float32)

    def forward(self, x: Array) -> Array:
        check(is_float(x) and x.ndim > 0 and x.shape[-1] == self.in_f, "x must be float[..., in]")
        y = np.matmul(x.astype(np.float32), dequantize(self.q).T)
        return y if self.bias is None else y + self.bias

    __call__ = forward


def targets(model: Llama, skip: Any) -> Iterator[tuple[str, Linear]]:
    for name, layer in model.named_linears().items():
        if isinstance(layer, Linear) and not {name, *name.split(".")} & set(skip):
            yield name, layer


def quantize_model(model: Llama, scheme: str, skip: Any = ("lm_head",)) -> Llama:
    check(scheme in SCHEMES, f"unknown scheme {scheme!r}")
    check(isinstance(skip, (tuple, list, set)), "skip must be a tuple, list or set", TypeError)
    ready = [(name, QuantLinear(_MAKE[scheme](layer.weight), layer.bias)) for name, layer in targets(model, skip)]
    for name, layer in ready:
        model.set_linear(name, layer)
    return model


def export_q4(model: Llama) -> tuple[dict[str, Array], dict[str, str]]:
    layers = model.named_linears()
    quantized = {n: f for n, f in layers.items() if isinstance(f, QuantLinear) and isinstance(f.q, Q4Tensor)}
    check(all(n in quantized or isinstance(f, Linear) for n, f in layers.items()), "a layer cannot be exported")
    groups = {f.q.group for f in quantized.values()}
    check(len(groups) == 1, "all int4 layers must have one group, and there must be one")
    out = model.tensors()
    for n, f in quantized.items():
        out[f"{n}.weight.qweight"], out[f"{n}.weight.scales"] = f.q.packed, f.q.scales
        if f.bias is not None:
            out[f"{n}.bias"] = f.bias
    return out, {"format": "tinyllm", "quant": f"int4-g{min(groups)}-sym"}


def output_error_bound(w: Array, q: Any, x: Array, dtype: str = "f32") -> Array:
    v = to_f32(w, 2).astype(np.float64)
    d = dequantize(q)
    check(d.shape == v.shape, "w and q have different shapes")
    check(np.ndim(x) == 2 and np.shape(x)[1] == v.shape[1], "x must be [n, in]")
    return matmul_error_bound(v, np.transpose(x), dtype, np.abs(v - d)).T.copy()


def perplexity(model: Llama, ids: Array, ctx_len: int, stride: int) -> float:
    n, losses = len(ids), np.full(len(ids), np.nan)
    for b in range(0, n, stride):
        T = min(ctx_len, n - 1 - b)
        z = model.forward(ids[b : b + T].reshape(1, T))[0].astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        nll = np.log(np.exp(z).sum(axis=1)) - z[np.arange(T), ids[b + 1 : b + T + 1]]
        part = losses[b + 1 : b + T + 1]
        np.copyto(part, nll, where=np.isnan(part))
        if b + T >= n - 1:
            break
    return math.exp(losses[1:].mean())


def quant_ppl(
    model: Llama, scheme: str, ids: Any, ctx_len: int, stride: int, skip: Any = ("lm_head",)
) -> dict[str, float]:
    tokens = np.asarray(ids)
    check(tokens.ndim == 1 and tokens.size >= 2 and tokens.dtype.kind in "iu", "ids must be at least two integers")
    check(0 <= tokens.min() and tokens.max() < model.config.vocab_size, "an id is not in the vocabulary")
    check(type(ctx_len) is int and 1 <= ctx_len <= model.max_len, "ctx_len is out of range")
    check(type(stride) is int and 1 <= stride <= ctx_len, "stride is out of range")
    kept = model.named_linears()
    plain = perplexity(model, tokens, ctx_len, stride)
    try:
        small = perplexity(quantize_model(model, scheme, skip), tokens, ctx_len, stride)
    finally:
        for name, layer in kept.items():
            model.set_linear(name, layer)
    return dict(ppl=plain, ppl_quant=small, delta=small - plain, ratio=small / plain)
