"""The wire: values there and back, and nothing that the other side sends can do more than be refused."""

from __future__ import annotations

import base64
import collections
import dataclasses
import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import wire
from grader.answer import answer_of
from grader.frame import MAX_BODY, MAX_HEADER, Body, ProtocolError, pack, sizes, unpack
from grader.wire import (
    BF16,
    DTYPES,
    MAX_DEPTH,
    Call,
    DType,
    Fields,
    New,
    Opaque,
    Ref,
    as_base64,
    decode,
    encode,
)

QUICK = settings(max_examples=40, deadline=None)  # a busy machine misses deadlines


def there(value: Any, attrs: tuple[str, ...] = ()) -> Any:
    """A value as it arrives: through a whole frame, with its tensors in the body."""
    body = Body(MAX_BODY)
    frame = pack({"return": encode(value, body.put, attrs)}, body)
    header, size = sizes(frame[:8])
    assert len(frame) == 8 + header + size
    message, chunks = unpack(frame[8 : 8 + header], frame[8 + header :])
    arrived = decode(message["return"], chunks)
    assert list(chunks) == []
    return arrived


def same(a: Any, b: Any) -> bool:
    if isinstance(b, tuple) and isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))  # tuples arrive as lists
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else bool(a == b)


# -- there and back ---------------------------------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == np.bool_:
        raw = bytes(b & 1 for b in raw)
    return np.frombuffer(raw, dtype).reshape(shape)  # NaN payloads and all


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    tensors(),
    st.sampled_from(
        [DType("bf16"), Opaque("a set"), -(2**63), 2**53, 2**53 - 1, 2**1300 - 1, math.nan, -0.0]
    ),
)
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.binary(max_size=3), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Fields, st.text(max_size=5), st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)),
    ),
    max_leaves=8,
)


def normal(value: Any) -> Any:
    if isinstance(value, Fields):
        return ["fields", value.type, {k: normal(v) for k, v in value.fields.items()}]
    if isinstance(value, (list, tuple)):
        return [normal(v) for v in value]
    return {k: normal(v) for k, v in value.items()} if isinstance(value, dict) else value


@given(VALUES)
@QUICK
def test_values_arrive_as_they_were_sent(value: Any) -> None:
    arrived, sent = normal(there(value)), normal(value)
    assert same(arrived, sent)


@given(st.lists(tensors(), max_size=5))
@QUICK
def test_tensors_lie_in_the_body_in_header_order_or_in_base64(arrays: list[Any]) -> None:
    assert same(there({"a": arrays, "b": [arrays]}), {"a": arrays, "b": [arrays]})
    assert same([decode(json.loads(json.dumps(encode(a, as_base64)))) for a in arrays], arrays)


def test_values_to_build_are_encoded_with_their_arguments() -> None:
    body = Body()
    node = encode({"p": New("S", {"x": 0.5}), "c": Call("f", {"y": (1, Ref("r"))})}, body.put)
    assert node == {
        "map": [
            ["p", {"new": "S", "args": {"x": {"f64": "3fe0000000000000"}}}],
            ["c", {"call": "f", "args": {"y": {"tuple": [1, {"ref": "r"}]}}}],
        ]
    }
    with pytest.raises(ProtocolError, match="not a value"):
        decode(node)  # such a thing is never an answer


class Point(NamedTuple):
    x: float
    y: int


@dataclasses.dataclass
class Record:
    a: int
    b: list[int]
    _hidden: int = 9

    @property
    def doubled(self) -> int:
        return 2 * self.a


class Plain:
    def __init__(self) -> None:
        self.items, self.point = [1, 2], Point(0.5, 3)


class Text(str):
    def __str__(self) -> str:
        return "forged"


class Number(float):
    def __float__(self) -> float:
        return 7.0


class Whole(int):
    def __int__(self) -> int:
        return 7


class Many(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([7])


class Matrix(np.ndarray):  # type: ignore[type-arg]
    def tobytes(self, *_: Any) -> bytes:
        return b"forged"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not asked")


def test_python_and_numpy_scalars_are_one_kind() -> None:
    pairs = [
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.float64(0.1), 0.1),
    ]
    for scalar, python in pairs:
        assert same(there(scalar), python)
    assert same(there(np.float32(0.1)), np.array(0.1, np.float32))
    assert same(there(np.array(0.1)), np.array(0.1))  # a 0-d array is a tensor


def test_subclasses_go_as_their_base_by_the_methods_of_the_base() -> None:
    assert there(Text("real")) == "real"
    assert there(Number(0.5)) == 0.5
    assert there(Whole(3)) == 3
    assert there(Many([1, 2])) == [1, 2]
    assert there(collections.OrderedDict(a=1)) == {"a": 1}
    assert there(bytearray(b"ab")) == b"ab"
    assert same(there(np.array([1.0, 2.0]).view(Matrix)), np.array([1.0, 2.0]))


def test_objects_by_their_fields() -> None:
    assert there(Point(0.5, 3)) == Fields("Point", {"x": 0.5, "y": 3})
    assert there(Record(1, [2])) == Fields("Record", {"a": 1, "b": [2]})
    assert there(Record(1, [2]), ("doubled", "none")) == Fields("Record", {"a": 1, "b": [2], "doubled": 2})
    assert there(Plain()) == Opaque("Plain")
    assert there(Plain(), ("items", "point", "x")) == Fields(
        "Plain", {"items": [1, 2], "point": Fields("Point", {"x": 0.5, "y": 3})}
    )
    assert there([Plain(), {"k": Plain()}], ("items",)) == [
        Fields("Plain", {"items": [1, 2]}),
        {"k": Fields("Plain", {"items": [1, 2]})},
    ]


NO_DATA: list[tuple[Any, str]] = [
    ({1, 2}, "a set"),
    (frozenset(), "a set"),
    (object(), "object"),
    (1j, "complex"),
    (Record, "type"),
    (len, "builtin_function_or_method"),
    (iter([]), "list_iterator"),
    (np.array([1j]), "an array of dtype complex128"),
    (np.array([None]), "an array of dtype object"),
    (np.array(["a"]), "an array of dtype <U1"),
    (np.zeros(1, "i4,i4"), "an array of dtype [('f0', '<i4'), ('f1', '<i4')]"),
    (2**1300, "an integer of 1301 bits"),
    (-(10**5000), "an integer of 16610 bits"),
]


@pytest.mark.parametrize(("value", "name"), NO_DATA, ids=[name for _, name in NO_DATA])
def test_what_is_no_data_is_only_named(value: Any, name: str) -> None:
    assert there(value) == Opaque(name)


def test_keys_of_dicts() -> None:
    value = {1: "a", "1": "b", (1, ("x",)): "c", b"k": "d", None: "e", 2.5: "f", np.int64(7): "g"}
    arrived = there(value)
    assert arrived == {1: "a", "1": "b", (1, ("x",)): "c", b"k": "d", None: "e", 2.5: "f", 7: "g"}
    assert there({Point(0.5, 3): 1}) == {Opaque("a key of type Point"): 1}
    assert there({(Point(0.5, 3), 1): 1}) == {(Opaque("a key of type Point"), 1): 1}
    assert there({frozenset({1}): 1}) == {Opaque("a set"): 1}


def test_foreign_byte_order_and_strides_arrive_plain() -> None:
    big = np.array([1, 256], ">i4")
    assert same(there(big), np.array([1, 256], np.int32))
    assert same(there(np.arange(6.0).reshape(2, 3).T), np.array([[0.0, 3], [1, 4], [2, 5]]))
    assert same(there(np.arange(10)[::3]), np.array([0, 3, 6, 9]))


def test_depth_is_bounded_on_both_sides() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert there(deep) == deep
    assert str(there([deep])).count("nested deeper than 32") == 1
    endless: list[Any] = []
    endless.append(endless)
    assert "nested deeper" in repr(there(endless))
    wide: dict[str, Any] = {}
    wide["self"] = wide
    assert "nested deeper" in repr(there(wide))


def test_a_body_has_a_limit() -> None:
    body = Body(10)
    body.put(b"12345")
    with pytest.raises(OverflowError, match="11 bytes"):
        body.put(b"123456")


# -- hostile values ---------------------------------------------------------------------------------------


def tensor(dtype: str, shape: Any, raw: bytes) -> dict[str, Any]:
    return {dtype: {"shape": shape, "base64": base64.b64encode(raw).decode()}}


HOSTILE: dict[str, Any] = {
    "a bare float": 1.5,
    "an empty object": {},
    "an unknown form": {"pickle": "gASVAAA="},
    "an object of numbers": {"f64": 1.5},
    "f64 too short": {"f64": "3ff0"},
    "f64 not hex": {"f64": "zz" * 8},
    "f64 not ASCII": {"f64": "\u0663" * 16},
    "dtype O": tensor("O", [1], b"\0" * 8),
    "dtype object": tensor("object", [1], b"\0" * 8),
    "a structured dtype": tensor("i4,O", [1], b"\0" * 12),
    "negative shape": tensor("f32", [-1, 2**62], b""),
    "huge shape": tensor("f32", [2**62], b""),
    "product beyond 2^64": tensor("f32", [2**39, 2**39], b""),
    "no elements and a huge axis": tensor("f32", [0, 2**39, 2**39], b""),
    "17 axes": tensor("u8", [1] * 17, b"\0"),
    "shape of floats": tensor("f32", [1.0], b"\0" * 4),
    "shape of bools": tensor("f32", [True], b"\0" * 4),
    "shape of text": tensor("f32", "11", b"\0" * 4),
    "no shape": {"f32": {"base64": ""}},
    "too few bytes": tensor("f32", [2], b"\0" * 4),
    "too many bytes": tensor("f32", [1], b"\0" * 8),
    "no bytes at all": {"f32": {"shape": [1]}},
    "raw without a body": {"f32": {"shape": [1], "raw": 4}},
    "raw is a bool": {"f32": {"shape": [1], "raw": True}},
    "wrong base64 alphabet": {"u8": {"shape": [3], "base64": "!!!!"}},
    "wrong base64 length": {"u8": {"shape": [3], "base64": "AAA"}},
    "base64 of another type": {"u8": {"shape": [3], "base64": 5}},
    "base64 not ASCII": {"u8": {"shape": [3], "base64": "\u00e9\u00e9\u00e9\u00e9"}},
    "a bool of 2": tensor("bool", [1], b"\x02"),
    "a map key that is a map": {"map": [[{"map": []}, 1]]},
    "a map key that is a tensor": {"map": [[tensor("u8", [1], b"\0"), 1]]},
    "a map key deep inside a tuple": {"map": [[{"tuple": [1, {"tuple": [{"map": []}]}]}, 1]]},
    "a map entry of three": {"map": [[1, 2, 3]]},
    "a map entry of text": {"map": ["ab"]},
    "a map that is an object": {"map": {"a": 1}},
    "an integer of 401 digits": {"int": "9" * 401},
    "an integer with two signs": {"int": "--5"},
    "an integer with underscores": {"int": "1_0"},
    "an integer with blanks": {"int": " 10"},
    "an integer in other digits": {"int": "\u0663"},
    "no integer": {"int": ""},
    "an integer that is a number": {"int": 5},
    "bytes not hex": {"bytes": "0g"},
    "bytes of odd length": {"bytes": "000"},
    "bytes as a list": {"bytes": [0]},
    "an object without fields": {"object": "T"},
    "an object with a list of fields": {"object": "T", "fields": []},
    "an object without a name": {"object": 5, "fields": {}},
    "a tuple that is text": {"tuple": "ab"},
    "opaque without a name": {"opaque": 5},
    "a value to build": {"new": "os.system", "args": {}},
    "a reference": {"ref": "it"},
    "a fault inside": [1, {"tuple": [{"f64": 5}]}],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_value_is_refused_and_nothing_else(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode(HOSTILE[name], iter([]))


def test_names_from_the_other_side_are_cut() -> None:
    assert decode({"opaque": "x" * 10_000}) == Opaque("x" * 200)
    assert decode({"dtype": "x" * 10_000}) == DType("x" * 40)
    assert decode({"object": "x" * 10_000, "fields": {}}) == Fields("x" * 200, {})


@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [
        ("[", "", "]"),
        ('{"tuple": [', "", "]}"),
        ('{"map": [[1, ', "1", "]]}"),
        ('{"object": "T", "fields": {"a": ', "1", "}}"),
    ],
)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 400, 60_000])
def test_60_000_nested_lists_are_refused(opening: str, middle: str, closing: str, depth: int) -> None:
    text = '{"return": ' + opening * depth + middle + closing * depth + "}"
    with pytest.raises(ProtocolError, match=r"nested deeper than 32|not JSON"):
        message, chunks = unpack(text.encode(), b"")
        decode(message["return"], chunks)


# -- hostile frames ---------------------------------------------------------------------------------------


def frame_of(header: Any, raw: bytes = b"") -> tuple[dict[str, Any], Any]:
    return unpack(header if isinstance(header, bytes) else json.dumps(header).encode(), raw)


@pytest.mark.parametrize(
    ("header", "raw", "words"),
    [
        (b"", b"", "a header that is not JSON"),
        (b"{", b"", "a header that is not JSON"),
        (b'{"a": 1} x', b"", "a header that is not JSON"),
        (b"\xff\xfe", b"", "a header that is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", "a header that is not JSON"),
        (b"[]", b"", "a header that is not an object"),
        (b"null", b"", "a header that is not an object"),
        ({"return": 1}, b"x", "1 surplus bytes in the frame"),
        ({"return": {"u8": {"shape": [1], "raw": 1}}}, b"xy", "1 surplus bytes in the frame"),
        ({"return": {"u8": {"shape": [2], "raw": 2}}}, b"x", "tensor data runs past the frame"),
        ({"return": {"u8": {"shape": [2], "raw": -1}}}, b"x", "tensor data runs past the frame"),
        ({"return": {"u8": {"shape": [2], "raw": 2**62}}}, b"x", "tensor data runs past the frame"),
        ({"a": {"shape": 0, "raw": 1}, "b": {"shape": 0, "raw": 1}}, b"x", "tensor data runs past the frame"),
    ],
)
def test_a_hostile_frame_is_refused(header: Any, raw: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        frame_of(header, raw)


@pytest.mark.parametrize("length", [-1, 1, 2, 2**62])
def test_a_tensor_without_a_body_has_no_bytes(length: int) -> None:
    message, chunks = frame_of({"return": {"u8": {"shape": [2], "raw": length}}})
    with pytest.raises(ProtocolError, match=r"shape \[2\] of u8 needs 2 bytes, got 0"):
        decode(message["return"], chunks)


def test_lengths_are_checked_before_anything_is_read() -> None:
    assert sizes(struct.pack("<II", MAX_HEADER, MAX_BODY)) == (MAX_HEADER, MAX_BODY)
    for header, body in ((MAX_HEADER + 1, 0), (0, MAX_BODY + 1), (2**32 - 1, 2**32 - 1)):
        with pytest.raises(ProtocolError, match=f"a frame of {header}"):
            sizes(struct.pack("<II", header, body))
    assert sizes(struct.pack("<II", 5, 2**31), 1 << 31) == (5, 2**31)  # the child trusts the grader's frames


def test_a_tensor_cannot_take_the_bytes_of_another() -> None:
    header = {"junk": {"shape": [1], "raw": 3}, "return": {"u8": {"shape": [3], "raw": 3}}}
    message, chunks = frame_of(header, b"abcxyz")
    assert decode(message["return"], chunks).tobytes() == b"abc"  # in header order, whoever asks
    message, chunks = frame_of(
        {"return": [{"u8": {"shape": [2], "raw": 1}}, {"u8": {"shape": [1], "raw": 2}}]}, b"abc"
    )
    with pytest.raises(ProtocolError, match=r"shape \[2\] of u8 needs 2 bytes, got 1"):
        decode(message["return"], chunks)


def test_body_lengths_are_found_in_header_order() -> None:
    header = {
        "a": [{"shape": [], "raw": 1}, {"x": {"shape": [], "raw": 2}}],
        "b": {"raw": 3},
        "c": {"shape": [], "raw": 4},
    }
    _, chunks = frame_of(header, b"abbdddd")
    assert list(chunks) == [b"a", b"bb", b"dddd"]


@given(st.binary(max_size=60))
@QUICK
def test_random_bytes_are_refused_or_read_and_nothing_else(raw: bytes) -> None:
    try:
        header, body = sizes(raw[:8].ljust(8, b"\0"))
        message, chunks = unpack(raw[8 : 8 + header], raw[8 + header : 8 + header + body])
        answer_of(message, chunks)
    except ProtocolError:
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.sampled_from(["", "ab", "1", "-1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "f32",
                    "u8",
                    "bool",
                    "f64",
                    "map",
                    "tuple",
                    "int",
                    "bytes",
                    "object",
                    "fields",
                    "shape",
                    "raw",
                    "base64",
                    "return",
                    "raises",
                    "observed",
                    "args",
                    "class",
                    "bases",
                    "at",
                    "found",
                    "ok",
                    "opaque",
                    "dtype",
                    "phase",
                    "memory",
                    "unsupported",
                    "loaded",
                    "file",
                    "libm",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["return", "raises", "observed", "args", "memory", "ok", "loaded", "file", "seq"]),
        JSON,
    ),
    st.binary(max_size=8),
)
@QUICK
def test_random_answers_are_refused_or_read_and_nothing_else(message: dict[str, Any], raw: bytes) -> None:
    """Whatever code under test sends, the grader sees an answer or a protocol error, never a traceback."""
    try:
        read, chunks = unpack(json.dumps(message).encode(), raw)
        answer_of(read, chunks)
    except ProtocolError:
        pass


# -- frames -----------------------------------------------------------------------------------------------


def test_a_frame_is_two_lengths_a_header_and_the_bodies() -> None:
    body = Body()
    header = {"return": encode(np.array([1, 2], np.uint8), body.put)}
    text = b'{"return":{"u8":{"shape":[2],"raw":2}}}'
    assert pack(header, body) == struct.pack("<II", len(text), 2) + text + b"\x01\x02"
    assert pack({"bye": True}) == struct.pack("<II", 12, 0) + b'{"bye":true}'
    with pytest.raises(ValueError, match="JSON"):
        pack({"x": math.nan})  # floats never travel as bare numbers


def test_bf16_is_never_u16() -> None:
    bits = np.array([0x3F80], np.uint16)
    assert encode(bits, as_base64) == {"u16": {"shape": [1], "base64": "gD8="}}
    assert encode(bits.view(BF16), as_base64) == {"bf16": {"shape": [1], "base64": "gD8="}}
    assert decode(encode(bits.view(BF16), as_base64)).dtype == BF16
    assert set(wire.NAMES.values()) == set(DTYPES)
