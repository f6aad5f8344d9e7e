"""The given model: against transformers, against itself with a cache, and its files."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import impl
from impl.llama import (
    Config,
    Linear,
    Llama,
    apply_rope,
    attend,
    load,
    read_safetensors,
    rmsnorm,
    rope_tables,
    silu,
    write_safetensors,
)
from impl.tokenizer import Tokenizer

F32 = NDArray[np.float32]
TINY = Path(impl.__path__[0]).parent / "fixtures" / "models" / "tiny"
SETTINGS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}


class PlainCache:
    """The cache's contract in lists: what a KVCache of batch B does, without storage of a fixed size."""

    def __init__(self, n_layers: int) -> None:
        self.k: list[list[F32]] = [[] for _ in range(n_layers)]
        self.v: list[list[F32]] = [[] for _ in range(n_layers)]
        self.calls: list[tuple[int, int]] = []

    def seq_len(self) -> int:
        return min(sum(chunk.shape[2] for chunk in layer) for layer in self.k)

    def positions(self, t_new: int) -> NDArray[np.int64]:
        return np.arange(self.seq_len(), self.seq_len() + t_new)

    def mask(self, t_new: int) -> NDArray[np.bool_]:
        return np.arange(self.seq_len() + t_new) <= self.positions(t_new)[:, None]

    def update(self, layer: int, k_new: F32, v_new: F32) -> tuple[F32, F32]:
        self.calls.append((layer, k_new.shape[2]))
        self.k[layer].append(k_new.copy())
        self.v[layer].append(v_new.copy())
        return np.concatenate(self.k[layer], axis=2), np.concatenate(self.v[layer], axis=2)


def weights(settings: dict[str, Any], seed: int = 0, bias: bool = False) -> dict[str, F32]:
    """Random weights that give logits of about 1."""
    rng = np.random.default_rng(seed)
    s = settings
    D, F, E = s["hidden_size"], s["intermediate_size"], s["head_dim"]
    H, K = s["num_attention_heads"], s["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (s["vocab_size"], D), "model.norm": (D,)}
    if not s["tie_word_embeddings"]:
        shapes["lm_head"] = (s["vocab_size"], D)
    biased = []
    for n in range(s["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes |= {layer + "input_layernorm": (D,), layer + "post_attention_layernorm": (D,)}
        attention = {"q_proj": (H * E, D), "k_proj": (K * E, D), "v_proj": (K * E, D), "o_proj": (D, H * E)}
        shapes |= {f"{layer}self_attn.{name}": shape for name, shape in attention.items()}
        biased += [f"{layer}self_attn.{name}" for name in attention]
        shapes |= {
            layer + "mlp.gate_proj": (F, D),
            layer + "mlp.up_proj": (F, D),
            layer + "mlp.down_proj": (D, F),
        }
    made = {}
    for name, shape in shapes.items():
        values = rng.normal(size=shape)
        scaled = 1 + values / 4 if len(shape) == 1 else values / math.sqrt(shape[1])
        made[name + ".weight"] = scaled.astype(np.float32)
    if bias:
        made |= {name + ".bias": rng.normal(size=shapes[name][0]).astype(np.float32) for name in biased}
    return made


def model(**changes: Any) -> Llama:
    settings = SETTINGS | changes
    return Llama(Config.from_dict(settings), weights(settings))


def ids_of(shape: tuple[int, int], vocab: int = 50, seed: int = 1) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(vocab, size=shape)


def save(folder: Path, settings: dict[str, Any], tensors: dict[str, F32]) -> Path:
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


# against transformers


@pytest.fixture(scope="module")
def peer() -> Callable[..., Any]:
    """Logits of transformers for a folder and ids, in float32 unless another type is named."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def logits(folder: Path, ids: Any, dtype: str = "float32") -> Any:
        other = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        with torch.no_grad():
            return other(input_ids=torch.tensor(ids), use_cache=False).logits.numpy()

    return logits


@pytest.mark.parametrize(
    ("changes", "bias"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, False),
        ({"num_key_value_heads": 6}, False),
        ({"num_key_value_heads": 1, "head_dim": 4}, False),
        ({"attention_bias": True}, True),
        ({"rms_norm_eps": 0.5, "rope_theta": 1e6}, False),
    ],
)
def test_logits_of_transformers(
    changes: dict[str, Any], bias: bool, tmp_path: Path, peer: Callable[..., Any]
) -> None:
    settings = SETTINGS | changes
    save(tmp_path, settings, weights(settings, bias=bias))
    ids = ids_of((3, 40))
    got = load(tmp_path).forward(ids)
    assert got.shape == (3, 40, 50)
    assert got.dtype == np.float32
    assert got.std() > 0.3
    np.testing.assert_allclose(got, peer(tmp_path, ids), rtol=0, atol=1e-5)


def test_logits_of_transformers_on_the_shipped_model(peer: Callable[..., Any]) -> None:
    """Logits go up to 24, where 1e-5 is 5 ulp; after 512 tokens no float32 code is that near to float64."""
    tok, ours = Tokenizer.load(TINY / "tokenizer.json"), load(TINY)
    ids = tok.encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    for start, length in ((0, 1), (0, 17), (1000, 200), (3000, 512)):
        prompt = [ids[start : start + length]]
        got, want, exact = ours.forward(prompt), peer(TINY, prompt), peer(TINY, prompt, "float64")
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * abs(want).max())
        assert abs(got - exact).max() < 2.5 * abs(want - exact).max()


def test_the_arithmetic_is_that_of_transformers_on_the_shipped_model(peer: Callable[..., Any]) -> None:
    """In double precision on both sides, so that rounding hides nothing: 1e-5 holds with room to spare."""
    tok, ours = Tokenizer.load(TINY / "tokenizer.json"), load(TINY)
    ours._embedding = ours._embedding.astype(np.float64)
    ours._vectors = {name: vector.astype(np.float64) for name, vector in ours._vectors.items()}
    for name, layer in ours.named_linears().items():
        assert isinstance(layer, Linear)
        ours.set_linear(name, Linear(layer.weight.astype(np.float64)))
    ids = tok.encode((TINY / "heldout.txt").read_text(encoding="utf-8"))
    for start, length in ((0, 1), (1000, 200), (3000, 512)):
        got = ours.forward([ids[start : start + length]])
        assert got.dtype == np.float64
        want = peer(TINY, [ids[start : start + length]], "float64")
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


# with and without a cache


@pytest.mark.parametrize("chunks", [[1] * 24, [10] + [1] * 14, [3, 1, 5, 2, 13], [24]])
@pytest.mark.parametrize("B", [1, 3])
def test_cached_logits_equal_uncached(chunks: list[int], B: int) -> None:
    llama, ids = model(), ids_of((B, 24))
    cache, at, got = PlainCache(llama.n_layers), 0, []
    for t in chunks:
        got.append(llama.forward(ids[:, at : at + t], cache=cache))
        at += t
    np.testing.assert_allclose(np.concatenate(got, axis=1), llama.forward(ids), rtol=0, atol=1e-5)
    assert cache.calls == [(layer, t) for t in chunks for layer in range(3)]


def test_positions_and_mask_are_read_before_a_layer_appends() -> None:
    llama, order = model(), []

    class Watched(PlainCache):
        def positions(self, t_new: int) -> NDArray[np.int64]:
            order.append("positions")
            return super().positions(t_new)

        def mask(self, t_new: int) -> NDArray[np.bool_]:
            order.append("mask")
            return super().mask(t_new)

        def update(self, layer: int, k_new: F32, v_new: F32) -> tuple[F32, F32]:
            order.append("update")
            return super().update(layer, k_new, v_new)

    llama.forward([[1, 2]], cache=Watched(3))
    assert order.count("mask") == 1  # PlainCache.mask reads the positions too
    assert "update" not in order[: -llama.n_layers]


def test_positions_may_be_given() -> None:
    llama, ids = model(), ids_of((2, 5))
    plain = llama.forward(ids)
    assert (llama.forward(ids, positions=np.arange(5)) == plain).all()
    assert (llama.forward(ids, positions=[[0, 1, 2, 3, 4]] * 2) == plain).all()
    # attention sees differences of positions only, but for rounding
    np.testing.assert_allclose(llama.forward(ids, positions=np.arange(9, 14)), plain, rtol=0, atol=1e-5)
    apart = llama.forward(ids, positions=[[0, 1, 2, 3, 4], [0, 2, 4, 6, 8]])
    assert (apart[0] == plain[0]).all()
    assert abs(apart[1] - llama.forward(ids[1:], positions=[0, 2, 4, 6, 8])).max() < 1e-5
    assert abs(apart[1] - plain[1]).max() > 0.01


def test_a_token_does_not_see_later_ones() -> None:
    llama, ids = model(), ids_of((1, 12))
    other = ids.copy()
    other[0, 7:] = (other[0, 7:] + 1) % 50
    a, b = llama.forward(ids), llama.forward(other)
    np.testing.assert_allclose(a[:, :7], b[:, :7], rtol=0, atol=1e-5)
    assert abs(a[:, 7:] - b[:, 7:]).min(axis=-1).max() > 0


# rotary positions


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_is_a_product_of_complex_numbers(layout: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32)
    cos, sin = rope_tables(np.arange(7) * 3, 16, 100.0)
    angles = np.arange(7)[:, None] * 3 * 100.0 ** (-np.arange(8) / 8)
    pairs = (x[..., :8], x[..., 8:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
    got = apply_rope(x, cos, sin, layout)
    real, imaginary = (got[..., :8], got[..., 8:]) if layout == "half" else (got[..., 0::2], got[..., 1::2])
    np.testing.assert_allclose(real, turned.real, rtol=0, atol=1e-5)
    np.testing.assert_allclose(imaginary, turned.imag, rtol=0, atol=1e-5)


def test_interleaved_weights_give_the_same_logits() -> None:
    """Row 2 i of an interleaved head is row i of a half head, row 2 i + 1 is row i + E / 2."""
    tensors = weights(SETTINGS)
    order = np.arange(8).reshape(2, 4).T.reshape(-1)
    moved = dict(tensors)
    for name, tensor in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            moved[name] = tensor.reshape(-1, 8, 24)[:, order].reshape(tensor.shape)
    ids, config = ids_of((2, 30)), Config.from_dict(SETTINGS)
    want = Llama(config, tensors).forward(ids)
    np.testing.assert_allclose(Llama(config, moved, rope="interleaved").forward(ids), want, rtol=0, atol=1e-5)
    for wrong in (Llama(config, tensors, rope="interleaved"), Llama(config, moved)):
        assert abs(wrong.forward(ids) - want).max() > 0.1


# the parts


def repeated_attention(q: F32, k: F32, v: F32, mask: NDArray[np.bool_], spread: Any) -> NDArray[np.float64]:
    """Attention by the formula in float64, K and V spread over the query heads."""
    G = q.shape[1] // k.shape[1]
    k64, v64 = (spread(x.astype(np.float64), G) for x in (k, v))
    scores = np.einsum("bhte,bhse->bhts", q.astype(np.float64), k64) / math.sqrt(q.shape[-1])
    p = np.exp(np.where(mask, scores, -np.inf))
    return np.einsum("bhts,bhse->bhte", p / p.sum(axis=-1, keepdims=True), v64)


@pytest.mark.parametrize(("H", "K"), [(6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_attention_equals_repeated_heads(H: int, K: int) -> None:
    rng = np.random.default_rng(2)
    q = rng.normal(size=(2, H, 4, 8)).astype(np.float32)
    k, v = (rng.normal(size=(2, K, 9, 8)).astype(np.float32) for _ in "kv")
    mask = np.arange(9) <= np.arange(5, 9)[:, None]
    got = attend(q, k, v, mask)
    assert got.dtype == np.float32
    want = repeated_attention(q, k, v, mask, lambda x, g: np.repeat(x, g, axis=1))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    if 1 < K < H:
        tiled = repeated_attention(q, k, v, mask, lambda x, g: np.tile(x, (1, g, 1, 1)))
        assert abs(got - tiled).max() > 0.1


def test_attention_is_safe_for_large_scores_and_leaves_its_arguments() -> None:
    q = np.full((1, 2, 1, 4), 300, np.float32)
    k = np.stack([np.full(4, 300), np.full(4, -300)]).astype(np.float32)[None, None]
    copies = q.copy(), k.copy()
    got = attend(q, k, k, np.array([[True, True]]))
    assert (got == 300).all()
    assert (q == copies[0]).all()
    assert (k == copies[1]).all()


def test_a_decode_step_does_not_copy_the_cache() -> None:
    """K and V are views of storage twice as long, as a preallocated cache returns them."""
    storage = np.zeros((2, 1, 2, 8192, 32), np.float32)
    k, v = storage[:, :, :, :4096]
    q = np.ones((1, 8, 1, 32), np.float32)
    mask = np.ones((1, 4096), np.bool_)
    attend(q, k, v, mask)
    tracemalloc.start()
    attend(q, k, v, mask)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scores_bytes = 8 * 4096 * 4
    assert peak_bytes < 2 * scores_bytes < k.nbytes / 2


def test_rmsnorm_and_silu_against_float64() -> None:
    x = (np.random.default_rng(3).normal(size=(5, 64)) * [[1e-3], [1], [10], [1e3], [0]]).astype(np.float32)
    weight = np.linspace(-1, 2, 64, dtype=np.float32)
    x64 = x.astype(np.float64)
    norm = x64 / np.sqrt((x64**2).mean(axis=-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(rmsnorm(x, weight, 1e-6), norm, rtol=5e-7, atol=0)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(silu(x), x64 / (1 + np.exp(-x64)), rtol=5e-7, atol=1e-37)
    assert rmsnorm(x, weight, 1e-6).dtype == silu(x).dtype == np.float32


def test_apply_rope_refuses_another_layout() -> None:
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="layout must be one of half, interleaved, got 'pairs'"):
        apply_rope(x, x[:, :2], x[:, :2], "pairs")


# linear layers by name


def test_linear_layers_by_name() -> None:
    llama = model()
    layers = llama.named_linears()
    assert len(layers) == 3 * 7 + 1
    assert next(iter(layers)) == "model.layers.0.self_attn.q_proj"
    assert list(layers)[-1] == "lm_head"
    assert all(isinstance(layer, Linear) for layer in layers.values())
    assert {name + ".weight" for name in layers} < llama.tensors().keys() == weights(SETTINGS).keys()
    layers.clear()  # a copy
    assert len(llama.named_linears()) == 22


def test_every_linear_layer_is_called_through_its_name() -> None:
    llama, ids = model(), ids_of((1, 6))
    before = llama.forward(ids)
    for name, layer in llama.named_linears().items():
        seen: list[tuple[int, ...]] = []

        def doubled(x: F32, layer: Any = layer, seen: list[tuple[int, ...]] = seen) -> F32:
            seen.append(x.shape)
            return 2 * layer(x)

        llama.set_linear(name, doubled)
        assert llama.named_linears()[name] is doubled
        assert name + ".weight" not in llama.tensors()
        assert abs(llama.forward(ids) - before).max() > 1e-3, name
        assert seen == [(6, layer.weight.shape[1])]
        llama.set_linear(name, layer)
    assert (llama.forward(ids) == before).all()
    with pytest.raises(KeyError, match="no linear layer is named"):
        llama.set_linear("model.norm", Linear(np.eye(24, dtype=np.float32)))


def test_a_tied_head_shares_the_embedding_until_it_is_replaced() -> None:
    llama, ids = model(tie_word_embeddings=True), ids_of((1, 6))
    head = llama.named_linears()["lm_head"]
    assert isinstance(head, Linear)
    assert head.weight is llama.tensors()["model.embed_tokens.weight"]
    assert "lm_head.weight" not in llama.tensors()
    before = llama.forward(ids)
    llama.set_linear("lm_head", Linear(head.weight * 2))
    np.testing.assert_allclose(llama.forward(ids), 2 * before, rtol=1e-5, atol=1e-6)


def test_the_attributes_a_cache_is_made_of() -> None:
    llama = model()
    assert (llama.n_layers, llama.n_kv_heads, llama.d_head, llama.max_len) == (3, 2, 8, 64)
    assert llama.config == Config.from_dict(SETTINGS)


# what forward refuses


@pytest.mark.parametrize(
    ("ids", "positions", "message"),
    [
        ([1, 2], None, r"ids must have shape \[B, T\] with T >= 1, got \[2\]"),
        (np.zeros((1, 0), np.int64), None, r"ids must have shape \[B, T\] with T >= 1, got \[1, 0\]"),
        ([[1.0]], None, "ids must be integers, got float64"),
        ([[1, 50]], None, r"ids must be in \[0, 50\), got 1 to 50"),
        ([[-1, 3]], None, r"ids must be in \[0, 50\), got -1 to 3"),
        ([[1, 2]], [0], r"positions must have shape \[2\] or \[1, 2\], got \[1\]"),
        ([[1, 2]], [[0, 1]] * 2, r"positions must have shape \[2\] or \[1, 2\], got \[2, 2\]"),
        ([[1, 2]], [63, 64], r"positions must be in \[0, 64\), got 63 to 64"),
        ([[1, 2]], [-1, 0], r"positions must be in \[0, 64\), got -1 to 0"),
        ([[1, 2]], [0.0, 1.0], "positions must be integers, got float64"),
        ([[1] * 65], None, r"positions must be in \[0, 64\), got 0 to 64"),
    ],
)
def test_refused_arguments(ids: Any, positions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model().forward(ids, positions=positions)


def test_a_mask_of_other_rows_is_refused() -> None:
    class Wrong(PlainCache):
        def mask(self, t_new: int) -> NDArray[np.bool_]:
            return super().mask(t_new)[1:]

    cache = Wrong(3)
    with pytest.raises(ValueError, match=r"the cache's mask must have 2 rows, got shape \[1, 2\]"):
        model().forward([[1, 2]], cache=cache)
    assert cache.calls == []


# config and weights


def test_absent_settings_have_the_defaults_of_transformers() -> None:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = Config.from_dict({name: SETTINGS[name] for name in names})
    assert dataclasses.astuple(config)[5:] == (6, 4, 2048, 1e-6, 10000.0, False)
    assert Config.from_dict(SETTINGS | {"head_dim": None, "num_key_value_heads": None}).head_dim == 4
    transformers = pytest.importorskip("transformers")
    peer = transformers.LlamaConfig(**{name: SETTINGS[name] for name in names})
    mine = dataclasses.asdict(config)
    theta = mine.pop("rope_theta")
    assert mine == {name: getattr(peer, name) for name in mine}
    assert theta == peer.rope_parameters["rope_theta"]


def test_both_spellings_of_the_rotary_base() -> None:
    bare = {name: value for name, value in SETTINGS.items() if name != "rope_theta"}
    table = {"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}}
    assert Config.from_dict(bare | table).rope_theta == 77.0
    assert Config.from_dict(bare | {"rope_theta": 78.0, "rope_scaling": None}).rope_theta == 78.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be an int of at least 1, got None"),
        ({"num_attention_heads": None}, "num_attention_heads must be an int of at least 1, got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an int of at least 1, got 0"),
        ({"hidden_size": "24"}, "hidden_size must be an int of at least 1, got '24'"),
        ({"intermediate_size": True}, "intermediate_size must be an int of at least 1, got True"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number above 0, got 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps must be a number above 0, got True"),
        ({"rope_theta": math.nan}, "rope_theta must be a number above 0, got nan"),
        ({"rope_theta": "1e4"}, "rope_theta must be a number above 0, got '1e4'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ({"num_key_value_heads": 4}, "6 query heads are no multiple of 4 KV heads"),
        ({"head_dim": 7}, "head_dim must be even and above 0, got 7"),
        ({"head_dim": None, "hidden_size": 5}, "head_dim must be even and above 0, got 0"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "scaled rotary frequencies are not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "scaled rotary frequencies are not supported"),
        ({"rope_parameters": [1]}, r"scaled rotary frequencies are not supported, got \[1\]"),
    ],
)
def test_refused_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="config: .*" + message):
        Config.from_dict(SETTINGS | changes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.norm.weight", None, "tensor model.norm.weight is missing"),
        ("lm_head.weight", None, "tensor lm_head.weight is missing"),
        ("model.layers.2.mlp.up_proj.weight", None, r"tensor model.layers.2.mlp.up_proj.weight is missing"),
        ("model.norm.weight", np.ones(23), r"must have shape \(24,\), got \(23,\)"),
        ("model.norm.weight", np.ones(24, np.int64), "must be of floats, got int64"),
        ("model.layers.0.self_attn.q_norm.weight", np.ones(8), "q_norm.weight is unknown to a Llama"),
        ("model.layers.3.mlp.up_proj.weight", np.ones((40, 24)), "up_proj.weight is unknown to a Llama"),
    ],
)
def test_refused_weights(name: str, value: Any, message: str) -> None:
    tensors: dict[str, Any] = weights(SETTINGS) | {name: value}
    if value is None:
        del tensors[name]
    with pytest.raises(ValueError, match=message):
        Llama(Config.from_dict(SETTINGS), tensors)


def test_accepted_weights() -> None:
    tensors = weights(SETTINGS)
    config = Config.from_dict(SETTINGS)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}  # old checkpoints have it
    llama = Llama(config, {name: t.astype(np.float64) for name, t in tensors.items()} | extra)
    assert (llama.forward([[3]]) == Llama(config, tensors).forward([[3]])).all()
    tied = Config.from_dict(SETTINGS | {"tie_word_embeddings": True})
    assert "lm_head.weight" not in Llama(tied, tensors).tensors()
    with pytest.raises(ValueError, match="rope must be one of half, interleaved, got 'neox'"):
        Llama(config, tensors, rope="neox")


def test_load(tmp_path: Path) -> None:
    tensors = weights(SETTINGS, bias=True)
    loaded = load(save(tmp_path, SETTINGS, tensors))
    assert loaded.tensors().keys() == tensors.keys()
    assert all((loaded.tensors()[name] == tensors[name]).all() for name in tensors)
    assert loaded.rope == "half"
    assert load(str(tmp_path), rope="interleaved").rope == "interleaved"
    for text, message in (("{", "config: not JSON"), ("[]", "config: must be a JSON object, got list")):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


# safetensors


def test_safetensors_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    rng = np.random.default_rng(0)
    kinds = ("f4", "f2", "f8", "u1", "i1", "i2", "i4", "i8")
    tensors = {f"{kind} é": (rng.normal(size=(3, 5)) * 50).astype(kind) for kind in kinds}
    tensors |= {"none": np.zeros((0, 4), np.float32), "one": np.array(2.5, np.float32)}
    tensors["turned"] = np.asfortranarray(rng.normal(size=(4, 6)))
    tensors["big"] = np.arange(4, dtype=">f4")
    write_safetensors(path, tensors, {"format": "pt", "ü": "\n"})
    got, metadata = read_safetensors(path)
    assert metadata == {"format": "pt", "ü": "\n"}
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert got[name].shape == tensor.shape
        assert got[name].dtype == tensor.dtype.newbyteorder("=")
        assert (got[name] == tensor).all()
        got[name][...] = 0  # it can be written to
    written = path.read_bytes()
    write_safetensors(path, dict(reversed(tensors.items())), {"format": "pt", "ü": "\n"})
    assert path.read_bytes() == written
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    write_safetensors(path, {})
    assert read_safetensors(path) == ({}, {})


def test_bfloat16_is_the_high_half_of_a_float32(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC020, 0x7F80, 0x0001, 0x8000], np.uint16)
    path = tmp_path / "b.safetensors"
    path.write_bytes(file_of({"b": entry("BF16", [5], 0, 10)}, bits.tobytes()))
    got = read_safetensors(path)[0]["b"]
    assert got.dtype == np.float32
    assert got.tolist() == [1.0, -2.5, math.inf, 2.0**-133, -0.0]


def test_safetensors_of_its_own_library(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64)
    tensors = {f"t{n}": (torch.randn(7, 3) * 9).to(kind) for n, kind in enumerate(kinds)}
    library.save_file(tensors, tmp_path / "a.safetensors", {"k": "v"})
    got, metadata = read_safetensors(tmp_path / "a.safetensors")
    assert metadata == {"k": "v"}
    for name, tensor in tensors.items():
        assert (got[name] == tensor.double().numpy()).all()
    write_safetensors(tmp_path / "b.safetensors", got, metadata)
    back = library.load_file(tmp_path / "b.safetensors")
    assert all((back[name].double() == tensor.double()).all() for name, tensor in tensors.items())


def test_refused_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match="tensor 'c' has dtype complex128, which is not written here"):
        write_safetensors(path, {"c": np.zeros(1, np.complex128)})
    with pytest.raises(ValueError, match="a tensor cannot be named '__metadata__'"):
        write_safetensors(path, {"__metadata__": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        read_safetensors(path)


def entry(dtype: Any, shape: Any, start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def file_of(header: Any, data: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


GOOD = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a header length takes 8 bytes, the file has 0"),
        (b"1234567", "a header length takes 8 bytes, the file has 7"),
        ((99).to_bytes(8, "little") + b"{}", "a header of 99 bytes does not fit a file of 10"),
        (b"\xff" * 8, "a header of 18446744073709551615 bytes does not fit a file of 8"),
        (file_of(b""), "the header is not JSON"),
        (file_of(b"{]"), "the header is not JSON"),
        (file_of(b'{"\xff": 1}'), "the header is not JSON"),
        (file_of(b"[" * 100_000), "the header is not JSON"),
        (file_of([]), "the header is not a JSON object"),
        (file_of({"__metadata__": {"a": 1}}), "__metadata__ must map names to text"),
        (file_of({"__metadata__": "a"}), "__metadata__ must map names to text"),
        (file_of(b'{"a": 1, "a": 2}'), "the header has 'a' twice"),
        (file_of({"a": 1}), "tensor 'a' must have dtype, shape and data_offsets, no more"),
        (file_of({"a": GOOD | {"strides": []}}, bytes(8)), "must have dtype, shape and data_offsets"),
        (file_of({"a": entry("F4", [2], 0, 1)}, bytes(1)), "tensor 'a' has dtype 'F4', which is not read"),
        (file_of({"a": entry(["F32"], [2], 0, 8)}, bytes(8)), "which is not read here"),
        (file_of({"a": entry("F32", [-2], 0, 8)}, bytes(8)), r"tensor 'a' has shape \[-2\]"),
        (file_of({"a": entry("F32", [True], 0, 4)}, bytes(4)), r"tensor 'a' has shape \[True\]"),
        (file_of({"a": entry("F32", 2, 0, 8)}, bytes(8)), "tensor 'a' has shape 2"),
        (file_of({"a": entry("F32", [2.0], 0, 8)}, bytes(8)), r"tensor 'a' has shape \[2.0\]"),
        (file_of({"a": entry("F32", [2], 8, 0)}, bytes(8)), r"tensor 'a' has data_offsets \[8, 0\]"),
        (file_of({"a": entry("F32", [2], -8, 0)}, bytes(8)), r"tensor 'a' has data_offsets \[-8, 0\]"),
        (file_of({"a": GOOD | {"data_offsets": [0]}}, bytes(8)), r"tensor 'a' has data_offsets \[0\]"),
        (file_of({"a": entry("F32", [3], 0, 8)}, bytes(8)), r"takes 12 bytes, its data_offsets are \[0, 8\]"),
        (file_of({"a": entry("BF16", [2], 0, 8)}, bytes(8)), "tensor 'a' takes 4 bytes"),
        (file_of({"a": entry("U8", [1 << 40, 1 << 40], 0, 8)}, bytes(8)), f"'a' takes {1 << 80} bytes"),
        (file_of({"a": GOOD}, bytes(7)), "tensor 'a' ends at 8, the data at 7"),
        (file_of({"a": GOOD}, bytes(9)), "the tensors end at 8, the data at 9"),
        (file_of({"a": entry("F32", [1], 4, 8)}, bytes(8)), "'a' begins at 4, the one before it ends at 0"),
        (file_of({"a": GOOD, "b": GOOD}, bytes(8)), "tensor 'b' begins at 0, the one before it ends at 8"),
        (file_of({"a": GOOD, "b": entry("F32", [1], 4, 8)}, bytes(8)), "tensor 'b' begins at 4"),
        (file_of({"a": GOOD, "b": entry("F32", [1], 12, 16)}, bytes(16)), "tensor 'b' begins at 12"),
    ],
)  # fmt: skip
def test_malformed_safetensors(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever bytes are there, no other error than ValueError."""
    path, rng = tmp_path / "a.safetensors", np.random.default_rng(5)
    write_safetensors(path, {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float16)}, {"k": "v"})
    good = path.read_bytes()
    refused = 0
    for _ in range(400):
        bad = bytearray(good)
        for at in rng.integers(len(good) - 30, size=rng.integers(1, 4)):
            bad[at] = rng.integers(256)
        path.write_bytes(bad[: rng.integers(len(bad) - 20, len(bad) + 1)])
        try:
            read_safetensors(path)
        except ValueError:
            refused += 1
    assert 300 < refused <= 400


# the shipped model


def test_the_shipped_files_are_small_and_complete() -> None:
    sizes = {path.name: path.stat().st_size for path in TINY.iterdir()}
    assert sizes.keys() == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "heldout.txt",
        "greedy.json",
    }
    assert sum(sizes.values()) <= 4 << 20
    assert 20_000 <= sizes["heldout.txt"] <= 28_000
    llama, tok = load(TINY), Tokenizer.load(TINY / "tokenizer.json")
    assert sum(tensor.size for tensor in llama.tensors().values()) <= 1_000_000
    assert llama.config.vocab_size == len(tok.vocab)
    assert llama.config.tie_word_embeddings


def test_the_recorded_greedy_continuations() -> None:
    llama, tok = load(TINY), Tokenizer.load(TINY / "tokenizer.json")
    record = json.loads((TINY / "greedy.json").read_text(encoding="utf-8"))
    assert [len(case["ids"]) for case in record["cases"]] == [32, 32, 32, 32, 256]
    heldout = (TINY / "heldout.txt").read_text(encoding="utf-8")
    for case in record["cases"]:
        assert case["prompt"] in heldout
        assert tok.encode(case["prompt"]) == case["prompt_ids"]
        assert case["margin"] >= 1e-3
        cache, made, new = PlainCache(llama.n_layers), [], case["prompt_ids"]
        while len(made) < len(case["ids"]):
            logits = llama.forward([new], cache=cache)[0, -1]
            new = [int(logits.argmax())]
            made += new
        assert made == case["ids"]


def test_the_held_out_loss_is_the_one_in_the_readme() -> None:
    """Windows of 512 that overlap by half, each token scored once but the first."""
    llama, tok = load(TINY), Tokenizer.load(TINY / "tokenizer.json")
    text = (TINY / "heldout.txt").read_text(encoding="utf-8")
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    total, scored = 0.0, 0
    for start in range(0, len(ids) - 1, 256):
        window = np.array(ids[start : start + 513])
        fresh = len(window) - 1 - (256 if start else 0)
        if fresh <= 0:
            break
        logits = llama.forward(window[None, :-1])[0].astype(np.float64)
        lse = logits.max(axis=-1) + np.log(np.exp(logits - logits.max(axis=-1, keepdims=True)).sum(axis=-1))
        losses = lse - logits[np.arange(len(window) - 1), window[1:]]
        total += losses[-fresh:].sum()
        scored += fresh
    assert scored == len(ids) - 1
    readme = (TINY.parent / "README.md").read_text(encoding="utf-8")
    said = re.search(r"(\d\.\d{4}) nats a token, (\d\.\d{4}) bits a byte", readme)
    assert said is not None
    n_bytes = len(text.encode()) - len(tok.vocab[ids[0]])
    got = (total / scored, total / math.log(2) / n_bytes)
    assert got == pytest.approx([float(number) for number in said.groups()], abs=1e-4)
