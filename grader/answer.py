"""What came back for one request, read from its message; nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grader import frame, wire


@dataclass(frozen=True, slots=True)
class Raised:
    """What was raised, as names and text."""

    kind: str
    bases: tuple[str, ...]
    text: str
    phase: str
    file: str = ""
    line: int = 0
    found: tuple[str, ...] = ()

    def is_a(self, kind: str) -> bool:
        return kind in self.bases


@dataclass(slots=True)
class Answer:
    """One answer: exactly one of a value, a raise, `unsupported`, or ok."""

    kind: str  # return | raises | memory | unsupported | ok | observed
    value: Any = None
    raised: Raised | None = None
    args: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    loaded: tuple[str, ...] = ()
    libm: str | None = None

    def arg(self, name: str) -> Any:
        """An argument as it was after the call; None if it did not come back."""
        value = self.args.get(name)
        return wire.decode(value.item) if isinstance(value, Later) else value


@dataclass(frozen=True, slots=True)
class Later:
    """A record that nothing changed, not decoded yet."""

    item: Any


def answer_of(reply: dict[str, Any], chunks: Any = None) -> Answer:
    """A reply as an Answer; raises ProtocolError unless it carries exactly one kind."""
    kinds = [k for k in ("return", "raises", "memory", "unsupported", "ok", "observed") if k in reply]
    if len(kinds) != 1:
        raise frame.ProtocolError(f"an answer with {len(kinds)} of return, raises, unsupported, ok")
    kind = kinds[0]
    answer = Answer(kind)
    for key, value in reply.items():  # in header order, because tensor bodies come in that order
        if key == "return":
            answer.value = wire.decode(value, chunks)
        elif key in ("raises", "memory"):
            answer.raised = raised_of(value, reply.get("phase", "call"))
        elif key == "observed":
            if not isinstance(value, list) or not all(
                isinstance(v, dict) and "observed" not in v for v in value
            ):
                raise frame.ProtocolError("observed is not a list of answers")
            answer.value = [answer_of(item, chunks) for item in value]
        elif key == "args":
            if not isinstance(value, dict):
                raise frame.ProtocolError("args is not an object")
            answer.args = args_of(value, chunks)
        elif key == "unsupported":
            answer.value = str(value)[:400]
        elif key == "ok":
            answer.libm = value.get("libm") if isinstance(value, dict) else None
    answer.file = reply["file"] if isinstance(reply.get("file"), str) else None
    loaded = reply.get("loaded")
    answer.loaded = tuple(x for x in loaded if isinstance(x, str)) if isinstance(loaded, list) else ()
    return answer


def args_of(value: dict[str, Any], chunks: Any) -> dict[str, Any]:
    """Arguments as they came back; a record that the call left as it was is decoded only if asked for."""
    args: dict[str, Any] = {}
    for name, item in value.items():
        if name in args:
            continue
        before = f"{name} before"
        if before in value and value[before] == item and type(item) is dict and not holds_tensor(item):
            args[name] = args[before] = Later(item)
        else:
            args[name] = wire.decode(item, chunks)
    return args


def holds_tensor(node: dict[str, Any] | list[Any]) -> bool:
    """Whether the content of a value lies partly outside its JSON."""
    values: Iterable[Any] = node.values() if isinstance(node, dict) else node
    inner = [v for v in values if type(v) in (dict, list)]
    return "shape" in node or any("f64" not in v and holds_tensor(v) for v in inner)


def raised_of(about: Any, phase: Any) -> Raised:
    if not isinstance(about, dict) or not isinstance(about.get("class"), str):
        raise frame.ProtocolError("a raise without a class name")
    bases = about.get("bases") or []
    if not isinstance(bases, list) or not all(isinstance(name, str) for name in bases):
        raise frame.ProtocolError("base-class names that are not a list of text")
    at = about.get("at")
    file, line = (
        (str(at[0]), at[1]) if isinstance(at, list) and len(at) >= 2 and type(at[1]) is int else ("", 0)
    )
    found = about.get("found")
    return Raised(
        about["class"], (about["class"], *bases), str(about.get("text", ""))[:2000], str(phase), file, line,
        tuple(str(x) for x in found) if isinstance(found, list) else (),
    )  # fmt: skip
