"""Choices for properties: one primitive, recorded, replayable, shrinkable.

Run i of a property reads PCG32(child_seed(seed, i)), so (seed, i) names its input on every machine.
Not Hypothesis: its example i depends on the examples before it (spec/decisions.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import TypeVar

Ask = TypeVar("Ask")
Told = TypeVar("Told")
GOLDEN = 0x9E3779B97F4A7C15
RUNS = (32, 8, 4, 2, 1)
M64, M32 = (1 << 64) - 1, (1 << 32) - 1


def mix64(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


def child_seed(seed: int, i: int) -> int:
    return mix64((seed + (i + 1) * GOLDEN) & M64)


class PCG32:
    """The course's generator, written here again because the judge never imports what it judges.

    >>> g = PCG32(42)
    >>> hex(g.next_u32()), hex(g.next_u32())
    ('0xa15c02b7', '0x7b47f409')
    """

    def __init__(self, seed: int, seq: int = 54) -> None:
        self.inc = (seq << 1 | 1) & M64
        self.state = 0
        self.next_u32()
        self.state = (self.state + seed) & M64
        self.next_u32()

    def next_u32(self) -> int:
        old = self.state
        self.state = (old * 6364136223846793005 + self.inc) & M64
        xored, turn = ((old >> 18 ^ old) >> 27) & M32, old >> 59
        return (xored >> turn | xored << (-turn & 31)) & M32

    def below(self, n: int) -> int:
        least = (1 << 32) % n
        while True:  # next_u32 written out: draws of long vectors are half of a property's time
            old = self.state
            self.state = (old * 6364136223846793005 + self.inc) & M64
            xored, turn = ((old >> 18 ^ old) >> 27) & M32, old >> 59
            r = (xored >> turn | xored << (-turn & 31)) & M32
            if r >= least:
                return r % n


class Chooser:
    """What a draw reads: `below(n)`, 0 always the simplest. Remembers what it gave."""

    def __init__(self, seed: int, i: int) -> None:
        self.random = PCG32(child_seed(seed, i))
        self.choices: list[int] = []

    def below(self, n: int) -> int:
        if not 1 <= n <= 1 << 32:
            raise ValueError(f"below({n}): 1 <= n <= 2^32")
        choice = self.random.below(n)
        self.choices.append(choice)
        return choice


class Replay:
    """Recorded choices again; 0 when they run out, the largest allowed when one is too large."""

    def __init__(self, choices: list[int]) -> None:
        self.given = choices
        self.choices: list[int] = []

    def below(self, n: int) -> int:
        at = len(self.choices)
        choice = min(self.given[at], n - 1) if at < len(self.given) else 0
        self.choices.append(choice)
        return choice


def shuffled(items: list[str], seed: int) -> list[str]:
    random, out = PCG32(seed), list(items)
    for i in range(len(out) - 1, 0, -1):
        j = random.below(i + 1)
        out[i], out[j] = out[j], out[i]
    return out


class Spent(Exception):
    """No tries or no time left."""


def shrink(
    choices: list[int], still_fails: Callable[[list[int]], Generator[Ask, Told, bool]],
    tries: int = 200, seconds: float = 2.0,
) -> Generator[Ask, Told, list[int]]:  # fmt: skip
    """The simplest failing choices found in the given tries and time; `still_fails` may talk to a worker.

    Rounds of edits until one changes nothing: delete runs from the end, then make each choice zero or, by
    halving the distance, as small as it can be.
    """
    until, best = time.monotonic() + seconds, choices

    def fails(candidate: list[int]) -> Generator[Ask, Told, bool]:
        nonlocal tries, best
        if tries == 0 or time.monotonic() > until:
            raise Spent
        tries -= 1
        if (yield from still_fails(candidate)):
            best = candidate
            return True
        return False

    with contextlib.suppress(Spent):
        before: list[int] = []
        while before != best:
            before = best
            for size in RUNS:
                for start in range(len(best) - size, -1, -size):
                    yield from fails(best[:start] + best[start + size :])
            for i in range(len(best)):
                least, most = 0, best[i]  # `most` fails; what is below `least` does not, as far as is known
                while least < most:
                    middle = (least + most) // 2 if least else 0
                    if (yield from fails([*best[:i], middle, *best[i + 1 :]])):
                        most = middle
                    else:
                        least = middle + 1
    return best
