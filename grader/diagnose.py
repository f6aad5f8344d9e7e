"""Which known mistake a wrong output looks like: the unit's mutants answer the failing cases too.

A mutant matches where it gives the same kind of answer at the same step, equal under the case's own
comparator. One that fails a case the learner passes is contradicted, so it is not named; when nothing
matches, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grader.compare import Attrs, Cmp, Keys, Leaf, Seq, Want, compare, want_value
from grader.fixtures import Case, Unit
from grader.judge import Evidence, Verdict
from grader.mutants import KILLS, Bench, mutated
from grader.properties import concrete
from grader.runner import Workers

MOST_CASES = 8
MOST_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The mistake whose outputs match best."""

    mutant: str
    bug: str
    rule: str
    hint: str
    cases: tuple[str, ...]
    of: int


def diagnose(unit: Unit, verdicts: Mapping[str, Verdict], workers: Workers) -> Diagnosis | None:
    specs = unit.mutants()
    failing = evidence_of(unit, verdicts)
    if not specs or not failing:
        return None
    bench = Bench(unit, workers)
    cases = [case for case, _ in failing.values()]
    matched: dict[str, tuple[str, ...]] = {}
    for name, spec in specs.items():
        answers = bench.run(cases, mutated(unit, name, spec)).verdicts
        same = tuple(id for id, (case, evidence) in failing.items() if agrees(evidence, answers[case.id]))
        if same:
            matched[name] = same
    passing = [c for c in unit.cases if c.id in verdicts and verdicts[c.id].passed and not c.heavy]
    ranked = sorted(matched, key=lambda name: -len(matched[name]))[:MOST_CANDIDATES]
    for name in ranked:
        answers = bench.run(passing, mutated(unit, name, specs[name])).verdicts
        if not any(v.outcome in KILLS for v in answers.values()):
            spec = specs[name]
            return Diagnosis(name, spec["bug"], spec["rule"], spec.get("hint", ""), matched[name], len(failing))
    return None


def evidence_of(unit: Unit, verdicts: Mapping[str, Verdict]) -> dict[str, tuple[Case, Evidence]]:
    """The failing cases to explain: wrong answers, not session faults; a property as its counterexample."""
    found: dict[str, tuple[Case, Evidence]] = {}
    for case in sorted(unit.cases, key=lambda c: (c.heavy, c.verb == "property")):
        verdict = verdicts.get(case.id)
        if verdict is None or verdict.evidence is None or verdict.outcome not in ("fail", "raised"):
            continue
        replayed = case
        if case.verb == "property":
            shown = verdict.counterexample
            if shown is None or "expect" not in shown and "steps" not in shown:
                continue
            replayed = concrete(case, shown)
        found[case.id] = (replayed, verdict.evidence)
        if len(found) == MOST_CASES:
            break
    return found


def agrees(learner: Evidence, mutant: Verdict) -> bool:
    """Whether a mutant is wrong in the same way: step, kind of answer, and value."""
    theirs = mutant.evidence
    if theirs is None or theirs.step != learner.step or theirs.what != learner.what:
        return False
    if learner.what == "raises":
        return bool(theirs.value == learner.value)
    return compare(like(learner.cmp, learner.value), theirs.value) is None


def like(want: Want | None, value: Any) -> Want:
    """The learner's answer as the expected one, under the comparators of the case; NaN equals NaN."""
    match want, value:
        case Leaf(_, cmp), _:
            if cmp.kind in ("at_least", "at_most", "dist"):
                return want_value(value, Cmp(nan=True))
            return want_value(value, replace(cmp, nan=True)) if not isinstance(value, (list, dict)) else want_value(value, Cmp(nan=True))  # fmt: skip
        case Seq(items), list() | tuple() if len(items) == len(value):
            return Seq(tuple(like(w, v) for w, v in zip(items, value, strict=True)))
        case (Attrs(), _) | (Keys(), _):
            return want_value(value, Cmp(nan=True))
    return want_value(value, Cmp(nan=True))
