import dataclasses
import time

import numpy as np

from impl import kv_cache, sampling


def cache_dims(model):
    names = ["n_layers", "n_kv_heads", "d_head", "max_len"]
    for holder in (model, getattr(model, "config", None), getattr(model, "cfg", None)):
        values = [getattr(holder, n) for n in names if hasattr(holder, n)]
        if len(values) == 4:
            return tuple(values)
        names = ["num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings"]
    raise ValueError("sizes missing")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self.flushed()

    def flushed(self):
        self.anchor = []
        self.open = []

    def push(self, token_id):
        self.open.append(token_id)
        extra = self.peek()
        if extra.endswith("\ufffd"):
            return ""
        if extra:
            self.anchor, self.open = self.open, []
        return extra

    def peek(self):
        return self.tok.decode(self.anchor + self.open)[len(self.tok.decode(self.anchor)):]

    def flush(self):
        extra = self.peek()
        self.flushed()
        return extra


@dataclasses.dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


class _Request:
    """Everything that belongs to one call of generate."""

    def __init__(self, model, tok, prompt_ids, p, cache, on_text, eos_ids, max_len):
        self.model, self.p, self.cache = model, p, cache
        self.prompt_ids = prompt_ids
        self.decoder = IncrementalDecoder(tok)
        self.on_text = on_text
        self.eos = frozenset(eos_ids)
        self.room = min(p.max_tokens, max_len - len(prompt_ids))
        self.rng = sampling.request_rng(p.seed if p.seed else 0)
        self.ids, self.logprobs, self.entropies = [], [], []
        self.text, self.shown = "", 0
        self.reason = "length"
        self.prefill_s = 0.0

    def call(self, ids, positions):
        out = self.model.forward(np.array([ids]), positions=np.array(positions), cache=self.cache)
        if isinstance(out, np.ndarray):
            return out[0, -1]
        return out.data[0, -1]

    def next_row(self):
        n = len(self.prompt_ids)
        if not self.ids or self.cache is None:
            every = self.prompt_ids + self.ids
            return self.call(every, range(len(every)))
        # the prompt takes 0 .. n - 1, the ids follow it
        return self.call([self.ids[-1]], [n + len(self.ids)])

    def stop_at(self):
        places = [self.text.find(s) for s in self.p.stop]
        places = [x for x in places if x != -1]
        return min(places) if places else None

    def show(self, end):
        if end > self.shown:
            if self.on_text is not None:
                self.on_text(self.text[self.shown:end])
            self.shown = end

    def take(self, piece, last):
        """Add a piece of text; True when a stop string ended the text."""
        self.text += piece
        at = self.stop_at()
        if at is not None:
            self.text = self.text[:at]
            self.show(at)
            return True
        end = len(self.text)
        if not last:
            while_holding = 0
            for s in self.p.stop:
                for k in range(1, len(s)):
                    if self.text.endswith(s[:k]):
                        while_holding = max(while_holding, k)
            end -= while_holding
        self.show(end)
        return False

    def run(self):
        t0 = time.perf_counter()
        ended = False
        while len(self.ids) < self.room and not ended:
            row = self.next_row()
            if not self.ids:
                self.prefill_s = time.perf_counter() - t0
            history = list(self.ids)
            tid, lp = sampling.sample(row, self.p, history, self.rng, prompt=self.prompt_ids)
            if tid in self.eos:
                self.reason = "stop"
                break
            self.entropies.append(sampling.sampled_entropy(row, self.p, history, self.prompt_ids))
            self.ids.append(tid)
            self.logprobs.append(lp)
            ended = self.take(self.decoder.push(tid), last=False)
        if not ended:
            ended = self.take(self.decoder.flush(), last=True)
        if ended:
            self.reason = "stop"
        total = time.perf_counter() - t0
        m = len(self.ids)
        return Generation(
            text=self.text,
            ids=self.ids,
            logprobs=self.logprobs,
            timings={"prefill_s": self.prefill_s, "decode_s": total - self.prefill_s, "total_s": total},
            stats={
                "prompt_tokens": len(self.prompt_ids),
                "completion_tokens": m,
                "mean_entropy": float(np.mean(self.entropies)) if m else 0.0,
                "tokens_per_s": m / total if total > 0 else 0.0,
            },
            finish_reason=self.reason,
        )


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = [int(x) for x in tok.encode(prompt)]
    if not prompt_ids:
        raise ValueError("no ids")
    layers, heads, width, max_len = cache_dims(model)
    if len(prompt_ids) > max_len:
        raise ValueError("prompt too long")
    if isinstance(cache, str):
        if cache == "contiguous":
            room = min(max_len, len(prompt_ids) + p.max_tokens)
            cache = kv_cache.KVCache(layers, heads, width, room, 1, kv_dtype)
        elif cache == "none":
            cache = None
        else:
            raise ValueError(cache)
    elif not all(hasattr(cache, x) for x in ("update", "seq_len", "positions", "mask")) or cache.seq_len() != 0:
        raise ValueError("cache")
    return _Request(model, tok, prompt_ids, p, cache, on_text, eos_ids, max_len).run()
