"""Units shared between two graders: the same reports as one gives, and nothing left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import partner
from grader.grading import Grader, Options
from grader.path import Stage, read_path
from grader.progress import Progress
from grader.session import Workers
from grader.tree import Tree

TOY = Path(__file__).resolve().parent / "toy"
SECOND = (
    "toy\t2\tT.2\tqueue\timpl/queue.py\tbuild\tT.1\tA queue\tspec/queue.md\tIt passes.\t"
    "practice/bin/ol check T.2\n"
)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The toy course, and a second unit that is the first under another name and needs it."""
    root = tmp_path / "course"
    shutil.copytree(TOY, root, ignore=shutil.ignore_patterns("__pycache__", ".cache", ".ol"))
    rows = (root / "path.tsv").read_text().splitlines(keepends=True)
    (root / "path.tsv").write_text("".join(rows[:2]) + SECOND)
    shutil.copytree(root / "fixtures" / "stack", root / "fixtures" / "queue")
    for path in (root / "fixtures" / "queue").rglob("*.yaml"):
        path.write_text(path.read_text().replace("stack/", "queue/").replace("unit: stack", "unit: queue"))
    for kind in ("impl/{}.py", "spec/{}.md"):
        shutil.copy(root / kind.format("stack"), root / kind.format("queue"))
    return root


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


def graded(
    root: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch, few: int, mine: Path | None = None
) -> tuple[Grader, list[Stage], list[dict[str, object]]]:
    monkeypatch.setattr(partner, "FEW", few)
    stages = read_path(root / "path.tsv")
    tree = Tree(mine) if mine else Tree(root, kind="reference")
    options = Options(tree, fresh=True, twice=True)
    grader = Grader(root, stages, options, workers, Progress(tree.root))
    return grader, stages, partner.grade_all(grader, stages)


def told(reports: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in report.items() if k not in ("seconds", "recorded")} for report in reports]


def test_two_graders_report_what_one_reports(
    course: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, alone = graded(course, workers, monkeypatch, few=99)
    grader, stages, both = graded(course, workers, monkeypatch, few=1)
    assert [report["outcome"] for report in both] == ["pass", "pass"]
    assert told(both) == told(alone)
    assert all(grader.progress.recorded(stage.unit) is not None for stage in stages)


def test_what_needs_a_failing_unit_is_blocked_and_not_recorded(
    course: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(course / "impl", course / "mine" / "impl")
    (course / "mine" / "impl" / "stack.py").write_text("def total(xs):\n    return 0\n")
    grader, _, reports = graded(course, workers, monkeypatch, few=1, mine=course / "mine")
    assert reports[0]["outcome"] != "pass" and reports[1]["outcome"] == "blocked"
    assert grader.progress.recorded("stack") is not None
    assert grader.progress.recorded("queue") is None


def test_no_process_and_no_descriptor_is_left(
    course: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded(course, workers, monkeypatch, few=1)
    before = open_files()
    graded(course, workers, monkeypatch, few=1)
    assert open_files() <= before
    workers.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_author_s_fault_in_the_second_process_is_said_by_the_first(
    course: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grader.errors import OwnFault

    for unit in ("stack", "queue"):
        (course / "fixtures" / unit / "oracle.py").write_text("raise RuntimeError('broken')\n")
    with pytest.raises(OwnFault, match="broken"):
        graded(course, workers, monkeypatch, few=1)
