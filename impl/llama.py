"""A Llama-family language model: token ids in, logits out.

    x = embed(ids)
    for each layer:   x += attention(rmsnorm(x));   x += mlp(rmsnorm(x))
    logits = head(rmsnorm(x))

    attention(x) = o(softmax(rope(q(x)) rope(k(x))^T / sqrt(E)) v(x)),  query head h reads KV head h // (H/K)
    mlp(x)       = down(silu(gate(x)) * up(x))

Keys are rotated before they are cached. Everything is float32. K and V are never repeated for the query heads
that share them: those heads become rows of one product.

Source  Touvron et al. 2023, arXiv:2302.13971, section 2.2; Su et al. 2021, arXiv:2104.09864, section 3.2
        (RoPE); Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); the safetensors format, version 0.3
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Array = NDArray[Any]

# safetensors: what NumPy has; BF16 is apart, since NumPy has no such type
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1",
}  # fmt: skip
_HEADER_LIMIT = 100_000_000  # bytes; the limit of the format's own implementation
_LINEARS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
# of a head of width E, the first and the second half of its E / 2 pairs, by layout
_PAIRS: dict[str, Callable[[int], tuple[slice, slice]]] = {
    "half": lambda width: (slice(0, width // 2), slice(width // 2, None)),
    "interleaved": lambda width: (slice(0, None, 2), slice(1, None, 2)),
}


class Cache(Protocol):
    """What `Llama.forward` asks of a cache; `impl.kv_cache.KVCache` is one."""

    def positions(self, t_new: int) -> I64:
        """Return the positions of the next t_new tokens, i64[T]."""

    def mask(self, t_new: int) -> NDArray[np.bool_]:
        """Return bool[T, S + T], True where the new token (row) sees the token (column)."""

    def update(self, layer: int, k_new: F32, v_new: F32) -> tuple[F32, F32]:
        """Append f32[B, K, T, E] to one layer and return all of it, f32[B, K, S + T, E] twice."""


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a model, by the names of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Config:
        """Read the keys of config.json; other keys say nothing about the arithmetic and are passed over.

        Shapes
            settings  num_key_value_heads, head_dim and the keys after it may be absent: then every query head
                      has its own KV head, head_dim is hidden_size / num_attention_heads, and the rest is as
                      in transformers (2048, 1e-6, 10000, false)
            returns   Config

        Errors
            ValueError  a key is absent or of the wrong kind, a size is below 1, the query heads are no
                        multiple of the KV heads, head_dim is odd, or the model needs what is not here:
                        another activation than silu, or scaled rotary frequencies

        >>> Config.from_dict({"vocab_size": 8, "hidden_size": 6, "intermediate_size": 4,
        ...                   "num_hidden_layers": 1, "num_attention_heads": 3}).head_dim
        2
        """
        # transformers 5 writes the rotary settings into a table of their own
        rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"config: scaled rotary frequencies are not supported, got {rope!r}")
        if settings.get("hidden_act", "silu") != "silu":
            raise ValueError(f"config: hidden_act must be 'silu', got {settings['hidden_act']!r}")
        values: dict[str, Any] = {
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }
        values |= {f.name: settings[f.name] for f in fields(cls) if settings.get(f.name) is not None}
        values["rope_theta"] = rope.get("rope_theta", values["rope_theta"])
        values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
        for field in fields(cls):
            value = values.get(field.name)
            if field.name == "head_dim" and value is None:
                continue
            if field.type == "int" and not (type(value) is int and value >= 1):
                raise ValueError(f"config: {field.name} must be an int of at least 1, got {value!r}")
            if field.type == "float" and (isinstance(value, bool) or not _positive(value)):
                raise ValueError(f"config: {field.name} must be a number above 0, got {value!r}")
            if field.type == "bool" and type(value) is not bool:
                raise ValueError(f"config: {field.name} must be true or false, got {value!r}")
        H, K, D = values["num_attention_heads"], values["num_key_value_heads"], values["hidden_size"]
        if H % K:
            raise ValueError(f"config: {H} query heads are no multiple of {K} KV heads")
        if values.setdefault("head_dim", D // H) % 2 or values["head_dim"] < 1:
            raise ValueError(f"config: head_dim must be even and above 0, got {values['head_dim']}")
        return cls(**values)


@dataclass(slots=True)
class Linear:
    """x -> x weight^T + bias.

    >>> Linear(np.array([[1, 2], [0, 1]], np.float32))(np.array([[10, 1]], np.float32))
    array([[12.,  1.]], dtype=float32)
    """

    weight: F32  # [out, in]
    bias: F32 | None = None  # [out]

    def __call__(self, x: F32) -> F32:
        """Multiply every row of x.

        Shapes
            x        f32[N, in]
            returns  f32[N, out], a new array

        Numerics
            sums in f32, in the order of the BLAS, which depends on N
        """
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


def rmsnorm(x: F32, weight: F32, eps: float) -> F32:
    """Scale every row of x to unit RMS, then by weight: weight * x / sqrt(mean(x^2) + eps).

    Shapes
        x        f32[..., D]
        weight   f32[D]
        eps      float, > 0, added to the mean square
        returns  f32[..., D], a new array

    Numerics
        mean square in f32, in the order of the BLAS

    >>> rmsnorm(np.array([7, 1], np.float32), np.array([5, 10], np.float32), 1e-9)
    array([7., 2.], dtype=float32)
    """
    mean_square = np.vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    scale: F32 = weight / np.sqrt(mean_square + np.float32(eps))
    return x * scale


def rope_tables(positions: I64, width: int, theta: float = 10000.0) -> tuple[F32, F32]:
    """Return cos and sin of positions * theta^(-2 i / width), i in [0, width / 2).

    Shapes
        positions  i64[..., T]
        width      int, even, > 0: the head width E
        theta      float, > 0
        returns    f32[..., T, E / 2] twice, new arrays

    Numerics
        frequency and angle are rounded to f32 as in transformers, and so as in training: an exact angle at
        position 500 would be off by up to 3e-5 rad from the one the weights know

    >>> cos, sin = rope_tables(np.array([0]), 4)
    >>> cos.tolist(), sin.tolist()
    ([[1.0, 1.0]], [[0.0, 0.0]])
    """
    powers = np.power(theta, np.arange(0, width, 2, dtype=np.float32) / np.float32(width)).astype(np.float32)
    angles = positions.astype(np.float32)[..., None] * (np.float32(1.0) / powers)
    return np.cos(angles), np.sin(angles)


def apply_rope(x: F32, cos: F32, sin: F32, layout: str = "half") -> F32:
    """Turn every pair (a, b) of a head by its angle: (a cos - b sin, b cos + a sin).

    The pairs are (x[i], x[i + E / 2]) in layout "half" and (x[2 i], x[2 i + 1]) in layout "interleaved".

    Shapes
        x         f32[..., T, E]
        cos, sin  f32[..., T, E / 2], broadcast over the axes before T
        layout    str, "half" or "interleaved"
        returns   f32[..., T, E], a new array

    Errors
        ValueError  layout is another value

    >>> x = np.array([[1, 2, 3, 4]], np.float32)
    >>> zero, one = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)  # a quarter turn
    >>> apply_rope(x, zero, one).tolist(), apply_rope(x, zero, one, "interleaved").tolist()
    ([[-3.0, -4.0, 1.0, 2.0]], [[-2.0, 1.0, -4.0, 3.0]])
    """
    if layout not in _PAIRS:
        raise ValueError(f"layout must be one of {', '.join(_PAIRS)}, got {layout!r}")
    first, second = _PAIRS[layout](x.shape[-1])
    a, b = x[..., first], x[..., second]
    y = np.empty(x.shape, x.dtype)
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return y


def attend(q: F32, k: F32, v: F32, mask: NDArray[np.bool_]) -> F32:
    """Return softmax(q k^T / sqrt(E)) v, where query head h reads KV head h // (H / K).

    Shapes
        q        f32[B, H, T, E]
        k, v     f32[B, K, S, E], H a multiple of K; S counts the new tokens too
        mask     bool[T, S], True = visible; at least one in every row
        returns  f32[B, H, T, E], a new array

    Numerics
        all sums in f32: products in the order of the BLAS, the softmax pairwise, after the largest of the row
        is taken off

    >>> q = np.zeros((1, 2, 1, 2), np.float32)
    >>> v = np.array([[[[1, 2], [3, 6]]]], np.float32)
    >>> attend(q, v, v, np.array([[True, True]])).tolist()
    [[[[2.0, 4.0]], [[2.0, 4.0]]]]
    """
    B, H, T, E = q.shape
    K, S = k.shape[1:3]
    rows: F32 = (q * np.float32(E**-0.5)).reshape(B, K, H // K * T, E)  # the heads of a group share K and V
    p: F32 = (rows @ k.swapaxes(-1, -2)).reshape(B, K, H // K, T, S)
    if not mask.all():
        np.copyto(p, -np.inf, where=~mask)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    y: F32 = p.reshape(*rows.shape[:3], S) @ v
    return y.reshape(B, H, T, E)


def silu(x: F32) -> F32:
    """Return x / (1 + exp(-x)).

    Shapes
        x        f32[...]
        returns  f32[...], a new array

    >>> silu(np.array([0, -1e4], np.float32)).tolist()
    [0.0, -0.0]
    """
    with np.errstate(over="ignore"):  # exp is inf far below 0, and x / inf is right
        y: F32 = x / (1 + np.exp(-x))
    return y


class Llama:
    """The model: a shape, its weights, and `forward`.

    Attributes
        config      Config
        rope        str, "half" (weights as Hugging Face has them) or "interleaved" (as the original release)
        n_layers    int, and n_kv_heads, d_head, max_len: what a cache is made of

    Linear layers have the dotted names of the tensors, `model.layers.0.self_attn.q_proj` to `lm_head`. A tied
    head is a Linear that shares its weight with the embedding.
    """

    def __init__(self, config: Config, tensors: Mapping[str, Array], rope: str = "half") -> None:
        """Take the weights by the names and shapes of Hugging Face's Llama.

        Shapes
            tensors  name -> float array; copied unless it is float32 already; where the head is tied,
                     lm_head.weight is not looked at
            rope     str, "half" or "interleaved"

        Errors
            ValueError  a tensor is missing, unknown, not of floats or of another shape; rope is another value
        """
        if rope not in _PAIRS:
            raise ValueError(f"rope must be one of {', '.join(_PAIRS)}, got {rope!r}")
        self.config = config
        self.rope = rope
        self.n_layers = config.num_hidden_layers
        self.n_kv_heads = config.num_key_value_heads
        self.d_head = config.head_dim
        self.max_len = config.max_position_embeddings
        D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
        H, K, E = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        shapes = {"q_proj": (H * E, D), "k_proj": (K * E, D), "v_proj": (K * E, D), "o_proj": (D, H * E)}
        shapes |= {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
        left = {name: t for name, t in tensors.items() if not name.endswith("rotary_emb.inv_freq")}

        def take(name: str, shape: tuple[int, ...]) -> F32:
            if name not in left:
                raise ValueError(f"tensor {name} is missing")
            tensor = left.pop(name)
            if tensor.shape != shape:
                raise ValueError(f"tensor {name} must have shape {shape}, got {tensor.shape}")
            if tensor.dtype.kind != "f":
                raise ValueError(f"tensor {name} must be of floats, got {tensor.dtype}")
            return np.ascontiguousarray(tensor, dtype=np.float32)

        self._linears: dict[str, Callable[[F32], F32]] = {}
        self._vectors: dict[str, F32] = {}
        self._embedding = take("model.embed_tokens.weight", (V, D))
        for n in range(self.n_layers):
            for block, names in _LINEARS.items():
                for short in names:
                    name, shape = f"model.layers.{n}.{block}.{short}", shapes[short]
                    bias = take(name + ".bias", shape[:1]) if name + ".bias" in left else None
                    self._linears[name] = Linear(take(name + ".weight", shape), bias)
            for short in ("input_layernorm", "post_attention_layernorm"):
                self._vectors[f"model.layers.{n}.{short}"] = take(f"model.layers.{n}.{short}.weight", (D,))
        self._vectors["model.norm"] = take("model.norm.weight", (D,))
        if config.tie_word_embeddings:
            left.pop("lm_head.weight", None)
            self._linears["lm_head"] = Linear(self._embedding)
        else:
            self._linears["lm_head"] = Linear(take("lm_head.weight", (V, D)))
        if left:
            raise ValueError(f"tensor {min(left)} is unknown to a Llama")

    def named_linears(self) -> dict[str, Callable[[F32], F32]]:
        """Return the linear layers by dotted name, in the order of the layers, `lm_head` last.

        Shapes
            returns  dict, new; a value is a Linear, or what `set_linear` put in its place
        """
        return dict(self._linears)

    def set_linear(self, name: str, layer: Callable[[F32], F32]) -> None:
        """Put another callable in the place of a linear layer.

        Shapes
            name   str, a key of `named_linears`
            layer  f32[N, in] -> f32[N, out]

        Errors
            KeyError  there is no linear layer of that name

        State
            later calls of `forward` use it; replacing a tied head leaves the embedding as it is
        """
        if name not in self._linears:
            raise KeyError(f"no linear layer is named {name!r}")
        self._linears[name] = layer

    def tensors(self) -> dict[str, F32]:
        """Return the weights by the names `Llama` and `write_safetensors` take; of replaced layers none.

        Shapes
            returns  dict, new, of the model's own arrays; a tied head is not repeated
        """
        found = {"model.embed_tokens.weight": self._embedding}
        found |= {name + ".weight": vector for name, vector in self._vectors.items()}
        for name, layer in self._linears.items():
            if isinstance(layer, Linear) and layer.weight is not self._embedding:
                found[name + ".weight"] = layer.weight
                if layer.bias is not None:
                    found[name + ".bias"] = layer.bias
        return found

    def forward(self, ids: ArrayLike, positions: ArrayLike | None = None, cache: Cache | None = None) -> F32:
        """Return the logits of the token after each of ids.

        Shapes
            ids        integers[B, T], in [0, V), T >= 1
            positions  integers[T] or [B, T], in [0, max_len); None is 0..T-1, or what the cache says
            cache      None, or an object as `Cache` says, its keys and values of B sequences
            returns    f32[B, T, V], a new array

        Errors
            ValueError  ids or positions have another shape, are not integers or are out of range; the cache's
                        mask does not have T rows

        Numerics
            f32 throughout, sums too; token by token and a whole prompt agree to about 1e-5, not to the bit

        State
            appends T tokens to every layer of the cache; the mask and the positions are read before the first
        """
        x_ids = _integers(ids, self.config.vocab_size, "ids")
        if x_ids.ndim != 2 or x_ids.shape[1] < 1:
            raise ValueError(f"ids must have shape [B, T] with T >= 1, got {list(x_ids.shape)}")
        B, T = x_ids.shape
        if positions is None:
            positions = np.arange(T) if cache is None else cache.positions(T)
        at = _integers(positions, self.max_len, "positions")
        if at.shape not in ((T,), (B, T)):
            raise ValueError(f"positions must have shape [{T}] or [{B}, {T}], got {list(at.shape)}")
        mask = np.tri(T, dtype=np.bool_) if cache is None else cache.mask(T)
        if mask.ndim != 2 or mask.shape[0] != T:
            raise ValueError(f"the cache's mask must have {T} rows, got shape {list(mask.shape)}")
        # [T, E / 2], or [B, 1, T, E / 2]: the same for every head and every layer
        tables = rope_tables(at if at.ndim == 1 else at[:, None], self.d_head, self.config.rope_theta)

        eps, linear, vector = self.config.rms_norm_eps, self._linears, self._vectors
        x = self._embedding[x_ids.reshape(-1)]  # [B T, D], so that every product is one call of the BLAS
        for n in range(self.n_layers):
            name = f"model.layers.{n}."
            normed = rmsnorm(x, vector[name + "input_layernorm"], eps)
            x = x + self._attention(n, normed, (B, T), tables, mask, cache)
            normed = rmsnorm(x, vector[name + "post_attention_layernorm"], eps)
            gated = silu(linear[name + "mlp.gate_proj"](normed)) * linear[name + "mlp.up_proj"](normed)
            x = x + linear[name + "mlp.down_proj"](gated)
        return linear["lm_head"](rmsnorm(x, vector["model.norm"], eps)).reshape(B, T, -1)

    def _attention(
        self,
        n: int,
        x: F32,
        shape: tuple[int, int],
        tables: tuple[F32, F32],
        mask: NDArray[np.bool_],
        cache: Cache | None,
    ) -> F32:
        """Attention of layer n: f32[B T, D] to f32[B T, D]."""
        name = f"model.layers.{n}.self_attn."

        def heads(short: str) -> F32:
            """[B T, heads E] to [B, heads, T, E]."""
            return self._linears[name + short](x).reshape(*shape, -1, self.d_head).swapaxes(1, 2)

        q = apply_rope(heads("q_proj"), *tables, self.rope)
        k = apply_rope(heads("k_proj"), *tables, self.rope)
        v = heads("v_proj")
        if cache is not None:
            k, v = cache.update(n, k, v)
        y = attend(q, k, v, mask)
        return self._linears[name + "o_proj"](y.swapaxes(1, 2).reshape(x.shape[0], -1))


def load(folder: str | os.PathLike[str], rope: str = "half") -> Llama:
    """Read a model from its folder: config.json and model.safetensors as Hugging Face has them.

    Shapes
        folder   path
        rope     str, the layout of the weights: "half" or "interleaved"
        returns  Llama

    Errors
        FileNotFoundError  one of the two files is not there
        ValueError         a file is malformed, or they do not fit together
    """
    path = Path(folder)
    try:
        settings = json.loads((path / "config.json").read_bytes())
    except ValueError as error:
        raise ValueError(f"config: not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"config: must be a JSON object, got {type(settings).__name__}")
    return Llama(Config.from_dict(settings), read_safetensors(path / "model.safetensors")[0], rope)


# safetensors:  u64 n, little-endian | n bytes of JSON | data
# JSON:         {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, .., "__metadata__": {..}}


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Read every tensor of a safetensors file, and its metadata.

    Shapes
        path     path of a file
        returns  name -> array, new, in the order of the data; and name -> text. BF16 becomes float32,
                 which is exact

    Errors
        FileNotFoundError  there is no such file
        ValueError         the file is malformed: cut short, a header that is not what the format says, a
                           dtype that is not here, or tensors that leave a gap, overlap or reach past the end
    """
    path = Path(path)
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        try:
            return _read(file, size_bytes)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; the same arguments give the same bytes.

    Shapes
        path      path of a file, written beside and then renamed
        tensors   name -> array of f16, f32, f64, u8 or i8 to i64, of any shape, written in the order of names
        metadata  name -> text

    Errors
        ValueError  an array has another dtype, or a tensor is named "__metadata__"
    """
    codes = {np.dtype(numpy_name): code for code, numpy_name in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    stop, data = 0, []
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name])
        little = tensor.dtype.newbyteorder("<")
        if little not in codes:
            raise ValueError(f"tensor {name!r} has dtype {tensor.dtype}, which is not written here")
        if name == "__metadata__":
            raise ValueError("a tensor cannot be named '__metadata__'")
        start, stop = stop, stop + tensor.nbytes
        header[name] = {"dtype": codes[little], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        data.append(tensor.astype(little).tobytes())
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the data begin at a multiple of 8
    path = Path(path)
    part = path.with_name(path.name + ".part")
    part.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(data))
    part.replace(path)


def _read(file: BinaryIO, size_bytes: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Read an open safetensors file of that size."""
    if size_bytes < 8:
        raise ValueError(f"a header length takes 8 bytes, the file has {size_bytes}")
    n = int.from_bytes(file.read(8), "little")
    if n > min(size_bytes - 8, _HEADER_LIMIT):
        raise ValueError(f"a header of {n} bytes does not fit a file of {size_bytes}")
    try:
        header = json.loads(file.read(n).decode(), object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("__metadata__ must map names to text")
    spans = {name: _span(name, entry) for name, entry in header.items()}
    stop, tensors = 0, {}
    for name, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        if start != stop:
            raise ValueError(f"tensor {name!r} begins at {start}, the one before it ends at {stop}")
        if end > size_bytes - 8 - n:
            raise ValueError(f"tensor {name!r} ends at {end}, the data at {size_bytes - 8 - n}")
        stop, entry = end, header[name]
        raw = np.frombuffer(bytearray(file.read(end - start)), np.dtype(_DTYPES.get(entry["dtype"], "<u2")))
        if entry["dtype"] == "BF16":  # the high half of a float32
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = raw.reshape(entry["shape"])
    if stop != size_bytes - 8 - n:
        raise ValueError(f"the tensors end at {stop}, the data at {size_bytes - 8 - n}")
    return tensors, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON pairs and refuse a name that comes twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the header has {name!r} twice")
        found[name] = value
    return found


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Check one entry of the header and return where its data lie."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} must have dtype, shape and data_offsets, no more")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in {*_DTYPES, "BF16"}:
        raise ValueError(f"tensor {name!r} has dtype {code!r}, which is not read here")
    if not _sizes(shape):
        raise ValueError(f"tensor {name!r} has shape {shape!r}")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {name!r} has data_offsets {offsets!r}")
    want_bytes = math.prod(shape) * np.dtype(_DTYPES.get(code, "<u2")).itemsize
    if offsets[1] - offsets[0] != want_bytes:
        raise ValueError(f"tensor {name!r} takes {want_bytes} bytes, its data_offsets are {offsets}")
    return offsets[0], offsets[1]


def _positive(value: Any) -> bool:
    """Whether value is a finite number above 0."""
    return isinstance(value, int | float) and 0 < value < math.inf


def _sizes(value: Any) -> bool:
    """Whether value is a list of ints of at least 0."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _integers(values: ArrayLike, limit: int, what: str) -> I64:
    """Return values as int64 and refuse what is no integer in [0, limit)."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers, got {array.dtype}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
        raise ValueError(f"{what} must be in [0, {limit}), got {array.min()} to {array.max()}")
    return array.astype(np.int64)
