"""A paged KV cache: blocks are small objects, each of which knows how many tables hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than an append needs."""


@dataclass(eq=False)
class Block:
    number: int
    data: np.ndarray  # f16[2, layers, heads, slots, d]; 0 is K and 1 is V
    holders: int = 1


@dataclass
class Sequence:
    blocks: list[Block] = field(default_factory=list)
    filled: dict[int, int] = field(default_factory=dict)


class PagedKVCache:
    def __init__(self, num_blocks: int, block_size: int, n_layers: int, n_kv_heads: int, d_head: int):
        if min(num_blocks, block_size, n_layers, n_kv_heads, d_head) < 1:
            raise ValueError("num_blocks, block_size, n_layers, n_kv_heads and d_head start at 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.n_layers = n_layers
        self.token_shape = (n_kv_heads, d_head)
        self.numbers = set(range(num_blocks))
        self.live: dict = {}

    # -- pool ---------------------------------------------------------------

    def _allocate(self) -> Block:
        if not self.numbers:
            raise OutOfBlocks("no block is free")
        heads, d = self.token_shape
        data = np.empty((2, self.n_layers, heads, self.block_size, d), np.float16)
        return Block(self.numbers.pop(), data)

    def _release(self, block: Block) -> None:
        block.holders -= 1
        if block.holders == 0:
            self.numbers.add(block.number)

    def stats(self) -> dict[str, int]:
        used = self.num_blocks - len(self.numbers)
        return dict(free=self.num_blocks - used, used=used, cached=0, evictions=0)

    def num_free_blocks(self) -> int:
        return self.stats()["free"]

    # -- checks -------------------------------------------------------------

    def _layer(self, layer: int) -> int:
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"layer {layer} of {self.n_layers}")
        return layer

    def _count(self, k, v) -> int:
        heads, d = self.token_shape
        if k.ndim != 3 or k.shape != v.shape:
            raise ValueError(f"k is {k.shape} and v is {v.shape}")
        if k.shape[0] != heads or k.shape[2] != d or k.shape[1] == 0:
            raise ValueError(f"bad shape {k.shape}")
        return k.shape[1]

    # -- sequences ----------------------------------------------------------

    def add_seq(self, seq_id) -> None:
        if seq_id in self.live:
            raise ValueError(f"{seq_id!r} is live")
        self.live[seq_id] = Sequence(filled={i: 0 for i in range(self.n_layers)})

    def fork(self, parent, child) -> None:
        origin = self.live[parent]
        if child in self.live:
            raise ValueError(f"{child!r} is live")
        for block in origin.blocks:
            block.holders += 1
        self.live[child] = Sequence(origin.blocks[:], origin.filled.copy())

    def free(self, seq_id) -> None:
        gone = self.live.pop(seq_id)
        for block in gone.blocks:
            self._release(block)

    def seq_len(self, seq_id, layer: int = 0) -> int:
        seq = self.live[seq_id]
        return seq.filled[self._layer(layer)]

    def block_table(self, seq_id) -> np.ndarray:
        seq = self.live[seq_id]
        return np.fromiter((b.number for b in seq.blocks), np.int32, len(seq.blocks))

    # -- values -------------------------------------------------------------

    def append(self, seq_id, layer: int, k, v) -> None:
        seq = self.live[seq_id]
        self._layer(layer)
        count = self._count(k, v)

        begin = seq.filled[layer]
        end = begin + count
        growth = max(0, -(-end // self.block_size) - len(seq.blocks))
        touched = range(begin // self.block_size, -(-end // self.block_size))
        copies = [i for i in touched if i < len(seq.blocks) and seq.blocks[i].holders > 1]
        if growth + len(copies) > len(self.numbers):
            raise OutOfBlocks(f"{growth} new and {len(copies)} copies, {len(self.numbers)} free")

        seq.blocks.extend(self._allocate() for _ in range(growth))
        for i in copies:
            shared = seq.blocks[i]
            own = self._allocate()
            own.data[:] = shared.data
            self._release(shared)
            seq.blocks[i] = own

        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rows = np.stack([k.astype(np.float16), v.astype(np.float16)])
        done = 0
        while done < count:
            index, slot = divmod(begin + done, self.block_size)
            size = min(self.block_size - slot, count - done)
            seq.blocks[index].data[:, layer, :, slot : slot + size] = rows[:, :, done : done + size]
            done += size
        seq.filled[layer] = end

    def gather(self, seq_id, layer: int):
        seq = self.live[seq_id]
        length = seq.filled[self._layer(layer)]
        heads, d = self.token_shape
        pieces = [np.empty((2, heads, 0, d), np.float16)]
        for i in range(-(-length // self.block_size)):
            size = min(self.block_size, length - i * self.block_size)
            pieces.append(seq.blocks[i].data[:, layer, :, :size])
        k, v = np.concatenate(pieces, axis=2)
        return k, v

    # -- end ----------------------------------------------------------------

    def close(self) -> None:
        while self.live:
            self.free(next(iter(self.live)))

    def __enter__(self) -> PagedKVCache:
        return self

    def __exit__(self, exc_type, exc, tb) -> None:
        self.close()
