"""Sampler for one request, in plain Python."""

import math
from dataclasses import dataclass, field

import numpy as np

from impl.rng import PCG32

NEG_INF = float("-inf")


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


def request_rng(seed):
    return PCG32(seed).substream("sample")


def read_logits(logits):
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or len(logits) == 0:
        raise ValueError("logits must be a non-empty 1-D array")
    if logits.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError("logits must be float16, float32 or float64")
    row = []
    any_allowed = False
    for x in logits:
        x = float(x)
        if math.isnan(x) or x == math.inf:
            raise ValueError("logits must not hold NaN or +inf")
        if x != NEG_INF:
            any_allowed = True
        row.append(x)
    if not any_allowed:
        raise ValueError("every id is masked")
    return row


def read_ids(ids, size):
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError("ids must be 1-D")
    result = []
    for i in ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)):
            raise ValueError("ids must be integers")
        i = int(i)
        if i < 0 or i >= size:
            raise ValueError("id out of range")
        result.append(i)
    return result


def logits_after_penalties(logits, p, history, prompt):
    p.validate()
    row = read_logits(logits)
    history = read_ids(history, len(row))
    prompt = read_ids(prompt, len(row))
    seen = [False] * len(row)
    count = [0] * len(row)
    for i in prompt:
        seen[i] = True
    for i in history:
        seen[i] = True
        count[i] += 1
    for i in range(len(row)):
        if seen[i]:
            if row[i] > 0:
                row[i] = row[i] / p.repetition_penalty
            else:
                row[i] = row[i] * p.repetition_penalty
        if count[i] > 0:
            row[i] = (row[i] - p.frequency_penalty * count[i]) - p.presence_penalty
    return row


def probabilities(row, keep):
    top = NEG_INF
    for i in range(len(row)):
        if keep[i] and row[i] > top:
            top = row[i]
    q = [0.0] * len(row)
    total = 0.0
    for i in range(len(row)):
        if keep[i]:
            q[i] = math.exp(row[i] - top)
            total += q[i]
    for i in range(len(row)):
        q[i] = q[i] / total
    return q


def walk_order(row, keep):
    ids = [i for i in range(len(row)) if keep[i]]
    ids.sort(key=lambda i: (-row[i], i))
    return ids


def filter_ids(row, p):
    tempered = []
    keep = []
    for x in row:
        tempered.append(x / p.temperature)
        keep.append(x != NEG_INF)

    if 0 < p.top_k < len(row):
        order = walk_order(tempered, keep)
        for i in order[p.top_k:]:
            keep[i] = False

    if p.top_p < 1:
        q = probabilities(tempered, keep)
        running = 0.0
        for i in walk_order(tempered, keep):
            if running > p.top_p:
                keep[i] = False
            running += q[i]

    if p.min_p > 0:
        q = probabilities(tempered, keep)
        largest = max(q)
        for i in range(len(q)):
            if keep[i] and q[i] < p.min_p * largest:
                keep[i] = False

    return tempered, keep


def distribution_of(row, p):
    if p.temperature == 0:
        q = [0.0] * len(row)
        q[argmax(row)] = 1.0
        return q
    tempered, keep = filter_ids(row, p)
    return probabilities(tempered, keep)


def argmax(row):
    best = 0
    for i in range(len(row)):
        if row[i] > row[best]:
            best = i
    return best


def logprobs_of(row):
    top = max(row)
    total = 0.0
    for x in row:
        total += math.exp(x - top)
    log_total = math.log(total)
    return [(x - top) - log_total for x in row]


def apply_penalties(logits, p, history=(), prompt=()):
    return np.array(logits_after_penalties(logits, p, history, prompt), dtype=np.float64)


def token_logprobs(logits, p, history=(), prompt=()):
    return np.array(logprobs_of(logits_after_penalties(logits, p, history, prompt)), dtype=np.float64)


def process_logits(logits, p, history=(), prompt=()):
    row = logits_after_penalties(logits, p, history, prompt)
    if p.temperature != 0:
        row, keep = filter_ids(row, p)
        for i in range(len(row)):
            if not keep[i]:
                row[i] = NEG_INF
    return np.array(row, dtype=np.float64)


def sampling_distribution(logits, p, history=(), prompt=()):
    return np.array(distribution_of(logits_after_penalties(logits, p, history, prompt), p), dtype=np.float64)


def sample(logits, p, history, rng, prompt=()):
    row = logits_after_penalties(logits, p, history, prompt)
    logprobs = logprobs_of(row)
    if p.temperature == 0:
        best = argmax(row)
        return best, logprobs[best]
    q = distribution_of(row, p)
    u = rng.uniform()
    running = 0.0
    chosen = -1
    for i in range(len(q)):
        if q[i] == 0:
            continue
        chosen = i
        running += q[i]
        if u < running:
            break
    return chosen, logprobs[chosen]


def sampled_entropy(logits, p, history=(), prompt=()):
    row = logits_after_penalties(logits, p, history, prompt)
    if p.temperature == 0:
        return 0.0
    s = 0.0
    for x in distribution_of(row, p):
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
