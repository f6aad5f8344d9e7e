"""Error bounds and tolerances: how far apart two orders of rounding may be.

    terms k, format u, size d  ->  gamma(k) * d  ->  slack * bound  ->  close or not

Spec    spec/tolerance.md
Source  Higham 2002, "Accuracy and Stability of Numerical Algorithms", lemma 3.1, sections 3.1, 3.5, 1.6
        (gamma, bounds, conditioning); Nocedal and Wright 2006, "Numerical Optimization", section 8.1 (steps)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def unit_roundoff(dtype: str) -> float:
    """Return u = 2^-p, half the distance from 1 to the next number of the format.

    Shapes
        dtype    name of a format: f64, f32, f16, bf16, e4m3, e5m2, or a long name such as float32
        returns  float, > 0

    Errors
        ValueError  dtype is no name of a format

    >>> unit_roundoff("bf16")
    0.00390625
    """
    return 2.0 ** -_precision(dtype)


def gamma(k: int, dtype: str) -> float:
    """Return k * u / (1 - k * u), the largest relative error of k roundings in a row.

    Shapes
        k        int, in [0, 2^p)
        dtype    as for unit_roundoff
        returns  float, >= 0

    Errors
        ValueError  dtype is no name of a format, or k < 0, or k >= 2^p

    Numerics
        k * u and 1 - k * u are exact, so the quotient is the only rounding

    >>> gamma(8, "e4m3")
    1.0
    """
    if not 0 <= k < 2 ** _precision(dtype):  # R4: on integers, which cannot overflow
        raise ValueError(f"gamma needs 0 <= k < 2^{_precision(dtype)} for {dtype}, got k of {_shown(k)}")
    u = unit_roundoff(dtype)
    return (k * u) / (1.0 - k * u)  # R3


def sum_error_bound(k: int, dtype: str, abs_sum: ArrayLike) -> F64:
    """Bound the error of a sum of k terms, added in any order: gamma(k - 1) * abs_sum.

    Shapes
        k        int, in [1, 2^p]
        dtype    as for unit_roundoff
        abs_sum  number or array of any shape: the sum of |x_i|, one for each sum
        returns  float64 array of the shape of abs_sum, new

    Errors
        ValueError  dtype is no name of a format, or k < 1, or k > 2^p

    >>> sum_error_bound(9, "e4m3", [1, 2]).tolist()
    [1.0, 2.0]
    """
    _check_terms(k)
    return np.asarray(gamma(k - 1, dtype) * _widened(abs_sum))  # R7: k terms need k - 1 additions


def dot_error_bound(k: int, dtype: str, abs_dot: ArrayLike) -> F64:
    """Bound the error of a dot product of k terms, added in any order: gamma(k) * abs_dot.

    Shapes
        k        int, in [1, 2^p)
        dtype    as for unit_roundoff
        abs_dot  number or array of any shape: the sum of |x_i * y_i|, one for each dot product
        returns  float64 array of the shape of abs_dot, new

    Errors
        ValueError  dtype is no name of a format, or k < 1, or k >= 2^p

    >>> dot_error_bound(8, "e4m3", [1, 2]).tolist()
    [1.0, 2.0]
    """
    _check_terms(k)
    return np.asarray(gamma(k, dtype) * _widened(abs_dot))  # R8; R9: else a scalar without axes


def matmul_error_bound(A: ArrayLike, B: ArrayLike, dtype: str, dA: ArrayLike = 0.0) -> F64:
    """Bound the error of A @ B where A is known within dA: dA @ |B| + gamma(k) * ((|A| + dA) @ |B|).

    Shapes
        A        numbers [m, k], k >= 1
        B        numbers [k, n]
        dtype    as for unit_roundoff
        dA       number, or array that broadcasts to [m, k]; finite, >= 0
        returns  float64 array [m, n], new

    Errors
        ValueError  A or B has not two axes, or they do not fit together, or k is 0
        ValueError  dtype is no name of a format, or k >= 2^p
        ValueError  dA does not broadcast to the shape of A, or holds a negative number, a NaN or an infinity

    Numerics
        float64; no term is negative, so the order of the sums hardly matters

    >>> matmul_error_bound([[3.0, -4.0]], [[1.0], [-1.0]], "e5m2", dA=0.5).tolist()
    [[3.6666666666666665]]
    """
    size_A, size_B = np.abs(_widened(A)), np.abs(_widened(B))  # R5: abs of an int8 -128 is -128
    if size_A.ndim != 2 or size_B.ndim != 2 or size_A.shape[1] != size_B.shape[0]:
        raise ValueError(f"A and B must be [m, k] and [k, n], got {size_A.shape} and {size_B.shape}")
    noise = _widened(dA)
    if not np.all((noise >= 0.0) & (noise < math.inf)):  # R14: a NaN fails both
        raise ValueError("dA must be finite and not negative")
    noise = _spread(noise, size_A.shape, "dA")
    perturbed = noise @ size_B
    size = (size_A + noise) @ size_B  # R12: the perturbed weights are what is multiplied and rounded
    return perturbed + dot_error_bound(size_A.shape[1], dtype, size)  # R13: which refuses k = 0


def assert_close_bounded(
    actual: ArrayLike, expected: ArrayLike, k: int, dtype: str, abs_dot: ArrayLike, slack: float = 4.0
) -> None:
    """Raise unless every |actual - expected| <= slack * (gamma(k) * abs_dot).

    Two NaNs agree, and so do two infinities of the same sign.

    Shapes
        actual    number or array of any shape
        expected  the same shape
        k         int, in [1, 2^p)
        dtype     as for unit_roundoff
        abs_dot   number, or array that broadcasts to the shape of actual
        slack     float, > 0, finite
        returns   None

    Errors
        AssertionError  the shapes differ, or a pair is not close
        ValueError      dtype is no name of a format, or k < 1, or k >= 2^p, or slack is not finite and > 0
        ValueError      abs_dot does not broadcast to the shape of actual

    Numerics
        one rounded difference against two rounded products, gamma * abs_dot first

    >>> assert_close_bounded([4.0], [0.0], 8, "e4m3", 1.0)
    >>> assert_close_bounded([0.0, 5.0], [0.0, 0.0], 8, "e4m3", 1.0)
    Traceback (most recent call last):
    AssertionError: not close at (1,): error 5.0, limit 4.0, ratio 1.25
    """
    slack = _positive(slack, "slack")
    a, e = _widened(actual), _widened(expected)
    limit = slack * dot_error_bound(k, dtype, _spread(_widened(abs_dot), a.shape, "abs_dot"))
    if a.shape != e.shape:  # R17: a mean would pass against each of its terms
        raise AssertionError(f"shapes differ: actual {a.shape}, expected {e.shape}")
    error = _error(a, e)
    close = _agree(a, e) | (error <= limit)  # R15: a NaN on either side is not close
    if not np.all(close):
        i = np.unravel_index(int(np.argmin(close)), close.shape)  # argmin takes the first of equals
        ratio = bound_ratio(a[i], e[i], np.broadcast_to(limit, close.shape)[i])
        where = tuple(int(j) for j in i)
        raise AssertionError(
            f"not close at {where}: error {float(error[i])}, limit {float(limit[i])}, ratio {ratio}"
        )


def bound_ratio(actual: ArrayLike, expected: ArrayLike, bound: ArrayLike) -> float:
    """Return the largest |actual - expected| / bound; above 1 the bound is broken.

    Shapes
        actual    number or array of any shape
        expected  the same shape
        bound     number, or array that broadcasts to the shape of actual
        returns   float, >= 0; 0.0 for empty arrays, never NaN

    Errors
        ValueError  the shapes differ, or bound does not broadcast to the shape of actual

    >>> bound_ratio([1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, 0.0, 4.0])
    0.75
    """
    a, e = _widened(actual), _widened(expected)
    if a.shape != e.shape:  # R22
        raise ValueError(f"shapes differ: actual {a.shape}, expected {e.shape}")
    b = _spread(_widened(bound), a.shape, "bound")
    error = _error(a, e)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = np.asarray(error / b)
    quotient = np.where(np.isnan(quotient) | (b == 0.0), math.inf, quotient)  # R21, R20
    nothing = _agree(a, e) | ((error == 0.0) & (b == 0.0))  # R21, R20: no error, whatever it is divided by
    return float(np.max(np.where(nothing, 0.0, quotient), initial=0.0))  # R20: 0 for no elements


def cond(A: ArrayLike) -> float:
    """Return the largest singular value over the smallest: how much A x = b can amplify an error of b.

    Shapes
        A        numbers [m, n], m and n >= 1, finite
        returns  float, >= 1; +inf for a singular matrix

    Errors
        ValueError  A has not two axes, or no elements, or holds a NaN or an infinity

    Numerics
        the eigenvalues of A^T A would square the condition number before taking its root

    >>> cond([[4.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    2.0
    """
    x = _widened(A)
    if x.ndim != 2 or x.size == 0:  # R25
        raise ValueError(f"A must be [m, n] with elements, got shape {x.shape}")
    if not np.all(np.isfinite(x)):  # R25
        raise ValueError("A holds a NaN or an infinity")
    s = np.linalg.svd(x, compute_uv=False)  # descending, min(m, n) of them
    largest, smallest = float(s[0]), float(s[-1])
    if smallest <= (max(x.shape) * 2.0**-52) * largest:  # R24: rounding noise; true for the zero matrix too
        return math.inf
    return largest / smallest  # R23


def relative_condition(f: float, df: float, x: float) -> float:
    """Return |x * df / f|: the relative change of f(x) for each relative change of x.

    Shapes
        f        number, f(x)
        df       number, f'(x)
        x        number
        returns  float, >= 0; 0.0 where x * df is 0, else +inf where f is 0

    >>> relative_condition(2.0, 0.25, 4.0)
    0.5
    """
    change = float(x) * float(df)
    if change == 0.0:  # R26: before f, which may be 0 too
        return 0.0
    return math.inf if f == 0.0 else abs(change / float(f))  # R26


def fd_error_model(h: float, order: int, dtype: str, f_scale: float = 1.0, deriv_scale: float = 1.0) -> float:
    """Estimate the error of a difference quotient: what the step cuts off plus what rounding adds.

    Forward (order 1)  D * h / 2 + 2 * u * F / h;  central (order 2)  D * h^2 / 6 + u * F / h.

    Shapes
        h            float, > 0, finite
        order        int, 1 forward or 2 central
        dtype        as for unit_roundoff
        f_scale      float, > 0, finite: F, the size of f
        deriv_scale  float, > 0, finite: D, the size of the second (order 1) or third derivative
        returns      float, > 0

    Errors
        ValueError  dtype is no name of a format, or order is not 1 or 2
        ValueError  h, f_scale or deriv_scale is not a finite number above 0

    >>> fd_error_model(0.5, 1, "f16", f_scale=3.0, deriv_scale=2.0)
    0.505859375
    """
    u = unit_roundoff(dtype)
    F, D, h = _positive(f_scale, "f_scale"), _positive(deriv_scale, "deriv_scale"), _positive(h, "h")
    if _is_forward(order):
        return (D * h) / 2.0 + ((2.0 * u) * F) / h  # R27: two values of f are rounded, over h
    return (D * (h * h)) / 6.0 + (u * F) / h  # R27: two values over 2 h


def optimal_fd_step(order: int, dtype: str, f_scale: float = 1.0, deriv_scale: float = 1.0) -> float:
    """Return the step at which fd_error_model is smallest: 2 * sqrt(u F / D), or cbrt(3 u F / D).

    Shapes
        order, dtype, f_scale, deriv_scale  as for fd_error_model
        returns                             float, > 0

    Errors
        ValueError  dtype is no name of a format, or order is not 1 or 2
        ValueError  f_scale or deriv_scale is not a finite number above 0

    >>> optimal_fd_step(1, "f32", f_scale=4.0)
    0.0009765625
    """
    u = unit_roundoff(dtype)
    F, D = _positive(f_scale, "f_scale"), _positive(deriv_scale, "deriv_scale")
    if _is_forward(order):
        return 2.0 * math.sqrt((u * F) / D)  # R27
    return math.cbrt(((3.0 * u) * F) / D)  # R27


def _precision(dtype: str) -> int:
    """Return p, the bits of the significand, the implicit one included (R1)."""
    bits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
    bits |= {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
    if dtype not in bits:  # R2: names are exact, "F32" is none
        raise ValueError(f"dtype must be one of {', '.join(bits)}, got {dtype!r}")
    return bits[dtype]


def _check_terms(k: int) -> None:
    """Refuse a sum of no terms (R10)."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {_shown(k)}")


def _shown(k: int) -> str:
    """Write k for a message; Python refuses to print an int of more than 4300 digits."""
    return str(k) if abs(k) < 2**64 else f"{k.bit_length()} bits"


def _positive(value: float, name: str) -> float:
    """Return the value as a float, or refuse what is not finite and above 0 (R19, R28)."""
    if not 0.0 < value < math.inf:  # a NaN would switch every later comparison off
        raise ValueError(f"{name} must be finite and above 0, got {value!r}")
    return float(value)


def _is_forward(order: int) -> bool:
    """Return whether order 1 is asked and not order 2, or refuse it (R28)."""
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {order!r}")
    return order == 1


def _widened(x: ArrayLike) -> F64:
    """Return a new float64 array (R5, R6); a float times a float32 array would stay float32."""
    return np.array(x, np.float64)


def _spread(x: F64, shape: tuple[int, ...], name: str) -> F64:
    """Repeat x to the shape, or refuse it where the two would give a larger shape (R14, R18, R22)."""
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name} must broadcast to {shape}, got {x.shape}") from None


def _error(a: F64, e: F64) -> F64:
    """Return |a - e|; infinities give inf or NaN, and what they mean is decided by the caller."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.abs(a - e))


def _agree(a: F64, e: F64) -> NDArray[np.bool_]:
    """Return where two NaNs or two infinities of the same sign meet (R16, R21)."""
    return np.asarray((np.isnan(a) & np.isnan(e)) | (np.isinf(a) & (a == e)))
