"""Validation against spec/schema, with messages a person can act on."""

from __future__ import annotations

import difflib
import functools
import json
from pathlib import Path
from typing import Any

from grader.errors import OlError, OwnFault

SCHEMAS = Path(__file__).resolve().parent.parent / "spec" / "schema"
FORMAT = (1, 0)


@functools.cache
def validator(name: str) -> Any:
    import jsonschema

    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def check_format(text: Any, where: str, fault: type[OlError] = OwnFault) -> None:
    """A reader refuses another major and a newer minor."""
    parts = str(text).split(".")
    if len(parts) != 2 or not all(p.isdecimal() for p in parts):
        raise fault(f"format {text!r} is not major.minor", where, 'write format: "1.0"')
    major, minor = map(int, parts)
    ours = f"{FORMAT[0]}.{FORMAT[1]}"
    if (major, minor) > FORMAT:
        raise fault(f"format {text} is newer than this grader reads ({ours})", where, "update the grader")
    if major < FORMAT[0]:
        raise fault(f"format {text} is older than this grader reads ({ours})", where, "write the file anew")


def first_fault(name: str, data: Any) -> tuple[tuple[str | int, ...], str] | None:
    """The path and the plain words of what is wrong, or None."""
    import jsonschema

    error = jsonschema.exceptions.best_match(validator(name).iter_errors(data))
    if error is None:
        return None
    return (*error.absolute_path, *_culprit(error)), _words(error)


def _culprit(error: Any) -> list[str]:
    """The key that is wrong, where the error stands at the mapping that holds it."""
    if error.validator == "additionalProperties":
        return [_unknown(error)]
    return [error.instance] if "propertyNames" in error.absolute_schema_path else []


def _unknown(error: Any) -> str:
    return str(next(key for key in error.instance if key not in error.schema.get("properties", {})))


def _words(error: Any) -> str:
    kind, value, found = error.validator, error.validator_value, error.instance
    match kind:
        case "additionalProperties":
            known = list(error.schema.get("properties", {}))
            unknown = _unknown(error)
            near = difflib.get_close_matches(unknown, known, 1)
            guess = f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            return f"unknown key {unknown!r}{guess}"
        case "required":
            missing = next(key for key in value if key not in found)
            return f"missing key {missing!r}"
        case "not":
            keys = [k for option in value.get("anyOf", []) for k in option.get("required", []) if k in found]
            return f"{', '.join(map(repr, keys))} does not go with the other keys: one verb, one form"
        case "enum":
            return f"{found!r} is not one of {', '.join(map(str, value))}"
        case "const":
            return f"{found!r} is not {value!r}"
        case "type":
            return f"{_short(found)} is not {_article(value)}"
        case "pattern":
            return f"{found!r} does not match {value}"
        case "minItems" | "minProperties" | "minLength":
            return f"{_short(found)} is too short: at least {value}"
    return str(error.message)


def _article(kinds: Any) -> str:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    return " or ".join(("an " if n[0] in "aeiou" else "a ") + n for n in names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as a person writes it: `cases[3].expect.return`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
