"""`ol bench`: ratios of interleaved runs, what is missing, and what is nobody's verdict."""

from __future__ import annotations

import doctest
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grader import bench, schema

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy"
WORKLOADS = '''"""Workloads of the toy."""

import time

WORKLOADS = {
    "push": {"about": "a thousand pushes", "against": {"slow": 0.9, "same": None, "engine": 1.0}},
}


def prepare(workload, contender):
    if contender == "engine":
        from engines import load

        load("nosuchengine", "nosuchengine.core", [])
    from impl.stack import Stack

    def run():
        stack = Stack(capacity=1000)
        for x in range(1000):
            stack.push(x)
        if contender == "slow":
            for x in range(9000):
                stack.items.count(-1) if x % 1000 == 0 else None

    return run
'''


def course(tmp_path: Path, workloads: str = WORKLOADS) -> Path:
    root = tmp_path / "course"
    shutil.copytree(TOY, root, ignore=shutil.ignore_patterns("__pycache__", ".ol", ".cache"))
    (root / "fixtures" / "stack" / "bench.py").write_text(workloads)
    return root


def ol(root: Path, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), *args]
    env = {"OL_COURSE": str(root), "PATH": "/usr/bin:/bin", "HOME": str(root)}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=cwd or root, timeout=120, check=False
    )


def test_doctests() -> None:
    results = doctest.testmod(bench)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    source, held = random.Random(1), 0
    for _ in range(400):
        found = bench.ratio_of([source.lognormvariate(0.0, 0.3) for _ in range(15)], [1.0] * 15)
        assert found.low <= found.median <= found.high
        held += found.low <= 1.0 <= found.high
    assert held >= 0.95 * 400


def test_rows_say_ratio_bar_and_what_is_missing(tmp_path: Path) -> None:
    done = ol(course(tmp_path), "bench", "--rounds", "7", "--json")
    document = json.loads(done.stdout)
    assert schema.first_fault("report", document) is None
    rows: dict[str, Any] = {row["against"]: row for row in document["units"][0]["rows"]}
    assert rows["slow"]["ratio"] < 1.0
    assert rows["slow"]["holds"] is (rows["slow"]["ratio"] <= 0.9)
    assert 0.5 < rows["same"]["ratio"] < 2.0
    assert rows["same"]["holds"] is None
    assert "no nosuchengine among the peers" in rows["engine"]["missing"]
    assert document["conditions"]["order"] == "A B B A"
    assert done.returncode == (0 if rows["slow"]["holds"] else 1)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 2.0])
def test_ctrl_c_ends_the_measured_processes_and_says_nothing_else(tmp_path: Path, seconds: float) -> None:
    """While they import, before they are ready, and while they run."""
    root = course(tmp_path, WORKLOADS.replace("    def run():\n", "    def run():\n        time.sleep(60)\n"))
    bench_of = subprocess.Popen(
        [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), "bench", "T.1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root, start_new_session=True,
        env={"OL_COURSE": str(root), "PATH": "/usr/bin:/bin", "HOME": str(root)},
    )  # fmt: skip
    while not children_of(bench_of.pid):
        assert bench_of.poll() is None
        time.sleep(0.01)
    time.sleep(seconds)
    measured = children_of(bench_of.pid)
    os.killpg(bench_of.pid, signal.SIGINT)  # as a terminal does: all of the foreground group
    out, said = bench_of.communicate(timeout=20)
    assert (bench_of.returncode, out, said.strip()) == (130, "", "interrupted")
    assert not any(Path("/proc", pid).exists() for pid in measured)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_missed_bar_is_said_and_is_no_success(tmp_path: Path) -> None:
    root = course(tmp_path, WORKLOADS.replace("0.9", "0.001").replace(', "engine": 1.0', ""))
    done = ol(root, "bench", "T.1", "--rounds", "7")
    assert done.returncode == 1, done.stderr
    assert "MISSED" in done.stdout
    assert "below 1 is faster than they are" in done.stdout


def test_a_workspace_is_measured_beside_the_reference(tmp_path: Path) -> None:
    root = course(tmp_path)
    mine = tmp_path / "mine" / "impl"
    mine.mkdir(parents=True)
    source = (root / "impl" / "stack.py").read_text()
    slow = source.replace("self.items.append(x)", "sorted(range(300)); self.items.append(x)")
    (mine / "stack.py").write_text(slow)
    document = json.loads(ol(root, "bench", "--impl", str(mine.parent), "--rounds", "7", "--json").stdout)
    row = document["units"][0]["rows"][0]
    assert (row["against"], row["holds"], row["bar"]) == ("reference", None, None)
    assert row["ratio"] > 1.5


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        (("self.items.append(x)", "raise OSError('no')"), "a run failed: OSError: no · ol bench", 2),
        (('"""A bounded stack."""', "import nothing_here"), "No module named 'nothing_here'", 2),
        (("self.items.append(x)", "__import__('os')._exit(0)"), "a run failed: the process ended", 2),
    ],
)  # fmt: skip
def test_code_that_cannot_run_is_the_users_fault(
    tmp_path: Path, change: tuple[str, str], words: str, code: int
) -> None:
    root = course(tmp_path)
    mine = tmp_path / "mine" / "impl"
    mine.mkdir(parents=True)
    (mine / "stack.py").write_text((root / "impl" / "stack.py").read_text().replace(*change))
    done = ol(root, "bench", "--impl", str(mine.parent), "--rounds", "7")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words in done.stderr


def test_a_unit_without_workloads_is_named(tmp_path: Path) -> None:
    root = course(tmp_path)
    (root / "fixtures" / "stack" / "bench.py").unlink()
    done = ol(root, "bench", "T.1")
    assert done.returncode == 2
    assert "T.1 has no workloads to time · ol bench · those that have: none yet" in done.stderr


def test_a_broken_workload_is_our_fault(tmp_path: Path) -> None:
    broken = WORKLOADS.replace("    from impl", "    contender == 'same' and 1 / 0\n    from impl")
    root = course(tmp_path, broken)
    done = ol(root, "bench", "--rounds", "7")
    assert done.returncode == 3
    assert "ZeroDivisionError: division by zero" in done.stderr
