"""Categorical draws: from probabilities and one uniform number to an index.

Source  Devroye 1986, "Non-Uniform Random Variate Generation", section III.2 (inversion by sequential search)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike


class UniformSource(Protocol):
    """Anything that hands out uniform numbers; `impl.rng.PCG32` is one."""

    def uniform(self) -> float:
        """Return the next number in [0, 1)."""


def sample_categorical(probs: ArrayLike, u: float) -> int:
    """Return the first index i with u < probs[0] + ... + probs[i].

    Shapes
        probs    f64[N], N >= 1, each finite and >= 0, their sum 1 within 1e-9 * N + 1e-12
        u        float, in [0, 1)
        returns  int, in [0, N), of an entry above 0

    Errors
        ValueError  probs is not 1-D or is empty, has an entry below 0 or not finite, or does not sum to 1
        ValueError  u is not in [0, 1)

    Numerics
        one float64 running sum in ascending index; where rounding leaves its last value <= u, the answer is
        the largest index of an entry above 0

    >>> [sample_categorical([0.5, 0.0, 0.25, 0.25], u) for u in (0.0, 0.5, 0.75)]
    [0, 2, 3]
    """
    p = np.asarray(probs, dtype=np.float64)
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"probs must have one axis and at least one entry, got shape {p.shape}")
    if not (np.isfinite(p).all() and (p >= 0.0).all()):
        raise ValueError("probs must be finite and at least 0")
    running = np.cumsum(p)  # sequential, unlike np.sum
    if not abs(running[-1] - 1.0) <= 1e-9 * p.size + 1e-12:
        raise ValueError(f"probs must sum to 1, got {running[-1]}")
    if not 0.0 <= u < 1.0:
        raise ValueError(f"u must be in [0, 1), got {u}")
    passed = int(np.count_nonzero(running <= u))  # running never falls, so these are the entries before i
    return passed if passed < p.size else int(np.flatnonzero(p)[-1])
