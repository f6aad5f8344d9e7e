"""The reference of `paged_kv`: a naive twin, memory, no search in the bookkeeping, and its messages."""

from __future__ import annotations

import random
import tracemalloc
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import paged_kv
from impl.paged_kv import OutOfBlocks, PagedKVCache

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "paged_kv" / "equivalents"
EQUIVALENTS = [import_file(path, f"paged_kv_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [paged_kv, *EQUIVALENTS]


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def rows(*values: float) -> Any:
    return np.array(values, np.float64).reshape(1, -1, 1)


# against a naive twin: whole float16 arrays, no blocks


def consistent(cache: PagedKVCache) -> None:
    """Every block is free once or has as many holders as there are tables with it."""
    held = [block for sequence in cache._sequences.values() for block in sequence.table]
    assert sorted({*held, *cache._free}) == list(range(len(cache._holders)))
    assert len(set(cache._free)) == len(cache._free)
    assert not {*held} & {*cache._free}
    assert cache._holders == [held.count(block) for block in range(len(cache._holders))]


def run(module: Any, seed: int, n: int) -> int:
    """Do n random operations and compare each with whole arrays; return how many appends did not fit."""
    r = random.Random(seed)
    N, B, L, H, D = r.choice([3, 8, 20]), r.choice([1, 2, 3, 4]), r.choice([1, 2, 3]), r.choice([1, 2]), 2
    cache = module.PagedKVCache(N, B, L, H, D)
    twin: dict[Any, list[Any]] = {}  # seq_id: one [2, H, n, D] a layer
    refused, written = 0, 0.0
    for _ in range(n):
        live, choice = list(twin), r.random()
        if choice < 0.15 or not live:
            seq_id = r.choice([0, "", "a", (1, 2), None, 7])
            if seq_id in twin:
                with pytest.raises(ValueError):
                    cache.add_seq(seq_id)
            else:
                cache.add_seq(seq_id)
                twin[seq_id] = [np.zeros((2, H, 0, D), np.float16)] * L
        elif choice < 0.3:
            parent, child = r.choice(live), r.choice(["x", "y", "z", *live])
            if child in twin:
                with pytest.raises(ValueError):
                    cache.fork(parent, child)
            else:
                cache.fork(parent, child)
                twin[child] = list(twin[parent])
        elif choice < 0.42:
            seq_id = r.choice(live)
            cache.free(seq_id)
            del twin[seq_id]
            with pytest.raises(KeyError):
                cache.free(seq_id)
        else:
            seq_id, layer, T = r.choice(live), r.randrange(L), r.choice([1, 1, 1, 2, 3, 5, 9])
            kv = written + np.arange(2 * H * T * D, dtype=np.float64).reshape(2, H, T, D) / 8
            written = (written + 31.0) % 1000.0
            kv = kv.astype(r.choice([np.float16, np.float32, np.float64]))
            before = cache.stats(), cache.block_table(seq_id).tolist()
            try:
                cache.append(seq_id, layer, kv[0], kv[1])
                twin[seq_id][layer] = np.concatenate([twin[seq_id][layer], kv.astype(np.float16)], axis=2)
            except module.OutOfBlocks:
                refused += 1
                assert before == (cache.stats(), cache.block_table(seq_id).tolist())
        for seq_id, layers in twin.items():
            longest = max(kv.shape[2] for kv in layers)
            assert len(cache.block_table(seq_id)) == -(-longest // B)
            for layer, kv in enumerate(layers):
                assert cache.seq_len(seq_id, layer) == kv.shape[2]
                for got, want in zip(cache.gather(seq_id, layer), kv, strict=True):
                    assert (got.dtype, got.shape) == (np.float16, want.shape)
                    assert got.tobytes() == want.tobytes()
        used = len({block for seq_id in twin for block in cache.block_table(seq_id).tolist()})
        assert cache.stats() == {"free": N - used, "used": used, "cached": 0, "evictions": 0}
        assert cache.num_free_blocks() == N - used
        if module is paged_kv:
            consistent(cache)
    cache.close()
    assert cache.num_free_blocks() == N
    return refused


def test_whole_arrays_say_the_same(module: Any) -> None:
    seeds, n = (40, 150) if module is paged_kv else (8, 80)
    assert sum(run(module, seed, n) for seed in range(seeds)) > seeds


def logits(cache: Any, seq_id: str, token: int) -> Any:
    """One step of a decoder with two layers of attention over what the cache holds."""
    r = np.random.default_rng(1)
    table = r.normal(size=(16, 8)).astype(np.float32)
    x = table[token] + 0.1 * cache.seq_len(seq_id)
    for layer in range(2):
        wq, wk, wv = r.normal(size=(3, 8, 8)).astype(np.float32) / 3
        cache.append(seq_id, layer, (wk @ x).reshape(2, 1, 4), (wv @ x).reshape(2, 1, 4))
        k, v = (part.astype(np.float32) for part in cache.gather(seq_id, layer))
        scores = np.exp((k @ (wq @ x).reshape(2, 4, 1))[:, :, 0] / 2)
        x = x + np.einsum("hs,hsd->hd", scores / scores.sum(1, keepdims=True), v).ravel()
    return table @ x


def test_decoding_does_not_see_the_blocks(module: Any) -> None:
    """Two branches forked in the middle of a block: the ids and logits of one big block for each branch."""
    paged, whole = module.PagedKVCache(20, 4, 2, 2, 4), PagedKVCache(2, 64, 2, 2, 4)
    answers: dict[Any, list[Any]] = {}
    for cache in (paged, whole):
        cache.add_seq("a")
        got = answers[cache] = [logits(cache, "a", token) for token in (3, 1, 4, 1, 5, 9)]
        cache.fork("a", "b")
        token = {"a": 2, "b": 6}
        for _ in range(9):
            for seq_id in "ab":
                got.append(logits(cache, seq_id, token[seq_id]))
                token[seq_id] = int(got[-1].argmax())
    got, want = np.array(answers[paged]), np.array(answers[whole])
    # not bitwise: an answer in another memory layout may be summed in another order
    assert np.allclose(got, want, rtol=0, atol=1e-5)
    assert np.array_equal(got.argmax(axis=1), want.argmax(axis=1))


# what no fixture sees


class Stack(list):  # type: ignore[type-arg]
    """A list that can be indexed, pushed and popped, and cut at its end, and not searched or shifted."""

    taken = 0

    def refuse(self, *_: Any) -> Any:
        raise AssertionError("the list is searched")

    __iter__ = __contains__ = __reversed__ = __add__ = __eq__ = refuse
    index = count = remove = insert = sort = copy = extend = refuse

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            assert (at.stop, at.step) == (None, None)
            self.taken += len(found)
        return found

    def __delitem__(self, at: Any) -> None:
        assert (at.stop, at.step) == (None, None)
        super().__delitem__(at)

    def pop(self, *at: Any) -> Any:
        assert not at
        return super().pop()


def test_the_bookkeeping_searches_nothing() -> None:
    """A block costs the same in a pool of any size."""
    cache = PagedKVCache(9, 2, 1, 1, 1)
    cache._free, cache._holders = Stack(cache._free), Stack(cache._holders)
    cache.add_seq("a")
    cache.append("a", 0, rows(1, 2, 3), rows(4, 5, 6))
    cache.fork("a", "b")
    cache.append("b", 0, rows(7), rows(8))
    with pytest.raises(OutOfBlocks):
        cache.append("a", 0, np.zeros((1, 99, 1)), np.zeros((1, 99, 1)))
    cache.free("a")
    assert cache.stats()["used"] == 2
    assert cache._free.taken == 3  # what was needed: two new blocks and a copy
    cache.close()
    assert cache.num_free_blocks() == 9


def test_there_is_one_copy_of_the_values() -> None:
    cache = PagedKVCache(64, 16, 2, 4, 32)
    held = sum(x.nbytes for x in vars(cache).values() if isinstance(x, np.ndarray))
    assert held == 64 * 16 * 2 * 4 * 32 * 2 * 2
    k = np.ones((4, 500, 32), np.float16)
    cache.add_seq("a")
    cache.append("a", 0, k[:, :10], k[:, :10])
    cache.gather("a", 0)
    tracemalloc.start()
    try:
        cache.append("a", 0, k, k)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < k.nbytes / 8  # written into the pool, not held beside it
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        K, V = cache.gather("a", 0)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < 1.1 * (K.nbytes + V.nbytes)  # the answer and nothing else
    finally:
        tracemalloc.stop()


def test_answers_share_no_memory(module: Any) -> None:
    cache = module.PagedKVCache(4, 8, 1, 1, 2)
    k = np.ones((1, 3, 2), np.float16)
    cache.add_seq("a")
    cache.append("a", 0, k, k)
    k[:] = 9
    answers = [*cache.gather("a", 0), *cache.gather("a", 0)]
    for i, x in enumerate(answers):
        assert not any(np.shares_memory(x, y) for y in answers[:i])
        assert x.flags.writeable
        x[:] = 5
    assert all((x == 1).all() for x in cache.gather("a", 0))
    assert not np.shares_memory(cache.block_table("a"), cache.block_table("a"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_value_is_refused_however_numpy_is_set_up(dtype: Any) -> None:
    values = np.array([1e5, -1e30, 1e-30, np.nan, -np.inf], dtype).reshape(1, -1, 1)
    cache = PagedKVCache(4, 2, 1, 1, 1)
    cache.add_seq("a")
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.append("a", 0, values, values[:, ::-1])
    K, V = cache.gather("a", 0)
    want = np.array([np.inf, -np.inf, 0, np.nan, -np.inf])
    assert np.array_equal(K.ravel(), want, equal_nan=True)
    assert np.array_equal(V.ravel(), want[::-1], equal_nan=True)


def test_any_layout_will_do(module: Any) -> None:
    wide = np.arange(48, dtype=np.float32).reshape(4, 2, 6)
    k = wide.transpose(1, 0, 2)[:, ::-1, ::2]
    k.setflags(write=False)
    cache = module.PagedKVCache(4, 3, 1, 2, 3)
    cache.add_seq("a")
    cache.append("a", 0, k, k.astype(">f4"))
    assert all(np.array_equal(x, k) for x in cache.gather("a", 0))


# messages are the reference's own


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("add_seq", ("a",), ValueError, "sequence 'a' is live"),
        ("fork", ("a", "a"), ValueError, "sequence 'a' is live"),
        ("fork", (0, "a"), KeyError, "no sequence 0"),
        ("free", ("b",), KeyError, "no sequence 'b'"),
        ("gather", ("a", 2), ValueError, r"layer must be in \[0, 2\), got 2"),
        ("seq_len", ("a", -1), ValueError, r"layer must be in \[0, 2\), got -1"),
        ("append", ("a", 0, [1], rows(1)), ValueError, "must be arrays, got list and ndarray"),
        ("append", ("a", 0, rows(1).astype(int), rows(1)), ValueError, "got int64 and float64"),
        ("append", ("a", 0, rows(1), rows(1) > 0), ValueError, "got float64 and bool"),
        ("append", ("a", 0, np.zeros((1, 1)), rows(1)), ValueError, r"k must be \[1, T, 1\], got \[1, 1\]"),
        ("append", ("a", 0, rows(1), rows(1, 2)), ValueError, r"shape of k, \[1, 1, 1\], got \[1, 2, 1\]"),
        ("append", ("a", 0, rows(), rows()), ValueError, "at least one position"),
        ("append", ("a", 0, *[rows(1, 2, 3, 4)] * 2), OutOfBlocks, "3 blocks are needed, 2 are free"),
    ],
)
def test_messages(method: str, arguments: Any, error: Any, message: str) -> None:
    cache = PagedKVCache(4, 2, 2, 1, 1)
    cache.add_seq("a")
    cache.append("a", 0, rows(1, 2, 3), rows(1, 2, 3))
    cache.fork("a", "c")
    with pytest.raises(error, match=message):
        getattr(cache, method)(*arguments)
    consistent(cache)
    assert cache.stats()["free"] == 2
    assert cache.gather("a", 0)[0].ravel().tolist() == [1, 2, 3]


def test_sizes() -> None:
    for at in range(5):
        for size in (0, -1):
            with pytest.raises(ValueError, match="every size must be at least 1"):
                PagedKVCache(*[size if i == at else 1 for i in range(5)])
