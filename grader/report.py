"""Verdicts for a person at a terminal. Words carry the meaning; colour is for terminals only."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from grader import console, spec
from grader.grading import FAILS

NAMED = 12  # of those that are only named
SHOWN = 5  # failing cases in full; the others by name
COLOURS = {
    "pass": "32",
    "todo": "33",
    "blocked": "33",
    "inconclusive": "33",
    "undecided": "33",
    "not built": "2",
}
FORMAT = 1
NOT_CONTAINED = [
    "reading files of this machine, fixtures/ included",
    "network",
    "processes that leave their group",
]
OUTPUT = "      | "  # before every line that the code under test printed


def colour(word: str, text: str | None = None) -> str:
    """The word as it is, in colour on a terminal that wants it."""
    shown = word if text is None else text
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return shown
    return f"\x1b[{COLOURS.get(word, '31')}m{shown}\x1b[0m"


def safe(text: str) -> str:
    """A learner's text as inert characters: no escape sequences, no carriage returns."""
    return "".join(
        c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in text.replace("\t", "    ")
    )


def inert(text: str) -> str:
    """A learner's text inside a line of ours: its further lines are marked, so that none can pose as ours."""
    return safe(text).rstrip("\n").replace("\n", f"\n{OUTPUT}")


def fitted(lines: list[str]) -> list[str]:
    """Lines for this terminal. Commands stay whole, to be copied; what the code printed keeps its mark."""
    out = []
    for line in "\n".join(lines).split("\n"):
        whole = line.startswith(("      again", "next"))
        out.append(line if whole else console.fit(line, OUTPUT if line.startswith(OUTPUT) else " " * 13))
    return out


def unit_lines(report: dict[str, Any], root: Path, next_hint: str, verbose: bool = False) -> list[str]:
    """A unit's verdict: the failing cases, then one line that says what to do next."""
    lines: list[str] = []
    cases = [case for case in report["cases"] if case["outcome"] not in ("pass", "todo", "blocked")]
    required = sorted(cases, key=lambda c: (c["level"] != "required", c["outcome"] not in FAILS))
    same = {(c.get("step"), c.get("text")) for c in cases}
    if report.get("fix") and not report["cases"]:
        word = colour(report["outcome"], report["outcome"].upper())
        lines += [f"{word}  {report['id']} {report['unit']}  {report['text']}"]
    elif cases and len(same) == 1 and next(iter(same))[0] == "import":
        lines += import_lines(report, cases[0])
    else:
        told: set[str] = set()
        for case in required if verbose else required[:SHOWN]:
            lines += case_lines(report, case, root, told)
        lines += name_lines([] if verbose else required[SHOWN:], "and {} more")
        lines += name_lines(
            [c for c in report["cases"] if c["outcome"] == "blocked"], "{} not run, three ran out of time"
        )
    lines += [f"note  {note}" for note in report.get("notes", [])]
    if report.get("mistake") and not any("looks like" in line for line in lines):
        lines += [looks_like(report)]
    return fitted([*lines, *to_write(report), summary(report, next_hint)])


def name_lines(cases: list[dict[str, Any]], what: str) -> list[str]:
    """Cases that are only named."""
    if not cases:
        return []
    names = ", ".join(case["id"].partition("/")[2] for case in cases[:NAMED])
    text = f"{what.format(len(cases))}: {names}" + (", …" if len(cases) > NAMED else "")
    width, margin = console.columns() or 110, " " * 6
    return [*textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin), ""]


def import_lines(report: dict[str, Any], case: dict[str, Any]) -> list[str]:
    lines = [
        f"{colour('fail', case['outcome'].upper())}  {report['id']} {report['unit']}  {inert(case['text'])}"
    ]
    if "at" in case:
        lines += [f"      at     {case['at']}"]
    lines += output_lines(case)
    return [*lines, f"      so     none of the {len(report['cases'])} cases could run", ""]


def case_lines(
    report: dict[str, Any], case: dict[str, Any], root: Path, told: set[str] | None = None
) -> list[str]:
    """A case that does not pass; a rule that was `told` already is only named."""
    told = set() if told is None else told
    word = case["outcome"].upper() if case["outcome"] != "fail" else "FAIL"
    extra = "  (extra)" if case["level"] != "required" else ""
    lines = [f"{colour(case['outcome'], word)}  {case['id']}  {case['about']}{extra}"]
    d = case.get("difference")
    if d is not None:
        place = d["where"].removeprefix("return")
        step = f"{case.get('step', '')}".removeprefix("step ") + (f" -> {place}" if place else "")
        lines += [f"      step   {step}"] if len(d["expected"]) + len(d["got"]) > 70 else []
        if lines[-1].startswith("      step"):
            lines += [
                f"      expected {d['expected']}",
                f"      got      {inert(d['got'])}" + (f"   {d['note']}" if d["note"] else ""),
            ]
        else:
            note = f"   {d['note']}" if d["note"] else ""
            lines += [f"      step   {step}   expected {d['expected']}   got {inert(d['got'])}{note}"]
    elif case.get("step"):
        lines += [f"      step   {case['step'].removeprefix('step ')}"]
    if case.get("text"):
        word = (
            "run" if d is not None and case["text"].startswith("run ") else "why"
        )  # of a property: which example
        lines += [
            f"      {word}    {inert(case['text'].removeprefix('run ') if word == 'run' else case['text'])}"
        ]
    if case.get("at"):
        lines += [f"      at     {case['at']}"]
    if case.get("last_state"):
        lines += [f"      state  before: {inert(case['last_state'])}"]
    page = root / "spec" / f"{report['unit']}.md"
    for rule in case["rule"][:2]:
        text = spec.rules(page).get(rule, "") if page.exists() else ""
        where = f"(spec/{report['unit']}.md)"
        lines += [
            f"      rule   {rule}, as above" if rule in told else f"      rule   {rule}: {text}   {where}"
        ]
        told.add(rule)
    if case.get("mistake"):
        lines += [f'      looks like   "{case["mistake"]}"']
    if case["id"] in report.get("mistake", {}).get("cases", []):
        lines += [looks_like(report)]
    lines += output_lines(case)
    if case.get("counterexample"):
        lines += counterexample_lines(case["counterexample"])
    if case["outcome"] == "crashed" and re.search(r"\.c:\d+$", case.get("at", "")):
        lines += [f"      as C   {console.command()} reproduce {case['id']} > case.c"]
    again = f"{console.command()} check {report['id']} --case {case['id']}"
    hint = f"      hint: {console.command()} hint {report['id']}" if case.get("hints") else ""
    return [*lines, f"      again  {again}{hint}", ""]


def looks_like(report: dict[str, Any]) -> str:
    m = report["mistake"]
    return f'      looks like   "{m["bug"]}"   ({len(m["cases"])} of {m["of"]} failing cases match)'


def output_lines(case: dict[str, Any]) -> list[str]:
    """What the code printed, each line prefixed so that no line can pose as ours."""
    text = safe(case.get("output", "")).strip("\n").splitlines()
    shown = text[:12] + ([f"… {len(text) - 12} more lines"] if len(text) > 12 else [])
    return [f"{OUTPUT}{line[:200]}" for line in shown]


def counterexample_lines(case: dict[str, Any]) -> list[str]:
    from grader.strict_yaml import to_flow

    keys = [k for k in ("call", "new", "args", "objects", "expect", "steps") if k in case]
    lines = ["      input  the smallest found, as a case:"]
    for key in keys:
        rows = [f"- {to_flow(step)}" for step in case[key]] if key == "steps" else [to_flow(case[key])]
        cut = [row if len(row) <= 600 else row[:599] + "…" for row in rows]
        lines += (
            [f"             {key}:", *(f"             {row}" for row in cut)]
            if key == "steps"
            else [f"             {key}: {cut[0]}"]
        )
    return lines


def summary(report: dict[str, Any], next_hint: str) -> str:
    """`pass  L8.1 sampling  64 cases, 0.4 s    next: ol check L8.2`."""
    n, passed = len(report["cases"]), report["counts"].get("pass", 0)
    outcome = report["outcome"]
    cases = f"{n} case" + "s" * (n != 1)
    what = (
        cases
        if outcome == "pass" and passed == n
        else f"{passed} of {cases} pass"
        if n
        else report.get("text", "")
    )
    if own := sum(case.get("policy") == "self-checked" for case in report["cases"]):
        what += f", {own} self-checked"
    if outcome == "todo":
        what = f"not written yet: {report['counts'].get('todo', 0)} of {cases}"
    time = (
        ", unchanged since it was graded"
        if report.get("recorded")
        else f", {report['seconds']:.1f} s"
        if "seconds" in report
        else ""
    )
    extra = f", with the reference's {', '.join(report['assisted'])}" if report.get("assisted") else ""
    text = f"{report['id']} {report['unit']}  {what}{time}{extra}"
    short = (
        len(outcome + text + next_hint) < 90
    )  # else the next command would be broken at the terminal's edge
    follow = (f"    next: {next_hint}" if short else f"\nnext  {next_hint}") if next_hint else ""
    return f"{colour(outcome)}  {text}{follow}"


def to_write(report: dict[str, Any]) -> list[str]:
    """Where the code said that it is not written, so that a unit can be written function by function."""
    files: dict[str, set[int]] = {}
    for case in report["cases"]:
        if case["outcome"] == "todo" and ":" in case.get("at", ""):
            file, _, line = case["at"].rpartition(":")
            files.setdefault(file, set()).add(int(line))
    return [
        f"      to write  {file}, line {', '.join(map(str, sorted(at)))}"
        for file, at in sorted(files.items())
    ]


def document(command: str, outcome: str, units: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The one JSON document of a command that grades."""
    import hashlib

    from grader.progress import versions

    listing = "".join(f"{u['unit']} {u.get('fixture_sha256', '-')}\n" for u in units)
    return {
        "format": FORMAT, "command": command, "outcome": outcome, "units": units, "versions": versions(),
        "fixture_sha256": hashlib.sha256(listing.encode()).hexdigest(),
        "isolation": {"level": 1, "not_contained": NOT_CONTAINED},
        **more,
    }  # fmt: skip


def worst(outcomes: list[str]) -> str:
    """The outcome of several units."""
    for outcome in FAILS:
        if outcome in outcomes:
            return outcome if set(outcomes) & set(FAILS) == {outcome} else "fail"
    for outcome in ("inconclusive", "undecided", "blocked", "todo", "not built"):
        if outcome in outcomes:
            return outcome
    return "pass" if outcomes else "inconclusive"
