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
from grader.compare import compare, want_of
from grader.errors import OlError, OwnFault
from grader.fixtures import NOT_CASES, Unit, files_of
from grader.path import Stage
from grader.values import BadValue, decode, kind_of, listed, plain, to_fixture, typed_key
from grader.wire import DTYPES, NAMES

Place = tuple[str | int, ...]


def build(stage: Stage, root: Path, write: bool, progress: Callable[[str], None] = lambda text: None) -> list[str]:
    """Recompute everything of a unit; returns the files that differ (and writes them if `write`)."""
    folder = root / "fixtures" / stage.unit
    oracle = Unit(stage, root, [], {}, {}, "").oracle
    made: dict[str, bytes] = {}
    for name, document in generated(oracle).items():
        progress(f"{stage.unit}/{name}")
        made[name] = canonical(document).encode()
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
    changed = [n for n, raw in made.items() if not (folder / n).exists() or (folder / n).read_bytes() != raw] + stale
    if write:
        for name in changed:
            replace_file(folder / name, made[name]) if name in made else (folder / name).unlink()
    return sorted(changed)


def generated(oracle: Any) -> dict[str, Any]:
    documents = oracle.generate() if hasattr(oracle, "generate") else {}
    for name in documents:
        if not name.endswith(".gen.yaml") or "/" in name:
            raise OwnFault(f"generate() names {name!r}", "oracle.py", "generated files end in .gen.yaml")
    return dict(documents)


def manifest_of(folder: Path, made: dict[str, bytes]) -> bytes:
    rows = []
    names = {str(p.relative_to(folder)) for p in files_of(folder) if not p.name.endswith(".gen.yaml")}
    for name in sorted(names | set(made)):
        raw = made[name] if name in made else (folder / name).read_bytes()
        rows.append(f"{hashlib.sha256(raw).hexdigest()}\t{name}\n")
    return "".join(rows).encode()


def replace_file(path: Path, raw: bytes) -> None:
    """Written beside and renamed, so that a kill leaves the old file or the new one."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(raw)
            except BaseException:
                os.unlink(file.name)
                raise
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise OwnFault(f"cannot write: {error.strerror}", str(path), "nothing was changed") from None


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
        raise OwnFault(f"{schema.dotted(place)}: {words}", f"{name}:{marked.line(place)}")
    values: dict[Place, Any] = {}
    oracles = marked.value["oracles"]
    for i, case in enumerate(marked.value["cases"]):
        if "property" in case:
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
        raise OwnFault("expect() does not cover this case", where, "extend oracle.py, or give the case a hand oracle") from None
    except BadValue as error:
        raise OwnFault(str(error), where) from None
    except OlError:
        raise
    except Exception as error:
        raise OwnFault(f"expect() raised {type(error).__name__}: {error}", where, "fix oracle.py or the case") from error
    if not isinstance(told, dict):
        raise OwnFault(f"expect() gave a {type(told).__name__}, not a dict", where)
    return told


def plain_case(case: dict[str, Any], data: Path) -> dict[str, Any]:
    """A case as an oracle sees it: arguments decoded, expected values removed."""

    def args(node: Any) -> Any:
        return plain(decode(node, data))

    seen: dict[str, Any] = {k: case[k] for k in ("id", "call", "on", "new", "needs", "flags") if k in case}
    if "args" in case:
        seen["args"] = args(case["args"])
    if "objects" in case:
        seen["objects"] = [{**spec, "args": args(spec.get("args", {}))} for spec in case["objects"]]
    if "expect" in case:
        seen["after"] = {id: {k: v for k, v in look.items() if k != "return"} for id, look in case["expect"].get("after", {}).items()}
    if "steps" in case:
        seen["steps"] = [
            {**{k: v for k, v in step.items() if k not in ("return", "raises", "state")}, "args": args(step.get("args", {}))}
            for step in case["steps"]
        ]  # fmt: skip
    return seen


class Splicer:
    """Walks a case's expected values beside the oracle's and collects what must be replaced."""

    def __init__(self, data: Path, where: str, hand: bool) -> None:
        self.data, self.where, self.hand = data, where, hand
        self.values: dict[Place, Any] = {}

    def case(self, case: dict[str, Any], told: dict[str, Any], at: Place) -> None:
        if "steps" in case:
            steps = told.get("steps")
            if not isinstance(steps, list) or len(steps) != len(case["steps"]):
                raise OwnFault("expect() gives one entry a step under 'steps'", self.where, "fix oracle.py")
            for j, (step, said) in enumerate(zip(case["steps"], steps, strict=True)):
                self.answer(step, said, (*at, "steps", j))
                for name, node in step.get("state", {}).items():
                    if name not in said.get("state", {}):
                        raise OwnFault(f"expect() says nothing of {name!r} at step {j + 1}", self.where, "fix oracle.py")
                    self.node(node, said["state"][name], (*at, "steps", j, "state", name))
            return
        expect, place = case["expect"], (*at, "expect")
        if "accept" not in expect:
            self.answer(expect, told, place)
        for name, node in expect.get("args", {}).items():
            self.node(node, told.get("args", {}).get(name), (*place, "args", name))
        for name, look in expect.get("after", {}).items():
            if name not in told.get("after", {}):
                raise OwnFault(f"expect() says nothing of {name!r} afterwards", self.where, "fix oracle.py")
            self.node(look["return"], told["after"][name], (*place, "after", name, "return"))

    def answer(self, node: dict[str, Any], told: dict[str, Any], at: Place) -> None:
        """`return` or `raises`, whichever the case states; the oracle must say the same of the two."""
        if "raises" in node:
            if told.get("raises") != node["raises"]:
                said = f"raises {told['raises']}" if "raises" in told else "returns"
                raise OwnFault(f"the case raises {node['raises']}, the oracle {said}", self.where)
        elif "return" in node:
            if "raises" in told:
                raise OwnFault(f"the case returns, the oracle raises {told['raises']}", self.where)
            self.node(node["return"], told.get("return"), (*at, "return"))
        elif "raises" in told:
            raise OwnFault(f"the case states no raise, the oracle raises {told['raises']}", self.where)

    def node(self, node: Any, value: Any, at: Place) -> None:
        if self.hand:
            difference = compare(want_of(node, self.data), value)
            if difference is not None:
                place = schema.dotted(at)
                raise OwnFault(f"{place}: typed {difference.expected}, the oracle says {difference.got}", self.where)
            return
        key = typed_key(node)
        if key in DTYPES:
            self.typed(node, str(key), value, at)
        elif isinstance(node, list) and isinstance(value, (list, tuple)) and len(node) == len(value):
            for j, (item, said) in enumerate(zip(node, value, strict=True)):
                self.node(item, said, (*at, j))
        elif isinstance(node, dict) and key is None and isinstance(value, dict):
            inner = "attrs" if set(node) == {"attrs"} else "keys" if set(node) == {"keys"} else None
            items, place = (node[inner], (*at, inner)) if inner else (node, at)
            for name, item in items.items():
                if name not in value:
                    raise OwnFault(f"{schema.dotted(at)}: the oracle says nothing of {name!r}", self.where)
                self.node(item, value[name], (*place, name))
        else:
            self.put(at, to_fixture(value), node)

    def typed(self, node: dict[str, Any], key: str, value: Any, at: Place) -> None:
        literal, array = node[key], np.asarray(value)
        scalar = not isinstance(literal, (list, dict)) and not isinstance(value, np.ndarray)
        if key == "f64" and isinstance(value, (int, float)) and not isinstance(value, bool):
            array = np.asarray(float(value))
        elif isinstance(value, (bool, int)) and key in DTYPES and DTYPES[key].kind in "iub":
            array = np.asarray(value, DTYPES[key])
        if NAMES.get(array.dtype) != key or (array.ndim == 0) != scalar:
            raise OwnFault(f"{schema.dotted(at)}: typed {key}, the oracle gives {kind_of(value)}", self.where)
        if isinstance(literal, dict):
            self.shaped(literal, array, (*at, key))
        else:
            self.put((*at, key), listed(array), literal)

    def shaped(self, literal: dict[str, Any], array: Any, at: Place) -> None:
        """`{shape, ids | bits | hex}` keeps its form; `gen` and `file` are only compared."""
        self.put((*at, "shape"), list(array.shape), literal["shape"])
        if "ids" in literal:
            self.put((*at, "ids"), np.flatnonzero(array).tolist(), literal["ids"])
        elif "bits" in literal or "hex" in literal:
            form = "bits" if "bits" in literal else "hex"
            raw = np.ascontiguousarray(array).reshape(-1)
            words = " ".join(x.tobytes()[::-1].hex() for x in raw) if form == "bits" else raw.tobytes().hex()
            self.put((*at, form), words, literal[form])
        elif not np.array_equal(decode({NAMES[array.dtype]: literal}, self.data), array):
            raise OwnFault(f"{schema.dotted(at)}: the oracle gives another array", self.where)

    def put(self, at: Place, value: Any, old: Any) -> None:
        """Replace one node; what already says the same stays as it is written."""
        if type(old) is type(value) and old == value and repr(old) == repr(value):
            return
        self.values[at] = value
