"""Four small kernels, a measurement of any call, and a verdict on two sets of measurements.

    fn, clock --> measure --> [seconds a call, ..] --min--> base \\
                                                                  head > base * (1 + budget) ?
    fn, clock --> measure --> [seconds a call, ..] --min--> head /

Spec    spec/perf_gate.md
Source  Chen & Revels 2016, arXiv:1608.04295, section 3 (the minimum); CPython Lib/timeit.py, Timer.autorange;
        Goto & van de Geijn 2008, ACM TOMS 34(3), article 12 (tiles)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Ascending = NDArray[np.floating[Any]]  # float32 or float64

_TILE = 128  # a widened tile is 128 KiB, so the two of a product stay in a core's own cache
_MOST_CALLS = 65536  # R26


# kernels


def kata_matmul(a: F32, b: F32) -> F32:
    """Multiply two matrices: sum over k of a[i, k] * b[k, j].

    Shapes
        a        f32[N, D]
        b        f32[D, F]
        returns  f32[N, F], a new array

    Errors
        ValueError  a or b is not a float32 array, or has not two axes, or their D differ

    Numerics
        products and sums in float64, one rounding to float32 at the end

    >>> kata_matmul(np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)).tolist()
    [[19.0, 22.0], [43.0, 50.0]]
    """
    _check_dtype("a", a, np.float32)
    _check_dtype("b", b, np.float32)
    if a.ndim != 2 or b.ndim != 2:  # R4: NumPy would take one axis as a row or a column
        raise ValueError(f"a and b must have two axes, got {a.ndim} and {b.ndim}")
    (N, D), (rows, F) = a.shape, b.shape
    if rows != D:  # R4
        raise ValueError(f"b must have {D} rows, as many as a has columns, got {rows}")
    product = np.empty((N, F), np.float32)  # R2
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(0, F, _TILE):
            total = np.zeros((N, min(_TILE, F - j)), np.float64)  # R5: what remains where D is 0
            for k in range(0, D, _TILE):
                left = a[:, k : k + _TILE].astype(np.float64)  # R3: exact, and only a tile at a time
                right = b[k : k + _TILE, j : j + _TILE].astype(np.float64)
                total += left @ right  # R6: every product, also with a 0
            product[:, j : j + _TILE] = total  # R3: the one rounding
    return product


def kata_sum(x: F32) -> float:
    """Add all elements.

    Shapes
        x        f32[N]
        returns  float; 0.0 where N is 0

    Errors
        ValueError  x is not a float32 array, or has not one axis

    Numerics
        in float64, in NumPy's order: eight partial sums a block, blocks in pairs; not rounded to float32

    >>> kata_sum(np.array([16777216, 1, 1], np.float32))
    16777218.0
    """
    _check_dtype("x", x, np.float32)
    if x.ndim != 1:  # R8
        raise ValueError(f"x must have one axis, got {x.ndim}")
    with np.errstate(invalid="ignore"):  # R9: inf - inf
        total = np.sum(x, dtype=np.float64)  # R7: widened piece by piece, never as a whole
    return float(total)


def kata_rmsnorm(x: F32, weight: F32, eps: float = 1e-6) -> F32:
    """Scale every row to unit root mean square, then by weight: x / sqrt(mean(x * x) + eps) * weight.

    Shapes
        x        f32[..., D], D >= 1
        weight   f32[D]
        eps      int or float, > 0, finite (unit of x squared)
        returns  f32[..., D], a new array

    Errors
        ValueError  x or weight is not a float32 array, x has no axis, D is 0, or weight is not [D]
        ValueError  eps is a bool, neither int nor float, not finite or not above 0

    Numerics
        all in float64, one rounding to float32 at the end

    >>> kata_rmsnorm(np.array([1, 7], np.float32), np.array([1, 2], np.float32), 39.0)
    array([0.125, 1.75 ], dtype=float32)
    """
    _check_dtype("x", x, np.float32)
    _check_dtype("weight", weight, np.float32)
    if x.ndim == 0 or x.shape[-1] == 0:  # R12: the mean of nothing
        raise ValueError(f"x must have at least one axis and one column, got the shape {x.shape}")
    if weight.shape != x.shape[-1:]:  # R12: broadcasting would hide a wrong shape
        raise ValueError(f"weight must have the shape {x.shape[-1:]}, got {weight.shape}")
    if not _is_number(eps) or not 0.0 < eps < math.inf:  # R13: every comparison with a NaN is false
        raise ValueError(f"eps must be finite and above 0, got {eps!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        y = x.astype(np.float64)  # R10: before squaring; R2: a copy, since the dtype is another
        mean_square = np.vecdot(y, y) / x.shape[-1]  # R11: a row each, without a copy of the squares
        y *= (1.0 / np.sqrt(mean_square + eps))[..., None]  # R11: inside the root; R14: inf * 0 is NaN
        y *= weight
        return y.astype(np.float32)  # R10: the one rounding


def kata_count_below(values: Ascending, x: float) -> int:
    """Count the elements below x, by binary search.

    Shapes
        values   f32[N] or f64[N], ascending; NaNs only at the end; neither is checked
        x        int or float, not NaN
        returns  int, in [0, N]

    Errors
        ValueError  values is not a float32 or float64 array, or has not one axis
        ValueError  x is a bool, neither int nor float, or NaN

    Numerics
        elements are widened to Python floats, which is exact, and compared with x as it is

    >>> kata_count_below(np.array([1, 2, 2, 2, 5], np.float32), 2)
    1
    """
    _check_dtype("values", values, np.float32, np.float64)
    if values.ndim != 1:  # R18
        raise ValueError(f"values must have one axis, got {values.ndim}")
    if not _is_number(x) or math.isnan(x):  # R18: a NaN has no place in the order
        raise ValueError(f"x must be an int or a float and no NaN, got {x!r}")
    low, high = 0, len(values)  # everything before low is below x, nothing from high on
    while low < high:  # R19: one element a step
        middle = (low + high) // 2
        if values.item(middle) < x:  # R15, R16: not x in the dtype of values; R17: false of a NaN
            low = middle + 1
        else:
            high = middle
    return low


# measuring


def measure(fn: Callable[[], object], reps: int, min_s: float, clock: Callable[[], float]) -> list[float]:
    """Time fn: seconds a call, once a repetition, over batches of as many calls as fill min_s.

    Shapes
        fn       callable without arguments; its answers are ignored
        reps     int, >= 1
        min_s    int or float, > 0, finite, seconds a batch
        clock    callable without arguments -> float, seconds
        returns  list of reps floats, in the order of time; 0, negative or NaN where the clock failed

    Errors
        ValueError  reps is a bool, no int or below 1; fn and clock were not called then, nor for the next
        ValueError  min_s is a bool, neither int nor float, not finite or not above 0
        any         what fn or clock raises

    State
        calls fn once without the clock, then reads the clock twice a batch; a batch has at most 65536 calls

    >>> times = iter([10, 10.25, 20, 20.5, 30, 31, 40, 40.75, 50, 51.5])
    >>> measure(lambda: None, reps=2, min_s=1.0, clock=lambda: next(times))
    [0.25, 0.1875]
    """
    if isinstance(reps, bool) or not isinstance(reps, int) or reps < 1:  # R20
        raise ValueError(f"reps must be an int and at least 1, got {reps!r}")
    if not _is_number(min_s) or not 0.0 < min_s < math.inf:  # R20
        raise ValueError(f"min_s must be finite and above 0, got {min_s!r}")
    fn()  # R21: pays for caches and page faults, and is in no sample
    samples = []
    calls = 1  # R23: kept from one repetition to the next
    for _ in range(reps):
        while True:
            start = clock()  # R22
            for _ in range(calls):
                fn()
            stop = clock()
            elapsed = stop - start
            if elapsed >= min_s or calls >= _MOST_CALLS:  # R24, R26; R25: false of a NaN
                break
            calls *= 2  # R24: the short time is thrown away
        samples.append(float(elapsed / calls))  # R27
    return samples  # R28


# deciding


def decide(base: Sequence[float], head: Sequence[float], max_regression: float) -> str:
    """Compare minima: "regression" where head > base * (1 + max_regression), else "ok".

    Shapes
        base, head      sequences of seconds a call, >= 2 each, finite and > 0
        max_regression  int or float, in (0, 1): 0.25 allows a quarter more
        returns         str: "ok", "regression", or "undecided" where a side is not as above

    Errors
        ValueError  max_regression is a bool, neither int nor float, or not in (0, 1)

    Numerics
        one float64 sum, one product, one comparison

    >>> [decide([8, 9, 12], [14, x, 11], 0.25) for x in (10, 10.5, math.nan)]
    ['ok', 'regression', 'undecided']
    """
    if not _is_number(max_regression) or not 0.0 < max_regression < 1.0:  # R30
        raise ValueError(f"max_regression must be above 0 and below 1, got {max_regression!r}")
    if len(base) < 2 or len(head) < 2:  # R31
        return "undecided"
    if not all(_is_time(sample) for sample in [*base, *head]):  # R32: the rest is no evidence
        return "undecided"
    before, after = min(base), min(head)  # R33
    bound = before * (1.0 + max_regression)  # R35
    return "regression" if after > bound else "ok"  # R34: equality is ok


# arguments


def _check_dtype(name: str, array: NDArray[Any], *dtypes: Any) -> None:
    """Refuse what is no array of one of these dtypes (R1)."""
    if not isinstance(array, np.ndarray) or array.dtype.type not in dtypes:
        wanted = " or ".join(dtype.__name__ for dtype in dtypes)
        got = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{name} must be a {wanted} array, got {got}")


def _is_number(value: object) -> bool:
    """Return whether value is an int or a float; Python's True is an int, but no number here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(sample: object) -> bool:
    """Return whether a sample is a measured time: a number, finite and above 0 (R32)."""
    return _is_number(sample) and 0.0 < sample < math.inf
