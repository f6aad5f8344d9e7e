"""What a schema cannot say about the values of a case file: arguments, answers, how numbers are written."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from grader import schema
from grader.compare import FLOATS, TOLERANCES, want_of
from grader.errors import OwnFault, near
from grader.strict_yaml import Marked
from grader.values import COMPARE_KEYS, NATIVE, SAFE, BadValue, decode, shortest, typed_key
from grader.wire import DTYPES, MAX_DEPTH

TARGET = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)?")
# NotImplementedError is no kind: it is how a stub says `todo`, which never counts as a raise.
KINDS = {
    name for name, thing in vars(builtins).items()
    if isinstance(thing, type) and issubclass(thing, Exception)
    and thing.__name__ == name  # IOError is a second name of OSError
    and thing not in (Exception, NotImplementedError)
}  # fmt: skip
Place = tuple[str | int, ...]


class Values:
    """Checks the values of one case file; the first fault is refused with its line."""

    marked: Marked
    name: str
    data: Path

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.errors: dict[str, Any] = {}
        self.named: set[str] = set()  # the objects of the case at hand
        self.used: set[str] = set()  # and which of them something uses

    def refuse(self, place: Place, what: str, fix: str = "") -> NoReturn:
        dotted = schema.dotted(place)
        raise OwnFault(f"{dotted}: {what}" if dotted else what, self.marked.at(place), fix)

    def use(self, name: str, place: Place, what: str = "") -> None:
        """A name of an object that was built or saved before."""
        if name not in self.named:
            self.refuse(place, f"{what}{name!r} names no object" + near(name, self.named))
        self.used.add(name)

    # -- arguments ----------------------------------------------------------------------------------

    def values(self, args: dict[str, Any], at: Place, labels: bool = False) -> None:
        """Arguments; labels stand only where an earlier answer of the case can have shown them."""
        for name, node in args.items():
            self.value(node, (*at, name), labels)
            self.written(node, (*at, name))

    def value(self, node: Any, at: Place, labels: bool, depth: int = 0) -> None:
        if depth >= MAX_DEPTH:
            self.refuse(at, f"a value nested deeper than {MAX_DEPTH}")
        key = typed_key(node)
        if key is not None and (extra := sorted(set(node) & COMPARE_KEYS)):
            self.refuse(at, f"{extra[0]!r} belongs to expected values, not to arguments")
        if key in (None, "tuple", "new", "call"):
            inner, place = (node, at) if key is None else (node.get("args"), (*at, "args"))
            if key == "tuple":
                inner, place = node["tuple"], (*at, "tuple")
            for k, item in children(inner):
                self.value(item, (*place, k), labels, depth + 1)
        try:
            decode(node, self.data)
        except BadValue as error:
            self.refuse(at, str(error))
        if key in ("new", "call") and not TARGET.fullmatch(node[key]):
            self.refuse(at, f"{node[key]!r} is no name of a class or function: name, or module.name")
        if key == "ref":
            self.use(node["ref"], at, "ref ")
        if key == "handle":
            if node["handle"] in self.named:
                self.refuse(at, f"the name {node['handle']!r} is taken")
            self.named.add(node["handle"])
        if key == "label" and not labels:
            self.refuse(at, "a label is what an earlier step has shown: it stands in steps and observables")

    # -- expected values ----------------------------------------------------------------------------

    def expected_value(self, node: Any, at: Place) -> None:
        self.want(node, at)
        self.written(node, at)

    def want(self, node: Any, at: Place, depth: int = 0) -> None:
        """An expected value: decodes, and every float in it says how it is compared."""
        if depth >= MAX_DEPTH:
            self.refuse(at, f"a value nested deeper than {MAX_DEPTH}")
        key = typed_key(node)
        if key in ("new", "call", "ref", "label", *NATIVE):
            self.refuse(at, f"{key!r} builds an argument; expected values are data")
        if key is not None:
            self.tolerance(node, at)
        if key in DTYPES:
            literal = node[key]
            if literal is None or (isinstance(literal, dict) and None in literal.values()):
                self.refuse(at, f"no value yet at {key!r}", f"ol author build {self.unit}")
            if key in FLOATS and "cmp" not in node:
                self.refuse(at, "floats have no default comparator", "add cmp: exact, bits, ulp, close ..")
        elif key is None or (key == "tuple" and "cmp" not in node):
            form = next((f for f in ("attrs", "keys", "tuple") if isinstance(node, dict) and f in node), None)
            single = form is not None and set(node) == {form}
            for k, item in children(node[form] if single else node):
                self.want(item, (*at, form, k) if single and form else (*at, k), depth + 1)
        try:
            want_of(node, self.data)
        except BadValue as error:
            self.refuse(at, str(error))

    def tolerance(self, node: dict[str, Any], at: Place) -> None:
        """A tolerance says where its number comes from."""
        why = node.get("why", None if node.get("cmp") in TOLERANCES else "none needed")
        if not isinstance(why, str) or not why:
            self.refuse(at, f"cmp: {node.get('cmp')} needs why: where does the number come from?")

    def kind(self, name: str, at: Place) -> None:
        if name in ("Exception", "BaseException"):
            self.refuse(at, f"{name} is no kind: name the error")
        if name == "NotImplementedError":
            self.refuse(at, f"{name} is what a stub raises: it never counts as a raise")
        if name not in KINDS and name not in self.errors:
            known = KINDS | set(self.errors)
            self.refuse(at, f"no error kind {name!r}" + near(name, known), "declare it in errors.yaml")

    # -- how numbers are written --------------------------------------------------------------------

    def written(self, node: Any, at: Place) -> None:
        """Floats in the shortest decimal that reads back, integers where every JSON reader agrees."""
        for place, number, dtype in numbers(node, at, "f64"):
            if isinstance(number, int) and abs(number) >= SAFE:
                hexed = f'write it as hex text: {{u64: "{number:#x}"}}'
                self.refuse(place, f"{number} is beyond 2^53", hexed)
            best: Any = number if dtype == "f64" else shortest(rounded(number, dtype))
            span = self.marked.spans.get(place)
            text = repr(number) if span is None else self.marked.text[span.start : span.stop]
            if best != number or (isinstance(number, float) and digits(text) != digits(repr(best))):
                self.refuse(place, f"{text} is no {dtype} in its shortest decimal: write {best!r}")


def numbers(node: Any, at: Place, dtype: str) -> Iterator[tuple[Place, int | float, str]]:
    """Every number of a node with its place and the float dtype in which it is written."""
    if type(node) in (int, float):
        yield at, node, dtype
    key = typed_key(node)
    for k, item in children(node):
        inside = dtype if key is None else "f64"
        if k == key and k in FLOATS and not isinstance(item, dict):
            inside = str(k)
        yield from numbers(item, (*at, k), inside)


def rounded(number: float, dtype: str) -> np.floating[Any]:
    kind: Any = {"f16": np.float16, "bf16": np.float32, "f32": np.float32}[dtype]
    with np.errstate(over="ignore"):
        return kind(number)  # type: ignore[no-any-return]


def digits(text: str) -> str:
    """The significant digits of a decimal."""
    return re.split("[eE]", text)[0].replace("-", "").replace(".", "").strip("0")


def children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)
