"""Builds C: the unit's files alone against our headers, the rest around them, by content; nothing runs here.

Every step sees copies in a clean folder: a header beside the learner's source cannot stand in for a contract.
What was built is kept by the hash of everything that went into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from grader.errors import Missing, OwnFault

FLAGS = (
    "-std=c11",
    "-O3",
    "-g",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-pthread",
)
FLAVORS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "asan": (
        "-O1", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ),
    "tsan": ("-O1", "-fsanitize=thread"),
}  # fmt: skip
RUNTIMES = {"asan": "libasan.so", "tsan": "libtsan.so"}
COMPILE_LIMIT_S = 60
MESSAGE = re.compile(r"^([^:\n]+):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)


class NotBuilt(Exception):
    """The learner's C cannot be built: what the compiler says, and where."""

    def __init__(self, text: str, file: str = "", line: int = 0, full: str = "") -> None:
        super().__init__(text)
        self.text, self.file, self.line, self.full = text, file, line, full


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that answers to gcc's flags."""

    path: str
    version: str

    def run(self, args: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": tempfile.gettempdir()}
        try:
            return subprocess.run(
                [self.path, *args], cwd=cwd, env=env, capture_output=True, text=True, errors="replace",
                stdin=subprocess.DEVNULL, timeout=COMPILE_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"the compiler ran for more than {COMPILE_LIMIT_S} s") from None

    def output(self, args: Sequence[str]) -> str:
        """What the compiler prints about files of ours; its complaint is our fault."""
        done = self.run(args)
        if done.returncode:
            raise OwnFault(f"the compiler refuses our own files: {first_line(done.stderr)}", self.path)
        return done.stdout


@cache
def compiler() -> Compiler:
    """The machine's C compiler, or a Missing that says what to install."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path is not None:
            asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                return Compiler(path, asked.stdout.splitlines()[0])
    raise Missing(
        "no C compiler on PATH", "C units", "install gcc or clang (Debian: apt install gcc libc6-dev)"
    )


def first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no message")


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


MAKING: dict[str, threading.Lock] = {}


def once(key: str) -> threading.Lock:
    """The lock of a thing that is being made: who comes second finds it made."""
    return MAKING.setdefault(key, threading.Lock())


@dataclass(slots=True)
class Builder:
    """Builds libraries of one course."""

    root: Path
    flavor: str = "plain"
    compiler: Compiler = field(default_factory=compiler)

    @property
    def include(self) -> Path:
        return self.root / "csrc" / "include"

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, *FLAVORS[self.flavor])

    def headers(self) -> dict[str, str]:
        """The contract headers, and what of ours stands beside the sources."""
        found = {f"tinyllm/{p.name}": p.read_text() for p in sorted((self.include / "tinyllm").glob("*.h"))}
        return found | {p.name: p.read_text() for p in sorted((self.root / "csrc" / "src").glob("*.h"))}

    # -- the cache ----------------------------------------------------------------------------------

    @property
    def kept(self) -> Path:
        """Where built things are kept; a course that cannot be written to builds anew each time."""
        folder = self.root / ".cache" / "native"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
        except OSError:
            pass
        return scratch()

    def keep(self, key: str, name: str, made: Path) -> Path:
        """Move a file to its place in the cache, whole or not at all."""
        target = self.kept / key / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            shutil.copyfile(made, file.name)
        Path(file.name).replace(target)
        return target

    # -- steps --------------------------------------------------------------------------------------

    def object(self, name: str, text: str, more: Mapping[str, str] | None = None) -> Path:
        """One source compiled alone; `more` are headers beside it."""
        headers = self.headers() | dict(more or {})
        key = digest("object", name, text, headers, self.flags, self.compiler)
        made = self.kept / key / f"{Path(name).stem}.o"
        with once(key):
            return made if made.is_file() else self.compiled(key, name, text, headers)

    def compiled(self, key: str, name: str, text: str, headers: Mapping[str, str]) -> Path:
        with tempfile.TemporaryDirectory(prefix="ol-c-") as folder:
            clean = Path(folder)
            for header, content in headers.items():
                (clean / header).parent.mkdir(exist_ok=True)
                (clean / header).write_text(content)
            (clean / name).write_text(text, errors="surrogateescape")
            flags = [*self.flags, f"-ffile-prefix-map={clean}=.", "-fdiagnostics-color=never", "-I.", "-c"]
            done = self.compiler.run([*flags, "-o", "made.o", name], clean)
            if done.returncode:
                raise refused(name, done.stderr)
            return self.keep(key, f"{Path(name).stem}.o", clean / "made.o")

    def link(self, name: str, objects: Sequence[Path], more: Sequence[str] = ()) -> Path:
        """A shared library of objects; what it needs and does not have is an error."""
        contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in objects]
        key = digest("link", name, contents, self.flags, more, self.compiler)
        made = self.kept / key / name
        with once(key):
            return made if made.is_file() else self.linked(key, name, objects, more)

    def linked(self, key: str, name: str, objects: Sequence[Path], more: Sequence[str]) -> Path:
        with tempfile.TemporaryDirectory(prefix="ol-c-") as folder:
            target = Path(folder) / name
            bind = ("-Wl,-Bsymbolic",) if self.flavor == "plain" else ()
            flags = [*self.flags, "-shared", *bind, *more, "-o", str(target)]
            done = self.compiler.run([*flags, *map(str, objects), "-lm", "-ldl"])
            if done.returncode:
                missing = re.search(r"undefined reference to [`'](\w+)'", done.stderr)
                what = f"nothing defines {missing[1]}, which it calls" if missing else first_line(done.stderr)
                raise NotBuilt(f"the library cannot be linked: {what}", full=done.stderr)
            return self.keep(key, name, target)

    def runtime(self) -> str:
        """The sanitizer's library that must come first in the process; empty where there is none."""
        if self.flavor not in RUNTIMES:
            return ""
        path = self.compiler.run([f"-print-file-name={RUNTIMES[self.flavor]}"]).stdout.strip()
        return os.path.realpath(path) if "/" in path else ""


@cache
def scratch() -> Path:
    """A folder of this process; it goes when the process ends."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="ol-native-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def refused(name: str, said: str) -> NotBuilt:
    """The compiler's first error, in the learner's file if one of them is there."""
    errors = MESSAGE.findall(said)
    own = [found for found in errors if Path(found[0]).name == name]
    if not errors:
        return NotBuilt(first_line(said), name, 0, said)
    file, line, text = (own or errors)[0]
    return NotBuilt(text, Path(file).name, int(line), said)


def symbols(path: Path) -> set[str]:
    """The names that an object defines for others; kept beside it."""
    kept = path.with_suffix(".symbols")
    if kept.is_file():
        return set(kept.read_text().split())
    tool = shutil.which("nm")
    if tool is None:
        raise Missing("no nm on PATH", "C units", "install binutils")
    done = subprocess.run(
        [tool, "-g", "--defined-only", "-P", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OwnFault(f"nm cannot read it: {first_line(done.stderr)}", str(path))
    found = {line.split(" ")[0] for line in done.stdout.splitlines()}
    # Clones and what a sanitizer adds are not the author's.
    found = {name for name in found if "." not in name and not name.startswith(("__", "_Z"))}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(" ".join(sorted(found)))
    Path(file.name).replace(kept)
    return found
