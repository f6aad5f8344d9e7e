"""KV cache: the keys and values of every token so far, so that the next token costs one row.

    one layer, keys and values alike:   [..., max_len, width]
                                              |<- seq_len(layer) ->|<- room ->|

Spec    spec/kv_cache.md
Source  Pope et al. 2022, arXiv:2211.05102, section 3.3;
        DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 (the latent form)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

F32 = NDArray[np.float32]
Chunk = NDArray[np.floating[Any]]  # float16 or float32


class KVCache:
    """What every layer keeps of a batch: keys and values in storage that is allocated once.

    >>> cache = KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4)
    >>> cache.nbytes(), cache.seq_len()
    (64, 0)
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        d_head: int,
        max_len: int,
        batch: int = 1,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Allocate the storage; nothing is in it.

        Shapes
            n_layers, n_kv_heads, d_head, batch  int, >= 1
            max_len                              int, >= 1: positions that each layer has room for
            dtype                                float16, float32 or float64: what the storage is made of

        Errors
            ValueError  a size is below 1, or dtype is not floating
        """
        _check_sizes(n_layers, n_kv_heads, d_head, max_len, batch)
        shape = (n_layers, batch, n_kv_heads, max_len, d_head)
        self._first = np.zeros(shape, _floating(dtype))  # keys
        self._second = np.zeros(shape, _floating(dtype))  # values
        self._counts = [0] * n_layers  # R4

    def seq_len(self, layer: int | None = None) -> int:
        """Return how many positions a layer holds, or how many all layers hold.

        Shapes
            layer    int, in [0, n_layers), or None for all
            returns  int, 0 to max_len

        Errors
            ValueError  layer is not in [0, n_layers)

        State
            does not change the cache

        >>> KVCache(n_layers=2, n_kv_heads=1, d_head=2, max_len=4).seq_len(1)
        0
        """
        if layer is None:
            return min(self._counts)  # R5: during a forward pass some layers are ahead
        self._check_layer(layer)
        return self._counts[layer]

    def update(self, layer: int, k_new: Chunk, v_new: Chunk) -> tuple[F32, F32]:
        """Append T positions to one layer, and return all that it holds then, as stored.

        Shapes
            layer    int, in [0, n_layers)
            k_new    f16[B, K, T, E] or f32[B, K, T, E], T >= 1; copied
            v_new    the same shape
            returns  (keys, values): f32[B, K, S, E] each, S = seq_len(layer) afterwards, oldest first;
                     to be read before the next call, since a float32 cache gives views

        Errors
            ValueError  layer is not in [0, n_layers), a chunk has another shape, T is 0,
                        or the layer has no room for T more; the cache is unchanged then

        Numerics
            storing rounds once to dtype, half to even; a float16 cache gives the new chunk rounded too

        State
            the layer holds T more, the others what they held

        >>> cache = KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4)
        >>> keys, values = cache.update(0, np.ones((1, 1, 2, 2)), np.zeros((1, 1, 2, 2)))
        >>> keys, values = cache.update(0, np.full((1, 1, 1, 2), 3.0), np.full((1, 1, 1, 2), 4.0))
        >>> keys.tolist()
        [[[[1.0, 1.0], [1.0, 1.0], [3.0, 3.0]]]]
        """
        return self._append(layer, k_new, v_new)

    def positions(self, t_new: int) -> NDArray[np.int64]:
        """Return the positions of the next t_new tokens: seq_len(), seq_len() + 1, ...

        Shapes
            t_new    int, >= 1
            returns  i64[T]

        Errors
            ValueError  t_new is below 1

        State
            does not change the cache; a model reads them before its first layer appends

        >>> KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4).positions(2).tolist()
        [0, 1]
        """
        _check_t_new(t_new)
        start = self.seq_len()  # R18
        return np.arange(start, start + t_new, dtype=np.int64)  # R15

    def mask(self, t_new: int) -> NDArray[np.bool_]:
        """Return which keys each of the next t_new queries may look at: j <= seq_len() + i.

        Shapes
            t_new    int, >= 1
            returns  bool[T, S], S = seq_len() + t_new; row i is a new query, column j a position

        Errors
            ValueError  t_new is below 1

        State
            does not change the cache; a model reads it before its first layer appends

        >>> KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4).mask(2).tolist()
        [[True, False], [True, True]]
        """
        _check_t_new(t_new)
        start = self.seq_len()  # R18
        i, j = np.ogrid[:t_new, : start + t_new]
        visible: NDArray[np.bool_] = j <= start + i  # R16: query i is at position start + i
        return visible

    def truncate(self, n: int) -> None:
        """Keep the first n positions of every layer.

        Shapes
            n  int, in [0, seq_len()]

        Errors
            ValueError  n is not in [0, seq_len()]; the cache is unchanged then

        State
            every layer holds n, also one that was ahead; the next append follows position n - 1

        >>> cache = KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4)
        >>> keys, values = cache.update(0, np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 3, 2)))
        >>> cache.truncate(1)
        >>> cache.seq_len()
        1
        """
        if not 0 <= n <= self.seq_len():  # R20
            raise ValueError(f"n must be in [0, {self.seq_len()}], got {n}")
        self._counts = [n] * len(self._counts)  # R19: what lies behind is overwritten by the next append

    def nbytes(self) -> int:
        """Return the size of the storage in bytes, whatever is filled.

        Shapes
            returns  int

        State
            does not change the cache

        >>> KVCache(n_layers=1, n_kv_heads=1, d_head=2, max_len=4, dtype=np.float16).nbytes()
        32
        """
        return self._first.nbytes + self._second.nbytes  # R3

    def _append(self, layer: int, first: Chunk, second: Chunk) -> tuple[F32, F32]:
        """Do what update promises; positions are the last axis but one of chunks and of storage."""
        self._check_layer(layer)
        a, b = self._first[layer], self._second[layer]
        T = np.shape(first)[-2] if np.ndim(first) == a.ndim else 0
        _check_chunk(first, a, T)
        _check_chunk(second, b, T)
        if T < 1:  # R12
            raise ValueError("a chunk must have at least one position")
        start = self._counts[layer]  # R6: what this layer holds, which may be ahead of seq_len()
        stop = start + T
        if stop > a.shape[-2]:  # R13: exactly full is allowed
            raise ValueError(f"layer {layer} holds {start} of {a.shape[-2]} positions, no room for {T} more")
        a[..., start:stop, :] = first  # R8, R9: assignment rounds, and copies
        b[..., start:stop, :] = second
        self._counts[layer] = stop  # R14: after everything that can raise
        return _widened(a[..., :stop, :]), _widened(b[..., :stop, :])  # R7

    def _check_layer(self, layer: int) -> None:
        """Refuse a layer that is not there (R10); Python would count a negative one from the end."""
        if not 0 <= layer < len(self._counts):
            raise ValueError(f"layer must be in [0, {len(self._counts)}), got {layer}")


class LatentCache(KVCache):
    """The same for models that keep one latent and one rotary key a position, shared by all heads (R21).

    >>> cache = LatentCache(n_layers=1, kv_lora_rank=3, rope_dim=1, max_len=4)
    >>> cache.nbytes(), cache.seq_len()
    (64, 0)
    """

    def __init__(
        self,
        n_layers: int,
        kv_lora_rank: int,
        rope_dim: int,
        max_len: int,
        batch: int = 1,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Allocate the storage; nothing is in it.

        Shapes
            n_layers, kv_lora_rank, rope_dim, batch  int, >= 1
            max_len                                  int, >= 1: positions that each layer has room for
            dtype                                    float16, float32 or float64

        Errors
            ValueError  a size is below 1, or dtype is not floating
        """
        _check_sizes(n_layers, kv_lora_rank, rope_dim, max_len, batch)
        self._first = np.zeros((n_layers, batch, max_len, kv_lora_rank), _floating(dtype))  # latents
        self._second = np.zeros((n_layers, batch, max_len, rope_dim), _floating(dtype))  # rotary keys
        self._counts = [0] * n_layers

    def update(self, layer: int, c_new: Chunk, k_rope_new: Chunk) -> tuple[F32, F32]:
        """Append T positions to one layer, and return all that it holds then, as stored.

        Shapes
            layer       int, in [0, n_layers)
            c_new       f16[B, T, R] or f32[B, T, R], R = kv_lora_rank, T >= 1; copied
            k_rope_new  f16[B, T, Q] or f32[B, T, Q], Q = rope_dim
            returns     (latents, rotary keys): f32[B, S, R] and f32[B, S, Q], as for KVCache.update

        Errors
            ValueError  as for KVCache.update

        State
            the layer holds T more, the others what they held

        >>> cache = LatentCache(n_layers=1, kv_lora_rank=2, rope_dim=1, max_len=4)
        >>> latents, keys = cache.update(0, np.ones((1, 2, 2)), np.zeros((1, 2, 1)))
        >>> latents.tolist(), keys.tolist()
        ([[[1.0, 1.0], [1.0, 1.0]]], [[[0.0], [0.0]]])
        """
        return self._append(layer, c_new, k_rope_new)


def _check_sizes(*sizes: int) -> None:
    """Refuse a cache without a place in it (R1)."""
    if min(sizes) < 1:
        raise ValueError(f"every size must be at least 1, got {sizes}")


def _floating(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the storage's dtype, or refuse one that cannot hold a fraction (R2)."""
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"dtype must be floating, got {np.dtype(dtype)}")
    return np.dtype(dtype)


def _check_chunk(chunk: Chunk, storage: NDArray[Any], T: int) -> None:
    """Refuse a chunk that is not T positions of its storage (R11); NumPy would broadcast a size of 1."""
    want = (*storage.shape[:-2], T, storage.shape[-1])
    if np.shape(chunk) != want:
        raise ValueError(f"a chunk must have the shape {want}, got {np.shape(chunk)}")


def _check_t_new(t_new: int) -> None:
    """Refuse to look no position ahead (R17)."""
    if t_new < 1:
        raise ValueError(f"t_new must be at least 1, got {t_new}")


def _widened(stored: NDArray[Any]) -> F32:
    """Return float32 (R7): of a float32 cache the storage itself, so that a step copies nothing old."""
    return stored.astype(np.float32, copy=False)
