"""Reads a unit's fixtures: case files, errors, mutants, oracle; parsed once per content.

A file whose hash stands in MANIFEST.tsv was validated when it was built and is not validated again.
Any other is validated on the spot, with a line that says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from grader.errors import OwnFault
from grader.path import Stage

NOT_CASES = {"mutants.yaml", "errors.yaml"}
SKIPPED = {"__pycache__"}
READER = "2"  # raise when the parsed form changes


@dataclass(frozen=True, slots=True)
class Case:
    """One case as its file states it, with what its file says for all of them."""

    id: str
    unit: str
    file: str
    line: int
    raw: dict[str, Any]
    title: str
    oracles: dict[str, Any] = field(repr=False)
    observables: dict[str, Any] = field(repr=False)
    flags: dict[str, Any] = field(repr=False)

    @property
    def verb(self) -> str:
        verbs = (("property", "property"), ("perf", "perf"), ("steps", "trace"), ("answer", "answer"))
        return next((verb for key, verb in verbs if key in self.raw), "call")

    @property
    def rules(self) -> list[str]:
        return list(self.raw["rule"])

    @property
    def kills(self) -> list[str]:
        wrong = range(1, len(self.raw.get("reject", [])) + 1)
        return [*self.raw.get("kills", []), *(f"{self.raw['answer']}-{n}" for n in wrong)]

    @property
    def required(self) -> bool:
        return bool(self.raw.get("level", "required") == "required")

    @property
    def heavy(self) -> bool:
        return "cost" in self.raw

    @property
    def limit_s(self) -> float:
        return float(self.raw.get("limit_s", 3))

    @property
    def about(self) -> str:
        """Why the case exists, in the words of its first flag, else the title of its file."""
        names = self.raw.get("flags", [])
        return str(self.flags[names[0]]["why"]) if names and names[0] in self.flags else self.title

    @property
    def hand_only(self) -> bool:
        return all(self.oracles.get(name, {}).get("kind") == "hand" for name in self.raw["oracle"])


@dataclass(slots=True)
class Unit:
    """Everything that the fixtures say about one unit."""

    stage: Stage
    root: Path
    cases: list[Case]
    hints: dict[str, list[str]]
    errors: dict[str, Any]
    sha256: str
    dir: Path = field(init=False)
    _oracle: ModuleType | None = None

    @property
    def name(self) -> str:
        return self.stage.unit

    def __post_init__(self) -> None:
        self.dir = self.root / "fixtures" / self.stage.unit

    def case(self, name: str) -> Case | None:
        return next((case for case in self.cases if case.id == name), None)

    @property
    def oracle(self) -> ModuleType:
        """The unit's oracle.py, imported by path; it may use the standard library and NumPy only."""
        if self._oracle is None:
            self._oracle = import_file(self.dir / "oracle.py", f"oracle_{self.name}")
        return self._oracle

    def mutants(self) -> dict[str, Any]:
        if self.stage.is_sheet:
            from grader import solve

            return solve.mistakes(self)
        path = self.dir / "mutants.yaml"
        return dict(read_yaml(path, "mutants", self.root)["mutants"]) if path.exists() else {}


def import_file(path: Path, name: str) -> ModuleType:
    if not path.exists():
        raise OwnFault("no such file", str(path), "write it; `ol author new` prints a skeleton")
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OwnFault(f"cannot be imported: {type(error).__name__}: {error}", str(path), "fix it") from error
    return module


def read_yaml(path: Path, schema: str, root: Path) -> Any:
    """A validated YAML file of ours, as plain values."""
    from grader import schema as schemas
    from grader import strict_yaml

    where = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise OwnFault(f"cannot read: {error.strerror}", where) from None
    marked = strict_yaml.load_marked(text, where)
    if isinstance(marked.value, dict) and "format" in marked.value:
        schemas.check_format(marked.value["format"], marked.at(("format",)))
    fault = schemas.first_fault(schema, marked.value)
    if fault is not None:
        place, words = fault
        raise OwnFault(f"{schemas.dotted(place)}: {words}".removeprefix(": "), marked.at(place))
    return marked.value


def files_of(folder: Path) -> list[Path]:
    """Every file that belongs to a unit's fixtures, sorted; MANIFEST.tsv is derived from them."""
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        found += [Path(where, name) for name in names if not name.startswith(".") and name != "MANIFEST.tsv"]
    return sorted(path for path in found if path.is_file())


def digests_of(folder: Path, contents: dict[Path, bytes]) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(raw).hexdigest() for p, raw in contents.items()}


def digest_of(digests: dict[str, str]) -> str:
    """One hash over the names and contents of a unit's fixtures."""
    listing = "".join(f"{digest}\t{name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def folder_digest(folder: Path) -> str:
    """The same for a folder, without reading what the files say."""
    return digest_of(digests_of(folder, {path: path.read_bytes() for path in files_of(folder)}))


def manifest(folder: Path) -> dict[str, str]:
    path = folder / "MANIFEST.tsv"
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    if any(len(row) != 2 or len(row[0]) != 64 for row in rows):
        what, where = "a row is not sha256, tab, file name", f"{path.name} of {folder.name}"
        raise OwnFault(what, where, f"ol author build {folder.name}")
    return {name: digest for digest, name in rows}


def case_files(root: Path, stage: Stage) -> Iterator[bytes]:
    """The unit's case files as they are."""
    for path in sorted((root / "fixtures" / stage.unit).glob("*.yaml")):
        if path.name not in NOT_CASES:
            yield path.read_bytes()


def load(stage: Stage, root: Path, note: Callable[[str], None] = lambda text: None) -> Unit:
    """The unit's fixtures, from the cache of their content or read, validated and cached."""
    folder = root / "fixtures" / stage.unit
    contents = {path: path.read_bytes() for path in files_of(folder)}
    digests = digests_of(folder, contents)
    known = manifest(folder)
    sha256 = digest_of(digests)
    edited = [n for n in digests if n.endswith(".yaml") and "/" not in n and known.get(n) != digests[n]]
    cached = root / ".cache" / f"{stage.unit}-{READER}-{sha256}.json"
    try:
        parsed = None if edited else json.loads(cached.read_text())
    except (OSError, ValueError):
        parsed = None
    if parsed is None:
        if edited:
            new = len(edited) > 1 or edited[0] not in known
            what = "not in its manifest" if new else "changed since it was built"
            note(f"validating {', '.join(edited)} of {stage.unit}: {what}")
        parsed = parse(stage, root, contents)
        if not edited:
            write_cache(cached, parsed)
    cases = [Case(**item) for item in parsed["cases"]]
    return Unit(stage, root, cases, parsed["hints"], parsed["errors"], sha256)


def parse(stage: Stage, root: Path, contents: dict[Path, bytes]) -> dict[str, Any]:
    """All case files of a unit, validated: schema, then meaning (check.py)."""
    from grader import check

    reader = check.Reader(stage.unit, root)
    errors = root / "fixtures" / stage.unit / "errors.yaml"
    if errors in contents:
        reader.errors = read_yaml(errors, "errors", root)["errors"]
    for path, raw in contents.items():
        if path.suffix == ".yaml" and path.parent.name == stage.unit and path.name not in NOT_CASES:
            reader.read(path, raw)
    return reader.finish()


def write_cache(path: Path, parsed: Any) -> None:
    """Best effort: a read-only checkout works without."""
    import tempfile  # rarely needed

    try:
        path.parent.mkdir(exist_ok=True)
        unit = path.name.partition("-")[0] + "-"
        for old in path.parent.glob(f"{unit}*"):  # what was cut off in the middle too
            old.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=unit, delete=False) as file:
            json.dump(parsed, file, separators=(",", ":"))
        os.replace(file.name, path)
    except OSError:
        pass
