"""The speculative oracle against exact arithmetic, the page's numbers, plain decoding and the doubles."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import testkit
from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures"
oracle = import_file(FOLDER / "speculative" / "oracle.py", "speculative_oracle_under_test")
plain = import_file(FOLDER / "kv_cache" / "oracle.py", "kv_cache_oracle_beside_it")
BYTES = oracle.ByteVocabulary()
Law = dict[tuple[int, ...], Fraction]


def params(**fields: Any) -> Any:
    return oracle.SamplingParams(**fields)


def logits(*rows: list[Fraction]) -> Any:
    return np.array([[math.log(w) if w else -math.inf for w in row] for row in rows])


def verified(rows: Any, draft: list[int], probs: Any = None, u: Any = (), **more: Any) -> tuple[Any, int]:
    """What came out and how many uniforms it took."""
    rng = oracle.ScriptedUniforms(u)
    p = more.pop("p", params())
    emitted, n = oracle.verify_draft(rows, draft, probs, p, more.pop("history", []), rng, **more)
    return (emitted, n), rng.used


# -- the worked example -----------------------------------------------------------------------------------

P, Q = [0.5, 0.25, 0.25], np.array([[0.25, 0.5, 0.25]])
HAND = np.array([[math.log(x) for x in P], [-math.inf, -math.inf, 0.0]])


def test_the_worked_example() -> None:
    assert verified(HAND, [1], Q, [0.7, 0.4]) == (([0], 0), 2)
    assert verified(HAND, [1], Q, [0.3, 0.9, 0.1]) == (([1, 2], 1), 3)
    assert verified(HAND, [1], None, [0.3, 0.9]) == (([2], 0), 2)
    rows = np.array([[0.0, 1, 2], [3, 1, 2], [0, 5, 4]])
    greedy = params(temperature=0)
    for draft, want in (([2, 1], ([2, 0], 1)), ([2, 0], ([2, 0, 1], 2)), ([1, 0], ([2], 0))):
        assert oracle.verify_draft(rows, draft, None, greedy, [], None) == want
    assert oracle.verify_draft(rows[:1], [], None, greedy, [], None) == ([2], 0)


def test_the_fewest_penalties_that_decide() -> None:
    rows = np.array([[3, 2.9, 0], [3, 2.9, 0], [0, 0, 0]], np.float32)
    p = params(temperature=0, repetition_penalty=2.0)
    assert oracle.verify_draft(rows, [0, 0], None, p, [], None) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("ctx", "k", "want"),
    [
        ([1, 2, 3, 9, 1, 2], 3, [3, 9, 1]),
        ([5, 1, 7, 1, 8, 1], 2, [8, 1]),
        ([4, 4, 4], 5, [4]),
        ([1, 2, 3], 4, []),
        ([1, 2, 3, 7, 2, 3, 1, 2, 3], 2, [7, 2]),
    ],
)
def test_lookup_examples(ctx: list[int], k: int, want: list[int]) -> None:
    assert oracle.PromptLookupDraft().propose(ctx, k, None) == (want, None)


def test_the_round_table() -> None:
    target = oracle.ScriptedModel(list(range(99, 110)), 2)
    draft = oracle.ScriptedDraft([[99, 120], [101, 102], [104]])
    said = oracle.speculative_generate(target, draft, BYTES, "ab", params(temperature=0, max_tokens=7), k=2)
    assert said["text"] == "cdefghi" and (said["drafted"], said["accepted"], said["target_calls"]) == (
        5,
        4,
        3,
    )
    fed = [[[97, 98, 99, 120], [0, 1, 2, 3]], [[100, 101, 102], [3, 4, 5]], [[103, 104], [6, 7]]]
    assert target.calls == fed


def test_forty_tokens_in_eight_passes() -> None:
    target, own = oracle.HashedModel(256), oracle.ModelDraft(oracle.HashedModel(256))
    said = oracle.speculative_generate(target, own, BYTES, "ab", params(temperature=0, max_tokens=40))
    assert [said[n] for n in ("completion_tokens", "target_calls", "drafted", "accepted")] == [40, 8, 32, 32]
    none = oracle.speculative_generate(target, own, BYTES, "ab", params(temperature=0, max_tokens=40), k=0)
    assert none["ids"] == said["ids"] and none["target_calls"] == 40 and none["acceptance_rate"] == 0.0


def test_expected_ids_of_a_round() -> None:
    """The page's formula against the sum over where the first rejection is."""
    a, k = Fraction(4, 5), 4
    mean = sum((i + 1) * a**i * (1 - a) for i in range(k)) + (k + 1) * a**k
    assert mean == (1 - a ** (k + 1)) / (1 - a) and float(mean) == pytest.approx(3.3616)


# -- the law of what comes out ----------------------------------------------------------------------------


def law_of(rows: list[list[Fraction]], Qs: list[list[Fraction]] | None, cells: list[int]) -> Law:
    """Exact: every draft by its probability, every cell of the grid by its size."""
    m, size = len(rows) - 1, len(rows[0])
    out: Law = defaultdict(Fraction)
    table = logits(*rows)
    for draft in product(range(size), repeat=m):
        weight = Fraction(1)
        for x, row in zip(draft, Qs or [], strict=False):
            weight *= row[x]
        if not weight:
            continue
        probs = None if Qs is None else np.array([[float(q) for q in row] for row in Qs])
        for point in product(*map(oracle.midpoints, cells)):
            (emitted, _), used = verified(table, list(draft), probs, point)
            del used
            out[tuple(emitted)] += weight / math.prod(cells)
    return out


def first_of(law: Law) -> dict[int, Fraction]:
    out: dict[int, Fraction] = defaultdict(Fraction)
    for ids, weight in law.items():
        out[ids[0]] += weight
    return dict(out)


def eighths(*numbers: int) -> list[Fraction]:
    assert sum(numbers) == 8
    return [Fraction(n, 8) for n in numbers]


@pytest.mark.parametrize(
    ("P", "Q", "cells"),
    [
        (eighths(4, 2, 2), eighths(1, 6, 1), [3, 4]),
        (eighths(1, 1, 2, 2, 2), eighths(2, 2, 2, 1, 1), [2, 2]),
        (eighths(0, 4, 4), eighths(4, 2, 2), [1, 2]),
        (eighths(4, 4, 0), eighths(4, 4, 0), [2, 2]),
    ],
)
def test_one_drafted_id_has_the_targets_law(P: list[Fraction], Q: list[Fraction], cells: list[int]) -> None:
    bonus = [Fraction(int(i == 0)) for i in range(len(P))]
    law = law_of([P, bonus], [Q], [*cells, 1])
    assert first_of(law) == {i: w for i, w in enumerate(P) if w}


@pytest.mark.parametrize("x", [0, 1, 2])
def test_a_draft_without_a_draw_has_the_targets_law(x: int) -> None:
    """One-hot: accepted by P(x), else from the rest of P."""
    P = eighths(4, 2, 2)
    table = logits(P, eighths(8, 0, 0))
    counts: Counter[int] = Counter()
    for point in product(oracle.midpoints(24), oracle.midpoints(24), [0.5]):
        counts[verified(table, [x], None, point)[0][0][0]] += 1
    assert [Fraction(counts[i], 24 * 24) for i in range(3)] == P


def test_two_drafted_ids_and_the_extra_have_the_targets_law() -> None:
    """The joint law of the first two ids, where there are two, is the product of the rows."""
    rows = [[Fraction(1, 4), Fraction(3, 4)], [Fraction(1, 2)] * 2, [Fraction(1, 4), Fraction(3, 4)]]
    Qs = [[Fraction(3, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4)]]
    law = law_of(rows, Qs, [3, 1, 3, 1, 4])
    assert sum(law.values()) == 1
    assert first_of(law) == dict(enumerate(rows[0]))
    more = {ids: w for ids, w in law.items() if len(ids) > 1}
    reached = sum(more.values())
    second: dict[int, Fraction] = defaultdict(Fraction)
    for ids, w in more.items():
        second[ids[1]] += w / reached
    assert dict(second) == dict(enumerate(rows[1]))
    whole = {ids: w for ids, w in law.items() if len(ids) == 3}
    third: dict[int, Fraction] = defaultdict(Fraction)
    for ids, w in whole.items():
        third[ids[2]] += w / sum(whole.values())
    assert dict(third) == dict(enumerate(rows[2]))


def test_the_wrong_row_gives_another_law() -> None:
    """V01: a greedy draft of id 0 with its softmax as q gives 5/6."""
    table = logits([Fraction(1, 2)] * 2, [Fraction(1), Fraction(0)])
    counts: Counter[int] = Counter()
    for u in oracle.midpoints(600):
        counts[verified(table, [0], np.array([[0.6, 0.4]]), [u, 0.5, 0.5])[0][0][0]] += 1
    assert Fraction(counts[0], 600) == Fraction(5, 6)


def test_recorded_grid_cases_hold_every_cell_once() -> None:
    """Steps weighted by the cells that they stand for sum to one for each draft."""
    for row, recorded in zip(oracle.GRIDS, oracle.generate()["exact.gen.yaml"]["cases"], strict=True):
        cells, before = row[-1], 0
        totals: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for step in recorded["steps"]:
            used = step["state"]["used"] - before
            before = step["state"]["used"]
            read = [*cells[: used - 1], cells[-1]] if used % 2 else cells[:used]
            totals[tuple(step["args"]["draft_ids"])] += Fraction(1, math.prod(read))
        assert set(totals.values()) == {Fraction(1)} and len(totals) == len(row[4])


def chi_square(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float], n: int) -> float:
    return sum((counts[ids] - n * w) ** 2 / (n * w) for ids, w in law.items())


@pytest.mark.parametrize("every", [1, 2])
def test_whole_requests_have_the_targets_law(every: int) -> None:
    """Two ids over 600 seeds against the product of the target's rows; the draft is wrong at every step or at
    every other one, and the seeds are fixed."""
    size, n, prompt = 3, 600, [1]
    target = oracle.HashedModel(size, 1.0)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        draft = oracle.ModelDraft(oracle.FickleModel(every, size, 1.0))
        p = params(seed=seed, max_tokens=2)
        counts[tuple(oracle.speculative_generate(target, draft, BYTES, "\x01", p, k=2)["ids"])] += 1
    law = {}
    for i, j in product(range(size), repeat=2):
        first = oracle.softmax(dict(enumerate(target.row(prompt))))
        law[i, j] = first[i] * oracle.softmax(dict(enumerate(target.row([*prompt, i]))))[j]
    assert chi_square(counts, law, n) < 26.1  # 8 degrees of freedom, p = 0.001


# -- against plain decoding -------------------------------------------------------------------------------


def other(given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The same request for the kv_cache unit's oracle, which knows nothing of drafts."""
    model = plain.HashedModel(**given["target"]["args"])
    return model, plain.WordPieces(oracle.WORDS), plain.SamplingParams(**given["p"]["args"])


@pytest.mark.parametrize("draw", ["generation", "agreeing"])
def test_greedy_and_undrafted_requests_are_plain_ones(draw: str) -> None:
    same = 0
    for run in range(120):
        given = getattr(oracle, draw)(Chooser(11, run))
        if run % 2:
            given["k"] = 0
        else:
            given["p"]["args"]["temperature"] = 0.0
        said = oracle.speculative_generate(**oracle.resolved(given, {}))
        model, tok, p = other(given)
        want = plain.run_request(model, tok, given["prompt"], p, eos_ids=given["eos_ids"])
        for name in ("text", "ids", "finish_reason", "prompt_tokens", "completion_tokens"):
            assert said[name] == want[name], (run, name)
        assert said["logprobs"] == want["logprobs"]
        same += said["accepted"] > 0
    assert same >= 5  # drafts were accepted on the way


def test_the_doubles_agree() -> None:
    ids = [3, 1, 4, 1, 5]
    for kind, args in (
        ("HashedModel", {"vocab": 8}),
        ("FickleModel", {"vocab": 8, "every": 2}),
        ("ScriptedModel", {"script": [4, 1], "start": 2, "vocab": 8}),
    ):
        ours, theirs = getattr(oracle, kind)(**args), getattr(testkit, kind)(**args)
        got = theirs.forward(np.array([ids]))[0]
        for n in range(1, len(ids) + 1):
            assert got[n - 1].tolist() == np.array(ours.row(ids[:n]), np.float32).tolist()
    rows = np.arange(6.0).reshape(2, 3)
    for kit in (oracle, testkit):
        lm = kit.Bigrams(rows)
        assert list(lm.logprobs([1])) == [3, 4, 5] and list(lm.logprobs([])) == [0, 1, 2]
        assert lm.asked == [[1], []]
        draft = kit.ScriptedDraft([[1], [2, 3]], draws=2)
        rng = kit.ScriptedUniforms([0.25, 0.5])
        assert kit.proposals(draft, [[[7], 1]], rng) == [[1]] and draft.uniforms == [[0.25, 0.5]]
        assert draft.propose([7, 1], 2, None) == ([2, 3], None) and draft.propose([], 1, None) == ([], None)
        assert draft.asked == [[[7], 1], [[7, 1], 2], [[], 1]]
        assert kit.Numbers().decode([7, 2049]) == "7 2049 " and kit.Numbers().encode("7 2049") == [7, 2049]
        assert kit.ScriptedDraft([[1]], [rows]).propose([], 1, None)[1] is rows


# -- refusals ---------------------------------------------------------------------------------------------

EVEN = np.zeros((3, 2))
HALVES = np.full((2, 2), 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_logits": EVEN[:2]},
        {"target_logits": np.array([[0, 0], [0, 0], [0, np.nan]])},
        {"target_logits": np.array([[0, 0], [0, 0], [-np.inf, -np.inf]])},
        {"draft_ids": [0, 2]},
        {"draft_ids": [0, -1]},
        {"draft_ids": [0, True]},
        {"draft_probs": HALVES[:1]},
        {"draft_probs": np.array([[0.5, 0.5], [0.5, 0.25]])},
        {"draft_probs": np.array([[0.5, 0.5], [1.5, -0.5]])},
        {"draft_probs": np.array([[0.5, 0.5], [1.0, 0.0]])},
        {"history": [2]},
        {"prompt": [-1]},
        {"p": oracle.SamplingParams(top_p=0.0)},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_verification_refuses_before_it_draws(wrong: dict[str, Any], temperature: float) -> None:
    rng = oracle.ScriptedUniforms([0.9] * 5)
    given = {"target_logits": EVEN, "draft_ids": [0, 1], "draft_probs": HALVES,
             "p": params(temperature=temperature), "history": [], "rng": rng}  # fmt: skip
    with pytest.raises(ValueError):
        oracle.verify_draft(**(given | wrong))
    assert rng.used == 0
    oracle.verify_draft(**given)
    assert rng.used == (5 if temperature else 0)  # equal rows: both drafts stand


def test_drafts_and_loop_refuse() -> None:
    for bad in ((1, 2), (3, 0), (0, 0)):
        with pytest.raises(ValueError):
            oracle.PromptLookupDraft(*bad)
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError):
            oracle.ModelDraft(oracle.HashedModel(4), temperature)
    drafts = (oracle.PromptLookupDraft(), oracle.NGramDraft(oracle.Bigrams([[0.0]])),
              oracle.ModelDraft(oracle.HashedModel(4)))  # fmt: skip
    for draft in drafts:
        with pytest.raises(ValueError):
            draft.propose([1], -1, None)
    with pytest.raises(ValueError):
        drafts[2].propose([], 1, None)
    target = oracle.ScriptedModel([98], 1, max_len=4)
    for more in ({"k": -1}, {"prompt": ""}, {"prompt": "abcde"}, {"p": params(max_tokens=0)}):
        given = {"prompt": "a", "p": params(), "draft": drafts[0], "tok": BYTES, "target": target}
        with pytest.raises(ValueError):
            oracle.speculative_generate(**(given | more))
    assert target.calls == []
    with pytest.raises(ValueError):
        oracle.speculative_generate(target, oracle.ScriptedDraft([[1, 2]]), BYTES, "a", params(max_tokens=2))


# -- laws -------------------------------------------------------------------------------------------------


class Got:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


def test_the_laws_find_what_is_wrong() -> None:
    given = oracle.agreeing(Chooser(5, 1))
    want = oracle.speculative_generate(**oracle.resolved(given, {}))
    stats = {name: want[name] for name in oracle.STATS} | {"tokens_per_s": 1.0}
    times = {"prefill_s": 0.25, "decode_s": 0.5, "total_s": 0.75}
    good = {k: want[k] for k in ("text", "ids", "finish_reason", "logprobs")} | {
        "stats": stats,
        "timings": times,
    }
    assert oracle.same_generation(given, Got(good)) is None and oracle.sound_times(given, Got(good)) is None
    for name in oracle.STATS:
        off = {**good, "stats": stats | {name: stats[name] + 1}}
        assert oracle.same_generation(given, Got(off))
    for name, value in (("text", "?"), ("ids", []), ("finish_reason", "?"), ("logprobs", [1.0])):
        assert oracle.same_generation(given, Got({**good, name: value}))
    assert oracle.same_generation(given, Got({**good, "stats": {}}))
    for bad in ({"total_s": 0.1}, {"prefill_s": -1.0}, {"decode_s": math.inf}, {"other_s": 1.0}):
        assert oracle.sound_times(given, Got({**good, "timings": times | bad}))


# -- peers ------------------------------------------------------------------------------------------------


def test_prompt_lookup_beside_transformers() -> None:
    """Where only one occurrence exists the two rules are one: theirs takes the earliest, ours the latest."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import torch
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    theirs = PromptLookupCandidateGenerator(num_output_tokens=3, max_matching_ngram_size=2, max_length=100)
    compared = 0
    for run in range(200):
        choose = Chooser(3, run)
        ctx = [choose.below(6) for _ in range(4 + choose.below(8))]
        starts = [i for n in (2, 1) for i in range(len(ctx) - n) if ctx[i : i + n] == ctx[-n:]]
        pairs = [i for i in range(len(ctx) - 2) if ctx[i : i + 2] == ctx[-2:]]
        if len(pairs) > 1 or (not pairs and len(starts) != 1):
            continue
        got = theirs.get_candidates(torch.tensor([ctx]))[0][0, len(ctx) :].tolist()
        assert got == oracle.PromptLookupDraft(max_ngram=2).propose(ctx, 3, None)[0]
        compared += 1
    assert compared > 30
