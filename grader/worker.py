"""The process that runs code under test: a zygote that forks one child per session.

The zygote runs no learner code and holds no expected value: it imports NumPy once, compiles sources (which
runs nothing), forks, and reports how each child ended, as the kernel says. A child imports the unit through
an explicit map of files, answers one request at a time on a private socket, and never judges anything.
Everything in a child belongs to the code under test: no answer is trusted here or on the other side.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import gc
import importlib.machinery
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from grader import launch, testkit, wire

# Unknown keys are refused: an ignored one would change what is asked without a word.
ALL = {"seq", "limit_s"}
LOOK = {*ALL, "attrs", "path", "save"}
CALL = {*LOOK, "args", "back", "each"}
KEYS = {
    "call": {"call", *CALL}, "do": {"do", "on", *CALL}, "get": {"get", "on", *LOOK},
    "observe": {"observe", *ALL}, "new": {"new", *CALL} - {"each"}, "reset": {"reset", *ALL},
    "hello": {"hello", "unit", *ALL}, "bye": {"bye", *ALL},
}  # fmt: skip
TRACE_BEFORE_S = 0.25  # the Python line of a hang is written this long before the grader's deadline
REARM_S = 0.2


class Sources:
    """Imports exactly the given files: {module: (path, source, is_package)}; owns their top-level names.

    A finder and loader by its methods: the base classes of importlib.abc take 20 ms to import.
    """

    def __init__(self, files: dict[str, tuple[str, str, bool]], aliases: dict[str, str]) -> None:
        self.files, self.aliases = files, aliases
        self.tops = {name.partition(".")[0] for name in [*files, *aliases]}
        self.loaded: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        loader: Any = self
        if name in self.aliases:
            return importlib.machinery.ModuleSpec(name, loader)
        if name in self.files:
            spec = importlib.machinery.ModuleSpec(name, loader, is_package=self.files[name][2])
            spec.origin, spec.has_location = self.files[name][0], True
            return spec
        if name.partition(".")[0] in self.tops:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        if spec.name in self.aliases:  # one module under two names: isinstance must not see two classes
            return importlib.import_module(self.aliases[spec.name])
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        spec = module.__spec__
        name = spec.name if spec is not None else ""
        if name in self.aliases or name in self.loaded:
            return
        path, source, _ = self.files[name]
        self.loaded.append(name)
        exec(compiled(path, source), module.__dict__)


_code: dict[tuple[str, str], types.CodeType] = {}


def compiled(path: str, source: str) -> types.CodeType:
    """The code of a source, compiled once per content."""
    key = (path, source)
    if key not in _code:
        _code[key] = compile(source, path, "exec", dont_inherit=True)
    return _code[key]


class Session:
    """One child's conversation: objects by id, one answer per request, in order."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.unit = ""
        self.objects: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.called: Any = None

    # -- names and values ---------------------------------------------------------------------------

    def lookup(self, name: str) -> Any:
        module_name, _, attribute = name.rpartition(".")
        if module_name == "testkit":
            return getattr(testkit, attribute)
        module = importlib.import_module(f"impl.{module_name or self.unit}")
        if attribute not in module.__dict__:
            found = [n for n, v in vars(module).items() if callable(v) and n[:1] != "_"]
            own = [n for n in found if getattr(vars(module)[n], "__module__", None) == module.__name__]
            raise Missing(attribute, module, own or found)
        return module.__dict__[attribute]

    def build(self, node: Any, body: Any) -> Any:
        """A wire value as an argument: constructs `new`, calls `call`, resolves `ref`, copies tensors."""
        if isinstance(node, list):
            return [self.build(item, body) for item in node]
        if isinstance(node, dict):
            if "new" in node or "call" in node:
                target = self.lookup(node.get("new") or node["call"])
                return target(**{k: self.build(v, body) for k, v in node["args"].items()})
            if "ref" in node:
                return self.objects[node["ref"]]
            if "tuple" in node:
                return tuple(self.build(item, body) for item in node["tuple"])
            if "map" in node:
                return {self.build(k, body): self.build(v, body) for k, v in node["map"]}
            if "dtype" in node:
                return wire.DTYPES[node["dtype"]]
            value = wire.decode(node, body)
            if isinstance(value, np.ndarray):
                copy = value.copy()  # owned and writable: what the code does to it is its own affair
                return copy if copy.shape else copy[()]
            return value
        return node

    # -- operations ---------------------------------------------------------------------------------

    def hello(self, message: dict[str, Any]) -> dict[str, Any]:
        self.unit = message["unit"]
        module = importlib.import_module(f"impl.{self.unit}")
        return {"ok": {"file": getattr(module, "__file__", None), "libm": "system"}}

    def target(self, message: dict[str, Any]) -> Any:
        name = str(message.get("do") or message.get("call") or message.get("new"))
        if "on" in message:
            return getattr(self.objects[message["on"]], name)
        return self.lookup(name)

    def look(self, message: dict[str, Any], body: Any, stage: list[str]) -> Any:
        """One `do`, `get`, `call` or `new`, with an optional path into what it gave."""
        stage[0] = "lookup"
        if "get" in message:
            owner = self.objects[message["on"]]
            stage[0] = "call"
            value = getattr(owner, message["get"])
        else:
            function = self.target(message)
            stage[0] = "args"
            kwargs = {k: self.build(v, body) for k, v in message.get("args", {}).items()}
            self.arguments, self.called = kwargs, function
            self.before = {n: fields_of(kwargs[n]) for n in message.get("back", ()) if is_record(kwargs[n])}
            each = [{k: self.build(v, body) for k, v in more.items()} for more in message.get("each", ())]
            stage[0] = "call"
            value = [function(**kwargs, **more) for more in each] if each else function(**kwargs)
        stage[0] = "result"
        path = message.get("path", ())
        return [part_of(item, path) for item in value] if "each" in message else part_of(value, path)

    def act(self, message: dict[str, Any], body: Any, out: wire.Body, stage: list[str]) -> dict[str, Any]:
        value = self.look(message, body, stage)
        answer: dict[str, Any] = {}
        if "save" in message:
            self.objects[message["save"]] = value
            answer["ok"] = True
        else:
            answer["return"] = self.encode(value, out, tuple(message.get("attrs", ())))
        back = message.get("back", ())
        if back:
            answer["args"] = {name: self.encode(self.arguments[name], out) for name in back}
            # An object built for this call: what its fields were before is only known here.
            answer["args"] |= {f"{name} before": self.encode(was, out) for name, was in self.before.items()}
        return {**answer, **self.origin()}

    def origin(self) -> dict[str, Any]:
        return {} if self.called is None else {"file": defining_file(self.called)}

    def encode(self, value: Any, out: wire.Body, attrs: tuple[str, ...] = ()) -> Any:
        parts, taken = len(out.parts), out.size
        try:
            return wire.encode(value, out.put, attrs)
        except OverflowError:
            size = getattr(value, "nbytes", None)
            del out.parts[parts:]  # what stands before it in this answer fits, and stays
            out.size = taken
            return {"opaque": f"a result of {size} bytes" if size else "a result above the size limit"}

    def observe(self, message: dict[str, Any], body: Any, out: wire.Body) -> dict[str, Any]:
        """Every observable in turn; one that raises answers with the raise, the others still answer."""
        seen: list[dict[str, Any]] = []
        for item in message["observe"]:
            refused, stage = refusal(item), [""]
            if refused:
                seen.append({"unsupported": refused})
                continue
            try:
                value = self.look(item, body, stage)
                seen.append({"return": self.encode(value, out, tuple(item.get("attrs", ())))})
            except Exception as error:
                seen.append({"raises": self.raised(error), "phase": stage[0]})
        return {"observed": seen}

    def answer(self, message: dict[str, Any], body: Any, out: wire.Body) -> dict[str, Any]:
        refused = refusal(message)
        if refused:
            return {"unsupported": refused}
        stage = ["import"]
        self.arguments, self.called, self.before = {}, None, {}
        try:
            if "hello" in message:
                return self.hello(message)
            if "observe" in message:
                return self.observe(message, body, out)
            if "reset" in message:
                self.objects.clear()
                return {"ok": True}
            return self.act(message, body, out, stage)
        except MemoryError as error:
            return {"memory": self.raised(error), "phase": stage[0], **self.origin()}
        except BaseException as error:  # SystemExit and the like must not end the session
            return {"raises": self.raised(error), "phase": stage[0], **self.origin()}

    def raised(self, error: BaseException) -> dict[str, Any]:
        """Class and base-class names, text and place: never the object."""
        kinds = [k.__name__ for k in type(error).__mro__ if k not in (object, BaseException, Exception)]
        about: dict[str, Any] = {"class": type(error).__name__, "bases": kinds, "text": text_of(error)}
        if isinstance(error, Missing):
            about["found"] = error.found
        ours = {path for path, _, _ in self.sources.files.values()}
        if isinstance(error, SyntaxError) and error.filename in ours:
            about["at"] = [error.filename, error.lineno or 0, ""]
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename in ours:
                about["at"] = [code.co_filename, trace.tb_lineno, code.co_name]
            trace = trace.tb_next
        return about


def refusal(message: dict[str, Any]) -> str:
    """Why a message is not answered; empty if it is one of those in KEYS with keys that belong to it."""
    for verb, keys in KEYS.items():
        if verb in message:
            unknown = message.keys() - keys
            return f"unknown key {min(unknown)!r} in {verb}" if unknown else ""
    return f"no such message: {', '.join(sorted(message))}"


def part_of(value: Any, path: Sequence[Any]) -> Any:
    """What a path leads to: an index or key if it is an integer or the value is a map, else an attribute."""
    for step in path:
        value = value[step] if isinstance(step, int) or isinstance(value, dict) else getattr(value, step)
    return value


class Missing(AttributeError):
    """The unit's file has no such name."""

    def __init__(self, name: str, module: types.ModuleType, found: list[str]) -> None:
        super().__init__(
            f"{os.path.basename(module.__file__ or module.__name__)} has no function or class {name!r}"
        )
        self.found = found


def is_record(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")


def fields_of(value: Any) -> wire.Fields:
    """A record's fields as they are now; lists are copied, so that a later change shows."""
    fields = {name: getattr(value, name) for name in type(value).__dataclass_fields__ if name[:1] != "_"}
    return wire.Fields(
        type(value).__name__, {n: list(v) if isinstance(v, list) else v for n, v in fields.items()}
    )


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception as broken:
        return f"<{type(broken).__name__} in its own __str__>"


def defining_file(function: Any) -> str | None:
    """The file that defines a function, or the class of an object; None for what has no Python source."""
    for _ in range(16):
        if isinstance(function, functools.partial):
            function = function.func
        elif "__wrapped__" in getattr(function, "__dict__", {}):
            function = function.__wrapped__
        else:
            break
    if isinstance(function, type):
        return getattr(sys.modules.get(function.__module__), "__file__", None)
    code = getattr(function, "__code__", None)
    if code is None and callable(function) and not isinstance(function, types.BuiltinFunctionType):
        code = getattr(type(function).__call__, "__code__", None)
    return getattr(code, "co_filename", None)


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


class Watchdog:
    """Has faulthandler write where the code is, shortly before the grader's deadline.

    Arming starts a thread, which costs more than a small case, so it stays armed for a while: what it then
    writes comes up to REARM_S early, and what it writes of an idle child is thrown away by the grader.
    """

    def __init__(self) -> None:
        self.armed, self.limit = 0.0, 0.0

    def __call__(self, limit: float) -> None:
        now = time.monotonic()
        if now - self.armed > REARM_S or limit != self.limit:
            self.armed, self.limit = now, limit
            faulthandler.dump_traceback_later(max(limit - TRACE_BEFORE_S, limit * 0.8), file=2)


def child(channel: socket.socket, output: int, sources: Sources, limits: dict[str, int]) -> None:
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
    sys.meta_path.insert(0, sources)
    session, reader, watch = Session(sources), Channel(channel), Watchdog()
    while True:
        header, size = wire.sizes(reader.read(8), 1 << 31)
        message, body = wire.unpack(reader.read(header), reader.read(size))
        if message.get("limit_s"):
            watch(message["limit_s"])
        out = wire.Body(wire.MAX_BODY)
        if "bye" in message:
            answer: dict[str, Any] = {"ok": True, "loaded": sources.loaded}
        else:
            answer = session.answer(message, body, out)
        channel.sendall(wire.pack({"seq": message.get("seq"), **answer}, out))
        if "bye" in message:
            os._exit(0)


# -- the zygote -----------------------------------------------------------------------------------------


class Zygote:
    """Reads `load` and `fork` commands, answers with pids and with how children ended."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.bundles: dict[str, Sources] = {}
        self.fds: list[int] = []
        self.data = bytearray()
        self.children: set[int] = set()

    def say(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self.control.sendall(struct.pack("<I", len(text)) + text)

    def load(self, message: dict[str, Any]) -> None:
        files = {name: (path, source, package) for name, path, source, package in message["files"]}
        self.bundles[message["load"]] = Sources(files, message["aliases"])
        for name in message["warm"]:
            if name in files:
                # A source that does not compile fails in the child, where it is reported.
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
                    compiled(files[name][0], files[name][1])

    def fork(self, message: dict[str, Any]) -> None:
        channel_fd, output = self.fds.pop(0), self.fds.pop(0)
        base = self.bundles[message["fork"]]
        files = dict(base.files)
        for name, source in message["replace"].items():
            path, _, package = files[name]
            files[name] = (path, source, package)
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
                child(channel, output, Sources(files, base.aliases), message["limits"])
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
        self.say({"ready": True, "numpy": np.__version__, "python": sys.version.split()[0]})
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


def main(control: int) -> None:
    """Serve on an inherited socket until it closes."""
    hide()
    sys.dont_write_bytecode = True
    zygote = Zygote(socket.socket(fileno=control))
    try:
        zygote.serve()
    except ConnectionError:  # the grader has gone without waiting for an answer, as after a usage error
        zygote.end()
