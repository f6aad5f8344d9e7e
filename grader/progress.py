"""What was graded, in SQLite beside ol.toml; a kill at any moment loses at most the unit in flight.

A recorded verdict counts only while every file it rests on has the content it had: the learner's files that
were loaded, the fixtures, the judging code, and the versions of Python, NumPy and the C library; for C the
contract headers and the compiler too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from grader import __version__
from grader.errors import Missing, OwnFault, UsageError

SCHEMA = """
CREATE TABLE IF NOT EXISTS verdict (unit TEXT PRIMARY KEY, basis TEXT NOT NULL, outcome TEXT NOT NULL,
                                    report TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS attempt (unit TEXT NOT NULL, topic TEXT NOT NULL, digest TEXT NOT NULL,
                                    PRIMARY KEY (unit, topic, digest));
CREATE TABLE IF NOT EXISTS hint (unit TEXT NOT NULL, topic TEXT NOT NULL, shown INTEGER NOT NULL,
                                 PRIMARY KEY (unit, topic));
PRAGMA user_version = 1;
"""


def sha256(path: Path) -> str:
    try:
        return (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        )  # a pipe would wait
    except OSError:
        return "missing"


@cache
def versions() -> dict[str, str]:
    """What a verdict depends on besides files; NumPy's version without importing NumPy."""
    found = [
        p.name.split("-")[1].removesuffix(".dist")
        for folder in sys.path
        for p in Path(folder).glob("numpy-*.dist-info")
    ]
    libc = " ".join(platform.libc_ver()) or platform.platform()
    return {
        "python": platform.python_version(),
        "numpy": found[0] if found else "?",
        "libc": libc,
        "ol": __version__,
    }


@cache
def compiler_version() -> str:
    from grader import native

    try:
        return native.compiler().version
    except Missing:
        return "none"


@cache
def judging_code() -> str:
    """One hash over the grader's own sources."""
    folder = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *folder.glob("testkit.[ch]")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def basis(
    root: Path, files: dict[str, str], fixtures: str, names: Iterable[tuple[str, str]], native: bool
) -> dict[str, Any]:
    """Everything that a verdict rests on; `names` is the map of ol.toml, `native` says that it is of C.

    The workspace's place is a part of it: the files are named by their paths, and a copy has others.
    """
    mapped = [list(pair) for pair in names]
    built = {"compiler": compiler_version()} if native else {}
    return {
        "root": str(root), "files": files, "fixtures": fixtures, "map": mapped, "judge": judging_code(),
        "versions": versions() | built,
    }  # fmt: skip


def is_fresh(root: Path, recorded: dict[str, Any], fixtures: str, names: Iterable[tuple[str, str]]) -> bool:
    """Whether a verdict still rests on what is here now."""
    files = {path: sha256(Path(path)) for path in recorded["files"]}
    now = basis(root, files, fixtures, names, "compiler" in recorded["versions"])
    return now == recorded


class Progress:
    """The progress of one workspace. `open` for reading makes nothing; writing makes `.ol/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".ol"
        self.file = self.folder / "progress.db"
        self.note = ""
        self._db: sqlite3.Connection | None = None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One grader in a workspace at a time."""
        try:
            self.folder.mkdir(exist_ok=True)
            handle = (self.folder / "lock").open("a+")
        except OSError as error:
            self.note = f"progress is not saved: {self.folder}: {error.strerror}"
            yield
            return
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                raise UsageError(
                    f"another ol is grading here (process {handle.read().strip() or 'unknown'})",
                    str(self.root),
                    "wait for it, or stop it",
                ) from None  # fmt: skip
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    def db(self, write: bool) -> sqlite3.Connection | None:
        if self._db is None:
            if not self.file.exists() and not write:
                return None
            try:
                self.folder.mkdir(exist_ok=True)
                self._db = self.connect()
            except sqlite3.OperationalError as error:
                raise self.own_fault(error) from None
            except sqlite3.DatabaseError:
                self.move_aside()
            except OSError as error:
                self.note = f"progress is not saved: {self.folder}: {error.strerror}"
        return self._db

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.file, timeout=5, isolation_level=None)
        with contextlib.suppress(sqlite3.OperationalError):  # refused on some network filesystems
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; no wait for the disk
        if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("malformed")
        db.executescript(SCHEMA)
        return db

    def move_aside(self) -> None:
        aside = self.file.with_name(f"progress.db.broken-{int(time.time())}")
        os.replace(self.file, aside)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        raise OwnFault(
            "the progress database is broken", f"moved to {aside}", "run again: units are graded anew"
        )

    def own_fault(self, error: sqlite3.Error) -> OwnFault:
        text = str(error)
        if "full" in text:
            return OwnFault("the disk is full", str(self.file), "free some space; nothing was recorded")
        return OwnFault(
            f"cannot use the progress database: {text}",
            str(self.file),
            "check the space and the permissions there",
        )

    def execute(self, sql: str, *values: Any, write: bool = False) -> list[tuple[Any, ...]]:
        db = self.db(write)
        if db is None:
            return []
        try:
            return db.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "readonly" in str(error):
                self.note = f"progress is not saved: {self.file} is read-only"
                return []
            raise self.own_fault(error) from None
        except sqlite3.DatabaseError:
            self.close()
            self.move_aside()
            return []

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- verdicts -----------------------------------------------------------------------------------

    def recorded(self, unit: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The last verdict of a unit: what it rests on, and its report."""
        rows = self.execute("SELECT basis, report FROM verdict WHERE unit = ?", unit)
        return (json.loads(rows[0][0]), json.loads(rows[0][1])) if rows else None

    def fresh(self, unit: str, fixtures: str, names: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
        """The recorded report, if everything it rests on is unchanged."""
        found = self.recorded(unit)
        return found[1] if found is not None and is_fresh(self.root, found[0], fixtures, names) else None

    def record(self, unit: str, resting_on: dict[str, Any], report: dict[str, Any]) -> None:
        self.execute(
            "INSERT OR REPLACE INTO verdict VALUES (?, ?, ?, ?, ?)",
            unit, json.dumps(resting_on), report["outcome"], json.dumps(report), time.time(), write=True,
        )  # fmt: skip

    # -- hints --------------------------------------------------------------------------------------

    def attempt(self, unit: str, topics: list[str], digest: str) -> None:
        """A failed attempt: the same code twice is one attempt."""
        for topic in topics:
            self.execute("INSERT OR IGNORE INTO attempt VALUES (?, ?, ?)", unit, topic, digest, write=True)

    def attempts(self, unit: str, topic: str) -> int:
        rows = self.execute("SELECT count(*) FROM attempt WHERE unit = ? AND topic = ?", unit, topic)
        return int(rows[0][0]) if rows else 0

    def shown(self, unit: str, topic: str) -> int:
        rows = self.execute("SELECT shown FROM hint WHERE unit = ? AND topic = ?", unit, topic)
        return int(rows[0][0]) if rows else 0

    def show(self, unit: str, topic: str, rungs: int) -> None:
        self.execute("INSERT OR REPLACE INTO hint VALUES (?, ?, ?)", unit, topic, rungs, write=True)
