"""The tolerance oracle against the page, NumPy, exact arithmetic on rounded sums, and its own laws."""

from __future__ import annotations

import ast
import math
import random
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "tolerance"
oracle = import_file(FOLDER / "oracle.py", "tolerance_oracle_under_test")
FORMATS: dict[str, Any] = {"f32": np.float32, "f16": np.float16}


def asked(call: str, **args: Any) -> Any:
    return oracle.expect({"id": "a", "call": call, "args": args})


# -- the worked example and the table of the page -----------------------------------------------------------


def test_example() -> None:
    d = 1.0000000199999999
    assert oracle.gamma(3, "f32") == 1.788139663006007e-07
    assert oracle.dot_error_bound(3, "f32", d).tolist() == 1.7881396987688e-07
    assert oracle.bound_ratio(1.0, d, 1.7881396987688e-07) == 0.1118480837499515
    assert oracle.assert_close_bounded(1.0, d, 3, "f32", d) is None
    assert oracle.cond([[1, 1], [1, 1.0001]]) == pytest.approx(40002.0000750, rel=1e-12)


def test_smaller_examples() -> None:
    assert oracle.sum_error_bound(4, "f16", 8).tolist() == 0.0117359413202934
    assert oracle.dot_error_bound(4, "f16", 8).tolist() == 0.015655577299412915
    A, B = [[1, -2], [3, 0]], [[0.5], [-1]]
    da = [[0.25, 0], [0, 0.5]]
    bounds = [oracle.matmul_error_bound(A, B, "bf16", *more).reshape(-1).tolist() for more in ([da], [])]
    assert bounds == [[0.14566929133858267, 0.515748031496063], [0.01968503937007874, 0.011811023622047244]]
    assert oracle.cond([[1, 2, 3], [4, 5, 6]]) == pytest.approx(12.3022455041, rel=1e-11)
    assert oracle.cond([[1e-100, 0], [0, 1e-100]]) == 1
    points = [(2, 0.25, 4), (0.5, 1, 1.5), (0, 1, 1), (0, 0, 0)]
    assert [oracle.relative_condition(*point) for point in points] == [0.5, 3, math.inf, 0]
    models = [oracle.fd_error_model(0.5, order, "f16", 3.0, 2.0) for order in (1, 2)]
    assert models == [0.505859375, 0.08626302083333333]
    steps = [oracle.optimal_fd_step(order, "f64") for order in (1, 2)]
    assert steps == [2.1073424255447017e-08, pytest.approx(6.93176495678764e-06, rel=1e-15)]
    assert oracle.optimal_fd_step(1, "f32", 4.0, 1.0) == 0.0009765625


def test_unit_roundoff_is_half_the_gap_above_one() -> None:
    for name in ("float16", "float32", "float64"):
        assert oracle.unit_roundoff(name) == float(np.finfo(name).eps) / 2
    torch = pytest.importorskip("torch")
    others = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    for name, dtype in others.items():
        assert oracle.unit_roundoff(name) == torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_gamma_is_the_quotient_of_the_page(dtype: str) -> None:
    u = oracle.unit_roundoff(dtype)
    limit = 1 << oracle.precision(dtype)
    for k in {*range(min(limit, 300)), limit - 1, limit // 2, limit // 3}:
        assert oracle.gamma(k, dtype) == (k * u) / (1.0 - k * u)
    for k in (limit, limit + 1, 10**400, -1):
        with pytest.raises(oracle.Refused):
            oracle.gamma(k, dtype)


# -- the bounds hold: sums rounded step by step, errors in exact arithmetic ---------------------------------


def in_random_order(terms: list[Any], choose: random.Random) -> Any:
    """The sum in a random tree: any two partial sums may be added next."""
    left = list(terms)
    while len(left) > 1:
        a, b = (left.pop(choose.randrange(len(left))) for _ in range(2))
        left.append(a + b)
    return left[0]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("order", ["left", "random"])
def test_bounds_hold_for_rounded_sums_and_dots(dtype: str, order: str) -> None:
    number, choose, worst = FORMATS[dtype], random.Random(f"{dtype} {order}"), {"sum": 0.0, "dot": 0.0}
    for _ in range(1000):
        k = choose.choice([1, 2, 3, 8, 30])
        x = [number(choose.uniform(-8, 8)) for _ in range(k)]
        y = [number(choose.uniform(0.5, 8) * choose.choice((-1, 1))) for _ in range(k)]
        # No product underflows: the bounds assume that.
        x = [a if abs(a) > 2**-6 else number(1) for a in x]
        products = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)]
        rounded = [a * b for a, b in zip(x, y, strict=True)]
        for name, terms, exact in (("sum", x, [Fraction(float(a)) for a in x]), ("dot", rounded, products)):
            total = in_random_order(terms, choose) if order == "random" else terms[0]
            for term in terms[1:] if order == "left" else []:
                total = total + term
            assert type(total) is number
            size = sum(map(abs, exact))
            bound_of = oracle.sum_error_bound if name == "sum" else oracle.dot_error_bound
            # gamma is rounded once and the product once more; float(size) a third time.
            bound = Fraction(float(bound_of(k, dtype, float(size)))) * (1 + Fraction(3, 2**53))
            error = abs(Fraction(float(total)) - sum(exact))
            assert error <= bound
            worst[name] = max(worst[name], float(error / bound)) if bound else worst[name]
    assert min(worst.values()) > 0.3  # and they are not idle: some sum comes near


def test_half_the_roundoff_would_be_no_bound() -> None:
    """1 + 2^-11 in float16 is a tie and rounds to 1: the bound is met to the first order."""
    error = Fraction(float(np.float16(1) + np.float16(2.0**-11))) - 1 - Fraction(1, 2**11)
    size = 1 + 2.0**-11
    bound = Fraction(float(oracle.sum_error_bound(2, "f16", size)))
    assert bound / 2 < abs(error) <= bound
    assert abs(error) > bound * Fraction(99, 100)


def test_matrix_bound_holds_and_needs_its_da() -> None:
    broken = 0
    for i in range(60):
        given = oracle.budget(Chooser(11, i))
        bound = oracle.matmul_error_bound(**given)
        assert oracle.covers_products(given, bound) is None
        without = oracle.matmul_error_bound(given["A"], given["B"], "f32")
        broken += oracle.covers_products(given, without) is not None
    assert broken > 20


def test_matrix_bound_is_the_formula_in_float64() -> None:
    random = np.random.default_rng(3)
    for m, k, n in ((1, 1, 1), (3, 7, 2), (2, 200, 3)):
        A, B, da = random.normal(size=(m, k)), random.normal(size=(k, n)), random.uniform(size=(m, k))
        want = da @ abs(B) + oracle.gamma(k, "f32") * ((abs(A) + da) @ abs(B))
        assert oracle.matmul_error_bound(A, B, "f32", da) == pytest.approx(want, rel=1e-13)


# -- conditioning and differences against NumPy -------------------------------------------------------------


def test_singular_values_are_those_of_numpy() -> None:
    random = np.random.default_rng(4)
    for _ in range(150):
        A = random.normal(size=tuple(random.integers(1, 9, 2))) * 10.0 ** random.integers(-120, 120)
        want = np.linalg.svd(A, compute_uv=False)
        assert oracle.singular_values(A.tolist()) == pytest.approx(want, abs=1e-14 * want[0])


def test_every_matrix_of_the_draws_is_graded_and_clear() -> None:
    singular = 0
    for i in range(300):
        A = np.asarray(oracle.matrix(Chooser(12, i)), np.float64)
        found = np.linalg.svd(A, compute_uv=False)
        limit = max(A.shape) * 2.0**-52 * found[0]
        if oracle.cond(A) == math.inf:
            singular += 1
            assert found[-1] <= limit / 2
        else:
            assert found[-1] > 1e-5 * found[0]
            assert oracle.cond(A) == pytest.approx(found[0] / found[-1], rel=1e-10)
    assert 20 < singular < 150


def test_nearly_singular_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="does not grade"):
        asked("cond", A=np.array([[1.0, 1.0], [1.0, 1.0 + 2**-40]]))
    assert asked("cond", A=np.array([[0.1, 0.2], [0.1, 0.2]])) == {"return": math.inf}


def test_rank_counts_without_rounding() -> None:
    assert oracle.rank([[1, 2], [3, 6.000000000000001]]) == 2
    assert oracle.rank([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == 2
    assert [oracle.rank([[0.0, 0.0]]), oracle.rank([[0.0, 1.0]])] == [0, 1]


def test_best_steps_are_best_on_a_grid() -> None:
    for order in (1, 2):
        best = oracle.optimal_fd_step(order, "f32", 0.3, 7.0)
        grid = best * np.geomspace(0.01, 100, 2001)
        errors = [oracle.fd_error_model(float(h), order, "f32", 0.3, 7.0) for h in grid]
        assert abs(int(np.argmin(errors)) - 1000) <= 1
        root = math.sqrt if order == 1 else math.cbrt
        factor = {1: 4, 2: 3}[order]
        assert best == pytest.approx(root(factor * 2.0**-24 * 0.3 / 7.0), rel=1e-14)


def test_real_differences_stay_inside_the_model() -> None:
    for order in (1, 2):
        # A little room: exp itself is off by more than half an ulp now and then, and f moves inside the step.
        best = oracle.optimal_fd_step(order, "f64", math.e, math.e)
        for h in (best, 8 * best, best / 8):
            above, below = 1 + h, (1 - h if order == 2 else 1.0)
            slope = (math.exp(above) - math.exp(below)) / (above - below)
            model = oracle.fd_error_model(above - 1, order, "f64", math.e, math.e)
            assert abs(slope - math.e) <= 1.5 * model


# -- refusals, comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("unit_roundoff", {"dtype": "F32"}),
        ("sum_error_bound", {"k": 0, "dtype": "f32", "abs_sum": 1.0}),
        ("dot_error_bound", {"k": 16, "dtype": "e4m3", "abs_dot": np.zeros(0)}),
        ("matmul_error_bound", {"A": np.ones((1, 2)), "B": np.ones((1, 2)), "dtype": "f32"}),
        ("matmul_error_bound", {"A": np.ones((2, 0)), "B": np.ones((0, 2)), "dtype": "f32"}),
        ("matmul_error_bound", {"A": np.ones((1, 2)), "B": np.ones((2, 1)), "dtype": "f32", "dA": math.nan}),
        ("matmul_error_bound", {"A": np.ones((1, 2)), "B": np.ones((2, 1)), "dtype": "f32", "dA": [[1]] * 2}),
        ("matmul_error_bound", {"A": np.ones((0, 2)), "B": np.ones((2, 1)), "dtype": "f32", "dA": -1.0}),
        ("bound_ratio", {"actual": [1.0, 2.0], "expected": [1.0], "bound": 1.0}),
        ("bound_ratio", {"actual": [1.0], "expected": [1.0], "bound": [1.0, 1.0]}),
        ("cond", {"A": np.ones(3)}),
        ("cond", {"A": np.array([[1.0, math.nan]])}),
        ("fd_error_model", {"h": math.nan, "order": 1, "dtype": "f32"}),
        ("optimal_fd_step", {"order": 3, "dtype": "f32"}),
    ],
)
def test_refusals(call: str, args: dict[str, Any]) -> None:
    assert asked(call, **args) == {"raises": "ValueError"}


def test_close_exactly_up_to_the_limit() -> None:
    def close(a: Any, e: Any, d: Any = 1.0, **more: Any) -> Any:
        return asked("assert_close_bounded", actual=a, expected=e, k=8, dtype="e4m3", abs_dot=d, **more)

    fails = {"raises": "AssertionError"}
    assert close(4.0, 0.0) == close(0.0, 4.0) == close([], []) == {"return": None}
    assert close(math.nextafter(4.0, 5.0), 0.0) == close([1.0, 1.0], [1.0]) == close([1.0], 1.0) == fails
    assert close(math.nan, math.nan, 0.0) == close(-math.inf, -math.inf, math.nan) == {"return": None}
    assert close(math.nan, 1.0) == close(math.inf, -math.inf) == close(math.inf, 1e308) == fails
    assert close(1.0, 1.0, math.nan) == fails
    for slack in (0.0, -1.0, math.nan, math.inf):
        assert close([], [], slack=slack) == {"raises": "ValueError"}


def test_ratios_of_odd_pairs() -> None:
    assert oracle.bound_ratio([1, 5, 3], [0, 5, 0], [2, 0, 4]) == 0.75
    assert oracle.bound_ratio([math.nan, math.inf], [math.nan, math.inf], math.nan) == 0
    assert oracle.bound_ratio(np.zeros((2, 0)), np.zeros((2, 0)), 0.0) == 0
    nan, inf = math.nan, math.inf
    for a, e, b in ((1, 0, 0), (nan, 0, 1), (inf, -inf, 1), (0, 0, nan), (0, nan, 0)):
        assert oracle.bound_ratio([0.0, a], [0.0, e], [1.0, b]) == math.inf


def test_spread_is_broadcasting_that_never_enlarges() -> None:
    shapes = [(), (1,), (3,), (0,), (2, 3), (1, 3), (2, 1), (2, 0), (1, 2, 3)]
    for shape in shapes:
        x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
        for target in shapes:
            try:
                want = np.broadcast_to(x, target).reshape(-1).tolist()
            except ValueError:
                with pytest.raises(oracle.Refused):
                    oracle.spread(x, target, "a")
            else:
                assert oracle.spread(x, target, "a") == want


def test_traces_keep_what_is_saved() -> None:
    args = {"k": 8, "dtype": "e4m3"}
    steps = [
        {"call": "dot_error_bound", "args": {**args, "abs_dot": np.array([1.0, 2.0])}, "save": "given"},
        {"call": "dot_error_bound", "args": {**args, "abs_dot": {"ref": "given"}}, "save": "other"},
        {"call": "testkit.overwrite", "args": {"array": {"ref": "other"}, "value": 0}},
        {"call": "dot_error_bound", "args": {**args, "abs_dot": {"ref": "given"}}},
    ]
    told = oracle.expect({"id": "a", "steps": steps})["steps"]
    assert told[:3] == [{}, {}, {"return": None}]
    assert told[3]["return"].tolist() == [1.0, 2.0]


# -- draws and laws -----------------------------------------------------------------------------------------


def test_draws_plant_what_they_promise() -> None:
    told = [asked("assert_close_bounded", **oracle.pair(Chooser(13, i))) for i in range(300)]
    close = sum(answer == {"return": None} for answer in told)
    assert 80 < close < 250 and {"raises": "ValueError"} not in told
    ratios = [asked("bound_ratio", **oracle.ratio_pair(Chooser(13, i)))["return"] for i in range(300)]
    assert sum(0 < ratio < math.inf for ratio in ratios) > 60 and ratios.count(math.inf) > 30
    for call, name in (("sum_error_bound", "abs_sum"), ("dot_error_bound", "abs_dot")):
        bounds = [asked(call, **oracle.terms(Chooser(13, i), name)) for i in range(200)]
        assert 20 < sum("raises" in bound for bound in bounds) < 120
    points = [asked("relative_condition", **oracle.point(Chooser(13, i)))["return"] for i in range(300)]
    assert points.count(0.0) > 10 and points.count(math.inf) > 3


def test_simplest_draws_are_answered() -> None:
    class Zeros:
        def below(self, n: int) -> int:
            assert n >= 1
            return 0

    zeros = Zeros()
    assert asked("gamma", **oracle.counted(zeros)) == {"return": oracle.gamma(1, "e5m2")}
    assert asked("assert_close_bounded", **oracle.pair(zeros)) == {"return": None}
    assert asked("bound_ratio", **oracle.ratio_pair(zeros)) == {"return": 0.0}
    assert asked("cond", A=oracle.matrix(zeros)) == {"return": math.inf}
    assert asked("cond", A=oracle.regular_matrix(zeros)) == {"return": 1.0}
    for call, draw in (
        ("matmul_error_bound", oracle.factors), ("relative_condition", oracle.point),
        ("fd_error_model", oracle.difference), ("optimal_fd_step", oracle.step_size),
    ):  # fmt: skip
        assert "return" in asked(call, **draw(zeros))


LAWS = [
    ("covers_roundings", "roundings", oracle.gamma, lambda got: got / 3),
    ("covers_roundings", "roundings", oracle.gamma, lambda got: got * 8 + 1),
    ("covers_products", "budget", oracle.matmul_error_bound, lambda got: got * 0),
    ("covers_products", "budget", oracle.matmul_error_bound, lambda got: got * np.nan),
    ("bounds_the_stretch", "regular_matrix", oracle.cond, lambda got: min(got - 0.5, math.sqrt(got))),
    ("bounds_the_stretch", "regular_matrix", oracle.cond, lambda got: math.nan),
    ("is_the_best_step", "step_size", oracle.optimal_fd_step, lambda got: got * 1.05),
    ("is_the_best_step", "step_size", oracle.optimal_fd_step, lambda got: got * 0.95),
]


@pytest.mark.parametrize(("law", "draw", "function", "spoil"), LAWS)
def test_laws_hold_and_can_be_broken(law: str, draw: str, function: Any, spoil: Any) -> None:
    broken = 0
    for i in range(40):
        given = getattr(oracle, draw)(Chooser(14, i))
        given = given if isinstance(given, dict) else {"A": given}
        right = function(**given)
        assert getattr(oracle, law)(given, right) is None
        try:
            broken += getattr(oracle, law)(given, spoil(right)) is not None
        except ValueError:  # Fraction(nan): the judge takes a law that cannot read an answer as broken
            broken += 1
    assert broken >= 20


# -- what the oracle may import -----------------------------------------------------------------------------


def test_the_oracle_imports_only_numpy_and_the_standard_library() -> None:
    names = set()
    for node in ast.walk(ast.parse((FOLDER / "oracle.py").read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names <= {*sys.stdlib_module_names, "numpy"}
