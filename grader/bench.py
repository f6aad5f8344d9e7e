"""`ol bench`: how fast code is beside its baselines, as ratios of interleaved runs; no verdict.

`fixtures/<unit>/bench.py` has the workloads: `WORKLOADS = {name: {about, against: {contender: bar or None}}}`
and `prepare(workload, contender)`, which gives a function that does the work once and returns its seconds,
NaN for a wrong answer; a workload's `rounds` is the most of them. For C `prepare` also gets the path of
the built library, and `bench.cc` has loops and peers: every contender is called through a pointer.
The contender `impl` is the code under test; the reference is measured beside it by the same function. Every
contender runs in a process of its own. A bar is the largest ratio that the project promises of its reference.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from grader import console
from grader.bootstrap import signals_later
from grader.errors import NOT_PASSED, PASSED, OwnFault, UsageError
from grader.fixtures import import_file
from grader.launch import worker_env
from grader.path import Stage, built, find, read_path
from grader.perf import Ratio, interval
from grader.report import FORMAT
from grader.session import Bundle
from grader.tree import Tree, bundle, module_of
from grader.workspace import Place, here

FRESH = 3  # pairs of processes that share the rounds: where one lies in memory can slow it by half
LEAST_S = 0.01  # a run shorter than this is repeated inside the process
CHILD = Path(__file__).resolve().parent / "bench_child.py"


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of a to b, round by round, with a 95 % interval of its median.

    >>> ratio_of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Ratio(median=2.0, low=2.0, high=2.0, rounds=3)
    """
    return interval([x / y for x, y in zip(a, b, strict=True)], 0.05)


Code = Bundle | str  # Python by its sources, C by the path of its library


def code_of(stage: Stage, tree: Tree, course: Path) -> Code:
    if not stage.is_native:
        return bundle(tree, course, map(module_of, stage.files))
    from grader import library, native

    try:
        return str(library.built(library.bundle(stage, tree, course), {})["library"])
    except native.NotBuilt as why:
        raise UsageError(f"it cannot be built: {why.text}", why.file, f"ol check {stage.id} first") from None


class Contender:
    """A process that runs one workload of one contender on demand."""

    def __init__(self, file: Path, code: Code, workload: str, contender: str, peers: str) -> None:
        env = worker_env() | {"PYTHONPATH": peers if contender != "impl" else "", "OL_PEERS": peers}
        files = {} if isinstance(code, str) else code.files
        listed = [[name, *what] for name, what in files.items()]
        self.process: subprocess.Popen[str] | None = None
        try:
            with signals_later():
                self.process = subprocess.Popen(
                    [sys.executable, "-s", "-P", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    text=True, env=env, cwd="/", process_group=0,  # Ctrl-C reaches only us, and we end it
                )  # fmt: skip
            self.answer = self.ask({
                "file": str(file), "files": listed, "workload": workload, "contender": contender,
                "aliases": {} if isinstance(code, str) else dict(code.aliases),
                "library": code if isinstance(code, str) else "",
            })  # fmt: skip
        except BaseException:  # nobody else knows of the process yet
            self.close()
            raise

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return dict(json.loads(line)) if line else {"error": "the process ended"}

    def seconds(self, repeat: int) -> float:
        answer = self.ask({"repeat": repeat})
        if "seconds" not in answer:
            raise UsageError(f"a run failed: {answer['error']}", "ol bench", "ol check the unit first")
        return float(answer["seconds"])

    def close(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # a message that was cut off
                    stream.close()


Open = Callable[[], Contender]


def measured(one: Contender, other: Contender, pairs: int) -> tuple[list[float], list[float]]:
    """Rounds of A B B A, after one round to warm up that also says how often a short run is repeated."""
    repeat = max(1, math.ceil(LEAST_S / max(1e-7, min(one.seconds(1), other.seconds(1)))))
    a, b = [], []
    for _ in range(pairs):
        first, second = one.seconds(repeat), other.seconds(repeat)
        third, fourth = other.seconds(repeat), one.seconds(repeat)
        a.append(first + fourth)
        b.append(second + third)
    return a, b


def rows(stage: Stage, place: Place, pairs: int, bar: console.Bar) -> Iterator[dict[str, Any]]:
    """One row a workload and contender."""
    file = place.course / "fixtures" / stage.unit / "bench.py"
    workloads = import_file(file, f"bench_of_{stage.unit}").WORKLOADS
    reference = code_of(stage, Tree(place.course, kind="reference"), place.course)
    mine = code_of(stage, place.tree, place.course)
    peers = os.environ.get("OL_PEERS", str(place.course / ".peers"))
    for workload, spec in workloads.items():
        contenders = list(spec["against"].items())
        if place.tree.kind != "reference":
            contenders.insert(0, ("reference", None))
        one = partial(Contender, file, mine, workload, "impl", peers)
        for name, limit in contenders:
            bar(f"{stage.unit}: {workload} against {name}")
            row = {"workload": workload, "about": spec["about"], "against": name, "bar": limit}
            binds = limit if place.tree.kind == "reference" else None
            who = "impl" if name == "reference" else name
            other = partial(Contender, file, reference, workload, who, peers)
            yield row | beside(one, other, min(pairs, spec.get("rounds", pairs)), binds, stage)


def beside(one: Open, other: Open, pairs: int, limit: float | None, stage: Stage) -> dict[str, Any]:
    """What a row says of two contenders; a bar binds the reference alone."""
    a: list[float] = []
    b: list[float] = []
    for i in range(FRESH):
        with closing(one()) as mine, closing(other()) as theirs:
            if "error" in mine.answer:
                raise UsageError(mine.answer["error"], f"ol bench {stage.id}", f"ol check {stage.id} first")
            if "missing" in theirs.answer:
                return {"missing": theirs.answer["missing"]}
            if "error" in theirs.answer:
                raise OwnFault(theirs.answer["error"], f"fixtures/{stage.unit}/bench.py", "mend it")
            times = measured(mine, theirs, pairs * (i + 1) // FRESH - pairs * i // FRESH)
        a += times[0]
        b += times[1]
    found = ratio_of(a, b)
    holds = None if limit is None else found.median <= limit
    return {
        "ratio": found.median, "low": found.low, "high": found.high, "rounds": found.rounds, "holds": holds,
    }  # fmt: skip


VECTORS = ("avx512f", "avx2", "avx", "sse2")  # the widest first


def conditions(native: bool) -> dict[str, Any]:
    """What a ratio was measured on; `native` when C was."""
    import numpy as np

    model = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    found = {"cpu": model, "cores": os.cpu_count(), "vectors": ""}
    if cpu.is_file():
        for line in cpu.read_text().splitlines():
            name, _, value = line.partition(": ")
            if name.startswith("model name"):
                found["cpu"] = value
            if name.startswith("flags"):
                found["vectors"] = next((v for v in VECTORS if v in value.split()), "")
    found |= {"python": platform.python_version(), "numpy": np.__version__}
    if native:
        from grader.native import FLAGS, compiler

        found |= {"compiler": compiler().version, "flags": " ".join(FLAGS)}
    return {**found, "threads": 1, "order": "A B B A"}


def bench(names: tuple[str, ...], pairs: int, impl: str | None, as_json: bool) -> int:
    """Measure the units that have workloads, or those that were named."""
    place = here(Path.cwd(), impl)
    stages = read_path(place.course / "path.tsv")

    def has(stage: Stage) -> bool:
        exists = not stage.is_milestone and built(stage, place.course)
        return exists and (place.course / "fixtures" / stage.unit / "bench.py").is_file()

    chosen = [find(stages, name) for name in names] or [s for s in stages if has(s)]
    for stage in chosen:
        if not has(stage):
            able = ", ".join(s.id for s in stages if has(s)) or "none yet"
            raise UsageError(f"{stage.id} has no workloads to time", "ol bench", f"those that have: {able}")
    units: list[dict[str, Any]] = []
    with console.Bar() as bar:
        for stage in chosen:
            units.append({"id": stage.id, "unit": stage.unit, "rows": list(rows(stage, place, pairs, bar))})
    missed = [r for unit in units for r in unit["rows"] if r.get("holds") is False]
    about = conditions(any(stage.is_native for stage in chosen))
    if as_json:
        outcome = "fail" if missed else "pass"
        head = {"format": FORMAT, "command": "bench", "outcome": outcome}
        console.emit({**head, "units": units, "conditions": about})
        return NOT_PASSED if missed else PASSED
    from tabulate import tabulate

    table = [
        (str(unit["id"]), row["workload"], row["against"], *shown(row))
        for unit in units
        for row in unit["rows"]
    ]
    print(tabulate(table, ("id", "workload", "against", "time over theirs", "bar", ""), tablefmt="simple"))
    said = ", ".join(f"{name} {value}" for name, value in about.items())
    print(f"\n{said}; {pairs} rounds; below 1 is faster than they are")
    return NOT_PASSED if missed else PASSED


def shown(row: dict[str, Any]) -> tuple[str, str, str]:
    """The last three columns of a row: ratio, bar, whether it holds."""
    limit = "" if row["bar"] is None else f"<= {row['bar']:g}"
    if "missing" in row:
        return f"not measured: {row['missing']}", limit, ""
    ratio = f"{row['ratio']:.3g}  ({row['low']:.3g} to {row['high']:.3g})"
    return ratio, limit, "" if row["holds"] is None else "holds" if row["holds"] else "MISSED"
