from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from impl.generate import Generation, IncrementalDecoder, cache_dims
from impl.kv_cache import KVCache
from impl.rejection import speculative_step
from impl.sampling import (
    SamplingParams,
    request_rng,
    sample,
    sampling_distribution,
    token_logprobs,
)


FLOATS = (np.float16, np.float32, np.float64)


def _as_id_list(ids, vocab):
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError("ids: expected a 1-D integer array")
        ids = ids.tolist()
    elif not isinstance(ids, Sequence):
        raise ValueError("ids: expected a sequence")
    good = (int, np.integer)
    bad = [x for x in ids if isinstance(x, bool) or not isinstance(x, good) or not 0 <= x < vocab]
    if bad:
        raise ValueError(f"ids: {bad[0]!r} is no id below {vocab}")
    return [int(x) for x in ids]


def _require_logits(z):
    if not isinstance(z, np.ndarray) or z.ndim != 2 or z.dtype.type not in FLOATS:
        raise ValueError("target_logits: expected f16, f32 or f64 with 2 axes")
    if z.shape[1] == 0 or np.isnan(z).any() or np.isposinf(z).any() or np.isneginf(z).all(axis=1).any():
        raise ValueError("target_logits: a row without a next token, or with NaN or +inf")


def _require_probs(q, ids, vocab):
    if not isinstance(q, np.ndarray) or q.dtype.type not in FLOATS or q.shape != (len(ids), vocab):
        raise ValueError("draft_probs: expected floats of shape [m, V]")
    wide = q.astype(np.float64)
    if not np.isfinite(wide).all() or (wide < 0).any():
        raise ValueError("draft_probs: negative or not finite")
    if wide.size:
        sums = np.cumsum(wide, axis=1)[:, -1]
        if (np.abs(sums - 1.0) > 1e-9 * vocab + 1e-12).any():
            raise ValueError("draft_probs: a row does not sum to 1")
        if (wide[np.arange(len(ids)), ids] == 0).any():
            raise ValueError("draft_probs: a drafted id cannot have been drawn")
    return wide


def verify_draft(target_logits, draft_ids, draft_probs, p, history, rng, prompt=()):
    p.validate()
    _require_logits(target_logits)
    vocab = target_logits.shape[1]
    ids, seen, prompt = (_as_id_list(x, vocab) for x in (draft_ids, history, prompt))
    if len(target_logits) != len(ids) + 1:
        raise ValueError("target_logits: expected one row more than drafts")
    if draft_probs is None:
        q_rows = np.eye(vocab)[ids] if ids else np.zeros((0, vocab))
    else:
        q_rows = _require_probs(draft_probs, ids, vocab)

    greedy = p.temperature == 0
    n_accepted = 0
    while n_accepted < len(ids):
        x = ids[n_accepted]
        target = sampling_distribution(target_logits[n_accepted], p, seen, prompt)
        if greedy:
            y = int(target.argmax())
            ok = y == x
        else:
            u1, u2 = rng.uniform(), rng.uniform()
            y, ok = speculative_step(target, q_rows[n_accepted], x, u1, u2)
        if not ok:
            return ids[:n_accepted] + [y], n_accepted
        seen = seen + [x]
        n_accepted += 1
    bonus = sample(target_logits[-1], p, seen, rng, prompt)[0]
    return ids + [bonus], n_accepted


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


def _round(target, draft, context, n, ask, cache, base, p, rng):
    """One round: returns rows, emitted, number of drafts, number accepted.

    context is prompt and ids, n the length of the prompt, base what the cache holds.
    """
    guess, q = ([], None)
    if ask:
        guess, q = draft.propose(list(context), ask, rng if p.temperature else None)
        if len(guess) > ask:
            raise ValueError("more ids than asked for")
        for g in guess:
            if type(g) is bool or not isinstance(g, (int, np.integer)):
                raise ValueError("the draft is no list of ids")
        guess = [int(g) for g in guess]
        q = q if guess else None
    try:
        chunk = np.array([list(context[base:]) + guess], dtype=np.int64)
        logits = target.forward(chunk, positions=np.arange(base, base + chunk.shape[1]), cache=cache)
    except (IndexError, OverflowError) as e:
        raise ValueError("a drafted id is outside the vocabulary") from e
    if not isinstance(logits, np.ndarray):
        logits = np.asarray(logits.data)
    rows = logits[0, chunk.shape[1] - len(guess) - 1 :]
    emitted, n_accepted = verify_draft(rows, guess, q, p, context[n:], rng, context[:n])
    return rows, emitted, len(guess), n_accepted


def speculative_generate(target, draft, tok, prompt, p, k=4, kv_dtype=np.float32, eos_ids=()):
    p.validate()
    context = [int(t) for t in tok.encode(prompt)]
    n = len(context)
    layers, heads, width, max_len = cache_dims(target)
    if k < 0 or n < 1 or n > max_len:
        raise ValueError("k or the prompt is out of range")
    end_at = n + min(p.max_tokens, max_len - n)
    cache = KVCache(layers, heads, width, max_len=min(max_len, n + p.max_tokens + k), dtype=kv_dtype)
    rng = request_rng(p.seed if p.seed is not None else 0)
    decoder = IncrementalDecoder(tok)
    eos_ids = {int(e) for e in eos_ids}
    text, logprobs, reason = "", [], None
    counts = {"drafted": 0, "accepted": 0, "target_calls": 0}
    clock = [perf_counter()]

    def find_stop():
        return min((text.find(s) for s in p.stop if s in text), default=None)

    while reason is None and len(context) < end_at:
        base = len(context) - 1 if counts["target_calls"] else 0
        ask = min(k, end_at - len(context))
        rows, emitted, m, n_accepted = _round(target, draft, context, n, ask, cache, base, p, rng)
        emitted = emitted[: end_at - len(context)]
        counts["drafted"] += m
        counts["accepted"] += n_accepted
        counts["target_calls"] += 1
        if len(clock) == 1:
            clock.append(perf_counter())
        for i in range(len(emitted)):
            token = emitted[i]
            if token in eos_ids:
                reason = "stop"
                break
            logprobs.append(float(token_logprobs(rows[i], p, context[n:], context[:n])[token]))
            context.append(token)
            text += decoder.push(token)
            at = find_stop()
            if at is not None:
                text, reason = text[:at], "cut"
                break
        surplus = cache.seq_len() - (len(context) - 1)
        if surplus > 0:
            cache.truncate(len(context) - 1)

    if reason != "cut":
        text += decoder.flush()
        at = find_stop()
        if at is not None:
            text, reason = text[:at], "cut"
    clock.append(perf_counter())
    total = clock[-1] - clock[0]
    prefill = clock[1] - clock[0] if len(clock) == 3 else 0.0
    stats = {"prompt_tokens": n, "completion_tokens": len(context) - n, **counts}
    stats["acceptance_rate"] = counts["accepted"] / counts["drafted"] if counts["drafted"] else 0.0
    stats["tokens_per_s"] = stats["completion_tokens"] / total if total > 0 else 0.0
    timings = {"prefill_s": prefill, "decode_s": max(0.0, total - prefill), "total_s": total}
    return Generation(text, context[n:], logprobs, timings, stats, "stop" if reason else "length")
