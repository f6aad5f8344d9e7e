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


# ---------------------------------------------------------------- tokens


class TokenIndex:
    def __init__(self, dfa, vocab, eos_id=None):
        self.dfa = dfa
        self.vocab_size = len(vocab)
        self.eos_id = eos_id
        if eos_id is not None and not 0 <= eos_id < len(vocab):
            raise ValueError(f"eos_id must be in [0, {len(vocab)}), got {eos_id}")
        for entry in vocab:
            if entry is not None and not isinstance(entry, bytes):
                raise ValueError(f"an entry of vocab must be bytes or None, got {entry!r}")
        self._vocab = list(vocab)
        self._masks = {}
        # a node of the trie is [children by byte, the id that ends here]
        self._root = [{}, None]
        for i, entry in enumerate(self._vocab):
            if entry and i != eos_id:
                node = self._root
                for byte in entry:
                    node = node[0].setdefault(byte, [{}, None])
                node[1] = i

    def mask(self, state):
        self._check_state(state)
        state = int(state)
        if state not in self._masks:
            allowed = np.zeros(self.vocab_size, dtype=bool)
            todo = [(self._root, state)]
            while todo:
                node, at = todo.pop()
                if node[1] is not None:
                    allowed[node[1]] = True
                for byte, child in node[0].items():
                    to = int(self.dfa.trans[at, byte])
                    if to != DEAD:
                        todo.append((child, to))
            if self.eos_id is not None:
                allowed[self.eos_id] = self.dfa.accept[state]
            allowed.flags.writeable = False
            self._masks[state] = allowed
        return self._masks[state]

    def next_state(self, state, token_id):
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id must be in [0, {self.vocab_size}), got {token_id}")
        if state == DEAD:
            return DEAD
        self._check_state(state)
        if token_id == self.eos_id:
            return int(state) if self.dfa.accept[state] else DEAD
        entry = self._vocab[token_id]
        if not entry:
            return DEAD
        return self.dfa.step(state, entry)

    def _check_state(self, state):
        if not 0 <= state < self.dfa.n_states:
            raise ValueError(f"state must be in [0, {self.dfa.n_states}), got {state}")


class Constraint:
    def __init__(self, index):
        self.index = index
        self.state = 0
        self.done = False

    def mask(self):
        if self.done:
            return np.zeros(self.index.vocab_size, dtype=bool)
        return self.index.mask(self.state)

    def advance(self, token_id):
        if self.done:
            raise ValueError("nothing follows the end token")
        to = self.index.next_state(self.state, token_id)
        if to == DEAD:
            raise ValueError(f"token {token_id} is not allowed in state {self.state}")
        if token_id == self.index.eos_id:
            self.done = True
        else:
            self.state = to

    def is_complete(self):
        return bool(self.index.dfa.accept[self.state])


# ---------------------------------------------------------------- sampling


def apply_mask(logits, mask):
    if not isinstance(logits, np.ndarray) or logits.ndim != 1 or len(logits) == 0:
        raise ValueError("logits must be an array with one axis and at least one entry")
    if logits.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"logits must be float16, float32 or float64, got {logits.dtype}")
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != logits.shape:
        raise ValueError("mask must be a bool array of the shape of logits")
    out = np.full(len(logits), -math.inf)
    some, left = False, False
    for i in range(len(logits)):
        value = float(logits[i])
        if math.isnan(value) or value == math.inf:
            raise ValueError(f"logits holds {value}")
        if value > -math.inf:
            some = True
            if mask[i]:
                left = True
                out[i] = value
    if not some:
        raise ValueError("logits are all -inf")
    if not left:
        raise ValueError("the mask leaves no id")
    return out


def constrained_sample(logits, c, p, history, rng, prompt=()):
    token, logprob = sample(apply_mask(logits, c.mask()), p, history, rng, prompt)
    c.advance(token)
    return token, logprob


# ---------------------------------------------------------------- vocabulary

ALPHABET = {}
for _byte in range(256):
    if 0x21 <= _byte <= 0x7E or 0xA1 <= _byte <= 0xAC or 0xAE <= _byte <= 0xFF:
        ALPHABET[chr(_byte)] = _byte
_n = 0
for _byte in range(256):
    if _byte not in ALPHABET.values():
        ALPHABET[chr(0x100 + _n)] = _byte
        _n += 1


def vocab_bytes(tok):
    hidden = set((getattr(tok, "special", None) or {}).values())
    out = []
    for i, entry in enumerate(tok.vocab):
        if i in hidden or entry is None:
            out.append(None)
        elif isinstance(entry, bytes):
            out.append(entry)
        elif all(ch in ALPHABET for ch in entry):
            out.append(bytes(ALPHABET[ch] for ch in entry))
        else:
            out.append(entry.encode("utf-8"))
    return out


# ---------------------------------------------------------------- JSON schema

NOTES = {"title", "description", "default"}
TAIL = r"[\x80-\xbf]"
STRING = (
    r'"(?:[\x20\x21\x23-\x5b\x5d-\x7f]'
    rf"|[\xc2-\xdf]{TAIL}"
    rf"|\xe0[\xa0-\xbf]{TAIL}"
    rf"|[\xe1-\xec\xee\xef]{TAIL}{{2}}"
    rf"|\xed[\x80-\x9f]{TAIL}"
    rf"|\xf0[\x90-\xbf]{TAIL}{{2}}"
    rf"|[\xf1-\xf3]{TAIL}{{3}}"
    rf"|\xf4[\x80-\x8f]{TAIL}{{2}}"
    r'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
)
INTEGER = "-?(?:0|[1-9][0-9]*)"
NUMBER = INTEGER + r"(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
SCALARS = {"string": STRING, "integer": INTEGER, "number": NUMBER, "boolean": "(?:true|false)", "null": "null"}
EXTRA_KEYS = {"array": {"items", "minItems", "maxItems"}, "object": {"properties", "required", "additionalProperties"}}


def literal(value):
    check_json(value)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    out = ""
    for byte in text.encode("utf-8"):
        ch = chr(byte)
        out += ch if byte < 0x80 and ch.isalnum() else f"\\x{byte:02x}"
    return out


def check_json(value):
    if value is None or isinstance(value, (bool, int, str)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no JSON")
    elif isinstance(value, list):
        for part in value:
            check_json(part)
    elif isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r} is no JSON")
            check_json(part)
    else:
        raise ValueError(f"{value!r} is no JSON")


def type_of(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "none"


def only_keys(schema, allowed):
    for key in schema:
        if key not in NOTES and key not in allowed:
            raise ValueError(f"the keyword {key!r} is not supported here")


def json_schema_to_regex(schema):
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be a dict, got {schema!r}")
    forms = [key for key in ("enum", "const", "anyOf") if key in schema]
    if len(forms) > 1:
        raise ValueError(f"two forms in one schema: {forms}")
    if forms == ["anyOf"]:
        only_keys(schema, {"anyOf"})
        return any_of(schema["anyOf"])
    if forms:
        only_keys(schema, {"type", forms[0]})
        return fixed_values(schema, forms[0])
    if "type" not in schema:
        raise ValueError(f"a schema without a form has only {list(schema)}")
    kind = schema["type"]
    if not isinstance(kind, str) or (kind not in SCALARS and kind not in EXTRA_KEYS):
        raise ValueError(f"the type {kind!r} is not supported")
    only_keys(schema, {"type"} | EXTRA_KEYS.get(kind, set()))
    if kind == "array":
        return array(schema)
    if kind == "object":
        return members(schema)
    return SCALARS[kind]


def any_of(choices):
    if not isinstance(choices, list) or not choices:
        raise ValueError("anyOf must be a list with at least one schema")
    return "(?:" + "|".join(json_schema_to_regex(choice) for choice in choices) + ")"


def fixed_values(schema, form):
    values = schema["enum"] if form == "enum" else [schema["const"]]
    if not isinstance(values, list) or not values:
        raise ValueError("enum must be a list with at least one value")
    texts = [literal(value) for value in values]
    if "type" in schema:
        kind = schema["type"]
        if not isinstance(kind, str) or (kind not in SCALARS and kind not in EXTRA_KEYS):
            raise ValueError(f"the type {kind!r} is not supported")
        for value in values:
            actual = type_of(value)
            if actual != kind and not (kind == "number" and actual == "integer"):
                raise ValueError(f"{value!r} is not of type {kind}")
    return "(?:" + "|".join(texts) + ")"


def array(schema):
    if "items" not in schema:
        raise ValueError("an array needs items")
    item = json_schema_to_regex(schema["items"])
    low, high = schema.get("minItems", 0), schema.get("maxItems", 256)
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 <= bound <= 256:
            raise ValueError(f"minItems and maxItems must be ints in [0, 256], got {bound!r}")
    if low > high:
        raise ValueError(f"minItems {low} is above maxItems {high}")
    if high == 0:
        return r"\[\]"
    last = str(high - 1) if "maxItems" in schema else ""
    inside = f"{item}(?:,{item}){{{max(low - 1, 0)},{last}}}"
    return rf"\[{inside}\]" if low else rf"\[(?:{inside})?\]"


def members(schema):
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise ValueError("properties must be a dict")
    if not isinstance(required, list):
        raise ValueError("required must be a list")
    for name in required:
        if not isinstance(name, str) or name not in properties:
            raise ValueError(f"the required name {name!r} is not in properties")
    if schema.get("additionalProperties", False) is not False:
        raise ValueError("additionalProperties must be absent or False")
    names = list(properties)
    # what may follow when no member has been written yet, and when one has
    fresh, begun = "", ""
    for name in reversed(names):
        member = literal(name) + ":" + json_schema_to_regex(properties[name])
        if name in required:
            fresh, begun = member + begun, "," + member + begun
        else:
            fresh, begun = f"(?:{member}{begun}|{fresh})", f"(?:,{member})?{begun}"
    return r"\{" + fresh + r"\}"


def json_schema_to_dfa(schema):
    return regex_to_dfa(json_schema_to_regex(schema))
