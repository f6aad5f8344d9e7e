"""path.tsv, the course: one row per stage, in order, and the only registry of units.

Reading is strict, because everything else trusts it: the first fault is an `OwnFault` that names the line.
Standard library only, so that listing the course stays fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.errors import OwnFault, UsageError

COLUMNS = ("path", "stage", "id", "unit", "files", "kind", "needs", "title", "read", "done_when", "check")
KINDS = ("build", "solve", "practice", "side", "milestone")
SUFFIXES = (".py", ".c", ".toml")
EMPTY = "-"

_PATH = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ID = re.compile(r"[A-Za-z][A-Za-z0-9]*([.-][A-Za-z0-9]+)+")
_UNIT = re.compile(r"[a-z][a-z0-9_]{1,23}")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Stage:
    """One row; `line` is its line in the file, for messages."""

    path: str
    stage: int
    id: str
    unit: str
    files: tuple[str, ...]
    kind: str
    needs: tuple[str, ...]
    title: str
    read: str
    done_when: str
    check: str
    line: int

    @property
    def is_milestone(self) -> bool:
        return self.kind == "milestone"

    @property
    def is_sheet(self) -> bool:
        """Whether the unit is a sheet of answers and no code."""
        return bool(self.files) and self.files[0].endswith(".toml")

    @property
    def is_native(self) -> bool:
        """Whether the unit is C."""
        return bool(self.files) and self.files[0].endswith(".c")

    @property
    def is_optional(self) -> bool:
        return self.kind == "side"

    @property
    def page(self) -> str:
        """The part of `read` that is a file; a URL may follow it."""
        return self.read.split(" ")[0]


def read_path(file: Path) -> list[Stage]:
    """Every stage in order; raises OwnFault at the first thing that is wrong."""
    stages = [_stage(file.name, line, text) for line, text in _rows(file)]
    if not stages:
        raise OwnFault("the path has no stage", f"{file.name} line 2", "add a row under the header")
    _check_unique(file.name, stages)
    _check_needs(file.name, stages)
    return stages


def find(stages: Sequence[Stage], name: str) -> Stage:
    """The stage with this id or unit; the case of the letters does not matter."""
    wanted = name.casefold()
    for stage in stages:
        if wanted in (stage.id.casefold(), stage.unit):
            return stage
    import difflib  # only a mistyped name pays for it

    names = {spelling: stage for stage in stages for spelling in (stage.id.casefold(), stage.unit)}
    near = [names[spelling] for spelling in difflib.get_close_matches(wanted, list(names), n=1)]
    hint = "".join(f"did you mean {stage.id} ({stage.unit})? " for stage in near)
    raise UsageError(f"no stage is called {name!r}", "path.tsv", f"{hint}'ol learn' lists all")


def needs_closure(stages: Sequence[Stage], stage: Stage) -> list[Stage]:
    """Every stage that this one needs, directly or not, in path order; never the stage itself."""
    by_id = {other.id: other for other in stages}
    found: set[str] = set()
    waiting = list(stage.needs)
    while waiting:
        need = waiting.pop()
        if need not in found:
            found.add(need)
            waiting.extend(by_id[need].needs)
    return [other for other in stages if other.id in found]


def built(stage: Stage, root: Path) -> bool:
    """Whether the unit exists here; half of one is an OwnFault, since it would look like a whole one.

    A milestone has no files: it exists once its page does.
    """
    if stage.is_milestone:
        return (root / stage.page).is_file()
    missing = [file for file in stage.files if not (root / file).is_file()]
    if len(missing) == len(stage.files):
        return False
    if not (root / "fixtures" / stage.unit).is_dir():
        missing.append(f"fixtures/{stage.unit}/")
    if not (root / stage.page).is_file():
        missing.append(stage.page)
    if missing:
        raise OwnFault(
            f"{stage.id} ({stage.unit}) is half built, missing: {', '.join(missing)}",
            f"path.tsv line {stage.line}",
            "add what is missing, or remove the rest",
        )
    return True


def _rows(file: Path) -> Iterator[tuple[int, str]]:
    """The rows under the header, each with its line number."""
    name = file.name
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise OwnFault(f"{name} is missing", str(file), f"restore it: git checkout {name}") from None
    except OSError as error:
        raise OwnFault(
            f"{name} cannot be read: {error.strerror}", str(file), "check its permissions"
        ) from None
    if not data.strip():
        raise OwnFault(f"{name} is empty", f"{name} line 1", f"restore it: git checkout {name}")
    if b"\r" in data:
        line = data[: data.index(b"\r")].count(b"\n") + 1
        raise OwnFault("a carriage return", f"{name} line {line}", "save the file with LF line ends")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise OwnFault("not UTF-8", f"{name} line {line}", "save the file as UTF-8") from None
    header, *rows = text.removesuffix("\n").split("\n")
    if tuple(header.split("\t")) != COLUMNS:
        raise OwnFault(
            "the header is not the expected one", f"{name} line 1", "it is, with tabs: " + " ".join(COLUMNS)
        )
    yield from enumerate(rows, start=2)


def _stage(name: str, line: int, text: str) -> Stage:
    """One row, checked as far as that needs no other row."""

    def fault(what: str, fix: str) -> OwnFault:
        return OwnFault(what, f"{name} line {line}", fix)

    fields = text.split("\t")
    if len(fields) != len(COLUMNS):
        raise fault(
            f"{len(fields)} fields instead of {len(COLUMNS)}",
            "separate the fields by single tabs, no blank line",
        )
    row = dict(zip(COLUMNS, fields, strict=True))
    for column, value in row.items():
        if not value or (value == EMPTY and column not in ("files", "needs")):
            raise fault(
                f"the field {column} is empty", f"fill it ('{EMPTY}' is for no files and no needs only)"
            )
        if value != " ".join(value.split()):
            raise fault(f"stray spaces in the field {column}", "one space between words, none around them")
    if not _PATH.fullmatch(row["path"]):
        raise fault(f"bad path name {row['path']!r}", "lower-case words and digits, joined by '-'")
    if not _NUMBER.fullmatch(row["stage"]):
        raise fault(f"bad stage number {row['stage']!r}", "stages count from 1")
    if not _ID.fullmatch(row["id"]):
        raise fault(f"bad id {row['id']!r}", "letters and digits in parts joined by '.' or '-', such as L8.1")
    if not _UNIT.fullmatch(row["unit"]):
        raise fault(f"bad unit name {row['unit']!r}", "2 to 24 of a-z, 0-9 and _, a letter first")
    if row["kind"] not in KINDS:
        raise fault(f"unknown kind {row['kind']!r}", "one of " + " ".join(KINDS))
    stage = Stage(
        path=row["path"],
        stage=int(row["stage"]),
        id=row["id"],
        unit=row["unit"],
        files=_words(row["files"]),
        kind=row["kind"],
        needs=_words(row["needs"]),
        title=row["title"],
        read=row["read"],
        done_when=row["done_when"],
        check=row["check"],
        line=line,
    )
    _check_files(name, stage)
    _check_read(name, stage)
    verb = "gate" if stage.is_milestone else "check"
    if stage.check != f"practice/bin/ol {verb} {stage.id}":
        raise fault(
            f"check {stage.check!r} does not fit {stage.id}", f"it is 'practice/bin/ol {verb} {stage.id}'"
        )
    return stage


def _words(field: str) -> tuple[str, ...]:
    return () if field == EMPTY else tuple(field.split(" "))


def _check_files(name: str, stage: Stage) -> None:
    where = f"{name} line {stage.line}"
    if stage.is_milestone:
        if stage.files:
            raise OwnFault(
                f"milestone {stage.id} lists files", where, f"write '{EMPTY}': a gate has steps, not files"
            )
        if not stage.needs:
            raise OwnFault(f"milestone {stage.id} needs no stage", where, "name the stages that it asks for")
        return
    if not stage.files:
        raise OwnFault(f"{stage.id} lists no file", where, "only a milestone has none")
    for file in stage.files:
        parts = PurePosixPath(file).parts
        if file.startswith("/") or "\\" in file or ".." in parts or "/".join(parts) != file:
            raise OwnFault(
                f"{file!r} is no path inside the workspace", where, "write a plain relative path without '..'"
            )
        if PurePosixPath(file).suffix not in SUFFIXES:
            raise OwnFault(f"{file!r} has an unknown suffix", where, "one of " + " ".join(SUFFIXES))
    if len({PurePosixPath(file).suffix for file in stage.files}) > 1:
        raise OwnFault(
            f"the files of {stage.id} are of two languages", where, "the suffix is the unit's language"
        )
    if stage.unit not in {PurePosixPath(file).stem for file in stage.files}:
        raise OwnFault(
            f"no file of {stage.id} is called {stage.unit}", where, "a unit's file carries the unit's name"
        )


def _check_read(name: str, stage: Stage) -> None:
    """`read` is the unit's page, then at most one URL; a milestone may share another's page."""
    where = f"{name} line {stage.line}"
    page, *rest = stage.read.split(" ")
    own = f"spec/{stage.unit}.md"
    if page != own and not (stage.is_milestone and re.fullmatch(r"spec/[a-z0-9_]+\.md", page)):
        raise OwnFault(f"read starts with {page!r}", where, f"the page of {stage.unit} is {own}")
    if rest and (len(rest) > 1 or not rest[0].startswith("https://")):
        raise OwnFault(
            "read has more than a page and a URL", where, "write the page, then at most one https:// URL"
        )


def _check_unique(name: str, stages: Sequence[Stage]) -> None:
    seen: dict[tuple[str, str], Stage] = {}
    last: dict[str, int] = {}
    for stage in stages:
        where = f"{name} line {stage.line}"
        keys = [("id", stage.id.casefold()), ("unit", stage.unit), *(("file", file) for file in stage.files)]
        for what, value in keys:
            first = seen.setdefault((what, value), stage)
            if first is not stage:
                shown = stage.id if what == "id" else value
                raise OwnFault(f"{what} {shown} is taken", where, f"line {first.line} has it already")
        if (before := last.get(stage.path, 0)) >= stage.stage:
            fix = "each number is used once" if before == stage.stage else "rows are in the order of the path"
            raise OwnFault(f"stage {stage.stage} comes after stage {before}", where, fix)
        last[stage.path] = stage.stage


def _check_needs(name: str, stages: Sequence[Stage]) -> None:
    by_id = {stage.id: stage for stage in stages}
    for stage in stages:
        where = f"{name} line {stage.line}"
        for need in stage.needs:
            if need not in by_id:
                raise OwnFault(
                    f"{stage.id} needs {need!r}, which is no id here", where, "ids are spelled as in column 3"
                )
            if need == stage.id:
                raise OwnFault(f"{stage.id} needs itself", where, "remove it from needs")
            if by_id[need].is_optional and stage.kind in ("build", "solve", "practice"):
                raise OwnFault(
                    f"{stage.id} is required and needs {need}, which is optional", where, "make both the same"
                )
        if len(set(stage.needs)) != len(stage.needs):
            raise OwnFault(f"{stage.id} names a need twice", where, "name each once")
    # a loop always holds a forward need, so it is looked for first: printing it is the more useful message
    if loop := _loop(stages, by_id):
        start = by_id[loop[0]]
        raise OwnFault(f"needs go round: {' -> '.join(loop)}", f"{name} line {start.line}", "break the loop")
    for stage in stages:
        for need in stage.needs:
            if by_id[need].line > stage.line:
                raise OwnFault(
                    f"{stage.id} needs {need}, which comes later (line {by_id[need].line})",
                    f"{name} line {stage.line}",
                    "a stage needs earlier stages only",
                )


def _loop(stages: Sequence[Stage], by_id: dict[str, Stage]) -> list[str]:
    """The first loop of needs, its first id repeated at the end; empty when there is none."""
    done: set[str] = set()
    for stage in stages:
        trail: list[str] = []
        branches = [iter((stage.id,))]
        while branches:
            need = next(branches[-1], None)
            if need is None:
                branches.pop()
                if trail:
                    done.add(trail.pop())
            elif need in trail:
                return [*trail[trail.index(need) :], need]
            elif need not in done:
                trail.append(need)
                branches.append(iter(by_id[need].needs))
    return []
