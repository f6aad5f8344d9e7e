from __future__ import annotations

import numpy as np


class _Stream:
    """[n_layers, *lead, max_len, width] with time as the last axis but one."""

    def __init__(self, n_layers: int, lead: tuple[int, ...], max_len: int, width: int, dtype: np.dtype):
        self.lead, self.width = lead, width
        self.data = np.zeros((n_layers, *lead, max_len, width), dtype=dtype)

    def fits(self, chunk: np.ndarray, t: int) -> bool:
        return chunk.shape == (*self.lead, t, self.width)

    def put(self, layer: int, lo: int, chunk: np.ndarray) -> None:
        self.data[layer, ..., lo : lo + chunk.shape[-2], :] = chunk

    def get(self, layer: int, hi: int) -> np.ndarray:
        return np.array(self.data[layer, ..., :hi, :], dtype=np.float32)


class _TwoStreams:
    def _setup(self, n_layers, lead, max_len, widths, dtype):
        if min(n_layers, max_len, *lead, *widths) < 1:
            raise ValueError("sizes must be positive")
        if np.dtype(dtype).name not in ("float16", "float32", "float64"):
            raise ValueError(f"dtype {dtype} is not supported")
        self.max_len = max_len
        self._lens = np.zeros(n_layers, dtype=np.int64)
        self._streams = [_Stream(n_layers, lead, max_len, w, np.dtype(dtype)) for w in widths]

    def update(self, layer, k_new, v_new):
        first, second = k_new, v_new
        if not 0 <= layer < len(self._lens):
            raise ValueError(f"layer {layer}")
        chunks = [np.asarray(first), np.asarray(second)]
        t = chunks[0].shape[-2] if chunks[0].ndim >= 2 else 0
        if t == 0 or not all(s.fits(c, t) for s, c in zip(self._streams, chunks)):
            raise ValueError("shape")
        lo = int(self._lens[layer])
        if lo + t > self.max_len:
            raise ValueError("full")
        for s, c in zip(self._streams, chunks):
            s.put(layer, lo, c)
        self._lens[layer] += t
        a, b = (s.get(layer, lo + t) for s in self._streams)
        return a, b

    def seq_len(self, layer=None) -> int:
        if layer is None:
            return int(self._lens.min())
        if not 0 <= layer < len(self._lens):
            raise ValueError(f"layer {layer}")
        return int(self._lens[layer])

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        return self.seq_len() + np.arange(t_new, dtype=np.int64)

    def mask(self, t_new):
        pos = self.positions(t_new)
        return np.arange(pos[-1] + 1)[None, :] <= pos[:, None]

    def truncate(self, n):
        if not 0 <= n <= self.seq_len():
            raise ValueError("n")
        self._lens[:] = n

    def nbytes(self) -> int:
        return int(sum(s.data.nbytes for s in self._streams))


class KVCache(_TwoStreams):
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        self._setup(n_layers, (batch, n_kv_heads), max_len, (d_head, d_head), dtype)


class LatentCache(_TwoStreams):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        self._setup(n_layers, (batch,), max_len, (kv_lora_rank, rope_dim), dtype)

    def update(self, layer, c_new, k_rope_new):
        return super().update(layer, c_new, k_rope_new)
