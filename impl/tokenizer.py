"""Byte-level byte-pair encoding: text to token ids and back.

    text -> cut at special tokens -> pieces by a regular expression -> UTF-8 bytes -> merge pairs -> ids

Every byte is a token, so every text has ids and nothing is unknown. Pairs are merged within a piece: always
the pair that was learned first, of equal ones the leftmost, until no pair is left that was learned.

Reads tokenizer.json as Hugging Face's `tokenizers` writes it and gives the same ids. The pre-tokenizer must
be a Split by a regular expression that means the same to Python's `re`, so without classes such as `\\p` and
`\\s`, then ByteLevel without its own expression; the normalizer must be empty. The post-processor, which
adds tokens at the ends, is not run.

Source  Sennrich, Haddow & Birch 2016, arXiv:1508.07909, section 3.2;
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2 (bytes)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

_CACHE_LIMIT = 1 << 16  # pieces
_EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>")
# escapes and classes that other engines read otherwise than `re`; \x, \t, \r, \n and punctuation are safe
_UNSAFE = re.compile(r"\\[^xtrn\W]|\[:|&&")


def _byte_alphabet() -> dict[str, int]:
    """Map the character that stands for a byte in tokenizer.json to the byte.

    Bytes that print in Latin-1 stand for themselves, the other 68 are U+0100 upwards, in order.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """A byte-level BPE.

    Attributes
        vocab    list[bytes], the bytes of every id; those of a special token spell its name
        special  dict[str, int], the special tokens by name
        eos_id   int, the special token that ends a text, or None

    >>> tok = Tokenizer([bytes([n]) for n in range(256)] + [b"ab", b"<end>"], {(97, 98): 256}, r"[a-z]+",
    ...                 {"<end>": 257})
    >>> tok.encode("abba<end>"), tok.eos_id
    ([256, 98, 97, 257], 257)
    """

    def __init__(
        self,
        vocab: list[bytes],
        merges: Mapping[tuple[int, int], int],
        pattern: str,
        special: Mapping[str, int],
        added: Mapping[str, int] | None = None,
    ) -> None:
        """Make a tokenizer of its parts.

        Shapes
            vocab    list[bytes]; every single byte is among the entries
            merges   (left id, right id) -> id of the two together; earlier pairs are merged first
            pattern  str, a regular expression for pieces; what lies between matches is a piece too
            special  name -> id; where there is one, it is the EOS, else the one named as is customary
            added    name -> id, of tokens that are cut out of the text like special ones and are plain text

        Errors
            ValueError  a byte has no token, or the pattern is none, means another thing elsewhere, or matches
                        the empty text
        """
        if _UNSAFE.search(pattern):
            raise ValueError(f"the split pattern needs more than Python's re: {pattern!r}")
        try:
            self._pieces = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"the split pattern is no regular expression: {error}") from None
        if self._pieces.fullmatch(""):
            raise ValueError(f"the split pattern matches the empty text: {pattern!r}")
        self.vocab = list(vocab)
        self.special = dict(special)
        names = [name for name in _EOS_NAMES if name in special] or list(special)[: len(special) == 1]
        self.eos_id = special[names[0]] if names else None
        ids = {token: n for n, token in reversed([*enumerate(self.vocab)])}
        if missing := [byte for byte in range(256) if bytes([byte]) not in ids]:
            raise ValueError(f"byte {missing[0]:#04x} has no token")
        self._of_byte = [ids[bytes([byte])] for byte in range(256)]
        self._merges = {pair: (rank, new) for rank, (pair, new) in enumerate(merges.items())}
        self._added = {**(added or {}), **special}
        # leftmost, then longest: the longest name comes first
        names = sorted(self._added, key=len, reverse=True)
        self._cuts = re.compile("|".join(map(re.escape, names))) if names else None
        self._cache: dict[str, list[int]] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a tokenizer.json.

        Shapes
            path     path of the file
            returns  Tokenizer

        Errors
            FileNotFoundError  there is no such file
            ValueError         it is no JSON or not the layout of a byte-level BPE, it asks for what is not
                               here, or its ids have gaps
        """
        path = Path(path)
        try:
            return cls(**_parts(json.loads(path.read_bytes())))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not the layout of a byte-level BPE: {error!r}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Shapes
            text     str, without lone surrogates; the name of a special token becomes its id
            returns  list[int], [] for ""

        Errors
            ValueError  the text has a lone surrogate

        State
            keeps the ids of pieces seen
        """
        ids: list[int] = []
        for part, found in _isolated(self._cuts, text):
            if found:
                ids.append(self._added[part])
                continue
            for piece, _ in _isolated(self._pieces, part):
                known = self._cache.get(piece)
                if known is None:
                    known = self._merge(piece.encode())
                    if len(self._cache) < _CACHE_LIMIT:
                        self._cache[piece] = known
                ids += known
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids: their bytes joined, then decoded once, with U+FFFD for what is no UTF-8.

        Shapes
            ids      ints, in [0, len(vocab))
            returns  str

        Errors
            ValueError  an id is out of range
        """
        ids = [int(n) for n in ids]
        if bad := [n for n in ids if not 0 <= n < len(self.vocab)]:
            raise ValueError(f"ids must be in [0, {len(self.vocab)}), got {bad[0]}")
        return b"".join([self.vocab[n] for n in ids]).decode("utf-8", "replace")

    def _merge(self, data: bytes) -> list[int]:
        """Return the ids of one piece, in O(n log n).

        1. Every byte is a symbol; symbols are linked to their neighbours.
        2. A heap holds (rank, place) of every pair that can be merged, so its least is the next to merge.
        3. A merge puts the new symbol in the left place, empties the right one, and offers the two new pairs.
           An offer whose symbols have changed since is stale and dropped when it comes up.
        """
        symbols: list[int | None] = [self._of_byte[byte] for byte in data]
        n = len(symbols)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        heap: list[tuple[int, int, tuple[int | None, int | None]]] = []

        def offer(i: int, j: int) -> None:
            if i >= 0 and j < n and (merge := self._merges.get((symbols[i], symbols[j]))):  # type: ignore[arg-type]
                heappush(heap, (merge[0], i, (symbols[i], symbols[j])))

        for i, j in pairwise(range(n)):
            offer(i, j)
        while heap:
            _, i, pair = heappop(heap)
            j = after[i]
            if j >= n or (symbols[i], symbols[j]) != pair:
                continue
            symbols[i], symbols[j] = self._merges[pair][1], None  # type: ignore[index]
            after[i] = after[j]
            if after[i] < n:
                before[after[i]] = i
            offer(before[i], i)
            offer(i, after[i])
        return [symbol for symbol in symbols if symbol is not None]


def _isolated(pattern: re.Pattern[str] | None, text: str) -> Iterator[tuple[str, bool]]:
    """Cut text into (piece, whether it matched), leaving out what is empty."""
    start = 0
    for match in pattern.finditer(text) if pattern else ():
        if match.start() > start:
            yield text[start : match.start()], False
        if match.group():
            yield match.group(), True
        start = match.end()
    if start < len(text):
        yield text[start:], False


def _parts(file: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of Tokenizer that a parsed tokenizer.json stands for."""
    model, tokens = file["model"], file.get("added_tokens") or []
    if model.get("type") != "BPE":
        raise ValueError(f"the model must be a BPE, got {model.get('type')!r}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(key):
            raise ValueError(f"{key} is not supported, got {model[key]!r}")
    if file.get("normalizer") is not None:
        raise ValueError("a normalizer is not supported")
    for token in tokens:
        if token.get("single_word") or token.get("lstrip") or token.get("rstrip"):
            raise ValueError(
                f"token {token['content']!r} takes more than its own text, which is not supported"
            )
        if not token["content"]:
            raise ValueError("an added token is empty")
    added = {token["content"]: token["id"] for token in tokens}
    ids = {**model["vocab"], **added}
    by_id = {n: text for text, n in ids.items()}
    if sorted(by_id) != list(range(len(ids))):
        raise ValueError(f"the ids of {len(ids)} tokens must be 0 to {len(ids) - 1}, each once")
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= model["vocab"].keys():
            raise ValueError(f"merge {pair!r} is not of two tokens that make a third")
    return {
        "vocab": [by_id[n].encode() if by_id[n] in added else _bytes(by_id[n]) for n in range(len(ids))],
        "merges": {(ids[a], ids[b]): ids[a + b] for a, b in pairs},
        "pattern": _pattern(file["pre_tokenizer"]),
        "special": {token["content"]: token["id"] for token in tokens if token.get("special")},
        "added": added,
    }


def _bytes(token: str) -> bytes:
    """Return the bytes that a token of tokenizer.json stands for."""
    if unknown := [char for char in token if char not in _BYTES]:
        raise ValueError(f"token {token!r} has {unknown[0]!r}, which stands for no byte")
    return bytes([_BYTES[char] for char in token])


def _pattern(stage: dict[str, Any]) -> str:
    """Return the expression of a pre-tokenizer: a Split, then ByteLevel without its own."""
    stages = stage["pretokenizers"] if stage["type"] == "Sequence" else [stage]
    kinds = [s["type"] for s in stages]
    if kinds != ["Split", "ByteLevel"]:
        raise ValueError(f"the pre-tokenizer must be Split, then ByteLevel, got {', then '.join(kinds)}")
    split, level = stages
    if split["behavior"] != "Isolated" or split.get("invert") or "Regex" not in split["pattern"]:
        raise ValueError("Split must isolate the matches of a Regex")
    if level.get("add_prefix_space", True) or level.get("use_regex", True):
        raise ValueError("ByteLevel must have neither add_prefix_space nor use_regex")
    pattern: str = split["pattern"]["Regex"]
    return pattern
