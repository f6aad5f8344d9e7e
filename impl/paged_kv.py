"""The KV cache in blocks: tables of block ids, shared by fork, copied before a shared block is written.

    a:  table  A  B  C          block    A    B    C         position p is slot p % B of block table[p // B]
    position   0 1 | 2 3 | 4 .  holders  a b  a b  a b       who writes into C copies it first

All keys and values are in one float16 slab, [num_blocks, n_layers, 2, n_kv_heads, block_size, d_head]:
a block is one piece of memory with K and V of every layer, so a copy is one assignment.

Spec    spec/paged_kv.md
Source  Kwon et al. 2023, arXiv:2309.06180, sections 4.2 to 4.4
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

F16 = NDArray[np.float16]
I32 = NDArray[np.int32]
Rows = NDArray[np.floating[Any]]  # float16, float32 or float64

_F16 = np.dtype(np.float16)


class OutOfBlocks(RuntimeError):
    """An append needs more blocks than are free; nothing was changed."""


@dataclass(slots=True)
class _Sequence:
    """One sequence: its block ids in the order of positions, and how many positions each layer holds."""

    table: list[int]
    lengths: list[int]


class PagedKVCache:
    """A pool of blocks and the sequences that hold them.

    Every block is in the list of free blocks, or in as many tables as it has holders.

    >>> cache = PagedKVCache(num_blocks=4, block_size=2, n_layers=1, n_kv_heads=1, d_head=1)
    >>> cache.add_seq("a")
    >>> cache.append("a", 0, np.array([[[0.5], [1.5], [2.5]]]), np.array([[[-0.5], [-1.5], [-2.5]]]))
    >>> cache.fork("a", "b")
    >>> cache.append("b", 0, np.array([[[5.5]]]), np.array([[[-5.5]]]))  # copies the second block
    >>> [cache.gather(seq_id, 0)[0].ravel().tolist() for seq_id in "ab"]
    [[0.5, 1.5, 2.5], [0.5, 1.5, 2.5, 5.5]]
    >>> cache.stats()
    {'free': 1, 'used': 3, 'cached': 0, 'evictions': 0}
    """

    def __init__(self, num_blocks: int, block_size: int, n_layers: int, n_kv_heads: int, d_head: int) -> None:
        """Take the memory of all blocks.

        Shapes
            num_blocks  int, >= 1
            block_size  int, >= 1, positions in a block
            n_layers    int, >= 1
            n_kv_heads  int, >= 1
            d_head      int, >= 1

        Errors
            ValueError  a size is below 1
        """
        shape = (num_blocks, n_layers, 2, n_kv_heads, block_size, d_head)
        if min(shape) < 1:  # R1
            raise ValueError(f"every size must be at least 1, got {shape}")
        self._block_size, self._n_layers, self._row = block_size, n_layers, (n_kv_heads, d_head)
        self._slab = np.zeros(shape, np.float16)  # R2; pages that are never written take no memory
        self._free = list(range(num_blocks))[::-1]  # a stack: take and give back without a search
        self._holders = [0] * num_blocks  # tables that a block is in
        self._sequences: dict[Hashable, _Sequence] = {}

    def add_seq(self, seq_id: Hashable) -> None:
        """Make a sequence of length 0, which holds no block.

        Shapes
            seq_id  any hashable value, also 0 and ""

        Errors
            ValueError  seq_id is live

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.seq_len("a")
        0
        """
        if seq_id in self._sequences:  # R7
            raise ValueError(f"sequence {seq_id!r} is live")
        self._sequences[seq_id] = _Sequence([], [0] * self._n_layers)  # R6, R9

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """Make `child` a sequence with the blocks and lengths of `parent`; takes no block.

        Shapes
            parent  a live seq_id
            child   a seq_id that is not live

        Errors
            KeyError    parent is not live, whatever child is
            ValueError  child is live

        State
            every block of the parent has one more holder

        >>> cache = PagedKVCache(1, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
        >>> cache.fork("a", "b")
        >>> cache.seq_len("b"), cache.num_free_blocks()
        (1, 0)
        """
        source = self._live(parent)  # R30: before the child is looked at
        if child in self._sequences:  # R30
            raise ValueError(f"sequence {child!r} is live")
        for block in source.table:
            self._holders[block] += 1  # R28
        self._sequences[child] = _Sequence(source.table.copy(), source.lengths.copy())  # R28, R29

    def append(self, seq_id: Hashable, layer: int, k: Rows, v: Rows) -> None:
        """Add T positions behind the last one of this layer.

        Shapes
            seq_id  a live seq_id
            layer   int, in [0, n_layers)
            k, v    f16[K, T, E], f32[K, T, E] or f64[K, T, E], K = n_kv_heads, T >= 1, E = d_head

        Errors
            KeyError     seq_id is not live
            ValueError   layer is not in [0, n_layers)
            ValueError   k or v is no float array, is not [n_kv_heads, T, d_head], their T differ, or T is 0
            OutOfBlocks  new blocks and copies together are more than the free blocks

        Numerics
            one rounding to float16, to nearest, ties to even; infinities and NaN are stored

        State
            takes the blocks that the table lacks; copies a block that it writes to and another table holds
            changes nothing when it raises

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.array([[[0.5], [2049.0], [65520.0]]]), np.zeros((1, 3, 1)))
        >>> cache.gather("a", 0)[0].ravel().tolist()
        [0.5, 2048.0, inf]
        """
        sequence = self._live(seq_id)  # R24: these three before the blocks are counted
        self._check_layer(layer)
        T = self._check_rows(k, v)
        if k.dtype != _F16 or v.dtype != _F16:
            k, v = _to_half(k, v)  # R18: new arrays
        slab, holders, table, B = self._slab, self._holders, sequence.table, self._block_size
        start = sequence.lengths[layer]  # R13: of this layer, R9
        stop = start + T
        first, P = start // B, -(-stop // B)  # R12, R19: blocks [first, P) are to be written
        n_new = P - len(table) if len(table) < P else 0  # R19: another layer may have taken them
        shared = []  # R20: the places in the table where a copy is needed
        for i, block in enumerate(table[first:P], first):
            if holders[block] > 1:  # R21: a sole holder writes in place
                shared.append(i)
        need = n_new + len(shared)  # R22: a copy frees nothing, since others keep the old block
        if need > len(self._free):  # R23: counted before anything is changed
            raise OutOfBlocks(f"{need} blocks are needed, {len(self._free)} are free")
        for i in shared:
            old, (table[i],) = table[i], self._take(1)
            slab[table[i]] = slab[old]  # R20: K and V of every layer
            holders[old] -= 1  # R20
        table += self._take(n_new)
        if P - first == 1:  # a step of decoding: the same as below, without cutting k and v
            slot = start % B
            slab[table[first], layer, 0, :, slot : slot + T] = k
            slab[table[first], layer, 1, :, slot : slot + T] = v
        else:
            whole = range(-(-start // B), stop // B)  # the blocks that this chunk fills from end to end
            for i in [i for i in (first, P - 1) if i not in whole]:
                a, b = max(start, i * B), min(stop, i * B + B)  # R12: positions [a, b) are in block table[i]
                slab[table[i], layer, 0, :, a - i * B : b - i * B] = k[:, a - start : b - start]
                slab[table[i], layer, 1, :, a - i * B : b - i * B] = v[:, a - start : b - start]
            if whole:  # all of them with one assignment each for K and V
                ids, (K, E) = table[whole.start : whole.stop], self._row
                rows = slice(whole.start * B - start, whole.stop * B - start)
                slab[ids, layer, 0] = k[:, rows].reshape(K, len(ids), B, E).swapaxes(0, 1)
                slab[ids, layer, 1] = v[:, rows].reshape(K, len(ids), B, E).swapaxes(0, 1)
        sequence.lengths[layer] = stop  # R13

    def block_table(self, seq_id: Hashable) -> I32:
        """Return the ids of the blocks that the sequence holds, in the order of positions.

        Shapes
            seq_id   a live seq_id
            returns  i32[P], a new array, P = ceil(longest layer / block_size)

        Errors
            KeyError  seq_id is not live

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.zeros((1, 3, 1)), np.zeros((1, 3, 1)))
        >>> cache.block_table("a")
        array([0, 1], dtype=int32)
        """
        return np.array(self._live(seq_id).table, np.int32)  # R11

    def seq_len(self, seq_id: Hashable, layer: int = 0) -> int:
        """Return the number of positions that this layer of the sequence holds.

        Shapes
            seq_id   a live seq_id
            layer    int, in [0, n_layers)
            returns  int, >= 0

        Errors
            KeyError    seq_id is not live
            ValueError  layer is not in [0, n_layers)

        >>> cache = PagedKVCache(4, 2, 2, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 1, np.zeros((1, 3, 1)), np.zeros((1, 3, 1)))
        >>> cache.seq_len("a"), cache.seq_len("a", 1)
        (0, 3)
        """
        sequence = self._live(seq_id)
        self._check_layer(layer)
        return sequence.lengths[layer]  # R9

    def gather(self, seq_id: Hashable, layer: int) -> tuple[F16, F16]:
        """Return K and V of this layer in one piece, positions ascending.

        Shapes
            seq_id   a live seq_id
            layer    int, in [0, n_layers)
            returns  (K, V), both f16[K, S, E], new arrays, S = seq_len(seq_id, layer)

        Errors
            KeyError    seq_id is not live
            ValueError  layer is not in [0, n_layers)

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.array([[[1.0], [2.0], [3.0]]]), np.array([[[4.0], [5.0], [6.0]]]))
        >>> [x.ravel().tolist() for x in cache.gather("a", 0)]
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        """
        sequence = self._live(seq_id)
        self._check_layer(layer)
        (K, E), B = self._row, self._block_size
        S = sequence.lengths[layer]  # R25: of this layer
        kv = np.empty((2, K, S, E), np.float16)  # R27
        for start in range(0, S, B):
            stop = min(start + B, S)  # R25: slots behind the last position stay out
            block = sequence.table[start // B]  # R12
            kv[:, :, start:stop] = self._slab[block, layer, :, :, : stop - start]
        return kv[0], kv[1]

    def free(self, seq_id: Hashable) -> None:
        """End the sequence; a block that no other table holds becomes free.

        Shapes
            seq_id  a live seq_id

        Errors
            KeyError  seq_id is not live

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.zeros((1, 3, 1)), np.zeros((1, 3, 1)))
        >>> cache.free("a")
        >>> cache.num_free_blocks()
        4
        """
        ended = self._live(seq_id)  # R8: also an id that was freed before
        del self._sequences[seq_id]
        free, holders = self._free, self._holders
        for block in reversed(ended.table):
            holders[block] -= 1  # R31
            if holders[block] == 0:  # R31: others may still hold it
                free.append(block)  # R32

    def stats(self) -> dict[str, int]:
        """Count the blocks.

        Shapes
            returns  dict of int, new: free, used (in at least one table), cached and evictions (always 0)

        >>> PagedKVCache(4, 2, 1, 1, 1).stats()
        {'free': 4, 'used': 0, 'cached': 0, 'evictions': 0}
        """
        n_free = len(self._free)
        used = len(self._holders) - n_free  # R3: different blocks, not holders
        return {"free": n_free, "used": used, "cached": 0, "evictions": 0}  # R3, R4

    def num_free_blocks(self) -> int:
        """Return the number of blocks that no table holds.

        Shapes
            returns  int, in [0, num_blocks]

        >>> PagedKVCache(4, 2, 1, 1, 1).num_free_blocks()
        4
        """
        return len(self._free)  # R5

    def close(self) -> None:
        """Free every sequence; closing again does nothing.

        >>> cache = PagedKVCache(4, 2, 1, 1, 1)
        >>> cache.add_seq("a")
        >>> cache.append("a", 0, np.zeros((1, 3, 1)), np.zeros((1, 3, 1)))
        >>> cache.close()
        >>> cache.num_free_blocks()
        4
        """
        for seq_id in list(self._sequences):  # R33: none is left for a second time
            self.free(seq_id)

    def __enter__(self) -> PagedKVCache:
        """Return the cache itself.

        >>> with PagedKVCache(4, 2, 1, 1, 1) as cache:
        ...     cache.num_free_blocks()
        4
        """
        return self  # R34

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the cache; an exception goes on.

        >>> with PagedKVCache(4, 2, 1, 1, 1) as cache:
        ...     cache.add_seq("a")
        >>> cache.close()
        """
        self.close()  # R34: None is returned, so nothing is swallowed

    def _live(self, seq_id: Hashable) -> _Sequence:
        """Return the record of a live sequence, or refuse the id (R8)."""
        try:
            return self._sequences[seq_id]
        except KeyError:
            raise KeyError(f"no sequence {seq_id!r}") from None

    def _check_layer(self, layer: int) -> None:
        """Refuse a layer that there is not (R10); a list would count a negative one from its end."""
        if not 0 <= layer < self._n_layers:
            raise ValueError(f"layer must be in [0, {self._n_layers}), got {layer}")

    def _check_rows(self, k: Rows, v: Rows) -> int:
        """Return T, or refuse k and v (R14, R15); NumPy would broadcast an axis of 1."""
        if not (isinstance(k, np.ndarray) and isinstance(v, np.ndarray)):
            raise ValueError(f"k and v must be arrays, got {type(k).__name__} and {type(v).__name__}")
        shape, (K, E) = k.shape, self._row
        if len(shape) != 3 or shape[0] != K or shape[2] != E:
            raise ValueError(f"k must be [{K}, T, {E}], got {list(shape)}")
        if v.shape != shape:
            raise ValueError(f"v must have the shape of k, {list(shape)}, got {list(v.shape)}")
        if shape[1] < 1:
            raise ValueError("k and v must have at least one position")
        return shape[1]

    def _take(self, n: int) -> list[int]:
        """Take n free blocks, which have one holder then (R32: whatever is in them)."""
        kept = len(self._free) - n
        taken = self._free[kept:][::-1]  # from the top of the stack
        del self._free[kept:]
        for block in taken:
            self._holders[block] = 1
        return taken


def _to_half(k: Rows, v: Rows) -> tuple[F16, F16]:
    """Round once, to nearest with ties to even (R16), or refuse another dtype (R15)."""
    if k.dtype.char not in "efd" or v.dtype.char not in "efd":
        raise ValueError(f"k and v must be float16, float32 or float64, got {k.dtype} and {v.dtype}")
    with np.errstate(all="ignore"):  # R17: no value is refused, however NumPy is set up
        return k.astype(np.float16, copy=False), v.astype(np.float16, copy=False)
