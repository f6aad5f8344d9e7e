"""The kv_cache oracle against the page's numbers, codecs and tokenizers, and against the testkit's doubles.

The doubles' models run here over the oracle's and a testkit cache, so that both copies of each are compared.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import strict_yaml, testkit
from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "kv_cache"
oracle = import_file(FOLDER / "oracle.py", "kv_cache_oracle_under_test")
BYTES = oracle.ByteVocabulary()


def f32(*nested: Any) -> Any:
    return np.array(nested, np.float32)


def greedy(
    script: list[int], prompt: str = "a", *, start: int = 1, **more: Any
) -> tuple[dict[str, Any], Any]:
    """A scripted request and its model."""
    params = {"temperature": 0.0, "max_tokens": 8, **more.pop("params", {})}
    model = oracle.ScriptedModel(script, start, **more.pop("sizes", {}))
    tok = more.pop("tok", BYTES)
    return oracle.run_request(model, tok, prompt, oracle.SamplingParams(**params), **more), model


# -- the caches -------------------------------------------------------------------------------------------


def test_the_worked_example() -> None:
    cache = oracle.KVCache(1, 1, 2, 4)
    assert cache.nbytes() == 64
    cache.update(0, f32([[[1, 2], [3, 4]]]), f32([[[5, 6], [7, 8]]]))
    assert cache.mask(2).tolist() == [[True, True, True, False], [True] * 4]
    k, v = cache.update(0, f32([[[9, 10]]]), f32([[[11, 12]]]))
    assert k.tolist() == [[[[1, 2], [3, 4], [9, 10]]]] and v.tolist() == [[[[5, 6], [7, 8], [11, 12]]]]
    with pytest.raises(ValueError):
        cache.update(0, f32([[[0, 0], [0, 0]]]), f32([[[0, 0], [0, 0]]]))
    cache.update(0, f32([[[13, 14]]]), f32([[[15, 16]]]))
    cache.truncate(1)
    k, v = cache.update(0, f32([[[17, 18]]]), f32([[[19, 20]]]))
    assert k.tolist() == [[[[1, 2], [17, 18]]]] and v.tolist() == [[[[5, 6], [19, 20]]]]


def test_the_committed_length_is_the_smallest() -> None:
    cache = oracle.KVCache(3, 1, 1, 8)
    one = f32([[[1]]])
    for layer in (2, 2, 0, 1):
        cache.update(layer, one, one)
    assert [cache.seq_len(i) for i in range(3)] == [1, 1, 2] and cache.seq_len() == 1
    cache.truncate(1)
    assert [cache.seq_len(i) for i in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("sign", [1, -1])
def test_halves_round_as_numpy_does(sign: int) -> None:
    """`struct` packs binary16 by code of its own."""
    numbers = np.random.default_rng(4).uniform(-20, 15, 3000)
    values = (sign * 2.0**numbers).astype(np.float32)
    planted = f32(*(x for x in oracle.PLANTED))
    for x in [*values, *planted]:
        assert oracle.stored(float(x), np.dtype(np.float16)) == float(np.float16(x))


def test_nbytes_of_both_caches() -> None:
    assert oracle.KVCache(3, 2, 5, 7, 11).nbytes() == 2 * 3 * 11 * 2 * 7 * 5 * 4
    assert oracle.LatentCache(3, 5, 2, 7, 11, np.float16).nbytes() == 3 * 11 * 7 * (5 + 2) * 2


GOOD = {"n_layers": 2, "n_kv_heads": 2, "d_head": 3, "max_len": 4, "batch": 2, "dtype": np.float16}
BAD: list[tuple[str, Any]] = [
    *((name, 0) for name in GOOD if name != "dtype"), ("dtype", np.int32), ("dtype", np.bool_),
    ("dtype", np.complex64), ("max_len", -1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_cache_that_cannot_be(name: str, value: Any) -> None:
    oracle.KVCache(**GOOD)
    with pytest.raises(oracle.Refused):
        oracle.KVCache(**{**GOOD, name: value})


WRONG = [(1, 2, 1, 3), (2, 1, 1, 3), (2, 2, 1, 1), (2, 2, 0, 3), (2, 2, 3), (2, 2, 5, 3)]


@pytest.mark.parametrize("shape", WRONG)
def test_a_chunk_that_does_not_fit(shape: tuple[int, ...]) -> None:
    cache, right = oracle.KVCache(**GOOD), np.zeros((2, 2, 1, 3), np.float32)
    wrong = np.zeros(shape, np.float32)
    for k, v in ((wrong, right), (right, wrong), (wrong, wrong)):
        with pytest.raises(oracle.Refused):
            cache.update(0, k, v)
    assert cache.seq_len(0) == 0
    cache.update(0, right, right)


def test_the_script_draw_meets_everything() -> None:
    """Appends, refusals of every kind, cuts, and positions that never go beyond the room."""
    said: dict[tuple[str, bool], int] = {}
    for i in range(12):
        cache, ops = oracle.KVCache(3, 2, 2, 9), oracle.cache_ops(Chooser(1, i), n=60)
        step = next(ops)
        while step is not None:
            if step["do"] in ("positions", "mask"):
                assert cache.seq_len() + step["args"]["t_new"] <= 9
            try:
                answer = {"return": getattr(cache, step["do"])(**step["args"])}
            except oracle.Refused:
                answer = {"raises": "ValueError"}
            key = (step["do"], "raises" in answer)
            said[key] = said.get(key, 0) + 1
            try:
                step = ops.send(answer)
            except StopIteration:
                step = None
    for name in ("update", "truncate", "seq_len", "positions", "mask"):
        assert said[name, True] >= 3 and said[name, False] >= 10, said
    assert said["update", False] > 150


# -- the decoder ------------------------------------------------------------------------------------------


def test_the_decoder_examples() -> None:
    def pieces(raw: bytes) -> list[str]:
        return oracle.streamed(oracle.IncrementalDecoder(BYTES), [list(raw)])[0]

    assert pieces(b"\xc3\xa9x") == ["", "é", "x", ""]
    assert pieces(b"\xf0\x9f\xa5\xae") == ["", "", "", "\U0001f96e", ""]
    assert pieces(b"A\xf0\x9f") == ["A", "", "", "\ufffd"]
    assert pieces(b"\x85B") == ["", "\ufffdB", ""]


@pytest.mark.parametrize("raw", [*oracle.SHORT.values(), *(t.encode()[:24] for t in oracle.TEXTS.values())])
def test_codecs_give_the_same_text_and_never_less(raw: bytes) -> None:
    """The stream's text is the codec's; a piece comes at the latest where no byte is pending."""
    pieces = oracle.streamed(oracle.IncrementalDecoder(BYTES), [list(raw)])[0]
    codec = codecs.getincrementaldecoder("utf-8")("replace")
    told = given = ""
    for byte, piece in zip(raw, pieces, strict=False):
        told += codec.decode(bytes([byte]))
        given += piece
        assert told.startswith(given)
        if not told.endswith("\ufffd") and not codec.getstate()[0]:
            assert given == told
    assert given + pieces[-1] == told + codec.decode(b"", final=True) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("name", sorted(oracle.SHORT))
def test_every_chunking_adds_up(name: str) -> None:
    raw = oracle.SHORT[name]
    every = oracle.chunkings(raw)
    assert len(every) == 2 ** (len(raw) - 1) and all(b"".join(chunks) == raw for chunks in every)
    extra, ids = oracle.as_ids(every)
    tok = oracle.ByteVocabulary(extra)
    for said, stream in zip(oracle.streamed(oracle.IncrementalDecoder(tok), ids), ids, strict=True):
        assert "".join(said) == raw.decode("utf-8", "replace") == tok.decode(stream)
        assert not any(piece.endswith("\ufffd") for piece in said[:-1])


def byte_level(tokenizers: Any) -> tuple[Any, dict[int, int]]:
    """A byte-level tokenizer of the 256 bytes, and the id of each byte in it."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    shown = {**{b: chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}}
    rest = [b for b in range(256) if b not in shown]
    shown |= {b: chr(256 + i) for i, b in enumerate(rest)}
    vocab = {char: i for i, char in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer, {b: vocab[char] for b, char in shown.items()}


@pytest.mark.parametrize("name", [*oracle.TEXTS, *oracle.SHORT])
def test_tokenizers_streams_the_same_pieces(name: str) -> None:
    """The peer says None where we say "", and has no flush."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("tokenizers.decoders")
    tokenizer, ids = byte_level(tokenizers)
    raw = oracle.TEXTS[name].encode() if name in oracle.TEXTS else oracle.SHORT[name]
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
    ours = oracle.IncrementalDecoder(BYTES)
    for byte in raw:
        assert (stream.step(tokenizer, ids[byte]) or "") == ours.push(byte)


def test_word_pieces_keep_inner_spaces() -> None:
    tok = oracle.WordPieces(["\u2581I", "\u2581am", "\u2581ok"])
    said = oracle.streamed(oracle.IncrementalDecoder(tok), [[0, 1, 2], [1]])
    assert said == [["I", " am", " ok", ""], ["am", ""]]


# -- sampling and the loop --------------------------------------------------------------------------------


def test_the_request_stream_and_a_published_request() -> None:
    assert oracle.request_rng(0).uniform() == 0.8020949661137535
    assert oracle.request_rng(17).uniform() == 0.4145309927204168
    logits, ids, rng = [0.5, -1.25, 2.0, 2.0, 0.0, -0.5, 1.75, -3.0], [], oracle.request_rng(7)
    p = oracle.SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=1.2,
                              presence_penalty=0.1, frequency_penalty=0.2)  # fmt: skip
    logprobs = []
    for _ in range(8):
        token, logprob, _ = oracle.draw(oracle.penalised(logits, p, ids, [1, 4]), p, rng)
        ids.append(token)
        logprobs.append(logprob)
    assert ids == [2, 3, 3, 6, 2, 2, 0, 2]
    assert logprobs[:2] == pytest.approx([-1.1805874527142612, -1.0250037836802193], rel=1e-14)
    assert logprobs[7] == pytest.approx(-1.5205914093365491, rel=1e-14)


def test_the_loop_feeds_each_id_once_and_not_the_last() -> None:
    said, model = greedy([100, 101, 102, 103], "abc", start=3, params={"max_tokens": 3})
    assert said["ids"] == [100, 101, 102] and said["text"] == "def" and said["finish_reason"] == "length"
    assert model.calls == [[[97, 98, 99], [0, 1, 2]], [[100], [3]], [[101], [4]]]
    assert model.memory == [2 * 2 * 2 * 4 * 6 * 4] * 3


def test_the_end_of_text_and_of_the_context() -> None:
    said, _ = greedy([98, 10, 99], eos_ids=[10])
    assert (said["text"], said["ids"], said["finish_reason"]) == ("b", [98], "stop")
    said, _ = greedy([98] * 9, "aa", start=2, sizes={"max_len": 6})
    assert len(said["ids"]) == 4 and said["finish_reason"] == "length"
    said, model = greedy([98], "aa", start=2, sizes={"max_len": 2})
    assert said["ids"] == [] and model.calls == [] and said["mean_entropy"] == 0.0


STOPS = [  # tokens, stop strings, pieces, text, reason
    (["a", "E", "ND"], ["END"], ["a"], "a", "stop"),
    (["a", "E", "N", "X"], ["END"], ["a", "ENX"], "aENX", "length"),
    (["a", "EN"], ["END"], ["a", "EN"], "aEN", "length"),
    (["bENDxEND"], ["xE", "END"], ["b"], "b", "stop"),
    (["EE", "EN", "D"], ["END"], ["E", "E"], "EE", "stop"),
    (["b", b"END\xf0"], ["END"], ["b"], "b", "stop"),
    (["E", b"\xe2\x82"], ["END"], ["E\ufffd"], "E\ufffd", "length"),
    (["E", "N", "X"], ["ENDX", "NX"], ["E"], "E", "stop"),
]


@pytest.mark.parametrize(("tokens", "stops", "pieces", "text", "reason"), STOPS)
def test_stop_strings_and_pieces(
    tokens: list[Any], stops: list[str], pieces: list[str], text: str, reason: str
) -> None:
    out, ids = oracle.Pieces(), list(range(256, 256 + len(tokens)))
    said, _ = greedy(
        ids, tok=oracle.ByteVocabulary(tokens), on_text=out, sizes={"vocab": 300},
        params={"stop": stops, "max_tokens": len(tokens)},
    )  # fmt: skip
    assert (out.pieces, said["text"], said["finish_reason"]) == (pieces, text, reason)
    assert said["ids"] == ids


@pytest.mark.parametrize("i", range(60))
def test_any_request_streams_what_it_returns(i: int) -> None:
    """Pieces add up, no stop string is left, and without a cache the answer is the same."""
    request = oracle.resolved(oracle.generation(Chooser(3, i)), {})
    out = oracle.Pieces()
    said = oracle.run_request(**request, on_text=out)
    stops = request["p"].stop
    assert "".join(out.pieces) == said["text"] and "" not in out.pieces
    assert not any(stop in said["text"] for stop in stops)
    whole = request["tok"].decode(said["ids"])
    assert whole.startswith(said["text"])
    if said["finish_reason"] == "length":
        assert said["text"] == whole
    again = {**request, "model": oracle.HashedModel(16, request["model"].scale, max_len=64), "cache": "none"}
    if request["model"].__dict__.get("max_len") == 64:
        assert oracle.run_request(**again) == said


REFUSED: list[tuple[str, Any]] = [
    ("prompt", ""), ("prompt", "aaaaa"), ("cache", "paged"), ("cache", "Contiguous"), ("cache", None),
    ("cache", 3), ("p", oracle.SamplingParams(temperature=-1.0)), ("p", oracle.SamplingParams(max_tokens=0)),
    ("model", oracle.Bag(n_layers=1)), ("kv_dtype", np.int32),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_request_that_is_refused_asks_no_model(name: str, value: Any) -> None:
    model = oracle.ScriptedModel([98], 1, max_len=4)
    good = {"model": model, "tok": BYTES, "prompt": "aaaa", "p": oracle.SamplingParams(max_tokens=1)}
    oracle.run_request(**good)
    with pytest.raises(oracle.Refused):
        oracle.run_request(**{**good, name: value})
    assert model.calls == []


# -- the two copies of the doubles ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ByteVocabulary", "WordPieces"])
def test_both_tokenizers_agree(name: str) -> None:
    args = {"ByteVocabulary": [["END", b"\xf0\x9f", "EN"]], "WordPieces": [oracle.WORDS]}[name]
    ours, theirs = getattr(oracle, name)(*args), getattr(testkit, name)(*args)
    for text in ("", "a", "b ENDx", "the ab c", "bbb"):
        if name == "WordPieces" and text == "b ENDx":
            text = "bENDx"
        assert ours.encode(text) == theirs.encode(text)
    choose = Chooser(5, 0)
    for _ in range(200):
        ids = [choose.below(16) for _ in range(choose.below(9))]
        ids = ids if name == "WordPieces" else [i * 17 + choose.below(4) for i in ids]
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("name", ["HashedModel", "ScriptedModel"])
@pytest.mark.parametrize("cached", [True, False])
def test_both_models_agree_with_and_without_a_cache(name: str, cached: bool) -> None:
    scripted = {"script": [5, 6, 7, 8], "start": 2, "vocab": 12}
    args = scripted if name == "ScriptedModel" else {"vocab": 12}
    ours, theirs = getattr(oracle, name)(**args), getattr(testkit, name)(**args)
    cache, context = testkit.ListCache(2) if cached else None, [3, 4, 5, 6, 7]
    fed = [context[:2], context[2:4], context[4:]] if cached else [context[:2], context[:4], context]
    for upto, ids in zip((2, 4, 5), fed, strict=True):
        got = theirs.forward(np.array([ids]), cache=cache)
        want = np.array([ours.rows(context[:upto], len(ids))], np.float32)
        assert got.dtype == np.float32 and np.array_equal(got, want)
    assert theirs.calls[-1] == ([[7], [4]] if cached else [context, [0, 1, 2, 3, 4]])


def test_both_attention_models_agree_cached_or_not() -> None:
    ours, theirs, cache = oracle.AttentionModel(6), testkit.AttentionModel(6), testkit.ListCache(2)
    context = [3, 1, 4, 1, 5, 2, 0]
    want = np.array(ours.rows(context, 7))
    whole = theirs.forward(np.array([context]))[0]
    cuts = ((0, 3), (3, 4), (4, 7))
    parts = [theirs.forward(np.array([context[a:b]]), cache=cache)[0] for a, b in cuts]
    assert np.allclose(whole, want, rtol=1e-5, atol=1e-5) and np.abs(want).max() > 1
    assert np.allclose(np.concatenate(parts), want, rtol=1e-5, atol=1e-5)


class Broken(testkit.ListCache):
    """A cache with one fault."""

    fault = ""

    def update(self, layer: int, k_new: Any, v_new: Any) -> Any:
        k, v = super().update(layer, k_new, v_new)
        return {
            "chunk": (k_new, v_new),
            "swapped": (v, k),
            "values": (k, k),
            "order": (k[:, :, ::-1], v),
        }.get(self.fault, (k, v))

    def positions(self, t_new: int) -> Any:
        return super().positions(t_new) + (self.fault == "late") - self.seq_len() * (self.fault == "zero")

    def mask(self, t_new: int) -> Any:
        mask = super().mask(t_new)
        return np.tril(np.ones_like(mask)) if self.fault == "mask" else mask


@pytest.mark.parametrize("fault", ["", "chunk", "swapped", "values", "order", "late", "zero", "mask"])
def test_a_broken_cache_shows_in_the_logits(fault: str) -> None:
    model, cache = testkit.HashedModel(8), Broken(2)
    cache.fault = fault
    model.forward(np.array([[1, 2, 3]]), cache=cache)
    got = model.forward(np.array([[4]]), cache=cache)[0, -1].tolist()
    right = oracle.HashedModel(8).row([1, 2, 3, 4])
    assert (got == right) == (fault == "")


def test_a_scripted_model_is_lost_when_it_is_fed_another_id() -> None:
    model = testkit.ScriptedModel([5, 6], start=1, vocab=8)
    assert model.forward(np.array([[0]]))[0, -1].argmax() == 5
    assert model.forward(np.array([[0, 5]]))[0, -1].argmax() == 6
    assert model.forward(np.array([[0, 6]]))[0, -1].argmax() == 7  # lost
    with pytest.raises(TypeError, match="integer ids"):
        model.forward(np.array([0, 5]))
    with pytest.raises(TypeError, match="1 positions for 2 ids"):
        model.forward(np.array([[0, 5]]), positions=[0])


def test_sizes_and_boxes() -> None:
    for sizes in ("own", "config", "cfg"):
        args: dict[str, Any] = {"vocab": 4, "n_layers": 3, "max_len": 9, "sizes": sizes, "boxed": True}
        model = testkit.HashedModel(**args)
        assert oracle.cache_dims(model) == oracle.cache_dims(oracle.HashedModel(**args)) == (3, 2, 4, 9)
        assert model.forward(np.array([[1]])).data.shape == (1, 1, 4)
    with pytest.raises(oracle.Refused):
        oracle.cache_dims(testkit.HashedModel(4, sizes="elsewhere"))
    pieces = testkit.Pieces()
    pieces("a")
    assert pieces.pieces == ["a"] and testkit.given(pieces) is pieces


# -- the files --------------------------------------------------------------------------------------------


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name not in ("mutants.yaml", "errors.yaml"):
            found += strict_yaml.load_marked(path.read_bytes(), path.name).value["cases"]
    return found


def test_the_oracle_is_not_the_judged() -> None:
    text = (FOLDER / "oracle.py").read_text()
    assert "import impl" not in text and "from impl" not in text and "grader" not in text


def test_every_field_case_of_the_unit_has_a_source() -> None:
    sources = [
        flag["source"]
        for path in FOLDER.glob("*.yaml")
        if path.name != "mutants.yaml"
        for flag in strict_yaml.load_marked(path.read_bytes(), path.name).value.get("flags", {}).values()
        if "source" in flag
    ]
    for number in ("D01", "D02", "D04", "D07", "D08", "D09", "D11", "K05", "K06", "K08"):
        assert any(f"({number})" in source for source in sources), number


def test_every_listed_mistake_is_claimed() -> None:
    text = (FOLDER / "mutants.yaml").read_bytes()
    named = set(strict_yaml.load_marked(text, "mutants.yaml").value["mutants"])
    claimed = {name for case in cases() for name in case.get("kills", [])}
    assert named == claimed and len(cases()) >= 150
