"""Typed values of the fixture language, and back to the form in which a fixture writes them.

Integer, float, boolean, string, bytes, null, sequence and tensor never stand for each other.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from grader.errors import OwnFault
from grader.frame import MAX_BODY
from grader.wire import BF16, DTYPES, NAMES, Call, DType, Fields, Label, Native, New, Opaque, Ref

Array = np.ndarray[Any, Any]
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
COMPARE_KEYS = {"cmp", "max", "rtol", "atol", "why", "nan", "n", "alpha", "test", "bound"}
GOLDEN = 0x9E3779B97F4A7C15
INTS = {name: (int(np.iinfo(d).min), int(np.iinfo(d).max)) for name, d in DTYPES.items() if d.kind in "iu"}
SAFE = 1 << 53  # from here on a JSON number is not the same integer to every reader
MAX_AXES = 16
ATOMS = (int, float, str, bool, type(None))
NATIVE = ("buffer", "handle", "function", "alias")  # forms of an argument that only C has
TYPED = frozenset([*DTYPES, "bytes", "tuple", "dtype", "new", "call", "ref", "label", *NATIVE])
FORMS = {  # what may stand beside `shape`
    "bits": {"bits"}, "hex": {"hex"}, "ids": {"ids"},
    "gen": {"gen", "seed", "scale", "n"}, "file": {"file", "sha256"},
}  # fmt: skip
_HEX_INTEGER = re.compile(r"-?0x[0-9a-fA-F]{1,16}")


class BadValue(ValueError):
    """A typed value that says nothing; the caller knows the file and line."""


def typed_key(node: Any) -> str | None:
    """The dtype (or bytes, tuple, ..) that makes a mapping a typed value; None for a plain mapping."""
    if not isinstance(node, dict):
        return None
    for key in node:
        if key in TYPED:
            return str(key)
    return None


def decode(node: Any, data: Path | None = None) -> Any:
    """A fixture's node as a value: Python scalars, lists, arrays, and New, Call, Ref and the like."""
    if not isinstance(node, dict):
        return [decode(item, data) for item in node] if isinstance(node, list) else node
    key = typed_key(node)
    if key is None:
        return {k: decode(v, data) for k, v in node.items()}
    spec = node[key]
    if len(node) > 1:
        beside = {"args"} if key in ("new", "call") else {"at", "field"} if key == "ref" else set()
        extra = set(node) - {key} - COMPARE_KEYS - beside
        if extra and not (key in DTYPES and extra <= {"bits", "hex"}):
            raise BadValue(f"unknown key {sorted(extra)[0]!r} beside {key!r}")
    if key in DTYPES:
        if "bits" in node or "hex" in node:  # {f32: [0, 3], bits: ""}: the shape, then the words
            return tensor(key, {"shape": spec, **{k: node[k] for k in ("bits", "hex") if k in node}}, data)
        return scalar(key, spec) if not isinstance(spec, (list, dict)) else tensor(key, spec, data)
    if key == "bytes":
        return _bytes(spec)
    if key == "tuple":
        return tuple(decode(item, data) for item in _list(spec, "tuple"))
    if key == "dtype":
        if not isinstance(spec, str) or spec not in DTYPES:
            raise BadValue(f"no dtype {spec!r}; there are {', '.join(DTYPES)}")
        return DType(spec)
    if key == "label":
        if type(spec) is not int:
            raise BadValue(f"label takes an integer, not {spec!r}")
        return Label(spec)
    if not isinstance(spec, str) or not spec:
        raise BadValue(f"{key} takes a name, not {spec!r}")
    if key == "ref" and len(node) == 1:
        return Ref(spec)
    if key == "ref" or key in NATIVE:
        return native(node)
    args = node.get("args", {})
    if not isinstance(args, dict):
        raise BadValue(f"args of {spec} is a mapping of names to values, not {args!r}")
    built = {k: decode(v, data) for k, v in args.items()}
    return New(spec, built) if key == "new" else Call(spec, built)


def native(node: dict[str, Any]) -> Native:
    """A small dict that C's worker reads: `at` counts elements, `field` names a member."""
    if type(node.get("at", 0)) is not int or not isinstance(node.get("field", ""), str):
        raise BadValue(f"at takes an integer and field a name, not {node!r}")
    return Native(node)


def decode_args(args: dict[str, Any], data: Path | None = None) -> dict[str, Any]:
    """Arguments by name. Never decode() on the whole: a parameter may be called `dtype` or `new`."""
    return {name: decode(node, data) for name, node in args.items()}


def scalar(dtype: str, spec: Any) -> Any:
    """Integer scalars and f64 are plain int and float; other float types are 0-d values."""
    if dtype == "bool":
        if not isinstance(spec, bool):
            raise BadValue(f"{spec!r} is no bool")
        return spec
    if dtype in INTS:
        value = int(spec, 16) if isinstance(spec, str) and _HEX_INTEGER.fullmatch(spec) else spec
        if type(value) is not int or not INTS[dtype][0] <= value <= INTS[dtype][1]:
            raise BadValue(f"{spec!r} is no {dtype}")
        return value
    number = _number(spec)
    if dtype == "f64":
        return number
    return _array([spec], dtype).reshape(())[()]


def tensor(dtype: str, spec: Any, data: Path | None) -> Array:
    if isinstance(spec, list):
        return _array(spec, dtype)
    shape, form = spec.get("shape"), next((form for form in FORMS if form in spec), None)
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise BadValue(f"{dtype} needs a shape: a list of integers, not {shape!r}")
    if form is None:
        raise BadValue(f"{dtype} with a shape needs bits, hex, ids, gen or file")
    if extra := sorted(set(spec) - {"shape"} - FORMS[form]):
        raise BadValue(f"unknown key {extra[0]!r} beside {form!r}")
    size, kind = math.prod(shape), DTYPES[dtype]
    if len(shape) > MAX_AXES or size * kind.itemsize > MAX_BODY:
        raise BadValue(f"shape {shape} of {dtype} is more than {MAX_AXES} axes or {MAX_BODY >> 20} MiB")
    if form == "bits":  # value order: one big-endian hex word an element
        words = spec["bits"].split() if isinstance(spec["bits"], str) else [""]
        if len(words) != size or any(len(w) != 2 * kind.itemsize for w in words):
            raise BadValue(f"bits: expected {size} words of {2 * kind.itemsize} hex digits")
        return _raw(b"".join(_bytes(w)[::-1] for w in words), kind, shape)
    if form == "hex":  # memory order
        raw = _bytes(spec["hex"])
        if len(raw) != size * kind.itemsize:
            raise BadValue(f"hex: expected {size * kind.itemsize} bytes, got {len(raw)}")
        return _raw(raw, kind, shape)
    if form == "ids":
        if dtype != "bool" or len(shape) != 1:
            raise BadValue("ids is for a bool mask of one axis")
        mask = np.zeros(size, np.bool_)
        ids = _list(spec["ids"], "ids")
        if not all(type(i) is int and 0 <= i < size for i in ids) or len(set(ids)) != len(ids):
            raise BadValue(f"ids: distinct integers in [0, {size})")
        mask[ids] = True
        return mask
    if form == "gen":
        return generated(dtype, spec, size).reshape(shape)
    return _from_file(dtype, spec, shape, data)


def _raw(raw: bytes, kind: np.dtype[Any], shape: list[int]) -> Array:
    if kind == np.bool_ and max(raw, default=0) > 1:
        raise BadValue("a bool is 00 or 01")
    return np.frombuffer(raw, kind).reshape(shape)


def generated(dtype: str, spec: dict[str, Any], size: int) -> Array:
    """`u24`: uniform multiples of 2^-23 in [-1, 1), times scale; `below`: integers in [0, n)."""
    seed = spec.get("seed")
    if type(seed) is not int:
        raise BadValue("gen needs an integer seed")
    u = mix64_stream(seed, size)
    if spec["gen"] == "u24":
        if dtype not in ("f16", "f32", "f64"):
            raise BadValue(f"gen u24 makes floats, not {dtype}")
        scale = spec.get("scale", 1.0)
        if type(scale) not in (int, float) or scale <= 0 or math.frexp(scale)[0] != 0.5:
            raise BadValue(f"scale is a power of two, not {scale!r}")
        value = ((u >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float64) * (2.0**-23 * scale)
        return np.asarray(value.astype(DTYPES[dtype]))
    if spec["gen"] == "below":
        n = spec.get("n")
        if dtype not in INTS or type(n) is not int or not 1 <= n <= min(INTS[dtype][1] + 1, SAFE):
            raise BadValue("gen below needs an integer dtype and n >= 1 that it can hold")
        return (u % np.uint64(n)).astype(DTYPES[dtype])
    raise BadValue(f"no generator {spec['gen']!r}; there are u24 and below")


def mix64_stream(seed: int, size: int) -> Array:
    """mix64(seed + (i+1) * golden) for i in [0, size), the mixer of M06.3."""
    with np.errstate(over="ignore"):
        i = np.arange(1, size + 1, dtype=np.uint64)
        z = np.uint64(seed % (1 << 64)) + i * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def _from_file(dtype: str, spec: dict[str, Any], shape: list[int], data: Path | None) -> Array:
    name, _, member = str(spec["file"]).partition("#")
    if data is None or name.startswith("/") or ".." in Path(name).parts:
        raise BadValue(f"file {name!r} is not inside the unit's folder")
    path = data / name
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadValue(f"file {name}: {error.strerror}") from None
    if hashlib.sha256(raw).hexdigest() != spec.get("sha256"):
        raise BadValue(f"file {name}: its sha256 is not the one stated")
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            array = np.asarray(archive[member])
    except KeyError:
        raise BadValue(f"file {name} has no array {member!r}") from None
    except (ValueError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile):
        raise BadValue(f"file {name} is not an .npz of plain arrays") from None
    if NAMES.get(array.dtype) != dtype or list(array.shape) != shape:
        raise BadValue(f"file {name}#{member} is {array.dtype}{list(array.shape)}, not {dtype}{shape}")
    return array


def _array(items: list[Any], dtype: str) -> Array:
    shape, flat = _flatten(items)
    if len(shape) > MAX_AXES:
        raise BadValue(f"{len(shape)} axes, more than {MAX_AXES}")
    if dtype == "bool":
        if not all(isinstance(x, bool) for x in flat):
            raise BadValue("a bool tensor holds true and false")
        return np.array(flat, np.bool_).reshape(shape)
    if dtype in INTS:
        return np.array([scalar(dtype, x) for x in flat], DTYPES[dtype]).reshape(shape)
    plain = set(map(type, flat)) <= {float}
    numbers = np.array(flat if plain else [_number(x) for x in flat], np.float64).reshape(shape)
    if dtype == "f64":
        return numbers
    with np.errstate(over="ignore"):
        array = numbers.astype(np.float32 if dtype == "bf16" else DTYPES[dtype])
    if np.any(np.isinf(array) & np.isfinite(numbers)):
        raise BadValue(f"a number is too large for {dtype}")
    return _bf16(array) if dtype == "bf16" else array


def _bf16(numbers: Array) -> Array:
    bits = numbers.view(np.uint32)
    if np.any(bits & 0xFFFF):
        raise BadValue("a number is no bf16 value; write it as bits")
    return (bits >> 16).astype(np.uint16).view(BF16)


def widened(array: Array) -> Array:
    """bf16 as the f32 values it stands for."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _flatten(items: list[Any]) -> tuple[list[int], list[Any]]:
    shape, level = [len(items)], items
    while level and type(level[0]) is list and all(isinstance(x, list) for x in level):
        width = len(level[0])
        if any(len(x) != width for x in level):
            raise BadValue("rows of different lengths")
        shape.append(width)
        level = [y for x in level for y in x]
    if not {list, dict}.isdisjoint(map(type, level)):
        raise BadValue("rows of different depths")
    return shape, level


def _number(x: Any) -> float:
    if isinstance(x, str) and x in WORDS:
        return WORDS[x]
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise BadValue(f"{x!r} is no number (words: nan, inf, -inf)")
    try:
        return float(x)
    except OverflowError:
        raise BadValue("an integer that no float holds") from None


def _bytes(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise BadValue(f"{text!r} is not hex") from None


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadValue(f"{what} takes a list")
    return value


# -- back to the written form -----------------------------------------------------------------------------


def word(x: float) -> float | str:
    """A float as YAML writes it: the words nan, inf, -inf, else the number."""
    return "nan" if math.isnan(x) else ("inf" if x > 0 else "-inf") if math.isinf(x) else x


def shortest(x: np.floating[Any]) -> float | str:
    """The shortest decimal that reads back as the same value of its dtype."""
    return word(float(x)) if not np.isfinite(x) else float(str(x))


def listed(array: Array) -> Any:
    """A tensor's values as nested lists (a number for 0-d), shortest decimals."""
    if array.dtype == BF16:
        array = widened(array)
    if array.dtype.kind != "f" and array.dtype.itemsize < 8:
        return array.tolist()
    flat: list[Any] = [shortest(x) if array.dtype.kind == "f" else integer(int(x)) for x in array.reshape(-1)]
    for width in reversed(array.shape[1:]):
        flat = [flat[i : i + width] for i in range(0, len(flat), width)] if width else []
    return flat if array.shape else flat[0]


def integer(x: int) -> int | str:
    """An integer as a typed value writes it: hex text where JSON numbers stop being safe."""
    return x if abs(x) < SAFE else hex(x)


def to_fixture(value: Any) -> Any:
    """A value in the form a fixture writes it, without comparators."""
    match value:
        case bool() | str() | None:
            return value
        case int() if abs(value) < SAFE:
            return value
        case int() if INTS["i64"][0] <= value <= INTS["u64"][1]:
            return {"u64" if value >= 0 else "i64": hex(value)}
        case np.ndarray() if value.dtype in NAMES:
            if 0 in value.shape and value.ndim > 1:
                return {NAMES[value.dtype]: list(value.shape), "bits": ""}
            return {NAMES[value.dtype]: listed(value)}
        case float() if not isinstance(value, np.generic) or isinstance(value, np.float64):
            return {"f64": word(float(value))}
        case np.bool_() | np.integer():
            return to_fixture(value.item())
        case np.generic() if value.dtype in NAMES:
            return {NAMES[value.dtype]: listed(np.asarray(value))}
        case bytes():
            return {"bytes": value.hex()}
        case list():
            return [to_fixture(item) for item in value]
        case tuple():
            return {"tuple": [to_fixture(item) for item in value]}
        case New(name, args):
            return {"new": name, "args": {k: to_fixture(v) for k, v in args.items()}}
        case Call(name, args):
            return {"call": name, "args": {k: to_fixture(v) for k, v in args.items()}}
        case Ref(id):
            return {"ref": id}
        case Native(node):
            return node
        case Label(id):
            return {"label": id}
        case DType(name):
            return {"dtype": name}
        case Fields(_, fields):
            return {"attrs": {k: to_fixture(v) for k, v in fields.items()}}
        case dict() if all(isinstance(k, str) for k in value):
            return {k: to_fixture(v) for k, v in value.items()}
    what = f"a {type(value).__name__} has no fixture form"
    raise OwnFault(what, "oracle", "return arrays, numbers, text, lists")


def plain(value: Any) -> Any:
    """What an oracle sees, as a copy: a label is its number, `new`, `call` and `ref` are small dicts."""
    if type(value) in ATOMS:
        return value
    match value:
        case New(name, args):
            return {"new": name, "args": {k: plain(v) for k, v in args.items()}}
        case Call(name, args):
            return {"call": name, "args": {k: plain(v) for k, v in args.items()}}
        case Ref(id):
            return {"ref": id}
        case Native(node):
            return dict(node)
        case Label(id):
            return id
        case DType(name):
            return DTYPES[name]
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case dict():
            return {k: plain(v) for k, v in value.items()}
        case np.ndarray():
            return value.copy()
    return value


def unplain(value: Any) -> Any:
    """The reverse, for what a draw yields: small dicts become New, Call, Ref and Label."""
    if isinstance(value, dict):
        if "new" in value or "call" in value:
            args = {k: unplain(v) for k, v in value.get("args", {}).items()}
            return New(value["new"], args) if "new" in value else Call(value["call"], args)
        if set(value) == {"ref"}:
            return Ref(value["ref"])
        if typed_key(value) in (*NATIVE, "ref"):
            return native(value)
        if set(value) == {"label"}:
            return Label(value["label"])
        return {k: unplain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unplain(item) for item in value)
    return value


# -- words for a report -----------------------------------------------------------------------------------


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a bool"
        case np.ndarray():
            return f"{NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
        case float() if not isinstance(value, np.generic) or isinstance(value, np.float64):
            return "a float"
        case np.generic():
            return f"{NAMES.get(value.dtype, value.dtype)}[]"
        case int():
            return "an integer"
        case str():
            return "text"
        case bytes():
            return "bytes"
        case list() | tuple():
            return f"a sequence of {len(value)}"
        case dict():
            return f"a dict of {len(value)}"
        case Fields(name, _):
            return f"an object of type {name}"
        case Opaque(name):
            return name if " " in name else f"an object of type {name}"
    return type(value).__name__


def described(value: Any) -> str:
    """The kind of a value and the value, where one of another kind was due."""
    kind = kind_of(value)
    return kind if value is None or isinstance(value, Opaque) else f"{kind} {show(value)}"


def show(value: Any, limit: int = 160) -> str:
    """A value for a person: numbers in full, long arrays by their kind and their first values."""
    match value:
        case np.ndarray() | np.generic() if not isinstance(value, np.float64):
            array = np.asarray(value)
            head = array[tuple(slice(limit) for _ in array.shape)]  # more would be cut off below
            values = listed(head)
            text = str(values).replace("'", "")
            text = text.lower() if array.dtype == np.bool_ else text
            return text if len(text) <= limit else f"{kind_of(value)} {text[: limit - 1]}…"
        case float():
            return str(word(float(value)))
        case str() | bytes():
            text = repr(value)
            return text if len(text) <= limit else text[: limit - 1] + "…"
        case list() | tuple():
            text = "[" + ", ".join(show(item, limit) for item in value) + "]"
            return text if len(text) <= limit else text[: limit - 1] + "…"
        case dict():
            return "{" + ", ".join(f"{k}: {show(v, limit)}" for k, v in value.items()) + "}"
        case Fields(name, fields):
            return f"{name}({', '.join(f'{k}={show(v, limit)}' for k, v in fields.items())})"
        case Opaque():
            return kind_of(value)
        case New(name, args) | Call(name, args):
            return f"{name}({', '.join(f'{k}={show(v, limit)}' for k, v in args.items())})"
        case Ref(id):
            return id
        case Native(node):
            return ", ".join(f"{k} {v}" for k, v in node.items())
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
