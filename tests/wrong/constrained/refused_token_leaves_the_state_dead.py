from __future__ import annotations

import json
import math

import numpy as np

from impl.sampling import sample

DEAD = -1


_BYTE_SETS = {}


def _bits(members):
    n = 0
    for b in members:
        n |= 1 << b
    return n


_FULL = (1 << 256) - 1
_D = _bits(b"0123456789")
_W = _bits(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_S = _bits(b" \t\n\r\v\f")
_ESC = {c: 1 << ord(c) for c in '\\.*+?()[]{}|^$/"-,:'}
_ESC.update(n=1 << 10, t=1 << 9, r=1 << 13, f=1 << 12, v=1 << 11)
_KINDS = {"d": _D, "w": _W, "s": _S, "D": _FULL ^ _D, "W": _FULL ^ _W, "S": _FULL ^ _S}


class _Parser:
    """Sets of bytes are ints of 256 bits. A part is a function that adds itself to a _Glushkov, so that a
    repetition can add it as often as it likes."""

    def __init__(self, src):
        if type(src) is not str and not isinstance(src, str):
            raise ValueError("pattern must be a str")
        if not src.isascii():
            raise ValueError("pattern must be ASCII")
        self.src = src
        self.i = 0

    def peek(self):
        return self.src[self.i] if self.i < len(self.src) else ""

    def take(self):
        if self.i == len(self.src):
            raise ValueError("pattern ends too early")
        self.i += 1
        return self.src[self.i - 1]

    def whole(self):
        part = self.choice()
        if self.peek():
            raise ValueError("')' without '('")
        return part

    def choice(self):
        options = [self.chain()]
        while self.peek() == "|":
            self.take()
            options.append(self.chain())
        if len(options) == 1:
            return options[0]
        return lambda g: g.either([o(g) for o in options])

    def chain(self):
        items = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.repeated())
        return lambda g: g.sequence(items)

    def repeated(self):
        item = self.single()
        times = self.times()
        if times is None:
            return item
        if self.peek() in ("*", "+", "?", "{") and self.peek():
            raise ValueError("a repetition of a repetition")
        low, high = times
        return lambda g: g.times(item, low, high)

    def times(self):
        c = self.peek()
        if not c or c not in "*+?{":
            return None
        self.take()
        if c == "*":
            return 0, None
        if c == "+":
            return 1, None
        if c == "?":
            return 0, 1
        low = self.number()
        high = low
        if self.peek() == ",":
            self.take()
            high = None if self.peek() == "}" else self.number()
        if self.take() != "}":
            raise ValueError("bad braces")
        if high is not None and high < low:
            raise ValueError("bounds in the wrong order")
        return low, high

    def number(self):
        digits = ""
        while self.peek().isdigit():
            digits += self.take()
        if not digits or int(digits) > 256:
            raise ValueError("a bound must be a number up to 256")
        return int(digits)

    def single(self):
        c = self.take()
        if c == "(":
            if self.peek() == "?":
                self.take()
                if self.take() != ":":
                    raise ValueError("unknown kind of group")
            inner = self.choice()
            if self.peek() != ")":
                raise ValueError("'(' without ')'")
            self.take()
            return inner
        if c == "[":
            members = self.klass()
        elif c == ".":
            members = _FULL ^ (1 << 10)
        elif c == "\\":
            members = self.escape()[0]
        elif c in "*+?{}]^$":
            raise ValueError(f"{c!r} in a bad place")
        else:
            members = 1 << ord(c)
        return lambda g: g.position(members)

    def escape(self):
        """(set, is it a single byte)"""
        c = self.take()
        if c in _KINDS:
            return _KINDS[c], False
        if c in _ESC:
            return _ESC[c], True
        if c == "x":
            pair = self.take() + self.take()
            if not all(d in "0123456789abcdefABCDEF" for d in pair):
                raise ValueError("bad \\x")
            return 1 << int(pair, 16), True
        raise ValueError(f"unknown escape {c!r}")

    def klass(self):
        flip = self.peek() == "^"
        if flip:
            self.take()
        if self.peek() == "]":
            raise ValueError("empty class")
        total = 0
        while (c := self.take()) != "]":
            members, is_single = self.escape() if c == "\\" else (1 << ord(c), True)
            if self.peek() == "-" and self.src[self.i + 1 : self.i + 2] not in ("]", ""):
                self.take()
                c = self.take()
                top, also = self.escape() if c == "\\" else (1 << ord(c), True)
                if not (is_single and also) or top < members:
                    raise ValueError("bad range")
                members = 2 * top - members  # all bits from the one to the other
            total |= members
        return _FULL ^ total if flip else total


class _Glushkov:
    """Positions 1.. stand for the places where a byte is read, 0 is the start. An added part is
    (may it be empty, first positions, last positions), the positions as bits of an int."""

    def __init__(self):
        self.members = [0]
        self.follow = [0]

    def position(self, members):
        bit = 1 << len(self.members)
        self.members.append(members)
        self.follow.append(0)
        return False, bit, bit

    def link(self, lasts, firsts):
        for p in _ones(lasts):
            self.follow[p] |= firsts

    def join(self, a, b):
        self.link(a[2], b[1])
        return (
            a[0] and b[0],
            a[1] | (b[1] if a[0] else 0),
            b[2] | (a[2] if b[0] else 0),
        )

    def sequence(self, items):
        whole = (True, 0, 0)
        for item in items:
            whole = self.join(whole, item(self))
        return whole

    def either(self, options):
        e, f, la = False, 0, 0
        for option in options:
            e, f, la = e or option[0], f | option[1], la | option[2]
        return e, f, la

    def times(self, item, low, high):
        whole = (True, 0, 0)
        for _ in range(low):
            whole = self.join(whole, item(self))
        if high is None:
            _, f, la = item(self)
            self.link(la, f)
            return self.join(whole, (True, f, la))
        # x{0,3} is (x(x(x)?)?)?, from the inside to the outside
        tail = (True, 0, 0)
        for _ in range(high - low):
            _, f, la = self.join(item(self), tail)
            tail = (True, f, la)
        return self.join(whole, tail)


def _ones(n):
    while n:
        low = n & -n
        yield low.bit_length() - 1
        n ^= low


class DFA:
    """A deterministic automaton over bytes."""

    def __init__(self, trans, accept):
        self.trans = np.asarray(trans, np.int32)
        self.accept = np.asarray(accept, np.bool_)
        self.n_states = len(accept)

    def step(self, state: int, data: bytes) -> int:
        if state != DEAD and (state < 0 or state >= self.n_states):
            raise ValueError(f"state {state} is not in [0, {self.n_states})")
        for byte in data:
            if state == DEAD:
                break
            state = self.trans[state, byte]
        return int(state)

    def matches(self, data: bytes) -> bool:
        end = self.step(0, data)
        return end != DEAD and bool(self.accept[end])


def regex_to_dfa(pattern: str) -> DFA:
    g = _Glushkov()
    part = _Parser(pattern).whole()(g)
    g.follow[0] = part[1]
    last = part[2] | (1 if part[0] else 0)

    # bytes that no set tells apart share a column
    signature = {}
    distinct = sorted(set(g.members))
    column = []
    for byte in range(256):
        sig = tuple(m >> byte & 1 for m in distinct)
        column.append(signature.setdefault(sig, len(signature)))
    readers = [0] * len(signature)  # positions that read a byte of the column
    sample_byte = {col: byte for byte, col in enumerate(column)}
    for col, byte in sample_byte.items():
        for p, m in enumerate(g.members):
            if m >> byte & 1:
                readers[col] |= 1 << p

    index, todo, delta = {1: 0}, [1], []
    while len(delta) < len(todo):
        reach = 0
        for p in _ones(todo[len(delta)]):
            reach |= g.follow[p]
        line = []
        for mask in readers:
            target = reach & mask
            if target and target not in index:
                index[target] = len(todo)
                todo.append(target)
            line.append(index[target] if target else DEAD)
        delta.append(line)
    final = [bool(positions & last) for positions in todo]
    return _canonical(delta, final, column)


def _canonical(delta, final, column):
    n = len(delta)
    # shortest way to a final state; states without one are dead, and equal states have equal ones
    sources = [set() for _ in range(n)]
    for s, line in enumerate(delta):
        for t in line:
            if t != DEAD:
                sources[t].add(s)
    distance = [0 if f else None for f in final]
    wave, d = [s for s in range(n) if final[s]], 0
    while wave:
        d += 1
        wave = [s for s in {s for t in wave for s in sources[t]} if distance[s] is None]
        for s in wave:
            distance[s] = d
    if distance[0] is None:
        raise ValueError(f"the pattern matches no byte string")
    alive = [s for s in range(n) if distance[s] is not None]
    kept = [[t if t != DEAD and distance[t] is not None else DEAD for t in line] for line in delta]

    # refine: a block is looked at again when a state that it leads to has moved to another block
    blocks, block = {}, {DEAD: DEAD}
    for s in alive:
        block[s] = distance[s]
        blocks.setdefault(distance[s], []).append(s)
    fresh = max(blocks) + 1
    dirty = set(blocks)
    while dirty:
        name = dirty.pop()
        groups = {}
        for s in blocks[name]:
            groups.setdefault(tuple([block[t] for t in kept[s]]), []).append(s)
        biggest, *others = sorted(groups.values(), key=len, reverse=True)
        blocks[name] = biggest
        for group in others:
            blocks[fresh] = group
            for s in group:
                block[s] = fresh
            fresh += 1
        dirty |= {block[p] for group in others for s in group for p in sources[s] if p in block}
    chosen = {}
    for s in alive:
        chosen.setdefault(block[s], s)

    # breadth first
    first_byte = {}
    for byte in range(256):
        first_byte.setdefault(column[byte], byte)
    by_byte = sorted(first_byte, key=first_byte.get)
    new = {block[0]: 0}
    queue = [block[0]]
    at = 0
    while at < len(queue):
        for col in by_byte:
            t = kept[chosen[queue[at]]][col]
            if t != DEAD and block[t] not in new:
                new[block[t]] = len(queue)
                queue.append(block[t])
        at += 1
    new[DEAD] = DEAD
    small = np.array([[new[block[t]] for t in kept[chosen[b]]] for b in queue], np.int32)
    return DFA(small[:, column], [final[chosen[b]] for b in queue])


class TokenIndex:
    """Masks by walking all tokens side by side, one column of bytes after another."""

    def __init__(self, dfa, vocab, eos_id=None):
        bad = [t for t in vocab if not (t is None or isinstance(t, bytes))]
        if bad:
            raise ValueError(f"vocab holds {bad[0]!r}")
        if eos_id is not None and (eos_id < 0 or eos_id >= len(vocab)):
            raise ValueError(f"eos_id is out of range: {eos_id}")
        self.dfa, self.vocab_size, self.eos_id = dfa, len(vocab), eos_id
        self._tokens = [t or b"" for t in vocab]
        self._lengths = np.array([len(t) for t in self._tokens], np.int64)
        width = int(self._lengths.max(initial=0))
        self._table = np.zeros((len(vocab), width), np.uint8)
        for i, t in enumerate(self._tokens):
            self._table[i, : len(t)] = list(t)
        self._seen = {}

    def mask(self, state):
        if state < 0 or state >= self.dfa.n_states:
            raise ValueError(f"no mask for state {state}")
        found = self._seen.get(int(state))
        if found is None:
            at = np.full(self.vocab_size, int(state), np.int64)
            for k in range(self._table.shape[1]):
                going = np.flatnonzero((self._lengths > k) & (at != DEAD))
                at[going] = self.dfa.trans[at[going], self._table[going, k]]
            found = (at != DEAD) & (self._lengths > 0)
            if self.eos_id is not None:
                found[self.eos_id] = self.dfa.accept[state]
            found.setflags(write=False)
            self._seen[int(state)] = found
        return found

    def next_state(self, state, token_id):
        if token_id < 0 or token_id >= self.vocab_size:
            raise ValueError(f"no token {token_id}")
        if state != DEAD and (state < 0 or state >= self.dfa.n_states):
            raise ValueError(f"no state {state}")
        if state == DEAD:
            return DEAD
        if token_id == self.eos_id:
            return int(state) if self.dfa.accept[state] else DEAD
        token = self._tokens[token_id]
        return self.dfa.step(state, token) if token else DEAD


class Constraint:
    def __init__(self, index):
        self.index, self.state, self.done = index, 0, False

    def mask(self):
        allowed = self.index.mask(self.state)
        return np.zeros_like(allowed) if self.done else allowed

    def advance(self, token_id):
        if self.done:
            raise ValueError("the end token has been taken")
        self.state = self.index.next_state(self.state, token_id)
        if self.state == DEAD:
            raise ValueError(f"token {token_id} is not allowed")
        self.done = bool(token_id == self.index.eos_id)

    def is_complete(self):
        return bool(self.index.dfa.accept[self.state])


def check_logits(logits):
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.size == 0:
        raise ValueError("logits must be a row")
    if logits.dtype.kind != "f" or logits.dtype.itemsize > 8:
        raise ValueError(f"logits of dtype {logits.dtype}")
    if np.isnan(logits).any() or (logits == np.inf).any() or (logits == -np.inf).all():
        raise ValueError("logits must be numbers below +inf, one of them above -inf")


def apply_mask(logits, mask):
    check_logits(logits)
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != logits.shape:
        raise ValueError("mask must be bool and as long as logits")
    masked = np.where(mask, logits.astype(np.float64), -np.inf)
    if masked.max() == -np.inf:
        raise ValueError("no id is left")
    return masked


def constrained_sample(logits, c, p, history, rng, prompt=()):
    masked = apply_mask(logits, c.mask())
    drawn = sample(masked, p, history, rng, prompt)
    c.advance(drawn[0])
    return drawn


def gpt2_bytes():
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = sorted(set(range(256)) - set(printing))
    chars = printing + [0x100 + k for k in range(len(rest))]
    return {chr(c): b for c, b in zip(chars, printing + rest)}


def vocab_bytes(tok):
    table = gpt2_bytes()
    special = set(getattr(tok, "special", {}).values())

    def one(i, entry):
        if entry is None or i in special:
            return None
        if isinstance(entry, bytes):
            return entry
        try:
            return bytes([table[ch] for ch in entry])
        except KeyError:
            return entry.encode()

    return [one(i, entry) for i, entry in enumerate(tok.vocab)]


_KNOWN = {
    "string": (), "integer": (), "number": (), "boolean": (), "null": (),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}  # fmt: skip
_PYTHON = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip


def _utf8_character():
    t = "[\\x80-\\xbf]"
    return "|".join(
        [
            "[ !#-\\[\\]-\\x7f]",
            "[\\xc2-\\xdf]" + t,
            "(?:\\xe0[\\xa0-\\xbf]|\\xed[\\x80-\\x9f]|[\\xe1-\\xec\\xee\\xef]" + t + ")" + t,
            "(?:\\xf0[\\x90-\\xbf]|\\xf4[\\x80-\\x8f]|[\\xf1-\\xf3]" + t + ")" + t + t,
        ]
    )


_HEXDIGIT = "[0-9A-Fa-f]"
_ESCAPE = "\\\\(?:[\"\\\\/bfnrt]|u" + _HEXDIGIT * 4 + ")"
_INT = "-?(?:0|[1-9]\\d*)"
_SIMPLE = {
    "string": '"(?:' + _utf8_character() + "|" + _ESCAPE + ')*"',
    "integer": _INT,
    "number": _INT + "(?:\\.\\d+)?(?:[eE][-+]?\\d+)?",
    "boolean": "(?:true|false)",
    "null": "null",
}


class _Compiler:
    """Turns a schema into a pattern; path says where we are, for messages."""

    def __init__(self, path="schema"):
        self.path = path

    def no(self, why):
        raise ValueError(f"{self.path}: {why}")

    def below(self, name):
        return _Compiler(f"{self.path}.{name}")

    def compile(self, schema):
        if not isinstance(schema, dict):
            self.no("must be a dict")
        keys = set(schema) - {"title", "description", "default"}
        form = keys & {"type", "enum", "const", "anyOf"}
        if form in ({"enum"}, {"const"}, {"type", "enum"}, {"type", "const"}):
            allowed = form
            make = self.values
        elif form == {"anyOf"}:
            allowed = form
            make = self.choice
        elif form == {"type"}:
            self.check_type(schema["type"])
            allowed = form | set(_KNOWN[schema["type"]])
            make = getattr(self, schema["type"], None) or (lambda s: _SIMPLE[s["type"]])
        else:
            self.no(f"needs exactly one form, has {sorted(form)}")
        if unknown := sorted(map(str, keys - allowed)):
            self.no(f"keyword {unknown[0]} is not supported")
        return make(schema)

    def check_type(self, kind):
        if not isinstance(kind, str) or kind not in _KNOWN:
            self.no(f"unknown type {kind!r}")

    def values(self, schema):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or len(values) == 0:
            self.no("enum must be a list of at least one value")
        if "type" in schema:
            kind = schema["type"]
            self.check_type(kind)
            for v in values:
                if not isinstance(v, _PYTHON[kind]) or (isinstance(v, bool) and kind != "boolean"):
                    self.no(f"{v!r} is not of type {kind}")
        return "(?:" + "|".join([self.quote(v) for v in values]) + ")"

    def quote(self, value):
        self.check_value(value)
        data = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        return "".join(f"\\x{byte:02X}" for byte in data)

    def check_value(self, value):
        if isinstance(value, dict):
            for k in value:
                if not isinstance(k, str):
                    self.no(f"{k!r} is no name")
            value = list(value.values())
        if isinstance(value, list):
            for v in value:
                self.check_value(v)
        elif value is not None and not isinstance(value, (str, int, float)):
            self.no(f"{value!r} is no JSON value")

    def choice(self, schema):
        options = schema["anyOf"]
        if not isinstance(options, list) or not options:
            self.no("anyOf must be a list of at least one schema")
        return "(?:" + "|".join([self.below("anyOf").compile(o) for o in options]) + ")"

    def bound(self, schema, name):
        n = schema[name]
        if type(n) is not int or n < 0 or n > 256:
            self.no(f"{name} must be an int in [0, 256]")
        return n

    def array(self, schema):
        if "items" not in schema:
            self.no("items is missing")
        item = "(?:" + self.below("items").compile(schema["items"]) + ")"
        low = self.bound(schema, "minItems") if "minItems" in schema else 0
        high = self.bound(schema, "maxItems") if "maxItems" in schema else None
        if high is not None and low > high:
            self.no("minItems is above maxItems")
        if high == 0:
            return "\\[\\]"
        if low == 0:
            more = "*" if high is None else "{0,%d}" % (high - 1)
            return "\\[(?:%s(?:,%s)%s)?\\]" % (item, item, more)
        more = "{%d,}" % (low - 1) if high is None else "{%d,%d}" % (low - 1, high - 1)
        return "\\[%s(?:,%s)%s\\]" % (item, item, more)

    def object(self, schema):
        props = schema.get("properties", {})
        need = schema.get("required", [])
        if not isinstance(props, dict):
            self.no("properties must be a dict")
        if not isinstance(need, list) or not all(isinstance(n, str) and n in props for n in need):
            self.no("required must be a list of names in properties")
        if "additionalProperties" in schema and schema["additionalProperties"] is not False:
            self.no("additionalProperties must be False")
        texts = []
        for name, sub in props.items():
            texts.append((self.quote(name) + ":" + self.below(name).compile(sub), name in need))
        return "\\{" + self.first(texts) + "\\}"

    def first(self, texts):
        """The members when none is written yet."""
        if not texts:
            return ""
        (text, needed), others = texts[0], texts[1:]
        here = text + self.more(others)
        return here if needed else f"(?:{here}|{self.first(others)})"

    def more(self, texts):
        return "".join(f",{text}" if needed else f"(?:,{text})?" for text, needed in texts)


def json_schema_to_regex(schema):
    return _Compiler().compile(schema)


def json_schema_to_dfa(schema):
    pattern = json_schema_to_regex(schema)
    return regex_to_dfa(pattern)
