"""`ol author build`: values come from the oracle, all else stays byte for byte, nothing is half written."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from grader import build as module
from grader import fixtures
from grader.build import build, canonical, replace_file
from grader.errors import OwnFault
from grader.path import Stage, read_path

TOY = Path(__file__).resolve().parent / "toy"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A copy of the toy course whose only cases are those that a test writes."""
    root = tmp_path / "toy"
    shutil.copytree(TOY, root, ignore=shutil.ignore_patterns(".cache", "__pycache__"))
    (root / "fixtures" / "stack" / "cases.yaml").unlink()
    return root


def stage(root: Path) -> Stage:
    return read_path(root / "path.tsv")[0]


def folder(root: Path) -> Path:
    return root / "fixtures" / "stack"


def snapshot(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder(root).iterdir() if p.is_file()}


HEAD = """\
format: "1.0"   # a reader refuses what is newer
unit: stack
title: Built
oracles:
  model: {kind: independent, by: oracle.py}
"""
PAPER = HEAD + "  paper: {kind: hand}\n"


def write(root: Path, cases: str, head: str = HEAD, name: str = "built.yaml") -> Path:
    path = folder(root) / name
    path.write_text(head + "cases:\n" + cases)
    return path


def oracle(root: Path, body: str) -> None:
    (folder(root) / "oracle.py").write_text("import numpy as np\n\n\n" + body)


def total(
    expect: str, xs: str = "{f64: [1.0, 2.5]}", name: str = "total", oracles: str = "[model]", more: str = ""
) -> str:
    return f"""\
- id: stack/{name}
  rule: [R4]
  oracle: {oracles}
{more}  call: total
  args: {{xs: {xs}}}
  expect: {expect}
"""


def pick(item: str, want: str) -> str:
    return f"""\
- id: stack/pick
  rule: [R8]
  oracle: [model]
  call: pick
  args: {{items: [{item}], i: 0}}
  expect: {{return: {want}}}
"""


def refused(root: Path, words: str) -> OwnFault:
    """The build is refused with these words and changes nothing."""
    before = snapshot(root)
    with pytest.raises(OwnFault) as caught:
        build(stage(root), root, True)
    assert words in str(caught.value)
    assert snapshot(root) == before
    return caught.value


# -- splicing ---------------------------------------------------------------------------------------------

ODD_LAYOUT = """\
# A comment above.
-   id:   stack/one          # odd spaces
    rule: [ R4 ]
    oracle:
    - model
    call: total
    args: {xs: {f64: [1.0,
                      2.5]}}     # two lines
    expect:
        return:
            f64: %s   # after the value
            cmp: ulp
            max: 2
            why: "two roundings"

# Between the cases, and 'quotes' that stay.
- {id: stack/two, rule: [R5], oracle: [model], call: label, args: {n: 2},
   expect: {return: [ {i64: %s, cmp: labels},   {i64: %s, cmp: labels} ]}}
- id: stack/three
  rule: [R1]
  oracle: [model]
  new: Stack
  args: {capacity: 2}
  steps:
    # the first
    - do: push
      args: {x: 5}
      return: %s
      state:
        items: %s      # all of them
        room: 1
    - {do: pop, return: %s}
"""


def test_only_values_are_replaced_comments_and_layout_stay(toy: Path) -> None:
    head = HEAD + "observables:\n  items: {get: items}\n  room: {do: stats, path: [room]}\n"
    path = write(toy, ODD_LAYOUT % ("null", "null", "null", "null", "null", "null"), head)
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv", "built.yaml"]
    assert path.read_text() == head + "cases:\n" + ODD_LAYOUT % ("3.5", "0", "1", "1", "[5]", "5")


def test_building_twice_gives_the_same_bytes(toy: Path) -> None:
    write(toy, total("{return: {f64: 9.0, cmp: exact}}"))
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv", "built.yaml"]
    first = snapshot(toy)
    assert b"{f64: 3.5, cmp: exact}" in first["built.yaml"]  # what was typed wrong is corrected
    assert build(stage(toy), toy, True) == []
    assert build(stage(toy), toy, False) == []
    assert snapshot(toy) == first


def test_without_write_nothing_changes_and_the_difference_is_named(toy: Path) -> None:
    write(toy, total("{return: {f64: null, cmp: exact}}"))
    before = snapshot(toy)
    assert build(stage(toy), toy, False) == ["MANIFEST.tsv", "built.yaml"]
    assert snapshot(toy) == before


def test_what_says_the_same_stays_as_it_is_written(toy: Path) -> None:
    text = pick('{u64: ["0x000000000000002A", 7]}', '{u64: ["0x000000000000002A", 7]}')
    path = write(toy, text + total("{return: {f64: 35e-1, cmp: exact}}"))
    build(stage(toy), toy, True)
    assert path.read_text() == HEAD + "cases:\n" + text + total("{return: {f64: 35e-1, cmp: exact}}")


FILLED = [
    ("{f32: [0.1]}", "{f32: null, cmp: bits}", "{f32: [0.1], cmp: bits}"),
    ("{f32: [[0.1], [0.2]]}", "{f32: [9.0], cmp: bits}", "{f32: [[0.1], [0.2]], cmp: bits}"),
    ("{f32: 0.1}", "{f32: null, cmp: bits}", "{f32: 0.1, cmp: bits}"),
    ("{f64: -0.0}", "{f64: 0.0, cmp: bits}", "{f64: -0.0, cmp: bits}"),
    ('{f64: ["nan", "-inf"]}', "{f64: null, cmp: bits}", '{f64: ["nan", "-inf"], cmp: bits}'),
    ("{bf16: [1.5]}", "{bf16: null, cmp: bits}", "{bf16: [1.5], cmp: bits}"),
    ("{i32: [1, 2]}", "{i32: [2, 1]}", "{i32: [1, 2]}"),
    ('{u64: "0xffffffffffffffff"}', "{u64: null}", '{u64: "0xffffffffffffffff"}'),
    ('{i64: "-0x8000000000000000"}', "{i64: 0}", '{i64: "-0x8000000000000000"}'),
    ('{u64: "0xffffffffffffffff"}', "null", '{u64: "0xffffffffffffffff"}'),
    ("true", "{bool: null}", "{bool: true}"),
    ("3", "null", "3"),
    ("abc", "null", "abc"),
    ("null", "3", "null"),
    ("[1, [2, x]]", "null", "[1, [2, x]]"),
    ("[1, [2, x]]", "[0, [0, y]]", "[1, [2, x]]"),
    ("[1, 2, 3]", "[1, 2]", "[1, 2, 3]"),
    ("{tuple: [1, 2]}", "[0, 0]", "[1, 2]"),
    ("[1, 2]", "{tuple: null, cmp: multiset}", "{tuple: [1, 2], cmp: multiset}"),
    ("{a: 1, b: {f64: 0.5}}", "{a: null, b: {f64: null, cmp: exact}}", "{a: 1, b: {f64: 0.5, cmp: exact}}"),
    ("{a: 1}", "{keys: {a: 2}}", "{keys: {a: 1}}"),
    ("{a: 1, b: 2}", "{attrs: {a: 2}}", "{attrs: {a: 1}}"),
    ("{bytes: 00ff}", "null", "{bytes: 00ff}"),
    ("{f32: [[], []]}", "{f32: null, bits: null, cmp: bits}", '{f32: [2, 0], bits: "", cmp: bits}'),
    ("{f32: [[], []]}", "{f32: null, cmp: bits}", '{f32: {shape: [2, 0], bits: ""}, cmp: bits}'),
    (
        "{f32: [0.5]}",
        "{f32: {shape: null, bits: null}, cmp: bits}",
        "{f32: {shape: [1], bits: 3f000000}, cmp: bits}",
    ),
    (
        "{f32: [0.5, 1.0]}",
        '{f32: {shape: [2], bits: "3F000000  3F800000"}, cmp: bits}',
        '{f32: {shape: [2], bits: "3F000000  3F800000"}, cmp: bits}',
    ),
    ("{u8: [255, 0]}", '{u8: {shape: [2], hex: ""}}', "{u8: {shape: [2], hex: ff00}}"),
    ("{bool: [false, true, true]}", "{bool: {shape: null, ids: null}}", "{bool: {shape: [3], ids: [1, 2]}}"),
    (
        "{f32: {shape: [2], gen: u24, seed: 7}}",
        "{f32: {shape: [2], gen: u24, seed: 7}, cmp: bits}",
        "{f32: {shape: [2], gen: u24, seed: 7}, cmp: bits}",
    ),
]


@pytest.mark.parametrize(("item", "before", "after"), FILLED)
def test_placeholders_and_wrong_values_of_every_kind(toy: Path, item: str, before: str, after: str) -> None:
    path = write(toy, pick(item, before))
    build(stage(toy), toy, True)
    assert path.read_text() == HEAD + "cases:\n" + pick(item, after)
    assert build(stage(toy), toy, False) == []


def test_arguments_and_objects_afterwards_are_filled(toy: Path) -> None:
    oracle(
        toy,
        "def expect(case):\n"
        '    return {"return": None, "args": {"xs": case["args"]["xs"] * 2}, "after": {"s": [7]}}\n',
    )
    more = "  mutates: [xs]\n  objects: [{id: s, new: Stack, args: {capacity: 1}}]\n"
    case = total(
        "{return: 1, args: {xs: {f64: null, cmp: exact}}, after: {s: {get: items, return: null}}}", more=more
    )
    path = write(toy, case)
    build(stage(toy), toy, True)
    assert (
        "{return: null, args: {xs: {f64: [2.0, 5.0], cmp: exact}}, after: {s: {get: items, return: [7]}}}"
        in path.read_text()
    )


def test_raises_accept_and_properties_are_checked_and_left_alone(toy: Path) -> None:
    oracle(
        toy,
        """\
def expect(case):
    if not case["args"]["xs"].size:
        return {"raises": "ValueError"}
    return {"return": float(case["args"]["xs"].sum())}
""",
    )
    accept = (
        "{accept: [{policy: raised, raises: IndexError}, {policy: exact, return: {f64: 3.5, cmp: exact}}]}"
    )
    cases = (
        total("{return: {f64: 3.5, cmp: exact}}")
        + total(accept, name="accept")
        + total("{raises: ValueError}", "{f64: []}", "empty", more="  twin: stack/total\n")
        + """\
- id: stack/drawn
  rule: [R4]
  oracle: [model]
  call: total
  property: {given: {xs: {draw: floats, with: {dtype: f64, shape: [3]}}}, same_as: oracle, cmp: bits, runs: 2}
"""
    )
    path = write(toy, cases)
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv"]
    assert path.read_text() == HEAD + "cases:\n" + cases


def test_the_oracle_sees_inputs_and_no_expected_value(toy: Path) -> None:
    oracle(
        toy,
        """\
import numpy as np

SEEN = []


def expect(case):
    SEEN.append(case)
    if "steps" in case:
        return {"steps": [{"return": 1, "state": {"items": [5]}}]}
    return {"return": 3.5, "after": {"s": 0}}
""",
    )
    objects = '  objects: [{id: s, new: testkit.ScriptedUniforms, args: {values: [{u64: "0x10"}, 0.5]}}]\n'
    case = total(
        "{return: {f64: 3.5, cmp: exact}, after: {s: {do: drawn, args: {a: 1}, return: 0}}}", more=objects
    )
    case = case.replace(
        "xs: {f64: [1.0, 2.5]}",
        "xs: {f64: [1.0, 2.5]}, d: {dtype: f16}, p: {new: Stack, args: {n: [{ref: s}]}}",
    )
    trace = """\
- id: stack/trace
  rule: [R1]
  oracle: [model]
  new: Stack
  args: {capacity: {u8: 2}}
  steps: [{do: push, args: {x: {f32: [1.0]}}, return: 1, state: {items: [5]}, mutates: [x]}]
"""
    write(toy, case + trace, HEAD + "observables:\n  items: {get: items}\n")
    build(stage(toy), toy, True)
    first, second = sys.modules["oracle_stack"].SEEN
    xs = first["args"].pop("xs")
    assert (xs.dtype.str, xs.tolist()) == ("<f8", [1.0, 2.5])
    assert first == {
        "id": "stack/total",
        "call": "total",
        "args": {"d": "f2", "p": {"new": "Stack", "args": {"n": [{"ref": "s"}]}}},
        "objects": [{"id": "s", "new": "testkit.ScriptedUniforms", "args": {"values": [16, 0.5]}}],
        "after": {"s": {"do": "drawn", "args": {"a": 1}}},
    }
    x = second["steps"][0]["args"].pop("x")
    assert x.dtype.str == "<f4"
    assert second == {
        "id": "stack/trace",
        "new": "Stack",
        "args": {"capacity": 2},
        "steps": [{"do": "push", "args": {}, "mutates": ["x"]}],
    }


# -- hand cases -------------------------------------------------------------------------------------------


def test_a_hand_case_stays_as_typed_where_the_oracle_agrees(toy: Path) -> None:
    text = total("{return: {f64: 3.50, cmp: exact}}", oracles="[paper]") + total(
        "{return: {f64: null, cmp: exact}}", name="b"
    )
    path = write(toy, text, PAPER)
    build(stage(toy), toy, True)
    assert path.read_text() == PAPER + "cases:\n" + text.replace("null", "3.5")


def test_a_hand_case_is_refused_where_the_oracle_differs(toy: Path) -> None:
    text = total("{return: {f64: 3.25, cmp: exact}}", oracles="[paper]") + total(
        "{return: {f64: 3.5, cmp: bits}}", name="b"
    )
    write(toy, text, PAPER)
    error = refused(toy, "cases[0].expect.return: typed 3.25, the oracle says 3.5")
    assert error.where == "stack/total (fixtures/stack/built.yaml:8)"


def test_a_hand_case_within_its_tolerance_is_no_difference(toy: Path) -> None:
    close = total("{return: {f64: 3.49, cmp: close, atol: 0.1, why: typed from the page}}", oracles="[paper]")
    write(toy, close + total("{return: {f64: 3.5, cmp: exact}}", name="b"), PAPER)
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv"]


def test_a_hand_case_needs_no_oracle(toy: Path) -> None:
    oracle(toy, "def expect(case):\n    raise NotImplementedError\n")
    text = total("{return: {f64: 3.25, cmp: exact}}", oracles="[paper]")
    path = write(toy, text, PAPER.replace("  model: {kind: independent, by: oracle.py}\n", ""))
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv"]
    assert text in path.read_text()


def test_a_hand_case_has_its_value_typed(toy: Path) -> None:
    text = total("{return: {f64: null, cmp: exact}}", oracles="[paper]") + total(
        "{return: {f64: 3.5, cmp: bits}}", name="b"
    )
    write(toy, text, PAPER)
    refused(toy, "a typed value is not one: None is no number")


def test_a_hand_case_beside_another_oracle_is_built(toy: Path) -> None:
    path = write(toy, total("{return: {f64: 9.0, cmp: exact}}", oracles="[paper, model]"), PAPER)
    build(stage(toy), toy, True)
    assert "{f64: 3.5, cmp: exact}" in path.read_text()


# -- faults of the oracle, and of the case -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ZeroDivisionError", "expect() raised ZeroDivisionError: "),
        (
            "return case['nothing']",
            "expect() raised KeyError: 'nothing' · stack/total (fixtures/stack/built.yaml:7)",
        ),
        (
            "raise NotImplementedError",
            "expect() does not cover this case · stack/total (fixtures/stack/built.yaml:7)",
        ),
        ("return 3.5", "expect() gave a float, not a dict"),
        ("return {'raises': 'ValueError'}", "the case returns, the oracle raises ValueError"),
        ("return {'return': 'text'}", "cases[0].expect.return: typed f64, the oracle gives text"),
        ("return {'return': 3}", None),
        ("return {'return': True}", "typed f64, the oracle gives a bool"),
        ("return {'return': np.float32(3.5)}", "typed f64, the oracle gives f32[]"),
        ("return {'return': np.array(3.5)}", "typed f64, the oracle gives f64[]"),
        ("return {'return': np.array([3.5])}", "typed f64, the oracle gives f64[1]"),
        ("return {}", "typed f64, the oracle gives null"),
    ],
)
def test_a_fault_of_the_oracle_is_ours(toy: Path, body: str, words: str | None) -> None:
    oracle(toy, f"def expect(case):\n    {body}\n")
    write(toy, total("{return: {f64: 9.0, cmp: bits}}"))
    if words is None:
        build(stage(toy), toy, True)  # a float may be a whole number
        return
    assert refused(toy, words).exit_code == 3


@pytest.mark.parametrize(
    ("want", "value", "words"),
    [
        ("{i32: 7}", "2**40", "typed i32, the oracle gives an integer"),
        ("{i32: 7}", "7.0", "typed i32, the oracle gives a float"),
        ("{u8: 7}", "True", "typed u8, the oracle gives a bool"),
        ("{bool: true}", "1", "typed bool, the oracle gives an integer"),
        ("{i32: [7]}", "7", "typed i32, the oracle gives an integer"),
        ("{i32: [7]}", "[7]", "typed i32, the oracle gives a sequence of 1"),
        ("{i32: [7]}", "np.array([7])", "typed i32, the oracle gives i64[1]"),
        ("{keys: {a: 1}}", "{'a': 1, 'b': 2}", "the oracle also gives 'b'"),
        ("{a: 1, b: 2}", "{'a': 1}", "the oracle says nothing of 'b'"),
        (
            "{f32: {shape: [2], gen: u24, seed: 7}, cmp: bits}",
            "np.zeros(2, np.float32)",
            "the oracle gives another array",
        ),
        ("3", "object()", "a object has no fixture form"),
        ("3", "{1: 2}", "a dict has no fixture form"),
    ],
)
def test_an_answer_of_another_kind_is_refused(toy: Path, want: str, value: str, words: str) -> None:
    oracle(toy, f"def expect(case):\n    return {{'return': {value}}}\n")
    write(toy, pick("1", want))
    refused(toy, words)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("np.int64(7)", "{i32: 7}"),
        ("np.bool_(True)", "{bool: true}"),
        ("np.float64(0.5)", "{f64: 0.5, cmp: bits}"),
        ("np.array(0.5, np.float32)", "{f32: 0.5, cmp: bits}"),
        ("np.int64(7)", "7"),
    ],
)
def test_numpy_scalars_of_a_kind_are_that_kind(toy: Path, value: str, want: str) -> None:
    oracle(toy, f"def expect(case):\n    return {{'return': {value}}}\n")
    write(toy, pick("1", want))
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv"]


def test_a_case_and_its_oracle_agree_on_raising(toy: Path) -> None:
    twin = total("{return: {f64: 3.5, cmp: exact}}")
    write(toy, twin + total("{raises: ValueError}", "{f64: [1.0]}", "raises", more="  twin: stack/total\n"))
    refused(toy, "the case raises ValueError, the oracle returns")
    oracle(
        toy,
        "def expect(case):\n"
        "    return {'raises': 'IndexError'} if len(case['args']['xs']) == 1 else {'return': 3.5}\n",
    )
    refused(toy, "the case raises ValueError, the oracle raises IndexError")


def test_an_accepted_answer_is_the_oracles(toy: Path) -> None:
    write(toy, total("{accept: [{policy: a, return: 3}, {policy: b, raises: ValueError}]}"))
    refused(toy, "the oracle's answer is none of those the case accepts")


TRACE = """\
- id: stack/trace
  rule: [R1]
  oracle: [model]
  new: Stack
  args: {capacity: 1}
  steps:
  - {do: push, args: {x: 5}, return: 1, state: {items: [5]}}
  - {do: push, args: {x: 6}, raises: Full, state: {items: {raises: KeyError}}}
"""


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("None", "expect() gives one entry a step under 'steps'"),
        ("[{}]", "expect() gives one entry a step under 'steps'"),
        ("[{'return': 1}, {'raises': 'Full'}]", "expect() says nothing of 'items' at step 1"),
        (
            "[{'return': 1, 'state': {'items': [5]}}, {'return': 2}]",
            "the case raises Full, the oracle returns",
        ),
        ("[{'raises': 'Full'}, {'raises': 'Full'}]", "the case returns, the oracle raises Full"),
        (
            "[{'return': 1, 'state': {'items': [5]}}, {'raises': 'Full', 'state': {'items': [5]}}]",
            "the case raises KeyError, the oracle returns",
        ),
        (
            "[{'return': 1, 'state': {'items': [5]}}, "
            "{'raises': 'Full', 'state': {'items': {'raises': 'KeyError'}}}]",
            None,
        ),
    ],
)
def test_traces_step_by_step(toy: Path, steps: str, words: str | None) -> None:
    oracle(toy, f"def expect(case):\n    return {{'steps': {steps}}}\n")
    write(toy, TRACE, HEAD + "observables:\n  items: {get: items}\n")
    if words is None:
        assert build(stage(toy), toy, True) == ["MANIFEST.tsv"]
        return
    refused(toy, words)


def test_a_step_that_states_nothing_must_not_raise(toy: Path) -> None:
    oracle(toy, "def expect(case):\n    return {'steps': [{'return': 1}, {'raises': 'Full'}]}\n")
    write(
        toy,
        TRACE.replace(", state: {items: [5]}", "").partition("  - {do: push, args: {x: 6}")[0]
        + "  - {do: push, args: {x: 6}}\n",
    )
    refused(toy, "the case states no raise, the oracle raises Full")


def test_what_afterwards_is_must_be_said(toy: Path) -> None:
    more = "  objects: [{id: s, new: Stack, args: {capacity: 1}}]\n"
    write(toy, total("{return: {f64: 3.5, cmp: exact}, after: {s: {get: items, return: []}}}", more=more))
    refused(toy, "expect() says nothing of 's' afterwards")


def test_a_wrong_argument_is_refused_with_its_case(toy: Path) -> None:
    write(toy, total("{return: {f64: 3.5, cmp: exact}}", "{f32: [one]}"))
    assert refused(toy, "'one' is no number").where == "stack/total (fixtures/stack/built.yaml:7)"


def test_files_are_validated_after_the_splice(toy: Path) -> None:
    write(toy, total("{return: {f64: null}}"))
    refused(toy, "cases[0].expect.return: floats have no default comparator")
    write(toy, total("{returns: {f64: null}}"))
    refused(toy, "cases[0].expect.returns: unknown key 'returns', did you mean 'return'?")
    write(toy, total("{return: {f64: null, cmp: exact}}", more="  hints: [none]\n"))
    refused(toy, "stack/total: no hint 'none'")


# -- generated files --------------------------------------------------------------------------------------

GENERATE = """\
def expect(case):
    return {"return": case["args"]["items"][0]}


def generate():
    return {"golden.gen.yaml": {
        "format": "1.0", "unit": "stack", "title": "Golden", "oracles": {"model": {"kind": "independent"}},
        "observables": {"items": {"get": "items"}},
        "cases": [
            {"id": "stack/golden", "rule": ["R8"], "oracle": ["model"], "call": "pick",
             "args": {"items": [{"f64": [0.1, "nan"]}], "i": 0},
             "expect": {"return": {"f64": [0.1, "nan"], "cmp": "exact", "nan": "same_place"}}},
            {"id": "stack/golden-trace", "rule": ["R1"], "oracle": ["model"], "new": "Stack",
             "steps": [{"do": "push", "args": {"x": 1}, "return": 1, "state": {"items": [1]}},
                       {"do": "pop", "return": 1}],
             "args": {"capacity": 1}},
        ],
    }}
"""
GOLDEN = """\
# Written by `ol author build` from oracle.py; never edited.
format: "1.0"
unit: stack
title: Golden
oracles:
  model: {kind: independent}
observables:
  items: {get: items}
cases:
- id: stack/golden
  rule: [R8]
  oracle: [model]
  call: pick
  args: {items: [{f64: [0.1, "nan"]}], i: 0}
  expect: {return: {f64: [0.1, "nan"], cmp: exact, "nan": same_place}}
- id: stack/golden-trace
  rule: [R1]
  oracle: [model]
  new: Stack
  args: {capacity: 1}
  steps:
  - {do: push, args: {x: 1}, return: 1, state: {items: [1]}}
  - {do: pop, return: 1}
"""


def test_generated_files_are_written_whole_and_stale_ones_removed(toy: Path) -> None:
    oracle(toy, GENERATE)
    stale = folder(toy) / "old.gen.yaml"
    stale.write_text("not read\n")
    assert build(stage(toy), toy, False) == ["MANIFEST.tsv", "golden.gen.yaml", "old.gen.yaml"]
    assert stale.exists()
    assert build(stage(toy), toy, True) == ["MANIFEST.tsv", "golden.gen.yaml", "old.gen.yaml"]
    assert not stale.exists()
    golden = folder(toy) / "golden.gen.yaml"
    assert golden.read_text() == GOLDEN
    golden.write_text(GOLDEN.replace("[0.1,", "[0.2,"))  # edited by hand
    assert build(stage(toy), toy, True) == ["golden.gen.yaml"]
    assert golden.read_text() == GOLDEN


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("golden.gen.yaml", "golden.yaml"),
            "generate() names 'golden.yaml' · oracle.py · generated files end in .gen.yaml",
        ),
        (("golden.gen.yaml", "../golden.gen.yaml"), "generate() names '../golden.gen.yaml'"),
        (('"title": "Golden", ', ""), "missing key 'title' · fixtures/stack/golden.gen.yaml"),
        (
            ('return {"golden', '1 / 0\n    return {"golden'),
            "generate() raised ZeroDivisionError: division by zero · oracle.py",
        ),
        (
            ('[0.1, "nan"]}], "i"', '[float("nan")]}], "i"'),
            "nan has no bare form: write the word as a string · generate(), golden.gen.yaml",
        ),
        (('"i": 0}', '"i": {1: 2}}'), "a key is a string, not int · generate(), golden.gen.yaml"),
        (
            ("def generate", "import nothing_of_this_name\ndef generate"),
            "cannot be imported: ModuleNotFoundError",
        ),
        (("def generate", "def expect(:\ndef generate"), "cannot be imported: SyntaxError"),
    ],
)
def test_a_fault_of_generate_is_ours(toy: Path, change: tuple[str, str], words: str) -> None:
    assert GENERATE.count(change[0]) == 1
    oracle(toy, GENERATE.replace(*change))
    refused(toy, words)


def test_canonical_takes_scalars_and_empty_mappings() -> None:
    assert canonical({"title": "a: b", "flags": {}, "cases": [{"id": "x"}]}).splitlines()[1:] == [
        'title: "a: b"',
        "flags: {}",
        "cases:",
        "- id: x",
    ]


# -- the manifest -----------------------------------------------------------------------------------------


def test_the_manifest_names_every_file_with_its_hash(toy: Path) -> None:
    oracle(toy, GENERATE)
    for name in (".hidden", "__pycache__/x.pyc", ".cache/y.json"):
        (folder(toy) / name).parent.mkdir(exist_ok=True)
        (folder(toy) / name).write_text("")
    build(stage(toy), toy, True)
    rows = [line.split("\t") for line in (folder(toy) / "MANIFEST.tsv").read_text().splitlines()]
    assert [name for _, name in rows] == [
        "equivalents/deque.py",
        "equivalents/plain.py",
        "errors.yaml",
        "golden.gen.yaml",
        "mutants.yaml",
        "oracle.py",
    ]
    for digest, name in rows:
        assert hashlib.sha256((folder(toy) / name).read_bytes()).hexdigest() == digest


def test_a_built_unit_loads_without_validation(toy: Path) -> None:
    oracle(toy, GENERATE)
    build(stage(toy), toy, True)
    notes: list[str] = []
    unit = fixtures.load(stage(toy), toy, notes.append)
    assert notes == []
    assert [case.id for case in unit.cases] == ["stack/golden", "stack/golden-trace"]


def test_progress_names_each_file_as_it_is_made(toy: Path) -> None:
    oracle(toy, GENERATE)
    write(toy, pick("1", "null"))
    said: list[str] = []
    build(stage(toy), toy, True, said.append)
    assert said == ["stack/golden.gen.yaml", "stack/built.yaml"]


# -- nothing is half written ------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_kill_in_the_middle_leaves_every_file_whole(
    toy: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Wherever the writing stops, each file is the old one or the new one, and the next build finishes."""
    oracle(toy, GENERATE)
    write(toy, pick("7", "null"))
    old = snapshot(toy)
    new = {"golden.gen.yaml": GOLDEN.encode(), "built.yaml": (HEAD + "cases:\n" + pick("7", "7")).encode()}
    left = ["golden.gen.yaml", "built.yaml", "MANIFEST.tsv"]

    def killed(source: Any, target: Path) -> None:
        if target.name == left[stop]:
            raise KeyboardInterrupt
        source.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            build(stage(toy), toy, True)
    between = snapshot(toy)
    assert between == {**old, **{name: new[name] for name in left[:stop]}}  # no trace of the rest
    if stop == 2:  # the manifest is the last: until it is there, the new files count as edited
        notes: list[str] = []
        fixtures.load(stage(toy), toy, notes.append)
        assert notes == ["validating built.yaml, golden.gen.yaml of stack: not in its manifest"]
    assert build(stage(toy), toy, True) == sorted(left[stop:])
    assert build(stage(toy), toy, False) == []


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_is_said_and_leaves_nothing_behind(
    toy: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = folder(toy) / "errors.yaml"
    before = snapshot(toy)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    if step == "write":
        monkeypatch.setattr(module.tempfile, "NamedTemporaryFile", full)
    else:
        monkeypatch.setattr(module.os, "replace", full)
    with pytest.raises(OwnFault, match="cannot write: No space left on device") as caught:
        replace_file(path, b"new")
    assert (caught.value.where, caught.value.fix) == (str(path), "this file was not changed")
    assert snapshot(toy) == before


def test_a_replaced_file_is_readable_by_all(toy: Path) -> None:
    path = folder(toy) / "new.yaml"
    replace_file(path, b"a\n")
    assert path.stat().st_mode & 0o777 == 0o644
