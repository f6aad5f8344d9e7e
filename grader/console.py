"""Progress on a terminal, and nothing of it anywhere else."""

from __future__ import annotations

import sys
import time
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.rich is not None:
            self.rich.stop()


def note(text: str) -> None:
    """A diagnostic line; never on stdout, which may be a JSON document."""
    print(text, file=sys.stderr)


def emit(document: Any) -> None:
    """The one JSON document of a command."""
    import json

    print(json.dumps(document, indent=1, allow_nan=False))
