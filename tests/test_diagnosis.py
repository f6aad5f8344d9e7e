"""Diagnosis is judged on wrong implementations that were written without looking at the known mistakes.

With `-m slow` a drawn sample of each unit's, with `-m exhaustive` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import diagnose, fixtures, mutants, path, strict_yaml
from grader.code import code_of, opener_of
from grader.draw import shuffled
from grader.runner import Runner, UnitRun
from grader.session import Workers
from grader.tree import Tree, module_of

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


def sources(unit: fixtures.Unit, name: str) -> dict[str, str]:
    """A wrong implementation by module: NAME.py (.c) for the unit's first file, a folder for several."""
    path, first = ROOT / "tests" / "wrong" / unit.name / name, Path(unit.stage.files[0])
    if path.is_dir():
        return {module_of(str(first.with_name(file.name))): file.read_text() for file in path.glob("*.*")}
    return {module_of(str(first)): path.with_suffix(first.suffix).read_text()}


def runner_of(unit: fixtures.Unit, workers: Workers, replaced: dict[str, str]) -> Runner:
    base = code_of(unit.stage, Tree(ROOT, kind="reference"), ROOT)
    return Runner(unit, opener_of(workers, base, replaced), opener_of(workers, base), shrinking=False)


def diagnosed(runner: Runner, workers: Workers) -> tuple[UnitRun, diagnose.Diagnosis | None]:
    """What slowness shows has no wrong output: perf cases are left out."""
    run = runner.run([case for case in runner.unit.cases if case.verb != "perf"])
    again = lambda cases: runner.run(cases).verdicts  # noqa: E731
    return run, diagnose.diagnose(runner.unit, run.verdicts, workers, again)


def named(unit: fixtures.Unit, workers: Workers, replaced: dict[str, str]) -> str | None:
    run, found = diagnosed(runner_of(unit, workers, replaced), workers)
    assert any(not v.passed for v in run.verdicts.values()), "no case sees this mistake"
    return found.mutant if found is not None else None


def judge(unit: fixtures.Unit, workers: Workers, names: list[str], least: float = 0.8) -> None:
    right, wrong, may = [], [], expected(unit)
    for name in names:
        got = named(unit, workers, sources(unit, name))
        if got is not None and got not in may[name]:
            wrong.append((name, got))
        elif got is not None:
            right.append(name)
    listed = [name for name in names if may[name]]
    assert not wrong, wrong
    assert len(right) >= least * len(listed), sorted(set(listed) - set(right))


def test_every_wrong_answer_has_an_expected_diagnosis(unit: fixtures.Unit) -> None:
    may = expected(unit)
    folder = ROOT / "tests" / "wrong" / unit.name
    files = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix in (".py", ".c")}
    assert files == set(may) and len(may) >= 10
    assert {m for names in may.values() for m in names} <= set(unit.mutants())


@pytest.mark.slow
def test_a_sample_of_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    drawn = shuffled(list(expected(unit)), 2)
    if unit.stage.is_native:  # each known mistake is compiled: few are drawn, and few say less of a share
        judge(unit, workers, drawn[:3], 0.3)
    else:
        judge(unit, workers, drawn[:8])


@pytest.mark.exhaustive
def test_all_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, list(expected(unit)))


def known(unit: fixtures.Unit) -> list[str]:
    """The mutants that give wrong outputs."""
    timed = {name for case in unit.cases if case.verb == "perf" for name in case.kills}
    return [name for name in unit.mutants() if name not in timed]


def names_itself(unit: fixtures.Unit, workers: Workers, names: list[str]) -> None:
    specs = unit.mutants()
    for name in names:
        run, found = diagnosed(runner_of(unit, workers, mutants.mutated(unit, name, specs[name])), workers)
        failing = [v for v in run.verdicts.values() if not v.passed]
        if not unit.stage.is_native or any(v.evidence for v in failing):  # a crash has no value to compare
            assert found is not None and found.mutant == name, name


def test_a_sample_of_mutants_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, shuffled(known(unit), 2)[: 1 if unit.stage.is_native else 2])


@pytest.mark.slow
def test_more_mutants_are_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, shuffled(known(unit), 3)[: 2 if unit.stage.is_native else 5])


@pytest.mark.exhaustive
def test_every_mutant_is_named(unit: fixtures.Unit, workers: Workers) -> None:
    names_itself(unit, workers, known(unit))


def test_what_passes_is_never_diagnosed(unit: fixtures.Unit, workers: Workers) -> None:
    for _, replace in mutants.equivalents(unit):
        run, found = diagnosed(runner_of(unit, workers, replace), workers)
        assert all(v.passed for v in run.verdicts.values())
        assert found is None
