import numpy as np

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def _check_sizes(*sizes):
    for s in sizes:
        if s < 1:
            raise ValueError("every size must be at least 1")


def _check_dtype(dtype):
    try:
        dt = np.dtype(dtype)
    except TypeError as e:
        raise ValueError("not a dtype") from e
    if dt not in _FLOATS:
        raise ValueError("a floating dtype is needed")
    return dt


class _Counted:
    """The counts per layer and everything that follows from them."""

    def __init__(self, n_layers, max_len):
        self.n_layers = n_layers
        self.max_len = max_len
        self._count = [0] * n_layers

    def _check_layer(self, layer):
        if layer < 0 or layer >= self.n_layers:
            raise ValueError("no such layer")

    def _room(self, layer, t):
        if t < 1:
            raise ValueError("an empty chunk")
        start = self._count[layer]
        if start + t > self.max_len:
            raise ValueError("cache is full")
        return start, start + t

    def seq_len(self, layer=None):
        if layer is None:
            return min(self._count)
        self._check_layer(layer)
        return self._count[layer]

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new must be at least 1")
        start = self.seq_len()
        return np.arange(start, start + t_new, dtype=np.int64)

    def mask(self, t_new):
        if t_new < 1:
            raise ValueError("t_new must be at least 1")
        base = self.seq_len()
        out = np.zeros((t_new, base + t_new), dtype=bool)
        for i in range(t_new):
            out[i, : base + i + 1] = True
        return out

    def truncate(self, n):
        if n < 0 or n > self.seq_len():
            raise ValueError("n is outside [0, seq_len()]")
        for layer in range(self.n_layers):
            self._count[layer] = n


class KVCache(_Counted):
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        _check_sizes(n_layers, n_kv_heads, d_head, max_len, batch)
        dt = _check_dtype(dtype)
        super().__init__(n_layers, max_len)
        self._shape = (batch, n_kv_heads, d_head)
        self._k = [np.zeros((batch, n_kv_heads, max_len, d_head), dt) for _ in range(n_layers)]
        self._v = [np.zeros((batch, n_kv_heads, max_len, d_head), dt) for _ in range(n_layers)]

    def update(self, layer, k_new, v_new):
        self._check_layer(layer)
        k_new = np.asarray(k_new)
        v_new = np.asarray(v_new)
        if k_new.ndim != 4 or v_new.ndim != 4:
            raise ValueError("chunks have four axes")
        b, h, d = self._shape
        t = k_new.shape[2]
        if k_new.shape != (b, h, t, d) or v_new.shape != (b, h, t, d):
            raise ValueError("chunk of a wrong shape")
        lo, hi = self._room(layer, t)
        self._k[layer][:, :, lo:hi] = k_new
        self._v[layer][:, :, lo:hi] = v_new
        self._count[layer] = hi
        return (
            self._k[layer][:, :, :hi].astype(np.float32),
            self._v[layer][:, :, :hi].astype(np.float32),
        )

    def nbytes(self):
        return sum(a.nbytes for a in self._k) + sum(a.nbytes for a in self._v)


class LatentCache(_Counted):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        _check_sizes(n_layers, kv_lora_rank, rope_dim, max_len, batch)
        dt = _check_dtype(dtype)
        super().__init__(n_layers, max_len)
        self._dims = (batch, kv_lora_rank, rope_dim)
        self._c = [np.zeros((batch, max_len, kv_lora_rank), dt) for _ in range(n_layers)]
        self._r = [np.zeros((batch, max_len, rope_dim), dt) for _ in range(n_layers)]

    def update(self, layer, c_new, k_rope_new):
        self._check_layer(layer)
        c_new = np.asarray(c_new)
        k_rope_new = np.asarray(k_rope_new)
        if c_new.ndim != 3 or k_rope_new.ndim != 3:
            raise ValueError("chunks have three axes")
        b, r, dr = self._dims
        t = c_new.shape[1]
        if c_new.shape != (b, t, r) or k_rope_new.shape != (b, t, dr):
            raise ValueError("chunk of a wrong shape")
        lo, hi = self._room(layer, t)
        self._c[layer][:, lo:hi] = c_new
        self._r[layer][:, lo:hi] = k_rope_new
        self._count[layer] = hi
        return self._c[layer][:, :hi].astype(np.float32), self._r[layer][:, :hi].astype(np.float32)

    def nbytes(self):
        return sum(a.nbytes for a in self._c) + sum(a.nbytes for a in self._r)
