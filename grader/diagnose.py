"""Which known mistake a wrong output looks like: the unit's mutants answer the same cases.

A mutant agrees on a case where it gives the same kind of answer at the same step, equal under the case's own
comparator. It is named when more than half of what either gets wrong, both get wrong in the same way: so a
mistake that is much wider or much narrower than the learner's is not. When none is, nothing is said.

The learner's code answers the chosen cases once more, in the company in which each mutant does: what keeps
state between calls is wrong in other places after other cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from grader.compare import NAN_EQUAL, Attrs, Keys, Leaf, Seq, Want, compare, want_value
from grader.fixtures import Case, Unit
from grader.judge import Evidence, Verdict
from grader.mutants import KILLS, Bench, mutated
from grader.session import Workers
from grader.wire import Fields, Opaque

Item = TypeVar("Item")
FIRST_LOOK = 8  # failing cases that every mutant answers
SECOND_LOOK = 32  # failing cases that a candidate answers
CONTROL = 48  # passing cases that it answers besides those that were written for it
FEW, LONG = 3, 4  # with fewer failing short cases the long ones are looked at too, and so many that pass
MOST_STEPS = 40  # of a trace that every mutant plays
MOST_CANDIDATES = 6
LEAST_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The mistake whose outputs match best, and the failing cases that were compared."""

    mutant: str
    bug: str
    rule: str
    hint: str
    cases: tuple[str, ...]
    of: int


Again = Callable[[list[Case]], Mapping[str, Verdict]]


def diagnose(unit: Unit, verdicts: Mapping[str, Verdict], workers: Workers, again: Again) -> Diagnosis | None:
    """The known mistake that explains a run; `again` runs cases on the same code, without shrinking."""
    specs = unit.mutants()
    failing = evidence_of(unit, verdicts)
    if not specs or not failing:
        return None
    bench = Bench(unit, workers, sanitized=False)  # outputs are compared, no faults
    passed = [c for c in unit.cases if c.id in verdicts and verdicts[c.id].passed]
    right = [c for c in passed if not c.heavy and c.verb != "perf"]
    passing = [case for case in right if is_quick(case)]
    short = [case.id for case in unit.cases if case.id in failing and is_quick(case)]
    # Where few short cases fail the long ones speak too, on both sides.
    long = spread([c for c in right if not is_quick(c)], LONG) if len(short) < FEW else []
    chosen = spread(short or list(failing), FIRST_LOOK), spread(list(failing), SECOND_LOOK)
    first, second = (evidence_of(unit, again([c for c in unit.cases if c.id in ids])) for ids in chosen)
    if not first or not second:
        return None
    fail = len(failing) * len(second) / len(chosen[1])

    def answers(name: str, cases: Sequence[Case]) -> dict[str, Verdict]:
        return bench.run(list(cases), mutated(unit, name, specs[name])).verdicts

    def explained(name: str, ids: Sequence[str], wrong: Mapping[str, Evidence]) -> list[str]:
        """The cases to which the mutant gives the learner's wrong answer."""
        theirs = answers(name, [case for case in unit.cases if case.id in ids])
        return [c for c in wrong if agrees(wrong[c], theirs[c])]

    def contradicted(name: str) -> float:
        """How many passing cases the mutant fails: those written for it, and an estimate of the others."""
        own = [*(case for case in passing if name in case.kills), *long]
        others = [case for case in passing if name not in case.kills]
        sample = spread(others, CONTROL)
        theirs = answers(name, [*own, *sample])
        broken = [[case for case in cases if theirs[case.id].outcome in KILLS] for cases in (own, sample)]
        if any(broken):
            ours = again([*own, *sample])
            broken = [[case for case in cases if ours[case.id].passed] for cases in broken]
        return len(broken[0]) + len(broken[1]) * len(others) / max(1, len(sample))

    with ThreadPoolExecutor(2) as pool:
        looks = pool.map(lambda name: len(explained(name, chosen[0], first)), specs)
        found = dict(zip(specs, looks, strict=True))
    # Of mistakes that explain as much, the one that a failing case was written for comes first.
    claimed = {name: sum(name in case.kills for case in unit.cases if case.id in failing) for name in specs}
    order = sorted((n for n in found if found[n]), key=lambda n: (found[n], claimed[n]), reverse=True)
    best, named = LEAST_OVERLAP, None
    for name in order[:MOST_CANDIDATES]:
        same = explained(name, chosen[1], second)
        # What both get wrong in the same way, as a share of what either gets wrong.
        overlap = fail * len(same) / len(second) / (fail + contradicted(name))
        if overlap > best:
            spec = specs[name]
            what = (name, spec["bug"], spec["rule"], spec.get("hint", ""))
            best, named = overlap, Diagnosis(*what, tuple(same), len(second))
        elif overlap == best:
            named = None  # two mistakes explain it equally well
    return named


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of them, evenly spaced.

    >>> spread(range(10), 3)
    [0, 3, 6]
    """
    n = min(most, len(items))
    return [items[i * len(items) // n] for i in range(n)]


def evidence_of(unit: Unit, verdicts: Mapping[str, Verdict]) -> dict[str, Evidence]:
    """The failing cases to explain: wrong answers, not session faults; long ones only if few others fail."""
    found: dict[bool, dict[str, Evidence]] = {True: {}, False: {}}
    for case in unit.cases:
        verdict = verdicts.get(case.id)
        if verdict is not None and verdict.evidence is not None and verdict.outcome in ("fail", "raised"):
            found[is_quick(case)][case.id] = verdict.evidence
    return found[True] if len(found[True]) >= FEW else found[True] | found[False]


def is_quick(case: Case) -> bool:
    return (
        not case.heavy
        and case.verb not in ("property", "perf")
        and len(case.raw.get("steps", ())) <= MOST_STEPS
    )


def agrees(learner: Evidence, mutant: Verdict) -> bool:
    """Whether a mutant is wrong in the same way: run, step, kind of answer, and value."""
    theirs = mutant.evidence
    if theirs is None or (theirs.run, theirs.step, theirs.what) != (learner.run, learner.step, learner.what):
        return False
    if learner.what == "raises":
        return bool(theirs.value == learner.value)
    if learner.unraised and theirs.unraised and isinstance(learner.value, (str, Opaque, Fields)):
        return isinstance(theirs.value, (str, Opaque, Fields))  # no rule says what it should then be
    return compare(like(learner.cmp, told(learner.value)), told(theirs.value)) is None


def told(value: Any) -> Any:
    """An answer of a C function; of a text in its error slot only whom it names: no rule says more of it.

    >>> told({"status": "TL_ENOMEM", "slot": "tl_vec_reserve: no memory"})
    {'status': 'TL_ENOMEM', 'slot': 'tl_vec_reserve'}
    """
    if isinstance(value, dict) and (name := re.search(r"\btl_\w+", str(value.get("slot", "")))):
        return {**value, "slot": name[0]}
    return value


def like(want: Want | None, value: Any) -> Want:
    """The learner's answer as the expected one, under the comparators of the case; NaN equals NaN."""
    match want, value:
        case Leaf(_, cmp), _:
            if cmp.kind in ("at_least", "at_most", "dist") or isinstance(value, str):
                return want_value(value, NAN_EQUAL)
            compound = isinstance(value, (list, dict))
            return want_value(value, NAN_EQUAL if compound else replace(cmp, nan=True))
        case Seq(items), list() | tuple() if len(items) == len(value):
            return Seq(tuple(like(w, v) for w, v in zip(items, value, strict=True)))
        case Attrs(fields), Fields(_, held) if set(fields) <= set(held):
            # Only what the case looks at: two runs of one program differ in the times that they took.
            return Attrs({k: like(w, held[k]) for k, w in fields.items() if not is_measure(w)})
        case Keys(items), dict() if set(items) == set(value):
            return Keys({k: like(w, value[k]) for k, w in items.items()})
    return want_value(value, NAN_EQUAL)


def is_measure(want: Want) -> bool:
    """A bound on something that is measured, or a container of such: no two runs give the same."""
    match want:
        case Leaf(_, cmp):
            return cmp.kind in ("at_least", "at_most", "dist")
        case Attrs(items) | Keys(items):
            return any(map(is_measure, items.values()))
        case Seq(parts):
            return any(map(is_measure, parts))
    return False
