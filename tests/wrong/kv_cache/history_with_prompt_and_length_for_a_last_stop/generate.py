import time
from dataclasses import dataclass

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy

REPLACEMENT = chr(0xFFFD)


def cache_dims(model):
    if hasattr(model, "n_layers") and hasattr(model, "n_kv_heads") and hasattr(model, "d_head") and hasattr(model, "max_len"):
        return (model.n_layers, model.n_kv_heads, model.d_head, model.max_len)
    for cfg in [getattr(model, "config", None), getattr(model, "cfg", None)]:
        d = []
        for key in ["num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings"]:
            if hasattr(cfg, key):
                d.append(getattr(cfg, key))
        if len(d) == 4:
            return tuple(d)
    raise ValueError("cannot tell the sizes of this model")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self.before = []
        self.after = []

    def push(self, token_id):
        self.after.append(token_id)
        a = self.tok.decode(self.before)
        b = self.tok.decode(self.before + self.after)
        if len(b) <= len(a) or b.endswith(REPLACEMENT):
            return ""
        self.before = self.after
        self.after = []
        return b[len(a):]

    def flush(self):
        a = self.tok.decode(self.before)
        b = self.tok.decode(self.before + self.after)
        self.before = []
        self.after = []
        return b[len(a):]


@dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    tokens = [int(i) for i in tok.encode(prompt)]
    n_prompt = len(tokens)
    prompt_ids = tuple(tokens)
    if n_prompt < 1:
        raise ValueError("nothing to start from")
    dims = cache_dims(model)
    if n_prompt > dims[3]:
        raise ValueError("prompt above max_len")
    if isinstance(cache, str) and cache == "none":
        kv = None
    elif isinstance(cache, str) and cache == "contiguous":
        kv = KVCache(*dims[:3], max_len=min(dims[3], n_prompt + p.max_tokens), batch=1, dtype=kv_dtype)
    elif isinstance(cache, str):
        raise ValueError("unknown cache: " + cache)
    else:
        kv = cache
        for method in ["update", "seq_len", "positions", "mask"]:
            if not hasattr(kv, method):
                raise ValueError("object is no cache")
        if kv.seq_len() != 0:
            raise ValueError("cache holds a text already")

    say = on_text if on_text is not None else (lambda s: None)
    rng = request_rng(0 if p.seed is None else p.seed)
    dec = IncrementalDecoder(tok)
    lps = []
    ent = 0.0
    text = ""
    pending = ""
    found = False

    def absorb(piece):
        """Move what is final from pending to text."""
        nonlocal text, pending, found
        pending += piece
        cuts = [pending.find(s) for s in p.stop]
        cuts = [c for c in cuts if c >= 0]
        if cuts:
            found = True
            ready, pending = pending[:min(cuts)], ""
        else:
            hold = 0
            for s in p.stop:
                k = len(s) - 1
                while k > hold:
                    if pending.endswith(s[:k]):
                        hold = k
                    k -= 1
            ready, pending = pending[:len(pending) - hold], pending[len(pending) - hold:]
        text += ready
        if ready:
            say(ready)

    clock0 = time.perf_counter()
    clock1 = clock0
    last = min(dims[3], n_prompt + p.max_tokens)
    reason = "stop"
    while True:
        if len(tokens) == last:
            reason = "length"
            break
        if found:
            break
        if len(tokens) == n_prompt or kv is None:
            out = model.forward(np.array([tokens]), positions=np.arange(len(tokens)), cache=kv)
        else:
            out = model.forward(np.array([tokens[-1:]]), positions=np.array([len(tokens) - 1]), cache=kv)
        if len(tokens) == n_prompt:
            clock1 = time.perf_counter()
        row = out[0, -1] if isinstance(out, np.ndarray) else out.data[0, -1]
        token, lp = sample(row, p, list(tokens), rng, prompt=prompt_ids)
        if token in eos_ids:
            break
        ent += sampled_entropy(row, p, list(tokens), prompt_ids)
        tokens.append(token)
        lps.append(lp)
        absorb(dec.push(token))
    if not found:
        absorb(dec.flush())
        if found:
            reason = "stop"
    if pending:
        text += pending
        say(pending)
    clock2 = time.perf_counter()
    m = len(tokens) - n_prompt
    return Generation(
        text=text,
        ids=tokens[n_prompt:],
        logprobs=lps,
        timings={"prefill_s": clock1 - clock0, "decode_s": clock2 - clock1, "total_s": clock2 - clock0},
        stats={
            "prompt_tokens": n_prompt,
            "completion_tokens": m,
            "mean_entropy": ent / m if m > 0 else 0.0,
            "tokens_per_s": m / (clock2 - clock0) if clock2 > clock0 else 0.0,
        },
        finish_reason=reason,
    )
