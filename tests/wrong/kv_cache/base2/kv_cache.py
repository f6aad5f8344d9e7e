import numpy as np


class KVCache:
    """A list of copied, already rounded chunks for every layer; joined when they are read."""

    _time = 2

    def __init__(self, n_layers, n_kv_heads, d_head, max_len, batch=1, dtype=np.float32):
        self._start(n_layers, max_len, (batch, n_kv_heads, None, d_head), (batch, n_kv_heads, None, d_head), dtype)

    def _start(self, n_layers, max_len, shape_a, shape_b, dtype):
        sizes = [n_layers, max_len] + [s for s in shape_a + shape_b if s is not None]
        if any(s < 1 for s in sizes):
            raise ValueError("size below 1")
        self.dtype = np.dtype(dtype)
        if self.dtype.kind != "f" or self.dtype.itemsize > 8:
            raise ValueError("dtype is not a float")
        self.n_layers, self.max_len = n_layers, max_len
        self.shapes = (shape_a, shape_b)
        self.chunks = [([], []) for _ in range(n_layers)]

    def _layer(self, layer):
        if layer not in range(self.n_layers):
            raise ValueError("layer")
        return self.chunks[layer]

    def _size(self, pair):
        return sum(c.shape[self._time] for c in pair[0])

    def update(self, layer, k_new, v_new):
        a_new, b_new = k_new, v_new
        pair = self._layer(layer)
        news = []
        for want, got in zip(self.shapes, (np.asarray(a_new), np.asarray(b_new))):
            if got.ndim != len(want) or any(w not in (None, g) for w, g in zip(want, got.shape)):
                raise ValueError("shape")
            news.append(np.array(got, dtype=self.dtype))
        t = news[0].shape[self._time]
        if t != news[1].shape[self._time] or t < 1 or self._size(pair) + t > self.max_len:
            raise ValueError("length")
        for chunks, new in zip(pair, news):
            chunks.append(new)
        return tuple(np.concatenate(chunks, axis=self._time).astype(np.float32) for chunks in pair)

    def seq_len(self, layer=None):
        if layer is not None:
            return self._size(self._layer(layer))
        return min(map(self._size, self.chunks))

    def positions(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        return np.arange(t_new, dtype=np.int64) + self.seq_len()

    def mask(self, t_new):
        if t_new < 1:
            raise ValueError("t_new")
        n = self.seq_len()
        return np.tril(np.ones((t_new, n + t_new), dtype=bool), k=n)

    def truncate(self, n):
        if n < 0 or n > self.seq_len():
            raise ValueError("n")
        for pair in self.chunks:
            for chunks in pair:
                if not chunks:
                    continue
                whole = np.concatenate(chunks, axis=self._time)
                chunks[:] = [np.take(whole, range(n), axis=self._time)] if n else []

    def nbytes(self):
        one = sum(int(np.prod([s for s in shape if s is not None])) for shape in self.shapes)
        return one * self.n_layers * self.max_len * self.dtype.itemsize


class LatentCache(KVCache):
    _time = 1

    def __init__(self, n_layers, kv_lora_rank, rope_dim, max_len, batch=1, dtype=np.float32):
        self._start(n_layers, max_len, (batch, None, kv_lora_rank), (batch, None, rope_dim), dtype)

    def update(self, layer, c_new, k_rope_new):
        return super().update(layer, c_new, k_rope_new)
