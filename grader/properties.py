"""The verb `property`: many inputs by draws, judged by laws, by the oracle, by a model, or by the reference.

Draws, laws and models are functions of the unit's oracle.py, then of laws.py, and run on this side. A failure
is shrunk by editing the recorded choices and becomes a ready-made case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from grader import laws
from grader.answer import Answer
from grader.compare import EXACT, NAN_EQUAL, Cmp, Difference, Labels, cmp_of, compare, want_value
from grader.draw import Chooser, Replay, shrink
from grader.errors import OlError, OwnFault
from grader.judge import (
    Context,
    Evidence,
    Judge,
    Request,
    Stop,
    Verdict,
    check_raises,
    check_unchanged,
    construct,
    message_of,
    note_file,
    observable,
    unexpected,
    watched,
)  # fmt: skip
from grader.values import kind_of, plain, show, to_fixture, unplain
from grader.wire import Fields, Opaque

Outcome = tuple[Verdict, dict[str, Any]]  # a failing verdict and the case that shows it
Attempt = Generator[Request, Answer, Outcome | None]


def function_of(context: Context, name: str) -> Callable[..., Any]:
    found = getattr(context.unit.oracle, name, None) or getattr(laws, name, None)
    if found is None:
        where = f"{context.case.file}:{context.case.line}"
        raise OwnFault(f"{context.case.id}: no function {name!r} in oracle.py or laws.py", where)
    return found  # type: ignore[no-any-return]


def ask(context: Context, what: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Call the author's code; its faults are ours, never the learner's."""
    try:
        return function(*args, **more)
    except OlError:
        raise
    except Exception as error:
        place = f"{context.case.id} ({context.case.file}:{context.case.line})"
        raise OwnFault(f"{what} raised {type(error).__name__}: {error}", place, "fix oracle.py") from error


def judge_property(context: Context) -> Judge:
    prop = context.case.raw["property"]
    seed, runs = prop.get("seed", 0), prop.get("runs", 30)
    attempt = run_script if "script" in prop else run_call
    for i in range(runs):
        chooser = Chooser(seed, i)
        outcome = yield from attempt(context, chooser)
        if outcome is not None:
            evidence = outcome[0].evidence
            verdict, shown = yield from shrunk(context, attempt, chooser.choices, outcome)
            verdict.counterexample = shown
            # Diagnosis compares the input as it was drawn: on the smallest one too many mistakes agree.
            verdict.evidence = evidence and replace(evidence, run=i)
            verdict.text = f"run {i} of {runs}, seed {seed}" + (f": {verdict.text}" if verdict.text else "")
            return verdict
    return context.verdict("pass")


def shrunk(
    context: Context, attempt: Callable[[Context, Any], Attempt], choices: list[int], first: Outcome
) -> Generator[Request, Answer, Outcome]:
    """The smallest failure of the same outcome. Session faults are not shrunk: each try costs a process."""
    best = [first]

    def still_fails(candidate: list[int]) -> Generator[Request, Answer, bool]:
        try:
            outcome = yield from attempt(context, Replay(candidate))
        except OlError:
            return False  # the edited choices name an input that the oracle does not take
        if outcome is None or outcome[0].outcome != first[0].outcome:
            return False
        best[0] = outcome
        return True

    if context.shrinking and first[0].outcome in ("fail", "raised"):
        yield from shrink(choices, still_fails)
    return best[0]


# -- one call -------------------------------------------------------------------------------------------


def draw_args(context: Context, given: dict[str, Any], choose: Any) -> dict[str, Any]:
    """The arguments that `given` draws: one by one, or all of them in one draw."""
    if isinstance(given.get("draw"), str):
        drawn = drawn_by(context, given, choose)
        if not isinstance(drawn, dict):
            raise OwnFault(f"draw {given['draw']!r} yields no mapping of arguments", context.case.id)
        return {name: ask(context, given["draw"], unplain, value) for name, value in drawn.items()}
    return {
        name: ask(context, drawing["draw"], unplain, drawn_by(context, drawing, choose))
        for name, drawing in given.items()
    }


def drawn_by(context: Context, drawing: dict[str, Any], choose: Any) -> Any:
    name = drawing["draw"]
    return ask(context, name, function_of(context, name), choose, **drawing.get("with", {}))


def run_call(context: Context, choose: Any) -> Attempt:
    raw, prop = context.case.raw, context.case.raw["property"]
    args = {**context.args(raw), **draw_args(context, raw["property"]["given"], choose)}
    for spec in raw.get("objects", []):  # fresh ones: a run must not depend on the runs before it
        yield from construct(context, spec["id"], spec["new"], spec.get("args", {}))
    message = message_of("call", raw["call"], args, raw.get("on"))
    message["back"] = watched(args)
    answer = yield Request(message, context.limit_s)
    note_file(context, raw["call"], answer)
    cmp = cmp_of(prop) if "cmp" in prop else EXACT
    try:
        if "holds" in prop:
            expected: dict[str, Any] = {}
            if answer.kind != "return":
                raise unexpected(context, answer, raw["call"], 0)
            check_laws(context, args, answer)
        else:
            expected = yield from expectation(context, args, message)
            if "raises" in expected:
                check_raises(context, answer, expected["raises"], raw["call"], 0)
            else:
                want = want_value(expected["return"], cmp)
                if answer.kind != "return":
                    raise unexpected(context, answer, raw["call"], 0, want)
                difference = compare(want, answer.value, "return", context.labels)
                if difference is not None:
                    evidence = Evidence(0, "return", answer.value, want)
                    raise context.stop("fail", step=raw["call"], difference=difference, evidence=evidence)
        if answer.kind == "return":
            check_unchanged(context, args, answer, raw.get("mutates", []), raw["call"], 0)
    except Stop as stop:
        return stop.verdict, ready_made(context, args, expected, prop)
    return None


def expectation(
    context: Context, args: dict[str, Any], message: dict[str, Any]
) -> Generator[Request, Answer, dict[str, Any]]:
    """What the oracle says, or what the reference answers to the same request."""
    raw = context.case.raw
    if raw["property"]["same_as"] == "reference":
        yield Request({"reset": True}, context.limit_s, "reference")
        for spec in raw.get("objects", []):
            new = message_of("new", spec["new"], context.args(spec))
            yield Request({**new, "save": spec["id"]}, context.limit_s, "reference")
        answer = yield Request(message, context.limit_s, "reference")
        if answer.kind == "return":
            if holds_opaque(answer.value):  # two of them look alike, whatever they hold
                what = f"the reference returns {kind_of(answer.value)}, which holds what is no data"
                raise OwnFault(what, context.case.id)
            return {"return": answer.value}
        if answer.raised is None or answer.raised.phase != "call":
            raise OwnFault(f"the reference answered {answer.kind} to {raw['call']}", context.case.id)
        return {"raises": answer.raised.kind}
    return oracle_says(context, args)


def oracle_says(context: Context, args: dict[str, Any]) -> dict[str, Any]:
    """What expect() says of a call of this case with these arguments."""
    # A copy: an oracle that writes into its arguments must not make the learner's look changed.
    given = {"args": plain(args), "objects": plain_objects(context)}
    case = {"id": context.case.id, "call": context.case.raw["call"], **given}
    expected = ask(context, "expect", context.unit.oracle.expect, case)
    if not isinstance(expected, dict) or not {"return", "raises"} & set(expected):
        raise OwnFault("expect() gave neither return nor raises", context.case.id, "fix oracle.py")
    return expected


def holds_opaque(value: Any) -> bool:
    if isinstance(value, Fields):
        value = value.fields
    if isinstance(value, (list, dict)):
        return any(map(holds_opaque, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Opaque)


def plain_objects(context: Context) -> list[dict[str, Any]]:
    objects = context.case.raw.get("objects", [])
    return [{**spec, "args": plain(context.args(spec))} for spec in objects]


def check_laws(context: Context, args: dict[str, Any], answer: Answer) -> None:
    for law in context.case.raw["property"]["holds"]:
        function = function_of(context, law["law"])
        try:
            broken = function(plain(args), answer.value, **law.get("with", {}))
            if isinstance(broken, dict):  # a law that measures: its numbers, and what is wrong with them
                context.measured |= broken["measured"]
                broken = broken["broken"]
        except Exception as error:  # most likely the answer is of another kind; it fails closed
            broken = f"the law cannot read {kind_of(answer.value)}: {type(error).__name__}: {error}"
        if broken is not None:
            words = (function.__doc__ or law["law"]).splitlines()[0]
            difference = Difference("return", words, show(answer.value), str(broken))
            evidence = Evidence(0, "return", answer.value, want_value(answer.value, NAN_EQUAL))
            name = context.case.raw["call"]
            raise context.stop("fail", step=name, difference=difference, evidence=evidence)


def ready_made(
    context: Context, args: dict[str, Any], expected: dict[str, Any], prop: dict[str, Any]
) -> dict[str, Any]:
    """The failing input as a case that can be pasted into a file, and that diagnosis replays."""
    raw = context.case.raw
    case: dict[str, Any] = kept(raw, "rule", "oracle", "on", "objects", "mutates")
    case |= {"id": f"{context.case.id}-found", "call": raw["call"], "args": to_fixture(args)}
    if "raises" in expected:
        case["expect"] = {"raises": expected["raises"]}
    elif "return" in expected:
        case["expect"] = {"return": stated(expected, prop)}
    return case


def kept(node: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: node[key] for key in keys if key in node}


def with_cmp(node: Any, keys: dict[str, Any]) -> Any:
    """An expected value with its comparator beside every float and every label."""
    if isinstance(node, list):
        return [with_cmp(item, keys) for item in node]
    if isinstance(node, dict):
        if {"f16", "f32", "f64", "bf16"} & set(node):
            return {**node, **keys}
        if "tuple" in node:
            return [with_cmp(item, keys) for item in node["tuple"]]
        if set(node) == {"labels"}:
            ids = node["labels"]
            typed = ids if isinstance(ids, dict) else {"tuple" if isinstance(ids, list) else "i64": ids}
            return {**typed, "cmp": "labels"}
        return {k: with_cmp(v, keys) for k, v in node.items()}
    return node


# -- a script over a stateful object ----------------------------------------------------------------------


def run_script(context: Context, choose: Any) -> Attempt:
    """Steps one at a time, the model first; the draw sees the model's last answer, so it names live ids."""
    raw, prop = context.case.raw, context.case.raw["property"]
    spec, name = prop["script"], prop["same_as"].partition(".")[2]
    context.labels = Labels()  # of this run alone
    model_args = plain(context.args(raw))
    model = ask(context, name, function_of(context, name), **model_args)
    yield Request({"reset": True}, context.limit_s)
    yield from construct(context, "it", raw["new"], raw.get("args", {}))
    done: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []  # step, answer, state
    cmp = cmp_of(prop) if "cmp" in prop else EXACT
    draw = ask(context, spec["draw"], function_of(context, spec["draw"]), choose, **spec.get("with", {}))
    try:
        step = ask(context, spec["draw"], next, draw, None)
        while step is not None:
            args = step.get("args", {})
            expected = on_model(context, model, "do", step["do"], args)
            state: dict[str, Any] = {}
            done.append((dict(step), expected, state))
            index, label = len(done) - 1, f"step {len(done)}: {step['do']}"
            context.labels.moment = index
            sent = {k: context.named(unplain(v)) for k, v in args.items()}
            message = {**message_of("do", step["do"], sent, "it"), "back": watched(sent)}
            answer = yield Request(message, context.limit_s)
            judge_like(context, expected, answer, cmp, "return", label, index)
            if answer.kind == "return":
                check_unchanged(context, sent, answer, step.get("mutates", []), label, index)
            if prop.get("observables"):
                looks = {n: context.case.observables[n] for n in prop["observables"]}
                seen = yield Request({"observe": [observable(context, n) for n in looks]}, context.limit_s)
                if seen.kind != "observed" or len(seen.value) != len(looks):
                    raise unexpected(context, seen, label, index)
                state |= {n: looked(context, model, look) for n, look in looks.items()}
                for (n, want), got in zip(state.items(), seen.value, strict=True):
                    judge_like(context, want, got, cmp, f"state {n}", label, index)
            try:
                step = draw.send(expected)
            except StopIteration:
                step = None
    except Stop as stop:
        shown = kept(raw, "rule", "oracle", "new", "args")
        steps = [step_of(*taken, prop) for taken in done]
        return stop.verdict, {"id": f"{context.case.id}-found", **shown, "steps": steps}
    return None


def step_of(
    step: dict[str, Any], expected: dict[str, Any], state: dict[str, Any], prop: dict[str, Any]
) -> dict[str, Any]:
    """A step of a script in the form that a fixture writes it."""
    head = {"do": step["do"], "args": to_fixture(step.get("args", {}))} | as_stated(expected, prop)
    return head | ({"state": {n: stated(w, prop) for n, w in state.items()}} if state else {})


def on_model(context: Context, model: Any, kind: str, name: str, args: dict[str, Any]) -> dict[str, Any]:
    """A model's answer: its value, or the kind it raises; a method that it does not have is our fault."""
    if name not in dir(model):
        raise OwnFault(f"model {type(model).__name__} has no {name!r}", context.case.id, "fix oracle.py")
    try:
        value = getattr(model, name)(**told(args)) if kind == "do" else getattr(model, name)
        return {"return": deepcopy(value)}  # the model goes on changing what it gave
    except Exception as error:
        return {"raises": type(error).__name__}


def told(args: dict[str, Any]) -> Any:
    """A copy of drawn arguments as a model takes them: a label is its number."""
    return plain(unplain(args))


def looked(context: Context, model: Any, look: dict[str, Any]) -> dict[str, Any]:
    kind = "do" if "do" in look else "get"
    expected = on_model(context, model, kind, look[kind], look.get("args", {}))
    for step in look.get("path", ()):
        if "return" in expected:
            value = expected["return"]
            get = operator.getitem if isinstance(value, (dict, list, tuple)) else getattr
            expected = {"return": ask(context, look[kind], get, value, step)}
    return expected


def stated(expected: dict[str, Any], prop: dict[str, Any]) -> Any:
    if "raises" in expected:
        return {"raises": expected["raises"]}
    comparator = kept(prop, "cmp", "max", "rtol", "atol", "nan", "why")
    return with_cmp(to_fixture(expected["return"]), comparator)


def as_stated(expected: dict[str, Any], prop: dict[str, Any]) -> dict[str, Any]:
    return {"raises": expected["raises"]} if "raises" in expected else {"return": stated(expected, prop)}


def judge_like(
    context: Context, expected: dict[str, Any], answer: Answer, cmp: Cmp, what: str, label: str, index: int
) -> None:
    if "raises" in expected:
        check_raises(context, answer, expected["raises"], label, index)
        return
    want = want_value(expected["return"], cmp)
    if answer.kind != "return":
        raise unexpected(context, answer, label, index, want)
    difference = compare(want, answer.value, what, context.labels)
    if difference is not None:
        evidence = Evidence(index, what, answer.value, want)
        raise context.stop("fail", step=label, difference=difference, evidence=evidence)
