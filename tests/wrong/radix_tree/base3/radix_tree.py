"""RadixTree with its fields in dictionaries by id, and the eviction order as an ordered index of leaves."""

from __future__ import annotations

import bisect
from itertools import count
from typing import Iterator

import numpy as np

ROOT = 0


class RadixTree:
    def __init__(self, granule: int):
        if granule < 1:
            raise ValueError(f"granule {granule} is below 1")
        self._granule = granule
        self._keys: dict[int, list[int]] = {ROOT: []}
        self._values: dict[int, list] = {ROOT: []}
        self._parents: dict[int, int | None] = {ROOT: None}
        self._kids: dict[int, list[int]] = {ROOT: []}  # sorted by their keys
        self._locks: dict[int, int] = {ROOT: 0}
        self._stamps: dict[int, int] = {ROOT: 0}
        self._ids = count(1)
        self._now = 0

    # -- reading ------------------------------------------------------------

    def granule(self) -> int:
        return self._granule

    def len(self) -> int:
        return sum(map(len, self._values.values()))

    __len__ = len

    def is_empty(self) -> bool:
        return not self._kids[ROOT]

    def node_count(self) -> int:
        return sum(1 for node in self._keys if node != ROOT)

    def key(self, node: int) -> list[int]:
        return self._keys[node].copy()

    def values(self, node: int) -> list:
        return self._values[node].copy()

    def parent(self, node: int) -> int | None:
        return self._parents[node]

    def children(self, node: int) -> list[int]:
        return self._kids[node].copy()

    def child_count(self, node: int) -> int:
        return sum(1 for _ in self._kids[node])

    def lock_count(self, node: int) -> int:
        return self._locks[node]

    def lru_order(self) -> list[int]:
        free = [n for n, kids in self._kids.items() if n != ROOT and not kids and not self._locks[n]]
        return sorted(free, key=self._stamps.__getitem__)

    # -- arguments ----------------------------------------------------------

    @staticmethod
    def _ints(tokens) -> list[int]:
        if isinstance(tokens, np.ndarray):
            if tokens.ndim != 1:
                raise ValueError("tokens have one axis")
            if tokens.dtype.kind not in "iu":
                raise ValueError(f"tokens of dtype {tokens.dtype}")
        ints = [int(t) for t in tokens]
        if any(t < 0 for t in ints):
            raise ValueError("tokens are not negative")
        return ints

    # -- shape --------------------------------------------------------------

    def _add(self, parent: int, key: list[int], values: list, locks: int) -> int:
        node = next(self._ids)
        self._keys[node] = key
        self._values[node] = values
        self._parents[node] = parent
        self._kids[node] = []
        self._locks[node] = locks
        self._stamps[node] = self._now
        bisect.insort(self._kids[parent], node, key=self._keys.__getitem__)
        return node

    def _remove(self, node: int) -> list:
        self._kids[self._parents[node]].remove(node)
        values = self._values[node]
        for field in (self._keys, self._values, self._parents, self._kids, self._locks, self._stamps):
            del field[node]
        return values

    def _split(self, node: int, runs: int) -> int:
        cut = runs * self._granule
        key, values, parent = self._keys[node], self._values[node], self._parents[node]
        self._kids[parent].remove(node)
        upper = self._add(parent, key[:cut], values[:runs], self._locks[node])
        self._keys[node], self._values[node], self._parents[node] = key[cut:], values[runs:], upper
        self._kids[upper].append(node)
        return upper

    def _common(self, node: int, tokens: list[int], start: int) -> int:
        """How many runs of the node's key are in tokens from start on."""
        g = self._granule
        key = self._keys[node]
        runs = 0
        while (runs + 1) * g <= len_(key) and start + (runs + 1) * g <= len_(tokens):
            lo = runs * g
            if key[lo : lo + g] != tokens[start + lo : start + lo + g]:
                break
            runs += 1
        return runs

    def _walk(self, tokens: list[int]) -> tuple[int, list[int]]:
        self._now += 1
        position, path, node = 0, [], ROOT
        while True:
            for kid in self._kids[node]:
                runs = self._common(kid, tokens, position)
                if runs:
                    break
            else:
                return position, path
            position += runs * self._granule
            partial = runs < len_(self._values[kid])
            node = self._split(kid, runs) if partial else kid
            self._stamps[node] = self._now
            path.append(node)
            if partial:
                return position, path

    def match_prefix(self, tokens) -> tuple[int, list[int]]:
        return self._walk(self._ints(tokens))

    def insert(self, tokens, values) -> tuple[int, list]:
        tokens = self._ints(tokens)
        if len_(values) * self._granule != len_(tokens):
            raise ValueError(f"{len_(values)} values for {len_(tokens)} tokens")
        position, path = self._walk(tokens)
        known = position // self._granule
        end = path[-1] if path else ROOT
        if position < len_(tokens):
            end = self._add(end, tokens[position:], list(values[known:]), 0)
        return end, list(values[:known])

    # -- locks --------------------------------------------------------------

    def _branch(self, node: int) -> Iterator[int]:
        while node != ROOT:
            yield node
            node = self._parents[node]

    def lock(self, node: int) -> None:
        self._locks[node]  # KeyError for an unknown id
        for n in self._branch(node):
            self._locks[n] += 1

    def unlock(self, node: int) -> None:
        if self._locks[node] == 0 and node != ROOT:
            raise ValueError(f"node {node} is not locked")
        for n in self._branch(node):
            self._locks[n] -= 1

    # -- eviction -----------------------------------------------------------

    def evict(self, n: int) -> list:
        if n < 0:
            raise ValueError("n is below 0")
        out: list = []
        while len_(out) < n and (order := self.lru_order()):
            out += self._remove(order[0])
        return out


len_ = len
