"""Whose code is graded: a tree of files becomes the explicit map that the worker imports from.

Nothing of the tree is put on `sys.path`: a `numpy.py` or `conftest.py` in it is never imported, and "which
file was graded" is exactly this map. Given modules are the grader's own copies unless `[map]` names others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grader.errors import UsageError
from grader.path import Stage
from grader.session import LIMITS, Bundle

GIVEN = ("rng", "categorical", "llama", "tokenizer", "gguf")
MOST_FILES, MOST_BYTES = 200, 5 << 20


@dataclass(frozen=True, slots=True)
class Tree:
    """A learner's workspace, this repository's own `impl`, or any other folder that holds one."""

    root: Path
    map: tuple[tuple[str, str], ...] = ()  # impl.<unit> -> the learner's module
    kind: str = "workspace"  # workspace | reference | folder

    def module_file(self, dotted: str) -> Path | None:
        """The file of a module in this tree, in its root or in src/."""
        for base in (self.root, self.root / "src"):
            stem = base.joinpath(*dotted.split("."))
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if path.is_file():
                    return path
        return None

    def file_of(self, module: str, named: str) -> Path:
        """Where a unit's file is: as the path row names it, or where the name map leads."""
        mapped = dict(self.map).get(module)
        if mapped is None:
            check_kind(self.root, named)
            return self.root / named
        found = self.module_file(mapped)
        if found is None:
            where = f"{self.root / 'ol.toml'}, [map]"
            raise UsageError(f"{module} = {mapped!r} leads to no file", where, "name a module of this folder")
        return found


def check_kind(root: Path, named: str) -> None:
    """Refuse what is there and cannot be read as a file; reading a pipe would wait for ever."""
    path = root / named
    try:
        for folder in path.relative_to(root).parents:
            if (root / folder).exists() and not (root / folder).is_dir():
                raise UsageError(
                    "not a folder",
                    str(root / folder),
                    "move it away; ol restore ID puts the stub of a unit there",
                )
        if path.exists() and not path.is_file():
            raise UsageError(
                "not a file", str(path), "move it away; ol restore ID puts the stub of a unit there"
            )
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", str(path), "make it readable") from None


def module_of(file: str) -> str:
    """`impl/kv_cache.py` is module `impl.kv_cache`."""
    return file.rpartition(".")[0].replace("/", ".")


def read_source(path: Path) -> str:
    """A learner's file as text; one that cannot be read fails as an import, with the reason."""
    try:
        raw = path.read_bytes()
        if len(raw) > MOST_BYTES:
            return f"raise ImportError({f'{path.name} is larger than {MOST_BYTES >> 20} MiB'!r})\n"
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return (
            "\n" * raw.count(b"\n", 0, error.start)
            + "raise SyntaxError('not UTF-8; save the file as UTF-8')\n"
        )
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", str(path), "make it readable") from None


def package_files(top: Path, name: str) -> dict[str, Path]:
    """Every module below a package folder, by dotted name; links that leave the folder do not count."""
    found: dict[str, Path] = {}
    real = top.resolve()
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if f.isidentifier() and not f.startswith("__"))
        for file in sorted(files):
            path = Path(folder) / file
            if not file.endswith(".py") or not path.resolve().is_relative_to(real) or not path.is_file():
                continue
            parts = [name, *path.relative_to(top).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
            if len(found) > MOST_FILES:
                raise UsageError(
                    f"more than {MOST_FILES} Python files", str(top), "keep only the package there"
                )
    return found


def bundle(
    tree: Tree,
    reference: Path,
    warm: Iterable[str] = (),
    assisted: Iterable[Stage] = (),
    replace: dict[str, str] | None = None,
    entry: str = "",
    memory: int = LIMITS["AS"],
) -> Bundle:
    """The map of a tree. `assisted` units are answered by the reference, `replace` gives sources as text."""
    files: dict[str, tuple[str, str, bool]] = {}
    aliases: dict[str, str] = {}
    top = tree.root / "impl"
    if not top.is_dir() and not tree.map:
        raise UsageError(
            "no folder impl",
            str(tree.root),
            "ol init DIR makes a workspace; --impl names the folder that holds impl/",
        )
    if top.is_dir():
        for name, path in package_files(top, "impl").items():
            files[name] = (str(path), read_source(path), path.name == "__init__.py")
    files.setdefault("impl", (str(top / "__init__.py"), "", True))
    for ours, theirs in tree.map:
        path = tree.file_of(ours, "")
        package = theirs.partition(".")[0]
        base = (
            path.parents[theirs.count(".") - (path.name != "__init__.py")] if "." in theirs else path.parent
        )
        if "." in theirs and package not in files:
            for name, found in package_files(base, package).items():
                files[name] = (str(found), read_source(found), found.name == "__init__.py")
            files.setdefault(package, (str(base / "__init__.py"), "", True))
        elif "." not in theirs:
            files[theirs] = (str(path), read_source(path), False)
        aliases[ours] = theirs
        files.pop(ours, None)
    given = set()
    for name in GIVEN:
        path = reference / "impl" / f"{name}.py"
        if path.is_file() and f"impl.{name}" not in aliases:
            files[f"impl.{name}"] = (str(path), path.read_text(), False)
            given.add(f"impl.{name}")
    for stage in assisted:
        for file in stage.files:
            if file.endswith(".py"):
                path = reference / file
                files[module_of(file)] = (str(path), path.read_text(), False)
                aliases.pop(module_of(file), None)
    for name, source in (replace or {}).items():
        files[name] = (files[name][0], source, files[name][2])
    if entry:  # a gate has no file of its own to import
        files.setdefault(entry, (f"<{entry}>", "", False))
    digest = hashlib.sha256(
        repr((sorted(files.items()), sorted(aliases.items()))).encode("utf-8", "surrogatepass")
    )
    warmed = tuple(aliases.get(name, name) for name in warm) + tuple(sorted(given))
    return Bundle(digest.hexdigest(), files, aliases, warmed, frozenset(given), memory)


def changed_given(tree: Tree, reference: Path) -> list[str]:
    """Given modules of which the workspace holds a changed copy; ours are used all the same."""
    changed = []
    for name in GIVEN:
        ours, theirs = reference / "impl" / f"{name}.py", tree.root / "impl" / f"{name}.py"
        if ours.is_file() and theirs.is_file() and ours.read_bytes() != theirs.read_bytes():
            changed.append(f"impl/{name}.py")
    return changed
