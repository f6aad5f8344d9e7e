"""The verb perf: what is slow on purpose is caught, the same code twice never is, and results are judged.

What rests on a measured time is slow: .ci/run runs it when nothing else of ours does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader import perf, tree
from grader.errors import OwnFault
from grader.judge import Verdict
from grader.perf import interval, outcome_of
from grader.runner import Runner
from grader.session import Bundle, Workers
from tests.test_judge import TOY, unit_of

ONCE = "def f(x):\n    return (x @ x)[0]\n"
TWICE = "def f(x):\n    x @ x\n    return (x @ x)[0]\n"
CASE = """
- id: stack/case
  rule: [R1]
  oracle: [model]
  call: f
  perf:
    given: {{x: {{draw: square}}}}
    sizes: [1, 3]
    check: {{same_as: oracle, cmp: close, rtol: 1.0e-4, atol: 1.0e-3, why: test}}
    measure: {{metric: time_ratio, {measure}}}
"""


def square(choose: Any) -> np.ndarray[Any, Any]:
    return np.random.default_rng(choose.below(1 << 30)).standard_normal((448, 448)).astype(np.float32)


def expect(case: dict[str, Any]) -> dict[str, Any]:
    x = case["args"]["x"].astype(np.float64)
    return {"return": (x[0] @ x).astype(np.float32)}


ORACLE = SimpleNamespace(square=square, expect=expect)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


Judge = Callable[..., Verdict]


@pytest.fixture(scope="module")
def judged(workers: Workers) -> Judge:
    """The verdict on the one case, for a source beside another."""
    bundle = tree.bundle(tree.Tree(TOY), TOY, ["impl.stack"])
    moved = {name: (f"/elsewhere{path}", *more) for name, (path, *more) in bundle.files.items()}
    elsewhere = replace(bundle, key="elsewhere", files=moved)  # as the reference lies beside a workspace

    def judge(source: str, other: str = ONCE, measure: str = "against: reference, max: 1.5", case: str = CASE,
              oracle: Any = ORACLE) -> Verdict:  # fmt: skip
        def opener(text: str, where: Bundle = bundle) -> Any:
            return workers.opener(where, {"impl.stack": textwrap.dedent(text)})

        unit = unit_of(case.format(measure=measure), oracle)
        runner = Runner(unit, opener(source), opener(other, elsewhere), naive=opener(other, elsewhere))
        return runner.run(unit.cases).verdicts["stack/case"]

    return judge


@pytest.fixture
def busy() -> Iterator[None]:
    """The other core works too."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


@pytest.mark.slow
def test_what_takes_twice_as_long_is_caught(judged: Judge) -> None:
    verdict = judged(TWICE)
    assert verdict.outcome == "fail"
    assert verdict.text.startswith("time over that of the reference code: ")
    assert verdict.text.endswith("; at most 1.5.")
    assert verdict.measured["low"] > 1.5


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("n", range(int(os.environ.get("OL_PERF_RUNS", "3"))))
def test_beside_a_busy_core(judged: Judge, n: int) -> None:
    """In CI a few times; `OL_PERF_RUNS=50` is the whole check."""
    del n
    assert judged(TWICE).outcome == "fail"
    assert judged(ONCE).outcome == "pass"


@pytest.mark.slow
def test_the_same_code_passes_and_says_what_was_measured(judged: Judge) -> None:
    verdict = judged(ONCE)
    assert verdict.outcome == "pass"
    assert verdict.measured["low"] <= verdict.measured["value"] <= verdict.measured["high"] <= 1.5


@pytest.mark.slow
def test_a_minimum(judged: Judge) -> None:
    slow = "def f(x):\n    for _ in range(5):\n        y = x @ x\n    return y[0]\n"
    assert judged(ONCE, slow, "against: reference, max: 0.6").outcome == "pass"
    assert judged(slow, ONCE, "against: reference, min: 1.7").outcome == "pass"
    assert judged(ONCE, slow, "against: reference, min: 1.5").text.endswith("; at least 1.5.")


def test_an_open_question_ends_undecided(judged: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "interval", lambda ratios, error: perf.Ratio(1.5, 1.4, 1.6, len(ratios)))
    verdict = judged(ONCE, measure="against: reference, max: 1.5, pairs: [4, 6]")
    assert verdict.outcome == "undecided"
    assert verdict.text == "time over that of the reference code: 1.5 (1.4 to 1.6); at most 1.5."
    assert verdict.measured["rounds"] == 12


def test_a_wrong_result_fails_however_fast(judged: Judge) -> None:
    verdict = judged("def f(x):\n    return x\n")
    assert verdict.outcome == "fail"
    assert verdict.difference is not None


def test_new_arguments_at_every_call(judged: Judge) -> None:
    """What remembers its first result gives it for other arguments too."""
    source = "_known = []\n\n\ndef f(x):\n    _known.append((x @ x)[0])\n    return _known[0]\n"
    assert judged(source).outcome == "fail"


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def f(x):\n    raise NotImplementedError\n", "todo"),
        ("def f(x):\n    raise KeyError(1)\n", "raised"),
        ("def g(x):\n    return x\n", "raised"),
        ("import os\n\n\ndef f(x):\n    os._exit(0)\n", "crashed"),
        ("x = (\n", "raised"),
    ],
)
def test_faults_are_named_as_in_other_cases(judged: Judge, source: str, outcome: str) -> None:
    assert judged(source).outcome == outcome


def test_a_fault_of_the_other_side_is_ours(judged: Judge) -> None:
    with pytest.raises(OwnFault, match="the reference code: raised"):
        judged(ONCE, "def f(x):\n    raise KeyError(1)\n")
    with pytest.raises(OwnFault, match="the reference code cannot be imported"):
        judged(ONCE, "x = (\n")


COUNTED = """
- id: stack/case
  rule: [R1]
  oracle: [model]
  objects: [{{id: n, new: counter}}]
  call: f
  perf: {{given: {{x: {{draw: one}}}}, sizes: [0, 4], check: {{same_as: oracle, cmp: exact}},
         measure: {{metric: work, counter: {{on: n, get: fed}}, {measure}}}}}
"""
COUNTER = "class N:\n    fed = 0\n\n\nn = N()\n\n\ndef counter():\n    return n\n\n\n"
FEEDS = COUNTER + "def f(x, slow=False):\n    n.fed += 3 if slow else 1\n    return x\n"
ONES = SimpleNamespace(one=lambda choose: choose.below(9), expect=lambda case: {"return": case["args"]["x"]})


def test_counted_work(judged: Judge) -> None:
    def counted(measure: str) -> Verdict:
        return judged(FEEDS, measure=measure, case=COUNTED, oracle=ONES)

    assert counted("max: 1").measured["value"] == 1
    assert counted("max: 0.5").text == "counted work: 1; at most 0.5."
    assert counted("against: {args: {slow: true}}, max: 0.4").outcome == "pass"
    third = counted("against: {args: {slow: true}}, max: 0.3")
    assert third.text == "counted work over that with slow=True: 0.333; at most 0.3."
    with pytest.raises(OwnFault, match="fed of n is no counter"):
        judged(FEEDS.replace("fed = 0", "fed = ''").replace("n.fed +=", "0 +").replace("0 + 3", "3"),
               measure="max: 1", case=COUNTED, oracle=ONES)  # fmt: skip


def test_the_interval_covers_its_median_as_often_as_it_says() -> None:
    source = np.random.default_rng(5)
    found = (interval(list(source.lognormal(0, 1, 14)), 0.01) for _ in range(4000))
    hits = sum(ratio.low <= 1 <= ratio.high for ratio in found)
    assert hits / 4000 >= 0.99  # 14 ratios: the least number of rounds


def test_beside_itself() -> None:
    assert outcome_of({"against": "self"}, interval([0.9, 1.1] * 7, 0.01)) == "pass"
    assert outcome_of({"against": "self"}, interval([1.1, 1.2] * 7, 0.01)) == "fail"
