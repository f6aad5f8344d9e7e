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

from grader import contract, cstub, native
from grader.cworker import NO_SLOT, SHAPED, SIZES
from grader.errors import OwnFault
from grader.fixtures import Case, Unit
from grader.frame import Body
from grader.library import GIVEN, HERE, Library, environment, explained, fixture_headers
from grader.path import needs_closure, read_path
from grader.runner import Runner
from grader.session import Ended, Opener
from grader.tree import module_of

Sent = list[tuple[dict[str, Any], Iterator[bytes]]]
FEW = 64  # elements that are written as numbers; more are written as words
WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
NUMBERS = {
    "bool": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "f32": "float",
    "f64": "double",
}  # fmt: skip
HEAD = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinyllm/tinyllm.h"
#include "testkit.h"
{driver}
/* n bytes of their own, so that every step beyond them is seen. */
static void *heap(const void *from, size_t n)
{{
    void *p = malloc(n);
    if (n)
        memcpy(p, from, n);
    return p;
}}

/* n bytes for a call to write. */
static void *space(size_t n)
{{
    return memset(malloc(n), 0xA5, n);
}}

static float f32(uint32_t bits)
{{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}}

static double f64(uint64_t bits)
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


def recorded(unit: Unit, case: Case, opener: Opener) -> Sent:
    """What the judge sends for a case, up to its end or to where the code falls."""
    sent: Sent = []
    Runner(unit, lambda: Recorder(opener(), sent), None, jobs=1, shrinking=False).run([case])
    return sent


@dataclass(slots=True)
class Writer:
    """One case as a C function."""

    known: contract.Contract
    lines: list[str] = field(default_factory=list)
    objects: dict[str, str] = field(default_factory=dict)  # the C type of each
    fresh: bool = True  # whether no call was made since the start
    step: int = 0

    def function(self, case: str, sent: Sent) -> str:
        for message, body in sent:
            self.message(message, body)
        declared = [f"    {of}{name} = {{0}};" for name, of in self.objects.items()]
        head = f"static void {identifier(case)}(void)\n{{\n"
        start = [*declared, f'    begin("{case}");']
        return head + "\n".join([*start, *self.lines, *self.ended(), "    end();"]) + "\n}\n\n"

    def ended(self) -> list[str]:
        """The destruction of every object, the youngest first."""
        lines = []
        for name, of in reversed(self.objects.items()):
            if of.endswith("*") and (ends := self.destroyer(of)):
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
        self.lines.append(f"    {name} = memset(malloc(sizeof({kind})), 0, sizeof({kind}));")
        for member, node in message.get("args", {}).items():
            value = self.value(f"{name}_{member}", "", node, body)
            self.lines.append(f"    {name}->{member} = {value};")

    def called(self, message: dict[str, Any], name: str, body: Iterator[bytes]) -> None:
        function, nodes = self.known.functions[name], dict(message.get("args", {}))
        given: dict[str, str] = {}
        kinds = dict(function.params)
        if "on" in message:
            first = next(p for p, kind in function.params if p not in nodes and kind.endswith("*"))
            nodes = {first: {"ref": message["on"]}, **nodes}
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
            return f"{node}" if abs(node) < 1 << 31 else f"{node}{'u' * (node > 0)}ll"
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
            return f"{spec}{'u' * (int(spec) > 0)}ll"
        if form == "f64" and isinstance(spec, str):
            return number(struct.unpack(">d", bytes.fromhex(spec))[0])
        if form == "bytes":
            return self.memory(name, "uint8_t", [str(b) for b in bytes.fromhex(spec)])
        raw = next(body)
        if not kind.endswith("*"):
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
        self.lines.append(f"    {constant}{of} {name}_data[] = {{\n{text}\n    }};")
        self.lines.append(f"    void *{name} = heap({name}_data, sizeof {name}_data);")
        return name


def identifier(case: str) -> str:
    return re.sub(r"\W", "_", case)


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
    value = int.from_bytes(word, "little", signed=form.startswith("i"))
    return f"INT64_MIN + {value + (1 << 63)}" if form == "i64" and value < -(1 << 62) else str(value)


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
    root, stage = library.root, library.stage
    assert stage is not None
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
    missing = [
        file
        for other in needs_closure(read_path(root / "path.tsv"), stage)
        for file in other.files
        if file.endswith(".c") and not texts.get(module_of(file))
    ]
    absent = {n for file in missing for n in cstub.functions((root / file).read_text())}
    stubs = contract.Contract("", {}, {n: f for n, f in known.functions.items() if n in absent}, {})
    head = HEAD.format(driver='#include "driver.h"\n' if drivers else "")
    folders = [include, HERE, *(path.parent for path in drivers), root / "csrc" / "src"]
    text = head + "".join(bodies) + contract.stubs(stubs, ()) + main
    return Program(text, sources, folders)


def findings(
    unit: Unit, library: Library, changed: Mapping[str, str], cases: Sequence[Case], opener: Opener
) -> dict[str, Ended]:
    """What the library's sanitizer finds when cases run as a program: where no worker starts under it."""
    flavor = library.flavor
    sent = {case.id: recorded(unit, case, opener) for case in cases}
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
