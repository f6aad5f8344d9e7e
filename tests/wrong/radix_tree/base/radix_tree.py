import numpy as np

ROOT = 0


def _tokens(tokens):
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError("tokens must be a 1-D array of integers")
        tokens = tokens.tolist()
    elif not isinstance(tokens, (list, tuple)):
        raise ValueError("tokens must be a list, a tuple or an array")
    out = []
    for t in tokens:
        t = int(t)
        if t < 0:
            raise ValueError("a token is negative")
        out.append(t)
    return out


class _Node:
    def __init__(self, parent, runs, values):
        self.parent = parent
        self.runs = runs  # list of tuples of granule tokens
        self.values = values
        self.children = {}  # first run -> id
        self.locks = 0
        self.stamp = 0


class RadixTree:
    def __init__(self, granule):
        if granule < 1:
            raise ValueError("granule must be at least 1")
        self._g = granule
        self._nodes = {ROOT: _Node(None, [], [])}
        self._next = 1
        self._clock = 0
        self._count = 0

    def granule(self):
        return self._g

    def len(self):
        return self._count

    def __len__(self):
        return self._count

    def is_empty(self):
        return self._count == 0

    def node_count(self):
        return len(self._nodes) - 1

    def _get(self, node):
        if node not in self._nodes:
            raise KeyError(node)
        return self._nodes[node]

    def key(self, node):
        flat = []
        for run in self._get(node).runs:
            flat.extend(run)
        return flat

    def values(self, node):
        return list(self._get(node).values)

    def parent(self, node):
        return self._get(node).parent

    def children(self, node):
        kids = self._get(node).children
        return [kids[run] for run in sorted(kids)]

    def child_count(self, node):
        return len(self._get(node).children)

    def lock_count(self, node):
        return self._get(node).locks

    def lru_order(self):
        order = []
        for i, node in self._nodes.items():
            if i != ROOT and not node.children and node.locks == 0:
                order.append((node.stamp, i))
        order.sort()
        return [i for _, i in order]

    def _new(self, node):
        i = self._next
        self._next += 1
        self._nodes[i] = node
        return i

    def _split(self, i, m):
        old = self._nodes[i]
        upper = _Node(old.parent, old.runs[:m], old.values[:m])
        upper.locks = old.locks
        upper.stamp = old.stamp
        u = self._new(upper)
        self._nodes[old.parent].children[old.runs[0]] = u
        old.runs = old.runs[m:]
        old.values = old.values[m:]
        old.parent = u
        upper.children[old.runs[0]] = i
        return u

    def _walk(self, runs):
        """The ids walked; every node of them is whole on the path."""
        self._clock += 1
        path = []
        at = ROOT
        pos = 0
        while pos < len(runs):
            child = self._nodes[at].children.get(runs[pos])
            if child is None:
                break
            node = self._nodes[child]
            m = 0
            while m < len(node.runs) and pos < len(runs) and node.runs[m] == runs[pos]:
                m += 1
                pos += 1
            whole = m == len(node.runs)
            if not whole:
                child = self._split(child, m)
            self._nodes[child].stamp = self._clock
            path.append(child)
            at = child
            if not whole:
                break
        return pos, path

    def _runs(self, tokens):
        g = self._g
        return [tuple(tokens[i:i + g]) for i in range(0, len(tokens) - g + 1, g)]

    def match_prefix(self, tokens):
        pos, path = self._walk(self._runs(_tokens(tokens)))
        return pos * self._g, path

    def insert(self, tokens, values):
        tokens = _tokens(tokens)
        values = list(values)
        if len(values) * self._g != len(tokens):
            raise ValueError("one value for each run")
        runs = self._runs(tokens)
        pos, path = self._walk(runs)
        last = path[-1] if path else ROOT
        if pos < len(runs):
            leaf = _Node(last, runs[pos:], values[pos:])
            leaf.stamp = self._clock
            i = self._new(leaf)
            self._nodes[last].children[runs[pos]] = i
            self._count += len(leaf.values)
            last = i
        return last, values[:pos]

    def _upwards(self, node):
        chain = []
        while node != ROOT:
            chain.append(self._nodes[node])
            node = self._nodes[node].parent
        return chain

    def lock(self, node):
        self._get(node)
        for n in self._upwards(node):
            n.locks += 1

    def unlock(self, node):
        n = self._get(node)
        if node == ROOT:
            return
        if n.locks == 0:
            raise ValueError("not locked")
        for n in self._upwards(node):
            n.locks -= 1

    def evict(self, n):
        if n < 0:
            raise ValueError("n is negative")
        gone = []
        while len(gone) < n:
            order = self.lru_order()
            if not order:
                break
            node = self._nodes.pop(order[0])
            del self._nodes[node.parent].children[node.runs[0]]
            gone.extend(node.values)
            self._count -= len(node.values)
        return gone
