from __future__ import annotations

import json
import math

import numpy as np

from impl.sampling import sample

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


# ---------------------------------------------------------------- JSON schema

NOTES = {"title", "description", "default"}
STRING = (
    r'"(?:[^"\\\x00-\x1f]'
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
    last = str(high) if "maxItems" in schema else ""
    inside = f"{item}(?:,{item}){{{low},{last}}}"
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
