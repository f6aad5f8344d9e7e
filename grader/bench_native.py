"""What the workloads of C units share: `bench.cc` built by the C++ compiler, and pointers to functions.

Runs in the processes of `ol bench` alone. What is missing is an ImportError: that row is not measured.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from grader.native import Builder, digest, first_line

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")


def loops(file: str, packages: Sequence[str] = (), flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of the `bench.cc` beside a bench.py; packages are those of pkg-config, where it knows them.

    Where a header is not installed the source leaves the peer out: `function` says what is missing.
    """
    source = Path(file).with_name("bench.cc")
    root = source.parents[2]
    path = shutil.which(os.environ.get("CXX", "")) or shutil.which("c++") or shutil.which("g++")
    if path is None:
        raise ImportError("no C++ compiler on PATH (Debian: apt install g++)")
    linked = [flag for name in packages for flag in package(name)]
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    text = source.read_text()
    key = digest("bench", text, version, FLAGS, flags, linked)
    builder = Builder(root)
    made = builder.kept / key / "bench.so"
    if not made.is_file():
        with tempfile.TemporaryDirectory(prefix="ol-bench-") as folder:
            target = Path(folder) / "bench.so"
            command = [path, *FLAGS, *flags, f"-I{builder.include}", "-o", str(target), str(source), *linked]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{source.name} cannot be built: {first_line(done.stderr)}")
            builder.keep(key, made.name, target)
    return ctypes.CDLL(str(made))


def package(name: str) -> list[str]:
    """How to link a package; nothing where it is not installed."""
    tool = shutil.which("pkg-config")
    if tool is None:
        return []
    done = subprocess.run([tool, "--libs", name], capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def pointer(library: ctypes.CDLL, name: str, install: str = "") -> ctypes.c_void_p:
    """The address of a function, for a loop to call; `install` brings the peer that it is of."""
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p)
    except AttributeError:
        raise ImportError(f"install {install}" if install else f"no function {name}") from None


def timed(library: ctypes.CDLL, name: str) -> Callable[..., float]:
    """A loop of bench.cc: it gives seconds."""
    function = getattr(library, name)
    function.restype = ctypes.c_double
    return cast("Callable[..., float]", function)
