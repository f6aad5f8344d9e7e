"""Generation: prefill the prompt, then sample, feed one id, and sample again, until something says stop.

    prompt -> encode -> forward(n ids) -> sample -> push -> hold stop prefixes -> on_text
                           ^                |
                           +--- one id <----+   at position n + i

Spec    spec/kv_cache.md
Source  Pope et al. 2022, arXiv:2211.05102, section 3.3;
        the Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from impl.kv_cache import KVCache
from impl.sampling import SamplingParams, request_rng, sample, sampled_entropy

REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are no character, or not yet one


@dataclass
class Generation:
    """What one request produced.

    >>> Generation("", [], [], {}, {}).finish_reason
    'length'
    """

    text: str  # without the stop string and what follows it
    ids: list[int]  # what was generated; no EOS, but the ids of a stop string
    logprobs: list[float]  # nats, one an id
    timings: dict[str, float]  # prefill_s, decode_s, total_s
    stats: dict[str, float]  # prompt_tokens, completion_tokens, mean_entropy (nats), tokens_per_s
    finish_reason: str = "length"  # or "stop": an EOS or a stop string


class IncrementalDecoder:
    """Turn ids into text as they come; the pieces add up to one decode of all ids.

    Decodes a window only: the ids of the last piece, for what follows may depend on them, and the ids whose
    text is still held.

    >>> class Bytes:
    ...     def decode(self, ids):
    ...         return bytes(ids).decode("utf-8", "replace")
    >>> decoder = IncrementalDecoder(Bytes())
    >>> [decoder.push(i) for i in "éx".encode()], decoder.flush()
    (['', 'é', 'x'], '')
    """

    def __init__(self, tok: Any) -> None:
        """Start an empty text.

        Shapes
            tok  any object with decode(ids: list[int]) -> str
        """
        self._tok = tok
        self._window: list[int] = []
        self._n_shown = 0  # ids at the window's start whose text was returned
        self._shown = ""  # that text, decoded from the window's start

    def push(self, token_id: int) -> str:
        """Take the next id, and return the text that is certain now.

        Shapes
            token_id  int, an id of tok
            returns   str, "" while the text ends in U+FFFD: a character may be incomplete

        State
            keeps the id until its text is returned, and one piece longer

        >>> IncrementalDecoder(type("Bytes", (), {"decode": lambda tok, ids: bytes(ids).decode()})()).push(65)
        'A'
        """
        self._window.append(token_id)
        text = self._tok.decode(self._window)  # R24: in context, never one id alone
        if len(text) <= len(self._shown) or text.endswith(REPLACEMENT):  # R23; R26: only at the end
            return ""
        piece = text[len(self._shown) :]  # characters: U+FFFD has as many bytes as what it stands for
        fresh = self._window[self._n_shown :]  # the window slides to where this piece began
        self._shown = self._tok.decode(fresh)
        if self._shown:
            self._window = fresh
        else:  # a lone space, say, which a decode drops at its start: what follows needs more context
            self._shown = text
        self._n_shown = len(self._window)
        return str(piece)

    def flush(self) -> str:
        """Return the text that is still held, and start afresh.

        Shapes
            returns  str, "" when nothing is held; an incomplete character comes as U+FFFD

        State
            as new

        >>> decoder = IncrementalDecoder(type("Empty", (), {"decode": lambda tok, ids: ""})())
        >>> decoder.flush()
        ''
        """
        text = str(self._tok.decode(self._window))[len(self._shown) :] if self._window else ""  # R25
        self._window, self._n_shown, self._shown = [], 0, ""
        return text


def cache_dims(model: Any) -> tuple[int, int, int, int]:
    """Return what a cache for the model needs: (n_layers, n_kv_heads, d_head, max_len).

    Shapes
        model    any object with these attributes, or with `config` or `cfg` that has num_hidden_layers,
                 num_key_value_heads, head_dim and max_position_embeddings
        returns  four int

    Errors
        ValueError  neither the model nor its config nor its cfg has all four

    >>> from types import SimpleNamespace
    >>> cache_dims(SimpleNamespace(n_layers=2, n_kv_heads=1, d_head=8, max_len=64))
    (2, 1, 8, 64)
    """
    own = ("n_layers", "n_kv_heads", "d_head", "max_len")
    theirs = ("num_hidden_layers", "num_key_value_heads", "head_dim", "max_position_embeddings")
    places = (
        (model, own),  # R27
        (getattr(model, "config", None), theirs),  # R28
        (getattr(model, "cfg", None), theirs),
    )
    for owner, names in places:
        sizes = [getattr(owner, name, None) for name in names]
        if None not in sizes:
            n_layers, n_kv_heads, d_head, max_len = map(int, sizes)
            return n_layers, n_kv_heads, d_head, max_len
    raise ValueError(f"the model has neither {own} nor a config or cfg with {theirs}")  # R29


def generate(
    model: Any,
    tok: Any,
    prompt: str,
    p: SamplingParams,
    cache: Any = "contiguous",
    kv_dtype: DTypeLike = np.float32,
    on_text: Callable[[str], object] | None = None,
    eos_ids: Iterable[int] = (),
) -> Generation:
    """Continue the prompt until an EOS, a stop string, p.max_tokens or the end of the model's context.

    Shapes
        model     any object with the sizes that cache_dims reads, and with
                  forward(ids i64[1, T], positions=i64[T], cache=cache or None) -> [1, T, V],
                  an array or an object with it as `data`, which calls cache.update once a layer
        tok       any object with encode(text: str) -> list[int] and decode(ids: list[int]) -> str
        prompt    str of 1 to max_len ids
        p         SamplingParams; max_tokens, stop and seed are read here
        cache     "contiguous": a KVCache of kv_dtype; "none": all ids at every step;
                  or an empty object with update, seq_len, positions and mask
        kv_dtype  float16, float32 or float64
        on_text   called with each piece of text (str, not empty) as soon as it is final
        eos_ids   ids that end the text and are no part of it
        returns   Generation

    Errors
        ValueError  p does not validate, the prompt has no ids or more than max_len, cache is none of the
                    above or not empty, or the model has no sizes; the model was not called then

    State
        a cache that was passed holds n + m - 1 positions after n prompt ids and m generated ones

    >>> class Next:  # every id is followed by its successor
    ...     n_layers, n_kv_heads, d_head, max_len = 1, 1, 1, 8
    ...     def forward(self, ids, positions, cache):
    ...         return np.eye(128)[ids + 1]
    >>> class Bytes:
    ...     def encode(self, text):
    ...         return list(text.encode())
    ...     def decode(self, ids):
    ...         return bytes(ids).decode("utf-8", "replace")
    >>> generate(Next(), Bytes(), "ab", SamplingParams(temperature=0, max_tokens=3)).text
    'cde'
    """
    p.validate()  # R30: everything that can be refused is, before the model works
    prompt_ids = [int(i) for i in tok.encode(prompt)]
    n = len(prompt_ids)
    max_len = cache_dims(model)[3]
    if n == 0:
        raise ValueError("the prompt encodes to no ids")
    if n > max_len:
        raise ValueError(f"the prompt has {n} ids, the model takes {max_len}")
    kv = _cache_for(cache, model, n, p, kv_dtype)
    limit = min(p.max_tokens, max_len - n)  # R36
    eos = {int(i) for i in eos_ids}
    rng = request_rng(0 if p.seed is None else p.seed)  # R33: one stream for the whole request
    seen = sorted(set(prompt_ids))  # sampling asks which ids occur: a step after a long prompt costs no more
    decoder = IncrementalDecoder(tok)  # R37: it never sees the prompt
    stream = _Stream(p.stop, on_text)
    ids: list[int] = []
    logprobs: list[float] = []
    entropies: list[float] = []
    met_eos = False
    began = prefilled = perf_counter()
    while len(ids) < limit and not stream.stopped:
        if not ids:  # R31: the prompt at once
            logits = _last_row(model, prompt_ids, 0, kv)
            prefilled = perf_counter()
        elif kv is None:
            logits = _last_row(model, prompt_ids + ids, 0, None)  # R39
        else:
            logits = _last_row(model, ids[-1:], n + len(ids) - 1, kv)  # R32: so the last id is never fed
        token, logprob = sample(logits, p, ids, rng, prompt=seen)  # R33
        met_eos = token in eos
        if met_eos:  # R35: before anything is kept of it
            break
        entropies.append(sampled_entropy(logits, p, ids, prompt=seen))  # R46: as it was drawn
        logprobs.append(logprob)
        ids.append(token)
        stream.add(decoder.push(token))
    if not stream.stopped:
        stream.add(decoder.flush())  # R41: which may complete a stop string
    stream.close()
    ended = perf_counter()
    total_s = ended - began
    return Generation(
        text=stream.text(),
        ids=ids,
        logprobs=logprobs,
        timings={"prefill_s": prefilled - began, "decode_s": ended - prefilled, "total_s": total_s},  # R45
        stats={
            "prompt_tokens": n,
            "completion_tokens": len(ids),
            "mean_entropy": sum(entropies) / len(entropies) if entropies else 0.0,
            "tokens_per_s": len(ids) / total_s if total_s > 0.0 else 0.0,  # a coarse clock may stand still
        },
        finish_reason="stop" if met_eos or stream.stopped else "length",
    )


def _cache_for(cache: Any, model: Any, n: int, p: SamplingParams, kv_dtype: DTypeLike) -> Any:
    """Return the cache that the loop uses, None for none, or refuse what was asked for (R38)."""
    if isinstance(cache, str):
        if cache == "none":
            return None
        if cache == "contiguous":
            *sizes, max_len = cache_dims(model)
            return KVCache(*sizes, max_len=min(max_len, n + p.max_tokens), dtype=kv_dtype)  # R39
        raise ValueError(f'cache must be "contiguous", "none" or an object, got {cache!r}')
    for name in ("update", "seq_len", "positions", "mask"):
        if not callable(getattr(cache, name, None)):
            raise ValueError(f"a cache must have the method {name}, {cache!r} has not")
    if cache.seq_len() != 0:
        raise ValueError(f"the cache must be empty, it holds {cache.seq_len()} positions")
    return cache


def _last_row(model: Any, ids: Sequence[int], start: int, cache: Any) -> NDArray[np.floating[Any]]:
    """Feed ids at the positions from start on, and return the logits of the last one: f32[V]."""
    positions = np.arange(start, start + len(ids), dtype=np.int64)
    logits = model.forward(np.array([ids], np.int64), positions=positions, cache=cache)
    if not isinstance(logits, np.ndarray):  # R34: an array has a `data`, too, but that is its buffer
        logits = np.asarray(logits.data)
    row: NDArray[np.floating[Any]] = logits[0, -1]
    return row


class _Stream:
    """Hands text over as soon as no stop string can begin in it, and cuts at the first that does.

    What was handed over can therefore hold no part of a stop string, and only the held text is searched.
    """

    def __init__(self, stops: Sequence[str], on_text: Callable[[str], object] | None) -> None:
        self.stopped = False
        self._stops, self._on_text = stops, on_text
        self._pieces: list[str] = []
        self._held = ""

    def add(self, piece: str) -> None:
        """Take more text; after that `stopped` says whether a stop string is complete."""
        self._held += piece
        starts = [at for at in map(self._held.find, self._stops) if at >= 0]
        if starts:
            self.stopped = True
            self._hand_over(min(starts))  # R40: the earliest in the text, not the first in the list
            self._held = ""
        else:
            self._hand_over(len(self._held) - self._n_undecided())  # R42

    def close(self) -> None:
        """Hand over what is held (R43): no stop string will be completed."""
        self._hand_over(len(self._held))

    def text(self) -> str:
        """Return everything handed over so far."""
        return "".join(self._pieces)

    def _n_undecided(self) -> int:
        """Count the characters of the longest suffix that is a proper prefix of a stop string (R42)."""
        longest = max(map(len, self._stops), default=0)
        for n in range(min(longest - 1, len(self._held)), 0, -1):
            if any(len(stop) > n and stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0

    def _hand_over(self, n: int) -> None:
        """Let go of the first n held characters."""
        piece, self._held = self._held[:n], self._held[n:]
        if piece:  # R43
            self._pieces.append(piece)
            if self._on_text is not None:
                self._on_text(piece)
