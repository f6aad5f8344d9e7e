"""The verb `perf`: how long calls take beside other code, or how much work they do.

Nothing is measured in seconds of this machine alone: the code under test and what it is compared with run in
turn, A B B A, in processes of their own. The time of a call is the slope between a short run of calls and a
long one, so what a run costs by itself cancels. Arguments are new at every repetition and are in the process
before the clock starts; it stops when the last byte of the last result is here. Results are judged after.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from grader.answer import Answer
from grader.compare import EXACT, cmp_of, compare, want_value
from grader.draw import Chooser, mix64
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.judge import Context, Stop, Verdict, check_built, message_of, note_file, unexpected
from grader.properties import draw_args, oracle_says
from grader.session import Session
from grader.values import decode_args
from grader.wire import Ref

PAIRS = (7, 40)  # rounds of A B B A: how many at least, and when an open question is given up
FAR = 10  # times the limit in both halves of the first round: slow beyond doubt
ERROR = 0.01  # the interval of a ratio holds its median with 99 %


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of ratios, and an interval of it."""

    median: float
    low: float
    high: float
    rounds: int


def interval(ratios: Sequence[float], error: float) -> Ratio:
    """The interval of the median by order statistics; with too few values it is their whole range.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0.05)
    Ratio(median=4.0, low=1.0, high=7.0, rounds=7)
    """
    ranked, n = sorted(ratios), len(ratios)
    k = 0  # the largest k with P(at most k of n values below the median) <= error / 2
    while sum(math.comb(n, i) for i in range(k + 1)) <= error / 2 * 2**n:
        k += 1
    k = max(0, k - 1)
    return Ratio(statistics.median(ranked), ranked[k], ranked[n - 1 - k], n)


class Side:
    """One of the two that are compared: a session, and what it has answered since it was last judged."""

    def __init__(self, context: Context, session: Session, args: dict[str, Any]) -> None:
        self.context, self.session = context, session
        self.fixed = {**context.args(context.case.raw), **args}
        self.answers: list[tuple[dict[str, Any], int, Any]] = []
        self.runs = 0

    def row(self) -> int:
        """Which row of a result this run sends; the code that is timed cannot know."""
        return mix64(self.runs) % int(self.context.case.raw["perf"]["rows"])

    def ask(self, message: dict[str, Any]) -> Answer:
        from grader.runner import ask

        return ask(self.session, message, self.context.limit_s)

    def keep(self, key: str, name: str, args: dict[str, Any]) -> None:
        """Have an object built in the process, under a key."""
        check_built(self.context, name, self.ask({**message_of("new", name, args), "save": key}))

    def build(self) -> None:
        for spec in self.context.case.raw.get("objects", []):
            self.keep(spec["id"], spec["new"], self.context.args(spec))

    def run(self, inputs: Sequence[dict[str, Any]]) -> float:
        """Seconds from the first request to the last result, of one call for each input."""
        from grader.runner import send

        raw, limit_s = self.context.case.raw, self.context.limit_s
        if not inputs:
            return 0.0
        message = message_of("call", raw["call"], self.fixed, raw.get("on"))
        self.runs += 1
        if "rows" in raw["perf"]:  # one row of each result, another one each time, so that copies stay small
            message["path"] = [self.row()]
        message["each"], n_kept = [], 0
        for i, given in enumerate(inputs):
            large = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
            for name, value in large.items():
                new = message_of("new", "testkit.given", {"value": value})
                send(self.session, {**new, "save": f"{name}-{i}"}, limit_s)
                n_kept += 1
            message["each"].append({**given, **{name: Ref(f"{name}-{i}") for name in large}})
        for _ in range(n_kept):
            check_built(self.context, "testkit.given", self.session.receive(limit_s))
        start = time.perf_counter()
        send(self.session, message, limit_s)
        answer = self.session.receive(limit_s)
        spent = time.perf_counter() - start
        note_file(self.context, raw["call"], answer)
        if answer.kind != "return" or not isinstance(answer.value, list) or len(answer.value) != len(inputs):
            raise unexpected(self.context, answer, raw["call"], 0)
        row = self.row() if "rows" in raw["perf"] else -1
        self.answers += [(given, row, value) for given, value in zip(inputs, answer.value, strict=True)]
        return spent

    def slope(self, few: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]]) -> float:
        """Seconds of a call."""
        short, long = self.run(few), self.run(many)
        slope = (long - short) / (len(many) - len(few))
        return slope if slope > 0 else long / len(many)  # where noise is larger than a call

    def work(self, inputs: Sequence[dict[str, Any]], counter: dict[str, Any]) -> float:
        """How far a counter of the testkit moves in a call."""
        before = self.read(counter)
        self.run(inputs)
        return (self.read(counter) - before) / len(inputs)

    def read(self, counter: dict[str, Any]) -> float:
        kind = "do" if "do" in counter else "get"
        answer = self.ask(message_of(kind, counter[kind], {}, counter["on"]))
        if answer.kind != "return" or not isinstance(answer.value, int):
            what = f"{counter[kind]} of {counter['on']} is no counter: it answered {answer.kind}"
            raise OwnFault(what, self.context.case.id, "count in the testkit")
        return answer.value

    def judged(self) -> None:
        """Compare every result so far with what the oracle says of its input."""
        name, check = self.context.case.raw["call"], self.context.case.raw["perf"]["check"]
        cmp = cmp_of(check) if "cmp" in check else EXACT
        for given, row, value in self.answers:
            expected = oracle_says(self.context, {**self.fixed, **given})
            if "raises" in expected:
                raise OwnFault(f"expect() raises {expected['raises']}: nothing to time", self.context.case.id)
            due = expected["return"] if row < 0 else expected["return"][row]
            difference = compare(want_value(due, cmp), value, "return" if row < 0 else f"return[{row}]")
            if difference is not None:
                raise self.context.stop("fail", step=name, difference=difference)
        self.answers.clear()


def judge_perf(unit: Unit, case: Case, mine: Session, theirs: Session) -> Verdict:
    """The verdict on one perf case; `theirs` is the session of what it is compared with."""
    context = Context(unit, case)
    measure = case.raw["perf"]["measure"]
    against = measure.get("against")
    one = Side(context, mine, {})
    # With a context of its own: which files answered there says nothing about the learner's.
    changed = decode_args(against["args"], unit.dir) if isinstance(against, dict) else {}
    other = Side(Context(unit, case), theirs, changed)
    try:
        one.build()
        with ours(context, against):
            other.build()
        found = work(context, one, other) if measure["metric"] == "work" else time_ratio(context, one, other)
    except Stop as stop:
        return stop.verdict
    return decided(context, found)


@contextmanager
def ours(context: Context, against: Any) -> Iterator[None]:
    """What fails on the other side is the learner's only if the learner's code runs there."""
    try:
        yield
    except Stop as stop:
        if against in ("naive", "reference"):
            raise OwnFault(f"the {against} code: {stop.verdict.outcome}", context.case.id) from None
        raise


def inputs_of(context: Context) -> Iterator[dict[str, Any]]:
    """Drawn arguments, new ones each time."""
    seed = context.case.raw["perf"].get("seed", 0)
    return (draw_args(context, context.case.raw["perf"]["given"], Chooser(seed, i)) for i in count())


def time_ratio(context: Context, one: Side, other: Side) -> Ratio:
    """Rounds until the whole interval is on one side of the limit, or there have been enough."""
    perf = context.case.raw["perf"]
    measure, against = perf["measure"], perf["measure"]["against"]
    least, most = measure.get("pairs", PAIRS)
    drawn = inputs_of(context)
    ratios: list[float] = []
    for n in range(most + 1):
        few, many, fewer, more = (list(islice(drawn, size)) for size in (*perf["sizes"], *perf["sizes"]))
        mine = one.slope(few, many)
        with ours(context, against):
            theirs = other.slope(few, many)
            again = other.slope(fewer, more)
        last = one.slope(fewer, more)
        one.judged()
        with ours(context, against):
            other.judged()
        if n:  # the first round warms both up
            ratios += [mine / theirs, last / again]
        elif min(mine / theirs, last / again) > FAR * measure.get("max", math.inf):
            return interval([mine / theirs, last / again], ERROR)  # no more rounds could change that
        if n >= least and outcome_of(measure, found := interval(ratios, ERROR)) != "undecided":
            break
    return found


def work(context: Context, one: Side, other: Side) -> Ratio:
    """How far a counter moves, beside the other side where there is one."""
    perf = context.case.raw["perf"]
    measure = perf["measure"]
    inputs = list(islice(inputs_of(context), perf["sizes"][1]))
    value = one.work(inputs, measure["counter"])
    one.judged()
    if "against" in measure:
        with ours(context, measure["against"]):
            theirs = other.work(inputs, measure["counter"])
            other.judged()
        value = value / theirs if theirs else math.inf
    return Ratio(value, value, value, 1)


def outcome_of(measure: dict[str, Any], found: Ratio) -> str:
    """The whole interval decides. Beside itself, code is as fast as it is: there the interval holds 1."""
    if measure.get("against") == "self" and not {"max", "min"} & set(measure):
        return "pass" if found.low <= 1 <= found.high else "fail"
    most, least = measure.get("max", math.inf), measure.get("min", -math.inf)
    if found.low > most or found.high < least:
        return "fail"
    return "pass" if found.high <= most and found.low >= least else "undecided"


def decided(context: Context, found: Ratio) -> Verdict:
    measure = context.case.raw["perf"]["measure"]
    outcome = outcome_of(measure, found)
    measured = {"value": found.median, "low": found.low, "high": found.high, "rounds": found.rounds}
    if outcome == "pass":
        return context.verdict("pass", measured=measured)
    got = f"{found.median:.3g}" + (f" ({found.low:.3g} to {found.high:.3g})" if found.rounds > 1 else "")
    return context.verdict(outcome, f"{what(measure)}: {got}; {bound(measure)}.", measured=measured)


def what(measure: dict[str, Any]) -> str:
    """What the number is."""
    thing = "counted work" if measure["metric"] == "work" else "time"
    against = measure.get("against")
    if against is None:
        return thing
    if isinstance(against, dict):
        other = ", ".join(f"{name}={plain_word(value)}" for name, value in against["args"].items())
        return f"{thing} over that with {other}"
    return f"{thing} over that of {'itself' if against == 'self' else f'the {against} code'}"


def plain_word(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) else "another value"


def bound(measure: dict[str, Any]) -> str:
    bounds = [f"at most {measure['max']:g}"] if "max" in measure else []
    bounds += [f"at least {measure['min']:g}"] if "min" in measure else []
    return " and ".join(bounds) or "1 must be in the interval"
