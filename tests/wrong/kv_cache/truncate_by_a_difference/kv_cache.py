from collections import Counter

import numpy as np

ALLOWED = {np.dtype("f2"), np.dtype("f4"), np.dtype("f8")}


class KVCache:
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        for name, value in list(locals().items()):
            if name not in ("self", "dtype", "__class__") and value < 1:
                raise ValueError(name)
        if np.dtype(dtype) not in ALLOWED:
            raise ValueError("dtype")
        self.n_layers, self.max_len = n_layers, max_len
        self.kv = np.zeros((2, n_layers, batch, n_kv_heads, max_len, d_head), dtype)
        self.lens = Counter()

    def nbytes(self):
        return self.kv.size * self.kv.itemsize

    def seq_len(self, layer=None):
        if layer is None:
            return min(self.lens[i] for i in range(self.n_layers))
        if layer < 0 or layer >= self.n_layers:
            raise ValueError("layer")
        return self.lens[layer]

    def _append(self, layer, t):
        n = self.seq_len(layer)
        if t < 1 or n + t > self.max_len:
            raise ValueError("length")
        return n

    def update(self, layer, k_new, v_new):
        if layer < 0 or layer >= self.n_layers:
            raise ValueError("layer")
        k_new, v_new = np.asarray(k_new), np.asarray(v_new)
        _, _, b, h, _, d = self.kv.shape
        t = k_new.shape[2] if k_new.ndim == 4 else 0
        if k_new.shape != v_new.shape or k_new.shape != (b, h, t, d):
            raise ValueError("shape")
        n = self._append(layer, t)
        self.kv[0, layer, :, :, n:n + t] = k_new
        self.kv[1, layer, :, :, n:n + t] = v_new
        self.lens[layer] += t
        k, v = self.kv[:, layer, :, :, :n + t].astype(np.float32)
        return k, v

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        return np.array([self.seq_len() + i for i in range(t_new)], dtype=np.int64)

    def mask(self, t_new):
        rows = self.positions(t_new)
        return rows.reshape(-1, 1) >= np.arange(self.seq_len() + t_new)

    def truncate(self, n):
        have = self.seq_len()
        if not 0 <= n <= have:
            raise ValueError("n")
        drop = have - n
        for layer in range(self.n_layers):
            self.lens[layer] -= drop


class LatentCache(KVCache):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        if min(n_layers, kv_lora_rank, rope_dim, max_len, batch) < 1:
            raise ValueError("size")
        if np.dtype(dtype) not in ALLOWED:
            raise ValueError("dtype")
        self.n_layers, self.max_len = n_layers, max_len
        self.c = np.zeros((n_layers, batch, max_len, kv_lora_rank), dtype)
        self.kr = np.zeros((n_layers, batch, max_len, rope_dim), dtype)
        self.lens = Counter()

    def nbytes(self):
        return self.c.nbytes + self.kr.nbytes

    def update(self, layer, c_new, k_rope_new):
        if layer < 0 or layer >= self.n_layers:
            raise ValueError("layer")
        c_new, k_rope_new = np.asarray(c_new), np.asarray(k_rope_new)
        t = c_new.shape[1] if c_new.ndim == 3 else 0
        b, r, dr = self.c.shape[1], self.c.shape[3], self.kr.shape[3]
        if c_new.shape != (b, t, r) or k_rope_new.shape != (b, t, dr):
            raise ValueError("shape")
        n = self._append(layer, t)
        self.c[layer, :, n:n + t] = c_new
        self.kr[layer, :, n:n + t] = k_rope_new
        self.lens[layer] += t
        return (self.c[layer, :, :n + t].astype(np.float32), self.kr[layer, :, :n + t].astype(np.float32))
