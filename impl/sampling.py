"""Sampling: from the logits of one position to the next token.

    logits -> penalties -> logprobs (whole vocabulary)
                  |
                  +-> / temperature -> top-k -> top-p -> min-p -> softmax -> one draw

Spec    spec/sampling.md
Source  Holtzman et al. 2019, arXiv:1904.09751, section 3.1 (top-p);
        Keskar et al. 2019, arXiv:1909.05858, section 4.1 (repetition penalty)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impl.categorical import UniformSource
from impl.rng import PCG32

F64 = NDArray[np.float64]
Logits = NDArray[np.floating[Any]]  # float16, float32 or float64
Ids = Sequence[int] | NDArray[np.integer[Any]]


@dataclass
class SamplingParams:
    """How one request is sampled; the defaults sample the model's own distribution.

    >>> SamplingParams(top_k=3, top_p=0.8).stop
    []
    """

    temperature: float = 1.0  # >= 0, finite; 0 is greedy
    top_k: int = 0  # >= 0; 0 is off
    top_p: float = 1.0  # (0, 1]; 1 is off
    min_p: float = 0.0  # [0, 1]; 0 is off
    repetition_penalty: float = 1.0  # > 0, finite; 1 is off
    presence_penalty: float = 0.0  # finite
    frequency_penalty: float = 0.0  # finite
    seed: int | None = None  # >= 0; for request_rng, by the caller
    max_tokens: int = 128  # >= 1; read by generate, only checked here
    stop: list[str] = field(default_factory=list)  # read by generate, not checked here
    logprobs: int = 0  # >= 0; only checked here

    def validate(self) -> None:
        """Refuse a field of the wrong type or out of its range; repair nothing.

        Errors
            ValueError  a field is a bool, or not an int (int or float where the default is a float), or out
                        of the range its comment gives; a NaN is out of every range

        State
            changes no field

        >>> SamplingParams(top_p=1.5).validate()
        Traceback (most recent call last):
        ValueError: top_p is out of range: 1.5
        """
        kinds = {
            "temperature": int | float,
            "top_k": int,
            "top_p": int | float,
            "min_p": int | float,
            "repetition_penalty": int | float,
            "presence_penalty": int | float,
            "frequency_penalty": int | float,
            "seed": int | None,
            "max_tokens": int,
            "logprobs": int,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):  # R8: Python's True is an int
                raise ValueError(f"{name} has the wrong type: {value!r}")
        in_range = {
            "temperature": 0.0 <= self.temperature < math.inf,  # R4: every comparison with a NaN is false
            "top_k": self.top_k >= 0,  # R7
            "top_p": 0.0 < self.top_p <= 1.0,  # R5
            "min_p": 0.0 <= self.min_p <= 1.0,  # R5
            "repetition_penalty": 0.0 < self.repetition_penalty < math.inf,  # R6
            "presence_penalty": -math.inf < self.presence_penalty < math.inf,
            "frequency_penalty": -math.inf < self.frequency_penalty < math.inf,
            "seed": self.seed is None or self.seed >= 0,  # R7
            "max_tokens": self.max_tokens >= 1,
            "logprobs": self.logprobs >= 0,
        }
        for name, ok in in_range.items():
            if not ok:
                raise ValueError(f"{name} is out of range: {getattr(self, name)!r}")


def request_rng(seed: int) -> PCG32:
    """Return the random stream of one request: the sub-stream "sample" of its seed.

    Shapes
        seed     int, >= 0
        returns  PCG32, new

    >>> request_rng(0).uniform()
    0.8020949661137535
    """
    return PCG32(seed).substream("sample")  # R34: not the seed's own stream, which initialises models


def apply_penalties(logits: Logits, p: SamplingParams, history: Ids = (), prompt: Ids = ()) -> F64:
    """Penalise the ids that occurred: l / r or l * r, then (l - frequency * c) - presence.

    Shapes
        logits   f16[V], f32[V] or f64[V], V >= 1; -inf masks an id
        p        SamplingParams
        history  generated ids in [0, V): a sequence of int or a 1-D integer array
        prompt   the prompt's ids, the same; they count for the repetition penalty only
        returns  f64[V], a new array

    Errors
        ValueError  p does not validate
        ValueError  logits is not 1-D, is empty, is not of a float dtype, holds a NaN or +inf, or only -inf
        ValueError  an item of history or prompt is a bool, is not an integer, or is not in [0, V)

    Numerics
        float64 throughout; only *, / and -, so the answer is the same on every machine

    >>> p = SamplingParams(repetition_penalty=2.0)
    >>> apply_penalties(np.array([2.0, -2.0, 1.0, 0.0, 4.0]), p, history=[0, 0, 0], prompt=[1, 3]).tolist()
    [1.0, -4.0, 1.0, 0.0, 4.0]
    """
    p.validate()  # R9: the other functions begin by calling this one
    _check_logits(logits)
    history = _checked_ids(history, len(logits))
    prompt = _checked_ids(prompt, len(logits))
    x = logits.astype(np.float64)  # R15, R14: a copy also of float64
    r = float(p.repetition_penalty)
    presence, frequency = float(p.presence_penalty), float(p.frequency_penalty)
    for i in {*prompt, *history}:
        x[i] = x[i] / r if x[i] > 0.0 else x[i] * r  # R16: moves down on both sides of 0
    for i, count in Counter(history).items():
        x[i] = (x[i] - frequency * count) - presence  # R17: in this association
    return x


def token_logprobs(logits: Logits, p: SamplingParams, history: Ids = (), prompt: Ids = ()) -> F64:
    """Return the log-probability of every id under the penalised logits: (l - M) - log(sum of exp(l - M)).

    Temperature and filters do not enter: this is what the model says, not how it is sampled.

    Shapes
        logits, p, history, prompt  as for apply_penalties
        returns                     f64[V], a new array; -inf for a masked id

    Errors
        ValueError  as for apply_penalties

    Numerics
        M is the maximum; exp and log are those of `math`; the sum is one float64 in ascending id

    >>> token_logprobs(np.array([0.0, -math.inf, 0.0]), SamplingParams()).tolist()
    [-0.6931471805599453, -inf, -0.6931471805599453]
    """
    penalised = apply_penalties(logits, p, history, prompt)
    shifted = penalised - float(penalised.max())
    return shifted - math.log(_total(_exp(shifted)))  # R19: two subtractions, M first


def process_logits(logits: Logits, p: SamplingParams, history: Ids = (), prompt: Ids = ()) -> F64:
    """Return the tempered logits of the ids that the filters keep, and -inf for the others.

    Shapes
        logits, p, history, prompt  as for apply_penalties
        returns                     f64[V], a new array

    Errors
        ValueError  as for apply_penalties

    Numerics
        kept values are l / temperature; at temperature 0 the penalised logits, nothing divided or filtered

    >>> p = SamplingParams(top_k=3, top_p=0.8)
    >>> process_logits(np.array([1.0, 3.0, 2.0, 3.0, -1.0]), p).tolist()
    [-inf, 3.0, -inf, 3.0, -inf]
    """
    penalised = apply_penalties(logits, p, history, prompt)
    if p.temperature == 0.0:
        return penalised  # R22
    tempered = penalised / float(p.temperature)  # R23: before the filters
    kept = np.flatnonzero(tempered > -math.inf)  # R12; ascending from here on, the order of the sums (R20)
    kept = _top_k(tempered, kept, p.top_k)
    kept = _top_p(tempered, kept, float(p.top_p))
    kept = _min_p(tempered, kept, float(p.min_p))
    processed = np.full(len(tempered), -math.inf)  # R28: no finite number means "removed"
    processed[kept] = tempered[kept]
    return processed


def sampling_distribution(logits: Logits, p: SamplingParams, history: Ids = (), prompt: Ids = ()) -> F64:
    """Return the probabilities that the draw uses: the softmax over the kept ids, 0.0 elsewhere.

    Shapes
        logits, p, history, prompt  as for apply_penalties
        returns                     f64[V], a new array

    Errors
        ValueError  as for apply_penalties

    Numerics
        q = exp(l - M) / Z with Z one float64 sum in ascending id; at temperature 0 exactly 1.0 at the
        largest logit, the lowest id of equals

    >>> p = SamplingParams(top_k=3, top_p=0.8)
    >>> sampling_distribution(np.array([1.0, 3.0, 2.0, 3.0, -1.0]), p).tolist()
    [0.0, 0.5, 0.0, 0.5, 0.0]
    """
    processed = process_logits(logits, p, history, prompt)
    q = np.zeros(len(processed))
    if p.temperature == 0.0:
        q[np.argmax(processed)] = 1.0  # R22: argmax takes the first of equals
    else:
        kept = np.flatnonzero(processed > -math.inf)
        q[kept] = _softmax(processed[kept])  # R29
    return q


def sample(
    logits: Logits, p: SamplingParams, history: Ids, rng: UniformSource, prompt: Ids = ()
) -> tuple[int, float]:
    """Draw the next token: the first id whose running sum of probabilities exceeds one uniform number.

    Shapes
        logits, p, history, prompt  as for apply_penalties
        rng                         any object with uniform() -> float in [0, 1)
        returns                     (id, log-probability): int in [0, V), and float, the id's token_logprobs

    Errors
        ValueError  as for apply_penalties; rng was not called then

    State
        calls rng.uniform() once, also when one id is left; never at temperature 0

    >>> p = SamplingParams(top_k=3, top_p=0.8)
    >>> sample(np.array([1.0, 3.0, 2.0, 3.0, -1.0]), p, [], request_rng(0))
    (3, -0.9248660042217248)
    """
    logprobs = token_logprobs(logits, p, history, prompt)
    q = sampling_distribution(logits, p, history, prompt)
    u = 0.0 if p.temperature == 0.0 else rng.uniform()  # R30: after everything that can raise
    passed = int(np.count_nonzero(np.cumsum(q) <= u))  # R31: a u equal to a running sum has passed it
    token = passed if passed < len(q) else int(np.flatnonzero(q)[-1])  # R32: rounding ate the last bit
    return token, float(logprobs[token])  # R33


def sampled_entropy(logits: Logits, p: SamplingParams, history: Ids = (), prompt: Ids = ()) -> float:
    """Return the entropy of sampling_distribution: minus the sum of q * log(q).

    Shapes
        logits, p, history, prompt  as for apply_penalties
        returns                     float, nats, >= 0; 0.0 at temperature 0

    Errors
        ValueError  as for apply_penalties

    Numerics
        one float64 sum in ascending id over the ids with q > 0

    >>> sampled_entropy(np.array([5.0, 5.0, -math.inf]), SamplingParams())
    0.6931471805599453
    """
    q = sampling_distribution(logits, p, history, prompt)
    q = q[q > 0.0]  # log(0) is an error, and q * log(q) goes to 0 with q
    logs = np.fromiter(map(math.log, q.tolist()), np.float64, len(q))
    return 0.0 - _total(q * logs)  # R35: one certain id gives +0.0


def _check_logits(logits: Logits) -> None:
    """Refuse what is no row of logits (R10) or has no next token (R11)."""
    if not isinstance(logits, np.ndarray) or logits.ndim != 1:
        raise ValueError(f"logits must be an array with one axis, got {np.ndim(logits)} axes")
    if logits.dtype.type not in (np.float16, np.float32, np.float64):
        raise ValueError(f"logits must be float16, float32 or float64, got {logits.dtype}")
    if len(logits) == 0:
        raise ValueError("logits is empty")
    if np.isnan(logits).any():
        raise ValueError("logits holds a NaN")
    if np.isposinf(logits).any():
        raise ValueError("logits holds +inf")
    if np.isneginf(logits).all():
        raise ValueError("logits masks every id")


def _checked_ids(ids: Ids, V: int) -> list[int]:
    """Return the ids as plain integers, or refuse them (R13)."""
    if not isinstance(ids, Sequence) and np.ndim(ids) != 1:
        raise ValueError(f"ids must be a sequence or an array with one axis, got {ids!r}")
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise ValueError(f"ids must be integers, got {item!r}")
        if not 0 <= int(item) < V:
            raise ValueError(f"ids must be in [0, {V}), got {item}")
    return [int(item) for item in ids]


def _top_k(x: F64, kept: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """Keep exactly the k largest, of equals those with the lowest ids; a partition finds the k-th in O(V)."""
    if not 0 < k < len(kept):  # R24: off, or not more than k are left
        return kept
    cut = np.partition(x[kept], -k)[-k]
    above, ties = kept[x[kept] > cut], kept[x[kept] == cut]
    return np.sort(np.concatenate([above, ties[: k - len(above)]]))  # R24: never all the ties


def _top_p(x: F64, kept: NDArray[np.intp], top_p: float) -> NDArray[np.intp]:
    """Keep the most probable ids up to the one at which the running sum reaches top_p."""
    if top_p == 1.0:
        return kept  # R26: off, also where rounding lets the sum reach 1 before the last id
    order = np.argsort(-x[kept], kind="stable")  # logit descending, id ascending
    mass = np.cumsum(_softmax(x[kept])[order])  # R25: Z in ascending id, the walk in this order
    n_kept = np.count_nonzero(mass < top_p) + 1  # R25: the crossing id stays; R26: all if nothing crosses
    return np.sort(kept[order[:n_kept]])


def _min_p(x: F64, kept: NDArray[np.intp], min_p: float) -> NDArray[np.intp]:
    """Keep the ids at least min_p times as probable as the most probable one."""
    if min_p == 0.0:
        return kept
    q = _softmax(x[kept])
    return kept[q >= min_p * float(q.max())]  # R27


def _softmax(x: F64) -> F64:
    """Return exp(x - M) / Z over kept logits in ascending id; the maximum makes overflow impossible."""
    e = _exp(x - float(x.max()))
    return e / _total(e)


def _exp(x: F64) -> F64:
    """Apply the C library's exp (R21); np.exp is another function and differs in the last bit."""
    return np.fromiter(map(math.exp, x.tolist()), np.float64, len(x))


def _total(terms: F64) -> float:
    """Add one after another (R20); np.sum adds in pairs, and math.fsum rounds only once."""
    return float(np.cumsum(terms)[-1])
