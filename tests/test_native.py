"""C under test: headers, stubs, builds, faults. A small course with one unit; needs a C compiler."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grader import code, contract, cstub, fixtures, library, native, runner
from grader.errors import Missing, OwnFault
from grader.judge import Verdict
from grader.path import read_path
from grader.session import Workers
from grader.tree import Tree

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "csrc" / "include"
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)

RSQRT = """#include <math.h>
#include "tinyllm/abi.h"
#include "tinyllm/numerics.h"

static float root(float x)
{
    return 1.0f / sqrtf(x);
}

float tl_rsqrtf(float x)
{
    return root(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = root(x[i]);
}
"""
CASES = """format: "1.0"
unit: rsqrt
title: Roots
oracles:
  steps: {kind: independent, by: oracle.py, note: "exact powers of four"}
hints:
  root: ["What is the root of 4?"]
cases:
- id: rsqrt/array
  rule: [R1]
  oracle: [steps]
  call: tl_rsqrt_f32
  args: {x: {f32: [4, 16, 1]}, y: {buffer: "f32[3]"}, n: 3}
  expect: {return: {y: {f32: [0.5, 0.25, 1.0], cmp: bits}}}
- id: rsqrt/nothing
  rule: [R1]
  oracle: [steps]
  call: tl_rsqrt_f32
  args: {x: {f32: [4, 16, 1]}, y: {buffer: "f32[3]"}, n: 0}
  expect: {return: {y: untouched}}
- id: rsqrt/one
  rule: [R1]
  oracle: [steps]
  call: tl_rsqrtf
  args: {x: {f32: 4.0}}
  expect: {return: {f32: 0.5, cmp: bits}}
- id: rsqrt/many
  rule: [R1]
  oracle: [steps]
  call: tl_rsqrt_f32
  args: {y: {buffer: "f32[3]"}, n: 3}
  property: {given: {x: {draw: floats, with: {dtype: f32, shape: [3]}}}, runs: 50, holds: [{law: three}]}
"""
ORACLE = """def three(given, got):
    return None if got["y"].shape == (3,) else "not three"
"""
HEAD = "path\tstage\tid\tunit\tfiles\tkind\tneeds\ttitle\tread\tdone_when\tcheck\n"
ROW = (
    "p\t1\tM09.5\trsqrt\tcsrc/src/rsqrt.c\tside\t-\tRoots\tspec/rsqrt.md\tIt passes.\t"
    "practice/bin/ol check M09.5\n"
)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("course")
    (root / "path.tsv").write_text(HEAD + ROW)
    shutil.copytree(ROOT / "csrc", root / "csrc")
    (root / "csrc" / "src" / "rsqrt.c").write_text(RSQRT)
    folder = root / "fixtures" / "rsqrt"
    folder.mkdir(parents=True)
    (folder / "cases.yaml").write_text(CASES)
    (folder / "oracle.py").write_text(ORACLE)
    (root / "spec").mkdir()
    (root / "spec" / "rsqrt.md").write_text("# rsqrt\n")
    return root


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


Judged = Callable[..., dict[str, Verdict]]


@pytest.fixture
def judged(course: Path, workers: Workers) -> Judged:
    """The verdicts on a source, by the last word of the case's name."""

    def judge(source: str, flavor: str = "plain") -> dict[str, Verdict]:
        (stage,) = read_path(course / "path.tsv")
        unit = fixtures.load(stage, course)
        made = code.code_of(stage, Tree(course, kind="reference"), course)
        assert isinstance(made, library.Library)
        made = library.flavored(made, flavor)
        opener = code.opener_of(workers, made, {"csrc.src.rsqrt": source})
        found = runner.Runner(unit, opener).run(unit.cases).verdicts
        return {name.partition("/")[2]: verdict for name, verdict in found.items()}

    return judge


def test_a_right_answer_passes_in_every_flavor(judged: Judged, course: Path) -> None:
    for flavor in native.FLAVORS:
        if flavor == "plain" or library.available(flavor, course):
            assert {v.outcome for v in judged(RSQRT, flavor).values()} == {"pass"}, flavor


PAST = "touched byte 0 past the end of x in root, rsqrt.c:7"
STUB = '    tl_set_last_error("unimplemented: M09.5");\n    return;\n'
UNBUILT = "Could not build rsqrt.c"
LOOP = "    for (int64_t i = 0; i < n; i++)"


@pytest.mark.parametrize(
    ("old", "new", "outcome", "text"),
    [
        (LOOP, "    for (int64_t i = 0; i <= n; i++)", "crashed", PAST),
        (LOOP, "    for (volatile int64_t i = 0;; i = 0)", "deadline", "(limit 3 s): in "),
        (LOOP, "    y[-1] = 0;\n" + LOOP, "raised", "tl_rsqrt_f32 wrote in front of y, at byte -1"),
        (LOOP, "    ((float *)x)[0] = 1;\n" + LOOP, "fail", ""),
        (LOOP, "    int z = ;\n" + LOOP, "raised", f"{UNBUILT}, line 17: expected expression"),
        ("float tl_rsqrtf(", "float tl_rsq(", "raised", f"{UNBUILT}: it does not define tl_rsqrtf"),
        ("static float root", "float root", "raised", "root is visible to other files: helpers are static"),
        (LOOP, STUB + LOOP, "todo", "not written yet"),
        (LOOP, "    y = n ? NULL : y;\n" + LOOP, "crashed", "access): went through a NULL pointer in tl"),
        (LOOP, "    __builtin_trap();\n" + LOOP, "crashed", "in tl_rsqrt_f32, rsqrt.c:17"),
        ("1.0f / sqrtf(x)", "1.0f / x", "fail", ""),
    ],
    ids=["past", "loop", "before", "input", "compile", "missing", "visible", "stub", "null", "trap", "value"],
)  # fmt: skip
def test_each_fault_has_a_name(judged: Judged, old: str, new: str, outcome: str, text: str) -> None:
    assert RSQRT.count(old) == 1
    verdict = judged(RSQRT.replace(old, new))["array"]
    assert (verdict.outcome, text in verdict.text) == (outcome, True), verdict.text
    assert "@tk" not in verdict.output  # the code has printed nothing


def test_a_sanitizer_says_what_and_where(judged: Judged, course: Path) -> None:
    if not library.available("asan", course):
        pytest.skip("no address sanitizer here")
    beyond = "    volatile float z = x[3];\n    (void)z;\n"
    verdict = judged(RSQRT.replace(LOOP, beyond + LOOP), "asan")["array"]
    assert verdict.outcome == "crashed"
    assert "heap-buffer-overflow in tl_rsqrt_f32, rsqrt.c:17" in verdict.text


def test_the_contract_headers_are_read_whole() -> None:
    found = contract.read(native.compiler(), sorted((HEADERS / "tinyllm").glob("*.h")), [HEADERS])
    assert found.functions["tl_topk_f32"].params[3] == ("idx", "int32_t *")
    assert found.statuses()["1"] == "TL_EINVAL" and len(found.statuses()) == 11
    assert found.structs["tl_kv_stats"] == ["free", "used", "cached", "evictions"]
    assert all(name for function in found.functions.values() for name, _ in function.params)


def test_cffi_lays_structs_out_as_the_compiler_does(tmp_path: Path) -> None:
    headers = sorted((HEADERS / "tinyllm").glob("*.h"))
    found = contract.read(native.compiler(), headers, [HEADERS])
    structs = [name for name, fields in found.structs.items() if fields]  # the others are opaque
    places = [(struct, field) for struct in structs for field in found.structs[struct]]
    sizes = [f'    printf("%zu\\n", sizeof({struct}));\n' for struct in structs]
    offsets = [f'    printf("%zu\\n", offsetof({struct}, {field}));\n' for struct, field in places]
    head = '#include <stddef.h>\n#include <stdio.h>\n#include "tinyllm/tinyllm.h"\nint main(void)\n{\n'
    (tmp_path / "layout.c").write_text(head + "".join([*sizes, *offsets]) + "}\n")
    done = native.compiler().run([f"-I{HEADERS}", "-o", str(tmp_path / "layout"), str(tmp_path / "layout.c")])
    assert done.returncode == 0, done.stderr
    said = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    contract.binding(found, tmp_path, "layout_abi")
    spec = importlib.util.spec_from_file_location("layout_abi", tmp_path / "layout_abi.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ffi = module.ffi
    assert len(places) >= 25
    assert list(map(int, said)) == [
        *map(ffi.sizeof, structs), *(ffi.offsetof(struct, field) for struct, field in places)
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["static int x;", "_Alignas(16) int x;"])
def test_what_cffi_would_misread_is_refused(tmp_path: Path, word: str) -> None:
    path = tmp_path / "bad.h"
    path.write_text(word + "\n")
    with pytest.raises(OwnFault, match="a contract header says"):
        contract.read(native.compiler(), [path])


def test_each_header_compiles_alone_as_c_and_as_cpp() -> None:
    compiler = native.compiler()
    strict = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    for path in (HEADERS / "tinyllm").glob("*.h"):
        done = compiler.run([*strict, f"-I{HEADERS}", "-x", "c", "-fsyntax-only", str(path)])
        assert done.returncode == 0, done.stderr
        done = compiler.run(["-std=c++17", f"-I{HEADERS}", "-x", "c++", "-fsyntax-only", str(path)])
        assert done.returncode == 0 or "cannot execute" in done.stderr, done.stderr


def test_a_stub_keeps_the_prototypes_and_compiles(course: Path) -> None:
    stub = cstub.stub_source(RSQRT, "M09.5", "rsqrt.c")
    headed = cstub.stub_source("/* Roots.\n *\n * By division.\n */\n" + RSQRT, "M09.5", "rsqrt.c")
    assert headed.startswith("/* Roots.\n */\n#include") and "division" not in headed
    assert "sqrtf(x)" not in stub and 'tl_set_last_error("unimplemented: M09.5 tl_rsqrtf")' in stub
    native.Builder(course).object("rsqrt.c", stub)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    native.compiler.cache_clear()
    with pytest.raises(Missing, match="no C compiler"):
        native.compiler()
    native.compiler.cache_clear()


@pytest.mark.parametrize("name", ["vec/random-steps", "swiss_map/script-few-keys"])
def test_a_leak_in_the_first_run_of_many_is_seen(workers: Workers, name: str) -> None:
    stage = next(s for s in read_path(ROOT / "path.tsv") if s.unit == name.partition("/")[0])
    unit = fixtures.load(stage, ROOT)
    case = unit.case(name)
    assert case is not None and case.verb == "property"
    made = code.code_of(stage, Tree(ROOT, kind="reference"), ROOT)
    module = next(name for name in made.files if name.endswith(stage.unit))
    end = "    tl_free(v->data); /* R3 */\n" if stage.unit == "vec" else "    tl_free(m->slots); /* R23 */\n"
    text = made.files[module][1]
    assert text.count(end) == 1
    once = "    static int once;\n    if (!once++)\n        (void)tl_alloc(1, 8);\n"
    changed = {module: text.replace(end, once + end)}
    for source, words in (({}, ""), (changed, "1 block is still allocated")):
        opener = code.opener_of(workers, made, source)
        verdict = runner.Runner(unit, opener, shrinking=False).run([case]).verdicts[name]
        assert verdict.passed == (not words) and words in verdict.text
