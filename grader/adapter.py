"""Code under test in another language: a program that speaks JSON lines on its pipes (spec/protocol.md).

One program serves many sessions, because an interpreter may take a second to start. So a session ends with
a `reset` that must be answered in turn, not with the program's end: whatever the program printed too much,
or its death, shows there, and the session then proves nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader import frame, wire
from grader.answer import Answer, answer_of
from grader.errors import UsageError
from grader.launch import worker_env
from grader.session import OUTPUT_KEPT, SIGNALS, Bundle, Ended, Session

MAX_LINE = frame.MAX_HEADER + frame.MAX_BODY * 4 // 3  # what the frames of the worker allow, in base64
PIPE_SIZE = 1 << 20
RESET_LIMIT_S = 3.0
BYE_LIMIT_S = 1.0
EXIT_WAIT_S = 1.0  # how long a program may take to be gone after its pipes have closed


def environment() -> dict[str, str]:
    """The worker's clean environment, with the PATH and HOME by which interpreters are found."""
    return worker_env() | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class Program:
    """A running adapter: one answer per request, in order, and nothing else on its standard output."""

    def __init__(self, words: list[str]) -> None:
        try:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, env=environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            fix = "name a program that runs on this machine, such as an interpreter and its script"
            raise UsageError(f"cannot start {words[0]!r}: {error.strerror}", "--adapter", fix) from None
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.input, self.answers, self.errors = (pipe.fileno() for pipe in pipes if pipe is not None)
        for fd in (self.input, self.answers, self.errors):
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError, AttributeError):  # 64 KiB are little for tensors; Linux only
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self.poll = select.poll()
        self.poll.register(self.answers, select.POLLIN)
        self.poll.register(self.errors, select.POLLIN)
        self.data, self.text = bytearray(), bytearray()
        self.seq = 0
        self.alive = True

    # -- pipes --------------------------------------------------------------------------------------

    def take(self, fd: int) -> None:
        """Read what is there, if anything; the first part of standard error is kept, the rest drained."""
        try:
            chunk = os.read(fd, PIPE_SIZE)
        except BlockingIOError:
            return
        if fd == self.errors:
            self.text += chunk[: max(0, OUTPUT_KEPT - len(self.text))]
            if not chunk:
                with contextlib.suppress(KeyError):  # its end was seen before
                    self.poll.unregister(fd)
        elif chunk:
            self.data += chunk
        else:
            raise EOFError

    def quiet(self) -> None:
        """Nothing may come before a request was sent in full: it cannot be its answer."""
        for fd, _ in self.poll.poll(0):
            if fd != self.input:
                self.take(fd)
        if self.data:
            raise frame.ProtocolError(f"it wrote more than one answer to a request: {shown(self.data)}")

    def write(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        self.quiet()
        while view:
            try:
                view = view[os.write(self.input, view) :]
            except BlockingIOError:
                self.poll.register(self.input, select.POLLOUT)
                wait = until - time.monotonic()
                if wait <= 0 or not self.poll.poll(wait * 1000):
                    raise TimeoutError from None
                self.quiet()
                self.poll.unregister(self.input)

    def read_line(self, until: float) -> bytes:
        searched = 0
        while (end := self.data.find(b"\n", searched, MAX_LINE)) < 0:
            searched = len(self.data)
            if searched >= MAX_LINE:
                what = f"it wrote a line of more than {MAX_LINE} bytes: {shown(self.data)}"
                raise frame.ProtocolError(what)
            wait = until - time.monotonic()
            if wait <= 0:
                raise TimeoutError
            for fd, _ in self.poll.poll(wait * 1000):
                self.take(fd)
        line = bytes(self.data[:end])
        del self.data[: end + 1]
        return line

    # -- requests -----------------------------------------------------------------------------------

    def ask(self, message: dict[str, Any], limit_s: float) -> Answer:
        """Send one request and wait for its answer; anything else ends the program."""
        if not self.alive:
            raise Ended("protocol", "the adapter's session is over")
        until = time.monotonic() + limit_s
        request = {"seq": self.seq, **message, "limit_s": limit_s}
        text = json.dumps(request, separators=(",", ":"), allow_nan=False)
        try:
            self.write(text.encode() + b"\n", until)
            answer = self.understood(self.read_line(until))
            if "reset" in message and answer.kind != "ok":
                raise frame.ProtocolError(f"it answered {answer.kind} to reset")
            return answer
        except TimeoutError:
            self.kill()
            raise Ended("deadline", f"Stopped after {limit_s:g} s (limit {limit_s:g} s).") from None
        except (EOFError, OSError):
            raise self.ended() from None
        except frame.ProtocolError as error:
            self.kill()
            raise Ended("protocol", f"The adapter broke the protocol: {error}.") from None

    def understood(self, line: bytes) -> Answer:
        try:
            reply = json.loads(line.decode())
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise frame.ProtocolError(f"its standard output is for answers, and this is none: {shown(line)}")
        seq = reply.get("seq")
        if type(seq) is not int or seq != self.seq:
            raise frame.ProtocolError(f"an answer has seq {seq!r:.20}, its request had {self.seq}")
        self.seq += 1
        return answer_of(reply)

    # -- the end ------------------------------------------------------------------------------------

    def ended(self) -> Ended:
        """Why a pipe closed, from how the program ended."""
        try:
            code = self.process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return Ended("protocol", "The adapter closed its pipe and went on running.")
        self.kill()
        if code < 0:
            name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
            why = SIGNALS.get(name, "ended by a signal")
            return Ended("crashed", f"The adapter crashed ({name}: {why}).")
        return Ended("crashed", f"The adapter ended (exit code {code}) before it had answered.")

    def output(self) -> str:
        """What it wrote to standard error since the last call."""
        before = -1
        while self.alive and before != len(self.text):
            before = len(self.text)
            self.take(self.errors)
        text, self.text = self.text.decode("utf-8", "replace"), bytearray()
        return text

    def bye(self) -> None:
        """Let it end in peace; it is killed if it does not."""
        with contextlib.suppress(Ended, subprocess.TimeoutExpired):
            self.ask({"bye": True}, BYE_LIMIT_S)
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(BYE_LIMIT_S)
        self.kill()

    def kill(self) -> None:
        """End the whole process group; what it printed can still be asked for."""
        if not self.alive:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_WAIT_S)
        self.text = bytearray(self.output(), "utf-8")
        self.alive = False
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class AdapterSession:
    """A stretch of a program's life in which a group of cases is judged."""

    put = staticmethod(wire.as_base64)

    def __init__(self, program: Program, opener: Adapter) -> None:
        self.program, self.opener = program, opener
        self.holds_objects, self.greeted = False, ""
        self.queue: list[dict[str, Any]] = []
        self.libm: str | None = None
        self.bundle: Bundle | None = None  # the files are the program's own affair

    def send(self, message: dict[str, Any], limit_s: float, body: frame.Body | None = None) -> None:
        del limit_s, body  # a line at a time: it leaves when its answer is waited for; tensors are in it
        self.queue.append(message)

    def receive(self, limit_s: float) -> Answer:
        return self.program.ask(self.queue.pop(0), limit_s)

    def output(self) -> str:
        return self.program.output()

    def close(self) -> tuple[str, ...]:
        """The program must be alive and in step; then it may serve the next session."""
        self.program.ask({"reset": True}, RESET_LIMIT_S)
        self.opener.give_back(self.program)
        return ()

    def kill(self) -> None:
        self.program.kill()


class Adapter:
    """Opens sessions, each on a program that waits for work or on a new one; threads may share it."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.lock = threading.Lock()
        self.idle: list[Program] = []
        self.started: list[Program] = []
        atexit.register(self.kill)  # a program in an endless loop does not see that its input was closed

    def __call__(self) -> Session:
        while program := self.waiting():
            with contextlib.suppress(Ended):  # it died, or spoke, since its last session: start another
                program.ask({"reset": True}, RESET_LIMIT_S)
                return AdapterSession(program, self)
        program = Program(self.words)
        with self.lock:
            self.started = [p for p in self.started if p.alive] + [program]
        return AdapterSession(program, self)

    def waiting(self) -> Program | None:
        with self.lock:
            return self.idle.pop() if self.idle else None

    def give_back(self, program: Program) -> None:
        with self.lock:
            self.idle.append(program)

    def shutdown(self) -> None:
        """Say bye to every program that waits for work, and end the others."""
        while program := self.waiting():
            program.bye()
        self.kill()
        atexit.unregister(self.kill)

    def kill(self) -> None:
        for program in self.started:
            program.kill()


def opener(command: str) -> Adapter:
    """What runs `command`, a line as a shell would split it; nothing starts before the first session."""
    fix = 'give one, such as --adapter "python3 my_adapter.py"'
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {str(error).lower()}", "--adapter", fix) from None
    if not words:
        raise UsageError("the command is empty", "--adapter", fix)
    if shutil.which(words[0], path=environment()["PATH"]) is None:
        what = "not an executable file" if Path(words[0]).exists() else "no such program"
        fix = "name a program on PATH, or the path of an executable file"
        raise UsageError(f"{what}: {words[0]!r}", "--adapter", fix)
    return Adapter(words)


def shutdown(opened: Callable[[], Session]) -> None:
    """End the programs that an opener of this module has started."""
    if isinstance(opened, Adapter):
        opened.shutdown()


def shown(data: bytes | bytearray) -> str:
    """The start of what a program printed, on one line."""
    return repr(bytes(data[:80]).decode("utf-8", "replace")) + ("…" if len(data) > 80 else "")
