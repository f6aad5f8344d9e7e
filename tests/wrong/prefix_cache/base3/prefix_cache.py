# Keeps no list of ids of its own: everything is read off the tree when it is needed.
import numpy as np
from dataclasses import dataclass, replace
from typing import List

from impl.radix_tree import RadixTree


@dataclass(frozen=True)
class PrefixMatch:
    matched_tokens: int
    blocks: List[int]
    node: int


@dataclass(frozen=True)
class Inserted:
    node: int
    duplicates: List[int]


@dataclass(frozen=True)
class PrefixStats:
    lookups: int
    query_tokens: int
    hit_tokens: int
    inserted_blocks: int
    evicted_blocks: int


def plain(a):
    a = a if isinstance(a, (list, tuple)) else np.asarray(a)
    if isinstance(a, np.ndarray):
        if len(a.shape) != 1:
            raise ValueError("one axis")
        if a.dtype.kind != "i" and a.dtype.kind != "u":
            raise ValueError("integers")
        a = a.tolist()
    return list(a)


class RadixCache:
    def __init__(self, block_size):
        if block_size <= 0:
            raise ValueError("block_size")
        self.B = block_size
        self.t = RadixTree(block_size)
        self.s = PrefixStats(0, 0, 0, 0, 0)

    def block_size(self):
        return self.B

    def tree(self):
        return self.t

    def nodes(self):
        """All nodes below ROOT, parents first."""
        found = self.t.children(0)
        for node in found:
            found.extend(self.t.children(node))
        return found

    def chunks(self, tokens):
        return [tokens[i:i + self.B] for i in range(0, len(tokens), self.B)]

    def match_prefix(self, tokens):
        tokens = plain(tokens)
        n = len(tokens)
        keep = 0
        while keep + self.B < n:
            keep += self.B
        matched, path = self.t.match_prefix(tokens[:keep])
        self.s = replace(self.s, lookups=self.s.lookups + 1, query_tokens=self.s.query_tokens + n,
                         hit_tokens=self.s.hit_tokens + matched)
        blocks = []
        for node in path:
            blocks += self.t.values(node)
        return PrefixMatch(matched, blocks, ([0] + path)[-1])

    def on_path(self, tokens):
        """The cached ids of the blocks of tokens, as far as they go, without touching the tree."""
        runs = self.chunks(tokens)
        ids = []
        kids = self.t.children(0)
        while kids and len(ids) < len(runs):
            kid = kids.pop()
            keys = self.chunks(self.t.key(kid))
            if keys[0] != runs[len(ids)]:
                continue
            for run, block in zip(keys, self.t.values(kid)):
                if len(ids) == len(runs) or runs[len(ids)] != run:
                    return ids
                ids.append(block)
            kids = self.t.children(kid)
        return ids

    def insert(self, tokens, blocks):
        tokens, blocks = plain(tokens), plain(blocks)
        rest = len(tokens) % self.B
        tokens = tokens[:len(tokens) - rest]
        if len(blocks) * self.B != len(tokens):
            raise ValueError("number of blocks")
        here = self.on_path(tokens)
        everywhere = set()
        for node in self.nodes():
            everywhere.update(self.t.values(node))
        seen = set()
        for i, block in enumerate(blocks):
            same = i < len(here) and here[i] == block
            if block in seen or (block in everywhere and not same):
                raise ValueError("block %d is in two places" % block)
            seen.add(block)
        node, back = self.t.insert(tokens, blocks)
        self.s = replace(self.s, inserted_blocks=self.s.inserted_blocks + len(blocks) - len(back))
        return Inserted(node, [mine for mine, kept in zip(back, here) if mine != kept])

    def lock(self, node):
        self.t.lock(node)

    def unlock(self, node):
        self.t.unlock(node)

    def evict(self, n_blocks):
        out = list(self.t.evict(n_blocks))
        self.s = replace(self.s, evicted_blocks=self.s.evicted_blocks + len(out))
        return out

    def cached_tokens(self):
        return len(self.t) * self.B

    def cached_blocks(self):
        return len(self.t)

    def evictable_blocks(self):
        return sum(len(self.t.values(x)) for x in self.nodes() if self.t.lock_count(x) == 0)

    def stats(self):
        return self.s

    def hit_rate(self):
        if not self.s.query_tokens:
            return 0.0
        return self.s.hit_tokens / self.s.query_tokens
