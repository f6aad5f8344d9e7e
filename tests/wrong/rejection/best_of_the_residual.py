"""Rejection sampling with NumPy."""
from __future__ import annotations

import numpy as np

from impl.categorical import sample_categorical


def _probs(name, a):
    """Check one distribution and widen it to float64."""
    if not isinstance(a, np.ndarray) or a.ndim != 1 or a.shape[0] < 1:
        raise ValueError(f"{name} must be a 1-D array with at least one entry")
    if a.dtype.kind != "f" or a.dtype.itemsize > 8:
        raise ValueError(f"{name} must be float16, float32 or float64, got {a.dtype}")
    w = a.astype(np.float64)
    if not np.all(np.isfinite(w)) or np.any(w < 0.0):
        raise ValueError(f"{name} must be finite and not negative")
    total = float(np.cumsum(w)[-1])
    if not abs(total - 1.0) <= 1e-9 * w.shape[0] + 1e-12:
        raise ValueError(f"{name} must sum to 1, got {total}")
    return w


def _pair(p, q):
    p, q = _probs("p", p), _probs("q", q)
    if p.shape != q.shape:
        raise ValueError(f"p and q must have one length, got {p.shape[0]} and {q.shape[0]}")
    return p, q


def _real(name, v):
    if isinstance(v, bool) or not isinstance(v, (int, float)):
        raise ValueError(f"{name} must be an int or a float, got {v!r}")
    return float(v)


def _int(name, v):
    if isinstance(v, bool) or not isinstance(v, int):
        raise ValueError(f"{name} must be an int, got {v!r}")
    return v


def _uniform(name, v):
    v = _real(name, v)
    if not (v >= 0.0 and v < 1.0):
        raise ValueError(f"{name} must be in [0, 1), got {v}")
    return v


def rejection_accept(p_x, q_x, u):
    p_x, q_x, u = _real("p_x", p_x), _real("q_x", q_x), _uniform("u", u)
    if not (np.isfinite(p_x) and p_x >= 0.0):
        raise ValueError("p_x must be finite and not negative")
    if not (np.isfinite(q_x) and q_x > 0.0):
        raise ValueError("q_x must be finite and above 0")
    return u < p_x / q_x


def acceptance_probability(p, q):
    p, q = _pair(p, q)
    return float(np.cumsum(np.minimum(p, q))[-1])


def residual_distribution(p, q):
    p, q = _pair(p, q)
    d = np.maximum(p - q, 0.0)
    z = np.cumsum(d)[-1]
    if z == 0.0:
        return p
    return d / z


def speculative_step(p, q, x, u_accept, u_resample):
    p64, q64 = _pair(p, q)
    x = _int("x", x)
    if x < 0 or x >= p64.shape[0]:
        raise ValueError(f"x must be in [0, {p64.shape[0]}), got {x}")
    if rejection_accept(float(p64[x]), float(q64[x]), u_accept):
        return x, True
    _uniform("u_resample", u_resample)
    return int(np.argmax(residual_distribution(p, q))), False


def rejection_sample(p, q, m, rng, max_tries=10000):
    p, q = _pair(p, q)
    m = _real("m", m)
    if not (np.isfinite(m) and m >= 1.0):
        raise ValueError(f"m must be finite and at least 1, got {m}")
    if _int("max_tries", max_tries) < 1:
        raise ValueError("max_tries must be at least 1")
    bound = m * q
    if np.any(p > bound):
        raise ValueError("p must be at most m * q everywhere")
    for tries in range(1, max_tries + 1):
        x = sample_categorical(q, rng.uniform())
        u = rng.uniform()
        if u < p[x] / bound[x]:
            return x, tries
    raise RuntimeError(f"no id was accepted in {max_tries} tries")
