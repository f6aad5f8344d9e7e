"""From a stage of the path to its outcome: needs, freshness, the run, the diagnosis, the record."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import fixtures, progress
from grader.code import code_of, opener_of
from grader.errors import UsageError, near
from grader.path import Stage, built, needs_closure
from grader.session import LIMITS
from grader.tree import Tree, changed_given, module_of

if TYPE_CHECKING:
    from grader.fixtures import Case, Unit
    from grader.judge import Verdict
    from grader.runner import UnitRun
    from grader.session import Opener, Workers

# The worst of the required cases is the unit's outcome.
REAL_MEMORY = 4 << 30  # bytes: the real model takes half a gigabyte, and as much again while it is read
SESSIONS = 4  # how many a unit usually opens: three groups of quick cases, and a heavy case
FAILS = ("fail", "raised", "crashed", "deadline", "memory", "protocol", "unsupported")
ORDER = ("inconclusive", "undecided", "blocked", "todo", "pass")


@dataclass(slots=True)
class Options:
    """How to grade."""

    tree: Tree
    cases: tuple[str, ...] = ()
    seed: int | None = None
    ref_deps: bool = False
    fresh: bool = False
    twice: bool = False
    adapter: str = ""
    record: bool = True
    jobs: int = 0  # sessions at a time; 0: as many as there are cores, up to two

    @property
    def partial(self) -> bool:
        """A run of some cases, on other seeds, with help or by an adapter is shown, never recorded."""
        return bool(self.cases or self.seed is not None or self.ref_deps or self.adapter or not self.record)


@dataclass(slots=True)
class Grader:
    """Grades stages of one course for one tree."""

    root: Path
    stages: Sequence[Stage]
    options: Options
    workers: Workers
    progress: progress.Progress
    note: Callable[[str], None] = lambda text: None
    on_case: Callable[[str, int, int], None] = lambda unit, done, total: None
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    def grade(self, stage: Stage) -> dict[str, Any]:
        """A unit's report; needs are graded first, unchanged work is answered from its record."""
        if stage.id not in self.done:
            self.done[stage.id] = self._grade(stage)
        return self.done[stage.id]

    def _grade(self, stage: Stage) -> dict[str, Any]:
        if stage.is_milestone or not built(stage, self.root):
            return not_built(stage)
        blocking = [need for need in needs_closure(self.stages, stage) if not self.passes(need)]
        if blocking and not self.options.ref_deps:
            if self.options.cases:
                self.chosen(fixtures.load(stage, self.root, self.note))  # an unknown name is said first
            return self.blocked(stage, blocking)
        return self.known(stage) or self.run(stage, blocking)

    def known(self, stage: Stage) -> dict[str, Any] | None:
        """The recorded report, where nothing that it rests on has changed."""
        if self.options.fresh or self.options.partial:
            return None
        digest = fixtures.folder_digest(self.root / "fixtures" / stage.unit)
        known = self.progress.fresh(stage.unit, digest, self.options.tree.map)
        if known is not None and (known["runs"] == 2 or not self.options.twice):
            return {**known, "recorded": True}
        return None

    def building(self, stages: Sequence[Stage]) -> AbstractContextManager[None]:
        """Meanwhile the C units among them that have no record are built, ahead of their turn."""
        waiting = [s for s in stages if s.is_native and built(s, self.root) and self.known(s) is None]
        if len(waiting) < 2 or self.options.adapter:
            return nullcontext()
        from grader import library

        return library.building([library.bundle(s, self.options.tree, self.root) for s in waiting])

    def take(self, reports: dict[str, dict[str, Any]]) -> None:
        """Reports of run(), of units that were graded in any order: those whose needs pass count."""
        for stage in self.stages:
            if stage.id in reports and stage.id not in self.done:
                blocking = [need for need in needs_closure(self.stages, stage) if not self.passes(need)]
                report = self.blocked(stage, blocking) if blocking else reports[stage.id]
                self.done[stage.id] = report
                if not blocking:
                    self.keep(stage, report)

    def grade_steps(self, gate: Stage, units: Sequence[Stage]) -> dict[str, Any]:
        """The report on a gate's own cases, which call every unit that it requires."""
        files = tuple(file for unit in units for file in unit.files if file.endswith(".py"))
        return self.grade(replace(gate, id=gate.unit, kind="build", files=files, needs=()))

    def passes(self, need: Stage) -> bool:
        if not built(need, self.root):
            return False
        inner = Options(self.options.tree, record=self.options.record)
        report = self.done.get(need.id) or Grader(
            self.root, self.stages, inner, self.workers, self.progress, self.note, self.on_case, self.done
        ).grade(need)
        return bool(report["outcome"] == "pass")

    def run(self, stage: Stage, assisted: Sequence[Stage]) -> dict[str, Any]:
        unit = fixtures.load(stage, self.root, self.note)
        cases = self.chosen(unit)
        tree = self.options.tree
        files = {f: tree.file_of(module_of(f), f) for f in stage.files}
        missing = [name for name, path in files.items() if not path.is_file()]
        reference, entry = Tree(self.root, kind="reference"), f"impl.{stage.unit}"
        memory = REAL_MEMORY if stage.unit.endswith("_real") else LIMITS["AS"]
        opener: Opener
        ours: Opener
        if stage.is_sheet:
            from grader import solve
        if stage.is_sheet and not missing:
            opener, ours = map(solve.opener, (files[stage.files[0]], self.root / stage.files[0]))
        elif self.options.adapter:
            from grader import adapter

            opener = adapter.opener(self.options.adapter)
        elif missing:
            return self.missing(stage, unit, missing)
        else:
            theirs = code_of(stage, tree, self.root, assisted, entry, memory)
            opener = opener_of(self.workers, theirs)
            # Importing it, and NumPy with it, takes a while.
            if "grader.runner" not in sys.modules and not stage.is_native:
                self.workers.prepare(theirs, stage.unit, SESSIONS)
        from grader import runner

        if not stage.is_sheet:
            course = code_of(stage, reference, self.root, (), entry, memory)
            ours = opener_of(self.workers, course)
        total, done = len(cases), 0

        def tick(_: Any) -> None:
            nonlocal done
            done += 1
            self.on_case(stage.id, done, total)

        start = time.perf_counter()
        try:
            naive = None if stage.is_sheet else runner.baseline(unit, self.workers, course)
            judged = runner.Runner(unit, opener, ours, jobs=self.options.jobs, naive=naive)
            run = judged.run(cases, self.options.twice, tick)
        finally:
            if self.options.adapter and not stage.is_sheet:
                adapter.shutdown(opener)
        notes = []
        if stage.is_native and not self.options.adapter:
            from grader import library

            assert isinstance(theirs, library.Library)
            notes = library.sanitized(unit, theirs, {}, self.workers, run)
        report = report_of(unit, cases, run, self.options)
        report["assisted"] = [need.id for need in assisted]
        report["notes"] = notes + [
            f"{name} is not yours to change: the grader's copy was used"
            for name in changed_given(tree, self.root)
        ]
        if report["outcome"] in FAILS and not stage.is_sheet:  # there each question names its own mistake
            from grader import diagnose  # only a failure pays for it

            def again(cases: list[Case]) -> dict[str, Verdict]:
                return runner.Runner(unit, opener, ours, shrinking=False).run(cases).verdicts

            found = diagnose.diagnose(unit, run.verdicts, self.workers, again)
            if found is not None:
                report["mistake"] = {
                    "mutant": found.mutant, "bug": found.bug, "rule": found.rule, "hint": found.hint,
                    "cases": list(found.cases), "of": found.of,
                }  # fmt: skip
        report["seconds"] = round(time.perf_counter() - start, 3)
        # What was loaded, and what the unit lists.
        loaded = run.loaded | {str(path) for path in files.values()}
        report["files"] = {path: progress.sha256(Path(path)) for path in sorted(loaded)}
        self.keep(stage, report)
        return report

    def chosen(self, unit: Unit) -> list[Case]:
        """The cases to run, and the twins they lean on; `--seed` gives properties another seed."""
        from grader.runner import with_twins

        cases = list(unit.cases)
        if self.options.cases:
            known = {case.id for case in cases}
            for name in self.options.cases:
                if name not in known and name.partition("/")[0] not in self.others(unit.name):
                    what = f"no case {name!r} in {unit.stage.id}" + near(name, known)
                    raise UsageError(what, "--case", f"fixtures/{unit.name}/ has them")
            cases = with_twins(unit, [case for case in cases if case.id in self.options.cases])
            if not cases:
                what = f"--case names no case of {unit.stage.id}"
                raise UsageError(what, "ol check", f"fixtures/{unit.name}/ has them")
        if self.options.seed is not None:
            for case in cases:
                if case.verb == "property":
                    case.raw["property"]["seed"] = self.options.seed
        return cases

    def others(self, name: str) -> set[str]:
        """The units, besides this one, that the named cases belong to."""
        units = {stage.unit for stage in self.stages}
        return {case.partition("/")[0] for case in self.options.cases} & units - {name}

    def keep(self, stage: Stage, report: dict[str, Any]) -> None:
        """Record a verdict with what it rests on, and what was failed, for hints."""
        if self.options.partial or "files" not in report:
            return
        hashes, tree = report["files"], self.options.tree
        headers = sorted((self.root / "csrc" / "include").rglob("*.h")) if stage.is_native else []
        files = hashes | {str(path): progress.sha256(path) for path in headers}
        resting = progress.basis(
            self.progress.root, files, report["fixture_sha256"], tree.map, stage.is_native
        )
        self.progress.record(stage.unit, resting, report)
        if report["outcome"] in FAILS and not any(case.get("step") == "import" for case in report["cases"]):
            topics = sorted(
                {t for case in report["cases"] if case["outcome"] in FAILS for t in case.get("hints", [])}
            )
            if "mistake" in report and report["mistake"]["hint"]:
                topics = sorted({*topics, report["mistake"]["hint"]})
            own = [hashes[str(tree.file_of(module_of(file), file))] for file in stage.files]
            code = hashlib.sha256("".join(own).encode()).hexdigest()
            self.progress.attempt(stage.unit, topics, code)

    def missing(self, stage: Stage, unit: Unit, names: list[str]) -> dict[str, Any]:
        text = f"{', '.join(names)}: no such file"
        cases = [
            {"id": c.id, "outcome": "raised", "level": level(c), "text": text, "step": "import"}
            for c in unit.cases
        ]
        return {
            **head(stage), "outcome": "raised", "text": text,
            "fix": f"ol restore {stage.id} puts the stub there",
            "cases": cases, "counts": counts(cases), "fixture_sha256": unit.sha256, "runs": 1,
        }  # fmt: skip

    def blocked(self, stage: Stage, blocking: Sequence[Stage]) -> dict[str, Any]:
        names = ", ".join(need.id for need in blocking)
        verb = "do" if len(blocking) > 1 else "does"
        return {
            **head(stage), "outcome": "blocked", "text": f"needs {names}, which {verb} not pass yet",
            "fix": f"ol check {blocking[0].id} first, or --ref-deps to use the reference's",
            "needs": [s.id for s in blocking], "cases": [], "counts": {},
        }  # fmt: skip


def head(stage: Stage) -> dict[str, Any]:
    return {"id": stage.id, "unit": stage.unit, "title": stage.title}


def not_built(stage: Stage) -> dict[str, Any]:
    return {
        **head(stage),
        "outcome": "not built",
        "text": "this course has no fixtures for it yet",
        "cases": [],
        "counts": {},
    }


def level(case: Case) -> str:
    return "required" if case.required else "extra"


def counts(cases: list[dict[str, Any]]) -> dict[str, int]:
    out = {"cases": len(cases)}
    for case in cases:
        out[case["outcome"]] = out.get(case["outcome"], 0) + 1
    return out


def outcome_of(outcomes: Sequence[str]) -> str:
    """The worst: a failure, then inconclusive, undecided, blocked, todo, pass; nothing is no pass."""
    found = set(outcomes)
    for outcome in FAILS:
        if outcome in found:
            return outcome if found & set(FAILS) == {outcome} else "fail"
    return next((outcome for outcome in ORDER if outcome in found), "inconclusive")


def report_of(unit: Unit, cases: Sequence[Case], run: UnitRun, options: Options) -> dict[str, Any]:
    """A unit's report as plain JSON."""
    rows = [case_row(case, run.verdicts[case.id]) for case in cases]
    if options.adapter and run.libm != "system":
        for row, case in zip(rows, cases, strict=True):
            if "libm" in case.raw.get("needs", []):
                row["level"] = "extra"
    required = [row["outcome"] for row in rows if row["level"] == "required"]
    report: dict[str, Any] = {
        **head(unit.stage), "outcome": outcome_of(required), "cases": rows, "counts": counts(rows),
        "fixture_sha256": unit.sha256, "runs": 2 if options.twice else 1, "voided_groups": run.voided,
    }  # fmt: skip
    return report


def case_row(case: Case, verdict: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"id": case.id, "outcome": verdict.outcome, "level": level(case)}
    if verdict.measured:
        row["measured"] = verdict.measured
    if verdict.passed:
        return {**row, "policy": verdict.policy} if verdict.policy else row
    row |= {
        "about": case.about,
        "rule": case.rules,
        "file": f"{case.file}:{case.line}",
        "hints": [*([verdict.topic] if verdict.topic else []), *case.raw.get("hints", [])],
    }
    for key in ("text", "step", "last_state", "mistake"):
        if getattr(verdict, key):
            row[key] = getattr(verdict, key)
    if verdict.difference is not None:
        d = verdict.difference
        row["difference"] = {"where": d.where, "expected": d.expected, "got": d.got, "note": d.note}
    if verdict.at is not None:
        file, line = verdict.at
        row["at"] = f"{shorter(file)}:{line}" if line else shorter(file)
    if verdict.output.strip():
        row["output"] = verdict.output
    if verdict.counterexample is not None:
        row["counterexample"] = verdict.counterexample
    return row


def shorter(path: str) -> str:
    return Path(path).name
