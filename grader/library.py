"""C code under test as a bundle: which sources, from whom, and the library that they become.

The unit's own files come from the learner, or from a mutant; what it needs comes from the learner where that
passes, else from the reference; every other function of the headers is a stub that says `unimplemented`.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import contract, launch, native
from grader.answer import Answer, Raised
from grader.errors import OwnFault
from grader.native import Builder, NotBuilt
from grader.path import Stage, needs_closure, read_path
from grader.session import LIMITS, Bundle, Ended, Opener, Session, Workers
from grader.tree import Tree, module_of

if TYPE_CHECKING:
    from grader.fixtures import Case, Unit
    from grader.runner import UnitRun

HERE = Path(__file__).resolve().parent
GIVEN = "csrc/src/error_slot.c"  # linked into every library, and part of no unit
NAMES = {"asan": "address and undefined-behaviour sanitizer", "tsan": "thread sanitizer"}
GUESS = "; usually an index past the end of an array"  # of a fault of which nothing else is known
THREADS = "#include <pthread.h>"  # a unit whose reference says so is run under the thread sanitizer too


@dataclass(frozen=True, slots=True)
class Library(Bundle):
    """Sources by module name, `own` those of the unit; built when a session is opened."""

    root: Path = Path()
    stage: Stage | None = None
    own: tuple[str, ...] = ()
    flavor: str = "plain"
    made: Mapping[str, Any] = field(default_factory=dict)  # once it is built: what built() says

    @property
    def worker(self) -> str:
        return f"c-{self.flavor}"

    @property
    def settles(self) -> bool:
        return True

    def start(self) -> tuple[int, socket.socket]:
        return launch.worker("cworker", environment(self.flavor, self.made["runtime"]))

    def loading(self) -> dict[str, Any]:
        return {"load": self.key, **self.made}

    def explained(self, ended: Ended, text: str) -> Ended:
        what, at = explained(self, text, self.made["library"])
        if not what:
            return ended
        if self.flavor != "plain" and ended.outcome != "deadline":
            return Ended("crashed", f"{NAMES[self.flavor]}: {what}.", at)
        said = ended.text.rstrip(".").replace(GUESS, "")
        return Ended(ended.outcome, f"{said}: {what}.", at or ended.at)


def bundle(
    stage: Stage, tree: Tree, root: Path, assisted: Iterable[Stage] = (), flavor: str = "plain"
) -> Library:
    """The sources of a unit and of what it needs."""
    helped = {need.id for need in assisted}
    files: dict[str, tuple[str, str, bool]] = {}
    for other in [*needs_closure(read_path(root / "path.tsv"), stage), stage]:
        home = root if other.id in helped else tree.root
        for file in other.files:
            if file.endswith(".c"):
                path = home / file
                text = path.read_text("utf-8", "surrogateescape") if path.is_file() else ""
                files[module_of(file)] = (str(path), text, False)
    key = native.digest(sorted(files.items()), flavor)
    memory = LIMITS["AS"] if flavor == "plain" else 0
    return Library(
        key,
        files,
        memory=memory,
        root=root,
        stage=stage,
        own=tuple(map(module_of, stage.files)),
        flavor=flavor,
    )


def flavored(library: Library, flavor: str) -> Library:
    """The same sources under a sanitizer."""
    memory = LIMITS["AS"] if flavor == "plain" else 0
    return replace(library, key=native.digest(library.key, flavor), flavor=flavor, memory=memory)


@cache
def available(flavor: str, root: Path) -> bool:
    """Whether a worker starts under a sanitizer's runtime: some kernels and compilers do not let it."""
    runtime = Builder(root, flavor).runtime()
    if not runtime:
        return False
    env = launch.worker_env() | environment(flavor, runtime)
    return (
        subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, check=False).returncode == 0
    )


def sanitized(
    unit: Unit, library: Library, changed: Mapping[str, str], workers: Workers, run: UnitRun
) -> list[str]:
    """Run what passed again under each sanitizer; a finding becomes the case's verdict. Gives notes."""
    from grader.runner import Runner

    notes = []
    for flavor in sanitizers(library):
        passed = [
            c for c in unit.cases if c.id in run.verdicts and run.verdicts[c.id].passed and c.verb != "perf"
        ]
        if not available(flavor, library.root):
            notes += programmed(unit, flavored(library, flavor), changed, workers, run, passed)
            continue
        code = opener(workers, flavored(library, flavor), changed)
        again = Runner(unit, code, None, shrinking=False).run(passed) if passed else None
        for name, verdict in again.verdicts.items() if again else ():
            if not verdict.passed:
                verdict.text = verdict.text or f"under the {NAMES[flavor]}"
                run.verdicts[name] = verdict
    return notes


def programmed(
    unit: Unit,
    library: Library,
    changed: Mapping[str, str],
    workers: Workers,
    run: UnitRun,
    passed: list[Case],
) -> list[str]:
    """The same by a program that makes the calls of the cases, where no worker starts under the sanitizer."""
    from grader import reproduce
    from grader.judge import Verdict

    name = NAMES[library.flavor]
    plain = opener(workers, flavored(library, "plain"), changed)
    try:
        found = reproduce.findings(unit, library, changed, passed, plain)
    except (OwnFault, NotBuilt) as why:
        said = str(why).removeprefix("error: ")
        return [f"{name}: not available here, so nothing was run under it ({said})"]
    for case, ended in found.items():
        old = run.verdicts[case]
        run.verdicts[case] = Verdict(case, "crashed", f"{name}: {ended.text}.", at=ended.at, files=old.files)
    return [f"{name}: no worker starts under it here; cases without draws ran as a program"]


def sanitizers(library: Library) -> list[str]:
    """Which sanitizers a unit is run under."""
    assert library.stage is not None
    texts = [(library.root / file).read_text() for file in library.stage.files]
    return ["asan", *(["tsan"] if any(THREADS in text for text in texts) else [])]


# -- building -------------------------------------------------------------------------------------------


@cache
def headers(root: Path, compiler: native.Compiler) -> contract.Contract:
    """The contract headers of a course, the testkit's among them."""
    include = root / "csrc" / "include"
    return contract.read(
        compiler, [*sorted((include / "tinyllm").glob("*.h")), HERE / "testkit.h"], [include]
    )


def fixture_headers(root: Path, unit: str) -> list[Path]:
    path = root / "fixtures" / unit / "driver.h"
    return [path] if path.is_file() else []


def abi(root: Path, unit: str, compiler: native.Compiler) -> Path:
    """The binding for one unit's fixtures: headers, testkit and driver; NAME.json lies beside it."""
    include = root / "csrc" / "include"
    paths = [*sorted((include / "tinyllm").glob("*.h")), HERE / "testkit.h", *fixture_headers(root, unit)]
    texts = [path.read_text() for path in paths]
    key = native.digest("abi", texts, compiler, Path(contract.__file__).read_text())
    builder = Builder(root, compiler=compiler)
    name = f"tl_abi_{key[:16]}"
    made = builder.kept / key / f"{name}.py"
    with native.once("abi"):
        if not made.is_file() or not made.with_suffix(".json").is_file():
            found = contract.read(compiler, paths, [include, HERE])
            made.parent.mkdir(parents=True, exist_ok=True)
            contract.binding(found, made.parent, name)
    return made


def declared(root: Path, unit: str) -> dict[str, list[str]]:
    """What fixtures of a unit may name: functions with their parameters, and structs with their fields."""
    compiler = native.compiler()
    path = abi(root, unit, compiler)
    names = json.loads(path.with_suffix(".json").read_text())
    known = {n: [p for p, _ in f["params"]] for n, f in names["functions"].items()}
    for name in names["structs"]:
        known[name] = names["structs"][name]
    return known


def reference_symbols(root: Path, file: str, builder: Builder) -> set[str]:
    """What the reference's object of a file shows: exactly that a learner's must show."""
    return native.symbols(builder.object(Path(file).name, (root / file).read_text()))


def built(library: Library, changed: Mapping[str, str]) -> dict[str, Any]:
    """Build what a session needs; NotBuilt says why the learner's code cannot be."""
    stage, root = library.stage, library.root
    assert stage is not None
    builder = Builder(root, library.flavor)
    files = {file: module_of(file) for file in map(file_of, library.files)}
    objects: list[Path] = []
    compiled: list[str] = []
    origins: dict[str, str] = {}
    plain = builder if library.flavor == "plain" else Builder(root)
    for file, module in files.items():
        path, text, _ = library.files[module]
        text = changed.get(module, text)
        if not text and module not in library.own:
            continue  # a need that is not written: its functions are stubs
        made = builder.object(Path(file).name, text)
        if module in library.own:
            shown, due = native.symbols(made), reference_symbols(root, file, plain)
            agree(Path(file).name, shown, due)
            origins |= dict.fromkeys(shown, path)
        objects.append(made)
        compiled.append(module)
    origins[""] = library.files[library.own[0]][0]
    given = root / GIVEN
    objects.append(builder.object(given.name, given.read_text()))
    known = headers(root, builder.compiler)
    ours = {n: f for n, f in known.functions.items() if n.startswith("tl_")}
    stub_text = contract.stubs(replace(known, functions=ours), ['"tinyllm/tinyllm.h"'])
    objects.append(builder.object("stubs.c", stub_text))
    made = builder.link("libtinyllm.so", objects)
    binding = abi(root, stage.unit, builder.compiler)
    return {
        "library": str(made), "testkit": str(testkit(root, stage.unit, builder)), "binding": str(binding),
        "origins": origins, "sources": compiled, "runtime": builder.runtime(),
    }  # fmt: skip


@contextmanager
def building(libraries: Sequence[Library]) -> Iterator[None]:
    """Meanwhile they are built in the background, one after another, for the sessions that will ask."""
    ended = threading.Event()

    def work() -> None:
        for library in libraries:
            for flavor in ("plain", *sanitizers(library)):
                if ended.is_set():
                    return
                with suppress(Exception):  # who asks for it meets the same again, and says so
                    built(flavored(library, flavor), {})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".c"


def agree(name: str, shown: set[str], due: set[str]) -> None:
    if missing := sorted(due - shown):
        raise NotBuilt(
            f"it does not define {missing[0]}" + (f", {', '.join(missing[1:])}" if missing[1:] else ""), name
        )
    if extra := sorted(shown - due):
        raise NotBuilt(f"{extra[0]} is visible to other files: helpers are static", name)


def testkit(root: Path, unit: str, builder: Builder) -> Path:
    """The testkit with the unit's driver, in the flavor of the library."""
    driver = root / "fixtures" / unit / "driver.c"
    beside = {"testkit.h": (HERE / "testkit.h").read_text()}
    ours = Builder(root, builder.flavor, builder.compiler)
    objects = [ours.object("testkit.c", (HERE / "testkit.c").read_text(), beside)]  # one for all units
    if driver.is_file():
        beside |= {path.name: path.read_text() for path in fixture_headers(root, unit)}
        objects.append(ours.object("driver.c", driver.read_text(), beside))
    try:
        return ours.link("libtestkit.so", objects)
    except NotBuilt as error:
        raise OwnFault(error.text, f"fixtures/{unit}/driver.c", "mend it") from None


def environment(flavor: str, runtime: str) -> dict[str, str]:
    """What a worker of this flavor needs in its environment."""
    if flavor == "plain":
        return {}
    return {
        "LD_PRELOAD": runtime,
        # Leaks are counted by the testkit; a report ends the process, and its text says what happened.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_abort=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # A pool may hold a lock for the length of a loop, and loops of two pools may nest either way: what
        # the detector of lock orders calls a deadlock is none there, and a real one ends at the time limit.
        "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:report_signal_unsafe=0:detect_deadlocks=0",
    }


def opener(workers: Workers, library: Library, changed: Mapping[str, str] | None = None) -> Opener:
    """Opens sessions of a library, which is built when the first is asked for."""
    ready: list[Library | NotBuilt] = []
    lock = threading.Lock()

    def open_session() -> Session:
        with lock:
            if not ready:
                try:
                    made = built(library, changed or {})
                    ready.append(replace(library, key=native.digest(made), made=made))
                except NotBuilt as why:
                    ready.append(why)
        if isinstance(ready[0], NotBuilt):
            return Unbuilt(library, ready[0])
        return workers.opener(ready[0])()

    return open_session


# -- sessions -------------------------------------------------------------------------------------------


class Unbuilt:
    """The session of code that could not be built: its one answer says why."""

    libm: str | None = "system"
    holds_objects = False
    greeted = ""

    def __init__(self, library: Library, why: NotBuilt) -> None:
        self.bundle: Bundle | None = library
        self.why = why

    def send(self, message: dict[str, Any], limit_s: float, body: Any = None) -> None:
        del message, limit_s, body

    def receive(self, limit_s: float) -> Answer:
        del limit_s
        answer = Answer("raises")
        own = {Path(path).name: path for path, _, _ in self.bundle.files.values()} if self.bundle else {}
        file = own.get(self.why.file, self.why.file)
        answer.raised = Raised("NotBuilt", ("NotBuilt",), self.why.text, "import", file, self.why.line)
        return answer

    def output(self) -> str:
        return self.why.full

    def close(self) -> tuple[str, ...]:
        return ()

    def kill(self) -> None:
        return None


def located(library: str, offsets: Iterable[str], path: str = "addr2line") -> tuple[str, str, int] | None:
    """Function, file and line of the innermost address that lies in a source; None without debug lines."""
    for offset in offsets:
        # A return address is the next instruction's: one byte less is in the call's own line.
        address = offset[1:] if offset[0] == "=" else hex(max(0, int(offset, 16) - 1))
        try:
            done = subprocess.run(
                [path, "-f", "-e", library, address], capture_output=True, text=True, check=False, timeout=10
            )
        except OSError:
            return None
        lines = done.stdout.splitlines()
        if len(lines) >= 2 and (at := re.match(r"(?:\./)?(.*?):(\d+)", lines[1])) and at[1] != "??":
            return lines[0], Path(at[1]).name, int(at[2])
    return None


def explained(library: Library, text: str, shared: str) -> tuple[str, tuple[str, int] | None]:
    """What the testkit's handler or a sanitizer wrote of a fault: words, and the place in the source."""
    own = {Path(path).name: path for path, _, _ in library.files.values()}
    if found := re.search(r"SUMMARY: \w+Sanitizer: (\S+)", text):
        what = found[1]
        for frame in re.finditer(r"#\d+ 0x[0-9a-f]+ in (\w+) (?:\S*/)?(\w+\.c):(\d+)", text):
            if frame[2] in own:
                return f"{what} in {frame[1]}, {frame[2]}:{frame[3]}", (own[frame[2]], int(frame[3]))
        return what, None
    if found := re.search(r"(?:\S*/)?(\w+\.c):(\d+):\d+: runtime error: (.*)", text):
        return f"{found[3]}, {found[1]}:{found[2]}", (own.get(found[1], found[1]), int(found[2]))
    if found := re.search(r"^@tk (?:fault|still) (\S+) (-?\d+)((?: =?0x[0-9a-f]+)*)$", text, re.MULTILINE):
        name, distance, offsets = found.groups()
        at = located(shared, offsets.split())
        where = f" in {at[0]}, {at[1]}:{at[2]}" if at else ""
        beyond = (
            ""
            if name == "-"
            else " went through a NULL pointer"
            if name == "NULL"
            else f" touched byte {distance} past the end of {name}"
            if int(distance) >= 0
            else (f" touched memory before {name}")
        )
        place = (own.get(at[1], at[1]), at[2]) if at else None
        return f"{beyond}{where}".strip(), place
    return "", None
