"""`pytest --ol`: every case of every built unit as a pytest item, with the verdicts of `ol check`.

    pytest --ol                        all built units of the workspace around the current folder
    pytest --ol -k sampling -x --lf    the usual selection; xdist and --junitxml work
    pytest --ol --ol-impl DIR          another tree

The cases of a unit that were selected are graded together when the first of them runs, so that grouping,
voided groups and twins mean what they mean in `ol check`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from grader.fixtures import Unit
    from grader.grading import Grader
    from grader.path import Stage
    from grader.workspace import Place

COURSE = pytest.StashKey["Course"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ol")
    group.addoption("--ol", action="store_true", help="collect the course's cases instead of test files")
    group.addoption("--ol-impl", metavar="DIR", help="grade the impl/ in DIR instead of the one around here")


class Course:
    """The place that is graded, and the reports of the units graded so far in this process."""

    def __init__(self, config: pytest.Config) -> None:
        from grader.path import read_path
        from grader.workspace import here

        self.place: Place = here(Path(config.invocation_params.dir), config.getoption("--ol-impl"))
        self.stages: list[Stage] = read_path(self.place.course / "path.tsv")
        self.fixtures = self.place.course / "fixtures"
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self.workers: Any = None

    def grade(self, stage: Stage, cases: list[str], every: int) -> dict[str, dict[str, Any]]:
        """The selected cases of a unit, graded once; a whole unit counts as a full run."""
        if stage.id not in self.rows:
            from grader.grading import Options

            chosen = tuple(cases) if len(cases) < every else ()
            options = Options(
                self.place.tree, chosen, twice=bool(os.environ.get("CI")), fresh=True, record=False
            )
            report = self.grader(options).grade(stage)
            rows = {row["id"]: row for row in report["cases"]}
            missing = {"outcome": report["outcome"], "text": report.get("text", "")}
            self.rows[stage.id] = {case: {**rows.get(case, missing), "report": report} for case in cases}
        return self.rows[stage.id]

    def grader(self, options: Any) -> Grader:
        from grader.grading import Grader
        from grader.progress import Progress
        from grader.session import Workers

        self.workers = self.workers or Workers()
        return Grader(self.place.course, self.stages, options, self.workers, Progress(self.place.tree.root))

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


class CaseFile(pytest.File):
    """One file of cases; it belongs to the unit whose fixtures folder holds it."""

    stage: Stage

    def collect(self) -> Iterator[pytest.Item]:
        from grader import fixtures

        course = self.config.stash[COURSE]
        unit: Unit = fixtures.load(self.stage, course.place.course)
        for case in unit.cases:
            if course.place.course / case.file == self.path:
                item = CaseItem.from_parent(self, name=case.id.partition("/")[2])
                item.case_id, item.stage, item.every = case.id, self.stage, len(unit.cases)
                item.line = case.line - 1
                item.user_properties += [("rule", rule) for rule in case.rules]
                yield item


class CaseItem(pytest.Item):
    """One case."""

    case_id: str
    stage: Stage
    every: int
    line: int

    def runtest(self) -> None:
        course = self.config.stash[COURSE]
        mine = [
            i.case_id for i in self.session.items if isinstance(i, CaseItem) and i.stage.id == self.stage.id
        ]
        row = course.grade(self.stage, mine, self.every)[self.case_id]
        self.user_properties.append(("outcome", row["outcome"]))
        if row["outcome"] != "pass":
            if row.get("level") == "extra":
                pytest.xfail(f"extra: {row['outcome']}")
            raise CaseFailed(row)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        del style
        if isinstance(excinfo.value, CaseFailed):
            from grader.report import case_lines

            row = excinfo.value.row
            if "about" not in row:
                return f"{row['outcome']}: {row['text']}"
            return "\n".join(case_lines(row["report"], row, self.config.stash[COURSE].place.course))
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.case_id


class CaseFailed(Exception):
    """A case that is not a pass."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(f"{row.get('id', 'unit')}: {row['outcome']}")
        self.row = row


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ol"):
        from grader.errors import OlError

        try:
            course = config.stash[COURSE] = Course(config)
            if not config.invocation_params.args or config.args_source is not config.ArgsSource.ARGS:
                config.args = [str(course.fixtures)]
        except OlError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    if COURSE in config.stash:
        config.stash[COURSE].close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if COURSE not in parent.config.stash:
        return None
    from grader.fixtures import NOT_CASES
    from grader.path import built

    course = parent.config.stash[COURSE]
    if (
        file_path.suffix != ".yaml"
        or file_path.name in NOT_CASES
        or file_path.parent.parent != course.fixtures
    ):
        return None
    for stage in course.stages:
        if (
            stage.unit == file_path.parent.name
            and not stage.is_milestone
            and built(stage, course.place.course)
        ):
            collector = CaseFile.from_parent(parent, path=file_path)
            collector.stage = stage
            return collector
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --ol only case files are collected: a test file would run code under test in this process."""
    if COURSE not in config.stash:
        return None
    return True if collection_path.is_file() and collection_path.suffix != ".yaml" else None
