"""The reference of `rejection`: the spec's numbers, the equivalents' bits, and what no fixture sees."""

from __future__ import annotations

import inspect
import math
import struct
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import rejection
from impl.rng import PCG32

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "rejection" / "equivalents"
EQUIVALENTS = [import_file(path, f"rejection_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [rejection, *EQUIVALENTS]
LAST = 1.0 - 2.0**-53
P, Q = np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.5, 0.0, 0.25])
HALVES = np.array([0.5, 0.5])


class Scripted:
    """Hands out the given numbers and has no attribute but `uniform`, `left` and `calls`."""

    def __init__(self, *numbers: float) -> None:
        self.left, self.calls = list(numbers), 0

    def uniform(self) -> float:
        self.calls += 1
        return self.left.pop(0)


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    assert module.acceptance_probability(P, Q) == 0.5
    assert module.residual_distribution(P, Q).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert module.speculative_step(P, Q, 1, 0.25, None) == (1, True)
    assert module.speculative_step(P, Q, 1, 0.75, 0.75) == (2, False)
    assert module.speculative_step(P, Q, 1, 0.5, 0.25) == (0, False)
    rng = PCG32(1)
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    assert module.rejection_sample(p, q, 2, rng) == (0, 3)
    after = PCG32(1)
    after.uniforms(6)
    assert rng.uniform() == after.uniform()


def test_small_examples(module: Any) -> None:
    accept, overlap, residual = (
        module.rejection_accept,
        module.acceptance_probability,
        module.residual_distribution,
    )
    near = np.array([0.5, 0.5 + 2e-9])
    assert overlap(near, near) == 0.5 + (0.5 + 2e-9)
    with pytest.raises(ValueError):
        overlap(*[np.array([0.5, 0.5 + 2.1e-9])] * 2)
    one_hot = np.array([1.0, 0.0])
    assert module.speculative_step(HALVES, one_hot, 0, 0.499, 0) == (0, True)
    assert module.speculative_step(HALVES, one_hot, 0, 0.5, 0) == (1, False)
    assert [accept(0, 0.5, 0), accept(0.5, 0.5, 0.999)] == [False, True]
    assert 0.1 * 0.57 < 0.057
    assert [accept(0.057, 0.57, 0.1), accept(5e-324, 2, 0), accept(1, 5e-324, 0.999)] == [False, False, True]
    assert overlap(*[np.full(10, 0.1)] * 2) == 0.9999999999999999
    assert overlap(*[np.full(9, 1 / 9)] * 2) == 1.0000000000000002
    got = residual(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]))
    assert got.tolist() == [0.75, 0.24999999999999997, 0.0]
    short = np.array([0.5, 0.5 - 1e-12])
    assert residual(short, HALVES).tolist() == short.tolist()
    assert residual(np.array([0.1 + 0.2, 0.7]), np.array([0.3, 0.7])).tolist() == [1.0, 0.0]
    assert module.speculative_step(short, HALVES, 1, LAST, 0.75) == (1, False)
    low = np.array([0.5, 0.5 - 1e-9, 0.0])
    assert module.rejection_sample(low, low, 1, Scripted(LAST, 0.0)) == (1, 1)
    with pytest.raises(ValueError):
        module.rejection_sample(np.array([0.228, 0.772]), np.array([0.19, 0.81]), 1.2, Scripted())
    p, q = np.array([0.05, 0.95]), np.array([0.07, 0.93])
    assert module.rejection_sample(p, q, 1.1, Scripted(0.0, math.nextafter(0.6493506493506492, 0.0))) == (
        0,
        1,
    )
    with pytest.raises(RuntimeError):
        module.rejection_sample(p, q, 1.1, Scripted(0.0, 0.6493506493506492), 1)


# the equivalents


def random_pair(seed: int) -> tuple[Any, Any, Any]:
    """A pair of distributions with zeros, equal entries and vanishing differences, and the generator."""
    r = np.random.default_rng(seed)
    N = int(r.choice([1, 2, 3, 7, 40, 300]))
    rows = []
    for _ in range(2):
        if r.random() < 0.5:
            rows.append(r.multinomial(64, np.full(N, 1 / N)) / 64)
        else:
            row = r.random(N) * (r.random(N) < 0.7) + 1e-12
            rows.append(row / row.sum())
    p, q = rows
    kind = r.integers(6)
    if kind == 0:
        q = p.copy()
    elif kind == 1:
        q = np.eye(N)[r.integers(N)]
    elif kind == 2:
        q = np.where(r.random(N) < 0.5, np.nextafter(p, r.choice([0.0, 1.0])), p)
    elif kind == 3:
        p = p * (1.0 - 5e-10 * min(N, 2))
    if kind == 4 and all((x * 64 == np.round(x * 64)).all() for x in rows):
        return p.astype(np.float16), q.astype(np.float32), r
    return p, q, r


def bits(value: Any) -> Any:
    """Every bit of an answer and its types, the sign of a zero excepted."""
    if isinstance(value, np.ndarray):
        assert value.dtype == np.float64
        return (value + 0.0).tobytes()
    if isinstance(value, tuple):
        return [(type(item), item) for item in value]
    assert type(value) is float
    return struct.pack("<d", value + 0.0)


def answers(module: Any, seed: int) -> list[Any]:
    p, q, r = random_pair(seed)
    out = [bits(module.acceptance_probability(p, q)), bits(module.residual_distribution(p, q))]
    edges = np.cumsum(module.residual_distribution(p, q)).tolist()
    for x in np.flatnonzero(q)[:5].tolist():
        ratio = float(p[x]) / float(q[x])
        for u in (0.0, ratio, math.nextafter(ratio, 0.0), LAST, float(r.random())):
            if not 0.0 <= u < 1.0:
                continue
            assert module.rejection_accept(float(p[x]), float(q[x]), u) is (u < ratio)
            for v in (0.0, LAST, edges[r.integers(len(edges))], float(r.random())):
                if v < 1.0:
                    out.append(bits(module.speculative_step(p, q, x, u, v)))
    wide_p, wide_q = p.astype(np.float64), q.astype(np.float64)
    if (wide_p[wide_q == 0.0] == 0.0).all():
        m = float(max(1.0, (wide_p[wide_q > 0.0] / wide_q[wide_q > 0.0]).max())) * (1.0 + 1e-15)
        if math.isfinite(m):
            rng = PCG32(seed)
            for _ in range(5):
                try:
                    out.append(bits(module.rejection_sample(p, q, m, rng, 20)))
                except RuntimeError:
                    out.append("too many tries")
            out.append(rng.uniform())
    return out


def test_the_equivalents_give_the_same_bits() -> None:
    assert len(EQUIVALENTS) >= 3
    for seed in range(400):
        want = answers(rejection, seed)
        for other in EQUIVALENTS:
            assert answers(other, seed) == want, (other.__name__, seed)


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    """What the spec's Shapes block says of names, order and defaults."""
    want: dict[str, list[Any]] = {
        "rejection_accept": ["p_x", "q_x", "u"],
        "acceptance_probability": ["p", "q"],
        "residual_distribution": ["p", "q"],
        "speculative_step": ["p", "q", "x", "u_accept", "u_resample"],
        "rejection_sample": ["p", "q", "m", "rng", ("max_tries", 10000)],
    }
    for f, parameters in want.items():
        got = inspect.signature(getattr(module, f)).parameters.values()
        assert [x.name if x.default is x.empty else (x.name, x.default) for x in got] == parameters


# errors


def match(module: Any, message: str) -> str | None:
    return message if module is rejection else None  # message texts are the reference's own


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (np.full((1, 2), 0.5), "must be an array with one axis, got 2 axes"),
        (np.array(1.0), "must be an array with one axis, got 0 axes"),
        (np.zeros(0), "is empty"),
        (np.array([1, 0]), "must be float16, float32 or float64, got int64"),
        (np.array([True, False]), "must be float16, float32 or float64, got bool"),
        (np.array([0.5, math.nan]), "must be finite and at least 0"),
        (np.array([0.5, math.inf]), "must be finite and at least 0"),
        (np.array([1.5, -0.5]), "must be finite and at least 0"),
        (np.array([0.5, 0.4]), r"must sum to 1, got 0\.9"),
        (np.array([0.1, 0.9], np.float32), r"must sum to 1, got 0\.99"),
        (np.array([1.0]), "must have one length"),
        (np.array([0.5, 0.25, 0.25]), "must have one length"),
    ],
    ids=repr,
)
def test_refused_arrays(module: Any, w: Any, message: str) -> None:
    for p, q, which in ((w, HALVES, "p"), (HALVES, w, "q")):
        text = message if message.startswith("must have one length") else f"{which} {message}"
        rng = Scripted(0.0, 0.0)
        for f, more in (
            ("acceptance_probability", ()),
            ("residual_distribution", ()),
            ("speculative_step", (0, 0.0, 0.0)),
            ("rejection_sample", (2.0, rng)),
        ):
            with pytest.raises(ValueError, match=match(module, text)):
                getattr(module, f)(p, q, *more)
        assert rng.calls == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.1, 1.0, 0.0), "p_x must be finite and at least 0"),
        ((math.nan, 1.0, 0.0), "p_x must be finite and at least 0"),
        ((math.inf, 1.0, 0.0), "p_x must be finite and at least 0"),
        ((0.3, 0.0, 0.0), "q_x must be finite and above 0"),
        ((0.0, 0.0, 0.0), "q_x must be finite and above 0"),
        ((0.3, -0.1, 0.0), "q_x must be finite and above 0"),
        ((0.3, math.nan, 0.0), "q_x must be finite and above 0"),
        ((0.3, math.inf, 0.0), "q_x must be finite and above 0"),
        ((0.5, 0.5, 1.0), r"u must be in \[0, 1\), got 1\.0"),
        ((0.5, 0.5, 1), r"u must be in \[0, 1\)"),
        ((0.5, 0.5, -1e-300), r"u must be in \[0, 1\)"),
        ((0.5, 0.5, math.nan), r"u must be in \[0, 1\)"),
        ((True, 0.5, 0.0), "p_x must be an int or a float, got True"),
        ((0.5, True, 0.0), "q_x must be an int or a float, got True"),
        ((0.5, 0.5, False), "u must be an int or a float, got False"),
        (("0.5", 0.5, 0.0), "p_x must be an int or a float, got '0.5'"),
        ((0.5, None, 0.0), "q_x must be an int or a float, got None"),
    ],
)
def test_refused_numbers_of_the_test(module: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=match(module, message)):
        module.rejection_accept(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 0.0, 0.0), r"x must be in \[0, 4\), got 4"),
        ((-1, 0.0, 0.0), r"x must be in \[0, 4\), got -1"),
        ((2, 0.0, 0.0), r"x must be drawn from q, but q\[2\] is 0"),
        ((1.0, 0.0, 0.0), "x must be an int, got 1.0"),
        ((True, 0.0, 0.0), "x must be an int, got True"),
        ((1, 1.0, 0.0), r"u must be in \[0, 1\)"),
        ((1, False, 0.0), "u must be an int or a float"),
        ((1, 0.75, 1.0), r"u_resample must be in \[0, 1\), got 1\.0"),
        ((1, 0.75, math.nan), r"u_resample must be in \[0, 1\)"),
        ((1, 0.75, None), "u_resample must be an int or a float, got None"),
        ((1, 0.75, False), "u_resample must be an int or a float, got False"),
    ],
)
def test_refused_drafts(module: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=match(module, message)):
        module.speculative_step(P, Q, *arguments)


@pytest.mark.parametrize(
    ("m", "max_tries", "message"),
    [
        (0.999, 9, "m must be finite and at least 1, got 0.999"),
        (0.9999999995, 9, "m must be finite and at least 1"),
        (math.nan, 9, "m must be finite and at least 1, got nan"),
        (math.inf, 9, "m must be finite and at least 1, got inf"),
        (True, 9, "m must be an int or a float, got True"),
        ("2", 9, "m must be an int or a float, got '2'"),
        (2, 0, "max_tries must be at least 1, got 0"),
        (2, 1.0, "max_tries must be an int, got 1.0"),
        (2, True, "max_tries must be an int, got True"),
    ],
)
def test_refused_envelopes_and_tries(module: Any, m: Any, max_tries: Any, message: str) -> None:
    p, rng = np.array([0.5 - 6e-10, 0.5 - 6e-10]), Scripted(0.0, 0.0)
    with pytest.raises(ValueError, match=match(module, message)):
        module.rejection_sample(p, HALVES, m, rng, max_tries)
    assert rng.calls == 0
    assert module.rejection_sample(p, HALVES, 1, rng, 1) == (0, 1)


def test_an_envelope_must_cover_p(module: Any) -> None:
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    assert module.rejection_sample(p, q, 1.5, Scripted(0.5, LAST)) == (1, 1)
    rng = Scripted()
    with pytest.raises(ValueError, match=match(module, "at id 1 0.75 is above 0.7499")):
        module.rejection_sample(p, q, math.nextafter(1.5, 0.0), rng)
    with pytest.raises(ValueError):
        module.rejection_sample(P, Q, 1e300, rng)


def test_rejected_tries_end_in_an_error(module: Any) -> None:
    rng = Scripted(*[0.0, 0.5] * 4)
    with pytest.raises(RuntimeError, match=match(module, "none of 3 proposals was accepted")):
        module.rejection_sample(HALVES, HALVES[::-1], 2, rng, 3)
    assert rng.calls == 6


# what no fixture sees


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_answers_share_no_memory_and_arguments_stay(module: Any, dtype: Any) -> None:
    p, q = P.astype(dtype), Q.astype(dtype)
    for array in (p, q):
        array.setflags(write=False)
    for pair in ((p, q), (p, p), (p, p.copy())):
        rows = [module.residual_distribution(*pair) for _ in range(2)]
        assert not any(np.shares_memory(a, b) for a, b in ((rows[0], p), (rows[0], q), (rows[0], rows[1])))
        assert rows[0].flags.writeable
        module.acceptance_probability(*pair)
        module.speculative_step(*pair, 1, 0.9, 0.5)
        module.rejection_sample(pair[0], pair[0], 1, Scripted(0.5, 0.5))


def test_any_layout_will_do(module: Any) -> None:
    wide = np.array([0.5, 9.0, 0.125, 9.0, 0.375, 9.0])
    p, q = wide[::2], wide[4::-2]
    assert bits(module.residual_distribution(p, q)) == bits(module.residual_distribution(p.copy(), q.copy()))
    assert module.residual_distribution(p.astype(">f8"), q).tolist() == [1.0, 0.0, 0.0]


def test_the_law_of_a_step_is_exactly_p(module: Any) -> None:
    """Every draft, and each cell of a grid of uniforms that refines all boundaries: 1/8 is a common unit."""
    p, q = np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.5, 0.125, 0.125])
    law = [Fraction(0)] * 4
    grid = [(i + 0.5) / 24 for i in range(24)]
    for x in range(4):
        for u in grid:
            for v in grid:
                y, _ = module.speculative_step(p, q, x, u, v)
                law[y] += Fraction(float(q[x])) / 24**2
    assert law == [Fraction(float(v)) for v in p]


def test_tries_are_geometric_and_ids_have_the_law_of_p() -> None:
    """Mean m and standard deviation sqrt(m (m - 1)), within 4 standard errors; the seed is fixed."""
    p, q, m, n = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5]), 2.0, 3000
    rng = PCG32(5)
    pairs = [rejection.rejection_sample(p, q, m, rng) for _ in range(n)]
    mean = sum(tries for _, tries in pairs) / n
    assert abs(mean - m) < 4 * math.sqrt(m * (m - 1) / n)
    counts = [sum(x == i for x, _ in pairs) for i in range(3)]
    assert sum((counts[i] - n * p[i]) ** 2 / (n * p[i]) for i in range(3)) < 13.816  # 0.001, 2 degrees
