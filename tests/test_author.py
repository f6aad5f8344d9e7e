"""The authoring loop: new, build, lint, coverage, mutants. Each test breaks a copy of a small course in one way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grader import coverage, fixtures, lint, mutants, new, path, spec
from grader.errors import OlError
from grader.session import Workers

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy"


def ol(course: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), *args]
    env = {**os.environ, "OL_COURSE": str(course)}
    return subprocess.run(
        command, cwd=course, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    course = tmp_path / "toy"
    shutil.copytree(TOY, course, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    return course


def edit(course: Path, name: str, old: str, new_text: str) -> None:
    file = course / name
    text = file.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {name}"
    file.write_text(text.replace(old, new_text, 1))


def stage_of(course: Path) -> path.Stage:
    return path.read_path(course / "path.tsv")[0]


def test_new_unit_needs_a_row_and_three_places_and_no_grader_code(toy: Path) -> None:
    stages = path.read_path(toy / "path.tsv")
    printed = ol(toy, "author", "new", "doubler")
    assert printed.returncode == 0
    with (toy / "path.tsv").open("a") as file:
        file.write(new.row("doubler", stages) + "\n")
    for name, text in new.files("doubler", stages).items():
        assert f"==> {name}\n{text}" in printed.stdout
        (toy / name).parent.mkdir(parents=True, exist_ok=True)
        (toy / name).write_text(text)
    assert ol(toy, "author", "build", "doubler").returncode == 0
    linted = ol(toy, "author", "lint", "doubler")
    assert linted.returncode == 0, linted.stdout
    killed = ol(toy, "author", "mutants", "doubler", "--json")
    assert killed.returncode == 0, killed.stdout
    checked = json.loads(ol(toy, "check", "doubler", "--json").stdout)
    assert checked["outcome"] == "pass" and checked["units"][0]["counts"]["pass"] == 3


def test_new_refuses_a_bad_name(toy: Path) -> None:
    result = ol(toy, "author", "new", "Bad-Name")
    assert result.returncode == 2
    assert result.stderr.startswith("error: 'Bad-Name' is no unit name · ol author new · ")


def test_build_check_reports_what_would_change(toy: Path) -> None:
    edit(toy, "fixtures/stack/cases.yaml", "return: 1, state", "return: 9, state")
    result = ol(toy, "author", "build", "T.1", "--check", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["units"][0]["changed"][0] in ("MANIFEST.tsv", "cases.yaml")
    assert ol(toy, "author", "build", "T.1").returncode == 0
    assert ol(toy, "author", "build", "T.1", "--check").returncode == 0


LINT = [
    ("spec/stack.md", "# stack —", "# Stack:", "the page starts with '# stack — what it is'"),
    ("spec/stack.md", "## Changes", "## History", "no section '## Changes'"),
    ("spec/stack.md", "R3. ", "R33. ", "rules are numbered R1, R2, .. without a gap"),
    ("spec/stack.md", "\n\n## Changes", "\nR{next}. It MUST be true.\n\n## Changes", "no case for R{next}"),
    ("fixtures/stack/cases.yaml", "rule: [R6]", "rule: [R66]", "cites R66, which the page does not have"),
    ("fixtures/stack/cases.yaml", "  call: double\n", "  call: doble\n", "calls 'doble', which the reference does not have; it has 'double'"),
    ("fixtures/stack/cases.yaml", "args: {n: 3}", "args: {m: 3}", "passes 'm' to label, whose arguments are n"),
    ("fixtures/stack/cases.yaml", "kills: [half-total]", "kills: [half-totl]", "kills 'half-totl', which is no mutant; did you mean 'half-total'?"),
    ("fixtures/stack/cases.yaml", "kills: [copies]", "kills: []", "no case claims mutant copies"),
    ("fixtures/stack/cases.yaml", "draw: vector, with: {least: 40", "draw: vectr, with: {least: 40", "names 'vectr', which neither oracle.py nor laws.py has"),
    ("fixtures/stack/mutants.yaml", "xs *= 2", "xs *= 3", "find matches 0 times in impl/stack.py, not once"),
    ("fixtures/stack/mutants.yaml", "10 * (i // 2)", "10 * (i // 2", "mutant same-label does not compile"),
    ("fixtures/stack/mutants.yaml", "rule: R5", "rule: R55", "mutant same-label cites R55"),
    ("fixtures/stack/mutants.yaml", "hint: full", "hint: ful", "names the hint 'ful', which no file defines"),
    ("fixtures/stack/oracle.py", "import numpy as np", "import numpy as np\nimport yaml", "imports yaml at the top"),
    ("fixtures/stack/oracle.py", "import numpy as np", "import numpy as np\n\ndef f():\n    import impl.stack", "an oracle never imports impl"),
    ("fixtures/stack/cases.yaml", "return: 1, state", "return: 9, state", "differs from what the oracle builds"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "text", "finding"), LINT, ids=[f"{i}" for i in range(len(LINT))])
def test_lint_finds(toy: Path, name: str, old: str, text: str, finding: str) -> None:
    following = str(len(spec.rules(toy / "spec/stack.md")) + 1)
    edit(toy, name, old, text.replace("{next}", following))
    found = lint.lint_unit(stage_of(toy), toy)["findings"]
    assert any(finding.replace("{next}", following) in line for line in found), found


def test_lint_of_the_toy_is_clean() -> None:
    assert lint.lint_unit(stage_of(TOY), TOY)["findings"] == []


def test_coverage_counts_field_cases(toy: Path) -> None:
    table = "| case | here |\n|---|---|\n| S01 one | R1 |\n| S02 two | R2 |\n| S03 three | R3 |\n"
    edit(toy, "spec/stack.md", "## Changes", f"## Not here\n- S02: no such operation.\n\n{table}\n## Changes")
    edit(
        toy,
        "fixtures/stack/cases.yaml",
        'why: "push on a full stack"',
        'why: "push on a full stack", source: "a/b#1 S01"',
    )
    found = coverage.cover_unit(stage_of(toy), toy)
    assert found["field_cases"] == {"named": 3, "as_cases": 1, "not_here": 1, "missing": ["S03"]}
    assert any("field case S03 has no case" in line for line in found["findings"])


@pytest.fixture(scope="module")
def workers() -> Any:
    shared = Workers()
    yield shared
    shared.close()


def matrix(course: Path, workers: Workers) -> dict[str, Any]:
    return mutants.report(fixtures.load(stage_of(course), course), workers, lambda text: None)


def test_the_toy_has_teeth(workers: Workers) -> None:
    row = matrix(TOY, workers)
    assert mutants.clean(row), row
    assert row["killed"] == row["by_claim"] == row["mutants"] >= 8


def test_a_mutant_that_no_case_kills_survives(toy: Path, workers: Workers) -> None:
    edit(toy, "fixtures/stack/mutants.yaml", "xs = xs * 2", "xs *= 2.0")
    row = matrix(toy, workers)
    assert [s["mutant"] for s in row["survivors"]] == ["copies"]
    assert not mutants.clean(row)


def test_two_mutants_that_answer_alike_are_one(toy: Path, workers: Workers) -> None:
    text = (toy / "fixtures/stack/mutants.yaml").read_text()
    twin = '  forgets-last:\n    bug: "the same again"\n    find: "in xs.tolist()"\n    with: "in xs[:-1].tolist()"\n    rule: R4\n'
    (toy / "fixtures/stack/mutants.yaml").write_text(text + twin)
    row = matrix(toy, workers)
    assert row["alike"] == [["half-total", "forgets-last"]]


def test_an_equivalent_that_is_wrong_is_rejected_by_name(toy: Path, workers: Workers) -> None:
    edit(
        toy, "fixtures/stack/equivalents/deque.py", "return self._deque.pop()", "return self._deque.popleft()"
    )
    row = matrix(toy, workers)
    assert [r["equivalent"] for r in row["rejected"]] == ["deque"]


def test_a_tolerance_wider_than_half_the_mistake_is_weak(toy: Path, workers: Workers) -> None:
    edit(
        toy,
        "fixtures/stack/cases.yaml",
        "{f64: 3.5, cmp: exact}",
        "{f64: 3.5, cmp: close, atol: 1.5, why: generous}",
    )
    row = matrix(toy, workers)
    assert row["weak_tolerances"] == [
        {"mutant": "half-total", "case": "stack/total", "error": 2.5 / 1.5, "tolerance": 1.0}
    ]


def test_a_trivial_answer_that_passes_is_named(toy: Path, workers: Workers) -> None:
    edit(
        toy,
        "impl/stack.py",
        "    if xs.size == 0:",
        "    if xs is None:\n        raise NotImplementedError\n    if xs.size == 0:",
    )
    edit(toy, "fixtures/stack/cases.yaml", "args: {n: 3}\n  expect: {return: [{i64: 0, cmp: labels}, {i64: 1, cmp: labels}, {i64: 2, cmp: labels}]}",
         "args: {n: 1}\n  expect: {return: [{i64: 0, cmp: labels}]}")  # fmt: skip
    edit(toy, "fixtures/stack/cases.yaml", "args: {n: 2}\n  expect: {return: [{i64: 0, cmp: labels}, {i64: 1, cmp: labels}]}",
         "args: {n: 1}\n  expect: {return: [{i64: 0, cmp: labels}]}")  # fmt: skip
    assert "label" in matrix(toy, workers)["trivial"]["zeros"]


def test_a_broken_reference_is_named_before_any_mutant(toy: Path, workers: Workers) -> None:
    edit(toy, "impl/stack.py", "xs *= 2", "xs *= 3")
    with pytest.raises(OlError, match="the reference does not pass stack/double"):
        matrix(toy, workers)


def test_without_ids_the_built_units_are_covered_and_the_others_listed() -> None:
    for verb in ("lint", "coverage"):
        document = json.loads(ol(TOY, "author", verb, "--json").stdout)
        assert [u["id"] for u in document["units"]] == ["T.1"] and document["not_built"] == ["T.2"]
        assert document["outcome"] == "pass"


def test_naming_a_unit_that_is_not_built_or_a_gate_is_refused() -> None:
    result = ol(TOY, "author", "lint", "T.2")
    assert result.returncode == 2 and result.stderr.startswith(
        "error: T.2 is not built yet · path.tsv line 3 · "
    )
