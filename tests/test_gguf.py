"""The GGUF reader, beside the package `gguf` and on files that are not as they should be."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impl import gguf
from impl.llama import Config, Llama

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
    "rms_norm_eps": 2.0**-17, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def file_of(
    keys: dict[str, bytes], tensors: list[tuple[str, tuple[int, ...], int, bytes]], version: int = 3
) -> bytes:
    """A file by hand: keys with their types and values packed, tensors with shapes as GGUF writes them."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys))
    head += b"".join(text(name) + value for name, value in keys.items())
    data = b""
    for name, shape, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_keys_of_every_type(tmp_path: Path) -> None:
    keys = {
        "a": struct.pack("<II", 4, 7), "b": struct.pack("<If", 6, 0.5), "c": struct.pack("<I?", 7, True),
        "d": struct.pack("<I", 8) + text("é"),
        "e": struct.pack("<IIQ", 9, 5, 2) + struct.pack("<ii", -1, 2),
    }  # fmt: skip
    found, tensors = gguf.read(write(tmp_path, file_of(keys, [])))
    assert found == {"a": 7, "b": 0.5, "c": True, "d": "é", "e": [-1, 2]}
    assert tensors == {}


def test_rows_are_the_last_axis(tmp_path: Path) -> None:
    raw = np.arange(6, dtype=np.float32).tobytes()
    _, tensors = gguf.read(write(tmp_path, file_of({}, [("w", (3, 2), 0, raw)])))
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("kind", "name"), [(3, "Q4_1"), (8, "Q8_0"), (1, "F16")])
def test_blocks_decode_as_in_ggml(kind: int, name: str) -> None:
    peer = pytest.importorskip("gguf")
    quants = pytest.importorskip("gguf.quants")
    source = np.random.default_rng(3).standard_normal((8, 96)).astype(np.float32) * 3
    raw = quants.quantize(source, peer.GGMLQuantizationType[name])
    expected = quants.dequantize(raw, peer.GGMLQuantizationType[name])
    assert gguf._weights(kind, raw.tobytes()).reshape(8, 96).tolist() == expected.tolist()


def model(tmp_path: Path) -> tuple[Path, Llama]:
    """The same Llama twice: in a GGUF file, and by Hugging Face's names."""
    config = Config.from_dict({**SHAPE, "head_dim": 16})
    source = np.random.default_rng(4)
    names = {
        "token_embd.weight": (64, 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,), "blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32), "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (64, 32), "blk.0.ffn_up.weight": (64, 32), "blk.0.ffn_down.weight": (32, 64),
    }  # fmt: skip
    arrays = {name: source.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    numbers = {
        "embedding_length": 32, "feed_forward_length": 64, "block_count": 1, "attention.head_count": 2,
        "attention.head_count_kv": 1, "rope.dimension_count": 16, "context_length": 4096,
    }  # fmt: skip
    keys = {f"llama.{name}": struct.pack("<II", 4, value) for name, value in numbers.items()}
    keys["llama.attention.layer_norm_rms_epsilon"] = struct.pack("<If", 6, 2.0**-17)
    keys["llama.rope.freq_base"] = struct.pack("<If", 6, 1e4)
    keys["general.architecture"] = struct.pack("<I", 8) + text("llama")
    tensors = [(name, array.shape[::-1], 0, array.tobytes()) for name, array in arrays.items()]
    same = Llama(config, {gguf._renamed(name): array for name, array in arrays.items()}, "interleaved")
    return write(tmp_path, file_of(keys, tensors)), same


def test_a_file_gives_the_same_model_as_its_tensors(tmp_path: Path) -> None:
    path, same = model(tmp_path)
    loaded = gguf.load(path, max_len=16)
    assert loaded.config == same.config
    ids = np.array([[3, 1, 4, 1, 5]])
    assert loaded.forward(ids).tolist() == same.forward(ids).tolist()
    assert gguf.load(path, max_len=9).max_len == 9


BAD: dict[str, tuple[bytes, str]] = {
    "magic": (b"GGML" + bytes(20), "no GGUF file of version 2 or 3: it begins with b'GGML'"),
    "version": (file_of({}, [], 1), "version 2 or 3"),
    "short": (b"GGUF\3\0", "ends within its header"),
    "counts": (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 0), "do not fit a file"),
    "type": (file_of({}, [("w", (256,), 12, bytes(144))]), "tensor 'w' is of ggml type 12; read here are"),
    "blocks": (file_of({}, [("w", (33,), 8, bytes(34))]), "is not made of whole blocks"),
    "axes": (file_of({}, [("w", (1,) * 5, 0, bytes(4))]), "tensor 'w' has 5 axes"),
    "data": (file_of({}, [("w", (64,), 0, bytes(8))]), "tensor 'w' ends at"),
    "value": (file_of({"a": struct.pack("<I", 13)}, []), "a value of type 13 is not known"),
    "list": (file_of({"a": struct.pack("<IIQ", 9, 4, 1 << 40)}, []), "items does not fit a file"),
    "text": (file_of({"a": struct.pack("<IQ", 8, 1 << 40)}, []), "bytes does not fit a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str) -> None:
    content, words = BAD[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        gguf.read(write(tmp_path, content))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    keys = {"general.architecture": struct.pack("<I", 8) + text("bert")}
    with pytest.raises(ValueError, match="architecture must be llama, got 'bert'"):
        gguf.load(write(tmp_path, file_of(keys, [])))


def test_an_unknown_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no tensor of a Llama is called 'blk\.0\.moe\.weight'"):
        gguf._renamed("blk.0.moe.weight")
