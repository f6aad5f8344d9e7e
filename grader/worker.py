"""Python code under test: a child imports the unit through an explicit map of files and answers requests.

The zygote (zygote.py) imports NumPy once and compiles sources, which runs nothing; children do the rest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.machinery
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grader import frame, testkit, wire, zygote

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
        self.watch = Watchdog()
        self.unit = ""
        self.objects: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.called: Any = None

    @property
    def loaded(self) -> list[str]:
        return self.sources.loaded

    def begin(self) -> None:
        sys.meta_path.insert(0, self.sources)

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

    def act(self, message: dict[str, Any], body: Any, out: frame.Body, stage: list[str]) -> dict[str, Any]:
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

    def encode(self, value: Any, out: frame.Body, attrs: tuple[str, ...] = ()) -> Any:
        parts, taken = len(out.parts), out.size
        try:
            return wire.encode(value, out.put, attrs)
        except OverflowError:
            size = getattr(value, "nbytes", None)
            del out.parts[parts:]  # what stands before it in this answer fits, and stays
            out.size = taken
            return {"opaque": f"a result of {size} bytes" if size else "a result above the size limit"}

    def observe(self, message: dict[str, Any], body: Any, out: frame.Body) -> dict[str, Any]:
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

    def answer(self, message: dict[str, Any], body: Any, out: frame.Body) -> dict[str, Any]:
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


# -- the zygote's part ----------------------------------------------------------------------------------


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


class Python:
    """Sources by module name, compiled before the fork."""

    versions: Mapping[str, str] = {"numpy": np.__version__}

    def load(self, message: dict[str, Any]) -> Sources:
        files = {name: (path, source, package) for name, path, source, package in message["files"]}
        for name in message["warm"]:
            if name in files:
                # A source that does not compile fails in the child, where it is reported.
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
                    compiled(files[name][0], files[name][1])
        return Sources(files, message["aliases"])

    def converse(self, loaded: Sources, message: dict[str, Any]) -> Session:
        files = dict(loaded.files)
        for name, source in message["replace"].items():
            path, _, package = files[name]
            files[name] = (path, source, package)
        return Session(Sources(files, loaded.aliases))


def main(control: int) -> None:
    zygote.serve(control, Python())
