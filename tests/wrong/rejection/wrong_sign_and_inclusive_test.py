"""Drawing from p with the draws of q, as small pure functions."""
from functools import reduce
from itertools import accumulate, count, islice
from math import inf
from operator import add
from typing import Any, Iterable

import numpy as np

Row = tuple[float, ...]


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def add_up(xs: Iterable[float]) -> float:
    return reduce(add, xs, 0.0)


def whole(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool)


def number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def unit(v: Any, name: str) -> float:
    check(number(v) and 0 <= v < 1, f"{name}: in [0, 1)")
    return float(v)


def row_of(a: Any, name: str) -> Row:
    check(isinstance(a, np.ndarray) and a.ndim == 1 and a.size > 0, f"{name}: 1-D, not empty")
    check(a.dtype.type in (np.float16, np.float32, np.float64), f"{name}: float16, float32 or float64")
    row = tuple(map(float, a))
    check(all(0 <= v < inf for v in row), f"{name}: finite and >= 0")
    check(abs(add_up(row) - 1.0) <= 1e-9 * len(row) + 1e-12, f"{name}: must sum to 1")
    return row


def rows_of(p: Any, q: Any) -> tuple[Row, Row]:
    rows = row_of(p, "p"), row_of(q, "q")
    check(len(rows[0]) == len(rows[1]), "p and q: one length")
    return rows


def ratio(p_x: float, q_x: float) -> float:
    return p_x / q_x


def missing(p: Row, q: Row) -> Row:
    d = tuple(max(0.0, b - a) for a, b in zip(p, q))
    z = add_up(d)
    return tuple(v / z for v in d) if z > 0 else p


def pick(w: Row, u: float) -> int:
    hit = next((i for i, c in enumerate(accumulate(w)) if u < c), None)
    return hit if hit is not None else max(i for i, v in enumerate(w) if v > 0)


def rejection_accept(p_x, q_x, u):
    check(number(p_x) and 0 <= p_x < inf, "p_x: finite and >= 0")
    check(number(q_x) and 0 < q_x < inf, "q_x: finite and > 0")
    return unit(u, "u") <= ratio(float(p_x), float(q_x))


def acceptance_probability(p, q):
    return add_up(map(min, *rows_of(p, q)))


def residual_distribution(p, q):
    return np.array(missing(*rows_of(p, q)), dtype=np.float64)


def speculative_step(p, q, x, u_accept, u_resample):
    wanted, proposed = rows_of(p, q)
    check(whole(x) and 0 <= x < len(wanted), "x: int in [0, N)")
    if rejection_accept(wanted[x], proposed[x], u_accept):
        return x, True
    return pick(missing(wanted, proposed), unit(u_resample, "u_resample")), False


def rejection_sample(p, q, m, rng, max_tries=10000):
    wanted, proposed = rows_of(p, q)
    check(number(m) and 1 <= m < inf, "m: finite and >= 1")
    check(whole(max_tries) and max_tries >= 1, "max_tries: int >= 1")
    cover = tuple(float(m) * b for b in proposed)
    check(all(a <= c for a, c in zip(wanted, cover)), "m: p <= m * q for every id")
    pairs = ((pick(proposed, rng.uniform()), rng.uniform()) for _ in count())
    for tries, (x, u) in enumerate(islice(pairs, max_tries), start=1):
        if u < ratio(wanted[x], cover[x]):
            return x, tries
    raise RuntimeError(f"nothing accepted in {max_tries} tries")
