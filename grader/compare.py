"""The only place where an answer is judged. It fails closed: `ok = gap <= tol`, never `bad = gap > tol`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grader.values import COMPARE_KEYS, Array, BadValue, decode, described, kind_of, show, typed_key, widened
from grader.wire import BF16, DTYPES, NAMES, Fields

TOLERANCES = ("ulp", "close", "rel_l2", "dist")
PLAIN = (int, float, bool, str, type(None))
NUMERIC = ("exact", "bits", "ulp", "close")
UNORDERED = ("set", "multiset", "labels")
FLOATS = ("f16", "bf16", "f32", "f64")
KEYS = {  # what each comparator takes beside `cmp` and `why`
    "exact": {"nan"}, "bits": set(), "set": set(), "multiset": set(), "labels": set(),
    "ulp": {"max", "nan"}, "close": {"rtol", "atol", "nan"}, "rel_l2": {"max", "nan"},
    "dist": {"test", "n", "alpha"}, "at_least": {"bound"}, "at_most": {"bound"},
}  # fmt: skip
COMPARATORS = tuple(KEYS)
NEEDED = {
    "ulp": ("max",), "rel_l2": ("max",), "dist": ("n", "alpha"),
    "at_least": ("bound",), "at_most": ("bound",),
}  # fmt: skip
OTHER_KIND = "another kind of value"


@dataclass(frozen=True, slots=True)
class Cmp:
    """How one expected value is compared."""

    kind: str = "exact"
    max: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    bound: float = 0.0
    n: int = 0
    alpha: float = 0.0
    nan: bool = False  # NaN is right where NaN is expected
    stated: bool = False


EXACT, BITS, NAN_EQUAL = Cmp(), Cmp("bits"), Cmp(nan=True)


@dataclass(frozen=True, slots=True)
class Leaf:
    value: Any
    cmp: Cmp


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Attrs:
    """An object by what is looked at: only the fields named."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """A dict, complete."""

    items: dict[Any, Any]


Want = Leaf | Seq | Attrs | Keys


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer is not what it must be."""

    where: str
    expected: str
    got: str
    note: str = ""
    gap: float | None = None
    allowed: float | None = None


@dataclass(slots=True)
class Labels:
    """One one-to-one renaming of ids, kept for a whole case.

    A label names one thing, and code may give a freed id to the next thing: a label never seen before takes
    over the id of one that was last seen at an earlier moment, and that one is dead from then on.
    """

    there: dict[Any, Any] = field(default_factory=dict)
    back: dict[Any, Any] = field(default_factory=dict)
    seen: dict[Any, int] = field(default_factory=dict)  # when each label was last compared
    moment: int = 0

    def same(self, want: Any, got: Any) -> bool:
        if want not in self.there:
            if got in self.back and self.seen[self.back[got]] == self.moment:
                return False  # both are there now
            self.there[want], self.back[got] = got, want
        self.seen[want] = self.moment
        return bool(self.there[want] == got and self.back[got] == want)

    def id_of(self, label: int) -> int | None:
        """The id that stood where this label was expected; None if it has not been seen."""
        kind, found = self.there.get((int, label), (int, None))
        return found if kind is int else None


def cmp_of(node: dict[str, Any]) -> Cmp:
    """The comparator that stands in a mapping; its keys are closed, its numbers make sense."""
    kind = node.get("cmp", "exact")
    if kind not in COMPARATORS:
        raise BadValue(f"no comparator {kind!r}; there are {', '.join(COMPARATORS)}")
    for key in NEEDED.get(kind, ()):
        if key not in node:
            raise BadValue(f"cmp: {kind} needs {key}")
    if kind == "close" and not ("rtol" in node or "atol" in node):
        raise BadValue("cmp: close needs rtol or atol")
    if kind == "dist" and node.get("test") != "chi2":
        raise BadValue("cmp: dist needs test: chi2")
    if extra := sorted(set(node) & COMPARE_KEYS - KEYS[kind] - {"cmp", "why"}):
        raise BadValue(f"cmp: {kind} takes no {extra[0]}")
    if node.get("nan", "same_place") != "same_place":
        raise BadValue("nan takes only same_place")
    numbers = {key: node[key] for key in ("max", "rtol", "atol", "bound", "n", "alpha") if key in node}
    for key, value in numbers.items():
        if type(value) not in (int, float) or (value < 0 and key != "bound"):
            raise BadValue(f"{key} takes a number that is not negative, not {value!r}")
    if kind == "dist" and (type(numbers["n"]) is not int or numbers["n"] < 1 or not 0 < numbers["alpha"] < 1):
        raise BadValue("cmp: dist needs an integer n >= 1 and alpha between 0 and 1")
    return Cmp(kind, nan="nan" in node, stated="cmp" in node, **numbers)


def leaf_of(node: dict[str, Any], key: str, data: Path | None, default: Cmp | None) -> Leaf:
    """A typed value and its comparator, which must be one for that kind of value."""
    cmp = cmp_of(node) if default is None or set(node) & COMPARE_KEYS else default
    value = decode({"tuple": node[key]} if key == "tuple" else node, data)
    if default is None and cmp.stated and not suits(cmp.kind, key):
        raise BadValue(f"cmp: {cmp.kind} does not go with {key}")
    if cmp.kind in UNORDERED and _items(value) is None:
        raise BadValue(f"cmp: {cmp.kind} takes integers, text or bytes")
    if cmp.kind == "set" and len(set(_items(value) or ())) != np.size(value):
        raise BadValue("cmp: set takes distinct values; multiset counts them")
    if cmp.kind == "dist" and not (isinstance(value, np.ndarray) and value.ndim == 1 and _adds_to_one(value)):
        raise BadValue("cmp: dist takes a list of probabilities that add up to 1")
    return Leaf(value, cmp)


def suits(cmp: str, key: str) -> bool:
    if cmp in UNORDERED:
        return key == "tuple" or (key in DTYPES and key not in FLOATS)
    if cmp in ("exact", "bits"):
        return key != "tuple"
    return key == "f64" if cmp == "dist" else key in FLOATS


def _adds_to_one(p: Array) -> bool:
    return bool((p >= 0).all() and abs(math.fsum(p.tolist()) - 1) <= 2.0**-40)


def want_of(node: Any, data: Path | None = None, default: Cmp | None = None) -> Want:
    """An `expect` node as something to compare with; `default` judges floats that name no comparator."""
    plain = default or EXACT
    key = typed_key(node)
    if key is not None and (key != "tuple" or "cmp" in node):
        return leaf_of(node, key, data, default)
    if isinstance(node, dict) and key is None:
        form = next((form for form in ("attrs", "keys") if set(node) == {form}), None)
        items = node[form] if form else node
        if not isinstance(items, dict) or (form == "attrs" and not items):
            raise BadValue(f"{form} takes a mapping of names to values, not {items!r}")
        if form is None and set(items) & COMPARE_KEYS:
            found = sorted(set(items) & COMPARE_KEYS)[0]
            raise BadValue(f"{found!r} stands beside a typed value; a dict that has it is {{keys: {{..}}}}")
        wants = {k: want_of(v, data, default) for k, v in items.items()}
        return Attrs(wants) if form == "attrs" else Keys(wants)
    if isinstance(node, list) or key == "tuple":
        items = node["tuple"] if key else node
        if not isinstance(items, list) or set(node if key else ()) - {"tuple"}:
            raise BadValue("tuple takes a list, and the keys of a comparator")
        return Seq(tuple(want_of(item, data, default) for item in items))
    if isinstance(node, float) and default is None:
        raise BadValue("a bare float has no comparator: write {f64: .., cmp: ..}")
    return Leaf(node, plain)


def want_value(value: Any, cmp: Cmp) -> Want:
    """What an oracle or the reference answered, as something to compare with."""
    if isinstance(value, (list, tuple)):
        return Seq(tuple(want_value(item, cmp) for item in value))
    if isinstance(value, Fields):
        return Attrs({k: want_value(v, cmp) for k, v in value.fields.items()})
    if isinstance(value, dict):
        if set(value) == {"labels"}:  # how a model marks its ids
            return Leaf(settled(value["labels"]), Cmp("labels"))
        if set(value) == {"attrs"}:
            return Attrs({name: want_value(item, cmp) for name, item in value["attrs"].items()})
        return Keys({k: want_value(v, cmp) for k, v in value.items()})
    return Leaf(settled(value), cmp)


def settled(value: Any) -> Any:
    """NumPy scalars of a Python kind as that kind, as they are after the wire."""
    if isinstance(value, (list, tuple)):
        return [settled(item) for item in value]
    if isinstance(value, dict):
        return {settled(k): settled(v) for k, v in value.items()}
    return value.item() if isinstance(value, (np.bool_, np.integer, np.float64)) else value


def show_want(want: Want | dict[str, str] | None) -> str:
    match want:
        case {"raises": kind}:
            return f"raises {kind}"
        case Leaf(value, _):
            return show(value)
        case Seq(items):
            return "[" + ", ".join(show_want(w) for w in items) + "]"
        case Attrs(fields):
            return "an object with " + ", ".join(f"{k}={show_want(w)}" for k, w in fields.items())
        case Keys(items):
            return "{" + ", ".join(f"{k}: {show_want(w)}" for k, w in items.items()) + "}"
    return "a value"


def compare(want: Want, got: Any, where: str = "return", labels: Labels | None = None) -> Difference | None:
    """The first difference, or None if there is none."""
    labels = labels or Labels()
    match want:
        case Seq(items):
            if not isinstance(got, (list, tuple)) or len(got) != len(items):
                return Difference(where, f"a sequence of {len(items)} {show_want(want)}", described(got))
            parts = ((f"{where}[{i}]", w, g) for i, (w, g) in enumerate(zip(items, got, strict=True)))
        case Attrs(fields):
            if not isinstance(got, Fields):
                return Difference(where, show_want(want), described(got))
            for name in fields:
                if name not in got.fields:
                    return Difference(f"{where}.{name}", show_want(fields[name]), "no such attribute")
            parts = ((f"{where}.{name}", w, got.fields[name]) for name, w in fields.items())
        case Keys(items):
            got = got.fields if isinstance(got, Fields) else got
            if not isinstance(got, dict):
                return Difference(where, f"a dict {show_want(want)}", described(got))
            if set(got) != set(items):
                missing = [str(k) for k in items if k not in got]
                extra = [str(k) for k in got if k not in items]
                both = (("missing", missing), ("surplus", extra))
                note = "; ".join(f"{what} {', '.join(names)}" for what, names in both if names)
                whole = show_want(want), show(got)
                if max(map(len, whole)) <= 80:
                    return Difference(where, *whole)
                keys = [f"keys {', '.join(map(str, found))}" for found in (items, got)]
                return Difference(where, keys[0], keys[1], note)
            parts = ((f"{where}[{k!r}]", w, got[k]) for k, w in items.items())
        case Leaf(value, cmp):
            return compare_leaf(value, cmp, got, where, labels)
    for place, w, g in parts:
        difference = compare(w, g, place, labels)
        if difference is not None:
            return difference
    return None


def compare_leaf(want: Any, cmp: Cmp, got: Any, where: str, labels: Labels) -> Difference | None:
    if type(want) is type(got) and alike(want, cmp.kind, got):
        return None
    if cmp.kind in ("at_least", "at_most"):
        return _bounded(cmp, got, where)
    if cmp.kind == "dist":
        return _chi2(want, cmp, got, where)
    if cmp.kind in UNORDERED:
        return _unordered(want, cmp, got, where, labels)
    if _kind(want) != _kind(got):
        return Difference(where, described(want), described(got), OTHER_KIND)
    if isinstance(want, (np.ndarray, np.generic, float)):
        return compare_numbers(np.asarray(want), cmp, np.asarray(got), where, isinstance(want, np.ndarray))
    # Exact kinds from here: bool, int, text, bytes, null.
    return None if type(want) is type(got) and want == got else Difference(where, show(want), show(got))


def alike(want: Any, kind: str, got: Any) -> bool:
    """The quick yes for two values of one type that are the same; never for NaN, and no is no verdict."""
    if kind not in NUMERIC:
        return False
    if isinstance(want, np.ndarray):
        same = want.dtype == got.dtype and want.shape == got.shape and want.tobytes() == got.tobytes()
        number = want.dtype.kind in "iub" or (
            want.dtype.kind == "f" and (kind == "bits" or not np.isnan(want).any())
        )
        return bool(same and number)
    return type(want) in PLAIN and kind != "bits" and bool(want == got)


def _kind(value: Any) -> str:
    """Kinds that never stand for each other; a tensor's kind includes dtype and shape."""
    if type(value) is float or type(value) is int:
        return type(value).__name__
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and not isinstance(value, np.float64)):
        return f"{NAMES.get(value.dtype, value.dtype)}{list(value.shape)}"
    return type(value).__name__ if not isinstance(value, float) else "float"


def compare_numbers(want: Array, cmp: Cmp, got: Array, where: str, tensor: bool) -> Difference | None:
    if (want.dtype.kind != "f" and want.dtype != BF16) or cmp.kind == "bits":
        word = np.dtype(f"<u{want.dtype.itemsize}")
        return _report(np.asarray(want.view(word) == got.view(word)), want, got, where, tensor)
    grain = 1.0
    if want.dtype == BF16:
        want, got, grain = widened(want), widened(got), 65536.0
    with np.errstate(all="ignore"):
        same = want == got  # equal infinities too; NaN is never equal
        if cmp.nan:
            same = same | (np.isnan(want) & np.isnan(got))
        finite = np.isfinite(want) & np.isfinite(got)
        if cmp.kind == "rel_l2":
            return _rel_l2(want, cmp, got, same, finite, where)
        if cmp.kind == "ulp":
            gap, allowed = ulp_distance(want, got) / grain, cmp.max
            ok = same | (finite & (gap <= allowed))
        elif cmp.kind == "close":
            distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
            tolerance = cmp.atol + cmp.rtol * np.abs(want.astype(np.float64))
            ok = same | (finite & (distance <= tolerance))
            gap, allowed = distance / tolerance, 1.0
        else:
            return _report(np.asarray(same), want, got, where, tensor)
        gap = np.where(finite & np.isfinite(gap), gap, np.nan)
    return _report(np.asarray(ok), want, got, where, tensor, gap, allowed, cmp)


def ulp_distance(want: Array, got: Array) -> Array:
    """How many representable values lie between, in the dtype of both; -0 and +0 are the same value.

    >>> ulp_distance(np.array([1.0, -0.0]), np.array([1.0 + 2**-52, 5e-324])).tolist()
    [1.0, 1.0]
    """
    unsigned = np.dtype(f"<u{want.dtype.itemsize}")
    sign = unsigned.type(1 << (8 * want.dtype.itemsize - 1))

    def ordered(x: Array) -> Array:
        raw = x.view(unsigned)
        size = raw & ~sign
        return np.asarray(np.where(raw & sign, sign - size, sign + size))

    a, b = ordered(want), ordered(got)
    return np.asarray((np.maximum(a, b) - np.minimum(a, b)).astype(np.float64))


def _report(
    ok: Array, want: Array, got: Array, where: str, tensor: bool,
    gap: Array | None = None, allowed: float | None = None, cmp: Cmp | None = None,
) -> Difference | None:  # fmt: skip
    if ok.all():
        return None
    wrong = np.flatnonzero(~ok.reshape(-1))
    worst = gap.reshape(-1)[wrong] if gap is not None else None
    at = int(wrong[0])
    place = where + (str(list(map(int, np.unravel_index(at, want.shape)))) if tensor and want.ndim else "")
    notes = [f"{len(wrong)} of {ok.size} differ"] if tensor and want.ndim else []
    if gap is not None and cmp is not None and worst is not None:
        first = float(gap.reshape(-1)[at])
        if math.isfinite(first):
            size = f"{first:.0f} ulp" if cmp.kind == "ulp" else f"{first:.3g} times the tolerance"
            notes.append(f"off by {size}")
        if cmp.kind == "ulp":
            notes.append(f"allowed {cmp.max:g} ulp")
    pair = [x.reshape(-1)[at] for x in (want, got)]
    texts = [show(x) for x in pair]
    if pair[0].tobytes() == pair[1].tobytes():
        notes.append("NaN is refused")
    elif texts[0] == texts[1]:  # two NaNs under `bits`
        texts = [f"{text} 0x{x.tobytes()[::-1].hex()}" for text, x in zip(texts, pair, strict=True)]
    return Difference(
        place, texts[0], texts[1], ", ".join(notes),
        float(np.nanmax(worst)) if worst is not None and not np.all(np.isnan(worst)) else None, allowed,
    )  # fmt: skip


def _rel_l2(want: Array, cmp: Cmp, got: Array, same: Array, finite: Array, where: str) -> Difference | None:
    if not (same | finite).all():
        return _report(same | finite, want, got, where, True)
    a, b = want.astype(np.float64)[finite], got.astype(np.float64)[finite]
    scale, error = math.hypot(*a), math.hypot(*(a - b))  # hypot neither overflows nor underflows on the way
    relative = error / scale if scale > 0 else (0.0 if error == 0 else math.inf)
    if relative <= cmp.max:
        return None
    return Difference(where, f"within {cmp.max:g} in relative L2", f"{relative:.3g}", "", relative, cmp.max)


def _bounded(cmp: Cmp, got: Any, where: str) -> Difference | None:
    number = float(got) if isinstance(got, (int, float)) and not isinstance(got, bool) else math.nan
    ok = number >= cmp.bound if cmp.kind == "at_least" else number <= cmp.bound
    return None if ok else Difference(where, f"{cmp.kind.replace('_', ' ')} {cmp.bound:g}", show(got))


def _items(value: Any) -> list[tuple[type, Any]] | None:
    """The elements with their types, because True == 1 in Python and not here."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        value = value.reshape(-1).tolist()
    elif isinstance(value, (bool, int)):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(x, (int, str, bytes)) for x in value):
        return None
    return [(type(x), x) for x in value]


def _unordered(want: Any, cmp: Cmp, got: Any, where: str, labels: Labels) -> Difference | None:
    a, b = _items(want), _items(got)
    sequences = isinstance(want, (list, tuple)) and isinstance(got, (list, tuple))
    if a is None or b is None or not (sequences or _kind(want) == _kind(got)):
        return Difference(where, described(want), described(got), OTHER_KIND)
    if cmp.kind == "labels":
        ok = len(a) == len(b) and all(x[0] is y[0] and labels.same(x, y) for x, y in zip(a, b, strict=True))
        return None if ok else Difference(where, show(want), show(got), "not equal up to one renaming")
    ok = Counter(a) == Counter(b)  # the values of a set are distinct, so a set is a multiset
    return None if ok else Difference(where, f"{cmp.kind} {show(want)}", show(got))


def _chi2(want: Any, cmp: Cmp, got: Any, where: str) -> Difference | None:
    """Pearson's test of n sampled ids against probabilities."""
    p = np.asarray(want, np.float64).reshape(-1)
    ids = [x for kind, x in _items(got) or () if kind is int]
    if len(ids) != cmp.n or isinstance(got, int) or len(ids) != np.size(got):
        return Difference(where, f"{cmp.n} sampled ids", f"{kind_of(got)}")
    if not all(0 <= i < len(p) for i in ids):
        return Difference(where, f"ids in [0, {len(p)})", show(got))
    counts = np.bincount(np.asarray(ids, np.int64), minlength=len(p))
    if np.any(counts[p == 0] > 0):
        return Difference(where, "no id of probability 0", f"id {int(np.flatnonzero(counts * (p == 0))[0])}")
    live = p > 0
    statistic = float(np.sum((counts[live] - cmp.n * p[live]) ** 2 / (cmp.n * p[live])))
    value = chi2_tail(statistic, int(live.sum()) - 1)
    if value >= cmp.alpha:
        return None
    note = f"statistic {statistic:.4g}"
    return Difference(where, f"chi-square p >= {cmp.alpha:g}", f"p = {value:.3g}", note)


def chi2_tail(x: float, dof: int) -> float:
    """P(chi-square with dof degrees of freedom >= x), by its finite sums.

    >>> round(chi2_tail(10.828, 1), 6), round(chi2_tail(18.467, 4), 6)
    (0.001, 0.001)
    """
    if dof < 1:
        return 1.0
    if dof % 2 == 0:
        term = total = math.exp(-x / 2)
        for k in range(1, dof // 2):
            term *= x / (2 * k)
            total += term
        return total
    total = math.erfc(math.sqrt(x / 2))
    term = math.exp(-x / 2) * math.sqrt(2 * x / math.pi)
    for k in range(1, (dof + 1) // 2):
        total += term
        term *= x / (2 * k + 1)
    return total
