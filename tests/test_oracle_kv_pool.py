"""The kv_pool oracle against the page, zlib's CRC, other ways to read an envelope, and its own tapes."""

from __future__ import annotations

import struct
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "kv_pool"
oracle = import_file(FOLDER / "oracle.py", "kv_pool_oracle_under_test")
SMALL = oracle.Dims(2, 1, 1, 2)


def halves(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


def pool(n: int = 4, dims: Any = SMALL) -> Any:
    return oracle.Pool(n, dims, labels=True)


# -- hashes and checksums ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parent", "tokens", "value"),
    [
        (0, [1, 2], 0xA91AB0C1027B9366), (0xA91AB0C1027B9366, [3, 4], 0x03DF829571605C60),
        (0, list(range(16)), 0xA64E06B258C823C5),
        (0xA64E06B258C823C5, list(range(16, 32)), 0x57ED377274DA589D),
        (0, [49232, 34081], 0x526857B3FB59AD43), (0x526857B3FB59AD43, [5763, 48918], 0x8F443AE9AD6D078B),
        (0, [], 0xA8C7F832281A39C5), (0x3608874253B96BD5, [], 1),
    ],
)  # fmt: skip
def test_hashes_of_the_page(parent: int, tokens: list[int], value: int) -> None:
    assert oracle.block_hash(parent, tokens) == value


def test_fnv_of_published_strings() -> None:
    for text, value in (
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ):
        assert oracle.fnv(text) == value
    assert oracle.fnv(struct.pack("<Q", 0x3608874253B96BD5)) == 0


def test_checksums_of_the_page_and_of_rfc_3720() -> None:
    assert oracle.crc32c(b"123456789") == 0xE3069283
    assert oracle.crc32c(b"6789", oracle.crc32c(b"12345")) == 0xE3069283
    assert oracle.crc32c(b"") == 0
    assert oracle.crc32c(bytes(32)) == 0x8A9136AA
    assert oracle.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert oracle.crc32c(bytes(range(32))) == 0x46DD794E
    assert oracle.crc32c(bytes(reversed(range(32)))) == 0x113FDB5C


def test_the_same_loop_with_the_other_polynomial_is_zlibs() -> None:
    rows = oracle.table(0xEDB88320)
    data = np.random.default_rng(1).integers(0, 256, 300, np.uint8).tobytes()
    for n in (0, 1, 7, 64, 300):
        assert oracle.checksum(data[:n], 0, rows) == zlib.crc32(data[:n])
        assert oracle.checksum(data[n:], zlib.crc32(data[:n]), rows) == zlib.crc32(data)


def test_the_checksum_is_a_remainder() -> None:
    """Long division of polynomials over GF(2), without tables or reflection."""

    def turned(x: int, bits: int) -> int:
        return int(f"{x:0{bits}b}"[::-1], 2)

    divisor = 1 << 32 | turned(0x82F63B78, 32)
    for data in (b"123456789", b"\x00\x01", b"TLKV" * 5):
        number = int("".join(f"{turned(byte, 8):08b}" for byte in data) + "0" * 32, 2)
        number ^= 0xFFFFFFFF << 8 * len(data)
        for bit in range(number.bit_length() - 1, 31, -1):
            if number >> bit & 1:
                number ^= divisor << bit - 32
        assert turned(number, 32) ^ 0xFFFFFFFF == oracle.crc32c(data)


# -- envelopes --------------------------------------------------------------------------------------------

PAGE = (
    "544c4b5601000100" "0100000002000000010000000100000002000000" "66937b02c1b01aa902000000"
    "003c004000420044" "003800bc00000034" "1c540b4f"
)  # fmt: skip


def test_envelope_of_the_page() -> None:
    payload = halves(1, 2, 3, 4, 0.5, -1, 0, 0.25)
    record = oracle.Record(0xA91AB0C1027B9366, 2, payload)
    data = oracle.envelope(SMALL, [record])
    assert data.hex() == PAGE
    assert oracle.opened(data) == (SMALL, [record])


def test_two_records_of_the_page() -> None:
    p = pool()
    for _ in range(2):
        p.take(1)
    for key in (1, 2):
        p.write(key, 0, 0, np.full(4, 0x3C00, np.uint16))
        p.write(key, 0, 1, np.full(4, 0x3C00, np.uint16))
    p.set_fill(1, 2)
    p.set_fill(2, 1)
    p.register(1, oracle.block_hash(0, [1, 2]))
    data = p.sent([1, 2])
    assert len(data) == 88 == p.export_bytes(2)
    assert data[-4:] == struct.pack("<I", 0x57638325)
    assert data[56:68] == struct.pack("<QI", 0, 1)
    assert data[68:84] == halves(1, 1, 0, 0, 1, 1, 0, 0)


def test_empty_envelope_of_the_page() -> None:
    assert oracle.envelope(SMALL, [])[-4:] == struct.pack("<I", 0x1DA59048)
    assert oracle.opened(oracle.envelope(SMALL, [])) == (SMALL, [])


def test_payload_is_layers_k_and_v_heads_positions_width() -> None:
    dims = oracle.Dims(3, 2, 2, 5)
    p = pool(2, dims)
    p.take(1)
    p.paint(1, 0)
    p.set_fill(1, 2)
    payload = np.frombuffer(oracle.opened(p.sent([1]))[1][0].payload, "<u2")
    for layer in range(2):
        for kv in range(2):
            for h in range(2):
                for t in range(3):
                    at = (((layer * 2 + kv) * 2 + h) * 3 + t) * 5
                    want = [0] * 5 if t == 2 else list(range(at, at + 5))
                    assert payload[at : at + 5].tolist() == want


def test_no_flipped_bit_is_an_envelope() -> None:
    given = oracle.sealed_once(Chooser(7, 0))
    told = oracle.flipped(given)
    assert len(told["said"]) == 480
    assert set(told["said"].tolist()) == {7}
    assert set(told["used"].tolist()) == {0}


def test_only_the_whole_envelope_is_one() -> None:
    told = oracle.shortened(oracle.sealed_twice(Chooser(3, 0)))
    assert [k for k, said in enumerate(told["said"].tolist()) if said == 0] == [88]
    assert told["used"][88] == 2


def test_hostile_headers_wrap_around_and_are_refused() -> None:
    wrapped, fine = 0, 0
    for run in range(4):
        given = oracle.hostile(Chooser(1, run), 100)
        data, at = given["bytes"].tobytes(), 0
        told = oracle.several(given)
        for n, said in zip(given["lens"].tolist(), told["said"].tolist(), strict=True):
            part = data[at : at + n]
            at += n
            assert oracle.crc32c(part) == 0x48674BC7  # what is left when the checksum is right
            count, *sizes = struct.unpack("<5I", part[8:28])
            due = 32 + count * (12 + 4 * prod(sizes))
            if due != n:
                assert said == 7
                wrapped += due % (1 << 64) == n or due % (1 << 32) == n
            fine += said == 0
    assert wrapped > 20
    assert fine > 0


def test_hostile_dimensions_wrap_around() -> None:
    rows = oracle.huge_pools(Chooser(1, 0), 200)["dims"].tolist()
    said = oracle.created({"dims": np.array(rows, np.uint32)})["said"].tolist()
    assert set(said) == {1, 2}
    assert any(
        4 * prod(row) % (1 << 64) < 4096 for row, s in zip(rows, said, strict=True) if s == 1 and all(row)
    )


# -- the pool ---------------------------------------------------------------------------------------------


def test_states_of_the_page() -> None:
    p, rows = pool(), []
    a, b = p.take(2)
    rows.append(p.counts())
    for key, value in ((a, 11), (b, 22)):
        assert p.set_fill(key, 2) == p.register(key, value) == "TL_OK"
    p.unref(a)
    p.unref(b)
    rows.append(p.counts())
    assert p.lookup(11) == a
    rows.append(p.counts())
    p.unref(a)
    rows.append(p.counts())
    p.take(3)
    rows.append(p.counts())
    assert p.lookup(22) is None
    assert p.take(2) is None
    rows.append(p.counts())
    assert p.lookup(11) == a
    rows.append(p.counts())
    p.ref(a)
    assert p.cow(a) == ("TL_EFULL", None)
    assert p.blocks[a].refs == 2
    assert rows == [
        (2, 2, 0, 0),
        (2, 0, 2, 0),
        (2, 1, 1, 0),
        (2, 0, 2, 0),
        (0, 3, 1, 1),
        (0, 3, 1, 1),
        (0, 4, 0, 1),
    ]


def test_a_pool_taken_whole_has_numbers() -> None:
    p = oracle.Pool(3, SMALL)
    assert p.take(3) == [0, 1, 2]
    p.unref(1)
    assert p.take(1) == [1]
    p.unref(0)
    p.unref(2)
    with pytest.raises(oracle.Ungraded):
        p.take(1)


def test_labels_that_may_be_any_block_are_refused() -> None:
    p = pool()
    p.take(2)
    p.unref(1)
    assert p.unref(1) == "TL_EINVAL"  # free still, whatever its id is
    p.take(1)
    for key in (1, 77):
        with pytest.raises(oracle.Ungraded):
            p.unref(key)
    assert p.unref(4000) == "TL_EINVAL"


def test_what_the_page_leaves_open_is_refused() -> None:
    p = pool()
    p.take(2)
    p.set_fill(1, 2)
    p.register(1, 5)
    with pytest.raises(oracle.Ungraded):
        p.register(2, 5)  # not full, and the hash is held
    with pytest.raises(oracle.Ungraded):
        p.read(1)
    with pytest.raises(oracle.Ungraded):
        p.sent([1])
    with pytest.raises(oracle.Ungraded):
        oracle.creation({"n_blocks": 0, "dtype": 0}, True)
    with pytest.raises(oracle.Ungraded):
        oracle.opened(oracle.sealed(oracle.header(0, (0xFFFFFFFF,) * 4)))


# -- tapes: a right pool of numbers passes, one that errs does not ------------------------------------------


class Machine:
    """The driver's tape on a list of blocks, written another way: states as lists, any free block taken."""

    def __init__(self, given: dict[str, Any], fault: str = "") -> None:
        sizes = given["cfg"]["args"]
        self.n, self.fault = sizes["n_blocks"], fault
        self.dims = oracle.Dims(*(sizes[name] for name in oracle.SIZES[1:]))
        self.refs, self.fills, self.marks = [0] * self.n, [0] * self.n, [0] * self.n
        self.data = [np.zeros(self.dims.shape, "<u2") for _ in range(self.n)]
        self.queue: list[int] = []
        self.evictions = 0
        self.hashes = [int(x) for x in given["hashes"]]
        self.ids = [0xFFFFFFFF] * 64 + [self.n, 0xFFFFFFFF]
        self.kept: dict[int, bytes] = {}

    def free(self) -> list[int]:
        return [k for k in range(self.n) if not self.refs[k] and k not in self.queue][::-1]

    def take(self, n: int) -> list[int] | None:
        if n > len(self.free()) + len(self.queue):
            return None
        while len(self.free()) < n:
            gone = self.queue.pop(-1 if self.fault == "newest" else 0)
            self.marks[gone] = 0
            self.evictions += self.fault != "uncounted"
        ids = self.free()[:n]
        for k in ids:
            self.refs[k], self.fills[k] = 1, self.fills[k] if self.fault == "fill" else 0
        return ids

    def use(self, key: int) -> bool:
        return key < self.n and self.refs[key] > 0

    def run(self, op: list[int]) -> list[int]:
        row = [0] * 20
        name = oracle.OPS[op[0]].strip("_")
        out = getattr(self, f"do_{name}")(op, row)
        row[0], row[1] = out or (0, 0)
        used = sum(r > 0 for r in self.refs)
        row[2:6] = self.n - used - len(self.queue), used, len(self.queue), self.evictions
        return row

    def do_alloc(self, op: list[int], row: list[int]) -> tuple[int, int]:
        ids = self.take(op[1])
        if ids is None:
            return 5, 1
        self.ids[op[2] : op[2] + op[1]] = ids
        row[7 : 7 + op[1]] = ids
        return 0, 0

    def do_ref(self, op: list[int], _: list[int]) -> tuple[int, int]:
        if not self.use(self.ids[op[1]]):
            return 0, 1
        self.refs[self.ids[op[1]]] += 1
        return 0, 0

    def do_unref(self, op: list[int], _: list[int]) -> tuple[int, int]:
        key = self.ids[op[1]]
        if not self.use(key):
            return 1, 1
        self.refs[key] -= 1
        if not self.refs[key] and self.marks[key]:
            self.queue.append(key)
        return 0, 0

    def do_cow(self, op: list[int], row: list[int]) -> tuple[int, int]:
        key = self.ids[op[1]]
        if not self.use(key):
            return 1, 1
        if self.refs[key] > 1:
            ids = self.take(1)
            if ids is None:
                return 5, 1
            self.refs[key] -= 1
            self.fills[ids[0]], self.data[ids[0]] = self.fills[key], self.data[key].copy()
            if self.fault == "v":
                self.data[ids[0]][:, 1] += 1
            key = ids[0]
        row[7] = self.ids[op[2]] = key
        return 0, 0

    def do_set_fill(self, op: list[int], _: list[int]) -> tuple[int, int]:
        key = self.ids[op[1]]
        if not self.use(key) or self.marks[key] or op[2] > self.dims.block_tokens:
            return 1, 1
        self.fills[key] = op[2]
        return 0, 0

    def do_register(self, op: list[int], _: list[int]) -> tuple[int, int]:
        key, value = self.ids[op[1]], self.hashes[op[2]]
        if not self.use(key) or not value or self.fills[key] < self.dims.block_tokens:
            return 1, 1
        if self.marks[key]:
            return (0, 0) if self.marks[key] == value else (8, 1)
        if value in self.marks:
            return 8, 1
        self.marks[key] = value
        return 0, 0

    def do_lookup(self, op: list[int], row: list[int]) -> tuple[int, int]:
        value = self.hashes[op[2]]
        row[7] = -1
        if not value or value not in self.marks:
            return 6, 0
        key = self.marks.index(value)
        self.refs[key] += 1
        if key in self.queue:
            self.queue.remove(key)
        row[7] = self.ids[op[1]] = key
        return 0, 0

    def do_paint(self, op: list[int], _: list[int]) -> None:
        values = (op[2] + np.arange(prod(self.dims.shape))) % 65536
        self.data[self.ids[op[1]]] = values.astype("<u2").reshape(self.dims.shape)

    def do_export(self, op: list[int], row: list[int]) -> tuple[int, int]:
        ids = self.ids[op[2] : op[2] + op[1]]
        if not all(self.use(k) and self.fills[k] for k in ids):
            return 1, 1
        body = oracle.header(op[1], self.dims.each)
        for k in ids:
            data = self.data[k].copy()
            if self.fault != "stale":
                data[:, :, :, self.fills[k] :] = 0
            body += struct.pack("<QI", self.marks[k], self.fills[k]) + data.tobytes()
        whole = oracle.sealed(body)
        self.kept[op[3]] = whole
        row[7], row[8] = len(whole), signed(oracle.fnv(whole, 0))
        return 0, 0

    def do_import(self, op: list[int], row: list[int]) -> tuple[int, int]:
        if op[3] not in self.kept:
            return 0, 0
        held = list(self.marks)
        ids = self.take(op[1])
        if ids is None:
            return 5, 1
        for k, record in zip(ids, oracle.opened(self.kept[op[3]])[1], strict=True):
            self.data[k] = np.frombuffer(record.payload, "<u2").reshape(self.dims.shape)
            self.fills[k] = record.tokens
            if record.hash and record.hash not in (held if self.fault == "early" else self.marks):
                self.marks[k] = record.hash
        self.ids[op[2] : op[2] + op[1]] = ids
        row[7 : 7 + op[1]] = ids
        row[13 : 13 + op[1]] = [int(self.marks[k] > 0) for k in ids]
        for record in oracle.opened(self.kept[op[3]])[1]:  # the driver looks them up
            if record.hash in self.marks and (key := self.marks.index(record.hash)) in self.queue:
                self.queue.remove(key)
                self.queue.append(key)
        return 0, 0

    def do_hook(self, op: list[int], _: list[int]) -> None:
        del op

    def do_fill(self, op: list[int], _: list[int]) -> tuple[int, int]:
        key = self.ids[op[1]]
        return (self.fills[key], 0) if self.use(key) else (0, 1)

    def do_read(self, op: list[int], row: list[int]) -> None:
        row[7] = signed(oracle.fnv(self.data[self.ids[op[1]]].tobytes(), 0))


def signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


ALL = oracle.SHARES + " cow export export import_ import_ look"


def judged(run: int, fault: str = "", n: int = 300) -> str | None:
    given = oracle.tape(Chooser(11, run), n, shares=ALL)
    machine = Machine(given, fault)
    rows = [machine.run(op) for op in given["ops"].tolist()]
    return oracle.tape_holds(given, {"rows": np.array(rows, np.int64)})  # type: ignore[no-any-return]


def test_a_right_pool_passes_its_tapes() -> None:
    for run in range(12):
        assert judged(run) is None


@pytest.mark.parametrize("fault", ["newest", "uncounted", "fill", "v", "stale", "early"])
def test_a_pool_that_errs_does_not(fault: str) -> None:
    found = [text for text in (judged(run, fault) for run in range(12)) if text]
    assert found
    assert all(text.startswith("operation ") for text in found)


def test_every_row_of_a_tape_counts() -> None:
    given = oracle.tape(Chooser(11, 0), 120, shares=ALL)
    machine = Machine(given)
    rows = np.array([machine.run(op) for op in given["ops"].tolist()], np.int64)
    for i in range(0, 120, 7):
        for column in (0, 1, 2, 3, 4, 5):
            wrong = rows.copy()
            wrong[i, column] += 1
            text = oracle.tape_holds(given, {"rows": wrong})
            assert text is not None
            assert text.startswith(f"operation {i + 1},"), (i, column)


def test_only_the_index_may_ask_the_hook() -> None:
    given = oracle.tape(Chooser(11, 1), 60, shares=ALL)
    machine = Machine(given)
    rows = np.array([machine.run(op) for op in given["ops"].tolist()], np.int64)
    rows[:, 6] = 1
    allowed = (oracle.REGISTER, oracle.IMPORT, oracle.HOOK)
    first = next(i for i, op in enumerate(given["ops"].tolist()) if op[0] not in allowed)
    assert oracle.tape_holds(given, {"rows": rows}).startswith(f"operation {first + 1},")


def test_a_register_that_finds_no_memory_changes_nothing() -> None:
    ops = [[oracle.ALLOC, 1, 0, 0], [oracle.SET_FILL, 0, 2, 0], [oracle.HOOK, 0, 0, 0],
           [oracle.REGISTER, 0, 0, 0], [oracle.LOOKUP, 1, 0, 0]]  # fmt: skip
    given = {"cfg": oracle.config(1, SMALL), "hashes": np.array([5], np.uint64), "ops": np.array(ops), "n": 5}
    rows = np.zeros((5, 20), np.int64)
    rows[:, 2:4] = [0, 1]
    rows[3, [0, 1, 6]] = 2, 1, 1
    rows[4, [0, 7]] = 6, -1
    assert oracle.tape_holds(given, {"rows": rows}) is None
    rows[4, 0] = 0  # found all the same
    assert oracle.tape_holds(given, {"rows": rows}) is not None
    rows[3, 6] = 0  # nothing was asked for
    assert "operation 4" in oracle.tape_holds(given, {"rows": rows})


def test_what_the_hook_gives_is_used_up() -> None:
    ops = [[oracle.ALLOC, 2, 0, 0], [oracle.SET_FILL, 0, 2, 0], [oracle.SET_FILL, 1, 2, 0],
           [oracle.HOOK, 1, 0, 0], [oracle.REGISTER, 0, 0, 0], [oracle.REGISTER, 1, 1, 0]]  # fmt: skip
    hashes = np.array([5, 6], np.uint64)
    given = {"cfg": oracle.config(2, SMALL), "hashes": hashes, "ops": np.array(ops), "n": 6}
    rows = np.zeros((6, 20), np.int64)
    rows[:, 2:4] = [0, 2]
    rows[0, 8] = 1
    rows[4, 6] = 1
    rows[5, [0, 1, 6]] = 2, 1, 1
    assert oracle.tape_holds(given, {"rows": rows}) is None
    rows[4, 6] = 0
    assert "operation 6" in oracle.tape_holds(given, {"rows": rows})


def test_rounds_keep_every_block_registered() -> None:
    given = oracle.rounds(Chooser(1, 0), 600, n_blocks=8)
    machine = Machine(given)
    rows = [machine.run(op) for op in given["ops"].tolist()]
    assert oracle.tape_holds(given, {"rows": np.array(rows, np.int64)}) is None
    assert machine.evictions > 50
    assert sum(mark > 0 for mark in machine.marks) >= 7


def test_steps_of_a_script_are_all_graded() -> None:
    for run in range(6):
        model = oracle.Model(oracle.config(4, SMALL))
        kinds = set()
        for step in oracle.operations(Chooser(5, run), 80):
            args = {k: v["label"] if "label" in str(v) else v for k, v in step["args"].items()}
            kinds.add(step["do"])
            getattr(model, step["do"])(**args)
        assert len(kinds) > 5
    with pytest.raises(AttributeError):
        _ = model.nothing
