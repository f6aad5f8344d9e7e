"""Candidates are sorted once; filters and draw work on that list."""
import math
from dataclasses import dataclass, field
from typing import NamedTuple

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
    stop: list[str] = field(default_factory=lambda: [])
    logprobs: int = 0

    def validate(self) -> None:
        need_number("temperature", self.temperature)
        need_number("top_p", self.top_p)
        need_number("min_p", self.min_p)
        need_number("repetition_penalty", self.repetition_penalty)
        need_number("presence_penalty", self.presence_penalty)
        need_number("frequency_penalty", self.frequency_penalty)
        need_int("top_k", self.top_k, 0)
        need_int("max_tokens", self.max_tokens, 1)
        need_int("logprobs", self.logprobs, 0)
        if self.seed is not None:
            need_int("seed", self.seed, 0)
        if self.temperature < 0:
            raise ValueError("temperature is negative")
        if not (0 < self.top_p <= 1):
            raise ValueError("top_p is not in (0, 1]")
        if not (0 <= self.min_p <= 1):
            raise ValueError("min_p is not in [0, 1]")
        if not self.repetition_penalty > 0:
            raise ValueError("repetition_penalty is not positive")


def need_number(name, value):
    if type(value) is not int and type(value) is not float:
        raise ValueError(f"{name} is not a number")
    if math.isnan(value) or math.isinf(value):
        raise ValueError(f"{name} is not finite")


def need_int(name, value, least):
    if type(value) is not int:
        raise ValueError(f"{name} is not an int")
    if value < least:
        raise ValueError(f"{name} is below {least}")


class Candidate(NamedTuple):
    logit: float
    token: int


def request_rng(seed):
    stream = PCG32(seed)
    return stream.substream("sample")


def as_ids(ids, vocab):
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise ValueError("ids must have one axis")
        if ids.size and ids.dtype.kind not in ("i", "u"):
            raise ValueError("ids must be integers")
    out = []
    for i in ids:
        ok = isinstance(i, (int, np.integer)) and not isinstance(i, bool)
        if not ok or i < 0 or i >= vocab:
            raise ValueError(f"bad token id {i!r}")
        out.append(int(i))
    return sorted(out)


def load(logits):
    if not isinstance(logits, np.ndarray):
        raise ValueError("logits must be a NumPy array")
    if logits.ndim != 1 or logits.shape[0] < 1:
        raise ValueError("logits must be 1-D with at least one entry")
    if logits.dtype != np.float16 and logits.dtype != np.float32 and logits.dtype != np.float64:
        raise ValueError("logits must be float16, float32 or float64")
    row = [float(x) for x in logits]
    for x in row:
        if x != x or x == float("inf"):
            raise ValueError("logits must be finite or -inf")
    if row.count(float("-inf")) == len(row):
        raise ValueError("all logits are -inf")
    return row


def penalised_row(logits, p, history, prompt):
    p.validate()
    row = load(logits)
    history = as_ids(history, len(row))
    prompt = as_ids(prompt, len(row))

    previous = -1
    for i in sorted(history + prompt):
        if i == previous:
            continue
        previous = i
        if row[i] > 0:
            row[i] /= p.repetition_penalty
        else:
            row[i] *= p.repetition_penalty

    start = 0
    while start < len(history):
        i = history[start]
        end = start
        while end < len(history) and history[end] == i:
            end += 1
        row[i] = (row[i] - p.frequency_penalty * (end - start)) - p.presence_penalty
        start = end
    return row


def softmax(candidates):
    """The softmax of the candidates, in the order of the list; the sum runs in id order."""
    top = max(c.logit for c in candidates)
    e = [math.exp(c.logit - top) for c in candidates]
    z = 0.0
    for _, x in sorted(zip((c.token for c in candidates), e)):
        z += x
    return [x / z for x in e]


def candidates_of(row, p):
    vocab = len(row)
    ranked = [Candidate(x / p.temperature, i) for i, x in enumerate(row) if x != float("-inf")]
    ranked.sort(key=lambda c: (-c.logit, c.token))

    if 0 < p.top_k < vocab:
        del ranked[p.top_k:]

    if p.top_p < 1:
        mass = 0.0
        for n, x in enumerate(softmax(ranked), start=1):
            mass += x
            if mass >= p.top_p:
                del ranked[n:]
                break

    if p.min_p > 0:
        q = softmax(ranked)
        threshold = p.min_p * q[0]
        n = len(ranked)
        while q[n - 1] < threshold:
            n -= 1
        del ranked[n:]

    return ranked


def distribution_pairs(row, p):
    """(id, probability) in ascending id."""
    if p.temperature == 0:
        return [(best_of(row), 1.0)]
    ranked = candidates_of(row, p)
    return sorted((c.token, x) for c, x in zip(ranked, softmax(ranked)))


def best_of(row):
    return sorted((-x, i) for i, x in enumerate(row))[0][1]


def logprob_list(row):
    top = max(row)
    z = 0.0
    for x in row:
        z += math.exp(x - top)
    norm = math.log(z)
    return [(x - top) - norm for x in row]


def apply_penalties(logits, p, history=(), prompt=()):
    return np.asarray(penalised_row(logits, p, history, prompt), dtype=np.float64)


def token_logprobs(logits, p, history=(), prompt=()):
    return np.asarray(logprob_list(penalised_row(logits, p, history, prompt)), dtype=np.float64)


def process_logits(logits, p, history=(), prompt=()):
    row = penalised_row(logits, p, history, prompt)
    if p.temperature == 0:
        return np.asarray(row, dtype=np.float64)
    out = np.full(len(row), -np.inf, dtype=np.float64)
    for c in candidates_of(row, p):
        out[c.token] = c.logit
    return out


def sampling_distribution(logits, p, history=(), prompt=()):
    row = penalised_row(logits, p, history, prompt)
    out = np.zeros(len(row), dtype=np.float64)
    for i, x in distribution_pairs(row, p):
        out[i] = x
    return out


def sample(logits, p, history, rng, prompt=()):
    row = penalised_row(logits, p, history, prompt)
    pairs = [(i, x) for i, x in distribution_pairs(row, p) if x > 0]
    pairs.sort(key=lambda pair: -pair[1])  # the likely ones first, so the loop is short
    token = pairs[-1][0]
    if p.temperature > 0:
        u = rng.uniform()
        mass = 0.0
        for i, x in pairs:
            mass += x
            if mass > u:
                token = i
                break
    return token, logprob_list(row)[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    row = penalised_row(logits, p, history, prompt)
    s = 0.0
    for _, x in distribution_pairs(row, p):
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
