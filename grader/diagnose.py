"""Which known mistake a wrong output looks like: the unit's mutants answer the failing cases too.

A mutant matches where it gives the same kind of answer at the same step, equal under the case's own
comparator. One that fails cases the learner passes is contradicted: it is named only if it explains every
failing case, since the same mistake can be made more thoroughly. When nothing matches, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grader.compare import NAN_EQUAL, Attrs, Keys, Leaf, Seq, Want, compare, want_value
from grader.fixtures import Unit
from grader.judge import Evidence, Verdict
from grader.mutants import KILLS, Bench, mutated
from grader.session import Workers

MOST_CASES = 8
MOST_CANDIDATES = 6
LEAST_SHARE = 0.5  # a mistake that explains fewer of the failing cases is not named


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
    cases = [case for case in unit.cases if case.id in failing]
    passing = [c for c in unit.cases if c.id in verdicts and verdicts[c.id].passed and not c.heavy]

    def contradictions(name: str) -> int:
        answers = bench.run(passing, mutated(unit, name, specs[name])).verdicts
        return sum(v.outcome in KILLS for v in answers.values())

    def named(name: str) -> Diagnosis:
        spec = specs[name]
        return Diagnosis(name, spec["bug"], spec["rule"], spec.get("hint", ""), matched[name], len(failing))

    matched: dict[str, tuple[str, ...]] = {}
    against: dict[str, int] = {}
    # Mistakes that a failing case was written for come first: one that explains all of them ends the search.
    for name in sorted(specs, key=lambda name: -sum(name in case.kills for case in cases)):
        answers = bench.run(cases, mutated(unit, name, specs[name])).verdicts
        matched[name] = tuple(c for c, evidence in failing.items() if agrees(evidence, answers[c]))
        if len(matched[name]) == len(failing):
            against[name] = contradictions(name)
            if not against[name]:
                return named(name)
    enough = [name for name in matched if len(matched[name]) >= max(1.0, LEAST_SHARE * len(failing))]
    for name in sorted(enough, key=lambda name: -len(matched[name]))[:MOST_CANDIDATES]:
        if name not in against and not contradictions(name):
            return named(name)
    if against and len(failing) > 1:
        return named(min(against, key=lambda name: against[name]))
    return None


def evidence_of(unit: Unit, verdicts: Mapping[str, Verdict]) -> dict[str, Evidence]:
    """The failing cases to explain: wrong answers, not session faults; literal cases before properties."""
    found: dict[str, Evidence] = {}
    for case in sorted(unit.cases, key=lambda c: (c.heavy, c.verb == "property")):
        verdict = verdicts.get(case.id)
        if verdict is not None and verdict.evidence is not None and verdict.outcome in ("fail", "raised"):
            found[case.id] = verdict.evidence
            if len(found) == MOST_CASES:
                break
    return found


def agrees(learner: Evidence, mutant: Verdict) -> bool:
    """Whether a mutant is wrong in the same way: run, step, kind of answer, and value."""
    theirs = mutant.evidence
    if theirs is None or (theirs.run, theirs.step, theirs.what) != (learner.run, learner.step, learner.what):
        return False
    if learner.what == "raises":
        return bool(theirs.value == learner.value)
    return compare(like(learner.cmp, learner.value), theirs.value) is None


def like(want: Want | None, value: Any) -> Want:
    """The learner's answer as the expected one, under the comparators of the case; NaN equals NaN."""
    match want, value:
        case Leaf(_, cmp), _:
            if cmp.kind in ("at_least", "at_most", "dist"):
                return want_value(value, NAN_EQUAL)
            compound = isinstance(value, (list, dict))
            return want_value(value, NAN_EQUAL if compound else replace(cmp, nan=True))
        case Seq(items), list() | tuple() if len(items) == len(value):
            return Seq(tuple(like(w, v) for w, v in zip(items, value, strict=True)))
        case (Attrs(), _) | (Keys(), _):
            return want_value(value, NAN_EQUAL)
    return want_value(value, NAN_EQUAL)
