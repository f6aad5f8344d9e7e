from dataclasses import dataclass

import numpy as np

from impl.radix_tree import ROOT, RadixTree


@dataclass(frozen=True)
class PrefixMatch:
    matched_tokens: int
    blocks: list
    node: int


@dataclass(frozen=True)
class Inserted:
    node: int
    duplicates: list


@dataclass(frozen=True)
class PrefixStats:
    lookups: int
    query_tokens: int
    hit_tokens: int
    inserted_blocks: int
    evicted_blocks: int


def _row(numbers, what):
    if isinstance(numbers, np.ndarray):
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise ValueError(what + " must be a 1-D array of integers")
        return numbers.tolist()
    return [int(x) for x in numbers]


class RadixCache:
    def __init__(self, block_size):
        if block_size < 1:
            raise ValueError("block_size must be at least 1")
        self._bs = block_size
        self._tree = RadixTree(block_size)
        self._ids = set()
        self._lookups = 0
        self._query = 0
        self._hit = 0
        self._inserted = 0
        self._evicted = 0

    def block_size(self):
        return self._bs

    def tree(self):
        return self._tree

    def match_prefix(self, tokens):
        tokens = _row(tokens, "tokens")
        n = len(tokens)
        limit = 0
        if n > 0:
            limit = (n - 1) // self._bs * self._bs
        matched, path = self._tree.match_prefix(tokens[:limit])
        blocks = []
        for node in path:
            blocks.extend(self._tree.values(node))
        self._lookups += 1
        self._query += n
        self._hit += matched
        node = path[-1] if path else ROOT
        return PrefixMatch(matched, blocks, node)

    def _cached_path(self, tokens):
        """The ids cached for the leading blocks of tokens; reads only."""
        found = []
        node = ROOT
        pos = 0
        while pos < len(tokens):
            step = None
            for child in self._tree.children(node):
                if self._tree.key(child)[:self._bs] == tokens[pos:pos + self._bs]:
                    step = child
                    break
            if step is None:
                break
            key = self._tree.key(step)
            values = self._tree.values(step)
            for i in range(len(values)):
                if key[i * self._bs:(i + 1) * self._bs] != tokens[pos:pos + self._bs]:
                    return found
                found.append(values[i])
                pos += self._bs
                if pos >= len(tokens):
                    return found
            node = step
        return found

    def insert(self, tokens, blocks):
        tokens = _row(tokens, "tokens")
        blocks = _row(blocks, "blocks")
        full = len(tokens) // self._bs
        if len(blocks) != full:
            raise ValueError("one id for each full block")
        tokens = tokens[:full * self._bs]
        if len(set(blocks)) != len(blocks):
            raise ValueError("an id is given twice")
        cached = self._cached_path(tokens)
        for i in range(full):
            if blocks[i] in self._ids and (i >= len(cached) or cached[i] != blocks[i]):
                raise ValueError("an id is cached in another place")
        node, back = self._tree.insert(tokens, blocks)
        new = blocks[len(cached):]
        self._ids.update(new)
        self._inserted += len(new)
        duplicates = []
        for i in range(len(cached)):
            if cached[i] != blocks[i]:
                duplicates.append(blocks[i])
        return Inserted(node, duplicates)

    def lock(self, node):
        self._tree.lock(node)

    def unlock(self, node):
        self._tree.unlock(node)

    def evict(self, n_blocks):
        gone = self._tree.evict(n_blocks)
        self._ids.difference_update(gone)
        self._evicted += len(gone)
        return gone

    def cached_blocks(self):
        return len(self._ids)

    def cached_tokens(self):
        return len(self._ids) * self._bs

    def evictable_blocks(self):
        total = 0
        todo = [ROOT]
        while todo:
            node = todo.pop()
            if self._tree.lock_count(node) == 0:
                total += len(self._tree.values(node))
            todo.extend(self._tree.children(node))
        return total

    def stats(self):
        return PrefixStats(self._lookups, self._query, self._hit, self._inserted, self._evicted)

    def hit_rate(self):
        if self._query == 0:
            return 0.0
        return self._hit / self._query
