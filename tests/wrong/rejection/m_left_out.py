"""Accept or reject: plain loops over Python floats."""
import math

import numpy as np

FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


class Pair:
    """Two checked distributions as lists of floats."""

    def __init__(self, p, q):
        self.p = self.load(p)
        self.q = self.load(q)
        self.n = len(self.p)
        if len(self.q) != self.n:
            raise ValueError("p and q differ in length")

    @staticmethod
    def load(a):
        if not isinstance(a, np.ndarray):
            raise ValueError("a distribution must be an array")
        if a.ndim != 1:
            raise ValueError("a distribution has one axis")
        if a.dtype not in FLOATS:
            raise ValueError(f"a distribution cannot have dtype {a.dtype}")
        values = [float(v) for v in a]
        if len(values) == 0:
            raise ValueError("a distribution cannot be empty")
        total = 0.0
        for v in values:
            if math.isnan(v) or math.isinf(v) or v < 0.0:
                raise ValueError(f"{v} is not a probability")
            total += v
        if abs(total - 1.0) > 1e-9 * len(values) + 1e-12:
            raise ValueError(f"the sum is {total}, not 1")
        return values

    def overlap(self):
        total = 0.0
        for i in range(self.n):
            if self.p[i] < self.q[i]:
                total += self.p[i]
            else:
                total += self.q[i]
        return total

    def residual(self):
        rest = []
        z = 0.0
        for i in range(self.n):
            d = self.p[i] - self.q[i]
            if d < 0.0:
                d = 0.0
            rest.append(d)
            z += d
        if z == 0.0:
            return list(self.p)
        for i in range(self.n):
            rest[i] = rest[i] / z
        return rest


def walk(weights, u):
    running = 0.0
    last = -1
    for i in range(len(weights)):
        running += weights[i]
        if weights[i] > 0.0:
            last = i
        if u < running:
            return i
    return last


def need_number(v):
    if type(v) is bool or not isinstance(v, (int, float)):
        raise ValueError(f"{v!r} is not a number")
    return float(v)


def need_int(v):
    if type(v) is bool or not isinstance(v, int):
        raise ValueError(f"{v!r} is not an integer")
    return v


def need_u(v):
    v = need_number(v)
    if math.isnan(v) or v < 0.0 or v >= 1.0:
        raise ValueError(f"{v} is not in [0, 1)")
    return v


def rejection_accept(p_x, q_x, u):
    p_x = need_number(p_x)
    q_x = need_number(q_x)
    u = need_u(u)
    if not math.isfinite(p_x) or p_x < 0.0:
        raise ValueError(f"p_x cannot be {p_x}")
    if not math.isfinite(q_x) or q_x <= 0.0:
        raise ValueError(f"q_x cannot be {q_x}")
    r = p_x / q_x
    if u < r:
        return True
    return False


def acceptance_probability(p, q):
    return Pair(p, q).overlap()


def residual_distribution(p, q):
    return np.array(Pair(p, q).residual(), dtype=np.float64)


def speculative_step(p, q, x, u_accept, u_resample):
    pair = Pair(p, q)
    x = need_int(x)
    if not 0 <= x < pair.n:
        raise ValueError(f"{x} is not an id")
    if rejection_accept(pair.p[x], pair.q[x], u_accept):
        return (x, True)
    v = need_u(u_resample)
    y = walk(pair.residual(), v)
    return (y, False)


def rejection_sample(p, q, m, rng, max_tries=10000):
    pair = Pair(p, q)
    m = need_number(m)
    if not math.isfinite(m) or m < 1.0:
        raise ValueError(f"m cannot be {m}")
    max_tries = need_int(max_tries)
    if max_tries < 1:
        raise ValueError(f"max_tries cannot be {max_tries}")
    for i in range(pair.n):
        if pair.p[i] > m * pair.q[i]:
            raise ValueError(f"m * q does not cover p at id {i}")
    tries = 0
    while tries < max_tries:
        tries += 1
        x = walk(pair.q, rng.uniform())
        u = rng.uniform()
        r = pair.p[x] / pair.q[x]
        if u < r:
            return (x, tries)
    raise RuntimeError(f"{max_tries} tries, none accepted")
