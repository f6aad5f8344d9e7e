"""What a schema cannot say about a case: values, names, twins, comparators. One fault, one line, one place."""

from __future__ import annotations

import builtins
import dataclasses
import difflib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from grader import schema, strict_yaml
from grader.compare import TOLERANCES, want_of
from grader.errors import OwnFault
from grader.fixtures import Case
from grader.values import COMPARE_KEYS, BadValue, decode, shortest, typed_key
from grader.wire import DTYPES

FLOATS = ("f16", "f32", "f64")
STEP_VERBS = ("do", "get", "call", "new")
KINDS = {
    name for name, thing in vars(builtins).items()
    if isinstance(thing, type) and issubclass(thing, Exception) and thing is not Exception
}  # fmt: skip
Place = tuple[str | int, ...]


class Reader:
    """Collects a unit's case files; `finish` checks what crosses files."""

    def __init__(self, unit: str, root: Path) -> None:
        self.unit, self.root = unit, root
        self.errors: dict[str, Any] = {}
        self.hints: dict[str, list[str]] = {}
        self.cases: dict[str, Case] = {}
        self.where: dict[str, str] = {}

    # -- one file -----------------------------------------------------------------------------------

    def read(self, path: Path, raw: bytes) -> None:
        self.name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        self.data = path.parent
        self.marked = strict_yaml.load_marked(raw, self.name)
        document = self.marked.value
        if isinstance(document, dict) and "format" in document:
            schema.check_format(document["format"], self.name)
        fault = schema.first_fault("fixture", document)
        if fault is not None:
            self.refuse(fault[0], fault[1])
        if document["unit"] != self.unit:
            self.refuse(("unit",), f"unit {document['unit']!r} in the folder of {self.unit!r}")
        for topic, rungs in document.get("hints", {}).items():
            if topic in self.hints:
                self.refuse(("hints", topic), f"hint {topic!r} is defined twice")
            self.hints[topic] = rungs
        for i, raw_case in enumerate(document["cases"]):
            self.case(document, raw_case, ("cases", i))
        used = {name for c in document["cases"] for name in c.get("flags", [])}
        self.unused("flags", document.get("flags", {}), used)
        self.unused("oracles", document["oracles"], {name for c in document["cases"] for name in c["oracle"]})

    def unused(self, what: str, defined: dict[str, Any], used: set[str]) -> None:
        for name in defined:
            if name not in used:
                self.refuse((what, name), f"{name!r} is defined and no case uses it")

    def refuse(self, place: Place, what: str, fix: str = "") -> NoReturn:
        dotted = schema.dotted(place)
        raise OwnFault(f"{dotted}: {what}" if dotted else what, f"{self.name}:{self.marked.line(place)}", fix)

    # -- one case -----------------------------------------------------------------------------------

    def case(self, document: dict[str, Any], raw: dict[str, Any], at: Place) -> None:
        id = raw["id"]
        if not id.startswith(self.unit + "/"):
            self.refuse((*at, "id"), f"{id!r} does not start with {self.unit + '/'!r}")
        if id in self.cases:
            self.refuse((*at, "id"), f"{id!r} is defined twice", "ids are never reused")
        for key in ("flags", "oracle"):
            defined = document.get("flags" if key == "flags" else "oracles", {})
            for j, name in enumerate(raw.get(key, [])):
                if name not in defined:
                    self.refuse((*at, key, j), f"{name!r} is not defined in this file" + near(name, defined))
        kinds = [document["oracles"][name]["kind"] for name in raw["oracle"]]
        if raw.get("level", "required") == "required" and all(kind == "reference" for kind in kinds):
            self.refuse((*at, "oracle"), "a required case needs an oracle that is not the reference")
        self.named: set[str] = set()
        for j, obj in enumerate(raw.get("objects", [])):
            if obj["id"] in self.named:
                self.refuse((*at, "objects", j, "id"), f"object {obj['id']!r} is built twice")
            self.values(obj.get("args", {}), (*at, "objects", j, "args"))
            self.named.add(obj["id"])
        case = Case(
            id, self.unit, self.name, self.marked.line(at), raw, document["title"],
            document["oracles"], document.get("observables", {}), document.get("flags", {}),
        )  # fmt: skip
        getattr(self, f"_{case.verb}")(case, at)
        self.cases[id], self.where[id] = case, f"{self.name}:{case.line}"

    def values(self, args: dict[str, Any], at: Place) -> None:
        for name, node in args.items():
            self.value(node, (*at, name))

    def value(self, node: Any, at: Place) -> None:
        key = typed_key(node)
        if key is None or key in ("tuple", "new", "call"):
            inner = node.get("args", {}) if key in ("new", "call") else node[key] if key == "tuple" else node
            place = (*at, "args") if key in ("new", "call") else (*at, key) if key == "tuple" else at
            items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
            for k, item in items:
                self.value(item, (*place, k))
        if key == "ref" and node["ref"] not in self.named:
            self.refuse(at, f"ref {node['ref']!r} names no object" + near(node["ref"], self.named))
        if key in DTYPES and set(node) & COMPARE_KEYS:
            self.refuse(at, f"{sorted(set(node) & COMPARE_KEYS)[0]!r} belongs to expected values, not to arguments")
        self.decodes(node, at)

    def decodes(self, node: Any, at: Place) -> None:
        try:
            decode(node, self.data)
        except BadValue as error:
            self.refuse(at, str(error))
        self.written_shortest(node, at)

    def written_shortest(self, node: Any, at: Place) -> None:
        key = typed_key(node)
        if key not in ("f16", "f32") or isinstance(node[key], dict):
            return
        numbers = np.array([x for x in flat(node[key]) if isinstance(x, (int, float)) and not isinstance(x, bool)])
        rounded = numbers.astype(DTYPES[key])
        for number, value in zip(numbers.tolist(), rounded, strict=True):
            if shortest(value) != number:
                self.refuse((*at, key), f"{number!r} is no {key} value in its shortest decimal: write {shortest(value)!r}")

    # -- expected values ----------------------------------------------------------------------------

    def want(self, node: Any, at: Place) -> None:
        """An expected value: decodes, and every float in it says how it is compared."""
        key = typed_key(node)
        if key in ("new", "call", "ref"):
            self.refuse(at, f"{key!r} builds an argument; expected values are data")
        if key is None or key == "tuple":
            inner = node["tuple"] if key else node
            if isinstance(inner, dict):
                inner = inner["attrs"] if set(inner) == {"attrs"} else inner["keys"] if set(inner) == {"keys"} else inner
            for k, item in inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ():
                self.want(item, (*at, k))
            if isinstance(node, float):
                self.refuse(at, "a bare float has no comparator", "write {f64: .., cmp: ..}")
            return
        if node[key] is None:
            self.refuse(at, f"no value yet at {key!r}", f"ol author build {self.unit}")
        if "why" not in node and node.get("cmp") in TOLERANCES:
            self.refuse(at, f"cmp: {node['cmp']} needs why: where does the number come from?")
        if key in FLOATS and "cmp" not in node:
            self.refuse(at, "floats have no default comparator", "add cmp: exact, bits, ulp, close ..")
        try:
            want_of(node, self.data)
        except BadValue as error:
            self.refuse(at, str(error))
        self.written_shortest(node, at)

    def kind(self, name: str, at: Place) -> None:
        if name in ("Exception", "BaseException"):
            self.refuse(at, f"{name} is no kind: name the error")
        if name not in KINDS and name not in self.errors:
            self.refuse(at, f"no error kind {name!r}" + near(name, KINDS | set(self.errors)), "declare it in errors.yaml")

    # -- verbs --------------------------------------------------------------------------------------

    def _call(self, case: Case, at: Place) -> None:
        raw, expect = case.raw, case.raw["expect"]
        self.values(raw.get("args", {}), (*at, "args"))
        self.on(raw, at)
        answers = [key for key in ("return", "raises", "accept") if key in expect]
        if len(answers) > 1:
            self.refuse((*at, "expect"), f"{' and '.join(answers)}: one of them")
        if not answers and not expect.get("args") and not expect.get("after"):
            self.refuse((*at, "expect"), "expects nothing")
        self.expected(expect, (*at, "expect"))
        for j, option in enumerate(expect.get("accept", [])):
            place = (*at, "expect", "accept", j)
            if ("return" in option) == ("raises" in option):
                self.refuse(place, "one of return, raises")
            self.expected(option, place)
        self.mutated(raw, expect.get("args", {}), at)
        for name, look in expect.get("after", {}).items():
            place = (*at, "expect", "after", name)
            if name not in self.named:
                self.refuse(place, f"{name!r} names no object" + near(name, self.named))
            if ("do" in look) == ("get" in look):
                self.refuse(place, "one of do, get")
            self.want(look["return"], (*place, "return"))
        if "raises" in expect and "twin" not in raw:
            self.refuse(at, "a raising case names its twin: the same call that must pass", "twin: <case id>")

    def expected(self, expect: dict[str, Any], at: Place) -> None:
        if "return" in expect:
            self.want(expect["return"], (*at, "return"))
        if "raises" in expect:
            self.kind(expect["raises"], (*at, "raises"))

    def mutated(self, raw: dict[str, Any], becomes: dict[str, Any], at: Place) -> None:
        for j, name in enumerate(raw.get("mutates", [])):
            if name not in raw.get("args", {}):
                self.refuse((*at, "mutates", j), f"{name!r} is no argument of the case")
        for name, node in becomes.items():
            if name not in raw.get("mutates", []):
                self.refuse((*at, "expect", "args", name), f"{name!r} may not change: it is not in mutates")
            self.want(node, (*at, "expect", "args", name))

    def on(self, raw: dict[str, Any], at: Place) -> None:
        if "on" in raw and raw["on"] not in self.named:
            self.refuse((*at, "on"), f"{raw['on']!r} names no object" + near(raw["on"], self.named))

    def _trace(self, case: Case, at: Place) -> None:
        raw = case.raw
        if "new" in raw:
            self.values(raw.get("args", {}), (*at, "args"))
        elif "args" in raw:
            self.refuse((*at, "args"), "args without new")
        judged = False
        for j, step in enumerate(raw["steps"]):
            place = (*at, "steps", j)
            verbs = [v for v in STEP_VERBS if v in step]
            if len(verbs) != 1:
                self.refuse(place, f"one of {', '.join(STEP_VERBS)}, found {', '.join(verbs) or 'none'}")
            ends = [k for k in ("return", "raises", "save") if k in step]
            if len(ends) > 1:
                self.refuse(place, f"{' and '.join(ends)}: at most one of them")
            self.on(step, place)
            if verbs[0] == "get" and "on" not in step and "new" not in raw:
                self.refuse(place, "get needs an object: `on`, or a case with `new`")
            self.values(step.get("args", {}), (*place, "args"))
            self.mutated(step, {}, place)
            self.expected(step, place)
            for name, node in step.get("state", {}).items():
                if name not in case.observables:
                    self.refuse((*place, "state", name), f"no observable {name!r}" + near(name, case.observables))
                if isinstance(node, dict) and set(node) == {"raises"}:
                    self.kind(node["raises"], (*place, "state", name))
                else:
                    self.want(node, (*place, "state", name))
            judged |= "return" in step or "raises" in step or "state" in step
            if "save" in step:
                self.named.add(step["save"])
        if not judged:
            self.refuse((*at, "steps"), "a trace has at least one state, return or raises")

    def _property(self, case: Case, at: Place) -> None:
        raw, prop, place = case.raw, case.raw["property"], (*at, "property")
        if ("holds" in prop) == ("same_as" in prop):
            self.refuse(place, "one of holds, same_as")
        if ("script" in prop) == ("given" in prop):
            self.refuse(place, "one of given, script")
        if "script" in prop:
            if "new" not in raw or not prop.get("same_as", "").startswith("oracle."):
                self.refuse(place, "a script needs new, and same_as: oracle.<Model>")
            for j, name in enumerate(prop.get("observables", [])):
                if name not in case.observables:
                    self.refuse((*place, "observables", j), f"no observable {name!r}" + near(name, case.observables))
        elif "call" not in raw:
            self.refuse(at, "a property calls something: call, or new with a script")
        elif prop.get("same_as", "").startswith("oracle."):
            self.refuse((*place, "same_as"), "a model goes with a script")
        if prop.get("same_as") == "reference" and "reference" not in {o["kind"] for o in case.oracles.values()}:
            self.refuse((*place, "same_as"), "name an oracle of kind reference for it")
        if prop.get("cmp") in TOLERANCES and "why" not in prop:
            self.refuse((*place, "cmp"), f"cmp: {prop['cmp']} needs why: where does the number come from?")
        if "same_as" in prop and "cmp" not in prop:
            self.refuse(place, "same_as needs cmp: floats have no default comparator")
        self.values(raw.get("args", {}), (*at, "args"))
        self.on(raw, at)

    # -- across files -------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        for id, case in self.cases.items():
            where = self.where[id]
            for topic in case.raw.get("hints", []):
                if topic not in self.hints:
                    raise OwnFault(f"{id}: no hint {topic!r}" + near(topic, self.hints), where)
            twin = case.raw.get("twin")
            if twin is not None:
                self.twin(case, twin, where)
            if case.raw.get("replaces") in self.cases:
                raise OwnFault(f"{id}: replaces {case.raw['replaces']!r}, which still exists", where)
        cases = [dataclasses.asdict(case) for case in self.cases.values()]
        return {"cases": cases, "hints": self.hints, "errors": self.errors}

    def twin(self, case: Case, name: str, where: str) -> None:
        other = self.cases.get(name)
        if other is None:
            raise OwnFault(f"{case.id}: no twin {name!r}" + near(name, self.cases), where)
        if other.verb != "call" or "raises" in other.raw["expect"]:
            raise OwnFault(f"{case.id}: the twin {name!r} must be a call that returns", where)
        if other.raw["call"] != case.raw.get("call"):
            raise OwnFault(f"{case.id}: the twin calls {other.raw['call']!r}, not {case.raw.get('call')!r}", where)
        changed = leaves_changed(case.raw.get("args", {}), other.raw.get("args", {}))
        if len(changed) != 1:
            what = f"differs in {', '.join(changed)}" if changed else "does not differ"
            raise OwnFault(f"{case.id}: the twin {name!r} {what}; it must differ in one argument", where)


def leaves_changed(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    """The arguments in which two calls differ; a constructed one counts by its own arguments."""
    changed: list[str] = []
    for name in sorted(set(a) | set(b)):
        x, y = a.get(name), b.get(name)
        if repr(x) == repr(y):
            continue
        if isinstance(x, dict) and isinstance(y, dict) and x.get("new") == y.get("new") and "new" in x:
            changed += leaves_changed(x.get("args", {}), y.get("args", {}), f"{prefix}{name}.")
        else:
            changed.append(prefix + name)
    return changed


def flat(items: Any) -> list[Any]:
    return [x for item in items for x in flat(item)] if isinstance(items, list) else [items]


def near(name: str, known: Any) -> str:
    found = difflib.get_close_matches(str(name), list(known), 1)
    return f", did you mean {found[0]!r}?" if found else ""

