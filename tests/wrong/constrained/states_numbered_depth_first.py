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

    order, place = [], {}
    stack = [0]
    while stack:
        s = stack.pop()
        if int(label[s]) in place or dist[s] == far:
            continue
        place[int(label[s])] = len(order)
        order.append(s)
        stack.extend(reversed(table[s].tolist()))  # the lowest byte is on top
    trans = np.full((len(order), 256), DEAD, np.int32)
    for i, s in enumerate(order):
        for column, to in zip(columns, table[s].tolist()):
            trans[i, column] = place.get(int(label[to]), DEAD)
    return DFA(trans, final[order])


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
        # a node of the trie is [children by byte, ids that end here]
        self._root = [{}, []]
        for i, entry in enumerate(self._vocab):
            if entry and i != eos_id:
                node = self._root
                for byte in entry:
                    node = node[0].setdefault(byte, [{}, []])
                node[1].append(i)

    def mask(self, state):
        self._check_state(state)
        state = int(state)
        if state not in self._masks:
            allowed = np.zeros(self.vocab_size, dtype=bool)
            todo = [(self._root, state)]
            while todo:
                node, at = todo.pop()
                for i in node[1]:
                    allowed[i] = True
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
