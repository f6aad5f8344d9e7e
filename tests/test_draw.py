"""Choices: the same on every machine, replayable, shrinkable; and the stock draws and laws that read them."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import draw, laws
from grader.draw import GOLDEN, PCG32, Chooser, Replay, child_seed, mix64, shrink, shuffled
from grader.wire import DTYPES

QUICK = settings(max_examples=40, deadline=None)  # a busy machine misses deadlines

# -- generators -------------------------------------------------------------------------------------------


def test_doctests() -> None:
    results = doctest.testmod(draw)
    assert results.attempted >= 2
    assert results.failed == 0


def test_pcg32_gives_the_published_vectors() -> None:
    """The check program of pcg-c-basic: seed 42, stream 54."""
    generator = PCG32(42, 54)
    words = [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]
    assert [generator.next_u32() for _ in words] == words


def test_pcg32_streams_differ_and_states_are_64_bits() -> None:
    streams = {tuple(PCG32(1, seq).next_u32() for _ in range(1)) for seq in range(20)}
    assert len(streams) == 20
    generator = PCG32(2**64 - 1, 2**63 - 1)
    for _ in range(100):
        assert 0 <= generator.next_u32() < 2**32
        assert 0 <= generator.state < 2**64
    assert PCG32(5).next_u32() == PCG32(5 + 2**64).next_u32()


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    """SplitMix64 from seed 1234567: its published first outputs."""
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix64((1234567 + (i + 1) * GOLDEN) % 2**64) for i in range(4)] == outputs
    assert [child_seed(1234567, i) for i in range(4)] == outputs
    assert child_seed(2**64 - 1, 0) == mix64(GOLDEN - 1)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 2**31 + 1, 3 * 2**30, 2**32])
def test_below_stays_below_and_has_no_bias_by_rejection(n: int) -> None:
    generator, twin = PCG32(7), PCG32(7)
    for _ in range(50):
        got = generator.below(n)
        while (word := twin.next_u32()) < 2**32 % n:
            pass
        assert got == word % n
        assert 0 <= got < n


def test_shuffled_is_a_permutation_that_the_seed_decides() -> None:
    items = [f"case-{i}" for i in range(30)]
    once = shuffled(items, 1)
    assert once == shuffled(items, 1)
    assert once != shuffled(items, 2) != items
    assert sorted(once) == sorted(items)
    assert items == [f"case-{i}" for i in range(30)]
    assert shuffled([], 1) == []
    assert len({tuple(shuffled(["a", "b", "c"], seed)) for seed in range(60)}) == 6  # every order comes up


# -- choosers ---------------------------------------------------------------------------------------------


def numbers(choose: Any) -> list[int]:
    """A draw: a list of up to 20 numbers below 1000."""
    return [choose.below(1000) for _ in range(choose.below(21))]


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000))
@QUICK
def test_seed_and_run_name_an_input(seed: int, i: int) -> None:
    """Run i is the same whatever was drawn before it."""
    for j in range(3):
        numbers(Chooser(seed, j))
    first, second = Chooser(seed, i), Chooser(seed, i)
    assert numbers(first) == numbers(second)
    assert first.choices == second.choices
    assert numbers(Replay(first.choices)) == numbers(Chooser(seed, i))


def test_runs_differ() -> None:
    assert (
        len({tuple(Chooser(seed, i).below(2**32) for _ in range(1)) for seed in range(20) for i in range(20)})
        == 400
    )


def test_a_chooser_reads_the_stream_of_its_child_seed() -> None:
    chooser, generator = Chooser(3, 5), PCG32(child_seed(3, 5))
    bounds = [1, 2, 7, 2**32]
    assert [chooser.below(n) for n in bounds] == [generator.below(n) for n in bounds]
    assert len(chooser.choices) == 4


@pytest.mark.parametrize("n", [0, -1, 2**32 + 1])
def test_a_choice_has_at_least_one_and_at_most_2_to_the_32_values(n: int) -> None:
    with pytest.raises(ValueError, match=f"below\\({n}\\): 1 <= n <= 2\\^32"):
        Chooser(0, 0).below(n)


def test_a_replay_clips_and_fills_with_the_simplest() -> None:
    replay = Replay([5, 9, 2])
    assert [replay.below(6), replay.below(6), replay.below(6), replay.below(6)] == [5, 5, 2, 0]
    assert replay.choices == [5, 5, 2, 0]
    assert replay.given == [5, 9, 2]


# -- shrinking --------------------------------------------------------------------------------------------


def shrunk(choices: list[int], fails: Callable[[list[int]], bool], **more: Any) -> tuple[list[int], int]:
    """The result and how often `fails` was asked."""
    asked = 0

    def still_fails(candidate: list[int]) -> Generator[str, str, bool]:
        nonlocal asked
        asked += 1
        answer = yield "a request"  # it may talk to a worker in between
        assert answer == "an answer"
        return fails(candidate)

    run = shrink(choices, still_fails, **more)
    try:
        request = next(run)
        while True:
            assert request == "a request"
            request = run.send("an answer")
    except StopIteration as stop:
        return stop.value, asked


def test_one_large_number_shrinks_to_the_boundary() -> None:
    start = Chooser(1, 0)
    while max(numbers(start), default=0) < 500:
        start = Chooser(1, start.random.below(1000))
    best, asked = shrunk(start.choices, lambda c: any(x >= 500 for x in numbers(Replay(c))))
    assert numbers(Replay(best)) == [500]
    assert asked <= 200


def test_two_elements_that_fail_together_stay() -> None:
    start = [20, *range(100, 120)]

    def fails(choices: list[int]) -> bool:
        drawn = numbers(Replay(choices))
        return any(a > b > 7 for a in drawn for b in drawn)

    best, _ = shrunk(start, fails)
    assert sorted(numbers(Replay(best))) == [8, 9]


def test_what_always_fails_shrinks_to_nothing_and_what_never_does_stays() -> None:
    assert shrunk(list(range(90)), lambda _: True)[0] == []
    start = [3, 1, 4, 1, 5]
    assert shrunk(start, lambda _: False)[0] == start
    assert start == [3, 1, 4, 1, 5]
    assert shrunk([], lambda _: True) == ([], 0)


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(0, 2**32))
@QUICK
def test_the_result_fails_and_is_never_worse(start: list[int], salt: int) -> None:
    """For any property, however odd: what comes out still fails, is no longer and nowhere larger."""

    def fails(choices: list[int]) -> bool:
        return choices == start or hash((salt, *choices)) % 3 == 0

    best, asked = shrunk(start, fails)
    assert fails(best)
    assert len(best) <= len(start)
    assert sum(best) <= sum(start)
    assert asked <= 200


def test_choices_that_cannot_go_become_zero_or_the_least_that_fails() -> None:
    assert shrunk([9, 90, 7], lambda c: len(c) == 3 and c[1] >= 5)[0] == [0, 5, 0]
    assert shrunk([1, 1, 1], lambda c: len(c) == 3 and c[2] == 1)[0] == [0, 0, 1]


def test_tries_and_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    start = [1000] * 100
    best, asked = shrunk(start, lambda c: len(c) == 100, tries=17)
    assert asked == 17
    assert len(best) == 100
    clock = iter(range(1000))
    monkeypatch.setattr(draw.time, "monotonic", lambda: float(next(clock)))
    _, asked = shrunk(start, lambda _: False, seconds=10.0)
    assert asked == 10


# -- stock draws ------------------------------------------------------------------------------------------


def simplest(function: Callable[..., Any], **more: Any) -> Any:
    return function(Replay([]), **more)


def test_stock_draws_start_with_the_simplest() -> None:
    assert simplest(laws.integer, low=3, high=9) == 3
    assert simplest(laws.one_of, values=["a", "b"]) == "a"
    assert simplest(laws.integers, low=0, high=9, most=5) == []
    assert simplest(laws.integers, low=2, high=9, most=5, least=2) == [2, 2]


def test_stock_draws_stay_in_range_and_reach_their_ends() -> None:
    seen = {laws.integer(Chooser(0, i), 3, 6) for i in range(100)}
    assert seen == {3, 4, 5, 6}
    assert {laws.one_of(Chooser(0, i), ["a", "b", "c"]) for i in range(50)} == {"a", "b", "c"}
    lists = [laws.integers(Chooser(0, i), -1, 1, most=3, least=1) for i in range(100)]
    assert {len(x) for x in lists} == {1, 2, 3}
    assert {y for x in lists for y in x} == {-1, 0, 1}


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_stock_floats_are_exact_multiples(dtype: str) -> None:
    x = laws.floats(Chooser(0, 0), dtype, [40, 50], scale=2.0)
    assert (x.dtype, x.shape) == (DTYPES[dtype], (40, 50))
    assert -2 <= x.min() < -1.9
    assert 1.9 < x.max() < 2
    steps = x.astype(np.float64) * 512
    assert np.array_equal(steps, np.round(steps))
    assert laws.floats(Chooser(0, 0), "f32", []).shape == ()


# -- stock laws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "got", "broken"),
    [
        (laws.finite, [1.0, -1e308], None),
        (laws.finite, 3, None),
        (laws.finite, [], None),
        (laws.finite, [1.0, math.nan, math.inf], "2 values are not finite"),
        (laws.finite, np.array([np.inf], np.float16), "1 values are not finite"),
        (laws.sums_to_one, [0.25, 0.75], None),
        (laws.sums_to_one, [1.0], None),
        (laws.sums_to_one, np.full(10, 0.1), None),  # each rounded
        (laws.sums_to_one, [0.5, 0.5 + 2**-50], "the sum is"),
        (laws.sums_to_one, [0.5, 0.5 + 2**-51], None),
        (laws.sums_to_one, [1.5, -0.5], "a probability is"),
        (laws.sums_to_one, [], "the sum is 0.0"),
        (laws.sums_to_one, [1.0, math.nan], "a probability is"),
        (laws.ascending, [1, 1, 2], None),
        (laws.ascending, [], None),
        (laws.ascending, [1, 3, 2, 4], "falls at index 2"),
        (laws.ascending, [1.0, math.nan, 2.0], "falls at index 1"),
    ],
)
def test_stock_laws(law: Callable[..., str | None], got: Any, broken: str | None) -> None:
    said = law({}, np.asarray(got, np.float64) if isinstance(got, list) else got)
    assert (said is None) == (broken is None)
    assert said is None or said.startswith(broken or "")
    assert law.__doc__
