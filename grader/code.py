"""Code under test of either language: what a stage's sources are, and what opens sessions with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from grader.path import Stage
from grader.session import LIMITS, Bundle, Opener, Workers
from grader.tree import Tree, bundle, module_of


def code_of(
    stage: Stage,
    tree: Tree,
    root: Path,
    assisted: Iterable[Stage] = (),
    entry: str = "",
    memory: int = LIMITS["AS"],
) -> Bundle:
    """The sources that a tree has for a stage."""
    if stage.is_native:
        from grader import library

        return library.bundle(stage, tree, root, assisted)
    return bundle(tree, root, map(module_of, stage.files), assisted, entry=entry, memory=memory)


def opener_of(workers: Workers, code: Bundle, replace: Mapping[str, str] | None = None) -> Opener:
    """What opens sessions; `replace` gives sources by module name."""
    if code.worker == "python":
        return workers.opener(code, replace)
    from grader import library

    assert isinstance(code, library.Library)
    return library.opener(workers, code, replace)


def stub_of(text: str, unit_id: str, file: str) -> str:
    """A file of a unit without what the learner is to write."""
    from grader import cstub, stub

    derive = cstub.stub_source if file.endswith(".c") else stub.stub_source
    return derive(text, unit_id, file)


def public_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """What files define for others, with the names of the parameters."""
    from grader import cstub, stub

    known: dict[str, list[str]] = {}
    for file, text in sources.items():
        if file.endswith(".c"):
            known |= {name: [param for param, _ in f.params] for name, f in cstub.functions(text).items()}
        else:
            known |= stub.public_functions(text, file)
    return known
