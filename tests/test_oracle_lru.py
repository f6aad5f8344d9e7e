"""The lru oracle against the numbers of the page, and against OrderedDict, which says the same otherwise."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "lru"
oracle = import_file(FOLDER / "oracle.py", "lru_oracle_under_test")


def age(letter: str) -> tuple[str, int]:
    return "box", oracle.LETTERS.index(letter) * oracle.ITEM + oracle.AGE


def filled(letters: str) -> Any:
    lists = oracle.Lists()
    lists.init("it")
    for letter in letters:
        lists.touch("it", age(letter))
    return lists


def order(lists: Any) -> str:
    text = oracle.look_of(lists)["order"]
    assert isinstance(text, str)
    return text


# -- the page ---------------------------------------------------------------------------------------------


def test_example_of_the_page() -> None:
    lists, seen = filled(""), []
    for letter in "abca":
        lists.touch("it", age(letter))
        seen.append(order(lists))
    assert seen == ["a", "a b", "a b c", "b c a"]
    popped = [lists.pop("it") for _ in range(4)]
    assert popped == [age("b"), age("c"), age("a"), None]
    assert order(lists) == ""


def test_small_ones_of_the_page() -> None:
    assert order(filled("aa")) == "a"
    lists = filled("abc")
    for _ in range(2):
        lists.remove("it", age("b"))
        assert order(lists) == "a c" and lists.link(age("b"), "it", 1) is None
    lists.touch("it", age("b"))
    assert order(lists) == "a c b"
    lists = filled("abcdef")
    assert lists.thin("it") == 3 and order(lists) == "a c e"
    lists = filled("")
    assert [lists.pop("it"), lists.pop("it")] == [None, None]


def test_links_make_a_circle_through_the_sentinel() -> None:
    for letters in ("", "a", "ab", "cabfed"):
        lists = filled(letters)
        nodes = [("it", 0), *map(age, letters)]
        for i, node in enumerate(nodes):
            after = nodes[(i + 1) % len(nodes)]
            assert lists.link(node, "it", 1) == {"ref": after[0], "at": after[1]}
            assert lists.link(after, "it", -1) == {"ref": node[0], "at": node[1]}


def test_a_node_of_another_list_is_not_graded() -> None:
    lists = filled("a")
    lists.init("other")
    for call in (lists.touch, lists.remove):
        with pytest.raises(ValueError, match="another list"):
            call("other", age("a"))


# -- names ------------------------------------------------------------------------------------------------


def test_nodes_by_their_names() -> None:
    ref = {"ref": "box", "field": "c.by_use"}
    assert oracle.node_of(ref, {}) == ("box", 2 * 56 + 32) and oracle.shown(("box", 144)) == "c.use"
    assert oracle.node_of({"ref": "p"}, {"p": {"ref": "box", "at": 8}}) == age("a")
    assert oracle.node_of({"ref": "first"}, {}) == ("first", 0)
    assert oracle.text_of([age("a"), ("first", 0), age("b")]) == "a ?"
    told = oracle.expect({"call": "drv_by_use", "args": {"n": ref}})
    assert told == {"return": {"ref": "box", "at": 112}}


# -- tapes ------------------------------------------------------------------------------------------------


def replayed(ops: Any) -> list[tuple[int, int, list[int]]]:
    """Length, what pop gave, and the order after each operation, by ordered dictionaries."""
    shelves: list[OrderedDict[int, None]] = [OrderedDict(), OrderedDict()]
    told = []
    for kind, which, item in ops.tolist():
        shelf, popped = shelves[which], 0
        if kind == oracle.TOUCH:
            shelf[item] = None
            shelf.move_to_end(item)
        elif kind == oracle.REMOVE:
            shelf.pop(item, None)
        else:
            popped = shelf.popitem(last=False)[0] if shelf else -1
        told.append((len(shelf), popped, list(shelf)))
    return told


@pytest.mark.parametrize(("n", "items", "lists"), [(40, 3, 1), (120, 6, 2), (850, 32, 1), (850, 32, 2)])
def test_tapes_are_as_ordered_dictionaries_say(n: int, items: int, lists: int) -> None:
    longest, kinds, empty = 0, set(), 0
    for i in range(12):
        drawn = oracle.operations(Chooser(1, i), n, items, lists)
        assert drawn["rows"] == {"buffer": f"i8[{drawn['n']}, 70]"}
        told = oracle.played(drawn["ops"], drawn["n"])
        assert told["value"] == 0 and told["rows"].dtype == np.int8
        for row, (length, popped, items_left) in zip(told["rows"], replayed(drawn["ops"]), strict=True):
            pad = [-1] * (oracle.WALK - length)
            assert row.tolist() == [length, popped, *items_left, *pad, *items_left[::-1], *pad]
            longest, empty = max(longest, length), empty + (popped == -1)
        kinds |= set(drawn["ops"][:, 0].tolist())
    assert kinds == {0, 1, 2} and longest >= min(items, 20) and (empty or items > 6)
