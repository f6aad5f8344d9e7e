"""`ol author new UNIT`: the skeletons of a Python unit: a path row and three places, no grader code."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

from grader.errors import UsageError
from grader.path import COLUMNS, Stage

UNIT = re.compile(r"[a-z][a-z0-9_]{1,23}")

PAGE = """\
# {unit} — what it is in a few words

Status: draft · Needs: {needs} · Native: no

One paragraph: what it is for, where it sits in an inference engine, the one idea to take away.
Then the reading: what to know first, and one or two sources to read (paper and section).

## Rules
R1. `double(x)` MUST return x times two, and MUST NOT change x.
R2. An x with no element MUST raise ValueError.

## Worked example
[1, 2.5] becomes [2, 5].

## Shapes
double(x: f64[N]) -> f64[N]

## Numerics
exact: a power of two

## Why

## Sources

## Changes
{today} first version
"""

CASES = """\
format: "1.0"
unit: {unit}
title: What double returns
oracles:
  steps: {{kind: independent, by: oracle.py}}
hints:
  twice: ["What is x + x?"]
cases:
- id: {unit}/two-values
  rule: [R1]
  oracle: [steps]
  kills: [adds-two]
  hints: [twice]
  call: double
  args: {{x: {{f64: [1.0, 2.5]}}}}
  expect: {{return: {{f64: null, cmp: exact}}}}
- id: {unit}/one-value
  rule: [R1]
  oracle: [steps]
  call: double
  args: {{x: {{f64: [-3.0]}}}}
  expect: {{return: {{f64: null, cmp: exact}}}}
- id: {unit}/empty
  rule: [R2]
  oracle: [steps]
  kills: [empty-accepted]
  twin: {unit}/one-value
  call: double
  args: {{x: {{f64: []}}}}
  expect: {{raises: ValueError}}
"""

ORACLE = '''\
"""What {unit} must answer, written from spec/{unit}.md alone. Never imports impl."""

import numpy as np


def expect(case):
    """The answer to one case."""
    x = case["args"]["x"]
    if len(x) == 0:
        return {{"raises": "ValueError"}}
    return {{"return": np.array([value + value for value in x.tolist()])}}
'''

MUTANTS = """\
format: "1.0"
unit: {unit}
mutants:
  adds-two:
    bug: "two is added instead of multiplied"
    find: "x * 2.0"
    with: "x + 2.0"
    rule: R1
    hint: twice
  empty-accepted:
    bug: "nothing is accepted"
    find: "x.size == 0"
    with: "x.size < 0"
    rule: R2
"""

IMPL = '''\
"""What it is in a few words.

Spec    spec/{unit}.md
Source  the paper and the equation
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def double(x: F64) -> F64:
    """Multiply every value by two: y = 2 x.

    Shapes
        x        f64[N], N >= 1
        returns  f64[N], a new array

    Errors
        ValueError  x is empty

    >>> double(np.array([1.0, 2.5]))
    array([2., 5.])
    """
    if x.size == 0:
        raise ValueError("x is empty")
    return x * 2.0
'''

EQUIVALENT_1 = '''\
"""The same by adding."""

import numpy as np


def double(x):
    if len(x) < 1:
        raise ValueError("no values")
    return np.add(x, x)
'''

EQUIVALENT_2 = '''\
"""The same in a loop."""

import numpy as np


def double(x):
    values = [2 * value for value in x.tolist()]
    if not values:
        raise ValueError("no values")
    return np.array(values)
'''


def skeletons(unit: str, stages: Sequence[Stage]) -> str:
    """Every file of a new unit, each under a line that names it; they pass build, lint and mutants."""
    parts = [f"# Add this row to path.tsv (tabs), then save each file.\n# {row(unit, stages)}\n"]
    parts += [f"==> {name}\n{text}" for name, text in files(unit, stages).items()]
    parts.append(f"# then: ol author build {unit} && ol author lint {unit} && ol author mutants {unit}")
    return "\n".join(parts)


def row(unit: str, stages: Sequence[Stage]) -> str:
    stage = next((s for s in stages if s.unit == unit), None)
    if stage is not None:
        return f"(it has a row: line {stage.line})"
    last = stages[-1]
    name, number = f"X.{last.stage + 1}", str(last.stage + 1)
    done = f"Your implementation of {name} passes its course checks."
    about = ("Title", f"spec/{unit}.md", done, f"practice/bin/ol check {name}")
    cells = (last.path, number, name, unit, f"impl/{unit}.py", "build", "-", *about)
    assert len(cells) == len(COLUMNS)
    return "\t".join(cells)


def files(unit: str, stages: Sequence[Stage]) -> dict[str, str]:
    if not UNIT.fullmatch(unit):
        raise UsageError(f"{unit!r} is no unit name", "ol author new", "a noun: [a-z][a-z0-9_]{1,23}")
    stage = next((s for s in stages if s.unit == unit), None)
    needs = ", ".join(stage.needs) if stage is not None and stage.needs else "–"
    fill = {"unit": unit, "needs": needs, "today": datetime.date.today().isoformat()}
    texts = {
        f"spec/{unit}.md": PAGE, f"fixtures/{unit}/cases.yaml": CASES, f"fixtures/{unit}/oracle.py": ORACLE,
        f"fixtures/{unit}/mutants.yaml": MUTANTS, f"fixtures/{unit}/equivalents/adds.py": EQUIVALENT_1,
        f"fixtures/{unit}/equivalents/loop.py": EQUIVALENT_2, f"impl/{unit}.py": IMPL,
    }  # fmt: skip
    return {
        name: text.format(**fill) if "{unit}" in text or "{{" in text else text
        for name, text in texts.items()
    }
