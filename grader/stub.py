"""Derives a learner's file from the reference: contracts stay byte for byte, bodies become `todo`.

Cuts whole lines that ast names, so comments, blank lines and quoting outside bodies stay as they are.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn, TypeGuard

from grader.errors import OwnFault

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

_DATA_CLASSES = {"dataclass", "NamedTuple", "TypedDict"}
_ACCESSORS = {"property", "cached_property", "setter", "getter", "deleter"}
_NO_CALL_OF_THE_BODY = {"setter", "getter", "deleter", "register"}  # @total.setter, @show.register
# Python calls these while the module is imported; a dataclass calls __post_init__ in every case.
_RUN_EARLY = {"__init_subclass__", "__set_name__", "__class_getitem__", "__post_init__"}


class _Edit(NamedTuple):
    """Lines start..stop (half open, from 0) give way to text."""

    start: int
    stop: int
    text: str = ""


class _Scope(NamedTuple):
    """Names of the module and the classes around: still there in the stub, and gone."""

    kept: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


def stub_source(source: str, unit_id: str, filename: str) -> str:
    """Replace the body of every public function and method, and drop what is private.

    OwnFault where the stub would give the answer away or could not be imported.

    >>> print(stub_source("def half(x: int) -> int:\\n    return x // 2\\n", "L0.1", "half.py"), end="")
    def half(x: int) -> int:
        raise NotImplementedError("L0.1: half")
    """
    tree = _parse(source, filename)
    lines = io.StringIO(source, newline="").readlines()  # splitlines would also cut at \f and U+2028
    edits = list(_Stubber(tree, lines, unit_id, filename).block(tree.body, 0, None, "", _Scope()))
    for edit in reversed(edits):
        lines[edit.start : edit.stop] = [edit.text] if edit.text else []
    return "".join(lines).rstrip() + _line_end(source)


def public_functions(source: str, filename: str = "<source>") -> dict[str, list[str]]:
    """Name every public callable and its parameters: functions, classes (constructor), methods.

    `self` and `cls` are left out, `*args` and `**kwargs` keep their stars, properties are not callables.
    Bases in the same file count; private classes are not listed, but what they hand down is.

    >>> public_functions("class A:\\n    def __init__(self, n): ...\\n    def add(self, x, *, k=1): ...")
    {'A': ['n'], 'A.add': ['x', 'k']}
    """
    found: dict[str, list[str]] = {}
    _collect(_parse(source, filename).body, "", found)
    return found


def _parse(source: str, filename: str) -> ast.Module:
    try:
        tree = ast.parse(source, filename)
        compile(tree, filename, "exec", dont_inherit=True)  # finds `return` outside a function, too
    except (SyntaxError, ValueError) as bad:  # ValueError: a NUL
        line = getattr(bad, "lineno", None) or 1
        raise OwnFault(
            f"not Python: {getattr(bad, 'msg', bad)}", f"{filename}:{line}", "correct it"
        ) from None
    return tree


def _line_end(source: str) -> str:
    return "\r\n" if "\r\n" in source else "\n"


def _is_function(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _is_definition(node: ast.AST) -> TypeGuard[Definition]:
    return _is_function(node) or isinstance(node, ast.ClassDef)


def _is_enum(node: ast.ClassDef) -> bool:
    return bool(_last_names(node.bases) & {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _root(node: ast.AST) -> str:
    """The name that an expression starts from: `a` for `a.b(c).d[e]`."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_names(nodes: Iterable[ast.AST]) -> set[str]:
    """`dataclass` for `dataclass`, `dataclasses.dataclass` and `dataclass(frozen=True)`."""
    names = set()
    for node in nodes:
        while isinstance(node, ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        names.add(getattr(node, "attr", getattr(node, "id", "")))
    return names


class _Stubber:
    def __init__(self, tree: ast.Module, lines: list[str], unit_id: str, filename: str) -> None:
        self.lines, self.unit_id, self.filename = lines, unit_id, filename
        self.line_end = _line_end("".join(lines[:1]))
        names = (node.name for node in ast.walk(tree) if _is_definition(node))
        self.gone_anywhere = {name for name in names if _is_private(name)}

    def block(
        self, body: list[ast.stmt], floor: int, owner: ast.ClassDef | None, prefix: str, outer: _Scope
    ) -> Iterator[_Edit]:
        """Edits of a module or class body, top to bottom; floor is the first line it may touch."""
        names = frozenset(node.name for node in body if _is_definition(node))
        gone = frozenset(filter(_is_private, names))
        scope = _Scope(outer.kept | names - gone, outer.gone | gone)
        only_private = all(_is_definition(node) and _is_private(node.name) for node in body)
        filler = "pass" if owner and only_private else ""
        for node in body:
            if _is_definition(node) and _is_private(node.name):
                text = self._indent(node) + filler + self.line_end if filler else ""
                yield _Edit(self._top(node, floor), self._bottom(node), text)
                filler = ""
            else:
                self._check(node, owner, scope)
                if isinstance(node, ast.ClassDef):
                    yield from self.block(node.body, node.lineno, node, f"{prefix}{node.name}.", scope)
                elif _is_function(node) and not _is_declaration(node, owner):
                    yield self._body(node, prefix + node.name)
            floor = node.end_lineno or floor

    def _body(self, node: Function, qualified: str) -> _Edit:
        first = node.body[0]
        has_docstring = ast.get_docstring(node) is not None
        after = node.body[1] if has_docstring and len(node.body) > 1 else None
        shares_line = bool(self.lines[first.lineno - 1][: first.col_offset].strip())
        if shares_line or (after and after.lineno == first.end_lineno):
            what = f"{qualified} has its body on the line of its head"
            self._refuse(node, what, "put it on lines of its own")
        if has_docstring:
            start = first.end_lineno or first.lineno
        else:
            start = _first_line(first) - 1
            while not self.lines[start - 1].strip() or self.lines[start - 1].lstrip().startswith("#"):
                start -= 1
        message = json.dumps(f"{self.unit_id}: {qualified}", ensure_ascii=False)
        text = f"{self._indent(first)}raise NotImplementedError({message}){self.line_end}"
        return _Edit(start, self._bottom(node), text)

    def _indent(self, node: ast.stmt) -> str:
        return self.lines[node.lineno - 1][: node.col_offset]

    def _top(self, node: Definition, floor: int) -> int:
        """Above its decorators, the comment block that touches them, and the blank lines before."""
        top = _first_line(node) - 1
        while top > floor and self.lines[top - 1].startswith(self._indent(node) + "#"):
            top -= 1
        while top > floor and not self.lines[top - 1].strip():
            top -= 1
        return top

    def _bottom(self, node: Definition) -> int:
        """Below its last statement and the comments after it that are indented like its body."""
        stop = probe = node.end_lineno or node.lineno
        while probe < len(self.lines):
            text = self.lines[probe].lstrip()
            probe += 1
            if text.startswith("#") and len(self.lines[probe - 1]) - len(text) >= node.body[0].col_offset:
                stop = probe
            elif text:
                break
        return stop

    def _check(self, node: ast.stmt, owner: ast.ClassDef | None, scope: _Scope) -> None:
        """Refuse a kept statement that a stub could not be imported with, or that hides a body."""
        if not _is_definition(node):
            if inner := next(filter(_is_definition, ast.walk(node)), None):
                what = f"{inner.name} is defined inside another statement"
                self._refuse(inner, what, "define it at the top")
            self._check_parts([node], scope)
            return
        called = [d for d in node.decorator_list if not _last_names([d]) & _NO_CALL_OF_THE_BODY]
        parts: list[ast.AST] = [*node.decorator_list]
        if isinstance(node, ast.ClassDef):
            called += [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
            parts += [*node.bases, *node.keywords]
        else:
            parts += [node.args, *([node.returns] if node.returns else [])]
            early = _RUN_EARLY | ({"__init__", "__new__"} if owner and _is_enum(owner) else set())
            if owner and node.name in early:
                what = f"{owner.name} has {node.name}"
                self._refuse(node, what, "do its work in a function that cases call")
        self._check_calls(called, scope)
        self._check_parts(parts, scope)

    def _check_parts(self, parts: list[ast.AST], scope: _Scope) -> None:
        for part in parts:
            later = {n for f in ast.walk(part) if isinstance(f, ast.Lambda) for n in ast.walk(f.body)}
            calls = (n for n in ast.walk(part) if isinstance(n, ast.Call) and n not in later)
            self._check_calls(calls, scope)
            for node in ast.walk(part):
                name = ""
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                    name = node.id if node.id in scope.gone else ""
                elif isinstance(node, ast.Attribute):
                    name = node.attr if node.attr in self.gone_anywhere else ""
                if name:
                    self._refuse(
                        node, f"{name} is private, so not in the stub that needs it", "make it public"
                    )

    def _check_calls(self, called: Iterable[ast.expr], scope: _Scope) -> None:
        for expression in called:
            if (name := _root(expression)) in scope.kept:
                what = f"{name} is called while the module is imported, and the stub has no body for it"
                self._refuse(expression, what, "write the value out, or call it inside a function")

    def _refuse(self, node: ast.AST, what: str, fix: str) -> NoReturn:
        raise OwnFault(what, f"{self.filename}:{getattr(node, 'lineno', 1)}", fix)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_declaration(node: Function, owner: ast.ClassDef | None) -> bool:
    """An overload, or a method of a Protocol, whose body is `...`: nothing to write there."""
    is_kind = _last_names(node.decorator_list) & {"overload", "abstractmethod"}
    if not is_kind and not (owner and "Protocol" in _last_names(owner.bases)):
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return all(isinstance(s, ast.Expr) and ast.unparse(s) == "..." for s in body)


# ---------------------------------------------------------------- names and parameters


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, list[str]]) -> None:
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if _is_definition(node) and not _is_private(node.name):
            name = prefix + node.name
            if isinstance(node, ast.ClassDef):
                shape = _shape(node, classes)
                found[name] = shape.constructor or []
                found.update({f"{name}.{method}": names for method, names in shape.methods.items()})
                _collect([inner for inner in node.body if isinstance(inner, ast.ClassDef)], name + ".", found)
            else:
                found[name] = _parameters(node, 0)


class _Shape(NamedTuple):
    constructor: list[str] | None  # None: nobody up to object has one
    fields: dict[str, None]  # of a dataclass, in order
    methods: dict[str, list[str]]


def _shape(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> _Shape:
    constructor: list[str] | None = None
    fields: dict[str, None] = {}
    methods: dict[str, list[str]] = {}
    for base in reversed(node.bases):
        base = base.value if isinstance(base, ast.Subscript) else base
        parent = classes.get(base.id) if isinstance(base, ast.Name) else None
        if parent and parent.lineno < node.lineno:
            inherited = _shape(parent, classes)
            constructor = constructor if inherited.constructor is None else inherited.constructor
            fields |= inherited.fields
            methods |= inherited.methods
    if _last_names([*node.decorator_list, *node.bases]) & _DATA_CLASSES:
        for name, is_parameter in _annotated(node):
            if is_parameter:
                fields[name] = None  # a field declared again keeps its place
            else:
                fields.pop(name, None)
        constructor = list(fields)
    for inner in filter(_is_function, node.body):
        decorators = _last_names(inner.decorator_list)
        names = _parameters(inner, 0 if "staticmethod" in decorators else 1)
        if inner.name in ("__init__", "__new__"):
            constructor = names
        elif decorators & _ACCESSORS:
            methods.pop(inner.name, None)
        elif not _is_private(inner.name):
            methods[inner.name] = names
    return _Shape(constructor, fields, methods)


def _annotated(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Annotated names of a class body, each with whether the constructor takes it."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            kind = ast.unparse(line.annotation)
            off = isinstance(line.value, ast.Call) and "init=False" in map(ast.unparse, line.value.keywords)
            yield line.target.id, not off and "ClassVar" not in kind and "KW_ONLY" not in kind


def _parameters(node: Function, skip: int) -> list[str]:
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)][skip:]
    names += [f"*{args.vararg.arg}"] if args.vararg else []
    names += [arg.arg for arg in args.kwonlyargs]
    return names + ([f"**{args.kwarg.arg}"] if args.kwarg else [])
