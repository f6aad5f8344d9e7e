"""Error bounds for floating-point results."""
from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class Format(Enum):
    F64 = (53, "f64", "float64")
    F32 = (24, "f32", "float32")
    F16 = (11, "f16", "float16")
    BF16 = (8, "bf16", "bfloat16")
    E4M3 = (4, "e4m3")
    E5M2 = (3, "e5m2")

    @classmethod
    def of(cls, name: str) -> Format:
        for member in cls:
            if name in member.value[1:]:
                return member
        raise ValueError(f"no such format: {name!r}")

    @property
    def u(self) -> float:
        return 0.5 ** self.value[0]

    def gamma(self, k: int) -> float:
        if k < 0 or k >= 2 ** self.value[0]:
            raise ValueError(f"{self.name} has no bound for {k} operations")
        return (k * self.u) / (1.0 - k * self.u)


def unit_roundoff(dtype: str) -> float:
    return Format.of(dtype).u


def gamma(k: int, dtype: str) -> float:
    return Format.of(dtype).gamma(k)


def _f64(a: Any) -> F64:
    return np.asarray(np.asarray(a), dtype=np.float64)


def _bounded(rounding: float, magnitude: Any) -> F64:
    out = np.multiply(rounding, _f64(magnitude))
    return np.array(out, dtype=np.float64)


def _terms(k: int) -> int:
    if k <= 0:
        raise ValueError("a sum has at least one term")
    return k


def _stretch(a: Any, like: F64, name: str) -> F64:
    source = _f64(a)
    try:
        shape = np.broadcast_shapes(source.shape, like.shape)
    except ValueError:
        shape = None
    if shape != like.shape:
        raise ValueError(f"{name} of shape {source.shape} does not fit {like.shape}")
    return np.broadcast_to(source, shape)


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} = {value} is not a finite number above 0")


def sum_error_bound(k: int, dtype: str, abs_sum: Any) -> F64:
    return _bounded(gamma(_terms(k) - 1, dtype), abs_sum)


def dot_error_bound(k: int, dtype: str, abs_dot: Any) -> F64:
    return _bounded(gamma(_terms(k), dtype), abs_dot)


def matmul_error_bound(A: Any, B: Any, dtype: str, dA: Any = 0.0) -> F64:
    a, b = np.abs(_f64(A)), np.abs(_f64(B))
    if (a.ndim, b.ndim) != (2, 2) or a.shape[1] != b.shape[0]:
        raise ValueError("A and B cannot be multiplied")
    g = gamma(_terms(a.shape[1]), dtype)
    d = _stretch(dA, a, "dA")
    if not np.all(np.isfinite(d)) or np.any(d < 0):
        raise ValueError("dA must be finite and at least 0")
    return np.einsum("mk,kn->mn", d, b) + g * np.einsum("mk,kn->mn", a + d, b)


def _errors(a: F64, e: F64) -> F64:
    """|a - e|, with 0 where both are the same NaN or infinity and NaN where only one is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.array(np.abs(a - e))
    error[a == e] = 0.0
    error[np.isnan(a) & np.isnan(e)] = 0.0
    return error


def _settled(a: F64, e: F64) -> Any:
    return (np.isnan(a) & np.isnan(e)) | (np.isinf(a) & (a == e))


def assert_close_bounded(
    actual: Any, expected: Any, k: int, dtype: str, abs_dot: Any, slack: float = 4.0
) -> None:
    _above_zero(slack=slack)
    a, e = _f64(actual), _f64(expected)
    g = gamma(_terms(k), dtype)
    if a.shape != e.shape:
        raise AssertionError(f"a result of shape {a.shape} where {e.shape} is expected")
    d = _stretch(abs_dot, a, "abs_dot")
    limit = slack * _bounded(g, d)
    error = _errors(a, e)
    close = (error <= limit) | _settled(a, e)
    if not close.all():
        first = np.unravel_index(int(np.argmin(close)), close.shape) if close.ndim else ()
        raise AssertionError(f"{tuple(map(int, first))}: {error[first]} > {limit[first]}")


def bound_ratio(actual: Any, expected: Any, bound: Any) -> float:
    a, e = _f64(actual), _f64(expected)
    if a.shape != e.shape:
        raise ValueError(f"{a.shape} is compared with {e.shape}")
    b = _stretch(bound, a, "bound")
    error = _errors(a, e)
    worst = 0.0
    for err, lim, done in zip(error.flat, b.flat, np.asarray(_settled(a, e)).flat):
        if done or (err == 0 and lim == 0):
            continue
        ratio = err / lim if lim != 0 else math.inf
        worst = max(worst, math.inf if math.isnan(ratio) else float(ratio))
    return worst


def cond(A: Any) -> float:
    a = _f64(A)
    if a.ndim != 2:
        raise ValueError("a matrix has two axes")
    if a.size == 0 or not np.isfinite(a).all():
        raise ValueError("finite elements are needed")
    s = np.linalg.svd(a.T, compute_uv=False)
    largest, smallest = float(s.max()), float(s.min())
    singular = largest == 0.0 or smallest <= (max(a.shape) * np.finfo(np.float64).eps) * largest
    return math.inf if singular else largest / smallest


def relative_condition(f: float, df: float, x: float) -> float:
    change = float(x) * float(df)
    if change == 0.0:
        return 0.0
    return abs(change / float(f)) if f != 0 else math.inf


def fd_error_model(
    h: float, order: int, dtype: str, f_scale: float = 1.0, deriv_scale: float = 1.0
) -> float:
    u = unit_roundoff(dtype)
    _above_zero(h=h, f_scale=f_scale, deriv_scale=deriv_scale)
    if order == 1:
        truncation, rounding = deriv_scale * h / 2.0, 2.0 * u * f_scale / h
    elif order == 2:
        truncation, rounding = deriv_scale * h**2 / 6.0, u * f_scale / h
    else:
        raise ValueError("order must be 1 or 2")
    return float(truncation + rounding)


def optimal_fd_step(order: int, dtype: str, f_scale: float = 1.0, deriv_scale: float = 1.0) -> float:
    u = unit_roundoff(dtype)
    _above_zero(f_scale=f_scale, deriv_scale=deriv_scale)
    if order == 1:
        return 2.0 * math.sqrt(u * f_scale / deriv_scale)
    if order == 2:
        return float(np.sqrt(3.0 * u * f_scale / deriv_scale))
    raise ValueError("order must be 1 or 2")
