"""The verbs for course authors: build, mutants, lint, coverage, new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader import console
from grader.errors import NOT_PASSED, PASSED, UsageError
from grader.path import Stage, built, find, read_path
from grader.report import FORMAT
from grader.workspace import course_root


def chosen(names: Sequence[str], gates: bool = False) -> tuple[Path, list[Stage], list[str]]:
    """The built units that were named; or all of them, and the ids that are not built.

    With `gates`, milestones that have cases of their own count as units.
    """
    root = course_root()
    stages = read_path(root / "path.tsv")

    def counts(stage: Stage) -> bool:
        return not stage.is_milestone or (gates and (root / "fixtures" / stage.unit).is_dir())

    for gate in [stage for stage in stages if stage.is_milestone]:  # what runs on the real model lies apart
        stages.append(replace(gate, id=f"{gate.id}-real", unit=f"{gate.unit}_real"))
    units = [stage for stage in stages if counts(stage)]
    not_built = [s.id for s in units if not built(s, root)]
    if not names:
        return root, [s for s in units if s.id not in not_built], not_built
    picked = [find(stages, name) for name in names]
    for stage in picked:
        if not counts(stage):
            raise UsageError(f"{stage.id} is a gate, not a unit", "path.tsv", "name a unit")
        if stage.id in not_built:
            raise UsageError(
                f"{stage.id} is not built yet",
                f"path.tsv line {stage.line}",
                "ol author new prints its skeletons",
            )
    return root, picked, []  # who names units does not ask about others


def document(command: str, good: bool, **more: Any) -> dict[str, Any]:
    return {"format": FORMAT, "command": command, "outcome": "pass" if good else "fail", **more}


def build(names: tuple[str, ...], only_check: bool, as_json: bool) -> int:
    """Recompute expected values; with --check only say what would change."""
    from grader.build import build as rebuild

    root, stages, not_built = chosen(names, gates=True)
    rows = []
    with console.Bar() as bar:
        for stage in stages:
            bar(f"building {stage.unit}")
            rows.append(
                {"id": stage.id, "unit": stage.unit, "changed": rebuild(stage, root, not only_check, bar)}
            )
    good = not only_check or not any(row["changed"] for row in rows)
    if as_json:
        console.emit(document("author build", good, units=rows, not_built=not_built))
    else:
        for row in rows:
            verb = "differs" if only_check else "wrote"
            print(
                f"{row['id']} {row['unit']}  "
                + (f"{verb}: {', '.join(row['changed'])}" if row["changed"] else "unchanged")
            )
        listed(not_built)
        if not good:
            print("next  ol author build")
    return PASSED if good else NOT_PASSED


def run(verb: str, names: tuple[str, ...], as_json: bool) -> int:
    return {"mutants": mutants, "lint": lint, "coverage": coverage}[verb](names, as_json)


def mutants(names: tuple[str, ...], as_json: bool) -> int:
    """The kill matrix of each unit."""
    from grader import fixtures
    from grader import mutants as matrix
    from grader.session import Workers

    root, stages, not_built = chosen(names)
    workers, rows = Workers(), []
    try:
        with console.Bar() as bar:
            for stage in stages:
                rows.append(matrix.report(fixtures.load(stage, root, console.note), workers, bar))
    finally:
        workers.close()
    good = all(matrix.clean(row) for row in rows)
    if as_json:
        console.emit(document("author mutants", good, units=rows, not_built=not_built))
        return PASSED if good else NOT_PASSED
    from tabulate import tabulate

    head = (
        "id",
        "unit",
        "mutants",
        "killed",
        "by claim",
        "equivalents",
        "rejected",
        "trivial answers that pass",
    )
    table = [
        (
            r["id"],
            r["unit"],
            r["mutants"],
            r["killed"],
            r["by_claim"],
            r["equivalents"],
            len(r["rejected"]),
            sum(map(len, r["trivial"].values())),
        )
        for r in rows
    ]
    print(tabulate(table, head, tablefmt="simple"))
    for row in rows:
        print("\n".join(complaints(row)), end="\n" if complaints(row) else "")
    listed(not_built)
    return PASSED if good else NOT_PASSED


def complaints(row: dict[str, Any]) -> list[str]:
    """What is not as it must be, one line each."""
    out = []
    for s in row["survivors"]:
        if not s["claimed_by"]:
            out.append(
                f"{row['unit']}: no case claims {s['mutant']}"
                + (f" (killed by {', '.join(s['killed_by'])})" if s["killed_by"] else "")
            )
        else:
            out.append(
                f"{row['unit']}: {s['mutant']} is claimed and not killed by {', '.join(s['not_killed_by'])}"
            )
    out += [
        f"{row['unit']}: {' = '.join(names)} answer alike on every case: they are one mutant"
        for names in row["alike"]
    ]
    out += [
        f"{row['unit']}: {w['case']} allows {w['tolerance']:g}, {w['mutant']} is only off by {w['error']:g}"
        for w in row["weak_tolerances"]
    ]
    out += [
        f"{row['unit']}: equivalent {r['equivalent']} is rejected by {r['case']}: {r['text']}"
        for r in row["rejected"]
    ]
    for kind, functions in row["trivial"].items():
        out += [f"{row['unit']}: no case refuses {kind} from {function}" for function in functions]
    if row["equivalents"] < 2:
        out.append(
            f"{row['unit']}: {row['equivalents']} equivalents, at least two show that no spelling is graded"
        )
    return out


def listed(not_built: list[str]) -> None:
    if not_built:
        print(f"not built yet: {', '.join(not_built)}")


def lint(names: tuple[str, ...], as_json: bool) -> int:
    """Everything that can be wrong in a course without running a learner's code."""
    from grader.lint import lint_unit

    return findings("author lint", lint_unit, names, as_json)


def coverage(names: tuple[str, ...], as_json: bool) -> int:
    """Rules without cases and cases without rules."""
    from grader.coverage import cover_unit

    return findings("author coverage", cover_unit, names, as_json)


def findings(
    command: str, look: Callable[[Stage, Path], dict[str, Any]], names: tuple[str, ...], as_json: bool
) -> int:
    """Run a check that gives `{"findings": [..], ..}` for each unit."""
    root, stages, not_built = chosen(names)
    rows = []
    with console.Bar() as bar:
        for stage in stages:
            bar(f"{command} {stage.unit}")
            rows.append({"id": stage.id, "unit": stage.unit, **look(stage, root)})
    good = not any(row["findings"] for row in rows)
    if as_json:
        console.emit(document(command, good, units=rows, not_built=not_built))
    else:
        for row in rows:
            print("\n".join([*row["findings"], f"{row['id']} {row['unit']}  {row['summary']}"]))
        listed(not_built)
    return PASSED if good else NOT_PASSED


def new(unit: str) -> int:
    """Print the skeletons of a unit, ready to be saved."""
    from grader.new import skeletons

    root = course_root()
    print(skeletons(unit, read_path(root / "path.tsv")))
    return PASSED
