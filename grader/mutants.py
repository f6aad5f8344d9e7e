"""Known mistakes as edits of the reference, what they answer, and whether the cases see them.

A unit proves its teeth here: every mutant is killed by the case that claims it, every equivalent passes,
and answers that know nothing (stub, zeros, NaN, echo, the previous answer) fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grader import solve
from grader.code import code_of, opener_of, public_names, stub_of
from grader.compare import Attrs, Keys, Leaf, Seq, Want, compare, want_of
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.judge import Verdict
from grader.runner import Runner, UnitRun, baseline
from grader.session import Workers
from grader.tree import Tree, module_of
from grader.values import decode_args
from grader.wire import Native, New, Ref

KILLS = ("fail", "raised", "crashed", "memory", "protocol")
TRIVIAL = ("stub", "zeros", "nan", "echo", "previous")


def sources(unit: Unit) -> dict[str, str]:
    """The reference's files of a unit, by the name that mutants use."""
    return {file: (unit.root / file).read_text() for file in unit.stage.files}


def plain(text: str) -> str:
    """A C source without its fast paths, so that a known mistake answers the same on every machine."""
    return f"#define TL_PLAIN\n{text}" if '#include "clones.h"' in text else text


def mutated(unit: Unit, name: str, spec: dict[str, Any]) -> dict[str, str]:
    """A mutant as {module: source}; every `find` must match exactly once."""
    if "answer" in spec:
        return {module_of(unit.stage.files[0]): solve.changed(unit, spec["answer"], spec["value"])}
    texts = edited(sources(unit), spec.get("edits") or [spec], f"mutant {name}", unit)
    return {module_of(file): plain(text) for file, text in texts.items()}


def edited(
    texts: dict[str, str], edits: list[dict[str, Any]], what: str, unit: Unit, place: str = ""
) -> dict[str, str]:
    """Texts by file after edits; an edit is of the first file unless it names one."""
    texts, place = dict(texts), place or f"fixtures/{unit.name}/mutants.yaml"
    for edit in edits:
        file = edit.get("file", next(iter(texts)))
        file = next((f for f in texts if f == file or Path(f).name == file), None)
        if file is None:
            raise OwnFault(f"{what}: no file {edit.get('file')!r} in {unit.stage.id}", place)
        count = texts[file].count(edit["find"])
        if count != 1:
            raise OwnFault(
                f"{what}: find matches {count} times in {file}, not once",
                place, "lengthen find, or follow the reference",
            )  # fmt: skip
        texts[file] = texts[file].replace(edit["find"], edit["with"])
    return texts


def equivalents(unit: Unit) -> Iterator[tuple[str, dict[str, str]]]:
    """Other correct ways to write it: NAME.py (or .toml) replaces the first file, NAME/ any of the files.

    A C file with fast paths (`clones.h`) is one more by itself, compiled without them.
    """
    folder = unit.dir / "equivalents"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix in (".py", ".c", ".toml"):
            yield path.stem, {module_of(unit.stage.files[0]): path.read_text()}
        elif path.is_dir() and path.name != "__pycache__":
            home = unit.stage.files[0].rpartition("/")[0]
            kind = unit.stage.files[0].rpartition(".")[2]
            texts = {f"{home}/{p.name}": p.read_text() for p in sorted(path.glob(f"*.{kind}"))}
            yield path.name, {module_of(file): text for file, text in texts.items()}
    own = sources(unit) if unit.stage.is_native else {}
    if any(plain(text) != text for text in own.values()):
        yield "plain", {module_of(file): plain(text) for file, text in own.items()}


@dataclass(slots=True)
class Bench:
    """Runs variants of the reference of one unit in the worker."""

    unit: Unit
    workers: Workers
    sanitized: bool = True  # C: what passes runs again under the sanitizers

    def runner(self, replace: dict[str, str] | None = None) -> Runner:
        if self.unit.stage.is_sheet:
            file = self.unit.stage.files[0]
            source = (replace or {}).get(module_of(file))
            return Runner(self.unit, solve.opener(self.unit.root / file, source), shrinking=False)
        tree = Tree(self.unit.root, kind="reference")
        base = code_of(self.unit.stage, tree, self.unit.root)
        opener, reference = opener_of(self.workers, base, replace), opener_of(self.workers, base)
        return Runner(
            self.unit, opener, reference, shrinking=False,
            naive=baseline(self.unit, self.workers, base),
        )  # fmt: skip

    def run(self, cases: list[Case], replace: dict[str, str] | None = None, twice: bool = False) -> UnitRun:
        found = self.runner(replace).run(cases, twice)
        if self.unit.stage.is_native and self.sanitized:
            from grader import library

            code = code_of(self.unit.stage, Tree(self.unit.root, kind="reference"), self.unit.root)
            assert isinstance(code, library.Library)
            library.sanitized(self.unit, code, replace or {}, self.workers, found)
        return found


def report(unit: Unit, workers: Workers, progress: Callable[[str], None]) -> dict[str, Any]:
    """The kill matrix of a unit, as `ol author mutants --json` prints it."""
    bench = Bench(unit, workers)
    reference = bench.run(unit.cases, twice=True)
    broken = [name for name, v in reference.verdicts.items() if not v.passed]
    if broken:
        what = reference.verdicts[broken[0]]
        raise OwnFault(
            f"the reference does not pass {broken[0]}: {what.outcome} {what.text}".strip(),
            unit.name,
            "mend it first",
        )
    specs = unit.mutants()
    claims = {name: [c.id for c in unit.cases if name in c.kills] for name in specs}
    killed, by_claim, survivors, weak = 0, 0, [], []
    signatures: dict[str, list[str]] = {}
    for name, spec in specs.items():
        progress(f"{unit.name}: mutant {name}")
        # Only what is slow on purpose is timed: a wrong value may take any time it likes.
        asked = [case for case in unit.cases if case.verb != "perf" or name in case.kills]
        verdicts = bench.run(asked, mutated(unit, name, spec)).verdicts
        kills = [case for case, v in verdicts.items() if v.outcome in KILLS]
        claimed = [case for case in claims[name] if case in kills]
        killed += bool(kills)
        by_claim += bool(claims[name]) and len(claimed) == len(claims[name])
        if not claims[name] or len(claimed) < len(claims[name]):
            missed = [case for case in claims[name] if case not in kills]
            survivors.append(
                {"mutant": name, "claimed_by": claims[name], "not_killed_by": missed, "killed_by": kills[:5]}
            )
        weak += [{"mutant": name, **w} for w in tolerances(verdicts, claimed)]
        if not any(case.verb == "perf" and name in case.kills for case in unit.cases):  # slow is slow
            signatures.setdefault(signature(verdicts), []).append(name)
    rejected = []
    valued = [case for case in unit.cases if case.verb != "perf"]
    others = list(equivalents(unit))
    for name, replace in others:
        progress(f"{unit.name}: equivalent {name}")
        failed = [v for v in bench.run(valued, replace, twice=True).verdicts.values() if not v.passed]
        rejected += [
            {"equivalent": name, "case": v.case, "outcome": v.outcome, "text": said(v)} for v in failed[:1]
        ]
    progress(f"{unit.name}: trivial answers")
    return {
        "id": unit.stage.id, "unit": unit.name, "mutants": len(specs), "killed": killed, "by_claim": by_claim,
        "survivors": survivors, "alike": [names for names in signatures.values() if len(names) > 1],
        "weak_tolerances": weak, "equivalents": len(others), "rejected": rejected,
        "trivial": trivial(unit, bench),
    }  # fmt: skip


def clean(entry: dict[str, Any]) -> bool:
    """Whether a unit's fixtures have teeth and bite nobody who is right."""
    return not (
        entry["survivors"] or entry["alike"] or entry["weak_tolerances"] or entry["rejected"]
        or entry["equivalents"] < 2 or any(entry["trivial"].values())
    )  # fmt: skip


def said(verdict: Verdict) -> str:
    d = verdict.difference
    return f"{verdict.step}: {d.where} expected {d.expected}, got {d.got}" if d else verdict.text


def tolerances(verdicts: dict[str, Verdict], claimed: list[str]) -> list[dict[str, Any]]:
    """A tolerance above half the error of a mutant that the case claims is too wide."""
    weak = []
    for case in claimed:
        d = verdicts[case].difference
        if d is not None and d.gap is not None and d.allowed and not d.gap >= 2 * d.allowed:
            weak.append({"case": case, "error": d.gap, "tolerance": d.allowed})
    return weak


def signature(verdicts: dict[str, Verdict]) -> str:
    """Two mutants that answer alike on every case are one mutant."""
    parts = []
    for case, v in verdicts.items():
        e = v.evidence
        parts.append(
            f"{case} {v.outcome} {e.step if e else ''} {e.what if e else ''} {_bytes(e.value) if e else ''}"
        )
    return "\n".join(parts)


def _bytes(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return f"[{','.join(map(_bytes, value))}]" if isinstance(value, (list, tuple)) else repr(value)


# -- answers that know nothing ----------------------------------------------------------------------------


def trivial(unit: Unit, bench: Bench) -> dict[str, list[str]]:
    """Per kind of trivial answer, the functions that no case protects from it."""
    if unit.stage.is_sheet:
        return trivial_sheets(unit, bench)
    stubs = {module_of(f): stub_of(text, unit.stage.id, f) for f, text in sources(unit).items()}
    verdicts = bench.run(unit.cases, stubs).verdicts
    # A stub keeps its dataclasses, so a case that only looks at fields passes; the unit is todo all the same.
    odd = [f"{case}: {v.outcome}" for case, v in verdicts.items() if v.outcome not in ("todo", "pass")]
    if all(v.outcome == "pass" for v in verdicts.values()):
        odd.append("every case passes on the stub")
    result: dict[str, list[str]] = {"stub": odd}
    public = public_names(sources(unit))
    asked = [question for question in questions(unit) if question[0] in public]
    names = sorted({name for name, _, _, _ in asked})
    for kind in TRIVIAL[1:]:
        previous: dict[str, Any] = {}
        caught: set[str] = set()
        for name, want, args, _ in asked:
            if want is None:  # a raise is due, and a trivial answer returns
                caught.add(name)
                continue
            answers = trivial_answers(kind, want, args, previous.get(name))
            # Nothing to echo is no answer at all; without a previous answer nothing is shown.
            if (answers or kind == "echo") and all(compare(want, answer) is not None for answer in answers):
                caught.add(name)
            previous[name] = expected_value(want)
        result[kind] = [name for name in names if name not in caught]
    return result


def trivial_sheets(unit: Unit, bench: Bench) -> dict[str, list[str]]:
    """The same for a solve set: the questions that accept an answer which knows nothing."""
    module = module_of(unit.stage.files[0])
    result: dict[str, list[str]] = {}
    for kind, text in solve.trivial_sheets(unit).items():
        verdicts = bench.run([c for c in unit.cases if c.required], {module: text}).verdicts
        odd = ("todo",) if kind == "stub" else ("todo", *KILLS)
        result[kind] = [name for name, v in verdicts.items() if v.outcome not in odd]
    return result


def questions(unit: Unit) -> Iterator[tuple[str, Want | None, dict[str, Any], str]]:
    """Every literal question of the cases: name, expected value (None: raises), arguments, case."""
    for case in unit.cases:
        if case.verb == "call":
            expect = case.raw["expect"]
            args = decode_args(case.raw.get("args", {}), unit.dir)
            if "raises" in expect:
                yield case.raw["call"], None, args, case.id
            elif "return" in expect and "mutates" not in case.raw:
                yield case.raw["call"], want_of(expect["return"], unit.dir), args, case.id
        elif case.verb == "trace":
            for step in case.raw["steps"]:
                if "get" in step or "on" in step:
                    continue
                name = next(step[k] for k in ("do", "call", "new") if k in step)
                if "do" in step and "new" in case.raw:
                    name = f"{case.raw['new']}.{name}"
                args = decode_args(step.get("args", {}), unit.dir)
                if "raises" in step:
                    yield name, None, args, case.id
                elif "return" in step:
                    yield name, want_of(step["return"], unit.dir), args, case.id


def expected_value(want: Want) -> Any:
    match want:
        case Leaf(value, _):
            return value
        case Seq(items):
            return [expected_value(w) for w in items]
        case Attrs(items) | Keys(items):
            return {k: expected_value(w) for k, w in items.items()}


def trivial_answers(kind: str, want: Want, args: dict[str, Any], previous: Any) -> list[Any]:
    if kind == "previous":
        return [previous] if previous is not None else []
    if kind == "echo":
        shape = [np.asarray(v).shape for v in (expected_value(want),) if isinstance(v, np.ndarray)]
        return [
            v
            for v in args.values()
            if not isinstance(v, (New, Ref, Native)) and (not shape or shape_of(v) == shape[0])
        ]
    fill = np.nan if kind == "nan" else 0
    return [filled(expected_value(want), fill)]


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of what is or could be an array; None for arrays of different shapes in a list."""
    try:
        return tuple(np.shape(value))
    except ValueError:
        return None


def filled(value: Any, fill: float) -> Any:
    if isinstance(value, np.ndarray):
        return np.full_like(value, fill if value.dtype.kind == "f" else 0)
    if isinstance(value, (list, tuple)):
        return [filled(item, fill) for item in value]
    if isinstance(value, dict):
        return {k: filled(v, fill) for k, v in value.items()}
    if isinstance(value, float):
        return float(fill)
    if isinstance(value, np.generic):
        return value.dtype.type(fill if value.dtype.kind == "f" else 0)
    return type(value)() if isinstance(value, (bool, int, str, bytes)) else value
