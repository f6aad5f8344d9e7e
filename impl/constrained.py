"""Constrained decoding: only tokens that a regular expression or a JSON schema allows.

    schema -> pattern -> NFA -> DFA -> mask of a state -> logits -> sample -> next state

Spec    spec/constrained.md
Source  Willard & Louf 2023, arXiv:2307.09702, sections 3 and 4; Thompson 1968, CACM 11(6);
        Hopcroft, Motwani & Ullman, "Introduction to Automata Theory, Languages, and Computation", 2.3 and 4.4
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impl.categorical import UniformSource
from impl.sampling import SamplingParams, apply_penalties, sample

F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
I32 = NDArray[np.int32]
Ints = NDArray[np.intp]
Logits = NDArray[np.floating[Any]]  # float16, float32 or float64
Ids = Sequence[int] | NDArray[np.integer[Any]]

DEAD = -1  # where no byte leads on

# Sets of bytes are ints of 256 bits, bit b for byte b.
_ALL = (1 << 256) - 1
_NEWLINE = 1 << 0x0A
_DIGIT = sum(1 << b for b in b"0123456789")
_WORD = sum(1 << b for b in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_SPACE = sum(1 << b for b in b" \t\n\v\f\r")
_ESCAPES = {
    **{c: 1 << ord(c) for c in '\\.*+?()[]{}|^$/"-,:'},
    **{c: 1 << b for c, b in zip("nvftr", b"\n\v\f\t\r", strict=True)},
    **dict(zip("dws", (_DIGIT, _WORD, _SPACE), strict=True)),
    **dict(zip("DWS", (_ALL ^ _DIGIT, _ALL ^ _WORD, _ALL ^ _SPACE), strict=True)),  # R4: of all 256 bytes
}
_BOUNDS = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_HEX = re.compile(r"[0-9A-Fa-f]{2}")
_LIMIT = 256  # of a repetition: the automaton has a state for each count

# What a JSON string, integer and number look like in bytes (R36, R37).
_STRING = "".join([
    r'"(?:[ !#-\[\]-\x7f]',  # neither " nor \ nor a control byte
    r"|[\xc2-\xdf][\x80-\xbf]",
    r"|\xe0[\xa0-\xbf][\x80-\xbf]",  # nothing overlong
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}",
    r"|\xed[\x80-\x9f][\x80-\xbf]",  # no surrogates
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}",
    r"|[\xf1-\xf3][\x80-\xbf]{3}",
    r"|\xf4[\x80-\x8f][\x80-\xbf]{2}",  # nothing above U+10FFFF
    r'|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"',
])  # fmt: skip
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_FRACTION = r"(?:\.[0-9]+)?"
_EXPONENT = r"(?:[eE][+\-]?[0-9]+)?"
_SCALARS = {
    "string": _STRING,
    "integer": _INTEGER,
    "number": _INTEGER + _FRACTION + _EXPONENT,
    "boolean": "(?:true|false)",
    "null": "null",
}
_ANNOTATIONS = ("title", "description", "default")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_SCALARS, ()),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
_CLASSES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
_ALPHABET = {chr(b): b for b in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(_OTHERS)}


@dataclass(frozen=True, eq=False, slots=True)
class DFA:
    """A deterministic automaton over bytes, the smallest of its language; the start is state 0.

    Shapes
        accept   bool[S], True where a text may end
        trans    i32[S, 256], the next state by state and byte, or DEAD

    >>> regex_to_dfa("ab?").trans[:, [ord("a"), ord("b")]].tolist()
    [[1, -1], [-1, 2], [-1, -1]]
    """

    accept: Bools
    trans: I32

    @property
    def n_states(self) -> int:
        """Return S, the number of states."""
        return len(self.accept)

    def step(self, state: int, data: bytes) -> int:
        """Return the state after all bytes of data.

        Shapes
            state    int, in [0, S), or DEAD
            data     bytes
            returns  int, in [0, S), or DEAD

        Errors
            ValueError  state is neither in [0, S) nor DEAD

        State
            does not change the automaton

        >>> regex_to_dfa("ab?").step(0, b"ab")
        2
        """
        if state == DEAD:
            return DEAD  # R14: nothing leads out of it
        if not 0 <= state < self.n_states:  # R14: NumPy would count a negative one from the end
            raise ValueError(f"state must be DEAD or in [0, {self.n_states}), got {state}")
        for byte in data:
            state = self.trans.item(state, byte)
            if state == DEAD:
                return DEAD
        return int(state)

    def matches(self, data: bytes) -> bool:
        """Return whether data as a whole is a text of the language.

        Shapes
            data     bytes
            returns  bool

        State
            does not change the automaton

        >>> [regex_to_dfa("ab?").matches(text) for text in (b"a", b"ab", b"abb")]
        [True, True, False]
        """
        state = self.step(0, data)
        return state != DEAD and bool(self.accept[state])  # R15


def regex_to_dfa(pattern: str) -> DFA:
    r"""Return the smallest automaton of the byte strings that pattern matches as a whole.

    Shapes
        pattern  str, ASCII
        returns  DFA, new; states numbered breadth-first, bytes ascending

    Errors
        ValueError  pattern is no str, or has a character above 0x7F
        ValueError  pattern has an unknown escape, a bad class or repetition, a stray or unbalanced bracket,
                    an anchor, or a (? that is not (?:
        ValueError  pattern matches nothing

    >>> dfa = regex_to_dfa("(cat|car|dog)s?")
    >>> dfa.n_states, dfa.accept.nonzero()[0].tolist()
    (7, [5, 6])
    """
    if not isinstance(pattern, str) or not pattern.isascii():  # R1: bytes are written \xHH
        raise ValueError(f"pattern must be a str of ASCII characters, got {pattern!r}")
    nfa = _parse(pattern)
    classes = _byte_classes(nfa.reads)
    rows, accept = _subsets(nfa, classes)
    rows = _without_dead(rows, accept)
    block = _equal_states(rows, accept)
    order, rows = _breadth_first(rows, block)
    columns = np.zeros(256, np.intp)
    for k, members in enumerate(classes):
        columns[[b for b in range(256) if members >> b & 1]] = k
    table = np.array(rows, np.int32)
    return DFA(np.array([accept[s] for s in order]), np.ascontiguousarray(table[:, columns]))  # R13


def json_schema_to_regex(schema: dict[str, Any]) -> str:
    r"""Return a pattern of the compact JSON texts, in UTF-8, that a schema of the subset describes.

    Shapes
        schema   dict
        returns  str, ASCII; a pattern for regex_to_dfa

    Errors
        ValueError  a schema is no dict, or has none or two of the forms type, enum, const, anyOf
        ValueError  a keyword is unknown or of another form; the message names it
        ValueError  the value of a keyword is not what it must be, or type disagrees with enum or const
        ValueError  a value of enum or const is no JSON

    >>> json_schema_to_regex({"type": "object", "properties": {"x.y": {"const": True}}})
    '\\{(?:"x\\.y":(?:true)|)\\}'
    """
    return _texts(schema)


def json_schema_to_dfa(schema: dict[str, Any]) -> DFA:
    """Return the automaton of a schema's texts.

    Shapes
        schema   dict, as for json_schema_to_regex
        returns  DFA, new

    Errors
        ValueError  as for json_schema_to_regex and regex_to_dfa

    >>> json_schema_to_dfa({"type": "boolean"}).n_states
    8
    """
    return regex_to_dfa(json_schema_to_regex(schema))


class TokenIndex:
    """Which tokens of a vocabulary an automaton allows, by state; a mask is computed once and kept.

    >>> TokenIndex(regex_to_dfa("ab+"), [b"a", b"ab", b"bb", None], eos_id=3).mask(1).tolist()
    [False, False, True, False]
    """

    def __init__(self, dfa: DFA, vocab: Sequence[bytes | None], eos_id: int | None = None) -> None:
        """Arrange the tokens as a trie.

        Shapes
            dfa     DFA
            vocab   list or tuple of bytes or None, by id; None is a hole or a special token
            eos_id  int, in [0, V), the token that ends a text, or None

        Errors
            ValueError  an entry of vocab is neither bytes nor None
            ValueError  eos_id is neither None nor in [0, V)

        State
            keeps a copy of vocab
        """
        for token_id, token in enumerate(vocab):
            if not (token is None or isinstance(token, bytes)):  # R16
                raise ValueError(f"vocab must hold bytes or None, but id {token_id} is {token!r}")
        if eos_id is not None and not 0 <= eos_id < len(vocab):  # R16
            raise ValueError(f"eos_id must be None or in [0, {len(vocab)}), got {eos_id}")
        self.dfa = dfa
        self.vocab_size = len(vocab)
        self.eos_id = eos_id
        self._vocab = list(vocab)
        self._masks: dict[int, Bools] = {}
        walkable = [t for t, token in enumerate(vocab) if token and t != eos_id]  # R17: None, empty, EOS
        self._trie = _trie(self._vocab, walkable)
        self._steps = np.append(dfa.trans, np.full(256, DEAD, np.int32))

    def mask(self, state: int) -> Bools:
        """Return which tokens may come next: those whose bytes all lead on, and EOS where a text may end.

        Shapes
            state    int, in [0, S)
            returns  bool[V], read-only, the one array of this state

        Errors
            ValueError  state is not in [0, S), as DEAD is not

        State
            keeps the mask; the first call for a state walks the trie, no other does

        >>> TokenIndex(regex_to_dfa("a*"), [b"a", b"b", None], eos_id=2).mask(0).tolist()
        [True, False, True]
        """
        kept = self._masks.get(state)
        if kept is not None:
            return kept
        if not 0 <= state < self.dfa.n_states:  # R19
            raise ValueError(f"state must be in [0, {self.dfa.n_states}), got {state}")
        allowed = self._trie.reached(self._steps, state)
        if self.eos_id is not None:
            allowed[self.eos_id] = self.dfa.accept[state]  # R18: its own bytes do not count
        allowed.flags.writeable = False  # R20: of the array itself, so no view of it can be written
        self._masks[state] = allowed.view()
        return self._masks[state]

    def next_state(self, state: int, token_id: int) -> int:
        """Return the state behind a token, DEAD where the mask does not allow it.

        Shapes
            state     int, in [0, S), or DEAD
            token_id  int, in [0, V)
            returns   int, in [0, S), or DEAD

        Errors
            ValueError  token_id is not in [0, V), or state is neither in [0, S) nor DEAD

        State
            does not change the index

        >>> TokenIndex(regex_to_dfa("ab+"), [b"a", b"abb"]).next_state(0, 1)
        2
        """
        if not 0 <= token_id < self.vocab_size:  # R22: a list would count a negative one from the end
            raise ValueError(f"token_id must be in [0, {self.vocab_size}), got {token_id}")
        stays = self.dfa.step(state, b"")  # R22: refuses a state that is none
        if token_id == self.eos_id:
            return stays if stays != DEAD and self.dfa.accept[stays] else DEAD  # R21
        token = self._vocab[token_id]
        return self.dfa.step(state, token) if token else DEAD  # R21: None and the empty token


class Constraint:
    """Where one text stands in its grammar; many of them share an index.

    >>> c = Constraint(TokenIndex(regex_to_dfa("ab?"), [b"a", b"b", None], eos_id=2))
    >>> c.advance(0)
    >>> c.state, c.mask().tolist(), c.is_complete()
    (1, [False, True, True], True)
    """

    def __init__(self, index: TokenIndex) -> None:
        """Start at the beginning of a text.

        Shapes
            index  TokenIndex
        """
        self.index = index
        self.state = 0
        self.done = False

    def mask(self) -> Bools:
        """Return which tokens may come next; after EOS none.

        Shapes
            returns  bool[V]

        State
            does not change the constraint

        >>> Constraint(TokenIndex(regex_to_dfa("a"), [b"a", b"b"])).mask().tolist()
        [True, False]
        """
        if self.done:
            return np.zeros(self.index.vocab_size, np.bool_)  # R24
        return self.index.mask(self.state)

    def advance(self, token_id: int) -> None:
        """Take a token that the mask allows.

        Shapes
            token_id  int, in [0, V)
            returns   None

        Errors
            ValueError  token_id is not in [0, V) or not allowed, or EOS has been taken; nothing changes then

        State
            moves on by the token's bytes; EOS sets done and leaves state

        >>> Constraint(TokenIndex(regex_to_dfa("a"), [b"a", b"b"])).advance(1)
        Traceback (most recent call last):
        ValueError: token 1 is not allowed in state 0
        """
        if self.done:  # R26
            raise ValueError(f"token {token_id} comes after the end of the text")
        state = self.index.next_state(self.state, token_id)
        if state == DEAD:  # R26: before anything changes
            raise ValueError(f"token {token_id} is not allowed in state {self.state}")
        self.state = state
        if token_id == self.index.eos_id:
            self.done = True  # R25: a final state alone does not end a text

    def is_complete(self) -> bool:
        """Return whether the text so far is one of the language, with or without EOS behind it.

        Shapes
            returns  bool

        State
            does not change the constraint

        >>> Constraint(TokenIndex(regex_to_dfa("a*"), [b"a"])).is_complete()
        True
        """
        return bool(self.index.dfa.accept[self.state])  # R27


def apply_mask(logits: Logits, mask: Bools) -> F64:
    """Return the logits of the allowed ids, and -inf for the others.

    Shapes
        logits   f16[V], f32[V] or f64[V], V >= 1
        mask     bool[V]
        returns  f64[V], a new array

    Errors
        ValueError  logits is not 1-D, is empty, is not of a float dtype, holds a NaN or +inf, or only -inf
        ValueError  mask is not a bool array of the shape of logits
        ValueError  no id with a logit above -inf is allowed

    >>> apply_mask(np.array([1.0, 2.0, 3.0]), np.array([True, False, True])).tolist()
    [1.0, -inf, 3.0]
    """
    x = apply_penalties(logits, SamplingParams())  # R29: checks every id; R28: penalises nothing, so a copy
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != logits.shape:  # R29
        raise ValueError(f"mask must be bool{list(logits.shape)}, got {mask!r}")
    x[~mask] = -math.inf  # R28: no finite number means "not allowed"
    if not (x > -math.inf).any():  # R29
        raise ValueError("mask allows no id with a logit above -inf")
    return x


def constrained_sample(
    logits: Logits,
    c: Constraint,
    p: SamplingParams,
    history: Ids,
    rng: UniformSource,
    prompt: Ids = (),
) -> tuple[int, float]:
    """Draw the next token among those that the constraint allows, and advance it.

    Shapes
        logits   f16[V], f32[V] or f64[V], V >= 1
        c        Constraint
        p        SamplingParams
        history  generated ids in [0, V): a sequence of int or a 1-D integer array
        rng      any object with uniform() -> float in [0, 1)
        prompt   the prompt's ids, as history
        returns  (id, log-probability): int in [0, V), and float, over the allowed ids

    Errors
        ValueError  as for apply_mask and sample, so also where nothing is allowed or c is done; nothing was
                    drawn then, and c is as it was

    State
        calls rng as sample does, and advances c by one token

    >>> from impl.rng import PCG32
    >>> c = Constraint(TokenIndex(regex_to_dfa("ab"), [b"a", b"b"]))
    >>> constrained_sample(np.array([0.0, 9.0]), c, SamplingParams(), [], PCG32(1)), c.state
    ((0, 0.0), 1)
    """
    masked = apply_mask(logits, c.mask())  # R30: before penalties, temperature and filters
    token_id, logprob = sample(masked, p, history, rng, prompt)
    c.advance(token_id)  # R31: after everything that can raise
    return token_id, logprob


def vocab_bytes(tok: Any) -> list[bytes | None]:
    """Return the bytes that each token of a tokenizer stands for.

    Shapes
        tok      any object with vocab, a sequence of bytes, str or None, and perhaps special, name -> id
        returns  list of V, new; None for a special token

    State
        does not change the tokenizer

    >>> from types import SimpleNamespace
    >>> vocab_bytes(SimpleNamespace(vocab=["\u0120a", "\u2581a", b"a", "</s>"], special={"</s>": 3}))
    [b' a', b'\\xe2\\x96\\x81a', b'a', None]
    """
    special = set((getattr(tok, "special", None) or {}).values())
    return [None if t in special else _raw(token) for t, token in enumerate(tok.vocab)]  # R32


# from a pattern to an automaton


class _NFA:
    """States in a row: a byte of reads[s] leads from s to s + 1, jumps[s] lead on without a byte.

    Jumps are distances, so that the copy of a part is a slice. The start is the first state, the end the
    last, and an item of a pattern is a run of states: nothing inside leads to its first or from its last.
    """

    def __init__(self) -> None:
        self.reads = [0]
        self.jumps: list[tuple[int, ...]] = [()]

    def add(self) -> int:
        """Add a state that nothing leads to, and return it."""
        self.reads.append(0)
        self.jumps.append(())
        return self.last

    @property
    def last(self) -> int:
        return len(self.reads) - 1

    def jump(self, start: int, stop: int) -> None:
        self.jumps[start] += (stop - start,)

    def read(self, members: int) -> None:
        """Add an item: one byte of a set."""
        self.reads[self.last] = members
        self.add()

    def repeat(self, first: int, least: int, most: int | None) -> None:
        """Replace the item that begins at first by copies of it."""
        reads, jumps = self.reads[first:], self.jumps[first:]
        self.reads[first:], self.jumps[first:] = [0], [()]

        def copy() -> None:
            self.reads[-1:] = reads
            self.jumps[-1:] = [self.jumps[-1] + jumps[0], *jumps[1:]]

        for _ in range(least):
            copy()
        ends = []
        if most is None:
            hub = self.add()
            self.jump(hub - 1, hub)
            copy()
            self.jump(self.last, hub)
            ends.append(hub)
        else:
            for _ in range(most - least):
                ends.append(self.last)
                copy()
            ends.append(self.last)
        self.join(ends)

    def join(self, ends: Iterable[int]) -> None:
        """Add one state behind several."""
        behind = self.add()
        for end in ends:
            self.jump(end, behind)


def _parse(pattern: str) -> _NFA:
    """Build Thompson's automaton of a pattern, left to right; open groups are on a stack."""
    nfa = _NFA()
    opened: list[tuple[int, list[int]]] = []  # of each group its first state and the ends of its branches

    def branch() -> None:
        nfa.jump(opened[-1][0], nfa.add())

    def close() -> int:
        first, ends = opened.pop()
        nfa.join([*ends, nfa.last])
        return first

    opened.append((0, []))
    branch()
    at, item = 0, None  # the first state of what a repetition would repeat
    while at < len(pattern):
        char, before = pattern[at], nfa.last
        if char in "*+?{":
            least, most, at = _bounds(pattern, at)
            if item is None:  # R8: nothing before it, or a repetition
                raise ValueError(f"nothing to repeat before {char!r} in {pattern!r}")
            nfa.repeat(item, least, most)
            item = None
        elif char == "(":
            at += 3 if pattern.startswith("(?:", at) else 1
            if pattern.startswith("?", at):  # R9
                raise ValueError(f"(? without : at {at} in {pattern!r}")
            opened.append((before, []))
            branch()
            item = None
        elif char == "|":
            opened[-1][1].append(before)
            branch()
            at, item = at + 1, None
        elif char == ")":
            if len(opened) == 1:  # R9
                raise ValueError(f"unbalanced ) at {at} in {pattern!r}")
            at, item = at + 1, close()
        else:
            members, at = _one_byte(pattern, at)
            nfa.read(members)
            item = before
    if len(opened) > 1:  # R9
        raise ValueError(f"unbalanced ( in {pattern!r}")
    close()
    return nfa


def _bounds(pattern: str, at: int) -> tuple[int, int | None, int]:
    """Read a repetition: its least, its most, and the place behind it."""
    if pattern[at] != "{":
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[pattern[at]]
        return least, most, at + 1
    found = _BOUNDS.match(pattern, at)
    if found is None:  # R8: {,n} too
        raise ValueError(f"no repetition at {at} in {pattern!r}")
    least = int(found[1])
    most = int(found[3]) if found[3] else None if found[2] else least
    top = least if most is None else most
    if top < least:  # R8
        raise ValueError(f"{found[0]} has its bounds the wrong way round in {pattern!r}")
    if top > _LIMIT:  # R8; so the least is not above it either
        raise ValueError(f"{found[0]} repeats more than {_LIMIT} times in {pattern!r}")
    return least, most, found.end()


def _one_byte(pattern: str, at: int) -> tuple[int, int]:
    """Read what stands for one byte outside a class: the set of bytes, and the place behind it."""
    char = pattern[at]
    if char == "[":
        return _class(pattern, at + 1)
    if char == "\\":
        return _escape(pattern, at + 1)
    if char == ".":
        return _ALL ^ _NEWLINE, at + 1  # R2
    if char in "]}":  # R8
        raise ValueError(f"stray {char} at {at} in {pattern!r}")
    if char in "^$":  # R9
        raise ValueError(f"{char} at {at} in {pattern!r}: the whole text is matched anyway")
    return 1 << ord(char), at + 1


def _escape(pattern: str, at: int) -> tuple[int, int]:
    """Read what stands behind a backslash."""
    char = pattern[at : at + 1]
    digits = _HEX.match(pattern, at + 1)
    if char == "x" and digits:
        return 1 << int(digits[0], 16), digits.end()
    if char not in _ESCAPES:  # R3; nothing at all is none of them
        raise ValueError(f"unknown escape \\{char} in {pattern!r}")
    return _ESCAPES[char], at + 1


def _class(pattern: str, at: int) -> tuple[int, int]:
    """Read a class from behind its [."""

    def member(at: int) -> tuple[int, int]:
        if pattern[at] == "\\":
            return _escape(pattern, at + 1)
        return 1 << ord(pattern[at]), at + 1

    negated = pattern.startswith("^", at)
    at += negated
    if pattern.startswith("]", at):  # R6: neither empty nor a literal ]
        raise ValueError(f"] directly behind [ in {pattern!r}")
    members = 0
    while not pattern.startswith("]", at):
        if at >= len(pattern):  # R6
            raise ValueError(f"[ without ] in {pattern!r}")
        low, at = member(at)
        if pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("", "]"):  # R6: - at the end
            high, at = member(at + 1)
            if low.bit_count() != 1 or high.bit_count() != 1:  # R6: \d and the like
                raise ValueError(f"a range needs single bytes at both ends in {pattern!r}")
            if low > high:  # R6
                raise ValueError(f"a range goes from a higher to a lower byte in {pattern!r}")
            low = 2 * high - low  # R5: every bit from low to high, both included
        members |= low
    return (_ALL ^ members if negated else members), at + 1  # R5: of all 256 bytes, the newline too


def _byte_classes(reads: Iterable[int]) -> list[int]:
    """Cut the 256 bytes into sets that no state tells apart, in the order of their lowest bytes."""
    classes = [_ALL]
    for members in {*reads}:
        classes = [part for c in classes for part in (c & members, c & ~members) if part]
    return sorted(classes, key=lambda c: c & -c)


Rows = list[list[int]]  # the next state by state and class of bytes, or DEAD


def _subsets(nfa: _NFA, classes: Sequence[int]) -> tuple[Rows, list[bool]]:
    """Make it deterministic: a state is the set of places that a text may be at, each reading or the end."""
    heard = {members: [k for k, c in enumerate(classes) if c & members] for members in {*nfa.reads}}
    places: dict[int, frozenset[int]] = {}

    def places_from(start: int) -> frozenset[int]:
        if start not in places:
            seen, todo = {start}, [start]
            for state in todo:
                new = [state + far for far in nfa.jumps[state] if state + far not in seen]
                seen.update(new)
                todo += new
            places[start] = frozenset(s for s in seen if nfa.reads[s] or s == nfa.last)
        return places[start]

    numbers = {places_from(0): 0}
    rows: Rows = []
    todo = [places_from(0)]
    for subset in todo:
        behind: list[tuple[int, ...]] = [()] * len(classes)
        for place in subset:
            for k in heard[nfa.reads[place]]:
                behind[k] += (place + 1,)
        targets: dict[tuple[int, ...], int] = {(): DEAD}
        for states in {*behind} - {()}:
            reached = frozenset().union(*map(places_from, states))
            if reached not in numbers:
                numbers[reached] = len(todo)
                todo.append(reached)
            targets[states] = numbers[reached]
        rows.append([targets[states] for states in behind])
    return rows, [nfa.last in subset for subset in todo]


def _before(rows: Rows) -> list[list[int]]:
    """Return from which states each state is reached by one byte."""
    before: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in {*row} - {DEAD}:
            before[target].append(state)
    return before


def _without_dead(rows: Rows, accept: Sequence[bool]) -> Rows:
    """Lead to DEAD at once where no final state can be reached any more; such states stay, unreachable."""
    before = _before(rows)
    todo = [s for s, final in enumerate(accept) if final]
    live = {*todo, DEAD}
    for state in todo:
        new = [s for s in before[state] if s not in live]
        live.update(new)
        todo += new
    if 0 not in live:  # R10
        raise ValueError("the pattern matches no text at all")
    return [[t if t in live else DEAD for t in row] for row in rows]  # R11


def _equal_states(rows: Rows, accept: Sequence[bool]) -> list[int]:
    """Number the classes of states that accept the same rests: Moore's refinement, by what changed.

    States are apart once their rows lead into different blocks. A block that is cut keeps its number for one
    part, so only states with a byte into one of the others have to be looked at again.
    """
    before = _before(rows)
    block = [*[int(final) for final in accept], DEAD]  # which is also the index of its entry
    size = [block.count(0), block.count(1)]
    touched = {*range(len(rows))}
    while touched:
        parts: dict[tuple[int, ...], list[int]] = {}
        for state in touched:
            parts.setdefault((block[state], *[block[t] for t in rows[state]]), []).append(state)
        touched = set()
        for (old, *_), states in sorted(parts.items(), key=lambda part: len(part[1])):
            if size[old] == len(states):
                continue  # nothing else is left in the block
            size[old] -= len(states)
            size.append(len(states))
            for state in states:
                block[state] = len(size) - 1
                touched.update(before[state])
    return block


def _breadth_first(rows: Rows, block: Sequence[int]) -> tuple[list[int], Rows]:
    """Number the blocks in the order in which a walk from the start meets them; one state stands for each."""
    number = {block[0]: 0}
    order = [0]
    for state in order:
        for target in rows[state]:  # R12: classes are in the order of their lowest bytes
            if target != DEAD and block[target] not in number:
                number[block[target]] = len(order)
                order.append(target)
    return order, [[DEAD if t == DEAD else number[block[t]] for t in rows[s]] for s in order]


# the vocabulary


@dataclass(frozen=True, eq=False, slots=True)
class _Trie:
    """The tokens by common beginnings.

    Nodes are numbered level by level, so that the children of neighbours are neighbours: those of the nodes
    from a to b, b excluded, are the nodes from first_child[a] to first_child[b].
    """

    byte: I32  # [N], the last byte of each node; the root is node 0
    parent: I32  # [N]
    first_child: Ints  # [N + 1]
    node: Ints  # [V], where a token ends; N for a token that is not in the trie

    def reached(self, steps: I32, state: int) -> Bools:
        """Walk from a state over all tokens at once, level by level: which of them lead somewhere.

        A row of steps behind those of the states is that of DEAD, which is also its index.
        """
        N = len(self.byte)
        states = np.full(N + 1, DEAD, np.int32)
        states[0], start, stop = state, 0, 1
        while len(alive := np.flatnonzero(states[start:stop] != DEAD)):
            start, stop = self.first_child[start + alive[[0, -1]] + [0, 1]]  # what is outside stays DEAD
            at = states[self.parent[start:stop]] * 256 + self.byte[start:stop]
            states[start:stop] = steps[at]  # R17: every byte counts, not only the first
        leads_on: Bools = states != DEAD
        return leads_on[self.node]


def _trie(vocab: Sequence[bytes | None], ids: Sequence[int]) -> _Trie:
    """Arrange the tokens of some ids."""
    tokens = [vocab[t] or b"" for t in ids]
    order = sorted(range(len(ids)), key=tokens.__getitem__)  # those with one beginning become neighbours
    tokens = [tokens[i] for i in order]
    text = np.frombuffer(b"".join(tokens), np.uint8)
    size = np.array([*map(len, tokens)], np.intp)
    start = np.cumsum(size) - size
    node = np.zeros(len(tokens), np.intp)  # the root, then always the node of the bytes so far
    parents, levels = [np.zeros(1, np.intp)], [np.zeros(1, np.uint8)]
    n_nodes, depth, longer = 1, 0, np.flatnonzero(size)
    while len(longer):
        parent, byte = node[longer], text[start[longer] + depth]
        new = np.ones(len(longer), np.bool_)
        new[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
        node[longer] = np.cumsum(new) + (n_nodes - 1)
        parents.append(parent[new])
        levels.append(byte[new])
        n_nodes += len(levels[-1])
        depth += 1
        longer = longer[size[longer] > depth]
    above = np.concatenate(parents)
    n_children = np.bincount(above[1:], minlength=n_nodes)
    where = np.full(len(vocab), n_nodes)
    where[np.array(ids, np.intp)[order]] = node
    return _Trie(
        np.concatenate(levels).astype(np.int32),
        above.astype(np.int32),
        np.append(1, np.cumsum(n_children) + 1),
        where,
    )


def _raw(token: bytes | str | None) -> bytes | None:
    """Return the bytes of one token."""
    if not isinstance(token, str):
        return token  # R32
    if all(c in _ALPHABET for c in token):
        return bytes([_ALPHABET[c] for c in token])  # R33
    return token.encode()


# from a schema to a pattern


def _texts(schema: Any) -> str:
    """Return the pattern of a schema's texts; it may stand anywhere but before a repetition."""
    if not isinstance(schema, dict):  # R35
        raise ValueError(f"a schema must be a dict, got {schema!r}")
    form = next((f for f in ("enum", "const", "anyOf", "type") if f in schema), None)
    kind = _kind(schema["type"]) if "type" in schema else None
    known = {
        None: (),
        "enum": ("enum", "type"),
        "const": ("const", "type"),
        "anyOf": ("anyOf",),  # R35: not beside type
        "type": ("type", *_KEYWORDS.get(kind or "", ())),
    }[form]
    for keyword in schema:
        if keyword not in known and keyword not in _ANNOTATIONS:  # R46
            raise ValueError(f"keyword {keyword!r} is not supported here, beside {form!r}")
    if form is None:  # R35
        raise ValueError("a schema needs one of type, enum, const and anyOf")
    if form == "const":
        return _values([schema["const"]], kind)
    if form == "enum":
        return _values(_several("enum", schema["enum"]), kind)
    if form == "anyOf":
        return _either([_texts(s) for s in _several("anyOf", schema["anyOf"])])  # R45
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    return _SCALARS[kind or ""]


def _kind(value: Any) -> str:
    """Return the value of type, or refuse it by name (R46)."""
    if not isinstance(value, str) or value not in _KEYWORDS:
        raise ValueError(f"type {value!r} is not supported")
    return value


def _several(keyword: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:  # R38, R45
        raise ValueError(f"{keyword} must be a list with at least one entry, got {value!r}")
    return value


def _either(patterns: Iterable[str]) -> str:
    return f"(?:{'|'.join(patterns)})"  # in a group: | binds less than what stands around it


def _values(values: Sequence[Any], kind: str | None) -> str:
    """Return the pattern of given values, which must be of the kind where there is one."""
    for value in values:
        if kind is not None and not _is_of(value, kind):  # R40
            raise ValueError(f"type {kind!r} disagrees with the value {value!r}")
    return _either([_literal(value) for value in values])


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"  # R40: Python's True is an int
    return isinstance(value, _CLASSES[kind])


def _literal(value: Any) -> str:
    """Return the pattern of one value's text (R39)."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        raw = text.encode()  # a lone surrogate has no UTF-8
    except (TypeError, ValueError) as error:
        raise ValueError(f"{value!r} is no JSON: {error}") from error
    if json.loads(text) != value:  # a tuple comes back as a list
        raise ValueError(f"{value!r} is no JSON")
    return "".join([_byte_literal(b) for b in raw])


def _byte_literal(byte: int) -> str:
    if byte > 0x7F:
        return f"\\x{byte:02x}"
    return "\\" * (chr(byte) in "\\.*+?()[]{}|^$") + chr(byte)


def _array(schema: dict[str, Any]) -> str:
    """Return the pattern of an array: the first item stands outside the repetition, for the commas."""
    if "items" not in schema:  # R41, R42
        raise ValueError("an array needs items")
    item = _texts(schema["items"])
    least = _count(schema, "minItems", 0)
    most = _count(schema, "maxItems", _LIMIT) if "maxItems" in schema else None
    if most is not None and most < least:  # R42
        raise ValueError(f"minItems {least} is above maxItems {most}")
    if most == 0:
        return r"\[\]"  # R41
    more = f"(?:,{item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    return rf"\[{item}{more}\]" if least > 0 else rf"\[(?:{item}{more})?\]"


def _count(schema: dict[str, Any], keyword: str, default: int) -> int:
    value = schema.get(keyword, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LIMIT:  # R42
        raise ValueError(f"{keyword} must be an int in [0, {_LIMIT}], got {value!r}")
    return value


def _object(schema: dict[str, Any]) -> str:
    """Return the pattern of an object, made from its last member to its first in two forms.

    `more` is the rest of the members where one has been written before, so that each brings its comma; `none`
    is the rest where none has. Only `none` forks, which makes the pattern's length quadratic.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):  # R44
        raise ValueError(f"properties must be a dict, got {properties!r}")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):  # R44
        raise ValueError(f"required must be a list of names, got {required!r}")
    for name in required:
        if name not in properties:  # R44
            raise ValueError(f"required names {name!r}, which is not in properties")
    if schema.get("additionalProperties", False) is not False:  # R44
        raise ValueError(f"additionalProperties must be False, got {schema['additionalProperties']!r}")
    more = none = ""
    for name, value in reversed(properties.items()):  # R43: in their own order
        member = f"{_literal(name)}:{_texts(value)}"
        none = f"{member}{more}" if name in required else f"(?:{member}{more}|{none})"
        more = f",{member}{more}" if name in required else f"(?:,{member})?{more}"
    return rf"\{{{none}\}}"
