"""Solve sets: what is read as a number, what is right, which mistakes are named, and what is never shown."""

from __future__ import annotations

import dataclasses
import doctest
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import check, mutants, solve
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.grading import case_row
from grader.judge import Verdict
from grader.path import read_path
from grader.runner import Runner
from grader.session import Workers

TOY = Path(__file__).resolve().parent / "toy"
STAGE = dataclasses.replace(
    read_path(TOY / "path.tsv")[0], id="S-1", unit="sums", files=("impl/sums.toml",), kind="solve"
)
HEAD = """format: "1.0"
unit: sums
title: Sums
oracles:
  exact: {kind: independent}
hints:
  add: ["Carry?"]
"""
CASES = """cases:
- {id: sums/eighths, rule: [R1], oracle: [exact], hints: [add], answer: q1, expect: {number: "3/8"},
   reject: [{value: "3/4", bug: "twice", hint: "Half of it?"}, {value: 4, bug: "four", hint: "Less?"}]}
- {id: sums/root, rule: [R1], oracle: [exact], answer: q2,
   expect: {number: {f64: 1.4142135623730951, cmp: close, rtol: 1.0e-6, why: "six digits"}},
   reject: [{value: 2, bug: "the square", hint: "Its root?"}]}
- {id: sums/both, rule: [R1], oracle: [exact], answer: q3, expect: {set: ["1/2", "-3"]},
   reject: [{value: ["1/2"], bug: "one only", hint: "And the other?"}]}
- {id: sums/which, rule: [R1], oracle: [exact], answer: q4, expect: {choice: b},
   reject: [{value: "c", bug: "the next", hint: "Before it?"}]}
- {id: sums/proof, rule: [R1], oracle: [exact], answer: q5, level: extra, expect: {proof: [base, step]}}
"""
RIGHT = """
q1 = "3/8"
q2 = 1.41421356
q3 = [-3, "1/2"]
q4 = "b"
q5 = {base = true, step = true}
"""


def unit_of(tmp_path: Path, cases: str = CASES) -> Unit:
    reader = check.Reader("sums", tmp_path)
    reader.read(tmp_path / "fixtures" / "sums" / "sums.yaml", (HEAD + cases).encode())
    found = reader.finish()
    (tmp_path / "impl").mkdir(exist_ok=True)
    (tmp_path / "impl" / "sums.toml").write_text(RIGHT)
    return Unit(STAGE, tmp_path, [Case(**case) for case in found["cases"]], found["hints"], {}, "")


def graded(unit: Unit, text: str | bytes) -> dict[str, Verdict]:
    path = unit.root / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    run = Runner(unit, solve.opener(path)).run(unit.cases, twice=True)
    return {name.removeprefix("sums/"): verdict for name, verdict in run.verdicts.items()}


def test_doctests() -> None:
    results = doctest.testmod(solve)
    assert results.attempted > 0
    assert results.failed == 0


# -- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", "7"), (" -3 ", "-3"), ("6/16", "3/8"), ("2^-24", "1/16777216"), ("2**3", "8"), ("-2^2", "-4"),
        ("(-2)^2", "4"),
        ("3*2^-10+1/7", "1045/7168"),
        ("1-2-3", "-4"),
        ("8/4/2", "1"),
        ("(1+2^-2)^2", "25/16"),
        ("2^(-3)", "1/8"), ("0^0", "1"), ("3*-2", "-6"), ("+5", "5"), ("((1))", "1"), ("2^4096/2^4095", "2"),
    ],
)  # fmt: skip
def test_exact_numbers(text: str, value: str) -> None:
    assert solve.exact_value(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.375", "write a fraction or a power, not a decimal"),
        ("3e-1", "not a decimal"),
        (".5", "not a decimal"),
        ("1/0", "a division by zero"), ("0^-1", "a division by zero"), ("2^4097", "an exponent beyond 4096"),
        ("2^(1/2)", "an exponent is a whole number|a bracket is not closed"),
        ("2^", "an exponent is a whole number"),
        ("1+", "the end comes too early"),
        ("*2", "a number is missing before '\\*'"),
        ("(1", "a bracket is not closed"),
        ("1)", "'\\)' is one too many"),
        ("1 2", "'2' is one too many"),
        ("pi", "'p' is no part of an exact number"),
        ("__import__('os')", "'_' is no part"), ("((2^4000)^4000)", "too large a number"),
        ("2^4096*" * 5 + "1", "too large a number"), ("1" * 201, "201 characters, more than 200"),
        ("(" * 99 + "1" + ")" * 99, "more than 20 brackets"), ("--1", "a number is missing before '-'"),
        ("9" * 99 + "^4096", "too large a number"), ("", "the end comes too early"), ("½", "'½' is no part"),
    ],
)  # fmt: skip
def test_what_is_no_exact_number_says_why(text: str, words: str) -> None:
    with pytest.raises(solve.Unreadable, match=words):
        solve.exact(text)


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6), st.integers(-6, 6))
@settings(max_examples=60, deadline=None)
def test_arithmetic_is_that_of_fractions(a: Fraction, b: Fraction, n: int) -> None:
    assert solve.exact(f"({a}) - ({b})") == a - b
    assert solve.exact(f"({a}) * ({b}) + {n}") == a * b + n
    if a:
        assert solve.exact(f"({a})^{n}") == a**n
    if b:
        assert solve.exact(f"({a}) / ({b})") == a / b


@given(st.text(alphabet="0123456789+-*/^() .e", max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_number_or_a_reason(text: str) -> None:
    try:
        assert isinstance(solve.exact(text), Fraction)
    except solve.Unreadable as error:
        assert str(error)


# -- verdicts ---------------------------------------------------------------------------------------------


def test_right_answers_pass_in_any_spelling(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    for text in (RIGHT, RIGHT.replace('"3/8"', '"6*2^-4"'), RIGHT.replace("1.41421356", '"1.414214"')):
        assert {v.outcome for v in graded(unit, text).values()} == {"pass"}
    assert graded(unit, RIGHT.replace('"b"', '" B "'))["which"].passed
    assert graded(unit, RIGHT)["proof"].policy == "self-checked"
    assert graded(unit, "\ufeff".encode() + RIGHT.encode())["eighths"].passed


def test_no_answer_is_todo(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    for text in ("", 'q1 = ""\nq3 = []\n', solve.stub(unit)):
        assert {v.outcome for v in graded(unit, text).values()} == {"todo"}
    assert graded(unit, RIGHT.replace("step = true", "step = false"))["proof"].outcome == "todo"


@pytest.mark.parametrize(
    ("name", "wrong", "mistake", "topic"),
    [
        ("eighths", 'q1 = "6/8"', "twice", "q1-1"), ("eighths", "q1 = 4", "four", "q1-2"),
        ("eighths", "q1 = 5", "", ""),
        ("root", "q2 = 2.0000001", "the square", "q2-1"),
        ("root", "q2 = 1.5", "", ""),
        ("both", 'q3 = ["2/4"]', "one only", "q3-1"), ("both", 'q3 = ["1/2", -3, -3]', "", ""),
        ("which", 'q4 = "C"', "the next", "q4-1"), ("which", 'q4 = "d"', "", ""),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_named_when_the_case_lists_it(
    tmp_path: Path, name: str, wrong: str, mistake: str, topic: str
) -> None:
    unit = unit_of(tmp_path)
    verdict = graded(unit, wrong)[name]
    assert (verdict.outcome, verdict.mistake, verdict.topic) == ("fail", mistake, topic)
    row = case_row(next(c for c in unit.cases if c.id == verdict.case), verdict)
    assert row.get("mistake", "") == mistake
    assert row["hints"][:1] == ([topic] if topic else row["hints"][:1])
    right = {"eighths": "3/8", "root": "1.41421", "both": '"-3"', "which": '"b"'}[name]
    assert right not in json.dumps(row)  # what is right is never shown
    assert row["difference"]["expected"] == "another answer"


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("eighths", "q1 = 0.375", "q1 cannot be read: an exact number is asked: write a fraction"),
        ("eighths", 'q1 = "0.375"', "q1 cannot be read: an exact number is asked"),
        ("eighths", "q1 = true", 'a number is asked: an integer, or a text such as "3/8", not true'),
        ("root", "q2 = false", "a number is asked, not false"), ("root", 'q2 = "1.4.2"', "not a decimal"),
        ("both", 'q3 = "1/2"', "a list is asked"), ("both", "q3 = [0.5]", "not a decimal"),
        ("which", "q4 = 2", "a letter in quotes is asked, not 2"),
        ("proof", 'q5 = "yes"', "a table of true and false is asked"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_says_what_is_asked(
    tmp_path: Path, name: str, wrong: str, words: str
) -> None:
    verdict = graded(unit_of(tmp_path), wrong)[name]
    assert verdict.outcome == "fail"
    assert words in verdict.text


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", '"1e9999"', "1" + "0" * 400])
def test_no_number_that_is_none_passes_a_tolerance(tmp_path: Path, value: str) -> None:
    assert graded(unit_of(tmp_path), f"q2 = {value}")["root"].outcome == "fail"


def test_a_surplus_line_of_a_rubric_is_no_proof(tmp_path: Path) -> None:
    verdict = graded(unit_of(tmp_path), "q5 = {base = true, step = true, luck = true}")["proof"]
    assert verdict.outcome == "fail"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q1 = 1\nq2 = = 3\n", "mine.toml line 2: Invalid value."),
        ("q1 = 1\nq1 = 2\n", "mine.toml line 2: Cannot overwrite a value."),
        (b"q1 = 1\n\xff\n", "mine.toml line 2: not UTF-8; save the file as UTF-8."),
        (b"#" * ((1 << 20) + 1), "mine.toml line 1: larger than 1 MiB."),
        ("q1 = " + "[" * 5000, "mine.toml line 1"),
    ],
)
def test_a_file_that_is_no_toml_is_the_learners_fault_with_its_line(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    verdicts = graded(unit_of(tmp_path), text)
    assert {v.outcome for v in verdicts.values()} == {"raised"}
    assert verdicts["eighths"].text.startswith(words)


# -- authors ----------------------------------------------------------------------------------------------


def test_wrong_answers_are_the_mutants_of_the_unit(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    other = tmp_path / "fixtures" / "sums" / "equivalents"
    other.mkdir(parents=True)
    for name in ("one", "two"):
        (other / f"{name}.toml").write_text(RIGHT)
    workers = Workers()
    try:
        report = mutants.report(unit, workers, lambda text: None)
    finally:
        workers.close()
    assert (report["mutants"], report["by_claim"], report["equivalents"]) == (5, 5, 2)
    assert mutants.clean(report), report


def test_a_question_that_zero_answers_is_found(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, CASES.replace('{number: "3/8"}', '{number: "0"}'))
    (tmp_path / "impl" / "sums.toml").write_text(RIGHT.replace('"3/8"', "0"))
    workers = Workers()
    try:
        assert mutants.report(unit, workers, lambda text: None)["trivial"]["zeros"] == ["sums/eighths"]
    finally:
        workers.close()


FAULTS: list[tuple[str, str, str]] = [
    ('expect: {number: "3/8"}', 'expect: {number: "3/8", choice: a}', "an answer expects one of choice"),
    ('expect: {number: "3/8"}', 'expect: {return: "3/8"}', "an answer expects one of choice, number"),
    ('expect: {number: "3/8"}', "expect: {number: null}", "no value yet"),
    ('expect: {number: "3/8"}', 'expect: {number: "0.375"}', "not a decimal"),
    ('{value: "3/4"', '{value: "6/16"', "this is the right answer"),
    ('{value: "3/4"', '{value: "three"', "no part of an exact number"),
    ("{value: 2,", "{value: 1.4142136,", "this is the right answer"),
    ("answer: q2", "answer: q1", "'q1' is asked twice"),
    (", level: extra", "", "a proof is read by the learner alone: level extra"),
    (',\n   reject: [{value: ["1/2"], bug: "one only", hint: "And the other?"}]', "", "lists a wrong one"),
    ("cmp: close, ", "", "floats have no default comparator"),
    ("answer: q4,", "answer: q4, mutates: [x],", "'mutates' does not go with an answer"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), FAULTS)
def test_a_fault_in_a_question_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert CASES.count(old) == 1
    with pytest.raises(OwnFault, match=words):
        unit_of(tmp_path, CASES.replace(old, new))


def test_the_stub_holds_every_question_and_no_answer(tmp_path: Path) -> None:
    text = solve.stub(unit_of(tmp_path))
    assert [line for line in text.splitlines() if line[:1] == "q"] == [
        'q1 = ""', 'q2 = ""', "q3 = []", 'q4 = ""', 'q5 = {"base" = false, "step" = false}',
    ]  # fmt: skip


def test_a_sheet_left_in_the_middle_is_no_clean_end(tmp_path: Path) -> None:
    session: Any = solve.Sheet(tmp_path / "none.toml", "")
    session.send({"answer": "q1"}, 1.0)
    with pytest.raises(solve.Ended, match="an answer was asked for and not read"):
        session.close()
