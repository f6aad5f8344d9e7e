from functools import reduce
from itertools import accumulate, count
from math import isfinite
from operator import add

import numpy as np


class Law:
    """A checked discrete distribution as a tuple of Python floats."""

    def __init__(self, array):
        ok = isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.dtype.itemsize <= 8
        if not ok or array.ndim != 1 or array.shape[0] < 1:
            raise ValueError("a distribution is a 1-D float array")
        self.w = tuple(map(float, array.tolist()))
        if any(not isfinite(v) or v < 0.0 for v in self.w):
            raise ValueError("entries are finite and at least 0")
        if abs(reduce(add, self.w, 0.0) - 1.0) > 1e-9 * len(self.w) + 1e-12:
            raise ValueError("entries sum to 1")

    def __len__(self):
        return len(self.w)


def both(p, q):
    p, q = Law(p), Law(q)
    if len(p) != len(q):
        raise ValueError("lengths differ")
    return p.w, q.w


def real(v):
    if type(v) is bool or not isinstance(v, (float, int)):
        raise ValueError(f"{v!r} is no number")
    return float(v)


def whole(v):
    if type(v) is bool or not isinstance(v, int):
        raise ValueError(f"{v!r} is no int")
    return int(v)


def unit_interval(v):
    v = real(v)
    if v >= 0.0 and v < 1.0:
        return v
    raise ValueError(f"{v} lies outside [0, 1)")


def left_over(p, q):
    d = [max(0.0, a - b) for a, b in zip(p, q)]
    z = reduce(add, d, 0.0)
    if z > 0.0:
        return [v / z for v in d]
    return list(p)


def invert(w, u):
    for i, c in enumerate(accumulate(w)):
        if u < c:
            return i
    return max(i for i, v in enumerate(w) if v > 0.0)


def rejection_accept(p_x, q_x, u):
    p_x, q_x, u = real(p_x), real(q_x), unit_interval(u)
    if not (isfinite(p_x) and p_x >= 0.0):
        raise ValueError("p_x")
    if not (isfinite(q_x) and q_x > 0.0):
        raise ValueError("q_x")
    return p_x / q_x > u


def acceptance_probability(p, q):
    return reduce(add, map(min, *both(p, q)), 0.0)


def residual_distribution(p, q):
    pw, qw = both(p, q)
    return np.array(left_over(pw, qw))


def speculative_step(p, q, x, u_accept, u_resample):
    pw, qw = both(p, q)
    x = whole(x)
    if x not in range(len(pw)):
        raise ValueError("no such id")
    if rejection_accept(pw[x], qw[x], u_accept):
        return x, True
    w = left_over(pw, qw)
    return invert(w, unit_interval(u_resample)), False


def rejection_sample(p, q, m, rng, max_tries=10000):
    pw, qw = both(p, q)
    m, max_tries = real(m), whole(max_tries)
    if m < 1.0 or not isfinite(m):
        raise ValueError("m")
    if max_tries < 1:
        raise ValueError("max_tries")
    cover = [m * b for b in qw]
    if any(a > c for a, c in zip(pw, cover)):
        raise ValueError("envelope")
    for n in count(1):
        first, second = rng.uniform(), rng.uniform()
        x = invert(qw, first)
        if second < pw[x] / cover[x]:
            return x, n
        if n == max_tries:
            raise RuntimeError("gave up")
