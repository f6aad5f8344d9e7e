import math
from functools import lru_cache

import numpy as np

_FORMATS = (("f64 float64", 53), ("f32 float32", 24), ("f16 float16", 11), ("bf16 bfloat16", 8), ("e4m3", 4), ("e5m2", 3))
PRECISION = {name: p for names, p in _FORMATS for name in names.split()}


def digits(dtype):
    try:
        return PRECISION[dtype]
    except KeyError:
        raise ValueError(dtype) from None


def unit_roundoff(dtype):
    return 1.0 / (1 << digits(dtype))


@lru_cache(maxsize=None)
def _quotient(k, p):
    return k / (2**p - k)  # the same float as (k u) / (1 - k u)


def gamma(k, dtype):
    p = digits(dtype)
    if k < 0:
        raise ValueError("negative k")
    if k >= 2**p:
        raise ValueError("too many terms for this format")
    return _quotient(k, p)


def _terms(k):
    if k <= 0:
        raise ValueError("no terms")
    return k


def _product(g, values):
    return np.multiply(g, np.asarray(values).astype(np.float64), out=np.empty(np.shape(values)))


def sum_error_bound(k, dtype, abs_sum):
    return _product(gamma(_terms(k) - 1, dtype), abs_sum)


def dot_error_bound(k, dtype, abs_dot):
    return _product(gamma(_terms(k), dtype), abs_dot)


def matmul_error_bound(A, B, dtype, dA=0.0):
    A, B, dA = (np.asarray(v).astype(np.float64) for v in (A, B, dA))
    if (A.ndim, B.ndim) != (2, 2):
        raise ValueError("two matrices wanted")
    rows, inner = A.shape
    if inner != B.shape[0]:
        raise ValueError("A and B do not fit")
    g = gamma(_terms(inner), dtype)
    if not all(math.isfinite(v) and v >= 0.0 for v in dA.flat):
        raise ValueError("dA is a bound: finite, not negative")
    dA = np.broadcast_to(dA, (rows, inner))
    size_A, size_B = np.abs(A), np.abs(B)
    P = np.einsum("ik,kj->ij", dA, size_B)
    Q = np.einsum("ik,kj->ij", size_A + dA, size_B)
    return P + g * Q


def _pairs(actual, expected, other):
    """Yield (index, a, e, o) in C order."""
    for index in np.ndindex(actual.shape):
        yield index, actual[index].item(), expected[index].item(), other[index].item()


def _agree(a, e):
    return (a != a and e != e) or (a == e and abs(a) == math.inf)


def assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0):
    if not 0.0 < slack < math.inf:
        raise ValueError("slack")
    g = gamma(_terms(k), dtype)
    actual, expected, abs_dot = (np.asarray(v).astype(np.float64) for v in (actual, expected, abs_dot))
    abs_dot = np.broadcast_to(abs_dot, actual.shape)
    if actual.shape != expected.shape:
        raise AssertionError(f"{actual.shape} is not {expected.shape}")
    for index, a, e, d in _pairs(actual, expected, abs_dot):
        if _agree(a, e):
            continue
        error, limit = abs(a - e), slack * (g * d)
        if not error <= limit:
            raise AssertionError(f"{index}: {error} > {limit}")


def bound_ratio(actual, expected, bound):
    actual, expected, bound = (np.asarray(v).astype(np.float64) for v in (actual, expected, bound))
    if actual.shape != expected.shape:
        raise ValueError(f"{actual.shape} is not {expected.shape}")
    bound = np.broadcast_to(bound, actual.shape)

    def ratio(a, e, b):
        if _agree(a, e):
            return 0.0
        error = abs(a - e)
        if b == 0.0:
            return 0.0 if error == 0.0 else math.inf
        r = error / b
        return math.inf if r != r else r

    return max((ratio(a, e, b) for _, a, e, b in _pairs(actual, expected, bound)), default=0.0)


def cond(A):
    A = np.asarray(A).astype(np.float64)
    if A.ndim != 2 or 0 in A.shape or not np.all(np.isfinite(A)):
        raise ValueError("cond wants a finite matrix")
    values = sorted(np.linalg.svd(A)[1].tolist())
    smallest, largest = values[0], values[-1]
    if largest == 0.0:
        return math.inf
    if smallest <= max(A.shape) * 2.0**-52 * largest:
        return math.inf
    return largest / smallest


def relative_condition(f, df, x):
    moved = float(x) * float(df)
    if moved == 0.0:
        return 0.0
    if f == 0:
        return math.inf
    return abs(moved / f)


def _above_zero(v):
    if v <= 0 or not math.isfinite(v):
        raise ValueError(f"{v} is not finite and above 0")
    return float(v)


def _order(order):
    if order not in (1, 2):
        raise ValueError("order")
    return order


def fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0):
    u, h = unit_roundoff(dtype), _above_zero(h)
    F, D = _above_zero(f_scale), _above_zero(deriv_scale)
    cut, noise = {1: (D * h / 2.0, 2.0 * u * F / h), 2: (D * h**2 / 6.0, u * F / h)}[_order(order)]
    return cut + noise


def optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0):
    u, F, D = unit_roundoff(dtype), _above_zero(f_scale), _above_zero(deriv_scale)
    return 2.0 * math.sqrt(u * F / D) if _order(order) == 1 else math.cbrt(3.0 * u * F / D)
