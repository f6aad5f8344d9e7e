"""A place to learn: `ol init`, the `./ol` that it makes, `ol restore`, and packages of another layout."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from grader import cli, init
from grader.errors import MISSING, NOT_PASSED, OWN_FAULT, PASSED, USAGE
from grader.path import built, read_path
from grader.stub import stub_source
from grader.tree import GIVEN, package_files

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy"
Done = subprocess.CompletedProcess[str]


def environment(course: Path | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k[:3] != "OL_" and k != "CI"}
    return env | ({"OL_COURSE": str(course)} if course else {})


def ol(cwd: Path, *args: str, course: Path | None = None) -> Done:
    """The command in this process, since it starts a dozen times faster."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with (
        mock.patch.dict(os.environ, environment(course), clear=True),
        contextlib.chdir(cwd),
        streams[0],
        streams[1],
    ):
        code = cli.main(list(args))
    return subprocess.CompletedProcess(list(args), code, out.getvalue(), err.getvalue())


def process(cwd: Path, *args: str, course: Path, **limits: Any) -> Done:
    """The command in a process of its own, under limits."""
    command = [sys.executable, "-I", "-B", "-X", "utf8", str(ROOT / "grader" / "__main__.py"), *args]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(course),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **limits,
    )


def refused(done: Done, code: int, *words: str) -> None:
    """One line that says what, where and how to go on; nothing on stdout."""
    assert (done.returncode, done.stdout) == (code, ""), done
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and line.count(" · ") >= 2, line
    for word in words:
        assert word in line, line


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy course; nobody may change it."""
    folder = tmp_path_factory.mktemp("course") / "toy"
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    return folder


@pytest.fixture
def ws(tmp_path: Path, course: Path) -> Path:
    """A fresh workspace of the toy course."""
    folder = tmp_path / "ws"
    init.make(folder, init.contents(course, read_path(course / "path.tsv")))
    return folder


def tree_of(folder: Path) -> dict[str, str]:
    """Every file with the hash of its content, folders and links too."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and "__pycache__" not in name:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


# -- init ---------------------------------------------------------------------------------------------


def test_a_workspace_is_derived_from_the_reference(tmp_path: Path, course: Path) -> None:
    done = ol(tmp_path, "init", "my stack", course=course)
    assert (done.returncode, done.stderr) == (PASSED, "")
    made = tmp_path / "my stack"
    names = [".gitignore", "README.md", "impl/__init__.py", "impl/stack.py", "ol", "ol.toml"]
    assert sorted(tree_of(made)) == names, "T.2 is not built, so it has no file"
    source = (course / "impl" / "stack.py").read_text()
    stub = (made / "impl" / "stack.py").read_text()
    assert stub == stub_source(source, "T.1", "stack.py")
    assert "raise Full(" in source and "raise Full(" not in stub
    assert (made / "ol").stat().st_mode & 0o111 == 0o111
    assert not (made / "ol.toml").stat().st_mode & 0o111
    assert done.stdout.splitlines()[0] == f"made  {made}"
    assert "impl/stack.py" in done.stdout and "A bounded stack" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["next  cd 'my stack'", "      ./ol"]
    assert list(tmp_path.iterdir()) == [made]


def test_init_as_json(tmp_path: Path, course: Path) -> None:
    done = ol(tmp_path, "init", "ws", "--json", course=course)
    document = json.loads(done.stdout)
    assert document["outcome"] == "pass"
    assert document["workspace"] == str(tmp_path / "ws")
    assert set(document["files"]) == set(tree_of(tmp_path / "ws"))


def test_permissions_are_those_of_the_umask(tmp_path: Path, course: Path) -> None:
    process(tmp_path, "init", "ws", course=course, umask=0o027)
    assert stat.S_IMODE((tmp_path / "ws").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "ws" / "ol").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "ws" / "ol.toml").stat().st_mode) == 0o640


def test_a_fresh_workspace_imports_and_is_all_todo(tmp_path: Path) -> None:
    """On the real course: a stub is never a pass and never an error."""
    assert ol(tmp_path, "init", "ws").returncode == PASSED
    ws = tmp_path / "ws"
    stages = [s for s in read_path(ROOT / "path.tsv") if not s.is_milestone and built(s, ROOT)]
    modules = [f[:-3].replace("/", ".") for stage in stages for f in stage.files if f.endswith(".py")]
    given = [name for name in GIVEN if (ROOT / "impl" / f"{name}.py").exists()]
    for name in given:
        assert (ws / "impl" / f"{name}.py").read_bytes() == (ROOT / "impl" / f"{name}.py").read_bytes()
    modules += [f"impl.{name}" for name in given]
    assert "impl.sampling" in modules
    lines = "\n".join(f"import {name}" for name in modules)
    subprocess.run([sys.executable, "-B", "-c", lines], cwd=ws, check=True, timeout=60)
    done = ol(ws, "check", "--all", "--json")
    assert done.returncode == NOT_PASSED
    units = {unit["id"]: unit for unit in json.loads(done.stdout)["units"]}
    assert list(units) == [stage.id for stage in stages]
    for stage in stages:
        expected = "blocked" if stage.needs else "todo"
        assert units[stage.id]["outcome"] == expected, stage.id
        outcomes = {case["outcome"] for case in units[stage.id]["cases"]}
        assert outcomes <= {"todo", "pass"}, stage.id  # a case may pass: a dataclass keeps its defaults
        assert "todo" in outcomes or stage.needs, stage.id
    assert done.stderr.count("not yours to change") == 0


@pytest.mark.parametrize("holds", [[], [".git"]])
def test_an_empty_folder_is_filled_where_it_is(tmp_path: Path, course: Path, holds: list[str]) -> None:
    """Not replaced: it may be the current folder of a shell, or a mount."""
    ws = tmp_path / "ws"
    ws.mkdir()
    for name in holds:
        (ws / name).mkdir()
    before = ws.stat().st_ino
    done = ol(ws, "init", ".", course=course)
    assert done.returncode == PASSED
    assert done.stdout.splitlines()[-1] == "next  ./ol"
    assert ws.stat().st_ino == before
    assert sorted(p.name for p in ws.iterdir()) == sorted(
        [".gitignore", "README.md", "impl", "ol", "ol.toml", *holds]
    )


def test_init_through_a_link(tmp_path: Path, course: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert ol(tmp_path, "init", "link", course=course).returncode == PASSED
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "ol.toml").is_file()


def held_file(tmp: Path) -> str:
    (tmp / "full").mkdir()
    for i in range(7):
        (tmp / "full" / f"notes{i}").write_text("mine")
    return "full"


def made_file(tmp: Path) -> str:
    (tmp / "notes").write_text("mine")
    return "notes"


def made_workspace(tmp: Path) -> str:
    (tmp / "ws").mkdir()
    (tmp / "ws" / "ol.toml").write_text('format = "1.0"\n')
    return "ws"


REFUSED: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "not empty": (held_file, ["not empty, it holds notes0, notes1", "and 2 more", "choose a new folder"]),
    "a file": (made_file, ["not a folder"]),
    "below a file": (lambda tmp: made_file(tmp) + "/ws", ["not a folder", "/notes · "]),
    "a workspace": (made_workspace, ["a workspace already", "ol restore ID"]),
    "in a workspace": (lambda tmp: made_workspace(tmp) + "/impl", ["inside another workspace"]),
    "no parent": (lambda tmp: "a/b", ["no such folder", "mkdir -p"]),
    "the repository": (lambda tmp: str(ROOT), ["folder of the course", "outside it"]),
    "the reference": (lambda tmp: str(ROOT / "impl"), ["folder of the course"]),
    "in the repository": (lambda tmp: str(ROOT / "practice" / "mine"), ["folder of the course"]),
    "in the course": (lambda tmp: str(tmp / "toy" / "mine"), ["folder of the course"]),
    "too long": (lambda tmp: "x" * 300, ["File name too long", "choose another folder"]),
    "no writing there": (lambda tmp: "/proc/ws", ["nothing was made"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_init_refuses(tmp_path: Path, name: str) -> None:
    shutil.copytree(TOY, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    if name == "no writing there" and not Path("/proc/self").exists():
        pytest.skip("no /proc on this machine")
    prepare, words = REFUSED[name]
    folder = prepare(tmp_path)
    before = tree_of(tmp_path)
    refused(ol(tmp_path, "init", folder, course=tmp_path / "toy"), USAGE, *words)
    assert tree_of(tmp_path) == before


def test_a_course_without_units_makes_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    shutil.copy(TOY / "path.tsv", tmp_path / "toy")
    refused(ol(tmp_path, "init", "ws", course=tmp_path / "toy"), OWN_FAULT, "no unit of this course is built")


def test_a_reference_that_has_no_stub_makes_no_workspace(tmp_path: Path) -> None:
    shutil.copytree(TOY, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    with (tmp_path / "toy" / "impl" / "stack.py").open("a") as file:
        file.write("\n\ndef late() -> int: return 1\n")
    refused(
        ol(tmp_path, "init", "ws", course=tmp_path / "toy"),
        OWN_FAULT,
        "impl/stack.py:",
        "late has its body on",
    )
    assert not (tmp_path / "ws").exists()


def small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_nothing(tmp_path: Path, course: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "ws").mkdir()
    done = process(tmp_path, "init", "ws", course=course, preexec_fn=small_files_only)
    refused(done, OWN_FAULT, "the disk is full, nothing was made")
    assert [p.name for p in tmp_path.iterdir()] == ["ws"] * exists
    assert not exists or not any((tmp_path / "ws").iterdir())


@pytest.mark.parametrize("exists", [False, True])
def test_ctrl_c_at_any_moment_leaves_all_or_nothing(
    tmp_path: Path, course: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = init.contents(course, read_path(course / "path.tsv"))
    target = tmp_path / "ws"
    calls, stop = 0, 0

    def interrupting(work: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == stop and not after:
                raise KeyboardInterrupt
            result = work(*args, **more)
            if calls == stop:
                raise KeyboardInterrupt
            return result

        return call

    for after in (False, True):
        with monkeypatch.context() as patch:
            for owner, name in ((Path, "write_bytes"), (Path, "mkdir"), (Path, "chmod"), (os, "rename")):
                patch.setattr(owner, name, interrupting(getattr(owner, name), after))
            for stop in range(1, 40):
                calls = -9  # what the test does itself is not interrupted
                if exists:
                    target.mkdir()
                calls = 0
                try:
                    init.make(target, files)
                    break
                except KeyboardInterrupt:
                    left = sorted(p.name for p in tmp_path.iterdir())
                    whole = target.is_dir() and len(tree_of(target)) == len(files)
                    assert whole or (left == ["ws"] * exists and not (exists and any(target.iterdir()))), stop
                shutil.rmtree(target, ignore_errors=True)
            assert stop > len(files), "every step was interrupted once"
            assert len(tree_of(target)) == len(files)
            shutil.rmtree(target)


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    """Between the check and the rename somebody else made it."""
    files = {"ol": b"#!/bin/sh\n", "ol.toml": b"", "late": b""}

    class Late(dict[str, bytes]):
        def items(self) -> Any:
            (tmp_path / "ws").mkdir()
            (tmp_path / "ws" / "mine").write_text("mine")
            return super().items()

    with pytest.raises(Exception, match="nothing was made"):
        init.make(tmp_path / "ws", Late(files))
    assert tree_of(tmp_path) == {"ws/mine": hashlib.sha256(b"mine").hexdigest()}


# -- ./ol ---------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the grader whose launcher starts this Python at once, as a ready environment does."""
    root = tmp_path / "it's a checkout"
    shutil.copytree(ROOT / "grader", root / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "spec" / "schema", root / "spec" / "schema")
    shutil.copytree(
        TOY, root, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"), dirs_exist_ok=True
    )
    launcher = root / "practice" / "bin" / "ol"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -X utf8 "{root}/grader/__main__.py" "$@"\n')
    launcher.chmod(0o755)
    return root


def start(command: Path | str, *args: str, cwd: Path) -> Done:
    env = {k: v for k, v in os.environ.items() if k[:3] != "OL_"}
    return subprocess.run(
        [command, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_dot_ol_starts_its_grader_from_anywhere(tmp_path: Path, checkout: Path) -> None:
    assert start(checkout / "practice/bin/ol", "init", "a ws", cwd=tmp_path).returncode == PASSED
    ws = tmp_path / "a ws"
    assert start("./ol", cwd=ws).stdout.splitlines()[::3] == [f"workspace  {ws}", "next       ./ol check T.1"]
    assert start("../ol", "check", cwd=ws / "impl").stdout.endswith(
        "(../ol spec T.1 says what), then ../ol check T.1\n"
    )
    # From elsewhere it means its own workspace, never the reference or another one.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ol.toml").write_text('format = "1.0"\n')
    (tmp_path / "link").symlink_to(ws)
    for cwd, folder in ((checkout, ws), (tmp_path / "other", tmp_path / "link")):
        assert start(folder / "ol", cwd=cwd).stdout.splitlines()[0] == f"workspace  {ws}"
    shell = subprocess.run(["/bin/sh", "ol"], cwd=ws, capture_output=True, text=True, timeout=60, check=False)
    assert shell.stdout.splitlines()[::3] == [f"workspace  {ws}", "next       ./ol check T.1"]
    done = start("./ol", "check", "T.9", cwd=ws)
    assert (
        done.stderr
        == "error: no stage is called 'T.9' · path.tsv · did you mean T.2 (scale)? './ol learn' lists all\n"
    )


def test_a_moved_workspace_works_and_a_moved_grader_is_said(tmp_path: Path, checkout: Path) -> None:
    start(checkout / "practice/bin/ol", "init", "ws", cwd=tmp_path)
    ws = tmp_path / "moved"
    (tmp_path / "ws").rename(ws)
    assert start("./ol", cwd=ws).stdout.startswith(f"workspace  {ws}\n")
    new = tmp_path / "new"
    checkout.rename(new)
    done = start("./ol", cwd=ws)
    gone = f"{checkout}/practice/bin/ol"
    refused(done, MISSING, "not there any more", gone, "line 3 of ./ol")
    lines = (ws / "ol").read_text().split("\n")
    assert lines[2].startswith("grader=")
    lines[2] = f"grader={new}/practice/bin/ol"
    (ws / "ol").write_text("\n".join(lines))
    (new / "practice/bin/ol").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -I "{new}/grader/__main__.py" "$@"\n'
    )
    assert start("./ol", cwd=ws).returncode == PASSED


def test_a_compiled_file_that_is_cut_short(tmp_path: Path, checkout: Path) -> None:
    """Python leaves one on a full disk, and fails at every start thereafter."""
    launcher = checkout / "practice/bin/ol"
    assert start(launcher, "learn", cwd=tmp_path).returncode == PASSED
    [cached] = (checkout / "grader" / "__pycache__").glob("learn.*.pyc")
    cached.write_bytes(cached.read_bytes()[:600])
    done = start(launcher, "learn", cwd=tmp_path)
    done.stderr = done.stderr.lstrip("\n")  # click puts one there, as after a ^C
    refused(done, OWN_FAULT, "is cut short", f"{checkout}/grader/__pycache__")
    shutil.rmtree(checkout / "grader" / "__pycache__")
    assert start(launcher, "learn", cwd=tmp_path).returncode == PASSED


def test_dot_ol_without_its_ol_toml_never_grades_the_reference(tmp_path: Path, checkout: Path) -> None:
    start(checkout / "practice/bin/ol", "init", "ws", cwd=tmp_path)
    (tmp_path / "ws" / "ol.toml").unlink()
    refused(start("./ol", "check", cwd=tmp_path / "ws"), USAGE, "no such file", "ol.toml", 'format = "1.0"')


def test_a_workspace_of_another_course_keeps_to_it(ws: Path, course: Path) -> None:
    assert f"OL_COURSE={course} && export OL_COURSE\n" in (ws / "ol").read_text()
    assert f"grader={ROOT}/practice/bin/ol\n" in (ws / "ol").read_text()


def test_the_page_names_commands_that_exist(ws: Path) -> None:
    known = ol(ws, "--help").stdout
    for page in (ws / "README.md", ROOT / "practice" / "README.md"):
        verbs = set(re.findall(r"\./ol ([a-z]+)", page.read_text()))
        assert {"check", "spec", "hint", "learn", "restore"} <= verbs, page
        assert all(f"  {verb} " in known for verb in verbs), (page, verbs)


# -- restore ------------------------------------------------------------------------------------------


def test_restore_keeps_every_earlier_file(ws: Path, course: Path) -> None:
    file = ws / "impl" / "stack.py"
    stub = file.read_bytes()
    done = ol(ws, "restore", "T.1", course=course)
    assert done.stdout.splitlines() == ["unchanged impl/stack.py", "next      ol check T.1"]
    for number, name in enumerate(("T.1", "stack", "t.1"), start=1):
        file.write_text(f"mine = {number}\n")
        done = ol(ws, "restore", name, course=course)
        assert (done.returncode, done.stderr) == (PASSED, "")
        assert (
            done.stdout.splitlines()[0] == f"restored  impl/stack.py    yours is impl/stack.py.{number}.bak"
        )
        assert file.read_bytes() == stub
    kept = [(ws / "impl" / f"stack.py.{n}.bak").read_text() for n in (1, 2, 3)]
    assert kept == ["mine = 1\n", "mine = 2\n", "mine = 3\n"]
    assert set(package_files(ws / "impl", "impl")) == {"impl", "impl.stack"}, "a kept copy is never a module"
    assert {p.name for p in (ws / "impl").iterdir()} == {
        "__init__.py",
        "stack.py",
        *(f"stack.py.{n}.bak" for n in (1, 2, 3)),
    }


def test_restore_puts_back_what_is_gone(ws: Path, course: Path) -> None:
    before = tree_of(ws)
    shutil.rmtree(ws / "impl")
    done = ol(ws, "check", "T.1", course=course)
    assert done.returncode == NOT_PASSED
    assert done.stdout.splitlines()[-1].endswith("next: ol restore T.1 puts the stub there")
    done = ol(ws, "restore", "T.1", "--json", course=course)
    rows = json.loads(done.stdout)["files"]
    assert rows == [{"file": f"impl/{n}.py", "did": "made", "kept": None} for n in ("stack", "__init__")]
    assert {k: v for k, v in tree_of(ws).items() if k[:3] != ".ol"} == before


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A course whose unit has two files, with given modules, and a workspace of it."""
    course = tmp_path / "pair"
    shutil.copytree(TOY, course, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    text = (course / "path.tsv").read_text()
    (course / "path.tsv").write_text(text.replace("impl/stack.py", "impl/stack.py impl/heap.py"))
    (course / "impl" / "heap.py").write_text('def push() -> int:\n    """Push."""\n    return 1\n')
    for name in ("rng", "categorical"):
        shutil.copy(ROOT / "impl" / f"{name}.py", course / "impl")
    init.make(tmp_path / "ws", init.contents(course, read_path(course / "path.tsv")))
    return course, tmp_path / "ws"


def test_restore_takes_every_file_of_the_unit(pair: tuple[Path, Path]) -> None:
    course, ws = pair
    before = tree_of(ws)
    for name in ("stack", "heap"):
        (ws / "impl" / f"{name}.py").write_text("mine = 1\n")
    done = ol(ws, "restore", "T.1", course=course)
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [
        ["restored", f"impl/{n}.py"] for n in ("stack", "heap")
    ]
    after = tree_of(ws)
    assert {name: after[name] for name in before} == before


def test_a_given_module_is_restored_by_its_name(pair: tuple[Path, Path]) -> None:
    course, ws = pair
    (ws / "impl" / "rng.py").write_text("mine = 1\n")
    (ws / "impl" / "categorical.py").unlink()
    done = ol(ws, "restore", "rng", course=course)
    assert done.stdout.splitlines() == [
        "restored  impl/rng.py    yours is impl/rng.py.1.bak", "made      impl/categorical.py",
        "next      ol",
    ]  # fmt: skip
    assert (ws / "impl" / "rng.py").read_bytes() == (ROOT / "impl" / "rng.py").read_bytes()


def test_a_full_disk_changes_nothing(pair: tuple[Path, Path]) -> None:
    course, ws = pair
    (ws / "impl" / "stack.py").write_text("mine = 1\n")
    (ws / "impl" / "heap.py").write_text("mine = 2\n" * 200)
    before = tree_of(ws)
    done = process(ws, "restore", "T.1", course=course, preexec_fn=small_files_only)
    refused(done, OWN_FAULT, "the disk is full, nothing was changed")
    assert tree_of(ws) == before


def test_ctrl_c_changes_nothing(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    course, ws = pair
    stage = read_path(course / "path.tsv")[0]
    for name in ("stack", "heap"):
        (ws / "impl" / f"{name}.py").write_text("mine = 1\n")
    before = tree_of(ws)
    write = Path.write_bytes

    def interrupted(self: Path, data: bytes) -> int:
        if "heap" in self.name:
            raise KeyboardInterrupt
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        init.put(ws, init.stubs(course, stage), course)
    assert tree_of(ws) == before


def test_restore_refuses_outside_a_workspace(tmp_path: Path) -> None:
    before = tree_of(ROOT / "impl")
    for cwd in (tmp_path, ROOT, ROOT / "impl"):
        refused(ol(cwd, "restore", "L8.1"), USAGE, "no workspace here", "ol init DIR")
    assert tree_of(ROOT / "impl") == before


def test_restore_refuses_a_link_into_the_reference(ws: Path, course: Path) -> None:
    shutil.rmtree(ws / "impl")
    (ws / "impl").symlink_to(course / "impl")
    before = tree_of(course)
    refused(ol(ws, "restore", "T.1", course=course), USAGE, "leads into the folder of the course")
    assert tree_of(course) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["T.2"], ["T.2 is not built yet", "ol learn"]),
        (["stak"], ["no stage is called 'stak'", "T.1 (stack)"]),
        ([], ["missing argument 'ID'"]),
    ],
)
def test_restore_refuses_what_is_no_unit(ws: Path, course: Path, args: list[str], words: list[str]) -> None:
    refused(ol(ws, "restore", *args, course=course), USAGE, *words)


@pytest.mark.parametrize("kind", ["folder", "pipe", "impl"])
def test_restore_refuses_what_is_no_file(ws: Path, course: Path, kind: str) -> None:
    file = ws / "impl" / "stack.py"
    if kind == "impl":
        shutil.rmtree(ws / "impl")
        (ws / "impl").write_text("")
    else:
        file.unlink()
        file.mkdir() if kind == "folder" else os.mkfifo(file)
    words = [f"{ws}/impl · ", "not a folder"] if kind == "impl" else [str(file), "not a file"]
    start = process if kind == "pipe" else ol  # reading a pipe would never end
    refused(start(ws, "restore", "T.1", course=course), USAGE, *words)


# -- another layout -----------------------------------------------------------------------------------

CONFIG = 'format = "1.0"\n[map]\n"impl.stack" = "tinyllm.infer.sample"\n'


@pytest.fixture
def mapped(tmp_path: Path, course: Path) -> Path:
    """A package of another layout; its module imports another of its own."""
    top = tmp_path / "mine" / "tinyllm"
    (top / "infer").mkdir(parents=True)
    (top / "__init__.py").write_text("")
    (top / "infer" / "__init__.py").write_text("")
    source = (course / "impl" / "stack.py").read_text()
    assert source.count("10 * (i + 1)") == 1
    source = source.replace("10 * (i + 1)", "TEN * (i + 1)").replace(
        "import numpy", "from tinyllm.const import TEN\nimport numpy"
    )
    (top / "infer" / "sample.py").write_text(source)
    (top / "const.py").write_text("TEN = 10\n")
    (tmp_path / "mine" / "ol.toml").write_text(CONFIG)
    return tmp_path / "mine"


@pytest.mark.parametrize("base", [".", "src"])
def test_a_package_of_another_layout_is_graded(mapped: Path, course: Path, base: str) -> None:
    if base == "src":
        (mapped / "src").mkdir()
        (mapped / "tinyllm").rename(mapped / "src" / "tinyllm")
    report = json.loads(ol(mapped, "check", "T.1", "--json", course=course).stdout)
    [unit] = report["units"]
    assert (report["outcome"], unit["outcome"]) == ("pass", "pass")
    files = {str(Path(name).relative_to(mapped / base)) for name in unit["files"] if "__init__" not in name}
    assert files == {"tinyllm/infer/sample.py", "tinyllm/const.py"}
    assert "unchanged" in ol(mapped, "check", "T.1", course=course).stdout
    (mapped / base / "tinyllm" / "const.py").write_text("TEN = 0\n")
    done = ol(mapped, "check", "T.1", course=course)
    assert done.returncode == NOT_PASSED
    assert "FAIL  stack/label " in done.stdout and "unchanged" not in done.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"impl.stack" = "tinyllm.infer.other"', ["leads to no file", "ol.toml, [map]"]),
        (
            '"impl.stak" = "tinyllm.infer.sample"',
            ["impl.stak is no module of this course, did you mean 'impl.stack'?"],
        ),
        ('"impl.stack" = "../secret"', ["map.impl.stack", "'../secret'", '"impl.unit" = "package.module"']),
        ('stack = "tinyllm.infer.sample"', ["'stack'", '"impl.unit" = "package.module"']),
    ],
)
def test_a_map_that_leads_nowhere(mapped: Path, course: Path, line: str, words: list[str]) -> None:
    (mapped / "ol.toml").write_text(f'format = "1.0"\n[map]\n{line}\n')
    refused(ol(mapped, "check", "T.1", course=course), USAGE, *words)


def test_a_changed_map_is_not_answered_from_the_record(mapped: Path, course: Path) -> None:
    assert ol(mapped, "check", "T.1", course=course).returncode == PASSED
    (mapped / "ol.toml").write_text('format = "1.0"\n[map]\n"impl.stack" = "tinyllm.infer.other"\n')
    refused(ol(mapped, "check", "T.1", course=course), USAGE, "leads to no file")


def test_restore_refuses_a_mapped_unit(mapped: Path, course: Path) -> None:
    before = tree_of(mapped)
    refused(ol(mapped, "restore", "T.1", course=course), USAGE, "tinyllm.infer.sample answers for impl.stack")
    assert tree_of(mapped) == before
