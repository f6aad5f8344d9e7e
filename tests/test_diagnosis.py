"""Diagnosis is judged on wrong implementations that were written without looking at the known mistakes.

By default a drawn sample of each unit's; `-m slow` takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import diagnose, fixtures, mutants, path, strict_yaml
from grader.draw import shuffled
from grader.runner import Runner, UnitRun
from grader.session import Workers
from grader.tree import Tree, bundle, module_of

ROOT = Path(__file__).resolve().parent.parent
STAGES = path.read_path(ROOT / "path.tsv")
UNITS = sorted(folder.name for folder in (ROOT / "tests" / "wrong").iterdir() if folder.is_dir())


def expected(unit: fixtures.Unit) -> dict[str, list[str]]:
    """The mistakes that may be named for each wrong implementation; none: silence is right."""
    file = ROOT / "tests" / "wrong" / unit.name / "expected.yaml"
    return dict(strict_yaml.load(file.read_text(), str(file)))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    shared = Workers()
    yield shared
    shared.close()


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> fixtures.Unit:
    return fixtures.load(path.find(STAGES, request.param), ROOT)


def graded(unit: fixtures.Unit, workers: Workers, source: str) -> UnitRun:
    module = module_of(unit.stage.files[0])
    base = bundle(Tree(ROOT), ROOT, [module])
    return Runner(unit, workers.opener(base, {module: source}), shrinking=False).run(unit.cases)


def named(unit: fixtures.Unit, workers: Workers, source: str) -> str | None:
    run = graded(unit, workers, source)
    assert any(not v.passed for v in run.verdicts.values()), "no case sees this mistake"
    found = diagnose.diagnose(unit, run.verdicts, workers)
    return found.mutant if found is not None else None


def judge(unit: fixtures.Unit, workers: Workers, names: list[str]) -> None:
    right, wrong, may = [], [], expected(unit)
    for name in names:
        got = named(unit, workers, (ROOT / "tests" / "wrong" / unit.name / f"{name}.py").read_text())
        if got is not None and got not in may[name]:
            wrong.append((name, got))
        elif got is not None:
            right.append(name)
    listed = [name for name in names if may[name]]
    assert not wrong, wrong
    assert len(right) >= 0.8 * len(listed), sorted(set(listed) - set(right))


def test_every_wrong_answer_has_an_expected_diagnosis(unit: fixtures.Unit) -> None:
    may = expected(unit)
    files = {file.stem for file in (ROOT / "tests" / "wrong" / unit.name).glob("*.py")}
    assert files == set(may) and len(may) >= 10
    assert {m for names in may.values() for m in names} <= set(unit.mutants())


def test_a_sample_of_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, shuffled(list(expected(unit)), 1)[:8])


@pytest.mark.slow
def test_all_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, list(expected(unit)))


def names_itself(unit: fixtures.Unit, workers: Workers, names: list[str]) -> None:
    specs, module = unit.mutants(), module_of(unit.stage.files[0])
    for name in names:
        source = mutants.mutated(unit, name, specs[name])[module]
        assert named(unit, workers, source) == name


def test_a_sample_of_mutants_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, shuffled(list(unit.mutants()), 2)[:6])


@pytest.mark.slow
def test_every_mutant_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, list(unit.mutants()))


def test_what_passes_is_never_diagnosed(unit: fixtures.Unit, workers: Workers) -> None:
    module = module_of(unit.stage.files[0])
    for _, replace in mutants.equivalents(unit):
        run = graded(unit, workers, replace[module])
        assert all(v.passed for v in run.verdicts.values())
        assert diagnose.diagnose(unit, run.verdicts, workers) is None
