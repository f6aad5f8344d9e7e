"""`ol author coverage`: every rule has a case, every case cites a rule, every field case is somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grader import fixtures, spec
from grader.path import Stage

FIELD = re.compile(r"\b([A-Z][0-9]{2})\b")


def cover_unit(stage: Stage, root: Path) -> dict[str, Any]:
    """What covers what in one unit, and what nothing covers."""
    unit = fixtures.load(stage, root)
    page = root / stage.page
    rules = spec.rules(page)
    cited: dict[str, list[str]] = {rule: [] for rule in rules}
    unknown = []
    for case in unit.cases:
        for rule in case.rules:
            if rule in cited:
                cited[rule].append(case.id)
            else:
                unknown.append(
                    f"{case.file}:{case.line}: {case.id} cites {rule}, which the page does not have"
                )
    proofs = [c for c in unit.cases if "proof" in c.raw.get("expect", {})]  # which are never required
    required = {c.id for c in [*filter(lambda c: c.required, unit.cases), *proofs]}
    bare = [rule for rule, cases in cited.items() if not cases]
    due = set(rules) - spec.extra_rules(page)
    loose = [rule for rule, cases in cited.items() if cases and rule in due and not required & set(cases)]
    named = field_cases(page)
    sourced = {
        f
        for c in unit.cases
        for name in c.raw.get("flags", [])
        for f in FIELD.findall(c.flags[name].get("source", ""))
    }
    elsewhere = {
        f for line in spec.section(page, "Not here") if not line.startswith("|") for f in FIELD.findall(line)
    }
    lost = sorted(named - sourced - elsewhere)
    field = {"as_cases": len(named & sourced), "not_here": len(named & elsewhere)}
    findings = [f"spec/{page.name}: no case for {rule}" for rule in bare]
    findings += [f"spec/{page.name}: only extra cases for {rule}" for rule in loose]
    findings += unknown
    findings += [
        f"spec/{page.name}: field case {f} has no case with it as source, and no line under Not here"
        for f in lost
    ]
    return {
        "findings": findings, "rules": len(rules), "cases": len(unit.cases), "rules_without_cases": bare,
        "cases_without_rules": unknown, "rules_with_extra_cases_only": loose,
        "field_cases": {**field, "named": len(named), "missing": lost},
        "cases_per_rule": {rule: len(cases) for rule, cases in cited.items()},
        "summary": f"{len(rules)} rules, {len(unit.cases)} cases, field cases: "
        f"{field['as_cases']} as cases, {field['not_here']} not here",
    }  # fmt: skip


def field_cases(page: Path) -> set[str]:
    """The field cases that the page's table names: the one whose first column is headed `case`."""
    found, inside = set(), False
    for line in page.read_text().splitlines():
        inside = line.startswith("|") and (inside or line.startswith("| case |"))
        if inside and (match := re.match(r"\| ([A-Z][0-9]{2}) ", line)):
            found.add(match[1])
    return found
