"""Cases as C programs: they build, they make the same calls, and they stand in for a sanitized worker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader import fixtures, library, native, reproduce, runner
from grader.path import Stage, read_path
from grader.session import Workers
from grader.tree import Tree

ROOT = Path(__file__).resolve().parents[1]
STAGES = [s for s in read_path(ROOT / "path.tsv") if s.is_native and (ROOT / s.files[0]).is_file()]
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


def built_of(made: reproduce.Program, folder: Path, *more: str) -> Path:
    (folder / "case.c").write_text(made.text)
    places = [f"-I{path}" for path in made.folders]
    flags = [*native.FLAGS, "-O0", "-Wall", "-Wextra", "-Werror", *more, *places]
    done = native.compiler().run([*flags, "-o", "case", "case.c", *made.sources, "-lm"], folder)
    assert done.returncode == 0, done.stderr
    return folder / "case"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.unit)
def test_cases_run_as_a_program(stage: Stage, workers: Workers, tmp_path: Path) -> None:
    unit = fixtures.load(stage, ROOT)
    code = library.bundle(stage, Tree(ROOT, kind="reference"), ROOT)
    opened = library.opener(workers, code)
    calls = [case for case in unit.cases if case.verb == "call"][:15]
    traces = [case for case in unit.cases if case.verb == "trace"][:15]
    sent = {case.id: reproduce.recorded(unit, case, opened) for case in [*calls, *traces]}
    program = built_of(reproduce.program(unit, code, sent, {}), tmp_path)
    for case in sent:
        said = subprocess.run([program, case], capture_output=True, text=True, timeout=60, check=False)
        assert said.returncode == 0, (case, said.stderr)
        lines = said.stdout.splitlines()
        assert lines[1] == case and len(lines) > 2
        assert lines[-1].startswith("blocks still allocated: 0.")


def test_it_takes_the_place_of_a_sanitized_worker(monkeypatch: pytest.MonkeyPatch, workers: Workers) -> None:
    """What only a sanitizer sees becomes the verdict where no worker starts under it, too."""
    monkeypatch.setattr(library, "available", lambda flavor, root: False)
    stage = next(stage for stage in STAGES if stage.unit == "vec")
    unit = fixtures.load(stage, ROOT)
    code = library.bundle(stage, Tree(ROOT, kind="reference"), ROOT)
    old = "    v->len++;\n    return TL_OK;\n}\n\nvoid *tl_vec_at"
    over = "    volatile int most = 2147483647;\n    most = most + (int)v->len + 1;\n"
    text = code.files["csrc.src.vec"][1]
    changed = {"csrc.src.vec": text.replace(old, over + old)}
    assert changed["csrc.src.vec"] != text
    case = unit.case("vec/example-five-pushes")
    assert case is not None
    found = runner.Runner(unit, library.opener(workers, code, changed), shrinking=False).run([case])
    assert found.verdicts[case.id].passed
    notes = library.sanitized(unit, code, changed, workers, found)
    verdict = found.verdicts[case.id]
    assert verdict.outcome == "crashed"
    assert "signed integer overflow" in verdict.text and "vec.c:" in verdict.text
    assert notes == ["address and undefined-behaviour sanitizer: no worker starts under it here; "
                     "cases without draws ran as a program"]  # fmt: skip


def ol(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "grader" / "__main__.py"), "reproduce", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_verb_prints_a_program_that_can_be_built(tmp_path: Path) -> None:
    done = ol("topk/example-ties-at-the-edge")
    assert done.returncode == 0, done.stderr
    (tmp_path / "case.c").write_text(done.stdout)
    command = next(line.removeprefix(" * ") for line in done.stdout.splitlines() if line.startswith(" * cc "))
    assert subprocess.run(command, shell=True, cwd=tmp_path, check=False).returncode == 0
    said = subprocess.run([tmp_path / "case"], capture_output=True, text=True, check=True).stdout
    assert "tl_topk_f32   TL_OK" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("topk/example-ties-at-the-edg",), "in ds.04, did you mean 'topk/example-ties-at-the-edge'?"),
        (("lowp/any",), "M09.4 is no C unit"),
        (("nothing/any",), "nothing"),
    ],
)
def test_it_says_what_it_cannot_write(args: tuple[str, ...], words: str) -> None:
    done = ol(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.stderr
