"""Everything `ol` refuses to do, in one form: `error: what · where · fix`.

The class says the category and so the exit code (design: exit codes are categories, returned not called):

- `UsageError` 2: arguments, unknown ids, ol.toml, a workspace that cannot be read or is in use
- `OwnFault` 3: our own files: path.tsv, fixtures, schema, a full disk, a broken progress database
- `Missing` 4: something the machine lacks: Python, venv, a compiler, an isolation level
"""

from __future__ import annotations

from collections.abc import Iterable

PASSED, NOT_PASSED, USAGE, OWN_FAULT, MISSING, INTERRUPTED = 0, 1, 2, 3, 4, 130


class OlError(Exception):
    """One clear line for the user; never shown as a traceback."""

    exit_code = OWN_FAULT

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        return "error: " + " · ".join(part for part in (self.what, self.where, self.fix) if part)


def near(name: str, known: Iterable[str]) -> str:
    """What somebody who mistyped a name may have meant, as the end of a message."""
    import difflib  # only a mistake pays for it

    found = difflib.get_close_matches(str(name), list(known), 1)
    return f", did you mean {found[0]!r}?" if found else ""


class UsageError(OlError):
    exit_code = USAGE


class OwnFault(OlError):
    exit_code = OWN_FAULT


class Missing(OlError):
    exit_code = MISSING
