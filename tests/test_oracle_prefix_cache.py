"""The prefix-cache oracle against the page's numbers, and the laws it is there for."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "prefix_cache"


def load_oracle(unit: str) -> ModuleType:
    path = FOLDER.parent / unit / "oracle.py"
    spec = importlib.util.spec_from_file_location(f"{unit}_oracle_for_prefix_cache", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = load_oracle("prefix_cache")
Cache = oracle.Cache


def found(cache: Any, tokens: Any) -> tuple[int, list[int]]:
    answer = cache.match_prefix(tokens)
    return answer["matched_tokens"], answer["blocks"]


# -- the page ---------------------------------------------------------------------------------------------


def test_example_of_the_page() -> None:
    cache = Cache(2)
    assert cache.insert([1, 2, 3, 4, 5], [10, 11])["duplicates"] == []
    assert (cache.cached_tokens(), cache.cached_blocks()) == (4, 2)
    assert found(cache, [1, 2, 3, 4, 9, 9]) == (4, [10, 11])
    assert found(cache, [1, 2, 3, 4]) == (2, [10])
    assert cache.match_prefix([7, 7, 7]) == {"matched_tokens": 0, "blocks": [], "node": 0}
    assert list(cache.stats().values()) == [3, 13, 6, 2, 0]
    assert cache.hit_rate() == 6 / 13 == 0.46153846153846156
    assert cache.insert([1, 2, 3, 4, 8, 8], [20, 11, 12])["duplicates"] == [20]
    with pytest.raises(ValueError, match="two places"):
        cache.insert([5, 5], [12])


def test_prompts_of_every_length() -> None:
    cache = Cache(2)
    cache.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    tokens = [1, 2, 3, 4, 5, 6, 7]
    assert [found(cache, tokens[:n])[0] for n in range(8)] == [0, 0, 0, 2, 2, 4, 4, 6]


def test_lock_of_the_page() -> None:
    cache = Cache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    node = cache.match_prefix([1, 2, 3, 4, 9])["node"]
    cache.lock(node)
    assert (cache.evictable_blocks(), cache.evict(2)) == (0, [])
    cache.unlock(node)
    assert (cache.evictable_blocks(), cache.evict(1)) == (2, [10, 11])


def test_small_ones_of_the_page() -> None:
    cache = Cache(4)
    cache.insert(list(range(8)), [10, 11])
    assert found(cache, list(range(8))) == (4, [10])
    cache = Cache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    assert cache.insert([1, 2, 3, 4], [20, 21])["duplicates"] == [20, 21]
    assert found(cache, [1, 2, 3, 4, 0]) == (4, [10, 11])
    cache = Cache(2)
    cache.insert([1, 2, 3, 0], [10, 11])
    with pytest.raises(ValueError, match="two places"):
        cache.insert([1, 2, 3, 4], [10, 11])
    cache = Cache(2)
    cache.insert([1, 2], [10])
    cache.insert([1, 2, 3, 4], [10, 11])
    assert (cache.evictable_blocks(), cache.evict(1)) == (2, [11])


def test_what_is_refused() -> None:
    cache = Cache(2)
    cache.insert([1, 2], [10])
    before = (dict(cache.block), cache.stats(), dict(cache.walked), dict(cache.label))
    for tokens, blocks in (
        ([5, 6], []), ([5, 6], [1, 2]), ([5, 6, 7, 8], [1, 1]), ([5, 6], [10]), ([1, -2], [10]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"block|places|token"):
            cache.insert(tokens, blocks)
    with pytest.raises(ValueError, match="array"):
        cache.match_prefix(np.array([0.5, 1.0]))
    with pytest.raises(ValueError, match="n_blocks"):
        cache.evict(-1)
    assert before == (dict(cache.block), cache.stats(), dict(cache.walked), dict(cache.label))


# -- laws ---------------------------------------------------------------------------------------------------


def test_every_id_is_in_one_hand_and_all_come_back() -> None:
    """The course's run: 64 ids, blocks of 4, 3000 steps; the draw itself checks the hands after each step."""
    steps = oracle.engine(Chooser(21, 0), 4)
    seen = [step["do"] for _, step in zip(range(3000), steps, strict=False)]
    assert set(seen) == {"match_prefix", "insert", "lock", "unlock", "evict"}
    cache = steps.gi_frame.f_locals["driver"].cache
    assert len(cache.block) <= 64
    for prefix in [p for p, n in cache.held.items() for _ in range(n)]:
        cache.unlock(cache.label[prefix])
    assert cache.evictable_blocks() == len(cache.block)
    gone = cache.evict(64)
    assert len(gone) == len(set(gone)) and not cache.block


def replayed(steps: Any, n: int, block_size: int) -> Any:
    cache = Cache(block_size)
    for _, step in zip(range(n), steps, strict=False):
        args = {k: v["label"] if isinstance(v, dict) else v for k, v in step["args"].items()}
        before = cache.stats()
        held = {cache.block[p[:k]] for p, n in cache.held.items() if n for k in range(1, len(p) + 1)}
        try:
            answer = getattr(cache, step["do"])(**args)
        except (ValueError, KeyError) as error:
            assert step["told"] == {"raises": type(error).__name__}
            assert cache.stats() == before
            continue
        yield cache, step["do"], args, answer, held, before


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_laws_of_any_row_of_calls(block_size: int) -> None:
    for i in range(4):
        steps = oracle.anything(Chooser(22, i), block_size, 2, 3)
        for cache, do, args, answer, held, before in replayed(steps, 150, block_size):
            ids = list(cache.block.values())
            assert len(ids) == len(set(ids))
            assert held <= set(ids)  # what is locked stays
            after = cache.stats()
            assert after["inserted_blocks"] - after["evicted_blocks"] == len(ids)
            loose = [p for p in cache.block if not any(n and q[: len(p)] == p for q, n in cache.held.items())]
            nodes = [p for p in cache.label if cache.locks(p) == 0]
            assert cache.evictable_blocks() == sum(len(cache.piece(p)) for p in nodes) <= len(loose)
            if do == "match_prefix":
                n = len(args["tokens"])
                assert answer["matched_tokens"] == block_size * len(answer["blocks"]) < max(n, 1)
                assert after["query_tokens"] - before["query_tokens"] == n
            if do == "insert":
                whole = len(args["tokens"]) // block_size
                again = [int(b) for b in args["blocks"]]
                kept = [b for b in again if cache.block.get(placed(cache, args["tokens"], again, b)) == b]
                assert sorted(kept + answer["duplicates"]) == sorted(again) and len(again) == whole
            if do == "evict":
                assert len(answer) >= min(args["n_blocks"], len(answer) + cache.evictable_blocks())


def placed(cache: Any, tokens: Any, ids: list[int], b: int) -> Any:
    runs = cache.runs([int(t) for t in tokens], len(ids))
    return runs[: ids.index(b) + 1]


def test_the_tree_in_it_is_the_tree_of_the_other_unit() -> None:
    """Walks, splits, locks and the order of eviction of `radix_tree` hold for the cache."""
    other = load_oracle("radix_tree")
    for block_size in (1, 2, 3):
        cache, tree = Cache(block_size), other.Runs(block_size)
        for _, step in zip(range(300), oracle.anything(Chooser(23, 0), block_size, 2, 3), strict=False):
            args = {k: v["label"] if isinstance(v, dict) else v for k, v in step["args"].items()}
            try:
                answer = getattr(cache, step["do"])(**args)
            except (ValueError, KeyError):
                continue
            if step["do"] == "match_prefix":
                searched = max(len(args["tokens"]) - 1, 0) // block_size * block_size
                matched, path = tree.match_prefix([int(t) for t in args["tokens"]][:searched])
                assert (matched, path[-1] if path else 0) == (answer["matched_tokens"], answer["node"])
            elif step["do"] == "insert":
                stored = len(args["blocks"]) * block_size
                tokens = [int(t) for t in args["tokens"]][:stored]
                blocks = [int(b) for b in args["blocks"]]
                assert tree.insert(tokens, blocks)[0] == answer["node"]
            elif step["do"] == "evict":
                assert tree.evict(args["n_blocks"]) == answer
            else:
                getattr(tree, step["do"])(**args)
            assert tree.lru_order() == cache.lru_order()
            assert tree.children(0) == cache.children(0)
            free = [n for n in tree.label.values() if not tree.lock_count(n)]
            assert sum(len(tree.values(n)) for n in free) == cache.evictable_blocks()


def test_the_generated_trace_reaches_every_kind_of_step() -> None:
    document = oracle.generate()["trace.gen.yaml"]
    assert document == oracle.generate()["trace.gen.yaml"]
    [case] = document["cases"]
    steps = case["steps"]
    assert len(steps) >= 300
    assert {s["do"] for s in steps} == {"match_prefix", "insert", "lock", "unlock", "evict"}
    assert {s.get("raises") for s in steps} == {None, "ValueError", "KeyError"}
    inserts = [s["return"]["attrs"] for s in steps if s["do"] == "insert" and "return" in s]
    assert sum(bool(i["duplicates"]) for i in inserts) >= 5
    assert sum(len(s["return"]) for s in steps if s["do"] == "evict" and "return" in s) > 30
