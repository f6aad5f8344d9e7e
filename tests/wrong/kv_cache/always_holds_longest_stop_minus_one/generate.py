import time
from dataclasses import dataclass

import numpy as np

from impl.kv_cache import KVCache
from impl.sampling import request_rng, sample, sampled_entropy


def _attrs(obj, names):
    if obj is not None and all(hasattr(obj, n) for n in names):
        return tuple(getattr(obj, n) for n in names)
    return None


def cache_dims(model):
    hf = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    for dims in (
        _attrs(model, ("n_layers", "n_kv_heads", "d_head", "max_len")),
        _attrs(getattr(model, "config", None), hf),
        _attrs(getattr(model, "cfg", None), hf),
    ):
        if dims:
            return dims
    raise ValueError("dims")


class IncrementalDecoder:
    def __init__(self, tok):
        self.tok = tok
        self.ids = []
        self.prefix = 0
        self.read = 0

    def _pending(self):
        seen = len(self.tok.decode(self.ids[self.prefix:self.read]))
        return self.tok.decode(self.ids[self.prefix:])[seen:]

    def push(self, token_id):
        self.ids.append(token_id)
        s = self._pending()
        if s and not s.endswith("\ufffd"):
            self.prefix, self.read = self.read, len(self.ids)
            return s
        return ""

    def flush(self):
        s = self._pending()
        self.__init__(self.tok)
        return s


@dataclass
class Generation:
    text: str
    ids: list
    logprobs: list
    timings: dict
    stats: dict
    finish_reason: str = "length"


class StopBuffer:
    """Holds back enough characters that no stop string can get through."""

    def __init__(self, stops, sink):
        self.stops = list(stops)
        self.window = max((len(s) for s in self.stops), default=1) - 1
        self.sink = sink
        self.buf = ""
        self.out = []
        self.hit = False

    def _emit(self, piece):
        if piece:
            self.out.append(piece)
            if self.sink:
                self.sink(piece)

    def write(self, piece):
        self.buf += piece
        at = min((i for i in map(self.buf.find, self.stops) if i >= 0), default=-1)
        if at >= 0:
            self.hit = True
            self._emit(self.buf[:at])
            self.buf = ""
        elif len(self.buf) > self.window:
            ready = len(self.buf) - self.window
            self._emit(self.buf[:ready])
            self.buf = self.buf[ready:]

    def close(self):
        self._emit(self.buf)
        self.buf = ""
        return "".join(self.out)


def generate(model, tok, prompt, p, cache="contiguous", kv_dtype=np.float32, on_text=None, eos_ids=()):
    p.validate()
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    n_layers, n_heads, width, max_len = cache_dims(model)
    n = len(prompt_ids)
    if n == 0:
        raise ValueError("empty prompt")
    if n > max_len:
        raise ValueError("long prompt")
    if cache == "none" if isinstance(cache, str) else False:
        kv = None
    elif isinstance(cache, str):
        if cache != "contiguous":
            raise ValueError("unknown cache")
        kv = KVCache(n_layers, n_heads, width, min(max_len, n + p.max_tokens), 1, kv_dtype)
    else:
        if not all(hasattr(cache, a) for a in ("update", "seq_len", "positions", "mask")):
            raise ValueError("not a cache")
        if cache.seq_len() != 0:
            raise ValueError("cache not empty")
        kv = cache

    clock = time.perf_counter
    started = clock()
    prefilled = None
    rng = request_rng(0 if p.seed is None else p.seed)
    decoder, buf = IncrementalDecoder(tok), StopBuffer(p.stop, on_text)
    ids, logprobs, entropies = [], [], []
    reason = "length"
    while len(ids) < p.max_tokens and n + len(ids) < max_len:
        if kv is not None and ids:
            chunk, first = ids[-1:], n + len(ids) - 1
        else:
            chunk, first = prompt_ids + ids, 0
        out = model.forward(np.asarray([chunk]), np.arange(first, first + len(chunk)), kv)
        row = (out if isinstance(out, np.ndarray) else out.data)[0, -1]
        prefilled = prefilled or clock()
        args = list(ids), list(prompt_ids)
        tid, lp = sample(row, p, args[0], rng, args[1])
        if tid in eos_ids:
            reason = "stop"
            break
        entropies.append(sampled_entropy(row, p, *args))
        ids.append(tid)
        logprobs.append(lp)
        buf.write(decoder.push(tid))
        if buf.hit:
            break
    if not buf.hit:
        buf.write(decoder.flush())
    text = buf.close()
    if buf.hit:
        reason = "stop"
    ended = clock()
    prefilled = prefilled or started
    total = ended - started
    return Generation(
        text,
        ids,
        logprobs,
        {"prefill_s": prefilled - started, "decode_s": ended - prefilled, "total_s": total},
        {
            "prompt_tokens": n,
            "completion_tokens": len(ids),
            "mean_entropy": sum(entropies) / len(ids) if ids else 0.0,
            "tokens_per_s": len(ids) / total if total > 0 else 0.0,
        },
        reason,
    )
