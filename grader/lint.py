"""`ol author lint`: everything that can be wrong in a unit without running a learner's code."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader import coverage, fixtures, laws, spec
from grader.build import build
from grader.code import public_names, stub_of
from grader.errors import OlError
from grader.fixtures import Case, Unit
from grader.mutants import mutated, sources
from grader.path import Stage

MUST_HAVE = ("Rules", "Changes")
GRADING_IMPORTS = {"numpy"}


def lint_unit(stage: Stage, root: Path) -> dict[str, Any]:
    """Findings, one line each, in the order: page, fixtures, names, mutants, stub, build."""
    findings: list[str] = []
    cases = 0
    try:
        unit = fixtures.load(stage, root)
        cases = len(unit.cases)
        findings += page_findings(stage, root)
        findings += coverage.cover_unit(stage, root)["findings"]
        findings += name_findings(unit)
        findings += mutant_findings(unit)
        findings += oracle_findings(unit)
        findings += stub_findings(unit)
        findings += [
            f"fixtures/{stage.unit}/{name}: differs from what the oracle builds; ol author build {stage.unit}"
            for name in build(stage, root, False)
        ]
    except OlError as error:
        findings.append(str(error).removeprefix("error: "))
    return {
        "findings": findings,
        "summary": f"{cases} cases, {len(findings)} findings" if findings else f"{cases} cases, clean",
    }


def page_findings(stage: Stage, root: Path) -> Iterator[str]:
    page = root / stage.page
    lines = page.read_text().splitlines()
    if not lines or not lines[0].startswith(f"# {stage.unit} "):
        yield f"{stage.page}:1: the page starts with '# {stage.unit} — what it is'"
    titles = {line.removeprefix("## ") for line in lines if line.startswith("## ")}
    for title in MUST_HAVE:
        if title not in titles:
            yield f"{stage.page}: no section '## {title}'"
    numbers = [int(rule[1:]) for rule in spec.rules(page)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"{stage.page}: rules are numbered R1, R2, .. without a gap"


def name_findings(unit: Unit) -> Iterator[str]:
    """Called names and argument names are those of the reference: they are the contract."""
    known = public_names(sources(unit))
    if unit.stage.is_native:
        from grader import library

        known |= library.declared(unit.root, unit.name)
    topics = {t for c in unit.cases for t in c.raw.get("hints", [])} | {
        m.get("hint") for m in unit.mutants().values()
    }
    for topic in unit.hints:
        if topic not in topics:
            yield f"fixtures/{unit.name}: no case and no mutant uses the hint {topic!r}"
    for case in unit.cases:
        for name, args in called(case):
            name = name.partition("[")[0]
            if "." in name:
                continue
            where = f"{case.file}:{case.line}: {case.id}"
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                yield f"{where} calls {name!r}, which the reference does not have" + (
                    f"; it has {near[0]!r}" if near else ""
                )
                continue
            for arg in args:
                if arg not in known[name]:
                    yield f"{where} passes {arg!r} to {name}, whose arguments are {', '.join(known[name])}"


def called(case: Case) -> Iterator[tuple[str, list[str]]]:
    """Every function, class and method that a case names, with the arguments it passes."""
    raw = case.raw
    own = raw.get("new", "")
    if own:
        yield own, list(raw.get("args", {}))
    for obj in raw.get("objects", []):
        yield obj["new"], list(obj.get("args", {}))
    if "call" in raw and "on" not in raw:
        prop = (raw.get("property") or raw.get("perf") or {}).get("given", {})
        drawn = [] if isinstance(prop.get("draw"), str) else list(prop)
        yield raw["call"], list(raw.get("args", {})) + drawn
    for step in raw.get("steps", []):
        args = list(step.get("args", {}))
        if "call" in step or "new" in step:
            yield step.get("call") or step["new"], args
        elif "do" in step and "on" not in step:
            yield (f"{own}.{step['do']}" if own else step["do"]), args
    yield from built_in_place(raw.get("args", {}))
    for step in raw.get("steps", []):
        yield from built_in_place(step.get("args", {}))


def built_in_place(node: Any) -> Iterator[tuple[str, list[str]]]:
    if isinstance(node, dict):
        if "new" in node and isinstance(node["new"], str):
            yield node["new"], list(node.get("args", {}))
        for value in node.values():
            yield from built_in_place(value)
    elif isinstance(node, list):
        for value in node:
            yield from built_in_place(value)


def mutant_findings(unit: Unit) -> Iterator[str]:
    specs = unit.mutants()
    rules = spec.rules(unit.root / unit.stage.page)
    where = f"fixtures/{unit.name}/mutants.yaml"
    for name, entry in specs.items():
        try:
            for module, text in ({} if unit.stage.is_sheet else mutated(unit, name, entry)).items():
                if not unit.stage.is_native:  # what does not compile is no mutant: `author mutants` says so
                    ast.parse(text, module)
        except OlError as error:
            yield str(error).removeprefix("error: ")
        except SyntaxError as error:
            yield f"{where}: mutant {name} does not compile: {error.msg}, line {error.lineno}"
        if entry["rule"] not in rules:
            yield f"{where}: mutant {name} cites {entry['rule']}, which the page does not have"
        if entry.get("hint") and entry["hint"] not in unit.hints:
            yield f"{where}: mutant {name} names the hint {entry['hint']!r}, which no file defines"
        if not any(name in case.kills for case in unit.cases):
            yield f"{where}: no case claims mutant {name}"
    for case in unit.cases:
        for name in case.kills:
            if name not in specs:
                near = difflib.get_close_matches(name, specs, 1)
                yield f"{case.file}:{case.line}: {case.id} kills {name!r}, which is no mutant" + (
                    f"; did you mean {near[0]!r}?" if near else ""
                )


def oracle_findings(unit: Unit) -> Iterator[str]:
    """Draws, laws and models exist; at grading time only the standard library and NumPy are imported."""
    import sys

    path, where = unit.dir / "oracle.py", f"fixtures/{unit.name}/oracle.py"
    tree = ast.parse(path.read_text(), str(path))
    for statement in tree.body:
        for top in imported(statement):
            if top not in GRADING_IMPORTS and top not in sys.stdlib_module_names:
                yield f"{where}:{statement.lineno}: imports {top} at the top; grading has only NumPy"
    for node in ast.walk(tree):
        for top in imported(node) & {"impl", "grader"}:
            yield f"{where}:{getattr(node, 'lineno', 0)}: an oracle never imports {top}"
    for case in unit.cases:
        prop = case.raw.get("property") or case.raw.get("perf") or {}
        given = prop.get("given", {})
        draws = [given] if isinstance(given.get("draw"), str) else list(given.values())
        names = [d["draw"] for d in draws if isinstance(d, dict) and "draw" in d] + [
            law["law"] for law in prop.get("holds", [])
        ]
        names += [prop["script"]["draw"]] if "script" in prop else []
        names += [prop["same_as"].partition(".")[2]] if prop.get("same_as", "").startswith("oracle.") else []
        for name in names:
            if not hasattr(unit.oracle, name) and not hasattr(laws, name):
                where = f"{case.file}:{case.line}: {case.id}"
                yield f"{where} names {name!r}, which neither oracle.py nor laws.py has"


def imported(node: ast.AST) -> set[str]:
    """The top-level packages that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def stub_findings(unit: Unit) -> Iterator[str]:
    """A stub can be derived from every file of the reference."""
    for file, text in sources(unit).items():
        try:
            stub_of(text, unit.stage.id, file)
        except OlError as error:
            yield str(error).removeprefix("error: ")
