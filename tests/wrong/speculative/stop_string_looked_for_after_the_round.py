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
