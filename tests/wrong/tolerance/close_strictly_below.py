"""Tolerances: loops over elements, as little NumPy as possible."""
import math

import numpy as np

BITS = dict(f64=53, f32=24, f16=11, bf16=8, e4m3=4, e5m2=3)
LONG = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _bits(dtype):
    name = LONG.get(dtype, dtype)
    if name not in BITS:
        raise ValueError("unknown dtype")
    return BITS[name]


def unit_roundoff(dtype):
    return math.ldexp(1.0, -_bits(dtype))


def gamma(k, dtype):
    limit = 1 << _bits(dtype)
    if k < 0 or k >= limit:
        raise ValueError("k out of range")
    return k / (limit - k)


def _double(a):
    return np.asarray(a).astype(np.float64)


def _fits(shape, target):
    """Does shape broadcast to exactly target?"""
    if len(shape) > len(target):
        return False
    return all(s in (1, t) for s, t in zip(reversed(shape), reversed(target)))


def _repeat(a, shape, what):
    a = _double(a)
    if not _fits(a.shape, shape):
        raise ValueError(what + " has the wrong shape")
    out = np.empty(shape)
    out[...] = a
    return out


def _good(value):
    return 0 < value < math.inf


def sum_error_bound(k, dtype, abs_sum):
    if k < 1:
        raise ValueError("no terms")
    g = gamma(k - 1, dtype)
    a = _double(abs_sum)
    out = np.empty(a.shape)
    for i in np.ndindex(*a.shape):
        out[i] = g * float(a[i])
    return out


def dot_error_bound(k, dtype, abs_dot):
    if k < 1:
        raise ValueError("no terms")
    g = gamma(k, dtype)
    a = _double(abs_dot)
    out = np.empty(a.shape)
    for i in np.ndindex(*a.shape):
        out[i] = g * float(a[i])
    return out


def matmul_error_bound(A, B, dtype, dA=0.0):
    A = _double(A)
    B = _double(B)
    if A.ndim != 2 or B.ndim != 2:
        raise ValueError("matrices are needed")
    m, k = A.shape
    if B.shape[0] != k or k == 0:
        raise ValueError("inner sizes")
    n = B.shape[1]
    g = gamma(k, dtype)
    d = _repeat(dA, A.shape, "dA")
    for v in d.ravel().tolist():
        if not 0 <= v < math.inf:
            raise ValueError("dA out of range")
    out = np.zeros((m, n))
    for i in range(m):
        for j in range(n):
            p = q = 0.0
            for t in range(k):
                b = abs(float(B[t, j]))
                p += float(d[i, t]) * b
                q += (abs(float(A[i, t])) + float(d[i, t])) * b
            out[i, j] = p + g * q
    return out


def _alike(a, e):
    if math.isnan(a) or math.isnan(e):
        return math.isnan(a) and math.isnan(e)
    return math.isinf(a) and a == e


def assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0):
    if not _good(slack):
        raise ValueError("slack")
    if k < 1:
        raise ValueError("no terms")
    g = gamma(k, dtype)
    a, e = _double(actual), _double(expected)
    if a.shape != e.shape:
        raise AssertionError(f"shape {a.shape}, expected {e.shape}")
    d = _repeat(abs_dot, a.shape, "abs_dot")
    for i in np.ndindex(*a.shape):
        x, y, z = float(a[i]), float(e[i]), float(d[i])
        if _alike(x, y):
            continue
        error = abs(x - y)
        limit = slack * (g * z)
        if not error < limit:
            raise AssertionError(f"element {i} is off by {error}, allowed {limit}")


def bound_ratio(actual, expected, bound):
    a, e = _double(actual), _double(expected)
    if a.shape != e.shape:
        raise ValueError("shapes differ")
    b = _repeat(bound, a.shape, "bound")
    worst = 0.0
    for i in np.ndindex(*a.shape):
        x, y, z = float(a[i]), float(e[i]), float(b[i])
        if _alike(x, y):
            continue
        error = abs(x - y)
        if z == 0:
            ratio = 0.0 if error == 0 else math.inf
        else:
            ratio = error / z
        if math.isnan(ratio):
            ratio = math.inf
        worst = max(worst, ratio)
    return worst


def cond(A):
    A = _double(A)
    if A.ndim != 2 or 0 in A.shape:
        raise ValueError("a matrix with elements is needed")
    if not all(map(math.isfinite, A.ravel().tolist())):
        raise ValueError("finite elements only")
    values = sorted(np.linalg.svd(A, compute_uv=False).tolist())
    small, large = values[0], values[-1]
    if large == 0:
        return math.inf
    if small <= (max(A.shape) * 2.0**-52) * large:
        return math.inf
    return large / small


def relative_condition(f, df, x):
    if float(x) * float(df) == 0:
        return 0.0
    if f == 0:
        return math.inf
    return abs((float(x) * float(df)) / float(f))


def fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0):
    u = unit_roundoff(dtype)
    if not (_good(h) and _good(f_scale) and _good(deriv_scale)):
        raise ValueError("h and the scales must be above 0 and finite")
    F, D = float(f_scale), float(deriv_scale)
    if order == 1:
        return (D * h) / 2.0 + ((2.0 * u) * F) / h
    if order == 2:
        return (D * (h * h)) / 6.0 + (u * F) / h
    raise ValueError("order")


def optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0):
    u = unit_roundoff(dtype)
    if not (_good(f_scale) and _good(deriv_scale)):
        raise ValueError("the scales must be above 0 and finite")
    F, D = float(f_scale), float(deriv_scale)
    if order == 1:
        return 2.0 * math.sqrt((u * F) / D)
    if order == 2:
        return (((3.0 * u) * F) / D) ** (1.0 / 3.0)
    raise ValueError("order")
