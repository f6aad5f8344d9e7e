import math

import numpy as np

BITS = {
    "f64": 53, "float64": 53,
    "f32": 24, "float32": 24,
    "f16": 11, "float16": 11,
    "bf16": 8, "bfloat16": 8,
    "e4m3": 4,
    "e5m2": 3,
}


def _p(dtype):
    if dtype not in BITS:
        raise ValueError("unknown dtype " + repr(dtype))
    return BITS[dtype]


def unit_roundoff(dtype):
    return 2.0 ** -_p(dtype)


def gamma(k, dtype):
    p = _p(dtype)
    if k < 0 or k >= 2 ** p:
        raise ValueError("k is out of range")
    u = 2.0 ** -p
    return (k * u) / (1.0 - k * u)


def _wide(a):
    return np.array(a, dtype=np.float64)


def _scaled(factor, array):
    src = _wide(array)
    out = np.empty(src.shape)
    for index in np.ndindex(src.shape):
        out[index] = factor * src[index]
    return out


def sum_error_bound(k, dtype, abs_sum):
    if k < 1:
        raise ValueError("k must be at least 1")
    g = gamma(k - 1, dtype)
    return _scaled(g, abs_sum)


def dot_error_bound(k, dtype, abs_dot):
    if k < 1:
        raise ValueError("k must be at least 1")
    g = gamma(k, dtype)
    return _scaled(g, abs_dot)


def _stretch(a, shape, what):
    a = _wide(a)
    try:
        return np.broadcast_to(a, shape)
    except ValueError:
        raise ValueError(what + " does not broadcast") from None


def matmul_error_bound(A, B, dtype, dA=0.0):
    A = _wide(A)
    B = _wide(B)
    if A.ndim != 2 or B.ndim != 2:
        raise ValueError("A and B must be matrices")
    m, k = A.shape
    if B.shape[0] != k:
        raise ValueError("inner lengths differ")
    if k == 0:
        raise ValueError("k is 0")
    g = gamma(k, dtype)
    for v in _wide(dA).ravel():
        if not math.isfinite(v) or v < 0:
            raise ValueError("dA must be finite and at least 0")
    dA = _stretch(dA, A.shape, "dA")
    n = B.shape[1]
    out = np.zeros((m, n))
    for i in range(m):
        for j in range(n):
            first = 0.0
            second = 0.0
            for t in range(k):
                b = abs(B[t, j])
                first += dA[i, t] * b
                second += (abs(A[i, t]) + dA[i, t]) * b
            out[i, j] = first + g * second
    return out


def _same(a, e):
    if math.isnan(a) and math.isnan(e):
        return True
    return math.isinf(a) and a == e


def assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0):
    if not (math.isfinite(slack) and slack > 0):
        raise ValueError("slack must be finite and above 0")
    if k < 1:
        raise ValueError("k must be at least 1")
    g = gamma(k, dtype)
    a = _wide(actual)
    e = _wide(expected)
    d = _stretch(abs_dot, a.shape, "abs_dot")
    if a.shape != e.shape:
        raise AssertionError("shapes differ: " + str(a.shape) + " and " + str(e.shape))
    for index in np.ndindex(a.shape):
        x = float(a[index])
        y = float(e[index])
        if _same(x, y):
            continue
        error = abs(x - y)
        limit = slack * (g * float(d[index]))
        if not error <= limit:
            raise AssertionError("at " + str(index) + " error " + str(error) + " limit " + str(limit))


def bound_ratio(actual, expected, bound):
    a = _wide(actual)
    e = _wide(expected)
    if a.shape != e.shape:
        raise ValueError("shapes differ")
    b = _stretch(bound, a.shape, "bound")
    largest = 0.0
    for index in np.ndindex(a.shape):
        x = float(a[index])
        y = float(e[index])
        if _same(x, y):
            continue
        error = abs(x - y)
        limit = float(b[index])
        if limit == 0:
            ratio = 0.0 if error == 0 else math.inf
        else:
            ratio = error / limit
        if math.isnan(ratio):
            ratio = math.inf
        if ratio > largest:
            largest = ratio
    return largest


def cond(A):
    A = _wide(A)
    if A.ndim != 2 or A.size == 0:
        raise ValueError("A must be a matrix with elements")
    if not np.isfinite(A).all():
        raise ValueError("A must be finite")
    s = np.linalg.svd(A, compute_uv=False)
    big = float(max(s))
    small = float(min(s))
    if big == 0 or small <= max(A.shape) * 2.0 ** -52 * big:
        return math.inf
    return big / small


def relative_condition(f, df, x):
    top = float(x) * float(df)
    if top == 0:
        return 0.0
    if f == 0:
        return math.inf
    return abs(top / float(f))


def _check_fd(order, *positive):
    if order != 1 and order != 2:
        raise ValueError("order must be 1 or 2")
    for v in positive:
        if not (math.isfinite(v) and v > 0):
            raise ValueError("must be finite and above 0")


def fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0):
    u = unit_roundoff(dtype)
    _check_fd(order, h, f_scale, deriv_scale)
    if order == 1:
        return (deriv_scale * h) / 2.0 + ((2.0 * u) * f_scale) / h
    return (deriv_scale * (h * h)) / 6.0 + (u * f_scale) / h


def optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0):
    u = unit_roundoff(dtype)
    _check_fd(order, f_scale, deriv_scale)
    if order == 1:
        return 2.0 * math.sqrt((u * f_scale) / deriv_scale)
    return (((3.0 * u) * f_scale) / deriv_scale) ** (1.0 / 3.0)
