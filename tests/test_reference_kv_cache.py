"""The reference of `kv_cache`: the spec's numbers, the equivalents' answers, and what no fixture sees."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import generate as reference_generate
from impl import kv_cache as reference_cache
from impl.sampling import SamplingParams, request_rng, sample, sampled_entropy

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "fixtures" / "kv_cache" / "equivalents"


def load(folder: Path) -> SimpleNamespace:
    """An equivalent: its generate takes its own cache for impl.kv_cache."""
    cache = import_file(folder / "kv_cache.py", f"kv_cache_{folder.name}")
    own = sys.modules["impl.kv_cache"]
    sys.modules["impl.kv_cache"] = cache
    try:
        loop = import_file(folder / "generate.py", f"generate_{folder.name}")
    finally:
        sys.modules["impl.kv_cache"] = own
    return pair(folder.name, cache, loop)


def pair(name: str, cache: ModuleType, loop: ModuleType) -> SimpleNamespace:
    names = ("IncrementalDecoder", "cache_dims", "generate", "Generation")
    return SimpleNamespace(
        name=name,
        KVCache=cache.KVCache,
        LatentCache=cache.LatentCache,
        **{name: getattr(loop, name) for name in names},
    )


REFERENCE = pair("reference", reference_cache, reference_generate)
EQUIVALENTS = [load(folder) for folder in sorted(FOLDER.iterdir()) if (folder / "generate.py").exists()]


@pytest.fixture(params=[REFERENCE, *EQUIVALENTS], ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest) -> Any:
    return request.param


class Bytes:
    """Ids 0 to 255 are bytes, 256 and up the given strings of bytes."""

    def __init__(self, *more: bytes) -> None:
        self.pieces = [bytes([i]) for i in range(256)] + list(more)
        self.decoded = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode(errors="surrogateescape"))

    def decode(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")


class Words(Bytes):
    """Drops the one space at the start, as tokenizers with a word-start mark do."""

    def decode(self, ids: list[int]) -> str:
        return super().decode(ids).removeprefix(" ")


class Attention:
    """Two layers with two heads, random weights, and attention over what the cache gives back."""

    n_layers, n_kv_heads, d_head = 2, 2, 4

    def __init__(self, vocab: int = 64, max_len: int = 48, seed: int = 0, wrapped: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.max_len, self.wrapped = max_len, wrapped
        self.embed = rng.normal(size=(vocab, 8)).astype(np.float32)
        self.place = rng.normal(size=(max_len, 8)).astype(np.float32)
        self.w = (rng.normal(size=(2, 4, 8, 8)) / 3).astype(np.float32)
        self.calls: list[tuple[list[int], list[int]]] = []

    def forward(self, ids: Any, positions: Any = None, cache: Any = None) -> Any:
        T = ids.shape[1]
        if positions is None:
            positions = np.arange(T) if cache is None else cache.positions(T)
        mask = np.tri(T, dtype=bool) if cache is None else cache.mask(T)
        self.calls.append((ids[0].tolist(), positions.tolist()))
        x = self.embed[ids[0]] + self.place[positions]
        for layer, (wq, wk, wv, wo) in enumerate(self.w):
            q, k, v = ((x @ w).reshape(1, T, 2, 4).swapaxes(1, 2) for w in (wq, wk, wv))
            if cache is not None:
                k, v = cache.update(layer, k, v)
                assert k.dtype == v.dtype == np.float32
            s = np.where(mask, q @ k.swapaxes(-1, -2) / 2, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            a = (e / e.sum(-1, keepdims=True)) @ v
            x = x + a.swapaxes(1, 2).reshape(T, 8) @ wo
        logits = (x @ self.embed.T)[None]
        return SimpleNamespace(data=logits) if self.wrapped else logits


class Script:
    """Says the given ids one after the other, whatever it is fed; never looks at a cache but fills it."""

    n_layers, n_kv_heads, d_head = 1, 1, 1

    def __init__(self, ids: list[int], vocab: int = 300, max_len: int = 64) -> None:
        self.ids, self.vocab, self.max_len, self.said = ids, vocab, max_len, 0

    def forward(self, ids: Any, positions: Any = None, cache: Any = None) -> Any:
        del positions
        T = ids.shape[1]
        if cache is not None:
            cache.update(0, np.zeros((1, 1, T, 1), np.float32), np.zeros((1, 1, T, 1), np.float32))
        logits = np.zeros((1, T, self.vocab), np.float32)
        logits[0, -1, self.ids[self.said % len(self.ids)]] = 9.0
        self.said += 1
        return logits


# the spec's own numbers


def test_worked_example(unit: Any) -> None:
    cache = unit.KVCache(1, 1, 2, 4)
    assert cache.nbytes() == 64 and cache.seq_len() == 0

    def rows(*numbers: float) -> Any:
        return np.array(numbers, np.float32).reshape(1, 1, -1, 2)

    assert cache.positions(2).tolist() == [0, 1] and cache.mask(2).tolist() == [[True, False], [True, True]]
    k, v = cache.update(0, rows(1, 2, 3, 4), rows(5, 6, 7, 8))
    assert k.tolist() == rows(1, 2, 3, 4).tolist() and v.tolist() == rows(5, 6, 7, 8).tolist()
    assert cache.positions(1).tolist() == [2] and cache.mask(1).tolist() == [[True] * 3]
    assert cache.mask(2).tolist() == [[True] * 3 + [False], [True] * 4]
    k, v = cache.update(0, rows(9, 10), rows(11, 12))
    assert k.tolist() == rows(1, 2, 3, 4, 9, 10).tolist() and v.ravel().tolist() == [5, 6, 7, 8, 11, 12]
    with pytest.raises(ValueError):
        cache.update(0, rows(1, 1, 1, 1), rows(1, 1, 1, 1))
    assert cache.seq_len() == 3
    cache.update(0, rows(13, 14), rows(15, 16))
    assert cache.seq_len() == 4
    cache.truncate(1)
    k, v = cache.update(0, rows(17, 18), rows(19, 20))
    assert k.ravel().tolist() == [1, 2, 17, 18] and v.ravel().tolist() == [5, 6, 19, 20]


@pytest.mark.parametrize(
    ("ids", "pieces", "rest"),
    [
        (b"\xc3\xa9x", ["", "é", "x"], ""),
        ("\U0001f96e".encode(), ["", "", "", "\U0001f96e"], ""),
        (b"A\xf0\x9f", ["A", "", ""], "\ufffd"),
        (b"\x85B", ["", "\ufffdB"], ""),
    ],
)
def test_decoder_examples(unit: Any, ids: bytes, pieces: list[str], rest: str) -> None:
    decoder = unit.IncrementalDecoder(Bytes())
    for _ in range(2):  # a flush starts afresh
        assert [decoder.push(i) for i in ids] == pieces
        assert [decoder.flush(), decoder.flush()] == [rest, ""]


@pytest.mark.parametrize(
    ("output", "max_tokens", "told", "text", "reason"),
    [
        ([b"a", b"E", b"ND"], 9, ["a"], "a", "stop"),
        ([b"a", b"E", b"N", b"X"], 4, ["a", "ENX"], "aENX", "length"),
        ([b"a", b"EN", b"<eos>"], 9, ["a", "EN"], "aEN", "stop"),
    ],
)
def test_streaming_examples(
    unit: Any, output: list[bytes], max_tokens: int, told: list[str], text: str, reason: str
) -> None:
    p = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop=["END"])
    script = Script([256 + i for i in range(len(output))])
    got: list[str] = []
    eos = [256 + i for i, piece in enumerate(output) if piece == b"<eos>"]
    result = unit.generate(script, Bytes(*output), "hi", p, on_text=got.append, eos_ids=eos)
    assert (got, result.text, result.finish_reason) == (told, text, reason)


def test_calls_of_the_model(unit: Any) -> None:
    model, cache = Attention(128), unit.KVCache(2, 2, 4, 48)
    result = unit.generate(model, Bytes(), "abc", SamplingParams(max_tokens=3), cache=cache)
    assert [ids for ids, _ in model.calls] == [list(b"abc"), result.ids[:1], result.ids[1:2]]
    assert [positions for _, positions in model.calls] == [[0, 1, 2], [3], [4]]
    assert cache.seq_len() == 5


# the caches against a naive twin


def twin_run(unit: Any, latent: bool, seed: int) -> Iterator[tuple[Any, Any]]:
    """Random appends, refusals and cuts on a cache, beside plain lists of float64 rows."""
    r = np.random.default_rng(seed)
    L, B, cap = 3, 2, 12
    dtype = [np.float16, np.float32, np.float64][seed % 3]
    lead, widths = ((B,), (3, 2)) if latent else ((B, 2), (3, 3))
    cache = unit.LatentCache(L, 3, 2, cap, B, dtype) if latent else unit.KVCache(L, 2, 3, cap, B, dtype)
    held: list[list[Any]] = [[] for _ in range(L)]
    for _ in range(60):
        layer, T = int(r.integers(L)), int(r.integers(1, 6))
        chunks = [
            r.normal(size=(*lead, T, w)).astype([np.float32, np.float16][r.integers(2)]) for w in widths
        ]
        fits = len(held[layer]) + T <= cap
        if r.random() < 0.15:
            n = int(r.integers(0, min(map(len, held)) + 1))
            cache.truncate(n)
            held = [rows[:n] for rows in held]
        elif not fits:
            with pytest.raises(ValueError):
                cache.update(layer, *chunks)
        else:
            got = cache.update(layer, *chunks)
            held[layer] += [[c[..., t, :].astype(dtype).astype(np.float32) for c in chunks] for t in range(T)]
            for part, answer in enumerate(got):
                assert answer.dtype == np.float32
                yield answer.copy(), np.stack([row[part] for row in held[layer]], -2)
            for chunk in chunks:
                chunk[...] = 77.0
        low = min(map(len, held))
        yield [cache.seq_len(i) for i in range(L)] + [cache.seq_len()], [*map(len, held), low]
        yield cache.mask(T), np.arange(low + T)[None] <= np.arange(low, low + T)[:, None]
        yield cache.positions(T), np.arange(low, low + T)


def test_caches_against_lists(unit: Any) -> None:
    for seed in range(12):
        for got, want in twin_run(unit, seed % 2 == 0, seed):
            np.testing.assert_array_equal(got, want)


def test_storage_is_allocated_once() -> None:
    """An append of a long context writes its own rows only, and a float32 cache gives views."""
    cache = reference_cache.KVCache(1, 2, 4, 64)
    keys, _ = cache.update(0, np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3, 4), np.float32))
    more, _ = cache.update(0, np.full((1, 2, 1, 4), 2, np.float32), np.ones((1, 2, 1, 4), np.float32))
    assert np.shares_memory(keys, more) and more.shape == (1, 2, 4, 4)
    assert cache.nbytes() == 2 * 2 * 64 * 4 * 4


# the decoder against one decode


def random_ids(r: Any, n_more: int) -> list[int]:
    """Ids of bytes: characters of one to four bytes, cut and mixed with bytes that are no UTF-8."""
    ids: list[int] = []
    for _ in range(int(r.integers(1, 12))):
        kind = r.integers(5)
        if kind == 0:
            ids.append(256 + int(r.integers(n_more)))
        elif kind == 1:
            ids += [int(i) for i in r.integers(0x70, 0x100, r.integers(1, 5))]
        else:
            encoded = "aé中\U0001f96e \ufffd"[r.integers(6)].encode()
            ids += encoded[: r.integers(1, len(encoded) + 1)] if kind == 2 else encoded
    return ids


def test_pieces_add_up(unit: Any) -> None:
    more = (b" ", b" I", b" am", b"", "é ".encode(), b"\x9f\xa5", b"\xf0\x9f", b"a\xe4", b"\xb8")
    for seed in range(300):
        r = np.random.default_rng(seed)
        tok: Any = (Bytes if seed % 2 else Words)(*more)
        ids = random_ids(r, len(more))
        decoder = unit.IncrementalDecoder(tok)
        given = ""
        for n, i in enumerate(ids, 1):
            piece = decoder.push(i)
            given += piece
            whole = tok.decode(ids[:n])
            assert given == whole if not whole.endswith("\ufffd") else piece == ""
        assert given + decoder.flush() == tok.decode(ids)


def test_decoder_reads_a_window() -> None:
    """4000 ids cost a few decodes each; one decode of everything at every push would be 8 million ids."""
    tok = Bytes()
    decoder = reference_generate.IncrementalDecoder(tok)
    text = "a é 中 \U0001f96e" * 250
    assert "".join(decoder.push(i) for i in text.encode()) == text
    assert tok.decoded <= 8 * len(text.encode())


# the loop against a naive twin


def naive(model: Any, tok: Any, prompt: str, p: SamplingParams, eos: Any = ()) -> tuple[Any, ...]:
    """Everything recomputed from the ids at every step; the pieces that may be told, at every step."""
    given, ids, logprobs, entropies = tok.encode(prompt), [], [], []
    rng, told, cut, reason = request_rng(p.seed or 0), [0], None, "length"

    def found(text: str) -> int | None:
        return min((text.index(stop) for stop in p.stop if stop in text), default=None)

    while cut is None and len(ids) < p.max_tokens and len(given) + len(ids) < model.max_len:
        logits = model.forward(np.array([given + ids]))
        row = (logits if isinstance(logits, np.ndarray) else logits.data)[0, -1]
        token, logprob = sample(row, p, ids, rng, given)
        if token in eos:
            reason = "stop"
            break
        entropies.append(sampled_entropy(row, p, ids, given))
        ids.append(token)
        logprobs.append(logprob)
        text = tok.decode(ids)
        if text.endswith("\ufffd"):
            continue
        cut = found(text)
        partial = [n for stop in p.stop for n in range(1, len(stop)) if text.endswith(stop[:n])]
        told.append(len(text) - max(partial, default=0) if cut is None else cut)
    text = tok.decode(ids)
    cut = found(text)
    if cut is not None:
        text, reason = text[:cut], "stop"
    ends = [*told, len(text)]
    pieces = [text[a:b] for a, b in pairwise(ends) if b > a]
    return text, ids, logprobs, entropies, reason, pieces


@pytest.mark.parametrize("cache", ["contiguous", "none", "own", "wrapped"])
def test_loop_against_recomputation(unit: Any, cache: str) -> None:
    stops = [[], ["ab", "bc"], ["aab", "\ufffd"], ["abca", "é", "cab"]]
    tok = Bytes()
    tok.pieces = [b"a", b"b", b"c", b"ab", b"bca", "é".encode(), b"\xc3", b"\xa9", b"\xf0\x9f"]
    tok.encode = lambda text: [ord(c) % 9 for c in text]  # type: ignore[method-assign]
    for seed in range(12):
        p = SamplingParams(
            temperature=1.5, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.2,
            seed=seed or None, max_tokens=4 + seed, stop=stops[seed % 4],
        )  # fmt: skip
        model = Attention(9, 18, seed, wrapped=cache == "wrapped")
        eos = {8} if seed % 3 == 0 else ()
        prompt = "xyzw"[: 1 + seed % 4]
        text, ids, logprobs, entropies, reason, pieces = naive(model, tok, prompt, p, eos)
        got: list[str] = []
        kv = unit.KVCache(2, 2, 4, 18) if cache == "own" else "none" if cache == "none" else "contiguous"
        result = unit.generate(model, tok, prompt, p, cache=kv, on_text=got.append, eos_ids=eos)
        assert (result.text, result.ids, result.finish_reason, got) == (text, ids, reason, pieces)
        np.testing.assert_allclose(result.logprobs, logprobs, atol=1e-4)
        assert result.stats["mean_entropy"] == pytest.approx(np.mean(entropies) if entropies else 0, rel=1e-3)
        assert result.stats["completion_tokens"] == len(ids) and result.stats["prompt_tokens"] == len(prompt)
        assert {type(x) for x in result.ids} <= {int} and {type(x) for x in result.logprobs} <= {float}
        assert set(result.timings) == {"prefill_s", "decode_s", "total_s"}


def test_limits_of_the_loop(unit: Any) -> None:
    """The context ends at max_len ids; the prompt's last bytes are no part of the text; a stop lets go."""
    tok = Bytes(b"E", b"EN", b"D.")
    p = SamplingParams(temperature=0.0, max_tokens=9, stop=["END"])
    result = unit.generate(Script([65], max_len=7), tok, "abc", p)
    assert (result.text, result.finish_reason) == ("AAAA", "length")
    result = unit.generate(Script([0x9F, 65, 0], max_len=7), tok, "\udcf0", p, eos_ids=[1, 0])
    assert (result.text, result.stats["completion_tokens"]) == ("\ufffdA", 2)
    got: list[str] = []
    result = unit.generate(Script([256, 257, 258]), tok, "abc", p, on_text=got.append)
    assert (result.text, result.ids, got) == ("E", [256, 257, 258], ["E"])
    got.clear()
    tok = Bytes(b"aE", b"ND", b"D")
    p = SamplingParams(temperature=0.0, max_tokens=9, stop=["END", "EX"])
    result = unit.generate(Script([256, 257]), tok, "abc", p, on_text=got.append)
    assert (result.text, result.ids, got) == ("a", [256, 257], ["a"])


def test_float16_stays_close(unit: Any) -> None:
    p = SamplingParams(temperature=0.0, max_tokens=12)
    model, tok = Attention(128), Bytes()
    whole, half = (unit.generate(model, tok, "abc", p, kv_dtype=t) for t in (np.float32, np.float16))
    assert whole.ids == half.ids
    assert 0 < max(abs(a - b) for a, b in zip(whole.logprobs, half.logprobs, strict=True)) < 2e-2


def test_sampling_sees_a_long_prompt_once() -> None:
    """A decode step after 8000 prompt ids must not cost many times one after 8."""

    def seconds_a_step(n: int) -> float:
        stamps: list[float] = []
        script = Script(list(b"abc"), max_len=10000)
        forward = script.forward

        def timed(*args: Any, **kwargs: Any) -> Any:
            stamps.append(perf_counter())
            return forward(*args, **kwargs)

        script.forward = timed  # type: ignore[method-assign]
        reference_generate.generate(script, Bytes(), "x" * n, SamplingParams(max_tokens=40))
        return float(np.median(np.diff(stamps[1:])))

    seconds_a_step(8)
    assert min(seconds_a_step(8000) for _ in range(3)) < 4 * min(seconds_a_step(8) for _ in range(3))


# refusals, and what the pages promise of names


def test_refusals_come_before_the_model(unit: Any) -> None:
    full = unit.KVCache(1, 1, 1, 8)
    full.update(0, np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32))
    greedy = SamplingParams(temperature=0.0, max_tokens=2)
    for prompt, p, cache in (
        ("", greedy, "contiguous"),
        ("x" * 9, greedy, "contiguous"),
        ("x", SamplingParams(max_tokens=0), "contiguous"),
        ("x", greedy, "paged"),
        ("x", greedy, full),
        ("x", greedy, None),
        ("x", greedy, SimpleNamespace(update=print, seq_len=int, positions=print)),
    ):
        script = Script([65], max_len=8)
        with pytest.raises(ValueError):
            unit.generate(script, Bytes(), prompt, p, cache=cache)
        assert script.said == 0
    result = unit.generate(Script([65], max_len=8), Bytes(), "x" * 8, greedy)
    assert (result.ids, result.text, result.finish_reason) == ([], "", "length")
    assert result.stats["mean_entropy"] == result.stats["tokens_per_s"] == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.KVCache(1, 0, 1, 1), "every size must be at least 1"),
        (lambda m: m.LatentCache(1, 1, 1, 1, 0), "every size must be at least 1"),
        (lambda m: m.KVCache(1, 1, 1, 1, dtype=np.int8), "dtype must be floating, got int8"),
        (lambda m: m.KVCache(2, 1, 1, 1).seq_len(2), r"layer must be in \[0, 2\), got 2"),
        (lambda m: m.KVCache(1, 1, 1, 1).update(-1, np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))), "layer"),
        (lambda m: m.KVCache(1, 1, 2, 1).update(0, np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1, 1))), "shape"),
        (lambda m: m.KVCache(1, 1, 1, 1).update(0, np.zeros(1), np.zeros(1)), "shape"),
        (lambda m: m.KVCache(1, 1, 1, 1).update(0, *[np.zeros((1, 1, 0, 1))] * 2), "at least one position"),
        (lambda m: m.KVCache(1, 1, 1, 1).update(0, *[np.zeros((1, 1, 2, 1))] * 2), "no room for 2 more"),
        (lambda m: m.KVCache(1, 1, 1, 1).mask(0), "t_new must be at least 1, got 0"),
        (lambda m: m.KVCache(1, 1, 1, 1).positions(-1), "t_new must be at least 1, got -1"),
        (lambda m: m.KVCache(1, 1, 1, 1).truncate(1), r"n must be in \[0, 0\], got 1"),
        (lambda m: m.cache_dims(SimpleNamespace(n_layers=1)), "the model has neither"),
    ],
)
def test_messages(unit: Any, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message if unit is REFERENCE else None):
        make(unit)


def test_dims(unit: Any) -> None:
    hf = {"num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 3, "max_position_embeddings": 4}
    config = SimpleNamespace(**hf)
    part = SimpleNamespace(num_hidden_layers=9)
    own = {"n_layers": 5, "n_kv_heads": 6, "d_head": 7, "max_len": 8}
    assert unit.cache_dims(SimpleNamespace(**own, config=config)) == (5, 6, 7, 8)
    assert unit.cache_dims(SimpleNamespace(n_layers=5, config=config)) == (1, 2, 3, 4)
    assert unit.cache_dims(SimpleNamespace(config=part, cfg=config)) == (1, 2, 3, 4)


def test_names_and_parameters_are_the_same_everywhere(unit: Any) -> None:
    want = {
        unit.KVCache: "n_layers n_kv_heads d_head max_len batch dtype",
        unit.LatentCache: "n_layers kv_lora_rank rope_dim max_len batch dtype",
        unit.KVCache.update: "self layer k_new v_new",
        unit.LatentCache.update: "self layer c_new k_rope_new",
        unit.IncrementalDecoder: "tok",
        unit.IncrementalDecoder.push: "self token_id",
        unit.cache_dims: "model",
        unit.Generation: "text ids logprobs timings stats finish_reason",
        unit.generate: "model tok prompt p cache kv_dtype on_text eos_ids",
    }
    for owner in (unit.KVCache, unit.LatentCache):
        want |= {owner.seq_len: "self layer", owner.positions: "self t_new", owner.mask: "self t_new"}
        want |= {owner.truncate: "self n", owner.nbytes: "self"}
    for f, names in want.items():
        assert list(inspect.signature(f).parameters) == names.split(), f


def test_three_equivalents() -> None:
    assert len(EQUIVALENTS) >= 3
