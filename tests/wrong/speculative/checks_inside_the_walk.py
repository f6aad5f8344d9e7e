from __future__ import annotations

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
    token_logprobs,
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
    if draft_probs is not None and (not _is_float_matrix(draft_probs) or draft_probs.shape != (m, V)):
        raise ValueError("draft_probs must be a float array [m, V]")

    emitted = []
    for i in range(m):
        row = target_logits[i]
        before = past + drafts[:i]
        apply_penalties(row, p)  # refuses NaN, +inf and a row that is masked everywhere
        if draft_probs is not None:
            acceptance_probability(draft_probs[i], draft_probs[i])  # refuses what is no distribution
            if not draft_probs[i, drafts[i]] > 0:
                raise ValueError(f"draft {i} has probability 0 in its row")
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


def _pick(row, params, rng):
    """Return (id, its distribution or None)."""
    if rng is None:
        return int(np.asarray(row).argmax()), None
    return sample(row, params, (), rng)[0], sampling_distribution(row, params)


def _pack(pairs):
    ids = [i for i, _ in pairs]
    dists = [d for _, d in pairs if d is not None]
    return ids, np.stack(dists) if dists else None


def _nonnegative(k):
    if k < 0:
        raise ValueError(f"cannot propose {k} ids")


class PromptLookupDraft:
    def __init__(self, max_ngram=3, min_ngram=1):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self.sizes = range(max_ngram, min_ngram - 1, -1)

    def propose(self, ctx, k, rng):
        _nonnegative(k)
        ctx = list(map(int, ctx))
        begin = self._continuation(ctx)
        return ([] if begin is None else ctx[begin : begin + k]), None

    def _continuation(self, ctx):
        for n in self.sizes:
            starts = [i for i in range(len(ctx) - n) if ctx[i : i + n] == ctx[-n:]]
            if starts:
                return starts[-1] + n
        return None


class NGramDraft:
    PARAMS = SamplingParams()

    def __init__(self, lm):
        self.lm = lm

    def propose(self, ctx, k, rng):
        _nonnegative(k)
        so_far = list(map(int, ctx))
        pairs = []
        while len(pairs) < k:
            pairs.append(_pick(self.lm.logprobs(list(so_far)), self.PARAMS, rng))
            so_far.append(pairs[-1][0])
        return _pack(pairs)


class ModelDraft:
    def __init__(self, model, temperature=1.0):
        if not 0.0 < temperature < float("inf"):
            raise ValueError(f"temperature {temperature} is not a finite number above 0")
        *sizes, self._max_len = cache_dims(model)
        self._model = model
        self._params = SamplingParams(temperature=temperature)
        self._cache = KVCache(*sizes, max_len=self._max_len)
        self._inside = []

    def propose(self, ctx, k, rng):
        _nonnegative(k)
        ctx = list(map(int, ctx))
        if len(ctx) == 0:
            raise ValueError("nothing to continue")
        count = min(k, self._max_len - len(ctx))
        if count < 1:
            return [], None
        self._rewind(self._shared(ctx))
        todo = ctx[len(self._inside) :]
        pairs = []
        for _ in range(count):
            pairs.append(_pick(self._run(todo), self._params, rng))
            todo = [pairs[-1][0]]
        return _pack(pairs)

    def _shared(self, ctx):
        n = 0
        for a, b in zip(self._inside, ctx[:-1]):
            if a != b:
                break
            n += 1
        return n

    def _rewind(self, n):
        if n <= self._cache.seq_len():
            self._cache.truncate(n)
        del self._inside[n:]

    def _run(self, ids):
        at = np.arange(len(ids), dtype=np.int64) + len(self._inside)
        logits = self._model.forward(np.asarray([ids], np.int64), positions=at, cache=self._cache)
        self._inside.extend(ids)
        return (logits if isinstance(logits, np.ndarray) else np.asarray(logits.data))[0, -1, :]


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
