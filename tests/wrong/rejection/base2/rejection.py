import numpy as np

from impl.categorical import sample_categorical

FLOATS = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}


def check_pair(p, q):
    for name, a in (("p", p), ("q", q)):
        if not isinstance(a, np.ndarray) or a.dtype not in FLOATS:
            raise ValueError(f"{name}: float array wanted")
        if a.ndim != 1 or a.size == 0:
            raise ValueError(f"{name}: bad shape {a.shape}")
    if p.size != q.size:
        raise ValueError("p and q must be of one length")
    p64, q64 = p.astype(np.float64), q.astype(np.float64)
    for name, a in (("p", p64), ("q", q64)):
        if not np.all(np.isfinite(a)) or np.any(a < 0):
            raise ValueError(f"{name}: entries must be finite and >= 0")
        if not abs(np.cumsum(a)[-1] - 1.0) <= 1e-9 * a.size + 1e-12:
            raise ValueError(f"{name}: must sum to 1")
    return p64, q64


def is_number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def check_u(u, name="u"):
    if not is_number(u) or not (0 <= u < 1):
        raise ValueError(f"{name} must be in [0, 1), got {u!r}")
    return u


def rejection_accept(p_x, q_x, u):
    if not (is_number(p_x) and is_number(q_x)):
        raise ValueError("numbers wanted")
    if not (0 <= p_x < np.inf) or not (0 < q_x < np.inf):
        raise ValueError(f"bad probabilities {p_x}, {q_x}")
    check_u(u)
    ratio = float(p_x) / float(q_x)
    return bool(u < ratio)


def acceptance_probability(p, q):
    p, q = check_pair(p, q)
    return float(np.cumsum(np.minimum(p, q))[-1])


def positive_part(p, q):
    d = np.maximum(p - q, 0.0)
    z = np.cumsum(d)[-1]
    return d / z if z != 0.0 else p.copy()


def residual_distribution(p, q):
    return positive_part(*check_pair(p, q))


def pick(w, u):
    cdf = np.cumsum(w)
    hits = np.nonzero(u < cdf)[0]
    if hits.size:
        return int(hits[0])
    return int(np.nonzero(w)[0][-1])


def speculative_step(p, q, x, u_accept, u_resample):
    p, q = check_pair(p, q)
    if not isinstance(x, int) or isinstance(x, bool) or not 0 <= x < p.size:
        raise ValueError(f"x must be an id, got {x!r}")
    if q[x] == 0.0:
        raise ValueError(f"q[{x}] is 0, so {x} was not drawn from q")
    check_u(u_accept, "u_accept")
    if rejection_accept(float(p[x]), float(q[x]), u_accept):
        return (x, True)
    check_u(u_resample, "u_resample")
    return (pick(positive_part(p, q), u_resample), False)


def rejection_sample(p, q, m, rng, max_tries=10000):
    p, q = check_pair(p, q)
    if not is_number(m) or not (1 <= m < np.inf):
        raise ValueError(f"m must be finite and >= 1, got {m!r}")
    if not isinstance(max_tries, int) or isinstance(max_tries, bool) or max_tries < 1:
        raise ValueError("max_tries must be an int >= 1")
    envelope = float(m) * q
    if np.any(p > envelope):
        raise ValueError("m * q does not cover p")
    tries = 0
    while tries < max_tries:
        tries += 1
        x = sample_categorical(q, rng.uniform())
        u = rng.uniform()
        if u < p[x] / envelope[x]:
            return (x, tries)
    raise RuntimeError(f"{max_tries} tries were all rejected")
