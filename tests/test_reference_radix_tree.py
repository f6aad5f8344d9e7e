"""The reference of `radix_tree`: the spec's numbers, twins under random use, cost, inner order."""

from __future__ import annotations

import inspect
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import radix_tree
from impl.radix_tree import ROOT, RadixTree

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "radix_tree" / "equivalents"
EQUIVALENTS = [import_file(path, f"radix_tree_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [radix_tree, *EQUIVALENTS]


@pytest.fixture(params=ALL, ids=lambda module: module.__name__)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def keys(tree: Any, nodes: list[int]) -> list[list[int]]:
    return [tree.key(node) for node in nodes]


def picture(tree: Any, node: int = ROOT) -> list[Any]:
    """All that can be seen of a tree, without ids."""
    todo, seen = [node], []
    while todo:
        at = todo.pop()
        below = tree.children(at)
        assert all(tree.parent(child) == at for child in below)
        assert tree.child_count(at) == len(below)
        seen.append((tree.key(at), tree.values(at), len(below), tree.lock_count(at)))
        todo += below
    return [seen, keys(tree, tree.lru_order()), tree.len(), len(tree), tree.node_count(), tree.is_empty()]


def check_inside(tree: RadixTree) -> None:
    """The columns of the reference agree with each other, and its ring is in the order of the stamps."""
    assert len({len(c) for c in (tree._labels, tree._values, tree._parents, tree._edges, tree._stamps)}) == 1
    free = set(tree._free_slots)
    assert len(free) == len(tree._free_slots)
    order = tree.lru_order()
    stamps = [tree._stamps[node] for node in order]
    assert stamps == sorted(set(stamps))
    backwards, node = [], tree._older[ROOT]
    while node != ROOT:
        backwards.append(node)
        node = tree._older[node]
    assert backwards == order[::-1]
    for node in range(1, len(tree._labels)):
        listed = node not in free and not tree._edges[node] and not tree._locks[node]
        assert (node in order) == listed
        assert listed or tree._newer[node] == tree._older[node] == node
        assert (node in free) == (not tree._labels[node])
        if node not in free:
            assert tree._stamps[tree._parents[node]] >= tree._stamps[node] or tree._parents[node] == ROOT


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    tree = module.RadixTree(1)
    a, back = tree.insert([1, 2, 3], ["a", "b", "c"])
    assert back == []
    b, back = tree.insert([1, 2, 4, 5], ["x", "y", "d", "e"])
    assert back == ["x", "y"]
    u = tree.parent(a)
    assert (tree.key(u), tree.values(u), tree.key(a), tree.values(b)) == ([1, 2], ["a", "b"], [3], ["d", "e"])
    assert tree.match_prefix([1, 2, 3, 9]) == (3, [u, a])
    assert tree.match_prefix([1, 2, 7]) == (2, [u])
    matched, (v,) = tree.match_prefix([1, 9])
    assert matched == 1 and tree.values(v) == ["a"] and tree.children(v) == [u]
    assert tree.match_prefix([7, 1]) == (0, [])
    assert tree.lru_order() == [b, a]
    assert tree.evict(1) == ["d", "e"]
    assert tree.evict(3) == ["c", "b", "a"]
    assert tree.is_empty() and tree.children(ROOT) == []


def test_locks_of_the_worked_example(module: Any) -> None:
    tree = module.RadixTree(1)
    p, _ = tree.insert([1, 2], [1, 2])
    c, back = tree.insert([1, 2, 3, 4], [8, 9, 3, 4])
    assert back == [8, 9]
    tree.lock(c)
    tree.lock(c)
    assert (tree.lock_count(p), tree.lock_count(c)) == (2, 2)
    tree.unlock(c)
    assert tree.evict(9) == []
    tree.unlock(c)
    assert tree.evict(9) == [3, 4, 1, 2]


def test_a_leaf_comes_back_at_its_own_stamp(module: Any) -> None:
    """From every place of a long order, which the reference looks for from both ends."""
    for n in (1, 2, 3, 8):
        for i in range(n):
            tree = module.RadixTree(1)
            leaves = [tree.insert([t], [t])[0] for t in range(n)]
            tree.lock(leaves[i])
            assert tree.lru_order() == leaves[:i] + leaves[i + 1 :]
            tree.unlock(leaves[i])
            assert tree.lru_order() == leaves


# the twins


def operations(tree: Any, seed: int, n: int, granule: int) -> list[Any]:
    """What a tree answers to random calls; ids are told by their keys, and kept by the order they came in."""
    r = random.Random(seed)
    serial, out, ids = 0, [], [ROOT]
    alphabet, depth = r.choice([(2, 10), (3, 6), (300, 4)])
    locked: list[int] = []
    for _ in range(n):
        tokens: Any = [r.randrange(alphabet) for _ in range(r.randrange(depth * granule))]
        if r.random() < 0.2:
            tokens = r.choice([tuple, lambda t: np.array(t, np.int32), lambda t: np.array(t, np.uint8)])(
                [t % 256 for t in tokens]
            )
        kind = r.random()
        if kind < 0.4:
            tokens = tokens[: len(tokens) // granule * granule]
            values = [(serial := serial + 1) for _ in range(len(tokens) // granule)]
            node, back = tree.insert(tokens, values)
            out.append(back)
            ids.append(node)
        elif kind < 0.7:
            matched, path = tree.match_prefix(tokens)
            assert [token for key in keys(tree, path) for token in key] == list(tokens)[:matched]
            out.append((matched, keys(tree, path)))
            ids.append(([ROOT, *path])[-1])
        elif kind < 0.8:
            node = r.choice(ids)
            if alive(tree, node):
                tree.lock(node)
                locked.append(node)
        elif kind < 0.9 and locked:
            tree.unlock(locked.pop(r.randrange(len(locked))))
        else:
            n = r.randrange(4)
            gone = tree.evict(n)
            out.append(gone)
            ids = [node for node in ids if alive(tree, node)]
        out.append(picture(tree))
        if isinstance(tree, RadixTree):
            check_inside(tree)
    for node in locked:
        tree.unlock(node)
    out.append(tree.evict(10**9))
    assert tree.is_empty() and tree.node_count() == 0
    return out


def alive(tree: Any, node: int) -> bool:
    try:
        tree.key(node)
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("granule", [1, 2, 3])
def test_twins_agree_under_random_use(granule: int) -> None:
    assert len(EQUIVALENTS) >= 3
    for seed in range(8):
        want = operations(RadixTree(granule), seed, 120, granule)
        for twin in EQUIVALENTS:
            assert operations(twin.RadixTree(granule), seed, 120, granule) == want, (twin.__name__, seed)


NONE = ["granule", "len", "is_empty", "node_count", "lru_order"]
NODE = ["key", "values", "parent", "children", "child_count", "lock_count", "lock", "unlock"]
SIGNATURES = {
    **dict.fromkeys(NONE, ()),
    **dict.fromkeys(NODE, ("node",)),
    "match_prefix": ("tokens",),
    "insert": ("tokens", "values"),
    "evict": ("n",),
}


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    for name, wanted in {**SIGNATURES, "__init__": ("granule",), "__len__": ()}.items():
        assert tuple(inspect.signature(getattr(module.RadixTree, name)).parameters)[1:] == wanted
    assert module.ROOT == 0


def test_nothing_else_is_public() -> None:
    assert {name for name in vars(RadixTree) if not name.startswith("_")} == set(SIGNATURES)


# errors


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, -1], "a token must be an int in"),
        ([5, 2**64], "a token must be an int in"),
        ([1, 2.0], "a token must be an int in"),
        ([1, "2"], "a token must be an int in"),
        ("12", "must be a list, a tuple or an array, got str"),
        (None, "must be a list, a tuple or an array, got NoneType"),
        (np.array([1.0, 2.0]), "one row of integers, got float64 of 1 axes"),
        (np.zeros(0), "one row of integers, got float64 of 1 axes"),
        (np.array([True, False]), "one row of integers, got bool"),
        (np.array([[1, 2]]), "one row of integers, got int64 of 2 axes"),
        (np.array(1), "one row of integers, got int64 of 0 axes"),
        (np.array([3, -3], np.int8), "a token must be at least 0, got -3"),
    ],
    ids=repr,
)
def test_refused_tokens(tokens: Any, message: str) -> None:
    tree = RadixTree(1)
    tree.insert([5, 6], ["a", "b"])
    before = picture(tree)
    with pytest.raises(ValueError, match=message):
        tree.match_prefix(tokens)
    with pytest.raises(ValueError, match=message):
        tree.insert(tokens, [1, 2])
    assert picture(tree) == before


def test_other_errors(module: Any) -> None:
    for granule in (0, -1):
        with pytest.raises(ValueError):
            module.RadixTree(granule)
    tree = module.RadixTree(2)
    node, _ = tree.insert([1, 2, 3, 4], ["a", "b"])
    gone, _ = tree.insert([9, 9], ["c"])
    tree.match_prefix([1, 2, 3, 4])
    assert tree.evict(1) == ["c"]
    before = picture(tree)
    for tokens, values in (([1, 2], []), ([1, 2, 3], ["x"]), ([1, 2, 9, 9], ["x", "y", "z"]), ([], ["x"])):
        with pytest.raises(ValueError):
            tree.insert(tokens, values)
    for dead in (-1, -2, gone, 10**9):
        for name in ("key", "values", "parent", "children", "child_count", "lock_count", "lock", "unlock"):
            with pytest.raises(KeyError):
                getattr(tree, name)(dead)
    with pytest.raises(ValueError):
        tree.unlock(node)
    with pytest.raises(ValueError):
        tree.evict(-1)
    for name in ("lock", "unlock"):
        getattr(tree, name)(ROOT)
    assert picture(tree) == before


# copies


def test_nothing_is_shared_with_the_caller(module: Any) -> None:
    tree = module.RadixTree(1)
    tokens, values = np.array([1, 2, 3]), ["a", "b", "c"]
    node, back = tree.insert(tokens, values)
    before = picture(tree)
    back.append("x")
    tokens[:] = 9
    values[:] = "xyz"
    for answer in (tree.key(node), tree.values(node), tree.children(ROOT), tree.lru_order()):
        answer.clear()
    tree.match_prefix([1, 2, 3])[1].clear()
    assert picture(tree) == before


def test_values_are_opaque(module: Any) -> None:
    class Opaque:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        def __bool__(self) -> bool:
            raise AssertionError("asked for its truth")

        def __copy__(self) -> Any:
            raise AssertionError("copied")

    tree, stored = module.RadixTree(1), [Opaque() for _ in range(3)]
    node, _ = tree.insert([1, 2, 3], stored)
    _, back = tree.insert([1, 2, 4], [again := Opaque(), Opaque(), Opaque()])
    assert back[0] is again and tree.values(node)[0] is stored[2]
    tree.match_prefix([1, 2, 3])
    tree.match_prefix([1, 2, 4])
    assert tree.evict(1)[0] is stored[2]
    last = tree.evict(9)
    assert len(last) == 3 and last[1] is stored[0] and last[2] is stored[1]


# cost


def test_slots_are_reused() -> None:
    tree = RadixTree(1)
    for i in range(1000):
        tree.insert([i % 7, 1, 2], [i] * 3)
        tree.insert([i % 7, 1, 3], [i] * 3)
        tree.evict(6)
    assert tree.is_empty() and len(tree._labels) <= 4


def test_a_path_deeper_than_the_call_stack(module: Any) -> None:
    tree = module.RadixTree(1)
    n = 1200 if module is radix_tree else 60
    tokens = list(range(n))
    for i in range(1, n + 1):
        node, _ = tree.insert(tokens[:i], tokens[:i])
    assert len(tree.match_prefix(tokens)[1]) == n
    tree.lock(node)
    assert tree.lock_count(tree.children(ROOT)[0]) == 1
    tree.unlock(node)
    assert tree.evict(n) == tokens[::-1]


def test_memory_is_that_of_what_is_stored() -> None:
    """8 bytes a token and a pointer a value; a shared beginning is stored once; eviction gives it back."""
    shared = list(range(70000, 74096))
    tracemalloc.start()
    tree = RadixTree(16)
    for i in range(50):
        tree.insert(shared + [i] * 16, [None] * 257)
    grown, _ = tracemalloc.get_traced_memory()
    tree.evict(10**9)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 2 * (4096 * 8 + 256 * 8) + 50 * 2000
    assert left < 20_000


def seconds(call: Any, times: int = 5) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def slow_match(stored: list[int], tokens: list[int]) -> int:
    """The simple loop: one comparison of Python ints for each token."""
    n = 0
    for a, b in zip(stored, tokens, strict=False):
        if a != b:
            break
        n += 1
    return n


def test_tokens_are_compared_at_the_speed_of_bytes() -> None:
    """Faster than a loop over the tokens even when its own conversion is counted: measured 4 to 6 times."""
    stored = list(range(1000, 33000))
    asked = [int(str(token)) for token in stored]
    tree = RadixTree(16)
    tree.insert(stored, list(range(2000)))
    assert tree.match_prefix(asked) == (32000, tree.lru_order())
    assert slow_match(stored, asked) == 32000
    assert seconds(lambda: tree.match_prefix(asked)) < seconds(lambda: slow_match(stored, asked))


def test_an_operation_does_not_look_at_every_leaf() -> None:
    """16 times the leaves: a scan of all of them would cost 16 times as much."""

    def rounds(n: int) -> float:
        tree = RadixTree(1)
        for i in range(n):
            tree.insert([i, 1], [i, i])
        oldest, newest = tree.lru_order()[0], tree.lru_order()[-1]

        def use() -> None:
            for _ in range(200):
                for node in (oldest, newest):
                    tree.lock(node)
                    tree.unlock(node)
                tree.match_prefix([n - 1, 1])

        return seconds(use)

    assert rounds(16000) < 6 * rounds(1000)


def test_a_parent_finds_its_place_at_the_end_where_its_child_was() -> None:
    """Half of all evicted nodes are parents that were last used with their last child."""

    def evict_all(n: int) -> float:
        best = float("inf")
        for _ in range(3):
            tree = RadixTree(1)
            for i in range(n):
                tree.insert([i], [i])
                tree.insert([i, 1], [i, i])
            start = time.process_time()
            assert len(tree.evict(2 * n)) == 2 * n
            best = min(best, time.process_time() - start)
        return best / n

    assert evict_all(8000) < 6 * evict_all(500)
