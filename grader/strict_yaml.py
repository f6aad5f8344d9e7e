"""Reads the YAML of the fixture files strictly: JSON's scalars, string keys, one document, no aliases.

Works on libyaml's events and not on its nodes: no recursion, and a third of the time of CSafeLoader.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml
from yaml import reader, scanner
from yaml.parser import Parser

from grader.errors import OwnFault

try:
    from yaml import _yaml as libyaml
except ImportError:
    libyaml = None  # type: ignore[assignment]

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64

Path = tuple[str | int, ...]


class Span(NamedTuple):
    """Where a node stands: `text[start:stop]`, in characters; line and column count from 1."""

    start: int
    stop: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Marked:
    """A value with the place of each of its nodes, by the path of keys and indices that leads there.

    A scalar or flow node spans its own text. A block collection runs from its first key or dash to the
    end of its last node; a block scalar from its `|` or `>` to the last line break before what follows
    (exclusive; with `+`, whose blank lines are content, only one break is left out). So a span never
    ends in a line break, and `" " * (column - 1) + text[start:stop] + "\\n"` reads back as the node.
    """

    text: str
    where: str
    value: Any = None
    spans: dict[Path, Span] = field(default_factory=dict)
    keys: dict[Path, Span] = field(default_factory=dict)  # the key of the node at that path

    def line(self, path: Path) -> int:
        """The line of the key at path (of the item, in a list); of the nearest node above if it is absent."""
        while path and path not in self.spans:
            path = path[:-1]
        return self.keys.get(path, self.spans[path]).line

    def at(self, path: Path) -> str:
        """The place as errors name it: `file.yaml:LINE`."""
        return f"{self.where}:{self.line(path)}"


class _RefusalError(Exception):
    """The current event is refused; the caller knows its line."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def load(text: str | bytes, where: str) -> Any:
    """Read one document as plain JSON values; `where` is the file name that errors show.

    >>> load("{a: [1, 1e-5, x], b: null}", "case.yaml")
    {'a': [1, 1e-05, 'x'], 'b': None}
    """
    text = _checked_text(text, where)
    with _collector_off():
        return _build(text, where, None)


def load_marked(text: str | bytes, where: str) -> Marked:
    """Read one document and keep the place of every node."""
    text = _checked_text(text, where)
    marks = Marked(text, where)
    with _collector_off():
        value = _build(text, where, marks)
    return replace(marks, value=value)


@contextmanager
def _collector_off() -> Iterator[None]:
    # Millions of small objects and no cycles: the collector would only rescan them.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ---------------------------------------------------------------- characters

# What libyaml's reader refuses, and also tabs, lone CRs and the breaks of YAML 1.1 that editors do not
# count as lines.
_UNWELCOME = re.compile(
    "[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|\r(?!\n)"
)
_UNWELCOME_NAMES = {
    0x09: ("a tab", r"use spaces; in a double-quoted string write \t"),
    0x0D: ("a carriage return without a line feed", "end lines with a line feed"),
    0xFEFF: ("a byte order mark (U+FEFF)", "save the file as UTF-8 without it"),
}


def _checked_text(text: str | bytes, where: str) -> str:
    try:
        raw = text.encode() if isinstance(text, str) else text
        text = raw.decode()
    except UnicodeDecodeError as bad:
        line = bad.object.count(b"\n", 0, bad.start) + 1
        what = f"not UTF-8: byte 0x{bad.object[bad.start]:02x}"
        raise OwnFault(what, f"{where}:{line}", "save the file as UTF-8") from None
    except UnicodeEncodeError as bad:
        line = bad.object.count("\n", 0, bad.start) + 1
        what = f"not UTF-8: lone surrogate U+{ord(bad.object[bad.start]):04X}"
        raise OwnFault(what, f"{where}:{line}", "save the file as UTF-8") from None
    if len(raw) > MAX_BYTES:
        what = f"{len(raw)} bytes of YAML, more than {MAX_BYTES}"
        raise OwnFault(what, f"{where}:1", "split the file, or move arrays into data/")
    if found := _UNWELCOME.search(text):
        line = text.count("\n", 0, found.start()) + 1
        code = ord(found[0])
        default = f"control character U+{code:04X}", f'write "\\u{code:04x}" in double quotes'
        what, fix = _UNWELCOME_NAMES.get(code, default)
        raise OwnFault(what, f"{where}:{line}", fix)
    return text


# ---------------------------------------------------------------- plain scalars

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_START = frozenset("+-.0123456789")
_JSON_WORDS = {"true": True, "false": False, "null": None}
_SWITCHES = frozenset({"yes", "no", "on", "off"})
_YAML_WORDS = frozenset(
    {form(w) for w in ("yes", "no", "on", "off", "true", "false", "null") for form in (str.title, str.upper)}
    | _SWITCHES
    | {"~", "=", "<<"}
)
# Numbers and dates of YAML 1.1 (as PyYAML has them) and of the 1.2 core schema.
_YAML_NUMBER = re.compile(
    r"""[-+]?(?: 0b[01_]+ | 0o[0-7]+ | 0x[0-9a-fA-F_]+
               | [0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?
               | \.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
               | \.(?:inf|Inf|INF) )
      | \.(?:nan|NaN|NAN)
      | [0-9]{4}-[0-9]{2}-[0-9]{2}
      | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ ]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?
        (?:[ ]*(?:Z|[-+][0-9]{1,2}(?::?[0-9]{2})?))?""",
    re.VERBOSE,
)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _plain(text: str) -> Any:
    """The value of a plain scalar: as JSON reads it, or a string that no YAML reads as anything else."""
    if not text:
        raise _RefusalError("an empty value", 'write null, "" or the value')
    if text[0] in _NUMBER_START:
        if match := _NUMBER.fullmatch(text):
            return _number(text, match.lastindex is None)
        if not _YAML_NUMBER.fullmatch(text):
            return text
    elif text not in _YAML_WORDS:
        return _JSON_WORDS.get(text, text)
    what = f"{_shown(text)} is not the same value to every YAML reader"
    raise _RefusalError(what, f'quote it: "{_shown(text)}", or write it as JSON does')


def _number(text: str, is_integer: bool) -> int | float:
    if is_integer:
        if text == "-0":
            raise _RefusalError("-0 is no integer", "write 0 or -0.0")
        try:
            return int(text)
        except ValueError:  # Python's own cap on digits
            raise _RefusalError(f"an integer of {len(text)} digits", "quote it") from None
    value = float(text)
    if math.isinf(value):
        raise _RefusalError(f"{_shown(text)} overflows a float", 'write "inf" or "-inf", or quote it')
    return value


def _plain_key(text: str) -> str:
    if text in _SWITCHES:  # a key is a name and never a switch: the format itself has `on: <object id>`
        return text
    if text == "<<":
        raise _RefusalError("a merge key (<<)", 'write the keys out, or quote it: "<<"')
    try:
        value = _plain(text) if text else None
    except _RefusalError:
        value = None
    if isinstance(value, str):
        return value
    what = f"a key that is not a string: {_shown(text)}" if text else "an empty key"
    raise _RefusalError(what, f'quote it: "{_shown(text)}"')


# ---------------------------------------------------------------- events

_DIRECTIVE = re.compile(r"(?:[ ]*(?:#[^\n]*)?\n|[ ]*\r\n)*%")
_PROPERTIES = {"!": ("a tag", "write typed values as {f32: ..}"), "&": ("an anchor", "write the value out")}


class _PureParser(reader.Reader, scanner.Scanner, Parser):
    """The same events without libyaml, much slower."""

    def __init__(self, stream: str | bytes) -> None:
        reader.Reader.__init__(self, stream)
        scanner.Scanner.__init__(self)
        Parser.__init__(self)

    def get_event(self) -> Any:
        try:
            event = super().get_event()  # type: ignore[no-untyped-call]
            if isinstance(event, yaml.ScalarEvent):
                event.value.encode()  # libyaml refuses surrogates, this parser lets them through
        except ValueError:  # the same for an escape above U+10FFFF
            problem = "found invalid Unicode character escape code"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark()) from None
        return event


_C_PARSER: Any = None if libyaml is None else libyaml.CParser
_EventParser: Any = _C_PARSER or _PureParser


def _build(text: str, where: str, marks: Marked | None) -> Any:
    if found := _DIRECTIVE.match(text):
        line = text.count("\n", 0, found.end()) + 1
        raise OwnFault("a % directive", f"{where}:{line}", "remove it")
    event: Any = None
    try:
        parser = _EventParser(text)
        root: list[Any] = []  # the document is its only item
        here: Any = root
        key: str | None = None  # None in a mapping: a key comes next
        path: Path = ()
        outer: list[tuple[Any, Path, Any]] = []
        stop = 0  # end of the last finished node
        while True:
            event = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                begin = event.start_mark
                if (head := text[begin.index : begin.index + 1]) in _PROPERTIES:
                    raise _RefusalError(*_PROPERTIES[head])
                if key is None and type(here) is dict:
                    key = event.value if event.style else _plain_key(event.value)
                    if key in here:
                        raise _RefusalError(f"key {_shown(key)} stands twice in one mapping", "remove one")
                    if marks is not None:
                        marks.keys[(*path, key)] = _span(begin, event.end_mark.index)
                    continue
                value = event.value if event.style else _plain(event.value)
                if marks is not None:
                    stop = event.end_mark.index
                    if head in "|>":
                        stop = _block_scalar_stop(text, begin.index, stop)
                    marks.spans[_child(path, here, key, root)] = _span(begin, stop)
                if key is None:
                    here.append(value)
                else:
                    here[key], key = value, None
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                inner: Any = {} if kind is yaml.MappingStartEvent else []
                _check_start(event, text, len(outer))
                if key is None and type(here) is dict:
                    raise _RefusalError("a key that is not a string", "write a plain or quoted string")
                outer.append((here, path, event))
                if marks is not None:
                    path = _child(path, here, key, root)
                if key is None:
                    here.append(inner)
                else:
                    here[key], key = inner, None
                here = inner
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                inner_path = path
                here, path, opened = outer.pop()
                if marks is not None:
                    # The end of a block collection is the next token, beyond comments: take its last node's.
                    stop = event.end_mark.index if opened.flow_style else stop
                    marks.spans[inner_path] = _span(opened.start_mark, stop)
            elif kind is yaml.AliasEvent:
                raise _RefusalError("an alias", "write the value out")
            elif kind is yaml.DocumentStartEvent and root:
                raise _RefusalError("a second document", "one file has one document")
            elif kind is yaml.StreamEndEvent:
                break
    except _RefusalError as no:
        raise OwnFault(no.what, f"{where}:{event.start_mark.line + 1}", no.fix) from None
    except yaml.MarkedYAMLError as bad:
        mark: Any = bad.problem_mark
        what = ": ".join(part for part in ("not YAML", bad.context, bad.problem) if part)
        fix = "look at indentation, quotes and brackets here and just above"
        raise OwnFault(what, f"{where}:{mark.line + 1}", fix) from None
    if not root:
        raise OwnFault("an empty file", f"{where}:1", "write the document or remove the file")
    return root[0]


def _check_start(event: Any, text: str, depth: int) -> None:
    head = text[event.start_mark.index]
    if head in _PROPERTIES:
        raise _RefusalError(*_PROPERTIES[head])
    if depth >= MAX_DEPTH:
        raise _RefusalError(f"nested deeper than {MAX_DEPTH}", "flatten the value")
    if type(event) is yaml.MappingStartEvent and event.flow_style and head != "{":
        raise _RefusalError("a pair inside [ ] without braces", "write [{key: value}]")


def _child(path: Path, here: Any, key: str | None, root: list[Any]) -> Path:
    return () if here is root else (*path, len(here) if key is None else key)


def _span(begin: Any, stop: int) -> Span:
    return Span(begin.index, stop, begin.line + 1, begin.column + 1)


def _block_scalar_stop(text: str, start: int, stop: int) -> int:
    header = text[start : text.find("\n", start)].partition("#")[0]
    if "+" not in header:
        return start + len(text[start:stop].rstrip("\r\n"))
    return stop - (text.endswith("\n", start, stop) + text.endswith("\r\n", start, stop))


# ---------------------------------------------------------------- writing

_NEEDS_QUOTES = re.compile(
    r"""\A\Z | \A[ :#&*!|>'"%@`] | \A-(?:[ ]|\Z) | \A(?:---|\.\.\.)
      | [,\[\]{}?\n\r] | :(?:[ ]|\Z) | [ ](?:\#|\Z)""",
    re.VERBOSE,
)
_FORMAT_WORDS = frozenset({"nan", "inf", "-inf"})  # quoted wherever the format shows them
_LONGEST_KEY = 1000  # YAML looks 1024 characters ahead for the colon of a key without `?`


def to_flow(value: Any) -> str:
    """Write plain values in the one canonical flow form, on one line; what it writes reads back equal.

    ValueError for what the format has no plain form for: NaN, infinities, other types, lone surrogates.

    >>> to_flow({"a": 1, "b": [1e-5, "x y", "on", "nan", None]})
    '{a: 1, b: [1e-05, x y, "on", "nan", null]}'
    """
    return _flow(value, 0)


def splice(marked: Marked, values: Mapping[Path, Any]) -> str:
    """The text with the nodes at these paths replaced by the flow form of these values; the rest stays."""
    parts: list[str] = []
    done = 0
    for path, value in sorted(values.items(), key=lambda item: marked.spans[item[0]].start):
        span, key = marked.spans[path], marked.keys.get(path)
        if span.start < done:
            raise ValueError(f"{path} is inside another replaced node")
        # A block sequence may stand under its key at the key's own column; a flow node may not.
        pad = " " if key and span.column <= key.column else ""
        parts += marked.text[done : span.start], pad, to_flow(value)
        done = span.stop
    return "".join(parts) + marked.text[done:]


def _flow(value: Any, depth: int) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{float.__repr__(value)} has no bare form: write the word as a string")
        return float.__repr__(value)
    if not isinstance(value, list | dict):
        raise ValueError(f"only plain JSON values have a flow form, not {type(value).__name__}")
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item, depth + 1) for item in value) + "]"
    return "{" + ", ".join(f"{_key(key)}: {_flow(item, depth + 1)}" for key, item in value.items()) + "}"


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a key is a string, not {type(key).__name__}")
    written = key if key in _SWITCHES else _word(key)
    return written if len(written) <= _LONGEST_KEY else "? " + written


def _word(text: str) -> str:
    if not _NEEDS_QUOTES.search(text) and not _UNWELCOME.search(text) and text not in _FORMAT_WORDS:
        try:
            if isinstance(_plain(text), str):
                return text
        except _RefusalError:
            pass
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("a lone surrogate is no text")
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNWELCOME.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
