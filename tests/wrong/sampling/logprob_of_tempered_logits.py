"""Token sampler. The vocabulary is a dict from id to logit."""
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from impl.categorical import sample_categorical
from impl.rng import PCG32


@dataclass
class SamplingParams:
    """All knobs of one request."""

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

    def _integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be an int >= {least}, got {value!r}")

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
        return value

    def validate(self) -> None:
        self._integer("top_k", 0)
        self._integer("max_tokens", 1)
        self._integer("logprobs", 0)
        if self.seed is not None:
            self._integer("seed", 0)
        if self._number("temperature") < 0:
            raise ValueError("temperature must be >= 0")
        if not 0 < self._number("top_p") <= 1:
            raise ValueError("top_p must be in (0, 1]")
        if not 0 <= self._number("min_p") <= 1:
            raise ValueError("min_p must be in [0, 1]")
        if self._number("repetition_penalty") <= 0:
            raise ValueError("repetition_penalty must be > 0")
        self._number("presence_penalty")
        self._number("frequency_penalty")


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")


def _read_logits(logits) -> dict[int, float]:
    if not isinstance(logits, np.ndarray) or logits.ndim != 1:
        raise ValueError("logits must be a 1-D array")
    if logits.dtype.name not in ("float16", "float32", "float64"):
        raise ValueError("logits must be floating point")
    table = dict(enumerate(logits.astype(np.float64).tolist()))
    if not table:
        raise ValueError("logits are empty")
    if any(math.isnan(x) or x == math.inf for x in table.values()):
        raise ValueError("logits hold NaN or +inf")
    if all(x == -math.inf for x in table.values()):
        raise ValueError("logits are all -inf")
    return table


def _count_ids(ids, size: int) -> Counter:
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
    table = _read_logits(logits)
    generated = _count_ids(history, len(table))
    given = _count_ids(prompt, len(table))

    for i in generated.keys() | given.keys():
        if table[i] > 0:
            table[i] = table[i] / p.repetition_penalty
        else:
            table[i] = table[i] * p.repetition_penalty
    for i, c in generated.items():
        table[i] = (table[i] - p.frequency_penalty * c) - p.presence_penalty
    return table


def _softmax(table: dict[int, float]) -> dict[int, float]:
    biggest = max(table.values())
    e = {i: math.exp(x - biggest) for i, x in table.items()}
    z = 0.0
    for x in e.values():
        z += x
    return {i: x / z for i, x in e.items()}


def _order(table: dict[int, float]) -> list[int]:
    return sorted(table, key=lambda i: (-table[i], i))


def _only(table: dict[int, float], ids) -> dict[int, float]:
    wanted = set(ids)
    return {i: x for i, x in table.items() if i in wanted}


def _filtered(table: dict[int, float], p) -> dict[int, float]:
    """Tempered logits of the ids that survive all filters."""
    size = len(table)
    kept = {i: x / p.temperature for i, x in table.items() if x > -math.inf}

    if p.top_k != 0 and p.top_k < size:
        kept = _only(kept, _order(kept)[: p.top_k])

    if p.top_p != 1:
        q = _softmax(kept)
        nucleus = []
        running = 0.0
        for i in _order(kept):
            nucleus.append(i)
            running = running + q[i]
            if running >= p.top_p:
                break
        kept = _only(kept, nucleus)

    if p.min_p != 0:
        q = _softmax(kept)
        threshold = p.min_p * max(q.values())
        kept = {i: x for i, x in kept.items() if q[i] >= threshold}

    return kept


def _greedy(table: dict[int, float]) -> int:
    return _order(table)[0]


def _logprob_table(table: dict[int, float], p) -> dict[int, float]:
    if p.temperature > 0:
        table = {i: x / p.temperature for i, x in table.items()}
    biggest = max(table.values())
    z = 0.0
    for x in table.values():
        z += math.exp(x - biggest)
    log_z = math.log(z)
    return {i: (x - biggest) - log_z for i, x in table.items()}


def _as_array(table: dict[int, float], size: int, default: float) -> np.ndarray:
    return np.array([table.get(i, default) for i in range(size)], dtype=np.float64)


def _probabilities(table: dict[int, float], p) -> dict[int, float]:
    if p.temperature == 0:
        return {_greedy(table): 1.0}
    return _softmax(_filtered(table, p))


def apply_penalties(logits, p, history=(), prompt=()):
    table = _penalise(logits, p, history, prompt)
    return _as_array(table, len(table), 0.0)


def token_logprobs(logits, p, history=(), prompt=()):
    table = _penalise(logits, p, history, prompt)
    return _as_array(_logprob_table(table, p), len(table), 0.0)


def process_logits(logits, p, history=(), prompt=()):
    table = _penalise(logits, p, history, prompt)
    kept = table if p.temperature == 0 else _filtered(table, p)
    return _as_array(kept, len(table), -math.inf)


def sampling_distribution(logits, p, history=(), prompt=()):
    table = _penalise(logits, p, history, prompt)
    return _as_array(_probabilities(table, p), len(table), 0.0)


def sample(logits, p, history, rng, prompt=()):
    table = _penalise(logits, p, history, prompt)
    logprobs = _logprob_table(table, p)
    if p.temperature == 0:
        token = _greedy(table)
        return token, logprobs[token]
    q = _as_array(_probabilities(table, p), len(table), 0.0)
    token = int(sample_categorical(q, rng.uniform()))
    return token, logprobs[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    table = _penalise(logits, p, history, prompt)
    s = 0.0
    for x in _probabilities(table, p).values():
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
