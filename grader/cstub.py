"""Derives a learner's C file from the reference: what it defines, with bodies that say `unimplemented`.

Reads the reference's layout: a definition begins in column 0 and ends with a brace there. No compiler is
needed, so that `ol init` works without one.
"""

from __future__ import annotations

import re

from grader.contract import Function, body, signature
from grader.errors import OwnFault

DEFINITION = re.compile(
    r"^(?!static\b)([A-Za-z_][\w \t*]*?)\b(tl_\w+)\(([^(){};]*)\)\n\{.*?^\}\n", re.MULTILINE | re.DOTALL
)
HEADER = re.compile(r'^#include "tinyllm/\w+\.h".*$', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def functions(source: str) -> dict[str, Function]:
    """What a file defines for others, by name."""
    found = {}
    for result, name, params in DEFINITION.findall(source):
        pairs = [split(param) for param in params.split(",")] if params.strip() not in ("", "void") else []
        found[name] = Function(tuple(pairs), " ".join(result.split()).replace(" *", "*").replace("*", " *"))
    return found


def split(param: str) -> tuple[str, str]:
    """`const float *x` as its name and its type."""
    found = re.fullmatch(r"\s*(.*?)(\w+)\s*", param, re.DOTALL)
    if found is None or not found[1].strip():
        raise OwnFault(f"a parameter without a name: {param!r}", "csrc/src")
    return found[2], " ".join(found[1].split())


def stub_source(source: str, unit_id: str, file: str) -> str:
    """The file with every function unwritten; what is private is dropped.

    >>> text = '#include "tinyllm/ds.h"\\n\\nvoid tl_lru_init(tl_lru *l)\\n{\\n    l->len = 0;\\n}\\n'
    >>> print(stub_source(text, "ds.03", "lru.c"), end="")
    /* lru.c -- unit ds.03. */
    #include "tinyllm/ds.h"
    <BLANKLINE>
    void tl_lru_init(tl_lru *l)
    {
        (void)l;
        tl_set_last_error("unimplemented: ds.03 tl_lru_init");
    }
    """
    defined = functions(source)
    if not defined:
        raise OwnFault(f"{file} defines no function that starts in column 0", "csrc/src", "lay it out so")
    name = file.rpartition("/")[2]
    first = COMMENT.match(source)
    head = first[0] if first else f"/* {name} -- unit {unit_id}. */"
    if "\n *\n" in head:  # what follows the first paragraph is about the body
        head = head.partition("\n *\n")[0] + "\n */"
    headers = list(dict.fromkeys(HEADER.findall(source)))
    if not any("abi.h" in line or "ds.h" in line or "arena.h" in line for line in headers):
        headers.insert(0, '#include "tinyllm/abi.h"')
    parts = [f"{signature(n, f)}\n{{\n{body(f'{unit_id} {n}', f)}}}\n" for n, f in defined.items()]
    return "\n".join([head, *headers]) + "\n\n" + "\n".join(parts)
