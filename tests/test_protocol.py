"""The protocol: page and schema agree, worker and adapter speak it alike, bad answers are refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import FORMAT, adapter, frame, runner, schema, session, tree, wire, worker
from grader import answer as answer_module
from grader.answer import Answer, answer_of

ROOT = Path(__file__).resolve().parent.parent
PLAIN = ROOT / "practice" / "adapters" / "plain_python" / "adapter.py"
PAGE = (ROOT / "spec" / "protocol.md").read_text()
SAMPLE_SEED = 0xF88BB8A8724C81EC
LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0])


def plain_python(lines: list[str]) -> list[dict[str, Any]]:
    """What the plain Python adapter answers to lines, without the grader between."""
    command = [sys.executable, "-I", "-S", str(PLAIN)]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def fault(message: Any) -> str:
    found = schema.first_fault("wire", message)
    return f"{schema.dotted(found[0])}: {found[1]}" if found else ""


# -- the page -------------------------------------------------------------------------------------------

REQUESTS = [json.loads(line) for line in re.findall(r"^> (.*)$", PAGE, re.MULTILINE)]
ANSWERS = [json.loads(line) for line in re.findall(r"^< (.*)$", PAGE, re.MULTILINE)]


def test_session_on_the_page_is_what_the_plain_adapter_answers() -> None:
    assert len(REQUESTS) == len(ANSWERS) == 8
    assert plain_python([json.dumps(request) for request in REQUESTS]) == ANSWERS


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda m: min(m.keys() - {"seq", "limit_s"}))
def test_messages_on_the_page_are_valid(message: dict[str, Any]) -> None:
    assert fault(message) == ""


def test_values_on_the_page_are_the_worked_example() -> None:
    assert wire.decode(REQUESTS[2]["args"]["seed"]) == SAMPLE_SEED
    assert wire.decode(REQUESTS[3]["args"]["logits"]).tolist() == LOGITS.tolist()
    assert wire.decode(ANSWERS[3]["return"]) == [3, -0.9248660042217248]


def test_page_states_the_limits_and_names_of_the_code() -> None:
    assert f"{adapter.MAX_LINE:,} bytes" in PAGE
    assert f"nest at most {wire.MAX_DEPTH} deep" in PAGE
    assert f"`{' '.join(wire.DTYPES)}`" in PAGE
    assert f"Format {FORMAT}" in PAGE
    for verb, keys in worker.KEYS.items():
        assert f"`{verb}: " in PAGE
        assert all(f"`{key}" in PAGE for key in keys)


def test_schema_knows_the_keys_of_the_worker() -> None:
    definitions = json.loads((schema.SCHEMAS / "wire.schema.json").read_text())["definitions"]
    assert {verb: set(definitions[verb]["properties"]) for verb in worker.KEYS} == worker.KEYS
    assert definitions["dtype"]["enum"] == list(wire.DTYPES)


# -- the schema -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"hello": "1.0", "unit": "stack", "limit_s": 1}, "missing key 'seq'"),
        ({"seq": 0, "hello": "1.0", "unit": "stack"}, "missing key 'limit_s'"),
        ({"seq": 0, "hello": "1", "unit": "stack", "limit_s": 1}, "hello: '1' does not match"),
        ({"seq": 0, "call": "f", "args": {}, "expect": 1, "limit_s": 1}, "unknown key 'expect'"),
        ({"seq": 0, "call": "f", "args": {}, "on": "x", "limit_s": 1}, "unknown key 'on'"),
        ({"seq": 0, "get": "f", "on": "x", "args": {}, "limit_s": 1}, "unknown key 'args', did you mean"),
        ({"seq": 0, "do": "f", "args": {}, "limit_s": 1}, "missing key 'on'"),
        ({"seq": 0, "reset": 1, "limit_s": 1}, "reset: 1 is not True"),
        ({"seq": 0, "observe": [{"seq": 1}], "limit_s": 1}, "observe[0]: missing key 'call'"),
        ({"seq": 0, "raises": {"bases": []}}, "raises: missing key 'class'"),
        ({"seq": 0, "raises": {"class": "E"}, "phase": "setup"}, "phase: 'setup' is not one of import"),
        ({"seq": -1, "ok": True}, "seq: -1 is less than the minimum"),
    ],
)
def test_schema_refuses_a_message(message: dict[str, Any], words: str) -> None:
    assert words in fault(message)


@pytest.mark.parametrize(
    "answer",
    [{}, {"return": 1, "ok": True}, {"observed": [{"observed": []}]}, {"observed": [{"ok": 1, "return": 1}]}],
)
def test_schema_wants_one_kind_of_answer(answer: dict[str, Any]) -> None:
    assert fault({"seq": 0, **answer})
    with pytest.raises(frame.ProtocolError):
        answer_of(answer)


GOOD_VALUES = [
    None, True, "text", -(2**53) + 1, {"int": "-9007199254740992"}, {"f64": "7ff8000000000000"},
    {"bytes": "e29c85"}, {"dtype": "bf16"}, [1, [{"f64": "3ff0000000000000"}]], {"tuple": []},
    {"map": [["a", 1], [{"tuple": [1, 2]}, None]]}, {"f32": {"shape": [], "base64": "AACAPw=="}},
    {"bool": {"shape": [2], "base64": "AAE="}}, {"f64": {"shape": [0, 3], "base64": ""}},
    {"object": "P", "fields": {"x": 1}}, {"opaque": "a set"},
]  # fmt: skip
BAD_VALUES = [
    1.5, {}, {"f64": 1.5}, {"f64": "3ff"}, {"f64": "zz00000000000000"}, {"int": 5}, {"int": "--5"},
    {"int": "5-"}, {"int": "\u0663"}, {"bytes": "abc"}, {"unknown": 1}, {"map": [[1]]},
    {"f128": {"shape": [0], "base64": ""}},
    {"map": 5}, {"tuple": 5}, {"object": "P"}, {"fields": {}}, {"opaque": 5}, {"f64": {"base64": ""}},
    {"f64": {"shape": [1]}}, {"f64": {"shape": [-1], "base64": ""}}, {"f64": {"shape": [1.5], "base64": ""}},
    {"f64": {"shape": [True], "base64": "AAAAAAAA8D8="}}, {"f64": {"shape": [1], "base64": "?"}},
    {"f64": {"shape": [1], "base64": 5}}, {"new": "C", "args": {}}, {"ref": "x"}, {"return": 1},
]  # fmt: skip
BAD_MEANING = [  # well-formed for a schema
    {"f64": {"shape": [1], "base64": ""}}, {"f64": {"shape": [2], "base64": "AAAAAAAA8D8="}},
    {"bool": {"shape": [1], "base64": "Ag=="}}, {"f64": {"shape": [0, 2**39, 2**39], "base64": ""}},
    {"f64": {"shape": [2**39, 2**39], "base64": ""}}, {"f64": {"shape": [1], "raw": 8}},
    {"map": [[{"map": []}, 1]]}, {"map": [[{"f64": {"shape": [0], "base64": ""}}, 1]]},
    {"opaque": "x", "object": 5},
]  # fmt: skip


@pytest.mark.parametrize("value", GOOD_VALUES, ids=lambda v: json.dumps(v)[:40])
def test_value_of_an_answer_is_accepted(value: Any) -> None:
    assert fault({"seq": 0, "return": value}) == ""
    decoded = wire.decode(value)
    again = wire.decode(wire.encode(decoded, wire.as_base64))
    assert np.array_equal(decoded, again) if isinstance(decoded, np.ndarray) else repr(decoded) == repr(again)


@pytest.mark.parametrize("value", [*BAD_VALUES, *BAD_MEANING], ids=lambda v: json.dumps(v)[:40])
def test_value_of_an_answer_is_refused(value: Any) -> None:
    if value in BAD_VALUES:
        assert fault({"seq": 0, "return": value})
    answers = ({"return": value}, {"return": 1, "args": {"x": value}}, {"observed": [{"return": [value]}]})
    for answer in answers:
        with pytest.raises(frame.ProtocolError):
            answer_of(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"raises": None}, {"raises": "ValueError"}, {"raises": {"class": 5}}, {"memory": []},
        {"raises": {"class": "E", "bases": 5}}, {"raises": {"class": "E", "bases": "abc"}},
        {"raises": {"class": "E", "bases": [5]}}, {"observed": 5}, {"observed": [5]}, {"observed": [None]},
        {"observed": ["return"]}, {"observed": [["return"]]}, {"observed": [{}]}, {"return": 1, "args": [1]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_malformed_answer_is_a_protocol_error_and_nothing_else(answer: dict[str, Any]) -> None:
    with pytest.raises(frame.ProtocolError):
        answer_of(answer)


def test_order_of_keys_means_nothing() -> None:
    assert wire.decode({"fields": {"x": 1}, "object": "P"}) == wire.Fields("P", {"x": 1})
    assert wire.decode({"f64": {"base64": "AAAAAAAA8D8=", "shape": [1]}}).tolist() == [1.0]


def test_dictionary_with_tuples_for_keys_comes_back() -> None:
    value = {(1, (2, "a")): 3, "b": 4}
    assert wire.decode(wire.encode(value, wire.as_base64)) == value


# -- the worker and an adapter speak alike --------------------------------------------------------------

P = wire.New("SamplingParams", {})
RAISED = {"top_p": 0.0}


def sampling(p: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"logits": LOGITS, "p": wire.New("SamplingParams", p), **more}


# Request, the answer's kind, and its value, or what was raised and in which phase.
SCRIPT: list[tuple[dict[str, Any], str, Any]] = [
    ({"reset": True}, "ok", None),
    ({"new": "rng.PCG32", "args": {"seed": SAMPLE_SEED, "seq": 4}, "save": "rng"}, "ok", None),
    ({"do": "uniform", "on": "rng", "args": {}}, "return", 0.8020949661137535),
    ({"new": "rng.PCG32", "args": {"seed": SAMPLE_SEED, "seq": 4}, "save": "rng"}, "ok", None),
    ({"call": "sample", "args": sampling({"top_k": 3, "top_p": 0.8}, history=[], rng=wire.Ref("rng"))},
     "return", [3, -0.9248660042217248]),
    ({"do": "uniform", "on": "rng", "args": {}}, "return", 0.5753080192559342),
    ({"do": "state", "on": "rng", "args": {}, "path": [1]}, "return", 9),
    ({"get": "seed", "on": "rng"}, "return", SAMPLE_SEED),
    ({"call": "process_logits", "args": sampling({"top_k": 2}), "back": ["logits", "p"]},
     "return", np.array([-np.inf, 3.0, -np.inf, 3.0, -np.inf])),
    ({"call": "sampled_entropy", "args": sampling({"temperature": 0})}, "return", 0.0),
    ({"call": "sampled_entropy", "args": sampling(RAISED)}, "raises", ("ValueError", "call")),
    ({"call": "sampled_entropy", "args": {"logits": LOGITS, "p": wire.New("SamplingParams", {"top": 1})}},
     "raises", ("TypeError", "args")),
    ({"call": "sampled_entropy", "args": {"logits": LOGITS}}, "raises", ("TypeError", "call")),
    ({"call": "token_logprobs", "args": {"logits": np.zeros((1, 2), np.float16), "p": P}},
     "raises", ("ValueError", "call")),
    ({"do": "uniform", "on": "nobody", "args": {}}, "raises", ("KeyError", "lookup")),
    ({"do": "absent", "on": "rng", "args": {}}, "raises", ("AttributeError", "lookup")),
    ({"get": "absent", "on": "rng"}, "raises", ("AttributeError", "call")),
    ({"do": "state", "on": "rng", "args": {}, "path": [7]}, "raises", ("IndexError", "result")),
    ({"new": "SamplingParams", "args": {"stop": ["a"], "temperature": 0.5}, "save": "p"}, "ok", None),
    ({"do": "validate", "on": "p", "args": {}}, "return", None),
    ({"get": "stop", "on": "p"}, "return", ["a"]),
    ({"get": "stop", "on": "p", "path": [0]}, "return", "a"),
    ({"call": "request_rng", "args": {"seed": 0}, "save": "stream"}, "ok", None),
    ({"call": "request_rng", "args": {"seed": 0}}, "return", wire.Opaque("PCG32")),
    ({"call": "request_rng", "args": {"seed": 0}, "attrs": ["seed", "absent"]},
     "return", wire.Fields("PCG32", {"seed": SAMPLE_SEED})),
    ({"do": "next_u32", "on": "stream", "args": {}}, "return", 3444971639),
    ({"new": "testkit.ScriptedUniforms", "args": {"values": [0.5]}, "save": "rng"}, "ok", None),
    ({"do": "uniform", "on": "rng", "args": {}}, "return", 0.5),
    ({"do": "uniform", "on": "rng", "args": {}}, "raises", ("RuntimeError", "call")),
    ({"observe": [{"get": "used", "on": "rng"}, {"do": "uniform", "on": "rng", "args": {}},
                  {"do": "absent", "on": "rng", "args": {}}, {"do": "drawn", "on": "rng", "args": {}},
                  {"get": "used", "on": "rng", "wait": 1}]},
     "observed", [1, ("RuntimeError", "call"), ("AttributeError", "lookup"), 1, "unknown key 'wait' in get"]),
    ({"call": "sample", "args": {}, "steps": []}, "unsupported", "unknown key 'steps' in call"),
    ({"call": "uniform", "on": "rng", "args": {}}, "unsupported", "unknown key 'on' in call"),
    ({"observe": [], "keep": ["rng"]}, "unsupported", "unknown key 'keep' in observe"),
    ({"get": "used", "on": "rng", "call": "sample"}, "unsupported", None),
    ({"measure": "sample"}, "unsupported", None),
    ({"get": "used", "on": "rng"}, "return", 1),
    ({"hello": FORMAT, "unit": "sampling"}, "ok", None),
    ({"reset": True}, "ok", None),
    ({"get": "used", "on": "rng"}, "raises", ("KeyError", "lookup")),
]  # fmt: skip


@pytest.fixture(scope="module")
def workers() -> Iterator[session.Workers]:
    pool = session.Workers()
    yield pool
    pool.close()


@pytest.fixture(params=["worker", "adapter"])
def talk(request: pytest.FixtureRequest, workers: session.Workers) -> Iterator[session.Session]:
    if request.param == "worker":
        bundle = tree.bundle(tree.Tree(ROOT, kind="reference"), ROOT, ["impl.sampling"])
        started = workers.opener(bundle)()
        yield started
        started.kill()
    else:
        opener = adapter.opener(f"{sys.executable} -I -S '{PLAIN}'")
        yield opener()
        opener.shutdown()


def same(got: Any, want: Any) -> bool:
    if isinstance(want, np.ndarray):
        return isinstance(got, np.ndarray) and got.dtype == want.dtype and got.tobytes() == want.tobytes()
    return type(got) is type(want) and got == want


def seen(answer: Answer) -> Any:
    if answer.kind == "observed":
        return [seen(item) for item in answer.value]
    return (answer.raised.kind, answer.raised.phase) if answer.raised is not None else answer.value


def test_worker_and_adapter_answer_a_script_alike(
    talk: session.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[dict[str, Any]] = []

    def recorded(reply: dict[str, Any], chunks: Any = None) -> Answer:
        if "seq" in reply:  # not an item of `observed`
            replies.append(reply)
        return answer_of(reply, chunks)

    monkeypatch.setattr(answer_module, "answer_of", recorded)
    monkeypatch.setattr(adapter, "answer_of", recorded)
    assert runner.hello(talk, "sampling") is None
    for message, kind, want in SCRIPT:
        answer = runner.ask(talk, message, 5.0)
        assert answer.kind == kind, (message, answer)
        if kind != "unsupported" or want is not None:
            assert same(seen(answer), want), (message, answer)
        if message.get("back"):
            assert same(answer.args["logits"], LOGITS)
            assert answer.arg("p") == answer.arg("p before")
            assert answer.arg("p").fields["top_k"] == 2
    talk.close()
    assert len(replies) == len(SCRIPT) + 2  # hello, and bye or the last reset
    assert [fault(reply) for reply in replies if fault(reply)] == []


def test_adapter_answers_lines_that_are_valid() -> None:
    lines, messages = [], [{"hello": FORMAT, "unit": "sampling"}, *(message for message, _, _ in SCRIPT)]
    for seq, message in enumerate(messages):
        args = {k: wire.encode(v, wire.as_base64) for k, v in message.get("args", {}).items()}
        request = {"seq": seq, **message, **({"args": args} if "args" in message else {}), "limit_s": 1.0}
        # Only what the script gets wrong on purpose is no valid request.
        on_purpose = {"steps", "keep", "measure"} & message.keys() or {"call", "on"} <= message.keys()
        assert bool(fault(request)) == bool(on_purpose or '"wait"' in json.dumps(request)), request
        lines.append(json.dumps(request))
    replies = plain_python(lines)
    assert [reply["seq"] for reply in replies] == list(range(len(lines)))
    assert [fault(reply) for reply in replies if fault(reply)] == []


def test_worker_answers_with_the_seq_of_the_request(workers: session.Workers) -> None:
    bundle = tree.bundle(tree.Tree(ROOT, kind="reference"), ROOT, ["impl.sampling"])
    started = workers.opener(bundle)()
    assert isinstance(started, session.ForkSession)
    started.sent = started.seq = 41
    started.send({"reset": True}, 5.0)
    assert started.receive(5.0).kind == "ok"
    assert started.seq == 42
    started.kill()


@pytest.mark.parametrize(
    ("hello", "words"),
    [({"hello": "2.0", "unit": "sampling"}, "format 2.0"), ({"hello": "1.0", "unit": "stack"}, "unit stack")],
)
def test_plain_adapter_refuses_what_it_cannot_serve(hello: dict[str, Any], words: str) -> None:
    (reply,) = plain_python([json.dumps({"seq": 0, **hello, "limit_s": 1.0})])
    assert words in reply["unsupported"]


@pytest.mark.parametrize("value", [{"dtype": "f16"}, {"bf16": {"shape": [0], "base64": ""}}, 1.5])
def test_plain_adapter_refuses_forms_it_does_not_know(value: Any) -> None:
    request = {"seq": 0, "call": "request_rng", "args": {"seed": value}, "limit_s": 1.0}
    (reply,) = plain_python([json.dumps(request)])
    assert "unsupported" in reply


def test_plain_adapter_keeps_prints_away_from_the_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PRINTS, str(PLAIN)],
        input='{"seq": 0, "reset": true, "limit_s": 1}\n', capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert done.stdout == '{"seq": 0, "ok": true}\n'
    assert "a stray print" in done.stderr


PRINTS = """
import json, runpy, sys
main, plain = runpy.run_path(sys.argv[1])["main"], json.loads
json.loads = lambda line: (print("a stray print", flush=True), plain(line))[1]
main()
"""
