"""What the contract headers say: one text for cffi, the names of parameters, stubs for what is not there.

Headers are read as design section 5 has it: preprocessed against empty standard headers, so that only the
contract is left. cffi knows the fixed-width types itself; pycparser reads the names that cffi drops.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.errors import OwnFault
from grader.native import Compiler

STANDARD = ("stddef.h", "stdint.h", "stdbool.h")
TYPES = {
    "size_t": "unsigned long", "bool": "_Bool",
    **{f"{'u' * u}int{n}_t": f"{'unsigned ' * u}{kind}" for u in (0, 1)
       for n, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))},
}  # fmt: skip
# cffi takes these without a word and lays the struct out otherwise than C does.
REFUSED = re.compile(r"\b(_Alignas|_Atomic|_Static_assert|static|inline|extern|__attribute__|_Float16)\b")


@dataclass(frozen=True, slots=True)
class Function:
    """A prototype: parameters with their types as text, in order, and the type of the result."""

    params: tuple[tuple[str, str], ...]
    result: str


@dataclass(frozen=True, slots=True)
class Contract:
    """The headers of one library as one text."""

    text: str
    constants: dict[str, int]
    functions: dict[str, Function]
    structs: dict[str, list[str]]  # the fields of each

    def names(self) -> dict[str, Any]:
        """What the worker needs besides the binding, as plain JSON."""
        functions = {n: {"params": f.params, "result": f.result} for n, f in self.functions.items()}
        return {
            "functions": functions, "constants": self.constants, "statuses": self.statuses(),
            "structs": self.structs,
        }  # fmt: skip

    def statuses(self) -> dict[str, str]:
        """Names of status codes by number: the constants from TL_OK on, until a number comes again."""
        named = list(self.constants.items())
        start = next((i for i, (name, _) in enumerate(named) if name == "TL_OK"), len(named))
        taken: dict[str, str] = {}
        for name, value in named[start:]:
            if str(value) in taken:
                break
            taken[str(value)] = name
        return taken


def read(compiler: Compiler, headers: Sequence[Path], include: Iterable[Path] = ()) -> Contract:
    """The contract of some headers; `include` are the folders that their own includes are found in."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder)
        for name in STANDARD:
            (empty / name).touch()
        main = empty / "all.c"
        main.write_text("".join(f'#include "{path}"\n' for path in headers))
        paths = [f"-I{path}" for path in include]
        flags = ["-std=c11", "-E", "-nostdinc", "-isystem", str(empty), *paths, str(main)]
        text = compiler.output([*flags, "-P"])
        defined = compiler.output([*flags, "-dM"])
    if found := REFUSED.search(text):
        raise OwnFault(
            f"a contract header says {found[0]}", ", ".join(p.name for p in headers), "take it out"
        )
    macros = dict(re.findall(r"^#define ((?:TL|TK|DRV)_\w+) (-?\d+)[uUlL]*$", defined, re.MULTILINE))
    return parse(text, {name: int(value) for name, value in macros.items()})


def parse(text: str, macros: dict[str, int]) -> Contract:
    """Function and constant names of a preprocessed text."""
    from pycparser import c_ast, c_generator, c_parser

    known = "".join(f"typedef {theirs} {name};\n" for name, theirs in TYPES.items())
    tree = c_parser.CParser().parse(known + text)
    write = c_generator.CGenerator().visit
    constants, functions = dict(macros), {}
    structs: dict[str, list[str]] = {}
    for node in tree.ext[len(TYPES) :]:
        declared = node.type if isinstance(node, c_ast.Decl) else None
        if isinstance(declared, c_ast.Enum):
            value = -1
            for item in declared.values.enumerators:
                value = int(item.value.value.rstrip("uUlL"), 0) if item.value else value + 1
                constants[item.name] = value
        elif isinstance(node, c_ast.Typedef):
            kind = getattr(node.type, "type", None)
            if isinstance(kind, c_ast.Struct):
                structs[node.name] = [field.name for field in kind.decls or ()]
        elif isinstance(declared, c_ast.FuncDecl):
            params = declared.args.params if declared.args else []
            named = [(p.name or "", unnamed(p.type, write)) for p in params]
            functions[node.name] = Function(
                tuple((name, kind) for name, kind in named if kind != "void"), unnamed(declared.type, write)
            )
    return Contract(text, constants, functions, structs)


def unnamed(node: Any, write: Any) -> str:
    """A type as text, without the name that it declares."""
    from pycparser import c_ast

    inner = node
    while not isinstance(inner, c_ast.TypeDecl):
        inner = inner.type
    name, inner.declname = inner.declname, None
    text = str(write(node))
    inner.declname = name
    return " ".join(text.split())


def binding(contract: Contract, folder: Path, name: str) -> None:
    """Write NAME.py, cffi's out-of-line form, and NAME.json, the names that the worker looks up."""
    import cffi

    ffi = cffi.FFI()
    macros = [n for n in contract.constants if not re.search(rf"\b{n}\b", contract.text)]
    lines = "".join(f"#define {n} {contract.constants[n]}\n" for n in macros)
    try:
        ffi.cdef(lines + contract.text)
    except Exception as error:
        raise OwnFault(f"cffi cannot read the headers: {error}", name, "see spec/c.md") from error
    ffi.set_source(name, None)
    with contextlib.redirect_stdout(io.StringIO()):  # cffi says what it writes
        ffi.emit_python_code(str(folder / f"{name}.py"))
    (folder / f"{name}.json").write_text(json.dumps(contract.names()))


def stubs(contract: Contract, includes: Iterable[str]) -> str:
    """C that answers for every function which nothing else defines: TL_EUNSUPPORTED, zero, or nothing."""
    lines = [f"#include {name}\n" for name in includes]
    for name, function in contract.functions.items():
        if name in ("tl_last_error", "tl_set_last_error"):
            continue
        lines.append(f"__attribute__((weak)) {signature(name, function)}\n{{\n{body(name, function)}}}\n")
    return "".join(lines)


def signature(name: str, function: Function) -> str:
    """A definition's first line."""
    params = ", ".join(declaration(kind, param) for param, kind in function.params)
    return f"{declaration(function.result, name)}({params or 'void'})"


def declaration(kind: str, name: str) -> str:
    """`float *` and `x` as `float *x`; a function pointer has a typedef's name."""
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def body(name: str, function: Function) -> str:
    """What a function does that is not written yet; the judge reads the slot, whatever is returned."""
    lines = [f"    (void){param};\n" for param, _ in function.params]
    lines.append(f'    tl_set_last_error("unimplemented: {name}");\n')
    if function.result == "tl_status":
        lines.append("    return TL_EUNSUPPORTED;\n")
    elif "*" in function.result:
        lines.append("    return NULL;\n")
    elif function.result != "void":
        lines.append(f"    static const {function.result} nothing;\n    return nothing;\n")
    return "".join(lines)
