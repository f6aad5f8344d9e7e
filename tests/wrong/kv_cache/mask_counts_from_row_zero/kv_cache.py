import numpy as np


def _need(ok, what):
    if not ok:
        raise ValueError(what)


class _Cache:
    AXIS = None

    def __init__(self, n_layers, max_len, shapes, dtype):
        _need(np.issubdtype(np.dtype(dtype), np.floating), "dtype must be floating")
        _need(np.dtype(dtype).itemsize in (2, 4, 8), "dtype must be f16, f32 or f64")
        self.shapes = shapes
        self.max_len = max_len
        self.mem = tuple(np.empty((n_layers,) + s, dtype) for s in shapes)
        self.filled = [0] * n_layers

    def _window(self, lo, hi):
        return (slice(None),) * self.AXIS + (slice(lo, hi),)

    def update(self, layer, one, two):
        _need(0 <= layer < len(self.filled), "layer out of range")
        one, two = np.asarray(one), np.asarray(two)
        _need(one.ndim == two.ndim == len(self.shapes[0]), "number of axes")
        t = one.shape[self.AXIS]
        for chunk, shape in ((one, self.shapes[0]), (two, self.shapes[1])):
            want = list(shape)
            want[self.AXIS] = t
            _need(list(chunk.shape) == want, "shape of a chunk")
        _need(t > 0, "no positions")
        lo, hi = self.filled[layer], self.filled[layer] + t
        _need(hi <= self.max_len, "no room")
        result = []
        for mem, chunk in zip(self.mem, (one, two)):
            mem[layer][self._window(lo, hi)] = chunk
            result.append(np.array(mem[layer][self._window(0, hi)], dtype=np.float32))
        self.filled[layer] = hi
        return tuple(result)

    def seq_len(self, layer=None):
        if layer is None:
            return min(self.filled)
        _need(0 <= layer < len(self.filled), "layer out of range")
        return self.filled[layer]

    def positions(self, t_new):
        _need(t_new >= 1, "t_new")
        n = self.seq_len()
        return np.arange(n, n + t_new, dtype=np.int64)

    def mask(self, t_new):
        _need(t_new >= 1, "t_new")
        # causal: a lower triangle over all keys
        return np.tri(t_new, self.seq_len() + t_new, dtype=bool)

    def truncate(self, n):
        _need(0 <= n <= self.seq_len(), "n")
        self.filled = [n] * len(self.filled)

    def nbytes(self):
        return self.mem[0].nbytes + self.mem[1].nbytes


class KVCache(_Cache):
    AXIS = 2

    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        _need(min(n_layers, n_kv_heads, d_head, max_len, batch) >= 1, "sizes")
        shape = (batch, n_kv_heads, max_len, d_head)
        super().__init__(n_layers, max_len, (shape, shape), dtype)

    def update(self, layer, k_new, v_new):
        return super().update(layer, k_new, v_new)


class LatentCache(_Cache):
    AXIS = 1

    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        _need(min(n_layers, kv_lora_rank, rope_dim, max_len, batch) >= 1, "sizes")
        super().__init__(n_layers, max_len, ((batch, max_len, kv_lora_rank), (batch, max_len, rope_dim)), dtype)

    def update(self, layer, c_new, k_rope_new):
        return super().update(layer, c_new, k_rope_new)
