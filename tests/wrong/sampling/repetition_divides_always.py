"""Sampler with {id: logit} tables."""
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from impl.categorical import sample_categorical
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


def _table(logits) -> dict[int, float]:
    if not isinstance(logits, np.ndarray) or logits.ndim != 1:
        raise ValueError("logits must be a 1-D array")
    if logits.dtype.name not in ("float16", "float32", "float64"):
        raise ValueError("logits must be floating point")
    logit_of = dict(enumerate(logits.astype(np.float64).tolist()))
    if not logit_of:
        raise ValueError("logits are empty")
    if any(math.isnan(x) or x == math.inf for x in logit_of.values()):
        raise ValueError("logits hold NaN or +inf")
    if all(x == -math.inf for x in logit_of.values()):
        raise ValueError("logits are all -inf")
    return logit_of


def _counter(ids, size: int) -> Counter:
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError("token ids must be a 1-D integer array")
        ids = ids.tolist()
    counts: Counter = Counter()
    for i in ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)):
            raise ValueError(f"token id {i!r} is not an integer")
        if not 0 <= i < size:
            raise ValueError(f"token id {i} is not in the vocabulary")
        counts[int(i)] += 1
    return counts


def _penalise(logits, p, history, prompt) -> dict[int, float]:
    p.validate()
    logit_of = _table(logits)
    generated = _counter(history, len(logit_of))
    given = _counter(prompt, len(logit_of))

    for i in generated.keys() | given.keys():
        logit_of[i] = logit_of[i] / p.repetition_penalty
    for i, c in generated.items():
        logit_of[i] = (logit_of[i] - p.frequency_penalty * c) - p.presence_penalty
    return logit_of


def _normalise(logit_of: dict[int, float]) -> dict[int, float]:
    biggest = max(logit_of.values())
    e = {i: math.exp(x - biggest) for i, x in logit_of.items()}
    z = 0.0
    for x in e.values():
        z += x
    return {i: x / z for i, x in e.items()}


def _by_logit(logit_of: dict[int, float]) -> list[int]:
    return sorted(logit_of, key=lambda i: (-logit_of[i], i))


def _restrict(logit_of: dict[int, float], ids) -> dict[int, float]:
    wanted = set(ids)
    return {i: x for i, x in logit_of.items() if i in wanted}


def _allowed(logit_of: dict[int, float], p) -> dict[int, float]:
    """Tempered logits of the ids that survive all filters."""
    size = len(logit_of)
    kept = {i: x / p.temperature for i, x in logit_of.items() if x > -math.inf}

    if p.top_k != 0 and p.top_k < size:
        kept = _restrict(kept, _by_logit(kept)[: p.top_k])

    if p.top_p != 1:
        q = _normalise(kept)
        nucleus = []
        running = 0.0
        for i in _by_logit(kept):
            nucleus.append(i)
            running = running + q[i]
            if running >= p.top_p:
                break
        kept = _restrict(kept, nucleus)

    if p.min_p != 0:
        q = _normalise(kept)
        threshold = p.min_p * max(q.values())
        kept = {i: x for i, x in kept.items() if q[i] >= threshold}

    return kept


def _best(logit_of: dict[int, float]) -> int:
    return _by_logit(logit_of)[0]


def _logprob_table(logit_of: dict[int, float]) -> dict[int, float]:
    biggest = max(logit_of.values())
    z = 0.0
    for x in logit_of.values():
        z += math.exp(x - biggest)
    log_z = math.log(z)
    return {i: (x - biggest) - log_z for i, x in logit_of.items()}


def _as_array(logit_of: dict[int, float], size: int, default: float) -> np.ndarray:
    return np.array([logit_of.get(i, default) for i in range(size)], dtype=np.float64)


def _probabilities(logit_of: dict[int, float], p) -> dict[int, float]:
    if p.temperature == 0:
        return {_best(logit_of): 1.0}
    return _normalise(_allowed(logit_of, p))


def apply_penalties(logits, p, history=(), prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    return _as_array(logit_of, len(logit_of), 0.0)


def token_logprobs(logits, p, history=(), prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    return _as_array(_logprob_table(logit_of), len(logit_of), 0.0)


def process_logits(logits, p, history=(), prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    kept = logit_of if p.temperature == 0 else _allowed(logit_of, p)
    return _as_array(kept, len(logit_of), -math.inf)


def sampling_distribution(logits, p, history=(), prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    return _as_array(_probabilities(logit_of, p), len(logit_of), 0.0)


def sample(logits, p, history, rng, prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    logprobs = _logprob_table(logit_of)
    if p.temperature == 0:
        token = _best(logit_of)
        return token, logprobs[token]
    q = _as_array(_probabilities(logit_of, p), len(logit_of), 0.0)
    token = int(sample_categorical(q, rng.uniform()))
    return token, logprobs[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    logit_of = _penalise(logits, p, history, prompt)
    s = 0.0
    for x in _probabilities(logit_of, p).values():
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
