"""The command as a user meets it, in processes of its own: exit codes, messages, JSON, freshness, hints.

Exit codes are categories (grader/errors.py); every refusal is one line, `error: what · where · fix`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pty
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from grader import cli, schema
from grader.errors import INTERRUPTED, NOT_PASSED, OWN_FAULT, PASSED, USAGE

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy"
OL = [sys.executable, "-I", "-B", "-X", "utf8", str(ROOT / "grader" / "__main__.py")]
Done = subprocess.CompletedProcess[str]
GATE_ROW = "\t".join([
    "toy", "3", "MS-T", "toy_gate", "-", "milestone", "T.1", "The toy gate", "spec/toy_gate.md",
    "The MS-T gate passes for your system.", "practice/bin/ol gate MS-T",
]) + "\n"  # fmt: skip
GATE = 'format: "1.0"\ngates:\n  MS-T: {title: The toy works, requires: [T.1]}\n'


def environment(course: Path, **more: str) -> dict[str, str]:
    """The caller's, less what would change an answer."""
    dropped = ("CI", "NO_COLOR", "COLUMNS", "TERM")
    env = {k: v for k, v in os.environ.items() if k[:3] != "OL_" and k not in dropped}
    return env | {"OL_COURSE": str(course), **more}


def said(cwd: Path, course: Path, *args: str) -> Done:
    """The same in this process, where only the words are at stake: it starts a dozen times faster."""
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


def ol(cwd: Path, course: Path, *args: str, env: dict[str, str] | None = None, **more: Any) -> Done:
    whole = environment(course, **(env or {}))
    return subprocess.run(
        [*OL, *args], cwd=cwd, env=whole, capture_output=True, text=True, timeout=120, check=False, **more
    )


def refused(done: Done, code: int, *words: str) -> None:
    """One line on stderr with what, where and how to go on; nothing on stdout."""
    assert (done.returncode, done.stdout) == (code, ""), done
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and line.count(" · ") >= 2, line
    for word in words:
        assert word in line, line


def copy_of(course: Path, folder: Path) -> Path:
    shutil.copytree(course, folder, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    return folder


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy course with a gate; no test changes it."""
    folder = copy_of(TOY, tmp_path_factory.mktemp("cli") / "toy")
    with (folder / "path.tsv").open("a") as file:
        file.write(GATE_ROW)
    (folder / "spec" / "toy_gate.md").write_text("# toy_gate\n")
    (folder / "spec" / "gates.yaml").write_text(GATE)
    return folder


@pytest.fixture
def own(tmp_path: Path, course: Path) -> Path:
    """A copy of the course that a test may spoil."""
    return copy_of(course, tmp_path / "own")


@pytest.fixture
def ws(tmp_path: Path, course: Path) -> Path:
    """A workspace in which everything passes."""
    folder = tmp_path / "ws"
    (folder / "impl").mkdir(parents=True)
    for name in ("__init__.py", "stack.py"):
        shutil.copy(course / "impl" / name, folder / "impl")
    (folder / "ol.toml").write_text('format = "1.0"\n')
    return folder


def spoil(ws: Path, old: str, new: str) -> None:
    file = ws / "impl" / "stack.py"
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))


def wrong_label(ws: Path) -> None:
    """One id twice: a mistake that three quick cases see."""
    spoil(ws, "10 * (i + 1)", "10 * (i // 2)")


def state(ws: Path, course: Path) -> str:
    stages = json.loads(said(ws, course, "learn", "--json").stdout)["stages"]
    return str(stages[0]["state"])


# -- 0 and 1 ------------------------------------------------------------------------------------------


def test_a_pass_and_what_comes_next(ws: Path, course: Path) -> None:
    done = ol(ws, course, "check", "t.1")
    assert (done.returncode, done.stderr) == (PASSED, "")
    assert re.fullmatch(r"pass  T\.1 stack  \d+ cases, \d+\.\d s    next: ol gate MS-T\n", done.stdout)
    done = said(ws, course, "check")
    assert (done.returncode, done.stdout) == (
        PASSED,
        "pass  every unit that is built    next: ol gate MS-T\n",
    )
    done = said(ws, course, "gate", "ms-t")
    assert done.returncode == PASSED
    assert done.stdout.splitlines()[0] == "PASSED  MS-T  The toy works"
    assert done.stdout.splitlines()[-1] == "next  ol learn"
    shown = said(ws, course).stdout
    assert shown.splitlines() == [
        f"workspace  {ws}",
        "progress   1 of 1 units pass: T.1",
        "next       ol gate MS-T",
    ]


def test_a_failure_says_what_why_and_how_to_run_it_again(ws: Path, course: Path) -> None:
    wrong_label(ws)
    done = ol(ws, course, "check", env={"OL_COMMAND": "./ol"})
    assert (done.returncode, done.stderr) == (NOT_PASSED, "")
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith("FAIL  stack/label  ")
    for line in (
        "      step   label -> [1]   expected 1   got 0   not equal up to one renaming",
        "      rule   R5: `label(n)` MUST return n distinct ids, which ones is free.   (spec/stack.md)",
        "      again  ./ol check T.1 --case stack/label",
    ):
        assert line + "\n" in rest
    assert 'looks like   "label gives one id twice"' in rest
    # No case of it has a hint, so the law is what helps.
    assert rest.splitlines()[-1].endswith("next: ./ol spec T.1, then ./ol check T.1")
    again = ol(ws, course, "check", "T.1", "--case", "stack/label")
    assert again.returncode == NOT_PASSED and again.stdout.count("FAIL  ") == 1


def missing(ws: Path) -> None:
    (ws / "impl" / "stack.py").unlink()


def half_written(ws: Path) -> None:
    with (ws / "impl" / "stack.py").open("a") as file:
        file.write("\n\ndef half(\n")


def not_utf8(ws: Path) -> None:
    file = ws / "impl" / "stack.py"
    file.write_bytes(b"# one\n# caf\xe9\n" + file.read_bytes())


def imports_torch(ws: Path) -> None:
    spoil(ws, "import numpy as np", "import numpy as np\nimport torch")


def imports_noisily(ws: Path) -> None:
    spoil(
        ws,
        "import numpy as np",
        "import numpy as np\nprint('pass  T.1 stack')\nraise ValueError('a\\nerror: b')",
    )


def empty(ws: Path) -> None:
    (ws / "impl" / "stack.py").write_text("")


UNFIT: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "missing": (
        missing,
        ["RAISED  T.1 stack  impl/stack.py: no such file"],
        "next: ol restore T.1 puts the stub there",
    ),
    "half written": (
        half_written,
        ["RAISED  T.1 stack  stack.py line ", "'(' was never closed"],
        "mend it, then ol check T.1",
    ),
    "not UTF-8": (
        not_utf8,
        ["RAISED  T.1 stack  stack.py line 2: not UTF-8; save the file as UTF-8."],
        "mend it",
    ),
    "not importable": (
        imports_torch,
        ["No module named 'torch' (line 4).", "Only numpy and the standard"],
        "mend it",
    ),
    "noisy": (imports_noisily, ["ValueError: a\n      | error: b", "      | pass  T.1 stack\n"], "mend it"),
    "empty": (empty, ["has no function or class 'Stack'"], "then ol check T.1"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_code_that_cannot_run_is_the_learners_failure(ws: Path, course: Path, name: str) -> None:
    damage, words, last = UNFIT[name]
    damage(ws)
    done = said(ws, course, "check", "T.1")
    assert (done.returncode, done.stderr) == (NOT_PASSED, "")
    for word in words:
        assert word in done.stdout, done.stdout
    assert last in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout
    ours = [line for line in done.stdout.splitlines() if not line.startswith("      ")]
    assert not any(line.startswith(("pass", "error")) for line in ours), (
        "printed text cannot pose as a verdict"
    )


def test_what_is_not_written_is_todo_and_says_where(ws: Path, course: Path) -> None:
    spoil(ws, "    return [10 * (i + 1) for i in range(n)]", "    raise NotImplementedError")
    done = said(ws, course, "check", "T.1")
    assert done.returncode == NOT_PASSED
    line = (ws / "impl" / "stack.py").read_text().split("raise NotImplementedError")[0].count("\n") + 1
    head, last, follow = done.stdout.splitlines()
    assert head == f"      to write  stack.py, line {line}"
    assert re.fullmatch(r"todo  T\.1 stack  not written yet: \d+ of \d+ cases, \d+\.\d s", last)
    assert follow == "next  write impl/stack.py (ol spec T.1 says what), then ol check T.1"


def test_a_copied_workspace_is_graded_anew(ws: Path, course: Path, tmp_path: Path) -> None:
    assert said(ws, course, "check", "T.1").returncode == PASSED
    copy = tmp_path / "copy"
    shutil.copytree(ws, copy)  # its record names the files of the first one
    wrong_label(copy)
    assert state(copy, course) == "changed"
    assert said(copy, course, "check", "T.1").returncode == NOT_PASSED


def test_a_unit_that_is_not_built_is_no_pass_and_no_error(ws: Path, course: Path) -> None:
    done = said(ws, course, "check", "T.2")
    assert (done.returncode, done.stderr) == (NOT_PASSED, "")
    assert done.stdout.startswith("not built  T.2 scale  ")


def test_a_gate_that_does_not_pass(ws: Path, course: Path) -> None:
    wrong_label(ws)
    done = said(ws, course, "gate", "MS-T")
    assert done.returncode == NOT_PASSED
    assert done.stdout.splitlines()[0] == "NOT PASSED  MS-T  The toy works"
    assert "  without a pass: T.1\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "next  ol spec T.1, then ol check T.1"


def test_a_step_that_does_not_exist_yet_is_no_pass(ws: Path, own: Path) -> None:
    steps = "[{id: speed, title: fast, gate: twice as fast, cases: toy_gate/speed.yaml}]"
    (own / "spec" / "gates.yaml").write_text(GATE.replace("}", f", steps: {steps}}}"))
    done = said(ws, own, "gate", "MS-T")
    assert done.returncode == NOT_PASSED
    assert (
        "not built    step     fast: twice as fast" in done.stdout and "without a pass: speed" in done.stdout
    )


STEP_LAW = """
import numpy as np


def near(given, got, least):
    value = got / 6
    return {"measured": {"share": value}, "broken": None if value >= least else f"below {least}"}


def three(choose):
    return np.array([1.0, 2.0, 3.0])


def expect(case):
    return {"return": 6.0}
"""
STEP_CASES = """
format: "1.0"
unit: toy_gate
title: The whole toy
oracles:
  hands: {kind: independent}
cases:
- id: toy_gate/sum
  rule: [R1]
  oracle: [hands]
  call: stack.total
  property: {given: {xs: {draw: three}}, holds: [{law: near, with: {least: 1}}], runs: 1}
"""


@pytest.fixture
def stepped(own: Path) -> Path:
    """A course whose gate has a step with a measure."""
    steps = "[{id: sum, title: adds, gate: all of it, cases: toy_gate/sum.yaml}]"
    (own / "spec" / "gates.yaml").write_text(GATE.replace("}", f", steps: {steps}}}"))
    (own / "spec" / "toy_gate.md").write_text("# toy_gate\n\n## Rules\n\nR1. It MUST add.\n")
    folder = own / "fixtures" / "toy_gate"
    folder.mkdir()
    (folder / "sum.yaml").write_text(STEP_CASES)
    (folder / "oracle.py").write_text(STEP_LAW)
    return own


def test_a_step_of_a_gate_says_what_it_measured(ws: Path, stepped: Path) -> None:
    done = said(ws, stepped, "gate", "MS-T")
    assert done.returncode == PASSED, done
    assert "  pass         step     adds: all of it\n" in done.stdout
    assert "1 of 1 cases pass\n" in done.stdout
    assert "sum: share 1\n" in done.stdout
    document = json.loads(said(ws, stepped, "gate", "MS-T", "--json").stdout)
    assert document["gate"]["steps"] == [
        {"id": "sum", "title": "adds", "gate": "all of it", "level": "required", "outcome": "pass",
         "cases": 1, "passed": 1, "measured": {"sum": {"share": 1.0}}}
    ]  # fmt: skip


def test_a_step_that_fails_says_why(ws: Path, stepped: Path) -> None:
    file = stepped / "fixtures" / "toy_gate" / "sum.yaml"
    file.write_text(file.read_text().replace("least: 1", "least: 2"))
    done = said(ws, stepped, "gate", "MS-T")
    assert done.returncode == NOT_PASSED
    assert "  fail         step     adds: all of it\n" in done.stdout
    assert "0 of 1 cases pass\n" in done.stdout
    assert "below 2" in done.stdout and "without a pass: sum\n" in done.stdout
    document = json.loads(said(ws, stepped, "gate", "MS-T", "--json").stdout)
    assert document["gate"]["steps"][0]["failed"][0]["measured"] == {"share": 1.0}


def test_a_step_waits_for_the_units(ws: Path, stepped: Path) -> None:
    wrong_label(ws)
    done = said(ws, stepped, "gate", "MS-T")
    assert "  blocked      step     adds: all of it\n" in done.stdout
    assert "runs once T.1 passes\n" in done.stdout


def test_what_a_gate_measured_is_recorded_until_a_file_changes(ws: Path, stepped: Path) -> None:
    assert said(ws, stepped, "gate", "MS-T").returncode == PASSED
    (stepped / "fixtures" / "toy_gate" / "oracle.py").write_text(STEP_LAW.replace("/ 6", "/ 12"))
    assert said(ws, stepped, "gate", "MS-T").returncode == NOT_PASSED


def test_outside_a_workspace_the_reference_is_graded_and_that_is_said(tmp_path: Path, own: Path) -> None:
    done = ol(tmp_path, own, "check", "T.1")
    assert done.returncode == PASSED
    assert (
        done.stderr == "note  this was the reference, the repository's own impl: no ol.toml here or above\n"
    )
    shown = said(tmp_path, own).stdout
    assert shown.startswith("no workspace here: ") and "make one   ol init DIR\n" in shown


# -- 2: arguments, ids, ol.toml, the workspace --------------------------------------------------------

ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "unknown verb": (["chek"], ["no such command 'chek'", "did you mean 'check'", "see ol --help"]),
    "unknown option": (
        ["learn", "--jsn"],
        ["no such option '--jsn'", "did you mean '--json'", "see ol learn --help"],
    ),
    "missing argument": (["spec"], ["missing argument 'ID'", "see ol spec --help"]),
    "one too many": (["hint", "T.1", "T.2"], ["unexpected extra argument", "T.2"]),
    "bad number": (["check", "T.1", "--seed", "-1"], ["'--seed'", "-1"]),
    "unknown id": (
        ["check", "stak"],
        ["no stage is called 'stak'", "did you mean T.1 (stack)?", "'ol learn' lists all"],
    ),
    "unknown path": (["learn", "tooy"], ["no path 'tooy', did you mean 'toy'?"]),
    "unknown rule": (["spec", "T.1", "r99"], ["no rule 'r99'", "spec/stack.md", "R1, R2"]),
    "unknown gate": (["gate", "MS-X"], ["no gate 'MS-X'", "MS-T"]),
    "unknown case": (
        ["check", "T.1", "--case", "stack/lable"],
        ["'stack/lable' in T.1, did you mean 'stack/label'?", "fixtures/stack/"],
    ),
    "a gate among units": (["check", "T.1", "MS-T"], ["a gate and other ids", "ol gate MS-T"]),
    "hint for a gate": (["hint", "MS-T"], ["MS-T is a gate", "ol gate MS-T"]),
    "hint before a check": (["hint", "T.1"], ["T.1 was not checked yet", "ol check T.1 first"]),
    "law of what is not built": (["spec", "T.2"], ["T.2 is not built yet", "ol learn lists what is built"]),
    "no such tree": (["check", "T.1", "--impl", "nowhere"], ["no such folder", "nowhere", "--impl names"]),
    "a tree without impl": (["check", "T.1", "--impl", "impl/__pycache__"], ["no such folder"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(ws: Path, course: Path, name: str) -> None:
    args, words = ARGUMENTS[name]
    start = ol if name == "unknown id" else said  # the worker, just started, must not be heard either
    refused(start(ws, course, *args), USAGE, *words)


CONFIGS: dict[str, tuple[bytes, list[str]]] = {
    "not TOML": (b'format = "1.0\n', ["not TOML: ", "line 1", "mend that line"]),
    "not UTF-8": (b'format = "1.0" # caf\xe9\n', ["not UTF-8"]),
    "no format": (b'path = "toy"\n', ["missing key 'format'", 'it needs format = "1.0"']),
    "newer": (b'format = "2.0"\n', ["format 2.0 is newer", "update the grader"]),
    "not a version": (b'format = "one"\n', ["format", "'one'"]),
    "unknown key": (
        b'format = "1.0"\nmapp = 1\n',
        ["unknown key 'mapp', did you mean 'map'?", "mend that line"],
    ),
    "wrong type": (b'format = "1.0"\npath = 3\n', ["path: 3 is not a string"]),
    "unknown path": (b'format = "1.0"\npath = "tooy"\n', ["no path 'tooy'", "ol.toml", "there is toy"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_ol_toml(ws: Path, course: Path, name: str) -> None:
    content, words = CONFIGS[name]
    (ws / "ol.toml").write_bytes(content)
    refused(said(ws / "impl", course, "learn"), USAGE, "ol.toml", *words)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_ol_toml_that_is_no_file(ws: Path, course: Path, kind: str) -> None:
    """Never taken for `no workspace`: that would grade the reference."""
    file = ws / "ol.toml"
    file.unlink()
    {"folder": file.mkdir, "pipe": lambda: os.mkfifo(file), "link": lambda: file.symlink_to("gone")}[kind]()
    refused(
        (ol if kind == "pipe" else said)(ws, course),
        USAGE,
        "ol.toml",
        'a workspace needs one that says format = "1.0"',
    )


@pytest.mark.parametrize("kind", ["folder", "pipe", "impl"])
def test_a_workspace_that_cannot_be_read(ws: Path, course: Path, kind: str) -> None:
    """Permissions do not bite root, so: something else where a file or a folder is expected."""
    file = ws / "impl" / "stack.py"
    if kind == "impl":
        shutil.rmtree(ws / "impl")
        (ws / "impl").write_text("")
    else:
        file.unlink()
        file.mkdir() if kind == "folder" else os.mkfifo(file)
    words = ["not a folder", f"{ws}/impl · "] if kind == "impl" else ["not a file", str(file)]
    refused((ol if kind == "pipe" else said)(ws, course, "check", "T.1"), USAGE, *words, "ol restore ID")


def test_a_file_that_became_a_pipe_is_not_waited_for(ws: Path, course: Path) -> None:
    """Freshness reads every file that a verdict rests on."""
    assert said(ws, course, "check", "T.1").returncode == PASSED
    (ws / "impl" / "stack.py").unlink()
    os.mkfifo(ws / "impl" / "stack.py")
    assert '"state": "changed"' in ol(ws, course, "learn", "--json").stdout
    refused(ol(ws, course, "check", "T.1"), USAGE, "not a file")


def test_a_course_that_is_not_there(tmp_path: Path) -> None:
    refused(ol(tmp_path, tmp_path), USAGE, "no path.tsv there", "OL_COURSE names the folder of a course")


def slow_label(ws: Path, mark: Path) -> None:
    """An endless case that shows, by a growing file, that it runs."""
    spoil(ws, "    return [10 * (i + 1) for i in range(n)]", f"""\
    import time
    with open({str(mark)!r}, "a") as file:
        while True:
            file.write("x")
            file.flush()
            time.sleep(0.01)""")  # fmt: skip


def wait_for(mark: Path) -> None:
    until = time.monotonic() + 30
    while not mark.exists() or not mark.stat().st_size:
        assert time.monotonic() < until, "the case did not start"
        time.sleep(0.02)


def grows(mark: Path) -> bool:
    size = mark.stat().st_size
    time.sleep(0.15)
    return mark.stat().st_size != size


@contextlib.contextmanager
def running(ws: Path, course: Path, mark: Path) -> Iterator[subprocess.Popen[str]]:
    """`ol check` in the middle of an endless case, in a process group of its own."""
    slow_label(ws, mark)
    command = [*OL, "check", "T.1", "--case", "stack/label"]
    process = subprocess.Popen(
        command, cwd=ws, env=environment(course), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(mark)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_one_grader_at_a_time_and_ctrl_c(ws: Path, course: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with running(ws, course, mark) as first:
        second = said(ws, course, "check", "T.1")
        refused(second, USAGE, f"another ol is grading here (process {first.pid})", str(ws))
        assert said(ws, course).returncode == PASSED, "looking is no grading"
        began = time.monotonic()
        os.killpg(first.pid, signal.SIGINT)
        out, err = first.communicate(timeout=20)
        assert time.monotonic() - began < 2.5, "it does not wait for the case's deadline"
    assert (first.returncode, out, err.strip()) == (INTERRUPTED, "", "interrupted")
    assert not grows(mark), "no process is left"
    assert state(ws, course) == "new"
    # The lock went with its holder, and the database is sound.
    done = said(ws, course, "check", "T.1", "--case", "stack/double")
    assert done.returncode == PASSED
    files = list((ws / ".ol").glob("progress.db"))
    assert all(
        sqlite3.connect(file).execute("PRAGMA integrity_check").fetchone() == ("ok",) for file in files
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_grader_leaves_no_process(ws: Path, course: Path, tmp_path: Path, number: int) -> None:
    mark = tmp_path / "mark"
    with running(ws, course, mark) as process:
        process.send_signal(number)
        process.wait(20)
        until = time.monotonic() + 10
        while grows(mark):
            assert time.monotonic() < until
    assert said(ws, course).returncode == PASSED


def test_a_stale_lock_file_is_no_lock(ws: Path, course: Path) -> None:
    (ws / ".ol").mkdir()
    (ws / ".ol" / "lock").write_text("1")
    assert said(ws, course, "check", "T.1", "--case", "stack/label").returncode == PASSED
    with (ws / ".ol" / "lock").open("a") as held:
        held.truncate(0)
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(said(ws, course, "gate", "MS-T"), USAGE, "another ol is grading here (process unknown)")


# -- 3: our own faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["check", "T.1"], []])
def test_a_broken_progress_database_is_moved_aside(ws: Path, course: Path, verb: list[str]) -> None:
    (ws / ".ol").mkdir()
    (ws / ".ol" / "progress.db").write_bytes(b"not a database, not at all" * 100)
    done = ol(ws, course, *verb)
    [aside] = (ws / ".ol").glob("progress.db.broken-*")
    refused(done, OWN_FAULT, "the progress database is broken", f"moved to {aside}", "run again")
    assert aside.read_bytes().startswith(b"not a database")
    assert said(ws, course, "check", "T.1", "--case", "stack/label").returncode == PASSED


def test_a_progress_folder_that_cannot_be_made_costs_only_the_memory(ws: Path, course: Path) -> None:
    (ws / ".ol").write_text("")
    done = said(ws, course, "check", "T.1")
    assert done.returncode == PASSED
    assert done.stderr.startswith(f"note  progress is not saved: {ws}/.ol")


def test_a_database_that_cannot_be_opened(ws: Path, course: Path) -> None:
    (ws / ".ol" / "progress.db").mkdir(parents=True)
    refused(said(ws, course), OWN_FAULT, "cannot use the progress database", str(ws / ".ol" / "progress.db"))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "ol-test", str(folder)]
    if (
        os.geteuid() != 0
        or not shutil.which("mount")
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs root and the right to mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(tiny: Path, ws: Path, course: Path) -> None:
    shutil.copytree(ws, tiny, dirs_exist_ok=True)
    fill = tiny / "fill"
    with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    for args in (["check", "T.1"], ["init", str(tiny / "inner")]):
        if args[0] == "init":
            (tiny / "ol.toml").unlink()
        refused(ol(tiny, course, *args), OWN_FAULT, "the disk is full")
        assert sorted(p.name for p in tiny.iterdir() if p.name != ".ol") == sorted(
            ["fill", "impl", *(["ol.toml"] * (args[0] == "check"))]
        )
    fill.unlink()
    shutil.copy(ws / "ol.toml", tiny)
    assert said(tiny, course, "check", "T.1").returncode == PASSED
    assert state(tiny, course) == "pass"


def test_a_file_size_limit_is_a_full_disk_for_the_database(ws: Path, course: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    done = ol(ws, course, "check", "T.1", preexec_fn=limited)
    assert (done.returncode, done.stdout) == (OWN_FAULT, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert str(ws / ".ol" / "progress.db") in done.stderr
    assert state(ws, course) == "new", "nothing half recorded"
    assert said(ws, course, "check", "T.1").returncode == PASSED


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
def test_a_full_disk_under_the_output(ws: Path, course: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*OL, "learn"],
            cwd=ws,
            env=environment(course),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == OWN_FAULT
    assert done.stderr.startswith("error: the disk is full · ") and done.stderr.count("\n") == 1


PATH_FAULTS: dict[str, tuple[str, str, list[str]]] = {
    "a field is missing": ("\tT.1\tstack\t", "\tT.1 stack\t", ["10 fields instead of 11", "path.tsv line 2"]),
    "an unknown need": ("\tbuild\tT.1\t", "\tbuild\tT.9\t", ["T.2 needs 'T.9'", "path.tsv line 3"]),
    "an unknown kind": ("\tmilestone\t", "\tmilstone\t", ["unknown kind 'milstone'", "path.tsv line 4"]),
}


@pytest.mark.parametrize("name", PATH_FAULTS)
def test_path_faults_name_the_line(ws: Path, own: Path, name: str) -> None:
    old, new, words = PATH_FAULTS[name]
    text = (own / "path.tsv").read_text()
    assert text.count(old) == 1
    (own / "path.tsv").write_text(text.replace(old, new))
    refused(said(ws, own, "learn"), OWN_FAULT, *words)


def test_half_a_unit_is_a_fault_of_the_course(ws: Path, own: Path) -> None:
    (own / "spec" / "stack.md").unlink()
    words = ["T.1 (stack) is half built, missing: spec/stack.md", "path.tsv line 2"]
    refused(said(ws, own, "check", "T.1"), OWN_FAULT, *words)


def faulty(old: str, new: str) -> Callable[[Path], tuple[str, int]]:
    def spoil_cases(own: Path) -> tuple[str, int]:
        file = own / "fixtures" / "stack" / "cases.yaml"
        text = file.read_text()
        assert old in text
        line = text[: text.index(old)].count("\n") + 1
        file.write_text(text.replace(old, new, 1))
        return "fixtures/stack/cases.yaml", line

    return spoil_cases


def spoiled_gates(own: Path) -> tuple[str, int]:
    (own / "spec" / "gates.yaml").write_text(GATE.replace("requires", "reqires"))
    return "spec/gates.yaml", 3


FIXTURE_FAULTS: dict[str, tuple[Callable[[Path], tuple[str, int]], list[str]]] = {
    "an unknown key": (
        faulty("  kills: [half-total]", "  klls: [half-total]"),
        ["unknown key 'klls', did you mean 'kills'?"],
    ),
    "not YAML": (faulty("  kills: [half-total]", "  kills: [half-total"), []),
    "a bad value": (faulty("{f64: [1.0, 2.5]}", "{f64: [1.0, x]}"), ["'x'"]),
}


@pytest.mark.parametrize("name", FIXTURE_FAULTS)
def test_fixture_faults_name_file_and_line(ws: Path, own: Path, name: str) -> None:
    damage, words = FIXTURE_FAULTS[name]
    file, line = damage(own)
    done = said(ws, own, "check", "T.1")
    assert (done.returncode, done.stdout) == (OWN_FAULT, "")
    note, error = done.stderr.splitlines()
    assert note.startswith("note  validating cases.yaml of stack")
    found = re.search(rf"{re.escape(file)}:(\d+)", error)
    assert found and abs(int(found[1]) - line) <= 3, error  # the case, or where the parser gave up
    for word in words:
        assert word in error, error


def test_gate_faults_name_file_and_line(ws: Path, own: Path) -> None:
    file, line = spoiled_gates(own)
    done = said(ws, own, "gate", "MS-T")
    assert (done.returncode, done.stdout) == (OWN_FAULT, "")
    assert (
        "unknown key 'reqires', did you mean 'requires'?" in done.stderr and f"{file}:{line}" in done.stderr
    )


# -- what goes where ----------------------------------------------------------------------------------

VERBS: dict[str, tuple[list[str], int]] = {
    "ol": ([], PASSED), "learn": (["learn"], PASSED), "check": (["check", "T.1"], NOT_PASSED),
    "check, recorded": (["check", "T.1"], NOT_PASSED), "check --all": (["check", "--all"], NOT_PASSED),
    "gate": (["gate", "MS-T"], NOT_PASSED), "hint": (["hint", "T.1"], PASSED),
    "spec": (["spec", "T.1"], PASSED),
    "spec, a rule": (["spec", "T.1", "R5"], PASSED), "init": (["init", "../new"], PASSED),
    "restore": (["restore", "T.1"], PASSED),
}  # fmt: skip


def test_json_is_exactly_one_document_in_every_verb(ws: Path, course: Path) -> None:
    """Those of `ol author` are in test_schema.py."""
    wrong_label(ws)
    for name, (args, code) in VERBS.items():
        done = (ol if name == "check" else said)(ws, course, *args, "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, document["format"]) == (code, 1), name
        assert schema.first_fault("report", document) is None, name
        assert document["command"] == (args[0] if args else "ol"), name
        assert (document["outcome"] == "pass") == (code == PASSED), name
        if args[:1] in (["check"], ["gate"]):
            assert {"versions", "fixture_sha256", "isolation"} <= document.keys(), name
            [unit] = document["units"]
            assert (unit["id"], unit["unit"], unit["outcome"]) == ("T.1", "stack", "fail")
            assert {case["id"]: case["outcome"] for case in unit["cases"]}["stack/label"] == "fail"
            assert unit["counts"]["cases"] == len(unit["cases"])
            assert unit["counts"]["fail"] == sum(case["outcome"] == "fail" for case in unit["cases"])
            assert document["next"] == "ol spec T.1, then ol check T.1"
        if args[:1] == ["gate"]:
            assert document["gate"] == {
                "id": "MS-T", "title": "The toy works", "outcome": "not passed", "steps": [],
                "missing": ["T.1"],
            }  # fmt: skip
        if name == "check, recorded":
            assert unit["recorded"] is True
    for args in (
        ["check", "stak"],
        ["spec", "T.1", "R99"],
        ["init", "../new"],
        ["restore", "stak"],
        ["learn", "no"],
    ):
        refused(said(ws, course, *args, "--json"), USAGE)


def test_a_reader_that_goes_away(ws: Path, course: Path) -> None:
    for args, code in ((["learn"], PASSED), (["check", "T.1"], NOT_PASSED)):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*OL, *args],
            cwd=ws,
            env=environment(course),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (code, ""), "a verdict that nobody could read is no pass"


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_descriptors(ws: Path, course: Path, closed: int) -> None:
    """What opens a file first must not become stdout."""
    command = " ".join(f"'{part}'" for part in OL)
    for args, code in (("check T.1 --case stack/label", PASSED), ("check stak", USAGE)):
        shell = ["/bin/sh", "-c", f"{command} {args} {closed}>&-"]
        done = subprocess.run(
            shell, cwd=ws, env=environment(course), capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        if closed == 1:
            assert (
                done.stdout == ""
                and ("not recorded" if code == PASSED else "no stage is called") in done.stderr
            )
        else:
            assert done.stderr == "" and (done.stdout == "") == (code == USAGE), (
                "an error never goes to stdout"
            )


def on_a_terminal(ws: Path, course: Path, *args: str, **env: str) -> str:
    """What the command writes to a terminal of 60 columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, 0x5414 if sys.platform == "linux" else 0x80087467, b"\x32\x00\x3c\x00\x00\x00\x00\x00")
    whole = environment(course, **{"TERM": "xterm", **env})
    process = subprocess.Popen([*OL, *args], cwd=ws, env=whole, stdout=side, stderr=side)
    os.close(side)
    text = b""
    with contextlib.suppress(OSError):  # Linux: the other side is closed
        while chunk := os.read(main, 65536):
            text += chunk
    process.wait()
    os.close(main)
    return text.decode().replace("\r\n", "\n")


def test_colour_is_for_terminals_that_want_it(ws: Path, course: Path) -> None:
    said(ws, course, "check", "T.1")
    assert "\x1b[32mpass" in on_a_terminal(ws, course, "learn")
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = on_a_terminal(ws, course, "learn", **env)
        assert "\x1b" not in shown and " pass " in shown
    assert "\x1b" not in said(ws, course, "learn").stdout


def test_lines_fit_the_terminal(ws: Path, course: Path) -> None:
    shown = on_a_terminal(ws, course, "spec", "T.1", "R7", NO_COLOR="1").splitlines()
    assert len(shown) > 1 and all(len(line) <= 60 for line in shown)
    assert all(line.startswith("    ") for line in shown[1:])
    rows = on_a_terminal(ws, course, "learn", NO_COLOR="1").splitlines()
    assert all(len(line) <= 60 + 15 for line in rows), "a title keeps 20 characters"
    assert len(said(ws, course, "spec", "T.1", "R7").stdout.splitlines()) == 1, "in a pipe lines stay whole"


# -- freshness ----------------------------------------------------------------------------------------


def graded(ws: Path, course: Path, *more: str) -> bool:
    """Whether a check ran the cases, rather than answering from the record."""
    done = said(ws, course, "check", "T.1", *more)
    assert done.returncode == PASSED
    assert ("unchanged since it was graded" in done.stdout) != bool(re.search(r"\d s ", done.stdout))
    return "unchanged since it was graded" not in done.stdout


def test_unchanged_work_is_answered_from_the_record(ws: Path, own: Path) -> None:
    file = ws / "impl" / "stack.py"
    assert state(ws, own) == "new"
    assert graded(ws, own)
    assert not graded(ws, own)
    os.utime(file, (time.time() + 9, time.time() + 9))
    assert (state(ws, own), graded(ws, own)) == ("pass", False), "a touch changes nothing"
    file.write_text(file.read_text() + "# a remark\n")
    assert (state(ws, own), graded(ws, own)) == ("changed", True)
    # A file that the unit does not list but loads counts too.
    (ws / "impl" / "__init__.py").write_text("# changed\n")
    assert (state(ws, own), graded(ws, own)) == ("changed", True)
    (ws / "impl" / "other.py").write_text("# never loaded\n")
    assert (state(ws, own), graded(ws, own)) == ("pass", False)
    errors = own / "fixtures" / "stack" / "errors.yaml"
    errors.write_text(errors.read_text() + "# changed\n")
    assert (state(ws, own), graded(ws, own)) == ("changed", True)
    assert not graded(ws, own)
    assert graded(ws, own, "--fresh")


def test_a_changed_file_is_never_shown_as_passed(ws: Path, course: Path) -> None:
    assert graded(ws, course)
    wrong_label(ws)
    shown = said(ws, course).stdout
    assert "progress   0 of 1 units pass\n" in shown and "next       ol check T.1\n" in shown
    learn = said(ws, course, "learn").stdout
    assert re.search(r"^ +1  T\.1 +build +changed +A bounded stack", learn, re.MULTILINE)
    assert re.search(r"^ +2  T\.2 +build +- ", learn, re.MULTILINE)
    assert re.search(r"^ +3  MS-T +milestone +0 of 1 ", learn, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--case", "stack/label"], "only some cases were run"),
        (["--seed", "5"], "properties were drawn from another seed"),
        (["--ref-deps"], "the reference may have stood in for needed units"),
        (["--impl", "."], "--impl shows a verdict, no more"),
    ],
)
def test_a_partial_run_is_shown_and_not_recorded(ws: Path, course: Path, args: list[str], why: str) -> None:
    done = said(ws, course, "check", "T.1", *args)
    assert (done.returncode, done.stderr) == (PASSED, f"note  not recorded: {why}\n")
    assert done.stdout.splitlines()[-1].endswith("next: ol check T.1")
    assert state(ws, course) == "new"


def test_a_partial_run_does_not_undo_a_record(ws: Path, course: Path) -> None:
    assert graded(ws, course)
    digest = hashlib.sha256((ws / "impl" / "stack.py").read_bytes()).hexdigest()
    done = said(ws, course, "check", "T.1", "--case", "stack/label")
    assert done.returncode == PASSED and "  1 case, " in done.stdout, (
        "the record does not answer for one case"
    )
    assert (state(ws, course), graded(ws, course)) == ("pass", False)
    assert hashlib.sha256((ws / "impl" / "stack.py").read_bytes()).hexdigest() == digest, (
        "grading writes no code"
    )


def test_a_unit_named_twice_is_shown_once(ws: Path, course: Path) -> None:
    done = said(ws, course, "check", "T.1", "stack", "--case", "stack/label", "--case", "stack/double")
    assert done.returncode == PASSED
    assert done.stdout.count("T.1 stack") == 1 and "2 cases" in done.stdout


# -- hints --------------------------------------------------------------------------------------------


def hints(ws: Path, course: Path) -> tuple[list[str], int]:
    document = json.loads(said(ws, course, "hint", "T.1", "--json").stdout)
    return document["hints"], document["of"]


def test_one_more_hint_for_each_changed_attempt(ws: Path, own: Path) -> None:
    cases = own / "fixtures" / "stack" / "cases.yaml"
    text = cases.read_text()
    old = "- id: stack/double\n"
    assert text.count(old) == 1
    cases.write_text(text.replace(old, old + "  hints: [full]\n"))
    rungs = ["How many items may it hold?", "What must be true after push has raised?"]
    spoil(ws, "xs *= 2", "xs = xs * 2")
    done = said(ws, own, "check", "T.1")
    assert "hint: ol hint T.1" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("next: ol hint T.1, then ol check T.1")
    assert hints(ws, own) == (rungs[:1], 2)
    said(ws, own, "check", "T.1", "--fresh")
    assert hints(ws, own) == (rungs[:1], 2), "the same code again is no new attempt"
    spoil(ws, "xs = xs * 2", "xs = xs * (")
    said(ws, own, "check", "T.1")
    assert hints(ws, own) == ([], 0), "the message of a syntax error says it all"
    spoil(ws, "xs = xs * (", "xs = xs * 4")
    said(ws, own, "check", "T.1")
    assert hints(ws, own) == (rungs, 2), "a file that cannot be imported was no attempt"
    shown = said(ws, own, "hint", "T.1").stdout.splitlines()
    assert shown[1:] == [f"  {i} of 2  {rung}" for i, rung in enumerate(rungs, 1)] + ["next  ol check T.1"]


# -- the rest -----------------------------------------------------------------------------------------


def test_help_lists_every_verb_in_one_line_each(ws: Path, course: Path) -> None:
    shown = said(ws, course, "--help").stdout
    for verb in ("author", "check", "gate", "hint", "init", "learn", "restore", "selftest", "spec"):
        assert re.search(rf"^  {verb} +\S", shown, re.MULTILINE), verb
    assert "..." not in shown.partition("Commands:")[2], "a line that was cut says less than none"
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", said(ws, course, "--version").stdout)


def test_selftest_hands_its_arguments_to_pytest(ws: Path, course: Path) -> None:
    done = ol(ws, course, "selftest", "--version")
    assert done.returncode == PASSED and "pytest" in done.stdout + done.stderr
    assert ol(ws, course, "selftest", "--no-such-option").returncode == NOT_PASSED
