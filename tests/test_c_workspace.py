"""A learner's C tree, from stubs on: what each kind of fault is called, and that it costs no other unit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "csrc" / "src"
FAULTS = {  # unit: what is changed, what the report says
    "vec": ("    if (!v || !x) /* R15 */", "    if (0)", "went through a NULL pointer in"),
    "topk": ("    while (p > 0) {", "    while (p >= 0 && p < INT64_MAX) {", "Stopped after"),
    "rsqrt": ("i < n; i++) /* R7", "i <= n; i++) /* R7", "byte 0 past the end of x in rsqrt_all, rsqrt.c:"),
    "swiss_map": ("    tl_free(old.slots);\n", "", "allocated after every object was destroyed: a leak"),
    "expf": ("shifted - ROUNDER;", "shifted - ROUNDER", "Could not build expf.c, line "),
}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)


def ol(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), *args]
    around = {k: v for k, v in os.environ.items() if k != "CI"} | env
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = ol(tmp_path, "init", "stack")
    assert made.returncode == 0, made.stderr
    return tmp_path / "stack"


@needs_compiler
@pytest.mark.slow
def test_five_faults_have_five_words_and_cost_no_other_unit(workspace: Path) -> None:
    for path in SRC.glob("*.c"):
        shutil.copy(path, workspace / "csrc" / "src")
    for unit, (old, new, _) in FAULTS.items():
        path = workspace / "csrc" / "src" / f"{unit}.c"
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))
    done = ol(workspace, "check", "arena", *FAULTS, "lru", "lowp_c", "--json")
    assert done.returncode == 1, done.stderr
    units = {unit["unit"]: unit for unit in json.loads(done.stdout)["units"]}
    for unit, (_, _, words) in FAULTS.items():
        said = [case.get("text", "") for case in units[unit]["cases"] if case["outcome"] != "pass"]
        assert any(words in text for text in said), (unit, said[:5])
    assert {units[unit]["outcome"] for unit in ("arena", "lru", "lowp_c")} == {"pass"}


@needs_compiler
def test_stubs_build_and_are_to_do(workspace: Path) -> None:
    """Every stub compiles, answers TL_EUNSUPPORTED with the slot set, and can be put back."""
    done = ol(workspace, "check", "lru", "rsqrt", "--json")
    units = json.loads(done.stdout)["units"]
    assert [unit["outcome"] for unit in units] == ["todo", "todo"]
    path = workspace / "csrc" / "src" / "rsqrt.c"
    stub = path.read_text()
    assert "unimplemented: M09.5" in stub
    path.write_text("\n")
    case = json.loads(ol(workspace, "check", "rsqrt", "--json").stdout)["units"][0]["cases"][0]
    assert case["at"].endswith("rsqrt.c") and "does not define" in case["text"]  # it has no line
    path.write_text("int x;\n")
    assert ol(workspace, "restore", "M09.5").returncode == 0
    assert path.read_text() == stub
    headers = (ROOT / "csrc" / "include" / "tinyllm").glob("*.h")
    copies = workspace / "csrc" / "include" / "tinyllm"
    assert all((copies / header.name).read_text() == header.read_text() for header in headers)


def test_without_a_compiler_the_rest_works(workspace: Path, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = ol(workspace, "check", "ds.03", PATH=str(empty), CC="")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no C compiler on PATH · C units · install gcc or clang" in done.stderr
    assert ol(workspace, "check", "L8.1", PATH=str(empty), CC="").returncode == 1  # to do, not missing
