from math import isfinite, sqrt

import numpy as np


def precision(dtype):
    match dtype:
        case "f64" | "float64":
            return 53
        case "f32" | "float32":
            return 24
        case "f16" | "float16":
            return 11
        case "bf16" | "bfloat16":
            return 8
        case "e4m3":
            return 4
        case "e5m2":
            return 3
    raise ValueError(f"no such dtype: {dtype!r}")


def unit_roundoff(dtype):
    return float(np.ldexp(1.0, -precision(dtype)))


def gamma(k, dtype):
    u = unit_roundoff(dtype)
    if not 0 <= k < 1 << precision(dtype):
        raise ValueError(f"k = {k} is not allowed for {dtype}")
    ku = k * u
    return ku / (1.0 - ku)


def f64(a):
    return np.asarray(a, dtype=np.float64)


def spread(a, shape):
    a = f64(a)
    if np.broadcast_shapes(a.shape, shape) != shape:
        raise ValueError(f"{a.shape} does not broadcast to {shape}")
    return np.broadcast_to(a, shape)


def at_least_one(k):
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def sum_error_bound(k, dtype, abs_sum):
    at_least_one(k)
    return np.array(gamma(k - 1, dtype) * f64(abs_sum))


def dot_error_bound(k, dtype, abs_dot):
    at_least_one(k)
    return np.array(gamma(k, dtype) * f64(abs_dot))


def matmul_error_bound(A, B, dtype, dA=0.0):
    A, B, dA = f64(A), f64(B), f64(dA)
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError(f"shapes {A.shape} and {B.shape} do not multiply")
    at_least_one(A.shape[1])
    g = gamma(A.shape[1], dtype)
    if not np.all(np.isfinite(dA) & (dA >= 0)):
        raise ValueError("dA must be finite and >= 0")
    dA = spread(dA, A.shape)
    absB = np.abs(B)
    return dA @ absB + g * ((np.abs(A) + dA) @ absB)


def settled(a, e):
    return (np.isnan(a) & np.isnan(e)) | (np.isinf(a) & (a == e))


def assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0):
    if not isfinite(slack) or slack <= 0:
        raise ValueError(f"slack must be finite and above 0, got {slack}")
    a, e = f64(actual), f64(expected)
    limit = slack * dot_error_bound(k, dtype, spread(abs_dot, a.shape))
    if a.shape != e.shape:
        raise AssertionError(f"shapes {a.shape} and {e.shape}")
    with np.errstate(invalid="ignore"):
        error = np.abs(a - e)
    good = (error <= limit) | settled(a, e)
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(f"{at}: error {error[at]}, limit {limit[at]}")


def bound_ratio(actual, expected, bound):
    a, e = f64(actual), f64(expected)
    if a.shape != e.shape:
        raise ValueError(f"shapes {a.shape} and {e.shape}")
    b = spread(bound, a.shape)
    with np.errstate(all="ignore"):
        error = np.abs(a - e)
        ratio = np.where((error == 0) & (b == 0), 0.0, error / b)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    ratio = np.where(settled(a, e), 0.0, ratio)
    return float(np.max(ratio, initial=0.0))


def cond(A):
    A = f64(A)
    if A.ndim != 2 or A.size == 0 or not np.isfinite(A).all():
        raise ValueError("A must be a finite matrix with elements")
    s = np.linalg.svd(A, compute_uv=False)
    top, low = s[0], s[-1]
    if top == 0 or low <= max(A.shape) * np.finfo(np.float64).eps * top:
        return float("inf")
    return float(top / low)


def relative_condition(f, df, x):
    f, df, x = float(f), float(df), float(x)
    xdf = x * df
    if xdf == 0.0:
        return 0.0
    return abs(xdf / f) if f != 0.0 else float("inf")


def positive(**named):
    for name, v in named.items():
        if not (0 < v < float("inf")):
            raise ValueError(f"{name} must be finite and above 0, got {v}")


def fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0):
    positive(h=h, f_scale=f_scale, deriv_scale=deriv_scale)
    u = unit_roundoff(dtype)
    if order == 1:
        return float(deriv_scale * h / 2 + 2 * u * f_scale / h)
    if order == 2:
        return float(deriv_scale * h * h / 6 + u * f_scale / h)
    raise ValueError(f"order must be 1 or 2, got {order}")


def optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0):
    positive(f_scale=f_scale, deriv_scale=deriv_scale)
    u = unit_roundoff(dtype)
    if order == 1:
        return 2.0 * sqrt(u * f_scale / deriv_scale)
    if order == 2:
        return float(np.cbrt(3 * u * f_scale / deriv_scale))
    raise ValueError(f"order must be 1 or 2, got {order}")
