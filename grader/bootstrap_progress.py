"""What a set-up shows while it runs. Standard library only, like grader/bootstrap.py."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TextIO


class Screen:
    """Progress: one line that is rewritten on a terminal, plain lines elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""
        self._counted = ("", 0)

    def phase(self, text: str) -> None:
        if self._live:
            self._rewrite(text)
        else:
            print(text, file=self._out, flush=True)

    def count(self, text: str, done: int, total: int) -> None:
        """On a terminal every count; elsewhere every tenth and the last, which keeps a log short."""
        done = min(done, total)
        last = self._counted[1] if self._counted[0] == text else 0
        self._counted = (text, done)
        if self._live:
            self._rewrite(f"{text}: {done} of {total}")
        elif done > last and (done == total or done // 10 > last // 10):
            print(f"{text}: {done} of {total}", file=self._out, flush=True)

    def line(self, text: str) -> None:
        self.clear()
        print(text, file=self._out, flush=True)

    def clear(self) -> None:
        if self._shown:
            self._rewrite("")
            self._out.write("\r")
            self._out.flush()

    def _rewrite(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        self._out.write("\r" + text + " " * (len(self._shown) - len(text)))
        self._out.flush()
        self._shown = text


class Packages:
    """Counts what pip has fetched, by its lines, and what it has installed, by the folders that appear."""

    def __init__(self, venv: Path, screen: Screen, lock: bytes) -> None:
        self.total = len(re.findall(rb"^[A-Za-z0-9][^\s=]*==", lock, re.MULTILINE))
        self._screen = screen
        self._lib = venv / "lib"
        self._fetched = 0
        self._retried = False
        self._installing = False
        self._before = self._there()  # what comes with the environment, such as pip

    def heard(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("Ignoring "):  # a row for another system
                self.total -= 1
            elif line.startswith(("Collecting ", "Processing ", "Requirement already")):
                self._fetched += 1
                self._screen.count("fetching packages", self._fetched, self.total)
            elif line.startswith("Installing collected"):
                self._installing = True
            elif "Retrying (" in line and not self._retried:
                self._retried = True
                self._screen.phase("the package index does not answer, trying again")

    def looked(self) -> None:
        if self._installing:
            self._screen.count("installing packages", self._there() - self._before, self.total)

    def _there(self) -> int:
        return sum(1 for _ in self._lib.glob("python3*/site-packages/*.dist-info"))
