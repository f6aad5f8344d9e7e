import time
from dataclasses import dataclass, field

import numpy as np

import impl.sampling as sampling
from impl.kv_cache import KVCache


def cache_dims(model):
    def look(obj, *names):
        found = [getattr(obj, n, None) for n in names]
        return None if None in found else tuple(found)

    hf = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    dims = (
        look(model, "n_layers", "n_kv_heads", "d_head", "max_len")
        or look(getattr(model, "config", None), *hf)
        or look(getattr(model, "cfg", None), *hf)
    )
    if dims is None:
        raise ValueError("cannot find the sizes of the model")
    return dims


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self.done = []   # ids of the piece returned last
        self.wait = []   # ids whose text is still to come

    def _rest(self):
        before = self.tok.decode(self.done)
        after = self.tok.decode(self.done + self.wait)
        return after[len(before):]

    def push(self, token_id):
        self.wait = self.wait + [token_id]
        rest = self._rest()
        if rest.endswith("\ufffd"):
            return ""
        if rest:
            self.done, self.wait = self.wait, []
        return rest

    def flush(self):
        rest = self._rest()
        self.done, self.wait = [], []
        return rest


@dataclass
class Generation:
    text: str
    ids: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    timings: dict = field(default_factory=dict)
    stats: dict = field(default_factory=dict)
    finish_reason: str = "length"


def _rows(model, prompt_ids, ids, kv):
    """The logits for the next id, again and again; `ids` grows between two rounds."""
    known = 0
    while True:
        everything = prompt_ids + ids
        chunk = everything[known:]
        where = np.arange(known, len(everything))
        out = model.forward(np.array(chunk)[None, :], where, kv)
        out = out if isinstance(out, np.ndarray) else out.data
        if kv is not None:
            known = len(everything)
        yield out[0, -1, :]


def _split(text, stops):
    """(text that is final, text that may begin a stop string, was there a stop string)"""
    cuts = sorted(text.index(s) for s in stops if s in text)
    if cuts:
        return text[:cuts[0]], "", True
    keep = 0
    for s in stops:
        for size in range(1, len(s)):
            if text.endswith(s[:size]) and size > keep:
                keep = size
    return text[:len(text) - keep], text[len(text) - keep:], False


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = list(map(int, tok.encode(prompt)))
    layers, heads, width, max_len = cache_dims(model)
    n = len(prompt_ids)
    if n < 1 or n > max_len:
        raise ValueError("bad length of the prompt")
    if isinstance(cache, str):
        if cache not in ("none", "contiguous"):
            raise ValueError("bad cache")
        kv = None
        if cache == "contiguous":
            kv = KVCache(layers, heads, width, min(max_len, n + p.max_tokens), dtype=kv_dtype)
    else:
        for name in "update seq_len positions mask".split():
            if not hasattr(cache, name):
                raise ValueError("bad cache")
        if cache.seq_len() > 0:
            raise ValueError("cache in use")
        kv = cache

    start = time.monotonic()
    prefill = 0.0
    rng = sampling.request_rng(p.seed or 0)
    decoder = IncrementalDecoder(tok)
    ids, logprobs, entropies = [], [], []
    final, held, stopped, reason = "", "", False, "length"
    allowed = min(p.max_tokens, max_len - n)

    def emit(piece):
        nonlocal final
        final += piece
        if piece and on_text:
            on_text(piece)

    rows = _rows(model, prompt_ids, ids, kv)
    for i in range(allowed):
        row = next(rows)
        if i == 0:
            prefill = time.monotonic() - start
        tid, lp = sampling.sample(row, p, ids[:], rng, prompt_ids[:])
        if tid in eos_ids:
            reason = "stop"
            break
        entropies.append(sampling.sampled_entropy(row, p, ids[:], prompt_ids[:]))
        logprobs.append(lp)
        ids.append(tid)
        ready, held, stopped = _split(held + decoder.push(tid), p.stop)
        emit(ready)
        if stopped:
            break
    if not stopped:
        ready, held, stopped = _split(held + decoder.flush(), p.stop)
        emit(ready + held)
    total = time.monotonic() - start
    stats = {"prompt_tokens": n, "completion_tokens": len(ids)}
    stats["mean_entropy"] = sum(entropies) / len(ids) if ids else 0.0
    stats["tokens_per_s"] = len(ids) / total if total > 0 else 0.0
    timings = {"prefill_s": prefill, "decode_s": max(0.0, total - prefill), "total_s": total}
    return Generation(final, ids, logprobs, timings, stats, "stop" if stopped else reason)
