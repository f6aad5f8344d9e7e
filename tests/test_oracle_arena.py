"""The arena oracle against the page's numbers, against plain intervals, and its law against lies."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "arena"
oracle = import_file(FOLDER / "oracle.py", "arena_oracle_under_test")
History = oracle.History
M64 = (1 << 64) - 1


def at(arena: Any, n: int, align: int) -> tuple[int, int] | None:
    taken = arena.alloc(n, align)
    return None if taken is None else (taken.block.label, taken.start)


def used(arena: Any) -> int:
    return int(arena.stats()["bytes_used"])


# -- the page ---------------------------------------------------------------------------------------------


def test_table_of_the_page() -> None:
    arena = History(256)
    assert (at(arena, 10, 0), used(arena)) == ((1, 0), 10)
    assert (at(arena, 4, 64), used(arena)) == ((1, 64), 68)
    assert arena.mark() == {"offset": 68, "block": 0}
    assert (at(arena, 100, 8), used(arena)) == ((1, 72), 172)
    assert arena.reset(68, 0) and (used(arena), arena.high) == (68, 172)
    assert (at(arena, 100, 8), used(arena)) == ((1, 72), 172)
    assert arena.stats() == {"bytes_used": 172, "bytes_reserved": 256, "high_water": 172, "n_blocks": 1}


def test_blocks_of_the_page() -> None:
    arena = History(128)
    assert [at(arena, 64, 0), at(arena, 64, 0)] == [(1, 0), (1, 64)]
    assert arena.stats()["n_blocks"] == 1 and used(arena) == 128
    arena = History(128)
    first = [at(arena, 100, 8), at(arena, 100, 8)]
    assert (arena.stats()["bytes_reserved"], used(arena)) == (256, 200)
    arena.reset(0, 0)
    assert [at(arena, 100, 8), at(arena, 100, 8)] == first and arena.given == 2
    arena = History(128)
    assert at(arena, 1000, 256) == (1, 0) and arena.stats()["bytes_reserved"] == 1024


def test_exchange_of_the_page() -> None:
    arena = History(128)
    assert [at(arena, n, 8) for n in (100, 100, 1000)] == [(1, 0), (2, 0), (3, 0)]
    arena.reset(0, 0)
    assert [at(arena, n, 8) for n in (100, 1000)] == [(1, 0), (3, 0)]
    assert [block.label for block in arena.blocks] == [1, 3, 2]
    assert arena.mark() == {"offset": 1000, "block": 1}


def test_padding_that_does_not_fit_of_the_page() -> None:
    arena = History(128)
    for n, align in ((100, 1), (100, 1), (10, 64)):
        arena.alloc(n, align)
    assert (used(arena), arena.current()) == (210, 2)


def test_address_not_offset_of_the_page() -> None:
    arena = History(4096, known=True)
    arena.alloc(3, 1)
    taken = arena.alloc(8, 128)
    assert ((taken.block.base + taken.start) % 128, taken.start % 128) == (0, 64)


def test_marks_ahead_of_the_page() -> None:
    arena = History(256)
    assert (arena.reset(0, 0), arena.reset(1, 0)) == (True, False)
    arena.alloc(10, 0)
    arena.alloc(4, 64)
    assert arena.reset(10, 0) and not arena.reset(68, 0) and used(arena) == 10


def test_names_of_the_page() -> None:
    names = [oracle.Machine().tl_status_str(s) for s in (0, 7, 11, -1)]
    assert names == ["TL_OK", "TL_EFORMAT", "TL_UNKNOWN", "TL_UNKNOWN"]


@pytest.mark.parametrize(
    ("n", "align"), [(0, 8), (1, 3), (1, 8192), (M64, 1), (M64 - 62, 8), (1 << 63, 1), (M64 - 71, 1)]
)
def test_what_is_refused_changes_nothing(n: int, align: int) -> None:
    arena = History(128)
    arena.alloc(100, 1)
    before = arena.stats(), arena.mark()
    assert arena.alloc(n, align) is None
    assert (arena.stats(), arena.mark()) == before


def test_steady_state_of_the_course() -> None:
    """The public course states a high water of 13264 bytes at least for this step."""
    arena = History(4096)
    given = set()
    for _ in range(10):
        for n in (1000, 3000, 64, 5000, 200, 4000):
            arena.alloc(n, 64)
        given.add(arena.given)
        arena.reset(0, 0)
    assert len(given) == 1 and arena.high >= 13264


# -- laws that need no oracle -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_intervals_of_random_tapes(seed: int) -> None:
    """What is alive never overlaps, is aligned, lies in its block, and used <= high water <= all that was."""
    ops = oracle.tape(Chooser(seed, 0), 200)["ops"].tolist()
    arena = History(64, known=True)
    high = 0
    for kind, x, y in ops:
        if kind == oracle.CREATE:
            arena, high = History(x, known=True), 0
        elif kind == oracle.RESET:
            arena.reset(y, x)
        elif kind == oracle.HOOK:
            arena.starved = x == 0
        else:
            taken = arena.alloc(x % (1 << 64), y)
            if taken is not None:
                assert (taken.block.base + taken.start) % (y or 64) == 0
                assert taken.stop <= taken.block.size and taken.stop - taken.start == x
        spans = sorted((t.block.label, t.start, t.stop) for t in arena.taken)
        assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(spans))
        high = max(high, used(arena))
        assert arena.high == high and used(arena) <= arena.stats()["bytes_reserved"]
        assert len({block.label for block in arena.blocks}) == len(arena.blocks)


def test_tapes_reach_what_they_are_for() -> None:
    kinds: set[str] = set()
    for run in range(18):
        ops = oracle.tape(Chooser(3, run), 500)["ops"].tolist()
        arena = History(64, known=True)
        for kind, x, y in ops:
            if kind == oracle.CREATE:
                arena = History(x, known=True)
            elif kind == oracle.HOOK:
                arena.starved = x == 0
            elif kind == oracle.RESET:
                kinds.add("followed" if arena.reset(y, x) else "ahead")
            else:
                order, given = [b.label for b in arena.blocks], arena.given
                taken = arena.alloc(x % (1 << 64), y)
                if taken is None:
                    refused = arena.refused(x % (1 << 64), y)
                    kinds.add("refused" if refused else "starved" if arena.starved else "too large")
                elif arena.given > given:
                    at_end = arena.blocks[-1] is taken.block
                    kinds.add("appended" if at_end else "inserted")
                elif order != [b.label for b in arena.blocks]:
                    kinds.add("exchanged")
                else:
                    kinds.add("exact fit" if taken.stop == taken.block.size else "fits")
    due = {
        "followed",
        "ahead",
        "refused",
        "starved",
        "appended",
        "inserted",
        "exchanged",
        "exact fit",
        "fits",
    }
    assert due <= kinds


def test_ungraded_is_said() -> None:
    arena = History(128)
    arena.alloc(10, 1)
    arena.alloc(10, 1)
    with pytest.raises(oracle.Ungraded, match="between two positions"):
        arena.reset(15, 0)
    with pytest.raises(oracle.Ungraded, match="where the hook puts the block"):
        arena.alloc(1, 128)
    machine = oracle.Machine()
    machine.tk_fail_after(3)
    with pytest.raises(oracle.Ungraded, match="how many requests"):
        machine.tl_arena_create(64, {"handle": "a"})


# -- the law of tapes, against answers with one lie -------------------------------------------------------


def right_rows(ops: list[list[int]], spare: int = 1) -> list[list[int]]:
    """The rows of a right arena that keeps one block of the hook's for itself."""
    arena, starved, live = None, False, 0
    rows = []
    for kind, x, y in ops:
        row = [0] * 14
        before = arena.given if arena else 0
        if kind == oracle.HOOK:
            starved = x == 0
        elif kind == oracle.CREATE:
            arena = None if starved else History(x, known=True)
            before, live = 0, 0 if starved else spare
            row[0], row[1], row[3], row[10] = (2, 0, 1, 1) if starved else (0, 1, 0, 1)
        elif kind == oracle.RESET:
            row[3] = 0 if arena is not None and arena.reset(y, x) else 1
        else:
            taken = None
            if arena is not None:
                arena.starved = starved
                taken = arena.alloc(x % (1 << 64), y)
            row[1], row[3] = -1, 1
            if taken is not None:
                block = taken.block
                row[:4] = [1, block.label - 1, taken.start, 0]
                row[12:] = [block.size, block.asked]
        if arena is not None:
            new = arena.given - before
            live += new
            row[10] += new
        mark, stats = oracle.mark_of(arena), oracle.stats_of(arena)
        row[4:10] = [mark["block"], mark["offset"], *stats.values()]
        row[11] = live
        rows.append(row)
    return rows


TAPE = [
    [oracle.HOOK, -1, 0], [oracle.CREATE, 128, 0], [oracle.ALLOC, 100, 8], [oracle.ALLOC, 100, 8],
    [oracle.RESET, 0, 100], [oracle.RESET, 1, 5], [oracle.HOOK, 0, 0], [oracle.ALLOC, 500, 8],
    [oracle.ALLOC, 128, 1], [oracle.CREATE, 64, 0], [oracle.ALLOC, 8, 8], [oracle.RESET, 0, 0],
]  # fmt: skip


def judged(ops: list[list[int]], rows: list[list[int]]) -> str | None:
    given, got = {"ops": np.array(ops, np.int64)}, {"rows": np.array(rows, np.int64)}
    found = oracle.tape_holds(given, got)
    assert found is None or isinstance(found, str)
    return found


def test_law_takes_right_rows() -> None:
    assert judged(TAPE, right_rows(TAPE)) is None
    assert judged(TAPE, right_rows(TAPE, spare=5)) is None
    for run in range(5):
        ops = oracle.tape(Chooser(7, run), 300)["ops"].tolist()
        assert judged(ops, right_rows(ops)) is None


@pytest.mark.parametrize(
    ("row", "column", "value", "text"),
    [
        (1, 0, 2, "status 2"),
        (1, 2, 3, "3 blocks are live after the arena before was destroyed"),
        (2, 0, 0, "NULL"),
        (2, 1, 1, "block 1, not 0"),
        (2, 2, 8, "byte 8, not 0"),
        (2, 3, 2, "the slot says something else"),
        (2, 5, 101, "mark.offset is 101, not 100"),
        (2, 10, 0, "a new block, and no request of the hook"),
        (2, 12, 192, "size 192, not 128"),
        (2, 13, 8, "alignment 8, not 64"),
        (3, 6, 100, "bytes_used is 100, not 200"),
        (4, 8, 100, "high_water is 100, not 200"),
        (4, 9, 1, "n_blocks is 1, not 2"),
        (4, 10, 1, "1 requests of the hook"),
        (4, 11, 1, "1 blocks live after 3"),
        (5, 3, 0, "the slot is empty"),
        (7, 0, 1, "an address, where a new block is needed and the hook gives none"),
        (8, 0, 0, "NULL"),
        (9, 0, 0, "TL_OK, where the hook gives nothing"),
        (9, 1, 1, "*out is not NULL after a failure"),
        (9, 11, 1, "1 blocks are live after a failure"),
        (9, 3, 0, "the slot is empty"),
        (10, 0, 1, "it gave an address"),
        (11, 3, 0, "the slot is empty"),
    ],
)
def test_law_finds_a_lie(row: int, column: int, value: int, text: str) -> None:
    rows = right_rows(TAPE)
    assert rows[row][column] != value
    rows[row][column] = value
    found = judged(TAPE, rows)
    assert found is not None and found.startswith(f"operation {row + 1}, ") and text in found


def test_words_of_operations() -> None:
    words = [oracle.words(op) for op in ([0, 64, 0], [1, -1, 8], [2, 1, 9], [3, 4, 0])]
    assert words == [
        "create(64)", f"alloc({M64}, 8)", "reset_to({block 1, offset 9})", "the hook fails after 4",
    ]  # fmt: skip


# -- scripts ----------------------------------------------------------------------------------------------


def test_scripts_name_positions_only() -> None:
    """Every rewind of a script is one that the page decides, and every step has a method of the model."""
    for seed in range(10):
        model = oracle.Model(128)
        done = set()
        for step in oracle.operations(Chooser(seed, 0), 80, 160, [1, 0, 8, 64], 128):
            answer = getattr(model, step["do"])(**step["args"])
            done.add((step["do"], isinstance(answer, dict) and "slot" in answer))
        asked = {("tl_arena_alloc", True), ("tl_arena_alloc", False), ("tl_arena_reset_to", False)}
        assert asked <= done
