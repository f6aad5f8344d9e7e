"""The fixture language: what a reader refuses and why, what a correct implementation fails and passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader import check, fixtures, schema, tree
from grader.compare import COMPARATORS
from grader.errors import OWN_FAULT, OwnFault
from grader.fixtures import Case, Unit
from grader.judge import Verdict
from grader.path import Stage, read_path
from grader.runner import Runner
from grader.session import Workers
from grader.wire import MAX_DEPTH, as_base64, decode, encode

HERE = Path(__file__).resolve().parent
TOY = HERE / "toy"
FIXTURES = HERE / "fixtures"
ERRORS = {"Full": {"python": "stack.Full", "base": "RuntimeError"}}
INVALID = sorted((FIXTURES / "invalid").glob("*.yaml"))
FAILING = sorted((FIXTURES / "valid-fail").glob("*.yaml"))
PASSING = sorted((FIXTURES / "valid-pass").glob("*.yaml"))


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def head_of(text: str) -> dict[str, str]:
    """The `# key: value` lines at the top of a file."""
    lines = [line for line in text.splitlines() if line.startswith("# ")]
    return dict(line.removeprefix("# ").split(": ", 1) for line in lines)  # type: ignore[misc]


def reader() -> check.Reader:
    made = check.Reader("stack", FIXTURES)
    made.errors = ERRORS
    return made


def read(path: Path, text: str, kind: str = "cases") -> Any:
    """Read a text as the file at path would be read."""
    if kind != "cases":
        path.write_text(text)
        return fixtures.read_yaml(path, kind, path.parent)
    made = reader()
    made.read(path, text.encode())
    return made.finish()


def mended(text: str, mend: str) -> str:
    """The text after `s/old/new/`, applied once, below the head."""
    _, old, new, _ = (
        part.replace("\\n", "\n").replace("\\t", "\t") for part in mend.removeprefix("s").split(mend[1])
    )
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("# "))
    body = text.removeprefix(head)
    assert body.count(old) == 1
    return head + body.replace(old, new)


# -- invalid files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", INVALID, ids=names(INVALID))
def test_an_invalid_file_is_refused_for_its_one_fault(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    head = head_of(text)
    kind = head.get("reads", "cases")
    copy = path if kind == "cases" else tmp_path / path.name
    with pytest.raises(OwnFault) as caught:
        read(copy, text, kind)
    error = caught.value
    assert head["expect"] in str(error)
    assert error.where.endswith(f"{path.name}:{head['line']}")
    assert error.exit_code == OWN_FAULT
    assert str(error).startswith(f"error: {error.what} · {error.where}")
    read(copy, mended(text, head["mend"]), kind)  # nothing else is wrong with it


def test_there_are_many_invalid_files_and_no_two_say_the_same() -> None:
    bodies = [path.read_text().split("\n", 3)[3] for path in INVALID]
    assert len(INVALID) >= 70
    assert len(set(bodies)) == len(bodies)


def test_a_hint_is_defined_once_in_a_unit() -> None:
    made = reader()
    text = (FIXTURES / "invalid" / "hint-undefined.yaml").read_text().replace("[fulll]", "[full]")
    made.read(FIXTURES / "a.yaml", text.encode())
    with pytest.raises(OwnFault, match=r"hints\.full: hint 'full' is defined twice") as caught:
        made.read(FIXTURES / "b.yaml", text.replace("stack/one", "stack/two").encode())
    assert caught.value.where == "b.yaml:10"


def test_an_id_is_used_once_in_a_unit() -> None:
    made = reader()
    text = (FIXTURES / "valid-pass" / "exact-integers.yaml").read_text()
    made.read(FIXTURES / "a.yaml", text.encode())
    with pytest.raises(OwnFault, match=r"cases\[0\]\.id: 'stack/exact-integers' is defined twice") as caught:
        made.read(FIXTURES / "b.yaml", text.encode())
    assert caught.value.fix == "ids are never reused"


def test_hints_twins_and_replaced_cases_are_found_in_other_files() -> None:
    made = reader()
    raising = (FIXTURES / "valid-pass" / "raise.yaml").read_text()
    twin, _, alone = raising.partition("- id: stack/raise\n")
    made.read(
        FIXTURES / "a.yaml", (twin.partition("cases:\n")[0] + "cases:\n- id: stack/raise\n" + alone).encode()
    )
    with pytest.raises(OwnFault, match="stack/raise: no twin 'stack/raise-twin'"):
        made.finish()
    made.read(FIXTURES / "b.yaml", twin.encode())
    assert [case["id"] for case in made.finish()["cases"]] == ["stack/raise", "stack/raise-twin"]


@pytest.mark.parametrize("place", ["args", "expect"])
def test_a_value_is_as_deep_as_the_wire_carries_it(place: str) -> None:
    """The deepest value that a file may hold arrives whole, also when it comes back as an argument."""
    text = (FIXTURES / "valid-pass" / "exact-integers.yaml").read_text()

    def nested(depth: int) -> str:
        value = "[" * depth + "7" + "]" * depth
        args = value if place == "args" else "[7]"
        expect = value if place == "expect" else "7"
        cases = f"call: pick\n  args: {{items: {args}, i: 0}}\n  expect: {{return: {expect}}}\n"
        return text.partition("call: ")[0] + cases

    read(FIXTURES / "deep.yaml", nested(MAX_DEPTH - 1))
    with pytest.raises(OwnFault, match=f"a value nested deeper than {MAX_DEPTH}"):
        read(FIXTURES / "deep.yaml", nested(MAX_DEPTH))
    deepest: Any = 7
    for _ in range(MAX_DEPTH - 1):
        deepest = [deepest]
    assert decode(encode(deepest, as_base64)) == deepest
    assert "nested deeper" in str(decode(encode([deepest], as_base64)))


def test_a_file_above_its_unit_keeps_its_whole_name() -> None:
    text = (FIXTURES / "invalid" / "id-without-unit.yaml").read_text()
    with pytest.raises(OwnFault) as caught:
        reader().read(Path("/elsewhere/x.yaml"), text.encode())
    assert caught.value.where.startswith("/elsewhere/x.yaml:")


def test_a_fault_in_the_schema_of_a_value_is_shortened() -> None:
    words = schema.first_fault("fixture", {"title": ["x" * 200]})
    assert words is not None
    assert len(words[1]) < 120


def test_dotted_places() -> None:
    assert schema.dotted(("cases", 3, "expect", "return")) == "cases[3].expect.return"
    assert schema.dotted(()) == ""


# -- valid files on a correct implementation --------------------------------------------------------------


def unit_of(paths: list[Path], oracle: Path) -> Unit:
    """The toy's unit with the cases of a folder of single files."""
    cases: list[Case] = []
    for path in paths:
        cases += [Case(**case) for case in read(path, path.read_text())["cases"]]
    stage: Stage = read_path(TOY / "path.tsv")[0]
    unit = Unit(stage, TOY, cases, {}, ERRORS, "")
    unit.dir = paths[0].parent
    unit._oracle = fixtures.import_file(oracle, f"oracle_of_{unit.dir.name.replace('-', '_')}")
    return unit


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def verdicts_of(unit: Unit, workers: Workers) -> dict[str, Verdict]:
    bundle = tree.bundle(tree.Tree(TOY), TOY, ["impl.stack"])
    opener = workers.opener(bundle)
    run = Runner(unit, opener, opener).run(unit.cases)
    assert run.voided == 0
    return run.verdicts


@pytest.fixture(scope="module")
def failing(workers: Workers) -> dict[str, Verdict]:
    return verdicts_of(unit_of(FAILING, FIXTURES / "valid-fail" / "oracle.py"), workers)


@pytest.fixture(scope="module")
def passing(workers: Workers) -> dict[str, Verdict]:
    return verdicts_of(unit_of(PASSING, TOY / "fixtures" / "stack" / "oracle.py"), workers)


@pytest.mark.parametrize("path", FAILING, ids=names(FAILING))
def test_a_valid_file_that_a_correct_implementation_fails(path: Path, failing: dict[str, Verdict]) -> None:
    """Every line of the head is what the report is made of, to the letter."""
    head, verdict = head_of(path.read_text()), failing[f"stack/{path.stem}"]
    difference = verdict.difference
    said = {
        "outcome": verdict.outcome,
        "last state": verdict.last_state,
        "step": "" if verdict.step == "pick" else verdict.step,
        "steps": str(len(verdict.counterexample["steps"]))
        if "steps" in (verdict.counterexample or {})
        else "",
        "text": "" if difference else verdict.text,
        "where": difference.where if difference else "",
        "expected": difference.expected if difference else "",
        "got": difference.got if difference else "",
        "note": difference.note if difference else "",
    }
    assert {key: text for key, text in said.items() if text} == head
    assert not verdict.passed


@pytest.mark.parametrize("path", PASSING, ids=names(PASSING))
def test_a_valid_file_that_a_correct_implementation_passes(path: Path, passing: dict[str, Verdict]) -> None:
    verdict = passing[f"stack/{path.stem}"]
    assert (verdict.outcome, verdict.difference) == ("pass", None)
    assert verdict.files <= {str(TOY / "impl" / "stack.py")}


def test_every_case_of_the_passing_files_passes(passing: dict[str, Verdict]) -> None:
    assert {name: v.outcome for name, v in passing.items() if not v.passed} == {}


def test_only_twins_pass_in_the_failing_files(failing: dict[str, Verdict]) -> None:
    assert [name for name, v in failing.items() if v.passed and not name.endswith("-twin")] == []


def keys_of(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from keys_of(item)


WORDS = {
    "on objects after mutates accept raises twin state do get call new save path args return",
    "holds same_as script given observables level attrs keys",
    "f16 bf16 f32 f64 i32 u8 u64 bool bytes dtype tuple ref gen ids bits hex file",
}


@pytest.mark.parametrize("paths", [FAILING, PASSING], ids=["valid-fail", "valid-pass"])
def test_the_valid_files_use_the_whole_language(paths: list[Path]) -> None:
    assert len(paths) >= 16
    unit = unit_of(paths, TOY / "fixtures" / "stack" / "oracle.py")
    used = [pair for case in unit.cases for pair in keys_of(case.raw)]
    assert {value for key, value in used if key == "cmp"} == set(COMPARATORS)
    assert {case.verb for case in unit.cases} == {"call", "trace", "property"}
    if paths is PASSING:
        assert {key for key, _ in used} >= {word for words in WORDS for word in words.split()}


# -- the manifest and the cache ---------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A copy of the toy course without its cache."""
    import shutil

    shutil.copytree(TOY, tmp_path / "toy", ignore=shutil.ignore_patterns(".cache", "__pycache__"))
    return tmp_path / "toy"


def load(root: Path) -> tuple[Unit, list[str]]:
    notes: list[str] = []
    return fixtures.load(read_path(root / "path.tsv")[0], root, notes.append), notes


def test_a_built_unit_is_parsed_once_per_content(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, notes = load(toy)
    assert notes == []
    assert len(list((toy / ".cache").iterdir())) == 1
    monkeypatch.setattr(fixtures, "parse", None)  # a second parse would be an error
    second, notes = load(toy)
    assert second.cases == first.cases
    assert second.hints == first.hints
    assert notes == []


def test_an_edited_file_is_validated_on_the_spot_and_never_cached(toy: Path) -> None:
    file = toy / "fixtures" / "stack" / "cases.yaml"
    file.write_text(file.read_text() + "# one more line\n")
    _, notes = load(toy)
    assert notes == ["validating cases.yaml of stack: changed since it was built"]
    assert not (toy / ".cache").exists()
    (toy / "fixtures" / "stack" / "more.yaml").write_text(file.read_text().replace("cases:", "casess:"))
    with pytest.raises(OwnFault, match="unknown key 'casess', did you mean 'cases'"):
        load(toy)


def test_a_new_file_is_validated_and_named(toy: Path) -> None:
    text = (FIXTURES / "valid-pass" / "exact-integers.yaml").read_text()
    (toy / "fixtures" / "stack" / "more.yaml").write_text(text)
    unit, notes = load(toy)
    assert notes == ["validating more.yaml of stack: not in its manifest"]
    assert unit.case("stack/exact-integers") is not None


def test_a_changed_content_never_meets_the_old_cache(toy: Path) -> None:
    before, _ = load(toy)
    hidden = toy / "fixtures" / "stack" / ".editor" / "swap.yaml"
    hidden.parent.mkdir()
    hidden.write_text("not: a case\n")  # hidden files and caches of other tools belong to nobody
    assert load(toy)[0].sha256 == before.sha256
    oracle = toy / "fixtures" / "stack" / "oracle.py"
    oracle.write_text(oracle.read_text() + "\n")
    assert load(toy)[0].sha256 != before.sha256


def test_a_broken_cache_is_read_anew(toy: Path) -> None:
    before, _ = load(toy)
    (cache,) = (toy / ".cache").iterdir()
    cache.write_text('{"cases": [')
    assert load(toy)[0].cases == before.cases
    assert json.loads(cache.read_text())["errors"] == before.errors


def test_a_broken_manifest_is_refused(toy: Path) -> None:
    (toy / "fixtures" / "stack" / "MANIFEST.tsv").write_text("cases.yaml\n")
    with pytest.raises(OwnFault, match="a row is not sha256, tab, file name") as caught:
        load(toy)
    assert caught.value.fix == "ol author build stack"


def test_an_oracle_that_is_missing_or_broken_is_our_fault(toy: Path) -> None:
    unit, _ = load(toy)
    oracle = toy / "fixtures" / "stack" / "oracle.py"
    oracle.write_text("import nothing_of_this_name\n")
    with pytest.raises(OwnFault, match="cannot be imported: ModuleNotFoundError"):
        _ = unit.oracle
    oracle.unlink()
    with pytest.raises(OwnFault, match="no such file"):
        _ = unit.oracle
    assert fixtures.read_yaml(toy / "fixtures" / "stack" / "errors.yaml", "errors", toy)["unit"] == "stack"
    with pytest.raises(OwnFault, match="cannot read: No such file or directory"):
        fixtures.read_yaml(toy / "fixtures" / "stack" / "none.yaml", "errors", toy)
