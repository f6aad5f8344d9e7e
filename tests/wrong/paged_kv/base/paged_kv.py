import numpy as np


class OutOfBlocks(RuntimeError):
    pass


class _Seq:
    def __init__(self, n_layers):
        self.table = []
        self.lengths = [0] * n_layers


class PagedKVCache:
    def __init__(self, num_blocks, block_size, n_layers, n_kv_heads, d_head):
        for size in (num_blocks, block_size, n_layers, n_kv_heads, d_head):
            if size < 1:
                raise ValueError("every size must be at least 1")
        self._n = num_blocks
        self._bs = block_size
        self._layers = n_layers
        self._heads = n_kv_heads
        self._d = d_head
        # one piece of memory per block: [block, layer, head, slot, d]
        shape = (num_blocks, n_layers, n_kv_heads, block_size, d_head)
        self._k = np.zeros(shape, dtype=np.float16)
        self._v = np.zeros(shape, dtype=np.float16)
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._seqs = {}

    def _seq(self, seq_id):
        if seq_id not in self._seqs:
            raise KeyError(seq_id)
        return self._seqs[seq_id]

    def _check_layer(self, layer):
        if layer < 0 or layer >= self._layers:
            raise ValueError("no such layer")

    def _new_block(self):
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def _drop(self, block):
        self._refs[block] -= 1
        if self._refs[block] == 0:
            self._free.append(block)

    def add_seq(self, seq_id):
        if seq_id in self._seqs:
            raise ValueError("sequence is live already")
        self._seqs[seq_id] = _Seq(self._layers)

    def fork(self, parent, child):
        source = self._seq(parent)
        if child in self._seqs:
            raise ValueError("child is live already")
        copy = _Seq(self._layers)
        copy.table = list(source.table)
        copy.lengths = list(source.lengths)
        for block in copy.table:
            self._refs[block] += 1
        self._seqs[child] = copy

    def append(self, seq_id, layer, k, v):
        seq = self._seq(seq_id)
        self._check_layer(layer)
        if k.ndim != 3 or v.ndim != 3 or k.shape != v.shape:
            raise ValueError("k and v must have one shape of three axes")
        heads, t, d = k.shape
        if heads != self._heads or d != self._d or t < 1:
            raise ValueError("wrong shape")
        start = seq.lengths[layer]
        end = start + t

        wanted = (end + self._bs - 1) // self._bs
        new = max(0, wanted - len(seq.table))
        first = start // self._bs
        last = (end - 1) // self._bs
        shared = []
        for i in range(first, min(last + 1, len(seq.table))):
            if self._refs[seq.table[i]] > 1:
                shared.append(i)
        if new + len(shared) > len(self._free):
            raise OutOfBlocks("not enough free blocks")

        for i in shared:
            old = seq.table[i]
            block = self._new_block()
            self._k[block] = self._k[old]
            self._v[block] = self._v[old]
            self._drop(old)
            seq.table[i] = block
        for _ in range(new):
            seq.table.append(self._new_block())

        with np.errstate(all="ignore"):
            k16 = k.astype(np.float16)
            v16 = v.astype(np.float16)
        for j in range(t):
            block = seq.table[(start + j) // self._bs]
            slot = (start + j) % self._bs
            self._k[block, layer, :, slot, :] = k16[:, j, :]
            self._v[block, layer, :, slot, :] = v16[:, j, :]
        seq.lengths[layer] = end

    def block_table(self, seq_id):
        return np.array(self._seq(seq_id).table, dtype=np.int32)

    def seq_len(self, seq_id, layer=0):
        seq = self._seq(seq_id)
        self._check_layer(layer)
        return seq.lengths[layer]

    def gather(self, seq_id, layer):
        seq = self._seq(seq_id)
        self._check_layer(layer)
        n = seq.lengths[layer]
        out_k = np.zeros((self._heads, n, self._d), dtype=np.float16)
        out_v = np.zeros((self._heads, n, self._d), dtype=np.float16)
        for p in range(n):
            block = seq.table[p // self._bs]
            out_k[:, p, :] = self._k[block, layer, :, p % self._bs, :]
            out_v[:, p, :] = self._v[block, layer, :, p % self._bs, :]
        return out_k, out_v

    def free(self, seq_id):
        seq = self._seq(seq_id)
        for block in seq.table:
            self._drop(block)
        del self._seqs[seq_id]

    def stats(self):
        free = len(self._free)
        return {"free": free, "used": self._n - free, "cached": 0, "evictions": 0}

    def num_free_blocks(self):
        return len(self._free)

    def close(self):
        for seq_id in list(self._seqs):
            self.free(seq_id)

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, tb):
        self.close()
        return None
