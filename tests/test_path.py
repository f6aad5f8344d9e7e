"""path.tsv: the shipped file, and every way a path file can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grader.errors import OwnFault, UsageError
from grader.path import COLUMNS, built, find, needs_closure, read_path

ROOT = Path(__file__).resolve().parent.parent
ORDER = """
M07.6 M09.3 M09.4 S-M09b L8.1 L8.2 L8.3 ds.07 L8.4 L8.5 L8.6 L8.7 craft.06 MS-L8 MS-P6
rt.02 ds.01 ds.02 ds.03 ds.04 rt.03 rt.04 M09.5 M09.6 M09.7 L9.1 L9.2 L9.3 L9.4 L9.5 L9.6 MS-L9
"""
HEADER = "\t".join(COLUMNS)


def row(stage: int, id_: str, unit: str, /, **changes: str) -> str:
    fields = {
        "path": "course",
        "stage": str(stage),
        "id": id_,
        "unit": unit,
        "files": f"impl/{unit}.py",
        "kind": "build",
        "needs": "-",
        "title": "A title",
        "read": f"spec/{unit}.md",
        "done_when": "It passes.",
        "check": f"practice/bin/ol check {id_}",
    }
    return "\t".join({**fields, **changes}.values())


def gate(stage: int, id_: str, unit: str, /, **changes: str) -> str:
    whole = {"files": "-", "kind": "milestone", "needs": "A.1", "check": f"practice/bin/ol gate {id_}"}
    return row(stage, id_, unit, **{**whole, **changes})


A = row(1, "A.1", "alpha")
B = row(2, "B.2", "beta", needs="A.1")
C = row(3, "C.3", "gamma", needs="B.2")
GATE = gate(4, "MS-X", "ms_x", needs="A.1 B.2 C.3")


def write(folder: Path, *rows: str) -> Path:
    file = folder / "path.tsv"
    file.write_text("\n".join((HEADER, *rows)) + "\n", encoding="utf-8", newline="")
    return file


def without_field(text: str, column: str) -> str:
    fields = text.split("\t")
    del fields[COLUMNS.index(column)]
    return "\t".join(fields)


def test_shipped_path() -> None:
    stages = read_path(ROOT / "path.tsv")
    assert [stage.stage for stage in stages] == list(range(1, 33))
    assert [stage.line for stage in stages] == list(range(2, 34))
    assert {stage.path for stage in stages} == {"course-p06-p06-inference-and-kernels"}
    ids = [stage.id for stage in stages]
    assert ids == ORDER.split()
    required = ids[:13]
    assert [stage.id for stage in needs_closure(stages, find(stages, "MS-P6"))] == [*required, "MS-L8"]
    assert [stage.id for stage in needs_closure(stages, find(stages, "MS-L9"))] == ids[15:31]
    assert [stage.id for stage in stages if stage.is_optional] == ids[15:31]
    assert find(stages, "L8.2").files == ("impl/kv_cache.py", "impl/generate.py")
    assert find(stages, "rt.02").files == ("csrc/src/abi.c", "csrc/src/arena.c")
    for stage in stages:
        words = stage.title.split()
        assert words[: len(words) // 2] != words[len(words) // 2 :], "a title is given once"


def test_a_good_path_reads(tmp_path: Path) -> None:
    url = row(5, "D.5", "delta", read="spec/delta.md https://example.org/a")
    shared = gate(6, "MS-Y", "ms_y", needs="MS-X", read="spec/ms_x.md")
    other = row(1, "E.1", "epsilon", path="second-path")
    stages = read_path(write(tmp_path, A, B, C, GATE, url, shared, other))
    assert [stage.id for stage in stages] == ["A.1", "B.2", "C.3", "MS-X", "D.5", "MS-Y", "E.1"]
    assert stages[0].needs == () and stages[3].files == () and stages[3].needs == ("A.1", "B.2", "C.3")
    assert stages[4].page == "spec/delta.md"
    assert stages[6].stage == 1


def test_no_newline_at_the_end_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "path.tsv"
    file.write_text(f"{HEADER}\n{A}", encoding="utf-8")
    assert [stage.id for stage in read_path(file)] == ["A.1"]


FAULTS: dict[str, tuple[list[str], int, str]] = {
    "no rows": ([], 2, "the path has no stage"),
    "too few fields": ([A, without_field(B, "title")], 3, "10 fields instead of 11"),
    "too many fields": ([A + "\tx"], 2, "12 fields instead of 11"),
    "a blank line": ([A, "", B], 3, "1 fields instead of 11"),
    "empty field": ([row(1, "A.1", "alpha", title="")], 2, "the field title is empty"),
    "a dash for a title": ([row(1, "A.1", "alpha", title="-")], 2, "the field title is empty"),
    "empty needs": ([row(1, "A.1", "alpha", needs="")], 2, "the field needs is empty"),
    "two spaces": ([row(1, "A.1", "alpha", title="A  title")], 2, "stray spaces in the field title"),
    "space at the end": ([row(1, "A.1", "alpha", title="A ")], 2, "stray spaces in the field title"),
    "bad path": ([row(1, "A.1", "alpha", path="Course/6")], 2, "bad path name 'Course/6'"),
    "stage 0": ([row(0, "A.1", "alpha")], 2, "bad stage number '0'"),
    "stage in words": ([row(1, "A.1", "alpha", stage="one")], 2, "bad stage number 'one'"),
    "bad id": ([row(1, "A1", "alpha")], 2, "bad id 'A1'"),
    "id with a slash": ([row(1, "A.1/2", "alpha")], 2, "bad id 'A.1/2'"),
    "unit in capitals": ([row(1, "A.1", "Alpha")], 2, "bad unit name 'Alpha'"),
    "unit of one letter": ([row(1, "A.1", "a")], 2, "bad unit name 'a'"),
    "long unit": ([row(1, "A.1", "a" * 25)], 2, f"bad unit name '{'a' * 25}'"),
    "unknown kind": ([row(1, "A.1", "alpha", kind="extra")], 2, "unknown kind 'extra'"),
    "duplicate id": ([A, row(2, "a.1", "beta")], 3, "id a.1 is taken"),
    "duplicate unit": ([A, row(2, "B.2", "alpha", files="impl/alpha.py")], 3, "unit alpha is taken"),
    "duplicate file": (
        [A, row(2, "B.2", "beta", files="impl/beta.py impl/alpha.py")],
        3,
        "file impl/alpha.py is taken",
    ),
    "duplicate stage": ([A, row(1, "B.2", "beta")], 3, "stage 1 comes after stage 1"),
    "stages not ascending": (
        [row(2, "A.1", "alpha"), row(1, "B.2", "beta")],
        3,
        "stage 1 comes after stage 2",
    ),
    "unknown need": ([A, row(2, "B.2", "beta", needs="Z.9")], 3, "B.2 needs 'Z.9', which is no id here"),
    "need on itself": ([A, row(2, "B.2", "beta", needs="B.2")], 3, "B.2 needs itself"),
    "need twice": ([A, row(2, "B.2", "beta", needs="A.1 A.1")], 3, "B.2 names a need twice"),
    "forward need": (
        [row(1, "A.1", "alpha", needs="B.2"), row(2, "B.2", "beta")],
        2,
        "A.1 needs B.2, which comes later (line 3)",
    ),
    "cycle": (
        [row(1, "A.1", "alpha", needs="C.3"), B, C],
        2,
        "needs go round: A.1 -> C.3 -> B.2 -> A.1",
    ),
    "cycle behind a good stage": (
        [A, row(2, "B.2", "beta", needs="A.1 C.3"), row(3, "C.3", "gamma", needs="B.2")],
        3,
        "needs go round: B.2 -> C.3 -> B.2",
    ),
    "absolute file": (
        [row(1, "A.1", "alpha", files="/impl/alpha.py")],
        2,
        "'/impl/alpha.py' is no path inside",
    ),
    "file outside": (
        [row(1, "A.1", "alpha", files="impl/../../alpha.py")],
        2,
        "'impl/../../alpha.py' is no path",
    ),
    "backslash": ([row(1, "A.1", "alpha", files="impl\\alpha.py")], 2, "is no path inside the workspace"),
    "dot slash": (
        [row(1, "A.1", "alpha", files="./impl/alpha.py")],
        2,
        "'./impl/alpha.py' is no path inside",
    ),
    "unknown suffix": (
        [row(1, "A.1", "alpha", files="impl/alpha.rs")],
        2,
        "'impl/alpha.rs' has an unknown suffix",
    ),
    "two languages": (
        [row(1, "A.1", "alpha", files="impl/alpha.py csrc/src/alpha.c")],
        2,
        "the files of A.1 are of two languages",
    ),
    "file of another name": (
        [row(1, "A.1", "alpha", files="impl/other.py")],
        2,
        "no file of A.1 is called alpha",
    ),
    "no file": ([row(1, "A.1", "alpha", files="-")], 2, "A.1 lists no file"),
    "check of another id": (
        [row(1, "A.1", "alpha", check="practice/bin/ol check A.2")],
        2,
        "check 'practice/bin/ol check A.2' does not fit A.1",
    ),
    "check of a gate": (
        [A, gate(2, "MS-X", "ms_x", check="practice/bin/ol check MS-X")],
        3,
        "does not fit MS-X",
    ),
    "another page": ([row(1, "A.1", "alpha", read="spec/beta.md")], 2, "read starts with 'spec/beta.md'"),
    "page outside spec": (
        [A, gate(2, "MS-X", "ms_x", read="../ms_x.md")],
        3,
        "read starts with '../ms_x.md'",
    ),
    "read with http": (
        [row(1, "A.1", "alpha", read="spec/alpha.md http://example.org")],
        2,
        "read has more than a page and a URL",
    ),
    "read with two URLs": (
        [row(1, "A.1", "alpha", read="spec/alpha.md https://example.org https://example.net")],
        2,
        "read has more than a page and a URL",
    ),
    "milestone with files": (
        [A, gate(2, "MS-X", "ms_x", files="impl/ms_x.py")],
        3,
        "milestone MS-X lists files",
    ),
    "milestone without needs": ([A, gate(2, "MS-X", "ms_x", needs="-")], 3, "milestone MS-X needs no stage"),
    "required needs optional": (
        [row(1, "A.1", "alpha", kind="side"), B],
        3,
        "B.2 is required and needs A.1, which is optional",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(tmp_path: Path, name: str) -> None:
    rows, line, message = FAULTS[name]
    with pytest.raises(OwnFault) as caught:
        read_path(write(tmp_path, *rows))
    assert message in caught.value.what
    assert caught.value.where == f"path.tsv line {line}"
    assert caught.value.fix


BAD_BYTES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 1, "path.tsv is empty"),
    "only line ends": (b"\n\n", 1, "path.tsv is empty"),
    "no header": (f"{A}\n".encode(), 1, "the header is not the expected one"),
    "renamed column": (
        f"{HEADER.replace('unit', 'name')}\n{A}\n".encode(),
        1,
        "the header is not the expected one",
    ),
    "spaces in the header": (
        f"{HEADER.replace(chr(9), ' ')}\n".encode(),
        1,
        "the header is not the expected one",
    ),
    "byte order mark": (f"\ufeff{HEADER}\n{A}\n".encode(), 1, "the header is not the expected one"),
    "crlf": (f"{HEADER}\n{A}\r\n".encode(), 2, "a carriage return"),
    "crlf from the start": (f"{HEADER}\r\n{A}\r\n".encode(), 1, "a carriage return"),
    "not utf-8": (f"{HEADER}\n{A}\n".encode() + b"\xff\n", 3, "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bad_bytes(tmp_path: Path, name: str) -> None:
    data, line, message = BAD_BYTES[name]
    file = tmp_path / "path.tsv"
    file.write_bytes(data)
    with pytest.raises(OwnFault, match=message) as caught:
        read_path(file)
    assert caught.value.where == f"path.tsv line {line}"
    assert caught.value.fix


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OwnFault, match=r"path\.tsv is missing") as caught:
        read_path(tmp_path / "path.tsv")
    assert str(tmp_path) in caught.value.where


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "path.tsv").mkdir()
    with pytest.raises(OwnFault, match=r"path\.tsv cannot be read: Is a directory"):
        read_path(tmp_path / "path.tsv")


def test_find(tmp_path: Path) -> None:
    stages = read_path(write(tmp_path, A, B, C, GATE))
    for name in ("B.2", "b.2", "beta", "BETA"):
        assert find(stages, name).id == "B.2"
    assert find(stages, "ms-x").unit == "ms_x"


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("bta", "B.2 (beta)"), ("C3", "C.3 (gamma)"), ("MSX", "MS-X (ms_x)")],
)
def test_find_names_the_nearest(tmp_path: Path, wrong: str, nearest: str) -> None:
    stages = read_path(write(tmp_path, A, B, C, GATE))
    with pytest.raises(UsageError) as caught:
        find(stages, wrong)
    assert caught.value.what == f"no stage is called {wrong!r}"
    assert f"did you mean {nearest}?" in caught.value.fix


def test_needs_closure_is_transitive_and_in_order(tmp_path: Path) -> None:
    stages = read_path(write(tmp_path, A, B, C, row(4, "D.4", "delta")))
    assert [stage.id for stage in needs_closure(stages, stages[2])] == ["A.1", "B.2"]
    assert needs_closure(stages, stages[0]) == []


def _file(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")

    return make


def _folder(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).mkdir(parents=True)


PARTS = [_file("impl/two.py"), _file("impl/more.py"), _folder("fixtures/two"), _file("spec/two.md")]


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ([1, 2, 3], "impl/two.py"),
        ([0, 2, 3], "impl/more.py"),
        ([0, 1, 3], "fixtures/two/"),
        ([0, 1, 2], "spec/two.md"),
        ([0], "impl/more.py, fixtures/two/, spec/two.md"),
    ],
)
def test_half_built(tmp_path: Path, there: list[int], missing: str) -> None:
    file = write(tmp_path, A, row(2, "B.2", "two", files="impl/two.py impl/more.py"))
    for index in there:
        PARTS[index](tmp_path)
    with pytest.raises(OwnFault) as caught:
        built(read_path(file)[1], tmp_path)
    assert caught.value.what == f"B.2 (two) is half built, missing: {missing}"
    assert caught.value.where == "path.tsv line 3"


def test_built_and_not_built(tmp_path: Path) -> None:
    file = write(tmp_path, A, row(2, "B.2", "two", files="impl/two.py impl/more.py"))
    one, two = read_path(file)
    assert not built(two, tmp_path)
    PARTS[3](tmp_path)  # a page may be written before the unit
    assert not built(two, tmp_path)
    for make in PARTS[:3]:
        make(tmp_path)
    assert built(two, tmp_path)
    assert not built(one, tmp_path)


def test_a_milestone_is_built_once_its_page_is_there(tmp_path: Path) -> None:
    stages = read_path(write(tmp_path, A, gate(2, "MS-X", "ms_x")))
    assert not built(stages[1], tmp_path)
    _file("spec/ms_x.md")(tmp_path)
    assert built(stages[1], tmp_path)
