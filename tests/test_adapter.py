"""Programs behind the line protocol: every way in which one can fail, and two units graded through one."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grader import adapter, fixtures, path, runner, tree
from grader.adapter import Adapter, AdapterSession
from grader.errors import USAGE, UsageError
from grader.fixtures import Unit
from grader.runner import Runner
from grader.session import OUTPUT_KEPT, Ended, Workers

ROOT = Path(__file__).resolve().parent.parent
TOY = Path(__file__).resolve().parent / "toy"
PLAIN = ROOT / "practice" / "adapters" / "plain_python" / "adapter.py"

# Each function to call is a fault. Raw descriptors: nothing is buffered, so what is written is sent.
FAULTY = r"""
import json, os, signal, subprocess, sys, time

def say(seq, **answer):
    line = json.dumps({"seq": seq, **answer}) + "\n"
    os.write(1, line.encode())

def hangs(seq): time.sleep(60)
def dies(seq): os._exit(3)
def crashes(seq): os.kill(os.getpid(), signal.SIGSEGV)
def killed(seq): os.kill(os.getpid(), signal.SIGRTMIN + 1)
def complains_and_dies(seq): os.write(2, b"no such module\n"); os._exit(1)
def prints(seq): os.write(1, b"hello\n")
def prints_bytes(seq): os.write(1, b"\xff\xfe\n")
def prints_a_list(seq): os.write(1, b"[1]\n")
def prints_deep(seq): os.write(1, b"[" * 100000 + b"\n")
def prints_an_empty_line(seq): os.write(1, b"\n")
def answers_half(seq): os.write(1, b'{"seq": '); time.sleep(60)
def wrong_seq(seq): say(seq + 1, ok=True)
def old_seq(seq): say(seq - 1, ok=True)
def true_seq(seq): say(True, ok=True)
def no_seq(seq): os.write(1, b'{"ok": true}\n')
def two_kinds(seq): say(seq, ok=True, **{"return": 1})
def no_kind(seq): say(seq, phase="call")
def unknown_kind(seq): say(seq, answer=1)
def decimal_float(seq): say(seq, **{"return": 1.5})
def bad_tensor(seq): say(seq, **{"return": {"f64": {"shape": [2], "base64": ""}}})
def huge_line(seq):
    with open(1, "wb", closefd=False) as out: out.write(b'{"x": "' + b"x" * (13 << 20) + b'"}\n')
def endless_line(seq):
    with open(1, "wb", closefd=False) as out:
        while True: out.write(b"x" * (1 << 20))
def closes_output(seq): os.close(1); time.sleep(60)
def closes_input(seq): say(seq, ok=True); os.close(0); time.sleep(60)
def stops_reading(seq): say(seq, ok=True); time.sleep(60)
def answers_twice(seq): say(seq, ok=True); say(seq, ok=True)
def answers_ahead(seq): say(seq, ok=True); say(seq + 1, ok=True)
def answers_then_dies(seq): say(seq, ok=True); os._exit(0)
def answers_late(seq): say(seq, ok=True); time.sleep(0.1); say(seq, ok=True)
def ignores_bye(seq):
    say(seq, ok=True)
    for line in sys.stdin: pass
    time.sleep(60)
def chatters(seq): os.write(2, b"x" * (3 << 20)); say(seq, ok=True)
def mutters(seq): os.write(2, "caf\u00e9\n".encode()); say(seq, ok=True)
def closes_errors(seq): os.close(2); say(seq, ok=True)
def refuses_reset(seq): global refuse; refuse = True; say(seq, ok=True)
def has_a_child(seq):
    child = subprocess.Popen(["sleep", "60"])
    say(seq, **{"return": child.pid})
def knows(seq): say(seq, **{"return": sorted(os.environ)})
def adds_a_key(seq): say(seq, ok=True, note="unknown keys are ignored")
def writes_cr(seq): os.write(1, json.dumps({"seq": seq, "ok": True}).encode() + b"\r\n")

refuse = False
for line in sys.stdin:
    request = json.loads(line)
    if "call" in request:
        globals()[request["call"]](request["seq"])
    elif "reset" in request and refuse:
        say(request["seq"], unsupported="reset")
    else:
        say(request["seq"], ok=True)
    if "bye" in request:
        break
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Adapter]:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    opener = adapter.opener(f"{sys.executable} -I -S '{script}'")
    yield opener
    opener.kill()


def call(session: Any, name: str, limit_s: float = 5.0, **args: Any) -> Any:
    session.send({"call": name, "args": args}, limit_s)
    return session.receive(limit_s)


def ended(act: Callable[[], Any]) -> Ended:
    with pytest.raises(Ended) as caught:
        act()
    return caught.value


# -- one request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("hangs", "deadline", "Stopped after 0.2 s (limit 0.2 s)."),
        ("answers_half", "deadline", "Stopped after 0.2 s"),
        ("dies", "crashed", "The adapter ended (exit code 3) before it had answered."),
        ("crashes", "crashed", "The adapter crashed (SIGSEGV: invalid memory access"),
        ("killed", "crashed", "The adapter crashed (signal 35: ended by a signal)."),
        ("prints", "protocol", "its standard output is for answers, and this is none: 'hello'"),
        ("prints_bytes", "protocol", "this is none: '\ufffd\ufffd'"),
        ("prints_a_list", "protocol", "this is none: '[1]'"),
        ("prints_deep", "protocol", "this is none: '[[["),
        ("prints_an_empty_line", "protocol", "this is none: ''"),
        ("wrong_seq", "protocol", "an answer has seq 2, its request had 1"),
        ("old_seq", "protocol", "an answer has seq 0, its request had 1"),
        ("true_seq", "protocol", "an answer has seq True, its request had 1"),
        ("no_seq", "protocol", "an answer has seq None, its request had 1"),
        ("two_kinds", "protocol", "an answer with 2 of return, raises, unsupported, ok"),
        ("no_kind", "protocol", "an answer with 0 of return, raises, unsupported, ok"),
        ("unknown_kind", "protocol", "an answer with 0 of return, raises, unsupported, ok"),
        ("decimal_float", "protocol", "not a value: 1.5"),
        ("bad_tensor", "protocol", "shape [2] of f64 needs 16 bytes, got 0"),
        ("huge_line", "protocol", "it wrote a line of more than 12233386 bytes"),
        ("endless_line", "protocol", "it wrote a line of more than 12233386 bytes"),
        ("closes_output", "protocol", "The adapter closed its pipe and went on running."),
    ],
)
def test_fault_ends_the_session(
    faulty: Adapter, monkeypatch: pytest.MonkeyPatch, name: str, outcome: str, words: str
) -> None:
    if name == "closes_output":
        monkeypatch.setattr(adapter, "EXIT_WAIT_S", 0.1)
    session = faulty()
    assert call(session, "adds_a_key").kind == "ok"
    limit_s = 0.2 if outcome == "deadline" else 5.0
    fault = ended(lambda: call(session, name, limit_s))
    assert (fault.outcome, words in fault.text) == (outcome, True), fault.text
    assert not is_running(faulty.started[0].process.pid)
    assert ended(lambda: call(session, "adds_a_key")).text == "the adapter's session is over"


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("answers_twice", "protocol", 'it wrote more than one answer to a request: \'{"seq": 1, "ok"'),
        ("answers_ahead", "protocol", "it wrote more than one answer to a request"),
        ("answers_then_dies", "crashed", "The adapter ended (exit code 0) before it had answered."),
        ("refuses_reset", "protocol", "it answered unsupported to reset"),
    ],
)
def test_fault_after_the_last_answer_voids_the_session(
    faulty: Adapter, name: str, outcome: str, words: str
) -> None:
    session = faulty()
    assert call(session, "adds_a_key").kind == "ok"
    assert call(session, name).kind == "ok"
    time.sleep(0.05)
    fault = ended(session.close)
    assert (fault.outcome, words in fault.text) == (outcome, True), fault.text
    assert faulty.idle == []


def test_answer_that_comes_late_is_not_taken_for_the_next(faulty: Adapter) -> None:
    session = faulty()
    assert call(session, "answers_late").kind == "ok"
    fault = ended(lambda: call(session, "adds_a_key"))
    assert fault.text == "The adapter broke the protocol: an answer has seq 0, its request had 1."


@pytest.mark.parametrize(
    ("name", "limit_s", "outcome", "words"),
    [
        ("closes_input", 5.0, "protocol", "The adapter closed its pipe and went on running."),
        ("stops_reading", 0.2, "deadline", "Stopped after 0.2 s"),
    ],
)
def test_request_that_is_not_read(
    faulty: Adapter, monkeypatch: pytest.MonkeyPatch, name: str, limit_s: float, outcome: str, words: str
) -> None:
    monkeypatch.setattr(adapter, "EXIT_WAIT_S", 0.1)
    session = faulty()
    assert call(session, name).kind == "ok"
    time.sleep(0.05)
    fault = ended(lambda: call(session, "adds_a_key", limit_s, x="x" * (2 << 20)))
    assert (fault.outcome, words in fault.text) == (outcome, True), fault.text


def test_harmless_oddities_are_taken(faulty: Adapter) -> None:
    session = faulty()
    for name in ("adds_a_key", "writes_cr", "closes_errors", "adds_a_key"):
        assert call(session, name).kind == "ok"
    session.close()
    assert session.output() == ""


def test_large_messages_go_both_ways(faulty: Adapter) -> None:
    assert call(faulty(), "adds_a_key", 5.0, x="x" * (9 << 20)).kind == "ok"


def test_standard_error_is_the_output_and_is_capped(faulty: Adapter) -> None:
    session = faulty()
    call(session, "mutters")
    assert session.output() == "caf\u00e9\n"
    assert session.output() == ""
    call(session, "chatters")
    assert session.output() == "x" * OUTPUT_KEPT
    fault = ended(lambda: call(session, "complains_and_dies"))
    assert fault.text == "The adapter ended (exit code 1) before it had answered."
    assert session.output() == "no such module\n"


# -- processes ------------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """Whether a process lives; one that was killed and not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 3
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_one_process_serves_many_sessions(faulty: Adapter) -> None:
    first = faulty()
    call(first, "adds_a_key")
    first.close()
    second = faulty()
    assert call(second, "adds_a_key").kind == "ok"
    assert isinstance(first, AdapterSession) and isinstance(second, AdapterSession)
    assert second.program is first.program
    assert first.libm is None and first.bundle is None


def test_sessions_at_the_same_time_have_processes_of_their_own(faulty: Adapter) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(faulty())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({session.program.process.pid for session in found}) == 2


@pytest.mark.parametrize("name", ["answers_then_dies", "answers_twice", "refuses_reset"])
def test_process_that_failed_between_sessions_is_replaced(faulty: Adapter, name: str) -> None:
    session = faulty()
    assert isinstance(session, AdapterSession)
    call(session, name)
    faulty.give_back(session.program)
    time.sleep(0.05)
    other = faulty()
    assert call(other, "adds_a_key").kind == "ok"
    assert not is_running(session.program.process.pid)


def test_end_takes_the_whole_process_group(faulty: Adapter) -> None:
    session = faulty()
    child = call(session, "has_a_child").value
    assert is_running(child)
    session.kill()
    assert wait_for(lambda: not is_running(child))


def test_shutdown_says_bye_and_ends_what_ignores_it(faulty: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "BYE_LIMIT_S", 0.2)
    polite, deaf, busy = faulty(), faulty(), faulty()
    polite.close()
    call(deaf, "ignores_bye")
    assert isinstance(deaf, AdapterSession) and isinstance(busy, AdapterSession)
    faulty.give_back(deaf.program)
    adapter.shutdown(faulty)
    codes = [program.process.returncode for program in faulty.started]
    assert codes == [0, -9, -9]
    assert ended(lambda: call(busy, "adds_a_key")).outcome == "protocol"


def test_shutdown_is_for_adapters_alone() -> None:
    def other() -> Any:
        raise AssertionError("never opened")

    adapter.shutdown(other)


def test_environment_is_clean(faulty: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("HOME", "/somewhere")
    names = call(faulty(), "knows").value
    assert "SECRET_TOKEN" not in names
    assert {"PATH", "HOME", "OMP_NUM_THREADS"} <= set(names)
    assert adapter.environment()["HOME"] == "/somewhere"
    assert adapter.environment()["PATH"] == os.environ["PATH"]


# -- the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "the command is empty · --adapter · give one, such as"),
        ("  ", "the command is empty"),
        ("python3 'x.py", "the command cannot be read: no closing quotation · --adapter"),
        ("no-such-interpreter x.py", "no such program: 'no-such-interpreter' · --adapter · name a program"),
        ("/no/such/adapter", "no such program: '/no/such/adapter'"),
        ("{plain}", "not an executable file: '{plain}'"),
    ],
)
def test_command_that_names_no_program(tmp_path: Path, command: str, words: str) -> None:
    plain = tmp_path / "adapter"
    plain.write_text("print()\n")
    with pytest.raises(UsageError) as caught:
        adapter.opener(command.format(plain=plain))
    assert words.format(plain=plain) in str(caught.value)
    assert caught.value.exit_code == USAGE


def test_program_that_cannot_be_executed(tmp_path: Path) -> None:
    script = tmp_path / "no-first-line"
    script.write_bytes(b"\0\1\2")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(UsageError, match=r"cannot start .*no-first-line': Exec format error · --adapter"):
        adapter.opener(str(script))()


# -- units graded through an adapter --------------------------------------------------------------------

STACK = r"""
import base64, json, os, struct, sys
fault = sys.argv[1]

class Full(RuntimeError): pass

class Stack:
    def __init__(self, capacity): self.capacity, self.items = capacity, []
    def push(self, x):
        if len(self.items) >= self.capacity: raise Full("full")
        self.items.append(x)
        return len(self.items)
    def push_all(self, xs): return [self.push(x) for x in xs][-1]
    def pop(self): return self.items.pop()
    def stats(self): return {"size": len(self.items), "room": self.capacity - len(self.items)}

class Vector(list): dtype = "f64"

def total(xs):
    if fault == "dies-in-total" and len(xs) == 2: os._exit(7)
    if fault == "todo": raise NotImplementedError
    if not xs and fault != "raises-nothing": raise ValueError("empty")
    s = 0.0
    for x in xs: s += x
    return s + (fault == "wrong")
def label(n): return [10 * i for i in range(n)]
def double(xs): xs[:] = [2 * x for x in xs] if fault != "copies" else xs
def pick(items, i): return items[i]

NAMES = {"Stack": Stack, "total": total, "label": label, "double": double, "pick": pick}
CODES = {"f64": "d", "f32": "f"}
objects = {}

def value(node):
    if isinstance(node, dict):
        (dtype, spec), = node.items()
        raw = base64.b64decode(spec["base64"])
        vector = Vector(struct.unpack("<%d%s" % (*spec["shape"], CODES[dtype]), raw))
        vector.dtype = dtype
        return vector
    return [value(item) for item in node] if isinstance(node, list) else node
def put(x):
    if isinstance(x, Vector):
        raw = struct.pack("<%d%s" % (len(x), CODES[x.dtype]), *x)
        return {x.dtype: {"shape": [len(x)], "base64": base64.b64encode(raw).decode()}}
    if isinstance(x, float): return {"f64": struct.pack(">d", x).hex()}
    if isinstance(x, dict): return {"map": [[k, put(v)] for k, v in x.items()]}
    return [put(v) for v in x] if isinstance(x, list) else x

def answer(request):
    kind = next(k for k in ("hello", "reset", "bye", "observe", "new", "call", "do", "get") if k in request)
    if kind == "hello":
        if fault == "no-unit": return {"unsupported": "it has no stack"}
        if fault == "no-import":
            return {"raises": {"class": "ImportError", "text": "no library"}, "phase": "import"}
        return {"ok": {"libm": "system"} if fault == "libm" else {}}
    if kind in ("reset", "bye"):
        objects.clear()
        return {"ok": True}
    if kind == "observe":
        if fault == "no-observe": return {"unsupported": "observe"}
        looks = [answer(look) for look in request["observe"]]
        return {"observed": looks[1:] if fault == "observes-too-little" else looks}
    name, owner = request[kind], objects.get(request.get("on"))
    if fault == "no-stack" and name == "Stack" or not hasattr(owner, name) and name not in NAMES:
        return {"unsupported": name}
    args = {k: value(v) for k, v in request.get("args", {}).items()}
    try:
        result = getattr(owner, name) if owner else NAMES[name]
        if kind != "get": result = result(**args)
        for step in request.get("path", []): result = result[step]
    except Exception as error:
        names = [k.__name__ for k in type(error).__mro__][:-3]
        return {"raises": {"class": names[0], "bases": names}}
    if "save" in request:
        objects[request["save"]] = result
        return {"ok": True}
    if fault == "ok-for-a-value" and kind == "do": return {"ok": True}
    return {"return": put(result), "args": {k: put(args[k]) for k in request.get("back", [])}}

for line in sys.stdin:
    request = json.loads(line)
    if "total" in request.values(): print("adding", file=sys.stderr, flush=True)
    print(json.dumps({"seq": request["seq"], **answer(request)}), flush=True)
    if "bye" in request: break
"""


@pytest.fixture(scope="module")
def toy() -> Unit:
    return fixtures.load(path.read_path(TOY / "path.tsv")[0], TOY)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
def grade(toy: Unit, workers: Workers, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    script = tmp_path / "stack.py"
    script.write_text(STACK)
    reference = workers.opener(tree.bundle(tree.Tree(TOY, kind="reference"), TOY, ["impl.stack"]))
    opened: list[Adapter] = []

    def run(fault: str = "none", only: str = "", twice: bool = False, jobs: int = 0) -> Any:
        opened.append(adapter.opener(f"{sys.executable} -I -S '{script}' {fault}"))
        chosen = [case for case in toy.cases if not only or case.id.partition("/")[2] in only.split()]
        return Runner(toy, opened[-1], reference, jobs).run(chosen, twice)

    yield run
    for opener in opened:
        opener.shutdown()


def outcomes(run: Any) -> dict[str, str]:
    return {name.partition("/")[2]: verdict.outcome for name, verdict in run.verdicts.items()}


def test_toy_unit_passes_through_an_adapter(grade: Callable[..., Any], toy: Unit) -> None:
    run = grade(twice=True)
    found = outcomes(run)
    assert len(found) == len(toy.cases)
    assert {name: outcome for name, outcome in found.items() if outcome not in ("pass", "unsupported")} == {}
    assert {found[name] for name in ("push-pop", "total", "label", "double", "random-operations")} == {"pass"}
    assert (run.libm, run.voided) == (None, 0)


def test_adapter_says_whose_libm_it_has(grade: Callable[..., Any]) -> None:
    assert grade("libm", "label").libm == "system"


@pytest.mark.parametrize(
    ("fault", "case", "outcome", "words"),
    [
        ("wrong", "total", "fail", ""),
        ("copies", "double", "fail", ""),
        ("raises-nothing", "total-empty", "fail", ""),
        ("todo", "total", "todo", "not written yet"),
        ("no-stack", "push-pop", "unsupported", "the adapter does not support this: Stack"),
        ("no-observe", "push-pop", "unsupported", "the adapter does not support this: observe"),
        ("no-observe", "random-operations", "unsupported", "the adapter does not support this: observe"),
        ("observes-too-little", "push-pop", "protocol", "answered observed where a value was due"),
        ("observes-too-little", "random-operations", "protocol", "answered observed where a value was due"),
        ("ok-for-a-value", "push-pop", "protocol", "answered ok where a value was due"),
        ("no-unit", "label", "unsupported", "the adapter does not support stack: it has no stack"),
        ("no-import", "label", "raised", "Could not import stack.py: ImportError: no library."),
    ],
)
def test_fault_of_a_unit_behind_an_adapter(
    grade: Callable[..., Any], fault: str, case: str, outcome: str, words: str
) -> None:
    run = grade(fault, f"{case} label total")
    verdict = run.verdicts[f"stack/{case}"]
    assert (verdict.outcome, words in verdict.text) == (outcome, True), verdict
    assert (outcomes(run)["label"] == "pass") == (case != "label")


def test_group_in_which_the_adapter_dies_is_void_and_run_case_by_case(grade: Callable[..., Any]) -> None:
    run = grade("dies-in-total", "push-pop label double total", jobs=1)
    assert run.verdicts["stack/total"].text == "The adapter ended (exit code 7) before it had answered."
    assert run.verdicts["stack/total"].output == "adding\n"
    assert outcomes(run) == {"push-pop": "pass", "label": "pass", "double": "pass", "total": "crashed"}
    assert run.voided == 1


def test_plain_python_sampler_passes_every_case(workers: Workers) -> None:
    stage = next(stage for stage in path.read_path(ROOT / "path.tsv") if stage.unit == "sampling")
    unit = fixtures.load(stage, ROOT)
    bundle = tree.bundle(tree.Tree(ROOT, kind="reference"), ROOT, ["impl.sampling"])
    opener = adapter.opener(f"{sys.executable} -I -S '{PLAIN}'")
    with contextlib.ExitStack() as stack:
        stack.callback(opener.shutdown)
        run = Runner(unit, opener, workers.opener(bundle)).run(unit.cases)
    failed = {name: verdict for name, verdict in run.verdicts.items() if not verdict.passed}
    needs_libm = {case.id for case in unit.cases if "libm" in case.raw.get("needs", [])}
    assert run.libm is None
    assert len(run.verdicts) > 100
    assert failed.keys() <= needs_libm, failed


def test_runner_reports_a_program_that_is_gone(toy: Unit, tmp_path: Path) -> None:
    script = tmp_path / "gone"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    opener = adapter.opener(str(script))
    script.unlink()
    with pytest.raises(UsageError, match=r"cannot start .*gone': No such file or directory"):
        runner.Runner(toy, opener).run(toy.cases)
