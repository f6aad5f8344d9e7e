import numpy as np


def _append(store, old_len, chunk, axis):
    """Store the chunk behind old_len positions, return old and new joined."""
    t = chunk.shape[axis]
    where = [slice(None)] * store.ndim
    where[axis] = slice(old_len, old_len + t)
    store[tuple(where)] = chunk
    where[axis] = slice(0, old_len)
    past = store[tuple(where)].astype(np.float32)
    return np.concatenate([past, chunk.astype(np.float32)], axis=axis)


class _Base:
    def _init(self, layers, max_len, dtype, **dims):
        for v in (layers, max_len, *dims.values()):
            if v < 1:
                raise ValueError("sizes are at least 1")
        if np.dtype(dtype) not in (np.float16, np.float32, np.float64):
            raise ValueError("floating dtypes only")
        self.layers, self.max_len = layers, max_len
        self.n = np.zeros(layers, int)

    def _before(self, layer, a, b, shape_a, shape_b, axis):
        if not (0 <= layer < self.layers):
            raise ValueError("layer")
        if a.ndim != len(shape_a) or b.ndim != len(shape_b):
            raise ValueError("axes")
        t = a.shape[axis]
        shape_a, shape_b = list(shape_a), list(shape_b)
        shape_a[axis] = shape_b[axis] = t
        if tuple(shape_a) != a.shape or tuple(shape_b) != b.shape or t == 0:
            raise ValueError("shape")
        if self.n[layer] + t > self.max_len:
            raise ValueError("full")
        return int(self.n[layer]), t

    def seq_len(self, layer=None):
        if layer is not None and not (0 <= layer < self.layers):
            raise ValueError("layer")
        return int(self.n.min() if layer is None else self.n[layer])

    def positions(self, t_new):
        if t_new <= 0:
            raise ValueError("t_new")
        return np.arange(self.seq_len(), self.seq_len() + t_new).astype(np.int64)

    def mask(self, t_new):
        if t_new <= 0:
            raise ValueError("t_new")
        past = np.ones((t_new, self.seq_len()), bool)
        own = np.tri(t_new, dtype=bool)
        return np.hstack([past, own])

    def truncate(self, n):
        if n < 0 or n > self.seq_len():
            raise ValueError("n")
        self.n.fill(n)


class KVCache(_Base):
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        self._init(n_layers, max_len, dtype, h=n_kv_heads, d=d_head, b=batch)
        self.k = np.zeros((n_layers, batch, n_kv_heads, max_len, d_head), dtype)
        self.v = np.zeros_like(self.k)

    def update(self, layer, k_new, v_new):
        k_new, v_new = np.asarray(k_new), np.asarray(v_new)
        shape = self.k.shape[1:]
        n, t = self._before(layer, k_new, v_new, shape, shape, 2)
        out = _append(self.k[layer], n, k_new, 2), _append(self.v[layer], n, v_new, 2)
        self.n[layer] = n + t
        return out

    def nbytes(self):
        return self.k.nbytes * 2


class LatentCache(_Base):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        self._init(n_layers, max_len, dtype, r=kv_lora_rank, d=rope_dim, b=batch)
        self.latent = np.zeros((n_layers, batch, max_len, kv_lora_rank), dtype)
        self.rope = np.zeros((n_layers, batch, max_len, rope_dim), dtype)

    def update(self, layer, c_new, k_rope_new):
        c_new, k_rope_new = np.asarray(c_new), np.asarray(k_rope_new)
        n, t = self._before(layer, c_new, k_rope_new, self.latent.shape[1:], self.rope.shape[1:], 1)
        out = _append(self.latent[layer], n, c_new, 1), _append(self.rope[layer], n, k_rope_new, 1)
        self.n[layer] = n + t
        return out

    def nbytes(self):
        return self.latent.nbytes + self.rope.nbytes
