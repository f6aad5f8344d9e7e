import math

import numpy as np


def _row(a, what):
    if not isinstance(a, np.ndarray):
        raise ValueError(what + " is not an array")
    if a.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(what + " has a dtype that is not allowed")
    if a.ndim != 1 or len(a) == 0:
        raise ValueError(what + " must be 1-D and not empty")
    values = [float(v) for v in a]
    total = 0.0
    for v in values:
        if not math.isfinite(v) or v < 0:
            raise ValueError(what + " has a bad entry")
        total = total + v
    if not abs(total - 1.0) <= 1e-9 * len(values) + 1e-12:
        raise ValueError(what + " does not sum to 1")
    return values


def _rows(p, q):
    ps = _row(p, "p")
    qs = _row(q, "q")
    if len(ps) != len(qs):
        raise ValueError("p and q differ in length")
    return ps, qs


def _number(v, what):
    if isinstance(v, bool) or not isinstance(v, (int, float)):
        raise ValueError(what + " is not a number")
    return float(v)


def _integer(v, what):
    if isinstance(v, bool) or not isinstance(v, int):
        raise ValueError(what + " is not an int")
    return v


def _uniform(v, what):
    v = _number(v, what)
    if not 0.0 <= v < 1.0:
        raise ValueError(what + " is not in [0, 1)")
    return v


def _draw(weights, u):
    running = 0.0
    last = 0
    for i, w in enumerate(weights):
        running = running + w
        if u < running:
            return i
        if w > 0:
            last = i
    return last


def _residual(ps, qs):
    d = []
    z = 0.0
    for a, b in zip(ps, qs):
        diff = a - b
        if diff < 0.0:
            diff = 0.0
        d.append(diff)
        z = z + diff
    if z == 0.0:
        return list(ps)
    return [v / z for v in d]


def rejection_accept(p_x, q_x, u):
    p_x = _number(p_x, "p_x")
    q_x = _number(q_x, "q_x")
    u = _uniform(u, "u")
    if not math.isfinite(p_x) or p_x < 0:
        raise ValueError("p_x must be finite and at least 0")
    if not math.isfinite(q_x) or q_x <= 0:
        raise ValueError("q_x must be finite and above 0")
    return u < p_x / q_x


def acceptance_probability(p, q):
    ps, qs = _rows(p, q)
    total = 0.0
    for a, b in zip(ps, qs):
        total = total + (a if a < b else b)
    return total


def residual_distribution(p, q):
    ps, qs = _rows(p, q)
    return np.array(_residual(ps, qs), dtype=np.float64)


def speculative_step(p, q, x, u_accept, u_resample):
    ps, qs = _rows(p, q)
    x = _integer(x, "x")
    u_accept = _uniform(u_accept, "u_accept")
    if x < 0 or x >= len(ps):
        raise ValueError("x is not an id")
    if qs[x] == 0:
        raise ValueError("x cannot have been drawn from q")
    if u_accept < ps[x] / qs[x]:
        return x, True
    u_resample = _uniform(u_resample, "u_resample")
    return _draw(_residual(ps, qs), u_resample), False


def rejection_sample(p, q, m, rng, max_tries=10000):
    ps, qs = _rows(p, q)
    m = _number(m, "m")
    max_tries = _integer(max_tries, "max_tries")
    if not math.isfinite(m) or m < 1:
        raise ValueError("m must be finite and at least 1")
    if max_tries < 1:
        raise ValueError("max_tries must be at least 1")
    for a, b in zip(ps, qs):
        if a > m * b:
            raise ValueError("p is above m q")
    for tries in range(1, max_tries + 1):
        x = _draw(qs, rng.uniform())
        u = rng.uniform()
        if u < ps[x] / (m * qs[x]):
            return x, tries
    raise RuntimeError("no try was accepted")
