import numpy as np


class _Track:
    """One growing sequence a layer: values of shape [*lead, time, width]."""

    def __init__(self, n_layers, lead, max_len, width, dtype):
        self.lead, self.max_len, self.width = lead, max_len, width
        self.rows = [np.zeros(lead + (max_len, width), dtype) for _ in range(n_layers)]
        self.size = [0] * n_layers

    def append(self, layer, chunk):
        chunk = np.asarray(chunk)
        if chunk.ndim != len(self.lead) + 2:
            raise ValueError("axes")
        t = chunk.shape[-2]
        if t < 1 or chunk.shape != self.lead + (t, self.width):
            raise ValueError("shape")
        at = self.size[layer]
        if at + t > self.max_len:
            raise ValueError("full")
        self.rows[layer][..., at:at + t, :] = chunk
        self.size[layer] = at + t
        return self.rows[layer][..., :at + t, :].astype(np.float32)


class _Pair:
    def __init__(self, n_layers, first, second):
        self.n_layers = n_layers
        self.first, self.second = first, second

    def _layer(self, layer):
        if not (layer >= 0 and layer < self.n_layers):
            raise ValueError("no such layer")

    def update(self, layer, a, b):
        self._layer(layer)
        out_a = self.first.append(layer, a)
        if np.ndim(b) != np.ndim(a) or np.shape(b)[-2] != np.shape(a)[-2]:
            raise ValueError("the chunks do not belong together")
        out_b = self.second.append(layer, b)
        return out_a, out_b

    def seq_len(self, layer=None):
        if layer is None:
            return min(self.first.size)
        self._layer(layer)
        return self.first.size[layer]

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        n = self.seq_len()
        return np.arange(n, n + t_new, dtype=np.int64)

    def mask(self, t_new):
        q = self.positions(t_new)
        k = np.arange(self.seq_len() + t_new)
        return k[np.newaxis] <= q[:, np.newaxis]

    def truncate(self, n):
        if n < 0 or n > self.seq_len():
            raise ValueError("n")
        for track in (self.first, self.second):
            track.size = [n] * self.n_layers

    def nbytes(self):
        return sum(r.nbytes for t in (self.first, self.second) for r in t.rows)


def _ok(dtype, *sizes):
    if any(s < 1 for s in sizes):
        raise ValueError("size")
    if np.dtype(dtype) not in [np.dtype(x) for x in ("float16", "float32", "float64")]:
        raise ValueError("dtype")


class KVCache(_Pair):
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        _ok(dtype, n_layers, n_kv_heads, d_head, max_len, batch)
        lead = (batch, n_kv_heads)
        super().__init__(
            n_layers,
            _Track(n_layers, lead, max_len, d_head, dtype),
            _Track(n_layers, lead, max_len, d_head, dtype),
        )

    def update(self, layer, k_new, v_new):
        return super().update(layer, k_new, v_new)


class LatentCache(_Pair):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        _ok(dtype, n_layers, kv_lora_rank, rope_dim, max_len, batch)
        super().__init__(
            n_layers,
            _Track(n_layers, (batch,), max_len, kv_lora_rank, dtype),
            _Track(n_layers, (batch,), max_len, rope_dim, dtype),
        )

    def update(self, layer, c_new, k_rope_new):
        return super().update(layer, c_new, k_rope_new)
