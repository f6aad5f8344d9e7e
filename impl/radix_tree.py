"""A radix tree over token ids, with locks and an order of eviction.

    tokens  -> packed, 8 bytes a token                           one conversion, at C speed; also the check
    walk    -> edges[node][next run] -> compare the whole label  one comparison of bytes for each node
    leaves  -> older[], newer[]: a ring through ROOT, by stamp   the next one to evict is newer[ROOT]

A node is a number: its place in parallel lists. The place of an evicted node is given to a later one.
Only a walk that parts from a label looks for the run where it does, by halving.

Spec    spec/radix_tree.md
Source  Morrison 1968, "PATRICIA", JACM 15(4); Zheng et al. 2024, arXiv:2312.07104, section 3
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = list[int] | tuple[int, ...] | NDArray[np.integer[Any]]

ROOT = 0

_TOKEN_BYTES = 8  # of array("Q"), whose conversion refuses what is no int and what is below 0


class RadixTree:
    """Runs of `granule` tokens, one opaque value each, stored so that equal beginnings are stored once."""

    def __init__(self, granule: int) -> None:
        """Make an empty tree: ROOT alone.

        Shapes
            granule  int, >= 1, tokens per run

        Errors
            ValueError  granule is below 1

        >>> RadixTree(16).node_count()
        0
        """
        if granule < 1:  # R1
            raise ValueError(f"granule must be at least 1, got {granule}")
        self._granule = granule
        self._run = granule * _TOKEN_BYTES  # bytes of a packed run
        self._clock = 0
        self._n_values = 0
        # A node is an index into these. A label is the packed key: empty for ROOT and for a free slot only.
        self._labels: list[bytes] = [b""]
        self._values: list[list[Any]] = [[]]
        self._parents = [ROOT]
        self._edges: list[dict[bytes, int]] = [{}]  # by the first run of the child's label
        self._stamps = [0]
        self._locks = [0]
        # The order of eviction: newer[ROOT] is the oldest, older[ROOT] the newest; a node outside is its own.
        self._older = [ROOT]
        self._newer = [ROOT]
        self._free_slots: list[int] = []

    # what is there

    def granule(self) -> int:
        """Return the number of tokens per run.

        Shapes
            returns  int, >= 1

        >>> RadixTree(16).granule()
        16
        """
        return self._granule

    def len(self) -> int:
        """Return the number of values; `len(tree)` says the same.

        Shapes
            returns  int, >= 0

        >>> tree = RadixTree(2)
        >>> tree.insert([1, 2, 3, 4], ["a", "b"])
        (1, [])
        >>> tree.len(), len(tree)
        (2, 2)
        """
        return self._n_values  # R11

    def __len__(self) -> int:
        """Return the number of values."""
        return self.len()

    def is_empty(self) -> bool:
        """Tell whether there is no value.

        Shapes
            returns  bool

        >>> RadixTree(1).is_empty()
        True
        """
        return self.len() == 0

    def node_count(self) -> int:
        """Return the number of nodes, ROOT not among them.

        Shapes
            returns  int, >= 0

        >>> tree = RadixTree(1)
        >>> tree.insert([7], ["a"])
        (1, [])
        >>> tree.node_count()
        1
        """
        return len(self._labels) - len(self._free_slots) - 1  # R11: without ROOT

    def key(self, node: int) -> list[int]:
        """Return the tokens of the node's own piece, not of the path to it.

        Shapes
            node     int, ROOT or a living node
            returns  list of int, a multiple of granule long, a new list; [] for ROOT

        Errors
            KeyError  no living node has this id

        >>> tree = RadixTree(1)
        >>> _ = tree.insert([1, 2], list("ab")), tree.insert([1, 3], list("xc"))
        >>> [tree.key(node) for node in tree.match_prefix([1, 3])[1]]
        [[1], [3]]
        """
        self._check(node)
        return _unpack(self._labels[node])  # R6, R7

    def values(self, node: int) -> list[Any]:
        """Return the values of the node, one for each run of its key.

        Shapes
            node     int, ROOT or a living node
            returns  list, a new one; [] for ROOT

        Errors
            KeyError  no living node has this id

        >>> tree = RadixTree(2)
        >>> node, _ = tree.insert([1, 2, 3, 4], ["a", "b"])
        >>> tree.values(node)
        ['a', 'b']
        """
        self._check(node)
        return self._values[node].copy()  # R6

    def parent(self, node: int) -> int | None:
        """Return the parent of the node.

        Shapes
            node     int, ROOT or a living node
            returns  int, or None for ROOT

        Errors
            KeyError  no living node has this id

        >>> tree = RadixTree(1)
        >>> node, _ = tree.insert([1], ["a"])
        >>> tree.parent(node), tree.parent(ROOT)
        (0, None)
        """
        self._check(node)
        return None if node == ROOT else self._parents[node]

    def children(self, node: int) -> list[int]:
        """Return the children of the node, in ascending order of the first runs of their keys.

        Shapes
            node     int, ROOT or a living node
            returns  list of int, a new list

        Errors
            KeyError  no living node has this id

        >>> tree = RadixTree(1)
        >>> _ = tree.insert([256], ["a"]), tree.insert([3], ["b"])
        >>> [tree.key(node) for node in tree.children(ROOT)]
        [[3], [256]]
        """
        self._check(node)
        edges = self._edges[node]
        return [edges[run] for run in sorted(edges, key=_unpack)]  # R9: as tokens, not as bytes

    def child_count(self, node: int) -> int:
        """Return the number of children of the node.

        Shapes
            node     int, ROOT or a living node
            returns  int, >= 0

        Errors
            KeyError  no living node has this id

        >>> RadixTree(1).child_count(ROOT)
        0
        """
        self._check(node)
        return len(self._edges[node])

    def lock_count(self, node: int) -> int:
        """Return how many locks pin the node: those on it and on the nodes below it.

        Shapes
            node     int, ROOT or a living node
            returns  int, >= 0; 0 for ROOT

        Errors
            KeyError  no living node has this id

        >>> RadixTree(1).lock_count(ROOT)
        0
        """
        self._check(node)
        return self._locks[node]

    def lru_order(self) -> list[int]:
        """Return the nodes that may be evicted now, those with neither children nor locks, oldest first.

        Shapes
            returns  list of int, a new list

        >>> tree = RadixTree(1)
        >>> _ = tree.insert([1], ["a"]), tree.insert([2], ["b"]), tree.match_prefix([1])
        >>> [tree.key(node) for node in tree.lru_order()]
        [[2], [1]]
        """
        order = []
        node = self._newer[ROOT]  # R21: the oldest
        while node != ROOT:
            order.append(node)
            node = self._newer[node]
        return order

    # looking up and storing

    def match_prefix(self, tokens: Tokens) -> tuple[int, list[int]]:
        """Find the longest stored beginning of tokens, in whole runs.

        Shapes
            tokens   list or tuple of int, or integers[T], each in [0, 2^64)
            returns  (matched, path): int, tokens found, a multiple of granule; list of int, the nodes
                     walked, downwards and without ROOT, a new list

        Errors
            ValueError  a token is below 0, or tokens is no list, tuple or one-dimensional integer array

        State
            stamps the path; splits the last node where only a part of its key was found

        >>> tree = RadixTree(1)
        >>> node, _ = tree.insert([1, 2, 3], list("abc"))
        >>> matched, path = tree.match_prefix([1, 2, 9])
        >>> matched, [tree.key(n) for n in path], tree.key(node)
        (2, [[1, 2]], [3])
        """
        n_runs, path = self._walk(_pack(tokens))
        self._use(path)  # R20: a lookup is a use
        return n_runs * self._granule, path  # R16

    def insert(self, tokens: Tokens, values: Sequence[Any]) -> tuple[int, list[Any]]:
        """Store one value for each run, where none is stored yet, and hand the other values back.

        Shapes
            tokens   list or tuple of int, or integers[T], each in [0, 2^64)
            values   list or tuple, T / granule of anything
            returns  (node, handed back): int, where the tokens end; list, the values of the runs that
                     were stored already, a new list

        Errors
            ValueError  a token is below 0, or tokens is no list, tuple or one-dimensional integer array
            ValueError  there is not one value for each run

        State
            as match_prefix, and what is not found becomes one new leaf

        >>> tree = RadixTree(2)
        >>> _ = tree.insert([1, 2, 3, 4], ["a", "b"])
        >>> node, back = tree.insert([1, 2, 5, 6], ["x", "c"])
        >>> tree.values(node), back
        (['c'], ['x'])
        """
        data = _pack(tokens)
        if len(values) * self._run != len(data):  # R3, R5: before the walk, which stamps and splits
            raise ValueError(
                f"insert needs one value for each {self._granule} tokens, "
                f"got {len(values)} for {len(data) // _TOKEN_BYTES}"
            )
        stored, path = self._walk(data)
        node = path[-1] if path else ROOT
        if stored < len(values):
            node = self._add_leaf(node, data[stored * self._run :], list(values[stored:]))  # R6, R18
            path.append(node)
        self._use(path)  # R20: and so is storing
        return node, list(values[:stored])  # R17

    # locks

    def lock(self, node: int) -> None:
        """Pin the node and its ancestors against eviction, once more.

        Shapes
            node     int, ROOT (nothing changes) or a living node
            returns  None

        Errors
            KeyError  no living node has this id

        State
            takes the node out of the order of eviction; stamps nothing

        >>> tree = RadixTree(1)
        >>> node, _ = tree.insert([1], ["a"])
        >>> tree.lock(node)
        >>> tree.evict(1), tree.lock_count(node)
        ([], 1)
        """
        self._check(node)
        for above in self._up(node):
            self._locks[above] += 1  # R23
        self._relist(node)

    def unlock(self, node: int) -> None:
        """Take one lock off the node and its ancestors.

        Shapes
            node     int, ROOT (nothing changes) or a living node
            returns  None

        Errors
            KeyError    no living node has this id
            ValueError  the node is not locked

        State
            a leaf without locks is in the order of eviction again, at its own stamp

        >>> tree = RadixTree(1)
        >>> node, _ = tree.insert([1], ["a"])
        >>> tree.lock(node)
        >>> tree.unlock(node)
        >>> tree.evict(1)
        ['a']
        """
        self._check(node)
        if node != ROOT and self._locks[node] == 0:  # R24, R25
            raise ValueError(f"node {node} is not locked")
        for above in self._up(node):
            self._locks[above] -= 1  # R24: the ancestors of now, those that splits have made included
        self._relist(node)

    # eviction

    def evict(self, n: int) -> list[Any]:
        """Remove whole leaves, the least recently used first, until n values are gone or nothing is left.

        Shapes
            n        int, >= 0
            returns  list, the values in the order they went, at least n where possible, a new list

        Errors
            ValueError  n is below 0

        State
            a parent that has lost its last child is the next leaf at its own stamp

        >>> tree = RadixTree(1)
        >>> _ = tree.insert([1, 2], list("ab")), tree.insert([1, 2, 3, 4], list("xycd"))
        >>> tree.evict(1), tree.evict(1)
        (['c', 'd'], ['a', 'b'])
        """
        if n < 0:  # R27
            raise ValueError(f"n must be at least 0, got {n}")
        gone: list[Any] = []
        while len(gone) < n and self._newer[ROOT] != ROOT:  # R26
            leaf = self._newer[ROOT]
            gone += self._values[leaf]  # R26: whole
            self._remove_leaf(leaf)
        return gone

    # the walk

    def _walk(self, data: bytes) -> tuple[int, list[int]]:
        """Follow data from ROOT; return the number of runs walked, and the nodes (R12).

        The bytes that are left at the end, less than a run, are the first run of no child.
        """
        run, labels, edges = self._run, self._labels, self._edges
        at, node, path = 0, ROOT, []
        while (child := edges[node].get(data[at : at + run])) is not None:
            cut = self._agreeing(labels[child], data, at)
            node = child if cut == len(labels[child]) else self._split(child, cut)  # R13, R14
            path.append(node)
            at += cut
        return at // run, path

    def _use(self, path: list[int]) -> None:
        """Stamp the nodes of a walk, which makes the last one the newest, if it is a leaf (R20)."""
        self._clock += 1
        for node in path:
            self._stamps[node] = self._clock
        if path:
            self._relist(path[-1])

    def _agreeing(self, label: bytes, data: bytes, at: int) -> int:
        """Return the length of the longest beginning of label, in whole runs, that data has at `at`.

        The first run is known to be there, since it is the key of the edge.
        """
        if data.startswith(label, at):
            return len(label)
        run = self._run
        same, differs = 1, len(label) // run  # runs that are there, and runs that are not all there
        while same + 1 < differs:
            middle = (same + differs) // 2
            if data.startswith(label[same * run : middle * run], at + same * run):
                same = middle
            else:
                differs = middle
        return same * run

    def _split(self, lower: int, cut: int) -> int:
        """Put a new node above `lower` that takes the first `cut` bytes of its label; return it (R13)."""
        label, values, parent = self._labels[lower], self._values[lower], self._parents[lower]
        runs = cut // self._run
        upper = self._new_node(label[:cut], values[:runs], parent)
        self._edges[parent][label[: self._run]] = upper
        self._edges[upper][label[cut : cut + self._run]] = lower
        self._labels[lower], self._values[lower] = label[cut:], values[runs:]
        self._parents[lower] = upper
        self._stamps[upper] = self._stamps[lower]
        self._locks[upper] = self._locks[lower]  # R15
        return upper

    # nodes

    def _new_node(self, label: bytes, values: list[Any], parent: int) -> int:
        """Return a node that has no children, no locks and no place in the order yet."""
        if self._free_slots:
            node = self._free_slots.pop()
        else:
            node = len(self._labels)
            self._labels.append(b"")
            self._values.append([])
            self._parents.append(ROOT)
            self._edges.append({})
            self._stamps.append(0)
            self._locks.append(0)
            self._older.append(node)
            self._newer.append(node)
        self._labels[node], self._values[node], self._parents[node] = label, values, parent
        self._locks[node] = 0  # R23
        return node

    def _add_leaf(self, parent: int, label: bytes, values: list[Any]) -> int:
        """Hang a new leaf below parent, which is none any more (R18)."""
        leaf = self._new_node(label, values, parent)
        self._edges[parent][label[: self._run]] = leaf
        self._n_values += len(values)
        self._relist(parent)  # R21
        return leaf

    def _remove_leaf(self, leaf: int) -> None:
        """Take the oldest leaf out of the tree and give its slot back."""
        parent = self._parents[leaf]
        del self._edges[parent][self._labels[leaf][: self._run]]
        self._n_values -= len(self._values[leaf])
        self._unlist(leaf)
        self._labels[leaf], self._values[leaf] = b"", []  # R4: the id is dead
        self._free_slots.append(leaf)
        self._relist(parent)  # R22

    def _check(self, node: int) -> None:
        """Refuse an id that no living node has (R4)."""
        if node != ROOT and not (0 < node < len(self._labels) and self._labels[node]):
            raise KeyError(f"no node {node}")

    def _up(self, node: int) -> list[int]:
        """List the node and its ancestors, upwards, without ROOT (R8)."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self._parents[node]
        return path

    # the order of eviction

    def _relist(self, node: int) -> None:
        """Put the node where it belongs in the order of eviction: at its own stamp, or nowhere (R21, R22).

        Its place is looked for from both ends at once: a node just used is at one of them, and so is a
        parent that was last used with the child that has just gone.
        """
        self._unlist(node)
        if node == ROOT or self._edges[node] or self._locks[node]:
            return
        older, newer, stamps, stamp = self._older, self._newer, self._stamps, self._stamps[node]
        before, after = older[ROOT], newer[ROOT]
        while before != ROOT and stamps[before] > stamp and stamps[after] < stamp:
            before, after = older[before], newer[after]
        if before != ROOT and stamps[before] > stamp:
            before = older[after]  # the search from the oldest end was the one that arrived
        after = newer[before]
        older[node], newer[node] = before, after
        newer[before] = older[after] = node

    def _unlist(self, node: int) -> None:
        """Take the node out of the order of eviction, if it is in it; ROOT holds the order and stays."""
        if node == ROOT:
            return
        before, after = self._older[node], self._newer[node]
        self._newer[before], self._older[after] = after, before
        self._older[node] = self._newer[node] = node


# tokens as bytes


def _pack(tokens: Tokens) -> bytes:
    """Convert all tokens to 8 bytes each, or refuse them (R2); the copy that R6 asks for."""
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be one row of integers, got {tokens.dtype} of {tokens.ndim} axes")
        if tokens.size and tokens.min() < 0:
            raise ValueError(f"a token must be at least 0, got {tokens.min()}")
        return tokens.astype(np.uint64).tobytes()
    if not isinstance(tokens, list | tuple):
        raise ValueError(f"tokens must be a list, a tuple or an array, got {type(tokens).__name__}")
    try:
        return array("Q", tokens).tobytes()
    except (TypeError, OverflowError) as fault:
        raise ValueError(f"a token must be an int in [0, 2^64): {fault}") from fault


def _unpack(label: bytes) -> list[int]:
    """Convert packed tokens to Python ints."""
    return array("Q", label).tolist()
