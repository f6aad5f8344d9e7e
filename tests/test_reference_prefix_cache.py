"""The reference of `prefix_cache`: the spec's numbers, twins under random use, whose an id is, cost."""

from __future__ import annotations

import dataclasses
import inspect
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import prefix_cache
from impl.prefix_cache import RadixCache
from impl.radix_tree import ROOT, RadixTree

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "prefix_cache" / "equivalents"
EQUIVALENTS = [import_file(path, f"prefix_cache_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [prefix_cache, *EQUIVALENTS]
CLASS = "RadixCache"


@pytest.fixture(params=ALL, ids=lambda module: module.__name__)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def counts(cache: Any) -> Any:
    return (
        cache.cached_tokens(),
        cache.cached_blocks(),
        cache.evictable_blocks(),
        dataclasses.astuple(cache.stats()),
        cache.hit_rate(),
        [cache.tree().key(node) for node in cache.tree().lru_order()],
    )


def nodes(tree: RadixTree) -> list[int]:
    found = [ROOT]
    for node in found:
        found += tree.children(node)
    return found


def check_inside(cache: RadixCache) -> None:
    """The reference knows of every id where it is, and how much is locked."""
    tree = cache.tree()
    homes = {block: node for node in nodes(tree) for block in tree.values(node)}
    assert cache._home == homes
    assert cache._locked_blocks == sum(len(tree.values(n)) for n in nodes(tree) if tree.lock_count(n))


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    cache = module.RadixCache(2)
    assert cache.insert([1, 2, 3, 4, 5], [10, 11]).duplicates == []
    assert (cache.cached_tokens(), cache.cached_blocks()) == (4, 2)
    found = cache.match_prefix([1, 2, 3, 4, 9, 9])
    assert (found.matched_tokens, found.blocks) == (4, [10, 11])
    assert cache.match_prefix([1, 2, 3, 4]).blocks == [10]
    missed = cache.match_prefix([7, 7, 7])
    assert (missed.matched_tokens, missed.blocks, missed.node) == (0, [], ROOT)
    assert dataclasses.astuple(cache.stats()) == (3, 13, 6, 2, 0)
    assert cache.hit_rate() == 6 / 13 == 0.46153846153846156
    assert cache.insert([1, 2, 3, 4, 8, 8], [20, 11, 12]).duplicates == [20]
    with pytest.raises(ValueError):
        cache.insert([5, 5], [12])
    cache = module.RadixCache(2)
    cache.insert([1, 2, 3, 4, 5, 6], [7, 8, 9])
    prompts = [cache.match_prefix([1, 2, 3, 4, 5, 6, 7][:n]).matched_tokens for n in range(8)]
    assert prompts == [0, 0, 0, 2, 2, 4, 4, 6]


def test_a_lock_of_the_worked_example(module: Any) -> None:
    cache = module.RadixCache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    node = cache.match_prefix([1, 2, 3, 4, 9]).node
    cache.lock(node)
    assert (cache.evictable_blocks(), cache.evict(2)) == (0, [])
    cache.unlock(node)
    assert (cache.evictable_blocks(), cache.evict(1)) == (2, [10, 11])


# the twins


def operations(cache: Any, seed: int, n: int, block_size: int) -> list[Any]:
    """An engine in little: 40 ids in the hands of a pool, of requests and of the cache, and some mistakes."""
    r = random.Random(seed)
    pool, running, out = list(range(40)), [], []
    systems = [[r.randrange(3) for _ in range(r.randrange(4 * block_size))] for _ in range(3)]
    for _ in range(n):
        kind = r.random()
        if kind < 0.45:
            tail = [r.randrange(2) for _ in range(r.randrange(3 * block_size + 1))]
            tokens: Any = r.choice(systems) + tail
            if r.random() < 0.2:
                tokens = r.choice([tuple, np.array])(np.array(tokens, np.int32))
            found = cache.match_prefix(tokens)
            out.append((found.matched_tokens, found.blocks))
            cache.lock(found.node)
            wanted = len(tokens) // block_size - len(found.blocks)
            if len(pool) < wanted:
                given = cache.evict(wanted - len(pool))
                out.append(given)
                pool += given
            if len(pool) < wanted:
                cache.unlock(found.node)
            else:
                own, pool = pool[:wanted], pool[wanted:]
                running.append((tokens, found, own))
        elif kind < 0.8 and running:
            tokens, found, own = running.pop(r.randrange(len(running)))
            table = found.blocks + own
            if r.random() < 0.3:
                table = np.array(table, np.int32)
            done = cache.insert(tokens, table)
            out.append((done.duplicates, cache.tree().key(done.node)))
            cache.unlock(found.node)
            pool += done.duplicates
        elif kind < 0.9:
            given = cache.evict(r.randrange(5))
            out.append(given)
            pool += given
        else:
            out.append(mistake(cache, r, block_size))
        out.append(counts(cache))
        if isinstance(cache, RadixCache):
            check_inside(cache)
        cached = [block for node in nodes(cache.tree()) for block in cache.tree().values(node)]
        assert sorted(pool + cached + [block for *_, own in running for block in own]) == list(range(40))
    for tokens, found, own in running:
        pool += cache.insert(tokens, found.blocks + own).duplicates
        cache.unlock(found.node)
    assert cache.evictable_blocks() == cache.cached_blocks()
    assert sorted(pool + cache.evict(10**9)) == list(range(40))
    return out


def mistake(cache: Any, r: random.Random, block_size: int) -> str:
    """An id that is cached, or twice in the call, at a random place; refused unless the place is its own."""
    homes = homes_of(cache)
    n = r.randrange(2, 4)
    tokens = [r.randrange(3) for _ in range(n * block_size)]
    ids = [1000, 1001, 1002][:n]
    i = r.randrange(n)
    ids[i] = r.choice([*sorted(homes.values()), ids[i - 1]])
    if homes.get(tuple(tokens[: (i + 1) * block_size])) == ids[i]:
        return "its own place"
    before = counts(cache)
    with pytest.raises(ValueError):
        cache.insert(tokens, ids)
    assert counts(cache) == before
    return "refused"


def homes_of(cache: Any) -> dict[tuple[int, ...], int]:
    """Every beginning of tokens that is cached, and the id of its last block."""
    tree, out, todo = cache.tree(), {}, [(ROOT, ())]
    while todo:
        node, before = todo.pop()
        key, ids = tree.key(node), tree.values(node)
        for i, block in enumerate(ids):
            out[before + tuple(key[: (i + 1) * tree.granule()])] = block
        todo += [(child, before + tuple(key)) for child in tree.children(node)]
    return out


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_twins_agree_under_random_use(block_size: int) -> None:
    assert len(EQUIVALENTS) >= 3
    for seed in range(6):
        want = operations(RadixCache(block_size), seed, 100, block_size)
        for twin in EQUIVALENTS:
            assert operations(twin.RadixCache(block_size), seed, 100, block_size) == want, twin.__name__


SIGNATURES = {
    **dict.fromkeys(["block_size", "tree", "stats", "hit_rate"], ()),
    **dict.fromkeys(["cached_tokens", "cached_blocks", "evictable_blocks"], ()),
    **dict.fromkeys(["lock", "unlock"], ("node",)),
    "match_prefix": ("tokens",),
    "insert": ("tokens", "blocks"),
    "evict": ("n_blocks",),
}


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    for name, wanted in {**SIGNATURES, "__init__": ("block_size",)}.items():
        assert tuple(inspect.signature(getattr(module.RadixCache, name)).parameters)[1:] == wanted
    for name, fields in {
        "PrefixMatch": ["matched_tokens", "blocks", "node"],
        "Inserted": ["node", "duplicates"],
        "PrefixStats": ["lookups", "query_tokens", "hit_tokens", "inserted_blocks", "evicted_blocks"],
    }.items():
        record = getattr(module, name)
        assert [f.name for f in dataclasses.fields(record)] == fields
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record(*range(len(fields))), fields[0], 1)


def test_nothing_else_is_public() -> None:
    assert {name for name in vars(RadixCache) if not name.startswith("_")} == set(SIGNATURES)


# errors


@pytest.mark.parametrize(
    ("tokens", "blocks", "message"),
    [
        ([5, 5, 5], [30, 31], "needs 1 ids, one for each full block, got 2"),
        ([5, 5, 5, 5], [30], "needs 2 ids, one for each full block, got 1"),
        ([5], [30], "needs 0 ids"),
        ([5, -5], [30], "a token must be an int in"),
        ([5, 5, 5, 5], [30, 30], "an id is twice in blocks"),
        ([5, 5], [10], "id 10 is cached after other tokens"),
        ([1, 2, 3, 0], [10, 11], "id 11 is cached after other tokens"),
        ([1, 2, 3, 4], [11, 12], "id 11 is cached in another place"),
        ([1, 2, 3, 4], [12, 10], "id 10 is cached in another place"),
        ([1, 2, 1, 2], [10, 13], "id 13 is cached after other tokens"),
        ([1, 2, 3, 4, 5, 6], [13, 11, 12], "id 13 is cached in another place"),
        ([1, 2, 3, 4], [11, 10], "id 11 is cached in another place"),
        (None, [], "tokens must be a list, a tuple or an array, got NoneType"),
        (np.zeros(2), [30], "tokens must be one row of integers, got float64 of 1 axes"),
        (np.zeros((2, 2), int), [30], "tokens must be one row of integers, got int64 of 2 axes"),
        (np.array(5), [], "tokens must be one row of integers, got int64 of 0 axes"),
        ([5, 5], {30: 1}, "blocks must be a list, a tuple or an array, got dict"),
        ([5, 5], np.array([30.0]), "blocks must be one row of integers, got float64"),
        ([5, 5], np.array([[30]]), "blocks must be one row of integers, got int64 of 2 axes"),
    ],
    ids=repr,
)
def test_refused_inserts(module: Any, tokens: Any, blocks: Any, message: str) -> None:
    cache = module.RadixCache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    cache.insert([7, 7], [13])
    before = counts(cache)
    with pytest.raises(ValueError, match=message if module is prefix_cache else None):
        cache.insert(tokens, blocks)
    assert counts(cache) == before


def test_other_errors(module: Any) -> None:
    for block_size in (0, -4):
        with pytest.raises(ValueError):
            module.RadixCache(block_size)
    cache = module.RadixCache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    before = counts(cache)
    for tokens in ([1, -2, 3], "123", np.zeros(3), np.array(3), np.zeros((3, 3), int), None):
        with pytest.raises(ValueError):
            cache.match_prefix(tokens)
    for name in ("unlock", "lock", "unlock", "unlock"):
        getattr(cache, name)(ROOT)
        with pytest.raises(KeyError):
            getattr(cache, name)(10**6)
    with pytest.raises(ValueError):
        cache.unlock(cache.tree().children(ROOT)[0])
    with pytest.raises(ValueError):
        cache.evict(-1)
    assert counts(cache) == before


# copies


def test_nothing_is_shared_with_the_caller(module: Any) -> None:
    cache = module.RadixCache(2)
    tokens, blocks = np.array([1, 2, 3, 4]), [10, 11]
    cache.insert(tokens, blocks)
    tokens[:] = 9
    blocks[:] = [0, 0]
    cache.match_prefix([1, 2, 3, 4, 5]).blocks.clear()
    cache.insert([1, 2, 3, 4], [20, 21]).duplicates.clear()
    stats = cache.stats()
    assert cache.match_prefix([1, 2, 3, 4, 5]).blocks == [10, 11]
    assert stats.lookups == 1 and cache.stats().lookups == 2
    assert cache.tree() is cache.tree() and cache.tree().granule() == cache.block_size() == 2


# cost


def test_an_insert_costs_little_more_than_that_of_the_tree() -> None:
    """The check of R11 reads the path of one id; measured 2 times the tree alone."""
    r = random.Random(1)
    system = [r.randrange(50000) for _ in range(512)]
    prompts = [system + [r.randrange(50000) for _ in range(512)] for _ in range(150)]

    def tree_alone() -> None:
        tree = RadixTree(16)
        for i, prompt in enumerate(prompts):
            tree.match_prefix(prompt)
            tree.insert(prompt, list(range(64 * i, 64 * i + 64)))

    def cache() -> None:
        cache = RadixCache(16)
        for i, prompt in enumerate(prompts):
            found = cache.match_prefix(prompt)
            cache.insert(prompt, found.blocks + list(range(64 * i + len(found.blocks), 64 * i + 64)))

    def seconds(call: Any) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            call()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(cache) < 6 * seconds(tree_alone)
