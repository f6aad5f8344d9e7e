"""Loops-only sampler."""

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


def request_rng(seed):
    return PCG32(seed).substream("sample")


def read_logits(logits):
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or len(logits) == 0:
        raise ValueError("logits must be a non-empty 1-D array")
    if logits.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError("logits must be float16, float32 or float64")
    values = []
    any_allowed = False
    for x in logits:
        x = float(x)
        if math.isnan(x) or x == math.inf:
            raise ValueError("logits must not hold NaN or +inf")
        if x != NEG_INF:
            any_allowed = True
        values.append(x)
    if not any_allowed:
        raise ValueError("every id is masked")
    return values


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


def penalties(logits, p, history, prompt):
    p.validate()
    values = read_logits(logits)
    history = read_ids(history, len(values))
    prompt = read_ids(prompt, len(values))
    seen = [False] * len(values)
    generated = [False] * len(values)
    for i in prompt:
        seen[i] = True
    for i in history:
        seen[i] = True
        generated[i] = True
    for i in range(len(values)):
        if seen[i]:
            if values[i] > 0:
                values[i] = values[i] / p.repetition_penalty
            else:
                values[i] = values[i] * p.repetition_penalty
        if generated[i]:
            values[i] = (values[i] - p.frequency_penalty) - p.presence_penalty
    return values


def softmax(values, keep):
    top = NEG_INF
    for i in range(len(values)):
        if keep[i] and values[i] > top:
            top = values[i]
    q = [0.0] * len(values)
    total = 0.0
    for i in range(len(values)):
        if keep[i]:
            q[i] = math.exp(values[i] - top)
            total += q[i]
    for i in range(len(values)):
        q[i] = q[i] / total
    return q


def walk_order(values, keep):
    ids = [i for i in range(len(values)) if keep[i]]
    ids.sort(key=lambda i: (-values[i], i))
    return ids


def tempered_and_kept(values, p):
    tempered = []
    keep = []
    for x in values:
        tempered.append(x / p.temperature)
        keep.append(x != NEG_INF)

    if 0 < p.top_k < len(values):
        order = walk_order(tempered, keep)
        for i in order[p.top_k:]:
            keep[i] = False

    if p.top_p < 1:
        q = softmax(tempered, keep)
        running = 0.0
        done = False
        for i in walk_order(tempered, keep):
            if done:
                keep[i] = False
                continue
            running += q[i]
            if running >= p.top_p:
                done = True

    if p.min_p > 0:
        q = softmax(tempered, keep)
        largest = max(q)
        for i in range(len(q)):
            if keep[i] and q[i] < p.min_p * largest:
                keep[i] = False

    return tempered, keep


def final_q(values, p):
    if p.temperature == 0:
        q = [0.0] * len(values)
        q[argmax(values)] = 1.0
        return q
    tempered, keep = tempered_and_kept(values, p)
    return softmax(tempered, keep)


def argmax(values):
    best = 0
    for i in range(len(values)):
        if values[i] > values[best]:
            best = i
    return best


def log_softmax(values):
    top = max(values)
    total = 0.0
    for x in values:
        total += math.exp(x - top)
    log_total = math.log(total)
    return [(x - top) - log_total for x in values]


def apply_penalties(logits, p, history=(), prompt=()):
    return np.array(penalties(logits, p, history, prompt), dtype=np.float64)


def token_logprobs(logits, p, history=(), prompt=()):
    return np.array(log_softmax(penalties(logits, p, history, prompt)), dtype=np.float64)


def process_logits(logits, p, history=(), prompt=()):
    values = penalties(logits, p, history, prompt)
    if p.temperature != 0:
        values, keep = tempered_and_kept(values, p)
        for i in range(len(values)):
            if not keep[i]:
                values[i] = NEG_INF
    return np.array(values, dtype=np.float64)


def sampling_distribution(logits, p, history=(), prompt=()):
    return np.array(final_q(penalties(logits, p, history, prompt), p), dtype=np.float64)


def sample(logits, p, history, rng, prompt=()):
    values = penalties(logits, p, history, prompt)
    logprobs = log_softmax(values)
    if p.temperature == 0:
        best = argmax(values)
        return best, logprobs[best]
    q = final_q(values, p)
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
    values = penalties(logits, p, history, prompt)
    if p.temperature == 0:
        return 0.0
    s = 0.0
    for x in final_q(values, p):
        if x > 0:
            s += x * math.log(x)
    return 0.0 - s
