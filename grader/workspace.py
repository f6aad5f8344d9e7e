"""Where the command runs: a learner's workspace (a folder with ol.toml), or this repository itself."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.errors import UsageError
from grader.tree import Tree

CONFIG = "ol.toml"


@dataclass(frozen=True, slots=True)
class Place:
    """The course that is read, the tree that is graded, and where progress is kept."""

    course: Path
    tree: Tree
    path: str  # the argument of `ol learn`

    @property
    def is_workspace(self) -> bool:
        return self.tree.kind == "workspace"


def course_root() -> Path:
    """This repository, or the course that OL_COURSE names."""
    named = os.environ.get("OL_COURSE")
    root = Path(named).resolve() if named else Path(__file__).resolve().parent.parent
    if not (root / "path.tsv").exists():
        raise UsageError("no path.tsv there", str(root), "OL_COURSE names the folder of a course")
    return root


def find(start: Path) -> Path | None:
    """The nearest folder at or above `start` that holds ol.toml, be it one that cannot be read."""
    for folder in (start, *start.parents):
        if os.path.lexists(folder / CONFIG):
            return folder
    return None


def here(start: Path, impl: str | None = None) -> Place:
    """Where a command works: --impl, else this ./ol's workspace or one around, else the repository."""
    course = course_root()
    if impl is not None:
        folder = Path(impl)
        folder = folder.parent if folder.name == "impl" and not (folder / "impl").is_dir() else folder
        if not folder.is_dir():
            raise UsageError("no such folder", str(impl), "--impl names the folder that holds impl/")
        config = read_config(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        return Place(course, Tree(folder.resolve(), mapped(config), "folder"), config.get("path", ""))
    named = os.environ.get(
        "OL_WORKSPACE"
    )  # ./ol says where it lies: started from elsewhere, it means its own
    found = Path(named) if named else find(start)
    if found is None:
        return Place(course, Tree(course, kind="reference"), "")
    config = read_config(found / CONFIG)
    return Place(course, Tree(found, mapped(config)), config.get("path", ""))


def mapped(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(config.get("map", {}).items()))


def read_config(file: Path) -> dict[str, Any]:
    """ol.toml, checked; its faults are the user's, with the line where TOML knows it."""
    from grader import schema

    if file.exists() and not file.is_file():  # reading a pipe would wait for ever
        raise UsageError("not a file", str(file), 'a workspace needs one that says format = "1.0"')
    try:
        config = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(
            "no such file", str(file), 'a workspace needs one that says format = "1.0"'
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", str(file), "make it readable") from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8", str(file), "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", str(file), "mend that line") from None
    usual = (
        "format" in config
        and set(config) <= {"format", "path"}
        and {type(v) for v in config.values()} == {str}
    )
    fault = (
        None if usual else schema.first_fault("config", config)
    )  # the usual file, without jsonschema's cost
    if fault is not None:
        place, words = fault
        dotted = schema.dotted(place)
        fix = 'it needs format = "1.0"' if words.startswith("missing") else "mend that line"
        if place[:1] == ("map",):
            fix = 'a line of [map] is "impl.unit" = "package.module"'
        raise UsageError(f"{dotted}: {words}" if dotted else words, str(file), fix)
    schema.check_format(config["format"], str(file), UsageError)
    return config
