"""Reads spec pages: the rules of a unit, by id."""

from __future__ import annotations

import re
from pathlib import Path

from grader.errors import OwnFault

RULE = re.compile(r"(R[1-9][0-9]*)\. (.+)")


def rules(page: Path) -> dict[str, str]:
    """The numbered rules of a page, in order; a rule may go on over indented lines."""
    try:
        lines = page.read_text().splitlines()
    except OSError as error:
        raise OwnFault(
            f"cannot read the spec page: {error.strerror}", str(page), "write it from spec/README.md"
        ) from None
    found: dict[str, str] = {}
    last = ""
    for number, line in enumerate(lines, 1):
        match = RULE.fullmatch(line)
        if match:
            if match[1] in found:
                raise OwnFault(f"rule {match[1]} is written twice", f"{page.name}:{number}", "number it anew")
            last = match[1]
            found[last] = match[2].strip()
        elif last and line.startswith("   "):
            found[last] += " " + line.strip()
        else:
            last = ""
    return found


def extra_rules(page: Path) -> set[str]:
    """The rules under a heading that ends in "level extra": nobody's pass depends on them."""
    found, heading = set(), ""
    for line in section(page, "Rules"):
        if match := RULE.fullmatch(line):
            if heading.endswith("level extra"):
                found.add(match[1])
        elif line and not line.startswith(" "):
            heading = line
    return found


def section(page: Path, title: str) -> list[str]:
    """The lines under `## title`."""
    lines = page.read_text().splitlines()
    if f"## {title}" not in lines:
        return []
    start = lines.index(f"## {title}") + 1
    stop = next((i for i in range(start, len(lines)) if lines[i].startswith("## ")), len(lines))
    return lines[start:stop]
