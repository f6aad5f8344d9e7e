from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

import impl.llama as llama
import impl.lowp as lowp
import impl.tolerance as tolerance

f32 = np.float32
SCHEMES = ("int8", "q4_g32", "fp8_e4m3", "mxfp4")


@dataclass
class Q8Tensor:
    q: object
    scales: object


@dataclass
class Q4Tensor:
    packed: object
    scales: object
    group: object
    shape: object


@dataclass
class FP8Tensor:
    codes: object
    scales: object
    fmt: object


@dataclass
class MXTensor:
    codes: object
    scales: object
    block: object
    elem: object


@dataclass
class KVQuant:
    codes: object
    scales: object


def _weights(w, axes=2):
    dtype = getattr(w, "dtype", None)
    if dtype is None or dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError("not a float array")
    if len(w.shape) != axes or min(w.shape) < 1:
        raise ValueError(f"not {axes} axes of at least 1: {w.shape}")
    with np.errstate(all="ignore"):
        narrow = w.astype(f32)
    if np.isnan(narrow).any() or np.isinf(narrow).any():
        raise ValueError("a weight is not finite")
    return narrow


def _integer_codes(x, scale, low, high):
    """Codes of x against a float32 scale that was stored."""
    if scale == 0:
        return np.zeros(x.shape, np.int8)
    return np.minimum(np.maximum(np.round(x / scale), low), high).astype(np.int8)


def quantize_int8_per_channel(w):
    rows = _weights(w)
    scales = np.array([max(r.max(), -r.min()) / f32(127) for r in rows], f32)
    codes = [_integer_codes(r, s, -127, 127) for r, s in zip(rows, scales)]
    return np.array(codes, np.int8), scales


def pack_int4(q):
    if not isinstance(q, np.ndarray) or q.ndim != 2 or q.dtype.kind not in ("i", "u"):
        raise ValueError("codes must be integers [out, in]")
    if q.shape[1] & 1:
        raise ValueError("an odd number of columns")
    if ((q < -8) | (q > 7)).any():
        raise ValueError("a code is no 4-bit integer")
    pairs = q.astype(np.int64).reshape(q.shape[0], q.shape[1] // 2, 2) % 16
    return (pairs @ np.array([1, 16])).astype(np.uint8)


def unpack_int4(packed):
    if not isinstance(packed, np.ndarray) or packed.dtype != np.dtype("u1") or packed.ndim != 2:
        raise ValueError("packed must be uint8 [out, in / 2]")
    table = np.array([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1], np.int8)
    codes = np.empty((packed.shape[0], packed.shape[1] * 2), np.int8)
    codes[:, ::2] = table[packed % 16]
    codes[:, 1::2] = table[packed // 16]
    return codes


def quantize_int4_group(w, group=32):
    x = _weights(w)
    if isinstance(group, bool) or not isinstance(group, int):
        raise ValueError("group must be an int")
    if group < 2 or group % 2 or x.shape[1] % group:
        raise ValueError(f"group {group} does not fit rows of {x.shape[1]}")
    out, per_row = x.shape[0], x.shape[1] // group
    groups = x.reshape(out * per_row, group)
    with np.errstate(all="ignore"):
        scales = (np.abs(groups).max(1) / f32(7)).astype(np.float16)
    if np.isinf(scales).any():
        raise ValueError("a float16 scale overflows")
    codes = np.array([_integer_codes(g, f32(s), -8, 7) for g, s in zip(groups, scales)], np.int8)
    return Q4Tensor(
        packed=pack_int4(codes.reshape(x.shape)),
        scales=scales.reshape(out, per_row),
        group=group,
        shape=(out, per_row * group),
    )


def _fp8(part, fmt):
    """Return the codes of an array and the float32 scale they share."""
    scale = np.abs(part).max() / f32(lowp.fp8_max(fmt))
    if scale == 0:
        scale = f32(1)
    return lowp.quantize_fp8(part, fmt, float(scale)), scale


def quantize_fp8_per_channel(w, fmt="e4m3"):
    done = [_fp8(row, fmt) for row in _weights(w)]
    return FP8Tensor(np.array([c for c, _ in done]), np.array([s for _, s in done], f32), fmt)


def quantize_mx(w, block=32, elem="fp4_e2m1"):
    codes, scales = lowp.mx_quantize(_weights(w), block=block, elem=elem)
    return MXTensor(codes, scales, block, elem)


def quantize_kv_fp8(x):
    done = [_fp8(head, "e4m3") for head in _weights(x, axes=3)]
    return KVQuant(np.array([c for c, _ in done]), np.array([s for _, s in done], f32))


def dequantize(q):
    return _dequantized(q)


@singledispatch
def _dequantized(q):
    raise TypeError(f"{type(q).__name__} holds no codes")


@_dequantized.register
def _(q: tuple):
    return dequantize(_pair(q))


@_dequantized.register
def _(q: Q8Tensor):
    return _times(q.q.astype(f32), q.scales[:, None])


@_dequantized.register
def _(q: Q4Tensor):
    codes = unpack_int4(q.packed).astype(f32).reshape(*q.scales.shape, q.group)
    return _times(codes, q.scales.astype(f32)[:, :, None]).reshape(q.shape)


@_dequantized.register
def _(q: FP8Tensor):
    return _times(lowp.fp8_bits_to_f32(q.codes, q.fmt), q.scales[:, None])


@_dequantized.register
def _(q: MXTensor):
    return lowp.mx_dequantize(q.codes, q.scales, q.block, q.elem)


@_dequantized.register
def _(q: KVQuant):
    return _times(lowp.fp8_bits_to_f32(q.codes, "e4m3"), q.scales[:, None, None])


def _times(values, scales):
    with np.errstate(all="ignore"):
        return values * scales


def _pair(q):
    if len(q) != 2 or not isinstance(q[0], np.ndarray) or not isinstance(q[1], np.ndarray):
        raise TypeError("a tuple must be (q, scales)")
    return Q8Tensor(*q)


def nbytes(q):
    if isinstance(q, tuple):
        q = _pair(q)
    if isinstance(q, Q4Tensor):
        return q.packed.size + q.scales.size * 2
    if isinstance(q, MXTensor):
        out, n = q.codes.shape
        return (out * -(-n // 2) if q.elem == "fp4_e2m1" else out * n) + q.scales.size
    if isinstance(q, Q8Tensor):
        return q.q.size + q.scales.size * 4
    if isinstance(q, (FP8Tensor, KVQuant)):
        return q.codes.size + q.scales.size * 4
    raise TypeError(f"{type(q).__name__} holds no codes")


class QuantLinear:
    def __init__(self, q, bias=None):
        matrix = _pair(q) if isinstance(q, tuple) else q
        if not isinstance(matrix, (Q8Tensor, Q4Tensor, FP8Tensor, MXTensor)):
            raise TypeError(f"{type(q).__name__} is no quantized matrix")
        shape = dequantize(matrix).shape
        if bias is not None:
            if getattr(bias, "dtype", np.dtype(int)).kind != "f" or bias.shape != shape[:1]:
                raise ValueError("bias must be floats [out]")
            bias = bias.astype(f32)
        self.q, self.bias, self.out_f, self.in_f = q, bias, *shape

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        if getattr(x, "dtype", np.dtype(int)).kind != "f" or not x.shape or x.shape[-1] != self.in_f:
            raise ValueError(f"x must be floats [..., {self.in_f}]")
        flat = x.astype(f32).reshape(-1, self.in_f)
        y = np.inner(flat, dequantize(self.q))
        if self.bias is not None:
            y += self.bias
        return y.reshape(*x.shape[:-1], self.out_f)


def _skipped(name, skip):
    parts = name.split(".")
    for entry in skip:
        if entry == name or entry in parts:
            return True
    return False


def _quantize(w, scheme):
    match scheme:
        case "int8":
            return Q8Tensor(*quantize_int8_per_channel(w))
        case "q4_g32":
            return quantize_int4_group(w)
        case "fp8_e4m3":
            return quantize_fp8_per_channel(w)
        case "mxfp4":
            return quantize_mx(w)
    raise ValueError(f"scheme {scheme!r} is not known")


def quantize_model(model, scheme, skip=("lm_head",)):
    if scheme not in SCHEMES:
        raise ValueError(f"scheme {scheme!r} is not known")
    if type(skip) not in (tuple, list, set):
        raise TypeError("skip must hold names")
    new = {}
    for name, old in model.named_linears().items():
        if type(old) is llama.Linear and not _skipped(name, skip):
            new[name] = QuantLinear(_quantize(old.weight, scheme), old.bias)
    for name in new:
        model.set_linear(name, new[name])
    return model


def export_q4(model):
    tensors, group = model.tensors(), None
    for name, layer in model.named_linears().items():
        if type(layer) is llama.Linear:
            continue
        q = getattr(layer, "q", None)
        if type(layer) is not QuantLinear or type(q) is not Q4Tensor:
            raise ValueError(f"{name} is not int4")
        if group not in (None, q.group):
            raise ValueError(f"{name} has group {q.group}, others {group}")
        group = q.group
        tensors |= {f"{name}.weight.qweight": q.packed, f"{name}.weight.scales": q.scales}
        if layer.bias is not None:
            tensors[f"{name}.bias"] = layer.bias
    if group is None:
        raise ValueError("no layer is int4")
    return tensors, {"format": "tinyllm", "quant": "int4-g%d-sym" % group}


def output_error_bound(w, q, x, dtype="f32"):
    exact = _weights(w).astype(float)
    stored = dequantize(q).astype(float)
    if exact.shape != stored.shape:
        raise ValueError("w and q differ in shape")
    if x.ndim != 2 or x.shape[1] != exact.shape[1]:
        raise ValueError("x must be [n, in]")
    return np.ascontiguousarray(tolerance.matmul_error_bound(exact, x.T, dtype, abs(exact - stored)).T)


def _windows(n, ctx_len, stride):
    """Yield (first id fed, number fed, first id scored)."""
    b, done = 0, 1
    while done < n:
        t = min(ctx_len, n - 1 - b)
        yield b, t, done
        done = b + t + 1
        b += stride


def _nll(model, ids, ctx_len, stride):
    losses = []
    for b, t, first in _windows(len(ids), ctx_len, stride):
        logits = np.float64(model.forward(ids[None, b : b + t])[0])
        for i in range(first, b + t + 1):
            row = logits[i - 1 - b]
            top = row.max()
            losses.append(top + np.log(np.sum(np.exp(row - top))) - row[ids[i]])
    return np.mean(losses)


def quant_ppl(model, scheme, ids, ctx_len, stride, skip=("lm_head",)):
    ids = np.array(ids)
    if ids.dtype.kind not in "ui" or ids.shape != (ids.size,) or ids.size < 2:
        raise ValueError("ids must be two or more integers")
    if ids.min() < 0 or ids.max() >= model.config.vocab_size:
        raise ValueError("ids must be in the vocabulary")
    for value, most in ((ctx_len, model.max_len), (stride, ctx_len)):
        if type(value) is not int or value < 1 or value > most:
            raise ValueError(f"ctx_len and stride must be ints in range, got {value!r}")
    twin = quantize_model(copy.deepcopy(model), scheme, skip)
    a, b = (float(np.exp(_nll(m, ids, ctx_len, stride))) for m in (model, twin))
    return {"ppl": a, "ppl_quant": b, "delta": b - a, "ratio": b / a}
