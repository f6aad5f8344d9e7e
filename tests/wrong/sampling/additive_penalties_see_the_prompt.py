"""Sampler as a class."""
from __future__ import annotations

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


class SamplerRun:
    """The state of one call: logits, parameters, and what is still kept."""

    def __init__(self, logits, p, history, prompt):
        p.validate()
        self.p = p
        self.logits = self._load(logits)
        self.vocab = len(self.logits)
        self.history = self._ids(history)
        self.prompt = self._ids(prompt)
        self._penalise()

    # -- input -------------------------------------------------------------------------------

    @staticmethod
    def _load(logits):
        if not isinstance(logits, np.ndarray):
            raise ValueError("logits must be an array")
        if logits.shape == () or logits.ndim > 1 or logits.shape[0] == 0:
            raise ValueError("logits must be 1-D and not empty")
        if logits.dtype.kind != "f" or logits.dtype.itemsize > 8:
            raise ValueError("logits must be float16, float32 or float64")
        values = logits.astype(np.float64).tolist()
        if any(x != x or x == math.inf for x in values):
            raise ValueError("logits must not hold NaN or +inf")
        if max(values) == -math.inf:
            raise ValueError("no id is allowed")
        return values

    def _ids(self, ids):
        if isinstance(ids, np.ndarray):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise ValueError("ids must be a 1-D integer array")
            ids = ids.tolist()
        out = []
        for item in ids:
            if isinstance(item, bool) or not isinstance(item, (int, np.integer)):
                raise ValueError(f"{item!r} is not an id")
            if item < 0 or item >= self.vocab:
                raise ValueError(f"id {item} is outside the vocabulary")
            out.append(int(item))
        return out

    # -- penalties ---------------------------------------------------------------------------

    def _penalise(self):
        r = self.p.repetition_penalty
        for i in set(self.prompt) | set(self.history):
            x = self.logits[i]
            self.logits[i] = x / r if x > 0 else x * r
        occurrences = Counter(self.prompt + self.history)
        for i, c in occurrences.items():
            self.logits[i] = (self.logits[i] - self.p.frequency_penalty * c) - self.p.presence_penalty

    # -- helpers -----------------------------------------------------------------------------

    def _ranked(self):
        return sorted(self.kept, key=lambda i: (-self.scaled[i], i))

    def _probs(self):
        """Softmax over the kept ids, {id: probability} in ascending id."""
        top = max(self.scaled[i] for i in self.kept)
        e = {i: math.exp(self.scaled[i] - top) for i in sorted(self.kept)}
        z = 0.0
        for x in e.values():
            z += x
        return {i: x / z for i, x in e.items()}

    # -- filters -----------------------------------------------------------------------------

    def cut(self):
        t = self.p.temperature
        self.scaled = [x / t for x in self.logits]
        self.kept = {i for i, x in enumerate(self.logits) if x > -math.inf}
        self._top_k()
        self._top_p()
        self._min_p()

    def _top_k(self):
        k = self.p.top_k
        if k == 0 or k >= self.vocab:
            return
        self.kept = set(self._ranked()[:k])

    def _top_p(self):
        if self.p.top_p == 1:
            return
        q = self._probs()
        chosen, running = set(), 0.0
        for i in self._ranked():
            chosen.add(i)
            running += q[i]
            if running >= self.p.top_p:
                break
        self.kept = chosen

    def _min_p(self):
        if self.p.min_p == 0:
            return
        q = self._probs()
        floor = self.p.min_p * max(q.values())
        self.kept = {i for i in self.kept if q[i] >= floor}

    # -- results -----------------------------------------------------------------------------

    @property
    def greedy(self):
        return self.p.temperature == 0

    def best(self):
        return self.logits.index(max(self.logits))

    def logprobs(self):
        top = max(self.logits)
        z = 0.0
        for x in self.logits:
            z += math.exp(x - top)
        log_z = math.log(z)
        return np.array([(x - top) - log_z for x in self.logits])

    def processed(self):
        if self.greedy:
            return np.array(self.logits)
        self.cut()
        out = np.full(self.vocab, -np.inf)
        for i in self.kept:
            out[i] = self.scaled[i]
        return out

    def distribution(self):
        out = np.zeros(self.vocab)
        if self.greedy:
            out[self.best()] = 1.0
            return out
        self.cut()
        for i, x in self._probs().items():
            out[i] = x
        return out

    def entropy(self):
        if self.greedy:
            return 0.0
        s = 0.0
        for x in self.distribution().tolist():
            if x > 0.0:
                s += x * math.log(x)
        return 0.0 - s

    def draw(self, rng):
        if self.greedy:
            return self.best()
        q = self.distribution()
        return int(sample_categorical(q, rng.uniform()))


def request_rng(seed):
    return PCG32(seed).substream("sample")


def apply_penalties(logits, p, history=(), prompt=()):
    return np.array(SamplerRun(logits, p, history, prompt).logits)


def token_logprobs(logits, p, history=(), prompt=()):
    return SamplerRun(logits, p, history, prompt).logprobs()


def process_logits(logits, p, history=(), prompt=()):
    return SamplerRun(logits, p, history, prompt).processed()


def sampling_distribution(logits, p, history=(), prompt=()):
    return SamplerRun(logits, p, history, prompt).distribution()


def sample(logits, p, history, rng, prompt=()):
    one_run = SamplerRun(logits, p, history, prompt)
    token = one_run.draw(rng)
    return token, float(one_run.logprobs()[token])


def sampled_entropy(logits, p, history=(), prompt=()):
    return entropy_of(SamplerRun(logits, p, history, prompt))


def entropy_of(one_run):
    return one_run.entropy()
