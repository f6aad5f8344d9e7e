"""C under test: a child loads the library and calls its functions by the names in the headers.

It speaks the messages of worker.py: `new` zeroes a struct or calls a `*_create`, `do` passes the object as
the first pointer, `call` passes every parameter by name. What a call gives is one value: the name of the
status, what came through out parameters, and the error slot where it was set. Pointers are never numbers: a
block that was asked of the hook, an argument, an object, or `foreign`. The standard library and cffi only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cffi import FFI

from grader import frame, zygote

TRACE_BEFORE_S = 0.25
FILL = 0xA5  # what an out buffer holds before the call
SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4,
         "i64": 8, "u64": 8, "f64": 8}  # fmt: skip
SHAPED = re.compile(r"(\w+)\[([0-9, ]*)\]")
NO_SLOT = ("tl_last_error", "tl_set_last_error")


class Fault(Exception):
    """What the judge should hear as a raise: a class name and a text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Held:
    """An object by id: memory of ours, or what a call gave."""

    value: Any  # a pointer, or a struct by value
    handle: bool = False  # an opaque object, to be destroyed at the end
    size: int = 0  # bytes, of memory of ours


@dataclass(slots=True)
class Buffer:
    """Memory that a parameter points to for one call."""

    pointer: Any
    size: int
    dtype: str = ""
    shape: Sequence[int] = ()
    record: str = ""  # a struct type, instead of numbers
    out: bool = False
    handle: str = ""  # the id that the object in this slot gets


class Session:
    """One child's conversation about one library."""

    def __init__(self, message: dict[str, Any], modules: dict[str, Any]) -> None:
        self.about, self.modules = message, modules
        self.functions: dict[str, tuple[Any, dict[str, Any], str]] = {}
        self.objects: dict[str, Held] = {}
        self.buffers: dict[str, Buffer] = {}
        self.unit, self.slot = "", ""
        self.ends: dict[str, Any] = {}  # by type, the function that ends an object
        self.left: dict[str, Any] = {}  # what was wrong when the runs of this case ended

    @property
    def loaded(self) -> list[str]:
        return list(self.about["sources"])

    def begin(self) -> None:
        return None

    def watch(self, limit_s: float) -> None:
        if self.functions:
            self.tk.tk_watch(max(limit_s - TRACE_BEFORE_S, limit_s * 0.8))

    # -- the libraries --------------------------------------------------------------------------------

    def hello(self, message: dict[str, Any]) -> dict[str, Any]:
        self.unit = message["unit"]
        self.ffi: FFI = self.modules["ffi"]
        now, local = self.ffi.RTLD_NOW, self.ffi.RTLD_LOCAL
        self.names = self.modules["names"]
        self.lib = self.ffi.dlopen(self.about["library"], now | local)
        self.tk = self.ffi.dlopen(self.about["testkit"], now | local)
        for library, origin in ((self.lib, ""), (self.tk, "testkit")):
            for name, known in self.names["functions"].items():
                if name.startswith(("tk_", "drv_")) != bool(origin):
                    continue
                self.functions[name] = (getattr(library, name), known, origin)
        self.ends = self.destroyers()
        self.tk.tk_catch(self.ffi.addressof(self.lib, "tl_last_error"))
        self.install()
        return {"ok": {"file": self.file_of(""), "libm": "system"}}

    def install(self) -> None:
        """The recording allocator as the hook, where the library has one that takes it."""
        hook: Any = self.ffi.new("tl_allocator *")
        hook.alloc = self.ffi.addressof(self.tk, "tk_alloc")
        hook.free = self.ffi.addressof(self.tk, "tk_release")
        self.lib.tl_set_allocator(hook)

    def file_of(self, function: str) -> str:
        origins: dict[str, str] = self.about["origins"]
        return origins.get(function) or origins[""]

    def find(self, name: str) -> tuple[Any, dict[str, Any], str]:
        if name not in self.functions:
            raise Fault("LookupError", f"no header declares {name}")
        return self.functions[name]

    # -- arguments ------------------------------------------------------------------------------------

    def memory(self, size: int, name: str, align: int = 16, fill: int = 0) -> Any:
        pointer = self.tk.tk_buffer(size, align, fill, name.encode()[:40])
        if pointer == self.ffi.NULL:
            raise MemoryError(f"{size} bytes for {name}")
        return pointer

    def argument(self, name: str, kind: Any, node: Any, body: Iterator[bytes]) -> Any:
        """A wire value as what C gets for a parameter of this type."""
        if kind.kind in ("primitive", "enum"):
            return self.number(kind, node, body)
        if isinstance(node, dict) and "function" in node:
            return self.ffi.cast(kind, self.find(node["function"])[0])
        if node is None:
            return self.ffi.NULL
        if kind.kind == "struct":
            return self.by_value(kind, node, body)
        if kind.kind != "pointer":
            raise Fault("TypeError", f"{name} is a {kind.cname}, which takes a function or null")
        if isinstance(node, str):
            raw = node.encode() + b"\0"
            self.hold(name, Buffer(self.memory(len(raw), name, 1), len(raw)), raw)
        elif "alias" in node:
            return self.ffi.cast(kind, self.buffers[node["alias"]].pointer)
        elif "ref" in node:
            return self.ffi.cast(kind, self.reference(node))
        elif "handle" in node:
            size = self.ffi.sizeof("void *")
            self.hold(name, Buffer(self.memory(size, name, 16, FILL), size, out=True, handle=node["handle"]))
        elif "buffer" in node:
            self.hold(name, self.out_buffer(name, node["buffer"]))
        elif "new" in node:
            size = self.ffi.sizeof(node["new"])
            self.hold(name, Buffer(self.memory(size, name), size, record=node["new"]))
            target = self.ffi.cast(f"{node['new']} *", self.buffers[name].pointer)
            self.fill(target[0], self.ffi.typeof(node["new"]), node["args"], body)
        elif "bytes" in node:
            raw = bytes.fromhex(node["bytes"])
            self.hold(name, Buffer(self.memory(len(raw), name), len(raw), "u8", [len(raw)]), raw)
        else:
            dtype = next(iter(node))
            if dtype not in SIZES or not isinstance(node[dtype], dict):
                raise Fault(
                    "TypeError", f"{name} is a {kind.cname}: give it an array, a buffer, a ref or null"
                )
            raw, shape = next(body, b""), node[dtype]["shape"]  # no bytes at all: no body is sent
            align = min(SIZES[dtype], 8)
            self.hold(name, Buffer(self.memory(len(raw), name, align), len(raw), dtype, shape), raw)
        return self.ffi.cast(kind, self.buffers[name].pointer)

    def hold(self, name: str, buffer: Buffer, raw: bytes = b"") -> None:
        if raw:
            self.ffi.memmove(buffer.pointer, raw, len(raw))
        self.buffers[name] = buffer

    def out_buffer(self, name: str, what: str) -> Buffer:
        """`i32[3]` or a struct type: memory that the call is to write."""
        shaped = SHAPED.fullmatch(what)
        if shaped and shaped[1] in SIZES:
            shape = [int(n) for n in shaped[2].split(",") if n.strip()]
            size = SIZES[shaped[1]]
            for n in shape:
                size *= n
            align = min(SIZES[shaped[1]], 8)
            return Buffer(self.memory(size, name, align, FILL), size, shaped[1], shape, out=True)
        size = self.ffi.sizeof(what)
        return Buffer(self.memory(size, name, 16, FILL), size, record=what, out=True)

    def number(self, kind: Any, node: Any, body: Iterator[bytes]) -> Any:
        if isinstance(node, str):
            if node not in self.names["constants"]:
                raise Fault("LookupError", f"no header defines {node}")
            return self.names["constants"][node]
        if isinstance(node, dict) and "int" in node:
            return int(node["int"])
        if isinstance(node, dict) and "f64" in node:
            return struct.unpack(">d", bytes.fromhex(node["f64"]))[0]
        if isinstance(node, dict) and "f32" in node:
            return struct.unpack("<f", next(body))[0]
        if isinstance(node, dict) or node is None or isinstance(node, list):
            raise Fault("TypeError", f"a {kind.cname} is a number")
        return node

    def by_value(self, kind: Any, node: Any, body: Iterator[bytes]) -> Any:
        if isinstance(node, dict) and "ref" in node:
            held = self.objects[node["ref"]].value
            return held if self.ffi.typeof(held) is kind else self.ffi.cast(f"{kind.cname} *", held)[0]
        made = self.ffi.new(f"{kind.cname} *")
        self.fill(made[0], kind, node["args"], body)
        return made[0]

    def fill(self, target: Any, kind: Any, args: dict[str, Any], body: Iterator[bytes]) -> None:
        fields = dict(kind.fields)
        for name, node in args.items():
            if name not in fields:
                raise Fault("TypeError", f"{kind.cname} has no field {name}")
            setattr(target, name, self.argument(name, fields[name].type, node, body))

    def reference(self, node: dict[str, Any]) -> Any:
        """The address of an object, of its element `at`, of that one's `field`."""
        held = self.objects[node["ref"]].value
        kind = self.ffi.typeof(held)
        if kind.kind == "struct":
            raise Fault("TypeError", f"{node['ref']} is a struct by value, not a pointer")
        if "at" in node:
            held = held + node["at"]
        if "field" in node:
            held = self.ffi.addressof(held[0], *node["field"].split("."))
        return held

    # -- results --------------------------------------------------------------------------------------

    def encoded(self, value: Any, kind: Any, text: str, out: frame.Body) -> Any:
        """A C value as wire JSON."""
        if kind.kind == "primitive":
            if kind.cname == "float":
                return {"f32": {"shape": [], **out.put(struct.pack("<f", value))}}
            if kind.cname == "double":
                return {"f64": struct.pack(">d", value).hex()}
            if kind.cname in ("_Bool", "bool"):
                return bool(value)
            number = value[0] if isinstance(value, bytes) else int(value)  # a char is a byte
            return number if abs(number) < 1 << 53 else {"int": str(number)}
        if kind.kind == "struct":
            pairs = [[n, self.encoded(getattr(value, n), f.type, "", out)] for n, f in kind.fields]
            return {"map": pairs}
        if kind.kind == "pointer" and kind.item.cname == "char" and text.startswith("const"):
            return (
                None if value == self.ffi.NULL else self.text(value)
            )
        return self.whereabouts(value)

    def text(self, pointer: Any, most: int = 4096) -> str:
        raw = self.ffi.string(pointer, most)
        return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw

    def whereabouts(self, pointer: Any) -> Any:
        """What a pointer points into."""
        if pointer == self.ffi.NULL:
            return None
        address = int(self.ffi.cast("uintptr_t", pointer))
        for name, held in self.objects.items():
            if self.ffi.typeof(held.value).kind != "pointer":
                continue
            start = int(self.ffi.cast("uintptr_t", held.value))
            if held.handle and address == start:
                return {"map": [["ref", name], ["at", 0]]}
            if start <= address < start + held.size:
                return {"map": [["ref", name], ["at", address - start]]}
        for name, buffer in self.buffers.items():
            start = int(self.ffi.cast("uintptr_t", buffer.pointer))
            if start <= address < start + buffer.size:
                return {"map": [["arg", name], ["at", address - start]]}
        at = self.ffi.new("size_t *")
        block = int(self.tk.tk_block_of(pointer, at))
        return "foreign" if block < 0 else {"map": [["alloc", block], ["at", int(at[0])]]}

    def contents(self, buffer: Buffer, out: frame.Body) -> Any:
        """What a buffer holds: numbers, or the fields of a struct."""
        if buffer.record:
            return self.encoded(
                self.ffi.cast(f"{buffer.record} *", buffer.pointer)[0],
                self.ffi.typeof(buffer.record),
                "",
                out,
            )
        raw = bytes(self.ffi.buffer(buffer.pointer, buffer.size)) if buffer.size else b""
        return {buffer.dtype: {"shape": list(buffer.shape), **out.put(raw)}}

    def written(self, name: str, buffer: Buffer, out: frame.Body) -> Any:
        """What an out parameter holds after the call; `untouched` if nothing was written."""
        raw = bytes(self.ffi.buffer(buffer.pointer, buffer.size)) if buffer.size else b""
        if raw == bytes([FILL]) * buffer.size:
            return "untouched"
        if not buffer.handle:
            return self.contents(buffer, out)
        pointer = self.ffi.cast("void **", buffer.pointer)[0]
        if pointer == self.ffi.NULL:
            return None
        self.end(buffer.handle)
        self.objects[buffer.handle] = Held(self.ffi.cast(self.slot_type[name], pointer), handle=True)
        return "object"

    # -- operations -----------------------------------------------------------------------------------

    def run(self, name: str, nodes: dict[str, Any], body: Iterator[bytes], stage: list[str]) -> Any:
        """Call a function by name; gives its result, after the checks that every call gets."""
        function, known, _ = self.find(name)
        kinds = self.ffi.typeof(function).args
        stage[0] = "args"
        given = [param for param, _ in known["params"]]
        if sorted(given) != sorted(nodes):
            raise Fault("TypeError", f"{name} takes {', '.join(given) or 'nothing'}, not {', '.join(nodes)}")
        self.called, self.slot_type = name, {}
        types = dict(zip(given, kinds, strict=True))
        made = {}
        for param, node in nodes.items():  # in the order of the message: the bodies come in that order
            made[param] = self.argument(param, types[param], node, body)
            if isinstance(node, dict) and "handle" in node:
                self.slot_type[param] = types[param].item
        if name not in NO_SLOT:
            self.lib.tl_set_last_error(b"")
        stage[0] = "call"
        result = function(*(made[param] for param in given))
        self.slot = self.text_of_slot() if name not in NO_SLOT else ""
        stage[0] = "result"
        if self.slot.startswith("unimplemented:"):
            stage[0] = "call"
            raise Fault("NotImplementedError", self.slot)
        for param, buffer in self.buffers.items():
            if damage := int(self.tk.tk_damage(buffer.pointer)):
                stage[0] = "call"
                where = "in front" if damage < 0 else "past the end"
                raise Fault("OutOfBounds", f"{name} wrote {where} of {param}, at byte {damage}")
        return result

    def text_of_slot(self) -> str:
        return self.text(self.lib.tl_last_error(), 256)

    def answered(self, name: str, result: Any, out: frame.Body) -> Any:
        """All that a call gave as one value; a lone status, number or pointer stands for itself."""
        _, known, origin = self.find(name)
        given: list[list[Any]] = []
        status = known["result"] == "tl_status"
        if status:
            given.append(["status", self.names["statuses"].get(str(int(result)), int(result))])
        elif known["result"] != "void":
            kind = self.ffi.typeof(self.find(name)[0]).result
            given.append(["value", self.encoded(result, kind, known["result"], out)])
        for param, buffer in list(self.buffers.items()):
            if buffer.out:
                given.append([param, self.written(param, buffer, out)])
        if self.slot and not origin and not (status and int(result) == 0):  # a driver's calls have their own
            given.append(["slot", name if re.search(rf"\b{name}\b", self.slot) else self.slot])
        if not given:
            return None
        return given[0][1] if len(given) == 1 and given[0][0] in ("status", "value") else {"map": given}

    def receiver(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        """The arguments, the object of `on` among them: it is the first pointer that is not given."""
        nodes = dict(message.get("args", {}))
        if "on" in message:
            function, known, _ = self.find(name)
            for (param, _), kind in zip(known["params"], self.ffi.typeof(function).args, strict=True):
                if param not in nodes and kind.kind == "pointer":
                    return {param: {"ref": message["on"]}, **nodes}
        return nodes

    def act(
        self, message: dict[str, Any], body: Iterator[bytes], out: frame.Body, stage: list[str]
    ) -> dict[str, Any]:
        if "get" in message:
            value, kind = self.field(message)
            return {"return": self.encoded(value, kind, "", out)}
        name = str(message.get("do") or message.get("call") or message.get("new"))
        if "new" in message and name not in self.functions:
            return self.zeroed(message, name, body, stage)
        nodes = self.receiver(message, name)
        if "new" in message:  # the parameter that is not given receives the object
            missing = [param for param, _ in self.find(name)[1]["params"] if param not in nodes]
            nodes |= {param: {"handle": message["save"]} for param in missing[-1:]}
        result = self.run(name, nodes, body, stage)
        if "new" in message:
            return self.created(message, name, result, out, stage)
        if "save" in message:
            self.end(message["save"])
            self.objects[message["save"]] = Held(result)
            return {"ok": True, **self.origin(name)}
        answer: dict[str, Any] = {"return": self.answered(name, result, out)}
        if back := message.get("back", ()):
            answer["args"] = {
                param: self.contents(self.buffers[param], out) for param in back if param in self.buffers
            }
        return {**answer, **self.origin(name)}

    def created(
        self, message: dict[str, Any], name: str, result: Any, out: frame.Body, stage: list[str]
    ) -> dict[str, Any]:
        given = self.answered(name, result, out)
        if message["save"] not in self.objects:
            stage[0] = "call"
            raise Fault("NotCreated", f"{name} gave {given!r}")
        return {"ok": True, **self.origin(name)}

    def zeroed(
        self, message: dict[str, Any], kind: str, body: Iterator[bytes], stage: list[str]
    ) -> dict[str, Any]:
        """A struct, or an array of them, of zeros; fields may be given."""
        stage[0] = "args"
        size = self.ffi.sizeof(kind)
        pointer = self.memory(size, message["save"])
        self.end(message["save"])
        of = kind.partition("[")[0]
        held = self.ffi.cast(f"{of} *", pointer)
        self.fill(held[0], self.ffi.typeof(of), message.get("args", {}), body)
        self.objects[message["save"]] = Held(held, size=size)
        return {"ok": True, "file": self.file_of("")}  # no code made it: it is as good as the unit's

    def field(self, message: dict[str, Any]) -> tuple[Any, Any]:
        """A field of a struct, by a dotted name."""
        held = self.objects[message["on"]].value
        kind = self.ffi.typeof(held)
        value = held[message.get("path", [0])[0]] if kind.kind == "pointer" else held
        kind = self.ffi.typeof(value)
        for part in message["get"].split("."):
            kind = dict(kind.fields)[part].type
            value = getattr(value, part)
        return value, kind

    def origin(self, name: str) -> dict[str, Any]:
        return {} if self.find(name)[2] else {"file": self.file_of(name)}

    # -- messages -------------------------------------------------------------------------------------

    def answer(self, message: dict[str, Any], body: Iterator[bytes], out: frame.Body) -> dict[str, Any]:
        stage = ["lookup"]
        self.drop()
        try:
            if "hello" in message:
                stage[0] = "import"
                return self.hello(message)
            if "reset" in message:
                self.settle()
                return {"ok": True}
            if "settle" in message:
                return {"return": self.settled()}
            if "observe" in message:
                return {"observed": [self.looked(look, body, out) for look in message["observe"]]}
            return self.act(message, body, out, stage)
        except MemoryError as error:
            return {"memory": {"class": "MemoryError", "bases": [], "text": str(error)}, "phase": "args"}
        except Exception as error:
            kind = error.kind if isinstance(error, Fault) else type(error).__name__
            return {"raises": {"class": kind, "bases": [kind], "text": str(error)}, "phase": stage[0]}

    def looked(self, look: dict[str, Any], body: Iterator[bytes], out: frame.Body) -> dict[str, Any]:
        answer = self.answer(look, body, out)
        answer.pop("file", None)
        return answer

    def destroyers(self) -> dict[str, Any]:
        """For each type the function that ends an object of it: one parameter, called *_destroy or *_free."""
        found = {}
        for name, (function, known, origin) in self.functions.items():
            if not origin and re.search(r"_(destroy|free)$", name) and len(known["params"]) == 1:
                found[self.ffi.typeof(function).args[0].item.cname] = function
        return found

    def end(self, name: str) -> None:
        """Destroy an object of this id, if there is one."""
        held = self.objects.pop(name, None)
        if held is None:
            return
        kind = self.ffi.typeof(held.value)
        if kind.kind == "pointer" and kind.item.cname in self.ends and (held.handle or held.size):
            self.ends[kind.item.cname](held.value)
        if held.size:
            if int(self.tk.tk_damage(held.value)):
                self.left.setdefault("damaged", name)
            self.tk.tk_drop(held.value)

    def settle(self) -> None:
        """End every object and note what is left: live blocks, and what was done wrong with the hook."""
        for name in reversed(list(self.objects)):
            self.end(name)
        if misuse := self.text(self.tk.tk_misuse()):
            self.left.setdefault("misuse", misuse)
        if live := int(self.tk.tk_live()):
            self.left.setdefault("live", live)
        self.tk.tk_forget()
        self.install()

    def settled(self) -> dict[str, Any]:
        """What was wrong at the end of any run since this was last asked."""
        self.settle()
        left, self.left = self.left, {}
        return {"map": [[name, left.get(name)] for name in ("live", "misuse", "damaged")]}

    def drop(self) -> None:
        """The memory of the last call's arguments is gone when the next request comes."""
        for buffer in self.buffers.values():
            self.tk.tk_drop(buffer.pointer)
        self.buffers.clear()


class Native:
    """Bindings by library, imported before the fork: they are ours and run nothing of the learner's."""

    versions: Mapping[str, str] = MappingProxyType({})

    def load(self, message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        path = message["binding"]
        spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with open(path[:-3] + ".json", encoding="utf-8") as file:
            names = json.load(file)
        return message, {"ffi": module.ffi, "names": names}

    def converse(self, loaded: tuple[dict[str, Any], dict[str, Any]], message: dict[str, Any]) -> Session:
        del message
        return Session(*loaded)


def main(control: int) -> None:
    zygote.serve(control, Native())
