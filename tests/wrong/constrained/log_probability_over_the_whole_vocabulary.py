from __future__ import annotations

import json
import math

import numpy as np

from impl.sampling import sample, token_logprobs

DEAD = -1


NONE, EPS = 0, 1
EVERY = frozenset(range(256))


class Terms:
    """Brzozowski's derivatives. A term is a number, and equal terms have equal numbers; what it is stands in
    self.what: ("none",)  ("eps",)  ("set", frozenset)  ("cat", a, b)  ("or", frozenset)  ("rep", a, m, n)"""

    def __init__(self):
        self.what = [("none",), ("eps",)]
        self.nullable = [False, True]
        self.numbers = {}
        self.known = {}

    def number(self, what, nullable):
        if what not in self.numbers:
            self.numbers[what] = len(self.what)
            self.what.append(what)
            self.nullable.append(nullable)
        return self.numbers[what]

    def set(self, members):
        return self.number(("set", frozenset(members)), False) if members else NONE

    def cat(self, a, b):
        if a == NONE or b == NONE:
            return NONE
        parts = []
        while self.what[a][0] == "cat":  # always to the right
            parts.append(self.what[a][1])
            a = self.what[a][2]
        for part in [a, *reversed(parts)]:
            if b == EPS:
                b = part
            elif part != EPS:
                b = self.number(("cat", part, b), self.nullable[part] and self.nullable[b])
        return b

    def alt(self, terms):
        flat = set()
        for t in terms:
            flat |= self.what[t][1] if self.what[t][0] == "or" else {t}
        flat.discard(NONE)
        if len(flat) < 2:
            return min(flat, default=NONE)
        return self.number(("or", frozenset(flat)), any(self.nullable[t] for t in flat))

    def rep(self, a, m, n):
        if n == 0 or a == EPS:
            return EPS
        if a == NONE:
            return EPS if m == 0 else NONE
        if m == 1 and n == 1:
            return a
        if self.nullable[a]:
            m = 0
        return self.number(("rep", a, m, n), m == 0)

    def derive(self, t, byte):
        if (t, byte) not in self.known:
            self.known[t, byte] = self._derive(self.what[t], byte)
        return self.known[t, byte]

    def _derive(self, what, byte):
        kind = what[0]
        if kind == "set":
            return EPS if byte in what[1] else NONE
        if kind == "cat":
            _, a, b = what
            after = self.cat(self.derive(a, byte), b)
            return self.alt([after, self.derive(b, byte)]) if self.nullable[a] else after
        if kind == "or":
            return self.alt([self.derive(t, byte) for t in what[1]])
        if kind == "rep":
            _, a, m, n = what
            return self.cat(self.derive(a, byte), self.rep(a, max(m - 1, 0), None if n is None else n - 1))
        return NONE


def fail(what):
    raise ValueError(f"bad pattern: {what}")


def byte_range(a, b):
    return frozenset(range(ord(a), ord(b) + 1))


DIGITS = byte_range("0", "9")
LETTERS = byte_range("a", "z") | byte_range("A", "Z")
NAMED = {"d": DIGITS, "w": DIGITS | LETTERS | {ord("_")}, "s": frozenset(b" \t\n\v\f\r")}


def read_escape(chars):
    """The backslash has been taken. A set of one byte stands for that byte."""
    c = chars.pop() if chars else fail("\\ at the end")
    if c in NAMED:
        return NAMED[c]
    if c.lower() in NAMED:
        return EVERY - NAMED[c.lower()]
    if c == "x":
        pair = "".join(chars.pop() for _ in range(min(2, len(chars))))
        if len(pair) < 2 or set(pair) - set("0123456789abcdefABCDEF"):
            fail("\\x without two digits")
        return frozenset([int(pair, 16)])
    at = "ntrfv".find(c)
    if at >= 0:
        return frozenset(["\n\t\r\f\v".encode()[at]])
    if c in '\\.*+?()[]{}|^$/"-,:':
        return frozenset([ord(c)])
    return fail(f"escape \\{c}")


def read_class(chars):
    members, first, invert = set(), True, False
    if chars and chars[-1] == "^":
        chars.pop()
        invert = True
    while True:
        c = chars.pop() if chars else fail("class without end")
        if c == "]":
            if first:
                fail("] at the start of a class")
            break
        first = False
        one = read_escape(chars) if c == "\\" else frozenset([ord(c)])
        if len(chars) >= 2 and chars[-1] == "-" and chars[-2] != "]":
            chars.pop()
            c = chars.pop()
            two = read_escape(chars) if c == "\\" else frozenset([ord(c)])
            if len(one) != 1 or len(two) != 1:
                fail("a set as end of a range")
            lo, hi = min(one), min(two)
            if lo > hi:
                fail("range in the wrong order")
            one = range(lo, hi + 1)
        members.update(one)
    return EVERY - members if invert else frozenset(members)


def read_braces(chars):
    body = ""
    while True:
        c = chars.pop() if chars else fail("{ without end")
        if c == "}":
            break
        body += c
    low, comma, high = body.partition(",")
    if not low.isdigit() or (high and not high.isdigit()):
        fail("braces {" + body + "}")
    m = int(low)
    n = m if not comma else int(high) if high else None
    if m > 256 or (n is not None and not m <= n <= 256):
        fail("bounds {" + body + "}")
    return m, n


def read_pattern(pattern, terms):
    """One loop with a stack of open groups; a group is [finished branches, items of the present branch]."""
    if not isinstance(pattern, str) or any(c > "\x7f" for c in pattern):
        raise ValueError("a pattern must be a str of ASCII characters")
    chars = list(reversed(pattern))
    stack = [[[], []]]
    can_repeat = False

    def close(group):
        branches, items = group
        return terms.alt([*branches, in_row(items)])

    def in_row(items):
        whole = EPS
        for item in reversed(items):
            whole = terms.cat(item, whole)
        return whole

    while chars:
        c = chars.pop()
        items = stack[-1][1]
        if c in "*+?{":
            if not can_repeat:
                fail(f"nothing to repeat before {c}")
            m, n = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(c) or read_braces(chars)
            items[-1] = terms.rep(items[-1], m, n)
            can_repeat = False
            continue
        can_repeat = True
        if c == "(":
            if chars and chars[-1] == "?":
                chars.pop()
                if not chars or chars.pop() != ":":
                    fail("(? without :")
            stack.append([[], []])
            can_repeat = False
        elif c == ")":
            if len(stack) == 1:
                fail("too many )")
            group = stack.pop()
            stack[-1][1].append(close(group))
        elif c == "|":
            stack[-1][0].append(in_row(items))
            stack[-1][1] = []
            can_repeat = False
        elif c == "[":
            items.append(terms.set(read_class(chars)))
        elif c == "\\":
            items.append(terms.set(read_escape(chars)))
        elif c == ".":
            items.append(terms.set(EVERY - {10}))
        elif c in "]}^$":
            fail(f"{c} must be escaped")
        else:
            items.append(terms.set({ord(c)}))
    if len(stack) > 1:
        fail("( without end")
    return close(stack[0])


class DFA:
    def __init__(self, trans, accept):
        self.trans, self.accept, self.n_states = trans, accept, accept.shape[0]

    def step(self, state, data):
        if state == DEAD:
            return DEAD
        if not 0 <= state < self.n_states:
            raise ValueError(f"state out of range: {state}")
        now = int(state)
        for byte in data:
            now = int(self.trans[now, byte])
            if now < 0:
                return DEAD
        return now

    def matches(self, data):
        s = self.step(0, data)
        return bool(s >= 0 and self.accept[s])


def regex_to_dfa(pattern):
    terms = Terms()
    root = read_pattern(pattern, terms)
    sets = [w[1] for w in terms.what if w[0] == "set"]
    groups = {}
    for byte in range(256):
        groups.setdefault(tuple(byte in s for s in sets), []).append(byte)
    columns = sorted(groups.values())  # by their lowest byte

    states, number = [root], {root: 0}
    edges = []
    for term in states:
        row = []
        for column in columns:
            to = terms.derive(term, column[0])
            if to not in number:
                number[to] = len(states)
                states.append(to)
            row.append(number[to])
        edges.append(row)
    table = np.array(edges)
    final = np.array([terms.nullable[t] for t in states])

    # distance to the nearest final state, by relaxation from behind
    far = len(states) + 1
    dist = np.where(final, 0, far)
    while True:
        closer = np.minimum(dist, dist[table].min(axis=1) + 1)
        if (closer == dist).all():
            break
        dist = closer
    dist[dist >= far] = far
    if dist[0] == far:
        raise ValueError("the pattern matches no text")

    # equal states have equal distances; split further until nothing changes. A row of labels is told from
    # another by its scalar product with large odd numbers
    weights = np.random.default_rng(1).integers(1, 2**63, len(columns) + 1, dtype=np.uint64) | np.uint64(1)
    label = dist.astype(np.uint64)
    n_labels = len(np.unique(label))
    while True:
        keys = label * weights[0] + (label[table] * weights[1:]).sum(axis=1, dtype=np.uint64)
        found, label = np.unique(keys, return_inverse=True)
        label = label.reshape(-1).astype(np.uint64)
        if len(found) == n_labels:
            break
        n_labels = len(found)

    order, place = [0], {int(label[0]): 0}
    lines = []
    for s in order:
        line = np.full(256, DEAD, np.int32)
        for column, to in zip(columns, table[s].tolist()):
            if dist[to] == far:
                continue
            if int(label[to]) not in place:
                place[int(label[to])] = len(order)
                order.append(to)
            line[column] = place[int(label[to])]
        lines.append(line)
    return DFA(np.stack(lines), final[order])


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
        if token_id < 0 or token_id >= self.index.vocab_size or not self.mask()[token_id]:
            raise ValueError(f"token {token_id} is not allowed")
        if token_id == self.index.eos_id:
            self.done = True
            return
        self.state = self.index.next_state(self.state, token_id)

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
    token, _ = sample(masked, p, history, rng, prompt)
    c.advance(token)
    # what the model says of the token; the mask is only how it is drawn
    return token, float(token_logprobs(logits, p, history, prompt)[token])


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
