"""From logits to one token, with sets."""
import math
import numbers
from dataclasses import dataclass, field

import numpy as np

from impl.rng import PCG32

INT_FIELDS = {"top_k": 0, "max_tokens": 1, "logprobs": 0}
FLOAT_FIELDS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    stop: list[str] = field(default_factory=list)
    logprobs: int = 0

    def validate(self):
        for name, low in INT_FIELDS.items():
            self._int(name, low)
        if self.seed is not None:
            self._int("seed", 0)
        for name in FLOAT_FIELDS:
            x = getattr(self, name)
            if isinstance(x, bool) or not isinstance(x, (int, float)) or x in (math.inf, -math.inf) or x != x:
                raise ValueError(f"{name}={x!r} is not a finite number")
        rules = [
            ("temperature", self.temperature >= 0),
            ("top_p", self.top_p > 0),
            ("top_p", self.top_p <= 1),
            ("min_p", self.min_p >= 0),
            ("min_p", self.min_p <= 1),
            ("repetition_penalty", self.repetition_penalty > 0),
        ]
        broken = {name for name, holds in rules if not holds}
        if broken:
            raise ValueError("out of range: " + ", ".join(sorted(broken)))

    def _int(self, name, low):
        x = getattr(self, name)
        if isinstance(x, bool) or not isinstance(x, int) or x < low:
            raise ValueError(f"{name}={x!r} is not an int >= {low}")


def request_rng(seed):
    return PCG32(seed).substream("sample")


def _logits(logits):
    if not (isinstance(logits, np.ndarray) and logits.ndim == 1 and logits.size):
        raise ValueError("logits: want a non-empty vector")
    if logits.dtype not in {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}:
        raise ValueError(f"logits: dtype {logits.dtype} is not a float type we take")
    out = np.array(logits, dtype=np.float64)
    if np.isnan(out).any() or (out == np.inf).any():
        raise ValueError("logits: NaN or +inf")
    if not np.isfinite(out).any():
        raise ValueError("logits: all masked")
    return out


def _check_tokens(what, tokens, n):
    if isinstance(tokens, np.ndarray) and tokens.ndim != 1:
        raise ValueError(f"{what}: want one axis")
    clean = []
    for t in tokens:
        if isinstance(t, bool) or not isinstance(t, numbers.Integral):
            raise ValueError(f"{what}: {t!r} is not an integer")
        if int(t) not in range(n):
            raise ValueError(f"{what}: {t} is not in [0, {n})")
        clean.append(int(t))
    return clean


def _live(l):
    return {i for i in range(len(l)) if l[i] != -np.inf}


def _softmax(l, ids):
    """{id: probability} over the set `ids`."""
    peak = max(float(l[i]) for i in ids)
    z = 0.0
    weight = {}
    for i in sorted(ids):
        weight[i] = math.exp(float(l[i]) - peak)
        z += weight[i]
    return {i: w / z for i, w in weight.items()}


def _rank(l, ids):
    """Largest logit first, and the smaller id first among equals."""
    ascending = sorted(ids)
    return sorted(ascending, key=lambda i: l[i], reverse=True)


def _top_k(l, ids, k):
    return set(_rank(l, ids)[:k]) if 0 < k < len(l) else ids


def _top_p(l, ids, top_p):
    if top_p == 1:
        return ids
    q = _softmax(l, ids)
    kept = set()
    mass = 0.0
    for i in _rank(l, ids):
        if mass >= top_p:
            break
        kept.add(i)
        mass += q[i]
    return kept


def _min_p(l, ids, min_p):
    if min_p == 0:
        return ids
    q = _softmax(l, ids)
    bar = min_p * max(q.values())
    return ids - {i for i in ids if q[i] < bar}


def _penalties(logits, p, history, prompt):
    p.validate()
    l = _logits(logits)
    history = _check_tokens("history", history, len(l))
    prompt = _check_tokens("prompt", prompt, len(l))
    for i in prompt + history:
        if l[i] > 0:
            l[i] /= p.repetition_penalty
        else:
            l[i] *= p.repetition_penalty
    for i in set(history):
        l[i] -= p.frequency_penalty * history.count(i)
        l[i] -= p.presence_penalty
    return l


def _argmax(l):
    best = max(l)
    return min(i for i in range(len(l)) if l[i] == best)


def _log_softmax(l):
    peak = float(max(l))
    z = 0.0
    for x in l:
        z += math.exp(float(x) - peak)
    return (l - peak) - math.log(z)


def _filtered(l, p):
    """Tempered logits and the set of ids that may be drawn."""
    t = l / p.temperature
    ids = _live(t)
    ids = _top_k(t, ids, p.top_k)
    ids = _top_p(t, ids, p.top_p)
    ids = _min_p(t, ids, p.min_p)
    return t, ids


def _chances(l, p):
    """{id: probability} of the ids that may be drawn."""
    if p.temperature == 0:
        return {_argmax(l): 1.0}
    t, ids = _filtered(l, p)
    return _softmax(t, ids)


def apply_penalties(logits, p, history=(), prompt=()):
    return _penalties(logits, p, history, prompt)


def token_logprobs(logits, p, history=(), prompt=()):
    return _log_softmax(_penalties(logits, p, history, prompt))


def process_logits(logits, p, history=(), prompt=()):
    l = _penalties(logits, p, history, prompt)
    if p.temperature == 0:
        return l
    t, ids = _filtered(l, p)
    gone = set(range(len(t))) - ids
    t[list(gone)] = -np.inf
    return t


def sampling_distribution(logits, p, history=(), prompt=()):
    l = _penalties(logits, p, history, prompt)
    q = np.zeros(len(l))
    for i, x in _chances(l, p).items():
        q[i] = x
    return q


def sample(logits, p, history, rng, prompt=()):
    l = _penalties(logits, p, history, prompt)
    q = _chances(l, p)
    if p.temperature == 0:
        token = _argmax(l)
    else:
        possible = sorted(i for i in q if q[i] > 0)
        token = possible[-1]
        u = rng.uniform()
        c = 0.0
        for i in possible:
            c += q[i]
            if u < c:
                token = i
                break
    return token, float(_log_softmax(l)[token])


def sampled_entropy(logits, p, history=(), prompt=()):
    q = _chances(_penalties(logits, p, history, prompt), p)
    s = 0.0
    for i in sorted(q):
        if q[i] > 0:
            s += q[i] * math.log(q[i])
    return 0.0 - s
