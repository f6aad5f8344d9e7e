"""The given modules, rng and categorical, against published vectors; the doctests of all of impl."""

from __future__ import annotations

import doctest
import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import impl
from impl.categorical import UniformSource, sample_categorical
from impl.rng import GOLDEN, PCG32, PURPOSES, child_seed, fnv1a64, mix64, splitmix64, universal_hash

MODULES = sorted(path.stem for path in Path(impl.__path__[0]).glob("*.py") if path.stem != "__init__")
BIG = 1 << 63


@pytest.mark.parametrize("name", MODULES)
def test_the_doctests_of_a_module_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"impl.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


# PCG32


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        # O'Neill's pcg32-demo, "pcg32_srandom_r(&rng, 42u, 54u)"
        (42, [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]),
        (
            0,
            [
                1203932051,
                3113183783,
                2101201694,
                4034269462,
                2630041435,
                3188618317,
                1465042262,
                1127649586,
            ],
        ),
        (1, [2607537577, 204602440, 3466066159, 2183922644]),
        (BIG, [2341717954, 1780988301, 3407770941, 286718070]),
    ],
)
def test_words(seed: int, words: list[int]) -> None:
    rng = PCG32(seed)
    assert [rng.next_u32() for _ in words] == words


def test_first_step_of_seed_0() -> None:
    rng = PCG32(0)
    assert rng.state() == (0x9AE4F7499BA72696, 54 << 1 | 1)
    assert rng.next_u32() == 0x47C28B93


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        (0, [0.2803122753265841, 0.4892241428740438, 0.6123542393923406, 0.34110672967546707]),
        (1, [0.6071146506640145, 0.8070064150429078, 0.579079442525411, 0.6869878306011451]),
        (BIG, [0.5452237011095036, 0.7934334953632708, 0.2474840168231074, 0.7708485932437568]),
    ],
)
def test_uniforms(seed: int, numbers: list[float]) -> None:
    rng = PCG32(seed)
    assert [rng.uniform() for _ in numbers] == numbers
    got = PCG32(seed).uniforms(4)
    assert got.dtype == np.float64
    assert got.tolist() == numbers
    assert rng.uniforms(0).shape == (0,)


def test_a_uniform_has_53_bits() -> None:
    scaled = PCG32(3).uniforms(1000) * 2.0**53
    assert (scaled == np.floor(scaled)).all()
    assert scaled.max() < 2.0**53
    assert (scaled % 2 == 1).any()  # the last of the 53 bits is used


def test_box_muller_on_the_uniforms_gives_the_normals_of_the_course() -> None:
    u = PCG32(0).uniforms(4).tolist()
    normals = []
    for u1, u2 in (u[:2], u[2:]):
        r = math.sqrt(-2.0 * math.log(1.0 - u1))
        normals += [r * math.cos(2.0 * math.pi * u2), r * math.sin(2.0 * math.pi * u2)]
    want = [-0.809237002555057, 0.05487465048869301, -0.7457425176448607, 1.1572358387116342]
    assert all(abs(a - b) <= 4 * math.ulp(b) for a, b in zip(normals, want, strict=True))


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        (0, [1, 3, 4, 2, 5, 7, 2, 6, 7, 9, 2, 8, 0, 7, 4, 3]),
        (1, [7, 0, 9, 4, 2, 7, 6, 7, 6, 5, 8, 0, 8, 2, 6, 2]),
    ],
)
def test_below_10(seed: int, numbers: list[int]) -> None:
    rng = PCG32(seed)
    assert [rng.below(10) for _ in numbers] == numbers


def test_below_has_no_bias() -> None:
    """A plain remainder would put half of the numbers below 2^30, since 2^32 = 3 * 2^30 + 2^30."""
    rng, n = PCG32(0), 3 << 30
    share = sum(rng.below(n) < 1 << 30 for _ in range(4000)) / 4000
    assert abs(share - 1 / 3) < 0.04


def test_below_at_its_ends() -> None:
    rng = PCG32(42)
    assert rng.below(1) == 0
    assert rng.below(1 << 32) == 0x7B47F409  # the whole word


@pytest.mark.parametrize(
    ("seed", "order"), [(0, [0, 3, 5, 4, 8, 9, 7, 6, 2, 1]), (1, [5, 3, 6, 0, 2, 8, 1, 9, 4, 7])]
)
def test_shuffle(seed: int, order: list[int]) -> None:
    items = list(range(10))
    PCG32(seed).shuffle(items)
    assert items == order


def test_shuffle_can_leave_an_item_in_place() -> None:
    """Sattolo's variant, below(i) instead of below(i + 1), never does."""
    stayed = 0
    for seed in range(50):
        items = [0, 1]
        PCG32(seed).shuffle(items)
        stayed += items == [0, 1]
    assert 10 < stayed < 40


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (0, [3444971639, 4260714914, 2470929150, 1051028940]),
        (1, [3376753372, 3462355821, 1445319583, 3239269940]),
    ],
)
def test_sample_stream(seed: int, words: list[int]) -> None:
    rng = PCG32(seed).substream("sample")
    assert [rng.next_u32() for _ in words] == words


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        (0, [0.8020949661137535, 0.5753080192559342, 0.3536325443338164, 0.15149505622840476]),
        (17, [0.4145309927204168, 0.7342969820378472, 0.5789413543003222, 0.47148648497469203]),
    ],
)
def test_uniforms_of_the_sample_stream(seed: int, numbers: list[float]) -> None:
    assert PCG32(seed).substream("sample").uniforms(4).tolist() == numbers


def test_a_substream_depends_on_the_seed_only() -> None:
    rng = PCG32(0)
    rng.uniforms(10)
    before = rng.state()
    assert rng.substream("sample").next_u32() == 3444971639
    assert rng.state() == before


def test_streams_differ_by_purpose_and_by_seq() -> None:
    assert len({PCG32(0).substream(purpose).next_u32() for purpose in PURPOSES}) == len(PURPOSES)
    assert PCG32(0, seq=1).next_u32() != PCG32(0, seq=2).next_u32()


def test_seed_is_taken_modulo_2_64() -> None:
    rng = PCG32((1 << 64) + 42)
    assert rng.seed == 42
    assert rng.next_u32() == 0xA15C02B7
    assert PCG32(-1).seed == (1 << 64) - 1


def test_state_round_trip() -> None:
    rng = PCG32(5)
    rng.next_u32()
    saved = rng.state()
    ahead = [rng.next_u32() for _ in range(3)]
    other = PCG32(6)
    other.set_state(saved)
    assert [other.next_u32() for _ in range(3)] == ahead
    assert other.seed == 6


def test_errors_of_pcg32() -> None:
    rng = PCG32(0)
    before = rng.state()
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        rng.uniforms(-1)
    for n in (0, -1, (1 << 32) + 1):
        with pytest.raises(ValueError, match=rf"n must be in \[1, 2\^32\], got {n}"):
            rng.below(n)
    with pytest.raises(KeyError, match="sampling"):
        rng.substream("sampling")
    with pytest.raises(ValueError, match="the increment must be odd, got 4"):
        rng.set_state((1, 4))
    assert rng.state() == before


# seeds and hashes


@pytest.mark.parametrize(
    ("seed", "purpose", "child"),
    [
        (0, "init", 0xE220A8397B1DCDAF),
        (0, "dropout", 0x6E789E6AA1B965F4),
        (0, "shuffle", 0x06C45D188009454F),
        (0, "sample", 0xF88BB8A8724C81EC),
        (0, "mutation", 0x1B39896A51A8749B),
        (1, "sample", 0x71C18690EE42C90B),
        (BIG, "sample", 0x592E268383E356F9),
    ],
)
def test_child_seed(seed: int, purpose: str, child: int) -> None:
    assert child_seed(seed, PURPOSES[purpose]) == child


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]),
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
    ],
)
def test_published_outputs_of_splitmix64(seed: int, outputs: list[int]) -> None:
    assert [splitmix64(seed + n * GOLDEN) for n in range(3)] == outputs


def test_mix64_is_one_to_one_on_a_sample() -> None:
    assert len({mix64(z) for z in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("data", "digest"),
    [  # the test vectors of the FNV authors
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"b", 0xAF63DF4C8601F1A5),
        (b"fo", 0x08985907B541D342),
        (b"foo", 0xDCB27518FED9D577),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_published_vectors_of_fnv1a64(data: bytes, digest: int) -> None:
    assert fnv1a64(data) == digest
    for cut in range(len(data)):
        assert fnv1a64(data[cut:], fnv1a64(data[:cut])) == digest


def test_universal_hash_by_hand() -> None:
    assert universal_hash(10, 3, 7, 13, 5) == 1  # 37 mod 13 = 11, 11 mod 5 = 1


def test_universal_hash_collides_no_more_than_promised() -> None:
    p, m, x, y = 101, 10, 4, 77
    pairs = [(a, b) for a in range(1, p) for b in range(p)]
    hits = sum(universal_hash(x, a, b, p, m) == universal_hash(y, a, b, p, m) for a, b in pairs)
    assert hits / len(pairs) <= 1 / m + 1 / p


@pytest.mark.parametrize(
    ("a", "b", "m", "message"),
    [
        (0, 7, 5, r"a must be in \[1, p\), got a = 0, p = 13"),
        (13, 7, 5, r"a must be in \[1, p\), got a = 13, p = 13"),
        (3, -1, 5, r"b must be in \[0, p\), got b = -1, p = 13"),
        (3, 13, 5, r"b must be in \[0, p\), got b = 13, p = 13"),
        (3, 7, 0, "m must be at least 1, got 0"),
    ],
)
def test_errors_of_universal_hash(a: int, b: int, m: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        universal_hash(10, a, b, 13, m)


# categorical


@pytest.mark.parametrize(
    ("u", "index"),
    [
        (0.0, 1),  # index 0 has probability 0
        (math.nextafter(0.5, 0.0), 1),
        (0.5, 3),  # a u equal to a running sum belongs to the next index of positive probability
        (math.nextafter(0.75, 0.0), 3),
        (0.75, 4),
        (math.nextafter(1.0, 0.0), 4),
    ],
)
def test_a_u_at_a_boundary(u: float, index: int) -> None:
    assert sample_categorical([0.0, 0.5, 0.0, 0.25, 0.25, 0.0], u) == index


def test_the_last_positive_entry_is_the_answer_where_the_sum_falls_short() -> None:
    sixths = np.full(6, 1 / 6)
    assert np.cumsum(sixths)[-1] == 1.0 - 2.0**-53  # rounding
    assert sample_categorical([*sixths, 0.0], 1.0 - 2.0**-53) == 5


def test_the_running_sum_is_sequential() -> None:
    p = PCG32(0).uniforms(1000)
    p /= p.sum()
    total = 0.0
    for i in range(1000):
        before, total = total, total + float(p[i])
        assert sample_categorical(p, before) == i
        assert sample_categorical(p, math.nextafter(min(total, 1.0), 0.0)) == i


def test_pcg32_is_a_uniform_source() -> None:
    source: UniformSource = PCG32(0)
    counts = [0, 0, 0]
    for _ in range(4000):
        counts[sample_categorical(np.array([0.25, 0.5, 0.25]), source.uniform())] += 1
    assert all(
        abs(count - want) < 150 for count, want in zip(counts, (1000, 2000, 1000), strict=True)
    )  # 5 sigma


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.5]], r"one axis and at least one entry, got shape \(1, 2\)"),
        (1.0, r"one axis and at least one entry, got shape \(\)"),
        ([], r"one axis and at least one entry, got shape \(0,\)"),
        ([0.5, math.nan], "finite and at least 0"),
        ([0.5, math.inf], "finite and at least 0"),
        ([1.5, -0.5], "finite and at least 0"),
        ([0.5, 0.25], "must sum to 1, got 0.75"),
        ([0.5, 0.5 + 3e-9], "must sum to 1, got 1.000000003"),
    ],
)
def test_refused_probabilities(probs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_categorical(probs, 0.5)


@pytest.mark.parametrize("u", [1.0, -0.1, math.nan])
def test_refused_u(u: float) -> None:
    with pytest.raises(ValueError, match=rf"u must be in \[0, 1\), got {u}"):
        sample_categorical([0.5, 0.5], u)


@pytest.mark.parametrize("probs", [[0.5, 0.5 + 1e-9], (0.25, 0.75), [0, 1]])
def test_accepted_probabilities(probs: Sequence[float]) -> None:
    assert sample_categorical(probs, 0.5) == 1
