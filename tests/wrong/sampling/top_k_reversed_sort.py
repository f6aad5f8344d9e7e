"""Sampling with NumPy."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

import numpy as np
import numpy.typing as npt

from impl.rng import PCG32

F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_real(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


@dataclass
class SamplingParams:
    """Settings of one request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: Optional[int] = None
    max_tokens: int = 128
    stop: list[str] = field(default_factory=list)
    logprobs: int = 0

    def validate(self) -> None:
        ok = {
            "temperature": _is_real(self.temperature) and 0 <= self.temperature < math.inf,
            "top_k": _is_int(self.top_k) and self.top_k >= 0,
            "top_p": _is_real(self.top_p) and 0 < self.top_p <= 1,
            "min_p": _is_real(self.min_p) and 0 <= self.min_p <= 1,
            "repetition_penalty": _is_real(self.repetition_penalty) and 0 < self.repetition_penalty < math.inf,
            "presence_penalty": _is_real(self.presence_penalty) and math.isfinite(self.presence_penalty),
            "frequency_penalty": _is_real(self.frequency_penalty) and math.isfinite(self.frequency_penalty),
            "seed": self.seed is None or (_is_int(self.seed) and self.seed >= 0),
            "max_tokens": _is_int(self.max_tokens) and self.max_tokens >= 1,
            "logprobs": _is_int(self.logprobs) and self.logprobs >= 0,
        }
        bad = [name for name, good in ok.items() if not good]
        if bad:
            raise ValueError(f"bad sampling parameter: {', '.join(bad)}")


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")


def _vexp(x: F64) -> F64:
    return np.fromiter(map(math.exp, x.tolist()), dtype=np.float64, count=x.size)


def _left_to_right(x: F64) -> float:
    return float(np.cumsum(x)[-1])


def _check_ids(name: str, ids: Any, vocab: int) -> npt.NDArray[np.int64]:
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"{name} must be a 1-D integer array")
        items = ids.tolist()
    else:
        items = list(ids)
    for x in items:
        if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, np.integer)):
            raise ValueError(f"{name} holds {x!r}, which is not an integer")
        if not 0 <= x < vocab:
            raise ValueError(f"{name} holds id {x}, outside [0, {vocab})")
    return np.array(items, dtype=np.int64)


def _load_and_penalise(logits: Any, p: SamplingParams, history: Sequence[int], prompt: Sequence[int]) -> F64:
    """Check everything, then return the penalised logits."""
    p.validate()
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.size == 0:
        raise ValueError("logits must be a non-empty 1-D array")
    if logits.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"logits must be a float array, not {logits.dtype}")
    l = logits.astype(np.float64)
    if np.isnan(l).any() or np.isposinf(l).any() or np.isneginf(l).all():
        raise ValueError("logits hold NaN or +inf, or are all -inf")
    hist = _check_ids("history", history, l.size)
    prom = _check_ids("prompt", prompt, l.size)

    seen = np.zeros(l.size, dtype=bool)
    seen[hist] = True
    seen[prom] = True
    r = float(p.repetition_penalty)
    l = np.where(seen, np.where(l > 0, l / r, l * r), l)

    counts = np.bincount(hist, minlength=l.size).astype(np.float64)
    used = counts > 0
    l[used] = (l[used] - p.frequency_penalty * counts[used]) - p.presence_penalty
    return l


def _softmax(l: F64, keep: Mask) -> F64:
    q = np.zeros(l.size)
    e = _vexp(l[keep] - l[keep].max())
    q[keep] = e / _left_to_right(e)
    return q


def _largest_first(l: F64, keep: Mask) -> npt.NDArray[np.intp]:
    ids = np.flatnonzero(keep)
    return ids[np.argsort(l[ids], kind="stable")[::-1]]


def _survivors(l: F64, p: SamplingParams) -> Mask:
    keep = l > -np.inf
    if 0 < p.top_k < l.size:
        order = _largest_first(l, keep)
        keep[order[p.top_k:]] = False
    if p.top_p < 1:
        order = _largest_first(l, keep)
        running = np.cumsum(_softmax(l, keep)[order])
        n = int(np.searchsorted(running, p.top_p, side="left")) + 1
        keep[order[n:]] = False
    if p.min_p > 0:
        q = _softmax(l, keep)
        keep &= q >= p.min_p * q.max()
    return keep


def _logprobs(l: F64) -> F64:
    shifted = l - l.max()
    return shifted - math.log(_left_to_right(_vexp(shifted)))


def _distribution(l: F64, p: SamplingParams) -> F64:
    if p.temperature == 0:
        q = np.zeros(l.size)
        q[np.argmax(l)] = 1.0
        return q
    t = l / p.temperature
    return _softmax(t, _survivors(t, p))


def apply_penalties(logits: Any, p: SamplingParams, history: Sequence[int] = (), prompt: Sequence[int] = ()) -> F64:
    return _load_and_penalise(logits, p, history, prompt)


def token_logprobs(logits: Any, p: SamplingParams, history: Sequence[int] = (), prompt: Sequence[int] = ()) -> F64:
    return _logprobs(_load_and_penalise(logits, p, history, prompt))


def process_logits(logits: Any, p: SamplingParams, history: Sequence[int] = (), prompt: Sequence[int] = ()) -> F64:
    l = _load_and_penalise(logits, p, history, prompt)
    if p.temperature == 0:
        return l
    t = l / p.temperature
    return np.where(_survivors(t, p), t, -np.inf)


def sampling_distribution(
    logits: Any, p: SamplingParams, history: Sequence[int] = (), prompt: Sequence[int] = ()
) -> F64:
    return _distribution(_load_and_penalise(logits, p, history, prompt), p)


def sample(
    logits: Any, p: SamplingParams, history: Sequence[int], rng: Any, prompt: Sequence[int] = ()
) -> tuple[int, float]:
    l = _load_and_penalise(logits, p, history, prompt)
    if p.temperature == 0:
        token = int(np.argmax(l))
    else:
        q = _distribution(l, p)
        u = rng.uniform()
        cdf = np.cumsum(q)
        token = int(np.searchsorted(cdf, u, side="right"))
        if token == l.size:
            token = int(np.flatnonzero(q > 0)[-1])
    return token, float(_logprobs(l)[token])


def sampled_entropy(logits: Any, p: SamplingParams, history: Sequence[int] = (), prompt: Sequence[int] = ()) -> float:
    l = _load_and_penalise(logits, p, history, prompt)
    if p.temperature == 0:
        return 0.0
    q = _distribution(l, p)
    q = q[q > 0]
    log_q = np.array([math.log(x) for x in q])
    return 0.0 - _left_to_right(q * log_q)
