"""The reference of `speculative`: the spec's numbers, the equivalents' answers, and what no fixture sees."""

from __future__ import annotations

import inspect
import itertools
import math
from fractions import Fraction
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from grader.testkit import AttentionModel, ByteVocabulary, HashedModel, ScriptedUniforms
from impl import speculative
from impl.generate import generate
from impl.rejection import speculative_step
from impl.sampling import SamplingParams, request_rng, sample, sampling_distribution, token_logprobs

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "speculative" / "equivalents"
EQUIVALENTS = [import_file(path, f"speculative_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
GREEDY = SamplingParams(temperature=0.0)
V = 6


@pytest.fixture(params=[speculative, *EQUIVALENTS], ids=lambda module: module.__name__)
def unit(request: pytest.FixtureRequest) -> Any:
    return request.param


class Letters:
    """Ids are letters; an id above them is a byte that is no character of its own."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) - ord("a") for c in text]

    def decode(self, ids: list[int]) -> str:
        return bytes(i + ord("a") if i < V - 1 else 0xC3 for i in ids).decode("utf-8", "replace")


class Guesses:
    """A draft that draws from rows of its own, or says ids of its own; keeps what it was asked."""

    def __init__(self, seed: int, model: Any = None, late: bool = False) -> None:
        self.r, self.model, self.late = np.random.default_rng(seed), model, late
        self.asked: list[tuple[list[int], int, bool]] = []

    def propose(self, ctx: list[int], k: int, rng: Any) -> Any:
        self.asked.append((list(ctx), k, rng is None))
        ids, rows = [], []
        for _ in range(k if self.r.random() < 0.8 else int(self.r.integers(k + 1))):
            if self.model is not None and self.r.random() < 0.7:
                logits = self.model.forward(np.array([ctx + ids]))[0, -1]
            else:
                logits = self.r.integers(-2, 3, V).astype(np.float32)
            p = SamplingParams(temperature=0.7) if rng is not None else GREEDY
            ids.append(sample(logits, p, [], rng)[0])
            rows.append(sampling_distribution(logits, p))
        if rng is None or self.late or not ids:
            return (np.array(ids, np.int64) if self.late else ids), None
        return ids, np.array(rows)


# the spec's own numbers


def test_worked_example(unit: Any) -> None:
    rows = np.array([np.log([0.5, 0.25, 0.25]), [-math.inf, -math.inf, 0.0]])
    Q = np.array([[0.25, 0.5, 0.25]])
    for numbers, probs, want in (
        ([0.7, 0.4], Q, ([0], 0)),
        ([0.3, 0.9, 0.1], Q, ([1, 2], 1)),
        ([0.3, 0.9], None, ([2], 0)),
    ):
        rng = ScriptedUniforms(numbers)
        assert unit.verify_draft(rows, [1], probs, SamplingParams(), [], rng) == want
        assert rng.drawn() == len(numbers)
    rows = np.eye(3)[[2, 0, 1]]
    drafts: list[list[int]] = [[2, 1], [2, 0], [1, 0]]
    got = [unit.verify_draft(rows, draft, None, GREEDY, [], None) for draft in drafts]
    assert got == [([2, 0], 1), ([2, 0, 1], 2), ([2], 0)]
    assert unit.verify_draft(rows[:1], [], None, GREEDY, [], None) == ([2], 0)
    penalty = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    rows = np.array([[3.0, 2.9, 0.0]] * 3)
    assert unit.verify_draft(rows, [0, 0], None, penalty, [], None) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("ctx", "k", "want"),
    [
        ([1, 2, 3, 9, 1, 2], 3, [3, 9, 1]),
        ([5, 1, 7, 1, 8, 1], 2, [8, 1]),
        ([4, 4, 4], 5, [4]),
        ([1, 2, 3], 4, []),
        ([1, 2, 3, 7, 2, 3, 1, 2, 3], 2, [7, 2]),
        ([1, 2, 9, 1, 2, 7, 1, 2], 2, [7, 1]),
        ([], 2, []),
        ([1, 1], 0, []),
    ],
)
def test_lookup_examples(unit: Any, ctx: list[int], k: int, want: list[int]) -> None:
    assert unit.PromptLookupDraft().propose(ctx, k, None) == (want, None)


# verification


def random_call(seed: int) -> dict[str, Any]:
    """Arguments with ties, masks, dyadic rows and one-hot rows; the drafts are likely to stand."""
    r = np.random.default_rng(seed)
    m = int(r.integers(5))
    rows = r.choice([0.0, 1.0, 2.0, -math.inf, 1.5], (m + 1, V), p=[0.3, 0.2, 0.2, 0.2, 0.1])
    rows[:, r.integers(V)] = 0.5
    drafts = [int(x) for x in r.integers(0, V, m)]
    for i in range(m):
        if r.random() < 0.7:
            drafts[i] = int(np.argmax(rows[i]))
    probs = None
    if r.random() < 0.7:
        probs = r.multinomial(32, np.full(V, 1 / V), m) / 32
        probs[range(m), drafts] += 1.0
        probs /= 2.0
        probs = probs.astype([np.float16, np.float32, np.float64][seed % 3])
    p = SamplingParams(
        temperature=[0.0, 1.0, 0.5, 2.0][r.integers(4)],
        top_k=int(r.choice([0, 2])),
        repetition_penalty=float(r.choice([1.0, 2.0])),
        frequency_penalty=float(r.choice([0.0, 0.5])),
    )
    history, prompt = ([int(x) for x in r.integers(0, V, r.integers(4))] for _ in range(2))
    numbers = [[0.0, 0.25, 0.5, 1.0 - 2.0**-53, float(r.random())][r.integers(5)] for _ in range(2 * m + 1)]
    dtype = [np.float32, np.float64, np.float16][seed % 3]
    return {
        "target_logits": rows.astype(dtype), "draft_ids": drafts, "draft_probs": probs, "p": p,
        "history": np.array(history, np.int64) if seed % 2 else history, "numbers": numbers, "prompt": prompt,
    }  # fmt: skip


def naive_verify(target_logits: Any, draft_ids: Any, draft_probs: Any, p: Any, history: Any, rng: Any, prompt: Any) -> Any:  # noqa: E501  # fmt: skip
    """Rounds of one draft each, by the rules alone."""
    ids = [int(x) for x in history]
    start = len(ids)
    for i, x in enumerate(draft_ids):
        P = sampling_distribution(target_logits[i], p, ids, prompt)
        if p.temperature == 0.0:
            answer = (int(P.argmax()), P[x] == 1.0)
        else:
            Q = np.eye(V)[x] if draft_probs is None else draft_probs[i]
            first = rng.uniform()
            answer = speculative_step(P, Q, int(x), first, rng.uniform())
        ids.append(answer[0])
        if not answer[1]:
            break
    else:
        return [*ids[start:], sample(target_logits[-1], p, ids, rng, prompt)[0]], len(draft_ids)
    return ids[start:], len(ids) - start - 1


def test_verification_against_single_steps(unit: Any) -> None:
    kept = 0
    for seed in range(300):
        call = random_call(seed)
        numbers = call.pop("numbers")
        one, other = ScriptedUniforms(numbers), ScriptedUniforms(numbers)
        emitted, n_accepted = unit.verify_draft(**call, rng=one)
        assert (emitted, n_accepted) == naive_verify(**call, rng=other), seed
        assert {type(x) for x in emitted} == {int} and type(n_accepted) is int
        assert one.drawn() == other.drawn()
        kept += n_accepted
    assert kept > 150


def test_the_law_of_two_positions_is_the_targets() -> None:
    """Every draft of Q, every uniform of a grid that cuts no interval: the ids have exactly the law of P."""
    P = [np.array([0.375, 0.375, 0.25]), np.array([0.25, 0.25, 0.5])]
    Q = np.array([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]])
    grid = [(2 * i + 1) / 8 for i in range(4)]
    rows = np.log(np.array([*P, [1.0, 1.0, 1.0]]))
    first: dict[int, Fraction] = {}
    both: dict[tuple[int, ...], Fraction] = {}
    for draft in itertools.product(range(3), repeat=2):
        chance = Fraction(Q[0, draft[0]]) * Fraction(Q[1, draft[1]])
        for numbers in itertools.product(grid, repeat=4):
            got, _ = speculative.verify_draft(
                rows, list(draft), Q, SamplingParams(), [], ScriptedUniforms([*numbers, 0.5])
            )
            weight = chance / len(grid) ** 4
            first[got[0]] = first.get(got[0], Fraction(0)) + weight
            if len(got) > 1:
                pair = tuple(got[:2])
                both[pair] = both.get(pair, Fraction(0)) + weight
    assert [first[i] for i in range(3)] == [Fraction(x) for x in P[0]]
    went_on = sum(both.values())
    for i in range(3):
        assert sum(w for pair, w in both.items() if pair[1] == i) == went_on * Fraction(P[1][i])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "wrong",
    [
        {"target_logits": np.zeros((2, 4))},
        {"target_logits": np.zeros((4, 4))},
        {"target_logits": np.zeros((3, 4), np.int64)},
        {"target_logits": np.zeros(4)},
        {"target_logits": np.zeros((3, 0))},
        {"target_logits": np.array([[0.0] * 4] * 2 + [[math.nan, 0, 0, 0]])},
        {"target_logits": np.array([[0.0] * 4] * 2 + [[math.inf, 0, 0, 0]])},
        {"target_logits": np.array([[0.0] * 4] * 2 + [[-math.inf] * 4])},
        {"draft_ids": [0, 4]},
        {"draft_ids": [0, -1]},
        {"draft_ids": [0, True]},
        {"draft_ids": [0, 1.0]},
        {"history": [4]},
        {"history": np.zeros((1, 1), np.int64)},
        {"prompt": [-1]},
        {"draft_probs": np.full((1, 4), 0.25)},
        {"draft_probs": np.full((2, 5), 0.2)},
        {"draft_probs": np.full(4, 0.25)},
        {"draft_probs": np.array([[1, 0, 0, 0], [0, 1, 0, 0]])},
        {"draft_probs": np.array([[0.25] * 4, [0.5, 0.75, -0.25, 0.0]])},
        {"draft_probs": np.array([[0.25] * 4, [0.25, 0.25, 0.25, 0.2]])},
        {"draft_probs": np.array([[0.25] * 4, [0.25, math.nan, 0.25, 0.25]])},
        {"draft_probs": np.array([[0.25] * 4, [0.5, 0.0, 0.25, 0.25]])},
        {"p": SamplingParams(top_p=0.0)},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_refusals_of_verification(unit: Any, temperature: float, wrong: dict[str, Any]) -> None:
    """The wrong row is one that a rejection at row 0 would hide."""
    rows = np.array([[9.0, -math.inf, 0.0, 0.0]] * 3)
    right = {
        "target_logits": rows, "draft_ids": [1, 1], "draft_probs": np.full((2, 4), 0.25), "history": [0],
        "prompt": [1], "p": SamplingParams(temperature=temperature), "rng": ScriptedUniforms([0.5] * 5),
    }  # fmt: skip
    assert unit.verify_draft(**right)[1] == 0
    rng = ScriptedUniforms([0.5] * 5)
    with pytest.raises(ValueError):
        unit.verify_draft(**{**right, "rng": rng, **wrong})
    assert rng.drawn() == 0


# drafts


def naive_lookup(ctx: list[int], k: int, max_ngram: int, min_ngram: int) -> list[int]:
    starts = [
        (n, i)
        for n in range(min_ngram, max_ngram + 1)
        for i in range(len(ctx) - n)
        if ctx[i : i + n] == ctx[len(ctx) - n :]
    ]
    n, i = max(starts, default=(0, len(ctx)))
    return ctx[i + n :][:k]


def test_lookup_against_all_starts(unit: Any) -> None:
    for seed in range(400):
        r = np.random.default_rng(seed)
        ctx = [int(x) for x in r.integers(0, 1 + seed % 4, r.integers(14))]
        low = int(r.integers(1, 4))
        high, k = low + int(r.integers(3)), int(r.integers(6))
        draft = unit.PromptLookupDraft(high, low)
        assert draft.propose(list(ctx), k, None) == (naive_lookup(ctx, k, high, low), None)


def test_model_draft_reads_no_stale_position(unit: Any) -> None:
    """Contexts that go on, go back and branch: ids and rows are those of a model without a memory."""
    model, twin = HashedModel(V, max_len=20), HashedModel(V, max_len=20)
    draft, r = unit.ModelDraft(model, 0.5), np.random.default_rng(0)
    p = SamplingParams(temperature=0.5)
    ctx, known = [1, 2], []
    one, other = request_rng(3), request_rng(3)
    for _ in range(60):
        k, sampled = int(r.integers(5)), bool(r.integers(2))
        model.calls.clear()
        ids, probs = draft.propose(list(ctx), k, one if sampled else None)
        text, rows = list(ctx), []
        for _ in range(min(k, 20 - len(ctx))):
            row = twin.forward(np.array([text]))[0, -1]
            rows.append(sampling_distribution(row, p))
            text.append(sample(row, p if sampled else GREEDY, [], other)[0])
        assert ids == text[len(ctx) :]
        assert (probs is None) == (not (sampled and ids))
        if probs is not None:
            np.testing.assert_array_equal(probs, np.array(rows))
        if ids:
            same = [i for i in range(len(ctx)) if known[: i + 1] != ctx[: i + 1]]
            n = min([len(ctx) - 1, *same])
            fed = [ctx[n:], *([x] for x in ids[:-1])]
            assert [call for call, _ in model.calls] == fed
            known = text[:-1]
        else:
            assert model.calls == []
        ctx = text if r.random() < 0.6 else [*text[: r.integers(1, len(text) + 1)], int(r.integers(V))]
        ctx = ctx[: 20 - int(r.integers(3))] if r.random() < 0.8 else ctx[: r.integers(1, 20)]


def test_ngram_draft(unit: Any) -> None:
    table = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]]))
    asked: list[list[int]] = []
    lm = SimpleNamespace(logprobs=lambda ctx: asked.append(ctx) or table[ctx[-1]])
    draft = unit.NGramDraft(lm)
    assert draft.propose([2, 1], 2, None) == ([1, 1], None)
    assert asked == [[2, 1], [2, 1, 1]]
    ids, probs = draft.propose([0], 3, ScriptedUniforms([0.6, 0.05, 0.9]))
    assert ids == [1, 0, 2]
    np.testing.assert_allclose(probs, np.exp(table[[0, 1, 0]]), atol=1e-12)
    assert probs.dtype == np.float64


def test_ties_go_to_the_lowest_id(unit: Any) -> None:
    flat = SimpleNamespace(logprobs=lambda ctx: np.log([0.25, 0.375, 0.375]))
    assert unit.NGramDraft(flat).propose([0], 2, None) == ([1, 1], None)
    assert unit.ModelDraft(HashedModel(V, scale=0.0)).propose([3], 2, None) == ([0, 0], None)
    rows = np.array([[3.0, 7.0, 7.0, 1.0]] * 2)
    assert unit.verify_draft(rows, [1], None, GREEDY, [], None) == ([1, 1], 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.PromptLookupDraft(3, 0), "min_ngram must be at least 1, got 0"),
        (lambda m: m.PromptLookupDraft(1, 2), "max_ngram must be at least min_ngram, got 1 and 2"),
        (lambda m: m.PromptLookupDraft().propose([1], -1, None), "k must be at least 0, got -1"),
        (lambda m: m.NGramDraft(None).propose([1], -1, None), "k must be at least 0, got -1"),
        (lambda m: m.ModelDraft(HashedModel(V)).propose([1], -1, None), "k must be at least 0, got -1"),
        (lambda m: m.ModelDraft(HashedModel(V)).propose([], 1, None), "ctx is empty"),
        (lambda m: m.ModelDraft(HashedModel(V), 0.0), "temperature must be finite and above 0, got 0.0"),
        (lambda m: m.ModelDraft(HashedModel(V), math.nan), "temperature must be finite and above 0, got nan"),
        (lambda m: m.ModelDraft(HashedModel(V), math.inf), "temperature must be finite and above 0, got inf"),
        (lambda m: m.ModelDraft(object()), "the model has neither"),
    ],
)
def test_refusals_of_drafts(unit: Any, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message if unit is speculative else None):
        make(unit)


# the loop


def naive(model: Any, draft: Any, tok: Any, prompt: str, p: SamplingParams, k: int, eos: Any) -> Any:
    """Everything recomputed from the ids at every round, without a cache."""
    given, ids, logprobs = tok.encode(prompt), [], []
    rng, cut, reason, counts = request_rng(p.seed or 0), None, "length", [0, 0, 0]
    limit = min(p.max_tokens, model.max_len - len(given))

    def found(text: str) -> int | None:
        return min((text.index(stop) for stop in p.stop if stop in text), default=None)

    while cut is None and reason == "length" and len(ids) < limit:
        room = min(k, limit - len(ids) - 1)
        source = rng if p.temperature else None
        guess, probs = draft.propose(given + ids, room, source) if room else ([], None)
        rows = model.forward(np.array([[*given, *ids, *guess]]))[0, -len(guess) - 1 :]
        emitted, n = naive_verify(rows, guess, probs, p, ids, rng, given)
        counts = [counts[0] + len(guess), counts[1] + n, counts[2] + 1]
        for row, token in zip(rows, emitted, strict=False):
            if token in eos:
                reason = "stop"
                break
            logprobs.append(float(token_logprobs(row, p, ids, given)[token]))
            ids.append(token)
            text = tok.decode(ids)
            cut = None if text.endswith("\ufffd") else found(text)
            if cut is not None:
                break
    text = tok.decode(ids)
    cut = found(text)
    reason = reason if cut is None else "stop"
    return text[:cut], ids, logprobs, reason, counts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_loop_against_recomputation(unit: Any, temperature: float) -> None:
    tok, stops, shared = Letters(), [[], ["ab", "bc"], ["cab", "\ufffd"], ["de", "abcd", "bc"]], 0
    for seed in range(48):
        p = SamplingParams(
            temperature=temperature, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.2,
            seed=seed if seed % 3 else None, max_tokens=1 + seed % 17, stop=stops[seed % 4],
        )  # fmt: skip
        k, prompt = seed % 6, "abcd"[: 1 + seed % 4]
        eos = {3} if seed % 3 == 0 else set()
        model, twin = (HashedModel(V, max_len=14, boxed=seed % 5 == 0 and not i) for i in range(2))
        one, other = (Guesses(seed, HashedModel(V), seed % 7 == 0) for _ in range(2))
        got = unit.speculative_generate(model, one, tok, prompt, p, k, np.float32, iter(eos))
        text, ids, logprobs, reason, counts = naive(twin, other, tok, prompt, p, k, eos)
        assert (got.text, got.ids, got.finish_reason) == (text, ids, reason), seed
        np.testing.assert_allclose(got.logprobs, logprobs, rtol=1e-12, atol=1e-12)
        stats = got.stats
        assert [stats["drafted"], stats["accepted"], stats["target_calls"]] == counts
        assert stats["acceptance_rate"] == (counts[1] / counts[0] if counts[0] else 0.0)
        assert (stats["prompt_tokens"], stats["completion_tokens"]) == (len(prompt), len(ids))
        assert one.asked == other.asked
        assert len(model.calls) == counts[2] and sum(len(x) for x, _ in model.calls) <= len(prompt) + 14 * 6
        assert {type(x) for x in got.ids} <= {int} and {type(x) for x in got.logprobs} <= {float}
        assert set(got.timings) == {"prefill_s", "decode_s", "total_s"} and min(got.timings.values()) >= 0.0
        shared += counts[1]
    assert shared > 20


def test_plain_decoding_is_generate(unit: Any) -> None:
    """k = 0 at every temperature, and every draft at temperature 0."""
    for seed in range(12):
        for temperature, k in ((0.0, 0), (0.0, 4), (0.8, 0)):
            p = SamplingParams(temperature=temperature, seed=seed, max_tokens=12, presence_penalty=0.5)
            want = generate(HashedModel(V), Letters(), "abc", p)
            model = HashedModel(V)
            drafts = [unit.PromptLookupDraft(), unit.ModelDraft(HashedModel(V)), Guesses(seed)]
            for draft in drafts if k else drafts[2:]:
                got = unit.speculative_generate(model, draft, Letters(), "abc", p, k)
                assert (got.text, got.ids, got.finish_reason) == (want.text, want.ids, want.finish_reason)
                assert got.logprobs == want.logprobs


def test_a_perfect_draft_costs_one_pass_a_round(unit: Any) -> None:
    p = SamplingParams(temperature=0.0, max_tokens=40)
    model = AttentionModel(max_len=64)
    tok = SimpleNamespace(encode=lambda text: [ord(c) % 16 for c in text], decode=str)
    got = unit.speculative_generate(model, unit.ModelDraft(AttentionModel(max_len=64)), tok, "abc", p, 4)
    stats = got.stats
    assert (stats["target_calls"], stats["drafted"], stats["accepted"]) == (8, 32, 32)
    assert [len(ids) for ids, _ in model.calls] == [7, *[5] * 7]
    plain = AttentionModel(max_len=64)
    assert unit.speculative_generate(plain, None, tok, "abc", p, 0).ids == got.ids and len(plain.calls) == 40


def test_the_cache_is_as_large_as_the_request(unit: Any) -> None:
    requests = (np.float32, 5, 3, 11), (np.float16, 5, 3, 11), (np.float32, 90, 9, 64)
    for dtype, max_tokens, k, longest in requests:
        model = HashedModel(V)
        p = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        unit.speculative_generate(model, unit.PromptLookupDraft(), Letters(), "abc", p, k, dtype)
        position = 2 * 2 * 2 * 4 * np.dtype(dtype).itemsize
        assert max(model.memory) <= longest * position


def test_refusals_of_the_loop(unit: Any) -> None:
    p = SamplingParams(temperature=0.0, max_tokens=4)
    for prompt, params, k in (("", p, 2), ("a" * 9, p, 2), ("a", p, -1), ("a", SamplingParams(top_p=2.0), 2)):
        model, draft = HashedModel(V, max_len=8), Guesses(0)
        with pytest.raises(ValueError):
            unit.speculative_generate(model, draft, Letters(), prompt, params, k)
        assert model.calls == [] and draft.asked == []
    got = unit.speculative_generate(HashedModel(V, max_len=8), Guesses(0), Letters(), "a" * 8, p)
    assert (got.ids, got.text, got.finish_reason, got.stats["target_calls"]) == ([], "", "length", 0)
    assert got.stats["acceptance_rate"] == 0.0
    for proposal in (
        ([0, 1, 2], None), ([V], None), ([-1], None), ([True], None), ([0], np.ones((1, V))), ([0.5], None),
    ):  # fmt: skip
        liar = SimpleNamespace(propose=lambda ctx, k, rng, said=proposal: said)
        with pytest.raises(ValueError):
            unit.speculative_generate(HashedModel(V), liar, Letters(), "a", p, 2)
    silent = SimpleNamespace(propose=lambda ctx, k, rng: ([], "nothing"))
    assert len(unit.speculative_generate(HashedModel(V), silent, Letters(), "a", p, 2).ids) == 4


# time


def test_a_round_after_a_long_prompt_costs_no_more() -> None:
    """The loop's own work: 6000 ids before it must not cost many times what 60 do."""

    class Same:
        n_layers, n_kv_heads, d_head, max_len = 1, 1, 1, 8000

        def forward(self, ids: Any, positions: Any, cache: Any) -> Any:  # noqa: ARG002
            cache.update(0, *np.zeros((2, 1, 1, ids.shape[1], 1), np.float32))
            return np.broadcast_to(np.arange(256, dtype=np.float32), (1, ids.shape[1], 256))

    def seconds(n: int) -> float:
        draft = SimpleNamespace(propose=lambda ctx, k, rng: ([255] * k, None))
        p = SamplingParams(temperature=0.0, max_tokens=60)
        result = speculative.speculative_generate(Same(), draft, ByteVocabulary(), "x" * n, p, 4)
        assert result.stats["target_calls"] == 12
        return result.timings["decode_s"]

    seconds(60)
    assert min(seconds(6000) for _ in range(3)) < 4 * min(seconds(60) for _ in range(3))


def test_lookup_is_linear() -> None:
    """Ten times the context, without a match in it, must not cost a hundred times the time."""
    draft = speculative.PromptLookupDraft()

    def seconds(n: int) -> float:
        ctx = [*[1, 2] * (n // 2), 3]
        best = math.inf
        for _ in range(5):
            began = perf_counter()
            assert draft.propose(ctx, 4, None) == ([], None)
            best = min(best, perf_counter() - began)
        return best

    assert seconds(40000) < 30 * seconds(4000)


# what the page promises of names


def test_names_and_parameters_are_the_same_everywhere(unit: Any) -> None:
    want = {
        unit.verify_draft: "target_logits draft_ids draft_probs p history rng prompt",
        unit.PromptLookupDraft: "max_ngram min_ngram",
        unit.NGramDraft: "lm",
        unit.ModelDraft: "model temperature",
        unit.speculative_generate: "target draft tok prompt p k kv_dtype eos_ids",
    }
    for owner in (unit.PromptLookupDraft, unit.NGramDraft, unit.ModelDraft):
        want[owner.propose] = "self ctx k rng"
    for f, names in want.items():
        assert list(inspect.signature(f).parameters) == names.split(), f


def test_three_equivalents() -> None:
    assert len(EQUIVALENTS) >= 3
