"""Diagnosis is judged on wrong implementations that were written without looking at the known mistakes.

`wrong/UNIT/wrong.yaml` says what is wrong with each, and which known mistakes may be named (none: silence is
right). Most are edits of a base, an implementation that is right; the others are whole files, or a folder of
them beside a file of a base.

With `-m slow` a drawn sample of each unit's, with `-m exhaustive` all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader import diagnose, fixtures, mutants, path, strict_yaml
from grader.code import code_of, opener_of
from grader.draw import shuffled
from grader.runner import Runner, UnitRun
from grader.session import Workers
from grader.tree import Tree, module_of

ROOT = Path(__file__).resolve().parent.parent
STAGES = path.read_path(ROOT / "path.tsv")
WRONG = ROOT / "tests" / "wrong"
UNITS = sorted(folder.name for folder in WRONG.iterdir() if folder.is_dir())


def wrong(unit: fixtures.Unit) -> dict[str, dict[str, Any]]:
    file = WRONG / unit.name / "wrong.yaml"
    return dict(strict_yaml.load(file.read_text(), str(file)))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    shared = Workers()
    yield shared
    shared.close()


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> fixtures.Unit:
    return fixtures.load(path.find(STAGES, request.param), ROOT)


def bases(unit: fixtures.Unit, entry: dict[str, Any]) -> dict[str, str]:
    """What an entry is edits of, or leaves as it is, by file."""
    base = entry.get("base", [])
    named = [base] if isinstance(base, str) else base
    return {Path(name).name: (WRONG / unit.name / name).read_text() for name in named}


def by_module(unit: fixtures.Unit, texts: dict[str, str]) -> dict[str, str]:
    first = Path(unit.stage.files[0])
    return {module_of(str(first.with_name(file))): text for file, text in texts.items()}


def sources(unit: fixtures.Unit, name: str) -> dict[str, str]:
    """A wrong implementation by module."""
    path, entry = WRONG / unit.name / name, wrong(unit)[name]
    first, place = Path(unit.stage.files[0]).name, f"{path.parent}/wrong.yaml"
    if "edits" in entry:
        texts = mutants.edited(bases(unit, entry), entry["edits"], name, unit, place)
    elif path.is_dir():
        texts = bases(unit, entry) | {file.name: file.read_text() for file in path.glob("*.*")}
    else:
        texts = {first: path.with_suffix(Path(first).suffix).read_text()}
    return by_module(unit, texts)


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
    right, false, entries = [], [], wrong(unit)
    for name in names:
        got = named(unit, workers, sources(unit, name))
        if got is not None and got not in entries[name]["may_be_named"]:
            false.append((name, got))
        elif got is not None:
            right.append(name)
    listed = [name for name in names if entries[name]["may_be_named"]]
    assert not false, false
    assert len(right) >= least * len(listed), sorted(set(listed) - set(right))


def test_every_wrong_answer_is_there_and_has_an_expected_diagnosis(unit: fixtures.Unit) -> None:
    entries, folder = wrong(unit), WRONG / unit.name
    whole = {path.stem for path in folder.iterdir() if path.stem[:4] != "base"} - {"wrong"}
    assert whole == {name for name, entry in entries.items() if "edits" not in entry} and len(entries) >= 10
    assert len({tuple(sources(unit, name).values()) for name in entries}) == len(entries)
    assert {m for entry in entries.values() for m in entry["may_be_named"]} <= set(unit.mutants())


def right(unit: fixtures.Unit) -> list[dict[str, str]]:
    """Every base, or set of bases, that something is an edit of."""
    found = [bases(unit, entry) for entry in wrong(unit).values() if "edits" in entry]
    return [texts for i, texts in enumerate(found) if texts not in found[:i]]


def assert_right(unit: fixtures.Unit, workers: Workers, bases: list[dict[str, str]]) -> None:
    for texts in bases:
        run, _ = diagnosed(runner_of(unit, workers, by_module(unit, texts)), workers)
        assert [case for case, verdict in run.verdicts.items() if not verdict.passed] == []


@pytest.mark.slow
def test_the_first_base_is_right(unit: fixtures.Unit, workers: Workers) -> None:
    assert_right(unit, workers, right(unit)[:1])


@pytest.mark.exhaustive
def test_every_base_is_right(unit: fixtures.Unit, workers: Workers) -> None:
    assert_right(unit, workers, right(unit)[1:])


@pytest.mark.slow
def test_a_sample_of_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, shuffled(list(wrong(unit)), 2)[:8])


@pytest.mark.exhaustive
def test_all_wrong_answers(unit: fixtures.Unit, workers: Workers) -> None:
    judge(unit, workers, list(wrong(unit)))


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
