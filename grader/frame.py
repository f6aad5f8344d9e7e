"""Messages as bytes: `u32 header length, u32 body length, header JSON, body`; tensors lie in the body in the
order in which the header names them. The standard library only: the C worker has no NumPy.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_HEADER = 1 << 20  # bytes of JSON in one frame
MAX_BODY = 8 << 20  # bytes of tensor data in one answer
# A tensor in a header, as encode_tensor() writes it. No text can look like one: its quotes are escaped.
TENSOR = re.compile(rb'"shape": ?[^{}"]*, ?"raw": ?(-?[0-9]{1,20})')

to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ProtocolError(Exception):
    """The other side sent something that is not a message."""


@dataclass(slots=True)
class Body:
    """Collects tensor bytes in header order; `limit` bounds what one answer may carry."""

    limit: int = 1 << 30
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def put(self, raw: bytes) -> dict[str, Any]:
        self.size += len(raw)
        if self.size > self.limit:
            raise OverflowError(f"{self.size} bytes")
        self.parts.append(raw)
        return {"raw": len(raw)}


def float_bits(x: float) -> str:
    return struct.pack(">d", x).hex()


def pack(header: dict[str, Any], body: Body | None = None) -> bytes:
    text = to_json(header).encode()
    parts = body.parts if body else []
    return b"".join([struct.pack("<II", len(text), sum(map(len, parts))), text, *parts])


def sizes(prefix: bytes, max_body: int = MAX_BODY) -> tuple[int, int]:
    """Header and body length from the first eight bytes of a frame."""
    header, body = struct.unpack("<II", prefix)
    if header > MAX_HEADER or body > max_body:
        raise ProtocolError(f"a frame of {header} + {body} bytes")
    return header, body


def unpack(text: bytes, raw: bytes) -> tuple[dict[str, Any], Iterator[bytes]]:
    """A frame's message and its tensor bodies in header order, every byte accounted for."""
    lengths = map(int, TENSOR.findall(text)) if raw else ()
    try:
        message = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("a header that is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolError("a header that is not an object")
    chunks, at = [], 0
    for n in lengths:
        if n < 0 or at + n > len(raw):
            raise ProtocolError("tensor data runs past the frame")
        chunks.append(raw[at : at + n])
        at += n
    if at != len(raw):
        raise ProtocolError(f"{len(raw) - at} surplus bytes in the frame")
    return message, iter(chunks)
