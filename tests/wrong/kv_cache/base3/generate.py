import time
from dataclasses import dataclass

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy

_BAD = "\ufffd"


def cache_dims(model):
    names = ("n_layers", "n_kv_heads", "d_head", "max_len")
    if all(hasattr(model, n) for n in names):
        return tuple(getattr(model, n) for n in names)
    names = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    for where in ("config", "cfg"):
        holder = getattr(model, where, None)
        if holder is not None and all(hasattr(holder, n) for n in names):
            return tuple(getattr(holder, n) for n in names)
    raise ValueError("the model does not say its sizes")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self._context = []  # ids before the boundary, their text was returned
        self._pending = []  # ids after it

    def push(self, token_id):
        self._pending.append(token_id)
        new = self._unseen()
        if new == "" or new.endswith(_BAD):
            return ""
        # the next context is what was just shown, unless it shows nothing when it stands alone
        if self.tok.decode(self._pending):
            self._context = self._pending
        else:
            self._context = self._context + self._pending
        self._pending = []
        return new

    def flush(self):
        rest = self._unseen() if self._pending else ""
        self._context = []
        self._pending = []
        return rest

    def _unseen(self):
        known = self.tok.decode(self._context) if self._context else ""
        return self.tok.decode(self._context + self._pending)[len(known):]


@dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


def _first_stop(text, stops):
    best = -1
    for s in stops:
        at = text.find(s) if s else -1
        if at >= 0 and (best < 0 or at < best):
            best = at
    return best


def _held(text, stops):
    longest = 0
    for s in stops:
        for k in range(min(len(s) - 1, len(text)), longest, -1):
            if text.endswith(s[:k]):
                longest = k
                break
    return longest


def _check_cache(cache):
    if isinstance(cache, str):
        if cache not in ("contiguous", "none"):
            raise ValueError("unknown kind of cache")
        return
    for name in ("update", "seq_len", "positions", "mask"):
        if not callable(getattr(cache, name, None)):
            raise ValueError("this is no cache")
    if cache.seq_len() != 0:
        raise ValueError("the cache is in use")


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    n = len(prompt_ids)
    if n == 0:
        raise ValueError("empty prompt")
    n_layers, n_kv_heads, d_head, max_len = cache_dims(model)
    if n > max_len:
        raise ValueError("the prompt is longer than the model's max_len")
    _check_cache(cache)
    if isinstance(cache, str):
        if cache == "contiguous":
            store = KVCache(n_layers, n_kv_heads, d_head, min(max_len, n + p.max_tokens), 1, kv_dtype)
        else:
            store = None
    else:
        store = cache

    def forward(ids, start):
        out = model.forward(
            np.array([ids], dtype=np.int64),
            positions=np.arange(start, start + len(ids), dtype=np.int64),
            cache=store,
        )
        if not isinstance(out, np.ndarray):
            out = out.data
        return out[0, -1]

    rng = request_rng(0 if p.seed is None else p.seed)
    decoder = IncrementalDecoder(tok)
    stops = list(p.stop)
    ids, logprobs, entropies = [], [], []
    text = ""
    given = 0
    reason = "length"
    cut = -1
    budget = min(p.max_tokens, max_len - n)

    t0 = time.perf_counter()
    row = forward(prompt_ids, 0) if budget > 0 else None
    t1 = time.perf_counter()
    while len(ids) < budget:
        if ids:
            if store is None:
                row = forward(prompt_ids + ids, 0)
            else:
                row = forward(ids[-1:], n + len(ids) - 1)
        token, logprob = sample(row, p, list(ids), rng, prompt=list(prompt_ids))
        if token in eos_ids:
            reason = "stop"
            break
        entropies.append(sampled_entropy(row, p, list(ids), list(prompt_ids)))
        ids.append(token)
        logprobs.append(logprob)
        text += decoder.push(token)
        cut = _first_stop(text, stops)
        if cut >= 0:
            reason = "stop"
            break
        upto = len(text) - _held(text, stops)
        if upto > given:
            piece = text[given:upto]
            given = upto
            if on_text is not None:
                on_text(piece)
    if cut < 0:
        text += decoder.flush()
        cut = _first_stop(text, stops)
    if cut >= 0:
        text = text[:cut]
        reason = "stop"
    if on_text is not None and len(text) > given:
        on_text(text[given:])
    t2 = time.perf_counter()

    total = t2 - t0
    mean = 0.0
    if entropies:
        for e in entropies:
            mean += e
        mean /= len(entropies)
    timings = {"prefill_s": t1 - t0, "decode_s": min(t2 - t1, total), "total_s": total}
    stats = {
        "prompt_tokens": n,
        "completion_tokens": len(ids),
        "mean_entropy": mean,
        "tokens_per_s": len(ids) / total if total > 0 else 0.0,
    }
    return Generation(text, ids, logprobs, timings, stats, reason)
