"""practice/bin/ol, the locks, and one real set-up, which is marked slow."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grader.bootstrap import Place
from grader.bootstrap_faults import MINE
from grader.errors import INTERRUPTED, MISSING, USAGE

ROOT = Path(__file__).resolve().parent.parent
LOCK = "alpha==1.0 --hash=sha256:aa\n"


@pytest.fixture
def tree(tmp_path: Path) -> Place:
    """A ready tree whose interpreters only say how they were called."""
    place = Place.at(tmp_path / "a root")
    place.root.mkdir()
    place.lock.write_text(LOCK)
    place.project.write_text("[project]\n")
    (place.root / "practice" / "bin").mkdir(parents=True)
    shutil.copy2(ROOT / "practice" / "bin" / "ol", place.root / "practice" / "bin" / "ol")
    script(place.root / ".venv" / "bin" / "python", 'echo ready; printf "<%s>\\n" "$@"')
    place.root_mark.write_text(f"{place.root}\n")
    shutil.copy(place.lock, place.lock_mark)
    script(place.root / "tools" / "python3", probing(0, "python3"))
    for tool in ("readlink", "cmp"):
        (place.root / "tools" / tool).symlink_to(str(shutil.which(tool)))
    return place


def script(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def probing(status: int, name: str) -> str:
    """A Python that answers the launcher's probe with a status, and else says its name and arguments."""
    return f'case $3 in *version_info*) exit {status} ;; esac; echo set-up by {name}; printf "<%s>\\n" "$@"'


def launch(
    tree: Place, *args: str, ol: Path | None = None, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    start_at = ol or tree.root / "practice" / "bin" / "ol"
    tools = {"PATH": str(tree.root / "tools"), **env}
    return subprocess.run([start_at, *args], cwd=cwd, env=tools, capture_output=True, text=True)


def test_ready_is_only_an_exec(tree: Place, tmp_path: Path) -> None:
    done = launch(tree, "check", "a b", "", "*", cwd=tmp_path)
    main = tree.root / "grader" / "__main__.py"
    called = ["-I", "-X", "utf8", str(main), "check", "a b", "", "*"]
    assert done.stdout.splitlines() == ["ready", *(f"<{arg}>" for arg in called)]
    assert (done.returncode, done.stderr) == (0, "")


def test_root_is_found_through_links(tree: Place, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to("../-two")
    (tmp_path / "-two").symlink_to(tree.root / "practice" / "bin" / "ol")
    (tmp_path / "folder").symlink_to(tree.root)
    (tmp_path / "bin").symlink_to(tree.root / "practice" / "bin")
    for ol in (
        tmp_path / "links" / "one",
        Path("links/one"),
        Path("-two"),
        tmp_path / "folder" / "practice/bin/ol",
        tmp_path / "bin" / "ol",
    ):
        shell = subprocess.run(
            ["/bin/sh", "--", str(ol)] if ol == Path("-two") else [ol],
            cwd=tmp_path,
            env={"PATH": str(tree.root / "tools")},
            capture_output=True,
            text=True,
        )
        assert f"<{tree.root}/grader/__main__.py>" in shell.stdout, ol


NOT_READY: dict[str, Callable[[Place], object]] = {
    "no environment": lambda tree: shutil.rmtree(tree.venv),
    "no lock mark": lambda tree: tree.lock_mark.unlink(),
    "no root mark": lambda tree: tree.root_mark.unlink(),
    "lock changed": lambda tree: tree.lock.write_text(LOCK + "gamma==1\n"),
    "lock shortened": lambda tree: tree.lock.write_text(LOCK[:-1]),
    "moved": lambda tree: tree.root_mark.write_text("/elsewhere\n"),
    "python gone": lambda tree: tree.python.unlink(),
    "newer project file": lambda tree: os.utime(tree.project, (time.time() + 9, time.time() + 9)),
    "no cmp": lambda tree: (tree.root / "tools" / "cmp").unlink(),
}


@pytest.mark.parametrize("name", NOT_READY)
def test_not_ready_goes_to_the_set_up(tree: Place, name: str) -> None:
    NOT_READY[name](tree)
    done = launch(tree, "check", "a b")
    lines = done.stdout.splitlines()
    assert lines[:4] == ["set-up by python3", "<-I>", "<-X>", "<utf8>"]
    assert lines[-3:] == [f"<{tree.root}>", "<check>", "<a b>"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3": 0, "python3.12": 0}, "python3"),
        ({"python3": 9, "python3.13": 0, "python3.12": 0}, "python3.13"),
        ({"python3": 9, "python3.11": 0}, "python3.11"),
        ({"python3": 8, "python3.11": 0}, "python3.11"),  # 8: too new, or without venv
        ({"python3": 8, "python3.11": 9}, "python3"),
        ({"python3": 127, "python3.14": 8, "python3.12": 8}, "python3.14"),
    ],
)
def test_the_best_python_is_taken(tree: Place, pythons: dict[str, int], chosen: str) -> None:
    tree.lock_mark.unlink()
    for name, status in pythons.items():
        script(tree.root / "tools" / name, probing(status, name))
    assert launch(tree).stdout.startswith(f"set-up by {chosen}\n")


@pytest.mark.parametrize(
    ("version", "answer"),
    [((2, 7), 9), ((3, 10), 9), ((3, 11), 0), ((3, 14), 0), ((3, 15), 8), ((4, 0), 8)],
)
def test_the_probe(version: tuple[int, int], answer: int) -> None:
    probe = (ROOT / "practice" / "bin" / "ol").read_text().split("probe='")[1].split("'")[0]
    pretend = f"import sys; sys.version_info = {(*version, 0)}\n"
    assert subprocess.run([sys.executable, "-I", "-c", pretend + probe]).returncode == answer


def test_the_probe_asks_for_venv() -> None:
    probe = (ROOT / "practice" / "bin" / "ol").read_text().split("probe='")[1].split("'")[0]
    for module in ("venv", "ensurepip"):
        pretend = (
            f"import importlib.util as u; u.find_spec = lambda name: None if name == '{module}' else u\n"
        )
        assert subprocess.run([sys.executable, "-I", "-c", pretend + probe]).returncode == 8


def test_no_python(tree: Place) -> None:
    tree.lock_mark.unlink()
    script(tree.root / "tools" / "python3", probing(9, "python3"))
    done = launch(tree)
    assert done.returncode == MISSING
    assert done.stdout == ""
    assert done.stderr == (
        "error: no Python 3.11 or newer · looked for python3 and python3.11 to python3.14 · install one"
        " (Debian, Ubuntu: apt install python3 python3-venv), or set OL_PYTHON to its path\n"
    )


def test_ol_python_is_used_even_when_ready(tree: Place) -> None:
    mine = tree.root / "my python"
    script(mine, probing(0, "mine"))
    assert launch(tree, OL_PYTHON=str(mine)).stdout.startswith("set-up by mine\n")
    assert launch(tree, OL_PYTHON="").stdout.startswith("ready\n")


@pytest.mark.parametrize("status", [9, 1, None])
def test_ol_python_is_no_good(tree: Place, status: int | None) -> None:
    mine = tree.root / "mine"
    if status is not None:
        script(mine, probing(status, "mine"))
    done = launch(tree, OL_PYTHON=str(mine))
    assert done.returncode == MISSING
    assert done.stderr == (
        f"error: OL_PYTHON is no Python 3.11 or newer · {mine} · set it to one, or unset it\n"
    )


def test_from_launcher_to_program(tree: Place) -> None:
    """The real Python between the two and a ready environment: bootstrap's main only has to exec."""
    for name in ("__init__", "errors", "bootstrap", "bootstrap_faults", "bootstrap_progress"):
        (tree.root / "grader").mkdir(exist_ok=True)
        shutil.copy(ROOT / "grader" / f"{name}.py", tree.root / "grader")
    (tree.root / "grader" / "__main__.py").write_text("import sys; print(sys.argv[1:], sys.flags.isolated)")
    tree.python.unlink()
    tree.python.symlink_to(sys.executable)
    (tree.venv / "lib" / f"python{MINE}" / "site-packages").mkdir(parents=True)
    shutil.copy(tree.project, tree.project_mark)
    done = launch(tree, "a b", "--json", OL_PYTHON=sys.executable)
    assert (done.stdout, done.stderr) == ("['a b', '--json'] 1\n", "")
    (tree.venv / "ol-root").unlink()
    done = launch(tree, OL_PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith("error: .venv is in the way")


# --- the locks ---


def entries(lock: str) -> Iterator[tuple[str, int]]:
    """Name and number of hashes of every requirement."""
    text = re.sub(r"^#.*\n", "", (ROOT / lock).read_text(), flags=re.MULTILINE)
    for entry in re.split(r"\n(?=\S)", text.strip()):
        pinned = re.match(r"([a-z0-9-]+)==[0-9][0-9a-z.]*(?= |$)", entry)
        assert pinned, f"not pinned: {entry.splitlines()[0]}"
        yield pinned[1], entry.count("--hash=sha256:")


@pytest.mark.parametrize(
    ("lock", "extra"),
    [("requirements.lock", "test"), ("requirements-dev.lock", "dev"), ("requirements-peers.lock", "peers")],
)
def test_lock_pins_everything_with_hashes(lock: str, extra: str) -> None:
    pinned = dict(entries(lock))
    assert min(pinned.values()) >= 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["optional-dependencies"][extra] + (project["dependencies"] if extra == "test" else [])
    names = {re.split(r"[<>=]", line)[0].lower().replace("_", "-") for line in asked}
    assert names <= set(pinned)
    assert "://" not in (ROOT / lock).read_text(), "no index is named"


def test_locks_agree() -> None:
    """Only what the first lock has for some systems is in the others too, and then it is the same version."""
    rows = {
        lock: re.findall(r"^([a-z0-9-]+)==([^ ]+)( ;)?", (ROOT / lock).read_text(), re.MULTILINE)
        for lock in ("requirements.lock", "requirements-dev.lock", "requirements-peers.lock")
    }
    runtime = {name: version for name, version, _ in rows["requirements.lock"]}
    everywhere = {name for name, _, marker in rows["requirements.lock"] if not marker}
    for lock in ("requirements-dev.lock", "requirements-peers.lock"):
        assert everywhere.isdisjoint(name for name, _, _ in rows[lock]), "a second copy is another module"
        assert all(runtime.get(name, version) == version for name, version, _ in rows[lock])


@pytest.mark.parametrize("package", ["numpy", "cffi", "pyyaml"])
def test_lock_covers_the_platforms(package: str) -> None:
    """Python 3.11 to 3.14 on Linux x86-64, Linux arm64 and macOS arm64 are twelve wheels at least."""
    assert dict(entries("requirements.lock"))[package] >= 12


# --- the real thing ---


@pytest.mark.slow
def test_a_real_set_up(tmp_path: Path) -> None:
    """A fresh copy, no home: interrupted half-way, then two starts at once, then a start that is ready."""
    root = tmp_path / "a copy"
    shutil.copytree(ROOT / "grader", root / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("practice/bin/ol", "pyproject.toml", "requirements.lock", "LICENSE"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("numpy", "grader", "click"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('the current folder was imported')")
    env = {name: value for name, value in os.environ.items() if name not in ("OL_PYTHON", "PYTHONPATH")}

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [root / "practice" / "bin" / "ol", "--help"],
            cwd=elsewhere,
            env={**env, "HOME": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    interrupted = begin()
    assert interrupted.stderr is not None
    while not interrupted.stderr.readline().startswith("installing "):
        assert interrupted.poll() is None
    interrupted.send_signal(signal.SIGINT)
    out, said = interrupted.communicate(timeout=30)
    assert (interrupted.returncode, out) == (INTERRUPTED, "")
    assert said.splitlines()[-1].startswith("interrupted · ")
    assert "Traceback" not in said

    pair = [begin(), begin()]
    results = [process.communicate(timeout=600) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], results
    assert results[0][0] == results[1][0] != ""
    both = results[0][1] + results[1][1]
    assert both.count("the last set-up did not finish: making .venv") == 1
    assert both.count("waiting: another start of ol is making .venv") == 1
    assert len(re.findall(r"^ol is set up, \d+ s$", both, re.MULTILINE)) == 1

    began = time.monotonic()
    ready = begin()
    assert ready.communicate(timeout=60) == (results[0][0], "")
    assert time.monotonic() - began < 2
    for tool, argument in (("ol", "--help"), ("pytest", "--version")):
        subprocess.run(
            [root / ".venv" / "bin" / tool, argument], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
        )
    lines = [
        line
        for pth in root.glob(".venv/lib/*/site-packages/*ol_grader*.pth")
        for line in pth.read_text().split("\n")
    ]
    assert lines == [str(root), ""], "installed by a plain path, no import hook"
