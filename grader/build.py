"""`ol author build`: expected values come from the unit's oracle and are spliced into the files.

Only the value is replaced, at its own place in the text: comments, order and layout stay. Building twice
gives the same bytes. A case whose only oracle is `hand` stays as typed and is compared.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from grader import check, fixtures, schema, strict_yaml
from grader.compare import compare, settled, want_of
from grader.errors import OlError, OwnFault
from grader.fixtures import NOT_CASES, Unit, files_of
from grader.path import Stage
from grader.values import INTS, BadValue, decode, decode_args, kind_of, listed, plain, to_fixture, typed_key
from grader.wire import DTYPES, NAMES

Place = tuple[str | int, ...]
SEEN = ("id", "call", "on", "new", "needs", "flags", "answer")  # of a case, by its oracle


def build(
    stage: Stage, root: Path, write: bool, progress: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Recompute everything of a unit; returns the files that differ (and writes them if `write`)."""
    folder = root / "fixtures" / stage.unit
    oracle = Unit(stage, root, [], {}, {}, "").oracle
    made: dict[str, bytes] = {}
    for name, document in generated(oracle).items():
        progress(f"{stage.unit}/{name}")
        try:
            made[name] = canonical(document).encode()
        except ValueError as error:
            raise OwnFault(str(error), f"generate(), {name}", "fix oracle.py") from None
    for path in sorted(folder.glob("*.yaml")):
        if path.name in NOT_CASES or path.name.endswith(".gen.yaml"):
            continue
        progress(f"{stage.unit}/{path.name}")
        made[path.name] = spliced(path, root, oracle).encode()
    reader = check.Reader(stage.unit, root)
    errors = folder / "errors.yaml"
    if errors.exists():
        reader.errors = fixtures.read_yaml(errors, "errors", root)["errors"]
    for name, raw in sorted(made.items()):
        reader.read(folder / name, raw)
    reader.finish()
    made["MANIFEST.tsv"] = manifest_of(folder, made)
    stale = [p.name for p in folder.glob("*.gen.yaml") if p.name not in made]
    old = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    changed = [name for name, raw in made.items() if old.get(name) != raw] + stale
    if write:
        for name in changed:
            replace_file(folder / name, made[name]) if name in made else (folder / name).unlink()
    return sorted(changed)


def generated(oracle: Any) -> dict[str, Any]:
    try:
        documents = dict(oracle.generate() if hasattr(oracle, "generate") else {})
    except Exception as error:
        what = f"generate() raised {type(error).__name__}: {error}"
        raise OwnFault(what, "oracle.py", "fix oracle.py") from error
    for name in documents:
        if not name.endswith(".gen.yaml") or "/" in name:
            raise OwnFault(f"generate() names {name!r}", "oracle.py", "generated files end in .gen.yaml")
    return documents


def manifest_of(folder: Path, made: dict[str, bytes]) -> bytes:
    rows = []
    names = {str(p.relative_to(folder)) for p in files_of(folder) if not p.name.endswith(".gen.yaml")}
    for name in sorted(names | set(made)):
        raw = made[name] if name in made else (folder / name).read_bytes()
        rows.append(f"{hashlib.sha256(raw).hexdigest()}\t{name}\n")
    return "".join(rows).encode()


def replace_file(path: Path, raw: bytes) -> None:
    """Written beside and renamed, so that a kill leaves the old file or the new one."""
    beside: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            beside = Path(file.name)
            file.write(raw)
        beside.chmod(0o644)
        os.replace(beside, path)
    except OSError as error:
        raise OwnFault(f"cannot write: {error.strerror}", str(path), "this file was not changed") from None
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)  # gone when it was renamed


# -- generated files --------------------------------------------------------------------------------------


def canonical(document: dict[str, Any]) -> str:
    """A whole case file as text: top-level keys in blocks, one case or step a line, in flow form."""
    lines = ["# Written by `ol author build` from oracle.py; never edited."]
    for key, value in document.items():
        if key == "cases":
            lines.append("cases:")
            for case in value:
                head = {k: v for k, v in case.items() if k != "steps"}
                for i, (k, v) in enumerate(head.items()):
                    lines.append(f"{'- ' if i == 0 else '  '}{k}: {strict_yaml.to_flow(v)}")
                if "steps" in case:
                    lines.append("  steps:")
                    lines += [f"  - {strict_yaml.to_flow(step)}" for step in case["steps"]]
        elif isinstance(value, dict) and value:
            lines.append(f"{key}:")
            lines += [f"  {strict_yaml.to_flow(k)}: {strict_yaml.to_flow(v)}" for k, v in value.items()]
        else:
            lines.append(f"{key}: {strict_yaml.to_flow(value)}")
    return "\n".join(lines) + "\n"


# -- hand-written files -----------------------------------------------------------------------------------


def spliced(path: Path, root: Path, oracle: Any) -> str:
    """The file's text with every expected value replaced by the oracle's."""
    name = str(path.relative_to(root))
    raw = path.read_bytes()
    marked = strict_yaml.load_marked(raw, name)
    fault = schema.first_fault("fixture", marked.value)
    if fault is not None:
        place, words = fault
        raise OwnFault(f"{schema.dotted(place)}: {words}".removeprefix(": "), marked.at(place))
    values: dict[Place, Any] = {}
    oracles = marked.value["oracles"]
    for i, case in enumerate(marked.value["cases"]):
        if "property" in case or "perf" in case:
            continue
        at: Place = ("cases", i)
        hand = all(oracles.get(o, {}).get("kind") == "hand" for o in case["oracle"])
        where = f"{case['id']} ({name}:{marked.line(at)})"
        told = told_by(oracle, case, path.parent, where, hand)
        if told is None:
            continue
        splicer = Splicer(path.parent, where, hand)
        splicer.case(case, told, at)
        values |= splicer.values
    return strict_yaml.splice(marked, values)


def told_by(oracle: Any, case: dict[str, Any], data: Path, where: str, hand: bool) -> dict[str, Any] | None:
    """What the oracle says of a case; None where a hand case has no oracle."""
    try:
        told = oracle.expect(plain_case(case, data))
    except NotImplementedError:
        if hand:
            return None
        fix = "extend oracle.py, or give the case a hand oracle"
        raise OwnFault("expect() does not cover this case", where, fix) from None
    except BadValue as error:
        raise OwnFault(str(error), where) from None
    except OlError:
        raise
    except Exception as error:
        what = f"expect() raised {type(error).__name__}: {error}"
        raise OwnFault(what, where, "fix oracle.py or the case") from error
    if not isinstance(told, dict):
        raise OwnFault(f"expect() gave a {type(told).__name__}, not a dict", where)
    return told


def plain_case(case: dict[str, Any], data: Path) -> dict[str, Any]:
    """A case as an oracle sees it: arguments decoded, expected values removed."""

    def args(node: Any) -> Any:
        return {name: plain(value) for name, value in decode_args(node, data).items()}

    seen: dict[str, Any] = {k: case[k] for k in SEEN if k in case}
    if "args" in case:
        seen["args"] = args(case["args"])
    if "objects" in case:
        seen["objects"] = [{**spec, "args": args(spec.get("args", {}))} for spec in case["objects"]]
    if "expect" in case:
        seen["after"] = {name: asked(look) for name, look in case["expect"].get("after", {}).items()}
    if "steps" in case:
        seen["steps"] = [{**asked(step), "args": args(step.get("args", {}))} for step in case["steps"]]
    return seen


def asked(node: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in node.items() if k not in ("return", "raises", "state")}


class Splicer:
    """Walks a case's expected values beside the oracle's and collects what must be replaced."""

    def __init__(self, data: Path, where: str, hand: bool) -> None:
        self.data, self.where, self.hand = data, where, hand
        self.values: dict[Place, Any] = {}

    def case(self, case: dict[str, Any], told: dict[str, Any], at: Place) -> None:
        if "steps" in case:
            self.steps(case["steps"], told.get("steps"), (*at, "steps"))
            return
        expect, place = case["expect"], (*at, "expect")
        if "answer" in case:
            for kind, node in expect.items():
                self.node(node, told.get(kind), (*place, kind))
            return
        if "accept" in expect:
            self.accepted(expect["accept"], told)
        else:
            self.answer(expect, told, place)
        for name, node in expect.get("args", {}).items():
            self.node(node, told.get("args", {}).get(name), (*place, "args", name))
        for name, look in expect.get("after", {}).items():
            if name not in told.get("after", {}):
                raise self.fault(f"expect() says nothing of {name!r} afterwards")
            self.node(look["return"], told["after"][name], (*place, "after", name, "return"))

    def steps(self, steps: list[dict[str, Any]], told: Any, at: Place) -> None:
        if not isinstance(told, list) or len(told) != len(steps):
            raise self.fault("expect() gives one entry a step under 'steps'")
        for j, (step, said) in enumerate(zip(steps, told, strict=True)):
            self.answer(step, said, (*at, j))
            for name, node in step.get("state", {}).items():
                if name not in said.get("state", {}):
                    raise self.fault(f"expect() says nothing of {name!r} at step {j + 1}")
                value, place = said["state"][name], (*at, j, "state", name)
                if isinstance(node, dict) and set(node) == {"raises"}:
                    told_raise = value if isinstance(value, dict) else {}
                    self.answer(node, told_raise, place)
                else:
                    self.node(node, value, place)

    def fault(self, what: str) -> OwnFault:
        return OwnFault(what, self.where, "fix oracle.py")

    def answer(self, node: dict[str, Any], told: dict[str, Any], at: Place) -> None:
        """`return` or `raises`, whichever the case states; the oracle must say the same of the two."""
        if "raises" in node:
            if told.get("raises") != node["raises"]:
                said = f"raises {told['raises']}" if "raises" in told else "returns"
                raise OwnFault(f"the case raises {node['raises']}, the oracle {said}", self.where)
        elif "raises" in told:
            states = "returns" if "return" in node else "states no raise"
            raise OwnFault(f"the case {states}, the oracle raises {told['raises']}", self.where)
        elif "return" in node:
            self.node(node["return"], told.get("return"), (*at, "return"))

    def accepted(self, options: list[dict[str, Any]], told: dict[str, Any]) -> None:
        """Policies are typed by hand; what the oracle says must be one of them."""
        for option in options:
            if "raises" in told and option.get("raises") == told["raises"]:
                return
            both = "return" in option and "return" in told
            if both and compare(self.want(option["return"]), settled(told["return"])) is None:
                return
        raise OwnFault("the oracle's answer is none of those the case accepts", self.where)

    def want(self, node: Any) -> Any:
        try:
            return want_of(node, self.data)
        except BadValue as error:
            raise OwnFault(f"a typed value is not one: {error}", self.where) from None

    # -- one value ----------------------------------------------------------------------------------

    def node(self, node: Any, value: Any, at: Place) -> None:
        value, key = settled(value), typed_key(node)
        if self.hand:
            difference = compare(self.want(node), value)
            if difference is not None:
                what = f"typed {difference.expected}, the oracle says {difference.got}"
                raise OwnFault(f"{schema.dotted(at)}: {what}", self.where)
        elif key in DTYPES:
            self.typed(node, str(key), value, at)
        elif key == "tuple" and "cmp" in node:
            self.put((*at, key), to_fixture(value), node[key])
        elif isinstance(node, list) and isinstance(value, list) and len(node) == len(value):
            for j, (item, said) in enumerate(zip(node, value, strict=True)):
                self.node(item, said, (*at, j))
        elif isinstance(node, dict) and key is None and isinstance(value, dict):
            self.mapping(node, value, at)
        else:
            self.put(at, to_fixture(value), node)

    def mapping(self, node: dict[str, Any], value: dict[str, Any], at: Place) -> None:
        form = "attrs" if set(node) == {"attrs"} else "keys" if set(node) == {"keys"} else None
        items, place = (node[form], (*at, form)) if form else (node, at)
        for name, item in items.items():
            if name not in value:
                raise OwnFault(f"{schema.dotted(at)}: the oracle says nothing of {name!r}", self.where)
            self.node(item, value[name], (*place, name))
        surplus = [name for name in value if name not in items]
        if surplus and form != "attrs":
            raise OwnFault(f"{schema.dotted(at)}: the oracle also gives {surplus[0]!r}", self.where)

    def typed(self, node: dict[str, Any], key: str, value: Any, at: Place) -> None:
        literal, array = node[key], np.asarray(value)
        plain_kind = bool if key == "bool" else int
        if key == "f64" and type(value) in (int, float):
            array = np.asarray(float(value))
        elif type(value) is plain_kind and in_range(value, key):
            array = np.asarray(value, DTYPES[key])
        is_scalar = array.ndim == 0 if literal is None else not isinstance(literal, (list, dict))
        # A float of another width is a 0-d value either way; a plain float or integer is no tensor.
        fits = array.ndim == 0 and (not isinstance(value, np.ndarray) or key in ("f16", "bf16", "f32"))
        if NAMES.get(array.dtype) != key or is_scalar != fits:
            raise OwnFault(f"{schema.dotted(at)}: typed {key}, the oracle gives {kind_of(value)}", self.where)
        form = next((form for form in ("bits", "hex") if form in node), None)
        if form:
            self.put((*at, key), list(array.shape), literal)
            self.words(array, form, node[form], (*at, form))
        elif isinstance(literal, dict):
            self.shaped(literal, array, (*at, key))
        elif key not in INTS or not says(key, literal, array):
            empty = array.size == 0 and array.ndim > 1  # whose lists would not say its shape
            said = {"shape": list(array.shape), "bits": ""} if empty else listed(array)
            self.put((*at, key), said, literal)

    def shaped(self, literal: dict[str, Any], array: Any, at: Place) -> None:
        """`{shape, ids | bits | hex}` keeps its form; `gen` and `file` are only compared."""
        form = next((form for form in ("ids", "bits", "hex") if form in literal), None)
        if form is None and not np.array_equal(decode({NAMES[array.dtype]: literal}, self.data), array):
            raise OwnFault(f"{schema.dotted(at)}: the oracle gives another array", self.where)
        if form is not None:
            self.put((*at, "shape"), list(array.shape), literal["shape"])
        if form == "ids":
            self.put((*at, form), np.flatnonzero(array).tolist(), literal[form])
        elif form is not None:
            self.words(array, form, literal[form], (*at, form))

    def words(self, array: Any, form: str, old: Any, at: Place) -> None:
        raw = np.ascontiguousarray(array).reshape(-1)
        words = [x.tobytes()[::-1].hex() for x in raw] if form == "bits" else raw.tobytes().hex().split()
        if str(old).lower().split() != words:
            self.put(at, " ".join(words), old)

    def put(self, at: Place, value: Any, old: Any) -> None:
        """Replace one node; what already says the same stays as it is written."""
        if type(old) is type(value) and old == value and repr(old) == repr(value):
            return
        self.values[at] = value


def in_range(value: int, key: str) -> bool:
    return key == "bool" or (key in INTS and INTS[key][0] <= value <= INTS[key][1])


def says(key: str, literal: Any, array: Any) -> bool:
    """Whether integers are right as they are written, in decimal or hex."""
    try:
        return np.array_equal(decode({key: literal}), array)
    except BadValue:
        return False
