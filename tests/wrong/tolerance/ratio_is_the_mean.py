"""Rounding error bounds, with NumPy."""
from __future__ import annotations

import math

import numpy as np

PRECISION = {
    "f64": 53, "float64": 53,
    "f32": 24, "float32": 24,
    "f16": 11, "float16": 11,
    "bf16": 8, "bfloat16": 8,
    "e4m3": 4,
    "e5m2": 3,
}


def precision(dtype):
    if dtype not in PRECISION:
        raise ValueError(f"dtype: {dtype!r} is not a format")
    return PRECISION[dtype]


def unit_roundoff(dtype):
    return 2.0 ** -precision(dtype)


def gamma(k, dtype):
    if not 0 <= k < 2 ** precision(dtype):
        raise ValueError("k: k * u must be below 1")
    ku = k * unit_roundoff(dtype)
    return ku / (1.0 - ku)


def wide(a):
    return np.array(a, dtype=np.float64)


def positive(value, name):
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: a finite number above 0")


def spread(a, shape, name):
    """a, broadcast to shape and no further."""
    try:
        return np.broadcast_to(wide(a), shape)
    except ValueError:
        raise ValueError(f"{name}: does not broadcast to {shape}") from None


def check_terms(k):
    if k < 1:
        raise ValueError("k: at least one term")


# ---- bounds ----


def sum_error_bound(k, dtype, abs_sum):
    check_terms(k)
    return np.asarray(gamma(k - 1, dtype) * wide(abs_sum))


def dot_error_bound(k, dtype, abs_dot):
    check_terms(k)
    return np.asarray(gamma(k, dtype) * wide(abs_dot))


def matmul_error_bound(A, B, dtype, dA=0.0):
    A, B = wide(A), wide(B)
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError("A [m, k] and B [k, n] are needed")
    k = A.shape[1]
    check_terms(k)
    g = gamma(k, dtype)
    dA = spread(dA, A.shape, "dA")
    if not np.all((wide(dA) >= 0) & np.isfinite(dA)):
        raise ValueError("dA: finite and not negative")
    P = dA @ np.abs(B)
    Q = (np.abs(A) + dA) @ np.abs(B)
    return P + g * Q


# ---- comparing ----


def pair(actual, expected):
    a, e = wide(actual), wide(expected)
    same = (np.isnan(a) & np.isnan(e)) | (np.isinf(a) & (a == e)) if a.shape == e.shape else None
    return a, e, same


def assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0):
    positive(slack, "slack")
    a, e, same = pair(actual, expected)
    bound = dot_error_bound(k, dtype, abs_dot)
    if same is None:
        raise AssertionError(f"shapes {a.shape} and {e.shape}")
    limit = slack * spread(bound, a.shape, "abs_dot")
    with np.errstate(all="ignore"):
        error = np.asarray(np.abs(a - e))
        far = ~((error <= limit) | same)
    if np.any(far):
        i = tuple(int(j) for j in np.argwhere(far)[0])
        raise AssertionError(f"at {i}: error {error[i]}, limit {limit[i]}")


def bound_ratio(actual, expected, bound):
    a, e, same = pair(actual, expected)
    if same is None:
        raise ValueError(f"shapes {a.shape} and {e.shape}")
    b = spread(bound, a.shape, "bound")
    if a.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        error = np.abs(a - e)
        ratio = np.where(b == 0, np.where(error == 0, 0.0, np.inf), error / b)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return float(np.mean(np.where(same, 0.0, ratio)))


# ---- conditioning ----


def cond(A):
    A = wide(A)
    if A.ndim != 2 or A.size == 0 or not np.isfinite(A).all():
        raise ValueError("A: two axes, elements, all finite")
    s = np.linalg.svd(A, compute_uv=False)
    if s[0] == 0 or s[-1] <= max(A.shape) * 2.0**-52 * s[0]:
        return math.inf
    return float(s[0] / s[-1])


def relative_condition(f, df, x):
    f, df, x = float(f), float(df), float(x)
    top = x * df
    if top == 0:
        return 0.0
    if f == 0:
        return math.inf
    return abs(top / f)


# ---- finite differences ----


def check_difference(order, f_scale, deriv_scale):
    if order not in (1, 2):
        raise ValueError("order: 1 or 2")
    positive(f_scale, "f_scale")
    positive(deriv_scale, "deriv_scale")


def fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0):
    check_difference(order, f_scale, deriv_scale)
    positive(h, "h")
    u = unit_roundoff(dtype)
    if order == 1:
        return float(deriv_scale * h / 2.0 + 2.0 * u * f_scale / h)
    return float(deriv_scale * (h * h) / 6.0 + u * f_scale / h)


def optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0):
    check_difference(order, f_scale, deriv_scale)
    u = unit_roundoff(dtype)
    if order == 1:
        return 2.0 * math.sqrt(u * f_scale / deriv_scale)
    return math.cbrt(3.0 * u * f_scale / deriv_scale)
