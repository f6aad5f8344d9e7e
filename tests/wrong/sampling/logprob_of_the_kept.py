"""One Turn object holds everything about one token."""
from __future__ import annotations

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
        for name in ["top_k", "max_tokens", "logprobs"]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(name + " must be an int")
        for name in ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                     "frequency_penalty"]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(name + " must be a number")
            if math.isnan(value) or math.isinf(value):
                raise ValueError(name + " must be finite")
        if self.seed is not None:
            if isinstance(self.seed, bool) or not isinstance(self.seed, int):
                raise ValueError("seed must be None or an int")
            if self.seed < 0:
                raise ValueError("seed must not be negative")
        if self.temperature < 0:
            raise ValueError("temperature must not be negative")
        if self.top_k < 0:
            raise ValueError("top_k must not be negative")
        if self.top_p <= 0 or self.top_p > 1:
            raise ValueError("top_p must be in (0, 1]")
        if self.min_p < 0 or self.min_p > 1:
            raise ValueError("min_p must be in [0, 1]")
        if self.repetition_penalty <= 0:
            raise ValueError("repetition_penalty must be positive")
        if self.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        if self.logprobs < 0:
            raise ValueError("logprobs must not be negative")


class Turn:
    """The state of one call: logits, parameters, and what is still kept."""

    def __init__(self, logits, p, history, prompt):
        p.validate()
        self.p = p
        self.logits = self._read(logits)
        self.vocab = len(self.logits)
        self.history = self._ids(history)
        self.prompt = self._ids(prompt)
        self._penalise()

    # -- input -------------------------------------------------------------------------------

    @staticmethod
    def _read(logits):
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
        for i, c in Counter(self.history).items():
            self.logits[i] = (self.logits[i] - self.p.frequency_penalty * c) - self.p.presence_penalty

    # -- helpers -----------------------------------------------------------------------------

    def _best_first(self):
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

    def run_filters(self):
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
        self.kept = set(self._best_first()[:k])

    def _top_p(self):
        if self.p.top_p == 1:
            return
        q = self._probs()
        chosen, running = set(), 0.0
        for i in self._best_first():
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
        q = self.distribution()
        return np.array([math.log(x) if x > 0 else -math.inf for x in q])

    def processed(self):
        if self.greedy:
            return np.array(self.logits)
        self.run_filters()
        out = np.full(self.vocab, -np.inf)
        for i in self.kept:
            out[i] = self.scaled[i]
        return out

    def distribution(self):
        out = np.zeros(self.vocab)
        if self.greedy:
            out[self.best()] = 1.0
            return out
        self.run_filters()
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
    return np.array(Turn(logits, p, history, prompt).logits)


def token_logprobs(logits, p, history=(), prompt=()):
    return Turn(logits, p, history, prompt).logprobs()


def process_logits(logits, p, history=(), prompt=()):
    return Turn(logits, p, history, prompt).processed()


def sampling_distribution(logits, p, history=(), prompt=()):
    return Turn(logits, p, history, prompt).distribution()


def sample(logits, p, history, rng, prompt=()):
    turn = Turn(logits, p, history, prompt)
    token = turn.draw(rng)
    return token, float(turn.logprobs()[token])


def sampled_entropy(logits, p, history=(), prompt=()):
    return turn_entropy(Turn(logits, p, history, prompt))


def turn_entropy(turn):
    return turn.entropy()
