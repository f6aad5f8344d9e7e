"""`ol hint` and `ol spec`: what to think about next, and the law."""

from __future__ import annotations

from typing import Any

from grader import console, fixtures, learn, progress, spec
from grader.errors import PASSED, UsageError
from grader.grading import FAILS
from grader.path import Stage, built, find
from grader.report import FORMAT
from grader.workspace import Place


def hint(name: str, as_json: bool) -> int:
    """One more rung for each failed attempt; the same code twice is one attempt."""
    place, stages = learn.read_here()
    stage = gradeable(place, find(stages, name))
    db = progress.Progress(place.tree.root)
    try:
        record = db.recorded(stage.unit)
        again = f"{console.command()} check {stage.id}"
        if record is None:
            raise UsageError(
                f"{stage.id} was not checked yet",
                str(place.tree.root),
                f"{again} first: hints speak of what fails",
            )
        report = record[1]
        unit = fixtures.load(stage, place.course, console.note)
        topic, why = topic_of(report, unit.hints)
        if topic is None:
            return say(stage, as_json, [], 0, "nothing to hint at: " + why, again)
        rungs = unit.hints[topic]
        allowed = min(db.attempts(stage.unit, topic), len(rungs))
        shown = max(db.shown(stage.unit, topic), allowed)
        db.show(stage.unit, topic, shown)
    finally:
        db.close()
    return say(stage, as_json, rungs[:shown], len(rungs), why, again)


def topic_of(report: dict[str, Any], topics: dict[str, list[str]]) -> tuple[str | None, str]:
    """What to hint at: the named mistake's topic, else that of the first failing case."""
    if any(case.get("step") == "import" for case in report["cases"]):
        return None, "no case could run, and the message of the check says why"
    mistake = report.get("mistake", {})
    if mistake.get("hint") in topics:
        return mistake[
            "hint"
        ], f"{len(mistake['cases'])} of {mistake['of']} failing cases look like one mistake"
    for case in report["cases"]:
        if case["outcome"] in FAILS:
            for topic in case.get("hints", []):
                if topic in topics:
                    return topic, f"{case['id']}: {case['about']}"
    outcome = report["outcome"]
    if outcome in FAILS:
        return None, "the failing cases have no hints; the message and the rule say it all"
    return None, f"the last check was {outcome}"


def say(stage: Stage, as_json: bool, rungs: list[str], total: int, why: str, again: str) -> int:
    if as_json:
        console.emit({
            "format": FORMAT, "command": "hint", "outcome": "pass", "units": [], "id": stage.id, "about": why,
            "hints": rungs, "of": total, "next": again,
        })  # fmt: skip
        return PASSED
    print(console.fit(f"{stage.id} {stage.unit}  {why}"))
    for i, rung in enumerate(rungs, 1):
        print(console.fit(f"  {i} of {total}  {rung}", " " * 10))
    left = total - len(rungs)
    if left and rungs:
        print(f"  {left} more: one after each new attempt")
    print(f"next  {again}")
    return PASSED


def gradeable(place: Place, stage: Stage) -> Stage:
    if stage.is_milestone:
        raise UsageError(f"{stage.id} is a gate", "ol", f"ol gate {stage.id} says what is missing")
    if not built(stage, place.course):
        raise UsageError(
            f"{stage.id} is not built yet: this course has no fixtures for it",
            "path.tsv",
            "ol learn lists what is built",
        )
    return stage


def law(name: str, rule: str | None, as_json: bool) -> int:
    """A unit's spec page, or one of its rules."""
    place, stages = learn.read_here()
    stage = gradeable(place, find(stages, name))
    page = place.course / stage.page
    rules = spec.rules(page)
    if rule is not None:
        wanted = rule.upper()
        if wanted not in rules:
            raise UsageError(f"no rule {rule!r}", stage.page, f"there are {', '.join(rules)}")
        rules = {wanted: rules[wanted]}
    if as_json:
        console.emit(
            {
                "format": FORMAT,
                "command": "spec",
                "outcome": "pass",
                "units": [],
                "id": stage.id,
                "page": stage.page,
                "rules": rules,
            }
        )
    elif rule is not None:
        print(console.fit(f"{wanted}. {rules[wanted]}   ({stage.page})", "    "))
    else:
        for line in page.read_text("utf-8").rstrip().split("\n"):
            print(
                line
                if line.startswith((" ", "|", "#"))
                else console.fit(line, "    " if line[:1] in "R-" else "")
            )
        print(f"\nnext  {console.command()} check {stage.id}")
    return PASSED
