from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _floats(*arrays: np.ndarray) -> None:
    for arr in arrays:
        if arr.dtype.name != "float32":
            raise ValueError("only float32 is supported, not " + arr.dtype.name)


def _finite_positive(number: Any) -> bool:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return False
    return math.isfinite(number) and number > 0


def kata_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    _floats(a, b)
    if (a.ndim, b.ndim) != (2, 2):
        raise ValueError("two matrices are needed")
    (rows, inner), (inner_b, cols) = a.shape, b.shape
    if inner != inner_b:
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}")
    left = a.astype("f8")
    right = b.astype("f8")
    result = np.zeros((rows, cols), "f4")
    for i in range(rows):
        for j in range(cols):
            result[i, j] = np.sum(left[i] * right[:, j])
    return result


def kata_sum(x: np.ndarray) -> float:
    _floats(x)
    if len(x.shape) != 1:
        raise ValueError("kata_sum takes a vector")
    return float(sum(map(float, x), 0.0))


def kata_rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    _floats(x, weight)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError("x needs at least one column")
    if weight.shape != (x.shape[-1],):
        raise ValueError("weight needs one entry a column")
    if not _finite_positive(eps):
        raise ValueError("eps must be a finite number above 0")
    width = x.shape[-1]
    lines = x.reshape(-1, width).astype("f8") if x.size else np.zeros((0, width))
    scale = weight.astype("f8")
    done = np.zeros(lines.shape, "f4")
    for r, line in enumerate(lines):
        mean_square = np.sum(line**2) / width
        done[r] = (line / np.sqrt(mean_square + eps)) * scale
    return done.reshape(x.shape)


def kata_count_below(values: np.ndarray, x: float) -> int:
    if values.dtype.name not in ("float32", "float64"):
        raise ValueError("values must be float32 or float64")
    if len(values.shape) != 1:
        raise ValueError("values must be a vector")
    if isinstance(x, bool) or not isinstance(x, (int, float)) or math.isnan(x):
        raise ValueError("x must be a number")
    return bisect.bisect_left(values, x, key=float)


def measure(fn: Callable[[], Any], reps: int, min_s: float, clock: Callable[[], float]) -> list[float]:
    if isinstance(reps, bool) or not isinstance(reps, int):
        raise ValueError("reps must be an int")
    if reps <= 0:
        raise ValueError("reps must be 1 or more")
    if not _finite_positive(min_s):
        raise ValueError("min_s must be a finite number above 0")

    def batch(calls: int) -> float:
        before = clock()
        for _ in itertools.repeat(None, calls):
            fn()
        after = clock()
        return after - before

    def repetition(calls: int) -> tuple[float, int]:
        took = batch(calls)
        while not took >= min_s and calls < 65536:
            calls = 2 * calls
            took = batch(calls)
        return took, calls

    fn()
    results: list[float] = []
    calls = 1
    for _ in range(reps):
        took, calls = repetition(calls)
        results.append(float(took) / calls)
    return results


def decide(base: list[float], head: list[float], max_regression: float) -> str:
    if not _finite_positive(max_regression) or max_regression >= 1:
        raise ValueError("max_regression must lie between 0 and 1")
    if min(len(base), len(head)) < 2 or not all(map(_finite_positive, [*base, *head])):
        return "undecided"
    slowest_allowed = float(min(base)) * (1.0 + max_regression)
    return ("ok", "regression")[float(min(head)) > slowest_allowed]
