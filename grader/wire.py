"""Values and messages between the grader and code under test (spec/protocol.md).

Used on both sides, so it imports the standard library and NumPy only; how a message becomes bytes is in
frame.py. Nothing here ever unpickles, evaluates or trusts a length it has not checked.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.frame import ProtocolError, float_bits

MAX_DEPTH = 32
MAX_INT_BITS = 1300  # 392 digits: an integer beyond is named by its size

# bf16 has no NumPy dtype: it travels as its 16 bits under a name of its own, never as u16.
BF16 = np.dtype([("bf16", "<u2")])
DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_), "i8": np.dtype("<i1"), "i16": np.dtype("<i2"), "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"), "u8": np.dtype("<u1"), "u16": np.dtype("<u2"), "u32": np.dtype("<u4"),
    "u64": np.dtype("<u8"), "f16": np.dtype("<f2"), "bf16": BF16, "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class New:
    """An object to construct in place: a class of the unit, of a given module or of the testkit."""

    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A value to compute in place by calling a function."""

    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """An object that was built or saved under this id."""

    id: str


@dataclass(frozen=True, slots=True)
class Native:
    """An argument that only C has, as its small dict: buffer, handle, function, alias, or a part of a ref."""

    node: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Label:
    """The id that the code under test gave where this label was expected; never sent as such."""

    id: int


@dataclass(frozen=True, slots=True)
class DType:
    """A NumPy dtype as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Fields:
    """An object seen through its fields: a dataclass, a named tuple, or the attributes asked for."""

    type: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An answer that is no data: only what it is called crosses the wire."""

    type: str


def as_base64(raw: bytes) -> dict[str, Any]:
    return {"base64": base64.b64encode(raw).decode("ascii")}


_double = struct.Struct(">d").unpack
SIMPLE = (str, int, bool, type(None))


def encode_tensor(array: np.ndarray[Any, Any], put: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """`{dtype: {shape, raw | base64}}`; raises KeyError for a dtype outside the list."""
    native = array.dtype.newbyteorder("<") if array.dtype.names is None else array.dtype
    name = NAMES[native]
    raw = np.ascontiguousarray(array, dtype=native).tobytes()
    return {name: {"shape": list(array.shape), **put(raw)}}


def encode(
    value: Any, put: Callable[[bytes], dict[str, Any]], attrs: tuple[str, ...] = (), depth: int = 0
) -> Any:
    """A value as wire JSON. What is no data becomes `{opaque: type name}`; subclasses go as their base."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if depth >= MAX_DEPTH:
        return {"opaque": f"{kind.__name__} nested deeper than {MAX_DEPTH}"}
    if kind is float:  # the common kinds first; their subclasses come below
        return {"f64": float_bits(value)}
    if (kind is int and -(1 << 53) < value < 1 << 53) or kind is str:
        return value
    if issubclass(kind, np.generic):  # scalars before their Python bases: np.float64 is a float
        if issubclass(kind, np.bool_):
            return bool(value)
        if issubclass(kind, np.integer):
            return encode(int(value), put)
        if issubclass(kind, np.float64):
            return {"f64": float_bits(float.__float__(value))}
        return encode(np.asarray(value), put)
    if issubclass(kind, int):
        number = int.__int__(value)
        if number.bit_length() > MAX_INT_BITS:
            return {"opaque": f"an integer of {number.bit_length()} bits"}
        return number if abs(number) < 1 << 53 else {"int": str(number)}
    if issubclass(kind, float):
        return {"f64": float_bits(float.__float__(value))}
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, (bytes, bytearray)):
        return {"bytes": bytes(memoryview(value)).hex()}
    if issubclass(kind, np.ndarray):
        try:
            return encode_tensor(np.ndarray.view(value, np.ndarray), put)
        except KeyError:
            return {"opaque": f"an array of dtype {np.ndarray.dtype.__get__(value)}"}
    if issubclass(kind, np.dtype):
        return {"dtype": NAMES.get(value, str(value))}
    return _encode_compound(value, kind, put, attrs, depth)


def _encode_compound(
    value: Any, kind: type, put: Callable[[bytes], dict[str, Any]], attrs: tuple[str, ...], depth: int
) -> Any:
    def inner(item: Any) -> Any:
        plain = type(item)
        if plain is float and depth + 1 < MAX_DEPTH:  # most of what records and lists hold, without a call
            return {"f64": float_bits(item)}
        return encode(item, put, attrs, depth + 1)

    if kind is Fields:
        return {"object": value.type, "fields": {k: inner(v) for k, v in value.fields.items()}}
    if kind is New or kind is Call:
        return {kind.__name__.lower(): value.name, "args": {k: inner(v) for k, v in value.args.items()}}
    if kind is Ref:
        return {"ref": value.id}
    if kind is Native:
        return value.node
    if kind is DType:
        return {"dtype": value.name}
    if kind is Opaque:
        return {"opaque": value.type}
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", None)
    if names is not None or (attrs and not issubclass(kind, (tuple, list, dict, set, frozenset))):
        # The attributes asked for, of an object anywhere in the answer; a container inside stays one.
        seen = [n for n in names or () if n[:1] != "_"] + [a for a in attrs if hasattr(value, a)]
        return {"object": kind.__name__, "fields": {n: inner(getattr(value, n)) for n in dict.fromkeys(seen)}}
    if issubclass(kind, tuple):
        return {"tuple": [inner(item) for item in tuple.__iter__(value)]}
    if issubclass(kind, list):
        return [inner(item) for item in list.__iter__(value)]
    if issubclass(kind, dict):
        return {"map": [[inner(k), inner(v)] for k, v in dict.items(value)]}
    if issubclass(kind, (set, frozenset)):
        return {"opaque": "a set"}
    return {"opaque": kind.__name__}


def decode(node: Any, body: Iterator[bytes] | None = None, depth: int = 0) -> Any:
    """Wire JSON back to a value; raises ProtocolError on anything malformed.

    Tuples come back as lists: the contract does not tell them apart.
    """
    if depth > MAX_DEPTH:
        raise ProtocolError(f"a value nested deeper than {MAX_DEPTH}")
    if type(node) in SIMPLE:
        return node
    if isinstance(node, list):
        return [item if type(item) in SIMPLE else decode(item, body, depth + 1) for item in node]
    if not isinstance(node, dict) or not node:
        raise ProtocolError(f"not a value: {node!r:.80}")
    key = "object" if "object" in node else next(iter(node))  # some languages sort an object's keys
    value = node[key]
    if key == "f64" and isinstance(value, str):
        return _double(_hex(value, 8))[0]
    if key in DTYPES and isinstance(value, dict):
        return _decode_tensor(key, value, body)
    if key == "tuple" and isinstance(value, list):
        return [decode(item, body, depth + 1) for item in value]
    if key == "map" and isinstance(value, list):
        return {_key(decode(k, body, depth + 1)): decode(v, body, depth + 1) for k, v in map(_pair, value)}
    if key == "int" and isinstance(value, str) and len(value) <= 400 and _is_integer(value):
        return int(value)
    if key == "bytes" and isinstance(value, str):
        return _hex(value, len(value) // 2)
    if key == "opaque" and isinstance(value, str):
        return Opaque(value[:200])
    if key == "dtype" and isinstance(value, str):
        return DType(value[:40])
    if key == "object" and isinstance(value, str) and isinstance(fields := node.get("fields"), dict):
        return Fields(value[:200], {k: decode(v, body, depth + 1) for k, v in fields.items()})
    raise ProtocolError(f"not a value: {node!r:.80}")


def _decode_tensor(
    dtype_name: str, spec: dict[str, Any], body: Iterator[bytes] | None
) -> np.ndarray[Any, Any]:
    shape, dtype = spec.get("shape"), DTYPES[dtype_name]
    axes = shape if isinstance(shape, list) else [-1]
    if len(axes) > 16 or not all(type(n) is int and 0 <= n < 1 << 40 for n in axes):
        raise ProtocolError(f"not a shape: {shape!r:.80}")
    want = math.prod(axes) * dtype.itemsize
    if "base64" in spec:
        try:
            raw = base64.b64decode(spec["base64"], validate=True)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"not base64: {error}") from None
    elif body is not None and type(spec.get("raw")) is int:
        raw = next(body, b"")
    else:
        raise ProtocolError("a tensor without data")
    if len(raw) != want:
        raise ProtocolError(f"shape {shape} of {dtype_name} needs {want} bytes, got {len(raw)}")
    if dtype_name == "bool" and raw.translate(None, b"\0\1"):
        raise ProtocolError("a bool that is neither 0 nor 1")
    try:
        return np.frombuffer(raw, dtype).reshape(axes)
    except ValueError:  # no elements, and axes whose product no array can have
        raise ProtocolError(f"not a shape: {shape!r:.80}") from None


def _is_integer(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _hex(text: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise ProtocolError(f"not hex: {text!r:.40}") from None
    if len(raw) != size:
        raise ProtocolError(f"expected {size} bytes of hex, got {len(raw)}")
    return raw


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list) or len(item) != 2:
        raise ProtocolError("a map entry is not a pair")
    return item[0], item[1]


def _key(value: Any) -> Any:
    if isinstance(value, list):  # a key that was a tuple
        return tuple(_key(item) for item in value)
    if isinstance(value, Fields):
        return Opaque(f"a key of type {value.type}")
    try:
        hash(value)
    except TypeError:
        raise ProtocolError("a map key is not hashable") from None
    return value
