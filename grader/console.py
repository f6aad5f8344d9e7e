"""What goes to the terminal besides verdicts: progress bars, notes, JSON, the name that `ol` goes by."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE_S = 1.0  # what ends sooner needs no bar, and does not pay for importing rich


class Bar:
    """A progress bar on stderr for work that takes longer than a second; silent unless it is a terminal."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.rich: Any = None
        self.task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        if not sys.stderr.isatty() or time.monotonic() - self.start < PATIENCE_S:
            return
        if self.rich is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self.rich = Progress(*columns, console=Console(stderr=True), transient=True)
            self.rich.start()
            self.task = self.rich.add_task(text, total=None)
        self.rich.update(self.task, description=text, completed=done, total=total or None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.rich is not None:
            self.rich.stop()


def command() -> str:
    """How this user starts `ol`: the workspace's ./ol, the repository's practice/bin/ol, or plain ol."""
    return os.environ.get("OL_COMMAND") or "ol"


def typed(text: str) -> str:
    """A message of ours with every `ol verb` in it as this user types it."""
    return re.sub(r"(?<![\w./-])ol (?=[a-z-])", lambda _: f"{command()} ", text)


def columns() -> int:
    """The width of the terminal; 0 where stdout is none, and lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fit(line: str, hang: str = "") -> str:
    """A line broken between words at the terminal's edge, its further lines behind `hang`."""
    width = columns()
    if not width or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=hang, replace_whitespace=False, break_on_hyphens=False
    )


def note(text: str) -> None:
    """A diagnostic line; never on stdout, which may be a JSON document."""
    print(text, file=sys.stderr)


def standard_streams() -> None:
    """Open the standard descriptors that were closed: a file of ours must not become somebody's stdout."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or nowhere.open("w")  # None if it was closed
    sys.stderr = sys.stderr or nowhere.open("w")


def emit(document: Any) -> None:
    """The one JSON document of a command."""
    import json

    print(json.dumps(document, indent=1, allow_nan=False))
