"""Solve sets, the verb `answer`: a learner's TOML read as numbers, sets and choices, and judged.

Nothing of it is run: exact answers go through the small parser below. What is right is never shown; a wrong
answer that a case lists is named.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Generator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from grader.answer import Answer, Raised
from grader.compare import Cmp, Difference, Keys, Leaf, Want, compare, want_of
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.frame import Body
from grader.judge import Context, Evidence, Request, Verdict, unexpected
from grader.session import Bundle, Ended, Opener
from grader.values import show

MOST_TEXT = 200  # characters of an answer
MOST_BRACKETS = 20
MOST_EXPONENT = 4096
MOST_BITS = 20_000  # of a numerator or denominator
MOST_SHEET = 1 << 20  # bytes of the file
SELF_CHECKED = "self-checked"  # how a proof that its author approves of is shown
KINDS = {"number", "set", "choice", "proof"}
TOKEN = re.compile(r"\s*(?:([0-9]+)|(\*\*|[-+*/^()]))")
DECIMAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d{1,4})?")


class Unreadable(ValueError):
    """An answer that says no number; the text is for the learner."""


# -- exact numbers ----------------------------------------------------------------------------------------


def exact(text: str) -> Fraction:
    """Read integers, p/q, powers, sums, products and brackets; nothing is evaluated but these.

    >>> exact("3*2^-3 + 1/8")
    Fraction(1, 2)
    """
    if len(text) > MOST_TEXT:
        raise Unreadable(f"{len(text)} characters, more than {MOST_TEXT}")
    if text.count("(") > MOST_BRACKETS:
        raise Unreadable(f"more than {MOST_BRACKETS} brackets")
    if "." in text or re.search(r"\d[eE]", text):
        raise Unreadable("an exact number is asked: write a fraction or a power, not a decimal")
    tokens, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"{text[at:].strip()[0]!r} is no part of an exact number such as 3*2^-10 + 1/7")
        tokens.append(match[1] or match[2].replace("**", "^"))
        at = match.end()
    reader = Reader(tokens)
    value = reader.sum()
    if reader.left():
        raise Unreadable(f"{reader.left()!r} is one too many")
    return value


class Reader:
    """Recursive descent over tokens: sum, product, signed power, atom."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def left(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.left()
        if token not in wanted:
            return ""
        self.at += 1
        return token

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.take("+", "-"):
            term = self.product()
            value = small(value + term if sign == "+" else value - term)
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while operator := self.take("*", "/"):
            factor = self.signed()
            if operator == "/" and factor == 0:
                raise Unreadable("a division by zero")
            value = small(value * factor if operator == "*" else value / factor)
        return value

    def signed(self) -> Fraction:
        sign = self.take("+", "-")
        value = self.power()
        return -value if sign == "-" else value

    def power(self) -> Fraction:
        base = self.atom()
        if not self.take("^"):
            return base
        exponent = self.exponent()
        if abs(exponent) > MOST_EXPONENT:
            raise Unreadable(f"an exponent beyond {MOST_EXPONENT}")
        if base == 0 and exponent < 0:
            raise Unreadable("a division by zero")
        if max(abs(base.numerator), base.denominator).bit_length() * abs(exponent) > 2 * MOST_BITS:
            raise Unreadable("too large a number")
        return small(base**exponent)

    def exponent(self) -> int:
        if self.take("("):
            value = self.exponent()
            if not self.take(")"):
                raise Unreadable("a bracket is not closed")
            return value
        sign = self.take("+", "-")
        digits = self.left()
        if not digits.isdecimal():
            raise Unreadable("an exponent is a whole number")
        self.at += 1
        return -int(digits) if sign == "-" else int(digits)

    def atom(self) -> Fraction:
        token = self.left()
        if token.isdecimal():
            self.at += 1
            return Fraction(int(token))
        if not self.take("("):
            raise Unreadable(f"a number is missing before {token!r}" if token else "the end comes too early")
        value = self.sum()
        if not self.take(")"):
            raise Unreadable("a bracket is not closed")
        return value


def small(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MOST_BITS:
        raise Unreadable("too large a number")
    return value


# -- answers as values ------------------------------------------------------------------------------------


def exact_value(value: Any) -> str:
    """An exact answer in its one spelling: `3/8`, `-2`."""
    if isinstance(value, str):
        return str(exact(value))
    if type(value) is int:
        return str(small(Fraction(value)))
    if isinstance(value, float):
        raise Unreadable("an exact number is asked: write a fraction or a power in quotes, not a decimal")
    raise Unreadable(f"a number is asked: an integer, or a text such as \"3/8\", not {show(value)}")


def near_value(value: Any) -> float:
    """An answer that is judged by a tolerance: a TOML number, a decimal in quotes, or an exact number."""
    if isinstance(value, str) and not DECIMAL.fullmatch(value.strip()):
        value = exact(value)
    elif isinstance(value, str) and len(value) <= MOST_TEXT:
        value = float(value)
    elif isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        raise Unreadable(f"a number is asked, not {show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise Unreadable("too large a number") from None


def read(kind: str, expect: Any, value: Any) -> Any:
    """A learner's answer, or one of a fixture, as the value that is compared."""
    if kind == "number":
        return near_value(value) if isinstance(expect, dict) else exact_value(value)
    if kind == "set":
        if not isinstance(value, list):
            raise Unreadable(f"a list is asked, such as [\"1/2\", 3], not {show(value)}")
        return [exact_value(item) for item in value]
    if kind == "choice":
        if not isinstance(value, str):
            raise Unreadable(f"a letter in quotes is asked, not {show(value)}")
        return value.strip().lower()
    if not isinstance(value, dict) or not all(isinstance(v, bool) for v in value.values()):
        raise Unreadable("a table of true and false is asked, one for each line of the rubric")
    return value


def want(kind: str, expect: Any) -> Want:
    """What is right, as something to compare with."""
    if kind == "number" and isinstance(expect, dict):
        return want_of(expect)
    if kind == "set":
        return Leaf(read(kind, expect, expect), Cmp("set"))
    if kind == "proof":
        return Keys({name: Leaf(True, Cmp("exact")) for name in expect})
    return Leaf(read(kind, expect, expect), Cmp("exact"))


def right(kind: str, expect: Any, got: Any) -> bool:
    return compare(want(kind, expect), got) is None


def asked(case: Case) -> tuple[str, Any]:
    """The kind of a question and what is right."""
    return next((kind, value) for kind, value in case.raw["expect"].items() if kind in KINDS)


def topic(case: Case, number: int) -> str:
    """The hint of a case's wrong answer, by its number from 1; also the name of the mistake."""
    return f"{case.raw['answer']}-{number}"


# -- judging ----------------------------------------------------------------------------------------------


def judge_answer(context: Context) -> Generator[Request, Answer, Verdict]:
    case = context.case
    name = case.raw["answer"]
    answer = yield context.request({"answer": name})
    if answer.kind != "return":
        raise unexpected(context, answer, name, 0)
    kind, expect = asked(case)
    try:
        got = read(kind, expect, answer.value)
    except Unreadable as error:
        raise context.stop("fail", f"{name} cannot be read: {error}", step=name) from None
    if kind == "proof" and set(got) == set(expect) and not all(got.values()):
        raise context.stop("todo", "not every line of the rubric is true yet", step=name)
    if right(kind, expect, got):
        return context.verdict("pass", policy=SELF_CHECKED if kind == "proof" else "")
    due = "the lines " + ", ".join(expect) if kind == "proof" else "another answer"
    difference, evidence = Difference("", due, show(got)), Evidence(0, "return", got, want(kind, expect))
    for number, reject in enumerate(case.raw.get("reject", []), 1):
        if same(kind, expect, got, reject["value"]):
            raise context.stop(
                "fail", step=name, difference=difference, evidence=evidence,
                mistake=reject["bug"], topic=topic(case, number),
            )  # fmt: skip
    raise context.stop("fail", step=name, difference=difference, evidence=evidence)


def same(kind: str, expect: Any, got: Any, value: Any) -> bool:
    """Whether an answer is this wrong one, under the question's own comparator."""
    value = read(kind, expect, value)
    return right(kind, {**expect, "f64": value} if isinstance(expect, dict) else value, got)


# -- the sheet --------------------------------------------------------------------------------------------


class Sheet:
    """A session with a learner's answers. There is no process: a TOML file is data."""

    libm: str | None = "system"
    holds_objects = False
    greeted = ""

    def __init__(self, path: Path, source: str | None = None) -> None:
        self.path, self.source = path, source
        self.bundle: Bundle | None = None
        self.waiting: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}

    def send(self, message: dict[str, Any], limit_s: float, body: Body | None = None) -> None:
        del limit_s, body
        self.waiting.append(message)

    def receive(self, limit_s: float) -> Answer:
        del limit_s
        message = self.waiting.pop(0)
        if "hello" in message:
            return self.opened()
        value = self.answers.get(message["answer"], "")
        if value == "" or value == []:
            unwritten = ("NotImplementedError", "RuntimeError")
            return Answer("raises", raised=Raised(unwritten[0], unwritten, "no answer yet", "call"))
        return Answer("return", value)

    def opened(self) -> Answer:
        """The file as TOML; a fault in it is the learner's, with its line."""
        kind, words, line = "SyntaxError", "", 0
        try:
            raw = self.path.read_bytes() if self.source is None else self.source.encode()
            if len(raw) > MOST_SHEET:
                raise ValueError(f"larger than {MOST_SHEET >> 20} MiB")
            self.answers = tomllib.loads(raw.decode("utf-8-sig"))
            return Answer("ok", libm="system")
        except UnicodeDecodeError as error:
            words, line = "not UTF-8; save the file as UTF-8", raw.count(b"\n", 0, error.start) + 1
        except tomllib.TOMLDecodeError as error:
            place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
            words, line = str(error).partition(" (at ")[0], int(place[1]) if place else 1
        except (ValueError, RecursionError, OSError) as error:
            words, line = str(error), 1
        return Answer("raises", raised=Raised(kind, (kind,), words, "import", str(self.path), line))

    def output(self) -> str:
        return ""

    def close(self) -> tuple[str, ...]:
        if self.waiting:
            raise Ended("protocol", "an answer was asked for and not read")
        return ()

    def kill(self) -> None:
        self.waiting.clear()


def opener(path: Path, source: str | None = None) -> Opener:
    """Opens the answers in a file, or in a text that stands for it."""
    return lambda: Sheet(path, source)


# -- authoring --------------------------------------------------------------------------------------------


def literal(value: Any) -> str:
    """A TOML value; JSON writes text, numbers and lists the same way."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {literal(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def sheet(answers: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {literal(value)}\n" for name, value in answers.items())


def reference(unit: Unit) -> dict[str, Any]:
    """The worked answers."""
    path = unit.root / unit.stage.files[0]
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OwnFault(str(error), str(path), "mend the worked answers") from None


def mistakes(unit: Unit) -> dict[str, Any]:
    """The wrong answers that cases list, in the form of mutants."""
    return {
        topic(case, n): {
            "bug": reject["bug"], "rule": case.rules[0], "hint": topic(case, n),
            "answer": case.raw["answer"], "value": reject["value"],
        }
        for case in unit.cases if case.verb == "answer"
        for n, reject in enumerate(case.raw.get("reject", []), 1)
    }  # fmt: skip


def changed(unit: Unit, name: str, value: Any) -> str:
    """The reference's answers with one of them replaced."""
    return sheet({**reference(unit), name: value})


def blank(kind: str, expect: Any) -> Any:
    return dict.fromkeys(expect, False) if kind == "proof" else [] if kind == "set" else ""


def stub(unit: Unit) -> str:
    """The sheet as a learner gets it: every question with its kind, and no answer."""
    words = {"set": "a list of exact numbers", "choice": "a letter", "proof": "true for what your proof has"}
    lines = [
        f"# Answers of {unit.stage.id}. The questions are in problems/{unit.name}.md.",
        '# An exact number is a whole number or a text: 7, "3/8", "2^-24", "3*2^-10 + 1/7".',
        "# An empty text is no answer yet.",
    ]
    for case in sorted(unit.cases, key=lambda case: str(case.raw["answer"])):
        kind, expect = asked(case)
        number = "a number, also as a decimal" if isinstance(expect, dict) else "an exact number"
        empty = f"{case.raw['answer']} = {literal(blank(kind, expect))}"
        lines += ["", f"# {words.get(kind, number)}", empty]
    return "\n".join(lines) + "\n"


def trivial_sheets(unit: Unit) -> dict[str, str]:
    """Sheets that know nothing, by the kind of trivial answer."""
    cases = [case for case in unit.cases if case.verb == "answer" and case.required]
    worked = reference(unit)
    kinds = {case.raw["answer"]: asked(case)[0] for case in cases}
    made = {"stub": stub(unit)}
    made["zeros"] = sheet({name: [0] if form == "set" else 0 for name, form in kinds.items()})
    made["nan"] = "".join(f"{name} = {'[nan]' if form == 'set' else 'nan'}\n" for name, form in kinds.items())
    made["echo"] = sheet({name: name for name in kinds})
    names = list(kinds)
    made["previous"] = sheet({name: worked[names[i - 1]] for i, name in enumerate(names)})
    return made
