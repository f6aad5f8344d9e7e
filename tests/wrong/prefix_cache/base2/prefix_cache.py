"""The index of cached prompt blocks: a radix tree plus the place of every cached id."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import chain

import numpy as np

from impl import radix_tree

frozen = dataclasses.dataclass(frozen=True)


@frozen
class PrefixMatch:
    matched_tokens: int
    blocks: list[int]
    node: int


@frozen
class Inserted:
    node: int
    duplicates: list[int]


@frozen
class PrefixStats:
    lookups: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    inserted_blocks: int = 0
    evicted_blocks: int = 0


def ints(argument) -> list[int]:
    if isinstance(argument, np.ndarray):
        if argument.ndim != 1 or argument.dtype.kind not in "iu":
            raise ValueError(f"an integer array of one axis, not {argument.dtype} with {argument.ndim}")
    return [int(item) for item in argument]


class RadixCache:
    def __init__(self, block_size: int):
        if block_size < 1:
            raise ValueError(f"block_size {block_size}")
        self._size = block_size
        self._tree = radix_tree.RadixTree(granule=block_size)
        self._place: dict[int, tuple] = {}  # id -> all tokens from the root to the end of its block
        self._count = Counter()

    def block_size(self) -> int:
        return self._size

    def tree(self):
        return self._tree

    def _add(self, **numbers: int) -> None:
        self._count.update(numbers)

    # -- requests -----------------------------------------------------------

    def match_prefix(self, tokens) -> PrefixMatch:
        prompt = ints(tokens)
        searched = max(0, (len(prompt) - 1) // self._size) * self._size
        matched, path = self._tree.match_prefix(prompt[:searched])
        self._add(lookups=1, query_tokens=len(prompt), hit_tokens=matched)
        found = list(chain.from_iterable(map(self._tree.values, path)))
        return PrefixMatch(matched, found, path[-1] if path else radix_tree.ROOT)

    def insert(self, tokens, blocks) -> Inserted:
        prompt, given = ints(tokens), ints(blocks)
        full = len(prompt) // self._size
        if full != len(given):
            raise ValueError(f"{len(given)} ids for {full} full blocks")
        places = [tuple(prompt[: (i + 1) * self._size]) for i in range(full)]
        if len(set(given)) < full:
            raise ValueError("one id for two blocks")
        for block, place in zip(given, places):
            if self._place.get(block, place) != place:
                raise ValueError(f"{block} is cached in another place")

        stored = prompt[: full * self._size]
        node, back = self._tree.insert(stored, given)
        duplicates = [block for block in back if block not in self._place]
        for block, place in list(zip(given, places))[len(back):]:
            self._place[block] = place
        self._add(inserted_blocks=full - len(back))
        return Inserted(node, duplicates)

    def lock(self, node: int) -> None:
        return self._tree.lock(node)

    def unlock(self, node: int) -> None:
        return self._tree.unlock(node)

    def evict(self, n_blocks: int) -> list[int]:
        given_up = self._tree.evict(n_blocks)
        for block in given_up:
            del self._place[block]
        self._add(evicted_blocks=len(given_up))
        return given_up

    # -- numbers ------------------------------------------------------------

    def cached_tokens(self) -> int:
        return self._size * self.cached_blocks()

    def cached_blocks(self) -> int:
        return self._tree.len()

    def evictable_blocks(self) -> int:
        pinned, level = 0, [radix_tree.ROOT]
        while level:
            level = [kid for node in level for kid in self._tree.children(node) if self._tree.lock_count(kid)]
            pinned += sum(len(self._tree.values(node)) for node in level)
        return self._tree.len() - pinned

    def stats(self) -> PrefixStats:
        return PrefixStats(**self._count)

    def hit_rate(self) -> float:
        asked = self._count["query_tokens"]
        return self._count["hit_tokens"] / asked if asked else 0.0
