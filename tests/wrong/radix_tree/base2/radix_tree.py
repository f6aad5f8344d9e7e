# Linked nodes; ids are handed out from a table so that a node can be found by its number.
import heapq

import numpy as np

ROOT = 0


class Node(object):
    __slots__ = ("id", "up", "key", "vals", "down", "pins", "used")

    def __init__(self, id, up, key, vals, used):
        self.id = id
        self.up = up
        self.key = key
        self.vals = vals
        self.down = []
        self.pins = 0
        self.used = used

    def evictable(self):
        return self.up is not None and len(self.down) == 0 and self.pins == 0


def as_ints(tokens):
    if isinstance(tokens, np.ndarray) and (tokens.dtype.kind not in "ui" or len(tokens.shape) != 1):
        raise ValueError("not a row of integers")
    result = list(map(int, tokens))
    if len(result) > 0 and min(result) < 0:
        raise ValueError("negative token")
    return result


class RadixTree:
    def __init__(self, granule):
        if granule <= 0:
            raise ValueError("granule")
        self.g = granule
        self.root = Node(ROOT, None, [], [], 0)
        self.by_id = {ROOT: self.root}
        self.last_id = ROOT
        self.time = 0
        self.size = 0

    def granule(self):
        return self.g

    def len(self):
        return self.size

    def __len__(self):
        return self.size

    def is_empty(self):
        return self.size == 0

    def node_count(self):
        return len(self.by_id) - 1

    def key(self, node):
        return self.by_id[node].key[:]

    def values(self, node):
        return self.by_id[node].vals[:]

    def parent(self, node):
        up = self.by_id[node].up
        return None if up is None else up.id

    def children(self, node):
        return [c.id for c in sorted(self.by_id[node].down, key=lambda c: c.key[:self.g])]

    def child_count(self, node):
        return len(self.by_id[node].down)

    def lock_count(self, node):
        return self.by_id[node].pins

    def lru_order(self):
        leaves = [x for x in self.by_id.values() if x.evictable()]
        leaves.sort(key=lambda x: x.used)
        return [x.id for x in leaves]

    def make(self, up, key, vals):
        self.last_id += 1
        x = Node(self.last_id, up, key, vals, self.time)
        self.by_id[x.id] = x
        up.down.append(x)
        return x

    def split(self, x, runs):
        top = self.make(x.up, x.key[:runs * self.g], x.vals[:runs])
        top.pins = x.pins
        x.up.down.remove(x)
        top.down.append(x)
        x.up = top
        x.key = x.key[runs * self.g:]
        x.vals = x.vals[runs:]
        return top

    def step(self, x, tokens, i):
        """The child that starts with the run at i, or None."""
        run = tokens[i:i + self.g]
        if len(run) < self.g:
            return None
        for c in x.down:
            if c.key[:self.g] == run:
                return c
        return None

    def walk(self, tokens):
        self.time += 1
        nodes = []
        x, i = self.root, 0
        child = self.step(x, tokens, i)
        while child is not None:
            r = 0
            while r < len(child.vals) and tokens[i:i + self.g] == child.key[r * self.g:(r + 1) * self.g]:
                r += 1
                i += self.g
            if r < len(child.vals):
                x = self.split(child, r)
                child = None
            else:
                x = child
                child = self.step(x, tokens, i)
            x.used = self.time
            nodes.append(x)
        return i, x, nodes

    def match_prefix(self, tokens):
        i, _, nodes = self.walk(as_ints(tokens))
        return i, [x.id for x in nodes]

    def insert(self, tokens, values):
        tokens = as_ints(tokens)
        vals = [v for v in values]
        if len(tokens) != len(vals) * self.g:
            raise ValueError("number of values")
        i, x, _ = self.walk(tokens)
        if i < len(tokens):
            x = self.make(x, tokens[i:], vals[i // self.g:])
            self.size += len(x.vals)
        return x.id, vals[:i // self.g]

    def lock(self, node):
        x = self.by_id[node]
        while x.up is not None:
            x.pins += 1
            x = x.up

    def unlock(self, node):
        x = self.by_id[node]
        if x.up is not None and x.pins < 1:
            raise ValueError("unlock without a lock")
        while x.up is not None:
            x.pins -= 1
            x = x.up

    def evict(self, n):
        if n < 0:
            raise ValueError("n")
        heap = [(x.used, x.id) for x in self.by_id.values() if x.evictable()]
        heapq.heapify(heap)
        out = []
        while heap and len(out) < n:
            x = self.by_id.pop(heapq.heappop(heap)[1])
            out.extend(x.vals)
            self.size -= len(x.vals)
            x.up.down.remove(x)
            if x.up.evictable():
                heapq.heappush(heap, (x.up.used, x.up.id))
        return out
