"""What each verb asks and how it judges the answers.

A judge is a generator: it yields requests, receives answers, and returns a Verdict. It knows expected
values; what it yields does not. So the same judge serves the worker, an adapter, a mutant and the reference.
"""

from __future__ import annotations

from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grader.answer import Answer, Raised
from grader.compare import (
    BITS,
    NAN_EQUAL,
    Attrs,
    Difference,
    Keys,
    Labels,
    Seq,
    Want,
    compare,
    show_want,
    want_of,
    want_value,
)  # fmt: skip
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.values import decode_args, show
from grader.wire import Call, Label, New, Ref

SESSION_OUTCOMES = ("crashed", "deadline", "memory", "protocol")


@dataclass(slots=True)
class Request:
    """A message for code under test; `args` still holds values. `who` is the learner or the reference.

    `ahead` are the next requests, sent along with this one because no answer can change them: the set-up of
    a case, its one call, and what is looked at afterwards. They are yielded in turn all the same.
    """

    message: dict[str, Any]
    limit_s: float
    who: str = "learner"
    ahead: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a wrong answer was, for diagnosis: where it came, and the value or the kind raised."""

    step: int
    what: str  # return, state <name>, after <name>, args.<name>, raises
    value: Any
    cmp: Want | None = None
    run: int = 0  # which run of a property, before shrinking
    unraised: bool = False  # a raise was due, and a value came


@dataclass(slots=True)
class Verdict:
    """The outcome of one case, with everything a report needs."""

    case: str
    outcome: str
    text: str = ""
    step: str = ""
    difference: Difference | None = None
    raised: Raised | None = None
    at: tuple[str, int] | None = None
    output: str = ""
    evidence: Evidence | None = None
    files: set[str] = field(default_factory=set)
    policy: str = ""
    counterexample: dict[str, Any] | None = None
    mistake: str = ""  # the wrong answer of a solve set, in words
    topic: str = ""  # and its hint
    last_state: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    error: float | None = None  # the measured distance, in units of the tolerance's own measure

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"


Judge = Generator[Request, Answer, Verdict]
State = Want | dict[str, str]  # what an observable shows: a value, or {raises: kind}
PLAIN = {int, float, str, bool}


class Stop(Exception):
    """The verdict is in."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.outcome)
        self.verdict = verdict


@dataclass(slots=True)
class Context:
    """One case being judged: its unit, the labels it has seen, the files that answered."""

    unit: Unit
    case: Case
    shrinking: bool = True
    labels: Labels = field(default_factory=Labels)
    files: set[str] = field(default_factory=set)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        return self.case.limit_s

    def args(self, node: dict[str, Any]) -> dict[str, Any]:
        args = decode_args(node.get("args", {}), self.unit.dir)
        return args if self.case.verb == "call" else {name: self.named(v) for name, v in args.items()}

    def named(self, value: Any) -> Any:
        """The value with every label as the id that the code under test gave for it."""
        kind = type(value)
        if kind is Label:
            found = self.labels.id_of(value.id)
            if found is None:
                what = f"label {value.id} is used before an answer or a state has shown it"
                raise OwnFault(what, self.case.id, "state it first, with cmp: labels")
            return found
        if kind is dict:
            return {k: self.named(v) for k, v in value.items()}
        if kind in (list, tuple) and not set(map(type, value)) <= PLAIN:
            return kind(map(self.named, value))
        return value

    def want(self, node: Any) -> Want:
        return want_of(node, self.unit.dir)

    def request(self, message: dict[str, Any]) -> Request:
        return Request(message, self.limit_s)

    def verdict(self, outcome: str, text: str = "", **more: Any) -> Verdict:
        return Verdict(self.case.id, outcome, text, files=self.files, **{"measured": self.measured, **more})

    def stop(self, outcome: str, text: str = "", **more: Any) -> Stop:
        return Stop(self.verdict(outcome, text, **more))


def judge(unit: Unit, case: Case, shrinking: bool = True) -> Judge:
    """The verdict on one case; a failing property is shrunk unless nobody will read it."""
    from grader import properties

    context = Context(unit, case, shrinking)
    try:
        setup = [Request({"reset": True}, context.limit_s), *map(context.request, build_messages(context))]
        call = call_messages(context) if case.verb == "call" else []
        asked = list(map(context.request, call))
        setup[0].ahead = [*setup[1:], *asked]
        yield setup[0]
        for request in setup[1:]:
            check_built(context, request.message["new"], (yield request))
        if case.verb == "call":
            return (yield from judge_call(context, asked))
        if case.verb == "trace":
            return (yield from judge_trace(context))
        if case.verb == "answer":
            from grader import solve

            return (yield from solve.judge_answer(context))
        return (yield from properties.judge_property(context))
    except Stop as stop:
        return stop.verdict


# -- requests -------------------------------------------------------------------------------------------


def message_of(kind: str, name: str, args: dict[str, Any], on: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {kind: name}
    if on is not None:
        message = {"do" if kind == "call" else kind: name, "on": on}
    if kind != "get":
        message["args"] = args
    return message


def build_messages(context: Context) -> list[dict[str, Any]]:
    raw = context.case.raw
    specs = [*raw.get("objects", []), *([{**raw, "id": "it"}] if "new" in raw else [])]
    return [new_message(context, spec["id"], spec["new"], spec.get("args", {})) for spec in specs]


def new_message(context: Context, key: str, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {**message_of("new", name, context.args({"args": args})), "save": key}


def construct(
    context: Context, key: str, name: str, args: dict[str, Any]
) -> Generator[Request, Answer, None]:
    check_built(context, name, (yield context.request(new_message(context, key, name, args))))


def check_built(context: Context, name: str, answer: Answer) -> None:
    if answer.kind != "ok":
        stop = unexpected(context, answer, f"{name}(..)", 0)
        if stop.verdict.outcome == "raised":
            stop.verdict.text = f"an object could not be built: {stop.verdict.text}"
            stop.verdict.difference = None
        raise stop
    note_file(context, name, answer)


def note_file(context: Context, name: str, answer: Answer) -> None:
    """Remember which file answered for a name of the learner's; given modules and the testkit are ours."""
    if name.startswith(("tk_", "drv_")):
        return
    if "." not in name or name.partition(".")[0] not in ("testkit", "rng", "categorical"):
        context.files.add(answer.file or "")


def watched(args: dict[str, Any]) -> list[str]:
    """Arguments that come back after the call, because nothing may have changed them."""
    return [name for name, value in args.items() if is_watched(value)]


def is_watched(value: Any) -> bool:
    """Data that can change. A record built for the call is watched by its fields; inside a list it is not."""
    return isinstance(value, (np.ndarray, New)) or (isinstance(value, (list, tuple, dict)) and is_data(value))


def is_data(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return set(map(type, items)) <= PLAIN or all(map(is_data, items))
    return not isinstance(value, (New, Call, Ref))


def collect_attrs(want: Want) -> list[str]:
    """The attributes that an expected value looks at, so that the worker can send them."""
    match want:
        case Attrs(fields):
            return [*fields, *(a for w in fields.values() for a in collect_attrs(w))]
        case Seq(items):
            return [a for w in items for a in collect_attrs(w)]
        case Keys(items):
            return [a for w in items.values() for a in collect_attrs(w)]
    return []


# -- answers --------------------------------------------------------------------------------------------


def unexpected(context: Context, answer: Answer, step: str, index: int, wanted: Want | None = None) -> Stop:
    """The verdict on an answer that is no value where one was due."""
    if answer.kind == "unsupported":
        return context.stop("unsupported", f"the adapter does not support this: {answer.value}", step=step)
    raised = answer.raised
    if raised is None:
        return context.stop("protocol", f"answered {answer.kind} where a value was due", step=step)
    at = (raised.file, raised.line) if raised.file else None
    if answer.kind == "memory":
        return context.stop("memory", "Ran out of memory.", step=step, raised=raised, at=at)
    if raised.is_a("NotImplementedError"):
        return context.stop("todo", "not written yet", step=step, raised=raised, at=at)
    evidence = Evidence(index, "raises", raised.kind)
    expected = show_want(wanted) if wanted is not None else "a value"
    difference = Difference("", expected, f"raised {raised.kind}") if raised.phase == "call" else None
    more = {"raised": raised, "at": at, "evidence": evidence, "difference": difference}
    return context.stop("raised", raise_text(raised), step=step, **more)


def raise_text(raised: Raised) -> str:
    """One cause, one place, by the phase in which it was raised."""
    text = f"{raised.kind}: {raised.text}" if raised.text else raised.kind
    if raised.phase == "lookup":
        return raised.text + (f". Found: {', '.join(raised.found)}." if raised.found else ".")
    if raised.phase == "args":
        return f"an argument could not be built: {text}"
    if raised.phase == "result":
        return f"the result could not be read: {text}"
    return text


def is_kind(unit: Unit, raised: Raised, kind: str) -> bool:
    declared = unit.errors.get(kind)
    return raised.is_a(declared["python"].rpartition(".")[2] if declared else kind)


def check_raises(context: Context, answer: Answer, kind: str, step: str, index: int) -> None:
    """A raise counts only in the call itself, by a class name of its kind, and never as `todo`."""
    raised = answer.raised
    if answer.kind == "raises" and raised is not None and raised.phase == "call":
        if is_kind(context.unit, raised, kind) and not raised.is_a("NotImplementedError"):
            return
        stop = unexpected(context, answer, step, index)
        if stop.verdict.outcome == "raised":
            stop.verdict.difference = Difference("", f"raises {kind}", f"raised {raised.kind}: {raised.text}")
        raise stop
    if answer.kind == "return":
        difference = Difference("", f"raises {kind}", f"returned {show(answer.value)}")
        evidence = Evidence(index, "return", answer.value, want_value(answer.value, NAN_EQUAL), unraised=True)
        raise context.stop("fail", step=step, difference=difference, evidence=evidence)
    raise unexpected(context, answer, step, index)


def check_value(context: Context, want: Want, got: Any, what: str, step: str, index: int) -> None:
    difference = compare(want, got, what, context.labels)
    if difference is not None:
        evidence = Evidence(index, what, got, want)
        raise context.stop("fail", step=step, difference=difference, evidence=evidence, error=difference.gap)


def check_unchanged(
    context: Context, sent: dict[str, Any], answer: Answer, may: list[str], step: str, index: int
) -> None:
    """Every argument that is not in `mutates` comes back bit-equal."""
    for name in watched(sent):
        if name in may:
            continue
        before, after = sent[name], answer.args.get(name)
        if context.unit.stage.is_native and isinstance(before, np.ndarray) and before.ndim == 0:
            continue  # C got a number, by value
        if isinstance(before, New):
            if f"{name} before" not in answer.args:
                continue  # no record: what matters of such an object is said by `after`
            before = answer.args[f"{name} before"]
        if same_bits(before, after):
            continue
        difference = compare(want_value(before, BITS), after, f"args.{name}")
        if difference is not None:
            difference = replace(difference, note="changed by the call")
            evidence = Evidence(index, f"args.{name}", after, want_value(after, BITS))
            raise context.stop("fail", step=step, difference=difference, evidence=evidence)


def same_bits(before: Any, after: Any) -> bool:
    """The quick yes for what did not change; anything else is compared value by value."""
    if before is after:  # a record whose JSON was the same before and after
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, np.ndarray):
        kind = before.dtype == after.dtype and before.shape == after.shape
        return bool(kind and before.tobytes() == after.tobytes())
    integers = isinstance(before, list) and all(type(x) is int for x in [*before, *after])  # True == 1
    return integers and bool(before == after)


# -- call -----------------------------------------------------------------------------------------------


def call_messages(context: Context) -> list[dict[str, Any]]:
    """The call, then the looks at objects afterwards."""
    raw, expect = context.case.raw, context.case.raw["expect"]
    args = context.args(raw)
    message = message_of("call", raw["call"], args, raw.get("on"))
    message["back"] = watched(args)
    if attrs := [name for want in wants_of(context) for name in collect_attrs(want)]:
        message["attrs"] = attrs
    return [message, *(after_message(context, key, look) for key, look in expect.get("after", {}).items())]


def wants_of(context: Context) -> list[Want]:
    """What the call may return: one value, or one for each policy."""
    expect = context.case.raw["expect"]
    return [context.want(o["return"]) for o in (expect, *expect.get("accept", [])) if "return" in o]


def judge_call(context: Context, asked: list[Request]) -> Judge:
    raw = context.case.raw
    expect, name = raw["expect"], raw["call"]
    args, wants = asked[0].message["args"], wants_of(context)
    answer = yield asked[0]
    note_file(context, name, answer)
    policy = ""
    if "raises" in expect:
        check_raises(context, answer, expect["raises"], name, 0)
    elif "accept" in expect:
        policy = accepted(context, answer, expect["accept"], name)
    elif answer.kind != "return":
        raise unexpected(context, answer, name, 0, wants[0] if wants else None)
    elif wants:
        check_value(context, wants[0], answer.value, "return", name, 0)
    if answer.kind == "return":
        check_unchanged(context, args, answer, raw.get("mutates", []), name, 0)
        for arg, node in expect.get("args", {}).items():
            check_value(context, context.want(node), answer.arg(arg), f"args.{arg}", name, 0)
    for request, (key, look) in zip(asked[1:], expect.get("after", {}).items(), strict=True):
        check_after(context, key, look, name, (yield request))
    return context.verdict("pass", policy=policy)


def accepted(context: Context, answer: Answer, options: list[dict[str, Any]], name: str) -> str:
    """The policy whose answer this is; the rule allows several."""
    seen = deepcopy(context.labels)
    for option in options:
        context.labels = deepcopy(seen)  # an answer that is not accepted has named no label
        try:
            if "raises" in option:
                check_raises(context, answer, option["raises"], name, 0)
            elif answer.kind == "return":
                check_value(context, context.want(option["return"]), answer.value, "return", name, 0)
            else:
                continue
        except Stop as stop:
            if stop.verdict.outcome == "todo":
                raise
            continue
        return str(option["policy"])
    if answer.kind != "return":
        raise unexpected(context, answer, name, 0)
    policies = " or ".join(option["policy"] for option in options)
    evidence = Evidence(0, "return", answer.value, want_value(answer.value, NAN_EQUAL))
    difference = Difference("return", policies, show(answer.value))
    raise context.stop("fail", step=name, difference=difference, evidence=evidence)


def after_message(context: Context, key: str, look: dict[str, Any]) -> dict[str, Any]:
    kind = "do" if "do" in look else "get"
    message = message_of(kind, look[kind], context.args(look), key)
    if "path" in look:
        message["path"] = look["path"]
    if attrs := collect_attrs(context.want(look["return"])):
        message["attrs"] = attrs
    return message


def check_after(context: Context, key: str, look: dict[str, Any], name: str, answer: Answer) -> None:
    """What must be true of an object afterwards, such as how far a random stream has moved."""
    want = context.want(look["return"])
    kind = "do" if "do" in look else "get"
    if answer.kind != "return":
        raise unexpected(context, answer, f"{name}, then {key}.{look[kind]}", 1, want)
    check_value(context, want, answer.value, f"after {key}.{look[kind]}", name, 1)


# -- trace ----------------------------------------------------------------------------------------------


def judge_trace(context: Context) -> Judge:
    seen: dict[str, State] = {}  # every observable stated so far
    last_state = ""
    for index, step in enumerate(context.case.raw["steps"]):
        kind = next(k for k in ("do", "get", "call", "new") if k in step)
        label = f"step {index + 1}: {step[kind]}"
        context.labels.moment = index
        try:
            named = yield from judge_step(context, step, kind, seen, label, index)
        except Stop as stop:
            stop.verdict.last_state = last_state
            raise
        seen.update(named)
        if "state" in step:
            last_state = ", ".join(f"{name}={show_want(want)}" for name, want in named.items())
    return context.verdict("pass")


def judge_step(
    context: Context, step: dict[str, Any], kind: str, seen: dict[str, State], label: str, index: int
) -> Generator[Request, Answer, dict[str, State]]:
    """One step with the looks before and after it; what the observables then show.

    All of it is asked at once, for no answer can change it, unless a look names an id that the step gives.
    """
    message, args = step_message(context, step, kind)
    want = context.want(step["return"]) if "return" in step else None
    if want is not None and (attrs := collect_attrs(want)):
        message["attrs"] = attrs
    stated = state_of(context, step)
    before = seen if "raises" in step else {}  # a step that raises changes nothing
    after = in_order(context, {**before, **stated})
    asked = [context.request(message)]
    if after and not any(names_label(context.case.observables[name]) for name in after):
        asked.append(look_at(context, after))
    if before:
        asked.insert(0, look_at(context, before))
    asked[0].ahead = asked[1:]
    if before:
        stated = {**state_shown(context, before, (yield asked.pop(0)), label, index), **stated}
    answer = yield asked.pop(0)
    if kind in ("call", "new") or (kind == "do" and "on" not in step and "new" not in context.case.raw):
        note_file(context, step[kind], answer)
    if "raises" in step:
        check_raises(context, answer, step["raises"], label, index)
    elif answer.kind != ("ok" if "save" in step else "return"):
        raise unexpected(context, answer, label, index, want)
    elif want is not None:
        check_value(context, want, answer.value, "return", label, index)
    if answer.kind in ("return", "ok"):
        check_unchanged(context, args, answer, step.get("mutates", []), label, index)
    if after:
        look = asked.pop(0) if asked else look_at(context, after)
        check_state(context, {name: stated[name] for name in after}, (yield look), label, index)
    return stated


def step_message(context: Context, step: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    args = context.args(step)
    on = step.get("on")
    if on is None and kind in ("do", "get") and "new" in context.case.raw:
        on = "it"
    verb = "call" if kind == "do" and on is None else kind
    message = message_of(verb, step[kind], args, on)
    if kind != "get":
        message["back"] = watched(args)
    if "save" in step:
        message["save"] = step["save"]
    return message, args


def state_of(context: Context, step: dict[str, Any]) -> dict[str, State]:
    """What a step states of its observables."""
    stated: dict[str, State] = {}
    for name, node in step.get("state", {}).items():
        raises = isinstance(node, dict) and set(node) == {"raises"}
        stated[name] = {"raises": node["raises"]} if raises else context.want(node)
    return stated


def observable(context: Context, name: str) -> dict[str, Any]:
    spec = context.case.observables[name]
    kind = next(k for k in ("do", "get", "call") if k in spec)
    on = spec.get("on", "it" if kind in ("do", "get") and "new" in context.case.raw else None)
    message = message_of(kind, spec[kind], context.args(spec), on)
    return {**message, "path": spec["path"]} if "path" in spec else message


def in_order(context: Context, named: dict[str, State]) -> dict[str, State]:
    """The same, in the order in which the fixture declares its observables."""
    return {name: named[name] for name in context.case.observables if name in named}


def names_label(spec: dict[str, Any]) -> bool:
    """Whether a look's arguments name an id of the learner's."""

    def within(node: Any) -> bool:
        if isinstance(node, dict):
            return "label" in node or any(map(within, node.values()))
        return isinstance(node, list) and any(map(within, node))

    return within(spec.get("args"))


def look_at(context: Context, named: dict[str, State]) -> Request:
    """The request for what the observables show, with the attributes that their values look at."""
    looks = []
    for name, want in named.items():
        look = observable(context, name)
        attrs = [] if isinstance(want, dict) else collect_attrs(want)
        looks.append({**look, "attrs": attrs} if attrs else look)
    return context.request({"observe": looks})


def state_shown(
    context: Context, named: dict[str, State], answer: Answer, label: str, index: int
) -> dict[str, State]:
    """What the observables show, to the bit, as something to compare with later."""
    if answer.kind != "observed" or len(answer.value) != len(named):
        raise unexpected(context, answer, label, index)
    return {
        name: {"raises": item.raised.kind} if item.raised is not None else want_value(item.value, BITS)
        for name, item in zip(named, answer.value, strict=True)
    }


def check_state(context: Context, named: dict[str, State], answer: Answer, label: str, index: int) -> None:
    if answer.kind != "observed" or len(answer.value) != len(named):
        raise unexpected(context, answer, label, index)
    for (name, want), seen in zip(named.items(), answer.value, strict=True):
        if isinstance(want, dict):
            check_raises(context, seen, want["raises"], f"{label}, then {name}", index)
        elif seen.kind != "return":
            raise unexpected(context, seen, f"{label}, then {name}", index, want)
        else:
            check_value(context, want, seen.value, f"state {name}", label, index)
