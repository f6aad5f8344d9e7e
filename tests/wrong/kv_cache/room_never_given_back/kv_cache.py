import numpy as np


class _Slots:
    """Book-keeping apart from the data: how much is held, how much room is left."""

    def __init__(self, n_layers, max_len):
        self.held = {layer: 0 for layer in range(n_layers)}
        self.room = {layer: max_len for layer in range(n_layers)}

    def of(self, layer):
        if layer not in self.held:
            raise ValueError(f"layer {layer} does not exist")
        return self.held[layer]

    def take(self, layer, t):
        start = self.of(layer)
        if t < 1:
            raise ValueError("empty chunk")
        if t > self.room[layer]:
            raise ValueError("the cache is full")
        self.room[layer] -= t
        self.held[layer] += t
        return slice(start, start + t)

    def smallest(self):
        return min(self.held.values())

    def shrink(self, n):
        if n not in range(self.smallest() + 1):
            raise ValueError("cannot go back to that length")
        for layer in self.held:
            self.held[layer] = n


class KVCache:
    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        self._build(n_layers, max_len, dtype, (batch, n_kv_heads), d_head, d_head)

    def _build(self, n_layers, max_len, dtype, lead, w1, w2):
        if min(n_layers, max_len, w1, w2, *lead) < 1:
            raise ValueError("sizes start at 1")
        if np.dtype(dtype) not in (np.float16, np.float32, np.float64):
            raise ValueError("dtype")
        self._slots = _Slots(n_layers, max_len)
        self._lead, self._widths = tuple(lead), (w1, w2)
        self._data = [np.zeros((n_layers, *lead, max_len, w), dtype) for w in (w1, w2)]

    def update(self, layer, k_new, v_new):
        self._slots.of(layer)
        chunks = (np.asarray(k_new), np.asarray(v_new))
        n_axes = len(self._lead) + 2
        if {c.ndim for c in chunks} != {n_axes}:
            raise ValueError("axes")
        t = chunks[0].shape[-2]
        for c, w in zip(chunks, self._widths):
            if c.shape != self._lead + (t, w):
                raise ValueError("shape")
        place = self._slots.take(layer, t)
        out = []
        for data, c in zip(self._data, chunks):
            data[layer][..., place, :] = c
            out.append(data[layer][..., : place.stop, :].astype(np.float32))
        return out[0], out[1]

    def seq_len(self, layer=None):
        return self._slots.smallest() if layer is None else self._slots.of(layer)

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        return np.arange(t_new, dtype=np.int64) + self._slots.smallest()

    def mask(self, t_new):
        at = self.positions(t_new)
        return np.array([[j <= p for j in range(int(at[-1]) + 1)] for p in at], dtype=bool)

    def truncate(self, n):
        self._slots.shrink(n)

    def nbytes(self):
        return sum(d.nbytes for d in self._data)


class LatentCache(KVCache):
    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        self._build(n_layers, max_len, dtype, (batch,), kv_lora_rank, rope_dim)

    def update(self, layer, c_new, k_rope_new):
        return super().update(layer, c_new, k_rope_new)
