"""What a schema cannot say about a case: verbs, names, twins, observables. One fault, one line, one place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from grader import schema, strict_yaml
from grader.check_values import Place, Values
from grader.compare import TOLERANCES, cmp_of
from grader.errors import OwnFault, near
from grader.fixtures import Case
from grader.values import COMPARE_KEYS, BadValue, typed_key

STEP_VERBS = ("do", "get", "call", "new")
COMMON = {
    "id", "replaces", "rule", "flags", "oracle", "level",
    "reveal", "kills", "hints", "needs", "limit_s", "cost",
}  # fmt: skip
FORMS = {  # the keys of each verb
    "call": COMMON | {"call", "on", "args", "objects", "mutates", "expect", "twin"},
    "trace": COMMON | {"new", "args", "objects", "steps"},
    "property": COMMON | {"call", "on", "args", "objects", "mutates", "property"},
    "perf": COMMON | {"call", "on", "args", "objects", "perf"},
    "answer": COMMON | {"answer", "expect", "reject"},
    "script": COMMON | {"new", "args", "property"},
}
LISTS = ("rule", "flags", "oracle", "kills", "hints", "needs", "mutates")


class Reader(Values):
    """Collects a unit's case files; `finish` checks what crosses files."""

    def __init__(self, unit: str, root: Path) -> None:
        super().__init__(unit)
        self.root = root
        self.hints: dict[str, list[str]] = {}
        self.cases: dict[str, Case] = {}
        self.where: dict[str, str] = {}

    # -- one file -----------------------------------------------------------------------------------

    def read(self, path: Path, raw: bytes) -> None:
        self.name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        self.data = path.parent
        self.marked = strict_yaml.load_marked(raw, self.name)
        document = self.marked.value
        if isinstance(document, dict) and "format" in document:
            schema.check_format(document["format"], self.marked.at(("format",)))
        fault = schema.first_fault("fixture", document)
        if fault is not None:
            self.refuse(fault[0], fault[1])
        if document["unit"] != self.unit:
            self.refuse(("unit",), f"unit {document['unit']!r} in the folder of {self.unit!r}")
        for topic, rungs in document.get("hints", {}).items():
            if topic in self.hints:
                self.refuse(("hints", topic), f"hint {topic!r} is defined twice")
            self.hints[topic] = rungs
        for name, look in document.get("observables", {}).items():
            self.look(look, ("observables", name))
        self.seen: set[str] = set()  # the observables that a case names
        for i, raw_case in enumerate(document["cases"]):
            self.case(document, raw_case, ("cases", i))
        used = {name for c in document["cases"] for name in c.get("flags", [])}
        self.unused("flags", document.get("flags", {}), used)
        self.unused("oracles", document["oracles"], {name for c in document["cases"] for name in c["oracle"]})
        self.unused("observables", document.get("observables", {}), self.seen)

    def unused(self, what: str, defined: dict[str, Any], used: set[str]) -> None:
        for name in defined:
            if name not in used:
                self.refuse((what, name), f"{name!r} is defined and no case uses it")

    # -- one case -----------------------------------------------------------------------------------

    def case(self, document: dict[str, Any], raw: dict[str, Any], at: Place) -> None:
        name = raw["id"]
        if not name.startswith(self.unit + "/"):
            self.refuse((*at, "id"), f"{name!r} does not start with {self.unit + '/'!r}")
        if name in self.cases:
            self.refuse((*at, "id"), f"{name!r} is defined twice", "ids are never reused")
        for key in LISTS:
            names = raw.get(key, [])
            if len(set(names)) < len(names):
                self.refuse((*at, key), "a name stands twice")
        for key, defined in (("flags", document.get("flags", {})), ("oracle", document["oracles"])):
            for j, used in enumerate(raw.get(key, [])):
                if used not in defined:
                    self.refuse((*at, key, j), f"{used!r} is not defined in this file" + near(used, defined))
        kinds = [document["oracles"][name]["kind"] for name in raw["oracle"]]
        if raw.get("level", "required") == "required" and all(kind == "reference" for kind in kinds):
            self.refuse((*at, "oracle"), "a required case needs an oracle that is not the reference")
        case = Case(
            name, self.unit, self.name, self.marked.line(at), raw, document["title"],
            document["oracles"], document.get("observables", {}), document.get("flags", {}),
        )  # fmt: skip
        form = "script" if "script" in raw.get("property", {}) else case.verb
        a_form = f"an {form}" if form == "answer" else f"a {form}"
        if surplus := [key for key in raw if key not in FORMS[form]]:
            self.refuse((*at, surplus[0]), f"{surplus[0]!r} does not go with {a_form}")
        self.named, self.used = set(), set()
        for j, spec in enumerate(raw.get("objects", [])):
            place = (*at, "objects", j)
            if spec["id"] in {*self.named, "it"}:
                self.refuse((*place, "id"), f"the name {spec['id']!r} is taken")
            self.values(spec.get("args", {}), (*place, "args"))
            self.named.add(spec["id"])
        if "new" in raw:
            self.named.add("it")
        getattr(self, f"_{form}")(case, at)
        for j, spec in enumerate(raw.get("objects", [])):
            if spec["id"] not in self.used:
                self.refuse((*at, "objects", j, "id"), f"{spec['id']!r} is built and nothing uses it")
        self.cases[name], self.where[name] = case, f"{self.name}:{case.line}"

    def look(self, look: dict[str, Any], at: Place) -> None:
        """How an object is looked at: one of do, get, call."""
        verbs = [verb for verb in STEP_VERBS if verb in look]
        if len(verbs) != 1:
            self.refuse(at, f"one of do, get, call, found {', '.join(verbs) or 'none'}")
        if "get" in look and "args" in look:
            self.refuse((*at, "args"), "get takes no args")
        if look.get("path") == []:
            self.refuse((*at, "path"), "an empty path")

    def observes(self, case: Case, name: str, at: Place) -> None:
        """A case names an observable; what it looks at must be there in this case."""
        look = case.observables.get(name)
        if look is None:
            self.refuse(at, f"no observable {name!r}" + near(name, case.observables))
        self.seen.add(name)
        if "on" in look:
            self.use(look["on"], at, f"observable {name!r}: ")
        elif "get" in look and "new" not in case.raw:
            self.refuse(at, f"observable {name!r} needs an object: `on`, or a case with `new`")
        self.values(look.get("args", {}), ("observables", name, "args"), labels="steps" in case.raw)

    # -- call ---------------------------------------------------------------------------------------

    def _call(self, case: Case, at: Place) -> None:
        raw, expect = case.raw, case.raw["expect"]
        self.values(raw.get("args", {}), (*at, "args"))
        self.on(raw, at)
        answers = [key for key in ("return", "raises", "accept") if key in expect]
        if len(answers) > 1:
            self.refuse((*at, "expect"), f"{' and '.join(answers)}: one of them")
        if not answers and not expect.get("args") and not expect.get("after"):
            self.refuse((*at, "expect"), "expects nothing")
        self.expected(expect, (*at, "expect"))
        policies = [option["policy"] for option in expect.get("accept", [])]
        if len(set(policies)) < len(policies):
            self.refuse((*at, "expect", "accept"), "a policy stands twice")
        for j, option in enumerate(expect.get("accept", [])):
            place = (*at, "expect", "accept", j)
            if ("return" in option) == ("raises" in option):
                self.refuse(place, "one of return, raises")
            self.expected(option, place)
        self.mutated(raw, at)
        self.becomes(raw, expect, (*at, "expect", "args"))
        for name, look in expect.get("after", {}).items():
            place = (*at, "expect", "after", name)
            self.use(name, place)
            self.look(look, place)
            self.values(look.get("args", {}), (*place, "args"))
            self.expected_value(look["return"], (*place, "return"))
        if "raises" in expect and "twin" not in raw:
            self.refuse(at, "a raising case names its twin: the same call that must pass", "twin: <case id>")
        if "raises" not in expect and "twin" in raw:
            self.refuse((*at, "twin"), "a twin belongs to a case that raises")

    def expected(self, expect: dict[str, Any], at: Place) -> None:
        if "return" in expect:
            self.expected_value(expect["return"], (*at, "return"))
        if "raises" in expect:
            self.kind(expect["raises"], (*at, "raises"))

    def mutated(self, raw: dict[str, Any], at: Place, drawn: set[str] | None = None) -> None:
        args = raw.get("args", {})
        for j, name in enumerate(raw.get("mutates", [])):
            place = (*at, "mutates", j)
            if drawn is not None and name in drawn:
                continue
            if name not in args:
                self.refuse(place, f"{name!r} is no argument of the case")
            key = typed_key(args[name])
            if key == "ref":
                self.refuse(place, f"{name!r} is a ref, which may change", "say what it becomes in `after`")
            held = args[name][key] if key else args[name]
            if not isinstance(held, (dict, list)) and key not in ("new", "call"):
                self.refuse(place, f"{name!r} is a value that cannot change")

    def becomes(self, raw: dict[str, Any], expect: dict[str, Any], at: Place) -> None:
        for name, node in expect.get("args", {}).items():
            if name not in raw.get("mutates", []):
                self.refuse((*at, name), f"{name!r} may not change: it is not in mutates")
            self.expected_value(node, (*at, name))
        if "raises" in expect and "args" in expect:
            self.refuse(at, "arguments are not looked at after a raise")

    def on(self, raw: dict[str, Any], at: Place) -> None:
        if "on" in raw:
            self.use(raw["on"], (*at, "on"))

    # -- answer -------------------------------------------------------------------------------------

    def _answer(self, case: Case, at: Place) -> None:
        from grader import solve

        raw, place = case.raw, (*at, "expect")
        if len(raw["expect"]) != 1 or set(raw["expect"]) - solve.KINDS:
            self.refuse(place, f"an answer expects one of {', '.join(sorted(solve.KINDS))}")
        ((kind, expect),) = raw["expect"].items()
        if expect is None:
            self.refuse((*place, kind), "no value yet", f"ol author build {self.unit}")
        if isinstance(expect, dict):
            self.expected_value(expect, (*place, kind))
        if kind == "proof" and case.required:
            self.refuse(at, "a proof is read by the learner alone: level extra")
        if kind != "proof" and not raw.get("reject"):
            self.refuse(at, "an answer lists a wrong one", "reject: [{value: .., bug: .., hint: ..}]")
        if raw["answer"] in {other.raw["answer"] for other in self.cases.values()}:
            self.refuse((*at, "answer"), f"{raw['answer']!r} is asked twice")
        try:
            solve.want(kind, expect)
        except solve.Unreadable as error:
            self.refuse((*place, kind), str(error))
        for j, reject in enumerate(raw.get("reject", [])):
            spot = (*at, "reject", j, "value")
            try:
                right = solve.right(kind, expect, solve.read(kind, expect, reject["value"]))
            except solve.Unreadable as error:
                self.refuse(spot, str(error))
            if right:
                self.refuse(spot, "this is the right answer")
            self.hints[solve.topic(case, j + 1)] = [reject["hint"]]

    # -- trace --------------------------------------------------------------------------------------

    def _trace(self, case: Case, at: Place) -> None:
        raw = case.raw
        if "new" in raw:
            self.values(raw.get("args", {}), (*at, "args"))
        elif "args" in raw:
            self.refuse((*at, "args"), "args without new")
        for j, step in enumerate(raw["steps"]):
            self.step(case, step, (*at, "steps", j))
        if not any({"return", "raises", "state"} & set(step) for step in raw["steps"]):
            self.refuse((*at, "steps"), "a trace has at least one state, return or raises")
        works = {named_by(step) for step in raw["steps"] if "raises" not in step}
        for j, step in enumerate(raw["steps"]):
            if "raises" in step and named_by(step) not in works:
                what = f"{named_by(step)} only raises here: the trace needs a step where it works"
                self.refuse((*at, "steps", j), what)

    def step(self, case: Case, step: dict[str, Any], at: Place) -> None:
        verbs = [verb for verb in STEP_VERBS if verb in step]
        if len(verbs) != 1:
            self.refuse(at, f"one of {', '.join(STEP_VERBS)}, found {', '.join(verbs) or 'none'}")
        ends = [key for key in ("return", "raises", "save") if key in step]
        if len(ends) > 1:
            self.refuse(at, f"{' and '.join(ends)}: at most one of them")
        self.on(step, at)
        if verbs[0] == "new" and "on" in step:
            self.refuse((*at, "on"), "new takes no on")
        if verbs[0] == "get" and "on" not in step and "new" not in case.raw:
            self.refuse(at, "get needs an object: `on`, or a case with `new`")
        if verbs[0] == "get" and "args" in step:
            self.refuse((*at, "args"), "get takes no args")
        self.values(step.get("args", {}), (*at, "args"), labels=True)
        self.mutated(step, at)
        self.expected(step, at)
        if "save" in step:
            if step["save"] in {*self.named, "it"}:
                self.refuse((*at, "save"), f"the name {step['save']!r} is taken")
            self.named.add(step["save"])
        for name, node in step.get("state", {}).items():
            place = (*at, "state", name)
            self.observes(case, name, place)
            if isinstance(node, dict) and set(node) == {"raises"}:
                self.kind(str(node["raises"]), place)
            else:
                self.expected_value(node, place)

    # -- property -----------------------------------------------------------------------------------

    def _property(self, case: Case, at: Place) -> None:
        raw, prop, place = case.raw, case.raw["property"], (*at, "property")
        if "given" not in prop:
            self.refuse(place, "one of given, script")
        if "call" not in raw:
            self.refuse(at, "a property calls something: call, or new with a script")
        if ("holds" in prop) == ("same_as" in prop):
            self.refuse(place, "one of holds, same_as")
        if "observables" in prop:
            self.refuse((*place, "observables"), "observables go with a script")
        if prop.get("same_as", "").startswith("oracle."):
            self.refuse((*place, "same_as"), "a model goes with a script")
        kinds = {case.oracles[name]["kind"] for name in raw["oracle"]}
        if prop.get("same_as") == "reference" and "reference" not in kinds:
            self.refuse((*place, "same_as"), "name an oracle of kind reference for it")
        self.judged(prop, place)
        self.values(raw.get("args", {}), (*at, "args"))
        self.on(raw, at)
        drawn = self.given(prop["given"], (*place, "given"))
        for name in raw.get("args", {}):
            if drawn is not None and name in drawn:
                self.refuse((*place, "given", name), f"{name!r} is drawn and stands in args")
        if drawn is not None:
            self.mutated(raw, at, drawn)

    def given(self, given: dict[str, Any], at: Place) -> set[str] | None:
        """The arguments that are drawn one by one; None when one draw yields them all."""
        if isinstance(given.get("draw"), str):
            self.drawing(given, at)
            return None
        for name, node in given.items():
            self.drawing(node, (*at, name))
        if not given:
            self.refuse(at, "draws nothing")
        return set(given)

    def drawing(self, node: Any, at: Place) -> None:
        keys = set(node) if isinstance(node, dict) else set()
        if "draw" not in keys or keys - {"draw", "with"} or not isinstance(node["draw"], str):
            self.refuse(at, "a draw is {draw: <name>, with: {..}}")
        if not isinstance(node.get("with", {}), dict):
            self.refuse((*at, "with"), "with is a mapping of names to values")
        self.written(node.get("with", {}), (*at, "with"))

    def judged(self, prop: dict[str, Any], at: Place) -> None:
        """The comparator of a `same_as`; a law judges by itself."""
        if "holds" in prop:
            for key in prop:
                if key in COMPARE_KEYS:
                    self.refuse((*at, key), f"{key!r} does not go with holds: a law judges")
            return
        if "cmp" not in prop:
            self.refuse(at, "same_as needs cmp: floats have no default comparator")
        if prop["cmp"] in TOLERANCES and not prop.get("why"):
            self.refuse((*at, "cmp"), f"cmp: {prop['cmp']} needs why: where does the number come from?")
        try:
            cmp_of(prop)
        except BadValue as error:
            self.refuse((*at, "cmp"), str(error))

    # -- perf ---------------------------------------------------------------------------------------

    def _perf(self, case: Case, at: Place) -> None:
        raw, perf, place = case.raw, case.raw["perf"], (*at, "perf")
        few, many = perf["sizes"]
        if few >= many:
            self.refuse((*place, "sizes"), f"[{few}, {many}]: the second run must be the longer one")
        self.judged(perf["check"], (*place, "check"))
        self.values(raw.get("args", {}), (*at, "args"))
        self.on(raw, at)
        drawn = self.given(perf["given"], (*place, "given"))
        for name in raw.get("args", {}):
            if drawn is not None and name in drawn:
                self.refuse((*place, "given", name), f"{name!r} is drawn and stands in args")
        measure, there = perf["measure"], (*place, "measure")
        against = measure.get("against")
        if isinstance(against, dict):
            self.values(against["args"], (*there, "against", "args"))
        if against == "naive" and not (self.data / "baseline" / "naive.py").is_file():
            self.refuse((*there, "against"), "there is no baseline/naive.py", "write it beside this file")
        if not {"max", "min"} & set(measure) and against != "self":
            self.refuse(
                there, "one of max, min", "only beside itself does code have a ratio that is known: 1"
            )
        if measure["metric"] == "work":
            self.counted(measure, there)
        else:
            if against is None:
                self.refuse(there, "a time_ratio needs against", "seconds of one machine alone mean nothing")
            if "counter" in measure:
                self.refuse((*there, "counter"), "a counter goes with metric: work")
            pairs = measure.get("pairs", [0, 1])
            if pairs[0] > pairs[1]:
                self.refuse((*there, "pairs"), f"[{pairs[0]}, {pairs[1]}]: at least, at most")

    def counted(self, measure: dict[str, Any], at: Place) -> None:
        counter = measure.get("counter")
        if counter is None or ("get" in counter) == ("do" in counter):
            self.refuse(at, "metric: work needs counter: {on: <object>, get: <name>}, or do for get")
        self.use(counter["on"], (*at, "counter", "on"))
        if measure.get("against") == "self":
            self.refuse((*at, "against"), "work beside itself is always the same")
        if "pairs" in measure:
            self.refuse((*at, "pairs"), "counted work does not vary: pairs go with time_ratio")

    # -- script -------------------------------------------------------------------------------------

    def _script(self, case: Case, at: Place) -> None:
        raw, prop, place = case.raw, case.raw["property"], (*at, "property")
        if "given" in prop:
            self.refuse((*place, "given"), "one of given, script")
        if "new" not in raw or "holds" in prop or not prop.get("same_as", "").startswith("oracle."):
            self.refuse(place, "a script needs new, and same_as: oracle.<Model>")
        self.judged(prop, place)
        self.values(raw.get("args", {}), (*at, "args"))
        self.written(prop["script"].get("with", {}), (*place, "script", "with"))
        for j, name in enumerate(prop.get("observables", [])):
            self.observes(case, name, (*place, "observables", j))
            if "call" in case.observables[name]:
                what = f"a model is looked at by do or get, and {name!r} is a call"
                self.refuse((*place, "observables", j), what)

    # -- across files -------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        alone = [case for case in self.cases.values() if case.required and not by_reference(case)]
        for name, case in self.cases.items():
            where = self.where[name]
            for topic in case.raw.get("hints", []):
                if topic not in self.hints:
                    raise OwnFault(f"{name}: no hint {topic!r}" + near(topic, self.hints), where)
            if "twin" in case.raw:
                self.twin(case, case.raw["twin"], where)
            if case.raw.get("replaces") in self.cases:
                raise OwnFault(f"{name}: replaces {case.raw['replaces']!r}, which still exists", where)
            for rule in case.rules if case.required and by_reference(case) else []:
                if not any(rule in other.rules for other in alone):
                    what = f"{name}: same_as: reference is the only required case of {rule}"
                    raise OwnFault(what, where, "add a case with an oracle of its own")
        cases = [dataclasses.asdict(case) for case in self.cases.values()]
        return {"cases": cases, "hints": self.hints, "errors": self.errors}

    def twin(self, case: Case, name: str, where: str) -> None:
        other = self.cases.get(name)
        if other is None:
            raise OwnFault(f"{case.id}: no twin {name!r}" + near(name, self.cases), where)
        if other.verb != "call" or "raises" in other.raw["expect"]:
            raise OwnFault(f"{case.id}: the twin {name!r} must be a call that returns", where)
        if other.raw["call"] != case.raw["call"]:
            called, wanted = other.raw["call"], case.raw["call"]
            raise OwnFault(f"{case.id}: the twin calls {called!r}, not {wanted!r}", where)
        changed = leaves_changed(handed(case.raw), handed(other.raw))
        if len(changed) != 1:
            what = f"differs in {', '.join(changed)}" if changed else "does not differ"
            raise OwnFault(f"{case.id}: the twin {name!r} {what}; it must differ in one argument", where)


def named_by(step: dict[str, Any]) -> str:
    return str(next(step[verb] for verb in STEP_VERBS if verb in step))


def by_reference(case: Case) -> bool:
    return bool(case.raw.get("property", {}).get("same_as") == "reference")


def handed(raw: dict[str, Any]) -> dict[str, Any]:
    """Everything that is handed to a call: its arguments, its objects, and the object that is asked."""
    built = raw.get("objects", [])
    objects = {f"object {spec['id']}": {"new": spec["new"], "args": spec.get("args", {})} for spec in built}
    return {**raw.get("args", {}), **objects, **({"on": {"ref": raw["on"]}} if "on" in raw else {})}


def leaves_changed(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    """The arguments in which two calls differ; a constructed one counts by its own arguments."""
    changed: list[str] = []
    for name in sorted(set(a) | set(b)):
        x, y = a.get(name), b.get(name)
        if repr(x) == repr(y):
            continue
        if isinstance(x, dict) and isinstance(y, dict) and x.get("new") == y.get("new") and "new" in x:
            changed += leaves_changed(x.get("args", {}), y.get("args", {}), f"{prefix}{name}.")
        else:
            changed.append(prefix + name)
    return changed
