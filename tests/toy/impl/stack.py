"""A bounded stack."""

import numpy as np


class Full(RuntimeError):
    """No room left."""


class Stack:
    """At most `capacity` integers."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: list[int] = []

    def push(self, x: int) -> int:
        """Put x on top."""
        if len(self.items) >= self.capacity:
            raise Full(f"holds {self.capacity}")
        self.items.append(x)
        return len(self.items)

    def push_all(self, xs: list[int]) -> int:
        """Put xs on top, one by one; what fits stays when the rest does not."""
        for x in xs:
            self.push(x)
        return self.stats()["size"]

    def pop(self) -> int:
        """Take the top."""
        return self.items.pop()

    def stats(self) -> dict[str, int]:
        """Size and room."""
        return {"size": len(self.items), "room": self.capacity - len(self.items)}


def total(xs: np.ndarray) -> float:
    """Sum from left to right."""
    if xs.size == 0:
        raise ValueError("an empty vector has no total")
    s = 0.0
    for x in xs.tolist():
        s += x
    return s


def label(n: int) -> list[int]:
    """n distinct ids."""
    return [10 * (i + 1) for i in range(n)]


def double(xs: np.ndarray) -> None:
    """Double in place."""
    xs *= 2


def pick(items: list[object], i: int) -> object:
    """The item at i, as it is."""
    return items[i]
