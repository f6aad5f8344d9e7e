"""A C program that makes the calls of a case: for a debugger, and where no worker starts under a sanitizer.

The messages that the judge sends are written down as C, with the same values in memory of their own. The
program knows no expected value: it says what each call gave.
"""

from __future__ import annotations

import math
import re
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader import contract, cstub, fixtures, native
from grader.cworker import NO_SLOT, SHAPED, SIZES
from grader.errors import PASSED, OwnFault, UsageError, near
from grader.fixtures import Case, Unit
from grader.frame import Body
from grader.library import (
    GIVEN,
    HERE,
    Library,
    built,
    bundle,
    environment,
    explained,
    fixture_headers,
    opener,
)
from grader.path import find, read_path
from grader.runner import Runner
from grader.session import Ended, Opener, Workers
from grader.workspace import here

Sent = list[tuple[dict[str, Any], Iterator[bytes]]]
FEW = 64  # elements that are written as numbers; more are written as words
WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
NUMBERS = {"bool": "uint8_t", "f32": "float", "f64": "double"}
NUMBERS |= {f"{u}{n}": f"{'u' * (u == 'u')}int{n}_t" for u in "iu" for n in (8, 16, 32, 64)}
HEAD = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinyllm/tinyllm.h"
#include "testkit.h"
{driver}
/* The memory of arguments stays: what the library leaks is counted at the end. */
const char *__asan_default_options(void)
{{
    return "detect_leaks=0:allocator_may_return_null=1";
}}

/* n bytes of their own, so that every step beyond them is seen. */
static inline void *heap(const void *from, size_t n)
{{
    void *p = malloc(n);
    if (n)
        memcpy(p, from, n);
    return p;
}}

/* n bytes for a call to write. */
static inline void *space(size_t n)
{{
    return memset(malloc(n), 0xA5, n);
}}

static inline float f32(uint32_t bits)
{{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}}

static inline double f64(uint64_t bits)
{{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}}

static void call(const char *name)
{{
    printf("%s", name);
    fflush(stdout);
    tl_set_last_error("");
}}

static void done(void)
{{
    printf("%s%s\\n", *tl_last_error() ? "   slot: " : "", tl_last_error());
}}

static void begin(const char *name)
{{
    tl_allocator hook = {{tk_alloc, tk_release, NULL}};
    tl_set_allocator(&hook);
    printf("\\n%s\\n", name);
}}

/* What is left when every object has been destroyed. */
static void end(void)
{{
    printf("blocks still allocated: %lld. %s\\n", (long long)tk_live(), tk_misuse());
    tk_forget();
}}

"""


class Recorder:
    """A session that keeps what it is sent."""

    def __init__(self, inner: Any, sent: Sent) -> None:
        self.inner, self.sent = inner, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, message: dict[str, Any], limit_s: float, body: Body | None = None) -> None:
        self.sent.append((message, iter(body.parts if body else ())))
        self.inner.send(message, limit_s, body)


def recorded(unit: Unit, case: Case, opened: Opener) -> Sent:
    """What the judge sends for a case, up to its end or to where the code falls."""
    sent: Sent = []
    Runner(unit, lambda: Recorder(opened(), sent), None, jobs=1, shrinking=False).run([case])
    return sent


@dataclass(slots=True)
class Writer:
    """One case as a C function."""

    known: contract.Contract
    lines: list[str] = field(default_factory=list)
    objects: dict[str, str] = field(default_factory=dict)  # the C type of each
    owned: set[str] = field(default_factory=set)  # those that are destroyed at the end
    fresh: bool = True  # whether no call was made since the start
    step: int = 0

    def function(self, case: str, sent: Sent) -> str:
        for message, body in sent:
            self.message(message, body)
        declared = [f"    {of}{name} = {{0}};\n    (void){name};" for name, of in self.objects.items()]
        head = f"static void {identifier(case)}(void)\n{{\n"
        start = [*declared, f'    begin("{case}");']
        return head + "\n".join([*start, *self.lines, *self.ended(), "    end();"]) + "\n}\n\n"

    def ended(self) -> list[str]:
        """The destruction of every object, the youngest first."""
        lines = []
        for name, of in reversed(self.objects.items()):
            if name in self.owned and (ends := self.destroyer(of)):
                lines.append(f"    if ({name})\n        {ends}({name});")
                lines.append(f"    {name} = NULL;")
        return lines

    def destroyer(self, of: str) -> str:
        for name, function in self.known.functions.items():
            if re.search(r"_(destroy|free)$", name) and [kind for _, kind in function.params] == [of.strip()]:
                return name
        return ""

    def message(self, message: dict[str, Any], body: Iterator[bytes]) -> None:
        if "reset" in message and not self.fresh:
            self.lines += [*self.ended(), "    end();"]
        for look in message.get("observe", ()):
            self.message(look, body)
        name = str(message.get("do") or message.get("call") or message.get("new") or "")
        if name not in self.known.functions:
            if name:
                self.zeroed(message, name, body)
            return
        self.fresh = False
        self.step += 1
        self.called(message, name, body)

    def zeroed(self, message: dict[str, Any], kind: str, body: Iterator[bytes]) -> None:
        """A struct, or an array of them, of zeros."""
        of, name = kind.partition("[")[0], message["save"]
        self.objects[name] = f"{of} *"
        self.owned.add(name)
        self.lines.append(f"    {name} = memset(malloc(sizeof({kind})), 0, sizeof({kind}));")
        for member, node in message.get("args", {}).items():
            value = self.value(f"{name}_{member}", "", node, body)
            self.lines.append(f"    {name}->{member} = {value};")

    def called(self, message: dict[str, Any], name: str, body: Iterator[bytes]) -> None:
        function, nodes = self.known.functions[name], dict(message.get("args", {}))
        given: dict[str, str] = {}
        kinds = dict(function.params)
        first = [p for p, kind in function.params if p not in nodes and kind.endswith("*")][:1]
        if "on" in message and first:  # as the worker does
            nodes = {first[0]: {"ref": message["on"]}, **nodes}
        if "new" in message:
            missing = [p for p, _ in function.params if p not in nodes]
            nodes |= {p: {"handle": message["save"]} for p in missing[-1:]}
        self.lines.append(f"\n    /* {self.step} */")
        for param, node in nodes.items():
            given[param] = self.value(f"{param}_{self.step}", kinds[param], node, body, given)
        text = f"{name}({', '.join(given[param] for param, _ in function.params)})"
        shown = function.result
        if "save" in message and "new" not in message:
            of = shown if shown.endswith("*") else f"{shown} "
            self.objects[message["save"]] = of
            text = f"{message['save']} = {text}"
            shown = "void"
        if name not in NO_SLOT:
            self.lines.append(f'    call("{name}");')
        self.lines += [f"    {shown_as(shown, text)}", "    done();"]

    def value(
        self, name: str, kind: str, node: Any, body: Iterator[bytes], given: Mapping[str, str] | None = None
    ) -> str:
        """A wire value as a C expression; what needs memory is declared before."""
        if node is None:
            return "NULL"
        if isinstance(node, bool):
            return str(int(node))
        if isinstance(node, int):
            return integer(node)
        if isinstance(node, float):
            return number(node)
        if isinstance(node, str):
            if not kind.endswith("*"):
                return node  # a constant's name
            return self.memory(name, "char", [str(b) for b in [*node.encode(), 0]])
        form = next(key for key in node if key != "args")
        if form == "function":
            return f"({kind}){node[form]}" if kind else str(node[form])
        if form == "alias":
            return (given or {})[node[form]]
        if form == "ref":
            place = f"{node['ref']}[{node.get('at', 0)}]" + (f".{node['field']}" if "field" in node else "")
            return f"&{place}" if {"at", "field"} & set(node) else str(node["ref"])
        if form == "handle":
            self.objects[node[form]] = kind.removesuffix("*")
            self.owned.add(node[form])
            return f"&{node[form]}"
        if form == "buffer":
            shaped = SHAPED.fullmatch(node[form])
            size = f"sizeof({node[form]})"
            if shaped and shaped[1] in SIZES:
                size = str(SIZES[shaped[1]] * math.prod(int(n) for n in shaped[2].split(",") if n.strip()))
            self.lines.append(f"    void *{name} = space({size});")
            return name
        if form == "new":
            fields = [f".{k} = {self.value(f'{name}_{k}', '', v, body)}" for k, v in node["args"].items()]
            literal = f"({node['new']}){{{', '.join(fields) or '0'}}}"
            if not kind.endswith("*"):
                return literal
            self.lines.append(f"    void *{name} = heap(&{literal}, sizeof({node['new']}));")
            return name
        return self.number_or_array(name, kind, form, node[form], body)

    def number_or_array(self, name: str, kind: str, form: str, spec: Any, body: Iterator[bytes]) -> str:
        if form == "int":
            return integer(int(spec))
        if form == "f64" and isinstance(spec, str):
            return number(struct.unpack(">d", bytes.fromhex(spec))[0])
        if form == "bytes":
            return self.memory(name, "uint8_t", [str(b) for b in bytes.fromhex(spec)])
        raw = next(body)
        if not spec["shape"] and not kind.endswith("*"):
            return number(struct.unpack("<f", raw)[0], raw)
        size = SIZES[form]
        words = [raw[i : i + size] for i in range(0, len(raw), size)]
        if len(words) <= FEW and form in NUMBERS:
            return self.memory(name, NUMBERS[form], [element(form, word) for word in words])
        return self.memory(name, WORDS[size], [f"0x{int.from_bytes(w, 'little'):x}" for w in words])

    def memory(self, name: str, of: str, items: Sequence[str]) -> str:
        if not items:
            self.lines.append(f"    void *{name} = heap(NULL, 0);")
            return name
        rows, row = [], "       "
        for item in items:
            if len(row) + len(item) > 108:
                rows.append(row)
                row = "       "
            row += f" {item},"
        text = "\n".join([*rows, row])
        constant = "" if "f32(" in text or "f64(" in text else "static const "
        body = f"\n{text}\n    " if rows or len(text) > 60 else text.strip(" ,")
        self.lines.append(f"    {constant}{of} {name}_data[] = {{{body}}};")
        self.lines.append(f"    void *{name} = heap({name}_data, sizeof {name}_data);")
        return name


def identifier(case: str) -> str:
    return re.sub(r"\W", "_", case)


def integer(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return str(value) if abs(value) < 1 << 31 else f"{value}{'u' * (value > 0)}ll"


def number(value: float, raw: bytes = b"") -> str:
    """A double, or a float by its bytes, as C: hexadecimal where it has such a form, else by its bits."""
    if raw:
        return f"{value.hex()}f" if math.isfinite(value) else f"f32(0x{int.from_bytes(raw, 'little'):x}u)"
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return value.hex() if math.isfinite(value) else f"f64(0x{bits:x}u)"


def element(form: str, word: bytes) -> str:
    if form == "f32":
        return number(struct.unpack("<f", word)[0], word)
    if form == "f64":
        return number(struct.unpack("<d", word)[0])
    return integer(int.from_bytes(word, "little", signed=form.startswith("i")))


def shown_as(kind: str, text: str) -> str:
    """A statement that makes a call and prints what it gave."""
    if kind == "void":
        return f"{text};"
    if kind == "tl_status":
        return f'printf("   %s", tl_status_str({text}));'
    if kind == "const char *":
        return f'printf("   %s", {text});'
    if kind.endswith("*"):
        return f'printf("   %p", (void *){text});'
    if kind in ("float", "double"):
        return f'{{\n        double x = {text};\n        printf("   %a (%.9g)", x, x);\n    }}'
    if re.fullmatch(r"(unsigned )?\w*int\w*|size_t|bool|_Bool", kind):
        return f'printf("   %lld", (long long){text});'
    return f"(void){text};"


# -- whole programs -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Program:
    """Some cases of a unit as one source, with the files that it is built of."""

    text: str
    sources: dict[str, str]  # by path
    folders: list[Path]

    def command(self, program: str, out: str) -> str:
        """How to build it for a debugger."""
        flags = [flag for flag in native.FLAGS if flag not in ("-O3", "-fPIC")]
        flags += ["-O0", *native.FLAVORS["asan"][1:]]
        places = [f"-I{folder}" for folder in self.folders]
        return shlex.join(["cc", *flags, *places, "-o", out, program, *self.sources, "-lm"])


def program(unit: Unit, library: Library, sent: Mapping[str, Sent], changed: Mapping[str, str]) -> Program:
    """The program of some cases; `changed` are sources that stand in for files."""
    root = library.root
    include = root / "csrc" / "include"
    drivers = fixture_headers(root, unit.name)
    paths = [*sorted((include / "tinyllm").glob("*.h")), HERE / "testkit.h", *drivers]
    known = contract.read(native.compiler(), paths, [include, HERE])
    bodies = [Writer(known).function(case, messages) for case, messages in sent.items()]
    asked = '    if (argc < 2 || strcmp(argv[1], "{}") == 0)\n        {}();\n'
    runs = [asked.format(case, identifier(case)) for case in sent]
    main = f"int main(int argc, char **argv)\n{{\n{''.join(runs)}    return 0;\n}}\n"
    texts = {module: changed.get(module, text) for module, (_, text, _) in library.files.items()}
    sources = {library.files[m][0]: text for m, text in texts.items() if text}
    given = [root / GIVEN, HERE / "testkit.c"]
    if drivers:
        given.append(drivers[0].with_suffix(".c"))
    sources |= {str(path): path.read_text() for path in given}
    head = HEAD.format(driver='#include "driver.h"\n' if drivers else "")
    text = "".join([head, *bodies, main])
    folders = [include, HERE, *(path.parent for path in drivers), root / "csrc" / "src"]
    return Program(text + stubs(known, root, texts, [text, *sources.values()]), sources, folders)


def stubs(known: contract.Contract, root: Path, texts: Mapping[str, str], using: Sequence[str]) -> str:
    """What something names and no source defines: functions of units that are not written yet."""
    there = [root / f"{module.replace('.', '/')}.c" for module, text in texts.items() if text]
    defined = {name for path in there for name in cstub.functions(path.read_text())}
    named = {name for text in using for name in re.findall(r"\btl_\w+", text)}
    due = {n: f for n, f in known.functions.items() if n in named - defined and n.startswith("tl_")}
    return contract.stubs(contract.Contract("", {}, due, {}), ())


def findings(
    unit: Unit, library: Library, changed: Mapping[str, str], cases: Sequence[Case], opened: Opener
) -> dict[str, Ended]:
    """What the library's sanitizer finds when cases run as a program: where no worker starts under it.

    Cases of many draws are left out: their data would take the compiler longer than the worker takes for all.
    """
    flavor = library.flavor
    cases = [case for case in cases if case.verb != "property"]
    sent = {case.id: recorded(unit, case, opened) for case in cases}
    made = program(unit, library, sent, changed)
    found = {}
    with tempfile.TemporaryDirectory(prefix="ol-c-") as folder:
        clean = Path(folder)
        (clean / "program.c").write_text(made.text)
        names = ["program.c"]
        for path, text in made.sources.items():
            names.append(Path(path).name)
            (clean / names[-1]).write_text(text, errors="surrogateescape")
        flags = [*native.FLAGS, *native.FLAVORS[flavor], *(f"-I{path}" for path in made.folders)]
        done = native.compiler().run([*flags, "-w", "-o", "program", *names, "-lm"], clean)
        if done.returncode:
            raise OwnFault(native.first_line(done.stderr), "a program of cases", "mend reproduce.py")
        env = {"PATH": "/usr/bin:/bin", **environment(flavor, "")}
        for case in cases:
            try:
                ran = subprocess.run(
                    [clean / "program", case.id], env=env, capture_output=True, text=True, errors="replace",
                    check=False, timeout=10 * case.limit_s,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                continue  # it passed in the worker: slow under a sanitizer is no finding
            if ran.returncode:
                what, at = explained(library, ran.stderr, str(clean / "program"))
                found[case.id] = Ended("crashed", what or f"it ended with {ran.returncode}", at)
    return found


# -- the verb -------------------------------------------------------------------------------------------


def reproduce(name: str, impl: str | None) -> int:
    """Print the program of one case."""
    place = here(Path.cwd(), impl)
    stage = find(read_path(place.course / "path.tsv"), name.partition("/")[0])
    if not stage.is_native:
        raise UsageError(f"{stage.id} is no C unit", "ol reproduce", f"ol check {stage.id} --case {name}")
    unit = fixtures.load(stage, place.course)
    case = unit.case(name)
    if case is None:
        what = f"no case {name!r} in {stage.id}" + near(name, [case.id for case in unit.cases])
        raise UsageError(what, "ol reproduce", f"fixtures/{unit.name}/ has them")
    code = bundle(stage, place.tree, place.course)
    try:
        built(code, {})
    except native.NotBuilt as why:
        where = f"{why.file}:{why.line}" if why.line else why.file
        raise UsageError(f"it cannot be built: {why.text}", where, f"ol check {stage.id}") from None
    workers = Workers()
    try:
        sent = {case.id: recorded(unit, case, opener(workers, code))}
    finally:
        workers.close()
    made = program(unit, code, sent, {})
    said = made.command("case.c", "case").replace("*/", "* /")
    print(f"/* The calls of `ol check {stage.id} --case {case.id}`. Save this as case.c, then:\n *")
    print(f" * {said}\n * gdb -ex run ./case\n */\n{made.text}", end="")
    return PASSED
