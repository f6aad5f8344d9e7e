"""Stock draws and laws that any unit's properties may name; a unit's own live in its oracle.py.

A draw is `f(choose, **with)` and returns a value; a law is `f(given, got, **with)` and returns None when it
holds, else the words of what is broken. Both run on the grader's side.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from grader.wire import DTYPES


class Choose(Protocol):
    def below(self, n: int) -> int: ...


def integer(choose: Choose, low: int, high: int) -> int:
    """An integer in [low, high], low the simplest."""
    return low + choose.below(high - low + 1)


def one_of(choose: Choose, values: list[Any]) -> Any:
    """One of the given values, the first the simplest."""
    return values[choose.below(len(values))]


def integers(choose: Choose, low: int, high: int, most: int, least: int = 0) -> list[int]:
    """A list of least..most integers in [low, high]."""
    return [integer(choose, low, high) for _ in range(integer(choose, least, most))]


def floats(choose: Choose, dtype: str, shape: list[int], scale: float = 1.0) -> Any:
    """A tensor of multiples of 2^-10 in [-scale, scale); zero is not favoured."""
    numbers = [(choose.below(2048) - 1024) * 2.0**-10 * scale for _ in range(math.prod(shape))]
    return np.array(numbers, DTYPES[dtype]).reshape(shape)


def finite(given: dict[str, Any], got: Any) -> str | None:
    """Every number of the answer is finite."""
    del given
    bad = ~np.isfinite(np.asarray(got, np.float64))
    return f"{int(bad.sum())} values are not finite" if bad.any() else None


def sums_to_one(given: dict[str, Any], got: Any) -> str | None:
    """Non-negative, and the sum is 1 within n rounding errors."""
    del given
    p = np.asarray(got, np.float64).reshape(-1)
    total = math.fsum(p)
    if not (p >= 0).all():
        return f"a probability is {p.min()!r}"
    return None if abs(total - 1) <= p.size * 2.0**-52 else f"the sum is {total!r}"


def ascending(given: dict[str, Any], got: Any) -> str | None:
    """Never falls."""
    del given
    x = np.asarray(got, np.float64).reshape(-1)
    fall = np.flatnonzero(~(x[1:] >= x[:-1]))
    return f"falls at index {int(fall[0]) + 1}" if fall.size else None


def valid_documents(given: dict[str, Any], got: Any, schema: dict[str, Any], finished: int) -> dict[str, Any]:
    """Every finished document parses and validates."""
    del given
    import json

    import jsonschema

    done = [text for text, ended in got if ended]
    wrong = ""
    for text in done:
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            wrong = wrong or f"{text!r}: {str(error).splitlines()[0]}"
    if len(done) < finished:
        wrong = wrong or f"{len(done)} of {len(got)} documents were finished, at least {finished} are due"
    return {"measured": {"documents": len(got), "finished": len(done)}, "broken": wrong or None}
