"""The reference of `constrained`: Python's `re`, twins of other make under random use, the cost of masks."""

from __future__ import annotations

import json
import random
import re
import time
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import constrained
from impl.constrained import DEAD, TokenIndex, json_schema_to_dfa, json_schema_to_regex, regex_to_dfa

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "constrained"
EQUIVALENTS = [import_file(p, f"constrained_{p.stem}") for p in sorted((FOLDER / "equivalents").glob("*.py"))]
BENCH = import_file(FOLDER / "bench.py", "bench_of_constrained")
STRING = {"type": "string"}


@pytest.fixture(params=EQUIVALENTS, ids=lambda module: module.__name__)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


ITEMS = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    r"\d",
    r"[^\n]",
    "(?:)",
    r"\xff",
    r"[\x80-\xff]",
    r"\S",
    r"\W",
    r"[\w-]",
]
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{0}", "{2,}", "{0,2}"]


def expression(r: random.Random, depth: int) -> str:
    kind = r.random() if depth else 0.0
    if kind < 0.3:
        return r.choice(ITEMS)
    if kind < 0.5:
        return expression(r, depth - 1) + expression(r, depth - 1)
    if kind < 0.7:
        return f"({expression(r, depth - 1)}|{expression(r, depth - 1)})"
    return f"(?:{expression(r, depth - 1)}){r.choice(REPEATS)}"


def test_whole_matches_are_those_of_python() -> None:
    r = random.Random(1)
    for _ in range(300):
        pattern = expression(r, 4)
        dfa, known = regex_to_dfa(pattern), re.compile(pattern.encode())
        for _ in range(30):
            text = bytes(r.choice(b"abc0_ \n\xff\x80") for _ in range(r.randrange(9)))
            assert dfa.matches(text) == (known.fullmatch(text) is not None), (pattern, text)


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a.trans, b.trans) and np.array_equal(a.accept, b.accept)


def test_automata_are_those_of_the_twins(twin: ModuleType) -> None:
    r = random.Random(2)
    for _ in range(100):
        pattern = expression(r, 3)
        assert same(regex_to_dfa(pattern), twin.regex_to_dfa(pattern)), pattern


def test_no_two_states_are_equal_and_all_live() -> None:
    r = random.Random(3)
    for _ in range(60):
        dfa = regex_to_dfa(expression(r, 4))
        S = dfa.n_states
        apart = dfa.accept[:, None] != dfa.accept[None, :]  # the dumb table of pairs, DEAD as state S
        apart = np.pad(apart, (0, 1))
        apart[S, :S] = apart[:S, S] = dfa.accept
        columns = np.unique(dfa.trans, axis=1)
        while True:
            more = apart.copy()
            more[:S, :S] |= apart[columns[:, None, :], columns[None, :, :]].any(axis=2)
            more[:S, S] |= apart[columns, S].any(axis=1)
            more[S, :S] = more[:S, S]
            if np.array_equal(more, apart):
                break
            apart = more
        assert (apart | np.eye(S + 1, dtype=bool)).all()  # apart from DEAD: every state is live


def schema(r: random.Random, depth: int) -> dict[str, Any]:
    kind = r.randrange(8) if depth else r.randrange(5)
    if kind < 3:
        return {"type": r.choice(["string", "integer", "number", "boolean", "null"])}
    if kind < 5:
        values = ["é", 'a"b', "x.y", 1, -2.5, True, None, [1, {"k": []}], {"a|b": 0}, "\\", "\x7f"]
        chosen = r.sample(values, r.randrange(1, 4))
        return {"enum": chosen} if r.random() < 0.7 else {"const": chosen[0]}
    if kind == 5:
        return {"anyOf": [schema(r, depth - 1) for _ in range(r.randrange(1, 4))]}
    if kind == 6:
        low = r.randrange(3)
        more = {"minItems": low} | ({"maxItems": low + r.randrange(3)} if r.random() < 0.6 else {})
        return {"type": "array", "items": schema(r, depth - 1)} | (more if r.random() < 0.8 else {})
    names = r.sample(["a", "b", "x.y", "é", 'q"', "", "a*"], r.randrange(5))
    required = [name for name in names if r.random() < 0.5]
    return {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}, "required": required}


def test_schemas_are_those_of_the_twins(twin: ModuleType) -> None:
    r = random.Random(4)
    for _ in range(40):
        asked = schema(r, 2)
        assert same(json_schema_to_dfa(asked), twin.json_schema_to_dfa(asked)), asked


def test_walks_that_end_are_json() -> None:
    r = random.Random(5)
    ended = 0
    for _ in range(40):
        asked = schema(r, 3)
        dfa = json_schema_to_dfa(asked)
        text, state = b"", 0
        for n in range(400):
            ways = np.flatnonzero(dfa.trans[state] != DEAD)
            if dfa.accept[state] and (len(ways) == 0 or n > 60 or r.random() < 0.3):
                break
            closing = [b for b in b'"]},0' if b in ways] if n > 40 else []
            text += bytes([closing[0] if closing else r.choice(ways.tolist())])
            state = dfa.step(0, text)
        if dfa.accept[state]:
            json.loads(text)
            ended += 1
    assert ended >= 30


def test_masks_are_those_of_the_twins(twin: ModuleType) -> None:
    r = random.Random(6)
    alphabet = [b"a", b"b", b"0", b"\xff", b"_", b"\n", b"\x80"]
    for _ in range(60):
        pattern = expression(r, 3)
        vocab: list[bytes | None] = [b"".join(r.choices(alphabet, k=r.randrange(4))) for _ in range(40)]
        vocab[r.randrange(40)] = None
        eos = r.choice([None, r.randrange(40)])
        mine, other = (m.TokenIndex(m.regex_to_dfa(pattern), vocab, eos) for m in (constrained, twin))
        for state in range(mine.dfa.n_states):
            mask = mine.mask(state)
            assert np.array_equal(mask, other.mask(state)), (pattern, vocab, eos, state)
            steps = [mine.next_state(state, t) for t in range(40)]
            assert steps == [other.next_state(state, t) for t in range(40)]
            assert np.array_equal(mask, [step != DEAD for step in steps])


def test_pattern_grows_with_the_square_of_the_properties() -> None:
    def length(n: int) -> int:
        properties = {f"p{i:03}": {"type": "null"} for i in range(n)}
        return len(json_schema_to_regex({"type": "object", "properties": properties}))

    assert length(80) < 4.5 * length(40) < 20 * length(20)


def test_deep_groups_and_long_chains() -> None:
    assert regex_to_dfa("(" * 5000 + "a" + ")" * 5000).n_states == 2
    start = time.perf_counter()
    assert regex_to_dfa("(?:a{256}b){16}").n_states == 16 * 257 + 1
    integers = {"type": "array", "items": {"type": "integer"}, "minItems": 256, "maxItems": 256}
    assert json_schema_to_dfa(integers).n_states == 4 * 256 + 2
    assert time.perf_counter() - start < 10  # 0.3 s; rounds over all states would take minutes


# the cost of masks


@pytest.fixture(scope="module")
def large() -> TokenIndex:
    """128k tokens, real ones where there are some."""
    return TokenIndex(regex_to_dfa(BENCH.pattern(BENCH.IN_BYTES)), BENCH.vocabulary(131072), BENCH.EOS)


def states_of_the_text(dfa: Any) -> list[int]:
    return [dfa.step(0, BENCH.TEXT[:n]) for n in range(BENCH.STEPS)]


def test_the_text_of_the_bench_visits_100_states(large: TokenIndex) -> None:
    states = states_of_the_text(large.dfa)
    assert DEAD not in states
    assert len(set(states)) >= 100
    assert large.dfa.matches(BENCH.TEXT)
    known = re.compile(BENCH.pattern(BENCH.IN_CHARACTERS))
    assert known.fullmatch(BENCH.TEXT.decode())
    assert same(large.dfa, regex_to_dfa(BENCH.pattern(json_schema_to_regex(STRING))))


def test_a_state_is_walked_once(large: TokenIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    real = constrained._Trie.reached

    def counted(self: Any, steps: Any, state: int) -> Any:
        walks.append(state)
        return real(self, steps, state)

    monkeypatch.setattr(constrained._Trie, "reached", counted)
    index = TokenIndex(large.dfa, [b'"', b"a", b"{", None], 3)
    states = states_of_the_text(large.dfa)
    first = [index.mask(state) for state in states]
    again = [index.mask(state) for state in states]
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert sorted(walks) == sorted(set(states))
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        first[0].flags.writeable = True


def test_masks_are_quick_and_small(large: TokenIndex) -> None:
    states = sorted(set(states_of_the_text(large.dfa)))
    tracemalloc.start()
    spent = []
    for state in states:
        start = time.process_time()
        large.mask(state)
        spent.append(time.process_time() - start)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < len(states) * (large.vocab_size + 2000)
    assert max(spent) < 0.02  # 8 ms
    start = time.process_time()
    for _ in range(1000):
        large.mask(states[5])
    assert (time.process_time() - start) / 1000 < 5e-6  # 0.1 us


def test_bench_runs() -> None:
    assert BENCH.prepare("visited-32k", "impl")() < BENCH.prepare("person-32k", "impl")()
