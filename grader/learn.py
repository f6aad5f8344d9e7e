"""`ol` and `ol learn`: where am I, what is done, what next. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grader import console, progress
from grader.errors import PASSED, UsageError, near
from grader.fixtures import folder_digest
from grader.path import Stage, built, read_path
from grader.report import FORMAT, colour
from grader.workspace import CONFIG, Place, here

MARKS = {"pass": "pass", "not built": "-", "blocked": "blocked", "changed": "changed", "new": ""}
LEFT, WIDTH = 41, 120  # of a row of `learn`: before the title, and in all


def states(place: Place, stages: Sequence[Stage], graded: Mapping[str, str] | None = None) -> dict[str, str]:
    """The state of each stage: pass, another outcome, changed (since it was graded), new, not built.

    `graded` are the outcomes that are known already.
    """
    db = progress.Progress(place.tree.root)
    found: dict[str, str] = dict(graded or {})
    try:
        for stage in stages:
            if stage.is_milestone or stage.id in found:
                continue
            if not built(stage, place.course):
                found[stage.id] = "not built"
                continue
            record = db.recorded(stage.unit)
            digest = folder_digest(place.course / "fixtures" / stage.unit) if record is not None else ""
            if record is None:
                found[stage.id] = "new"
            elif progress.is_fresh(place.tree.root, record[0], digest, place.tree.map):
                found[stage.id] = record[1]["outcome"]
            else:
                found[stage.id] = "changed"
    finally:
        db.close()
    return found


def milestone_state(stage: Stage, stages: Sequence[Stage], found: dict[str, str]) -> str:
    """A gate as `learn` can know it without grading: how many of its stages pass."""
    by_id = {s.id: s for s in stages}
    units = [n for n in closure(stage, by_id) if not by_id[n].is_milestone]
    done = sum(found.get(n) == "pass" for n in units)
    return f"{done} of {len(units)}"


def closure(stage: Stage, by_id: dict[str, Stage]) -> list[str]:
    names: list[str] = []
    for need in stage.needs:
        if need not in names:
            names.append(need)
            if by_id[need].is_milestone:
                names += [n for n in closure(by_id[need], by_id) if n not in names]
    return names


def next_stage(stages: Sequence[Stage], found: dict[str, str]) -> Stage | None:
    """The first built unit without a pass whose needs all pass; optional ones only after the others."""
    for optional in (False, True):
        for stage in stages:
            if (
                stage.is_milestone
                or stage.is_optional != optional
                or found.get(stage.id) in ("pass", "not built")
            ):
                continue
            if all(found.get(need) == "pass" for need in stage.needs):
                return stage
    return None


def next_command(stages: Sequence[Stage], found: dict[str, str]) -> str:
    stage = next_stage(stages, found)
    if stage is not None:
        return f"{console.command()} check {stage.id}"
    gate = next((s for s in stages if s.is_milestone), None)
    return f"{console.command()} gate {gate.id}" if gate is not None else f"{console.command()} learn"


def read_here() -> tuple[Place, list[Stage]]:
    place = here(Path.cwd())
    return place, read_path(place.course / "path.tsv")


def where_am_i(as_json: bool) -> int:
    place, stages = read_here()
    found = states(place, stages)
    built_units = [s for s in stages if found.get(s.id) not in (None, "not built")]
    done = [s.id for s in built_units if found[s.id] == "pass"]
    follow = next_command(stages, found)
    if as_json:
        console.emit({
            "format": FORMAT, "command": "ol", "outcome": "pass", "units": [],
            "workspace": str(place.tree.root),
            "kind": place.tree.kind, "passed": done, "built": [s.id for s in built_units], "next": follow,
        })  # fmt: skip
        return PASSED
    if place.is_workspace:
        print(f"workspace  {place.tree.root}")
    else:
        print("no workspace here: commands work on this repository's own impl, the reference")
        print(f"make one   {console.command()} init DIR")
    print(
        f"progress   {len(done)} of {len(built_units)} units pass" + (f": {', '.join(done)}" if done else "")
    )
    stage = next_stage(stages, found)
    if stage is not None:
        print(
            f"current    {stage.id} {stage.unit}  {stage.title}   (read {console.command()} spec {stage.id})"
        )
    print(f"next       {follow}")
    return PASSED


def learn(name: str | None, as_json: bool) -> int:
    place, stages = read_here()
    paths = list(dict.fromkeys(stage.path for stage in stages))
    chosen = name or place.path or paths[0]
    if chosen not in paths:
        where = "path.tsv" if name else str(place.tree.root / CONFIG)
        raise UsageError(f"no path {chosen!r}" + near(chosen, paths), where, f"there is {', '.join(paths)}")
    rows = [stage for stage in stages if stage.path == chosen]
    found = states(place, rows)
    follow = next_command(rows, found)
    if as_json:
        console.emit({
            "format": FORMAT, "command": "learn", "outcome": "pass", "path": chosen, "units": [],
            "next": follow,
            "stages": [row_json(stage, rows, found) for stage in rows],
        })  # fmt: skip
        return PASSED
    print(chosen + "\n")
    print(f"  {'stage':5}  {'id':8} {'kind':9}  {'state':9} " + title_and_needs("title", "needs"))
    for stage in rows:
        print(line(stage, rows, found).rstrip())
    legend = "'-' is not built yet; 'changed' has changed since it was graded; side stages are optional"
    print("\n" + console.fit(f"  {legend}", "  "))
    print(f"next  {follow}")
    return PASSED


def row_json(stage: Stage, rows: Sequence[Stage], found: dict[str, str]) -> dict[str, Any]:
    state = milestone_state(stage, rows, found) if stage.is_milestone else found[stage.id]
    return {
        "stage": stage.stage, "id": stage.id, "unit": stage.unit, "kind": stage.kind,
        "needs": list(stage.needs),
        "title": stage.title, "state": state, "done_when": stage.done_when, "check": stage.check,
    }  # fmt: skip


def title_and_needs(title: str, needs: str) -> str:
    """Both in what the terminal leaves: the needs at its right edge, the title cut where they meet."""
    width = min(console.columns() or WIDTH, WIDTH) - LEFT
    room = max(20, width - len(needs) - 2 * bool(needs))
    cut = title if len(title) <= room else title[: room - 1] + "…"
    return cut + needs.rjust(width - len(cut)) if needs else cut


def line(stage: Stage, rows: Sequence[Stage], found: dict[str, str]) -> str:
    if stage.is_milestone:
        state = word = milestone_state(stage, rows, found)
    else:
        word = found[stage.id]
        state = MARKS.get(word, word)
    needs = "every stage above" if len(stage.needs) > 6 else ", ".join(stage.needs)
    shown = colour(word, f"{state:9}") if word in ("pass", "fail", "changed") else f"{state:9}"
    return f"  {stage.stage:5}  {stage.id:8} {stage.kind:9}  {shown} {title_and_needs(stage.title, needs)}"
