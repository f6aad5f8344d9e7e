"""The set-up of .venv, with fakes in place of venv and pip (tests/test_launcher.py has the real one)."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grader import bootstrap
from grader.bootstrap import READY, Commands, Place, attempt, commands, lacking
from grader.bootstrap_faults import MINE
from grader.bootstrap_progress import Screen
from grader.errors import INTERRUPTED, MISSING, OWN_FAULT, PASSED, USAGE

ROOT = Path(__file__).resolve().parent.parent
LOCK = r"""alpha==1.0 \
    --hash=sha256:aa
beta==2.0 \
    --hash=sha256:bb
winonly==1 ; sys_platform == 'win32' \
    --hash=sha256:cc
"""

# what stands in for venv, pip and pip again; each leaves a line in `log`
FAKE_VENV = f"""
echo venv >> log
mkdir -p .venv/bin .venv/lib/python{MINE}/site-packages
ln -sf '{sys.executable}' .venv/bin/python
"""
FAKE_PACKAGES = f"""
echo packages >> log
echo 'Ignoring winonly: markers do not match'
echo 'Collecting alpha==1.0'
echo 'Processing /somewhere/beta.whl'
echo 'Installing collected packages: alpha, beta'
mkdir .venv/lib/python{MINE}/site-packages/alpha.dist-info .venv/lib/python{MINE}/site-packages/beta.dist-info
"""
FAKE_PROJECT = "echo project >> log"


def sh(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


QUICK = Commands(sh(FAKE_VENV), sh("echo packages >> log"), sh(FAKE_PROJECT))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "a root"
    root.mkdir()
    place = Place.at(root)
    place.lock.write_text(LOCK)
    place.project.write_text("[project]\n")
    return place


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def start(place: Place, todo: Commands = QUICK, *, wanted: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    return attempt(place, todo, Screen(out), wanted=wanted), out.getvalue()


def log(place: Place) -> list[str]:
    file = place.root / "log"
    return file.read_text().split() if file.exists() else []


def clear_log(place: Place) -> None:
    (place.root / "log").unlink(missing_ok=True)


# --- the set-up ---


def test_first_start(place: Place) -> None:
    status, said = start(place, replace(QUICK, packages=sh(FAKE_PACKAGES)))
    assert status == PASSED
    assert log(place) == ["venv", "packages", "project"]
    assert said.splitlines()[:-1] == [
        f"first start: making .venv with Python {MINE}",
        "installing 3 packages from requirements.lock",
        "fetching packages: 2 of 2",
        "installing packages: 2 of 2",
        "installing ol itself",
    ]
    assert re.fullmatch(r"ol is set up, \d+ s", said.splitlines()[-1])
    assert place.lock_mark.read_bytes() == place.lock.read_bytes()
    assert place.project_mark.read_bytes() == place.project.read_bytes()
    assert place.root_mark.read_text() == f"{place.root}\n"
    assert lacking(place) == READY


def test_second_start_does_nothing(place: Place) -> None:
    start(place)
    clear_log(place)
    assert start(place) == (PASSED, "")
    assert log(place) == []


def _gone(place: Place) -> None:
    place.python.unlink()
    place.python.symlink_to("/nowhere/python3.11")


def _moved_on(place: Place) -> None:
    (place.venv / "lib" / f"python{MINE}").rename(place.venv / "lib" / "python3.10")


STALE: dict[str, tuple[Callable[[Place], object], str]] = {
    "lock": (lambda place: place.lock.write_text("gamma==1\n"), "requirements.lock has changed"),
    "unfinished": (lambda place: place.lock_mark.unlink(), "the last set-up did not finish"),
    "moved": (lambda place: place.root_mark.write_text("/elsewhere\n"), "the folder was moved or copied"),
    "mark cut off": (lambda place: place.root_mark.write_text(""), "the folder was moved or copied"),
    "python gone": (_gone, "its Python is gone or another one now"),
    "python moved on": (_moved_on, "its Python is gone or another one now"),
}


@pytest.mark.parametrize("name", STALE)
def test_stale_is_made_again_from_nothing(place: Place, name: str) -> None:
    start(place)
    clear_log(place)
    stale, reason = STALE[name]
    (place.venv / "left over").mkdir()
    (place.venv / "link").symlink_to(place.root)
    stale(place)
    status, said = start(place)
    assert status == PASSED
    assert said.startswith(f"{reason}: making .venv")
    assert log(place) == ["venv", "packages", "project"]
    assert not (place.venv / "left over").exists() and not (place.venv / "link").is_symlink()
    assert place.lock.exists(), "a link inside is removed, not followed"


def test_new_project_file_reinstalls_only_the_project(place: Place) -> None:
    start(place)
    clear_log(place)
    place.project.write_text("[project]\nname = 'x'\n")
    status, said = start(place)
    assert status == PASSED
    assert log(place) == ["project"]
    assert said.startswith("installing ol itself\n")
    assert lacking(place) == READY


def test_touched_project_file_only_moves_the_time(place: Place) -> None:
    start(place)
    clear_log(place)
    future = time.time() + 1000
    os.utime(place.project, (future, future))
    assert start(place) == (PASSED, "")
    assert log(place) == []
    assert place.lock_mark.stat().st_mtime >= place.project.stat().st_mtime


def test_wanted_python_of_another_version(place: Place) -> None:
    start(place)
    clear_log(place)
    other = "3.10"
    place.python.unlink()
    place.python.write_text(f"#!/bin/sh\necho {other}\n")
    place.python.chmod(0o755)
    (place.venv / "lib" / f"python{MINE}").rename(place.venv / "lib" / f"python{other}")
    assert start(place) == (PASSED, ""), "without OL_PYTHON what is there is good"
    status, said = start(place, wanted=True)
    assert status == PASSED
    assert said.startswith(f"OL_PYTHON is Python {MINE} and this was made by {other}: making")
    assert log(place) == ["venv", "packages", "project"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_foreign_venv_is_never_touched(place: Place, kind: str) -> None:
    precious = place.root / "precious"
    precious.mkdir()
    (precious / "work").write_text("x")
    if kind == "folder":
        precious.rename(place.venv)
    elif kind == "file":
        place.venv.write_text("x")
    else:
        place.venv.symlink_to(precious)
    status, said = start(place)
    assert status == USAGE
    assert said == (
        f"error: .venv is in the way: ol did not make it and will not touch it · {place.venv}"
        f" · mv {place.venv} {place.venv}.mine, start again\n"
    )
    assert log(place) == []
    assert kind == "file" or (place.venv / "work").read_text() == "x"


def test_an_empty_venv_folder_is_taken(place: Place) -> None:
    place.venv.mkdir()
    assert start(place)[0] == PASSED


# --- what can go wrong ---

PIP = "pip could not install requirements.lock"
PIP_FAULTS = {
    "network": (
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...)'\n"
        "ERROR: Could not find a version that satisfies the requirement alpha==1.0 (from versions: none)\n"
        "ERROR: No matching distribution found for alpha==1.0",
        MISSING,
        f"{PIP}: this looks like no network · the package index · check the connection, start again",
    ),
    "no wheel": (
        "ERROR: Could not find a version that satisfies the requirement alpha==1.0 (from versions: 0.9)\n"
        "ERROR: No matching distribution found for alpha==1.0",
        MISSING,
        f"{PIP}: no wheel of alpha==1.0 for Python {MINE} on this machine · requirements.lock"
        " · set OL_PYTHON to Python 3.11 to 3.14",
    ),
    "hashes": (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
        MISSING,
        f"{PIP}: a package is not the one that was locked · requirements.lock"
        " · do not use it; ask whoever runs the index",
    ),
    "no room": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        OWN_FAULT,
        f"{PIP}: no space left · VENV · free about 300 MB, then start again",
    ),
    "not writable": (
        "WARNING: The cache has been disabled: Permission denied\n"
        "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'",
        OWN_FAULT,
        f"{PIP}: the folder is not writable · ROOT · clone the project somewhere writable",
    ),
    "anything else": (
        "WARNING: The cache has been disabled: Permission denied\nsomething broke",
        MISSING,
        f"{PIP}: exit status 7 · VENV · its last lines are above; start again to retry",
    ),
}


@pytest.mark.parametrize("name", PIP_FAULTS)
def test_pip_fails(place: Place, name: str) -> None:
    output, code, message = PIP_FAULTS[name]
    script = f"cat <<'EOF'\nLooking in indexes: somewhere\nCollecting alpha==1.0\n{output}\nEOF\nexit 7"
    status, said = start(place, replace(QUICK, packages=sh(script)))
    assert status == code
    message = message.replace("VENV", str(place.venv)).replace("ROOT", str(place.root))
    lines = said.splitlines()
    assert lines[-1] == f"error: {message}"
    assert f"  | {output.splitlines()[-1]}" in lines, "pip's last lines are shown"
    assert "Looking in" not in said
    assert not place.lock_mark.exists()
    assert start(place)[0] == PASSED, "the next start recovers"


def test_waiting_for_the_network_is_said_once(place: Place) -> None:
    retry = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...)'"
    _, said = start(place, replace(QUICK, packages=sh(f'echo "{retry}"; echo "{retry}"')))
    assert said.count("the package index does not answer, trying again\n") == 1


def test_long_pip_lines_are_cut(place: Place) -> None:
    _, said = start(place, replace(QUICK, packages=sh(f"echo {'x' * 500}; exit 1")))
    assert f"  | {'x' * 160}\n" in said


def test_pip_is_killed(place: Place) -> None:
    status, said = start(place, replace(QUICK, packages=sh("kill -9 $$")))
    assert status == MISSING
    assert f"error: {PIP}: was ended by signal 9 · {place.venv}" in said


def test_venv_fails(place: Place) -> None:
    status, said = start(place, replace(QUICK, venv=sh("echo 'Error: refusing'; exit 1")))
    assert status == MISSING
    assert said.splitlines()[-2:] == [
        "  | Error: refusing",
        f"error: Python could not make .venv: exit status 1 · {place.venv}"
        " · its last lines are above; start again to retry",
    ]


def test_project_fails(place: Place) -> None:
    status, said = start(place, replace(QUICK, project=sh("exit 1")))
    assert status == MISSING
    assert "error: pip could not install the project itself: exit status 1" in said
    assert not place.lock_mark.exists()
    start(place)
    clear_log(place)
    place.project.write_text("[project]\nname = 'x'\n")
    assert start(place, replace(QUICK, project=sh("exit 1")))[0] == MISSING
    assert start(place)[0] == PASSED
    assert log(place) == ["project"], "what was good before is not made again"


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv(place: Place, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(bootstrap, "find_spec", lambda name: None if name == module else object())
    status, said = start(place)
    assert status == MISSING
    assert said == (
        f"error: this Python comes without venv · {os.path.realpath(sys.executable)}"
        " · Debian, Ubuntu: apt install python3-venv; or set OL_PYTHON to another Python\n"
    )
    assert log(place) == []


def test_stopped_while_clearing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was removed by then, what is left is known to be unfinished, and ours."""

    def rmtree(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(folder))

    start(place)
    place.lock.write_text(LOCK + "gamma==1\n")
    as_listed = Path.iterdir
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        patch.setattr(Path, "iterdir", lambda folder: iter(sorted(as_listed(folder))))
        status, said = start(place)
    assert status == OWN_FAULT
    assert "error: the set-up failed: Input/output error · " in said
    assert lacking(place) == "the last set-up did not finish"


def test_a_signal_while_a_child_starts_is_not_lost() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), bootstrap.signals_later():
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.01)  # where Python would run the usual handler
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is how a full disk is had")
def test_no_room_for_our_own_files(place: Place) -> None:
    status, said = start(place, replace(QUICK, project=sh("ln -s /dev/full .venv/ol-project.new")))
    assert status == OWN_FAULT
    assert (
        said.splitlines()[-1] == f"error: no space left · {place.root} · free about 300 MB, then start again"
    )
    assert start(place)[0] == PASSED


def test_folder_not_writable() -> None:
    root = Path(tempfile.mkdtemp())  # not tmp_path: whoever we become must be able to enter it
    place = Place.at(root)
    place.lock.write_text(LOCK)
    place.project.write_text("")
    root.chmod(0o555)
    root_user = os.geteuid() == 0
    try:
        if root_user:
            os.seteuid(65534)
        try:
            status, said = start(place)
        finally:
            if root_user:
                os.seteuid(0)
        assert status == OWN_FAULT
        assert said == (
            f"error: the set-up cannot write: the folder is not writable · {root}"
            " · clone the project somewhere writable\n"
        )
    finally:
        root.chmod(0o755)
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_project_file_is_missing(place: Place, name: str) -> None:
    (place.root / name).unlink()
    status, said = start(place)
    assert status == OWN_FAULT
    assert said == f"error: {name} is missing · {place.root / name} · restore it: git checkout {name}\n"


def test_another_disk_error(place: Place) -> None:
    (place.root / ".venv.lock").mkdir()
    status, said = start(place)
    assert status == OWN_FAULT
    assert said.startswith(f"error: the set-up failed: Is a directory · {place.root / '.venv.lock'}")


def test_a_file_system_without_locks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    status, said = start(place)
    assert status == PASSED
    assert said.startswith(
        "note: this file system has no locks; start ol once at a time until .venv is made\n"
    )


def test_children_get_a_clean_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, "/bad")
    monkeypatch.setenv("PIP_INDEX_URL", "/mirror")
    monkeypatch.delenv("PIP_NO_CACHE_DIR", raising=False)
    dump = replace(QUICK, packages=sh("env > env.txt"))
    monkeypatch.setenv("HOME", "")
    start(place, dump)
    seen = (place.root / "env.txt").read_text()
    assert "/bad" not in seen
    assert "PIP_INDEX_URL=/mirror\n" in seen, "a mirror stays"
    assert "PIP_NO_CACHE_DIR=1\n" in seen, "no home, no cache"
    place.lock_mark.unlink()
    monkeypatch.setenv("HOME", "/home/me")
    start(place, dump)
    assert "PIP_NO_CACHE_DIR" not in (place.root / "env.txt").read_text()


def test_real_commands(place: Place) -> None:
    real = commands(place)
    assert real.venv == (os.path.realpath(sys.executable), "-I", "-m", "venv", str(place.venv))
    assert real.packages[:4] == (str(place.python), "-I", "-m", "pip")
    assert {"--require-hashes", "--no-deps", "--disable-pip-version-check"} <= set(real.packages)
    assert real.packages[-2:] == ("-r", "requirements.lock")
    assert real.project[-3:] == ("--no-build-isolation", "-e", ".")


# --- what is shown ---


def test_a_terminal_gets_one_rewriting_line() -> None:
    out = Terminal()
    screen = Screen(out)
    screen.phase("a long first phase")
    for done in range(1, 4):
        screen.count("packages", done, 3)
    screen.line("done")
    counts = "packages: 1 of 3  \rpackages: 2 of 3\rpackages: 3 of 3"
    assert out.getvalue() == f"\ra long first phase\r{counts}\r{' ' * 16}\rdone\n"


def test_a_line_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    Screen(out).phase("x" * 50)
    assert out.getvalue() == "\r" + "x" * 19


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    Screen(out).phase("making")
    assert out.getvalue() == "making\n"


def test_a_log_gets_every_tenth_count_and_the_last() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for done in (1, 9, 12, 12, 19, 25, 99):  # steps may skip a ten, or run over
        screen.count("packages", done, 25)
    assert out.getvalue() == "packages: 12 of 25\npackages: 25 of 25\n"


# --- several starts, and starts that are ended ---

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from grader.bootstrap import Commands, Place, attempt
from grader.bootstrap_progress import Screen
sh = lambda script: ("/bin/sh", "-c", script)
sys.exit(attempt(Place.at(Path(sys.argv[2])), Commands(*map(sh, sys.argv[3:])), Screen(sys.stderr)))
"""


def spawn(place: Place, packages: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-I",
        "-c",
        DRIVER,
        str(ROOT),
        str(place.root),
        FAKE_VENV,
        packages,
        FAKE_PROJECT,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


HOLD = "echo x > begun; while [ ! -e go ]; do sleep 0.02; done"  # a pip that takes as long as the test wants


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def wait_for(file: Path) -> str:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{file} never came")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a zombie that nobody has reaped yet is dead enough
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_two_starts_do_one_set_up(place: Place) -> None:
    first = spawn(place, f"echo packages >> log; {HOLD}")
    wait_for(place.root / "begun")
    second = spawn(place, "echo never >> log")
    assert first_line(second) == "waiting: another start of ol is making .venv\n"
    (place.root / "go").touch()
    said = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (PASSED, PASSED)
    assert log(place) == ["venv", "packages", "project"]
    assert "waiting" not in said[0]
    assert said[1] == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_half_way(place: Place, number: signal.Signals) -> None:
    process = spawn(place, "echo $$ > pid; sleep 60 & wait")
    pid = int(wait_for(place.root / "pid"))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    last = "interrupted · .venv is unfinished · the next start makes it again"
    assert said.splitlines()[2:] == [last]
    assert not is_alive(pid), "pip ended too"
    status, said = start(place)
    assert status == PASSED
    assert said.startswith("the last set-up did not finish: making .venv")


def test_a_pip_that_ignores_the_signal_is_killed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(sh("trap '' TERM; echo x > begun; sleep 60"), cwd=place.root, process_group=0)
    wait_for(place.root / "begun")
    before = [(number, signal.getsignal(number)) for number in bootstrap.ENDS]
    monkeypatch.setattr(bootstrap, "PATIENCE", 0.1)
    try:
        bootstrap._stop(child)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert child.returncode == -signal.SIGKILL


def test_interrupted_while_waiting(place: Place) -> None:
    first = spawn(place, HOLD)
    wait_for(place.root / "begun")
    second = spawn(place, "echo never >> log")
    assert first_line(second).startswith("waiting")
    second.send_signal(signal.SIGINT)
    assert "interrupted" in second.communicate(timeout=60)[1]
    assert second.returncode == INTERRUPTED
    (place.root / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == PASSED, "the other start goes on"


def test_a_pip_whose_parent_was_killed_is_waited_for(place: Place) -> None:
    first = spawn(place, f"{HOLD}; echo orphan >> log")
    wait_for(place.root / "begun")
    first.kill()
    first.communicate()
    second = spawn(place, "echo packages >> log")
    assert first_line(second) == "waiting: another start of ol is making .venv\n"
    (place.root / "go").touch()
    said = second.communicate(timeout=60)[1]
    assert second.returncode == PASSED
    assert said.startswith("the last set-up did not finish: making")
    assert log(place) == ["venv", "orphan", "venv", "packages", "project"]


def test_an_ignored_hangup_stays_ignored(place: Place) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        start(place, replace(QUICK, packages=sh(f"kill -HUP {os.getpid()}")))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert lacking(place) == READY


def test_bootstrap_needs_only_the_standard_library() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import grader.bootstrap"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], check=True)
