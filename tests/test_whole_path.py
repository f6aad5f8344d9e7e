"""The path walked as a learner walks it: a gate opens once, when its last unit is there, and closes again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader import fixtures, mutants
from grader.draw import shuffled
from grader.path import Stage, built, read_path
from grader.tree import module_of

ROOT = Path(__file__).resolve().parent.parent
STAGES = read_path(ROOT / "path.tsv")
MILESTONE = next(stage for stage in STAGES if stage.is_milestone)
REQUIRED = [stage for stage in STAGES if stage.id in MILESTONE.needs]
MUTANTS = 60

pytestmark = pytest.mark.skipif(
    not all(built(s, ROOT) for s in REQUIRED), reason="not every required unit is built"
)


def ol(folder: Path, *args: str) -> dict[str, Any]:
    """What a command prints with --json."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "CI": "", "COLUMNS": "110"}
    command = [sys.executable, "-I", "-X", "utf8", str(ROOT / "grader" / "__main__.py"), *args, "--json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if document["outcome"] == "pass" else 1), done
    return document


def gate(folder: Path, name: str = "MS-P6") -> dict[str, Any]:
    for _ in range(3):  # on a machine that is too loaded a speed is undecided, and asking again is the answer
        document = ol(folder, "gate", name)
        judged = [*document["units"], *document["gate"]["steps"]]
        if not any(one["outcome"] == "undecided" for one in judged):
            break
    found: dict[str, Any] = document["gate"]
    assert (document["outcome"] == "pass") == (found["outcome"] == "pass")
    return found


def put(folder: Path, stage: Stage) -> None:
    for file in stage.files:
        shutil.copy(ROOT / file, folder / file)


def fresh(home: Path) -> Path:
    ol(home, "init", str(home / "w"))
    return home / "w"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which every unit passes; a test leaves it as it was."""
    folder = fresh(tmp_path_factory.mktemp("full"))
    for stage in REQUIRED:
        put(folder, stage)
    assert gate(folder)["outcome"] == "pass"
    return folder


@pytest.mark.slow
def test_the_gates_open_with_the_last_unit_and_never_before(tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    for n, stage in enumerate(REQUIRED):
        closed = gate(folder)
        assert closed["outcome"] == "not passed"
        assert [name for name in closed["missing"] if name in MILESTONE.needs] == [s.id for s in REQUIRED[n:]]
        assert all(step["outcome"] == "blocked" for step in closed["steps"])
        put(folder, stage)
    for name in ("MS-L8", "MS-P6"):
        opened = gate(folder, name)
        assert (opened["outcome"], opened["missing"]) == ("pass", []), opened
        assert all(step["outcome"] == "pass" for step in opened["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("stage", REQUIRED, ids=lambda stage: stage.id)
def test_a_stub_closes_the_gate_again(full: Path, stage: Stage) -> None:
    ol(full, "restore", stage.id)
    closed = gate(full)
    assert closed["outcome"] == "not passed"
    assert stage.id in closed["missing"]
    put(full, stage)
    assert gate(full)["outcome"] == "pass"


def sample() -> Iterator[Any]:
    """Mutants of every unit with code, as many of each; CI takes the first."""
    units = [stage for stage in REQUIRED if not stage.is_sheet and built(stage, ROOT)]
    for stage in units:
        for n, name in enumerate(shuffled(list(fixtures.load(stage, ROOT).mutants()), 5)):
            if n < -(-MUTANTS // len(units)):
                mark = pytest.mark.exhaustive if n else pytest.mark.slow
                yield pytest.param(stage, name, marks=mark, id=f"{stage.id}-{name}")


@pytest.mark.parametrize(("stage", "name"), list(sample()))
def test_a_mutant_closes_the_gate(full: Path, stage: Stage, name: str) -> None:
    unit = fixtures.load(stage, ROOT)
    changed = mutants.mutated(unit, name, unit.mutants()[name])
    for file in stage.files:
        if module_of(file) in changed:
            (full / file).write_text(changed[module_of(file)])
    closed = gate(full)
    put(full, stage)
    assert closed["outcome"] == "not passed"
    assert stage.id in closed["missing"]
