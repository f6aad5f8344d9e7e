"""The radix-tree oracle against the page's numbers, the course's tables, and laws that need no oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "radix_tree"
oracle = import_file(FOLDER / "oracle.py", "radix_tree_oracle_under_test")
Runs = oracle.Runs


def letters(text: str) -> list[str]:
    return list(text)


# -- the page ---------------------------------------------------------------------------------------------


def test_example_of_the_page() -> None:
    tree = Runs(1)
    a, back = tree.insert([1, 2, 3], letters("abc"))
    assert back == []
    b, back = tree.insert([1, 2, 4, 5], letters("xyde"))
    assert back == ["x", "y"]
    u = tree.parent(a)
    assert (tree.key(u), tree.values(u), tree.children(u)) == ([1, 2], ["a", "b"], [a, b])
    assert (tree.key(a), tree.values(a), tree.key(b), tree.values(b)) == ([3], ["c"], [4, 5], ["d", "e"])
    assert tree.match_prefix([1, 2, 3, 9]) == (3, [u, a])
    assert tree.match_prefix([1, 2, 7]) == (2, [u])
    matched, [v] = tree.match_prefix([1, 9])
    assert (matched, tree.key(v), tree.key(u), tree.children(v)) == (1, [1], [2], [u])
    assert tree.match_prefix([7, 1]) == (0, [])
    assert tree.lru_order() == [b, a]
    assert tree.evict(1) == ["d", "e"]
    assert tree.evict(3) == ["c", "b", "a"]
    assert tree.is_empty() and tree.node_count() == 0


def test_pairs_of_the_page() -> None:
    tree = Runs(2)
    tree.insert([1, 2, 3, 4], [10, 11])
    assert [tree.match_prefix(t)[0] for t in ([1, 2, 3, 9], [1], [1, 3, 3, 4])] == [2, 0, 0]
    assert tree.node_count() == 2


def test_locks_of_the_page() -> None:
    tree = Runs(1)
    p, _ = tree.insert([1, 2], [1, 2])
    c, back = tree.insert([1, 2, 3, 4], [8, 9, 3, 4])
    assert back == [8, 9]
    tree.lock(c)
    tree.lock(c)
    assert (tree.lock_count(p), tree.lock_count(c), tree.lock_count(0)) == (2, 2, 0)
    tree.unlock(c)
    assert tree.evict(9) == []
    tree.unlock(c)
    assert tree.evict(9) == [3, 4, 1, 2]
    with pytest.raises(KeyError):
        tree.unlock(c)


def test_small_ones_of_the_page() -> None:
    tree = Runs(1)
    n, _ = tree.insert([1, 2, 3, 4], [1, 2, 3, 4])
    tree.lock(n)
    leaf, _ = tree.insert([1, 2, 9], [7, 8, 9])
    upper = tree.parent(n)
    assert [tree.lock_count(x) for x in (upper, n, leaf)] == [1, 1, 0]
    tree.unlock(n)
    assert [tree.lock_count(x) for x in (upper, n, leaf)] == [0, 0, 0]
    tree = Runs(1)
    a, b = tree.insert([1, 2], [1, 2])[0], tree.insert([5], [5])[0]
    tree.match_prefix([1])
    assert tree.lru_order() == [a, b]
    tree = Runs(1)
    a, _ = tree.insert([1], [1])
    b, _ = tree.insert([1, 2], [0, 2])
    c, _ = tree.insert([5], [5])
    assert tree.lru_order() == [b, c]
    assert tree.evict(1) == [2]
    assert tree.lru_order() == [a, c]


def test_what_is_refused_and_what_is_open() -> None:
    tree = Runs(2)
    for bad in ([1, 2, 3], [1]):
        with pytest.raises(ValueError, match="values"):
            tree.insert(bad, [5])
    for bad in ([1, -1], np.array([1.0, 2.0]), np.array([[1, 2]]), np.array([True, False])):
        with pytest.raises(ValueError, match="token"):
            tree.match_prefix(bad)
    for refused in (lambda: Runs(0), lambda: tree.evict(-1)):
        with pytest.raises(ValueError, match=r"^(granule|n)$"):
            refused()
    n, _ = tree.insert([1, 2, 3, 4], [1, 2])
    tree.lock(n)
    _, [upper] = tree.match_prefix([1, 2])
    with pytest.raises(oracle.Ungraded):
        tree.unlock(upper)  # pinned through n alone


# -- laws ---------------------------------------------------------------------------------------------------


def whole(tree: Any, node: int) -> list[int]:
    """The tokens from ROOT to the end of a node, by its public methods."""
    tokens: list[int] = []
    while node:
        tokens = tree.key(node) + tokens
        node = tree.parent(node)
    return tokens


def check_shape(tree: Any) -> None:
    """What every tree of this kind obeys, whatever happened."""
    nodes, todo = [], [0]
    while todo:
        node = todo.pop()
        children = tree.children(node)
        firsts = [tree.key(c)[: tree.g] for c in children]
        assert firsts == sorted(firsts)
        assert len({tuple(f) for f in firsts}) == len(firsts)
        assert all(tree.parent(c) == node for c in children)
        if node:
            assert len(tree.key(node)) == tree.g * len(tree.values(node)) > 0
            assert tree.lock_count(node) >= sum(tree.lock_count(c) for c in children)
        todo += children
        nodes += children
    assert len(nodes) == len(set(nodes)) == tree.node_count()
    assert sum(len(tree.values(n)) for n in nodes) == len(tree) == tree.len()
    free = {n for n in nodes if not tree.children(n) and not tree.lock_count(n)}
    assert set(tree.lru_order()) == free and len(tree.lru_order()) == len(free)


@pytest.mark.parametrize("granule", [1, 2, 3])
def test_random_trees_keep_their_shape_and_their_values(granule: int) -> None:
    for i in range(2):
        driver = oracle.Driver(Chooser(11, i), granule, 3, 3, oracle.USUAL)
        inside: dict[int, tuple[int, ...]] = {}  # value -> the tokens that it ends
        for _ in range(100):
            step = driver.step()
            answer = driver.run(step)
            check_shape(driver.runs)
            if "raises" in answer:
                continue
            if step["do"] == "insert":
                tokens, values = [int(t) for t in step["args"]["tokens"]], step["args"]["values"]
                node, back = answer["return"]
                assert whole(driver.runs, node) == tokens
                assert back == values[: len(back)]
                for k in range(len(back), len(values)):
                    inside[values[k]] = tuple(tokens[: (k + 1) * granule])
            if step["do"] == "evict":
                for value in answer["return"]:
                    del inside[value]
            if step["do"] == "match_prefix":
                matched, path = answer["return"]
                tokens = [int(t) for t in step["args"]["tokens"]]
                assert whole(driver.runs, path[-1] if path else 0) == tokens[:matched]
                longest = max((len(k) for k in inside.values() if list(k) == tokens[: len(k)]), default=0)
                assert matched == longest
        assert sorted(inside) == sorted(driver.runs.stored.values())


@pytest.mark.parametrize("granule", [1, 2])
def test_evict_one_takes_exactly_the_oldest_unlocked_leaf(granule: int) -> None:
    for i in range(4):
        driver = oracle.Driver(Chooser(12, i), granule, 3, 3, "insert insert match lock unlock")
        for _ in range(120):
            driver.run(driver.step())
            order = driver.runs.lru_order()
            if len(order) > 3:
                oldest = driver.runs.values(order[0])
                assert driver.runs.evict(1) == oldest
                assert order[0] not in driver.runs.label.values()
                assert set(order[1:]) <= set(driver.runs.lru_order())


def test_the_chain_model_agrees_with_the_other() -> None:
    depth, seen = 30, []
    for model in (oracle.Chain(1), oracle.Model(1)):
        answers = []
        name = {}  # what the chain calls k is another number in the other one
        for step in oracle.ladder(Chooser(1, 0), depth):
            args = {k: name[v["label"]] if isinstance(v, dict) else v for k, v in step["args"].items()}
            answer = getattr(model, step["do"])(**args)
            if step["do"] == "insert":
                name[depth] = answer[0]["labels"]
            if step["do"] == "match_prefix":
                assert len(answer[1]["labels"]) == 1
                name[answer[0]] = answer[1]["labels"][0]
                answer = answer[0]
            answers.append(answer if step["do"] != "insert" else None)
        seen.append(answers)
    assert seen[0] == seen[1]


# -- the generated trace ----------------------------------------------------------------------------------


def test_generated_traces_reach_every_kind_of_step() -> None:
    document = oracle.generate()["trace.gen.yaml"]
    assert document == oracle.generate()["trace.gen.yaml"]
    for case in document["cases"]:
        steps = case["steps"]
        assert len(steps) >= 300
        done = {s["do"] for s in steps}
        assert done >= {"insert", "match_prefix", "lock", "unlock", "evict", "key", "children"}
        assert {s.get("raises") for s in steps} == {None, "ValueError", "KeyError"}
        evicted = [s["return"] for s in steps if s["do"] == "evict" and "return" in s]
        assert sum(map(len, evicted)) > 20
        assert any(len(e) > s["args"]["n"] for s, e in zip(
            [s for s in steps if s["do"] == "evict" and "return" in s], evicted, strict=True))  # fmt: skip


def test_the_given_generator() -> None:
    rng = oracle.PCG32(42)
    assert [rng.next_u32() for _ in range(3)] == [0xA15C02B7, 0x7B47F409, 0xBA1D3330]
    rng = oracle.PCG32(1)
    assert [rng.below(10) for _ in range(8)] == [7, 0, 9, 4, 2, 7, 6, 7]
