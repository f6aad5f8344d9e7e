from __future__ import annotations

import dataclasses
from time import perf_counter

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy

OWN = ["n_layers", "n_kv_heads", "d_head", "max_len"]
HF = ["num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings"]


def cache_dims(model):
    candidates = [(model, OWN)]
    candidates += [(getattr(model, a), HF) for a in ("config", "cfg") if hasattr(model, a)]
    for obj, attrs in candidates:
        try:
            a, b, c, d = [getattr(obj, x) for x in attrs]
        except AttributeError:
            continue
        return a, b, c, d
    raise ValueError("no sizes")


class IncrementalDecoder:
    """Two offsets into one list of ids: text is decode(ids[start:]) minus decode(ids[start:read])."""

    def __init__(self, tok):
        self._decode = tok.decode
        self._restart()

    def _restart(self):
        self.ids, self.start, self.read = [], 0, 0

    def _delta(self):
        old = self._decode(self.ids[self.start : self.read])
        return self._decode(self.ids[self.start :])[len(old) :]

    def push(self, token_id):
        self.ids.append(token_id)
        delta = self._delta()
        if not delta or delta[-1] == "\N{REPLACEMENT CHARACTER}":
            return ""
        self.start, self.read = self.read, len(self.ids)
        return delta

    def flush(self):
        delta = self._delta()
        self._restart()
        return delta


@dataclasses.dataclass
class Generation:
    text: str
    ids: list[int]
    logprobs: list[float]
    timings: dict[str, float]
    stats: dict[str, float]
    finish_reason: str = "length"


class _Output:
    """The text so far, what of it was handed over, and whether a stop string was met."""

    def __init__(self, stops, on_text):
        self.stops = [s for s in stops if s]
        self.on_text = on_text or (lambda piece: None)
        self.text = ""
        self.sent = 0
        self.stopped = False

    def add(self, piece):
        self.text += piece
        hits = [self.text.find(s) for s in self.stops if s in self.text]
        if hits:
            self.text = self.text[: min(hits)]
            self.stopped = True
            self._send(len(self.text))
        else:
            self._send(len(self.text) - self._tail())
        return self.stopped

    def _tail(self):
        for at in range(len(self.text)):
            end = self.text[at:]
            if any(s.startswith(end) and s != end for s in self.stops):
                return len(end)
        return 0

    def _send(self, end):
        if end > self.sent:
            self.on_text(self.text[self.sent : end])
            self.sent = end

    def close(self):
        self._send(len(self.text))


def _open_cache(cache, dims, room, kv_dtype):
    if isinstance(cache, str):
        if cache == "none":
            return None
        if cache == "contiguous":
            return KVCache(*dims[:3], room, batch=1, dtype=kv_dtype)
        raise ValueError(cache)
    if not all(hasattr(cache, m) for m in ("update", "seq_len", "positions", "mask")):
        raise ValueError("cache")
    if cache.seq_len():
        raise ValueError("cache holds something")
    return cache


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = list(tok.encode(prompt))
    dims = cache_dims(model)
    limit = dims[3]
    if not 1 <= len(prompt_ids) <= limit:
        raise ValueError("prompt length")
    kv = _open_cache(cache, dims, min(limit, len(prompt_ids) + p.max_tokens), kv_dtype)
    rng = request_rng(p.seed if p.seed is not None else 0)
    eos = set(eos_ids)
    out, dec = _Output(p.stop, on_text), IncrementalDecoder(tok)
    ids, logprobs, entropy = [], [], 0.0
    reason = None
    begin = perf_counter()
    prefilled = begin

    feed, pos = list(prompt_ids), 0
    while reason is None:
        if len(ids) == p.max_tokens or len(prompt_ids) + len(ids) == limit:
            reason = "length"
            break
        res = model.forward(np.asarray([feed]), positions=np.arange(pos, pos + len(feed)), cache=kv)
        logits = (res if isinstance(res, np.ndarray) else res.data)[0][-1]
        if not ids:
            prefilled = perf_counter()
        seen = tuple(ids)
        tid, lp = sample(logits, p, seen, rng, prompt=prompt_ids)
        if tid in eos:
            reason = "stop"
            break
        entropy += sampled_entropy(logits, p, seen, prompt_ids)
        ids.append(tid)
        logprobs.append(lp)
        if out.add(dec.push(tid)):
            reason = "stop"
        elif kv is None:
            feed = feed + [tid]
        else:
            pos += len(feed)
            feed = [tid]

    if not out.stopped and out.add(dec.flush()):
        reason = "stop"
    out.close()
    end = perf_counter()
    total = end - begin
    return Generation(
        out.text,
        ids,
        logprobs,
        dict(prefill_s=prefilled - begin, decode_s=end - prefilled, total_s=total),
        dict(
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(ids),
            mean_entropy=entropy / len(ids) if ids else 0.0,
            tokens_per_s=len(ids) / total if total else 0.0,
        ),
        reason,
    )
