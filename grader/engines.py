"""Loads single files of an inference engine for `ol bench`, without installing the engine.

Wheels of vLLM or SGLang, unpacked into the folder of peers, need packages that a benchmark of one class does
not. The files that are named come from disk; every other module below the engine's name is empty and gives a
class without behaviour for any name. So only what the named files do is measured.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class Hollow(ModuleType):
    """A module in which every name is a class that takes any arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def init(self: Any, *args: Any, **more: Any) -> None:
            del self, args, more

        made = type(name, (), {"__init__": init, "__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports of one engine."""

    def __init__(self, folder: Path, real: Collection[str], given: Mapping[str, Mapping[str, Any]]) -> None:
        self.folder, self.real, self.given = folder, real, given

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.partition(".")[0] != self.folder.name:
            return None
        if name in self.real:
            file = self.folder.parent.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for name, value in self.given.get(module.__name__, {}).items():
            setattr(module, name, value)


def load(
    engine: str, module: str, real: Collection[str], given: Mapping[str, Mapping[str, Any]] | None = None
) -> Any:
    """A module of an engine whose files lie in a folder of sys.path; ImportError where there is none."""
    for entry in sys.path:
        folder = Path(entry) / engine
        if entry and folder.joinpath(*module.split(".")[1:]).with_suffix(".py").is_file():
            sys.meta_path.insert(0, Finder(folder, {module, *real}, given or {}))
            return importlib.import_module(module)
    raise ImportError(f"no {engine} among the peers: unpack its wheel into the folder that OL_PEERS names")
