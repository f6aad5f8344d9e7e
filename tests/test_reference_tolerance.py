"""The reference tolerances: the spec's numbers, the same answers as the equivalents, and bounds that hold."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import tolerance

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tolerance" / "equivalents"
EQUIVALENTS = [import_file(path, f"equivalent_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
P = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
P |= {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
NAN, INF = math.nan, math.inf
OVERFLOW = 10**400


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=[tolerance, *EQUIVALENTS], ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def near(got: float, want: float, rtol: float = 1e-12) -> bool:
    return got == want or abs(got - want) <= rtol * abs(want)


def is_close(module: Any, *args: Any, **more: Any) -> bool:
    try:
        assert module.assert_close_bounded(*args, **more) is None
    except AssertionError:
        return False
    return True


# the spec's own numbers


def test_there_are_equivalents() -> None:
    assert len(EQUIVALENTS) >= 3


def test_worked_example(module: Any) -> None:
    ones, x = np.ones(3, np.float32), np.array([1, 1e-8, 1e-8], np.float32)
    got = np.cumsum(x * ones, dtype=np.float32)[-1]
    d = 1.0 + 1e-8 + 1e-8
    assert (float(got), d) == (1.0, 1.0000000199999999)
    bound = module.dot_error_bound(3, "f32", d)
    assert (bound.shape, float(bound)) == ((), 1.7881396987688e-07)
    assert module.bound_ratio(got, d, bound) == 0.1118480837499515
    assert is_close(module, got, d, 3, "f32", d)
    assert near(module.cond([[1, 1], [1, 1.0001]]), 40002.0000750, 1e-10)


def test_small_examples(module: Any) -> None:
    assert (module.gamma(15, "e4m3"), module.gamma(255, "bf16"), module.gamma(3, "f32")) == (
        15.0, 255.0, 1.788139663006007e-07,
    )  # fmt: skip
    assert module.sum_error_bound(4, "f16", 8) == 0.0117359413202934
    assert module.dot_error_bound(4, "f16", 8) == 0.015655577299412915
    assert module.sum_error_bound(1, "f16", 8) == 0.0
    assert module.sum_error_bound(16, "e4m3", 1.0) == 15.0
    A, B, dA = [[1, -2], [3, 0]], [[0.5], [-1]], [[0.25, 0], [0, 0.5]]
    np.testing.assert_allclose(
        module.matmul_error_bound(A, B, "bf16", dA), [[0.14566929133858267], [0.515748031496063]], 1e-12
    )
    np.testing.assert_allclose(
        module.matmul_error_bound(A, B, "bf16"), [[0.01968503937007874], [0.011811023622047244]], 1e-12
    )
    assert is_close(module, 4.0, 0, 8, "e4m3", 1)
    assert not is_close(module, 4.000000000000001, 0, 8, "e4m3", 1)
    assert module.bound_ratio([1, 0, 3], [0, 0, 0], [2, 0, 4]) == 0.75
    assert near(module.cond([[1, 2, 3], [4, 5, 6]]), 12.3022455041, 1e-11)
    assert near(module.cond(np.eye(2) * 1e-100), 1.0)
    assert module.cond([[1, 2, 3], [2, 4, 6]]) == module.cond([[0, 0], [0, 0]]) == INF
    conditions = [(2, 0.25, 4), (0.5, 1, 1.5), (0, 1, 1), (0, 0, 0), (2.0, -0.5, 4)]
    assert [module.relative_condition(*c) for c in conditions] == [0.5, 3.0, INF, 0.0, 1.0]
    assert near(module.fd_error_model(0.5, 1, "f16", 3, 2), 0.505859375)
    assert near(module.fd_error_model(0.5, 2, "f16", 3, 2), 0.08626302083333333)
    assert near(module.optimal_fd_step(1, "f64"), 2.0**-25.5)
    assert near(module.optimal_fd_step(2, "f64"), 6.93176495678764e-06)
    assert near(module.optimal_fd_step(1, "f32", 4, 1), 0.0009765625)


# formats and gamma


@pytest.mark.parametrize("dtype", P)
def test_the_ends_of_a_format(module: Any, dtype: str) -> None:
    top = 2 ** P[dtype]
    assert module.unit_roundoff(dtype) == 1.0 / top
    assert [module.gamma(k, dtype) for k in (0, 1, top - 1)] == [0.0, 1.0 / (top - 1), top - 1.0]
    assert module.sum_error_bound(top, dtype, 1) == module.dot_error_bound(top - 1, dtype, 1) == top - 1.0
    for k in (-1, top, OVERFLOW, -OVERFLOW, 10**5000):
        with pytest.raises(ValueError, match="needs 0 <= k < 2" if module is tolerance else None):
            module.gamma(k, dtype)
    for f, bad in ((module.sum_error_bound, (0, -1, top + 1)), (module.dot_error_bound, (0, -1, top))):
        for k in bad:
            with pytest.raises(ValueError, match="k" if module is tolerance else None):
                f(k, dtype, [])


@pytest.mark.parametrize("dtype", ["", "F32", "f32 ", "int8", "double", "e3m4", "f"])
def test_unknown_formats(module: Any, dtype: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: module.unit_roundoff(dtype),
        lambda: module.gamma(0, dtype),
        lambda: module.sum_error_bound(1, dtype, []),
        lambda: module.dot_error_bound(1, dtype, []),
        lambda: module.matmul_error_bound([[1]], [[1]], dtype),
        lambda: module.assert_close_bounded([], [], 1, dtype, 1),
        lambda: module.fd_error_model(0.5, 1, dtype),
        lambda: module.optimal_fd_step(1, dtype),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="dtype must be one of" if module is tolerance else None):
            call()


# arrays


def test_narrow_arguments_are_widened_and_stay(module: Any) -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int8):
        d = np.array([[100, 3, 0]], dtype)
        A, B = np.array([[-128 if dtype == np.int8 else -9, 7]], dtype), np.array([[1], [2]], dtype)
        before = [x.copy() for x in (d, A, B)]
        for array in (d, A, B):
            array.setflags(write=False)
        for f in (module.sum_error_bound, module.dot_error_bound):
            bound = f(2, "f32", d)
            assert (bound.dtype, bound.shape) == (np.float64, (1, 3))
            assert not np.shares_memory(bound, d)
            assert bound.tolist() == [
                [module.gamma(2 if "dot" in f.__name__ else 1, "f32") * v for v in (100, 3, 0)]
            ]
        product = module.matmul_error_bound(A, B, "e5m2")
        assert near(product[0, 0], module.gamma(2, "e5m2") * (-float(A[0, 0]) + 14.0))
        assert module.bound_ratio(d, np.zeros((1, 3), dtype), 1) == 100.0
        assert all((x == y).all() for x, y in zip(before, (d, A, B), strict=True))


def test_shapes_of_bounds(module: Any) -> None:
    for shape in ((), (0,), (2, 0, 3), (2, 1, 3)):
        for f in (module.sum_error_bound, module.dot_error_bound):
            bound = f(3, "f16", np.ones(shape))
            assert isinstance(bound, np.ndarray)
            assert (bound.shape, bound.dtype) == (shape, np.float64)
    assert module.dot_error_bound(3, "f16", [NAN, INF, 1.0])[:2].tolist()[1] == INF
    assert math.isnan(module.dot_error_bound(3, "f16", [NAN])[0])


@pytest.mark.parametrize(
    ("A", "B", "dA", "message"),
    [
        ([1.0], [[1.0]], 0, "A and B must be"),
        ([[1.0]], [1.0], 0, "A and B must be"),
        (np.ones((1, 1, 1)), [[1.0]], 0, "A and B must be"),
        (np.ones((2, 3)), np.ones((2, 3)), 0, "A and B must be"),
        (np.ones((2, 0)), np.ones((0, 3)), 0, "k must be at least 1"),
        (np.ones((1, 8)), np.ones((8, 1)), 0, "needs 0 <= k"),
        ([[1.0]], [[1.0]], -1, "dA must be finite"),
        ([[1.0]], [[1.0]], NAN, "dA must be finite"),
        ([[1.0]], [[1.0]], [[INF]], "dA must be finite"),
        (np.ones((0, 2)), np.ones((2, 1)), -1, "dA must be finite"),
        ([[1.0]], [[1.0]], [[[1.0]]], "dA must broadcast"),
        ([[1.0]], [[1.0]], [1.0, 2.0], "dA must broadcast"),
        ([[1.0]], [[1.0]], [], "dA must broadcast"),
        (np.ones((2, 3)), np.ones((3, 1)), [1.0, 2.0], "dA must broadcast"),
    ],
)
def test_refused_matrices(module: Any, A: Any, B: Any, dA: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message if module is tolerance else None):
        module.matmul_error_bound(A, B, "e5m2", dA)


def test_matrices_against_the_formula(module: Any) -> None:
    r = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (3, 5, 2), (0, 2, 3), (3, 2, 0), (4, 100, 3)):
        A, B = r.standard_normal((m, k)), r.standard_normal((k, n))
        for dA in (0.0, 0.5, r.random((m, k)), r.random(k), r.random((m, 1))):
            want = dA * np.ones((m, k)) @ abs(B)
            want = want + module.gamma(k, "bf16") * ((abs(A) + dA) @ abs(B))
            got = module.matmul_error_bound(A, B, "bf16", dA)
            assert got.shape == (m, n)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)


# comparing


SPECIAL = [0.0, 1.0, NAN, INF, -INF]


@pytest.mark.parametrize("a", SPECIAL)
@pytest.mark.parametrize("e", SPECIAL)
@pytest.mark.parametrize("d", [0.0, 1.0, NAN])
def test_special_pairs(module: Any, a: float, e: float, d: float) -> None:
    same = (a != a and e != e) or (math.isinf(a) and a == e)
    error = abs(a - e)
    assert is_close(module, a, e, 1, "f16", d) == (same or error <= 4 * module.gamma(1, "f16") * d)
    ratio = 0.0 if same or error == d == 0 else INF if d == 0 or math.isnan(error / d) else error / d
    got = module.bound_ratio([a], [e], d)
    assert (type(got), got) == (float, ratio)
    assert module.bound_ratio([0.0, a], [0.0, e], [1.0, d]) == ratio


def test_limits_are_exact(module: Any) -> None:
    r = np.random.default_rng(1)
    for _ in range(200):
        k, d, slack = int(r.integers(1, 2047)), float(r.random()), float(r.random() * 9)
        limit = slack * (module.gamma(k, "f16") * d)
        assert is_close(module, limit, 0, k, "f16", d, slack)
        assert not is_close(module, math.nextafter(limit, INF), 0, k, "f16", d, slack=slack)
        b = float(module.dot_error_bound(k, "f16", d))
        assert module.bound_ratio(slack, d, b) == abs(slack - d) / b


def test_shapes_of_pairs(module: Any) -> None:
    one, two = np.ones(1), np.ones((2, 1))
    for a, e in (
        (one, 1.0),
        (one, two),
        (two, one),
        (two, [[1.0, 1.0]] * 2),
        ([], [1.0]),
        (np.ones((1, 0)), []),
    ):
        with pytest.raises(AssertionError, match="shapes differ" if module is tolerance else None):
            module.assert_close_bounded(a, e, 1, "f32", 1.0)
        with pytest.raises(ValueError, match="shapes differ" if module is tolerance else None):
            module.bound_ratio(a, e, 1.0)
    for d in ([1.0, 1.0, 1.0], np.ones((1, 2, 1)), [], [[1.0, 1.0]]):
        with pytest.raises(ValueError, match="must broadcast" if module is tolerance else None):
            module.bound_ratio(two, two, d)
        with pytest.raises(ValueError, match="must broadcast" if module is tolerance else None):
            module.assert_close_bounded(two, two, 1, "f32", d)
    assert is_close(module, two, two, 1, "f32", [0.0])
    assert is_close(module, np.ones((2, 0)), np.ones((2, 0)), 1, "f32", one)
    assert module.bound_ratio([], [], 1.0) == 0.0
    assert module.bound_ratio(np.zeros((2, 3)), np.ones((2, 3)), [[1.0], [0.5]]) == 2.0


@pytest.mark.parametrize("slack", [0, 0.0, -1.0, NAN, INF, -INF])
def test_refused_slack(module: Any, slack: float) -> None:
    for x in ([], [1.0]):
        with pytest.raises(ValueError, match="slack must be finite" if module is tolerance else None):
            module.assert_close_bounded(x, x, 1, "f32", 1.0, slack)
        with pytest.raises(ValueError):
            module.assert_close_bounded(x, x, 0, "f32", 1.0)
        with pytest.raises(ValueError):
            module.assert_close_bounded(x, x, 2**24, "f32", 1.0)


def test_the_message_names_the_first_pair_in_c_order() -> None:
    a = np.zeros((2, 3))
    a[1, 0], a[0, 2] = 9.0, 8.0
    for d in (1.0, [[1.0], [1.0]]):
        with pytest.raises(AssertionError) as caught:
            tolerance.assert_close_bounded(a, np.zeros((2, 3)), 8, "e4m3", d)
        assert str(caught.value) == "not close at (0, 2): error 8.0, limit 4.0, ratio 2.0"
    with pytest.raises(AssertionError, match=r"^not close at \(\): error nan, limit 0.0, ratio inf$"):
        tolerance.assert_close_bounded(NAN, 0.0, 8, "e4m3", 0)


# conditioning and differences


def test_cond_of_made_matrices(module: Any) -> None:
    r = np.random.default_rng(2)
    for _ in range(40):
        m, n = (int(x) for x in r.integers(1, 9, 2))
        s = 10.0 ** -np.sort(r.random(min(m, n)) * 4)
        U, V = (np.linalg.qr(r.standard_normal((x, x)))[0] for x in (m, n))
        A = U[:, : len(s)] * s @ V[: len(s)]
        assert near(module.cond(A), float(s[0] / s[-1]), 1e-9)
    for A in (
        [[1, 2], [2, 4]],
        np.ones((5, 3)),
        [[0.0]],
        np.diag([3.0, 0.0, 1.0]),
        np.arange(9).reshape(3, 3),
    ):
        assert module.cond(A) == INF
    assert type(module.cond([[2]])) is float
    for A, message in (
        ([1.0], "with elements"), (1.0, "with elements"), (np.ones((1, 1, 1)), "with elements"),
        (np.ones((0, 2)), "with elements"), ([[NAN]], "a NaN"), ([[1.0, -INF]], "a NaN"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message if module is tolerance else None):
            module.cond(A)


@pytest.mark.parametrize("bad", [0, 0.0, -1, NAN, INF, -INF])
def test_refused_scales(module: Any, bad: float) -> None:
    for order in (1, 2):
        for given in ({"h": bad}, {"f_scale": bad}, {"deriv_scale": bad}):
            what = f"{next(iter(given))} must be finite" if module is tolerance else None
            with pytest.raises(ValueError, match=what):
                module.fd_error_model(**({"h": 0.5, "order": order, "dtype": "f32"} | given))
            if "h" not in given:
                with pytest.raises(ValueError, match=what):
                    module.optimal_fd_step(order, "f32", **given)


@pytest.mark.parametrize("order", [0, 3, -1])
def test_refused_orders(module: Any, order: int) -> None:
    with pytest.raises(ValueError, match="order must be 1 or 2" if module is tolerance else None):
        module.fd_error_model(0.5, order, "f64")
    with pytest.raises(ValueError, match="order must be 1 or 2" if module is tolerance else None):
        module.optimal_fd_step(order, "f64")


@pytest.mark.parametrize("order", [1, 2])
def test_the_best_step_is_where_the_model_is_smallest(module: Any, order: int) -> None:
    for dtype in P:
        for F, D in ((1, 1), (3.0, 0.01), (0.5, 70)):
            h = module.optimal_fd_step(order, dtype, F, D)
            least = module.fd_error_model(h, order, dtype, F, D)
            for other in (h * 0.99, h * 1.01, h * 10):
                assert module.fd_error_model(other, order, dtype, F, D) > least


def test_the_model_covers_real_differences() -> None:
    """exp at 0.5: 10 times the best step or a tenth of it is worse, and the model bounds the error."""
    f, x = math.exp, 0.5
    for order in (1, 2):
        for h in (tolerance.optimal_fd_step(order, "f64", f(x), f(x)) * s for s in (0.01, 1.0, 100.0)):
            up, down = x + h, x if order == 1 else x - h
            error = abs((f(up) - f(down)) / (up - down) - f(x))
            assert error <= 2.0 * tolerance.fd_error_model(h, order, "f64", f(x), f(x))


# the bounds against rounding itself


def test_the_dot_bound_holds_and_is_not_loose() -> None:
    r, ratios = np.random.default_rng(3), []
    for _ in range(300):
        k = int(r.integers(1, 40))
        x, y = r.standard_normal((2, k)).astype(np.float32)
        got = np.float32(0)
        for term in x * y:
            got = np.float32(got + term)
        products = x.astype(np.float64) * y  # exact: 48 bits
        bound = tolerance.dot_error_bound(k, "f32", math.fsum(abs(products)))
        ratios.append(tolerance.bound_ratio(got, math.fsum(products), bound))
    assert max(ratios) <= 1.0
    assert float(np.median(ratios)) > 0.01


def test_the_matrix_bound_covers_a_perturbation_only_with_da() -> None:
    r = np.random.default_rng(4)
    A, B, step = r.standard_normal((6, 32)), r.standard_normal((32, 5)), 0.125
    got, want = (np.round(A / step) * step) @ B, A @ B
    assert tolerance.bound_ratio(got, want, tolerance.matmul_error_bound(A, B, "f64", step / 2)) <= 1.0
    assert tolerance.bound_ratio(got, want, tolerance.matmul_error_bound(A, B, "f64")) > 1.0


def test_a_dropped_term_is_found() -> None:
    x, y = np.random.default_rng(5).standard_normal((2, 64))
    d = float(np.sum(abs(x * y)))
    assert is_close(tolerance, float(np.dot(x[::-1], y[::-1])), float(np.dot(x, y)), 64, "f64", d)
    assert not is_close(tolerance, float(np.dot(x[1:], y[1:])), float(np.dot(x, y)), 64, "f64", d)


# names, and one answer for all


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    """What the spec's Shapes block says of names, order and defaults."""
    want = """unit_roundoff(dtype)  gamma(k, dtype)  sum_error_bound(k, dtype, abs_sum)
        dot_error_bound(k, dtype, abs_dot)  matmul_error_bound(A, B, dtype, dA=0.0)
        assert_close_bounded(actual, expected, k, dtype, abs_dot, slack=4.0)
        bound_ratio(actual, expected, bound)  cond(A)  relative_condition(f, df, x)
        fd_error_model(h, order, dtype, f_scale=1.0, deriv_scale=1.0)
        optimal_fd_step(order, dtype, f_scale=1.0, deriv_scale=1.0)"""
    for line in want.replace("\n", "  ").split("  "):
        f, _, parameters = line.strip().partition("(")
        if f:
            signature = inspect.signature(getattr(module, f)).parameters.values()
            plain = [p.replace(annotation=p.empty) for p in signature]
            assert str(inspect.Signature(plain)) == f"({parameters}"


def test_the_equivalents_give_the_same_bits() -> None:
    r = np.random.default_rng(6)
    for _ in range(200):
        dtype = list(P)[r.integers(len(P))]
        k = int(r.integers(1, min(2 ** P[dtype], 10**6)))
        shape = tuple(int(x) for x in r.integers(0, 4, r.integers(1, 4)))
        d = np.abs(r.standard_normal(shape)) * r.choice([0.0, 1.0, 1e30], shape)
        a, numbers = d * r.choice([0.0, 1.0, 1.0 + 1e-7], shape), r.choice([0.0, 0.3, -7.0, 11.0], 3).tolist()
        answers = [
            (
                m.gamma(k, dtype), m.sum_error_bound(k, dtype, d).tolist(),
                m.dot_error_bound(k, dtype, d).tolist(), m.bound_ratio(a, d, d[..., :1]),
                m.relative_condition(*numbers), is_close(m, a, d, k, dtype, d),
            )
            for m in [tolerance, *EQUIVALENTS]
        ]  # fmt: skip
        assert all(answer == answers[0] for answer in answers)
