from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from impl.generate import Generation, IncrementalDecoder, cache_dims
from impl.kv_cache import KVCache
from impl.rejection import acceptance_probability, speculative_step
from impl.sampling import (
    SamplingParams,
    apply_penalties,
    request_rng,
    sample,
    sampling_distribution,
)


def _ids(name, ids, V):
    if not isinstance(ids, Sequence) and np.ndim(ids) != 1:
        raise ValueError(f"{name} is not a sequence")
    out = []
    for i in ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)):
            raise ValueError(f"{name}: {i!r} is not an integer")
        if i < 0 or i >= V:
            raise ValueError(f"{name}: {i} is not in the vocabulary of {V}")
        out.append(int(i))
    return out


def _is_float_matrix(a):
    return isinstance(a, np.ndarray) and a.ndim == 2 and a.dtype.type in (np.float16, np.float32, np.float64)


def _one_hot(V, i):
    q = np.zeros(V)
    q[i] = 1.0
    return q


def verify_draft(target_logits, draft_ids, draft_probs, p, history, rng, prompt=()):
    p.validate()
    # everything is looked at before the first draw
    if not _is_float_matrix(target_logits):
        raise ValueError("target_logits must be a float array with two axes")
    rows, V = target_logits.shape
    drafts = _ids("draft_ids", draft_ids, V)
    past = _ids("history", history, V)
    prompt = _ids("prompt", prompt, V)
    m = len(drafts)
    if rows != m + 1:
        raise ValueError(f"{m} drafts need {m + 1} rows, got {rows}")
    for row in target_logits:
        apply_penalties(row, p)  # refuses NaN, +inf and a row that is masked everywhere
    if draft_probs is not None:
        if not _is_float_matrix(draft_probs) or draft_probs.shape != (m, V):
            raise ValueError("draft_probs must be a float array [m, V]")
        for i in range(m):
            acceptance_probability(draft_probs[i], draft_probs[i])  # refuses what is no distribution
            if not draft_probs[i, drafts[i]] > 0:
                raise ValueError(f"draft {i} has probability 0 in its row")

    emitted = []
    for i in range(m):
        row = target_logits[i]
        before = past + drafts[:i]
        if p.temperature == 0:
            best = int(np.argmax(apply_penalties(row, p, before, prompt)))
            emitted.append(best)
            if best != drafts[i]:
                return emitted, i
            continue
        P = sampling_distribution(row, p, before, prompt)
        Q = _one_hot(V, drafts[i]) if draft_probs is None else draft_probs[i]
        u_accept = rng.uniform()
        u_resample = rng.uniform()
        token, accepted = speculative_step(P, Q, drafts[i], u_accept, u_resample)
        emitted.append(token)
        if not accepted:
            return emitted, i

    token, _ = sample(target_logits[m], p, past + drafts, rng, prompt=prompt)
    emitted.append(token)
    return emitted, m


class _Base:
    """What NGramDraft and ModelDraft share: a row of numbers in, an id and its law out."""

    params = SamplingParams()

    def _draw(self, next_row, k, rng):
        ids, laws = [], []
        for _ in range(k):
            row = next_row(ids)
            if rng is None:
                best = 0
                for t in range(1, len(row)):
                    if row[t] > row[best]:
                        best = t
                ids.append(best)
            else:
                laws.append(sampling_distribution(row, self.params))
                token, _ = sample(row, self.params, [], rng)
                ids.append(token)
        if not laws:
            return ids, None
        return ids, np.vstack(laws)


class PromptLookupDraft:
    def __init__(self, max_ngram=3, min_ngram=1):
        if min_ngram < 1 or max_ngram < min_ngram:
            raise ValueError("wrong n-gram sizes")
        self._hi, self._lo = max_ngram, min_ngram

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("negative k")
        n = min(self._hi, len(ctx) - 1)
        while n >= self._lo:
            i = len(ctx) - n - 1
            while i >= 0:
                if all(ctx[i + j] == ctx[len(ctx) - n + j] for j in range(n)):
                    return [int(t) for t in ctx[i + n : i + n + k]], None
                i -= 1
            n -= 1
        return [], None


class NGramDraft(_Base):
    def __init__(self, lm):
        self._lm = lm

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("negative k")
        base = [int(t) for t in ctx]
        return self._draw(lambda ids: self._lm.logprobs(base + ids), k, rng)


class ModelDraft(_Base):
    def __init__(self, model, temperature=1.0):
        if math.isnan(temperature) or math.isinf(temperature) or temperature <= 0:
            raise ValueError("temperature out of range")
        self._model = model
        self.params = SamplingParams(temperature=temperature)
        layers, heads, width, self._limit = cache_dims(model)
        self._kv = KVCache(layers, heads, width, self._limit)
        self._known: tuple[int, ...] = ()

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("negative k")
        if len(ctx) == 0:
            raise ValueError("empty context")
        ctx = tuple(int(t) for t in ctx)
        k = min(k, self._limit - len(ctx))
        if k < 1:
            return [], None
        keep = len(ctx) - 1
        while self._known[:keep] != ctx[:keep]:
            keep -= 1
        keep = min(keep, len(self._known))
        if self._kv.seq_len() >= keep:
            self._kv.truncate(keep)
        self._known = self._known[:keep]
        return self._draw(lambda ids: self._advance(ctx + tuple(ids)), k, rng)

    def _advance(self, whole):
        """Feed what of `whole` is not known yet."""
        start = len(self._known)
        fresh = np.array(whole[start:], dtype=np.int64)[None, :]
        logits = self._model.forward(fresh, positions=np.arange(start, len(whole)), cache=self._kv)
        self._known = whole
        if not isinstance(logits, np.ndarray):
            logits = np.asarray(logits.data)
        return logits[0, fresh.shape[1] - 1]


class _Text:
    """The text of the ids so far, and whether it has ended."""

    def __init__(self, tok, stops):
        self.decoder = IncrementalDecoder(tok)
        self.stops = stops
        self.text = ""
        self.done = False

    def add(self, piece):
        self.text += piece
        hits = sorted(self.text.index(s) for s in self.stops if s in self.text)
        if hits:
            self.text = self.text[: hits[0]]
            self.done = True

    def push(self, token):
        self.add(self.decoder.push(token))

    def finish(self):
        if not self.done:
            self.add(self.decoder.flush())


class _Target:
    """The target and its cache; `ids` is what the cache holds."""

    def __init__(self, model, room, dtype):
        *sizes, max_len = cache_dims(model)
        self.model = model
        self.cache = KVCache(*sizes, max_len=min(max_len, room), dtype=dtype)
        self.n_held = 0
        self.calls = 0

    def run(self, ids, n_rows):
        positions = np.arange(self.n_held, self.n_held + len(ids), dtype=np.int64)
        try:
            logits = self.model.forward(np.array([ids], np.int64), positions=positions, cache=self.cache)
        except (IndexError, OverflowError) as e:  # a drafted id outside the target's vocabulary
            raise ValueError("the target cannot take these ids") from e
        self.calls += 1
        self.n_held += len(ids)
        if not isinstance(logits, np.ndarray):
            logits = np.asarray(logits.data)
        return logits[0, len(ids) - n_rows :]

    def rollback(self, n):
        if self.n_held > n:
            self.n_held = n
            if self.cache.seq_len() > n:
                self.cache.truncate(n)


def _ask(draft, context, count, rng):
    if count == 0:
        return [], None
    ids, probs = draft.propose(context, count, rng)
    if len(ids) > count:
        raise ValueError(f"a proposal of {len(ids)} ids, {count} were wanted")
    if any(isinstance(i, bool) or not isinstance(i, (int, np.integer)) for i in ids):
        raise ValueError("a proposal of something that is no id")
    ids = [int(i) for i in ids]
    return ids, probs if ids else None


def speculative_generate(target, draft, tok, prompt, p, k=4, kv_dtype=np.float32, eos_ids=()):
    p.validate()
    if k < 0:
        raise ValueError(f"k is {k}")
    given = list(map(int, tok.encode(prompt)))
    max_len = cache_dims(target)[-1]
    if not 1 <= len(given) <= max_len:
        raise ValueError(f"the prompt has {len(given)} ids, the model takes 1 to {max_len}")
    n = len(given)
    allowed = min(p.max_tokens, max_len - n)
    stream, draft_stream = request_rng(p.seed or 0), request_rng(p.seed or 0)
    runner = _Target(target, n + p.max_tokens + k, kv_dtype)
    out = _Text(tok, p.stop)
    eos = frozenset(map(int, eos_ids))
    ids, logprobs, rounds = [], [], []
    hit_eos = False
    start = prefill = perf_counter()
    while not hit_eos and not out.done and len(ids) < allowed:
        left = allowed - len(ids)
        guess, probs = _ask(draft, given + ids, min(k, left - 1), draft_stream if p.temperature > 0 else None)
        pending = ids[-1:] if ids else given
        rows = runner.run(pending + guess, len(guess) + 1)
        if not rounds:
            prefill = perf_counter()
        emitted, n_ok = verify_draft(rows, guess, probs, p, ids, stream, given)
        rounds.append((len(guess), n_ok))
        for j, token in enumerate(emitted):
            if token in eos:
                hit_eos = True
                break
            logprobs.append(math.log(sampling_distribution(rows[j], p, ids, given)[token]))
            ids.append(token)
            out.push(token)
            if out.done:
                break
        runner.rollback(n + len(ids) - 1)
    out.finish()
    end = perf_counter()
    drafted = sum(r[0] for r in rounds)
    accepted = sum(r[1] for r in rounds)
    return Generation(
        text=out.text,
        ids=ids,
        logprobs=logprobs,
        timings={"prefill_s": prefill - start, "decode_s": end - prefill, "total_s": end - start},
        stats={
            "prompt_tokens": n,
            "completion_tokens": len(ids),
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            "target_calls": runner.calls,
            "tokens_per_s": len(ids) / (end - start) if end > start else 0.0,
        },
        finish_reason="stop" if hit_eos or out.done else "length",
    )
