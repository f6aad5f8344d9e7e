import time
from dataclasses import dataclass

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy


def cache_dims(model):
    try:
        return model.n_layers, model.n_kv_heads, model.d_head, model.max_len
    except AttributeError:
        pass
    for name in ("config", "cfg"):
        try:
            c = getattr(model, name)
            return c.num_hidden_layers, c.num_key_value_heads, c.head_dim, c.max_position_embeddings
        except AttributeError:
            pass
    raise ValueError("unknown sizes")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self.ids = []
        self.a = 0  # decodes start here
        self.b = 0  # the text of ids[a:b] was returned

    def push(self, token_id):
        self.ids.append(token_id)
        new = self._new()
        if new == "" or new[-1] == "\ufffd":
            return ""
        self.a = self.b
        self.b = len(self.ids)
        return new

    def _new(self):
        shown = self.tok.decode(self.ids[self.a:self.b])
        return self.tok.decode(self.ids[self.a:])[len(shown):]

    def flush(self):
        new = self._new()
        self.ids, self.a, self.b = [], 0, 0
        return new


@dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


def earliest(text, stops):
    found = [text.index(s) for s in stops if s in text]
    return min(found, default=None)


def safe_length(text, stops):
    # the first place from which the rest could become a stop string
    for i in range(len(text)):
        tail = text[i:]
        for s in stops:
            if len(tail) < len(s) and s[:len(tail)] == tail:
                return i
    return len(text)


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = [int(t) for t in tok.encode(prompt)]
    n = len(prompt_ids)
    L, H, E, max_len = cache_dims(model)
    if n == 0 or n > max_len:
        raise ValueError("length of the prompt")
    if not isinstance(cache, str):
        for m in ("update", "seq_len", "positions", "mask"):
            if not hasattr(cache, m):
                raise ValueError("not a cache")
        if cache.seq_len() != 0:
            raise ValueError("not an empty cache")
    elif cache == "contiguous":
        cache = KVCache(L, H, E, min(max_len, n + p.max_tokens), 1, kv_dtype)
    elif cache == "none":
        cache = None
    else:
        raise ValueError("no such cache")

    def last_row(out):
        return (out if isinstance(out, np.ndarray) else out.data)[0, -1]

    t_start = time.perf_counter()
    ids, lps, ents = [], [], []
    text, sent = "", 0
    reason = "length"
    rng = request_rng(0 if p.seed is None else p.seed)
    dec = IncrementalDecoder(tok)
    steps = min(p.max_tokens, max_len - n)

    # prefill
    if steps > 0:
        logits = last_row(model.forward(np.array([prompt_ids]), np.arange(n), cache))
    t_prefill = time.perf_counter()

    # decode
    cut = None
    for step in range(steps):
        tok_id, lp = sample(logits, p, ids[:], rng, prompt_ids)
        if tok_id in eos_ids:
            reason = "stop"
            break
        ents.append(sampled_entropy(logits, p, ids[:], prompt_ids))
        ids.append(tok_id)
        lps.append(lp)
        if cache is None:
            logits = last_row(model.forward(np.array([prompt_ids + ids]), np.arange(n + len(ids)), None))
        else:
            logits = last_row(model.forward(np.array([[tok_id]]), np.array([n + step]), cache))
        text += dec.push(tok_id)
        cut = earliest(text, p.stop)
        if cut is not None:
            break
        safe = safe_length(text, p.stop)
        if safe > sent:
            if on_text:
                on_text(text[sent:safe])
            sent = safe

    if cut is None:
        text += dec.flush()
        cut = earliest(text, p.stop)
    if cut is not None:
        text, reason = text[:cut], "stop"
    if on_text and text[sent:]:
        on_text(text[sent:])

    t_end = time.perf_counter()
    total = t_end - t_start
    return Generation(
        text, ids, lps,
        {"prefill_s": t_prefill - t_start, "decode_s": t_end - t_prefill, "total_s": total},
        {"prompt_tokens": n, "completion_tokens": len(ids),
         "mean_entropy": sum(ents) / len(ents) if ents else 0.0,
         "tokens_per_s": len(ids) / total if total else 0.0},
        reason,
    )
