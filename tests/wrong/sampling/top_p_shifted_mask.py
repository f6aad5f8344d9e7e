"""Logits processors.

A removed id is -inf; each processor leaves the array it was given alone.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from impl.rng import PCG32


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
        for name in ("top_k", "max_tokens", "logprobs", "seed"):
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} must be an integer")
            if value < (1 if name == "max_tokens" else 0):
                raise ValueError(f"{name} is too small")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise ValueError(f"{name} must be a real number")
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite")
        if self.temperature < 0.0:
            raise ValueError("temperature < 0")
        if self.top_p <= 0.0 or self.top_p > 1.0:
            raise ValueError("top_p outside (0, 1]")
        if self.min_p < 0.0 or self.min_p > 1.0:
            raise ValueError("min_p outside [0, 1]")
        if self.repetition_penalty <= 0.0:
            raise ValueError("repetition_penalty <= 0")


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")


# ---- checks ------------------------------------------------------------------------------------


def read_inputs(logits, p, history, prompt):
    """(float64 copy, history ids, prompt ids), or ValueError."""
    p.validate()
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.size == 0:
        raise ValueError("logits: one axis, at least one entry")
    if logits.dtype not in ("float16", "float32", "float64"):
        raise ValueError("logits: a float array")
    scores = logits.astype(np.float64)
    if np.any(np.isnan(scores)) or np.any(scores == np.inf) or np.all(scores == -np.inf):
        raise ValueError("logits: NaN, +inf or nothing but -inf")
    return scores, id_array(history, scores.size), id_array(prompt, scores.size)


def id_array(ids, vocab):
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError("ids: a 1-D integer array")
    elif any(isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)) for i in ids):
        raise ValueError("ids: integers only")
    if len(ids) == 0:
        return np.zeros(0, dtype=np.int64)
    if min(ids) < 0 or max(ids) >= vocab:
        raise ValueError("ids: outside the vocabulary")
    return np.array([int(i) for i in ids], dtype=np.int64)


# ---- processors --------------------------------------------------------------------------------


def repetition(scores, seen, penalty):
    ids = np.unique(seen)
    picked = scores[ids]
    out = scores.copy()
    out[ids] = np.where(picked > 0, picked / penalty, picked * penalty)
    return out


def additive(scores, history, frequency, presence):
    ids, counts = np.unique(history, return_counts=True)
    out = scores.copy()
    out[ids] = (out[ids] - frequency * counts.astype(np.float64)) - presence
    return out


def apply_top_k(scores, k):
    if k == 0 or k >= scores.size:
        return scores
    order = np.lexsort((np.arange(scores.size), -scores))
    out = np.full_like(scores, -np.inf)
    out[order[:k]] = scores[order[:k]]
    return out


def apply_top_p(scores, top_p):
    if top_p == 1:
        return scores
    order = np.lexsort((np.arange(scores.size), -scores))
    order = order[: np.count_nonzero(scores > -np.inf)]
    cumulative = np.cumsum(softmax(scores)[order])
    remove = cumulative > top_p
    remove[1:] = remove[:-1].copy()  # shift right: the first id above the threshold stays
    remove[0] = False
    out = scores.copy()
    out[order[remove]] = -np.inf
    return out


def apply_min_p(scores, min_p):
    if min_p == 0:
        return scores
    q = softmax(scores)
    return np.where(q >= min_p * q.max(), scores, -np.inf)


# ---- arithmetic --------------------------------------------------------------------------------


def ordered_sum(values):
    total = 0.0
    for x in values:
        total += x
    return total


def softmax(scores):
    top = float(scores.max())
    e = [math.exp(x - top) for x in scores.tolist()]
    z = ordered_sum(e)
    return np.array([x / z for x in e])


def log_softmax(scores):
    top = float(scores.max())
    log_z = math.log(ordered_sum(math.exp(x - top) for x in scores.tolist()))
    return (scores - top) - log_z


# ---- public ------------------------------------------------------------------------------------


def apply_penalties(logits, p, history=(), prompt=()):
    scores, generated, given = read_inputs(logits, p, history, prompt)
    scores = repetition(scores, np.concatenate([given, generated]), p.repetition_penalty)
    return additive(scores, generated, p.frequency_penalty, p.presence_penalty)


def token_logprobs(logits, p, history=(), prompt=()):
    return log_softmax(apply_penalties(logits, p, history, prompt))


def process_logits(logits, p, history=(), prompt=()):
    scores = apply_penalties(logits, p, history, prompt)
    if p.temperature == 0:
        return scores
    scores = scores / p.temperature
    scores = apply_top_k(scores, p.top_k)
    scores = apply_top_p(scores, p.top_p)
    return apply_min_p(scores, p.min_p)


def sampling_distribution(logits, p, history=(), prompt=()):
    scores = process_logits(logits, p, history, prompt)
    if p.temperature == 0:
        one_hot = np.zeros(scores.size)
        one_hot[scores.argmax()] = 1.0
        return one_hot
    return softmax(scores)


def sample(logits, p, history, rng, prompt=()):
    q = sampling_distribution(logits, p, history, prompt).tolist()
    if p.temperature == 0:
        token = q.index(1.0)
    else:
        u = rng.uniform()
        token = next((i for i, c in enumerate(accumulate(q)) if c > u), -1)
        if token < 0:
            token = max(i for i, x in enumerate(q) if x > 0)
    return token, float(token_logprobs(logits, p, history, prompt)[token])


def sampled_entropy(logits, p, history=(), prompt=()):
    q = sampling_distribution(logits, p, history, prompt).tolist()
    return 0.0 - ordered_sum(x * math.log(x) for x in q if x > 0)
