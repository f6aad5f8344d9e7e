from __future__ import annotations

import math
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
        choice = int(apply_penalties(row, p, c.history + out, c.prompt).argmax())
        out.append(choice)
        if i == len(c.ids) or choice != c.ids[i]:
            return out, i
    raise AssertionError("unreachable")


def _verify_random(c, p, rng):
    out = []
    for i, x in enumerate(c.ids):
        P = sampling_distribution(c.logits[i], p, c.history + out, c.prompt)
        if c.probs is None:
            Q = np.array([1.0 if t == x else 0.0 for t in range(c.V)])
        else:
            Q = c.probs[i]
        us = [rng.uniform() for _ in range(2)]
        y, kept = speculative_step(P, Q, x, us[0], us[1])
        out.append(y)
        if not kept:
            return out, i
    extra, _ = sample(c.logits[-1], p, c.history + out, rng, c.prompt)
    return out + [extra], len(c.ids)


def verify_draft(target_logits, draft_ids, draft_probs, p, history, rng, prompt=()):
    p.validate()
    c = _Check(target_logits, draft_ids, draft_probs, history, prompt)
    return _verify_greedy(c, p) if p.temperature == 0 else _verify_random(c, p, rng)


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
    stream = request_rng(p.seed or 0)
    runner = _Target(target, n + p.max_tokens + k, kv_dtype)
    out = _Text(tok, p.stop)
    eos = frozenset(map(int, eos_ids))
    ids, logprobs, rounds = [], [], []
    hit_eos = False
    start = prefill = perf_counter()
    while not hit_eos and not out.done and len(ids) < allowed:
        left = allowed - len(ids)
        guess, probs = _ask(draft, given + ids, min(k, left - 1), stream if p.temperature > 0 else None)
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
            logprobs.append(float(token_logprobs(rows[j], p, ids, given)[token]))
            ids.append(token)
            out.push(token)
            if out.done:
                break
        runner.rollback(n + len(ids) - 1)
    out.finish()
    end = perf_counter()
    drafted = sum(r[0] for r in rounds)
    accepted = sum(r[1] for r in rounds)
    rates = [ok / m for m, ok in rounds if m > 0]
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
            "acceptance_rate": sum(rates) / len(rates) if rates else 0.0,
            "target_calls": runner.calls,
            "tokens_per_s": len(ids) / (end - start) if end > start else 0.0,
        },
        finish_reason="stop" if hit_eos or out.done else "length",
    )
