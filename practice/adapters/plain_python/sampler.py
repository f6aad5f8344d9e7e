"""The sampler of spec/sampling.md with lists of floats; comments name the rules."""

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from rng import PCG32
from values import Tensor, f64

INF = math.inf
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@dataclass
class SamplingParams:
    """R1, R2: the fields, their order and their defaults."""

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
        """R4 to R8."""
        whole = {"top_k": 0, "max_tokens": 1, "logprobs": 0} | ({} if self.seed is None else {"seed": 0})
        for name, least in whole.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is an integer >= {least}, not {value!r}")
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        for name in ("temperature", "top_p", "min_p", *penalties):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"{name} is a finite number, not {value!r}")
        if self.temperature < 0:
            raise ValueError(f"temperature is at least 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is in (0, 1], not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is in [0, 1], not {self.min_p}")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty is above 0, not {self.repetition_penalty}")


def request_rng(seed: int) -> PCG32:
    return PCG32(seed).substream("sample")  # R34


def apply_penalties(logits: Any, p: SamplingParams, history: Any = (), prompt: Any = ()) -> Tensor:
    return f64(penalised(logits, p, history, prompt))  # R18


def token_logprobs(logits: Any, p: SamplingParams, history: Any = (), prompt: Any = ()) -> Tensor:
    x = penalised(logits, p, history, prompt)
    top, log_z = log_sum(x)
    return f64([(value - top) - log_z for value in x])  # R19


def process_logits(logits: Any, p: SamplingParams, history: Any = (), prompt: Any = ()) -> Tensor:
    x = penalised(logits, p, history, prompt)
    if p.temperature == 0:
        return f64(x)  # R22
    x, kept = filtered(x, p)
    out = [-INF] * len(x)
    for i in kept:
        out[i] = x[i]
    return f64(out)  # R28


def sampling_distribution(logits: Any, p: SamplingParams, history: Any = (), prompt: Any = ()) -> Tensor:
    x = penalised(logits, p, history, prompt)
    out = [0.0] * len(x)
    for i, q in zip(*distribution(x, p), strict=True):
        out[i] = q
    return f64(out)


def sample(logits: Any, p: SamplingParams, history: Any, rng: Any, prompt: Any = ()) -> tuple[int, float]:
    x = penalised(logits, p, history, prompt)
    ids, q = distribution(x, p)
    token = ids[0] if p.temperature == 0 else drawn(ids, q, rng.uniform())  # R30: one draw, or none
    top, log_z = log_sum(x)
    return token, (x[token] - top) - log_z  # R33


def sampled_entropy(logits: Any, p: SamplingParams, history: Any = (), prompt: Any = ()) -> float:
    _, q = distribution(penalised(logits, p, history, prompt), p)
    return 0.0 - total(value * math.log(value) for value in q if value > 0)  # R35


# -- steps ----------------------------------------------------------------------------------------------


def penalised(logits: Any, p: SamplingParams, history: Any, prompt: Any) -> list[float]:
    """R9 to R17: everything checked, then the penalties, in float64."""
    p.validate()
    if not isinstance(logits, Tensor) or logits.dtype not in ("f16", "f32", "f64") or len(logits.shape) != 1:
        raise ValueError("logits are one axis of f16, f32 or f64")
    x = list(logits.numbers)
    if not any(value > -INF for value in x):
        raise ValueError("no id is left")
    if not all(value < INF for value in x):  # false for NaN as well
        raise ValueError("NaN or inf among the logits")
    of_history, of_prompt = occurrences(history, len(x)), occurrences(prompt, len(x))
    for i in of_history.keys() | of_prompt.keys():  # R16
        x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
    for i, count in of_history.items():  # R17
        x[i] = (x[i] - float(p.frequency_penalty) * count) - p.presence_penalty
    return x


def occurrences(ids: Any, size: int) -> dict[int, int]:
    """R13: how often each id occurs."""
    if isinstance(ids, Tensor):
        if ids.dtype not in INTEGERS or len(ids.shape) != 1:
            raise ValueError("ids are one axis of integers")
        ids = ids.numbers
    elif not isinstance(ids, (list, tuple)):
        raise ValueError("ids are a sequence of integers")
    counts: dict[int, int] = {}
    for i in ids:
        if type(i) is not int or not 0 <= i < size:
            raise ValueError(f"{i!r} is not an id below {size}")
        counts[i] = counts.get(i, 0) + 1
    return counts


def total(numbers: Any) -> float:
    """R20: one term after another; the built-in sum compensates from Python 3.12 on."""
    result = 0.0
    for number in numbers:
        result += number
    return result


def log_sum(x: list[float]) -> tuple[float, float]:
    """The largest value M, and log of the sum of exp(x - M)."""
    top = max(x)
    return top, math.log(total([math.exp(value - top) for value in x]))


def softmax(x: list[float], ids: list[int]) -> list[float]:
    """Probabilities of some ids, which ascend."""
    logits = [x[i] for i in ids]
    top = max(logits)
    e = [math.exp(value - top) for value in logits]
    z = total(e)
    return [value / z for value in e]


def filtered(x: list[float], p: SamplingParams) -> tuple[list[float], list[int]]:
    """R23 to R27: the tempered logits and the ids that the filters keep, ascending."""
    x = [value / p.temperature for value in x]
    ids = [i for i, value in enumerate(x) if value > -INF]
    falling = [-value for value in x].__getitem__  # the key of a stable sort: ties go to the lower id
    if p.top_k:
        ids = sorted(sorted(ids, key=falling)[: p.top_k])
    if p.top_p != 1:
        q = dict(zip(ids, softmax(x, ids), strict=True))
        walk = sorted(ids, key=falling)
        for n, mass in enumerate(accumulate(map(q.__getitem__, walk)), 1):
            if mass >= p.top_p:
                ids = sorted(walk[:n])  # with the id that crosses; R26: if none does, all stay
                break
    if p.min_p:
        left = softmax(x, ids)
        least = p.min_p * max(left)
        ids = [i for i, value in zip(ids, left, strict=True) if value >= least]
    return x, ids


def distribution(x: list[float], p: SamplingParams) -> tuple[list[int], list[float]]:
    """The ids that can be drawn, ascending, and their probabilities: R22 and R29."""
    if p.temperature == 0:
        return [x.index(max(x))], [1.0]
    x, kept = filtered(x, p)
    return kept, softmax(x, kept)


def drawn(ids: list[int], q: list[float], u: float) -> int:
    """R31; R32 when rounding leaves the last running sum at or below u."""
    mass = 0.0
    for i, value in zip(ids, q, strict=True):
        mass += value
        if u < mass:
            return i
    return max(i for i, value in zip(ids, q, strict=True) if value > 0)
