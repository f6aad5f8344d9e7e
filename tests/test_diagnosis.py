"""Diagnosis is judged on wrong samplers that were written without looking at the list of known mistakes.

By default a drawn sample; `-m slow` takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import diagnose, fixtures, mutants, path, strict_yaml
from grader.draw import shuffled
from grader.runner import Runner, UnitRun
from grader.session import Workers
from grader.tree import Tree, bundle

ROOT = Path(__file__).resolve().parent.parent
WRONG = ROOT / "tests" / "wrong" / "sampling"
EXPECTED: dict[str, list[str]] = strict_yaml.load((WRONG / "expected.yaml").read_text(), "expected.yaml")
MODULE = "impl.sampling"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    shared = Workers()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def unit() -> fixtures.Unit:
    return fixtures.load(path.find(path.read_path(ROOT / "path.tsv"), "L8.1"), ROOT)


def graded(unit: fixtures.Unit, workers: Workers, source: str) -> UnitRun:
    base = bundle(Tree(ROOT), ROOT, [MODULE])
    return Runner(unit, workers.opener(base, {MODULE: source}), shrinking=False).run(unit.cases)


def named(unit: fixtures.Unit, workers: Workers, source: str) -> str | None:
    run = graded(unit, workers, source)
    assert any(not v.passed for v in run.verdicts.values()), "no case sees this mistake"
    found = diagnose.diagnose(unit, run.verdicts, workers)
    return found.mutant if found is not None else None


def judge(unit: fixtures.Unit, workers: Workers, names: list[str]) -> None:
    right, wrong = [], []
    for name in names:
        got = named(unit, workers, (WRONG / f"{name}.py").read_text())
        if got is not None and got not in EXPECTED[name]:
            wrong.append((name, got))
        elif got is not None:
            right.append(name)
    listed = [name for name in names if EXPECTED[name]]
    assert not wrong, wrong
    assert len(right) >= 0.8 * len(listed), sorted(set(listed) - set(right))


def test_every_wrong_sampler_has_an_expected_diagnosis(unit: fixtures.Unit) -> None:
    assert {p.stem for p in WRONG.glob("*.py")} == set(EXPECTED)
    assert len(EXPECTED) >= 20 and {m for names in EXPECTED.values() for m in names} <= set(unit.mutants())


def test_a_sample_of_wrong_samplers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, shuffled(list(EXPECTED), 1)[:8])


@pytest.mark.slow
def test_all_wrong_samplers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, list(EXPECTED))


def names_itself(unit: fixtures.Unit, workers: Workers, names: list[str]) -> None:
    specs = unit.mutants()
    for name in names:
        source = mutants.mutated(unit, name, specs[name])[MODULE]
        assert named(unit, workers, source) == name


def test_a_sample_of_mutants_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, shuffled(list(unit.mutants()), 2)[:6])


@pytest.mark.slow
def test_every_mutant_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, list(unit.mutants()))


def test_what_passes_is_never_diagnosed(unit: fixtures.Unit, workers: Workers) -> None:
    for _, replace in mutants.equivalents(unit):
        run = graded(unit, workers, replace[MODULE])
        assert all(v.passed for v in run.verdicts.values())
        assert diagnose.diagnose(unit, run.verdicts, workers) is None
