"""The problem set float_problems: its answers by other routes, its wrong answers, its page of questions."""

from __future__ import annotations

import ast
import itertools
import math
import re
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import spec, strict_yaml
from grader.fixtures import import_file

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "float_problems"
PAGE = ROOT / "practice" / "problems" / "float_problems.md"
LAW = ROOT / "spec" / "float_problems.md"
F = Fraction
KINDS = {
    "exact number": "exact",
    "number, relative error at most 1e-6": "close",
    "set of exact numbers": "set",
    "one of a, b, c, d": "choice",
    "rubric, self-checked": "proof",
}
FORM = {"exact": "R2", "close": "R3", "set": "R4", "choice": "R5", "proof": "R6"}
oracle = import_file(FOLDER / "oracle.py", "float_problems_oracle_under_test")
FILES = [strict_yaml.load(path.read_text(), path.name) for path in sorted(FOLDER.glob("*.yaml"))]
CASES: dict[str, dict[str, Any]] = {case["answer"]: case for file in FILES for case in file["cases"]}
SECTIONS = re.findall(r"(?ms)^## (q\d\d) (\S[^\n]*)\n(.*?)(?=^## |\Z)", PAGE.read_text())


def told(question: str) -> Any:
    (value,) = oracle.expect({"id": "a", "answer": question}).values()
    return value


def valued(text: str) -> Fraction:
    """An exact number in the few forms in which fixtures write one."""
    match = re.fullmatch(r"(-?)(\d+)(?:/(\d+)|\^(-?\d+))?", text)
    assert match, text
    sign, top, bottom, power = match.groups()
    size = F(int(top)) ** int(power) if power else F(int(top), int(bottom or 1))
    return -size if sign else size


def kind_of(expected: dict[str, Any]) -> str:
    (kind,) = expected
    return ("exact" if isinstance(expected[kind], str) else "close") if kind == "number" else kind


# -- the fixtures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", CASES)
def test_expected(question: str) -> None:
    """What the files state is what the oracle says."""
    expected = CASES[question]["expect"]
    stated = expected["number"]["f64"] if kind_of(expected) == "close" else next(iter(expected.values()))
    assert stated == told(question)


@pytest.mark.parametrize("question", CASES)
def test_wrong_answers(question: str) -> None:
    """Each differs from the right answer and from the others, and is outside the tolerance by far."""
    case, right = CASES[question], told(question)
    kind, values = kind_of(case["expect"]), [wrong["value"] for wrong in case.get("reject", [])]
    assert values or kind == "proof"
    if kind == "exact":
        numbers = [valued(right), *map(valued, values)]
        assert len(set(numbers)) == len(numbers)
    elif kind == "close":
        assert all(abs(value - right) > 1e-3 * abs(right) for value in values)
        assert len(set(values)) == len(values)
    elif kind == "set":
        sets = [frozenset(map(valued, value)) for value in (right, *values)]
        assert len(set(sets)) == len(sets)
        assert all(len(s) == len(v) for s, v in zip(sets, (right, *values), strict=True))
    elif kind == "choice":
        assert sorted([right, *values]) == ["a", "b", "c", "d"]


def test_wrong_answers_have_reasons() -> None:
    for case in CASES.values():
        for wrong in case.get("reject", []):
            assert set(wrong) == {"value", "bug", "hint"}
            assert wrong["bug"] and wrong["hint"].endswith("?")
            assert " " not in str(wrong["value"]) or isinstance(wrong["value"], list)


def test_cases_and_rules() -> None:
    """One case a question, every rule cited, the rule of its answer's form cited by each."""
    assert sum(len(file["cases"]) for file in FILES) == len(CASES) == len(oracle.QUESTIONS)
    assert len({case["id"] for case in CASES.values()}) == len(CASES)
    rules = list(spec.rules(LAW))
    assert rules == [f"R{i}" for i in range(1, len(rules) + 1)]
    assert {rule for case in CASES.values() for rule in case["rule"]} == set(rules)
    for case in CASES.values():
        kind = kind_of(case["expect"])
        assert set(case["rule"]) & set(FORM.values()) == {FORM[kind]}
        assert case.get("level", "required") == ("extra" if kind == "proof" else "required")


def test_hints() -> None:
    topics = [topic for file in FILES for topic in file["hints"]]
    assert len(topics) == len(set(topics))
    for file in FILES:
        assert {hint for case in file["cases"] for hint in case["hints"]} == set(file["hints"])
        assert {name for case in file["cases"] for name in case["oracle"]} == set(file["oracles"])
        assert all(rung.endswith("?") for rungs in file["hints"].values() for rung in rungs)


# -- the page of questions ----------------------------------------------------------------------------------


def test_questions() -> None:
    """The page has the questions of the cases, numbered in order, each with one answer line of its kind."""
    text = PAGE.read_text()
    assert [name for name, _, _ in SECTIONS] == [f"q{i:02}" for i in range(1, len(SECTIONS) + 1)]
    assert len(SECTIONS) == text.count("\n## ") == len(CASES) >= 30
    assert sorted(name for name, _, _ in SECTIONS) == sorted(CASES)
    for name, _, body in SECTIONS:
        (line,) = re.findall(r"(?m)^Answer: (.*)$", body)
        expected = CASES[name]["expect"]
        assert KINDS[line] == kind_of(expected), name
        assert re.findall(r"(?m)^- ([a-z-]+): \S", body) == expected.get("proof", []), name
        letters = re.findall(r"(?m)^- ([a-z])\) \S", body)
        assert letters == (["a", "b", "c", "d"] if "choice" in expected else []), name


def test_blocks_named_in_the_head() -> None:
    """The table at the head of the page and the files agree on the blocks, without gap or overlap."""
    blocks = re.findall(r"(?m)^\| (q\d\d) to (q\d\d) \|", PAGE.read_text())
    spans = sorted((file["cases"][0]["answer"], file["cases"][-1]["answer"]) for file in FILES)
    assert blocks == spans
    assert f"{len(CASES)} problems" in PAGE.read_text() and f"{len(CASES)} problems" in LAW.read_text()


def test_plain_text() -> None:
    assert PAGE.read_text().isascii()
    assert all(path.read_text().isascii() for path in FOLDER.glob("*.yaml"))


def test_rules_named_on_the_page_exist() -> None:
    rules = spec.rules(LAW)
    assert set(re.findall(r"\bR\d+\b", PAGE.read_text() + (FOLDER / "oracle.py").read_text())) <= set(rules)


# -- the oracle ---------------------------------------------------------------------------------------------


def test_standard_library_only() -> None:
    tree = ast.parse((FOLDER / "oracle.py").read_text())
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def test_canonical_text() -> None:
    written = {F(3, 6): "1/2", F(-4, 2): "-2", F(0): "0", F(256): "256", F(512): "2^9", F(1, 256): "1/256"}
    written |= {F(1, 512): "2^-9", F(-1, 512): "-1/512", F(1, 2**133): "2^-133", F(3, 512): "3/512"}
    for value, text in written.items():
        assert oracle.text(value) == text and valued(text) == value


def test_one_alternative_only() -> None:
    oracle.choice(two_hold)
    with pytest.raises(ValueError, match="unpack"):
        oracle.expect({"id": "a", "answer": "two_hold"})
    del oracle.QUESTIONS["two_hold"]


def two_hold() -> dict[str, bool]:
    return {"a": True, "b": True}


def test_a_false_claim_has_no_proof() -> None:
    oracle.proof("key")(false_claim)
    with pytest.raises(ValueError, match="claim"):
        oracle.expect({"id": "a", "answer": "false_claim"})
    del oracle.QUESTIONS["false_claim"]


def false_claim() -> bool:
    return False


def test_worked_example() -> None:
    """The numbers of the spec page, and its file."""
    cube = F(7, 3)
    assert cube * 3 * cube**2 / cube**3 == 3
    assert oracle.gamma(2, "e5m2") == F(1, 3)
    condition = by_difference(lambda x: math.sqrt(x * x + 1) - 1, 1.0)
    assert condition == pytest.approx(1.7071068, rel=1e-6) and abs(1.707 - condition) > 1e-6 * condition
    assert oracle.E4M3.round(F(3, 10)) == F(5, 16)
    block = [F(1, 4), F(-7, 5), F(31, 10), F(11)]
    assert oracle.scale_exponent(F(11), oracle.E2M1) == 1
    assert oracle.through_mx(block, oracle.E2M1) == [0, -1, 3, 12]
    (text,) = re.findall(r"(?ms)^```toml\n(.*?)^```", LAW.read_text())
    answers = tomllib.loads(text)
    assert not set(answers) & set(CASES)
    assert [type(answers[f"q90{i}"]) for i in range(1, 7)] == [str, float, list, str, str, dict]


# -- other routes -------------------------------------------------------------------------------------------


def by_difference(f: Callable[[float], float], x: float, h: float = 1e-6) -> float:
    return abs(x * (f(x + h) - f(x - h)) / (2 * h) / f(x))


def smallest(holds: Callable[[int], bool]) -> int:
    return next(n for n in itertools.count() if holds(n))


def float32_like(value: float, bits: int) -> float:
    """Round to a shorter significand by adding and subtracting in float64 (Veltkamp's splitting)."""
    c = value * (2.0 ** (53 - bits) + 1)
    return c - (c - value)


def counted_sum(term: float, add: Callable[[float, float], float]) -> float:
    total = 0.0
    while add(total, term) != total:
        total = add(total, term)
    return total


def neighbours(p: int, low: int, largest: int) -> list[Fraction]:
    """All values of a small format from 0 on, by walking; 2^low is the smallest normal."""
    step, doubles = F(2) ** (low - p + 1), F(2) ** (low + 1)
    values = [F(0)]
    while values[-1] < largest:
        values.append(values[-1] + step)
        if values[-1] == doubles:
            step, doubles = 2 * step, 2 * doubles
    return values


E4M3 = neighbours(4, -6, 448)
E5M2 = neighbours(3, -14, 57344)
E2M1 = neighbours(2, 0, 6)


def nearest(x: Fraction, values: list[Fraction]) -> Fraction:
    """The place in the list is the code."""
    size = min(abs(x), values[-1])
    above = smallest(lambda i: values[i] >= size)
    if values[above] == size:
        best = above
    else:
        middle = (values[above - 1] + values[above]) / 2
        best = above if size > middle else above - 1
        if size == middle:
            best = above if above % 2 == 0 else above - 1
    return values[best] if x >= 0 else -values[best]


def mx(block: list[Fraction], values: list[Fraction], emax: int) -> list[Fraction]:
    scale = F(1)
    largest = max(map(abs, block))
    while largest / scale >= 2 ** (emax + 1):
        scale *= 2
    while largest / scale < 2**emax:
        scale /= 2
    return [nearest(x / scale, values) * scale for x in block]


def test_condition_numbers() -> None:
    assert float(valued(told("q01"))) == pytest.approx(by_difference(lambda x: x - 1, 1.01), rel=1e-6)
    assert float(valued(told("q02"))) == pytest.approx(by_difference(math.exp, -12.5), rel=1e-6)
    assert told("q03") == pytest.approx(by_difference(math.log, 1.2), rel=1e-8)
    assert told("q03") == pytest.approx(1 / math.log(1.2), rel=1e-14)
    assert valued(told("q04")) * F(1, 8) == F(47, 8)
    for question, rows in (("q05", np.diag([-0.75, 12, 0.0625, -5])), ("q06", np.array([[1, 7], [0, 4.0]]))):
        value = told(question) if question == "q06" else float(valued(told(question)))
        assert value == pytest.approx(float(np.linalg.cond(rows)), rel=1e-12)


def test_amplification() -> None:
    A = np.diag([4, 1.25])
    x, dx = (np.linalg.solve(A, b) for b in ([12.0, 5.0], [0.0, 0.1]))
    ratio = np.linalg.norm(dx) / np.linalg.norm(x) / (0.1 / 13)
    assert float(valued(told("q07"))) == pytest.approx(float(ratio), rel=1e-12)
    assert ratio < np.linalg.cond(A)


def test_bounds() -> None:
    tolerance = pytest.importorskip("impl.tolerance")
    assert float(valued(told("q09"))) == tolerance.gamma(3, "f16")
    k = int(valued(told("q10")))
    assert tolerance.gamma(k, "f16") <= 0.1 < tolerance.gamma(k + 1, "f16")
    assert float(valued(told("q11"))) == tolerance.sum_error_bound(5, "bf16", 63 / 4)
    assert float(valued(told("q12"))) == pytest.approx(
        float(tolerance.dot_error_bound(3, "f32", 16.5)) / 0.5, rel=1e-15
    )
    bound = tolerance.matmul_error_bound([[1, -2]], [[3], [1]], "f16", 1 / 64)
    assert float(valued(told("q13"))) == pytest.approx(bound.item(), rel=1e-15)


def test_estimates() -> None:
    assert float(valued(told("q14"))) == 1023 / math.log2(1024)
    u, n = 2.0**-24, 2**20
    within = [e * u <= 1e-5 for e in (n - 1, math.log2(n), math.sqrt(n - 1))]
    alternatives = [[True] * 3, [False, True, True], [False, True, False], [False] * 3]
    assert told("q15") == "abcd"[alternatives.index(within)]


def test_running_sums() -> None:
    """bf16 by splitting float64, f16 by NumPy."""
    assert float(valued(told("q16"))) == counted_sum(1.0, lambda s, t: float32_like(s + t, 8))
    half = counted_sum(3 / 128, lambda s, t: float(np.float16(s) + np.float16(t)))
    assert float(valued(told("q17"))) == half


def test_iterations() -> None:
    h = 1e-6

    def g(x: float) -> float:
        return x - (x * x - 4) / 5

    slopes = sorted(abs(g(r + h) - g(r - h)) / (2 * h) for r in (2.0, -2.0))
    assert sorted(float(valued(v)) for v in told("q19")) == pytest.approx(slopes, rel=1e-6)
    assert int(told("q20")) == math.ceil(24 / math.log2(8 / 3))
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if math.cos(middle) / 2 > middle else (low, middle)
    assert told("q21") == pytest.approx(math.sin(low) / 2, rel=1e-14)
    error = 2.0**-7
    for _ in range(int(told("q25"))):
        assert error > 2.0**-53
        error = 1.5 * error * error
    assert error <= 2.0**-53


def test_newton_by_its_definition() -> None:
    """x - f/f' on fractions, with f itself."""
    y = F(1, 2)
    assert valued(told("q22")) == y - (1 / y**2 - 3) / (-2 / y**3)
    for a in (F(1), F(4), F(9, 16)):  # those with a rational root
        root = F(math.isqrt(a.denominator), math.isqrt(a.numerator))
        y = root * F(9, 8)
        after = y - (1 / y**2 - a) / (-2 / y**3)
        assert valued(told("q23")) == (after - root) / root
    y = F(1, 8)
    for _ in range(3):
        y -= (1 / y - 7) / (-1 / y**2)
    assert valued(told("q24")) == 1 - 7 * y


def test_counts() -> None:
    assert int(told("q27")) == 5 + 2
    assert int(told("q28")) == 2 * 5 + 1
    # seen in numbers: with every rounding off by the same d, c_5 = x = 1 becomes (1 + d)^roundings
    d, r = F(1, 2**40), F(0)
    for i in range(8, -1, -1):
        r = (r * (1 + d) + (i == 5)) * (1 + d)
    assert round((r - 1) / d) == int(told("q28"))


def test_degree() -> None:
    """The estimate is near the true error, so the degree is right for that as well."""
    r, n = math.log(2) / 2, int(told("q29"))
    estimate = [r ** (m + 1) / math.factorial(m + 1) for m in range(12)]
    assert [e <= 2.0**-24 for e in estimate].index(True) == n
    taylor = math.fsum(r**m / math.factorial(m) for m in range(n + 1))
    assert estimate[n] < math.exp(r) - taylor < 1.1 * estimate[n]


def test_chebyshev() -> None:
    nodes = np.polynomial.chebyshev.chebroots([0, 0, 0, 0, 0, 1])
    assert told("q30") == pytest.approx(1 + 2 * float(nodes.max()), rel=1e-13)
    x = np.linspace(2, 10, 8001)
    t3 = np.abs(np.polynomial.chebyshev.chebval((x - 6) / 4, [0, 0, 0, 1]))
    assert [float(valued(v)) for v in told("q31")] == x[t3 > 1 - 1e-12].tolist()
    # the best cubic is the one that interpolates at the Chebyshev nodes: its error is T_4 scaled
    at = 0.25 + 0.25 * np.cos((2 * np.arange(4) + 1) * np.pi / 8)
    cubic = np.polynomial.polynomial.Polynomial.fit(at, at**4, 3)
    grid = np.linspace(0, 0.5, 20001)
    assert float(valued(told("q32"))) == pytest.approx(float(np.abs(cubic(grid) - grid**4).max()), rel=1e-9)


def test_range_reduction() -> None:
    assert sorted(int(v) for v in told("q33")) == sorted(round(x / math.log(2)) for x in (18.5, -8.5))
    assert told("q34") == pytest.approx(math.remainder(18.5, math.log(2)), rel=1e-13)


def test_split_constant() -> None:
    """In float32 itself: C and k as float32 numbers, their product compared with that of integers."""
    b = int(told("q35"))
    k = np.arange(-127, 128)
    for C in (2**b - 1, 2**b - 3, 2 ** (b - 1) + 1):
        assert ((k.astype(np.float32) * np.float32(C)).astype(np.float64) == k * C).all()
    C = 2 ** (b + 1) - 1
    assert not ((k.astype(np.float32) * np.float32(C)).astype(np.float64) == k * C).all()


def test_tables() -> None:
    assert (len(E4M3), len(E5M2), len(E2M1)) == (127, 124, 8)
    assert [oracle.E4M3.values, oracle.E5M2.values, oracle.E2M1.values] == [E4M3, E5M2, E2M1]


def test_low_precision() -> None:
    assert valued(told("q36")) == nearest(F(21), E4M3)
    assert valued(told("q37")) == (2 - F(1, 4)) * 2**15
    assert valued(told("q38")) == E4M3[1]
    assert int(told("q39")) == 2 * len(E5M2) - 1
    rounded = {nearest(F(x), E2M1) for x in (0.25, 0.75, 1.25, 2.5, 3.5, 9)}
    assert set(map(valued, told("q40"))) == rounded and len(rounded) == 5
    assert int(told("q41")) == math.floor(math.log2(5 / 32)) - 2 + 127
    back = mx([F(x) for x in (29, 10, 1, 2, -7)], E2M1, 2)
    assert set(map(valued, told("q42"))) == set(back) and len(set(back)) == 5
    assert valued(told("q43")) == mx([F(15), F(3, 8), F(-6)], E4M3, 8)[0]
    assert valued(told("q44")) == nearest(10 / F(21, 448), E4M3) * F(21, 448)


def test_two_roundings() -> None:
    x = 17 / 16 + 2.0**-10
    once, twice = nearest(F(x), E4M3), nearest(F(float32_like(x, 8)), E4M3)
    assert valued(told("q45")) == once - twice != 0


def test_bf16_and_f16() -> None:
    """bf16 is the upper half of a float32."""

    def bf16(value: float) -> bool:
        return bool(np.float32(value) == value) and int(np.float32(value).view(np.uint32)) & 0xFFFF == 0

    tiny = np.array(1 << 16, np.uint32).view(np.float32)
    assert float(valued(told("q46"))) == float(tiny)
    values = {"a": 2.0**17, "b": 2.0**-30, "c": 1 + 2.0**-11, "d": 257 / 16}
    with np.errstate(over="ignore"):
        only = [letter for letter, v in values.items() if float(np.float16(v)) == v and not bf16(v)]
    assert [told("q47")] == only


def test_against_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8)
    e5m2 = codes.view(ml_dtypes.float8_e5m2).astype(np.float64)
    assert int(told("q39")) == len(set(e5m2[np.isfinite(e5m2)].tolist()))
    assert float(valued(told("q37"))) == e5m2[np.isfinite(e5m2)].max()
    e4m3 = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert float(valued(told("q38"))) == e4m3[e4m3 > 0].min()
    assert float(valued(told("q36"))) == float(np.float32(21).astype(ml_dtypes.float8_e4m3fn))
    assert float(valued(told("q46"))) == float(ml_dtypes.finfo(ml_dtypes.bfloat16).smallest_subnormal)
    assert float(valued(told("q16"))) == counted_sum(
        1.0, lambda s, t: float(ml_dtypes.bfloat16(s) + ml_dtypes.bfloat16(t))
    )


def test_against_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        r = mpmath.findroot(lambda x: mpmath.cos(x) / 2 - x, 0.45)
        answers = {
            "q03": 1 / mpmath.log(mpmath.mpf(6) / 5),
            "q06": (33 + mpmath.sqrt(33**2 - 16)) / 4,
            "q21": mpmath.sin(r) / 2,
            "q30": 1 + 2 * mpmath.cos(mpmath.pi / 10),
            "q34": mpmath.mpf(37) / 2 - 27 * mpmath.log(2),
        }
        for question, value in answers.items():
            assert told(question) == pytest.approx(float(value), rel=1e-15)


# -- the mistakes, made --------------------------------------------------------------------------------------


def away(x: Fraction, values: list[Fraction]) -> Fraction:
    """Nearest with ties away from zero: the smallest of the nearest seen from just above."""
    return nearest(x + (F(1, 10**9) if x > 0 else -F(1, 10**9)), values)


def mistaken_gamma(k: int, u: Fraction) -> Fraction:
    return k * u / (1 - k * u)


def mistakes() -> dict[str, list[Any]]:
    """What the mistakes named in the files lead to, worked out by making them."""
    eps16, eps32, eps8 = F(2, 2**11), F(2, 2**24), F(2, 2**8)  # twice u
    log6, logs = math.log(1.2), [x / math.log(2) for x in (18.5, -8.5)]
    column, disturbed = [F(3), F(1)], [F(1) + F(1, 64), F(2) + F(1, 64)]
    q_sum = sum((a * b for a, b in zip(disturbed, column, strict=True)), F(0))
    p_sum, y, d = F(4, 64), F(1, 2), F(1, 8)
    block = [F(x) for x in (29, 10, 1, 2, -7)]
    scale = F(21, 448)
    degrees = 0.0
    for _ in range(50):
        degrees = math.cos(math.radians(degrees)) / 2
    return {
        "q02": [F(-25, 2), 1],
        "q03": [log6, 1 / 1.2 / log6, 1 / math.log10(1.2), 1 / (1.2 - 1)],
        "q04": [F(3) / F(1, 8)],
        "q05": [F(12, -5), 12 / F(3, 4), 192**2],
        "q06": [
            4,
            66 / 4,
            max(1, 7 + 4) * max(1, 7 / 4 + 1 / 4),
            float(np.linalg.cond([[1, 7], [0, 4]])) ** 2,
        ],
        "q07": [F(4) / F(5, 4), (F(1, 10) / F(5, 4)) / F(1, 10)],
        "q09": [mistaken_gamma(3, eps16), 3 * eps16 / 2, F(3, 2048 + 3), mistaken_gamma(3, eps16 / 4)],
        "q10": [2048 // 10, 2048 // 11 + 1, 1024 // 11],
        "q11": [F(63, 4) * g for g in (mistaken_gamma(5, eps8 / 2), 4 * eps8 / 2, mistaken_gamma(4, eps8))],
        "q12": [
            mistaken_gamma(3, eps32 / 2),
            33 * mistaken_gamma(2, eps32 / 2),
            33 * mistaken_gamma(3, eps32),
        ],
        "q13": [
            mistaken_gamma(2, eps16 / 2) * q_sum,
            p_sum + mistaken_gamma(2, eps16 / 2) * 5,
            p_sum + mistaken_gamma(2, eps16) * q_sum,
            p_sum + eps16 * q_sum,
        ],
        "q14": [F(1024, 10), F(1023, 9), F(1023, 11), F(1023, 32)],
        "q16": [counted_sum(1.0, lambda s, t: float32_like(s + t, 7))],
        "q17": [F(3, 128) * 2**11],
        "q20": [math.floor(24 / math.log2(8 / 3)), 24],
        "q21": [math.sin(math.radians(degrees)) / 2, 2 * told("q21"), -told("q21")],
        "q22": [y * (3 - 3 * y) / 2, y * (3 - 3 * y * y), (y + 3 / y) / 2, y * (2 - 3 * y * y)],
        "q23": [-3 * d**2 / 2, -3 * d**2 / 2 + d**3 / 2, d**2],
        "q24": [d**4, d**16, d**3],
        "q25": [smallest(lambda j: 7 * 2**j >= 53), 53 - 7],
        "q29": [
            smallest(lambda n: (math.log(2) / 2) ** (n + 1) / math.factorial(n + 1) <= 2.0**-23),
            smallest(lambda n: math.log(2) ** (n + 1) / math.factorial(n + 1) <= 2.0**-24),
        ],
        "q30": [
            math.cos(math.pi / 10),
            1 + 2 * math.cos(math.pi / 5),
            1 + 2 * math.cos(math.pi / 9),
            1 + 4 * math.cos(math.pi / 10),
        ],
        "q31": [{F(-1), F(-1, 2), F(1, 2), F(1)}, {6 + 8 * x for x in (F(-1), F(-1, 2), F(1, 2), F(1))}],
        "q32": [F(1, 8), F(1, 4) ** 4, F(1, 2) ** 4 / 8, F(1, 4) ** 4 / 16, F(1, 4) ** 4 / 4],
        "q33": [
            {math.floor(x) for x in logs},
            {math.trunc(x) for x in logs},
            {math.ceil(logs[0]), math.floor(logs[1])},
        ],
        "q34": [18.5 - 26 * math.log(2), logs[0] - 27],
        "q36": [away(F(21), E4M3)],
        "q39": [2 * len(E5M2), 2 * len(E5M2) - 1 + 2, 256 - 2 - 1],
        "q40": [{away(F(n, 4), E2M1) for n in (1, 3, 5, 10, 14, 36)}],
        "q41": [math.ceil(math.log2(5 / 32)) + 125, -3 + 127, 254 - 122, -3 - 8 + 127],
        "q42": [
            {nearest(x / 8, E2M1) * 8 for x in block},
            {away(x / 4, E2M1) * 4 for x in block},
            {nearest(x / 4, E2M1) for x in block},
        ],
        "q44": [nearest(F(10), E4M3), 14 * 16 * scale, 13 * 16, round(10 / scale / 8) * 8 * scale],
        "q45": [nearest(F(17, 16) + F(1, 2**10), E4M3) - F(17, 16)],
    }


@pytest.mark.parametrize(("question", "values"), mistakes().items())
def test_mistakes_lead_to_the_wrong_answers(question: str, values: list[Any]) -> None:
    kind = kind_of(CASES[question]["expect"])
    stated = [wrong["value"] for wrong in CASES[question]["reject"]]
    for value in values:
        if kind == "close":
            assert any(math.isclose(value, other, rel_tol=1e-11) for other in stated), value
        elif kind == "set":
            assert value in [set(map(valued, other)) for other in stated], value
        else:
            assert value in [valued(other) for other in stated], value
