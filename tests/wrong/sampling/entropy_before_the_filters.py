"""Dictionary sampler."""
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
        problem = self._problem()
        if problem:
            raise ValueError(problem)

    def _problem(self) -> str:
        for name, low in (("top_k", 0), ("max_tokens", 1), ("logprobs", 0), ("seed", 0)):
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            if type(value) is not int:
                return f"{name} takes an int"
            if value < low:
                return f"{name} is less than {low}"
        intervals = {
            "temperature": lambda t: 0.0 <= t < math.inf,
            "top_p": lambda t: 0.0 < t <= 1.0,
            "min_p": lambda t: 0.0 <= t <= 1.0,
            "repetition_penalty": lambda t: 0.0 < t < math.inf,
            "presence_penalty": lambda t: -math.inf < t < math.inf,
            "frequency_penalty": lambda t: -math.inf < t < math.inf,
        }
        for name, inside in intervals.items():
            value = getattr(self, name)
            if type(value) not in (int, float):
                return f"{name} takes a number"
            if not inside(value):
                return f"{name} = {value} is not allowed"
        return ""


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")


def _table(logits) -> dict[int, float]:
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


def _with_penalties(logits, p, history, prompt) -> dict[int, float]:
    p.validate()
    table = _table(logits)
    generated = _counter(history, len(table))
    given = _counter(prompt, len(table))

    for i in generated.keys() | given.keys():
        if table[i] > 0:
            table[i] = table[i] / p.repetition_penalty
        else:
            table[i] = table[i] * p.repetition_penalty
    for i, c in generated.items():
        table[i] = (table[i] - p.frequency_penalty * c) - p.presence_penalty
    return table


def _normalise(table: dict[int, float]) -> dict[int, float]:
    biggest = max(table.values())
    e = {i: math.exp(x - biggest) for i, x in table.items()}
    z = 0.0
    for x in e.values():
        z += x
    return {i: x / z for i, x in e.items()}


def _by_logit(table: dict[int, float]) -> list[int]:
    return sorted(table, key=lambda i: (-table[i], i))


def _only(table: dict[int, float], ids) -> dict[int, float]:
    wanted = set(ids)
    return {i: x for i, x in table.items() if i in wanted}


def _after_filters(table: dict[int, float], p) -> dict[int, float]:
    """Tempered logits of the ids that survive all filters."""
    size = len(table)
    kept = {i: x / p.temperature for i, x in table.items() if x > -math.inf}

    if p.top_k != 0 and p.top_k < size:
        kept = _only(kept, _by_logit(kept)[: p.top_k])

    if p.top_p != 1:
        q = _normalise(kept)
        nucleus = []
        running = 0.0
        for i in _by_logit(kept):
            nucleus.append(i)
            running = running + q[i]
            if running >= p.top_p:
                break
        kept = _only(kept, nucleus)

    if p.min_p != 0:
        q = _normalise(kept)
        threshold = p.min_p * max(q.values())
        kept = {i: x for i, x in kept.items() if q[i] >= threshold}

    return kept


def _greedy(table: dict[int, float]) -> int:
    return _by_logit(table)[0]


def _log_softmax(table: dict[int, float]) -> dict[int, float]:
    biggest = max(table.values())
    z = 0.0
    for x in table.values():
        z += math.exp(x - biggest)
    log_z = math.log(z)
    return {i: (x - biggest) - log_z for i, x in table.items()}


def _dense(table: dict[int, float], size: int, default: float) -> np.ndarray:
    return np.array([table.get(i, default) for i in range(size)], dtype=np.float64)


def _probabilities(table: dict[int, float], p) -> dict[int, float]:
    if p.temperature == 0:
        return {_greedy(table): 1.0}
    return _normalise(_after_filters(table, p))


def apply_penalties(logits, p, history=(), prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    return _dense(table, len(table), 0.0)


def token_logprobs(logits, p, history=(), prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    return _dense(_log_softmax(table), len(table), 0.0)


def process_logits(logits, p, history=(), prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    kept = table if p.temperature == 0 else _after_filters(table, p)
    return _dense(kept, len(table), -math.inf)


def sampling_distribution(logits, p, history=(), prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    return _dense(_probabilities(table, p), len(table), 0.0)


def sample(logits, p, history, rng, prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    logprobs = _log_softmax(table)
    if p.temperature == 0:
        token = _greedy(table)
        return token, logprobs[token]
    q = _dense(_probabilities(table, p), len(table), 0.0)
    token = int(sample_categorical(q, rng.uniform()))
    return token, logprobs[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    table = _with_penalties(logits, p, history, prompt)
    if p.temperature == 0:
        return 0.0
    q = _normalise({i: x / p.temperature for i, x in table.items()})
    s = 0.0
    for x in q.values():
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
