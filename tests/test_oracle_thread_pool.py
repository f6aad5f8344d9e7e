"""The thread_pool oracle against the page, a walk over the indices, and loops in loops played out."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "thread_pool"
oracle = import_file(FOLDER / "oracle.py", "thread_pool_oracle_under_test")
LARGEST = (1 << 63) - 1
COUNT = {"function": "drv_count"}


def told(call: str, args: dict[str, Any], **pools: int) -> Any:
    objects = [{"id": name, "new": "tl_pool_create", "args": {"n_threads": n}} for name, n in pools.items()]
    return oracle.expect({"id": "x", "call": call, "args": args, "objects": objects})["return"]


def traced(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
    steps = [{"call": name, "args": args} for name, args in calls]
    return [step["return"] for step in oracle.expect({"id": "x", "steps": steps})["steps"]]


# -- the page ---------------------------------------------------------------------------------------------


def test_example_of_the_page() -> None:
    assert oracle.ranges_of(10, 4) == [(0, 4), (4, 8), (8, 10)]


@pytest.mark.parametrize(
    ("n", "grain", "ranges"),
    [
        (7, 7, [(0, 7)]),
        (7, 100, [(0, 7)]),
        (1, 1, [(0, 1)]),
        (7, 1, [(i, i + 1) for i in range(7)]),
        (LARGEST, LARGEST, [(0, LARGEST)]),
        (LARGEST, 1 << 62, [(0, 1 << 62), (1 << 62, LARGEST)]),
        (0, 5, []),
    ],
)
def test_small_ones_of_the_page(n: int, grain: int, ranges: list[tuple[int, int]]) -> None:
    assert oracle.ranges_of(n, grain) == ranges


def test_thousand_by_seven() -> None:
    found = oracle.ranges_of(1000, 7)
    assert (len(found), found[-1]) == (143, (994, 1000))


def test_nested_loops_of_the_page() -> None:
    a, b = {"ref": "a"}, {"ref": "b"}
    rows = oracle.nested("6a(1a 1n)", {"a": a, "b": None, "c": None})
    assert rows.tolist() == [[1, 0, 0, 6, 0], [0, 6, 0, 0, 6], [6, 0, 0, 6, 0]]
    rows = oracle.nested("3a(2b(1a))", {"a": a, "b": b, "c": None})
    assert rows[2].tolist() == [0, 6, 0, 0, 6] and rows[1].tolist() == [3, 0, 0, 6, 0]


def test_two_callers_of_the_page() -> None:
    args = {"callers": 2, "loops": 50, "n": 1000, "grain": 7}
    assert told("drv_callers", args)["handled"].tolist() == [100000]


def test_what_is_refused() -> None:
    refusal = {"status": "TL_EINVAL", "slot": "tl_parallel_for"}
    given: dict[str, Any]
    for given in ({"n": -1}, {"grain": 0}, {"grain": -1}, {"fn": None}, {"n": 0, "grain": 0}):
        args = {"p": None, "n": 5, "grain": 1, "fn": COUNT, "ctx": None} | given
        assert traced(("tl_parallel_for", args), ("drv_counted", {})) == [refusal, 0]
    args = {"p": None, "n": 7, "grain": 2, "fn": COUNT, "ctx": None}
    assert traced(("tl_parallel_for", args), ("drv_counted", {}), ("drv_counted", {})) == ["TL_OK", 4, 0]
    assert traced(("tl_parallel_for", {**args, "n": 0}), ("drv_counted", {})) == ["TL_OK", 0]


def test_creation() -> None:
    slot, out = {"slot": "tl_pool_create"}, {"out": {"handle": "p"}}
    assert traced(("tl_pool_create", {"n_threads": 2, "out": None})) == [{"status": "TL_EINVAL", **slot}]
    negative = traced(("tl_pool_create", {"n_threads": -1, **out}))
    assert negative == [{"status": "TL_EINVAL", "out": None, **slot}]
    steps = traced(
        ("tk_fail_after", {"n": 0}),
        ("tl_pool_create", {"n_threads": 3, **out}),
        ("tk_fail_after", {"n": -1}),
        ("tl_pool_create", {"n_threads": 3, **out}),
        ("tl_pool_threads", {"p": {"ref": "p"}}),
        ("tl_pool_threads", {"p": None}),
    )
    assert steps[1] == {"status": "TL_ENOMEM", "out": None, **slot}
    assert steps[3:] == [{"status": "TL_OK", "out": "object"}, 3, 1]


# -- other ways to the same answer ------------------------------------------------------------------------


def test_every_index_is_in_one_range() -> None:
    for n in range(1, 40):
        for grain in range(1, 45):
            found = oracle.ranges_of(n, grain)
            assert [i for lo, hi in found for i in range(lo, hi)] == list(range(n))
            assert {hi - lo for lo, hi in found[:-1]} <= {grain} and 0 < found[-1][1] - found[-1][0] <= grain
            assert [lo for lo, _ in found] == list(range(0, n, grain))


def test_digest_is_the_sum_of_the_hashes() -> None:
    for n, grain in ((1, 1), (10, 4), (1000, 7), (10001, 64)):
        one_by_one = sum(oracle.hash_of(lo, hi) for lo, hi in oracle.ranges_of(n, grain)) % (1 << 64)
        assert oracle.digest_of(n, grain) == one_by_one
    assert oracle.hash_of(0, 4) != oracle.hash_of(4, 0)


Loop = tuple[int, str, list[Any]]


def played(loops: list[Loop], around: list[str], rows: dict[int, list[int]]) -> None:
    """Starts each loop, and in each of its ranges the loops inside; one at a time."""
    for n, pool, inside in loops:
        row = rows[id(inside)]
        if pool != "n" and pool in around:
            row[1] += 1
            continue
        row[0] += 1
        for _ in range(n):
            row[3] += 1
            played(inside, [*around, pool], rows)


def written(loops: list[Loop], rows: dict[int, list[int]]) -> str:
    texts = []
    for n, pool, inside in loops:
        rows[id(inside)] = [0] * 5
        texts.append(f"{n}{pool}" + (f"({written(inside, rows)})" if inside else ""))
    return " ".join(texts)


def drawn(choose: Any, depth: int) -> list[Loop]:
    wanted = 1 + choose.below(2) if depth else 0
    return [(1 + choose.below(3), "abcn"[choose.below(4)], drawn(choose, depth - 1)) for _ in range(wanted)]


def test_nested_is_as_played() -> None:
    pools = {letter: {"ref": letter} for letter in "abc"}
    busy = 0
    for i in range(60):
        loops = drawn(Chooser(1, i), 3)
        rows: dict[int, list[int]] = {}
        plan = written(loops, rows)
        played(loops, [], rows)
        for row in rows.values():
            row[4] = row[1]
        assert oracle.nested(plan, pools).tolist() == list(rows.values()), plan
        busy += sum(row[1] for row in rows.values())
    assert busy > 100


def test_capitals_and_pools_that_are_not_there() -> None:
    pools = {"a": {"ref": "a"}, "b": None, "c": None}
    assert np.array_equal(oracle.nested("3A(4a 4n)", pools), oracle.nested("3a(4a 4n)", pools))


def test_sums_are_of_floats_one_after_another() -> None:
    given = oracle.floats(Chooser(1, 0), 301, 64)
    assert given["sums"] == {"buffer": "f32[5]"}
    for (lo, hi), total in zip(
        oracle.ranges_of(301, 64), oracle.sums(given["x"], 301, 64).tolist(), strict=True
    ):
        by_hand = Fraction(0)
        for value in given["x"][lo:hi].tolist():
            by_hand = Fraction(float(np.float32(by_hand + Fraction(value))))
        assert total == by_hand
    rows = [oracle.floats(Chooser(1, i), 300, 300)["x"] for i in range(8)]
    other = [np.add.accumulate(x[::-1])[-1] for x in rows]
    assert sum(oracle.sums(x, 300, 300)[0] != y for x, y in zip(rows, other, strict=True)) >= 4


def test_steps() -> None:
    assert oracle.steps(np.array([3, 1]), 2, 3).tolist() == [24, 15]
    case = {"id": "x", "call": "drv_steps", "args": {"x": np.array([3, 1]), "n": 2, "loops": 1}}
    assert oracle.expect(case)["args"]["x"].tolist() == [6, 3]


# -- laws -------------------------------------------------------------------------------------------------


def columns(names: str, *rows: tuple[int, ...]) -> dict[str, Any]:
    return {
        name: np.array(column) for name, column in zip(names.split(), zip(*rows, strict=True), strict=True)
    }


def test_starved() -> None:
    good = [(2, 0, 1, 0), (2, 0, 1, 0), (0, 1, 0, 0)]
    names = "said out few left"
    assert oracle.starved({}, columns(names, *good)) is None
    for i, wrong in (
        (0, (0, 1, 1, 0)),
        (1, (2, 2, 1, 0)),
        (1, (2, 0, 1, 1)),
        (2, (0, 1, 0, 1)),
        (2, (2, 0, 0, 0)),
    ):
        rows = list(good)
        rows[i] = wrong
        text = oracle.starved({}, columns(names, *rows))
        assert text is not None and text.startswith(f"{i} allocations left")
    assert "was refused" in oracle.starved({}, columns(names, good[0], good[1]))
    assert "was refused" in oracle.starved({}, columns(names, good[2], good[2]))


def test_roomless() -> None:
    names, refused = "said out left open over", (10, 0, 0, 0, 0)
    assert oracle.roomless({"n_threads": 8}, columns(names, refused, refused)) is None
    assert oracle.roomless({"n_threads": 8}, columns(names, refused, (0, 1, 0, 7, 0))) is None
    for wrong in (
        (0, 1, 0, 3, 0),
        (10, 1, 0, 0, 0),
        (10, 2, 0, 0, 0),
        (10, 0, 1, 0, 0),
        (10, 0, 0, 0, 1),
        (2, 0, 0, 0, 0),
    ):
        text = oracle.roomless({"n_threads": 8}, columns(names, refused, wrong))
        assert text is not None and text.startswith("room for 1 stacks")


def test_online() -> None:
    given = {"n": 1000, "grain": 7}
    names = "told online open over calls"
    assert oracle.online(given, columns(names, (4, 4, 3, 0, 143))) is None
    assert oracle.online(given, columns(names, (1, 0, 0, 0, 143))) is None
    for wrong in (
        (0, 4, 0, 0, 143),
        (4, 4, 4, 0, 143),
        (4, 4, 3, 1, 143),
        (4, 4, 3, 0, 142),
        (1, 4, 0, 0, 143),
    ):
        assert oracle.online(given, columns(names, wrong)) is not None


# -- draws, and what is refused ---------------------------------------------------------------------------


def test_loops_that_are_drawn() -> None:
    given = oracle.many_loops(Chooser(1, 0), 300, most=400)
    n, grain = given["n"], given["grain"]
    assert len(n) == len(grain) == given["loops"] == 300 and given["digest"] == {"buffer": "u64[300]"}
    assert n.min() >= 1 and n.max() <= 400 and grain.min() >= 1
    assert (n % grain == 0).sum() > 30 and (grain >= n).sum() > 30 and (n % grain != 0).sum() > 100
    answers = oracle.loops_told(given)
    assert answers["calls"].tolist() == [len(oracle.ranges_of(a, b)) for a, b in zip(n, grain, strict=True)]


def test_what_the_page_leaves_open_is_refused() -> None:
    p = {"p": {"ref": "p"}}
    with pytest.raises(oracle.Ungraded):
        told("drv_together", {**p, "ranges": 2, "rounds": 1}, p=3)
    with pytest.raises(oracle.Ungraded):
        told("drv_ranges", {**p, "n": 9, "grain": 1, "most": 8}, p=3)
    with pytest.raises(oracle.Ungraded):
        told("tk_fail_after", {"n": 1})
    with pytest.raises(NotImplementedError):
        told("tl_pool_destroy", p, p=3)
    with pytest.raises(oracle.Ungraded):
        told("drv_started", {"n_threads": 0})
    with pytest.raises(oracle.Ungraded):
        oracle.loops_told({"n": np.array([0]), "grain": np.array([1])})
    with pytest.raises(NotImplementedError):
        told("tl_pool_other", {})
