"""The swiss-map oracle against the page's numbers, and its bounds against a table under several hashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "swiss_map"
oracle = import_file(FOLDER / "oracle.py", "swiss_map_oracle_under_test")
M64 = (1 << 64) - 1
Hash = Callable[[int], int]


# -- the page ---------------------------------------------------------------------------------------------


def test_hashes_of_the_page() -> None:
    assert oracle.mix(42) == 0xA759EA27D4727622
    assert (oracle.fingerprint(42), oracle.home(42, 1), oracle.home(42, 2)) == (0x22, 0, 0)
    golden = {0: 0, 1: 0x5692161D100B05E5, 2: 0xDBD238973A2B148A, M64: 0xB4D055FCF2CBBD7B}
    assert {k: oracle.mix(k) for k in golden} == golden
    assert [k for k in range(1000, 1658) if oracle.fingerprint(k) == 0x2A] == [1026, 1067, 1325, 1642, 1657]
    assert [k for k in range(1, 22) if oracle.home(k, 2) == 0] == [4, 6, 7, 10, 11, 14, 15, 18, 19, 21]


def test_the_hash_is_the_one_that_fixtures_are_seeded_with() -> None:
    keys = oracle.stream(7, 4)
    assert keys.tolist() == [oracle.mix((7 + (i + 1) * 0x9E3779B97F4A7C15) & M64) for i in range(4)]


def test_masks_of_the_page() -> None:
    w = int.from_bytes(bytes.fromhex("2A80132AFE052A80"), "little")
    low, high = 0x0101010101010101, 0x8080808080808080
    x = w ^ 0x2A * low
    shown = [(x - low) & ~x & high, w & ~(w << 6) & high, w & high]
    assert [(mask & M64).to_bytes(8, "little").hex() for mask in shown] == [
        "8000008000008000", "0080000000000080", "0080000080000080",
    ]  # fmt: skip


def test_rooms() -> None:
    assert [oracle.room(n) for n in (0, 1, 14, 15, 28, 29, 1000)] == [0, 14, 14, 28, 28, 56, 1792]


def test_hints_that_overflow() -> None:
    world = oracle.World()
    world.memory = False
    assert world.create(14 << 55, "a") == "TL_ENOMEM"
    assert [world.create(h, "a") for h in ((14 << 55) + 1, 1 << 63, M64)] == ["TL_EINVAL"] * 3
    assert world.create(5, None) == "TL_EINVAL"


# -- a table that can be hashed in any way ---------------------------------------------------------------


class Swiss:
    """The page's design with a list of slots for each group; counts the rebuilds."""

    def __init__(self, hint: int, hashed: Hash) -> None:
        self.hashed, self.rebuilds = hashed, 0
        self.least = oracle.room(hint)
        self.build(self.least)

    def build(self, holds: int) -> None:
        self.holds, self.used = holds, 0
        self.groups: list[list[Any]] = [[None] * 16 for _ in range(holds // 14)]

    def probe(self, key: int) -> Any:
        G, g = len(self.groups), self.hashed(key)
        for i in range(G):
            yield self.groups[(g + i * (i + 1) // 2) % G]

    def find(self, key: int) -> tuple[list[Any], int] | None:
        for group in self.probe(key):
            for j, slot in enumerate(group):
                if slot not in (None, "deleted") and slot[0] == key:
                    return group, j
            if None in group:
                return None
        return None

    def live(self) -> list[tuple[int, int]]:
        return [s for group in self.groups for s in group if s not in (None, "deleted")]

    def put(self, key: int, value: int) -> bool:
        """Whether it asked for memory."""
        if found := self.find(key):
            found[0][found[1]] = (key, value)
            return False
        free = None
        for group in self.probe(key):
            free = free or next(((group, j) for j in range(16) if group[j] == "deleted"), None)
            if None in group:
                free = free or (group, group.index(None))
                break
        asked = free is None or (free[0][free[1]] is None and self.used == self.holds)
        if asked:
            old = self.live()
            self.build(max(self.least, oracle.room(len(old) + 1)))
            self.rebuilds += 1
            for k, v in old:
                assert not self.put(k, v)
            assert not self.put(key, value)
            return True
        assert free is not None
        self.used += free[0][free[1]] is None
        free[0][free[1]] = (key, value)
        return False

    def delete(self, key: int) -> int:
        found = self.find(key)
        if found is None:
            return 0
        group, j = found
        empty = None in group
        group[j] = None if empty else "deleted"
        self.used -= empty
        return 1


def fowler(key: int) -> int:
    h = 0xCBF29CE484222325
    for byte in key.to_bytes(8, "little"):
        h = (h ^ byte) * 0x100000001B3 & M64
    return h >> 32


HASHES: dict[str, Hash] = {
    "page": lambda key: oracle.mix(key) >> 7, "fnv": fowler, "none": lambda key: key, "constant": lambda _: 3,
    "sixteens": lambda key: key >> 4,
}  # fmt: skip


def played(ops: dict[str, Any], hint: int, hashed: Hash) -> tuple[dict[str, Any], int]:
    """What a right library answers to a tape, with memory or without, and how often it was rebuilt."""
    table, left, rows = Swiss(hint, hashed), -1, []
    keys = ops["keys"].tolist()
    for op in ops["ops"].tolist():
        what, key, number = op & 0xFF, keys[op >> 8 & 0xFFFFFF], op >> 32
        given, value, asked = 0, oracle.BEFORE, 0
        if what == oracle.FAIL_AFTER:
            left = number - 1
        elif what == oracle.PUT:
            if left == 0:
                before = table.groups, table.holds, table.used
                table.groups = [list(group) for group in table.groups]
                if table.put(key, number * oracle.SPREAD):
                    table.groups, table.holds, table.used = before
                    given, asked = oracle.ENOMEM, 1
            else:
                asked = int(table.put(key, number * oracle.SPREAD))
                left -= left > 0 and asked
        elif what == oracle.DEL:
            given = table.delete(key)
        elif found := table.find(key):
            given = 1
            value = found[0][found[1]][1] if what == oracle.GET else value
        rows.append((given, value, len(table.live()), asked))
    types = {"answer": np.uint8, "value": np.uint64, "length": np.uint32, "asked": np.uint8}
    columns = {n: np.array(c, t) for (n, t), c in zip(types.items(), zip(*rows, strict=True), strict=True)}
    return {"status": "TL_OK", **columns}, table.rebuilds


TAPES: list[tuple[str, dict[str, Any], int]] = [
    ("churn", {"n": 700, "live": 28, "keys": 40}, 28),
    ("churn", {"n": 700, "live": 28, "keys": 40, "kind": "home"}, 28),
    ("churn", {"n": 700, "live": 28, "keys": 40, "back": 6}, 0),
    ("churn", {"n": 500, "live": 14, "keys": 30, "starve": True}, 14),
    ("churn", {"n": 500, "live": 15, "keys": 60, "starve": True}, 112),
    ("waves", {"n": 900, "keys": 70}, 0),
    ("waves", {"n": 900, "keys": 70, "kind": "home"}, 28),
    ("sides", {"n": 900}, 28),
    ("sides", {"n": 900}, 0),
    ("sides", {"n": 900, "live": 100, "groups": 8}, 100),
    ("starving", {"n": 700, "keys": 40}, 0),
    ("starving", {"n": 700, "keys": 40, "kind": "home"}, 28),
]


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("tape", range(len(TAPES)))
def test_bounds_hold_under_every_hash(name: str, tape: int) -> None:
    draw, more, hint = TAPES[tape]
    for run in range(2):
        given = getattr(oracle, draw)(Chooser(5, run), **more)
        got, _ = played(given, hint, HASHES[name])
        assert oracle.asks_when_it_must({**given, "hint": hint}, got) is None


def test_tapes_come_to_rebuilds_of_deleted_slots() -> None:
    given = oracle.churn(Chooser(1, 0), n=3000, live=28, keys=60)
    assert played(given, 28, HASHES["page"])[1] > 5
    for hint in (0, 28):
        given = oracle.sides(Chooser(1, 0), n=3000)
        got, _ = played(given, hint, HASHES["page"])
        assert np.count_nonzero(got["asked"][100:] & (got["length"][100:] <= 14)) > 5


def test_same_answers_as_a_table() -> None:
    for kind in ("dense", "wide", "home", "print"):
        given = oracle.tape(Chooser(3, 0), n=600, keys=50, kind=kind)
        got, _ = played(given, 0, HASHES["page"])
        told = oracle.expect({"call": "drv_map_tape", "args": {**given, "hint": 0}})["return"]
        assert told.pop("status") == "TL_OK"
        for column, values in told.items():
            assert np.array_equal(got[column], values), column


# -- the laws see what is wrong ---------------------------------------------------------------------------


def law(change: Callable[[dict[str, Any]], None]) -> str | None:
    given = oracle.starving(Chooser(2, 0), n=900, keys=40)
    got, _ = played(given, 0, HASHES["page"])
    change(got)
    return oracle.asks_when_it_must({**given, "hint": 0}, got)  # type: ignore[no-any-return]


def test_the_law_names_the_operation() -> None:
    def put_at(got: dict[str, Any], column: str, wanted: int, value: int) -> None:
        got[column][int(np.flatnonzero(got[column] == wanted)[0])] = value

    assert law(lambda got: None) is None
    assert "asks for nothing" in str(law(lambda got: put_at(got, "asked", 1, 0)))
    assert "(result, value, length)" in str(law(lambda got: put_at(got, "answer", oracle.ENOMEM, 0)))
    assert "asks for memory" in str(law(lambda got: got["asked"].__setitem__(-1, 1)))
    assert "length" in str(law(lambda got: got["length"].__setitem__(-1, 999)))
    assert "value" in str(law(lambda got: got["value"].__setitem__(-1, 5)))
    assert "not created" in str(law(lambda got: got.update(status="TL_ENOMEM")))


def test_a_put_that_need_not_ask() -> None:
    keys = np.arange(20, dtype=np.uint64)
    ops = np.array([oracle.PUT | k << 8 for k in (*range(14), 13)], np.uint64)
    got, _ = played({"keys": keys, "ops": ops}, 14, HASHES["page"])
    given = {"keys": keys, "ops": ops, "hint": 14}
    assert oracle.asks_when_it_must(given, got) is None
    got["asked"][13] = 1
    assert "13 of 14 slots are used" in str(oracle.asks_when_it_must(given, got))
    got["asked"][13:] = 0, 1
    assert "it is there" in str(oracle.asks_when_it_must(given, got))


def test_starved_creations() -> None:
    def got(status: list[int], out: list[int], few: list[int], left: list[int]) -> dict[str, Any]:
        named = {"said": status, "out": out, "few": few, "left": left}
        return {name: np.array(column) for name, column in named.items()}

    assert oracle.starved({}, got([2, 2, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0])) is None
    assert "0 allocations left" in str(oracle.starved({}, got([0, 0], [1, 1], [1, 0], [0, 0])))
    assert "1 allocations left" in str(oracle.starved({}, got([2, 2, 0], [0, 0, 1], [1, 1, 0], [0, 1, 0])))
    assert "0 allocations left" in str(oracle.starved({}, got([2, 0], [2, 1], [1, 0], [0, 0])))
    assert "refused" in str(oracle.starved({}, got([0, 0], [1, 1], [0, 0], [0, 0])))
    assert "refused" in str(oracle.starved({}, got([2, 2], [0, 0], [1, 1], [0, 0])))


# -- what is left to the hash is refused ------------------------------------------------------------------


def test_a_case_cannot_ask_for_the_hash() -> None:
    world = oracle.World()
    world.create(28, "it")
    table = world.tables["it"]
    for key in range(28):
        world.put(table, key, 0)
    table.delete(3)
    world.memory = False
    with pytest.raises(oracle.Ungraded):
        world.put(table, 77, 0)
    assert world.put(table, 3, 0) == "TL_OK"
    assert world.put(table, 77, 0) == "TL_ENOMEM"
