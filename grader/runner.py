"""Runs a unit's cases against code under test and decides what each run proves.

Quick cases share a session, because forking costs more than most cases. A session that does not end cleanly
proves nothing: it is void and its cases run alone, each in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader import FORMAT, frame, wire
from grader.answer import Answer
from grader.draw import shuffled
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.judge import SESSION_OUTCOMES, Judge, Request, Verdict, judge, raise_text
from grader.session import IMPORT_LIMIT_S, Bundle, Ended, Opener, Session, Workers
from grader.tree import module_of

THREE_DEADLINES = 3
SETTLE_LIMIT_S = 5.0
FEW = 10  # quick cases that are not worth another session
CALIBRATION_S = (
    0.05  # the calibration loop on the machine where the limits were set; measured, see calibrate()
)


@dataclass(slots=True)
class UnitRun:
    """What one run of a unit's cases gave; `loaded` are the files that were imported."""

    verdicts: dict[str, Verdict]
    loaded: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    voided: int = 0
    seconds: float = 0.0
    libm: str | None = "system"


class Shared:
    """What the jobs of one run have in common; jobs run on threads while children do the work."""

    def __init__(self, limit_scale: float = 1.0) -> None:
        self.lock = threading.Lock()
        self.deadlines = 0
        self.voided = 0
        self.loaded: set[str] = set()
        self.limit_scale = limit_scale
        self.unit_failure: Verdict | None = None
        self.libm: str | None = "system"
        self.stopped = False
        self.at_work: set[Session] = set()

    def stop(self) -> None:
        """End what runs now, so that Ctrl-C does not wait for a deadline; the threads see it end."""
        self.stopped = True
        with self.lock:
            pids = [pid for session in self.at_work if (pid := getattr(session, "pid", None))]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def add_deadline(self) -> None:
        with self.lock:
            self.deadlines += 1

    def slow_machine(self) -> bool:
        """Whether this machine is so slow that the limits double; asked at the first deadline, once."""
        with self.lock:
            if self.limit_scale == 1.0 and self.deadlines == 1 and calibrate() > 2 * CALIBRATION_S:
                self.limit_scale, self.deadlines = 2.0, 0
                return True
        return False

    @property
    def out_of_time(self) -> bool:
        return self.stopped or self.deadlines >= THREE_DEADLINES


class Runner:
    """Runs cases of one unit on sessions that `opener` opens.

    `reference` answers `same_as: reference`; it and `naive` are what a perf case compares times with.
    """

    def __init__(
        self,
        unit: Unit,
        opener: Opener,
        reference: Opener | None = None,
        jobs: int = 0,
        shrinking: bool = True,
        naive: Opener | None = None,
    ) -> None:
        self.unit, self.opener, self.reference, self.naive = unit, opener, reference, naive
        self.shrinking = shrinking
        self.jobs = jobs or min(2, os.cpu_count() or 1)

    def run(
        self,
        cases: Sequence[Case],
        twice: bool = False,
        on_case: Callable[[Verdict], None] = lambda verdict: None,
    ) -> UnitRun:
        """Every case once, or the passing ones twice in another order and company."""
        start = time.perf_counter()
        shared = Shared()
        timed = [case for case in cases if takes_times(case)]
        verdicts = self.once([case for case in cases if not takes_times(case)], 1, shared, on_case)
        for case in timed:  # alone, when nothing else of ours runs
            verdicts[case.id] = self.compared(case, shared)
            on_case(verdicts[case.id])
        if twice:
            once = ("property", "perf")
            again = [c for c in cases if verdicts[c.id].passed and c.verb not in once and not c.heavy]
            for name, second in self.once(again, 2, shared, lambda _: None).items():
                if not second.passed:
                    why = f"unstable: gave two answers: passed, then {second.outcome}"
                    what = f" ({second.text.rstrip('.')})" if second.text else ""
                    verdicts[name] = Verdict(
                        name, "fail", f"{why}{what}. Does it keep state between calls?",
                        step=second.step, difference=second.difference, at=second.at, files=second.files,
                    )  # fmt: skip
        settle_twins(self.unit, verdicts)
        verdicts = {case.id: verdicts[case.id] for case in cases}
        files = {file for verdict in verdicts.values() for file in verdict.files}
        return UnitRun(
            verdicts, shared.loaded, files, shared.voided, time.perf_counter() - start, shared.libm
        )

    def once(
        self, cases: Sequence[Case], turn: int, shared: Shared, on_case: Callable[[Verdict], None]
    ) -> dict[str, Verdict]:
        by_id = {case.id: case for case in cases}
        order = shuffled([c.id for c in cases if not (c.heavy or c.verb == "perf")], turn)
        # The longest jobs first, and for each core a large group and a small one, so that all end at about
        # the same time, unless there is so little to do that another session would cost more than it saves.
        n = min(3 * self.jobs, -(-len(order) // FEW))
        slices = [order[i::n] for i in range(n)]
        small = self.jobs if n == 3 * self.jobs else n
        large = [slices[i] + slices[i + 1] for i in range(small, n, 2)]
        groups = [[c.id] for c in cases if c.heavy or c.verb == "perf"] + large + slices[:small]
        jobs = [[by_id[name] for name in group] for group in groups if group]
        verdicts: dict[str, Verdict] = {}

        def work(job: list[Case]) -> None:
            done = [self.compared(job[0], shared)] if job[0].verb == "perf" else self.job(job, shared)
            for verdict in done:
                with shared.lock:
                    verdicts[verdict.case] = verdict
                    on_case(verdict)

        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for done in [pool.submit(work, job) for job in jobs]:
                    done.result()
            except BaseException:  # Ctrl-C, or a fault of ours in one of the jobs
                pool.shutdown(wait=False, cancel_futures=True)
                shared.stop()
                raise
        if shared.unit_failure is not None:
            return {case.id: failed_import(case, shared.unit_failure) for case in cases}
        return {case.id: verdicts[case.id] for case in cases}

    def compared(self, case: Case, shared: Shared) -> Verdict:
        """A perf case: two sessions at once, this code and what it is compared with."""
        from grader import perf

        if shared.unit_failure is not None:
            return failed_import(case, shared.unit_failure)
        if shared.out_of_time:
            return blocked(case)
        against = case.raw["perf"]["measure"].get("against")
        openers = {"reference": self.reference, "naive": self.naive}
        other = openers[against] if isinstance(against, str) and against in openers else self.opener
        if other is None:
            raise OwnFault(
                f"{case.id}: no {against} code to compare with", case.file, "impl/ is missing here"
            )
        opened: list[Session] = []
        try:
            for opener in (self.opener, other):
                opened.append(opener())
                failure = hello(opened[-1], self.unit.name)
                if failure is not None and opener is not self.opener:
                    raise OwnFault(f"the {against} code cannot be imported: {failure.text}", case.id)
                if failure is not None:
                    shared.unit_failure = failure
                    return failed_import(case, failure)
            verdict = perf.judge_perf(self.unit, case, *opened)
            verdict.output = opened[0].output()
            for session in opened:
                session.close()
            return self.whose(verdict, opened[0])
        except Ended as ended:
            if ended.outcome == "deadline":
                shared.add_deadline()
            output = opened[0].output() if opened else ""
            return Verdict(case.id, ended.outcome, ended.text, at=ended.at, output=output)
        finally:
            for session in opened:
                session.kill()

    # -- one job ------------------------------------------------------------------------------------

    def job(self, cases: list[Case], shared: Shared) -> list[Verdict]:
        """A group in one session; alone if the session is void."""
        if shared.unit_failure is not None:
            return []  # it is every case's verdict
        if shared.out_of_time:
            return [blocked(c) for c in cases]
        verdicts, clean = self.session(cases, shared)
        if shared.unit_failure is not None:
            return []
        if clean:
            return [verdicts[c.id] for c in cases]
        if len(cases) > 1:
            shared.voided += 1
        out = []
        for case in cases:
            known = verdicts.get(case.id)
            if known is not None and known.outcome == "deadline" and not shared.slow_machine():
                out.append(known)  # a deadline keeps its own case's outcome
            elif shared.out_of_time:
                out.append(blocked(case))
            elif len(cases) == 1 and known is not None and known.outcome in SESSION_OUTCOMES:
                out.append(known)
            else:
                out += self.session([case], shared)[0].values()
        return out

    def session(self, cases: list[Case], shared: Shared) -> tuple[dict[str, Verdict], bool]:
        """Judge cases in one session; clean only if the session ended as it must."""
        verdicts: dict[str, Verdict] = {}
        session: Session | None = None
        at_work = cases[0]
        try:
            session = self.opener()
            with shared.lock:
                shared.at_work.add(session)
            if shared.stopped:
                raise Ended("blocked", "interrupted")
            failure = hello(session, self.unit.name)
            if failure is not None:
                shared.unit_failure = failure
                session.kill()
                return verdicts, False
            shared.libm = session.libm
            with Reference(self.reference, self.unit.name) as reference:
                for case in cases:
                    at_work = case
                    verdict = drive(
                        judge(self.unit, case, self.shrinking), session, reference, shared.limit_scale
                    )
                    verdict = settled(verdict, session)
                    verdict.output = session.output()
                    verdicts[case.id] = self.whose(verdict, session)
            names = session.close()
            if session.bundle is not None:
                shared.loaded |= {session.bundle.files[n][0] for n in names if n in session.bundle.files}
            return verdicts, True
        except Ended as ended:
            if session is not None:
                session.kill()
            if ended.outcome == "deadline":
                shared.add_deadline()
            output = session.output() if session is not None else ""
            # What the session proved before is void too: the code may have prepared its end.
            verdicts[at_work.id] = Verdict(at_work.id, ended.outcome, ended.text, at=ended.at, output=output)
            if len(cases) > 1:
                return {k: v for k, v in verdicts.items() if v.outcome == "deadline"}, False
            return verdicts, False
        except BaseException:
            if session is not None:
                session.kill()
            raise
        finally:
            if session is not None:
                with shared.lock:
                    shared.at_work.discard(session)

    def whose(self, verdict: Verdict, session: Session) -> Verdict:
        """A pass must come from the files that were sent in; anything else did the work instead."""
        if not verdict.passed or session.bundle is None:
            return verdict
        known = {path for path, _, _ in session.bundle.files.values()}
        for file in verdict.files:
            if file not in known:
                where = f"came from {file}" if file else "has no Python source"
                text = f"What was called is not defined in your files: it {where}."
                return Verdict(verdict.case, "fail", text, output=verdict.output)
        return verdict


class Reference:
    """A lazy session with the reference, for the few properties that need a full implementation."""

    def __init__(self, opener: Opener | None, unit: str) -> None:
        self.opener, self.unit = opener, unit
        self.session: Session | None = None

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.session is not None:
            self.session.kill()

    def request(self, message: dict[str, Any], limit_s: float) -> Answer:
        if self.opener is None:
            raise OwnFault("no reference to compare with", self.unit, "impl/ is missing here")
        if self.session is None:
            self.session = self.opener()
            failure = hello(self.session, self.unit)
            if failure is not None:
                raise OwnFault(f"the reference cannot be imported: {failure.text}", self.unit)
        try:
            return ask(self.session, message, limit_s)
        except Ended as ended:
            raise OwnFault(f"the reference ended: {ended.text}", self.unit) from None


def hello(session: Session, unit: str) -> Verdict | None:
    """Import the unit; its failure is reported once and is every case's outcome."""
    try:
        if session.greeted != unit:
            session.send({"hello": FORMAT, "unit": unit}, IMPORT_LIMIT_S)
        answer = session.receive(IMPORT_LIMIT_S)
    except Ended as ended:
        return Verdict("", ended.outcome, ended.text, step="import", at=ended.at, output=session.output())
    if answer.kind == "ok":
        session.libm = answer.libm
        return None
    if answer.kind == "unsupported":
        return Verdict(
            "", "unsupported", f"the adapter does not support {unit}: {answer.value}", step="import"
        )
    raised = answer.raised
    output = session.output()
    if raised is None:
        return Verdict("", "protocol", f"answered {answer.kind} to hello", step="import", output=output)
    at = (raised.file, raised.line) if raised.file else None
    name = Path(raised.file).name if raised.file else f"{unit}.py"
    if raised.is_a("NotBuilt"):
        line = f", line {raised.line}" if raised.line else ""
        text = f"Could not build {name}{line}: {raised.text}."
        return Verdict("", "raised", text, step="import", raised=raised, at=at, output=output)
    if raised.is_a("SyntaxError") and raised.line:
        text = f"{name} line {raised.line}: {raised.text.partition(' (')[0]}."
    else:
        text = f"Could not import {name}: {raise_text(raised)}" + (
            f" (line {raised.line})." if raised.line else "."
        )
        if raised.is_a("ModuleNotFoundError") and "impl" not in raised.text:
            text += " Only numpy and the standard library are available here."
    return Verdict("", "raised", text, step="import", raised=raised, at=at, output=output)


def send(session: Session, message: dict[str, Any], limit_s: float) -> None:
    """Encode a message's values for the session's transport and send it."""
    encoded = dict(message)
    body = frame.Body()
    put = getattr(session, "put", None) or body.put
    if "args" in message:
        encoded["args"] = {name: wire.encode(value, put) for name, value in message["args"].items()}
    if "each" in message:
        encoded["each"] = [{k: wire.encode(v, put) for k, v in args.items()} for args in message["each"]]
    if "observe" in message:
        encoded["observe"] = [
            {**look, "args": {k: wire.encode(v, put) for k, v in look["args"].items()}}
            if "args" in look
            else look
            for look in message["observe"]
        ]
    session.send(encoded, limit_s, body)


def ask(session: Session, message: dict[str, Any], limit_s: float) -> Answer:
    send(session, message, limit_s)
    return session.receive(limit_s)


def drive(judged: Judge, session: Session, reference: Reference, scale: float = 1.0) -> Verdict:
    """Run a judge to its verdict. Steps go one at a time: the next leaves once the last answer is judged."""
    sent: list[Request] = []
    try:
        request = next(judged)
        while True:
            limit_s = request.limit_s * scale
            if request.who == "reference":
                answer = reference.request(request.message, limit_s)
            elif "reset" in request.message and not (session.holds_objects or settles(session)):
                answer = Answer("ok")  # there is nothing to drop
                sent = send_ahead(session, request, scale)
            else:
                if sent and sent[0] is request:
                    sent.pop(0)
                else:
                    send(session, request.message, limit_s)
                    sent = send_ahead(session, request, scale)
                answer = session.receive(limit_s)
            request = judged.send(answer)
    except StopIteration as stop:
        for left in sent:  # asked in advance and not needed: the session must stay in step
            session.receive(left.limit_s * scale)
        verdict: Verdict = stop.value
        return verdict


def settles(session: Session) -> bool:
    return session.bundle is not None and session.bundle.settles


def settled(verdict: Verdict, session: Session) -> Verdict:
    """A pass leaves nothing behind: no live block, no misuse of the hook, no write around an object."""
    if not settles(session):
        return verdict
    answer = ask(session, {"settle": True}, SETTLE_LIMIT_S)  # after a failure too: the next case starts clean
    if not verdict.passed:
        return verdict
    left = answer.value if isinstance(answer.value, dict) else {"misuse": "no answer"}
    wrong = left.get("misuse") or ""
    if left.get("damaged"):
        wrong = wrong or f"a write beyond the bounds of {left['damaged']}"
    if left.get("live"):
        blocks = "1 block is" if left["live"] == 1 else f"{left['live']} blocks are"
        wrong = wrong or f"{blocks} still allocated after every object was destroyed: a leak"
    if wrong:
        return Verdict(verdict.case, "fail", f"At the end of the case: {wrong}.", files=verdict.files)
    return verdict


def send_ahead(session: Session, request: Request, scale: float) -> list[Request]:
    for other in request.ahead:
        send(session, other.message, other.limit_s * scale)
    session.holds_objects = any("save" in other.message for other in (request, *request.ahead)) or (
        session.holds_objects and "reset" not in request.message
    )
    return list(request.ahead)


def takes_times(case: Case) -> bool:
    """Whether a case measures times, so that nothing may run beside it; counted work does not care."""
    return case.verb == "perf" and case.raw["perf"]["measure"]["metric"] == "time_ratio"


def settle_twins(unit: Unit, verdicts: dict[str, Verdict]) -> None:
    """A raising case proves nothing while the same call without the fault does not work."""
    for case in unit.cases:
        verdict = verdicts.get(case.id)
        twin = case.raw.get("twin")
        if verdict is None or not twin or not verdict.passed or twin not in verdicts:
            continue
        if not verdicts[twin].passed:
            verdict.outcome = "inconclusive"
            verdict.text = f"raised as it must, but its twin {twin} does not pass, so this proves nothing yet"


def baseline(unit: Unit, workers: Workers, course: Bundle) -> Opener | None:
    """What opens sessions with the naive code that perf cases compare with, where a unit has one."""
    path = unit.dir / "baseline" / "naive.py"
    if not path.is_file():
        return None
    return workers.opener(course, {module_of(unit.stage.files[0]): path.read_text()})


def failed_import(case: Case, failure: Verdict) -> Verdict:
    """A file that cannot be imported is every case's verdict."""
    return Verdict(
        case.id, failure.outcome, failure.text, step="import", raised=failure.raised, at=failure.at,
        output=failure.output,
    )  # fmt: skip


def blocked(case: Case) -> Verdict:
    return Verdict(case.id, "blocked", "not run: three cases of this unit ran out of time")


def with_twins(unit: Unit, cases: Sequence[Case]) -> list[Case]:
    """The cases and the twins they lean on, in the order of the fixtures."""
    wanted = {case.id for case in cases} | {case.raw["twin"] for case in cases if "twin" in case.raw}
    return [case for case in unit.cases if case.id in wanted]


def calibrate() -> float:
    """Seconds of a fixed loop of Python arithmetic, to see how slow this machine is."""
    start = time.perf_counter()
    x = 1
    for _ in range(300_000):
        x = (x * 6364136223846793005 + 1) & 0xFFFFFFFFFFFFFFFF
    return time.perf_counter() - start
