"""Doubles that fixtures hand to code under test; part of the worker, so standard library and NumPy only.

A double lives in the learner's process: what it reports is evidence against mistakes, not against cheating.
"""

from __future__ import annotations

from typing import Any


def append(items: list[Any], item: Any) -> None:
    """Put an item at the end of a list: shows whether two objects share it."""
    items.append(item)


def overwrite(array: Any, value: float) -> None:
    """Set every element of a tensor: shows whether two results share memory."""
    array[...] = value


class ScriptedUniforms:
    """A random source that hands out the given uniforms and raises when it runs dry."""

    def __init__(self, values: list[float]) -> None:
        self.values = [float(value) for value in values]
        self.used = 0

    def uniform(self) -> float:
        if self.used == len(self.values):
            raise RuntimeError(f"drew more than the {len(self.values)} uniforms of the script")
        self.used += 1
        return self.values[self.used - 1]

    def drawn(self) -> int:
        """How many uniforms were consumed."""
        return self.used
