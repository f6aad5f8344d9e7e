from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _need_f32(array: np.ndarray, name: str) -> None:
    if array.dtype != np.float32:
        raise ValueError(f"{name} must be float32, got {array.dtype}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def kata_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply two float32 matrices with float64 sums."""
    _need_f32(a, "a")
    _need_f32(b, "b")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError("shapes do not fit")
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float64)
    for k in range(a.shape[1]):
        column = a[:, k].astype(np.float64)
        row = b[k, :].astype(np.float64)
        total += column[:, None] * row[None, :]
    return total.astype(np.float32)


def kata_sum(x: np.ndarray) -> float:
    """Add up a float32 vector in float64."""
    _need_f32(x, "x")
    if x.ndim != 1:
        raise ValueError("x must have one axis")
    total = 0.0
    for value in x.tolist():
        total += value
    return total


def kata_rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """Root-mean-square norm over the last axis."""
    _need_f32(x, "x")
    _need_f32(weight, "weight")
    if x.ndim < 1 or x.shape[-1] < 1 or weight.shape != (x.shape[-1],):
        raise ValueError("shapes do not fit")
    if not _is_number(eps) or not math.isfinite(eps) or eps <= 0:
        raise ValueError("eps must be finite and above 0")
    out = np.empty(x.shape, dtype=np.float32)
    w = weight.astype(np.float64)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].astype(np.float64)
        root = np.sqrt(np.mean(row * row) + eps)
        out[index] = row / root * w
    return out


def kata_count_below(values: np.ndarray, x: float) -> int:
    """Count the elements of an ascending vector that are below x."""
    if values.dtype != np.float32 and values.dtype != np.float64:
        raise ValueError("values must be float32 or float64")
    if values.ndim != 1:
        raise ValueError("values must have one axis")
    if not _is_number(x) or x != x:
        raise ValueError("x must be a number")
    low, high = 0, values.shape[0]
    while low < high:
        middle = (low + high) // 2
        if float(values[middle]) < x:
            low = middle + 1
        else:
            high = middle
    return low


def measure(fn: Callable[[], Any], reps: int, min_s: float, clock: Callable[[], float]) -> list[float]:
    """Time fn and give the seconds per call of every repetition."""
    if not isinstance(reps, int) or isinstance(reps, bool) or reps < 1:
        raise ValueError("reps must be an int of at least 1")
    if not _is_number(min_s) or not math.isfinite(min_s) or min_s <= 0:
        raise ValueError("min_s must be finite and above 0")
    fn()
    calls = 1
    samples: list[float] = []
    for _ in range(reps):
        while True:
            start = clock()
            for _ in range(calls):
                fn()
            stop = clock()
            elapsed = stop - start
            if elapsed >= min_s or calls >= 65536:
                break
            calls *= 2
        samples.append(float(elapsed / calls))
    return samples


def decide(base: list[float], head: list[float], max_regression: float) -> str:
    """Compare two sets of samples by their minima."""
    if not _is_number(max_regression) or not 0 < max_regression < 1:
        raise ValueError("max_regression must be between 0 and 1")
    for side in (base, head):
        if len(side) < 2:
            return "undecided"
        for sample in side:
            if not _is_number(sample) or not math.isfinite(sample) or sample <= 0:
                return "undecided"
    bound = float(min(base)) * (1.0 + max_regression)
    if float(min(head)) > bound:
        return "regression"
    return "ok"
