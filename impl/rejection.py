"""Rejection: drawing from one distribution, p, with draws from another, q.

    x ~ q --> u_accept < p[x] / q[x] ? --yes--> (x, True)
                       |
                       no --> max(0, p - q) / Z --u_resample--> (y, False)

Spec    spec/rejection.md
Source  Leviathan, Kalman & Matias 2023, arXiv:2211.17192, section 2.3 and appendix A.1;
        Devroye 1986, "Non-Uniform Random Variate Generation", section II.3
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impl.categorical import UniformSource, sample_categorical

F64 = NDArray[np.float64]
Distribution = NDArray[np.floating[Any]]  # float16, float32 or float64


def rejection_accept(p_x: float, q_x: float, u: float) -> bool:
    """Return whether a value drawn with density q_x stands as one of density p_x: u < p_x / q_x.

    Shapes
        p_x      float, >= 0, finite
        q_x      float, > 0, finite
        u        float, in [0, 1)
        returns  bool

    Errors
        ValueError  an argument is a bool, or neither int nor float
        ValueError  p_x is negative or not finite, q_x is not a finite number above 0, or u is not in [0, 1)

    Numerics
        one float64 division, which may overflow to inf or underflow to 0, and one comparison

    >>> [rejection_accept(0.25, 0.5, u) for u in (0.25, 0.5)]
    [True, False]
    """
    p_x, q_x, u = _number("p_x", p_x), _number("q_x", q_x), _uniform("u", u)
    if not 0.0 <= p_x < math.inf:  # R4: every comparison with a NaN is false
        raise ValueError(f"p_x must be finite and at least 0, got {p_x}")
    if not 0.0 < q_x < math.inf:  # R4: what q never proposes was not drawn from q
        raise ValueError(f"q_x must be finite and above 0, got {q_x}")
    r = p_x / q_x  # R10: not u * q_x < p_x, which rounds elsewhere
    return u < r  # R9: strict, so that p_x = 0 never accepts


def acceptance_probability(p: Distribution, q: Distribution) -> float:
    """Return how often a draft from q stands: the sum of min(p, q), which is 1 minus their total variation.

    Shapes
        p, q     f16[N], f32[N] or f64[N], N >= 1, each finite and >= 0, their sum 1 within 1e-9 * N + 1e-12
        returns  float, 0 to 1, in the last bits also above

    Errors
        ValueError  p or q is not 1-D, is empty, is not of a float dtype, or their lengths differ
        ValueError  p or q has an entry that is negative or not finite, or does not sum to 1

    Numerics
        one float64 sum in ascending id

    >>> acceptance_probability(np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.5, 0.0, 0.25]))
    0.5
    """
    p, q = _distributions(p, q)
    return _total(np.minimum(p, q))  # R11: not clamped


def residual_distribution(p: Distribution, q: Distribution) -> F64:
    """Return the law of what replaces a refused draft: max(0, p - q) / Z.

    Shapes
        p, q     as for acceptance_probability
        returns  f64[N], a new array

    Errors
        ValueError  as for acceptance_probability

    Numerics
        Z is one float64 sum in ascending id; where it is exactly 0, the answer is a copy of p

    >>> residual_distribution(np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.5, 0.0, 0.25])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    p, q = _distributions(p, q)
    d = np.maximum(0.0, p - q)  # R12: where p has more than q gave
    Z = _total(d)
    return d / Z if Z > 0.0 else p.copy()  # R13: no threshold, and no 0 / 0


def speculative_step(
    p: Distribution, q: Distribution, x: int, u_accept: float, u_resample: float
) -> tuple[int, bool]:
    """Keep the draft x with probability min(1, p[x] / q[x]), or replace it: an id with the law of p.

    Shapes
        p, q        as for acceptance_probability
        x           int, in [0, N), drawn from q
        u_accept    float, in [0, 1)
        u_resample  float, in [0, 1); on acceptance it is not looked at and may be anything
        returns     (id, accepted): int in [0, N), and bool

    Errors
        ValueError  as for acceptance_probability
        ValueError  x is a bool or no int, is not in [0, N), or q[x] is 0
        ValueError  u_accept, or on rejection u_resample, is a bool, neither int nor float, or not in [0, 1)

    Numerics
        the test of rejection_accept, the draw of sample_categorical

    >>> p, q = np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.5, 0.0, 0.25])
    >>> [speculative_step(p, q, 1, u, 0.75) for u in (0.25, 0.75)]
    [(1, True), (2, False)]
    """
    p, q = _distributions(p, q)
    x = _integer("x", x)
    if not 0 <= x < len(q):  # R18: a negative x would count from the end
        raise ValueError(f"x must be in [0, {len(q)}), got {x}")
    if q[x] == 0.0:  # R18: whatever p[x] is, x was not drawn from this q
        raise ValueError(f"x must be drawn from q, but q[{x}] is 0")
    if rejection_accept(float(p[x]), float(q[x]), u_accept):  # R14
        return x, True  # R15
    u_resample = _uniform("u_resample", u_resample)
    return sample_categorical(residual_distribution(p, q), u_resample), False  # R16


def rejection_sample(
    p: Distribution, q: Distribution, m: float, rng: UniformSource, max_tries: int = 10000
) -> tuple[int, int]:
    """Propose from q until u < p[x] / (m * q[x]): an id with the law of p, after m tries on average.

    Shapes
        p, q       as for acceptance_probability
        m          float, >= 1, finite, p <= m * q at every id
        rng        any object with uniform() -> float in [0, 1)
        max_tries  int, >= 1
        returns    (id, tries): int in [0, N), and int in [1, max_tries]

    Errors
        ValueError    as for acceptance_probability; rng was not called then, nor for the next three
        ValueError    m is a bool, neither int nor float, below 1 or not finite
        ValueError    max_tries is a bool, no int, or below 1
        ValueError    p[i] > m * q[i] for some id, compared without tolerance
        RuntimeError  max_tries proposals were rejected

    Numerics
        m * q[x] is rounded first, then the quotient

    State
        calls rng.uniform() twice a try: the first proposes, the second accepts

    >>> from impl.rng import PCG32
    >>> rejection_sample(np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5]), 2, PCG32(1))
    (0, 3)
    """
    p, q = _distributions(p, q)
    m = _number("m", m)
    if not 1.0 <= m < math.inf:  # R20: every comparison with a NaN is false
        raise ValueError(f"m must be finite and at least 1, got {m}")
    max_tries = _integer("max_tries", max_tries)
    if max_tries < 1:  # R20
        raise ValueError(f"max_tries must be at least 1, got {max_tries}")
    envelope = m * q
    if (p > envelope).any():  # R21: an acceptance probability above 1 would be cut off without a word
        i = int(np.argmax(p > envelope))
        raise ValueError(f"p must be at most m * q, but at id {i} {p[i]} is above {envelope[i]}")
    for tries in range(1, max_tries + 1):  # R24
        x = sample_categorical(q, rng.uniform())  # R22: the proposal first
        u = rng.uniform()  # R22: also where acceptance is certain
        if rejection_accept(float(p[x]), float(envelope[x]), u):  # R23: divided once, by the product
            return x, tries
    raise RuntimeError(f"none of {max_tries} proposals was accepted")  # R25: the last one has the law of q


def _distributions(p: Distribution, q: Distribution) -> tuple[F64, F64]:
    """Return p and q widened to float64 (R8), or refuse them; a float64 array comes back as it is."""
    p, q = _distribution("p", p), _distribution("q", q)
    if len(p) != len(q):  # R1: NumPy would broadcast a length of 1
        raise ValueError(f"p and q must have one length, got {len(p)} and {len(q)}")
    return p, q


def _distribution(name: str, w: Distribution) -> F64:
    """Refuse what is no row of floats (R1) or no distribution (R2)."""
    if not isinstance(w, np.ndarray) or w.ndim != 1:
        raise ValueError(f"{name} must be an array with one axis, got {np.ndim(w)} axes")
    if w.dtype.type not in (np.float16, np.float32, np.float64):
        raise ValueError(f"{name} must be float16, float32 or float64, got {w.dtype}")
    if len(w) == 0:
        raise ValueError(f"{name} is empty")
    wide = w.astype(np.float64, copy=False)  # R8: before the sum; R7: nothing ever writes into it
    if not (np.isfinite(wide).all() and (wide >= 0.0).all()):
        raise ValueError(f"{name} must be finite and at least 0")
    S = _total(wide)
    if not abs(S - 1.0) <= 1e-9 * len(wide) + 1e-12:  # R2; R3: what passes is not normalised again
        raise ValueError(f"{name} must sum to 1, got {S}")
    return wide


def _number(name: str, value: float) -> float:
    """Return an int or a float as a float (R8), or refuse another type (R6)."""
    if isinstance(value, bool) or not isinstance(value, int | float):  # R6: Python's True is an int
        raise ValueError(f"{name} must be an int or a float, got {value!r}")
    return float(value)


def _integer(name: str, value: int) -> int:
    """Return an int, or refuse another type (R6)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an int, got {value!r}")
    return int(value)


def _uniform(name: str, u: float) -> float:
    """Return a number in [0, 1), or refuse it (R5)."""
    u = _number(name, u)
    if not 0.0 <= u < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {u}")
    return u


def _total(terms: F64) -> float:
    """Add one after another; np.sum adds in pairs, and math.fsum rounds only once."""
    return float(np.cumsum(terms)[-1])
