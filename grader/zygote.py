"""The process that runs code under test: a zygote that forks one child per session.

The zygote runs no learner code and holds no expected value: it imports what a child needs once, forks, and
reports how each child ended, as the kernel says. A child answers one request at a time on a private socket
and never judges anything. Everything in a child belongs to the code under test: no answer is trusted here or
on the other side. What a child runs is a `Kind`: Python modules (worker.py) or a shared library (cworker.py).
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from grader import frame, launch


class Conversation(Protocol):
    """What a child does once it is alone: `begin`, then one answer a request."""

    @property
    def loaded(self) -> Sequence[str]: ...
    def begin(self) -> None: ...
    def watch(self, limit_s: float) -> None: ...
    def answer(self, message: dict[str, Any], body: Iterator[bytes], out: frame.Body) -> dict[str, Any]: ...


class Kind(Protocol):
    """What the zygote forks children for."""

    versions: Mapping[str, str]

    def load(self, message: dict[str, Any]) -> Any: ...
    def converse(self, loaded: Any, message: dict[str, Any]) -> Conversation: ...


# -- the child ------------------------------------------------------------------------------------------


class Channel:
    """The private socket, read a buffer at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self.socket = channel
        self.received = bytearray()

    def read(self, size: int) -> bytes:
        while len(self.received) < size:
            chunk = self.socket.recv(1 << 16 if size < 1 << 16 else 1 << 20)
            if not chunk:
                os._exit(0)  # the grader has gone
            self.received += chunk
        data = bytes(self.received[:size])
        del self.received[:size]
        return data


def child(channel: socket.socket, output: int, talk: Conversation, limits: dict[str, int]) -> None:
    os.setsid()  # a process group of its own, so that the grader can end all of it
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    keep = channel.fileno()
    for fd in map(int, os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else range(3, 64):
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
            resource.setrlimit(which, (value, value + 1 if name == "CPU" else value))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", "backslashreplace", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace", write_through=True)
    faulthandler.enable(2)
    talk.begin()
    reader = Channel(channel)
    while True:
        header, size = frame.sizes(reader.read(8), 1 << 31)
        message, body = frame.unpack(reader.read(header), reader.read(size))
        if message.get("limit_s"):
            talk.watch(message["limit_s"])
        out = frame.Body(frame.MAX_BODY)
        if "bye" in message:
            answer: dict[str, Any] = {"ok": True, "loaded": list(talk.loaded)}
        else:
            answer = talk.answer(message, body, out)
        channel.sendall(frame.pack({"seq": message.get("seq"), **answer}, out))
        if "bye" in message:
            os._exit(0)


# -- the zygote -----------------------------------------------------------------------------------------


class Zygote:
    """Reads `load` and `fork` commands, answers with pids and with how children ended."""

    def __init__(self, control: socket.socket, kind: Kind) -> None:
        self.control, self.kind = control, kind
        self.bundles: dict[str, Any] = {}
        self.fds: list[int] = []
        self.data = bytearray()
        self.children: set[int] = set()

    def say(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self.control.sendall(struct.pack("<I", len(text)) + text)

    def load(self, message: dict[str, Any]) -> None:
        self.bundles[message["load"]] = self.kind.load(message)

    def fork(self, message: dict[str, Any]) -> None:
        channel_fd, output = self.fds.pop(0), self.fds.pop(0)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(channel_fd)
            os.close(output)
            self.say({"refused": errno.errorcode.get(error.errno or 0, str(error))})
            return
        if pid == 0:
            try:
                self.control.close()
                channel = socket.socket(fileno=channel_fd)
                talk = self.kind.converse(self.bundles[message["fork"]], message)
                child(channel, output, talk, message["limits"])
            finally:
                os._exit(70)
        os.close(channel_fd)
        os.close(output)
        self.children.add(pid)
        self.say({"pid": pid})

    def reap(self) -> None:
        for pid in list(self.children):
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                self.children.discard(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # what the code under test started and left running
                self.say({"exit": pid, "status": status, "cpu_s": usage.ru_utime + usage.ru_stime})

    def end(self) -> None:
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()
        self.say({"ready": True, "python": sys.version.split()[0], **self.kind.versions})
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 512)
                    self.reap()
                    continue
                data, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 16)
                if not data:
                    self.end()
                self.fds += fds
                self.data += data
                while len(self.data) >= 4 and len(self.data) >= 4 + (
                    n := struct.unpack_from("<I", self.data)[0]
                ):
                    message = json.loads(bytes(self.data[4 : 4 + n]))
                    del self.data[: 4 + n]
                    if "load" in message:
                        self.load(message)
                    else:
                        self.fork(message)


def hide() -> None:
    """Take the grader off the import path of code under test: `impl` is what the map says, or nothing."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != launch.ROOT]
    for name in [name for name in sys.modules if name.partition(".")[0] == "grader"]:
        del sys.modules[name]


def serve(control: int, kind: Kind) -> None:
    """Serve on an inherited socket until it closes."""
    hide()
    sys.dont_write_bytecode = True
    zygote = Zygote(socket.socket(fileno=control), kind)
    try:
        zygote.serve()
    except ConnectionError:  # the grader has gone without waiting for an answer, as after a usage error
        zygote.end()
