"""Code that cheats, breaks or fails: each must end as it should, and an honest one between each still passes.

What level 1 cannot contain is listed in the report and tested as such: reading files, processes that leave.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader import fixtures, path
from grader.judge import Verdict
from grader.runner import Runner, UnitRun
from grader.session import Workers
from grader.tree import Tree, bundle

TOY = Path(__file__).resolve().parent / "toy"
HONEST = (TOY / "impl" / "stack.py").read_text()
CASES = ("stack/push-pop", "stack/total", "stack/total-empty", "stack/double")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    shared = Workers()
    yield shared
    shared.close()


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine doubles the limits; here the limits themselves are looked at."""
    monkeypatch.setattr("grader.runner.calibrate", lambda: 0.0)


@pytest.fixture(scope="module")
def unit() -> fixtures.Unit:
    return fixtures.load(path.read_path(TOY / "path.tsv")[0], TOY)


def run(
    workers: Workers, unit: fixtures.Unit, source: str, cases: tuple[str, ...] = CASES, limit_s: float = 1.0
) -> UnitRun:
    base = bundle(Tree(TOY), TOY, ["impl.stack"])
    chosen = [case for case in unit.cases if case.id in cases]
    for case in chosen:
        case.raw["limit_s"] = limit_s
    return Runner(unit, workers.opener(base, {"impl.stack": source}), workers.opener(base)).run(chosen)


def replacing(old: str, new: str) -> str:
    assert HONEST.count(old) == 1, old
    return HONEST.replace(old, new)


def total(body: str, top: str = "") -> str:
    """The honest unit with another `total`."""
    start, stop = HONEST.index("def total"), HONEST.index("def label")
    return (
        top
        + HONEST[:start]
        + "def total(xs):\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "\n\n\n"
        + HONEST[stop:]
    )


def outcome(verdicts: dict[str, Verdict], case: str = "stack/total") -> tuple[str, str]:
    return verdicts[case].outcome, verdicts[case].text


FORGE = """
import json, os, struct
def _forge():
    value = {"f64": struct.pack(">d", 3.5).hex()}
    for seq in range(200):
        text = json.dumps({"seq": seq, "return": value, "args": {}, "file": __file__}).encode()
        for fd in range(3, 64):
            try:
                os.write(fd, struct.pack("<II", len(text), 0) + text)
            except OSError:
                pass
"""

ALWAYS = """
import numpy as np
class Always(float):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __float__(self): return 3.5
class AlwaysArray(np.ndarray):
    def __eq__(self, other): return np.True_
    def __array_ufunc__(self, *args, **kw): return np.True_
    def __array_function__(self, *args, **kw): return True
class Anything:
    def __eq__(self, other): return True
"""

# name -> (source, case, outcome, text that the message must contain)
CHEATS: dict[str, tuple[str, str, str, str]] = {
    "exit-at-import": ("import os\nos._exit(0)\n" + HONEST, "stack/total", "crashed", "ended the process (exit code 0) before returning a result"),
    "exit-in-call": (total("import os; os._exit(0)"), "stack/total", "crashed", "exit code 0"),
    "sys-exit-in-call": (total("import sys; sys.exit(0)"), "stack/total", "raised", "SystemExit"),
    "atexit": (total("import atexit, os; atexit.register(os._exit, 0); return 0.0"), "stack/total", "fail", ""),
    "patches-comparisons": (
        total("return 0.0", "import numpy as np, numpy.testing\nnp.allclose = np.array_equal = lambda *a, **k: True\n"
              "numpy.testing.assert_allclose = lambda *a, **k: None\nnp.asarray = lambda *a, **k: 0\n"),
        "stack/total", "fail", ""),
    "always-equal-float": (total("return Always(7.0)", ALWAYS), "stack/total", "fail", ""),
    "always-equal-array": (total("return np.zeros(1).view(AlwaysArray)", ALWAYS), "stack/total", "fail", ""),
    "always-equal-object": (total("return Anything()", ALWAYS), "stack/total", "fail", ""),
    "reads-frames": (
        total("""
            import sys, gc
            frame, found = sys._getframe(), []
            while frame:
                found += [v for v in frame.f_locals.values() if isinstance(v, float)]
                frame = frame.f_back
            found += [v for o in gc.get_objects() if isinstance(o, dict) for v in o.values() if isinstance(v, float) and v == 3.5]
            return found[-1] if found else 0.0
            """), "stack/total", "fail", ""),
    "forges-records": (total("_forge(); os._exit(0)", FORGE), "stack/total", "protocol", "The result channel"),
    "forges-then-returns": (total("_forge(); return 0.0", FORGE), "stack/total", "protocol", "The result channel"),
    "prints-a-verdict": (total('print(\'{"outcome": "pass"}\\n::set-output name=x::y\\x1b[2J\'); return 0.0'), "stack/total", "fail", ""),
    "object-array": (total("return np.array([object()], dtype=object)"), "stack/total", "fail", ""),
    "reduce": (total("class R:\n    def __reduce__(self): return (print, ('pwned',))\nreturn R()"), "stack/total", "fail", ""),
    "deep-list": (total("x = []\nfor _ in range(60000): x = [x]\nreturn x"), "stack/total", "fail", ""),
    "huge-result": (total("return np.zeros(1 << 24)"), "stack/total", "fail", ""),
    "closes-all": (total("import os; os.closerange(0, 64); return 3.5"), "stack/total", "crashed", ""),
    "delegates-to-numpy": (replacing("def total(xs: np.ndarray) -> float:", "def _unused(xs):") + "\ntotal = np.sum\n", "stack/total", "raised", ""),
    "comes-from-elsewhere": (HONEST + "\nfrom statistics import fsum as total\n", "stack/total", "raised", ""),
    "kills-zygote": (total("import os, signal; os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(5)"), "stack/total", "deadline", ""),
    "kills-zygote-and-answers": (total("import os, signal; os.kill(os.getppid(), signal.SIGKILL); return 3.5"), "stack/total", "crashed", ""),
}  # fmt: skip

FAULTS: dict[str, tuple[str, str, str, str]] = {
    "syntax": (HONEST + "\ndef broken(:\n", "stack/total", "raised", "stack.py line"),
    "unclosed": ("x = (1,\n" + HONEST, "stack/total", "raised", "'(' was never closed"),
    "missing-package": ("import torch\n" + HONEST, "stack/total", "raised", "ModuleNotFoundError: No module named 'torch' (line 1). Only numpy and the standard library"),
    "missing-function": (replacing("def total(", "def totl("), "stack/total", "raised", "stack.py has no function or class 'total'. Found: "),
    "name-error": (total("return undefined_name"), "stack/total", "raised", "NameError: name 'undefined_name' is not defined"),
    "recursion": (total("return total(xs)"), "stack/total", "raised", "RecursionError"),
    "nan": (total("return float('nan')"), "stack/total", "fail", ""),
    "wrong-shape": (total("return np.zeros((2, 2))"), "stack/total", "fail", ""),
    "wrong-dtype": (total("return np.float32(3.5)"), "stack/total", "fail", ""),
    "integer": (total("return 3"), "stack/total", "fail", ""),
    "none": (total("pass"), "stack/total", "fail", ""),
    "not-written": (total("raise NotImplementedError('T.1: total')"), "stack/total", "todo", "not written yet"),
    "endless-loop": (total("while True: pass"), "stack/total", "deadline", "Stopped after 1 s (limit 1 s)."),
    "loop-ignoring-signals": (
        total("import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass"),
        "stack/total", "deadline", "Stopped after 1 s"),
    "stops-itself": (total("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"), "stack/total", "deadline", "Stopped after 1 s"),
    "half-a-record": (total("import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\x10\\0\\0\\0')\n    except OSError: pass\nimport time; time.sleep(9)"), "stack/total", "deadline", "Stopped"),
    "segfault": (total("import ctypes; ctypes.string_at(0)"), "stack/total", "crashed", "Your code crashed (SIGSEGV: invalid memory access"),
    "abort": (total("import os; os.abort()"), "stack/total", "crashed", "SIGABRT: abort, a failed assertion or a double free"),
    "fpe": (total("import os, signal; os.kill(os.getpid(), signal.SIGFPE)"), "stack/total", "crashed", "SIGFPE: integer division by zero"),
    "ill": (total("import os, signal; os.kill(os.getpid(), signal.SIGILL)"), "stack/total", "crashed", "SIGILL: trap or undefined behaviour"),
    "memory": (total("return bytearray(2 << 30)"), "stack/total", "memory", "Ran out of memory"),
    "killed": (total("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "stack/total", "memory", "memory limit is the likely cause"),
    "writes-argument": (total("s = float(xs.sum()); xs[:] = 0; return s"), "stack/total", "fail", ""),
    "base-exception": (total("class E(BaseException): pass\nraise E('odd')"), "stack/total", "raised", "E: odd"),
    "str-raises": (total("class E(Exception):\n    def __str__(self): raise ValueError\nraise E"), "stack/total", "raised", "in its own __str__"),
    "import-loop": ("while True: pass\n" + HONEST, "stack/total", "deadline", "Stopped after"),
    "import-segfault": ("import ctypes; ctypes.string_at(0)\n" + HONEST, "stack/total", "crashed", "SIGSEGV"),
    "state-between-calls": (total("total.n = getattr(total, 'n', 0) + 1\nif xs.size == 0: raise ValueError\nreturn float(xs.sum()) + (total.n > 3)"), "stack/total", "pass", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CHEATS, *FAULTS])
def test_submission(
    workers: Workers, unit: fixtures.Unit, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.runner.IMPORT_LIMIT_S", 1.0)
    source, case, expected, text = {**CHEATS, **FAULTS}[name]
    result = run(workers, unit, source).verdicts
    got, words = outcome(result, case)
    assert got == expected, (got, words, result[case].difference)
    assert text in words
    honest = run(workers, unit, HONEST).verdicts
    assert {v.outcome for v in honest.values()} == {"pass"}, {
        k: v.text for k, v in honest.items() if not v.passed
    }


def test_where_it_was(workers: Workers, unit: fixtures.Unit) -> None:
    """Hangs, crashes and raises name the learner's file and line."""
    source = total("x = 0\nwhile True:\n    x += 1")
    line = source.splitlines().index("    while True:") + 1
    stuck = run(workers, unit, source).verdicts["stack/total"]
    assert stuck.at is not None and Path(stuck.at[0]).name == "stack.py" and stuck.at[1] in (line, line + 1)
    source = total("import ctypes\nctypes.string_at(0)")
    crash = run(workers, unit, source).verdicts["stack/total"]
    assert crash.at == (str(TOY / "impl/stack.py"), source.splitlines().index("    ctypes.string_at(0)") + 1)
    source = total("return 1 / 0")
    raised = run(workers, unit, source).verdicts["stack/total"]
    assert raised.at == (str(TOY / "impl/stack.py"), source.splitlines().index("    return 1 / 0") + 1)


def test_a_void_group_runs_its_cases_alone(workers: Workers, unit: fixtures.Unit) -> None:
    result = run(workers, unit, total("if xs.size == 2: import os; os._exit(0)\nraise ValueError"))
    assert result.voided >= 1
    assert result.verdicts["stack/total"].outcome == "crashed"
    assert result.verdicts["stack/push-pop"].passed and result.verdicts["stack/double"].passed


def test_the_same_verdicts_every_time(workers: Workers, unit: fixtures.Unit) -> None:
    for source in (CHEATS["forges-records"][0], CHEATS["exit-in-call"][0]):
        seen = {str({k: v.outcome for k, v in run(workers, unit, source).verdicts.items()}) for _ in range(4)}
        assert len(seen) == 1, seen


def test_after_three_deadlines_the_rest_is_not_run(workers: Workers, unit: fixtures.Unit) -> None:
    cases = tuple(c.id for c in unit.cases)
    source = "class Stack:\n    def __init__(self, capacity):\n        while True: pass\n\n\ndef total(xs):\n    while True: pass\n"
    verdicts = run(workers, unit, source, cases, 0.3).verdicts
    found = [v.outcome for v in verdicts.values()]
    assert found.count("deadline") in (3, 4) and found.count("blocked") >= 1 and "pass" not in found
    assert "three cases of this unit ran out of time" in next(
        v.text for v in verdicts.values() if v.outcome == "blocked"
    )


def test_an_import_failure_is_reported_once_for_the_whole_unit(workers: Workers, unit: fixtures.Unit) -> None:
    verdicts = run(workers, unit, "import os\nos._exit(3)\n").verdicts
    assert {(v.outcome, v.step, v.text) for v in verdicts.values()} == {
        (
            "crashed",
            "import",
            "Your code ended the process (exit code 3) before returning a result. Remove exit(), quit() or os._exit().",
        )
    }


def test_state_that_spoils_a_later_call_is_unstable_or_wrong(workers: Workers, unit: fixtures.Unit) -> None:
    source = (
        HONEST
        + "\n_calls = 0\n_total = total\ndef total(xs):\n    global _calls\n    _calls += 1\n    return _total(xs) + (_calls > 2)\n"
    )
    base = bundle(Tree(TOY), TOY, ["impl.stack"])
    chosen = [c for c in unit.cases if c.id in (*CASES, "stack/total-order")]
    verdicts = Runner(unit, workers.opener(base, {"impl.stack": source})).run(chosen, twice=True).verdicts
    assert not verdicts["stack/total-order"].passed


def test_output_is_kept_capped_and_belongs_to_its_case(workers: Workers, unit: fixtures.Unit) -> None:
    result = run(workers, unit, total("print('mine' + 'x' * 200_000); return 0.0")).verdicts
    assert result["stack/total"].output.startswith("minex") and len(result["stack/total"].output) <= 64 << 10
    assert result["stack/double"].output == ""


def test_modules_beside_the_unit_are_never_imported(
    workers: Workers, unit: fixtures.Unit, tmp_path: Path
) -> None:
    for name in (
        "numpy.py",
        "json.py",
        "conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "x.pth",
        "atexit.py",
    ):
        (tmp_path / name).write_text("import os\nos.system('touch ' + __file__ + '.ran')\nraise SystemExit\n")
    (tmp_path / "impl").mkdir()
    (tmp_path / "impl" / "stack.py").write_text(HONEST)
    (tmp_path / "impl" / "numpy.py").write_text("raise SystemExit\n")
    graded = bundle(Tree(tmp_path), TOY, ["impl.stack"])
    verdicts = Runner(unit, workers.opener(graded)).run([c for c in unit.cases if c.id in CASES]).verdicts
    assert all(v.passed for v in verdicts.values())
    assert not list(tmp_path.rglob("*.ran"))


def test_the_reference_is_not_importable_by_the_learner(
    workers: Workers, unit: fixtures.Unit, tmp_path: Path
) -> None:
    (tmp_path / "impl").mkdir()
    for attempt in (
        "from impl.other import total",
        "import grader.compare",
        "import tests",
        "from impl import sampling",
    ):
        (tmp_path / "impl" / "stack.py").write_text(attempt + "\n" + HONEST)
        graded = bundle(Tree(tmp_path), TOY, ["impl.stack"])
        verdicts = (
            Runner(unit, workers.opener(graded))
            .run([c for c in unit.cases if c.id == "stack/total"])
            .verdicts
        )
        assert verdicts["stack/total"].outcome == "raised", attempt


def test_no_process_is_left(workers: Workers, unit: fixtures.Unit) -> None:
    before = children_of(workers.zygotes["python"].pid) if workers.zygotes else set()
    run(workers, unit, total("while True: pass"))
    run(workers, unit, CHEATS["forges-records"][0])
    assert workers.zygotes
    until = time.monotonic() + 3
    while children_of(workers.zygotes["python"].pid) - before and time.monotonic() < until:
        time.sleep(0.02)  # the kernel is still taking the last one down
    assert children_of(workers.zygotes["python"].pid) <= before


def test_what_a_submission_starts_ends_with_it(workers: Workers, unit: fixtures.Unit, tmp_path: Path) -> None:
    """Also where the session ends as it must, and passes."""
    note = tmp_path / "pid"
    start = "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
    start += f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
    source = replacing("import numpy as np\n", "import numpy as np\n" + start)
    assert all(v.passed for v in run(workers, unit, source).verdicts.values())
    pid, until = int(note.read_text()), time.monotonic() + 3
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """A zombie, which its new parent has yet to take down, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> set[str]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return set(listing.read_text().split()) if listing.exists() else set()


def test_no_descriptor_is_left(workers: Workers, unit: fixtures.Unit) -> None:
    """A diagnosis opens hundreds of sessions, and a process may have a thousand files open."""
    table = Path("/dev/fd")
    if not table.is_dir():
        pytest.skip("no list of open files here")
    run(workers, unit, HONEST)
    before = len(list(table.iterdir()))
    for source in (HONEST, total("import os; os._exit(0)"), total("while True: pass"), HONEST):
        run(workers, unit, source, limit_s=0.3)
    assert len(list(table.iterdir())) <= before


def test_what_level_1_does_not_contain_is_said() -> None:
    from grader.report import document

    said: dict[str, Any] = document("check", "pass", [])["isolation"]
    assert said["level"] == 1 and any("fixtures/" in item for item in said["not_contained"])
