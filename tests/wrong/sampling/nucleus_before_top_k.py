"""Sampler of pure functions; the filters are folded over the ids."""
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, takewhile
from math import exp, inf, isfinite, isnan, log
from operator import add
from typing import Any, Callable, Iterable

import numpy as np

from impl.rng import PCG32

Row = tuple[float, ...]
Ids = tuple[int, ...]


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, (bool, np.bool_))


def number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and isfinite(x)


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
        require(number(self.temperature) and self.temperature >= 0, "temperature: >= 0 and finite")
        require(whole(self.top_k) and self.top_k >= 0, "top_k: int >= 0")
        require(number(self.top_p) and 0 < self.top_p <= 1, "top_p: in (0, 1]")
        require(number(self.min_p) and 0 <= self.min_p <= 1, "min_p: in [0, 1]")
        require(number(self.repetition_penalty) and self.repetition_penalty > 0, "repetition_penalty: > 0")
        require(number(self.presence_penalty), "presence_penalty: finite")
        require(number(self.frequency_penalty), "frequency_penalty: finite")
        require(self.seed is None or (whole(self.seed) and self.seed >= 0), "seed: None or int >= 0")
        require(whole(self.max_tokens) and self.max_tokens >= 1, "max_tokens: int >= 1")
        require(whole(self.logprobs) and self.logprobs >= 0, "logprobs: int >= 0")


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")


def total(xs: Iterable[float]) -> float:
    return reduce(add, xs, 0.0)


def row_of(logits: Any) -> Row:
    require(isinstance(logits, np.ndarray) and logits.ndim == 1 and logits.size > 0, "logits: 1-D, not empty")
    require(logits.dtype.type in (np.float16, np.float32, np.float64), "logits: float16, float32 or float64")
    row = tuple(map(float, logits))
    require(not any(isnan(x) or x == inf for x in row), "logits: no NaN, no +inf")
    require(any(x > -inf for x in row), "logits: at least one above -inf")
    return row


def ids_of(ids: Any, size: int) -> Ids:
    if isinstance(ids, np.ndarray):
        require(ids.ndim == 1 and (ids.size == 0 or ids.dtype.kind in "iu"), "ids: 1-D integers")
    items = tuple(ids)
    require(all(whole(x) and 0 <= x < size for x in items), "ids: integers in [0, V)")
    return tuple(int(x) for x in items)


def repeat_once(x: float, r: float) -> float:
    return x / r if x > 0 else x * r


def penalised(logits: Any, p: SamplingParams, history: Any, prompt: Any) -> Row:
    p.validate()
    row = row_of(logits)
    past, given = ids_of(history, len(row)), ids_of(prompt, len(row))
    seen = frozenset(past) | frozenset(given)
    repeated = tuple(repeat_once(x, p.repetition_penalty) if i in seen else x for i, x in enumerate(row))
    counts = {i: past.count(i) for i in set(past)}
    return tuple(
        (x - p.frequency_penalty * counts[i]) - p.presence_penalty if i in counts else x
        for i, x in enumerate(repeated)
    )


def softmax_over(row: Row, kept: Ids) -> Row:
    """Softmax over `kept`, one probability per kept id, in the order of `kept` (ascending)."""
    top = max(row[i] for i in kept)
    e = tuple(exp(row[i] - top) for i in kept)
    z = total(e)
    return tuple(x / z for x in e)


def best_first(row: Row, kept: Ids) -> Ids:
    return tuple(sorted(kept, key=lambda i: (-row[i], i)))


def top_k(row: Row, p: SamplingParams, kept: Ids) -> Ids:
    if p.top_k == 0 or p.top_k >= len(row):
        return kept
    return tuple(sorted(best_first(row, kept)[: p.top_k]))


def top_p(row: Row, p: SamplingParams, kept: Ids) -> Ids:
    if p.top_p == 1:
        return kept
    q = dict(zip(kept, softmax_over(row, kept)))
    order = best_first(row, kept)
    short = tuple(takewhile(lambda s: s < p.top_p, accumulate(q[i] for i in order)))
    return tuple(sorted(order[: len(short) + 1]))


def min_p(row: Row, p: SamplingParams, kept: Ids) -> Ids:
    if p.min_p == 0:
        return kept
    q = softmax_over(row, kept)
    return tuple(i for i, x in zip(kept, q) if x >= p.min_p * max(q))


STAGES: tuple[Callable[[Row, SamplingParams, Ids], Ids], ...] = (top_p, top_k, min_p)


def survivors(row: Row, p: SamplingParams) -> Ids:
    allowed = tuple(i for i, x in enumerate(row) if x > -inf)
    return reduce(lambda kept, step: step(row, p, kept), STAGES, allowed)


def heated(row: Row, p: SamplingParams) -> Row:
    return tuple(x / p.temperature for x in row)


def spread(size: int, fill: float, pairs: Iterable[tuple[int, float]]) -> Row:
    known = dict(pairs)
    return tuple(known.get(i, fill) for i in range(size))


def greedy_id(row: Row) -> int:
    return row.index(max(row))


def logprob_row(row: Row) -> Row:
    top = max(row)
    log_z = log(total(exp(x - top) for x in row))
    return tuple((x - top) - log_z for x in row)


def distribution(row: Row, p: SamplingParams) -> Row:
    if p.temperature == 0:
        return spread(len(row), 0.0, [(greedy_id(row), 1.0)])
    hot = heated(row, p)
    kept = survivors(hot, p)
    return spread(len(row), 0.0, zip(kept, softmax_over(hot, kept)))


def pick(q: Row, u: float) -> int:
    hit = next((i for i, c in enumerate(accumulate(q)) if u < c), None)
    return hit if hit is not None else max(i for i, x in enumerate(q) if x > 0)


def to_array(row: Row) -> Any:
    return np.array(row, dtype=np.float64)


def apply_penalties(logits, p, history=(), prompt=()):
    return to_array(penalised(logits, p, history, prompt))


def token_logprobs(logits, p, history=(), prompt=()):
    return to_array(logprob_row(penalised(logits, p, history, prompt)))


def process_logits(logits, p, history=(), prompt=()):
    row = penalised(logits, p, history, prompt)
    if p.temperature == 0:
        return to_array(row)
    hot = heated(row, p)
    return to_array(spread(len(row), -inf, ((i, hot[i]) for i in survivors(hot, p))))


def sampling_distribution(logits, p, history=(), prompt=()):
    return to_array(distribution(penalised(logits, p, history, prompt), p))


def sample(logits, p, history, rng, prompt=()):
    row = penalised(logits, p, history, prompt)
    token = greedy_id(row) if p.temperature == 0 else pick(distribution(row, p), rng.uniform())
    return token, logprob_row(row)[token]


def sampled_entropy(logits, p, history=(), prompt=()):
    q = distribution(penalised(logits, p, history, prompt), p)
    return 0.0 - total(x * log(x) for x in q if x > 0)
