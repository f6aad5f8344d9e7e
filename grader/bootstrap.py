"""Makes `.venv` from requirements.lock when `ol` starts without a ready one; the standard library only.

It is built in place, since an environment cannot be moved. `ol-root` is written first and marks the folder
as ours; `ol-lock`, a copy of the lock, is written last: without it an environment is unfinished, made again.
All output goes to stderr: stdout belongs to the command that runs afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from grader.bootstrap_faults import MINE, child_fault, disk_fault, foreign, last_lines, no_venv
from grader.bootstrap_progress import Packages, Screen
from grader.errors import INTERRUPTED, PASSED, OlError

PATIENCE = 5.0  # seconds that pip gets to end by itself
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY, NEW_PROJECT = "ready", "pyproject.toml has changed"


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one set-up."""

    root: Path
    venv: Path
    python: Path
    lock: Path
    project: Path
    root_mark: Path
    project_mark: Path
    lock_mark: Path

    @classmethod
    def at(cls, root: Path) -> Place:
        venv = root / ".venv"
        lock, project = root / "requirements.lock", root / "pyproject.toml"
        marks = (venv / "ol-root", venv / "ol-project", venv / "ol-lock")
        return cls(root, venv, venv / "bin" / "python", lock, project, *marks)


@dataclass(frozen=True, slots=True)
class Commands:
    """The programs that a set-up runs, in order, from the project's folder."""

    venv: tuple[str, ...]
    packages: tuple[str, ...]
    project: tuple[str, ...]


def commands(place: Place) -> Commands:
    # the interpreter's versioned name: when the system's python3 moves on, the link breaks and we notice
    base = os.path.realpath(sys.executable)
    options = "--no-input --no-deps --no-user --no-color --disable-pip-version-check --progress-bar off"
    pip = (str(place.python), "-I", "-m", "pip", "install", *options.split())
    return Commands(
        venv=(base, "-I", "-m", "venv", str(place.venv)),
        packages=(*pip, "--require-hashes", "--only-binary", ":all:", "-r", place.lock.name),
        project=(*pip, "--no-build-isolation", "-e", "."),
    )


def main(root: str, args: Sequence[str]) -> int:
    """Make the environment if need be, then become `ol`; returns only if that failed."""
    place = Place.at(Path(root))
    status = attempt(place, commands(place), Screen(sys.stderr), wanted=bool(os.environ.get("OL_PYTHON")))
    if status == PASSED:
        main_py = str(place.root / "grader" / "__main__.py")
        os.execv(place.python, [str(place.python), "-I", "-X", "utf8", main_py, *args])
    return status


def attempt(place: Place, todo: Commands, screen: Screen, *, wanted: bool = False) -> int:
    """`prepare` with an exit code: every failure is one line, and however we are ended, pip ends too."""
    ends = [number for number in ENDS if signal.getsignal(number) == signal.SIG_DFL]
    for number in ends:  # an ignored one (nohup) stays ignored
        signal.signal(number, signal.default_int_handler)
    try:
        prepare(place, todo, screen, wanted=wanted)
    except KeyboardInterrupt:
        screen.line("interrupted · .venv is unfinished · the next start makes it again")
        return INTERRUPTED
    except OlError as error:
        screen.line(str(error))
        return error.exit_code
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
    return PASSED


def prepare(place: Place, todo: Commands, screen: Screen, *, wanted: bool = False) -> None:
    """Bring `.venv` up to date; `wanted` says that the running Python is the one it must have."""
    try:
        if lacking(place, wanted=wanted) == READY:
            _refresh(place)
            return
        with _alone(place, screen) as handle:
            reason = lacking(place, wanted=wanted)  # the start that we waited for may have done it
            if reason != READY:
                _make(place, todo, screen, handle, reason)
    except OSError as error:
        raise disk_fault(error, place.root) from None


def lacking(place: Place, *, wanted: bool = False) -> str:
    """READY, or why the environment has to be made; a `.venv` that is not ours is a UsageError."""
    venv = place.venv
    if venv.is_symlink() or (venv.exists() and not venv.is_dir()):
        raise foreign(venv)
    if not venv.exists() or not any(venv.iterdir()):
        return "first start"
    if not place.root_mark.is_file():
        raise foreign(venv)
    if not place.lock_mark.is_file():
        return "the last set-up did not finish"
    if place.root_mark.read_bytes() != os.fsencode(place.root) + b"\n":
        return "the folder was moved or copied"
    if not _same(place.lock_mark, place.lock):
        return "requirements.lock has changed"
    version = _version(place.python)
    if version is None or not (venv / "lib" / f"python{version}" / "site-packages").is_dir():
        return "its Python is gone or another one now"
    if wanted and version != MINE:
        return f"OL_PYTHON is Python {MINE} and this was made by {version}"
    if not _same(place.project_mark, place.project):
        return NEW_PROJECT
    return READY


def _same(copy: Path, original: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == original.read_bytes()


def _version(python: Path) -> str | None:
    """What the environment's interpreter says it is; None if it does not run."""
    ask = [str(python), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(
            ask, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _refresh(place: Place) -> None:
    """Tell the launcher, which compares times, that a touched pyproject.toml holds nothing new."""
    now = max(time.time(), place.project.stat().st_mtime)
    with contextlib.suppress(OSError):
        os.utime(place.lock_mark, (now, now))


@contextlib.contextmanager
def _alone(place: Place, screen: Screen) -> Iterator[int]:
    """Hold the set-up lock; children inherit it, so we also wait for a pip whose parent was killed."""
    handle = os.open(place.root / ".venv.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            screen.phase("waiting: another start of ol is making .venv")
            fcntl.flock(handle, fcntl.LOCK_EX)
            screen.clear()
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            screen.line("note: this file system has no locks; start ol once at a time until .venv is made")
        yield handle
    finally:
        os.close(handle)


def _make(place: Place, todo: Commands, screen: Screen, handle: int, reason: str) -> None:
    begun = time.monotonic()
    lock, project = place.lock.read_bytes(), place.project.read_bytes()

    def run(command: Sequence[str], what: str, packages: Packages | None = None) -> None:
        status, lines = _run(command, place.root, handle, packages)
        if status:
            for line in last_lines(lines):
                screen.line(f"  | {line}")
            raise child_fault(what, status, lines, place.venv)

    if reason != NEW_PROJECT:
        if find_spec("venv") is None or find_spec("ensurepip") is None:
            raise no_venv()
        screen.phase(f"{reason}: making .venv with Python {MINE}")
        _empty(place)
        run(todo.venv, "Python could not make .venv")
        packages = Packages(place.venv, screen, lock)
        screen.phase(f"installing {packages.total} packages from requirements.lock")
        run(todo.packages, "pip could not install requirements.lock", packages)
    screen.phase("installing ol itself")
    run(todo.project, "pip could not install the project itself")
    _write(place.project_mark, project)
    _write(place.lock_mark, lock)
    screen.line(f"ol is set up, {time.monotonic() - begun:.0f} s")


def _empty(place: Place) -> None:
    """Clear what is left of an environment of ours; the mark stays, so a stop half-way leaves it ours."""
    place.lock_mark.unlink(missing_ok=True)
    place.venv.mkdir(exist_ok=True)
    place.root_mark.write_bytes(os.fsencode(place.root) + b"\n")  # not by rename: that it exists is the mark
    for entry in place.venv.iterdir():
        if entry == place.root_mark:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _write(file: Path, data: bytes) -> None:
    beside = file.with_name(file.name + ".new")
    beside.write_bytes(data)
    beside.replace(file)


def _run(command: Sequence[str], cwd: Path, handle: int, packages: Packages | None) -> tuple[int, list[str]]:
    """Run one program to its end, in its own process group: Ctrl-C reaches only us, and we end the group."""
    child, text, data = None, b"", None
    try:
        with signals_later():
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(handle,),
                process_group=0,
            )
        assert child.stdout is not None
        while True:
            if select.select([child.stdout], [], [], 0.2)[0]:
                data = os.read(child.stdout.fileno(), 65536)
                before = text.rfind(b"\n") + 1
                text += data
                if packages:
                    packages.heard(text[before : text.rfind(b"\n") + 1].decode("utf-8", "replace"))
            if packages:
                packages.looked()
            if data == b"":
                return child.wait(), text.decode("utf-8", "replace").splitlines()
    except BaseException:
        if child is not None:
            _stop(child)
        raise


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Raise a KeyboardInterrupt only at the end of the block: within Popen it would lose the new child."""
    came: list[int] = []
    ours = [number for number in ENDS if signal.getsignal(number) == signal.default_int_handler]
    for number in ours:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _stop(child: subprocess.Popen[bytes]) -> None:
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave pip behind
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=PATIENCE)
            return


def _environment() -> dict[str, str]:
    """The user's environment less what leads pip elsewhere; without a home there is no place for a cache."""
    astray = re.compile(
        r"PYTHON|__PYVENV|PIP_(USER|TARGET|PREFIX|ROOT|PYTHON|CONSTRAINT|REQUIREMENT|DRY_RUN|QUIET)$"
    )
    env = {name: value for name, value in os.environ.items() if not astray.match(name)}
    if not env.get("HOME"):
        env["PIP_NO_CACHE_DIR"] = "1"
    return env
