"""`ol init` and `ol restore`: a workspace whose files are derived from the reference, bodies removed."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grader import console, workspace
from grader.errors import PASSED, OlError, OwnFault, UsageError
from grader.path import Stage, built, find, read_path
from grader.tree import GIVEN, check_kind, module_of

HOME = Path(__file__).resolve().parent.parent  # the checkout whose practice/bin/ol a workspace starts
PACKAGE = "impl/__init__.py"
MAY_HOLD = {".git"}  # and still count as empty: a new repository is a good place to start

GITIGNORE = """\
# progress and verdicts of ol, and the copies that ol restore keeps
.ol/
*.bak
# caches
__pycache__/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.venv/
# what compilers leave
/build/
*.o
*.so
"""

CONFIG = """\
# This file makes the folder a workspace of ol.
format = "1.0"
path = "{path}"

# A package with other names is graded as it is: say which of your modules answers for which of ours.
# [map]
# "{module}" = "mypackage.mymodule"
"""

STARTER = """\
#!/bin/sh
# Starts the grader that made this workspace, from any folder.
grader={grader}
[ -x "$grader" ] || {{
    printf 'error: the grader of this workspace is not there any more · %s · %s\\n' "$grader" \\
        "write its new place into line 3 of $0" >&2
    exit 4
}}
case $0 in */*) OL_COMMAND=$0 ;; *) OL_COMMAND=./ol ;; esac
OL_WORKSPACE=$(CDPATH='' cd -P "${{OL_COMMAND%/*}}/" && pwd -P) || exit 2
export OL_COMMAND OL_WORKSPACE
{course}exec "$grader" "$@"
"""

PAGE = """\
# A workspace of ol

Each file in `impl/` has the contracts of one unit: names, arguments, shapes, errors. Write the bodies.

    ./ol              where you are, and the next command
    ./ol spec {first}    the rules of the first unit
    ./ol check {first}   grade it; what fails names its rule, the difference and the way to run it again
    ./ol hint {first}    a hint for what failed, one more after each attempt
    ./ol learn        the whole path

Yours: `impl/`, and this page.{given}
The grader reads `impl/` and `ol.toml`; it writes to `.ol/`, and with `restore` to `impl/`.
`./ol restore {first}` puts a stub back, or adds one that the course has gained; your file is kept beside it.
`ol.toml` marks this folder as a workspace. To keep your work safe, put it under version control: `git init`.
"""


def init(folder: str, as_json: bool) -> int:
    """Make a workspace in a folder that does not exist or is empty."""
    course = workspace.course_root()
    stages = read_path(course / "path.tsv")
    target = Path(os.path.realpath(folder))
    check_target(target, course)
    files = contents(course, stages)
    make(target, files)
    units = [stage for stage in stages if any(file in files for file in stage.files)]
    steps = [*([f"cd {shlex.quote(folder)}"] if target != Path.cwd() else []), "./ol"]
    if as_json:
        console.emit({
            "format": 1, "command": "init", "outcome": "pass", "units": [], "workspace": str(target),
            "files": sorted(files), "next": " && ".join(steps),
        })  # fmt: skip
        return PASSED
    print(f"made  {target}")
    listed = [(", ".join(s.files), f"{s.id:8} {s.title.partition(':')[0]}") for s in units]
    listed += [("given, not graded", ", ".join(given_files(files)))] if given_files(files) else []
    listed += [("./ol", "starts this grader; progress is kept in .ol/")]
    width = max(len(name) for name, _ in listed)
    for name, what in listed:
        print(f"      {name:{width}}  {what}")
    print("next  " + "\n      ".join(steps))
    return PASSED


def check_target(target: Path, course: Path) -> None:
    """Refuse what would mix a workspace with something else."""
    for root in (course, HOME):
        if target.is_relative_to(root):
            fix = f"choose one outside it, such as {root.parent / 'my-stack'}"
            raise UsageError("a workspace does not go into the folder of the course", str(target), fix)
    around = workspace.find(target)
    if around == target:
        raise UsageError(
            "this is a workspace already", str(target), "ol restore ID puts the stub of a unit there"
        )
    if around is not None:
        raise UsageError(f"inside another workspace, {around}", str(target), "choose a folder outside it")
    try:
        for folder in (target.parent, target):
            if folder.exists() and not folder.is_dir():
                raise UsageError("not a folder", str(folder), "choose another name")
        if not target.parent.exists():
            fix = f"make it first: mkdir -p {shlex.quote(str(target.parent))}"
            raise UsageError("no such folder", str(target.parent), fix)
        names = sorted({path.name for path in target.iterdir()} - MAY_HOLD) if target.exists() else []
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", str(target), "choose another folder") from None
    if names:
        held = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise UsageError(f"not empty, it holds {held}", str(target), "choose a new folder")


def contents(course: Path, stages: Sequence[Stage]) -> dict[str, bytes]:
    """Every file of a workspace by its relative path."""
    units = [stage for stage in stages if not stage.is_milestone and built(stage, course)]
    if not units:
        raise OwnFault(
            "no unit of this course is built", str(course / "path.tsv"), "there is nothing to write yet"
        )
    files = {file: text for stage in units for file, text in stubs(course, stage).items()}
    files |= given(course)
    module = module_of(units[0].files[0])
    names = ", ".join(f"`{name}`" for name in given_files(files))
    page = PAGE.format(
        first=units[0].id, given=f" Given, not graded, not to be changed: {names}." if names else ""
    )
    named = f"OL_COURSE={shlex.quote(str(course))} && export OL_COURSE\n" if course != HOME else ""
    starter = STARTER.format(grader=shlex.quote(str(HOME / "practice" / "bin" / "ol")), course=named)
    return files | {
        "ol": starter.encode("utf-8", "surrogateescape"), "README.md": page.encode(),
        ".gitignore": GITIGNORE.encode(),
        "ol.toml": CONFIG.format(path=stages[0].path, module=module).encode(),
    }  # fmt: skip


def stubs(course: Path, stage: Stage) -> dict[str, bytes]:
    """A unit's files as a learner gets them: Python without bodies, questions without answers."""
    from grader.code import stub_of

    found = {}
    if stage.is_sheet:
        from grader import fixtures, solve

        page = f"problems/{stage.unit}.md"
        found[stage.files[0]] = solve.stub(fixtures.load(stage, course)).encode()
        found[page] = (course / "practice" / page).read_bytes()
    for file in stage.files:
        if not stage.is_sheet:
            source = (course / file).read_bytes().decode("utf-8")
            found[file] = stub_of(source, stage.id, file).encode("utf-8")
    return found


def given(course: Path) -> dict[str, bytes]:
    """What is copied whole: the package's own file, and the modules that are not graded."""
    names = [PACKAGE, *(f"impl/{name}.py" for name in GIVEN)]
    if any(path.is_file() for path in (course / "csrc" / "src").glob("*.c")):
        native = [*(course / "csrc" / "include").rglob("*.h"), *(course / "csrc" / "src").glob("*.h")]
        native += [course / "csrc" / "Makefile", course / "csrc" / "src" / "error_slot.c"]
        names += [str(path.relative_to(course)) for path in sorted(native)]
    return {name: (course / name).read_bytes() for name in names if (course / name).is_file()}


def given_files(files: Mapping[str, Any]) -> list[str]:
    return [f"impl/{name}.py" for name in GIVEN if f"impl/{name}.py" in files]


# -- writing ------------------------------------------------------------------------------------------


def make(target: Path, files: Mapping[str, bytes]) -> None:
    """All of the files or none: written into a folder beside, or inside an empty one, and renamed."""
    inside = target.is_dir()
    beside = (target if inside else target.parent) / f".ol-init-{os.getpid()}"
    moved: list[Path] = []
    try:
        beside.mkdir()
        for name, text in files.items():
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        mode = (beside / "ol").stat().st_mode
        (beside / "ol").chmod(mode | (mode & 0o444) >> 2)  # who may read it may run it
        if inside:
            tops = sorted({name.partition("/")[0] for name in files} - {workspace.CONFIG})
            for name in (*tops, workspace.CONFIG):  # ol.toml last: until then the folder is no workspace
                moved.append(target / name)
                (beside / name).rename(target / name)
            beside.rmdir()
        else:
            beside.rename(target)
    except BaseException as error:
        for path in (*moved, beside):
            remove(path)
        if isinstance(error, OSError):
            raise write_fault(error, target, "nothing was made") from None
        raise


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_fault(error: OSError, where: Path, state: str) -> OlError:
    """A full disk is nobody's mistake; a folder that cannot be written to is the user's choice."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OwnFault(f"the disk is full, {state}", str(where), "free some space and run it again")
    return UsageError(
        f"cannot write: {error.strerror}, {state}", str(where), "choose a folder you can write to"
    )


# -- restore ------------------------------------------------------------------------------------------


def restore(name: str, as_json: bool) -> int:
    """Put a unit's stubs into the workspace; what was there is kept beside."""
    from grader.hints import gradeable
    from grader.learn import read_here

    place, stages = read_here()
    if not place.is_workspace:
        raise UsageError("no workspace here", str(Path.cwd()), "cd into yours, or make one: ol init DIR")
    ours = given(place.course)
    whole = f"impl/{name.removeprefix('impl/').removesuffix('.py')}.py"
    if whole in ours:  # a given module that was changed by mistake
        wanted, follow = {whole: ours.pop(whole)}, console.command()
    else:
        stage = gradeable(place, find(stages, name))
        wanted, follow = stubs(place.course, stage), f"{console.command()} check {stage.id}"
        for module, theirs in place.tree.map:
            if module in map(module_of, stage.files):
                where = str(place.tree.root / workspace.CONFIG)
                raise UsageError(
                    f"[map] says that {theirs} answers for {module}",
                    where,
                    "remove that line to use the stub",
                )
        if not wanted:
            raise UsageError(
                f"there is no stub for {', '.join(stage.files)}", "ol restore", "ol learn lists the path"
            )
    wanted |= {file: text for file, text in ours.items() if not (place.tree.root / file).exists()}
    rows = put(place.tree.root, wanted, place.course)
    if as_json:
        console.emit({
            "format": 1, "command": "restore", "outcome": "pass", "units": [],
            "workspace": str(place.tree.root),
            "files": [{"file": file, "did": did, "kept": kept} for file, did, kept in rows], "next": follow,
        })  # fmt: skip
        return PASSED
    for file, did, kept in rows:
        print(f"{did:9} {file}" + (f"    yours is {kept}" if kept else ""))
    print(f"next      {follow}")
    return PASSED


def put(root: Path, wanted: Mapping[str, bytes], course: Path) -> list[tuple[str, str, str | None]]:
    """Write files into a workspace: every copy is made before the first file changes."""
    rows: list[tuple[str, str, str | None]] = []
    ready: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for name, text in wanted.items():
            file = root / name
            check_file(root, name, course)
            old = file.read_bytes() if file.exists() else None
            if old == text:
                rows.append((name, "unchanged", None))
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = None
            if old is not None:
                kept = keep(file, old, made)
            beside = file.with_name(f".{file.name}.{os.getpid()}")
            made.append(beside)
            beside.write_bytes(text)
            ready.append((beside, file))
            rows.append(
                (name, "made" if old is None else "restored", f"{kept.relative_to(root)}" if kept else None)
            )
    except BaseException as error:
        for path in made:
            remove(path)
        if isinstance(error, OSError):
            raise write_fault(error, Path(error.filename or root), "nothing was changed") from None
        raise
    for beside, file in ready:
        os.replace(beside, file)
    return rows


def check_file(root: Path, name: str, course: Path) -> None:
    file = root / name
    parent = file.parent.resolve()
    if parent.is_relative_to(course) or parent.is_relative_to(HOME):
        raise UsageError(
            "leads into the folder of the course", str(file), "replace the link by a folder of your own"
        )
    check_kind(root, name)


def keep(file: Path, text: bytes, made: list[Path]) -> Path:
    """A copy with the first free number; the suffix keeps it from ever being imported."""
    number = 1
    while True:
        copy = file.with_name(f"{file.name}.{number}.bak")
        try:
            handle = copy.open("xb")
        except FileExistsError:
            number += 1
            continue
        with handle:
            made.append(copy)
            handle.write(text)
        return copy
