from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

CAP = 1 << 16


def _real(v: Any) -> bool:
    return type(v) in (int, float)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def kata_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    _require(a.dtype == np.float32 and b.dtype == np.float32, "a and b: float32 only")
    _require(a.ndim == b.ndim == 2, "a and b: two axes")
    _require(a.shape[1] == b.shape[0], "inner dimensions differ")
    return np.einsum("nd,df->nf", a.astype(np.float64), b.astype(np.float64)).astype(np.float32)


def kata_sum(x: np.ndarray) -> float:
    _require(x.dtype == np.float32, "x: float32 only")
    _require(x.ndim == 1, "x: one axis")
    return float(x.sum(dtype=np.float64))


def kata_rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    _require(x.dtype == np.float32 and weight.dtype == np.float32, "x and weight: float32 only")
    _require(x.ndim >= 1 and x.shape[-1] >= 1, "x: a last axis of at least 1")
    _require(weight.shape == x.shape[-1:], "weight: shape [D]")
    _require(_real(eps) and math.isfinite(eps) and eps > 0, "eps: finite, above 0")
    wide = x.astype(np.float64)
    root = np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + eps)
    return (wide / root * weight.astype(np.float64)).astype(np.float32)


def kata_count_below(values: np.ndarray, x: float) -> int:
    _require(values.dtype in (np.float32, np.float64), "values: float32 or float64")
    _require(values.ndim == 1, "values: one axis")
    _require(_real(x) and x == x, "x: a number that is not NaN")
    first, count = 0, values.size
    while count > 0:
        half = count >> 1
        if values[first + half].item() < x:
            first += half + 1
            count -= half + 1
        else:
            count = half
    return first


def measure(fn: Callable[[], Any], reps: int, min_s: float, clock: Callable[[], float]) -> list[float]:
    _require(type(reps) is int and reps >= 1, "reps: an int >= 1")
    _require(_real(min_s) and math.isfinite(min_s) and min_s > 0, "min_s: finite, above 0")
    fn()
    out: list[float] = []
    n = 1
    for _ in range(reps):
        seconds, calls = 0.0, 0
        while True:
            t0 = clock()
            for _ in range(n):
                fn()
            seconds += clock() - t0
            calls += n
            if seconds >= min_s or n == CAP:
                break
            n *= 2
        out.append(seconds / calls)
    return out


def _good(side: list[float]) -> bool:
    return len(side) > 1 and all(_real(s) and 0 < s < math.inf for s in side)


def decide(base: list[float], head: list[float], max_regression: float) -> str:
    _require(_real(max_regression) and 0 < max_regression < 1, "max_regression: between 0 and 1")
    if not (_good(base) and _good(head)):
        return "undecided"
    limit = float(min(base)) * (1 + max_regression)
    return "regression" if float(min(head)) > limit else "ok"
