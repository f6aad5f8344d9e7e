# The memory is one flat list of slots, and who holds a block is read off the tables each time.
import numpy as np


class OutOfBlocks(RuntimeError):
    pass


def blocks_for(positions, size):
    full, rest = divmod(positions, size)
    return full + (1 if rest else 0)


def half(a):
    with np.errstate(all="ignore"):
        return np.array(a, dtype=np.float16)


class PagedKVCache:
    def __init__(self, num_blocks, block_size, n_layers, n_kv_heads, d_head):
        sizes = dict(num_blocks=num_blocks, block_size=block_size, n_layers=n_layers,
                     n_kv_heads=n_kv_heads, d_head=d_head)
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(name + " is below 1")
        self.N, self.B, self.L, self.H, self.D = sizes.values()
        self.memory = np.zeros((n_layers, num_blocks * block_size, 2, n_kv_heads, d_head), np.float16)
        self.tables = {}
        self.lens = {}

    def _in_use(self):
        used = set()
        for table in self.tables.values():
            used.update(table)
        return used

    def _holders(self, block):
        return sum(block in table for table in self.tables.values())

    def _known(self, seq_id):
        if seq_id not in self.tables:
            raise KeyError(seq_id)

    def _row(self, seq_id, position):
        return self.tables[seq_id][position // self.B] * self.B + position % self.B

    def add_seq(self, seq_id):
        if seq_id in self.tables:
            raise ValueError("live")
        self.tables[seq_id] = []
        self.lens[seq_id] = [0 for _ in range(self.L)]

    def fork(self, parent, child):
        self._known(parent)
        if child in self.tables:
            raise ValueError("live")
        self.tables[child] = [block for block in self.tables[parent]]
        self.lens[child] = [n for n in self.lens[parent]]

    def append(self, seq_id, layer, k, v):
        self._known(seq_id)
        if layer not in range(self.L):
            raise ValueError("layer")
        for a in (k, v):
            if len(a.shape) != 3 or (a.shape[0], a.shape[2]) != (self.H, self.D):
                raise ValueError("shape")
        T = k.shape[1]
        if T == 0 or v.shape[1] != T:
            raise ValueError("number of positions")

        table = self.tables[seq_id]
        n = self.lens[seq_id][layer]
        plan = []
        for i in range(n // self.B, blocks_for(n + T, self.B)):
            if i >= len(table):
                plan.append((i, None))
            elif self._holders(table[i]) > 1:
                plan.append((i, table[i]))
        used = self._in_use()
        spare = [b for b in range(self.N) if b not in used]
        if len(plan) > len(spare):
            raise OutOfBlocks(str(len(plan)) + " blocks needed")

        for (i, old), block in zip(plan, spare):
            if old is None:
                table.append(block)
            else:
                self.memory[:, block * self.B:(block + 1) * self.B] = self.memory[:, old * self.B:(old + 1) * self.B]
                table[i] = block
        hk, hv = half(k), half(v)
        for t in range(T):
            row = self._row(seq_id, n + t)
            self.memory[layer, row, 0] = hk[:, t]
            self.memory[layer, row, 1] = hv[:, t]
        self.lens[seq_id][layer] += T

    def block_table(self, seq_id):
        self._known(seq_id)
        return np.asarray(self.tables[seq_id], dtype=np.int32).reshape(-1).copy()

    def seq_len(self, seq_id, layer=0):
        self._known(seq_id)
        if layer not in range(self.L):
            raise ValueError("layer")
        return self.lens[seq_id][layer]

    def gather(self, seq_id, layer):
        n = self.seq_len(seq_id, layer)
        rows = [self._row(seq_id, p) for p in range(n)]
        found = self.memory[layer, np.array(rows, dtype=np.int64)]  # [n, 2, H, D], a copy
        return found[:, 0].transpose(1, 0, 2).copy(), found[:, 1].transpose(1, 0, 2).copy()

    def free(self, seq_id):
        self._known(seq_id)
        del self.tables[seq_id], self.lens[seq_id]

    def stats(self):
        used = len(self._in_use())
        return {"free": self.N - used, "used": used, "cached": 0, "evictions": 0}

    def num_free_blocks(self):
        return self.N - len(self._in_use())

    def close(self):
        self.tables.clear()
        self.lens.clear()

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, tb):
        self.close()
