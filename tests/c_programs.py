"""Small C programs around a reference, for what no case can show: all warnings, sanitizers if any."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grader import native

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "csrc" / "src"
SOURCES = {path.name for path in SRC.glob("*.c")}
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wstrict-prototypes", "-Werror")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)


def run(folder: Path, program: str, *sources: Path, more: tuple[str, ...] = (), sanitize: bool = True) -> str:
    """Build a program with sources, run it and give what it prints; it must exit with 0."""
    flavor = native.FLAVORS["asan"] if sanitize and native.Builder(ROOT, "asan").runtime() else ()
    places = [f"-I{ROOT / 'csrc' / 'include'}", f"-I{SRC}"]
    (folder / "program.c").write_text(program)
    made = folder / "program"
    flags = [*native.FLAGS, *flavor, *STRICT, *more, *places]
    done = native.compiler().run(
        [*flags, "-o", str(made), str(folder / "program.c"), *map(str, sources), "-lm"]
    )
    assert done.returncode == 0, done.stderr
    env = {"ASAN_OPTIONS": "allocator_may_return_null=1", "PATH": os.environ.get("PATH", "")}
    ran = subprocess.run([made], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def ways(unit: str, files: tuple[str, ...]) -> list[tuple[Path, ...]]:
    """The files of a unit: the reference's, then those of each equivalent."""
    found = [tuple(SRC / file for file in files)]
    for path in sorted((ROOT / "fixtures" / unit / "equivalents").iterdir()):
        own = {files[0]: path} if path.suffix == ".c" else {p.name: p for p in path.glob("*.c")}
        found.append(tuple(own.get(file, SRC / file) for file in files))
    return found


def named(files: tuple[Path, ...]) -> str:
    """A way's name for pytest: the first of its files that is not the reference's."""
    other = next((path for path in files if path.parent != SRC), None)
    return "reference" if other is None else other.parent.name if other.name in SOURCES else other.stem
