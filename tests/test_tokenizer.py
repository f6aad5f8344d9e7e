"""The given tokenizer: against the tokenizers library, against the rule, and its file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import impl
import impl.tokenizer as module
from impl.tokenizer import Tokenizer

FILE = Path(impl.__path__[0]).parent / "fixtures" / "models" / "tiny" / "tokenizer.json"
EOS = "<|endoftext|>"
TEXTS = [
    "",
    "What, has this thing appear'd again tonight?\n\nBER.\nI have seen nothing.\n",
    "  two   spaces\tand a tab \r\n\n\n end  ",
    "I'll we're they've he'd it's can't I'm 'tis o'er ''s'd",
    "Grüße aus Köln, où l'été dure; ¿qué? Ærø, Łódź, çà et là",
    "\u039f Ρωμαίος και η Ιουλιέτα. Быть или не быть, вот в чём вопрос.",
    "生存还是毁灭\uff0c这是一个问题。 ロミオとジュリエット 로미오와 줄리엣",
    "أكون أو لا أكون؟ להיות או לא להיות होना या न होना",
    "👩‍👩‍👧‍👦 🇩🇰 e\u0301 \u200d\ufeff \u2028 \u00a0 \x00\x01\x1f\x7f\x85",
    '{"a": [1, -2.5e3, true, null], "b\\n": "\\u00e9"}',
    "a_b-c+d=e; 3.14159 10,000 x2 2x ²½Ⅷ٣",
    f"{EOS}one{EOS}{EOS}two <|endoftext| >{EOS[:-1]}",
]


def random_text(rng: random.Random) -> str:
    """A text of one of five kinds."""
    n = rng.randrange(60)
    points = (rng.randrange(0x300), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))
    draws: list[Callable[[], str]] = [
        lambda: chr(rng.randrange(128)),
        lambda: rng.choice(" \n\t\r'sdtrevmla.;AZ09_-\u00a0é\u2028"),
        lambda: chr(rng.choice(points) ^ rng.randrange(64)),
        lambda: rng.choice([EOS, "<|end", "oftext|>", "the ", "king\n", "'Tis", " '", "  "]),
        lambda: rng.choice("the king and queen of men"),
    ]
    draw = rng.choice(draws)
    return "".join(draw() for _ in range(n))


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return Tokenizer.load(FILE)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tok: Tokenizer, text: str) -> None:
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert len(ids) <= len(text.encode())


def test_the_shipped_vocabulary(tok: Tokenizer) -> None:
    assert len(tok.vocab) == 1024
    assert len(set(tok.vocab)) == 1024
    assert {bytes([n]) for n in range(256)} < set(tok.vocab)
    assert tok.special == {EOS: 0}
    assert tok.eos_id == 0
    assert tok.vocab[0] == EOS.encode()
    assert tok.encode(f"the{EOS}") == [tok.vocab.index(b"the"), 0]


def test_equal_to_tokenizers_on_texts(tok: Tokenizer) -> None:
    peer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(FILE))
    rng = random.Random(0)
    heldout = (FILE.parent / "heldout.txt").read_text(encoding="utf-8")
    assert len(tok.encode(heldout)) < 0.5 * len(heldout)
    for text in [*TEXTS, heldout, "a" * 5000, " " * 999, *(random_text(rng) for _ in range(3000))]:
        ids = tok.encode(text)
        assert ids == peer.encode(text, add_special_tokens=False).ids, repr(text)
        assert tok.decode(ids) == text


def test_equal_to_tokenizers_on_ids(tok: Tokenizer) -> None:
    """Random ids seldom join to UTF-8: the places and the number of U+FFFD are the same too."""
    peer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(FILE))
    rng = random.Random(1)
    singles = [n for n, token in enumerate(tok.vocab) if len(token) == 1 and token[0] >= 0x80]
    for n in range(2000):
        ids = [rng.choice(singles) if n % 2 else rng.randrange(1024) for _ in range(rng.randrange(20))]
        assert tok.decode(ids) == peer.decode(ids, skip_special_tokens=False)


def by_the_rule(tok: Tokenizer, merges: dict[tuple[int, int], int], text: str) -> list[int]:
    """Merge the earliest pair, of equal ones the leftmost, one at a time."""
    ids = [tok.vocab.index(bytes([byte])) for byte in text.encode()]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    while found := [(ranks[pair], n) for n, pair in enumerate(pairwise(ids)) if pair in ranks]:
        n = min(found)[1]
        ids[n : n + 2] = [merges[ids[n], ids[n + 1]]]
    return ids


def random_file(rng: random.Random) -> dict[str, Any]:
    """A tokenizer.json whose merges come in any order, with tokens that two merges make."""
    tokens = {chr(c): n for n, c in enumerate(sorted(map(ord, module._BYTES)))}
    merges: list[list[str]] = []
    made = list("abc")
    while len(merges) < 25:
        pair = [rng.choice(made), rng.choice(made)]
        if pair not in merges and len("".join(pair)) < 7:
            merges.append(pair)
            tokens.setdefault("".join(pair), len(tokens))
            made.append("".join(pair))
    rng.shuffle(merges)
    return file_of(tokens, merges)


def file_of(tokens: dict[str, int], merges: list[Any], **changes: Any) -> dict[str, Any]:
    stages = [
        {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    head: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return {
        **head,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {**model, "vocab": tokens, "merges": merges},
    } | changes


def load(file: Any, folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(file if isinstance(file, str) else json.dumps(file), encoding="utf-8")
    return Tokenizer.load(path)


@pytest.mark.parametrize("seed", range(12))
def test_merges_in_any_order(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    file = random_file(rng)
    tok = load(file, tmp_path)
    tokens = file["model"]["vocab"]
    merges = {(tokens[a], tokens[b]): tokens[a + b] for a, b in file["model"]["merges"]}
    texts = ["".join(rng.choice("aabc") for _ in range(rng.randrange(1, 40))) for _ in range(60)]
    for text in texts:
        assert tok.encode(text) == by_the_rule(tok, merges, text)
    library = pytest.importorskip("tokenizers")
    peer = library.Tokenizer.from_str(json.dumps(file))
    assert [tok.encode(text) for text in texts] == [peer.encode(text).ids for text in texts]


def test_merges_by_hand(tmp_path: Path) -> None:
    """Of equal pairs the leftmost first; a later rank waits, however far left it stands."""
    tokens = module._BYTES | {"aa": 256, "bc": 257, "ab": 258}
    tok = load(file_of(tokens, [["a", "a"], "b c", "a b"]), tmp_path)
    assert tok.encode("aaa") == [256, 97]
    assert tok.encode("abc") == [97, 257]
    assert tok.encode("abab") == [258, 258]
    assert tok.encode("a b") == [97, 32, 98]  # not across pieces


def token_of(content: str, n: int, **changes: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": n, "content": content, **flags} | changes


def test_added_tokens(tmp_path: Path) -> None:
    added = [
        token_of("<a>", 256),
        token_of("<a>b", 257),
        token_of("é!", 258, special=False),
        token_of("</s>", 259),
    ]
    file = file_of(dict(module._BYTES), [], added_tokens=added)
    tok = load(file, tmp_path)
    assert tok.special == {"<a>": 256, "<a>b": 257, "</s>": 259}
    assert tok.eos_id == 259
    assert tok.vocab[256:] == [b"<a>", b"<a>b", "é!".encode(), b"</s>"]
    texts = ["x<a>y", "<a>b<a>c", "<<a>>é!é", "</s></s>", "<a"]
    ids = [tok.encode(text) for text in texts]
    assert ids[1] == [257, 256, ord("c")]  # the longest
    assert ids[2] == [ord("<"), 256, ord(">"), 258, 0xC3, 0xA9]
    peer = pytest.importorskip("tokenizers").Tokenizer.from_str(json.dumps(file))
    assert ids == [peer.encode(text).ids for text in texts]


@pytest.mark.parametrize(
    ("names", "eos"),
    [([], None), (["<end>"], 256), (["<s>", "<t>"], None), (["<s>", "</s>"], 257), (["</s>", EOS], 257)],
)
def test_the_eos(names: list[str], eos: int | None, tmp_path: Path) -> None:
    added = [token_of(name, 256 + n) for n, name in enumerate(names)]
    assert load(file_of(dict(module._BYTES), [], added_tokens=added), tmp_path).eos_id == eos


def test_pieces_are_kept_and_the_store_is_bounded(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHE_LIMIT", 5)
    small = Tokenizer.load(FILE)
    text = "".join(TEXTS)
    assert small.encode(text) == tok.encode(text) == small.encode(text)
    assert len(small._cache) == 5
    ids = small.encode("the")
    ids.append(-1)
    assert small.encode("the") == ids[:-1]  # what is kept is not what is handed out


def test_refused_text_and_ids(tok: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        tok.encode("a\ud800b")
    for bad in (-1, 1024):
        with pytest.raises(ValueError, match=rf"ids must be in \[0, 1024\), got {bad}"):
            tok.decode([5, bad])
    assert tok.decode([]) == ""


def changed(**changes: Any) -> dict[str, Any]:
    """A good file of 256 tokens with some settings changed, `model.x` and `split.x` inside."""
    file = file_of(dict(module._BYTES), [])
    split, level = file["pre_tokenizer"]["pretokenizers"]
    for name, value in changes.items():
        where, _, key = name.partition("__")
        {"file": file, "model": file["model"], "split": split, "level": level}[where][key] = value
    return file


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "not the layout of a byte-level BPE"),
        ("{}", "not the layout of a byte-level BPE: KeyError\\('model'\\)"),
        (changed(file__model=None), "not the layout of a byte-level BPE"),
        (changed(model__type="Unigram"), "the model must be a BPE, got 'Unigram'"),
        (changed(model__dropout=0.1), "dropout is not supported, got 0.1"),
        (
            changed(model__continuing_subword_prefix="##"),
            "continuing_subword_prefix is not supported, got '##'",
        ),
        (changed(model__end_of_word_suffix="</w>"), "end_of_word_suffix is not supported, got '</w>'"),
        (changed(model__ignore_merges=True), "ignore_merges is not supported, got True"),
        (changed(file__normalizer={"type": "NFC"}), "a normalizer is not supported"),
        (
            changed(file__added_tokens=[token_of("a", 256, lstrip=True)]),
            "token 'a' takes more than its own text",
        ),
        (
            changed(file__added_tokens=[token_of("a", 256, rstrip=True)]),
            "token 'a' takes more than its own text",
        ),
        (changed(file__added_tokens=[token_of("a", 256, single_word=True)]), "takes more than its own text"),
        (changed(file__added_tokens=[token_of("", 256)]), "an added token is empty"),
        (
            changed(file__added_tokens=[token_of("<a>", 257)]),
            "the ids of 257 tokens must be 0 to 256, each once",
        ),
        (
            changed(file__added_tokens=[token_of("<a>", 7)]),
            "the ids of 257 tokens must be 0 to 256, each once",
        ),
        (changed(model__merges=[["a", "b"]]), r"merge \('a', 'b'\) is not of two tokens that make a third"),
        (changed(model__merges=["a b c"]), r"merge \('a', 'b', 'c'\) is not of two tokens that make a third"),
        (changed(model__vocab=module._BYTES | {"a b": 256}), "token 'a b' has ' ', which stands for no byte"),
        (changed(model__vocab={"a": 0}), "byte 0x00 has no token"),
        (changed(file__pre_tokenizer={"type": "ByteLevel"}), "must be Split, then ByteLevel, got ByteLevel"),
        (changed(file__pre_tokenizer=None), "not the layout of a byte-level BPE"),
        (changed(split__behavior="Removed"), "Split must isolate the matches of a Regex"),
        (changed(split__invert=True), "Split must isolate the matches of a Regex"),
        (changed(split__pattern={"String": "a"}), "Split must isolate the matches of a Regex"),
        (changed(split__pattern={"Regex": r"\p{L}+"}), "the split pattern needs more than Python's re"),
        (changed(split__pattern={"Regex": r"[^\s]+"}), "the split pattern needs more than Python's re"),
        (changed(split__pattern={"Regex": "[[:alpha:]]"}), "the split pattern needs more than Python's re"),
        (changed(split__pattern={"Regex": "["}), "the split pattern is no regular expression"),
        (changed(split__pattern={"Regex": "a*"}), r"the split pattern matches the empty text: 'a\*'"),
        (changed(level__use_regex=True), "ByteLevel must have neither add_prefix_space nor use_regex"),
        (changed(level__add_prefix_space=True), "ByteLevel must have neither add_prefix_space nor use_regex"),
    ],
)
def test_refused_files(file: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(file, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'}: ")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert load(changed(), tmp_path).eos_id is None  # the file that the cases above change is good
