"""The grader's side of a conversation with code under test.

`Zygote` starts the worker process (worker.py) and forks a child per session; `ForkSession` is one child.
The kernel's word on how a child ended comes from the zygote, never from the child. A session that does not
end with an acknowledged `bye`, end of file without a surplus byte, and status 0 proves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from grader import FORMAT, frame, launch

if TYPE_CHECKING:
    from grader.answer import Answer
    from grader.frame import Body

OUTPUT_KEPT = 64 << 10  # bytes of the learner's own output that are kept; the rest is drained
IMPORT_LIMIT_S = 10.0
LIMITS = {"AS": 1 << 30, "CPU": 120, "FSIZE": 16 << 20, "NOFILE": 64, "CORE": 0}
# What faulthandler writes of a hang, of an idle child, or of a crash; none of it is the learner's output.
TRACEBACK = re.compile(
    r"^(?:Timeout \([0-9:.]+\)!|Fatal Python error: .*)\n(?:(?:Thread|Current thread) 0x.*\n|  File .*\n"
    r"|  <.*>\n|  \.\.\.\n|Extension modules: .*\n?|\n)*|^\n?@tk (?:fault|still) .*\n",
    re.MULTILINE,
)
FRAMES_FOLLOW = ("Timeout (", "Fatal Python error", "Thread 0x", "Current thread 0x")
SIGNALS = {
    "SIGSEGV": "invalid memory access; usually an index past the end of an array",  # library.GUESS
    "SIGBUS": "invalid memory access",
    "SIGFPE": "integer division by zero",
    "SIGILL": "trap or undefined behaviour",
    "SIGABRT": "abort, a failed assertion or a double free",
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that answer for `impl`: {module: (path, source, is_package)}, and whose they are."""

    key: str
    files: Mapping[str, tuple[str, str, bool]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    warm: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()  # modules that are the grader's own copies
    memory: int = LIMITS["AS"]  # bytes of address space; 0: no limit

    @property
    def worker(self) -> str:
        """Which worker runs it; there is one of each kind."""
        return "python"

    @property
    def settles(self) -> bool:
        """Whether something can be left over at the end of a case."""
        return False

    def start(self) -> tuple[int, socket.socket]:
        """Start a worker for it."""
        return launch.worker()

    def loading(self) -> dict[str, Any]:
        """The message that tells a worker of it."""
        files = [[name, *entry] for name, entry in self.files.items()]
        return {"load": self.key, "files": files, "aliases": dict(self.aliases), "warm": self.warm}

    def explained(self, ended: Ended, text: str) -> Ended:
        """How a session ended, with what its output says of it."""
        del text
        return ended


class Ended(Exception):
    """The session is over without an answer: the outcome, why, and where it was."""

    def __init__(self, outcome: str, text: str, at: tuple[str, int] | None = None) -> None:
        super().__init__(text)
        self.outcome, self.text, self.at = outcome, text, at


class Session(Protocol):
    """What the judge talks to: the Python worker or a program behind the line protocol."""

    libm: str | None
    bundle: Bundle | None
    holds_objects: bool  # whether there is anything to reset
    greeted: str  # the unit that `hello` was sent for already

    def send(self, message: dict[str, Any], limit_s: float, body: Body | None = None) -> None: ...
    def receive(self, limit_s: float) -> Answer: ...
    def output(self) -> str: ...
    def close(self) -> tuple[str, ...]: ...
    def kill(self) -> None: ...


Opener = Callable[[], Session]


class Zygote:
    """A warm worker: the one that was started before anything else was imported, or a new one.

    Level 1 of design section 5. Levels 2 and 3 put their isolation on in the child after the fork, or wrap
    the worker's command: they hang on `limits` and on launch.py.
    """

    level = 1

    def __init__(self, started: tuple[int, socket.socket] | None = None) -> None:
        self.pid, self.control = started or launch.worker()
        self.data = bytearray()
        self.notices: dict[int, tuple[int, float]] = {}
        self.loaded: set[str] = set()
        self.versions: dict[str, str] = {}
        self.starting: list[ForkSession] = []  # in the order in which their pids will come
        self.refused = ""
        self.alive = True
        self.lock = threading.RLock()  # sessions on two threads read the same control channel

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        text = json.dumps(message).encode()
        raw = struct.pack("<I", len(text)) + text
        try:
            if fds:
                sent = socket.send_fds(self.control, [raw], fds)
                self.control.sendall(raw[sent:])
            else:
                self.control.sendall(raw)
        except OSError:
            self.alive = False

    def read(self, until: float) -> dict[str, Any] | None:
        """The next message of the zygote; None at the deadline or when it has gone."""
        while True:
            if len(self.data) >= 4 and len(self.data) >= 4 + (n := struct.unpack_from("<I", self.data)[0]):
                message: dict[str, Any] = json.loads(bytes(self.data[4 : 4 + n]))
                del self.data[: 4 + n]
                return message
            wait = until - time.monotonic()
            if not self.alive or wait < 0 or not select.select([self.control], [], [], wait)[0]:
                return None
            try:
                chunk = self.control.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                self.alive = False
                return None
            self.data += chunk

    def note(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            self.notices[message["exit"]] = (message["status"], message["cpu_s"])
        elif "pid" in message:
            self.starting.pop(0).pid = message["pid"]
        elif "refused" in message:
            self.starting.pop(0).pid, self.refused = -1, message["refused"]
        elif "ready" in message:
            self.versions = {k: v for k, v in message.items() if k != "ready"}

    def load(self, bundle: Bundle) -> None:
        if bundle.key in self.loaded:
            return
        self.send(bundle.loading())
        self.loaded.add(bundle.key)

    def start(self, bundle: Bundle, replace: Mapping[str, str], unit: str = "") -> ForkSession:
        """Ask for a child; its pid comes later. With a unit, the import is asked for along with it."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        session = ForkSession(self, ours, read, bundle)
        with self.lock:
            self.load(bundle)
            limits = {**LIMITS, "AS": bundle.memory}
            if not bundle.memory:
                del limits["AS"]
            message = {"fork": bundle.key, "replace": dict(replace), "limits": limits}
            self.send(message, [theirs.fileno(), write])
            self.starting.append(session)
        theirs.close()
        os.close(write)
        if unit:
            session.greet(unit)
        return session

    def settle(self, session: ForkSession) -> bool:
        """Wait for the pid of a session that was started; False if there is no process behind it."""
        until = time.monotonic() + 30
        with self.lock:
            while not session.pid and (message := self.read(until)) is not None:
                self.note(message)
        return session.pid > 0

    def fork(self, bundle: Bundle, replace: Mapping[str, str]) -> ForkSession:
        session = self.start(bundle, replace)
        if not self.settle(session):
            why = self.refused or "the worker process ended"
            raise Ended("crashed", f"no process could be started for the code under test ({why})")
        return session

    def wait(self, pid: int, seconds: float) -> tuple[int, float] | None:
        """The wait status and CPU seconds of a child, or None if it lives on or nobody saw it end."""
        until = time.monotonic() + seconds
        while True:
            with self.lock:
                if pid in self.notices:
                    return self.notices[pid]
                message = self.read(min(until, time.monotonic() + 0.002))
                if message is not None:
                    self.note(message)
                elif not self.alive:
                    return None
            if message is None and time.monotonic() > until:
                return None

    def close(self) -> None:
        self.control.close()
        with contextlib.suppress(ChildProcessError):
            for _ in range(1000):  # it ends its children and itself when the control channel closes
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return
                time.sleep(0.001)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class ForkSession:
    """One child of the zygote."""

    def __init__(self, zygote: Zygote, channel: socket.socket, output: int, bundle: Bundle) -> None:
        self.zygote, self.channel, self.output_fd = zygote, channel, output
        self.pid = 0  # not known yet; -1: there is none
        self.bundle: Bundle | None = bundle
        self.libm: str | None = "system"
        self.holds_objects = False
        self.seq = 0
        self.sent = 0
        self.greeted = ""
        self.waiting = bytearray()
        self.received = bytearray()
        self.text = bytearray()
        self.open = True
        channel.setblocking(False)
        os.set_blocking(output, False)
        self.poll = select.poll()
        self.poll.register(channel, select.POLLIN)
        self.poll.register(output, select.POLLIN)

    @cached_property
    def read_answer(self) -> Callable[[dict[str, Any], Any], Answer]:
        from grader.answer import answer_of

        return answer_of

    def greet(self, unit: str) -> None:
        """Send `hello` now; runner.hello() reads the answer."""
        text = json.dumps({"seq": 0, "hello": FORMAT, "unit": unit, "limit_s": IMPORT_LIMIT_S}).encode()
        self.channel.send(struct.pack("<II", len(text), 0) + text)
        self.sent, self.greeted = 1, unit

    # -- transport ----------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Take what the code printed, keep the first part; False when the pipe is closed."""
        try:
            chunk = os.read(self.output_fd, 1 << 16)
        except BlockingIOError:
            return True
        self.text += chunk[: max(0, OUTPUT_KEPT - len(self.text))]
        if not chunk:
            self.poll.unregister(self.output_fd)
        return bool(chunk)

    def write(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.channel.send(view) :]
            except BlockingIOError:
                # The child may be writing too: what it sent is taken, or both would wait for ever.
                poll = select.poll()
                poll.register(self.channel, select.POLLOUT | select.POLLIN)
                wait = until - time.monotonic()
                if wait <= 0 or not (ready := poll.poll(wait * 1000)):
                    raise TimeoutError from None
                if ready[0][1] & select.POLLIN:
                    self.take()
                self.drain()

    def take(self, most: int = 1 << 20) -> None:
        try:
            chunk = self.channel.recv(most)
        except BlockingIOError:
            return
        if not chunk:
            raise EOFError
        self.received += chunk

    def read(self, size: int, until: float) -> bytes:
        """The next bytes of the channel; a whole answer usually comes with one call of the kernel."""
        while len(self.received) < size:
            wait = until - time.monotonic()
            if wait <= 0:
                raise TimeoutError
            for fd, _ in self.poll.poll(wait * 1000):
                if fd == self.output_fd:
                    self.drain()
                    continue
                self.take(1 << 16 if size < 1 << 16 else 1 << 20)
        data = bytes(self.received[:size])
        del self.received[:size]
        return data

    def send(self, message: dict[str, Any], limit_s: float, body: Body | None = None) -> None:
        """Queue a request; it leaves when an answer is next waited for."""
        self.waiting += frame.pack({"seq": self.sent, **message, "limit_s": limit_s}, body)
        self.sent += 1

    def receive(self, limit_s: float) -> Answer:
        """The answer to the oldest request that has none yet."""
        until = time.monotonic() + limit_s
        try:
            if self.waiting:
                data, self.waiting = bytes(self.waiting), bytearray()
                self.write(data, until)
            header, size = frame.sizes(self.read(8, until))
            reply, chunks = frame.unpack(self.read(header, until), self.read(size, until))
            if reply.get("seq") != self.seq:
                raise frame.ProtocolError(f"answer {reply.get('seq')!r:.20} to request {self.seq}")
            self.seq += 1
            return self.read_answer(reply, chunks)
        except TimeoutError:
            self.kill()
            raise self.explained(
                Ended("deadline", f"Stopped after {limit_s:g} s (limit {limit_s:g} s).", self.traced())
            ) from None
        except (EOFError, OSError):
            raise self.explained(self.ended()) from None
        except frame.ProtocolError as error:
            self.kill()
            raise Ended(
                "protocol", f"The result channel received data that is not a result ({error})."
            ) from None

    # -- how it ended -------------------------------------------------------------------------------

    def ended(self) -> Ended:
        """Why the channel closed, from the kernel's status."""
        noticed = self.zygote.wait(self.pid, 1.0)
        self.kill()
        at = self.traced()
        if noticed is None:
            if not self.zygote.alive:
                return Ended("crashed", "Your code ended the worker process that ran it.", at)
            return Ended("protocol", "Your code closed the result channel and went on running.", at)
        status, cpu = noticed
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if name == "SIGXCPU" or (name == "SIGKILL" and cpu >= LIMITS["CPU"]):
                return Ended("deadline", f"Used {cpu:.0f} s of CPU time (limit {LIMITS['CPU']} s).", at)
            if name == "SIGKILL":
                return Ended(
                    "memory", "Your code was killed (SIGKILL); the memory limit is the likely cause.", at
                )
            return Ended(
                "crashed", f"Your code crashed ({name}: {SIGNALS.get(name, 'ended by a signal')}).", at
            )
        code = os.WEXITSTATUS(status)
        return Ended(
            "crashed",
            f"Your code ended the process (exit code {code}) before returning a result. "
            "Remove exit(), quit() or os._exit().",
            at,
        )

    def explained(self, ended: Ended) -> Ended:
        text = self.text.decode("utf-8", "replace")
        return ended if self.bundle is None else self.bundle.explained(ended, text)

    def traced(self) -> tuple[str, int] | None:
        """File and line of the learner's innermost frame in what faulthandler wrote."""
        while self.poll_output():
            pass
        if self.bundle is None:
            return None
        ours = {path for path, _, _ in self.bundle.files.values()}
        lines = self.text.decode("utf-8", "replace").splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith(FRAMES_FOLLOW)]
        for line in lines[starts[-1] if starts else len(lines) :]:
            name, _, rest = line.strip().removeprefix('File "').partition('", line ')
            if name in ours and rest.split(" ")[0].isdecimal():
                return name, int(rest.split(" ")[0])
        return None

    def poll_output(self) -> bool:
        before = len(self.text)
        with contextlib.suppress(OSError, KeyError):
            self.drain()
        return len(self.text) != before

    def output(self) -> str:
        """What the code printed since the last call, without what we have said of a fault."""
        self.poll_output()
        text, self.text = self.text.decode("utf-8", "replace"), bytearray()
        return TRACEBACK.sub("", text)

    def close(self) -> tuple[str, ...]:
        """Say bye; returns the modules that were loaded, or raises Ended if anything is not as it must be."""
        if not self.open:
            raise Ended("protocol", "the session is over")
        self.send({"bye": True}, 5.0)
        answer = self.receive(5.0)
        try:
            surplus = self.read(1, time.monotonic() + 1.0)
        except EOFError:
            surplus = b""
        except TimeoutError:
            self.kill()
            raise Ended("protocol", "Your code kept the result channel open after it had ended.") from None
        noticed = self.zygote.wait(self.pid, 1.0)
        self.kill()
        if surplus:
            raise Ended("protocol", "The result channel received data after the last result.")
        if noticed is None or noticed[0] != 0 or answer.kind != "ok":
            raise Ended("crashed", "Your code ended the process before the session was over.")
        return answer.loaded

    def kill(self) -> None:
        if not self.open:
            return
        self.open = False
        self.poll_output()
        if self.pid > 0 and self.pid not in self.zygote.notices:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)  # a child that has not called setsid yet
        with contextlib.suppress(OSError):
            self.channel.close()
        self.poll_output()  # a pipe holds no more than one read takes
        os.close(self.output_fd)
        self.output_fd = -1  # not the number of somebody else's file


class Workers:
    """Opens sessions of a bundle; the zygote is shared and restarted when code under test has killed it."""

    def __init__(self, zygote: Zygote | None = None) -> None:
        self.zygotes = {"python": zygote} if zygote is not None else {}
        self.lock = threading.Lock()
        self.ready: list[ForkSession] = []

    def prepare(self, bundle: Bundle, unit: str, count: int) -> None:
        """Have sessions fork and import the unit while this process still imports what it needs itself."""
        with self.lock:
            self.ready += [self.live(bundle).start(bundle, {}, unit) for _ in range(count)]

    def opener(self, bundle: Bundle, replace: Mapping[str, str] | None = None) -> Opener:
        def open_session() -> Session:
            with self.lock:
                if (
                    self.ready
                    and self.ready[0].bundle is bundle
                    and not replace
                    and self.live(bundle).settle(self.ready[0])
                ):
                    return self.ready.pop(0)
                try:
                    return self.live(bundle).fork(bundle, replace or {})
                except Ended:
                    if self.zygotes[bundle.worker].alive:
                        raise
                    return self.live(bundle).fork(bundle, replace or {})  # killed by earlier code under test

        return open_session

    def live(self, bundle: Bundle) -> Zygote:
        """The bundle's zygote, started again when code under test has ended it."""
        zygote = self.zygotes.get(bundle.worker)
        if zygote is not None and not zygote.alive:
            zygote.close()
            zygote = None
        if zygote is None:
            zygote = self.zygotes[bundle.worker] = Zygote(bundle.start())
        return zygote

    def close(self) -> None:
        self.ready.clear()
        while self.zygotes:
            self.zygotes.popitem()[1].close()
