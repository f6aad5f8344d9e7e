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
    apply_penalties,
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
        row = target_logits[n_accepted]
        if greedy:
            scores = apply_penalties(row, p, seen, prompt)
            ok = scores[x] >= scores.max()
            y = x if ok else int(scores.argmax())
        else:
            target = sampling_distribution(row, p, seen, prompt)
            u1, u2 = rng.uniform(), rng.uniform()
            y, ok = speculative_step(target, q_rows[n_accepted], x, u1, u2)
        if not ok:
            return ids[:n_accepted] + [y], n_accepted
        seen = seen + [x]
        n_accepted += 1
    bonus = sample(target_logits[-1], p, seen, rng, prompt)[0]
    return ids + [bonus], n_accepted


def _last_logits(model, ids, start, cache):
    positions = np.arange(start, start + len(ids))
    out = model.forward(np.array([ids], dtype=np.int64), positions=positions, cache=cache)
    if not isinstance(out, np.ndarray):
        out = np.asarray(out.data)
    return out[0, -1]


class PromptLookupDraft:
    def __init__(self, max_ngram=3, min_ngram=1):
        if min_ngram < 1:
            raise ValueError("min_ngram must be at least 1")
        if max_ngram < min_ngram:
            raise ValueError("max_ngram must not be below min_ngram")
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("k must not be negative")
        ctx = [int(i) for i in ctx]
        L = len(ctx)
        if k == 0:
            return [], None
        for n in range(self.max_ngram, self.min_ngram - 1, -1):
            if n >= L:
                continue
            tail = ctx[L - n :]
            for i in range(L - n - 1, -1, -1):
                if ctx[i : i + n] == tail:
                    return ctx[i + n : i + n + k], None
        return [], None


class NGramDraft:
    def __init__(self, lm):
        self.lm = lm

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("k must not be negative")
        p = SamplingParams()
        ids = []
        rows = []
        for _ in range(k):
            logprobs = self.lm.logprobs([int(i) for i in ctx] + ids)
            if rng is None:
                ids.append(int(np.argmax(logprobs)))
            else:
                rows.append(sampling_distribution(logprobs, p))
                ids.append(sample(logprobs, p, [], rng)[0])
        return ids, (np.array(rows) if rows else None)


class ModelDraft:
    def __init__(self, model, temperature=1.0):
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError("temperature must be a finite number above 0")
        self.model = model
        self.params = SamplingParams(temperature=temperature)
        n_layers, n_kv_heads, d_head, self.max_len = cache_dims(model)
        self.cache = KVCache(n_layers, n_kv_heads, d_head, self.max_len)
        self.held = []  # the ids whose keys are in the cache

    def _feed(self, ids):
        row = _last_logits(self.model, ids, len(self.held), self.cache)
        self.held = self.held + ids
        return row

    def propose(self, ctx, k, rng):
        if k < 0:
            raise ValueError("k must not be negative")
        ctx = [int(i) for i in ctx]
        if not ctx:
            raise ValueError("ctx is empty")
        k = min(k, self.max_len - len(ctx))
        if k <= 0:
            return [], None
        common = 0
        while common < min(len(self.held), len(ctx) - 1) and self.held[common] == ctx[common]:
            common += 1
        if self.cache.seq_len() >= common:
            self.cache.truncate(common)
        self.held = self.held[:common]
        ids = []
        rows = []
        row = self._feed(ctx[common:])
        while True:
            if rng is None:
                ids.append(int(np.argmax(row)))
            else:
                rows.append(sampling_distribution(row, self.params))
                ids.append(sample(row, self.params, [], rng)[0])
            if len(ids) == k:
                break
            row = self._feed([ids[-1]])
        return ids, (np.array(rows) if rows else None)


def _round(target, draft, context, n, ask, cache, base, p, rng):
    """One round: returns rows, emitted, number of drafts, number accepted.

    context is prompt and ids, n the length of the prompt, base what the cache holds.
    """
    guess, q = ([], None)
    if ask:
        guess, q = draft.propose(list(context), ask, rng if p.temperature else None)
        guess = guess[:ask]
        q = None if q is None else q[:ask]
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
        ask = min(k, end_at - len(context) - 1)
        rows, emitted, m, n_accepted = _round(target, draft, context, n, ask, cache, base, p, rng)
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
