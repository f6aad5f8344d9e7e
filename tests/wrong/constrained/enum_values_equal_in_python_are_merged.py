from __future__ import annotations

import json
import math

import numpy as np

from impl.sampling import sample

DEAD = -1


# ---------------------------------------------------------------- regular expressions
#
# A parsed pattern is one of
#   ("set", frozenset of bytes)   ("cat", [parts])   ("alt", [branches])   ("rep", part, low, high or None)

DIGIT = frozenset(range(0x30, 0x3A))
WORD = DIGIT | frozenset(range(0x41, 0x5B)) | frozenset(range(0x61, 0x7B)) | {0x5F}
SPACE = frozenset([0x20, 0x09, 0x0A, 0x0B, 0x0C, 0x0D])
ALL = frozenset(range(256))
SHORT = {"d": DIGIT, "w": WORD, "s": SPACE, "D": ALL - DIGIT, "W": ALL - WORD, "S": ALL - SPACE}
CONTROL = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B}
PLAIN_ESCAPES = set("\\.*+?()[]{}|^$/\"-,:")
HEX = "0123456789abcdefABCDEF"


def parse(pattern):
    if not isinstance(pattern, str):
        raise ValueError(f"a pattern must be a str, got {type(pattern).__name__}")
    for ch in pattern:
        if ord(ch) > 0x7F:
            raise ValueError(f"a pattern must be ASCII, got {ch!r}")
    node, at = parse_branches(pattern, 0)
    if at < len(pattern):
        raise ValueError(f"unbalanced ')' at {at}")
    return node


def parse_branches(text, at):
    branches = []
    while True:
        node, at = parse_sequence(text, at)
        branches.append(node)
        if at < len(text) and text[at] == "|":
            at += 1
        else:
            break
    return (branches[0] if len(branches) == 1 else ("alt", branches)), at


def parse_sequence(text, at):
    parts = []
    repeated = True  # nothing before that could be repeated
    while at < len(text) and text[at] not in "|)":
        ch = text[at]
        if ch in "*+?{":
            if repeated:
                raise ValueError(f"nothing to repeat at {at}")
            low, high, at = parse_bounds(text, at)
            parts[-1] = ("rep", parts[-1], low, high)
            repeated = True
            continue
        node, at = parse_item(text, at)
        parts.append(node)
        repeated = False
    return ("cat", parts), at


def parse_bounds(text, at):
    ch = text[at]
    if ch == "*":
        return 0, None, at + 1
    if ch == "+":
        return 1, None, at + 1
    if ch == "?":
        return 0, 1, at + 1
    end = text.find("}", at)
    if end < 0:
        raise ValueError(f"'{{' without end at {at}")
    fields = text[at + 1 : end].split(",")
    if len(fields) > 2 or not fields[0].isdigit() or not (fields[-1].isdigit() or fields[1:] == [""]):
        raise ValueError(f"bad repetition {text[at:end + 1]!r}")
    low = int(fields[0])
    high = None if fields[-1] == "" else int(fields[-1])
    if low > 256 or (high is not None and (high > 256 or low > high)):
        raise ValueError(f"bad bounds {text[at:end + 1]!r}")
    return low, high, end + 1


def parse_item(text, at):
    ch = text[at]
    if ch == "(":
        at += 1
        if text[at : at + 1] == "?":
            if text[at : at + 2] != "?:":
                raise ValueError(f"only (?: is known, at {at}")
            at += 2
        node, at = parse_branches(text, at)
        if at >= len(text):
            raise ValueError("'(' without end")
        return node, at + 1
    if ch == "[":
        return parse_class(text, at + 1)
    if ch == ".":
        return ("set", ALL - {0x0A}), at + 1
    if ch == "\\":
        value, at = parse_escape(text, at)
        return ("set", value if isinstance(value, frozenset) else frozenset([value])), at
    if ch in "]{}^$":
        raise ValueError(f"stray {ch!r} at {at}")
    return ("set", frozenset([ord(ch)])), at + 1


def parse_escape(text, at):
    """text[at] is the backslash; a set for a shorthand, else one byte."""
    ch = text[at + 1 : at + 2]
    if ch == "x":
        digits = text[at + 2 : at + 4]
        if len(digits) != 2 or digits[0] not in HEX or digits[1] not in HEX:
            raise ValueError(f"\\x needs two hexadecimal digits, at {at}")
        return int(digits, 16), at + 4
    if ch in SHORT:
        return SHORT[ch], at + 2
    if ch in CONTROL:
        return CONTROL[ch], at + 2
    if ch in PLAIN_ESCAPES:
        return ord(ch), at + 2
    raise ValueError(f"unknown escape \\{ch} at {at}")


def parse_class(text, at):
    negate = text[at : at + 1] == "^"
    if negate:
        at += 1
    if text[at : at + 1] == "]":
        raise ValueError("a class may not start with ']'")
    members = set()
    while True:
        if at >= len(text):
            raise ValueError("a class without end")
        if text[at] == "]":
            break
        low, at = parse_class_atom(text, at)
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = parse_class_atom(text, at + 1)
            if isinstance(low, frozenset) or isinstance(high, frozenset):
                raise ValueError("a range needs single bytes as its ends")
            if low > high:
                raise ValueError("a range goes from the lower to the higher byte")
            members.update(range(low, high + 1))
        elif isinstance(low, frozenset):
            members |= low
        else:
            members.add(low)
    if negate:
        members = ALL - members
    return ("set", frozenset(members)), at + 1


def parse_class_atom(text, at):
    if text[at] == "\\":
        return parse_escape(text, at)
    return ord(text[at]), at + 1


# ---------------------------------------------------------------- automaton


class Nfa:
    """Thompson's construction: every state has at most one labelled edge and any number of empty ones."""

    def __init__(self):
        self.empty = []
        self.edge = []

    def new(self):
        self.empty.append([])
        self.edge.append(None)
        return len(self.empty) - 1

    def build(self, node, start):
        """Add the node behind start and return the state behind it."""
        kind = node[0]
        if kind == "set":
            end = self.new()
            mid = self.new()
            self.empty[start].append(mid)
            self.edge[mid] = (node[1], end)
            return end
        if kind == "cat":
            for part in node[1]:
                start = self.build(part, start)
            return start
        if kind == "alt":
            end = self.new()
            for branch in node[1]:
                first = self.new()
                self.empty[start].append(first)
                self.empty[self.build(branch, first)].append(end)
            return end
        _, part, low, high = node
        for _ in range(low):
            start = self.build(part, start)
        end = self.new()
        if high is None:
            loop = self.new()
            self.empty[start].append(loop)
            self.empty[self.build(part, loop)].append(loop)
            self.empty[loop].append(end)
            return end
        for _ in range(high - low):
            self.empty[start].append(end)
            fresh = self.new()
            self.empty[start].append(fresh)
            start = self.build(part, fresh)
        self.empty[start].append(end)
        return end

    def closure(self, states):
        seen = set(states)
        todo = list(seen)
        while todo:
            for nxt in self.empty[todo.pop()]:
                if nxt not in seen:
                    seen.add(nxt)
                    todo.append(nxt)
        return seen


def byte_classes(sets):
    """Number the bytes so that two with one number are in the same sets; return (number by byte, count)."""
    number = [0] * 256
    count = 1
    for members in sets:
        renamed = {}
        number = [renamed.setdefault((number[b], b in members), len(renamed)) for b in range(256)]
        count = len(renamed)
    return number, count


def determinise(nfa, start, end):
    number, n_classes = byte_classes({e[0] for e in nfa.edge if e is not None})
    classes_of = {}
    for e in nfa.edge:
        if e is not None and e[0] not in classes_of:
            classes_of[e[0]] = sorted({number[b] for b in e[0]})

    def key_of(states):
        return frozenset(s for s in nfa.closure(states) if nfa.edge[s] is not None or s == end)

    first = key_of([start])
    ids = {first: 0}
    order = [first]
    rows = []
    for current in order:  # grows while it is walked
        targets = [set() for _ in range(n_classes)]
        for s in current:
            if nfa.edge[s] is not None:
                members, to = nfa.edge[s]
                for c in classes_of[members]:
                    targets[c].add(to)
        row = []
        known = {}
        for group in targets:
            if not group:
                row.append(DEAD)
                continue
            group = frozenset(group)
            if group not in known:
                key = key_of(group)
                if key not in ids:
                    ids[key] = len(order)
                    order.append(key)
                known[group] = ids[key]
            row.append(known[group])
        rows.append(row)
    return rows, [end in states for states in order], number, n_classes


def trim(rows, final):
    """Turn edges into states from which no final one can be reached into DEAD; return the live states."""
    back = [[] for _ in rows]
    for s, row in enumerate(rows):
        for t in set(row):
            if t != DEAD:
                back[t].append(s)
    live = {s for s in range(len(rows)) if final[s]}
    todo = list(live)
    while todo:
        for s in back[todo.pop()]:
            if s not in live:
                live.add(s)
                todo.append(s)
    for row in rows:
        for c, t in enumerate(row):
            if t not in live:
                row[c] = DEAD
    return live


def minimise(rows, final, live, n_classes):
    """Hopcroft's algorithm over the live states; return the block of every live state."""
    back = [{} for _ in range(n_classes)]
    for s in live:
        for c, t in enumerate(rows[s]):
            if t != DEAD:
                back[c].setdefault(t, []).append(s)
    blocks = []
    block_of = {}
    for members in ({s for s in live if final[s]}, {s for s in live if not final[s]}):
        if members:
            for s in members:
                block_of[s] = len(blocks)
            blocks.append(members)
    # with missing edges both blocks must be splitters
    todo = [(b, c) for b in range(len(blocks)) for c in range(n_classes)]
    waiting = set(todo)
    while todo:
        b, c = todo.pop()
        waiting.discard((b, c))
        touched = {}
        for t in blocks[b]:
            for s in back[c].get(t, ()):
                touched.setdefault(block_of[s], set()).add(s)
        for old, inside in touched.items():
            if len(inside) == len(blocks[old]):
                continue
            new = len(blocks)
            blocks[old] -= inside
            blocks.append(inside)
            for s in inside:
                block_of[s] = new
            for k in range(n_classes):
                if (old, k) in waiting:
                    add = new
                else:
                    add = new if len(inside) <= len(blocks[old]) else old
                if (add, k) not in waiting:
                    waiting.add((add, k))
                    todo.append((add, k))
    return block_of


class DFA:
    def __init__(self, trans, accept):
        self.trans = trans
        self.accept = accept
        self.n_states = int(len(accept))
        self._rows = trans.tolist()

    def step(self, state, data):
        if state == DEAD:
            return DEAD
        if not 0 <= state < self.n_states:
            raise ValueError(f"no state {state}")
        state = int(state)
        for byte in data:
            state = self._rows[state][byte]
            if state == DEAD:
                return DEAD
        return state

    def matches(self, data):
        state = self.step(0, data)
        return state != DEAD and bool(self.accept[state])


def regex_to_dfa(pattern: str) -> DFA:
    nfa = Nfa()
    start = nfa.new()
    end = nfa.build(parse(pattern), start)
    rows, final, number, n_classes = determinise(nfa, start, end)
    live = trim(rows, final)
    if 0 not in live:
        raise ValueError("the pattern matches nothing")
    block_of = minimise(rows, final, live, n_classes)
    member = {}
    for s in sorted(live):
        member.setdefault(block_of[s], s)

    place = {block_of[0]: 0}
    queue = [block_of[0]]
    table = []
    for block in queue:  # breadth first
        row = rows[member[block]]
        line = []
        for byte in range(256):
            to = row[number[byte]]
            if to != DEAD:
                to = block_of[to]
                if to not in place:
                    place[to] = len(queue)
                    queue.append(to)
                to = place[to]
            line.append(to)
        table.append(line)
    accept = np.array([final[member[block]] for block in queue], dtype=bool)
    return DFA(np.array(table, dtype=np.int32).reshape(len(queue), 256), accept)


class TokenIndex:
    def __init__(self, dfa: DFA, vocab, eos_id: int | None = None):
        self.dfa = dfa
        self.vocab = tuple(vocab)
        self.vocab_size = len(self.vocab)
        self.eos_id = eos_id
        if eos_id is not None and eos_id not in range(self.vocab_size):
            raise ValueError("eos_id is no id of the vocabulary")
        if not all(v is None or isinstance(v, bytes) for v in self.vocab):
            raise ValueError("the vocabulary must hold bytes or None")
        self.cache: dict[int, np.ndarray] = {}

    def _walk(self, state: int, token_id: int) -> int:
        """Where a token leads; DEAD if it may not be taken. The mask and next_state both ask this."""
        if token_id == self.eos_id:
            return state if self.dfa.accept[state] else DEAD
        data = self.vocab[token_id]
        if data is None or len(data) == 0:
            return DEAD
        return self.dfa.step(state, data)

    def mask(self, state: int) -> np.ndarray:
        if state not in range(self.dfa.n_states):
            raise ValueError(f"state {state} has no mask")
        state = int(state)
        if state not in self.cache:
            row = np.array([self._walk(state, t) != DEAD for t in range(self.vocab_size)], dtype=bool)
            row.flags.writeable = False
            self.cache[state] = row
        return self.cache[state]

    def next_state(self, state: int, token_id: int) -> int:
        if token_id not in range(self.vocab_size):
            raise ValueError(f"token {token_id} is not in the vocabulary")
        if state == DEAD:
            return DEAD
        if state not in range(self.dfa.n_states):
            raise ValueError(f"state {state} does not exist")
        return self._walk(int(state), int(token_id))


class Constraint:
    def __init__(self, index: TokenIndex):
        self.index = index
        self.state = 0
        self.done = False

    def mask(self) -> np.ndarray:
        return np.zeros(self.index.vocab_size, bool) if self.done else self.index.mask(self.state)

    def advance(self, token_id: int) -> None:
        target = self.index.next_state(self.state, token_id)
        if self.done or target == DEAD:
            raise ValueError(f"token {token_id} is refused")
        self.done = bool(token_id == self.index.eos_id)
        self.state = target

    def is_complete(self) -> bool:
        return bool(self.index.dfa.accept[self.state])


def apply_mask(logits, mask) -> np.ndarray:
    if not isinstance(logits, np.ndarray) or logits.ndim != 1:
        raise ValueError("logits need exactly one axis")
    if logits.dtype.name not in ("float16", "float32", "float64"):
        raise ValueError("logits need a float dtype")
    if logits.size < 1 or np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        raise ValueError("logits are not usable")
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != logits.shape:
        raise ValueError("the mask does not fit the logits")
    new = logits.astype(np.float64)
    new[~mask] = -np.inf
    if np.isneginf(new).all():
        raise ValueError("nothing is allowed")
    return new


def constrained_sample(logits, c: Constraint, p, history, rng, prompt=()) -> tuple[int, float]:
    if c.done:
        raise ValueError("the constraint is done")
    token, logprob = sample(apply_mask(logits, c.mask()), p, history, rng, prompt)
    c.advance(token)
    return token, logprob


_SHIFTED = [*range(0x00, 0x21), *range(0x7F, 0xA1), 0xAD]  # bytes that do not print


def _token_bytes(text: str) -> bytes:
    out = bytearray()
    for ch in text:
        code = ord(ch)
        if code < 256 and code not in _SHIFTED:
            out.append(code)
        elif 256 <= code < 256 + len(_SHIFTED):
            out.append(_SHIFTED[code - 256])
        else:
            return text.encode("utf-8")  # not of the alphabet
    return bytes(out)


def vocab_bytes(tok) -> list[bytes | None]:
    result: list[bytes | None] = []
    special_ids = list(getattr(tok, "special", {}).values())
    for i, piece in enumerate(tok.vocab):
        if i in special_ids:
            piece = None
        result.append(_token_bytes(piece) if isinstance(piece, str) else piece)
    return result


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
    distinct = []
    for value in values:
        if value not in distinct:  # a value twice would only make the pattern longer
            distinct.append(value)
    texts = [literal(value) for value in distinct]
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
