"""The vector oracle against the page's numbers, published hash vectors, and laws that need no oracle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "vec"
oracle = import_file(FOLDER / "oracle.py", "vec_oracle_under_test")


def made(elem: int) -> Any:
    vec = oracle.Vec()
    assert vec.tl_vec_init(elem) == "TL_OK"
    return vec


def u32(x: int) -> Any:
    return np.array([x], np.uint32)


# -- the page ---------------------------------------------------------------------------------------------


def test_five_pushes_of_the_page() -> None:
    vec, rooms, largest = made(4), [], []
    for x in (10, 11, 12, 13, 14):
        assert vec.tl_vec_push(u32(x)) == "TL_OK"
        rooms.append((vec.len, vec.cap))
        largest.append(vec.hook.largest)
    assert rooms == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 8)]
    assert largest == [16, 16, 16, 16, 32]
    assert vec.hook.asked == 2 and vec.drv_show() == "10 11 12 13 14"
    assert vec.tl_vec_at(4) == {"alloc": 1, "at": 16}
    assert vec.tl_vec_at(5) == {"value": None, "slot": "tl_vec_at"}
    assert vec.drv_heard() == "get 0: 16 bytes at 16, get 1: 32 bytes at 16, give 0"


def test_small_ones_of_the_page() -> None:
    vec = made(4)
    rooms = [vec.tl_vec_reserve(3) and vec.cap]
    for x in range(4):
        vec.tl_vec_push(u32(x))
        rooms.append(vec.cap)
    assert rooms == [3, 3, 3, 3, 6]
    vec = made(3)
    assert [vec.tl_vec_reserve(n) for n in (1000, 10)] == ["TL_OK", "TL_OK"]
    assert (vec.cap, vec.hook.asked, vec.hook.largest) == (1000, 1, 3000)
    vec = made(4)
    for x in (7, 8, 9, 10):
        vec.tl_vec_push(u32(x))
    vec.tl_vec_push(vec.tl_vec_at(0))
    assert vec.items[4] == vec.items[0] and vec.cap == 8
    assert vec.tl_vec_at(oracle.SIZE_MAX)["value"] is None
    vec.tl_vec_free()
    vec.tl_vec_free()
    assert (vec.len, vec.cap, vec.elem, vec.data, vec.tk_live()) == (0, 0, 4, None, 0)
    vec.tl_vec_push(u32(1))
    assert (vec.cap, vec.len) == (4, 1)


def test_half_of_all_memory_is_a_wrong_argument() -> None:
    vec = made(4)
    told = vec.tl_vec_reserve(oracle.SIZE_MAX // 2)
    assert told == {"status": "TL_EINVAL", "slot": "tl_vec_reserve"} and vec.hook.asked == 0


@pytest.mark.parametrize("elem", [1, 2, 3, 4, 7, 8, 4096, 1 << 62, oracle.SIZE_MAX])
def test_the_last_size_that_fits_asks_and_the_next_does_not(elem: int) -> None:
    last = (2**64 - 1) // elem
    vec = made(elem)
    assert vec.tl_vec_reserve(last)["status"] == "TL_ENOMEM" and vec.hook.asked == 1
    if last < oracle.SIZE_MAX:
        assert vec.tl_vec_reserve(last + 1)["status"] == "TL_EINVAL" and vec.hook.asked == 1
    assert (vec.len, vec.cap, vec.data) == (0, 0, None)


@pytest.mark.parametrize("n", [1, 4, 5, 8, 9, 1000, 1024, 1025, 100_000])
def test_moves_are_as_many_as_the_page_says(n: int) -> None:
    vec = made(8)
    told = vec.drv_push_many(None, 0, n, None)
    moves = 1 + (math.ceil(math.log2(n / 4)) if n > 4 else 0)
    assert told["value"] == n and told["moves"].tolist() == [moves] == [vec.hook.asked]
    assert vec.cap == 4 * 2 ** (moves - 1) and n <= vec.cap


# -- failures ---------------------------------------------------------------------------------------------


def fields(vec: Any) -> tuple[Any, ...]:
    return vec.len, vec.cap, vec.elem, vec.data, list(vec.items), vec.tk_live()


@pytest.mark.parametrize("n", range(7))
def test_what_fails_changes_nothing(n: int) -> None:
    vec = made(3)
    vec.tk_fail_after(n)
    for x in range(200):
        before = fields(vec)
        told = vec.tl_vec_push(np.array([x, 1, 2], np.uint8))
        if told != "TL_OK":
            assert told == {"status": "TL_ENOMEM", "slot": "tl_vec_push"}
            assert fields(vec) == before
            assert vec.tl_vec_reserve(1000)["slot"] == "tl_vec_reserve"
            assert fields(vec) == before
    assert vec.len == min(200, 4 * 2 ** (n - 1) if n else 0)
    vec.tk_fail_after(-1)
    assert vec.tl_vec_push(np.zeros(3, np.uint8)) == "TL_OK"


def test_what_is_refused() -> None:
    vec = made(4)
    assert vec.tl_vec_push(None) == {"status": "TL_EINVAL", "slot": "tl_vec_push"}
    garbage = oracle.Vec(data=1, len=7, cap=9, elem=3)
    assert garbage.tl_vec_init(0) == {"status": "TL_EINVAL", "slot": "tl_vec_init"}
    assert (garbage.len, garbage.cap, garbage.elem, garbage.data) == (7, 9, 3, "foreign")
    for name in ("tl_vec_init", "tl_vec_reserve", "tl_vec_push"):
        assert oracle.on_null(name) == {"status": "TL_EINVAL", "slot": name}
    assert oracle.on_null("tl_vec_free") is None


# -- numbers that others published ------------------------------------------------------------------------


def test_fnv_and_splitmix() -> None:
    assert oracle.fnv(b"") == 0xCBF29CE484222325
    assert oracle.fnv(b"a") == 0xAF63DC4C8601EC8C
    assert oracle.fnv(b"foobar") == 0x85944171F73967E8
    assert oracle.stream(0, 3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_elements_are_little_endian_words() -> None:
    assert oracle.element(0x8877665544332211, 8) == bytes.fromhex("1122334455667788")
    assert oracle.element(0x0201, 3) == b"\x01\x02\x00"
    assert oracle.element(0xFF, 10) == b"\xff" + bytes(7) + b"\x00\x01"


# -- tapes ------------------------------------------------------------------------------------------------


def sizes_and_rows(drawn: dict[str, Any]) -> Any:
    return oracle.played(**drawn, push=None)["rows"]


def check_rows(drawn: dict[str, Any], rows: Any) -> None:
    """What holds of every tape, told by the page's laws from row to row."""
    length = room = asked = 0
    tape = drawn["kinds"].tolist(), drawn["numbers"].tolist(), rows.tolist()
    for kind, number, row in zip(*tape, strict=True):
        status, now, cap, requests, where, _ = row
        assert 0 <= now <= cap and status in (0, 1, 2) and 0 <= requests - asked <= 1
        if kind in (oracle.PUSH, oracle.OWN) and status == 0 and (kind == oracle.PUSH or length):
            assert now == length + 1
            assert cap == (room if length < room else 2 * room or 4)
        elif kind == oracle.RESERVE and status == 0:
            assert (now, cap) == (length, max(room, number))
        elif kind == oracle.FREE:
            assert (now, cap) == (0, 0)
        elif kind == oracle.POP:
            assert (now, cap) == (max(0, length - 1), room)
        else:
            assert (now, cap) == (length, room)
        if kind == oracle.AT:
            assert where == (number * drawn["elem"] if number < length else -1)
        if status == 1 or cap == room:
            assert requests == asked or status == 2
        length, room, asked = now, cap, requests


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8], [3, 5, 7, 24], [12, 40, 64]])
def test_short_tapes_obey_the_laws_and_reach_everything(sizes: list[int]) -> None:
    kinds: set[int] = set()
    statuses: set[int] = set()
    for i in range(40):
        drawn = oracle.short_tape(Chooser(3, i), 80, sizes)
        rows = sizes_and_rows(drawn)
        check_rows(drawn, rows)
        kinds |= set(drawn["kinds"].tolist())
        statuses |= set(rows[:, 0].tolist())
    assert kinds == set(range(9)) and statuses == {0, 1, 2}


def test_long_tapes_and_those_without_memory() -> None:
    drawn = oracle.long_tape(Chooser(4, 0), 3000, 3)
    rows = sizes_and_rows(drawn)
    check_rows(drawn, rows)
    assert rows[:, 1].max() > 200 and (rows[:, 4] == -1).any()
    for k in range(5):
        drawn = oracle.starved(Chooser(5, k), 30, k)
        rows = sizes_and_rows(drawn)
        check_rows(drawn, rows)
        assert (rows[:, 0] == 2).any() and rows[-1, 0] == 0


def test_scripts_name_only_what_is_there() -> None:
    seen: set[str] = set()
    for i in range(30):
        model = oracle.Vec()
        for step in oracle.operations(Chooser(6, i), 40):
            told = getattr(model, step["do"])(**step["args"])
            seen.add(step["do"])
            assert model.len <= model.cap and (model.data is None) == (model.cap == 0)
            if step["do"] == "drv_push_own":
                assert told == "TL_OK"
    names = ("init", "push", "at", "reserve", "free")
    assert seen >= {"drv_push_own", *(f"tl_vec_{name}" for name in names)}
