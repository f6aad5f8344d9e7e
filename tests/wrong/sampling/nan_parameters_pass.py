"""Sampler on index arrays."""
import math
import numbers
from dataclasses import dataclass, field, fields

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
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "stop" or (f.name == "seed" and value is None):
                continue
            kinds = int if f.name in ("top_k", "seed", "max_tokens", "logprobs") else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"{f.name}: wrong type {type(value).__name__}")
            low, high = _LIMITS.get(f.name, (-math.inf, math.inf))
            if value < low or value > high:
                raise ValueError(f"{f.name}: {value} is not in [{low}, {high}]")
        if self.top_p == 0:
            raise ValueError("top_p: 0 would keep nothing")
        if self.repetition_penalty == 0:
            raise ValueError("repetition_penalty: 0 cannot divide")


_LIMITS = {
    "temperature": (0, math.inf),
    "top_k": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0, math.inf),
    "seed": (0, math.inf),
    "max_tokens": (1, math.inf),
    "logprobs": (0, math.inf),
}


def request_rng(seed):
    return PCG32(seed).substream("sample")


def _token_ids(ids, vocab, what):
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"{what}: need a 1-D integer array")
    out = np.zeros(len(ids), dtype=np.int64)
    for n, item in enumerate(ids):
        if isinstance(item, bool) or not isinstance(item, numbers.Integral):
            raise ValueError(f"{what}[{n}]: {item!r} is not an integer")
        if item < 0 or item >= vocab:
            raise ValueError(f"{what}[{n}]: {item} is not below {vocab}")
        out[n] = item
    return out


def _start(logits, p, history, prompt):
    p.validate()
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.size == 0:
        raise ValueError("logits: need a 1-D array with an entry")
    if logits.dtype.type not in {np.float16, np.float32, np.float64}:
        raise ValueError("logits: need a float dtype")
    out = logits.astype(np.float64)
    if not (out < np.inf).all():  # also False for NaN
        raise ValueError("logits: NaN or +inf")
    if (out == -np.inf).all():
        raise ValueError("logits: nothing is allowed")
    vocab = out.size
    history = _token_ids(history, vocab, "history")
    prompt = _token_ids(prompt, vocab, "prompt")

    touched = np.zeros(vocab, dtype=np.bool_)
    touched[prompt] = True
    touched[history] = True
    up = touched & (out > 0)
    down = touched & ~up
    out[up] /= p.repetition_penalty
    out[down] *= p.repetition_penalty

    c = np.zeros(vocab)
    np.add.at(c, history, 1.0)
    hit = np.flatnonzero(c)
    out[hit] -= p.frequency_penalty * c[hit]
    out[hit] -= p.presence_penalty
    return out


def _softmax(values):
    """Probabilities of a compressed array whose entries are in ascending id."""
    values = values.tolist()
    top = max(values)
    e = []
    z = 0.0
    for x in values:
        y = math.exp(x - top)
        e.append(y)
        z += y
    return np.array(e) / z


def _surviving(row, p):
    """Ascending ids that survive the filters; row is tempered."""
    ids = np.flatnonzero(row > -np.inf)

    def in_order():
        return np.argsort(-row[ids], kind="stable")

    if p.top_k and p.top_k < row.size:
        ids = ids[np.sort(in_order()[: p.top_k])]

    if p.top_p != 1:
        order = in_order()
        mass = np.cumsum(_softmax(row[ids])[order])
        below = int(np.count_nonzero(mass < p.top_p))
        ids = ids[np.sort(order[: below + 1])]

    if p.min_p:
        q = _softmax(row[ids])
        ids = ids[q >= p.min_p * np.max(q)]

    return ids


def _logprobs(row):
    top = row.max()
    z = 0.0
    for x in (row - top).tolist():
        z += math.exp(x)
    return (row - top) - math.log(z)


def apply_penalties(logits, p, history=(), prompt=()):
    return _start(logits, p, history, prompt)


def token_logprobs(logits, p, history=(), prompt=()):
    return _logprobs(_start(logits, p, history, prompt))


def process_logits(logits, p, history=(), prompt=()):
    row = _start(logits, p, history, prompt)
    if p.temperature == 0:
        return row
    row /= p.temperature
    ids = _surviving(row, p)
    out = np.full(row.size, -np.inf)
    out[ids] = row[ids]
    return out


def sampling_distribution(logits, p, history=(), prompt=()):
    row = _start(logits, p, history, prompt)
    out = np.zeros(row.size)
    if p.temperature == 0:
        out[row.argmax()] = 1.0
        return out
    row /= p.temperature
    ids = _surviving(row, p)
    out[ids] = _softmax(row[ids])
    return out


def sample(logits, p, history, rng, prompt=()):
    row = _start(logits, p, history, prompt)
    logprobs = _logprobs(row)
    if p.temperature == 0:
        token = int(row.argmax())
        return token, float(logprobs[token])
    hot = row / p.temperature
    ids = _surviving(hot, p)
    q = _softmax(hot[ids])
    ids, q = ids[q > 0], q[q > 0]
    u = rng.uniform()
    position = 0
    c = q[0]
    while u >= c and position + 1 < len(ids):
        position += 1
        c += q[position]
    token = int(ids[position])
    return token, float(logprobs[token])


def sampled_entropy(logits, p, history=(), prompt=()):
    row = _start(logits, p, history, prompt)
    if p.temperature == 0:
        return 0.0
    row /= p.temperature
    s = 0.0
    for x in _softmax(row[_surviving(row, p)]).tolist():
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
