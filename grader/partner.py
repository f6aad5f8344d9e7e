"""A second grader on the other core: the units of a gate are shared between two processes.

One process cannot use two cores: what it compares keeps its lock. Both take the next unit from one pipe, so
neither waits for the other; only the first records, once all of them are graded.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from grader import fixtures
from grader.errors import OlError
from grader.grading import Grader
from grader.path import Stage, built
from grader.session import Workers

FEW = 3  # units that are not worth another process


def grade_all(grader: Grader, units: Sequence[Stage]) -> list[dict[str, Any]]:
    """The reports of units in order, as grade() gives them one by one."""
    waiting = [stage for stage in units if is_shared(grader, stage)]
    if len(waiting) > FEW and (os.cpu_count() or 1) > 1:
        grader.take(shared(grader, waiting))
    return [grader.grade(stage) for stage in units]


def is_shared(grader: Grader, stage: Stage) -> bool:
    """What must be graded now and measures no times: nothing may run beside what does."""
    if stage.is_milestone or not built(stage, grader.root) or grader.known(stage) is not None:
        return False
    return not any(b"time_ratio" in raw for raw in fixtures.case_files(grader.root, stage))


def shared(grader: Grader, units: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """Reports by id. A unit that the second process could not report on is missing, and graded as usual."""
    alone = replace(grader, options=replace(grader.options, record=False, jobs=1), done={})
    tokens, put = os.pipe()
    os.write(put, bytes(range(len(units))))
    os.close(put)
    read, write = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(read)
        second(alone, units, tokens, write, parent)
    os.close(write)
    try:
        with os.fdopen(read) as lines:
            found = {units[index].id: alone.run(units[index], []) for index in taken(tokens)}
            return found | {report["id"]: report for report in map(json.loads, lines)}
    finally:
        os.close(tokens)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def taken(tokens: int) -> Iterator[int]:
    """The next unit that nobody has taken, until there is none."""
    while token := os.read(tokens, 1):
        yield token[0]


def second(grader: Grader, units: Sequence[Stage], tokens: int, write: int, parent: int) -> NoReturn:
    """The second process; it has workers of its own and ends without a word."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for zygote in grader.workers.zygotes.values():
            zygote.control.close()  # the first one's: it ends when the first one does
        grader.workers = Workers()
        grader.note, grader.on_case = lambda text: None, lambda unit, done, total: None
        with os.fdopen(write, "w") as lines:
            for index in taken(tokens):
                with contextlib.suppress(OlError):  # the first process meets it again, and says it
                    print(json.dumps(grader.run(units[index], [])), file=lines, flush=True)
                if os.getppid() != parent:
                    break
        grader.workers.close()
    finally:
        os._exit(0)
