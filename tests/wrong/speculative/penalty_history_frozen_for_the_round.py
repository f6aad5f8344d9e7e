from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from impl.generate import Generation, IncrementalDecoder, cache_dims
from impl.kv_cache import KVCache
from impl.rejection import residual_distribution, speculative_step
from impl.sampling import (
    SamplingParams,
    apply_penalties,
    request_rng,
    sample,
    sampling_distribution,
    token_logprobs,
)


class _Check:
    """Turns the arguments of verify_draft into plain lists and arrays, or refuses them."""

    def __init__(self, logits, ids, probs, history, prompt):
        self.floats("target_logits", logits)
        self.V = logits.shape[1]
        self.ids = self.tokens(ids)
        self.history = self.tokens(history)
        self.prompt = self.tokens(prompt)
        if logits.shape[0] - 1 != len(self.ids):
            raise ValueError("the number of rows does not fit the number of drafts")
        self.logits = logits
        for r in range(logits.shape[0]):
            self.logit_row(logits[r])
        self.probs = probs
        if probs is not None:
            self.floats("draft_probs", probs)
            if probs.shape != (len(self.ids), self.V):
                raise ValueError("draft_probs has another shape than [m, V]")
            for q, x in zip(probs, self.ids):
                self.prob_row(q, x)

    @staticmethod
    def floats(name, a):
        ok = isinstance(a, np.ndarray) and a.ndim == 2 and a.dtype in (np.float16, np.float32, np.float64)
        if not ok:
            raise ValueError(name + " is not a float array with two axes")

    def tokens(self, seq):
        if not isinstance(seq, (Sequence, np.ndarray)) or np.ndim(seq) != 1:
            raise ValueError("ids are not a flat sequence")
        result = []
        for t in seq:
            integral = isinstance(t, (int, np.integer)) and type(t) is not bool
            if not (integral and 0 <= t < self.V):
                raise ValueError("not an id: " + repr(t))
            result.append(int(t))
        return result

    @staticmethod
    def logit_row(row):
        finite_or_masked = np.isfinite(row) | np.isneginf(row)
        if not finite_or_masked.all() or not np.isfinite(row).any():
            raise ValueError("a row of logits is not valid")

    @staticmethod
    def prob_row(q, x):
        residual_distribution(q, q)
        if q[x] == 0:
            raise ValueError("the draft is impossible under its own row")


def _verify_greedy(c, p):
    out = []
    for i, row in enumerate(c.logits):
        choice = int(apply_penalties(row, p, c.history, c.prompt).argmax())
        out.append(choice)
        if i == len(c.ids) or choice != c.ids[i]:
            return out, i
    raise AssertionError("unreachable")


def _verify_random(c, p, rng):
    out = []
    for i, x in enumerate(c.ids):
        P = sampling_distribution(c.logits[i], p, c.history, c.prompt)
        if c.probs is None:
            Q = np.array([1.0 if t == x else 0.0 for t in range(c.V)])
        else:
            Q = c.probs[i]
        us = [rng.uniform() for _ in range(2)]
        y, kept = speculative_step(P, Q, x, us[0], us[1])
        out.append(y)
        if not kept:
            return out, i
    extra, _ = sample(c.logits[-1], p, c.history, rng, c.prompt)
    return out + [extra], len(c.ids)


def verify_draft(target_logits, draft_ids, draft_probs, p, history, rng, prompt=()):
    p.validate()
    c = _Check(target_logits, draft_ids, draft_probs, history, prompt)
    return _verify_greedy(c, p) if p.temperature == 0 else _verify_random(c, p, rng)


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


def _check_proposal(ids, asked):
    if len(ids) > asked:
        raise ValueError(f"the draft was asked for {asked} ids and gave {len(ids)}")
    for i in ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)) or i < 0:
            raise ValueError(f"the draft proposed {i!r}")


def _earliest(text, stops):
    found = [text.find(s) for s in stops if s in text]
    return min(found) if found else -1


def speculative_generate(target, draft, tok, prompt, p, k=4, kv_dtype=np.float32, eos_ids=()):
    p.validate()
    if k < 0:
        raise ValueError("k must not be negative")
    n_layers, n_kv_heads, d_head, max_len = cache_dims(target)
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    n = len(prompt_ids)
    if n == 0:
        raise ValueError("the prompt has no ids")
    if n > max_len:
        raise ValueError("the prompt is too long for the model")
    cache = KVCache(n_layers, n_kv_heads, d_head, min(max_len, n + p.max_tokens + k), dtype=kv_dtype)
    rng = request_rng(0 if p.seed is None else p.seed)
    eos = set(int(i) for i in eos_ids)
    limit = min(p.max_tokens, max_len - n)
    decoder = IncrementalDecoder(tok)
    ids = []
    logprobs = []
    text = ""
    cut = -1
    met_eos = False
    drafted = accepted = calls = 0
    held = 0  # positions in the cache
    t0 = t1 = perf_counter()

    while len(ids) < limit and cut < 0 and not met_eos:
        ask = min(k, limit - len(ids) - 1)
        proposal, probs = [], None
        if ask > 0:
            proposal, probs = draft.propose(prompt_ids + ids, ask, None if p.temperature == 0 else rng)
            _check_proposal(proposal, ask)
            proposal = [int(i) for i in proposal]
        m = len(proposal)
        if m == 0:
            probs = None

        feed = (prompt_ids + ids)[held:] + proposal
        positions = np.arange(held, held + len(feed), dtype=np.int64)
        try:
            out = target.forward(np.array([feed], dtype=np.int64), positions=positions, cache=cache)
        except (IndexError, OverflowError) as e:
            if m:
                raise ValueError("the draft proposed an id that the target does not have") from e
            raise
        calls += 1
        if calls == 1:
            t1 = perf_counter()
        if not isinstance(out, np.ndarray):
            out = np.asarray(out.data)
        rows = out[0][-(m + 1) :]
        emitted, n_accepted = verify_draft(rows, proposal, probs, p, ids, rng, prompt_ids)
        drafted += m
        accepted += n_accepted

        for row, token in zip(rows, emitted):
            if token in eos:
                met_eos = True
                break
            logprobs.append(float(token_logprobs(row, p, ids, prompt_ids)[token]))
            ids.append(token)
            text += decoder.push(token)
            cut = _earliest(text, p.stop)
            if cut >= 0:
                break

        held = n + len(ids) - 1
        if cache.seq_len() > held:
            cache.truncate(held)

    if cut < 0:
        text += decoder.flush()
        cut = _earliest(text, p.stop)
    if cut >= 0:
        text = text[:cut]
    t2 = perf_counter()
    total = t2 - t0
    stats = {
        "prompt_tokens": n,
        "completion_tokens": len(ids),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "target_calls": calls,
        "tokens_per_s": len(ids) / total if total > 0 else 0.0,
    }
    timings = {"prefill_s": t1 - t0, "decode_s": t2 - t1, "total_s": total}
    return Generation(text, ids, logprobs, timings, stats, "stop" if met_eos or cut >= 0 else "length")
