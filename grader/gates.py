"""Milestones as data: a gate passes only if every required unit and every required step does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader.errors import OwnFault, UsageError
from grader.fixtures import load, read_yaml
from grader.grading import Grader, outcome_of
from grader.partner import grade_all
from grader.path import Stage, find


def read_gates(root: Path) -> dict[str, Any]:
    file = root / "spec" / "gates.yaml"
    if not file.exists():
        return {}
    return dict(read_yaml(file, "gates", root)["gates"])


def check_gates(gates: dict[str, Any], stages: Sequence[Stage]) -> None:
    """Every gate is a milestone of the path and requires stages before it."""
    order = {stage.id: stage.stage for stage in stages}
    for name, gate in gates.items():
        stage = next((s for s in stages if s.id == name), None)
        if stage is None or not stage.is_milestone:
            raise OwnFault(
                f"gate {name} is no milestone of the path", "spec/gates.yaml", "add its row to path.tsv"
            )
        for need in gate["requires"]:
            if need not in order or order[need] >= order[name]:
                raise OwnFault(f"gate {name} requires {need}, which is no stage before it", "spec/gates.yaml")


def required_units(
    name: str, gates: dict[str, Any], stages: Sequence[Stage]
) -> tuple[list[Stage], list[dict[str, Any]]]:
    """The units and the steps that a gate rests on, through the gates it requires, in path order."""
    if name not in gates:
        fix = f"there is {', '.join(gates)}" if gates else "this course has none"
        raise UsageError(f"no gate {name!r}", "ol gate", fix)
    units: dict[str, Stage] = {}
    steps: list[dict[str, Any]] = [{**step, "of": name} for step in gates[name].get("steps", [])]
    for need in gates[name]["requires"]:
        if need in gates:
            more, inner = required_units(need, gates, stages)
            units |= {stage.id: stage for stage in more}
            steps = inner + steps
        else:
            stage = find(stages, need)
            units[stage.id] = stage
    return sorted(units.values(), key=lambda stage: stage.stage), steps


def run_gate(
    name: str, gates: dict[str, Any], stages: Sequence[Stage], grader: Grader, real: bool = False
) -> dict[str, Any]:
    """The gate's report and those of its units; steps on the real model only if they are asked for."""
    units, steps = required_units(name, gates, stages)
    steps = [step for step in steps if real or "real" not in step]
    reports = grade_all(grader, units)
    waiting = [report["id"] for report in reports if report["outcome"] != "pass"]
    rows = []
    for step in steps:
        row = {key: step[key] for key in ("id", "title", "gate")} | {"level": step.get("level", "required")}
        if not (grader.root / "fixtures" / step["cases"]).is_file():
            row |= {"outcome": "not built", "text": "this course has no cases for it yet"}
        elif waiting:
            verb = "pass" if len(waiting) > 1 else "passes"
            row |= {"outcome": "blocked", "text": f"runs once {', '.join(waiting)} {verb}"}
        else:
            own, _ = required_units(step["of"], gates, stages)
            gate_stage = find(stages, step["of"])
            gate_stage = replace(gate_stage, unit=step["cases"].partition("/")[0])
            report = grader.grade_steps(gate_stage, own)
            names = {c.id for c in load(gate_stage, grader.root).cases if c.file.endswith(step["cases"])}
            row |= taken([case for case in report["cases"] if case["id"] in names])
        rows.append(row)
    missing = waiting + [row["id"] for row in rows if row["level"] == "required" and row["outcome"] != "pass"]
    passed = not missing and bool(reports)
    gate = {
        "id": name,
        "title": gates[name]["title"],
        "outcome": "pass" if passed else "not passed",
        "steps": rows,
        "missing": missing,
    }
    return {"gate": gate, "units": reports}


def taken(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a step's own cases say: the worst outcome, the first failure, and every measured value."""
    row: dict[str, Any] = {
        "outcome": outcome_of([case["outcome"] for case in cases if case["level"] == "required"]),
        "cases": len(cases),
        "passed": sum(case["outcome"] == "pass" for case in cases),
        "measured": {case["id"].partition("/")[2]: case["measured"] for case in cases if "measured" in case},
    }
    failed = [case for case in cases if case["outcome"] != "pass"]
    return row | ({"text": said(failed[0]), "failed": failed} if failed else {})


def said(case: dict[str, Any]) -> str:
    """A failing case in a line."""
    d = case.get("difference") if case["outcome"] == "fail" else None
    words = f"expected {d['expected']}, got {d['got']} {d['note']}".rstrip() if d else case.get("text", "")
    return f"{case['id'].partition('/')[2]}: {words or case['outcome']}"
