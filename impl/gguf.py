"""GGUF: the file in which llama.cpp keeps a model, read into a `llama.Llama`.

    magic "GGUF" | version | number of tensors, of keys | keys and values | names, shapes, places | data
    Q8_0  32 weights:  f16 d | 32 i8 q                   w = q d
    Q4_1  32 weights:  f16 d | f16 m | 16 bytes of two   w = q d + m, low nibbles first

Rows of q and k are in the order of the "interleaved" rotary layout, which is how llama.cpp writes them.

Source  ggml-org/ggml, docs/gguf.md (version 3) and src/ggml-common.h (block_q8_0, block_q4_1)
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from impl.llama import Config, Llama

F32 = NDArray[np.float32]

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_MOST = 1 << 24  # items of a list or bytes of a text, beyond which a length is no length
# ggml's numbers of tensor types: weights and bytes of a block
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}  # fmt: skip


def load(path: str | os.PathLike[str], max_len: int = 2048) -> Llama:
    """Read a Llama from a GGUF file, its weights as float32.

    Shapes
        path     path
        max_len  int, >= 1; the context is no longer than this, whatever the file allows
        returns  Llama, rope "interleaved"

    Errors
        ValueError         the file is malformed, is no Llama, or has a tensor type other than F32, F16, Q8_0
                           and Q4_1
        FileNotFoundError  it is not there
    """
    settings, tensors = read(path)
    if settings.get("general.architecture") != "llama":
        raise ValueError(f"architecture must be llama, got {settings.get('general.architecture')!r}")
    told = {
        name: settings.get(f"llama.{key}")
        for name, key in {
            "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
            "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count",
            "num_key_value_heads": "attention.head_count_kv", "head_dim": "rope.dimension_count",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
            "max_position_embeddings": "context_length",
        }.items()
    }  # fmt: skip
    named = {_renamed(name): tensor for name, tensor in tensors.items()}
    told["max_position_embeddings"] = min(told["max_position_embeddings"] or max_len, max_len)
    told["vocab_size"] = len(named["model.embed_tokens.weight"])
    told["tie_word_embeddings"] = "lm_head.weight" not in named
    return Llama(Config.from_dict(told), named, rope="interleaved")


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, F32]]:
    """Read the keys and the tensors of a GGUF file.

    Shapes
        path     path
        returns  (keys, tensors): dict of str to int, float, bool, str or list; dict of str to f32[..],
                 the last axis the one that is stored in one piece

    Errors
        ValueError         the file is malformed, or a tensor is of another type than those read here
        FileNotFoundError  it is not there
    """
    size_bytes = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        try:
            magic, version, n_tensors, n_keys = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError(f"no GGUF file of version 2 or 3: it begins with {magic!r}, {version}")
            if max(n_tensors, n_keys) > _MOST:
                raise ValueError(f"{n_tensors} tensors and {n_keys} keys do not fit a file")
            keys = dict(_pair(file) for _ in range(n_keys))
            places = [_place(file) for _ in range(n_tensors)]
        except struct.error:
            raise ValueError("the file ends within its header") from None
        align = keys.get("general.alignment", 32)
        start = -(-file.tell() // align) * align
        tensors = {}
        for name, shape, kind, offset in places:
            _, weights, block_bytes = _TYPES[kind]
            n_bytes = math.prod(shape) // weights * block_bytes
            end = start + offset + n_bytes
            if end > size_bytes:
                raise ValueError(f"tensor {name!r} ends at {end}, the file at {size_bytes}")
            file.seek(start + offset)
            tensors[name] = _weights(kind, file.read(n_bytes)).reshape(shape)
    return keys, tensors


def _pair(file: BinaryIO) -> tuple[str, Any]:
    """Read a key and its value."""
    name = _text(file)
    return name, _value(file, _u32(file))


def _place(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    """Read a tensor's name, shape (slowest axis first), type and offset."""
    name, n_axes = _text(file), _u32(file)
    if n_axes > 4:
        raise ValueError(f"tensor {name!r} has {n_axes} axes")
    shape = struct.unpack(f"<{n_axes}Q", file.read(8 * n_axes))[::-1]
    kind, offset = struct.unpack("<IQ", file.read(12))
    if kind not in _TYPES:
        able = ", ".join(type_name for type_name, _, _ in _TYPES.values())
        raise ValueError(f"tensor {name!r} is of ggml type {kind}; read here are {able}")
    if not shape or shape[-1] % _TYPES[kind][1]:
        raise ValueError(f"tensor {name!r} of shape {list(shape)} is not made of whole blocks")
    return name, shape, kind, offset


def _value(file: BinaryIO, kind: int) -> Any:
    """Read a value of this type."""
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        inner, n = struct.unpack("<IQ", file.read(12))
        if n > _MOST:
            raise ValueError(f"a list of {n} items does not fit a file")
        return [_value(file, inner) for _ in range(n)]
    if kind not in _NUMBERS:
        raise ValueError(f"a value of type {kind} is not known")
    code = "<" + _NUMBERS[kind]
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def _text(file: BinaryIO) -> str:
    """Read a length and as many bytes of UTF-8."""
    (n,) = struct.unpack("<Q", file.read(8))
    if n > _MOST:
        raise ValueError(f"a text of {n} bytes does not fit a file")
    return file.read(n).decode("utf-8", "replace")


def _u32(file: BinaryIO) -> int:
    """Read an unsigned integer of 4 bytes."""
    number: int = struct.unpack("<I", file.read(4))[0]
    return number


def _weights(kind: int, raw: bytes) -> F32:
    """Decode one tensor's bytes, in the order in which they are stored.

    >>> _weights(8, struct.pack("<e", 0.5) + bytes(range(32)))[:4].tolist()
    [0.0, 0.5, 1.0, 1.5]
    >>> _weights(3, struct.pack("<ee", 0.5, -1.0) + bytes([0x21] * 16))[[0, 15, 16, 31]].tolist()
    [-0.5, -0.5, 0.0, 0.0]
    """
    name, weights, block_bytes = _TYPES[kind]
    if weights == 1:
        return np.frombuffer(raw, "<f4" if name == "F32" else "<f2").astype(np.float32)
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, block_bytes)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if name == "Q8_0":
        return (blocks[:, 2:].view(np.int8) * scale).reshape(-1)
    least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (codes * scale + least).reshape(-1)


def _renamed(name: str) -> str:
    """Turn llama.cpp's name of a tensor into Hugging Face's.

    >>> _renamed("blk.3.attn_q.weight"), _renamed("output_norm.weight")
    ('model.layers.3.self_attn.q_proj.weight', 'model.norm.weight')
    """
    if name in _OUTER:
        return _OUTER[name]
    head, _, rest = name.partition(".")
    layer, _, short = rest.partition(".")
    short, _, kind = short.rpartition(".")
    if head != "blk" or short not in _NAMES:
        raise ValueError(f"no tensor of a Llama is called {name!r}")
    return f"model.layers.{layer}.{_NAMES[short]}.{kind}"
