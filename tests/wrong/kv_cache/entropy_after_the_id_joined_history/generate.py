from dataclasses import dataclass
from time import perf_counter as now

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy


def cache_dims(model):
    here = ("n_layers", "n_kv_heads", "d_head", "max_len")
    there = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    missing = object()
    for obj, names in ((model, here), (getattr(model, "config", None), there), (getattr(model, "cfg", None), there)):
        got = tuple(getattr(obj, n, missing) for n in names)
        if all(g is not missing for g in got):
            return got
    raise ValueError("no sizes found")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok, self.old, self.new = tok, (), ()

    def push(self, token_id):
        self.new += (token_id,)
        text = self._text()
        if text[-1:] in ("", "\ufffd"):
            return ""
        self.old, self.new = self.new, ()
        return text

    def _text(self):
        return self.tok.decode(list(self.old + self.new))[len(self.tok.decode(list(self.old))):]

    def flush(self):
        text = self._text()
        self.old = self.new = ()
        return text


@dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


def scan(text, stops):
    """(end of the text that may be shown, True when a stop string begins there)"""
    hits = [text.find(s) for s in stops if text.find(s) >= 0]
    if hits:
        return min(hits), True
    sizes = [k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])]
    return len(text) - max(sizes, default=0), False


def pick_cache(cache, dims, need, kv_dtype):
    match cache:
        case "none":
            return None
        case "contiguous":
            return KVCache(dims[0], dims[1], dims[2], min(dims[3], need), dtype=kv_dtype)
        case str():
            raise ValueError(f"cache {cache!r}")
    if any(getattr(cache, f, None) is None for f in ("update", "seq_len", "positions", "mask")):
        raise ValueError("cache without the methods of a cache")
    if cache.seq_len() != 0:
        raise ValueError("cache is not new")
    return cache


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    dims = cache_dims(model)
    if not 0 < len(prompt_ids) <= dims[3]:
        raise ValueError("prompt does not fit")
    kv = pick_cache(cache, dims, len(prompt_ids) + p.max_tokens, kv_dtype)
    rng = request_rng(p.seed or 0)
    decoder = IncrementalDecoder(tok)

    gen = Generation("", [], [], {}, {})
    entropy_sum = 0.0
    shown = 0
    cut = False
    t = [now()]
    everything = list(prompt_ids)
    fed = 0
    while len(gen.ids) < p.max_tokens and len(everything) < dims[3]:
        start = fed if kv is not None else 0
        chunk = everything[start:]
        out = model.forward(np.array([chunk]), positions=np.arange(start, start + len(chunk)), cache=kv)
        fed = len(everything)
        logits = out if isinstance(out, np.ndarray) else out.data
        row = logits[0, len(chunk) - 1]
        if len(t) == 1:
            t.append(now())
        tid, lp = sample(row, p, list(gen.ids), rng, prompt=prompt_ids)
        if tid in eos_ids:
            gen.finish_reason = "stop"
            break
        gen.ids.append(tid)
        gen.logprobs.append(lp)
        everything.append(tid)
        entropy_sum += sampled_entropy(row, p, gen.ids, prompt_ids)
        gen.text += decoder.push(tid)
        end, cut = scan(gen.text, p.stop)
        if end > shown and on_text is not None:
            on_text(gen.text[shown:end])
        shown = max(shown, end)
        if cut:
            break
    if not cut:
        gen.text += decoder.flush()
        end, cut = scan(gen.text, p.stop)
        if not cut:
            end = len(gen.text)
        if end > shown and on_text is not None:
            on_text(gen.text[shown:end])
    if cut:
        gen.text = gen.text[:end]
        gen.finish_reason = "stop"
    if len(t) == 1:
        t.append(t[0])
    t.append(now())
    m = len(gen.ids)
    gen.timings = {"prefill_s": t[1] - t[0], "decode_s": t[2] - t[1], "total_s": t[2] - t[0]}
    gen.stats = {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": m,
        "mean_entropy": entropy_sum / m if m else 0.0,
        "tokens_per_s": m / (t[2] - t[0]) if t[2] > t[0] else 0.0,
    }
    return gen
