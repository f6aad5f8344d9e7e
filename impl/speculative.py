"""Speculative decoding: a cheap draft guesses k ids, and one pass of the target judges them all.

    fed:      pending   x0      x1   ...   x(m-1)
                |       |       |            |
    logits:   row 0    row 1   row 2 ...   row m
    judges:    x0       x1      x2          the extra id

Spec    spec/speculative.md
Source  Leviathan, Kalman & Matias 2023, arXiv:2211.17192, sections 2.1 to 2.3;
        Saxena 2023, apoorvumang/prompt-lookup-decoding
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from impl.categorical import UniformSource
from impl.generate import Generation, IncrementalDecoder, cache_dims
from impl.kv_cache import KVCache
from impl.rejection import speculative_step
from impl.sampling import SamplingParams, request_rng, sample, sampling_distribution, token_logprobs

F64 = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # float16, float32 or float64
Ids = Sequence[int] | NDArray[np.integer[Any]]
Proposal = tuple[list[int], F64 | None]


class DraftModel(Protocol):
    """Anything that guesses what follows; the three classes below are some."""

    def propose(self, ctx: list[int], k: int, rng: UniformSource | None) -> Proposal:
        """Return at most k ids, and the rows that they were drawn from, None where none was drawn."""


class PromptLookupDraft:
    """Guess that the text goes on as it did where its last ids stood before.

    >>> PromptLookupDraft().propose([1, 2, 3, 9, 1, 2], 3, None)
    ([3, 9, 1], None)
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        """Say how many of the last ids are looked for.

        Shapes
            max_ngram  int, >= min_ngram: as many as this first
            min_ngram  int, >= 1: as few as this last

        Errors
            ValueError  min_ngram is below 1, or max_ngram below min_ngram
        """
        if min_ngram < 1:  # R21
            raise ValueError(f"min_ngram must be at least 1, got {min_ngram}")
        if max_ngram < min_ngram:  # R21
            raise ValueError(f"max_ngram must be at least min_ngram, got {max_ngram} and {min_ngram}")
        self._max_ngram, self._min_ngram = max_ngram, min_ngram

    def propose(self, ctx: list[int], k: int, rng: UniformSource | None) -> Proposal:  # noqa: ARG002
        """Return what followed the most recent earlier occurrence of the longest suffix that has one.

        Shapes
            ctx      list of int: prompt and ids
            k        int, >= 0: ids at most
            rng      not looked at
            returns  (ids, None); no ids where nothing occurred before

        Errors
            ValueError  k is below 0

        State
            keeps none

        >>> PromptLookupDraft().propose([5, 1, 7, 1, 8, 1], 2, None)
        ([8, 1], None)
        """
        k = _length(k)
        for n in range(min(self._max_ngram, len(ctx) - 1), self._min_ngram - 1, -1):  # R19: the longest first
            suffix = ctx[-n:]
            for i in range(len(ctx) - n - 1, -1, -1):  # R19: backwards, from behind the suffix's own start
                if ctx[i] == suffix[0] and ctx[i : i + n] == suffix:
                    return [int(x) for x in ctx[i + n : i + n + k]], None  # R20
        return [], None


class NGramDraft:
    """Guess with a language model that is asked once an id, such as one that counts n-grams.

    >>> class Next:  # every id is followed by its successor
    ...     def logprobs(self, ctx):
    ...         return np.where(np.arange(8) == ctx[-1] + 1, 0.0, -np.inf)
    >>> NGramDraft(Next()).propose([1, 2], 3, None)
    ([3, 4, 5], None)
    """

    def __init__(self, lm: Any) -> None:
        """Take the model.

        Shapes
            lm  any object with logprobs(ctx: list[int]) -> f32[V] or f64[V]
        """
        self._lm = lm

    def propose(self, ctx: list[int], k: int, rng: UniformSource | None) -> Proposal:
        """Return k ids, each the model's most probable one or a draw, given those before it.

        Shapes
            ctx      list of int: prompt and ids
            k        int, >= 0
            rng      any object with uniform() -> float in [0, 1), or None for the most probable ids
            returns  (ids, probs): probs f64[k, V], or None where nothing was drawn

        Errors
            ValueError  k is below 0; the model was not asked then

        State
            calls rng.uniform() once an id

        >>> uniform = type("Uniform", (), {"logprobs": lambda lm, ctx: np.log([0.5, 0.5])})()
        >>> NGramDraft(uniform).propose([0], 2, request_rng(0))
        ([1, 1], array([[0.5, 0.5],
               [0.5, 0.5]]))
        """
        k = _length(k)
        ids: list[int] = []
        rows: list[F64] = []
        for _ in range(k):
            logprobs = np.asarray(self._lm.logprobs([*ctx, *ids]))  # R22
            token, drawn_from = _drawn(logprobs, SamplingParams(), rng)
            ids.append(token)
            rows += drawn_from
        return ids, np.array(rows) if rows else None


class ModelDraft:
    """Guess with a smaller model of the target's kind, which keeps its keys and values between calls.

    >>> class Next:  # every id is followed by its successor
    ...     n_layers, n_kv_heads, d_head, max_len = 1, 1, 1, 8
    ...     def forward(self, ids, positions, cache):
    ...         cache.update(0, *np.zeros((2, 1, 1, ids.shape[1], 1)))
    ...         return np.eye(8)[ids + 1]
    >>> ModelDraft(Next()).propose([1, 2], 3, None)
    ([3, 4, 5], None)
    """

    def __init__(self, model: Any, temperature: float = 1.0) -> None:
        """Take the model; nothing is in its cache.

        Shapes
            model        as for speculative_generate
            temperature  float, > 0, finite: what ids are drawn at

        Errors
            ValueError  temperature is not a finite number above 0, or the model has no sizes
        """
        if not 0.0 < temperature < math.inf:  # R24: every comparison with a NaN is false
            raise ValueError(f"temperature must be finite and above 0, got {temperature}")
        *sizes, self._max_len = cache_dims(model)
        self._model, self._p = model, SamplingParams(temperature=temperature)
        self._cache = KVCache(*sizes, max_len=self._max_len)
        self._held: list[int] = []  # the ids whose keys and values the cache holds

    def propose(self, ctx: list[int], k: int, rng: UniformSource | None) -> Proposal:
        """Return ids that the model says, each its most probable one or a draw, as far as its context goes.

        Shapes
            ctx      list of int: prompt and ids, not empty
            k        int, >= 0
            rng      any object with uniform() -> float in [0, 1), or None for the most probable ids
            returns  (ids, probs): min(k, max_len - len(ctx)) ids, or none where that is below 0;
                     probs f64[len(ids), V], or None where nothing was drawn

        Errors
            ValueError  k is below 0, or ctx is empty; the model was not called then

        State
            the cache holds ctx and all ids but the last, in place of what it held; calls rng.uniform() once
            an id

        >>> class Next:  # every id is followed by its successor
        ...     n_layers, n_kv_heads, d_head, max_len = 1, 1, 1, 3
        ...     def forward(self, ids, positions, cache):
        ...         cache.update(0, *np.zeros((2, 1, 1, ids.shape[1], 1)))
        ...         return np.eye(8)[ids + 1]
        >>> ModelDraft(Next()).propose([1, 2], 3, None)  # of 3 positions 1 is left
        ([3], None)
        """
        k = _length(k)
        if len(ctx) == 0:  # R24
            raise ValueError("ctx is empty")
        k = min(k, self._max_len - len(ctx))  # R28
        if k <= 0:  # R18
            return [], None
        same = _n_common(self._held, ctx)
        n = min(same, len(ctx) - 1)  # R25: the cache holds keys, not logits
        self._cache.truncate(n)
        self._held = self._held[:n]
        ids: list[int] = []
        rows: list[F64] = []
        fresh = list(ctx[n:])
        for _ in range(k):
            logits = self._fed(fresh)  # R26: so the last id is never fed
            token, drawn_from = _drawn(logits, self._p, rng)  # R27
            ids.append(token)
            rows += drawn_from
            fresh = [token]
        return ids, np.array(rows) if rows else None

    def _fed(self, fresh: list[int]) -> Floats:
        """Feed ids behind what the cache holds, and return the logits of the last one."""
        logits = _forward(self._model, fresh, self._cache)
        self._held += fresh
        last: Floats = logits[-1]
        return last


def verify_draft(
    target_logits: Floats,
    draft_ids: Ids,
    draft_probs: Floats | None,
    p: SamplingParams,
    history: Ids,
    rng: UniformSource | None,
    prompt: Ids = (),
) -> tuple[list[int], int]:
    """Keep the drafts up to the first that may not stand, and add one id of the target's own.

    What comes out has the target's distribution, whatever was drafted.

    Shapes
        target_logits  f16[M, V], f32[M, V] or f64[M, V], M = m + 1: row i holds the logits behind history and
                       the first i drafts; -inf masks an id
        draft_ids      m ids in [0, V): a sequence of int or a 1-D integer array
        draft_probs    f16[m, V], f32[m, V] or f64[m, V], row i what draft i was drawn from; None where the
                       drafts were not drawn
        p              SamplingParams
        history        generated ids in [0, V), as draft_ids
        rng            any object with uniform() -> float in [0, 1); at temperature 0 not looked at
        prompt         the prompt's ids, the same; they count for the repetition penalty only
        returns        (emitted, n_accepted): the n_accepted first drafts, and one id more

    Errors
        ValueError  p does not validate
        ValueError  target_logits is not a float array [m + 1, V], or holds a NaN, +inf, or a row of -inf only
        ValueError  an item of draft_ids, history or prompt is a bool, is not an integer, or is not in [0, V)
        ValueError  draft_probs is not a float array [m, V], or has a row that is no distribution, or 0 at the
                    drafted id

    Numerics
        those of sampling_distribution, speculative_step and sample

    State
        above temperature 0 two numbers of rng a judged draft, and one more when all are accepted; none when
        the call raises

    >>> rows, p = np.eye(3)[[2, 0, 1]], SamplingParams(temperature=0)
    >>> [verify_draft(rows, draft, None, p, [], None) for draft in ([2, 1], [2, 0], [1, 0])]
    [([2, 0], 1), ([2, 0, 1], 2), ([2], 0)]
    """
    p.validate()  # R1: everything that can be refused is, before anything is drawn
    m = len(draft_ids)
    V = _checked_rows(target_logits, m)
    drafts = _ids("draft_ids", draft_ids, V)
    history = _ids("history", history, V)
    prompt = _ids("prompt", prompt, V)
    if draft_probs is not None:
        _check_probs(draft_probs, drafts, V)
    emitted: list[int] = []
    for i, x in enumerate(drafts):
        seen = [*history, *emitted]  # R14: what was emitted so far are the drafts before i
        P = sampling_distribution(target_logits[i], p, seen, prompt)  # R10
        if p.temperature == 0.0:
            token = int(np.argmax(P))  # R7: P has its 1 at the greedy id
            accepted = token == x
        else:
            Q = _one_hot(x, V) if draft_probs is None else draft_probs[i]  # R10
            u_accept, u_resample = rng.uniform(), rng.uniform()  # R11: both, whatever comes of the first
            token, accepted = speculative_step(P, Q, x, u_accept, u_resample)  # R12
        emitted.append(token)
        if not accepted:
            return emitted, i
    extra, _ = sample(target_logits[m], p, [*history, *drafts], rng, prompt)  # R8, R13
    return [*emitted, extra], m


def speculative_generate(
    target: Any,
    draft: DraftModel,
    tok: Any,
    prompt: str,
    p: SamplingParams,
    k: int = 4,
    kv_dtype: DTypeLike = np.float32,
    eos_ids: Iterable[int] = (),
) -> Generation:
    """Continue the prompt as generate does, but with several ids from one pass of the target.

    Shapes
        target    any object with the sizes that cache_dims reads, and with
                  forward(ids i64[1, T], positions=i64[T], cache=cache) -> [1, T, V],
                  an array or an object with it as `data`, which calls cache.update once a layer
        draft     any object with propose(ctx, k, rng), as the classes here
        tok       any object with encode(text: str) -> list[int] and decode(ids: list[int]) -> str
        prompt    str of 1 to max_len ids
        p         SamplingParams; max_tokens, stop and seed are read here
        k         int, >= 0: drafted ids a round at most; 0 is plain decoding
        kv_dtype  float16, float32 or float64
        eos_ids   ids that end the text and are no part of it
        returns   Generation; its stats are prompt_tokens, completion_tokens, drafted, accepted,
                  acceptance_rate, target_calls and tokens_per_s

    Errors
        ValueError  p does not validate, k is below 0, the prompt has no ids or more than max_len, or the
                    target has no sizes; target and draft were not called then
        ValueError  the draft proposes more ids than asked for, or what verify_draft refuses

    State
        draft and verification draw from one stream, in the order of the rounds

    >>> class Next:  # every id is followed by its successor
    ...     n_layers, n_kv_heads, d_head, max_len = 1, 1, 1, 16
    ...     def forward(self, ids, positions, cache):
    ...         cache.update(0, *np.zeros((2, 1, 1, ids.shape[1], 1)))
    ...         return np.eye(128)[ids + 1]
    >>> class Bytes:
    ...     def encode(self, text):
    ...         return list(text.encode())
    ...     def decode(self, ids):
    ...         return bytes(ids).decode("utf-8", "replace")
    >>> p = SamplingParams(temperature=0, max_tokens=5)
    >>> result = speculative_generate(Next(), ModelDraft(Next()), Bytes(), "ab", p, k=2)
    >>> result.text, result.stats["accepted"], result.stats["target_calls"]
    ('cdefg', 3, 2)
    """
    p.validate()  # R29: everything that can be refused is, before the models work
    if k < 0:  # R29
        raise ValueError(f"k must be at least 0, got {k}")
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    n = len(prompt_ids)
    *sizes, max_len = cache_dims(target)
    if n == 0:  # R29
        raise ValueError("the prompt encodes to no ids")
    if n > max_len:  # R29
        raise ValueError(f"the prompt has {n} ids, the target takes {max_len}")
    kv = KVCache(*sizes, max_len=min(max_len, n + p.max_tokens + k), dtype=kv_dtype)  # R37
    limit = min(p.max_tokens, max_len - n)  # R31
    eos = {int(i) for i in eos_ids}
    rng = request_rng(0 if p.seed is None else p.seed)  # R33: one stream for the whole request
    draft_rng = None if p.temperature == 0.0 else rng  # R33
    seen = sorted(set(prompt_ids))  # penalties ask which ids occur: a round after a long prompt costs no more
    text = _Text(tok, p.stop)
    ids: list[int] = []
    logprobs: list[float] = []
    drafted = accepted = target_calls = 0
    met_eos = False
    began = prefilled = perf_counter()
    while len(ids) < limit and not (met_eos or text.stopped):  # R30
        room = min(k, limit - len(ids) - 1)  # R31: verification adds one id of its own
        guess, probs = draft.propose(prompt_ids + ids, room, draft_rng) if room > 0 else ([], None)
        guess = _ids("a proposal", guess)
        m = len(guess)
        if m > room:  # R32: not cut, since its maker ignores k
            raise ValueError(f"the draft proposed {m} ids where {room} were asked for")
        pending = ids[-1:] if ids else prompt_ids  # R34: what the cache does not hold
        logits = _forward(target, pending + guess, kv)
        target_calls += 1  # R44
        if target_calls == 1:
            prefilled = perf_counter()
        rows = logits[-(m + 1) :]  # R35
        emitted, n_accepted = verify_draft(rows, guess, probs if m else None, p, ids, rng, seen)
        kv.truncate(n + len(ids) + n_accepted)  # R36: the id that verification added waits
        drafted += m  # R44
        accepted += n_accepted  # R44: also those behind an end
        for row, token in zip(rows, emitted, strict=False):  # after a rejection rows are left
            met_eos = token in eos
            if met_eos:  # R38: before anything is kept of it, or of what follows
                break
            logprobs.append(float(token_logprobs(row, p, ids, seen)[token]))  # R42
            ids.append(token)
            text.add(token)
            if text.stopped:  # R38
                break
    text.close()
    ended = perf_counter()
    total_s = ended - began
    return Generation(
        text=text.text,
        ids=ids,
        logprobs=logprobs,
        timings={"prefill_s": prefilled - began, "decode_s": ended - prefilled, "total_s": total_s},  # R41
        stats={
            "prompt_tokens": n,
            "completion_tokens": len(ids),
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / drafted if drafted else 0.0,  # R45
            "target_calls": target_calls,
            "tokens_per_s": len(ids) / total_s if total_s > 0.0 else 0.0,  # a coarse clock may stand still
        },
        finish_reason="stop" if met_eos or text.stopped else "length",  # R39
    )


class _Text:
    """The text of the ids so far, which ends before the first stop string (R39)."""

    def __init__(self, tok: Any, stops: Sequence[str]) -> None:
        self.text, self.stopped = "", False
        self._decoder = IncrementalDecoder(tok)  # it never sees the prompt
        self._stops = stops
        self._overlap = max(map(len, stops), default=1) - 1  # how much of a stop string may be there already

    def add(self, token: int) -> None:
        """Take one id; after that `stopped` says whether a stop string is complete."""
        self._append(self._decoder.push(token))

    def close(self) -> None:
        """Take what the decoder still holds, which may complete a stop string."""
        if not self.stopped:
            self._append(self._decoder.flush())

    def _append(self, piece: str) -> None:
        start = max(0, len(self.text) - self._overlap)
        self.text += piece
        found = [at for at in (self.text.find(stop, start) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self.text = self.text[: min(found)]  # the earliest in the text, not the first in the list


def _drawn(logits: Floats, p: SamplingParams, rng: UniformSource | None) -> tuple[int, list[F64]]:
    """Return the next id of a draft, and the row it was drawn from: no row where nothing was drawn."""
    if rng is None:
        return int(np.argmax(logits)), []  # R17: argmax takes the first of equals
    token, _ = sample(logits, p, (), rng)
    return token, [sampling_distribution(logits, p)]  # R23, R27: of the very same parameters


def _forward(model: Any, ids: list[int], cache: KVCache) -> Floats:
    """Feed ids behind what the cache holds, and return the logits of all of them: [T, V]."""
    positions = cache.positions(len(ids))
    logits = model.forward(np.array([ids], np.int64), positions=positions, cache=cache)
    if not isinstance(logits, np.ndarray):  # R35: an array has a `data`, too, but that is its buffer
        logits = np.asarray(logits.data)
    rows: Floats = logits[0]
    return rows


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the items that both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _one_hot(x: int, V: int) -> F64:
    """Return the law of an id that was chosen without a draw."""
    row = np.zeros(V)
    row[x] = 1.0
    return row


def _length(k: int) -> int:
    """Return k, or refuse to propose fewer than no ids (R18)."""
    if k < 0:
        raise ValueError(f"k must be at least 0, got {k}")
    return k


def _ids(name: str, ids: Ids, V: int | None = None) -> list[int]:
    """Return ids as plain integers, or refuse them (R4); their upper end may still be unknown."""
    if not isinstance(ids, Sequence) and np.ndim(ids) != 1:
        raise ValueError(f"{name} must be a sequence or an array with one axis, got {ids!r}")
    kinds = set(map(type, ids))  # history grows, and every round looks at all of it: no loop over items
    if any(kind is bool or not issubclass(kind, int | np.integer) for kind in kinds):
        raise ValueError(f"{name} must be integers, got {ids!r}")
    if len(ids) > 0 and (min(ids) < 0 or (V is not None and max(ids) >= V)):
        raise ValueError(f"{name} must be in [0, {V or 'V'}), got {min(ids)} to {max(ids)}")
    return list(map(int, ids))


def _checked_rows(logits: Floats, m: int) -> int:
    """Return V, or refuse what is not a row of logits for every draft and one more (R2, R3)."""
    _check_floats("target_logits", logits)
    if len(logits) != m + 1:
        raise ValueError(f"target_logits must have {m + 1} rows for {m} drafts, got {len(logits)}")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ValueError("target_logits holds a NaN or +inf")
    if np.isneginf(logits).all(axis=1).any():  # so V = 0 has no next id either
        raise ValueError("a row of target_logits masks every id")
    return logits.shape[1]


def _check_probs(probs: Floats, drafts: list[int], V: int) -> None:
    """Refuse what is not a row for every draft that it can have been drawn from (R5)."""
    _check_floats("draft_probs", probs)
    if probs.shape != (len(drafts), V):
        raise ValueError(f"draft_probs must be {[len(drafts), V]}, got {list(probs.shape)}")
    wide = probs.astype(np.float64, copy=False)  # before the sum, as rejection does
    if not (np.isfinite(wide).all() and (wide >= 0.0).all()):
        raise ValueError("draft_probs must be finite and at least 0")
    S = np.cumsum(wide, axis=1)[:, -1]  # sequential, unlike np.sum
    if not (np.abs(S - 1.0) <= 1e-9 * V + 1e-12).all():
        raise ValueError(f"every row of draft_probs must sum to 1, got {S}")
    if not (wide[np.arange(len(drafts)), drafts] > 0.0).all():
        raise ValueError("draft_probs is 0 at a drafted id, which was not drawn from its row")


def _check_floats(name: str, rows: Floats) -> None:
    """Refuse what is no table of floats."""
    if not isinstance(rows, np.ndarray) or rows.ndim != 2:
        raise ValueError(f"{name} must be an array with two axes, got {np.ndim(rows)}")
    if rows.dtype.type not in (np.float16, np.float32, np.float64):
        raise ValueError(f"{name} must be float16, float32 or float64, got {rows.dtype}")
