"""The paged_kv oracle against exact rounding, the page's numbers, and a second model that has blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import strict_yaml
from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "paged_kv"
oracle = import_file(FOLDER / "oracle.py", "paged_kv_oracle_under_test")


def ones(*numbers: float, dtype: Any = np.float32) -> Any:
    """[1, T, 1]"""
    return np.array(numbers, dtype).reshape(1, -1, 1)


def put(cache: Any, seq_id: Any, *numbers: float, layer: int = 0) -> None:
    cache.append(seq_id, layer, ones(*numbers), ones(*(-x for x in numbers)))


def keys(cache: Any, seq_id: Any, layer: int = 0) -> list[float]:
    k, v = cache.gather(seq_id, layer)
    assert k.dtype == v.dtype == np.float16 and np.array_equal(k, -v)
    return k.reshape(-1).tolist()


def counts(cache: Any) -> tuple[int, int]:
    stats = cache.stats()
    assert list(stats) == ["free", "used", "cached", "evictions"]
    assert stats["cached"] == stats["evictions"] == 0
    assert stats["free"] == cache.num_free_blocks() == cache.num_blocks - stats["used"]
    return stats["free"], stats["used"]


# -- the page ---------------------------------------------------------------------------------------------


def test_the_worked_example() -> None:
    cache = oracle.Cache(4, 2, 1, 1, 1)
    cache.add_seq("a")
    seen = []
    for x in (0.5, 1.5, 2.5, 3.5, 4.5):
        put(cache, "a", x)
        seen.append((len(cache.block_table("a")), counts(cache)))
    assert seen == [(1, (3, 1)), (1, (3, 1)), (2, (2, 2)), (2, (2, 2)), (3, (1, 3))]
    assert keys(cache, "a") == [0.5, 1.5, 2.5, 3.5, 4.5]
    cache.fork("a", "b")
    assert cache.block_table("b").tolist() == cache.block_table("a").tolist() == [0, 1, 2]
    assert counts(cache) == (1, 3)
    put(cache, "b", 5.5)
    assert (cache.block_table("a").tolist(), cache.block_table("b").tolist()) == ([0, 1, 2], [0, 1, 3])
    assert counts(cache) == (0, 4)
    put(cache, "a", 6.5)
    assert cache.block_table("a").tolist() == [0, 1, 2] and counts(cache) == (0, 4)
    with pytest.raises(oracle.OutOfBlocks):
        put(cache, "a", 7.5)
    assert cache.seq_len("a") == 6
    assert keys(cache, "a")[-2:] == [4.5, 6.5] and keys(cache, "b")[-2:] == [4.5, 5.5]
    cache.free("a")
    assert counts(cache) == (1, 3) and keys(cache, "b")[-2:] == [4.5, 5.5]


def test_the_example_with_layers() -> None:
    cache = oracle.Cache(4, 2, 2, 1, 1)
    cache.add_seq("a")
    put(cache, "a", 1, 2, 3)
    put(cache, "a", 11, layer=1)
    cache.fork("a", "b")
    assert counts(cache) == (2, 2) and cache.seq_len("b", 1) == 1
    put(cache, "b", 12, layer=1)
    assert cache.block_table("b").tolist() == [2, 1] and counts(cache) == (1, 3)
    put(cache, "b", 13, layer=1)
    assert cache.block_table("b").tolist() == [2, 3] and counts(cache) == (0, 4)
    put(cache, "a", 21, 22, layer=1)
    assert cache.block_table("a").tolist() == [0, 1] and counts(cache) == (0, 4)
    assert keys(cache, "a", 1) == [11, 21, 22] and keys(cache, "b", 1) == [11, 12, 13]
    assert keys(cache, "a") == keys(cache, "b") == [1, 2, 3]


def test_six_positions_need_three_blocks_and_five_need_two() -> None:
    cache = oracle.Cache(4, 2, 1, 1, 1)
    for name in "ab":
        cache.add_seq(name)
    put(cache, "b", 1, 2, 3)
    with pytest.raises(oracle.OutOfBlocks):
        put(cache, "a", *range(6))
    assert counts(cache) == (2, 2) and cache.seq_len("a") == 0
    put(cache, "a", *range(4))
    assert counts(cache) == (0, 4)


# -- rounding ---------------------------------------------------------------------------------------------

HALVES = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64).tolist()


def test_every_float16_is_kept_and_every_middle_goes_to_even() -> None:
    above = [*HALVES[1:], 65536.0]
    for i, (low, high) in enumerate(zip(HALVES, above, strict=True)):
        middle = (low + high) / 2
        assert Fraction(middle) == (Fraction(low) + Fraction(high)) / 2
        even = low if i % 2 == 0 else (high if high < 65536.0 else math.inf)
        assert oracle.half(low) == low and oracle.half(-low) == -low
        assert oracle.half(middle) == even and oracle.half(-middle) == -even
        assert oracle.half(math.nextafter(middle, 0)) == low
        assert oracle.half(math.nextafter(middle, math.inf)) == (high if high < 65536.0 else math.inf)


def test_rounding_is_that_of_numpy() -> None:
    rng = np.random.default_rng(83)
    bits = rng.integers(0, 1 << 63, 40_000, dtype=np.int64)
    scaled = rng.normal(size=40_000) * 2.0 ** rng.integers(-30, 18, 40_000)
    wide = np.concatenate([bits.view(np.float64), scaled])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for array in (wide, wide.astype(np.float32)):
            array = array[~np.isnan(array)]
            assert oracle.halves(array).tobytes() == array.astype(np.float16).tobytes()


def test_the_rounding_table_of_the_page() -> None:
    told = {0.1: 0.0999755859375, 2049: 2048, 2051: 2052, 65519: 65504, 65520: math.inf, 2.0**-25: 0,
            math.nextafter(2.0**-25, 1): 2.0**-24, 1 + 2.0**-11 + 2.0**-40: 1.0009765625}  # fmt: skip
    assert {x: oracle.half(x) for x in told} == told
    assert np.float16(np.float32(1 + 2.0**-11 + 2.0**-40)) == 1
    assert math.copysign(1, oracle.half(-(2.0**-30))) == -1 and math.isnan(oracle.half(math.nan))


# -- a second model: real blocks, counted -----------------------------------------------------------------


class Blocks:
    """Slabs, a free list and a count for each block: the structure that the oracle does without."""

    def __init__(self, num_blocks: int, block_size: int, n_layers: int, n_kv_heads: int, d_head: int) -> None:
        self.slabs = np.full((num_blocks, n_layers, 2, n_kv_heads, block_size, d_head), 77, np.float16)
        self.holders = [0] * num_blocks
        self.size, self.n_layers = block_size, n_layers
        self.tables: dict[Any, list[int]] = {}
        self.lengths: dict[Any, list[int]] = {}

    def take(self) -> int:
        block = len(self.holders) - 1 - self.holders[::-1].index(0)
        self.holders[block] = 1
        return block

    def add_seq(self, seq_id: Any) -> None:
        if seq_id in self.tables:
            raise ValueError
        self.tables[seq_id], self.lengths[seq_id] = [], [0] * self.n_layers

    def fork(self, parent: Any, child: Any) -> None:
        table = self.tables[parent]
        self.add_seq(child)
        self.tables[child], self.lengths[child] = table[:], self.lengths[parent][:]
        for block in table:
            self.holders[block] += 1

    def append(self, seq_id: Any, layer: int, k: Any, v: Any) -> None:
        table, lengths = self.tables[seq_id], self.lengths[seq_id]
        if not 0 <= layer < self.n_layers or k.shape != v.shape:
            raise ValueError
        start, stop = lengths[layer], lengths[layer] + k.shape[1]
        shared = {p // self.size for p in range(start, stop) if p // self.size < len(table)}
        shared = {i for i in shared if self.holders[table[i]] > 1}
        new = max(0, -(-stop // self.size) - len(table))
        if new + len(shared) > self.holders.count(0):
            raise oracle.OutOfBlocks
        for i in shared:
            old, block = table[i], self.take()
            self.slabs[block] = self.slabs[old]
            self.holders[old] -= 1
            table[i] = block
        table += [self.take() for _ in range(new)]
        with np.errstate(over="ignore"):
            for p in range(start, stop):
                for which, chunk in enumerate((k, v)):
                    self.slabs[table[p // self.size], layer, which, :, p % self.size] = chunk[:, p - start]
        lengths[layer] = stop

    def gather(self, seq_id: Any, layer: int) -> tuple[Any, Any]:
        n = self.seq_len(seq_id, layer)
        where = [(self.tables[seq_id][p // self.size], p % self.size) for p in range(n)]
        heads, width = self.slabs.shape[3], self.slabs.shape[5]
        out = np.zeros((2, heads, n, width), np.float16)
        for p, (block, slot) in enumerate(where):
            out[:, :, p] = self.slabs[block, layer, :, :, slot]
        return out[0], out[1]

    def seq_len(self, seq_id: Any, layer: int = 0) -> int:
        lengths = self.lengths[seq_id]
        if not 0 <= layer < self.n_layers:
            raise ValueError
        return lengths[layer]

    def block_table(self, seq_id: Any) -> Any:
        return np.array(self.tables[seq_id], np.int32)

    def free(self, seq_id: Any) -> None:
        for block in self.tables.pop(seq_id):
            self.holders[block] -= 1
        del self.lengths[seq_id]

    def stats(self) -> dict[str, int]:
        free = self.holders.count(0)
        return {"free": free, "used": len(self.holders) - free, "cached": 0, "evictions": 0}

    def close(self) -> None:
        for seq_id in list(self.tables):
            self.free(seq_id)


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name not in ("mutants.yaml", "errors.yaml"):
            found += strict_yaml.load(path.read_bytes(), path.name)["cases"]
    return found


SCRIPTS = [case for case in cases() if case.get("property", {}).get("script", {}).get("draw") == "pool_ops"]


def played(case: dict[str, Any], run: int) -> Iterator[tuple[Any, Blocks, dict[str, Any], dict[str, Any]]]:
    """One run of a script on both models: the models, the step, and the first one's answer."""
    prop = case["property"]
    model, blocks = oracle.Model(**case["args"]), Blocks(**case["args"])
    ops = oracle.pool_ops(Chooser(prop["seed"], run), **prop["script"]["with"])
    step = next(ops, None)
    while step is not None:
        told = oracle.answer(getattr(model, step["do"]), **step["args"])
        other = oracle.answer(getattr(blocks, step["do"]), **step["args"])
        assert told.get("raises") == other.get("raises"), step
        if step["do"] == "gather" and "return" in told:
            for a, b in zip(told["return"], other["return"], strict=True):
                assert a.shape == b.shape and a.tobytes() == b.tobytes()
        yield model, blocks, step, told
        try:
            step = ops.send(told)
        except StopIteration:
            return


def renamed(model: Any, blocks: Blocks) -> None:
    """The two sets of tables are equal up to one renaming, and so are the counts."""
    there: dict[int, int] = {}
    assert set(model.sequences) == set(blocks.tables)
    for name, sequence in model.sequences.items():
        assert len(sequence.table) == len(blocks.tables[name])
        for label, block in zip(sequence.table, blocks.tables[name], strict=True):
            assert there.setdefault(label, block) == block
    assert len(set(there.values())) == len(there)
    assert model.stats() == blocks.stats()


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case["id"].partition("/")[2])
def test_both_models_agree_on_every_script(case: dict[str, Any]) -> None:
    for run in range(2):
        for model, blocks, _, _ in played(case, run):
            renamed(model, blocks)


def test_the_scripts_plant_what_they_promise() -> None:
    total: Counter[tuple[str, str]] = Counter()
    copies = 0
    for case in SCRIPTS:
        for run in range(case["property"]["runs"]):
            before: dict[str, list[int]] = {}
            for model, _, step, told in played(case, run):
                total[step["do"], told.get("raises", "")] += 1
                now = {name: list(sequence.table) for name, sequence in model.sequences.items()}
                if step["do"] == "append" and "return" in told:
                    old = before.get(step["args"]["seq_id"], [])
                    copies += any(a != b for a, b in zip(old, now[step["args"]["seq_id"]], strict=False))
                before = now
    assert total.total() > 10_000
    assert total["append", "OutOfBlocks"] > 1000 and total["append", ""] > 1000 and copies > 200
    for name in ("append", "fork", "free", "gather", "seq_len", "block_table"):
        assert total[name, "KeyError"] > 5, name
    for name in ("append", "fork", "add_seq"):
        assert total[name, "ValueError"] > 50, name


def test_simplest_draws_are_simple() -> None:
    class Zero:
        def below(self, n: int) -> int:
            assert n >= 1
            return 0

    assert next(oracle.pool_ops(Zero(), n=3)) == {"do": "add_seq", "args": {"seq_id": "a"}}
    assert next(oracle.leaving(Zero())) == {"do": "add_seq", "args": {"seq_id": "a"}}
    k, v = oracle.chunk(Zero(), 2, 3, 1)
    assert k.shape == v.shape == (2, 3, 1) and k.dtype == np.float16 and not set(k.flat) & set(v.flat) - {0.0}


# -- the files --------------------------------------------------------------------------------------------


def test_every_mutant_is_claimed() -> None:
    claimed = {name for case in cases() for name in case.get("kills", ())}
    defined = strict_yaml.load((FOLDER / "mutants.yaml").read_bytes(), "mutants.yaml")["mutants"]
    assert claimed == set(defined)


def test_a_raise_leaves_the_model_alone() -> None:
    """Every raising step of every trace, on the model: what can be seen is the same before and after."""
    seen = 0
    for case in cases():
        if "steps" not in case:
            continue
        raising = [i for i, step in enumerate(case["steps"]) if "raises" in step]
        told = oracle.expect({**case, "steps": [oracle_step(step) for step in case["steps"]]})["steps"]
        for i in raising:
            assert told[i]["raises"] == case["steps"][i]["raises"], case["id"]
            before, after = told[i - 1]["state"], told[i]["state"]
            assert i > 0 and repr(before) == repr(after), case["id"]
            seen += 1
    assert seen > 120


def oracle_step(step: dict[str, Any]) -> dict[str, Any]:
    from grader.build import asked
    from grader.values import decode_args, plain

    args = {name: plain(value) for name, value in decode_args(step.get("args", {}), FOLDER).items()}
    return {**asked(step), "args": args}
