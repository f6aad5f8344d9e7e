"""The reference of `perf_gate`: the spec's numbers, naive twins, messages, and what no fixture sees."""

from __future__ import annotations

import inspect
import math
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import perf_gate

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "perf_gate"
NAIVE = import_file(FOLDER / "baseline" / "naive.py", "perf_gate_naive")
EQUIVALENTS = [
    import_file(path, f"perf_gate_{path.stem}") for path in sorted((FOLDER / "equivalents").glob("*.py"))
]
ALL = [perf_gate, *EQUIVALENTS]
ODD = [0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-45]


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def f32(*values: Any) -> Any:
    return np.array(values, np.float32)


def u24(r: Any, *shape: int) -> Any:
    """Multiples of 2^-23 in [-1, 1): their sums, and sums of up to 128 of their products, are exact."""
    return ((r.integers(0, 2**24, shape) - 2**23) * 2.0**-23).astype(np.float32)


class Bench:
    """A call and a clock in one: a call takes the next of `costs`, the clock steps by `tick` when read."""

    def __init__(self, costs: Callable[[int], float], tick: float = 0.0) -> None:
        self.costs, self.tick, self.now, self.calls, self.readings = costs, tick, 0.0, 0, 0

    def fn(self) -> None:
        self.now += self.costs(self.calls)
        self.calls += 1

    def clock(self) -> float:
        self.readings += 1
        self.now += self.tick
        return self.now


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    readings, calls = iter([10, 10.25, 20, 20.5, 30, 31, 40, 40.75, 50, 51.5]), []
    samples = module.measure(lambda: calls.append(1), 2, 1.0, lambda: next(readings))
    assert samples == [0.25, 0.1875]
    assert len(calls) == 20
    assert next(readings, None) is None
    assert module.decide([8, 9, 12], [14, 10, 11], 0.25) == "ok"
    assert module.decide([8, 9, 12], [14, 10.5, 11], 0.25) == "regression"


def test_the_smaller_examples(module: Any) -> None:
    product = module.kata_matmul(f32([1, 2], [3, 4]), f32([5, 6], [7, 8]))
    assert product.tolist() == [[19, 22], [43, 50]]
    assert module.kata_matmul(f32([16777216, 1, -16777216]), f32([1], [1], [1])).tolist() == [[1]]
    empty = module.kata_matmul(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))
    assert empty.tolist() == [[0] * 3] * 2
    assert math.isnan(module.kata_matmul(f32([0, 1]), f32([math.inf], [2]))[0, 0])
    assert module.kata_sum(f32(16777216, 1, 1)) == 16777218.0
    assert module.kata_sum(f32(16777216, 1)) == 16777217.0
    assert module.kata_rmsnorm(f32(1, 7), f32(1, 2)).tolist() == f32(0.2, 2.8).tolist()
    assert module.kata_rmsnorm(f32(3e38, 3e38), f32(1, 1)).tolist() == [1, 1]
    assert module.kata_rmsnorm(f32(1, 1), f32(1, 1), 3).tolist() == [0.5, 0.5]
    assert module.kata_count_below(f32(1, 2, 2, 2, 5), 2) == 1
    assert module.kata_count_below(f32(0.1), 0.1000000015) == 1
    assert module.kata_count_below(f32(1, 2, math.nan, math.nan), math.inf) == 2
    for readings, reps, want in (
        ([0, 1, 10, 11], 2, [1.0, 1.0]),
        ([5, 5, 5, 4, 0, 8], 1, [2.0]),
        ([7] * 34, 1, [0.0]),
    ):
        left = iter(readings)
        assert module.measure(lambda: None, reps, 1, lambda left=left: next(left)) == want
        assert next(left, None) is None
    assert module.decide([8, 8], [10, 10], 0.25) == "ok"
    assert module.decide([8, 8], [10.000000000000002, 11], 0.25) == "regression"
    assert module.decide([3, 3], [3.3000000000000003, 4], 0.1) == "ok"


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    want: dict[str, list[Any]] = {
        "kata_matmul": ["a", "b"],
        "kata_sum": ["x"],
        "kata_rmsnorm": ["x", "weight", ("eps", 1e-6)],
        "kata_count_below": ["values", "x"],
        "measure": ["fn", "reps", "min_s", "clock"],
        "decide": ["base", "head", "max_regression"],
    }
    for f, parameters in want.items():
        got = inspect.signature(getattr(module, f)).parameters.values()
        assert [x.name if x.default is x.empty else (x.name, x.default) for x in got] == parameters


# against plain loops


@pytest.mark.parametrize("seed", range(12))
def test_kernels_beside_the_naive_ones(module: Any, seed: int) -> None:
    r = np.random.default_rng(seed)
    N, D, F = (int(n) for n in r.integers(0, 20, 3))
    a, b = u24(r, N, D), u24(r, D, F)
    assert np.array_equal(module.kata_matmul(a, b), NAIVE.kata_matmul(a, b))
    x = u24(r, int(r.integers(0, 900)))
    assert module.kata_sum(x) == NAIVE.kata_sum(x)
    x, weight = u24(r, 2, N, D + 1), u24(r, D + 1)
    np.testing.assert_array_max_ulp(module.kata_rmsnorm(x, weight), NAIVE.kata_rmsnorm(x, weight), 1)
    dtype = (np.float32, np.float64)[seed % 2]
    values = np.sort(r.choice([*r.random(5), *ODD], N)).astype(dtype)
    for x in [*values.tolist(), *r.random(5).tolist(), 0, 1, 2**53 + 1]:
        if x == x:
            assert module.kata_count_below(values, x) == NAIVE.kata_count_below(values, x)


@pytest.mark.parametrize("seed", range(8))
def test_odd_values_beside_the_naive_ones(module: Any, seed: int) -> None:
    r = np.random.default_rng(seed)

    def odd(*shape: int) -> Any:
        x = u24(r, *shape)
        return np.where(r.random(shape) < 0.1, r.choice(ODD, shape), x).astype(np.float32)

    a, b, x, weight = odd(7, 9), odd(9, 5), odd(6, 9), u24(r, 9)
    np.testing.assert_array_max_ulp(module.kata_matmul(a, b), NAIVE.kata_matmul(a, b), 1)
    np.testing.assert_array_max_ulp(module.kata_rmsnorm(x, weight), NAIVE.kata_rmsnorm(x, weight), 1)
    for row in a:
        assert str(module.kata_sum(row)) == str(NAIVE.kata_sum(row))


def test_tiles_have_seams(module: Any) -> None:
    """Widths around one and two tiles of the reference, in each place; integers, so sums are exact."""
    r = np.random.default_rng(5)
    for N, D, F in ((1, 127, 129), (3, 128, 128), (2, 129, 257), (1, 300, 1), (130, 1, 1)):
        a, b = (r.integers(-1000, 1000, shape).astype(np.float32) for shape in ((N, D), (D, F)))
        want = a.astype(np.int64) @ b.astype(np.int64)
        assert np.array_equal(module.kata_matmul(a, b), want.astype(np.float32))


def test_any_layout_will_do(module: Any) -> None:
    r = np.random.default_rng(6)
    a, b, x = u24(r, 8, 6), u24(r, 12, 5), u24(r, 4, 3, 20)
    for left, right in ((a[::-2], b[::2]), (a.T[:, ::-1], u24(r, 5, 8).T), (a[:, :5], b[:5])):
        assert np.array_equal(module.kata_matmul(left, right), module.kata_matmul(left.copy(), right.copy()))
    assert module.kata_sum(a.T[1]) == module.kata_sum(a.T[1].copy())
    view, weight = x.transpose(1, 0, 2)[..., ::-3], u24(r, 14)[::2]
    assert np.array_equal(module.kata_rmsnorm(view, weight), module.kata_rmsnorm(view.copy(), weight.copy()))
    values = np.sort(u24(r, 99))[::7]
    assert module.kata_count_below(values, 0.25) == int((values < 0.25).sum())


def test_answers_share_no_memory_and_arguments_stay(module: Any) -> None:
    a, weight = f32([1, 2], [3, 4]), f32(1, 1)
    for array in (a, weight):
        array.setflags(write=False)
    for f, arguments in ((module.kata_matmul, (a, a)), (module.kata_rmsnorm, (a, weight))):
        first, second = f(*arguments), f(*arguments)
        assert first.flags.writeable
        assert first.dtype == np.float32
        assert not any(np.shares_memory(p, q) for p, q in ((first, second), (first, a), (first, weight)))
    assert type(module.kata_sum(weight)) is float
    assert type(module.kata_count_below(weight, 2.0)) is int


def plain_measure(fn: Any, reps: int, min_s: float, clock: Any) -> list[float]:
    """R21 to R28 once more, as a table of batch sizes."""
    fn()
    samples, n = [], 1
    while len(samples) < reps:
        t = clock()
        [fn() for _ in range(n)]
        t = clock() - t
        if n < 65536 and (not t >= min_s):
            n = 2 * n
        else:
            samples.append(t / n)
    return samples


@pytest.mark.parametrize("seed", range(10))
def test_measure_beside_a_plain_one(module: Any, seed: int) -> None:
    r = np.random.default_rng(seed)
    costs = r.choice([0.0, 0.125, 0.25, -0.5, 1.0, 3.0, math.nan][: 2 + seed % 6], 4096).tolist()
    answers = []
    for f in (plain_measure, module.measure):
        bench = Bench(lambda i: costs[i % 4096], 0.0625)
        answers.append((str(f(bench.fn, 3, 0.75, bench.clock)), bench.calls, bench.readings))
    assert answers[0] == answers[1]


def test_decide_beside_a_plain_one(module: Any) -> None:
    r = np.random.default_rng(9)
    pool: list[Any] = [
        0.5,
        1,
        1.0,
        1.25,
        1.5,
        1.1,
        math.nextafter(1.1, 2),
        1.8,
        2,
        0.0,
        -1.0,
        None,
        True,
        "1",
    ]
    pool += [math.nan, math.inf]
    seen = set()
    for _ in range(3000):
        size = 9 if r.random() < 0.8 else len(pool)
        base, head = ([pool[i] for i in r.integers(0, size, r.integers(0, 5))] for _ in range(2))
        budget = float(r.choice([0.1, 0.2, 0.25, 0.5]))
        good = [type(s) in (int, float) and math.isfinite(s) and s > 0 for s in base + head]
        if len(base) > 1 < len(head) and all(good):
            want = "regression" if min(head) > min(base) * (1 + budget) else "ok"
        else:
            want = "undecided"
        seen.add(want)
        assert module.decide(base, head, budget) == want, (base, head, budget)
    assert len(seen) == 3


# errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("kata_matmul", np.ones((2, 2)), f32([1])), "a must be a float32 array, got float64"),
        (("kata_matmul", f32([1]), np.ones((1, 1), int)), "b must be a float32 array, got int64"),
        (("kata_matmul", [[1.0]], f32([1])), "a must be a float32 array, got list"),
        (("kata_matmul", f32(1), f32([1])), "a and b must have two axes, got 1 and 2"),
        (("kata_matmul", f32([1]), f32([[1]])), "a and b must have two axes, got 2 and 3"),
        (("kata_matmul", f32([1, 2]), f32([1])), "b must have 2 rows, as many as a has columns, got 1"),
        (("kata_sum", np.ones(2, np.float16)), "x must be a float32 array, got float16"),
        (("kata_sum", f32([1])), "x must have one axis, got 2"),
        (("kata_rmsnorm", np.ones(2), f32(1, 1)), "x must be a float32 array, got float64"),
        (("kata_rmsnorm", f32(1, 1), np.ones(2)), "weight must be a float32 array, got float64"),
        (("kata_rmsnorm", np.array(1, np.float32), f32(1)), r"at least one axis and one column, .* \(\)"),
        (
            ("kata_rmsnorm", np.ones((2, 0), np.float32), f32()),
            r"at least one axis and one column, .* \(2, 0\)",
        ),
        (("kata_rmsnorm", f32(1, 1), f32(1)), r"weight must have the shape \(2,\), got \(1,\)"),
        (("kata_rmsnorm", f32(1, 1), f32([1, 1])), r"weight must have the shape \(2,\), got \(1, 2\)"),
        *[
            (("kata_rmsnorm", f32(1, 1), f32(1, 1), eps), f"eps must be finite and above 0, got {eps!r}")
            for eps in (0, 0.0, -1e-6, math.nan, math.inf, True, None)
        ],
        (("kata_count_below", np.ones(2, int), 1.0), "values must be a float32 or float64 array, got int64"),
        (("kata_count_below", f32([1]), 1.0), "values must have one axis, got 2"),
        *[
            (("kata_count_below", f32(1), x), f"x must be an int or a float and no NaN, got {x!r}")
            for x in (math.nan, True, None)
        ],
        *[
            (("decide", [1.0], [], x), f"max_regression must be above 0 and below 1, got {x!r}")
            for x in (0, 1, -0.1, 30, math.nan, math.inf, True, None)
        ],
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused_arguments(module: Any, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message if module is perf_gate else None):
        getattr(module, call[0])(*call[1:])


@pytest.mark.parametrize(
    ("reps", "min_s", "message"),
    [
        *[(x, 1, f"reps must be an int and at least 1, got {x!r}") for x in (0, -1, 1.0, True, None)],
        *[
            (1, x, f"min_s must be finite and above 0, got {x!r}")
            for x in (0, -1.0, math.nan, math.inf, True, None)
        ],
    ],
)
def test_refused_measurements(module: Any, reps: Any, min_s: Any, message: str) -> None:
    bench = Bench(lambda i: 1.0)
    with pytest.raises(ValueError, match=message if module is perf_gate else None):
        module.measure(bench.fn, reps, min_s, bench.clock)
    assert (bench.calls, bench.readings) == (0, 0)


@pytest.mark.parametrize("error", [RuntimeError, StopIteration, KeyboardInterrupt])
def test_errors_of_others_come_through(module: Any, error: Any) -> None:
    for when in (0, 1, 2, 5):
        bench = Bench(lambda i: 1.0)

        def fn(when: int = when, bench: Bench = bench) -> None:
            if bench.calls == when:
                raise error
            bench.fn()

        with pytest.raises(error):
            module.measure(fn, 3, 2.0, bench.clock)
        assert bench.calls == when

    left = [1, 2, 3]

    def clock() -> int:
        if not left:
            raise error
        return left.pop(0)

    with pytest.raises(error):
        module.measure(lambda: None, 3, 2.0, clock)


# what no fixture sees


def peak_bytes(f: Any, *arguments: Any) -> int:
    f(*arguments)
    tracemalloc.start()
    try:
        f(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_the_kernels() -> None:
    """Nothing is widened as a whole, but for a row block of rmsnorm; a search allocates next to nothing."""
    x = np.ones(1 << 20, np.float32)
    assert peak_bytes(perf_gate.kata_sum, x) < x.nbytes // 8
    assert peak_bytes(perf_gate.kata_count_below, x, 1.0) < 4096
    a = np.ones((64, 2048), np.float32)
    b = np.ones((2048, 512), np.float32)
    assert peak_bytes(perf_gate.kata_matmul, a, b) < b.nbytes // 4
    assert peak_bytes(perf_gate.kata_rmsnorm, b, np.ones(512, np.float32)) < 3.2 * b.nbytes


def test_a_search_reads_a_few_elements_of_many(module: Any) -> None:
    """2^40 elements that share one place: whatever reads, copies or converts them all does not come back."""
    values = np.broadcast_to(np.float32(1.0), (2**40,))
    assert [module.kata_count_below(values, x) for x in (1.0, 1.5)] == [0, 2**40]


def test_kernels_leave_the_naive_ones_behind() -> None:
    """A factor of 5 where more than 50 was measured, so that a busy machine does not decide."""
    r = np.random.default_rng(7)
    a, x = u24(r, 48, 48), u24(r, 1 << 14)
    rows, weight = u24(r, 16, 512), u24(r, 512)
    for f, arguments in (
        ("kata_matmul", (a, a)),
        ("kata_sum", (x,)),
        ("kata_rmsnorm", (rows, weight)),
        ("kata_count_below", (np.sort(x), 0.5)),
    ):
        base, head = (
            perf_gate.measure(partial(getattr(m, f), *arguments), 3, 1e-3, time.perf_counter)
            for m in (NAIVE, perf_gate)
        )
        assert 5 * min(head) < min(base), f


def test_a_real_clock_gives_samples_that_decide_accepts() -> None:
    sides = [perf_gate.measure(lambda: sum(range(2000)), 5, 2e-3, time.perf_counter) for _ in range(2)]
    assert perf_gate.decide(*sides, 0.9) in ("ok", "regression")
    assert all(type(sample) is float for side in sides for sample in side)
