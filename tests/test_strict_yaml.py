"""The strict YAML reader: what it takes, what it refuses and where, spans, and the flow writer."""

from __future__ import annotations

import doctest
import gc
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader import strict_yaml
from grader.errors import OwnFault
from grader.strict_yaml import MAX_BYTES, MAX_DEPTH, Path, load, load_marked, splice, to_flow


@pytest.fixture(params=["libyaml", "pure"], autouse=True, scope="module")
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs on libyaml and on the parser that takes its place where libyaml is missing."""
    chosen = strict_yaml._C_PARSER if request.param == "libyaml" else strict_yaml._PureParser
    if chosen is None:
        pytest.skip("PyYAML was built without libyaml")
    before = strict_yaml._EventParser
    strict_yaml._EventParser = chosen
    yield
    strict_yaml._EventParser = before


def error(text: str | bytes) -> str:
    with pytest.raises(OwnFault) as caught:
        load(text, "f.yaml")
    with pytest.raises(OwnFault) as marked:
        load_marked(text, "f.yaml")
    assert str(marked.value) == str(caught.value)
    return str(caught.value)


def same(got: Any, want: Any) -> bool:
    """Equal values of equal types: 1, 1.0 and True differ, and so do 0.0 and -0.0; keys in order."""
    if type(got) is not type(want):
        return False
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[k], want[k]) for k in want)
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, float):
        return bool(got == want and math.copysign(1, got) == math.copysign(1, want))
    return bool(got == want)


def test_libyaml_is_used_where_it_is_there() -> None:
    if yaml.__with_libyaml__:
        assert strict_yaml._C_PARSER is not None


def test_doctests() -> None:
    results = doctest.testmod(strict_yaml)
    assert results.attempted >= 2
    assert results.failed == 0


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1", 1),
        ("0", 0),
        ("-7", -7),
        ("18446744073709551615", 2**64 - 1),
        ("1.0", 1.0),
        ("-0.0", -0.0),
        ("1e5", 1e5),
        ("1e-5", 1e-5),
        ("1E+05", 1e5),
        ("-2.5e-3", -0.0025),
        ("1e-400", 0.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("''", ""),
        (r'"\u2028\x41\n"', "\u2028A\n"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        ("y", "y"),
        ("3f800000", "3f800000"),
        ("1.2.3", "1.2.3"),
        ("0x1g", "0x1g"),
        ("12 30", "12 30"),
        ("a:b", "a:b"),
        ("one\ntwo", "one two"),
        ("|\n  010\n", "010\n"),
        (">-\n  ~\n", "~"),
        ("mass >= p", "mass >= p"),
        ("caf\u00e9 \U0001d11e", "caf\u00e9 \U0001d11e"),
        ("[1, 2,]", [1, 2]),
        ("[]", []),
        ("{}", {}),
        ("{a: [1, 2.5, {b: null}], c: x}", {"a": [1, 2.5, {"b": None}], "c": "x"}),
        ('{"a":1}', {"a": 1}),
        ("- a: 1\n  b:\n  - 2\n- - 3\n", [{"a": 1, "b": [2]}, [3]]),
        ("? a\n: 1\n", {"a": 1}),
        ("'1': x\n'': y\n", {"1": "x", "": "y"}),
        ("on: rng\noff: 2\nno: 3\nyes: 4\n", {"on": "rng", "off": 2, "no": 3, "yes": 4}),
        ("---\na: 1\n...\n", {"a": 1}),
        ("a: 1\r\nb: two\r\n", {"a": 1, "b": "two"}),
        ("a: [1,  # first\n    2]  # second\n", {"a": [1, 2]}),
    ],
)
def test_values(text: str, want: Any) -> None:
    assert same(load(text, "f.yaml"), want)
    assert same(load(text.encode(), "f.yaml"), want)
    assert same(load_marked(text, "f.yaml").value, want)


def test_keys_keep_their_order() -> None:
    assert list(load("{z: 1, a: 2, m: 3}", "f.yaml")) == ["z", "a", "m"]


def test_the_deepest_nesting() -> None:
    value = load("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f.yaml")
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_the_collector_is_off_only_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    build = strict_yaml._build

    def spy(*args: Any) -> Any:
        seen.append(gc.isenabled())
        return build(*args)

    monkeypatch.setattr(strict_yaml, "_build", spy)
    assert gc.isenabled()
    load("1", "f.yaml")
    load_marked("1", "f.yaml")
    error("a: &x 1")
    assert gc.isenabled()
    gc.disable()
    try:
        load("1", "f.yaml")
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False] * 5


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "line", "what", "fix"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "key a stands twice in one mapping", "remove one"),
        ("{a: 1,\n 'a': 2}", 2, "key a stands twice in one mapping", "remove one"),
        ("x: 1\na: &x 1\n", 2, "an anchor", "write the value out"),
        ("a: &x [1]\n", 1, "an anchor", "write the value out"),
        ("a: &x\n  b: 1\n", 1, "an anchor", "write the value out"),
        ("&k a: 1\n", 1, "an anchor", "write the value out"),
        ("a: 1\nb: *x\n", 2, "an alias", "write the value out"),
        ("*a : 1\n", 1, "an alias", "write the value out"),
        ("a: 1\n<<: {b: 1}\n", 2, "a merge key (<<)", 'write the keys out, or quote it: "<<"'),
        ("a: !!str 1\n", 1, "a tag", "write typed values as {f32: ..}"),
        ("\na: ! x\n", 2, "a tag", "write typed values as {f32: ..}"),
        ("a: ! 'x'\n", 1, "a tag", "write typed values as {f32: ..}"),
        ("a: ! [1]\n", 1, "a tag", "write typed values as {f32: ..}"),
        ("a: !!map {b: 1}\n", 1, "a tag", "write typed values as {f32: ..}"),
        ("!!str a: 1\n", 1, "a tag", "write typed values as {f32: ..}"),
        ("%YAML 1.2\n---\na: 1\n", 1, "a % directive", "remove it"),
        ("# x\n\n%TAG ! !x\n---\na: 1\n", 3, "a % directive", "remove it"),
        ("# x\r\n\r\n%FOO\r\n---\r\na: 1\r\n", 3, "a % directive", "remove it"),
        ("a: 1\n---\nb: 1\n", 2, "a second document", "one file has one document"),
        ("---\na: 1\n...\n---\nb: 2\n", 4, "a second document", "one file has one document"),
        ("", 1, "an empty file", "write the document or remove the file"),
        ("# nothing\n\n", 1, "an empty file", "write the document or remove the file"),
        ("a: 1\nb:\nc: 2\n", 2, "an empty value", 'write null, "" or the value'),
        ("a:", 1, "an empty value", 'write null, "" or the value'),
        ("- 1\n-\n", 2, "an empty value", 'write null, "" or the value'),
        ("{a: , b: 1}", 1, "an empty value", 'write null, "" or the value'),
        ("{a, b: 1}", 1, "an empty value", 'write null, "" or the value'),
        ("{a:1}", 1, "an empty value", 'write null, "" or the value'),
        ("---\n", 2, "an empty value", 'write null, "" or the value'),
        ("? a\n? b\n: 1\n", 2, "an empty value", 'write null, "" or the value'),
        ("?\n: 1\n", 1, "an empty key", 'quote it: ""'),
        ("a: 1\n2: 3\n", 2, "a key that is not a string: 2", 'quote it: "2"'),
        ("1.5: x", 1, "a key that is not a string: 1.5", 'quote it: "1.5"'),
        ("010: x", 1, "a key that is not a string: 010", 'quote it: "010"'),
        ("true: x", 1, "a key that is not a string: true", 'quote it: "true"'),
        ("null: x", 1, "a key that is not a string: null", 'quote it: "null"'),
        ("~: x", 1, "a key that is not a string: ~", 'quote it: "~"'),
        ("On: x", 1, "a key that is not a string: On", 'quote it: "On"'),
        ("=: x", 1, "a key that is not a string: =", 'quote it: "="'),
        ("2026-01-02: x", 1, "a key that is not a string: 2026-01-02", 'quote it: "2026-01-02"'),
        ("a: 1\n{b: 1}: 2\n", 2, "a key that is not a string", "write a plain or quoted string"),
        ("? [1]\n: 2\n", 1, "a key that is not a string", "write a plain or quoted string"),
        ("a:\n  [b: 1]\n", 2, "a pair inside [ ] without braces", "write [{key: value}]"),
        ("[{a: 1}, ? b : 1]", 1, "a pair inside [ ] without braces", "write [{key: value}]"),
        ("a: [1, 2\n  , -0]", 2, "-0 is no integer", "write 0 or -0.0"),
        ("a: 1\nb: 1e400\n", 2, "1e400 overflows a float", 'write "inf" or "-inf", or quote it'),
        ("-1.5e999", 1, "-1.5e999 overflows a float", 'write "inf" or "-inf", or quote it'),
        ("9" * 5000, 1, "an integer of 5000 digits", "quote it"),
        ("\n" + "[" * 65 + "]" * 65, 2, "nested deeper than 64", "flatten the value"),
        ("- " * 65 + "x", 1, "nested deeper than 64", "flatten the value"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8: byte 0xff", "save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, "not UTF-8: byte 0xff", "save the file as UTF-8"),
        ("a: 1\nb: \ud800", 2, "not UTF-8: lone surrogate U+D800", "save the file as UTF-8"),
        ("\ufeffa: 1", 1, "a byte order mark (U+FEFF)", "save the file as UTF-8 without it"),
        ("a: 1\nb: \x01\n", 2, "control character U+0001", r'write "\u0001" in double quotes'),
        ("a: 'x\x00'", 1, "control character U+0000", r'write "\u0000" in double quotes'),
        ("a: x\x85y", 1, "control character U+0085", r'write "\u0085" in double quotes'),
        ("a: 1\nb: x\u2028y", 2, "control character U+2028", r'write "\u2028" in double quotes'),
        ("a: \uffff", 1, "control character U+FFFF", r'write "\uffff" in double quotes'),
        ("a:\n\t- 1\n", 2, "a tab", r"use spaces; in a double-quoted string write \t"),
        ("a: 1\t# x", 1, "a tab", r"use spaces; in a double-quoted string write \t"),
        ("a: 1\rb: 2", 1, "a carriage return without a line feed", "end lines with a line feed"),
    ],
)
def test_refused(text: str | bytes, line: int, what: str, fix: str) -> None:
    assert error(text) == f"error: {what} · f.yaml:{line} · {fix}"


YAML_ONLY = """
    010 00 08 0o17 .5 -.5 +.5 5. -5. 1.e5 .5e3 0x10 -0x1F 0b101 1_000 1_0.5 +1 +1.5 +1e5 01.5
    ~ Null NULL True TRUE False FALSE on On ON off Off OFF yes Yes YES no No NO = <<
    .inf -.inf +.inf .Inf .INF .nan .NaN .NAN 12:30 1:30:00 -12:30 1:30.5
    2026-01-02 2026-1-2T3:04:05 2001-12-14t21:59:43.10-05:00 2001-12-14T21:59:43Z
""".split()  # noqa: SIM905


@pytest.mark.parametrize("word", [*YAML_ONLY, "2001-12-14 21:59:43.10 -5"])
def test_words_that_only_yaml_reads_as_something_else(word: str) -> None:
    refused = f'{word} is not the same value to every YAML reader · f.yaml:2 · quote it: "{word}", '
    refused += "or write it as JSON does"
    assert error(f"a: 1\nb: {word}\n") == f"error: {refused}"
    assert load(f"a: 1\nb: '{word}'\n", "f.yaml") == {"a": 1, "b": word}
    assert load(f"- |-\n  {word}\n", "f.yaml") == [word]


@given(st.text("0123456789+-._:eExobTtZ yYnNoOfFaAlLuUsSi~=<", min_size=1, max_size=12))
@settings(max_examples=300)
def test_whatever_pyyaml_reads_otherwise_is_refused(word: str) -> None:
    try:
        theirs = yaml.safe_load(f"[{word}]")
    except (yaml.YAMLError, ValueError):
        return
    if not isinstance(theirs, list) or len(theirs) != 1 or isinstance(theirs[0], dict):
        return
    try:
        (ours,) = load(f"[{word}]", "f.yaml")
    except OwnFault:
        return
    # 1e5 is the one thing that we read, as JSON does, and YAML 1.1 reads as text.
    assert same(ours, theirs[0]) or (isinstance(theirs[0], str) and isinstance(ours, float))


def test_a_long_word_is_cut_in_the_message() -> None:
    word = "0" * 100
    assert error(word).startswith(f"error: {'0' * 37}... is not")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: 1\nb: [1,\n2\nc: 3", 4, "flow sequence"),
        ("a: 1\n b: 2\n", 2, "mapping values are not allowed"),
        ("x: 1\na: 'open\n", 3, "unexpected end of stream"),
        ("a: @x\n", 1, "cannot start any token"),
        ("a: 1\n- b\n", 2, "block mapping"),
        ('a: 1\nb: "\\ud800"\n', 2, "invalid Unicode character escape"),
        ('a: 1\nb: "\\U00110000"\n', 2, "invalid Unicode character escape"),
        ('a: "\\q"\n', 1, "unknown escape character"),
    ],
)
def test_syntax_errors_take_the_one_form(text: str, line: int, part: str) -> None:
    message = error(text)
    assert message.startswith("error: not YAML: ")
    assert part in message
    fix = "look at indentation, quotes and brackets here and just above"
    assert message.endswith(f" · f.yaml:{line} · {fix}")
    assert "\n" not in message


def test_hostile_nesting_ends_at_once() -> None:
    assert "nest" in error("[" * 200_000)
    assert "nested deeper" in error("- " * 200_000)


def test_size_cap() -> None:
    text = "a: " + "x" * (MAX_BYTES - 3)
    assert strict_yaml._checked_text(text, "f.yaml") == text
    message = f"error: {MAX_BYTES + 1} bytes of YAML, more than {MAX_BYTES} · f.yaml:1 · split the file, "
    message += "or move arrays into data/"
    assert error(text + "x") == message
    assert error("\u00e9" * (MAX_BYTES // 2) + "x") == message  # bytes count, not characters


# ---------------------------------------------------------------- spans

CASE_FILE = """\
# a comment first
format: "1.0"      # quoted
unit: sampling
flags:
  ExactHit: {kind: tie, why: "equal — é"}
cases:
- id: sampling/a   # the first
  rule: [R9,
         R10]
  args: {logits: {f64: [0.5, -1e-5]}, p: {new: P, args: {}}}
  steps:
  - {do: x}
  - do: y
    state: {free: 3}

  # a comment between

- id: 'sampling/b'
  folded: >-
    one
    two

  code: |
    if x:
        y = "1"
    # not a comment
  keep: |+
    text


  plain: two
    lines
  nested:
    - - 1
      - 2
    - "deep":
        er: null   # last
# the end
"""


def nodes(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if type(value) is list else ()
    for key, item in items:
        yield from nodes(item, (*path, key))


@pytest.mark.parametrize("text", [CASE_FILE, CASE_FILE.replace("\n", "\r\n"), CASE_FILE.rstrip("\n")])
def test_every_span_reads_back_as_its_node(text: str) -> None:
    marked = load_marked(text, "f.yaml")
    assert marked.text == text
    assert same(marked.value, load(text, "f.yaml"))
    seen = dict(nodes(marked.value))
    assert marked.spans.keys() == seen.keys()
    assert len(seen) > 40
    for path, value in seen.items():
        start, stop, line, column = marked.spans[path]
        cut = text[start:stop]
        assert not cut.endswith(("\n", "\r")) or (path == ("cases", 1, "keep") and cut.endswith("\n"))
        assert cut == cut.strip(" ")
        assert same(load(" " * (column - 1) + cut + "\n", "cut"), value), path
        assert line == text.count("\n", 0, start) + 1
        assert column == start - text.rfind("\n", 0, start)


def test_spans_are_exact() -> None:
    marked = load_marked(CASE_FILE, "f.yaml")

    def cut(*path: str | int) -> str:
        span = marked.spans[path]
        return CASE_FILE[span.start : span.stop]

    assert cut("format") == '"1.0"'
    assert cut("unit") == "sampling"
    assert cut("cases", 0, "rule") == "[R9,\n         R10]"
    assert cut("cases", 0, "args", "logits", "f64", 1) == "-1e-5"
    assert cut("cases", 0, "args", "p", "args") == "{}"
    assert cut("cases", 0, "steps") == "- {do: x}\n  - do: y\n    state: {free: 3}"
    assert cut("cases", 0).endswith("state: {free: 3}")
    assert cut("cases", 1, "folded") == ">-\n    one\n    two"
    assert cut("cases", 1, "code") == '|\n    if x:\n        y = "1"\n    # not a comment'
    assert cut("cases", 1, "keep") == "|+\n    text\n\n"
    assert cut("cases", 1, "plain") == "two\n    lines"
    assert cut("cases", 1, "nested", 0) == "- 1\n      - 2"
    assert cut().startswith("format") and cut().endswith("er: null")


def test_places() -> None:
    marked = load_marked(CASE_FILE, "dir/f.yaml")
    assert marked.keys["flags", "ExactHit", "why"] == (
        CASE_FILE.index("why"),
        CASE_FILE.index("why") + 3,
        5,
        25,
    )
    assert marked.line(("cases",)) == 6
    assert marked.spans[("cases",)].line == 7
    assert marked.line(("cases", 0)) == 7
    assert marked.line(("cases", 0, "args")) == 10
    assert marked.at(("cases", 0, "args", "no", "such")) == "dir/f.yaml:10"
    assert marked.line(("nothing",)) == marked.line(()) == 2
    assert ("cases", 0) not in marked.keys


def test_the_spans_of_a_block_scalar_with_a_comment_in_its_header() -> None:
    text = "a: |  # a + b\n  x\n\nb: |+ # c\n  y\n\nc: >2-\n    z\n"
    marked = load_marked(text, "f.yaml")
    cuts = {k: text[s.start : s.stop] for (*_, k), s in list(marked.spans.items())[:3]}
    assert cuts == {"a": "|  # a + b\n  x", "b": "|+ # c\n  y\n", "c": ">2-\n    z"}


def replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {k: replaced(v, path[1:], new) if k == path[0] else v for k, v in value.items()}
    return [replaced(v, path[1:], new) if k == path[0] else v for k, v in enumerate(value)]


@pytest.mark.parametrize("text", [CASE_FILE, CASE_FILE.replace("\n", "\r\n"), CASE_FILE.rstrip("\n")])
@pytest.mark.parametrize(
    "new", [3, "a: b", "plain words", [1.5, {"f64": ["-inf"]}], {"on": "x"}, ["x"] * 400]
)
def test_any_node_can_be_replaced_in_place(text: str, new: Any) -> None:
    marked = load_marked(text, "f.yaml")
    for path, span in marked.spans.items():
        written = splice(marked, {path: new})
        assert same(load(written, "f.yaml"), replaced(marked.value, path, new)), path
        assert written.startswith(text[: span.start])
        assert written.endswith(text[span.stop :])
        again = load_marked(written, "f.yaml")
        assert splice(again, {path: new}) == written


def test_many_nodes_at_once() -> None:
    marked = load_marked("a: 1  # one\nb: {x: 2, y: [3]}\nc:\n- 4\n# end\n", "f.yaml")
    written = splice(marked, {("c",): [], ("a",): "x", ("b", "y", 0): None})
    assert written == "a: x  # one\nb: {x: 2, y: [null]}\nc:\n []\n# end\n"
    assert splice(marked, {}) == marked.text
    with pytest.raises(ValueError, match=r"\('b', 'x'\) is inside another replaced node"):
        splice(marked, {("b",): 1, ("b", "x"): 2})


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1, "1"),
        (-0.0, "-0.0"),
        (1e-5, "1e-05"),
        (1e22, "1e+22"),
        (0.1, "0.1"),
        (True, "true"),
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": 1, "b": [1, 2]}, "{a: 1, b: [1, 2]}"),
        ("top-p exact", "top-p exact"),
        ("sampling/top-p", "sampling/top-p"),
        ("3f800000 bf800000", "3f800000 bf800000"),
        ("", '""'),
        ("1", '"1"'),
        ("010", '"010"'),
        ("true", '"true"'),
        ("on", '"on"'),
        ("nan", '"nan"'),
        ("inf", '"inf"'),
        ("-inf", '"-inf"'),
        ("0xA91A", '"0xA91A"'),
        ("a, b", '"a, b"'),
        ("a: b", '"a: b"'),
        ("a:b", "a:b"),
        ("a #b", '"a #b"'),
        ("a#b", "a#b"),
        (" a", '" a"'),
        ("- a", '"- a"'),
        ("-a", "-a"),
        ('say "x"\\', 'say "x"\\'),
        ('"x"', '"\\"x\\""'),
        ("tab\tline\nend", '"tab\\tline\\nend"'),
        ("\u2028\x7f\ufeff", '"\\u2028\\u007f\\ufeff"'),
        ("\u00e9\U0001d11e", "\u00e9\U0001d11e"),
        ({"on": 1, "1": 2, "a b": 3}, '{on: 1, "1": 2, a b: 3}'),
        ({"k" * 1001: 1}, "{? " + "k" * 1001 + ": 1}"),
    ],
)
def test_flow_form(value: Any, want: str) -> None:
    assert to_flow(value) == want
    assert same(load(want, "f.yaml"), value)


class Loud(float):
    def __repr__(self) -> str:
        return f"Loud({float(self)})"


def test_a_subclass_of_float_is_written_as_its_number() -> None:
    assert to_flow(Loud(0.5)) == "0.5"  # numpy.float64 has such a repr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "nan has no bare form: write the word as a string"),
        ([1, math.inf], "inf has no bare form: write the word as a string"),
        ({"a": -math.inf}, "-inf has no bare form: write the word as a string"),
        ((1, 2), "only plain JSON values have a flow form, not tuple"),
        (b"x", "only plain JSON values have a flow form, not bytes"),
        ({1: 2}, "a key is a string, not int"),
        ("\ud800", "a lone surrogate is no text"),
        ({"\udfff": 1}, "a lone surrogate is no text"),
    ],
)
def test_what_has_no_flow_form(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        to_flow(value)


def test_flow_form_nests_as_deep_as_the_reader() -> None:
    value: Any = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert load(to_flow(value), "f.yaml") == value
    with pytest.raises(ValueError, match=r"^nested deeper than 64$"):
        to_flow([value])


TRICKY = st.one_of(
    st.text(st.sampled_from(list(" -?:,[]{}#&*!|>'\"%@`~=<.+_/\\\n\r\t\x85\u2028\ufeff\uffffaeno01x\u00e9"))),
    st.text(),
    st.sampled_from([*YAML_ONLY, "true", "null", "nan", "-inf", "---", "... x", "1e5", "-0"]),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_flow_reads_back(value: Any) -> None:
    written = to_flow(value)
    assert "\n" not in written
    for text in (written, f"[{written}]", f"{{k: {written}}}", f"k: {written}\n", f"- {written} # x\n"):
        got = load(text, "f.yaml")
        if text != written:
            got = got["k"] if isinstance(got, dict) else got[0]
        assert same(got, value)
    assert to_flow(load(written, "f.yaml")) == written


@given(TRICKY)
@settings(max_examples=500, deadline=None)
def test_quotes_only_where_they_are_needed(word: str) -> None:
    # The format shows "nan" "inf" "-inf" quoted; `?` ends a word in some parsers; --- and ... at a line's
    # start would end the document.
    if not to_flow(word).startswith('"') or word in ("nan", "inf", "-inf") or "?" in word:
        return
    if word.startswith(("---", "...")):
        return
    for text in (f"[{word}]", f"{{k: {word}}}", f"{{k: {word} }}", f"[{word}, x]", f"k: {word} # x\n"):
        try:
            got = load(text, "f.yaml")
        except OwnFault:
            return
        if got not in ([word], [word, "x"], {"k": word}):
            return
    pytest.fail(f"{word!r} needs no quotes")


def test_yaml_1_1_and_json_readers_agree_with_what_is_written() -> None:
    value = {"a": [1, 0.5, True, None, "1e5x", "on", "012", "12:30"], "b": {"c": "~"}}
    assert yaml.safe_load(to_flow(value)) == value


def test_nothing_recurses() -> None:
    if strict_yaml._EventParser is strict_yaml._PureParser:
        pytest.skip("the stack of PyYAML's own parser is not ours")
    frame: Any = sys._getframe()
    depth = 0
    while frame:
        depth, frame = depth + 1, frame.f_back
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 20)
    try:
        load(text, "f.yaml")
    finally:
        sys.setrecursionlimit(limit)
