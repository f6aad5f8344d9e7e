"""Sampler on heapq and bisect."""
import bisect
import heapq
import itertools
import math
from array import array
from dataclasses import dataclass, field

import numpy as np

from impl.rng import PCG32

INF = math.inf


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

    def validate(self) -> None:
        for name in ["top_k", "max_tokens", "logprobs"]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(name + " must be an int")
        for name in ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                     "frequency_penalty"]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(name + " must be a number")
            if math.isnan(value) or math.isinf(value):
                raise ValueError(name + " must be finite")
        if self.seed is not None:
            if isinstance(self.seed, bool) or not isinstance(self.seed, int):
                raise ValueError("seed must be None or an int")
            if self.seed < 0:
                raise ValueError("seed must not be negative")
        if self.temperature < 0:
            raise ValueError("temperature must not be negative")
        if self.top_k < 0:
            raise ValueError("top_k must not be negative")
        if self.top_p <= 0 or self.top_p > 1:
            raise ValueError("top_p must be in (0, 1]")
        if self.min_p < 0 or self.min_p > 1:
            raise ValueError("min_p must be in [0, 1]")
        if self.repetition_penalty <= 0:
            raise ValueError("repetition_penalty must be positive")
        if self.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        if self.logprobs < 0:
            raise ValueError("logprobs must not be negative")


def request_rng(seed):
    return PCG32(seed)


def _logit_vector(logits):
    if not isinstance(logits, np.ndarray):
        raise ValueError("logits is not an array")
    if logits.ndim != 1 or logits.size < 1:
        raise ValueError("logits is not a vector")
    if logits.dtype not in (np.dtype("f2"), np.dtype("f4"), np.dtype("f8")):
        raise ValueError("logits is not floating point")
    vector = array("d", logits.astype("f8").tobytes())
    finite = 0
    for x in vector:
        if -INF < x < INF:
            finite += 1
        elif x != -INF:
            raise ValueError("logits has a NaN or a +inf")
    if finite == 0:
        raise ValueError("logits has no allowed id")
    return vector


def _count(ids, size):
    if isinstance(ids, np.ndarray) and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        raise ValueError("not a vector of ids")
    counts = [0] * size
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < size:
            raise ValueError(f"{i!r} is not a token id below {size}")
        counts[i] += 1
    return counts


def _penalised(logits, p, history, prompt):
    p.validate()
    v = _logit_vector(logits)
    in_history = _count(history, len(v))
    in_prompt = _count(prompt, len(v))
    for i, (h, g) in enumerate(zip(in_history, in_prompt)):
        if h or g:
            v[i] = v[i] / p.repetition_penalty if v[i] > 0 else v[i] * p.repetition_penalty
        if h:
            v[i] = (v[i] - p.frequency_penalty * h) - p.presence_penalty
    return v


def _accumulated(values):
    last = 0.0
    for last in itertools.accumulate(values, initial=0.0):
        pass
    return last


def _probs(v, ids):
    """Softmax of v over the ascending list ids."""
    peak = max(v[i] for i in ids)
    e = [math.exp(v[i] - peak) for i in ids]
    z = _accumulated(e)
    return [x / z for x in e]


def _largest(n, v, ids):
    return heapq.nsmallest(n, ids, key=lambda i: (-v[i], i))


def _filter(v, p):
    ids = [i for i, x in enumerate(v) if x != -INF]
    if 0 < p.top_k < len(v):
        ids = sorted(_largest(p.top_k, v, ids))
    if p.top_p < 1:
        prob = dict(zip(ids, _probs(v, ids)))
        heap = [(-v[i], i) for i in ids]
        heapq.heapify(heap)
        taken, mass = [], 0.0
        while heap and not mass >= p.top_p:
            _, i = heapq.heappop(heap)
            taken.append(i)
            mass += prob[i]
        ids = sorted(taken)
    if p.min_p > 0:
        prob = _probs(v, ids)
        bar = p.min_p * max(prob)
        ids = [i for i, x in zip(ids, prob) if x >= bar]
    return ids


def _tempered(v, p):
    return array("d", (x / p.temperature for x in v))


def _ids_and_probs(v, p):
    """The ids that can be drawn, ascending, and their probabilities."""
    if p.temperature == 0:
        return _largest(1, v, range(len(v))), [1.0]
    t = _tempered(v, p)
    ids = _filter(t, p)
    return ids, _probs(t, ids)


def _logprob(v):
    peak = max(v)
    norm = math.log(_accumulated(math.exp(x - peak) for x in v))
    return [(x - peak) - norm for x in v]


def apply_penalties(logits, p, history=(), prompt=()):
    return np.array(_penalised(logits, p, history, prompt), dtype=np.float64)


def token_logprobs(logits, p, history=(), prompt=()):
    return np.array(_logprob(_penalised(logits, p, history, prompt)), dtype=np.float64)


def process_logits(logits, p, history=(), prompt=()):
    v = _penalised(logits, p, history, prompt)
    if p.temperature == 0:
        return np.array(v, dtype=np.float64)
    t = _tempered(v, p)
    out = np.full(len(v), -INF)
    for i in _filter(t, p):
        out[i] = t[i]
    return out


def sampling_distribution(logits, p, history=(), prompt=()):
    v = _penalised(logits, p, history, prompt)
    ids, probs = _ids_and_probs(v, p)
    out = np.zeros(len(v))
    out[ids] = probs
    return out


def sample(logits, p, history, rng, prompt=()):
    v = _penalised(logits, p, history, prompt)
    ids, probs = _ids_and_probs(v, p)
    if p.temperature == 0:
        token = ids[0]
    else:
        cdf = list(itertools.accumulate(probs))
        where = bisect.bisect_right(cdf, rng.uniform())
        if where == len(cdf):
            where = max(j for j, x in enumerate(probs) if x > 0)
        token = ids[where]
    return token, _logprob(v)[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    v = _penalised(logits, p, history, prompt)
    _, probs = _ids_and_probs(v, p)
    return 0.0 - _accumulated(x * math.log(x) for x in probs if x > 0)
