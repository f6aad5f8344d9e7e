"""The judges: what is asked, what counts as a raise, what may not change, and how properties fail."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader import check, fixtures, strict_yaml, tree
from grader.answer import Answer, Raised
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.judge import Request, Verdict, judge
from grader.path import read_path
from grader.runner import Runner
from grader.session import Workers

TOY = Path(__file__).resolve().parent / "toy"
STAGE = read_path(TOY / "path.tsv")[0]
HONEST = (TOY / "impl" / "stack.py").read_text()
ERRORS = {"Full": {"python": "stack.Full", "base": "RuntimeError"}}
HEAD = 'format: "1.0"\nunit: stack\ntitle: Judged\noracles:\n  model: {kind: independent}\n'


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def unit_of(cases: str, oracle: Any = None, top: str = "") -> Unit:
    """A unit of the cases of a text, with the toy's oracle or another one."""
    reader = check.Reader("stack", TOY)
    reader.errors = ERRORS
    text = HEAD + top + "cases:\n" + textwrap.dedent(cases)
    if "ref]" in text:
        text = text.replace("oracles:\n", "oracles:\n  ref: {kind: reference}\n")
    reader.read(TOY / "fixtures" / "stack" / "judged.yaml", text.encode())
    found = [Case(**case) for case in reader.finish()["cases"]]
    unit = Unit(STAGE, TOY, found, {}, ERRORS, "")
    unit._oracle = oracle or fixtures.import_file(
        TOY / "fixtures" / "stack" / "oracle.py", "oracle_of_the_toy"
    )
    return unit


Run = Callable[..., dict[str, Verdict]]


@pytest.fixture(scope="module")
def run(workers: Workers) -> Run:
    """Runs a unit's cases on a source of `impl/stack.py`; the verdicts by the last part of the id."""
    bundle = tree.bundle(tree.Tree(TOY), TOY, ["impl.stack"])

    def runner(unit: Unit, source: str = HONEST, reference: str = HONEST) -> dict[str, Verdict]:
        mine = workers.opener(bundle, {"impl.stack": textwrap.dedent(source)})
        theirs = workers.opener(bundle, {"impl.stack": textwrap.dedent(reference)})
        found = Runner(unit, mine, theirs).run(unit.cases)
        assert found.voided == 0
        return {name.removeprefix("stack/"): verdict for name, verdict in found.verdicts.items()}

    return runner


def call(expect: str, name: str = "case", args: str = "{x: 1}", function: str = "f", more: str = "") -> str:
    asked = f"{more}call: {function}, args: {args}"
    return f"- {{id: stack/{name}, rule: [R1], oracle: [model], {asked}, expect: {expect}}}\n"


def raising(kind: str, args: str = "{x: 1}", more: str = "") -> str:
    """A case that must raise, and its twin, which x = 0 passes."""
    twin = args.replace("x: 1", "x: 0") if "x: 1" in args else "{x: 0}"
    extra = "twin: stack/twin, " + more
    return call(f"{{raises: {kind}}}", args=args, more=extra) + call("{return: 0}", "twin", twin, more=more)


def trace(*steps: str, new: str = "Stack", args: str = "{}", name: str = "case") -> str:
    head = f"- id: stack/{name}\n  rule: [R1]\n  oracle: [model]\n" + (
        f"  new: {new}\n  args: {args}\n" if new else ""
    )
    return head + "  steps:\n" + "".join(f"  - {step}\n" for step in steps)


def body(text: str) -> str:
    """`f(x)` that returns 0 for 0 and does this for everything else."""
    return (
        "import numpy as np\n\n\ndef f(x):\n    if isinstance(x, int) and x == 0:\n        return 0\n"
        + textwrap.indent(textwrap.dedent(text), "    ")
    )


# -- raises, by phase -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ValueError", "Exception2"])
def test_a_raise_in_the_call_itself_counts(run: Run, kind: str) -> None:
    source = body("class Exception2(ValueError): pass\n" + f"raise {kind}('no')")
    assert {k: v.outcome for k, v in run(unit_of(raising("ValueError")), source).items()} == {
        "case": "pass",
        "twin": "pass",
    }


PHASES = {
    "import": (
        "raise ValueError('at import')\n",
        "raised",
        "Could not import stack.py: ValueError: at import (line 1).",
    ),
    "lookup": ("def g(x): raise ValueError\n", "raised", "stack.py has no function or class 'f'. Found: g."),
}


@pytest.mark.parametrize("phase", ["import", "lookup"])
@pytest.mark.parametrize("kind", ["ValueError", "AttributeError", "ImportError", "LookupError"])
def test_a_raise_before_the_call_never_meets_an_expected_one(run: Run, phase: str, kind: str) -> None:
    source, outcome, text = PHASES[phase]
    verdicts = run(unit_of(raising(kind)), source.replace("ValueError", kind))
    for verdict in verdicts.values():
        assert (verdict.outcome, verdict.text) == (outcome, text.replace("ValueError", kind))
        assert verdict.raised is not None
        assert verdict.raised.phase == phase


ARGUMENT = """
    class P:
        def __init__(self, x):
            if x:
                raise ValueError("in the constructor")

    def f(p):
        if p.__class__ is not P:
            raise ValueError
        return 0
"""


def test_a_raise_while_an_argument_is_built_never_counts(run: Run) -> None:
    built = raising("ValueError", "{p: {new: P, args: {x: 1}}}")
    verdict = run(unit_of(built), ARGUMENT)["case"]
    assert (verdict.outcome, verdict.text) == (
        "raised",
        "an argument could not be built: ValueError: in the constructor",
    )
    called = raising("ValueError", "{p: {call: P, args: {x: 1}}}")
    assert run(unit_of(called), ARGUMENT)["case"].outcome == "raised"


def test_a_raise_while_an_object_is_built_never_counts(run: Run) -> None:
    objects = "objects: [{id: s, new: P, args: {x: 1}}], on: s, "
    case = call("{raises: ValueError}", args="{}", function="g", more="twin: stack/twin, " + objects)
    twin = call("{return: 0}", "twin", "{}", "g", objects.replace("x: 1", "x: 0"))
    source = textwrap.dedent(ARGUMENT).replace("def f(p)", "def g(p)") + "\n\nP.g = lambda self: 0\n"
    verdict = run(unit_of(case + twin), source)["case"]
    assert (verdict.outcome, verdict.step) == ("raised", "P(..)")
    assert verdict.text == "an object could not be built: ValueError: in the constructor"
    assert verdict.difference is None


def test_a_raise_while_the_result_is_read_never_counts(run: Run) -> None:
    source = body("""
        import dataclasses
        @dataclasses.dataclass
        class R:
            a: int = 1
            def __getattribute__(self, name):
                raise ValueError("in the result")
        return R()
    """)
    verdict = run(unit_of(raising("ValueError")), source)["case"]
    assert (verdict.outcome, verdict.text) == (
        "raised",
        "the result could not be read: ValueError: in the result",
    )


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError"])
def test_todo_never_counts_as_a_raise(run: Run, kind: str) -> None:
    """NotImplementedError is a RuntimeError; so is what a class makes of it."""
    source = body(f"class Later(NotImplementedError, {kind}): pass\nraise Later('write me')")
    for stub in (source, body("raise NotImplementedError")):
        verdict = run(unit_of(raising(kind)), stub)["case"]
        assert (verdict.outcome, verdict.text) == ("todo", "not written yet")
        assert verdict.evidence is None


def test_todo_in_an_argument_an_object_and_an_observable_is_todo(run: Run) -> None:
    stub = HONEST.replace("self.capacity = capacity", "raise NotImplementedError")
    built = call("{return: 1}", args="{items: [{new: Stack, args: {capacity: 1}}], i: 0}", function="pick")
    assert run(unit_of(built), stub)["case"].outcome == "todo"
    pushed = trace("{do: push, args: {x: 5}, return: 1}", args="{capacity: 1}")
    assert run(unit_of(pushed), stub)["case"].outcome == "todo"
    stub = HONEST.replace('return {"size"', 'raise NotImplementedError\n        return {"size"')
    states = trace(
        "{do: push, args: {x: 5}, return: 1, state: {stats: {raises: RuntimeError}}}", args="{capacity: 1}"
    )
    verdict = run(unit_of(states, top="observables:\n  stats: {do: stats}\n"), stub)["case"]
    assert (verdict.outcome, verdict.step) == ("todo", "step 1: push, then stats")


def test_a_raise_of_another_kind_is_shown_with_both(run: Run) -> None:
    verdict = run(unit_of(raising("ValueError")), body("raise KeyError('k')"))["case"]
    assert verdict.outcome == "raised"
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == (
        "raises ValueError",
        "raised KeyError: 'k'",
    )
    assert verdict.evidence is not None
    assert (verdict.evidence.what, verdict.evidence.value) == ("raises", "KeyError")
    assert verdict.at is not None
    assert verdict.at[0].endswith("impl/stack.py")


@pytest.mark.parametrize(
    "error", ["SystemExit(0)", "KeyboardInterrupt()", "GeneratorExit()", "BaseException('x')"]
)
def test_what_ends_a_program_is_a_raise_like_any_other(run: Run, error: str) -> None:
    verdicts = run(unit_of(raising("ValueError")), body(f"raise {error}"))
    assert {k: v.outcome for k, v in verdicts.items()} == {"case": "raised", "twin": "pass"}


def test_running_out_of_memory_is_no_raise(run: Run) -> None:
    verdict = run(unit_of(raising("MemoryError")), body("raise MemoryError"))["case"]
    assert (verdict.outcome, verdict.text) == ("memory", "Ran out of memory.")


def test_an_own_kind_is_matched_by_its_declared_class(run: Run) -> None:
    full = trace(
        "{do: push, args: {x: 1}, return: 1}", "{do: push, args: {x: 2}, raises: Full}", args="{capacity: 1}"
    )
    assert run(unit_of(full))["case"].passed
    renamed = HONEST.replace("Full", "Filled")
    assert run(unit_of(full), renamed)["case"].outcome == "raised"
    subclass = (
        HONEST.replace('raise Full(f"holds', 'raise Fuller(f"holds') + "\n\nclass Fuller(Full):\n    pass\n"
    )
    assert run(unit_of(full), subclass)["case"].passed


def test_a_value_where_a_raise_is_due(run: Run) -> None:
    verdict = run(unit_of(raising("ValueError")), body("return [x, None]"))["case"]
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == (
        "raises ValueError",
        "returned [1, null]",
    )
    assert verdict.evidence is not None
    assert (verdict.evidence.what, verdict.evidence.value) == ("return", [1, None])


def test_a_raising_case_is_inconclusive_while_its_twin_fails(run: Run) -> None:
    source = "def f(x):\n    raise ValueError\n"
    verdicts = run(unit_of(raising("ValueError")), source)
    assert {k: v.outcome for k, v in verdicts.items()} == {"case": "inconclusive", "twin": "raised"}


# -- what is sent -----------------------------------------------------------------------------------------

MESSAGE_KEYS = {"reset", "new", "call", "do", "get", "observe", "on", "args", "back", "save", "attrs", "path"}


def keys_in(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from keys_in(item)


def conversation(
    unit: Unit, case: Case, answers: Callable[[Request], Answer]
) -> tuple[list[Request], Verdict]:
    """A judge against answers made here; each answer is given before the next request leaves."""
    sent: list[Request] = []
    run = judge(unit, case)
    try:
        request = next(run)
        while True:
            sent.append(request)
            request = run.send(answers(request))
    except StopIteration as stop:
        return sent, stop.value


def answer_like(unit: Unit) -> Callable[[Request], Answer]:
    """An in-process learner: the toy's own implementation."""
    module = fixtures.import_file(TOY / "impl" / "stack.py", "stack_in_process")
    objects: dict[str, Any] = {}

    def value(look: dict[str, Any]) -> Any:
        name = next(look[k] for k in ("do", "get", "call", "new") if k in look)
        found = getattr(objects[look["on"]] if "on" in look else module, name)
        made = found if "get" in look else found(**look["args"])
        for step in look.get("path", ()):
            made = made[step]
        return made

    def answer(request: Request) -> Answer:
        message = request.message
        if "reset" in message:
            return Answer("ok")
        if "observe" in message:
            return Answer("observed", [Answer("return", value(look)) for look in message["observe"]])
        args = {
            name: np.copy(x) if isinstance(x, np.ndarray) else x
            for name, x in message.get("args", {}).items()
        }
        try:
            made = value({**message, "args": args})
        except Exception as error:
            kinds = tuple(kind.__name__ for kind in type(error).__mro__)
            return Answer("raises", raised=Raised(type(error).__name__, kinds, str(error), "call"))
        if "save" in message:
            objects[message["save"]] = made
            return Answer("ok")
        return Answer("return", made, args=args, file="impl/stack.py")

    del unit
    return answer


def test_nothing_expected_is_ever_sent() -> None:
    """No id, rule, hint, kind or expected value leaves with a request, in any case of the toy."""
    unit = fixtures.load(STAGE, TOY)
    for case in unit.cases:
        sent, verdict = conversation(unit, case, answer_like(unit))
        assert verdict.passed, case.id
        for request in sent:
            assert request.limit_s == 3
            assert set(request.message) <= MESSAGE_KEYS
            assert not {"expect", "return", "raises", "state", "id", "rule", "kills", "cmp"} & set(
                keys_in(request.message)
            )


def test_a_trace_sends_a_step_only_after_the_last_answer_was_judged() -> None:
    unit = fixtures.load(STAGE, TOY)
    case = unit.case("stack/push-pop")
    assert case is not None
    honest = answer_like(unit)

    def wrong_at_two(request: Request) -> Answer:
        answer = honest(request)
        if request.message.get("args") == {"x": 6}:
            answer.value = 99
        return answer

    sent, verdict = conversation(unit, case, wrong_at_two)
    assert (verdict.outcome, verdict.step, verdict.last_state) == (
        "fail",
        "step 2: push",
        "items=[5], room=1",
    )
    assert "args" in sent[-1].message
    assert sent[-1].message["args"] == {"x": 6}  # the third push was never sent


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        (Answer("unsupported", "no testkit"), "unsupported", "the adapter does not support this: no testkit"),
        (Answer("ok"), "protocol", "answered ok where a value was due"),
        (Answer("observed", []), "protocol", "answered observed where a value was due"),
        (
            Answer("memory", raised=Raised("MemoryError", ("MemoryError",), "", "call")),
            "memory",
            "Ran out of memory.",
        ),
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        call("{return: 1}"),
        raising("ValueError").splitlines(keepends=True)[0],
        trace("{call: f, args: {x: 1}, return: 1}", new=""),
    ],
)
def test_answers_that_are_no_value(answer: Answer, outcome: str, text: str, case: str) -> None:
    twin = raising("ValueError").splitlines(keepends=True)[1] if "twin" in case else ""
    unit = unit_of(case + twin)
    _, verdict = conversation(unit, unit.cases[0], lambda r: Answer("ok") if "reset" in r.message else answer)
    assert (verdict.outcome, verdict.text) == (outcome, text)


@pytest.mark.parametrize(
    "seen", [Answer("return", 1), Answer("observed", []), Answer("observed", [Answer("return", 1)] * 2)]
)
def test_observations_of_another_number_are_a_protocol_error(seen: Answer) -> None:
    unit = unit_of(
        trace("{call: f, args: {x: 1}, state: {a: 1}}", new=""), top="observables:\n  a: {do: a}\n"
    )

    def answers(request: Request) -> Answer:
        return (
            seen
            if "observe" in request.message
            else Answer("ok" if "reset" in request.message else "return", 1, args={})
        )

    assert conversation(unit, unit.cases[0], answers)[1].outcome == "protocol"


def test_a_saved_answer_must_be_acknowledged_and_a_value_must_be_a_value() -> None:
    unit = unit_of(trace("{call: f, args: {x: 1}, save: r}", "{call: f, args: {x: 1}, return: 1}", new=""))
    for kind, outcome in (
        ("return", "protocol"),
        ("ok", "protocol"),
    ):  # one of the two steps is wrong either way
        assert (
            conversation(
                unit, unit.cases[0], lambda r, k=kind: Answer("ok" if "reset" in r.message else k, 1)
            )[1].outcome
            == outcome
        )


def test_the_file_that_answered_is_part_of_the_verdict(run: Run) -> None:
    """A pass must come from the learner's files, whichever verb asked."""
    mine = {str(TOY / "impl" / "stack.py")}
    honest = "class T:\n    def go(self): return 7\n\n\ndef f(x): return 7\n"
    cases = {
        call("{return: 7}"): mine, trace("{call: f, args: {x: 1}, return: 7}", new=""): mine,
        trace("{do: f, args: {x: 1}, return: 7}", new=""): mine, trace("{do: go, return: 7}", new="T"): mine,
        trace("{new: T, save: t}", "{do: go, on: t, return: 7}", new=""): mine,
        call("{return: 7}", args="{}", function="go", more="objects: [{id: t, new: T}], on: t, "): mine,
    }  # fmt: skip
    for text, files in cases.items():
        verdict = run(unit_of(text), honest)["case"]
        assert (verdict.outcome, verdict.files) == ("pass", files), text


@pytest.mark.parametrize(
    ("source", "args", "value", "why"),
    [
        ("from statistics import mean as f\n", "{data: [7]}", "7", "it came from"),
        ("f = dict\n", "{x: 7}", "{x: 7}", "it has no Python source"),
    ],
)
def test_what_others_wrote_does_not_pass(run: Run, source: str, args: str, value: str, why: str) -> None:
    asked = [
        call(f"{{return: {value}}}", args=args),
        trace(f"{{call: f, args: {args}, return: {value}}}", new=""),
    ]
    for text in [*asked, trace(f"{{do: f, args: {args}, return: {value}}}", new="")]:
        verdict = run(unit_of(text), source)["case"]
        assert verdict.outcome == "fail", text
        assert verdict.text.startswith(f"What was called is not defined in your files: {why}")


def test_a_step_of_a_function_is_a_call_on_the_wire() -> None:
    unit = unit_of(
        trace("{do: f, args: {x: 1}, return: 1}", "{new: T, save: t}", "{do: f, on: t, return: 1}", new="")
    )
    kinds = {"reset": "ok", "call": "return", "do": "return", "new": "ok"}

    def answers(request: Request) -> Answer:
        return Answer(next(kinds[key] for key in request.message if key in kinds), 1, args={})

    sent, verdict = conversation(unit, unit.cases[0], answers)
    assert verdict.passed
    assert [r.message for r in sent[1:]] == [
        {"call": "f", "args": {"x": 1}, "back": []},
        {"new": "T", "args": {}, "back": [], "save": "t"},
        {"do": "f", "on": "t", "args": {}, "back": []},
    ]


# -- observables ------------------------------------------------------------------------------------------

COUNTING = """
    class Full(RuntimeError):
        pass

    class Stack:
        looks = 0
        def __init__(self): self.n, self.x = 0, 0.0
        def step(self): self.n += 1; return self.n
        def fail(self, really):
            if really:
                %s
                raise Full
        def seen(self):
            self.looks += 1
            return self.looks
        def n_now(self): return self.n
        def x_now(self): return self.x
        def missing(self):
            if self.n > 1: return 5
            raise KeyError("not yet")
        def me(self): return Box(self)

    class Box:
        def __init__(self, stack): self.n = stack.n
"""
WATCH = {
    "seen": "{do: seen}",
    "n": "{do: n_now}",
    "x": "{do: x_now}",
    "missing": "{do: missing}",
    "me": "{do: me}",
}
WORKS, FAILS = (
    "{do: fail, args: {really: false}, return: null}",
    "{do: fail, args: {really: true}, raises: Full}",
)


def watch(*names: str) -> str:
    return "observables:\n" + "".join(f"  {name}: {WATCH[name]}\n" for name in names)


def after_a_raise(run: Run, change: str, state: str, *names: str) -> Verdict:
    """A step with this state, then a raise that changes something."""
    steps = [WORKS, f"{{do: step, return: 1, state: {state}}}", FAILS]
    return run(unit_of(trace(*steps), top=watch(*names)), COUNTING % change)["case"]


def test_observables_are_asked_only_where_they_are_named(run: Run) -> None:
    steps = [
        "{do: step, return: 1}",
        "{do: step, return: 2, state: {n: 2}}",
        "{do: step, return: 3, state: {seen: 1}}",
        "{do: step, return: 4, state: {n: 4}}",
        "{do: step, return: 5, state: {seen: 2}}",
    ]
    assert run(unit_of(trace(*steps), top=watch("n", "seen")), COUNTING % "pass")["case"].passed


def test_observables_are_read_before_a_raise_and_after_it(run: Run) -> None:
    """So one that changes by being looked at cannot stay what it was."""
    verdict = after_a_raise(run, "pass", "{seen: 1}", "seen")
    assert (verdict.outcome, verdict.step, verdict.last_state) == ("fail", "step 3: fail", "seen=1")
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.expected, verdict.difference.got) == (
        "state seen",
        "2",
        "3",
    )


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("pass", ""),
        ("self.n += 1", "state n"),
        ("self.n = 1.0", "state n"),
        ("self.n = True", "state n"),
        ("self.x = -0.0", "state x"),
        ("self.x = float('nan')", "state x"),
        ("self.n, self.x = 2, 1.0", "state n"),
    ],
)
def test_what_was_stated_is_unchanged_after_a_raise_to_the_bit(run: Run, change: str, where: str) -> None:
    verdict = after_a_raise(run, change, "{n: 1, x: {f64: 0.0, cmp: exact}}", "n", "x")
    assert verdict.outcome == ("fail" if where else "pass")
    assert (verdict.difference.where if verdict.difference else "") == where


def test_what_changed_before_the_raise_is_not_blamed_on_it(run: Run) -> None:
    steps = [WORKS, "{do: step, return: 1, state: {n: 1}}", "{do: step, return: 2}", FAILS]
    assert run(unit_of(trace(*steps), top=watch("n")), COUNTING % "pass")["case"].passed


def test_a_raising_step_may_state_what_it_leaves(run: Run) -> None:
    leaves = FAILS.replace("raises: Full", "raises: Full, state: {n: 7}")
    steps = [WORKS, "{do: step, return: 1, state: {n: 1, x: {f64: 0.0, cmp: exact}}}", leaves]
    assert run(unit_of(trace(*steps), top=watch("n", "x")), COUNTING % "self.n = 7")["case"].passed
    verdict = run(unit_of(trace(*steps), top=watch("n", "x")), COUNTING % "self.n, self.x = 7, 1.0")["case"]
    assert verdict.difference is not None
    assert verdict.difference.where == "state x"  # what it does not state stays as it was


def test_an_observable_that_raised_must_raise_again(run: Run) -> None:
    verdict = after_a_raise(run, "self.n = 2", "{missing: {raises: KeyError}}", "missing")
    assert (verdict.outcome, verdict.step) == ("fail", "step 3: fail, then missing")
    assert verdict.last_state == "missing=raises KeyError"
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == ("raises KeyError", "returned 5")
    assert after_a_raise(run, "pass", "{missing: {raises: KeyError}}", "missing").passed


def test_attributes_that_were_stated_are_looked_at_again(run: Run) -> None:
    """Without the attributes asked for, such an object would be a name before and after."""
    verdict = after_a_raise(run, "self.n = 3", "{me: {attrs: {n: 1}}}", "me")
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.got) == ("state me.n", "3")
    assert verdict.last_state == "me=an object with n=1"


def test_one_observable_that_raises_does_not_hide_the_others(run: Run) -> None:
    steps = ["{do: step, return: 1, state: {n: 2, missing: {raises: KeyError}}}"]
    verdict = run(unit_of(trace(*steps), top=watch("missing", "n")), COUNTING % "pass")["case"]
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.got) == ("state n", "1")


def test_an_observable_where_a_value_is_due_may_not_raise(run: Run) -> None:
    steps = ["{do: step, return: 1, state: {missing: 5}}"]
    verdict = run(unit_of(trace(*steps), top=watch("missing")), COUNTING % "pass")["case"]
    assert (verdict.outcome, verdict.step) == ("raised", "step 1: step, then missing")
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == ("5", "raised KeyError")


# -- what may not change ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "change", "where"),
    [
        ("{f64: [1.0, 2.0]}", "x[1] = 3", "args.x[1]"),
        ("{f64: [1.0, 0.0]}", "x[1] = -0.0", "args.x[1]"),
        ("{f32: []}", "pass", ""),
        ("[1, 2]", "x.append(3)", "args.x"),
        ("[1, [2, 3]]", "x[1][0] = 9", "args.x[1][0]"),
        ("[{f64: [1.0]}]", "x[0][0] = 9", "args.x[0][0]"),
        ("[1, 2]", "x[0] = True", "args.x[0]"),
        ("{tuple: [1, {f64: [1.0]}]}", "x[1][0] = 9", "args.x[1][0]"),
        ("{a: 1}", "x['b'] = 2", "args.x"),
        ("{a: {b: [1]}}", "x['a']['b'].clear()", "args.x['a']['b']"),
        ("{f64: [1.0, 2.0]}", "x = x * 2", ""),
        ("abc", "x += 'd'", ""),
    ],
)
def test_arguments_come_back_unchanged(run: Run, argument: str, change: str, where: str) -> None:
    source = "def f(x):\n    " + change + "\n"
    verdicts = run(unit_of(call("{return: null}", args=f"{{x: {argument}}}")), source)
    verdict = verdicts["case"]
    assert verdict.passed == (where == "")
    if verdict.difference is not None:
        assert (verdict.difference.where, verdict.difference.note) == (where, "changed by the call")
        assert verdict.evidence is not None
        assert verdict.evidence.what == "args.x"


RECORD = """
    import dataclasses

    @dataclasses.dataclass
    class P:
        a: int
        b: list

    class Q:
        def __init__(self): self.a = 1

    def f(x, y=None):
        %s
        return 0
"""


def test_fields_of_a_record_built_for_the_call_are_arguments_too(run: Run) -> None:
    args = "{x: {new: P, args: {a: 1, b: [1, 2]}}}"
    assert run(unit_of(call("{return: 0}", args=args)), RECORD % "pass")["case"].passed
    for change, where in (
        ("x.a = 2", "args.x.a"),
        ("x.b.append(3)", "args.x.b"),
        ("x.b[0] = 5", "args.x.b[0]"),
    ):
        verdict = run(unit_of(call("{return: 0}", args=args)), RECORD % change)["case"]
        assert verdict.difference is not None
        assert (verdict.difference.where, verdict.difference.note) == (where, "changed by the call")


def test_other_objects_are_watched_by_what_the_case_looks_at(run: Run) -> None:
    """No record, a list of objects, a ref: nothing to compare, and no honest call is blamed."""
    more = "objects: [{id: q, new: Q}], "
    for args in (
        "{x: {new: Q}}",
        "{x: [{new: Q}, 1]}",
        "{x: [{ref: q}]}",
        "{x: {ref: q}}",
        "{x: {a: {new: P, args: {a: 1, b: []}}}}",
    ):
        used = more if "ref" in args else ""
        assert run(unit_of(call("{return: 0}", args=args, more=used)), RECORD % "pass")["case"].passed, args
    after = call("{return: 0, after: {q: {get: a, return: 1}}}", args="{x: {ref: q}}", more=more)
    assert run(unit_of(after), RECORD % "pass")["case"].passed
    verdict = run(unit_of(after), RECORD % "x.a = 2")["case"]
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.got) == ("after q.a", "2")


def test_mutates_frees_one_argument_only(run: Run) -> None:
    source = "def f(x, y):\n    x[0] = 5\n    y[0] = 5\n"
    both = call("{args: {x: [5]}}", args="{x: [1], y: [1]}", more="mutates: [x], ")
    verdict = run(unit_of(both), source)["case"]
    assert verdict.difference is not None
    assert verdict.difference.where == "args.y[0]"
    source = source.replace("    y[0] = 5\n", "")
    assert run(unit_of(both), source)["case"].passed
    wrong = call("{args: {x: [6]}}", args="{x: [1], y: [1]}", more="mutates: [x], ")
    verdict = run(unit_of(wrong), source)["case"]
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.expected, verdict.difference.got) == (
        "args.x[0]",
        "6",
        "5",
    )


def test_arguments_of_a_step_are_watched_also_when_its_result_is_saved(run: Run) -> None:
    source = "def f(x):\n    x[0] = 5\n    return x\n"
    for end in ("save: r", "return: [5]"):
        steps = [f"{{call: f, args: {{x: [1]}}, {end}}}", "{call: f, args: {x: [5]}, return: [5]}"]
        verdict = run(unit_of(trace(*steps, new="")), source)["case"]
        assert verdict.difference is not None
        assert (verdict.step, verdict.difference.where) == ("step 1: f", "args.x[0]")
        freed = [steps[0].replace("call: f", "call: f, mutates: [x]"), steps[1]]
        assert run(unit_of(trace(*freed, new="")), source)["case"].passed


# -- accept and after -------------------------------------------------------------------------------------

ACCEPT = """{accept: [{policy: low, return: [{i64: 0, cmp: labels}, {i64: 0, cmp: labels}]},
  {policy: high, return: [{i64: 0, cmp: labels}, {i64: 1, cmp: labels}]},
  {policy: refuse, raises: ValueError}]}"""


@pytest.mark.parametrize(
    ("does", "policy"), [("return [5, 5]", "low"), ("return [5, 6]", "high"), ("raise ValueError", "refuse")]
)
def test_accept_names_the_policy(run: Run, does: str, policy: str) -> None:
    """A policy that does not fit leaves no label behind that another one would trip over."""
    verdict = run(unit_of(call(ACCEPT)), body(does))["case"]
    assert (verdict.outcome, verdict.policy) == ("pass", policy)


@pytest.mark.parametrize(
    ("does", "outcome", "got"),
    [
        ("return [5]", "fail", "[5]"),
        ("return None", "fail", "null"),
        ("raise KeyError('k')", "raised", "raised KeyError"),
        ("raise NotImplementedError", "todo", None),
    ],
)
def test_accept_takes_nothing_else(run: Run, does: str, outcome: str, got: str | None) -> None:
    verdict = run(unit_of(call(ACCEPT)), body(does))["case"]
    assert (verdict.outcome, verdict.policy) == (outcome, "")
    assert (verdict.difference.got if verdict.difference else None) == got
    if outcome == "fail":
        assert verdict.difference is not None
        assert verdict.difference.expected == "low or high or refuse"


def test_attributes_are_asked_for_in_accepted_answers_and_afterwards(run: Run) -> None:
    accept = "{accept: [{policy: one, return: {attrs: {a: 1}}}, {policy: two, return: {attrs: {a: 2}}}]}"
    assert (
        run(unit_of(call(accept, args="{x: 3}")), RECORD.replace("return 0", "return Q()") % "pass")[
            "case"
        ].policy
        == "one"
    )
    more = "objects: [{id: q, new: Q}], "
    after = call(
        "{return: 0, after: {q: {get: me, return: {attrs: {a: 1}}}}}", args="{x: {ref: q}}", more=more
    )
    source = textwrap.dedent(RECORD % "pass") + "\n\nQ.me = property(lambda self: self)\n"
    assert run(unit_of(after), source)["case"].passed


def test_what_an_object_does_afterwards_may_fail(run: Run) -> None:
    more = "objects: [{id: q, new: Q}], "
    after = call("{return: 0, after: {q: {get: b, return: 1}}}", args="{x: {ref: q}}", more=more)
    verdict = run(unit_of(after), RECORD % "pass")["case"]
    assert (verdict.outcome, verdict.step) == ("raised", "f, then q.b")


def test_a_call_may_have_no_arguments_and_a_scripted_source_runs_dry(run: Run) -> None:
    objects = "objects: [{id: u, new: testkit.ScriptedUniforms, args: {values: [0.25]}}], "
    source = "def f(u, n):\n    return [u.uniform() for _ in range(n)]\n"
    one = call(
        "{return: [{f64: 0.25, cmp: bits}], after: {u: {do: drawn, return: 1}}}",
        "twin",
        "{u: {ref: u}, n: 1}",
        more=objects,
    )
    dry = call(
        "{raises: RuntimeError, after: {u: {get: used, return: 1}}}",
        args="{u: {ref: u}, n: 2}",
        more="twin: stack/twin, " + objects,
    )
    assert all(v.passed for v in run(unit_of(one + dry), source).values())
    assert run(
        unit_of("- {id: stack/case, rule: [R1], oracle: [model], call: f, expect: {return: 7}}\n"),
        "def f(): return 7\n",
    )["case"].passed


# -- properties -------------------------------------------------------------------------------------------


def prop(text: str, more: str = "call: total, ", name: str = "case", oracle: str = "[model]") -> str:
    return f"- {{id: stack/{name}, rule: [R4], oracle: {oracle}, {more}property: {text}}}\n"


SUM = (
    "{given: {xs: {draw: vector, with: {least: 1, most: 20}}}, same_as: oracle, cmp: bits, runs: 20, seed: 3}"
)
NO_LAST = HONEST.replace("xs.tolist():", "xs.tolist()[:-1]:")
BACKWARDS = HONEST.replace("xs.tolist():", "xs.tolist()[::-1]:")
SCRIPT = """{script: {draw: pushes_and_pops, with: {n: 40}}, same_as: oracle.DumbStack, cmp: exact,
  observables: [items], runs: 10}"""
PILE = "new: Stack, args: {capacity: 3}, "
ITEMS = "observables:\n  items: {get: items}\n"
BOTTOM = HONEST.replace("self.items.pop()", "self.items.pop(0)")


def test_a_counterexample_is_small_and_replays_as_a_ready_made_case(run: Run) -> None:
    unit = unit_of(prop(SUM))
    verdict = run(unit, NO_LAST)["case"]
    assert verdict.outcome == "fail"
    assert verdict.text.startswith("run 0 of 20, seed 3")
    found = verdict.counterexample
    assert found is not None
    (xs,) = found["args"].values()
    assert len(xs["f64"]) == 1  # one term is enough to lose one
    assert found["expect"] == {"return": {"f64": xs["f64"][0], "cmp": "bits"}}
    text = "- " + strict_yaml.to_flow(found) + "\n"
    replayed = unit_of(text)  # it can be pasted into a file
    assert [case.id for case in replayed.cases] == ["stack/case-found"]
    again = run(replayed, NO_LAST)["case-found"]
    assert again.difference is not None
    assert verdict.difference is not None
    assert asdict(again.difference) == asdict(verdict.difference)
    assert run(replayed, HONEST)["case-found"].passed


def test_a_script_fails_with_the_smallest_trace_ready_made(run: Run) -> None:
    unit = unit_of(prop(SCRIPT, PILE), top=ITEMS)
    verdict = run(unit, BOTTOM)["case"]
    found = verdict.counterexample
    assert found is not None
    assert [step["do"] for step in found["steps"]] == ["push", "push", "pop"]
    assert (verdict.outcome, verdict.step) == ("fail", "step 3: pop")
    assert found["steps"][2]["return"] == found["steps"][1]["args"]["x"]  # what the model says
    replayed = unit_of("- " + strict_yaml.to_flow(found) + "\n", top=ITEMS)
    again = run(replayed, BOTTOM)["case-found"]
    assert (again.step, again.difference) == (verdict.step, verdict.difference)
    assert run(replayed, HONEST)["case-found"].passed


def test_a_script_compares_raises_and_observables(run: Run) -> None:
    unit = unit_of(prop(SCRIPT, PILE), top=ITEMS)
    silent = HONEST.replace('raise Full(f"holds {self.capacity}")', "return self.capacity")
    verdict = run(unit, silent)["case"]
    assert verdict.counterexample is not None
    assert [step["do"] for step in verdict.counterexample["steps"]] == ["push"] * 4
    assert verdict.counterexample["steps"][3]["raises"] == "Full"
    hidden = HONEST.replace("self.items.append(x)", "self.items.insert(0, x)").replace(
        "return self.items.pop()", "return self.items.pop(0)"
    )
    verdict = run(unit, hidden)["case"]  # a stack by its answers, and the other way round inside
    assert verdict.difference is not None
    assert verdict.difference.where == "state items[0]"


def test_the_same_seed_and_run_give_the_same_verdict(run: Run) -> None:
    """Alone, after other cases, and under another name."""
    alone = run(unit_of(prop(SUM)), BACKWARDS)["case"]
    other = prop(SUM, name="other").replace("seed: 3", "seed: 4")
    among = run(
        unit_of(call("{return: 1}", "first", "{items: [1], i: 0}", "pick") + other + prop(SUM)), BACKWARDS
    )
    for field in ("outcome", "text", "step", "difference", "counterexample"):
        assert getattr(among["case"], field) == getattr(alone, field), field
    assert alone.evidence is not None
    assert among["case"].evidence is not None
    assert (among["case"].evidence.run, among["case"].evidence.value) == (
        alone.evidence.run,
        alone.evidence.value,
    )
    assert among["other"].counterexample != alone.counterexample


def test_every_run_is_asked_and_a_pass_needs_all(run: Run) -> None:
    source = HONEST.replace("    s = 0.0\n", "    if xs.size == 20: return 1.0\n    s = 0.0\n")
    assert run(unit_of(prop(SUM.replace("runs: 20", "runs: 2"))), source)["case"].passed
    verdict = run(unit_of(prop(SUM.replace("runs: 20", "runs: 200"))), source)["case"]
    assert verdict.outcome == "fail"
    assert verdict.counterexample is not None
    assert verdict.evidence is not None
    assert verdict.evidence.run > 2
    assert verdict.text == f"run {verdict.evidence.run} of 200, seed 3"
    assert len(verdict.counterexample["args"]["xs"]["f64"]) == 20
    assert (
        verdict.counterexample["args"]["xs"]["f64"].count(verdict.counterexample["args"]["xs"]["f64"][0])
        >= 19
    )


def test_without_shrinking_the_first_failure_is_shown_as_it_was_drawn() -> None:
    unit = unit_of(prop(SUM))
    run = judge(unit, unit.cases[0], shrinking=False)
    try:
        request = next(run)
        while True:
            sent = request
            zero = Answer("return", 0.0, args=request.message.get("args", {}))
            request = run.send(Answer("ok") if "reset" in request.message else zero)
    except StopIteration as stop:
        verdict = stop.value
    assert verdict.counterexample["args"]["xs"]["f64"] == sent.message["args"]["xs"].tolist()


def test_a_property_raises_where_the_oracle_does(run: Run) -> None:
    empty = SUM.replace("least: 1, most: 20", "least: 0, most: 1")
    assert run(unit_of(prop(empty)))["case"].passed
    verdict = run(unit_of(prop(empty)), HONEST.replace("xs.size == 0", "xs.size < 0"))["case"]
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == ("raises ValueError", "returned 0.0")
    assert verdict.counterexample is not None
    assert verdict.counterexample["expect"] == {"raises": "ValueError"}
    assert verdict.counterexample["args"] == {"xs": {"f64": []}}
    verdict = run(unit_of(prop(SUM)), HONEST.replace("xs.size == 0", "xs.size >= 0"))["case"]
    assert verdict.outcome == "raised"
    assert verdict.text.endswith("ValueError: an empty vector has no total")


def test_a_property_on_the_reference(run: Run) -> None:
    same = SUM.replace("same_as: oracle", "same_as: reference")
    case = prop(same, "level: extra, call: total, ", oracle="[model, ref]")
    assert run(unit_of(case))["case"].passed
    assert run(unit_of(case), NO_LAST)["case"].outcome == "fail"
    assert run(unit_of(case), NO_LAST, NO_LAST)["case"].passed  # whatever the reference says
    raises = HONEST.replace("xs.size == 0", "xs.size >= 0")
    verdict = run(unit_of(case), HONEST, raises)["case"]
    assert verdict.difference is not None
    assert verdict.difference.expected == "raises ValueError"
    assert run(unit_of(case), raises, raises)["case"].passed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            HONEST.replace("return s\n", "return {1, 2}\n"),
            "the reference returns a set, which holds what is no data",
        ),
        (
            HONEST.replace("return s\n", "return [1, {'a': object()}]\n"),
            "the reference returns a sequence of 2, which holds what is no data",
        ),
        (HONEST.replace("def total", "def totl"), "the reference answered raises to total"),
        ("import nothing_of_this_name\n", "the reference cannot be imported"),
        (HONEST.replace("s = 0.0\n", "import os; os._exit(3)\n"), "the reference ended"),
    ],
)
def test_a_fault_of_the_reference_is_ours(run: Run, source: str, words: str) -> None:
    case = prop(
        SUM.replace("same_as: oracle", "same_as: reference"),
        "level: extra, call: total, ",
        oracle="[model, ref]",
    )
    with pytest.raises(OwnFault, match=words):
        run(unit_of(case), HONEST, source)


def test_a_property_on_an_object_gets_a_fresh_one_each_run(run: Run) -> None:
    given = "{given: {x: {draw: integer, with: {low: 1, high: 9}}}, same_as: %s, cmp: exact, runs: 5}"
    more = "objects: [{id: s, new: Stack, args: {capacity: 9}}], on: s, call: push, "
    oracle = SimpleNamespace(
        expect=lambda case: {"return": np.int64(1)} if case["objects"][0]["args"] == {"capacity": 9} else {}
    )
    assert run(unit_of(prop(given % "oracle", more), oracle))["case"].passed
    reference = prop(given % "reference", "level: extra, " + more, oracle="[model, ref]")
    assert run(unit_of(reference))["case"].passed


def test_one_draw_may_yield_all_arguments(run: Run) -> None:
    oracle = SimpleNamespace(
        both=lambda choose: {"items": [choose.below(9), choose.below(9)], "i": choose.below(2)},
        expect=lambda case: {"return": case["args"]["items"][case["args"]["i"]]},
    )
    case = prop("{given: {draw: both}, same_as: oracle, cmp: exact, runs: 5}", "call: pick, ")
    assert run(unit_of(case, oracle))["case"].passed
    verdict = run(unit_of(case, oracle), HONEST.replace("items[i]", "items[-1 - i]"))["case"]
    assert verdict.counterexample is not None
    assert verdict.counterexample["args"] in ({"items": [1, 0], "i": 0}, {"items": [0, 1], "i": 0})


def test_an_argument_of_such_a_draw_may_be_one_that_changes(run: Run) -> None:
    oracle = SimpleNamespace(
        both=lambda choose: {"xs": np.array([1.0 + choose.below(9)])}, law=lambda given, got: None
    )
    case = "{given: {draw: both}, holds: [{law: law}], runs: 2}"
    assert run(unit_of(prop(case, "call: double, mutates: [xs], "), oracle))["case"].passed
    assert run(unit_of(prop(case, "call: double, "), oracle))["case"].outcome == "fail"


def test_drawn_arguments_are_built_like_written_ones(run: Run) -> None:
    oracle = SimpleNamespace(
        piles=lambda choose: [
            {"new": "Stack", "args": {"capacity": choose.below(5)}},
            {"call": "label", "args": {"n": 1}},
        ],
        counted=lambda given, got: (
            None if given["items"][1]["call"] == "label" and got == [10] else "not built"
        ),
    )
    oracle.counted.__doc__ = "the second item is what label returns"
    case = prop(
        "{given: {items: {draw: piles}}, holds: [{law: counted}], runs: 3}", "call: pick, args: {i: 1}, "
    )
    assert run(unit_of(case, oracle))["case"].passed


ORACLE_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"vector": lambda choose, **_: 1 / 0}, SUM, "vector raised ZeroDivisionError: division by zero"),
    ({"vector": lambda choose, **_: choose.below(0)}, SUM, r"vector raised ValueError: below\(0\)"),
    ({"vector": lambda choose, **_: {"new": "S", "args": 5}}, SUM, "vector raised AttributeError"),
    ({}, SUM, "no function 'vector' in oracle.py or laws.py"),
    (
        {"expect": lambda case: 1 / 0},
        SUM.replace("vector", "integers").replace("least: 1, most: 20", "low: 0, high: 1, most: 1"),
        "expect raised ZeroDivisionError",
    ),
    (
        {"expect": lambda case: {}},
        SUM.replace("vector", "integers").replace("least: 1, most: 20", "low: 0, high: 1, most: 1"),
        "gave neither return nor raises",
    ),
    (
        {"both": lambda choose: [1]},
        "{given: {draw: both}, same_as: oracle, cmp: exact}",
        "draw 'both' yields no mapping of arguments",
    ),
    (
        {},
        SUM.replace("same_as: oracle, cmp: bits", "holds: [{law: nothing}]")
        .replace("vector", "integers")
        .replace("least: 1, most: 20", "low: 0, high: 1, most: 1"),
        "no function 'nothing'",
    ),
]


@pytest.mark.parametrize(("functions", "text", "words"), ORACLE_FAULTS)
def test_a_fault_of_the_oracle_is_ours(run: Run, functions: dict[str, Any], text: str, words: str) -> None:
    source = HONEST.replace("if xs.size == 0:", "if False:").replace("xs.tolist():", "xs:")
    with pytest.raises(OwnFault, match=words) as caught:
        run(unit_of(prop(text), SimpleNamespace(**functions)), source)
    assert "stack/case" in str(caught.value)


def pushes(choose: Any, **_: Any) -> Iterator[dict[str, Any]]:
    while True:
        told = yield {"do": "push", "args": {"x": choose.below(10)}}
        if "raises" in told:
            return


class Model:
    """A stack without room for more than one."""

    def __init__(self, capacity: int) -> None:
        del capacity
        self.items: list[int] = []

    def push(self, x: int) -> int:
        if self.items:
            raise OverflowError
        self.items.append(x)
        return 1


@pytest.mark.parametrize(
    ("functions", "text", "words"),
    [
        ({}, SCRIPT, "no function 'DumbStack'"),
        ({"DumbStack": lambda room: None}, SCRIPT, "DumbStack raised TypeError"),
        ({"DumbStack": Model}, SCRIPT, "no function 'pushes_and_pops'"),
        (
            {"DumbStack": Model, "pushes_and_pops": lambda choose, n: iter([{"do": "pusch"}])},
            SCRIPT,
            "model Model has no 'pusch'",
        ),
        (
            {"DumbStack": Model, "pushes_and_pops": lambda choose, n: (1 / 0 for _ in [0])},
            SCRIPT,
            "pushes_and_pops raised ZeroDivisionError",
        ),
        (
            {"DumbStack": Model, "pushes_and_pops": pushes},
            SCRIPT.replace("[items]", "[room]"),
            "model Model has no .stats.",
        ),
    ],
)
def test_a_fault_of_a_model_or_a_script_is_ours(
    run: Run, functions: dict[str, Any], text: str, words: str
) -> None:
    top = "observables:\n  room: {do: stats, path: [room]}\n" if "[room]" in text else ITEMS
    with pytest.raises(OwnFault, match=words):
        run(unit_of(prop(text, PILE), SimpleNamespace(**functions), top))


def test_a_script_sees_the_models_last_answer(run: Run) -> None:
    """This one stops at the first raise: with a model of one place that is the second push."""
    oracle = SimpleNamespace(DumbStack=Model, pushes_and_pops=pushes)
    source = HONEST.replace("raise Full(", "raise OverflowError(")
    text = SCRIPT.replace("capacity: 3", "capacity: 1")
    assert run(unit_of(prop(text, PILE.replace("3", "1")), oracle, ITEMS), source)["case"].passed


# -- labels: ids that are never graded as numbers ----------------------------------------------------------

POOL = """
    class Pool:
        def __init__(self, n):
            self.free, self.held = list(range(10, 10 + n)), {}

        def take(self, name):
            self.held[name] = TAKE
            return self.held[name]

        def give(self, block):
            name = {v: k for k, v in self.held.items()}[block]
            del self.held[name]
            GIVE

        def table(self):
            return list(self.held.values())
"""
LOWEST = POOL.replace("TAKE", "self.free.pop(0)").replace("GIVE", "self.free.insert(0, block)")
LATEST = POOL.replace("TAKE", "self.free.pop()").replace("GIVE", "self.free.append(block)")
OLDEST = POOL.replace("TAKE", "self.free.pop(0)").replace("GIVE", "self.free.append(block)")
TWICE = POOL.replace("TAKE", "self.free[0]").replace("GIVE", "pass")
TABLE = "observables:\n  table: {do: table}\n"


class PoolModel:
    """A label names one loan."""

    def __init__(self, n: int) -> None:
        del n
        self.labels: list[int] = []
        self.next = 0

    def take(self, name: str) -> dict[str, int]:
        del name
        self.labels.append(self.next)
        self.next += 1
        return {"labels": self.next - 1}

    def give(self, block: int) -> None:
        self.labels.remove(block)

    def table(self) -> dict[str, list[int]]:
        return {"labels": list(self.labels)}


def loans(choose: Any, n: int) -> Iterator[dict[str, Any]]:
    held: list[int] = []
    for i in range(n):
        if len(held) == 3 or (held and choose.below(3) == 0):
            block = held.pop(choose.below(len(held)))
            yield {"do": "give", "args": {"block": {"label": block}}}
        else:
            answer = yield {"do": "take", "args": {"name": str(i)}}
            held.append(answer["return"]["labels"])


LOANS = """{script: {draw: loans, with: {n: 30}}, same_as: oracle.PoolModel, cmp: exact,
  observables: [table], runs: 5}"""


def test_ids_of_a_script_are_compared_as_labels(run: Run) -> None:
    unit = unit_of(
        prop(LOANS, "new: Pool, args: {n: 3}, "), SimpleNamespace(PoolModel=PoolModel, loans=loans), TABLE
    )
    for source in (LOWEST, LATEST, OLDEST):
        assert run(unit, source)["case"].passed
    verdict = run(unit, TWICE)["case"]
    found = verdict.counterexample
    assert found is not None
    assert [step["do"] for step in found["steps"]] == ["take", "take"]
    assert found["steps"][1]["return"] == {"i64": 1, "cmp": "labels"}
    assert found["steps"][1]["state"] == {"table": {"tuple": [0, 1], "cmp": "labels"}}
    replayed = unit_of("- " + strict_yaml.to_flow(found) + "\n", top=TABLE)  # it can be pasted into a file
    assert run(replayed, TWICE)["case-found"].outcome == "fail"
    assert run(replayed, OLDEST)["case-found"].passed


def test_a_label_in_a_trace_is_the_id_that_was_given(run: Run) -> None:
    both, rest = (f"{{table: {{tuple: {ids}, cmp: labels}}}}" for ids in ([0, 1], [1, 2]))
    steps = [
        "{do: take, args: {name: a}, return: {i64: 0, cmp: labels}}",
        f"{{do: take, args: {{name: b}}, return: {{i64: 1, cmp: labels}}, state: {both}}}",
        "{do: give, args: {block: {label: 0}}, state: {table: {tuple: [1], cmp: labels}}}",
        f"{{do: take, args: {{name: c}}, return: {{i64: 2, cmp: labels}}, state: {rest}}}",
    ]
    unit = unit_of(trace(*steps, new="Pool", args="{n: 3}"), top=TABLE)
    for source in (LOWEST, LATEST, OLDEST):
        assert run(unit, source)["case"].passed
    assert run(unit, TWICE)["case"].step == "step 2: take"
    early = unit_of(trace(steps[2], *steps[:2], new="Pool", args="{n: 3}"), top=TABLE)
    with pytest.raises(OwnFault, match="label 0 is used before an answer or a state has shown it"):
        run(early, LOWEST)


ROOM = "observables:\n  room: {do: stats, path: [room]}\n"


class Shy(Model):
    """One that does not say how it is."""

    def stats(self) -> None:
        raise KeyError("room")

    def pop(self) -> int:
        return self.items.pop()


def test_an_observable_with_a_path_may_raise_in_the_model_too(run: Run) -> None:
    oracle = SimpleNamespace(DumbStack=Shy, pushes_and_pops=pushes)
    unit = unit_of(prop(SCRIPT.replace("[items]", "[room]"), PILE.replace("3", "1")), oracle, ROOM)
    source = HONEST.replace("raise Full(", "raise OverflowError(")
    verdict = run(unit, source)["case"]
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == ("raises KeyError", "returned 0")
    assert run(unit, source.replace('return {"size"', 'raise KeyError("room")\n        return {"size"'))[
        "case"
    ].passed


@pytest.mark.parametrize("seen", [Answer("return", 1), Answer("observed", []), Answer("ok")])
def test_observations_of_another_number_are_a_protocol_error_in_a_script_too(seen: Answer) -> None:
    unit = unit_of(prop(SCRIPT, PILE), top=ITEMS)

    def answers(request: Request) -> Answer:
        if "observe" in request.message:
            return seen
        if "do" in request.message and request.message["do"] == "pop":
            return Answer("raises", raised=Raised("IndexError", ("IndexError",), "", "call"))
        return Answer("return" if "do" in request.message else "ok", 1, args={})

    verdict = conversation(unit, unit.cases[0], answers)[1]
    assert (verdict.outcome, verdict.counterexample is not None) == ("protocol", True)


def test_a_law_that_cannot_read_the_answer_fails_the_learner_not_the_grader(run: Run) -> None:
    case = prop(SUM.replace("same_as: oracle, cmp: bits", "holds: [{law: at_most_sum}]"))
    assert run(unit_of(case))["case"].passed
    for answer, kind in (
        ("'text'", "text"),
        ("None", "null"),
        ("{1, 2}", "a set"),
        ("[s]", "a sequence of 1"),
    ):
        verdict = run(unit_of(case), HONEST.replace("return s\n", f"return {answer}\n"))["case"]
        assert verdict.outcome == "fail"
        assert verdict.difference is not None
        assert verdict.difference.note.startswith(f"the law cannot read {kind}: TypeError")


def test_an_oracle_that_writes_into_its_arguments_does_not_blame_the_learner(run: Run) -> None:
    def expect(case: dict[str, Any]) -> dict[str, Any]:
        first = case["args"]["items"][0]
        case["args"]["items"][0] = None
        return {"return": first}

    def law(given: dict[str, Any], got: Any) -> None:
        del got
        given["items"].clear()

    oracle = SimpleNamespace(expect=expect, law=law)
    drawn = "{given: {items: {draw: integers, with: {low: 0, high: 9, least: 1, most: 3}}}, %s, runs: 5}"
    for judged in ("same_as: oracle, cmp: exact", "holds: [{law: law}]"):
        assert run(unit_of(prop(drawn % judged, "call: pick, args: {i: 0}, "), oracle))["case"].passed


def test_a_law_is_told_in_the_words_of_its_first_line(run: Run) -> None:
    case = prop(SUM.replace("same_as: oracle, cmp: bits", "holds: [{law: finite}]"))
    verdict = run(unit_of(case), HONEST.replace("return s\n", "return float('inf')\n"))["case"]
    assert verdict.difference is not None
    assert verdict.difference.expected == "Every number of the answer is finite."
    assert (verdict.difference.got, verdict.difference.note) == ("inf", "1 values are not finite")
    assert verdict.counterexample is not None
    assert "expect" not in verdict.counterexample


def test_a_drawn_argument_may_not_change_unless_it_mutates(run: Run) -> None:
    case = "{given: {xs: {draw: vector, with: {least: 1, most: 3}}}, holds: [{law: whatever}], runs: 2}"
    toy = fixtures.import_file(TOY / "fixtures" / "stack" / "oracle.py", "oracle_of_the_toy")
    oracle = SimpleNamespace(vector=toy.vector, whatever=lambda given, got: None)
    verdict = run(unit_of(prop(case, "call: double, "), oracle))["case"]
    assert verdict.difference is not None
    assert verdict.difference.note == "changed by the call"
    assert run(unit_of(prop(case, "mutates: [xs], call: double, "), oracle))["case"].passed


def test_an_argument_of_a_script_may_not_change(run: Run) -> None:
    def script(choose: Any, n: int) -> Iterator[dict[str, Any]]:
        del n
        yield {"do": "push_all", "args": {"xs": [choose.below(9)]}}

    toy = fixtures.import_file(TOY / "fixtures" / "stack" / "oracle.py", "oracle_of_the_toy")
    unit = unit_of(
        prop(SCRIPT, PILE), SimpleNamespace(DumbStack=toy.DumbStack, pushes_and_pops=script), ITEMS
    )
    assert run(unit)["case"].passed
    verdict = run(unit, HONEST.replace("for x in xs:", "for x in [xs.pop()]:"))["case"]
    assert verdict.difference is not None
    assert (verdict.difference.where, verdict.difference.note) == ("args.xs", "changed by the call")


def test_ready_made_answers_carry_the_comparator_beside_every_float(run: Run) -> None:
    told = {"a": (0.5, np.float32(0.5), 3), "b": [{"c": np.array([0.5])}, "x", None]}
    oracle = SimpleNamespace(expect=lambda case: {"return": told})
    drawn = "{given: {i: {draw: integer, with: {low: 0, high: 0}}}, same_as: oracle, cmp: bits, runs: 1}"
    verdict = run(unit_of(prop(drawn, "call: pick, args: {items: [1]}, "), oracle))["case"]
    assert verdict.counterexample is not None
    assert verdict.counterexample["expect"]["return"] == {
        "a": [{"f64": 0.5, "cmp": "bits"}, {"f32": 0.5, "cmp": "bits"}, 3],
        "b": [{"c": {"f64": [0.5], "cmp": "bits"}}, "x", None],
    }


def test_numbers_within_a_tolerance_pass_a_property(run: Run) -> None:
    close = SUM.replace("cmp: bits", "cmp: ulp, max: 40, why: 20 roundings of terms and sums")
    assert run(unit_of(prop(SUM)), BACKWARDS)["case"].outcome == "fail"
    assert run(unit_of(prop(close)), BACKWARDS)["case"].passed
    verdict = run(unit_of(prop(close)), NO_LAST)["case"]
    assert verdict.counterexample is not None
    kept = verdict.counterexample["expect"]["return"]
    assert (kept["cmp"], kept["max"], kept["why"]) == ("ulp", 40, "20 roundings of terms and sums")


def test_shown_values_of_a_want_come_with_the_raise(run: Run) -> None:
    verdict = run(unit_of(call("{return: [1, {f64: 0.5, cmp: exact}]}")), body("raise ValueError('no')"))[
        "case"
    ]
    assert verdict.difference is not None
    assert (verdict.difference.expected, verdict.difference.got) == ("[1, 0.5]", "raised ValueError")
    assert verdict.text == "ValueError: no"


def test_an_answer_that_is_full_keeps_what_fitted(run: Run) -> None:
    """The result takes all that an answer may carry: the argument behind it is named by its size, no more."""
    source = "import numpy as np\n\n\ndef f(x):\n    return np.zeros(1 << 20)\n"
    unit = unit_of(call("{return: 1}", args="{x: {f64: [1.0, 2.0]}}"))
    verdict = run(unit, source)["case"]
    assert verdict.outcome == "fail"  # and not protocol
    assert verdict.difference is not None
    assert "1048576" in verdict.difference.got
