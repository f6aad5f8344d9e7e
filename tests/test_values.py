"""Typed values: what each form means, what is refused, shortest decimals, and back to the written form."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import strict_yaml
from grader.draw import GOLDEN, mix64
from grader.errors import OwnFault
from grader.frame import MAX_BODY
from grader.values import (
    BadValue,
    decode,
    decode_args,
    described,
    kind_of,
    listed,
    mix64_stream,
    plain,
    shortest,
    show,
    to_fixture,
    typed_key,
    unplain,
)
from grader.wire import BF16, DTYPES, Call, DType, Fields, New, Opaque, Ref

QUICK = settings(max_examples=40, deadline=None)  # a busy machine misses deadlines
INT_RANGES = {name: np.iinfo(d) for name, d in DTYPES.items() if d.kind in "iu"}


def same(a: Any, b: Any) -> bool:
    """Equal kinds and bits, everywhere."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (New, Call)):
        return a.name == b.name and same(a.args, b.args)
    return bool(a == b)


def array(dtype: str, *items: Any) -> Any:
    return np.array(items, DTYPES[dtype])


def bf16(*words: int) -> Any:
    return np.array(words, np.uint16).view(BF16)


# -- every form -------------------------------------------------------------------------------------------

FORMS: list[tuple[Any, Any]] = [
    (3, 3),
    (0.5, 0.5),
    (True, True),
    ("a", "a"),
    (None, None),
    ([1, [2.0, "x"]], [1, [2.0, "x"]]),
    ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
    ({"i64": 3}, 3),
    ({"u8": 255}, 255),
    ({"i8": -128}, -128),
    ({"u64": "0xFFFFffffFFFFffff"}, 2**64 - 1),
    ({"i64": "-0x8000000000000000"}, -(2**63)),
    ({"bool": True}, True),
    ({"f64": -0.5}, -0.5),
    ({"f64": 2}, 2.0),
    ({"f64": "-inf"}, -math.inf),
    ({"f32": 0.1}, np.float32(0.1)),
    ({"f16": "nan"}, np.float16("nan")),
    ({"f32": []}, array("f32")),
    ({"f32": [0.1, "inf", "-inf", -0.0]}, array("f32", 0.1, math.inf, -math.inf, -0.0)),
    ({"f64": [[1.0], [2.0]]}, array("f64", [1.0], [2.0])),
    ({"i32": [[[1, 2]]]}, array("i32", [[1, 2]])),
    ({"u64": ["0xffffffffffffffff", 1]}, array("u64", 2**64 - 1, 1)),
    ({"bool": [True, False]}, array("bool", True, False)),
    ({"f32": [[], []]}, np.zeros((2, 0), np.float32)),
    ({"bf16": [1.0, "-inf"]}, bf16(0x3F80, 0xFF80)),
    ({"f32": [0, 3], "bits": ""}, np.zeros((0, 3), np.float32)),
    ({"u8": [2], "hex": "ff00"}, array("u8", 255, 0)),
    ({"f32": {"shape": [1, 2], "bits": "3f800000 80000000"}}, array("f32", [1.0, -0.0])),
    ({"f32": {"shape": [1], "hex": "0000803f"}}, array("f32", 1.0)),
    ({"bf16": {"shape": [1], "bits": "3dcd"}}, bf16(0x3DCD)),
    ({"f64": {"shape": [], "bits": "3ff0000000000000"}}, np.array(1.0)),
    ({"bool": {"shape": [2], "hex": "0100"}}, array("bool", True, False)),
    ({"bool": {"shape": [5], "ids": [4, 0]}}, array("bool", True, False, False, False, True)),
    ({"bool": {"shape": [3], "ids": []}}, array("bool", False, False, False)),
    ({"bytes": "e29c85"}, "\u2705".encode()),
    ({"tuple": [1, {"f64": 2.0}]}, (1, 2.0)),
    ({"dtype": "bf16"}, DType("bf16")),
    ({"ref": "rng"}, Ref("rng")),
    ({"new": "rng.PCG32", "args": {"seed": {"u64": "0x2a"}}}, New("rng.PCG32", {"seed": 42})),
    ({"new": "Stack"}, New("Stack", {})),
    ({"call": "f", "args": {"x": {"f32": [1.0]}}}, Call("f", {"x": array("f32", 1.0)})),
    ({"f64": 1.0, "cmp": "ulp", "max": 2, "why": "x"}, 1.0),
]


@pytest.mark.parametrize(("node", "value"), FORMS, ids=[repr(node)[:60] for node, _ in FORMS])
def test_every_form_decodes(node: Any, value: Any) -> None:
    assert same(decode(node), value)


@pytest.mark.parametrize("dtype", INT_RANGES)
def test_integers_in_their_range_only(dtype: str) -> None:
    low, high = int(INT_RANGES[dtype].min), int(INT_RANGES[dtype].max)
    for value in (low, 0, high):
        assert decode({dtype: value}) == value
        assert same(decode({dtype: [value]}), array(dtype, value))
    for value in (low - 1, high + 1, 1.0, True, "1", "0x", "0x1_0", "-1", None):
        for node in ({dtype: value}, {dtype: [value]}):
            with pytest.raises(BadValue, match=f"is no {dtype}$"):
                decode(node)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"f64": 10**400}, "an integer that no float holds"),
        ({"f64": [[1.0], 2.0]}, "rows of different depths"),
        ({"f64": [1.0, {"f64": 1.0}]}, "rows of different depths"),
        ({"f32": [3.5e38]}, "a number is too large for f32"),
        ({"f16": 65520.0}, "a number is too large for f16"),
        ({"bf16": [3.4e38, 1e39]}, "a number is too large for bf16"),
        ({"bf16": [0.1]}, "a number is no bf16 value"),
        ({"f32": 3, "bits": ""}, "f32 needs a shape"),
        ({"f32": {"shape": [True], "bits": "00000000"}}, "f32 needs a shape"),
        ({"f32": {"shape": [1], "bits": None}}, "bits: expected 1 words of 8 hex digits"),
        ({"f32": {"shape": [1], "bits": 12345678}}, "bits: expected 1 words of 8 hex digits"),
        ({"u8": {"shape": [1], "hex": 5}}, "5 is not hex"),
        ({"f32": {"shape": [1 << 62, 1 << 62], "bits": ""}}, "is more than 16 axes or 8 MiB"),
        ({"f64": {"shape": [(MAX_BODY >> 3) + 1], "gen": "u24", "seed": 1}}, "is more than 16 axes or 8 MiB"),
        ({"u8": {"shape": [1] * 17, "hex": "00"}}, "is more than 16 axes or 8 MiB"),
        ({"bool": {"shape": [1], "bits": "02"}}, "a bool is 00 or 01"),
        ({"bool": {"shape": [2, 2], "ids": [1]}}, "ids is for a bool mask of one axis"),
        ({"bool": {"shape": [2], "ids": [True]}}, r"ids: distinct integers in \[0, 2\)"),
        (
            {"f32": {"shape": [2], "gen": "u24", "seed": 1, "scale": True}},
            "scale is a power of two, not True",
        ),
        ({"f32": {"shape": [2], "gen": "u24", "seed": 1, "scale": 0}}, "scale is a power of two, not 0"),
        ({"f32": {"shape": [2], "gen": "u24", "seed": 1, "scale": -2}}, "scale is a power of two, not -2"),
        ({"f32": {"shape": [2], "gen": "u24", "seed": True}}, "gen needs an integer seed"),
        (
            {"i32": {"shape": [2], "gen": "below", "seed": 1, "n": 0}},
            "gen below needs an integer dtype and n >= 1",
        ),
        (
            {"u64": {"shape": [2], "gen": "below", "seed": 1, "n": 1 << 54}},
            "gen below needs an integer dtype",
        ),
        ({"ref": ""}, "ref takes a name, not ''"),
        ({"new": None}, "new takes a name, not None"),
        ({"call": "f", "args": None}, "args of f is a mapping of names to values, not None"),
        ({"tuple": {"a": 1}}, "tuple takes a list"),
        ({"ref": "a", "args": {}}, "unknown key 'args' beside 'ref'"),
    ],
)
def test_what_says_nothing_is_refused(node: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        decode(node)


def test_the_largest_tensor_is_one_that_a_frame_carries() -> None:
    assert decode({"f64": {"shape": [MAX_BODY >> 3], "gen": "u24", "seed": 1}}).nbytes == MAX_BODY


@pytest.mark.parametrize(
    "node", [{"a": 1}, [1], 1, "f32", None, {"shape": [1]}, {"cmp": "exact"}, {"args": {}}, {}], ids=repr
)
def test_a_plain_value_has_no_typed_key(node: Any) -> None:
    assert typed_key(node) is None


# -- generators -------------------------------------------------------------------------------------------


def test_u24_of_seed_7() -> None:
    got = decode({"f64": {"shape": [2], "gen": "u24", "seed": 7}})
    assert got.tolist() == [-0.22034060955047607, -0.966423511505127]


@given(st.integers(0, 2**64 - 1), st.integers(1, 50))
@QUICK
def test_u24_is_the_formula(seed: int, size: int) -> None:
    """The definition in plain integers, for every element."""
    words = [mix64((seed + (i + 1) * GOLDEN) % 2**64) for i in range(size)]
    assert mix64_stream(seed, size).tolist() == words
    for dtype in ("f64", "f32"):  # 24 bits fit both
        got = decode({dtype: {"shape": [size], "gen": "u24", "seed": seed}})
        assert got.dtype == DTYPES[dtype]
        assert got.tolist() == [((u >> 40) - 2**23) * 2.0**-23 for u in words]
    ids = decode({"i32": {"shape": [size], "gen": "below", "seed": seed, "n": 128000}})
    assert ids.tolist() == [u % 128000 for u in words]


def test_generators_scale_and_fill_shapes() -> None:
    node = {"shape": [2, 3], "gen": "u24", "seed": 7}
    once = decode({"f32": node})
    assert once.shape == (2, 3)
    assert same(decode({"f32": {**node, "scale": 0.25}}), once * np.float32(0.25))
    assert same(decode({"f16": {**node, "scale": 4}}), (once.astype(np.float64) * 4).astype(np.float16))
    assert decode({"u8": {"shape": [200], "gen": "below", "seed": 7, "n": 256}}).max() > 200
    assert decode({"f32": {"shape": [0, 4], "gen": "u24", "seed": 7}}).shape == (0, 4)
    values = decode({"f64": {"shape": [4000], "gen": "u24", "seed": 1}})
    assert -1 <= values.min() < -0.99
    assert 0.99 < values.max() < 1


# -- files ------------------------------------------------------------------------------------------------


def npz(folder: Path, name: str = "x.npz", **arrays: Any) -> str:
    np.savez(folder / name, **arrays)
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_arrays_of_files(tmp_path: Path) -> None:
    ramp = np.arange(6, dtype=np.float32).reshape(2, 3)
    digest = npz(tmp_path, a=ramp, o=np.array([None]))
    node = {"shape": [2, 3], "file": "x.npz#a", "sha256": digest}
    assert same(decode({"f32": node}, tmp_path), ramp)
    refused = {
        "its sha256 is not the one stated": {**node, "sha256": digest[::-1]},
        "has no array 'b'": {**node, "file": "x.npz#b"},
        "has no array ''": {**node, "file": "x.npz"},
        r"is float32\[2, 3\], not f32\[3, 2\]": {**node, "shape": [3, 2]},
        "is not an .npz of plain arrays": {**node, "file": "x.npz#o"},
        "is not inside the unit's folder": {**node, "file": "/etc/passwd"},
        "No such file or directory": {**node, "file": "y.npz#a"},
    }
    for words, wrong in refused.items():
        with pytest.raises(BadValue, match=words):
            decode({"f32": wrong}, tmp_path)
    with pytest.raises(BadValue, match=r"is float32\[2, 3\], not f64\[2, 3\]"):
        decode({"f64": node}, tmp_path)
    with pytest.raises(BadValue, match="is not inside the unit's folder"):
        decode({"f32": node})  # nowhere to look


@pytest.mark.parametrize("raw", [b"", b"no zip", b"PK\x03\x04 cut off", b"\x80\x04N."])
def test_a_file_that_holds_no_arrays(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(raw)
    node = {"shape": [1], "file": "x.npz#a", "sha256": hashlib.sha256(raw).hexdigest()}
    with pytest.raises(BadValue, match=r"is not an \.npz of plain arrays"):
        decode({"f32": node}, tmp_path)


# -- shortest decimals ------------------------------------------------------------------------------------


@given(st.integers(0, 2**16 - 1))
@QUICK
def test_shortest_decimals_of_f16_read_back_and_no_shorter_one_does(word: int) -> None:
    x = np.array([word], np.uint16).view(np.float16)[0]
    text = shortest(x)
    if isinstance(text, str):
        assert text in ("nan", "inf", "-inf")
        return
    assert np.float16(text).tobytes() == x.tobytes()
    figures = len(repr(text).split("e")[0].replace("-", "").replace(".", "").strip("0"))
    for digits in range(1, figures):
        assert np.float16(f"{float(x):.{digits - 1}e}") != x


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@QUICK
def test_shortest_decimals_of_f32_read_back(number: float) -> None:
    x = np.float32(number)
    text = shortest(x)
    assert isinstance(text, float)
    assert np.float32(text).tobytes() == x.tobytes()
    assert len(repr(text)) <= len(repr(number))


def test_shortest_decimals() -> None:
    assert [shortest(np.float32(x)) for x in (0.1, 1 / 3, -2.5, 16777216)] == [
        0.1,
        0.33333334,
        -2.5,
        16777216.0,
    ]
    assert [shortest(np.float16(x)) for x in (0.1, 65504)] == [0.1, 65500.0]
    assert shortest(np.float64(0.1)) == 0.1
    assert math.copysign(1, shortest(np.float32(-0.0))) == -1  # type: ignore[arg-type]
    assert [shortest(np.float32(x)) for x in ("nan", "inf", "-inf")] == ["nan", "inf", "-inf"]


def test_listed() -> None:
    assert listed(np.array([[0.1, -0.0]], np.float32)) == [[0.1, -0.0]]
    assert listed(np.array(0.1, np.float32)) == 0.1
    assert listed(np.zeros((2, 0), np.float32)) == []
    assert listed(bf16(0x3F80, 0x7FC0)) == [1.0, "nan"]
    assert listed(np.array([[1, 2**53 - 1, 2**53]], np.uint64)) == [[1, 2**53 - 1, "0x20000000000000"]]
    assert listed(np.array([-(2**63)])) == ["-0x8000000000000000"]
    assert listed(np.array([True, False])) == [True, False]


# -- round trips ------------------------------------------------------------------------------------------

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.floats(width=16, allow_nan=False).map(np.float16),
    st.sampled_from([DType("f16"), Ref("rng")]),
)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    # A leading 0 forgets the axes behind it in the list form; the shape form keeps them.
    size, kind = math.prod(shape), DTYPES[dtype]
    raw = draw(st.binary(min_size=size * kind.itemsize, max_size=size * kind.itemsize))
    made = np.frombuffer(bytes(b & 1 for b in raw) if dtype == "bool" else raw, kind).reshape(shape)
    numbers = made if made.dtype.kind == "f" else made.view(np.uint16) if dtype == "bf16" else None
    if numbers is not None:  # a NaN is written as a word: its payload is not kept
        numbers = (
            np.where((numbers & 0x7F80) == 0x7F80, 0x3F80, numbers)
            if dtype == "bf16"
            else np.nan_to_num(numbers, nan=1.0, posinf=math.inf, neginf=-math.inf)
        )
        made = numbers.astype(np.uint16).view(BF16) if dtype == "bf16" else numbers
    return made


KEYS = st.text("abc", min_size=1, max_size=3)
VALUES = st.recursive(
    SCALARS | tensors(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(New, st.just("Stack"), st.dictionaries(KEYS, inner, max_size=2)),
        st.builds(Call, st.just("f"), st.dictionaries(KEYS, inner, max_size=2)),
    ),
    max_leaves=6,
)


@given(VALUES)
@QUICK
def test_what_is_written_reads_back(value: Any) -> None:
    node = to_fixture(value)
    assert same(decode(node), value)
    assert same(decode(strict_yaml.load(strict_yaml.to_flow(node), "x.yaml")), value)


@given(VALUES)
@QUICK
def test_what_an_oracle_sees_becomes_the_value_again(value: Any) -> None:
    def without_dtypes(node: Any) -> bool:
        if isinstance(node, (list, tuple)):
            return all(map(without_dtypes, node))
        if isinstance(node, (New, Call)):
            return without_dtypes(node.args)
        return (
            all(map(without_dtypes, node.values())) if isinstance(node, dict) else not isinstance(node, DType)
        )

    if without_dtypes(value):  # a dtype is handed over as NumPy's own
        assert same(unplain(plain(value)), value)


def test_plain_forms() -> None:
    value = {"a": New("S", {"x": (1, Ref("r"))}), "d": DType("f16"), "c": Call("f", {})}
    assert plain(value) == {
        "a": {"new": "S", "args": {"x": (1, {"ref": "r"})}},
        "d": np.dtype("f2"),
        "c": {"call": "f", "args": {}},
    }


def test_oracle_answers_in_the_written_form() -> None:
    assert to_fixture(np.int64(3)) == 3
    assert to_fixture(np.bool_(True)) is True
    assert to_fixture(np.float64(0.5)) == {"f64": 0.5}
    assert to_fixture(np.float32(0.1)) == {"f32": 0.1}
    assert to_fixture(math.nan) == {"f64": "nan"}
    assert to_fixture(bf16(0x3F80)[0]) == {"bf16": 1.0}
    assert to_fixture(2**53) == {"u64": "0x20000000000000"}
    assert to_fixture(-(2**53)) == {"i64": "-0x20000000000000"}
    assert to_fixture(np.uint64(2**64 - 1)) == {"u64": "0xffffffffffffffff"}
    assert to_fixture(np.zeros((0, 3), np.float32)) == {"f32": [0, 3], "bits": ""}
    assert to_fixture(Fields("T", {"x": 0.5})) == {"attrs": {"x": {"f64": 0.5}}}


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, {1: 2}, {1, 2}, object(), np.array([1j]), np.complex64(1)],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_written_form_is_our_fault(value: Any) -> None:
    with pytest.raises(OwnFault, match="has no fixture form") as caught:
        to_fixture(value)
    assert caught.value.fix == "return arrays, numbers, text, lists"


# -- words ------------------------------------------------------------------------------------------------

SHOWN: list[tuple[Any, str, str]] = [
    (None, "null", "null"),
    (True, "a bool", "true"),
    (3, "an integer", "3"),
    (-0.0, "a float", "-0.0"),
    (math.nan, "a float", "nan"),
    (np.float64(0.5), "a float", "0.5"),
    (np.float32(0.1), "f32[]", "0.1"),
    ("a'b", "text", '"a\'b"'),
    (b"\x00", "bytes", "b'\\x00'"),
    ([1, None], "a sequence of 2", "[1, null]"),
    ((1,), "a sequence of 1", "[1]"),
    ({"a": True}, "a dict of 1", "{a: true}"),
    (np.array([0.1, math.inf], np.float32), "f32[2]", "[0.1, inf]"),
    (np.array([[True]]), "bool[1, 1]", "[[true]]"),
    (bf16(0x3F80), "bf16[1]", "[1.0]"),
    (bf16(0x3F80)[0], "bf16[]", "1.0"),
    (Fields("Point", {"x": 1}), "an object of type Point", "Point(x=1)"),
    (Opaque("deque"), "an object of type deque", "an object of type deque"),
    (Opaque("a set"), "a set", "a set"),
    (New("S", {"x": 1}), "New", "S(x=1)"),
    (Ref("rng"), "Ref", "rng"),
]


@pytest.mark.parametrize(("value", "kind", "text"), SHOWN, ids=[repr(v)[:40] for v, _, _ in SHOWN])
def test_values_in_words(value: Any, kind: str, text: str) -> None:
    assert kind_of(value) == kind
    assert show(value) == text
    assert described(value) == (kind if value is None or isinstance(value, Opaque) else f"{kind} {text}")


def test_long_values_are_cut_with_their_kind() -> None:
    text = show(np.arange(1000.0))
    assert text.startswith("f64[1000] [0.0, 1.0, ")
    assert text.endswith("…")
    assert len(text) < 180
    assert show("x" * 500).endswith("…")
    assert len(show(list(range(500)))) == 160


def test_a_parameter_may_have_the_name_of_a_typed_value() -> None:
    """`dtype`, `new` and the like are words of a value, not of a list of arguments."""
    args = decode_args({"dtype": "f32", "k": 3, "new": {"f64": 0.5}, "bytes": {"bytes": "00"}})
    assert args == {"dtype": "f32", "k": 3, "new": 0.5, "bytes": b"\0"}
