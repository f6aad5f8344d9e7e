from __future__ import annotations

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
        self._rows = {}

    def _row(self, ctx):
        """An n-gram model looks at the last few ids only, so ask it once for each of them."""
        key = tuple(ctx[-3:])
        if key not in self._rows:
            self._rows[key] = self.lm.logprobs(list(ctx))
        return self._rows[key]

    def propose(self, ctx, k, rng):
        _nonnegative(k)
        so_far = list(map(int, ctx))
        pairs = []
        while len(pairs) < k:
            pairs.append(_pick(self._row(so_far), self.PARAMS, rng))
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
