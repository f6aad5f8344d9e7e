"""Quantization: weight matrices and a KV cache as 8-bit and 4-bit codes with a few scales.

    w -> f32 -> amax of a row, group, block or head -> scale, rounded as stored -> w / scale -> code
    code * scale -> f32        y = x (code * scale)^T + bias

A code means something only against the scale that is stored, so it is made against that one.

Spec    spec/quant.md
Source  Dettmers et al. 2022, arXiv:2208.07339, section 2 (one scale a row);
        Frantar et al. 2023, arXiv:2210.17323, section 4 (groups)
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from impl.llama import Linear, Llama
from impl.lowp import fp8_bits_to_f32, fp8_max, mx_dequantize, mx_quantize, quantize_fp8
from impl.tolerance import matmul_error_bound

U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]  # float16, float32 or float64

SCHEMES = ("int8", "q4_g32", "fp8_e4m3", "mxfp4")
_ONE = np.float32(1)


# The forms: plain records that check nothing, so that they may be built by hand.


@dataclass(frozen=True, slots=True, eq=False)
class Q8Tensor:
    """A matrix in int8, one scale a row: q * scales[:, None]."""

    q: I8  # [out, in], -127 to 127
    scales: F32  # [out]


@dataclass(frozen=True, slots=True, eq=False)
class Q4Tensor:
    """A matrix in int4, one scale for each `group` columns of a row.

        columns   0   1   2   3
        codes     7  -2   0   1
        bytes     0xE7    0x10        low nibble: the even column
    """

    packed: U8  # [out, in / 2]
    scales: F16  # [out, in / group]
    group: int
    shape: tuple[int, int]  # (out, in)


@dataclass(frozen=True, slots=True, eq=False)
class FP8Tensor:
    """A matrix in e4m3 or e5m2, one scale a row."""

    codes: U8  # [out, in]
    scales: F32  # [out]
    fmt: str


@dataclass(frozen=True, slots=True, eq=False)
class MXTensor:
    """A matrix in MX blocks; also a code of 4 bits has a byte of its own here."""

    codes: U8  # [out, in]
    scales: U8  # [out, in / block], e8m0
    block: int
    elem: str


@dataclass(frozen=True, slots=True, eq=False)
class KVQuant:
    """Keys or values in e4m3, one scale a head."""

    codes: U8  # [H, T, D]
    scales: F32  # [H]


Matrix = Q8Tensor | Q4Tensor | FP8Tensor | MXTensor | tuple[I8, F32]
Quantized = Matrix | KVQuant


# int8


def quantize_int8_per_channel(w: Floats) -> tuple[I8, F32]:
    """Encode every row against its own scale: code = round(w / s), s = amax / 127.

    Shapes
        w        f16[out, in], f32[out, in] or f64[out, in], out and in >= 1, finite as float32
        returns  (q, scales): i8[out, in] in [-127, 127], and f32[out], new arrays

    Errors
        ValueError  w is not an array of these dtypes, not 2-D or empty
        ValueError  w holds a NaN or an infinity as float32

    Numerics
        w is rounded to float32; s and w / s are one float32 division each; ties to the even code

    >>> q, scales = quantize_int8_per_channel(np.array([[127, -3.5, 2.5, 0.4], [-254, 127, 63, 0]]))
    >>> q.tolist(), scales.tolist()
    ([[127, -4, 2, 0], [-127, 64, 32, 0]], [1.0, 2.0])
    """
    w = _finite(w, 2)
    amax = np.abs(w).max(axis=1, keepdims=True)
    s = amax / np.float32(127)  # R6
    codes = np.rint(w / np.where(s > 0, s, _ONE))  # R4, R7; R8: with a scale of 0, |w| < 0.5
    return np.clip(codes, -127, 127).astype(np.int8), s[:, 0]  # R7: above 127 against a subnormal scale


# int4


def pack_int4(q: NDArray[np.integer[Any]]) -> U8:
    """Put two codes in a byte: column 2b in the low nibble of byte b, column 2b + 1 in the high one.

    Shapes
        q        integers[N, columns], of any integer dtype, in [-8, 7]; columns even
        returns  u8[N, columns / 2], a new array

    Errors
        ValueError  q is not an integer array, not 2-D or has an odd number of columns
        ValueError  a code is out of range

    >>> [hex(b) for b in pack_int4(np.array([[-8, -7, 1, 2]]))[0].tolist()]
    ['0x98', '0x21']
    """
    _check_array(q, 2, "q")
    if q.dtype.kind not in "iu":  # R15: a bool is kind "b"
        raise ValueError(f"q must be an integer array, got {q.dtype}")
    if q.shape[1] % 2 != 0:  # R15
        raise ValueError(f"q must have an even number of columns, got {q.shape[1]}")
    if q.size and not -8 <= int(q.min()) <= int(q.max()) <= 7:  # R15
        raise ValueError(f"q must be in [-8, 7], got {q.min()} to {q.max()}")
    nibbles = q.astype(np.int8).view(np.uint8) & 0xF  # R16: the low half of two's complement
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4  # R16


def unpack_int4(packed: U8) -> I8:
    """Take the two codes out of every byte: the inverse of pack_int4.

    Shapes
        packed   u8[N, columns]
        returns  i8[N, 2 columns] in [-8, 7], a new array

    Errors
        ValueError  packed is not a uint8 array, or not 2-D

    >>> unpack_int4(np.array([[0x98, 0x21]], np.uint8)).tolist()
    [[-8, -7, 1, 2]]
    """
    _check_array(packed, 2, "packed")
    if packed.dtype != np.uint8:  # R17
        raise ValueError(f"packed must be a uint8 array, got {packed.dtype}")
    N, columns = packed.shape
    v = np.empty((N, 2 * columns), np.int8)
    v[:, 0::2] = packed & 0xF  # R16
    v[:, 1::2] = packed >> 4
    return np.where(v >= 8, v - 16, v)  # R17: two's complement of 4 bits


def quantize_int4_group(w: Floats, group: int = 32) -> Q4Tensor:
    """Encode every group of columns against its own float16 scale: code = round(w / s), s = amax / 7.

    Shapes
        w        f16[out, in], f32[out, in] or f64[out, in], out and in >= 1, finite as float32
        group    int, >= 2, even; in is a multiple of it
        returns  Q4Tensor, of new arrays

    Errors
        ValueError  w as for quantize_int8_per_channel
        ValueError  group is not an int, is odd, is below 2 or does not divide in
        ValueError  a scale overflows float16: amax / 7 >= 65520

    Numerics
        w is rounded to float32, amax / 7 to float32 and then to float16; w / s is one float32 division by
        the float16 scale; ties to the even code

    >>> t = quantize_int4_group(np.array([[1.75, -0.6, 0.1, 0.3], [0.375, -0.125, 0.625, 1.75]]), 4)
    >>> t.packed.tobytes().hex(" "), t.scales.tolist(), unpack_int4(t.packed).tolist()
    ('e7 10 02 72', [[0.25], [0.25]], [[7, -2, 0, 1], [2, 0, 2, 7]])
    """
    w = _finite(w, 2)
    rows, columns = w.shape
    if isinstance(group, bool) or not isinstance(group, int) or group < 2 or group % 2 != 0:  # R9
        raise ValueError(f"group must be an even int of at least 2, got {group!r}")
    if columns % group != 0:  # R9: no shorter group at the end
        raise ValueError(f"group {group} does not divide a row of {columns}")
    groups = w.reshape(rows, columns // group, group)
    amax = np.abs(groups).max(axis=2)
    with np.errstate(over="ignore"):
        scales = (amax / np.float32(7)).astype(np.float16)  # R10
    if np.isinf(scales).any():  # R11
        raise ValueError(f"amax {amax.max()} needs a scale beyond float16")
    s = scales.astype(np.float32)[..., None]  # R12: the stored scale
    codes = np.rint(groups / np.where(s > 0, s, _ONE))  # R4, R12; R13: with a scale of 0, |w| < 0.5
    codes = np.clip(codes, -8, 7).astype(np.int8)  # R12: beyond 7 against a subnormal scale
    return Q4Tensor(pack_int4(codes.reshape(rows, columns)), scales, group, (rows, columns))  # R14


# fp8 and MX


def quantize_fp8_per_channel(w: Floats, fmt: str = "e4m3") -> FP8Tensor:
    """Encode every row in fp8 against its own scale: code = fp8(w / s), s = amax / fp8_max.

    Shapes
        w        f16[out, in], f32[out, in] or f64[out, in], out and in >= 1, finite as float32
        fmt      str, "e4m3" or "e5m2"
        returns  FP8Tensor, of new arrays

    Errors
        ValueError  w as for quantize_int8_per_channel, or fmt is another value

    Numerics
        w is rounded to float32; s is one float32 division, w / s one float64 division, rounded once to fp8

    >>> t = quantize_fp8_per_channel(np.array([[448, 1.0625, -448, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    >>> t.codes.tobytes().hex(" "), t.scales.tolist()
    ('7e 38 fe 00 00 00 00 00', [1.0, 1.0])
    """
    codes, scales = _fp8(_finite(w, 2), (1,), fmt)
    return FP8Tensor(codes, scales, fmt)  # R20


def quantize_mx(w: Floats, block: int = 32, elem: str = "fp4_e2m1") -> MXTensor:
    """Encode every block of columns against its own power of two.

    Shapes
        w        f16[out, in], f32[out, in] or f64[out, in], out and in >= 1, finite as float32
        block    int, >= 1; in is a multiple of it
        elem     str, "fp4_e2m1" or "fp8_e4m3"
        returns  MXTensor, of new arrays

    Errors
        ValueError  w as for quantize_int8_per_channel, elem is another value, or block is not an int, below 1
                    or does not divide in

    >>> t = quantize_mx(np.array([[0.25, -1.4, 3.1, 11.0]]), block=4)
    >>> t.codes.tolist(), t.scales.tolist()
    ([[0, 9, 3, 7]], [[128]])
    """
    codes, scales = mx_quantize(_finite(w, 2), block, elem)  # R21
    return MXTensor(codes, scales, block, elem)


def quantize_kv_fp8(x: Floats) -> KVQuant:
    """Encode keys or values in e4m3, every head against its own scale.

    Shapes
        x        f16[H, T, D], f32[H, T, D] or f64[H, T, D], H, T and D >= 1, finite as float32
        returns  KVQuant, of new arrays

    Errors
        ValueError  x is not an array of these dtypes, not 3-D or empty
        ValueError  x holds a NaN or an infinity as float32

    Numerics
        as for quantize_fp8_per_channel

    >>> t = quantize_kv_fp8(np.array([[[448, -1.0]], [[0.0, 0.0]]]))
    >>> t.codes.tobytes().hex(" "), t.scales.tolist()
    ('7e b8 00 00', [1.0, 1.0])
    """
    codes, scales = _fp8(_finite(x, 3), (1, 2), "e4m3")  # R22
    return KVQuant(codes, scales)


def _fp8(v: F32, axes: tuple[int, ...], fmt: str) -> tuple[U8, F32]:
    """Encode v with one scale over these axes, which are all but the first."""
    quotient = np.abs(v).max(axis=axes, keepdims=True) / np.float32(fp8_max(fmt))  # R20: or fmt is refused
    scales = np.where(quotient > 0, quotient, _ONE)  # R18, R22: fp8 scales are divided by
    codes = quantize_fp8(v.astype(np.float64) / scales, fmt, 1.0)  # R19: the stored scale, one rounding
    return codes, scales.reshape(len(v))


# reading and counting


def dequantize(q: Quantized) -> F32:
    """Return what the codes stand for: code * scale.

    Shapes
        q        Q8Tensor, Q4Tensor, FP8Tensor, MXTensor, KVQuant, or (i8[out, in], f32[out])
        returns  f32[out, in] or f32[H, T, D], a new array

    Errors
        TypeError  q is none of these

    Numerics
        one float32 product an element

    >>> dequantize(Q4Tensor(np.array([[0x9F]], np.uint8), np.array([[0.5]], np.float16), 2, (1, 2))).tolist()
    [[-0.5, -3.5]]
    """
    codes: NDArray[Any]
    scales: F32
    if isinstance(q, Q4Tensor):
        codes = unpack_int4(q.packed)
        scales = np.repeat(q.scales.astype(np.float32), q.group, axis=1)
    elif isinstance(q, FP8Tensor):
        codes, scales = _fp8_values(q.codes, q.fmt), q.scales[:, None]
    elif isinstance(q, KVQuant):
        codes, scales = _fp8_values(q.codes, "e4m3"), q.scales[:, None, None]
    elif isinstance(q, MXTensor):
        return mx_dequantize(q.codes, q.scales, q.block, q.elem)
    else:
        codes, scales = _int8(q)
        scales = scales[:, None]
    with np.errstate(over="ignore"):  # 127 * s may round beyond float32 where amax is the largest float32
        return np.multiply(codes, scales, dtype=np.float32)  # R23


def _fp8_values(codes: U8, fmt: str) -> F32:
    """Look every code up: a layer reads its codes for every token, and there are only 256."""
    return fp8_bits_to_f32(np.arange(256), fmt)[codes]


def nbytes(q: Quantized) -> int:
    """Count the bytes of codes and scales; a code of 4 bits is half a byte.

    Shapes
        q        as for dequantize
        returns  int, >= 0

    Errors
        TypeError  q is none of these

    >>> nbytes(quantize_mx(np.ones((4, 64)))), nbytes(quantize_int8_per_channel(np.ones((4, 64))))
    (136, 272)
    """
    if isinstance(q, Q4Tensor):
        return q.packed.nbytes + q.scales.nbytes
    if isinstance(q, MXTensor) and q.elem == "fp4_e2m1":
        return len(q.codes) * ((q.codes.shape[1] + 1) // 2) + q.scales.nbytes  # R25: as if packed, row by row
    if isinstance(q, FP8Tensor | MXTensor | KVQuant):
        return q.codes.nbytes + q.scales.nbytes
    codes, scales = _int8(q)
    return codes.nbytes + scales.nbytes


def _int8(q: Any) -> tuple[I8, F32]:
    """Return the codes and scales of the int8 forms, or refuse what is no form at all (R24)."""
    if isinstance(q, Q8Tensor):
        return q.q, q.scales
    is_pair = isinstance(q, tuple) and all(isinstance(part, np.ndarray) for part in q)
    if is_pair and [part.dtype for part in q] == [np.int8, np.float32]:
        return q
    raise TypeError(f"q must be one of the quantized forms, got {type(q).__name__}")


def _matrix_shape(q: Matrix) -> tuple[int, int]:
    """Return (out, in), or refuse what is no matrix (R27)."""
    if isinstance(q, Q4Tensor):
        return q.shape
    codes = q.codes if isinstance(q, FP8Tensor | MXTensor) else _int8(q)[0]
    rows, columns = codes.shape
    return rows, columns


# layers and models


class QuantLinear:
    """x -> x dequantize(q)^T + bias, in the place of a `llama.Linear`.

    Attributes
        q            the form
        bias         f32[out] or None
        in_f, out_f  int

    >>> layer = QuantLinear(quantize_int8_per_channel(np.array([[127, 2.0]])), np.array([0.5]))
    >>> layer(np.array([[1, 10]], np.float32)).tolist()
    [[147.5]]
    """

    def __init__(self, q: Matrix, bias: Floats | None = None) -> None:
        """Keep the codes; the float32 matrix exists only during a call.

        Shapes
            q     Q8Tensor, Q4Tensor, FP8Tensor, MXTensor, or (i8[out, in], f32[out])
            bias  f16[out], f32[out] or f64[out], copied as float32, or None

        Errors
            TypeError   q is none of these
            ValueError  bias is neither None nor an array as above
        """
        self.q = q
        self.out_f, self.in_f = _matrix_shape(q)
        self.bias = None if bias is None else _to_f32(_floats(bias, "bias")).copy()
        if self.bias is not None and self.bias.shape != (self.out_f,):  # R27
            raise ValueError(f"bias must have the shape ({self.out_f},), got {self.bias.shape}")

    def forward(self, x: Floats) -> F32:
        """Multiply every row of x.

        Shapes
            x        f16[..., in], f32[..., in] or f64[..., in], rounded to float32; at least one axis
            returns  f32[..., out], a new array

        Errors
            ValueError  x is not an array of these dtypes, or its last axis is not in

        Numerics
            sums in f32, in the order of the BLAS

        State
            does not change the layer

        >>> QuantLinear(quantize_mx(np.eye(2), block=2)).forward(np.array([3.0, 5.0])).tolist()
        [3.0, 5.0]
        """
        x = _to_f32(_floats(x, "x"))
        if x.ndim == 0 or x.shape[-1] != self.in_f:  # R28
            raise ValueError(f"x must have a last axis of {self.in_f}, got the shape {x.shape}")
        y: F32 = x @ dequantize(self.q).T
        return y if self.bias is None else y + self.bias  # R26

    __call__ = forward


def quantize_model(model: Llama, scheme: str, skip: Collection[str] = ("lm_head",)) -> Llama:
    """Put a QuantLinear in the place of every Linear that is not skipped.

    Shapes
        model    Llama, changed in place; a layer that is no `llama.Linear` stays
        scheme   str, one of SCHEMES
        skip     tuple, list or set of whole dotted names or whole components, such as "lm_head" or "mlp"
        returns  model

    Errors
        ValueError  scheme is another value, or a layer cannot be quantized; the model is unchanged then
        TypeError   skip is a str, or no tuple, list or set

    State
        embedding and norms stay as they are, the embedding also where a tied head is quantized
    """
    if scheme not in SCHEMES:  # R29: also where there is nothing to do
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    if not isinstance(skip, tuple | list | set | frozenset):  # R32: "lm_head" would be seven letters
        raise TypeError(f"skip must be a tuple, list or set of names, got {skip!r}")
    made = {}
    for name, layer in model.named_linears().items():
        if isinstance(layer, Linear) and not _is_skipped(name, skip):  # R30, R34
            made[name] = QuantLinear(_quantized(layer.weight, scheme), layer.bias)
    for name, quantized in made.items():  # R33: only when every one of them is there
        model.set_linear(name, quantized)
    return model


def _is_skipped(name: str, skip: Collection[str]) -> bool:
    """Return whether the dotted name or a whole component of it is in skip (R31)."""
    return any(part in skip for part in (name, *name.split(".")))


def _quantized(w: Floats, scheme: str) -> Matrix:
    """Quantize a matrix by one of SCHEMES (R29)."""
    if scheme == "int8":
        return Q8Tensor(*quantize_int8_per_channel(w))
    if scheme == "q4_g32":
        return quantize_int4_group(w, 32)
    if scheme == "fp8_e4m3":
        return quantize_fp8_per_channel(w, "e4m3")
    return quantize_mx(w, 32, "fp4_e2m1")


def export_q4(model: Llama) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return a 4-bit model as named tensors and metadata, as `write_safetensors` takes them.

    Shapes
        model    Llama with at least one QuantLinear of a Q4Tensor, its other layers `llama.Linear`
        returns  (tensors, metadata): name -> array, of the model's own arrays, and name -> text

    Errors
        ValueError  no layer is a QuantLinear of a Q4Tensor, two have different groups, or a layer is neither
                    such a one nor a `llama.Linear`

    State
        does not change the model
    """
    tensors: dict[str, NDArray[Any]] = {**model.tensors()}  # R35: all that was not replaced
    groups = set()
    for name, layer in model.named_linears().items():
        if isinstance(layer, QuantLinear) and isinstance(layer.q, Q4Tensor):
            tensors[f"{name}.weight.qweight"] = layer.q.packed  # R35
            tensors[f"{name}.weight.scales"] = layer.q.scales
            if layer.bias is not None:
                tensors[f"{name}.bias"] = layer.bias  # R35: model.tensors() has it of a Linear only
            groups.add(layer.q.group)
        elif not isinstance(layer, Linear):  # R37: it would be missing in the file
            raise ValueError(f"{name} is neither a Linear nor in int4, and cannot be exported")
    if len(groups) != 1:  # R37
        raise ValueError(f"the int4 layers must have one group, got {sorted(groups)}")
    return tensors, {"format": "tinyllm", "quant": f"int4-g{groups.pop()}-sym"}  # R36


# what it costs


def output_error_bound(w: Floats, q: Quantized, x: Floats, dtype: str = "f32") -> F64:
    """Bound |x dequantize(q)^T - x w^T|, computed in dtype: the error of the weights, and of the rounding.

    Shapes
        w        f16[out, in], f32[out, in] or f64[out, in], out and in >= 1, finite as float32
        q        a form of w's shape
        x        numbers [N, in]
        dtype    as for `tolerance.unit_roundoff`
        returns  f64[N, out], a new array

    Errors
        ValueError  w as for quantize_int8_per_channel, or q or x has another shape
        ValueError  dtype is no name of a format, or in is too large for it
        TypeError   q is no form

    Numerics
        float64, also the difference of the weights

    >>> w = np.array([[9.0] * 8])  # the codes are off by 5; gamma(8) is 1 in e4m3
    >>> q = np.full((1, 8), 4, np.int8), np.ones(1, np.float32)
    >>> output_error_bound(w, q, np.ones((1, 8)), "e4m3").tolist()
    [[152.0]]
    """
    w, read, x = _finite(w, 2), dequantize(q), np.asarray(x)
    if read.shape != w.shape:  # R39: broadcasting would hide it
        raise ValueError(f"q must have the shape {w.shape}, got {read.shape}")
    if x.ndim != 2 or x.shape[1] != w.shape[1]:  # R39
        raise ValueError(f"x must be [N, {w.shape[1]}], got {x.shape}")
    dA = np.abs(w.astype(np.float64) - read)  # R38
    return np.ascontiguousarray(matmul_error_bound(w, x.T, dtype, dA).T)  # R38


def quant_ppl(
    model: Llama,
    scheme: str,
    ids: ArrayLike,
    ctx_len: int,
    stride: int,
    skip: Collection[str] = ("lm_head",),
) -> dict[str, float]:
    """Return the perplexity of the model and of a quantized copy: exp(mean(-log p(id | ids before it))).

    Shapes
        model           Llama
        scheme, skip    as for quantize_model
        ids             integers[N], N >= 2, in [0, V)
        ctx_len         int, in [1, model.max_len]: ids that a window feeds
        stride          int, in [1, ctx_len]: ids from one window to the next
        returns         {"ppl", "ppl_quant", "delta", "ratio"}, floats: delta = ppl_quant - ppl,
                        ratio = ppl_quant / ppl

    Errors
        ValueError  as for quantize_model, or an argument is not as above
        TypeError   as for quantize_model

    Numerics
        logits in f32, softmax and mean in f64

    State
        does not change the model; the copy shares what is not quantized
    """
    ids = _ids(ids)
    _check_int(ctx_len, model.max_len, "ctx_len")
    _check_int(stride, ctx_len, "stride")  # R43: a larger one would leave ids out
    shared = {id(tensor): tensor for tensor in model.tensors().values()}  # nothing writes into them
    quantized = quantize_model(copy.deepcopy(model, shared), scheme, skip)  # R40
    ppl = _perplexity(model, ids, ctx_len, stride)
    ppl_quant = _perplexity(quantized, ids, ctx_len, stride)
    return {"ppl": ppl, "ppl_quant": ppl_quant, "delta": ppl_quant - ppl, "ratio": ppl_quant / ppl}


def _perplexity(model: Llama, ids: I64, ctx_len: int, stride: int) -> float:
    """Score every id after the first once, in the first window that predicts it (R42)."""
    losses = []
    for start, stop, scored in _windows(len(ids), ctx_len, stride):
        logits = model.forward(ids[None, start:stop])[0].astype(np.float64)
        targets = ids[start + 1 : stop + 1]  # R41: one id past what is fed
        if not 0 <= targets.min() <= targets.max() < logits.shape[1]:  # R43: the last is never fed
            raise ValueError(f"ids must be in [0, {logits.shape[1]}), got {targets.min()} to {targets.max()}")
        logits -= logits.max(axis=1, keepdims=True)
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(targets)), targets]
        losses.append(loss[scored - start :])  # R42
    return float(np.exp(np.concatenate(losses).mean()))  # R42: over ids, not over windows


def _windows(n: int, ctx_len: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, scored): feed ids [start, stop), and score ids (scored, stop] (R41).

        n 6, ctx_len 3, stride 2     ids  0 1 2 3 4 5
        first window                 feed [0 1 2]        score 1 2 3
        second window                feed     [2 3 4]    score       4 5
    """
    scored = 0
    for start in range(0, n - 1, stride):
        stop = min(start + ctx_len, n - 1)
        yield start, stop, scored
        if stop == n - 1:  # R41: id n - 1 is predicted, so nothing is left
            return
        scored = stop


# what is refused


def _check_array(v: Any, n_axes: int, what: str) -> None:
    """Refuse what is no array of so many axes."""
    if not isinstance(v, np.ndarray) or v.ndim != n_axes:
        raise ValueError(f"{what} must be an array with {n_axes} axes, got {getattr(v, 'shape', type(v))}")


def _floats(v: Any, what: str) -> Floats:
    """Refuse what is no array of floats (R1): integers there are most often codes."""
    if not isinstance(v, np.ndarray) or v.dtype.type not in (np.float16, np.float32, np.float64):
        kind = getattr(v, "dtype", type(v))
        raise ValueError(f"{what} must be a float16, float32 or float64 array, got {kind}")
    return v


def _to_f32(v: Floats) -> F32:
    """Round to float32; what is too large becomes an infinity. A float32 array comes back as it is (R5)."""
    with np.errstate(over="ignore"):
        return v.astype(np.float32, copy=False)


def _finite(v: Floats, n_axes: int) -> F32:
    """Return v rounded to float32, or refuse it (R1, R2, R22)."""
    _check_array(v, n_axes, "the array")
    if v.size == 0:  # R1: there is no amax
        raise ValueError(f"the array must not be empty, got the shape {v.shape}")
    rounded = _to_f32(_floats(v, "the array"))  # R2: 1e39 is finite before
    if not np.isfinite(rounded).all():  # R2
        raise ValueError("the array holds a NaN or an infinity as float32")
    return rounded


def _ids(ids: ArrayLike) -> I64:
    """Return the ids as int64, or refuse what is no row of at least 2 integers (R43)."""
    row = np.asarray(ids)
    if row.ndim != 1 or len(row) < 2 or row.dtype.kind not in "iu":
        raise ValueError(f"ids must be at least 2 integers in a row, got {row.dtype} of shape {row.shape}")
    return row.astype(np.int64)


def _check_int(value: int, highest: int, what: str) -> None:
    """Refuse what is no int in [1, highest] (R43)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise ValueError(f"{what} must be an int in [1, {highest}], got {value!r}")
