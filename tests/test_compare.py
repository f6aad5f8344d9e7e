"""Comparators by their bit patterns, and one rule for all of them: NaN never passes by accident."""

from __future__ import annotations

import doctest
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import compare as module
from grader.compare import (
    COMPARATORS,
    Attrs,
    Cmp,
    Difference,
    Keys,
    Labels,
    Leaf,
    Seq,
    chi2_tail,
    cmp_of,
    compare,
    settled,
    show_want,
    want_of,
    want_value,
)
from grader.values import BadValue, decode
from grader.wire import BF16, DTYPES, Fields, Opaque

QUICK = settings(max_examples=40, deadline=None)  # a busy machine misses deadlines
UINT = {"f16": "u2", "bf16": "u2", "f32": "u4", "f64": "u8"}


def of_bits(dtype: str, *words: int) -> Any:
    """A vector by its bit patterns."""
    return np.array(words, f"<{UINT[dtype]}").view(DTYPES[dtype])


def judged(cmp: Cmp, want: Any, got: Any) -> Difference | None:
    return compare(Leaf(want, cmp), got)


def passes(cmp: Cmp, want: Any, got: Any) -> bool:
    return judged(cmp, want, got) is None


def ulp(most: float) -> Cmp:
    return Cmp("ulp", max=most)


def test_doctests() -> None:
    results = doctest.testmod(module)
    assert results.attempted >= 2
    assert results.failed == 0


# -- ulp --------------------------------------------------------------------------------------------------

# dtype, want, got, distance; None: no distance is enough
ULP_TABLE = [
    ("f64", 0x3FF0000000000000, 0x3FF0000000000000, 0),
    ("f64", 0x3FF0000000000000, 0x3FF0000000000001, 1),
    ("f64", 0x3FF0000000000000, 0x3FEFFFFFFFFFFFFF, 1),  # below a power of two the step is half as wide
    ("f64", 0x0000000000000000, 0x8000000000000000, 0),  # 0 and -0
    ("f64", 0x0000000000000000, 0x0000000000000001, 1),  # 0 and the smallest denormal
    ("f64", 0x8000000000000000, 0x0000000000000001, 1),
    ("f64", 0x0000000000000001, 0x8000000000000001, 2),  # across zero
    ("f64", 0x000FFFFFFFFFFFFF, 0x0010000000000000, 1),  # the largest denormal and the smallest normal
    ("f64", 0x7FEFFFFFFFFFFFFE, 0x7FEFFFFFFFFFFFFF, 1),  # the largest numbers
    ("f64", 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, None),  # and infinity
    ("f64", 0x7FF0000000000000, 0x7FF0000000000000, 0),
    ("f64", 0x7FF0000000000000, 0xFFF0000000000000, None),
    ("f64", 0x3FF0000000000000, 0x7FF8000000000000, None),  # NaN
    ("f64", 0x7FF8000000000000, 0x3FF0000000000000, None),
    ("f64", 0x7FF8000000000000, 0x7FF8000000000000, None),
    ("f64", 0x7FF0000000000001, 0x7FF0000000000001, None),  # a signalling one
    ("f64", 0x7FF0000000000000, 0x7FF0000000000001, None),  # one pattern from infinity
    ("f32", 0x3F800000, 0x3F800003, 3),
    ("f32", 0x3F800000, 0x3F7FFFFF, 1),
    ("f32", 0x80000000, 0x00000000, 0),
    ("f32", 0x80000003, 0x00000002, 5),
    ("f32", 0x007FFFFF, 0x00800000, 1),
    ("f32", 0x7F7FFFFF, 0x7F800000, None),
    ("f32", 0x7F7FFFFF, 0xFF7FFFFF, 4278190078),  # from end to end
    ("f32", 0xFF800000, 0xFF800000, 0),
    ("f32", 0x7FC00000, 0x7FC00000, None),
    ("f16", 0x3C00, 0x3C02, 2),
    ("f16", 0x0001, 0x8001, 2),
    ("f16", 0x03FF, 0x0400, 1),
    ("f16", 0x7BFF, 0x7C00, None),
    ("f16", 0xFBFF, 0xFBFE, 1),
    ("f16", 0x7E00, 0x7E00, None),
    ("bf16", 0x3F80, 0x3F82, 2),
    ("bf16", 0x0001, 0x8001, 2),
    ("bf16", 0x7F7F, 0x7F80, None),
    ("bf16", 0x7FC0, 0x7FC0, None),
]


@pytest.mark.parametrize(("dtype", "want", "got", "distance"), ULP_TABLE)
def test_ulp_by_bit_pattern(dtype: str, want: int, got: int, distance: int | None) -> None:
    a, b = of_bits(dtype, want), of_bits(dtype, got)
    for x, y in ((a, b), (b, a)):
        if distance is None:
            assert not passes(ulp(math.inf), x, y)
            continue
        assert passes(ulp(distance), x, y)
        if distance:
            difference = judged(ulp(distance - 1), x, y)
            assert difference is not None
            assert (difference.gap, difference.allowed) == (distance, distance - 1)
            assert f"off by {distance} ulp, allowed {distance - 1:g} ulp" in difference.note


def test_ulp_may_be_a_fraction_and_never_rounds_up() -> None:
    one, next_one = of_bits("f64", 0x3FF0000000000000), of_bits("f64", 0x3FF0000000000001)
    assert not passes(ulp(0.999), one, next_one)
    assert passes(ulp(1.5), one, next_one)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
@QUICK
def test_ulp_counts_the_floats_between(a: int, b: int) -> None:
    """Against an order of all floats that is built another way: by sign and magnitude in Python."""

    def place(word: int) -> int:
        return -(word & 0x7FFFFFFF) if word >> 31 else word

    x, y = of_bits("f32", a), of_bits("f32", b)
    finite = bool(np.isfinite(x[0]) and np.isfinite(y[0]))
    distance = abs(place(a) - place(b))
    assert passes(ulp(distance), x, y) == (finite or bool(x[0] == y[0]))
    if distance:
        assert not passes(ulp(distance - 1), x, y) or bool(x[0] == y[0])


# -- bits and exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_bits_tells_apart_what_exact_does_not(dtype: str) -> None:
    sign = 1 << (8 * DTYPES[dtype].itemsize - 1)
    zero, minus = of_bits(dtype, 0), of_bits(dtype, sign)
    assert passes(Cmp("exact"), zero, minus)
    assert not passes(Cmp("bits"), zero, minus)
    assert passes(Cmp("bits"), minus, minus)
    nan = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8000000000000}[dtype]
    quiet, payload = of_bits(dtype, nan), of_bits(dtype, nan + 1)
    assert not passes(Cmp("exact"), quiet, quiet)
    assert passes(Cmp("exact", nan=True), quiet, payload)
    assert passes(Cmp("bits"), payload, payload)
    assert not passes(Cmp("bits"), quiet, payload)


def test_two_nans_that_differ_are_shown_by_their_bits() -> None:
    difference = judged(Cmp("bits"), of_bits("f32", 0x7FC00000), of_bits("f32", 0xFFC00001))
    assert difference == Difference("return[0]", "nan 0x7fc00000", "nan 0xffc00001", "1 of 1 differ")
    refused = judged(Cmp("exact"), of_bits("f32", 0x7FC00000), of_bits("f32", 0x7FC00000))
    assert refused == Difference("return[0]", "nan", "nan", "1 of 1 differ, NaN is refused")


def test_scalars_are_judged_like_tensors() -> None:
    assert passes(Cmp("exact"), 0.0, -0.0)
    assert not passes(Cmp("bits"), 0.0, -0.0)
    assert not passes(Cmp("exact"), math.nan, math.nan)
    assert passes(Cmp("exact", nan=True), math.nan, math.nan)
    assert passes(Cmp("exact"), math.inf, math.inf)
    assert not passes(Cmp("exact"), math.inf, -math.inf)
    assert passes(ulp(1), 1.0, math.nextafter(1, 2))
    assert passes(Cmp("bits"), np.float32(0.5), np.float32(0.5))
    assert passes(Cmp("bits"), np.float32(0.5), np.array(0.5, np.float32))  # the wire makes it 0-d
    assert judged(Cmp("exact"), 1.0, 2.0) == Difference("return", "1.0", "2.0")


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@QUICK
def test_bits_is_equality_of_bits(a: int, b: int) -> None:
    x, y = (struct.unpack("<d", struct.pack("<Q", word))[0] for word in (a, b))
    assert passes(Cmp("bits"), x, y) == (a == b)
    assert passes(Cmp("bits"), of_bits("f64", a, b), of_bits("f64", a, b))


# -- kinds ------------------------------------------------------------------------------------------------

KINDS = {
    "null": None,
    "bool": True,
    "integer": 1,
    "float": 1.0,
    "text": "1",
    "bytes": b"1",
    "sequence": [1],
    "i64[1]": np.array([1]),
    "i32[1]": np.array([1], np.int32),
    "bool[1]": np.array([True]),
    "f64[1]": np.array([1.0]),
    "f32[1]": np.array([1.0], np.float32),
    "f16[1]": np.array([1.0], np.float16),
    "bf16[1]": np.array([0x3F80], np.uint16).view(BF16),
    "u16[1]": np.array([0x3F80], np.uint16),
    "f64[]": np.array(1.0),
    "f32[]": np.float32(1),
    "f64[1,1]": np.array([[1.0]]),
    "i64[]": np.array(1),
    "dict": {"a": 1},
    "object": Fields("T", {"b": 1}),
    "opaque": Opaque("a set"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", ["exact", "bits"])
def test_kinds_never_stand_for_each_other(kind: str, name: str) -> None:
    want = want_value(KINDS[name], Cmp(kind))
    same = [other for other, got in KINDS.items() if compare(want, got) is None]
    assert same == [name]


def test_a_wrong_kind_says_both_kinds_and_values() -> None:
    difference = judged(Cmp("exact"), np.array([1.0, 2.0]), np.array([[1.0, 2.0]], np.float32))
    assert difference == Difference(
        "return", "f64[2] [1.0, 2.0]", "f32[1, 2] [[1.0, 2.0]]", "another kind of value"
    )
    assert judged(Cmp("exact"), 1, None) == Difference(
        "return", "an integer 1", "null", "another kind of value"
    )
    opaque = judged(Cmp("exact"), "a", Opaque("a set"))
    assert opaque == Difference("return", "text 'a'", "a set", "another kind of value")
    assert judged(Cmp("exact"), "ab", "ac") == Difference("return", "'ab'", "'ac'")


def test_the_first_wrong_element_is_named_and_all_are_counted() -> None:
    want, got = np.zeros((2, 3), np.int32), np.array([[0, 0, 7], [0, 8, 0]], np.int32)
    assert judged(Cmp("exact"), want, got) == Difference("return[0, 2]", "0", "7", "2 of 6 differ")


@pytest.mark.parametrize("kind", ["exact", "bits", "ulp", "close", "rel_l2"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_empty_tensors_are_equal_in_their_own_shape_only(kind: str, dtype: str) -> None:
    cmp = Cmp(kind, max=1, rtol=1)
    empty = of_bits(dtype).reshape(0, 3)
    assert passes(cmp, empty, empty)
    assert not passes(cmp, empty, empty.reshape(3, 0))
    assert not passes(cmp, empty, of_bits(dtype))


# -- close and rel_l2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("want", "got", "rtol", "atol", "ok"),
    [
        (0.0, 0.5, 0.0, 0.5, True),  # the boundary itself
        (0.0, math.nextafter(0.5, 1), 0.0, 0.5, False),
        (4.0, 5.0, 0.25, 0.0, True),
        (4.0, math.nextafter(5, 6), 0.25, 0.0, False),
        (-4.0, -5.0, 0.25, 0.0, True),
        (-4.0, math.nextafter(-5, -6), 0.25, 0.0, False),
        (4.0, 2.5, 0.25, 0.5, True),
        (4.0, math.nextafter(2.5, 0), 0.25, 0.5, False),
        (0.0, 5e-324, 1.0, 0.0, False),  # a relative tolerance of nothing
        (0.0, -0.0, 0.0, 0.0, True),
        (math.inf, math.inf, 0.0, 0.0, True),
        (math.inf, 1e308, 1.0, 1e308, False),
        (1e308, math.inf, 1.0, 1e308, False),
        (math.inf, -math.inf, 1.0, 1.0, False),
        (1e308, -1e308, 1.0, 0.0, False),  # the difference overflows
        (math.nan, math.nan, 1.0, 1.0, False),
        (1.0, math.nan, 1.0, math.inf, False),
    ],
)
def test_close_at_its_boundary(want: float, got: float, rtol: float, atol: float, ok: bool) -> None:
    assert passes(Cmp("close", rtol=rtol, atol=atol), want, got) == ok
    vectors = np.array([1.0, want]), np.array([1.0, got])
    difference = judged(Cmp("close", rtol=rtol, atol=atol), *vectors)
    assert (difference is None) == ok
    if difference is not None:
        assert difference.where == "return[1]"
        assert difference.gap is None or difference.gap >= 1


def test_close_is_computed_in_f64() -> None:
    want, got = np.array([1.0], np.float16), np.array([1.001], np.float16)
    distance = float(got[0]) - 1.0
    assert passes(Cmp("close", atol=distance), want, got)
    assert not passes(Cmp("close", atol=math.nextafter(distance, 0)), want, got)
    difference = judged(Cmp("close", atol=distance / 4), want, got)
    assert difference is not None
    assert (difference.note, difference.gap, difference.allowed) == (
        "1 of 1 differ, off by 4 times the tolerance",
        4.0,
        1.0,
    )


def test_rel_l2_at_its_boundary() -> None:
    want, got = np.array([3.0, 4.0]), np.array([3.0, 4.5])
    assert passes(Cmp("rel_l2", max=0.1), want, got)
    difference = judged(Cmp("rel_l2", max=math.nextafter(0.1, 0)), want, got)
    assert difference == Difference(
        "return", "within 0.1 in relative L2", "0.1", "", 0.1, math.nextafter(0.1, 0)
    )
    assert passes(Cmp("rel_l2", max=0.1), want.astype(np.float16), got.astype(np.float16))
    assert passes(Cmp("rel_l2"), want, want)
    assert not passes(Cmp("rel_l2"), want, got)


def test_rel_l2_neither_overflows_nor_underflows() -> None:
    tiny, huge = np.array([1e-200, 0.0]), np.array([1e200, 1e200])
    assert not passes(Cmp("rel_l2", max=1.0), tiny, 5 * tiny)
    assert passes(Cmp("rel_l2", max=5.0), tiny, 5 * tiny)
    assert passes(Cmp("rel_l2", max=1e-9), huge, huge * (1 + 1e-12))
    assert not passes(Cmp("rel_l2", max=1e-13), huge, huge * (1 + 1e-12))
    assert not passes(
        Cmp("rel_l2", max=1e9), np.zeros(2), np.array([0.0, 5e-324])
    )  # nothing to be relative to
    assert passes(Cmp("rel_l2"), np.zeros(2), np.array([0.0, -0.0]))


def test_rel_l2_leaves_out_equal_infinities_and_asked_nans_only() -> None:
    want = np.array([3.0, 4.0, math.inf, math.nan])
    got = np.array([3.0, 4.5, math.inf, math.nan])
    assert passes(Cmp("rel_l2", max=0.1, nan=True), want, got)
    difference = judged(Cmp("rel_l2", max=0.1), want, got)
    assert difference is not None
    assert difference.where == "return[3]"
    assert not passes(Cmp("rel_l2", max=1e9, nan=True), want, np.array([3.0, 4.0, -math.inf, math.nan]))
    assert not passes(Cmp("rel_l2", max=1e9, nan=True), want, np.array([3.0, math.nan, math.inf, math.nan]))


# -- NaN never passes by accident -------------------------------------------------------------------------

NUMBERS = {
    "exact": Cmp("exact"),
    "ulp": ulp(math.inf),
    "close": Cmp("close", rtol=math.inf, atol=math.inf),
    "rel_l2": Cmp("rel_l2", max=math.inf),
    "at_least": Cmp("at_least", bound=-math.inf),
    "at_most": Cmp("at_most", bound=math.inf),
    "bits": Cmp("bits"),
    "set": Cmp("set"),
    "labels": Cmp("labels"),
    "multiset": Cmp("multiset"),
    "dist": Cmp("dist", n=1, alpha=1e-300),
}
FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])


def test_every_comparator_is_tried_with_nan() -> None:
    assert set(NUMBERS) == set(COMPARATORS)


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if kind != "bits"])
@given(data=st.data())
@QUICK
def test_nan_never_passes_unasked(kind: str, data: st.DataObject) -> None:
    """Whatever is expected, an answer with NaN fails under the widest limits, in every float dtype."""
    want = data.draw(st.lists(FLOATS, min_size=1, max_size=5))
    at = data.draw(st.integers(0, len(want) - 1))
    got = [*want[:at], math.nan, *want[at + 1 :]]
    cmp = NUMBERS[kind]
    assert not passes(cmp, want[at], math.nan)
    for dtype in (np.float64, np.float32, np.float16):
        with np.errstate(over="ignore"):
            a, b = np.array(want).astype(dtype), np.array(got).astype(dtype)
        assert not passes(cmp, a, b)
        assert not passes(cmp, dtype(a[at]), dtype(math.nan))
        if kind in ("exact", "ulp", "close", "rel_l2"):
            asked = Cmp(kind, cmp.max, cmp.rtol, cmp.atol, nan=True)
            assert passes(asked, a, b) == bool(np.isnan(a[at]))


@given(st.integers(0, 2**16 - 1))
@QUICK
def test_nan_never_passes_unasked_in_bf16(word: int) -> None:
    want, nan = of_bits("bf16", word, 0x3F80), of_bits("bf16", 0x7FC0, 0x3F80)
    for kind in ("exact", "ulp", "close", "rel_l2"):
        assert not passes(NUMBERS[kind], want, nan)


def test_bits_passes_a_nan_only_for_that_nan() -> None:
    assert not passes(Cmp("bits"), 1.0, math.nan)
    assert passes(Cmp("bits"), math.nan, math.nan)


# -- bounds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "least", "most"),
    [
        (2.0, True, True),
        (2, True, True),
        (math.nextafter(2, 3), True, False),
        (1, False, True),
        (math.inf, True, False),
        (-math.inf, False, True),
        (math.nan, False, False),
        (True, False, False),
        ("2", False, False),
        (None, False, False),
        (np.array([2.0]), False, False),
    ],
)
def test_bounds(got: Any, least: bool, most: bool) -> None:
    assert passes(Cmp("at_least", bound=2.0), 0.0, got) == least
    assert passes(Cmp("at_most", bound=2.0), 0.0, got) == most


# -- set, multiset, labels --------------------------------------------------------------------------------


def vector(*ids: int, dtype: str = "i64") -> Any:
    return np.array(ids, DTYPES[dtype])


def test_sets() -> None:
    cmp = Cmp("set")
    assert passes(cmp, vector(1, 2, 3), vector(3, 1, 2))
    assert not passes(cmp, vector(1, 2, 3), vector(3, 1))
    assert not passes(cmp, vector(1, 2), vector(1, 2, 2))
    assert not passes(cmp, vector(1, 2), vector(1, 3))
    assert not passes(cmp, vector(1, 2), vector(1, 2, dtype="i32"))  # dtype and shape must match
    assert not passes(cmp, vector(1, 2), vector(1, 2).reshape(2, 1))
    assert not passes(cmp, vector(1, 2), [1, 2])
    assert passes(cmp, [1, 2], (2, 1))
    assert not passes(cmp, [1, 2], [True, 2])
    assert not passes(cmp, [1, 2], ["1", 2])
    assert passes(cmp, ["a", b"b"], [b"b", "a"])
    assert not passes(cmp, [1, 2], [1, 2.0])
    assert not passes(cmp, [1, 2], {1: 2})
    assert not passes(cmp, 1, [1])
    assert passes(cmp, [], [])


def test_multisets() -> None:
    cmp = Cmp("multiset")
    assert passes(cmp, vector(1, 1, 2), vector(2, 1, 1))
    assert not passes(cmp, vector(1, 1, 2), vector(2, 2, 1))
    assert not passes(cmp, vector(1, 2), vector(1, 2, 2))
    assert judged(cmp, [1, 2], [1, 3]) == Difference("return", "multiset [1, 2]", "[1, 3]")


def test_labels_are_one_to_one_both_ways() -> None:
    cmp = Cmp("labels")
    assert passes(cmp, vector(0, 1, 0), vector(7, 3, 7))
    assert not passes(cmp, vector(0, 1, 0), vector(7, 3, 8))  # one id, two labels
    assert not passes(cmp, vector(0, 1), vector(7, 7))  # two ids, one label
    assert not passes(cmp, vector(0, 1), vector(7, 3, 3))
    assert not passes(cmp, vector(0, 1), [7, 3])
    assert not passes(cmp, [0, 1], [7, "3"])
    assert not passes(cmp, [0, 1], [0, True])
    assert passes(cmp, ["a", "b"], ["b", "a"])


def test_a_renaming_is_kept_for_the_whole_case() -> None:
    labels, cmp = Labels(), Cmp("labels")
    assert compare(Leaf(0, cmp), 7, "return", labels) is None
    assert compare(Seq((Leaf(1, cmp), Leaf(0, cmp))), [3, 7], "return", labels) is None
    later = compare(Leaf(0, cmp), 3, "state", labels)
    assert later == Difference("state", "0", "3", "not equal up to one renaming")
    assert compare(Leaf(2, cmp), 3, "state", labels) is not None
    assert compare(Leaf(0, cmp), 3, "state", Labels()) is None  # another case


def test_a_new_label_takes_over_an_id_that_was_freed_and_never_one_in_use() -> None:
    labels, cmp = Labels(), Cmp("labels")
    assert compare(Leaf(0, cmp), 7, "return", labels) is None
    assert compare(Leaf(1, cmp), 7, "return", labels) is not None  # both at this moment
    labels.moment = 1
    assert compare(Seq((Leaf(2, cmp), Leaf(0, cmp))), [7, 7], "state", labels) is not None
    labels.moment = 2
    assert compare(Leaf(2, cmp), 7, "state", labels) is None
    assert labels.id_of(2) == 7
    assert labels.id_of(3) is None
    labels.moment = 3
    assert compare(Leaf(0, cmp), 7, "state", labels) is not None  # dead
    assert compare(Leaf(0, cmp), 8, "state", labels) is not None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.permutations(range(6)))
@QUICK
def test_any_renaming_passes_and_only_a_renaming(ids: list[int], names: list[int]) -> None:
    renamed = [names[i] for i in ids]
    assert passes(Cmp("labels"), ids, renamed)
    broken = [*renamed, 6 + renamed[0]]
    assert not passes(Cmp("labels"), [*ids, ids[0]], broken)
    assert not passes(Cmp("labels"), [*ids, 6], [*renamed, renamed[0]])


# -- dist -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dof", "critical"), [(1, 10.828), (2, 13.816), (3, 16.266), (4, 18.467)])
def test_chi_square_tail_at_the_critical_values_of_one_in_a_thousand(dof: int, critical: float) -> None:
    assert chi2_tail(critical, dof) == pytest.approx(1e-3, rel=5e-4)
    assert chi2_tail(critical + 0.001, dof) < 1e-3 < chi2_tail(critical - 0.001, dof)


def test_chi_square_tail_at_its_ends() -> None:
    assert [chi2_tail(0.0, dof) for dof in (1, 2, 5, 6)] == [1.0] * 4
    assert chi2_tail(5.0, 0) == 1.0
    assert chi2_tail(4.351, 5) == pytest.approx(0.5, abs=1e-4)  # the median of five
    assert chi2_tail(149.449, 100) == pytest.approx(1e-3, rel=1e-3)
    assert chi2_tail(5000.0, 3) == 0.0
    tails = [chi2_tail(x, 7) for x in np.arange(0, 60, 0.5)]
    assert tails == sorted(tails, reverse=True)


def dist(n: int, alpha: float) -> Cmp:
    return Cmp("dist", n=n, alpha=alpha)


def test_dist_decides_at_alpha() -> None:
    p = np.array([0.5, 0.5])
    got = [0] * 60 + [1] * 40  # statistic 4: p = 0.0455
    assert passes(dist(100, 0.045), p, got)
    difference = judged(dist(100, 0.046), p, got)
    assert difference == Difference("return", "chi-square p >= 0.046", "p = 0.0455", "statistic 4")
    assert passes(dist(100, 0.045), p, np.array(got, np.int32))


def test_dist_counts_ids_of_probability_zero_and_strangers() -> None:
    p = np.array([0.5, 0.0, 0.5])
    assert passes(dist(4, 1e-3), p, [0, 2, 2, 0])
    assert judged(dist(4, 1e-3), p, [0, 2, 1, 0]) == Difference("return", "no id of probability 0", "id 1")
    assert judged(dist(4, 1e-3), p, [0, 2, 3, 0]) == Difference("return", "ids in [0, 3)", "[0, 2, 3, 0]")
    assert judged(dist(4, 1e-3), p, [0, 2, -1, 0]) == Difference("return", "ids in [0, 3)", "[0, 2, -1, 0]")


@pytest.mark.parametrize(
    "got",
    [[0, 1], [0] * 5, ["0"] * 4, [True] * 4, [0.0] * 4, None, 3, "0000", np.zeros(4), np.zeros(4, np.bool_)],
    ids=repr,
)
def test_dist_takes_n_ids_and_nothing_else(got: Any) -> None:
    difference = judged(dist(4, 1e-300), np.array([1.0, 0.0]), got)
    assert difference is not None
    assert difference.expected == "4 sampled ids"


def test_dist_takes_one_sampled_id_only_as_a_list() -> None:
    assert passes(dist(1, 1e-3), np.array([1.0]), [0])
    assert not passes(dist(1, 1e-3), np.array([1.0]), 0)


def test_dist_of_one_certain_id() -> None:
    assert passes(dist(3, 0.5), np.array([0.0, 1.0]), [1, 1, 1])


# -- compounds --------------------------------------------------------------------------------------------


def test_sequences_are_lists_or_tuples_of_one_length() -> None:
    want = want_of([1, {"f64": 2.0, "cmp": "exact"}])
    assert compare(want, [1, 2.0]) is None
    assert compare(want, (1, 2.0)) is None
    assert compare(want, [1, 2.0, 3]) == Difference(
        "return", "a sequence of 2 [1, 2.0]", "a sequence of 3 [1, 2.0, 3]"
    )
    assert compare(want, "ab") == Difference("return", "a sequence of 2 [1, 2.0]", "text 'ab'")
    assert compare(want, [1, 2.5]) == Difference("return[1]", "2.0", "2.5")


def test_dicts_are_complete_and_objects_by_what_is_named() -> None:
    want = Keys({"a": Leaf(1, Cmp()), "b": Leaf(2, Cmp())})
    assert compare(want, {"b": 2, "a": 1}) is None
    assert compare(want, Fields("T", {"a": 1, "b": 2})) is None  # an object by all its public fields
    assert compare(want, {"a": 1, "c": 3}) == Difference("return", "{a: 1, b: 2}", "{a: 1, c: 3}")
    assert compare(want, {"a": 1, "c": "-" * 80}) == Difference(
        "return", "keys a, b", "keys a, c", "missing b; surplus c"
    )
    assert compare(want, {"a": 1, "b": 3}) == Difference("return['b']", "2", "3")
    assert compare(want, [1, 2]) == Difference("return", "a dict {a: 1, b: 2}", "a sequence of 2 [1, 2]")
    assert compare(want, {1: 1, "b": 2}) is not None
    named = Attrs({"a": Leaf(1, Cmp())})
    assert compare(named, Fields("T", {"a": 1, "z": 9})) is None
    assert compare(named, {"a": 1}) == Difference("return", "an object with a=1", "a dict of 1 {a: 1}")
    assert compare(named, Fields("T", {"b": 1})) == Difference("return.a", "1", "no such attribute")
    assert compare(named, Fields("T", {"a": 2})) == Difference("return.a", "1", "2")


def test_words_for_what_is_wanted() -> None:
    want = want_of({"keys": {"a": [1, None], "b": {"attrs": {"c": True}}}})
    assert show_want(want) == "{a: [1, null], b: an object with c=true}"
    assert show_want({"raises": "KeyError"}) == "raises KeyError"
    assert show_want(None) == "a value"


def test_answers_of_oracles_become_python_scalars() -> None:
    value = {"a": (np.int64(3), np.bool_(True)), "b": [np.float64(0.5), np.float32(0.5)]}
    assert repr(settled(value)) == "{'a': [3, True], 'b': [0.5, np.float32(0.5)]}"
    assert compare(want_value(np.int64(3), Cmp()), 3) is None
    assert compare(want_value({"n": np.float64(0.5)}, Cmp()), {"n": 0.5}) is None
    assert compare(want_value(Fields("T", {"a": [np.int32(3)]}), Cmp()), Fields("T", {"a": [3]})) is None


def test_a_default_comparator_judges_what_names_none() -> None:
    want = want_of([{"f64": 1.0}, 2.0, {"f64": 1.0, "cmp": "bits"}], default=Cmp("close", atol=0.5))
    assert compare(want, [1.5, 2.5, 1.0]) is None
    assert compare(want, [1.5, 2.5, 1.5]) is not None
    assert compare(want, [1.6, 2.5, 1.0]) is not None


@pytest.mark.parametrize(
    "node",
    [
        {"f64": 1.0, "cmp": "ulp", "max": 2},
        {"f64": 1.0, "cmp": "close", "rtol": 1, "atol": 2},
        {"f64": 1.0, "cmp": "at_most", "bound": -3.5},
        {"i64": [1], "cmp": "labels"},
    ],
)
def test_comparators_are_read_with_their_numbers(node: dict[str, Any]) -> None:
    cmp = cmp_of(node)
    assert (cmp.kind, cmp.stated, cmp.nan) == (node["cmp"], True, False)
    for key in ("max", "rtol", "atol", "bound"):
        assert getattr(cmp, key) == node.get(key, 0.0)


def test_a_bool_is_no_number_of_a_comparator() -> None:
    with pytest.raises(BadValue, match="max takes a number that is not negative, not True"):
        cmp_of({"cmp": "ulp", "max": True})


def test_a_tensor_of_a_file_keeps_its_meaning_through_the_comparator() -> None:
    want = want_of({"bf16": [1.0, "nan"], "cmp": "exact", "nan": "same_place"})
    assert compare(want, decode({"bf16": [1.0, "nan"]})) is None
    assert compare(want, decode({"bf16": ["nan", 1.0]})) is not None
