"""Which blocks of keys and values a prompt can take over: a radix tree of whole blocks.

    prompt of n tokens -> the first floor((n-1)/B)*B are searched -> ids of the blocks on the path
    full blocks        -> the first floor(n/B)*B are stored       -> the caller's second copies come back

Every id is cached once; `_home` says at which node, so that an id with two owners is refused in time.

Spec    spec/prefix_cache.md
Source  Zheng et al. 2024, arXiv:2312.07104, section 3; Kwon et al. 2023, arXiv:2309.06180, section 4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impl.radix_tree import ROOT, RadixTree

Ids = list[int] | tuple[int, ...] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a lookup found: matched_tokens, their block ids, and the node where they end."""

    matched_tokens: int
    blocks: list[int]
    node: int


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where the stored tokens end, and the caller's ids that were not needed."""

    node: int
    duplicates: list[int]


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Sums since the cache was made: calls, tokens, tokens, blocks, blocks."""

    lookups: int
    query_tokens: int
    hit_tokens: int
    inserted_blocks: int
    evicted_blocks: int


class RadixCache:
    """The index of cached blocks. It owns no memory: it says which ids change hands."""

    def __init__(self, block_size: int) -> None:
        """Make an empty cache.

        Shapes
            block_size  int, >= 1, tokens per block

        Errors
            ValueError  block_size is below 1

        >>> RadixCache(16).cached_blocks()
        0
        """
        if block_size < 1:  # R1
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self._block_size = block_size
        self._tree = RadixTree(block_size)  # R4
        self._home: dict[int, int] = {}  # cached id -> the node that holds it
        self._locked_blocks = 0
        self._lookups = 0
        self._query_tokens = 0
        self._hit_tokens = 0
        self._inserted_blocks = 0
        self._evicted_blocks = 0

    def block_size(self) -> int:
        """Return the number of tokens per block.

        Shapes
            returns  int, >= 1

        >>> RadixCache(16).block_size()
        16
        """
        return self._block_size

    def tree(self) -> RadixTree:
        """Return the tree of the cached blocks.

        Shapes
            returns  RadixTree, the cache's own: look, do not change

        >>> RadixCache(16).tree().granule()
        16
        """
        return self._tree

    # looking up and storing

    def match_prefix(self, tokens: Ids) -> PrefixMatch:
        """Find the cached blocks at the start of a prompt, but for the block of its last token.

        Shapes
            tokens   list or tuple of int, or integers[n], each >= 0
            returns  PrefixMatch: blocks, a new list of int; matched_tokens, block_size for each;
                     node, the last node of the path, or ROOT

        Errors
            ValueError  a searched token is below 0, or tokens is no list, tuple or one row of integers

        State
            stamps the path, may split its last node, and counts the lookup

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3, 4], [10, 11])
        >>> cache.match_prefix([1, 2, 3, 4]).blocks, cache.match_prefix([1, 2, 3, 4, 5]).blocks
        ([10], [10, 11])
        """
        tokens = _row(tokens, "tokens")
        n = len(tokens)
        searched = max(n - 1, 0) // self._block_size * self._block_size  # R5: never the last token
        matched, path = self._tree.match_prefix(tokens[:searched])
        node = path[-1] if path else ROOT
        blocks: list[int] = []
        for at in path:
            blocks += self._tree.values(at)  # R6
        self._settle(node)
        self._lookups += 1  # R18
        self._query_tokens += n  # R18: the full length
        self._hit_tokens += matched  # R18
        return PrefixMatch(matched, blocks, node)

    def insert(self, tokens: Ids, blocks: Ids) -> Inserted:
        """Cache the full blocks of a sequence; a block that is cached already keeps its id.

        Shapes
            tokens   list or tuple of int, or integers[n], each >= 0
            blocks   list or tuple of int, or integers[n // block_size]
            returns  Inserted: node, where the stored tokens end, or ROOT; duplicates, a new list of the
                     caller's ids in whose place another id is cached

        Errors
            ValueError  a stored token is below 0, or tokens or blocks is no list, tuple or row of integers
            ValueError  there is not one id for each full block
            ValueError  an id is twice in blocks, or is cached in another place

        State
            stamps the path, may split a node, stores the other blocks as one new leaf

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3, 4, 5], [10, 11])
        >>> cache.insert([1, 2, 3, 4, 8, 8], [20, 11, 12]).duplicates
        [20]
        """
        tokens, ids = _row(tokens, "tokens"), _row(blocks, "blocks")
        n_blocks = len(tokens) // self._block_size
        if len(ids) != n_blocks:  # R8
            raise ValueError(f"insert needs {n_blocks} ids, one for each full block, got {len(ids)}")
        tokens = tokens[: n_blocks * self._block_size]  # R7: a block that is not full is not stored
        self._refuse_second_places(tokens, ids)  # R3, R11: before the tree changes
        node, back = self._tree.insert(tokens, ids)
        stored = ids[len(back) :]
        self._home.update(dict.fromkeys(stored, node))
        self._settle(node)
        self._inserted_blocks += len(stored)  # R19
        # R9: by R11 an id that was handed back is cached at its own place, or it is nowhere
        duplicates = [block for block in back if block not in self._home]
        return Inserted(node, duplicates)  # R10

    # locks

    def lock(self, node: int) -> None:
        """Pin the node and its ancestors: they stay cached under their ids until unlocked.

        Shapes
            node     int, ROOT (nothing changes) or a living node
            returns  None

        Errors
            KeyError  no living node has this id

        State
            locks add up; blocks stored below the node later are not locked

        >>> cache = RadixCache(2)
        >>> cache.lock(cache.insert([1, 2], [10]).node)
        >>> cache.evictable_blocks(), cache.evict(1)
        (0, [])
        """
        unlocked = self._unlocked_above(node)
        self._tree.lock(node)  # R12
        self._locked_blocks += unlocked

    def unlock(self, node: int) -> None:
        """Take one lock off the node and its ancestors.

        Shapes
            node     int, ROOT (nothing changes) or a living node
            returns  None

        Errors
            KeyError    no living node has this id
            ValueError  the node is not locked

        State
            what has no lock left can be evicted again

        >>> cache = RadixCache(2)
        >>> node = cache.insert([1, 2], [10]).node
        >>> cache.lock(node)
        >>> cache.unlock(node)
        >>> cache.evict(1)
        [10]
        """
        self._tree.unlock(node)  # R12
        self._locked_blocks -= self._unlocked_above(node)

    # eviction

    def evict(self, n_blocks: int) -> list[int]:
        """Give up whole leaves, the least recently used first, until n_blocks ids are out or none is left.

        Shapes
            n_blocks  int, >= 0
            returns   list of int, the ids in the order they went, a new list

        Errors
            ValueError  n_blocks is below 0

        State
            the ids are the caller's again

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3, 4], [10, 11])
        >>> cache.evict(1), cache.cached_blocks()
        ([10, 11], 0)
        """
        out = self._tree.evict(n_blocks)  # R14
        for block in out:
            del self._home[block]  # R15
        self._evicted_blocks += len(out)  # R19
        return out

    # counts

    def cached_tokens(self) -> int:
        """Return the number of tokens whose blocks are cached.

        Shapes
            returns  int, >= 0, block_size for each cached block

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3], [10])
        >>> cache.cached_tokens()
        2
        """
        return self.cached_blocks() * self._block_size  # R16

    def cached_blocks(self) -> int:
        """Return the number of cached ids.

        Shapes
            returns  int, >= 0

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3], [10])
        >>> cache.cached_blocks()
        1
        """
        return self._tree.len()  # R16

    def evictable_blocks(self) -> int:
        """Return how many ids an evict of everything would give up now.

        Shapes
            returns  int, >= 0

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2], [10]), cache.insert([1, 2, 3, 4], [10, 11])
        >>> cache.evictable_blocks()
        2
        """
        return self.cached_blocks() - self._locked_blocks  # R17: inner nodes too

    def stats(self) -> PrefixStats:
        """Return the sums since the cache was made.

        Shapes
            returns  PrefixStats, as of now

        >>> cache = RadixCache(2)
        >>> _ = cache.insert([1, 2, 3], [10]), cache.match_prefix([1, 2, 9])
        >>> cache.stats()
        PrefixStats(lookups=1, query_tokens=3, hit_tokens=2, inserted_blocks=1, evicted_blocks=0)
        """
        return PrefixStats(  # R20
            self._lookups,
            self._query_tokens,
            self._hit_tokens,
            self._inserted_blocks,
            self._evicted_blocks,
        )

    def hit_rate(self) -> float:
        """Return hit_tokens / query_tokens.

        Shapes
            returns  float, in [0, 1); 0.0 before the first token was asked for

        >>> RadixCache(2).hit_rate()
        0.0
        """
        return self._hit_tokens / self._query_tokens if self._query_tokens else 0.0  # R21

    # where an id is

    def _refuse_second_places(self, tokens: list[int], ids: list[int]) -> None:
        """Refuse an id that is twice in ids, or is cached elsewhere than where it is given (R11)."""
        if len(set(ids)) < len(ids):
            raise ValueError("an id is twice in blocks")
        if self._home.keys().isdisjoint(ids):
            return
        # The place of an id is the path to it. That of the last cached one shows those of all before it.
        last = len(ids) - 1
        while ids[last] not in self._home:
            last -= 1
        n = (last + 1) * self._block_size
        at = 0
        there: list[int] = []
        for node in self._path_to(self._home[ids[last]]):
            key = self._tree.key(node)
            del key[n - at :]
            if key != tokens[at : at + len(key)]:
                raise ValueError(f"id {ids[last]} is cached after other tokens")
            at += len(key)
            there += self._tree.values(node)
        if there[: last + 1] == ids[: last + 1]:
            return
        for i, block in enumerate(ids[: last + 1]):
            if block in self._home and there[i : i + 1] != [block]:
                raise ValueError(f"id {block} is cached in another place")

    def _settle(self, node: int) -> None:
        """Note which ids a split has moved: of a walked path, the node and its parent may be new."""
        for at in (node, self._tree.parent(node) or ROOT):
            blocks = self._tree.values(at)
            if blocks and self._home[blocks[0]] != at:
                self._home.update(dict.fromkeys(blocks, at))

    def _path_to(self, node: int) -> list[int]:
        """List the nodes from ROOT down to node."""
        path = []
        at: int | None = node
        while at is not None:
            path.append(at)
            at = self._tree.parent(at)
        return path[::-1]

    def _unlocked_above(self, node: int) -> int:
        """Count the blocks of the node and of its ancestors that have no lock."""
        return sum(len(self._tree.values(at)) for at in self._path_to(node) if self._tree.lock_count(at) == 0)


def _row(ids: Ids, what: str) -> list[int]:
    """Return ids as a list, the caller's own where it is one, or refuse what is no row of integers (R2)."""
    if isinstance(ids, list):
        return ids
    if isinstance(ids, tuple):
        return list(ids)
    if not isinstance(ids, np.ndarray):
        raise ValueError(f"{what} must be a list, a tuple or an array, got {type(ids).__name__}")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"{what} must be one row of integers, got {ids.dtype} of {ids.ndim} axes")
    row: list[int] = ids.tolist()
    return row
