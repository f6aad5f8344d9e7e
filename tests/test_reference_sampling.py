"""The reference sampler: the spec's numbers, the same bits as the equivalents, and what no fixture sees."""

from __future__ import annotations

import inspect
import math
import struct
import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.fixtures import import_file
from impl import sampling
from impl.rng import PCG32
from impl.sampling import SamplingParams, request_rng

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "sampling" / "equivalents"
EQUIVALENTS = [import_file(path, f"equivalent_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [sampling, *EQUIVALENTS]
ROWS = ("apply_penalties", "token_logprobs", "process_logits", "sampling_distribution")
PUBLIC = (*ROWS, "sample", "sampled_entropy", "request_rng")
LAST = 1.0 - 2.0**-53


class Scripted:
    """Hands out the given numbers and has no attribute but `uniform`, `left` and `calls`."""

    def __init__(self, *numbers: float) -> None:
        self.left, self.calls = list(numbers), 0

    def uniform(self) -> float:
        self.calls += 1
        return self.left.pop(0)


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    logits, p = np.array([1.0, 3.0, 2.0, 3.0, -1.0]), module.SamplingParams(top_k=3, top_p=0.8)
    assert module.token_logprobs(logits, p).tolist() == [
        -2.924866004221725,
        -0.9248660042217248,
        -1.924866004221725,
        -0.9248660042217248,
        -4.924866004221725,
    ]
    assert module.process_logits(logits, p).tolist() == [-math.inf, 3.0, -math.inf, 3.0, -math.inf]
    assert module.sampling_distribution(logits, p).tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert module.sample(logits, p, [], module.request_rng(0)) == (3, -0.9248660042217248)
    assert module.sampled_entropy(logits, p) == math.log(2.0)


def kept(module: Any, logits: list[float], **params: Any) -> list[int]:
    row = module.process_logits(np.array(logits), module.SamplingParams(**params))
    return [int(i) for i in np.flatnonzero(row > -math.inf)]


def test_small_examples(module: Any) -> None:
    tenths = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]
    assert kept(module, [5.0, 3.0, 3.0, 3.0, 1.0], top_k=2) == [0, 1]
    assert [len(kept(module, [0.0] * 4, top_p=x)) for x in (0.25, 0.5, 0.6, 0.75, 0.76)] == [1, 2, 3, 3, 4]
    assert kept(module, tenths, top_k=2, top_p=0.55) == [0]
    assert kept(module, tenths, top_k=3, top_p=0.5, min_p=0.6) == [0, 1]
    assert kept(module, [-math.inf, -math.inf, 2.0, 1.0], top_k=2) == [2, 3]
    p = module.SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    assert module.apply_penalties(np.array([3.0, 0.0]), p, [0]).tolist() == [0.5, 0.0]
    assert module.sample(np.zeros(6), module.SamplingParams(), [], Scripted(LAST))[0] == 5


@pytest.mark.parametrize(
    ("params", "ids", "logprobs"),
    [
        (
            {},
            [2, 2, 2, 3, 3, 2, 0, 2],
            [-1.1832179180278493] * 6 + [-2.6832179180278493, -1.1832179180278493],
        ),
        (
            {
                "temperature": 0.7,
                "top_k": 5,
                "top_p": 0.9,
                "min_p": 0.05,
                "repetition_penalty": 1.2,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.2,
            },
            [2, 3, 3, 6, 2, 2, 0, 2],
            [
                -1.1805874527142612,
                -1.0250037836802193,
                -1.4740059192462132,
                -1.0482745656018202,
                -1.261352505257793,
                -1.4086389859884818,
                -2.029977748136762,
                -1.5205914093365491,
            ],
        ),
    ],
)
def test_recorded_request(module: Any, params: dict[str, Any], ids: list[int], logprobs: list[float]) -> None:
    logits = np.array([0.5, -1.25, 2.0, 2.0, 0.0, -0.5, 1.75, -3.0], np.float32)
    p, rng = module.SamplingParams(**params), module.request_rng(7)
    history: list[int] = []
    got: list[float] = []
    for _ in ids:
        token, logprob = module.sample(logits, p, history, rng, prompt=[1, 4])
        history.append(token)
        got.append(logprob)
    assert history == ids
    # recorded on another machine, whose exp and log may differ in the last bit
    assert all(abs(a - b) <= 4 * math.ulp(b) for a, b in zip(got, logprobs, strict=True))


# the equivalents


def random_request(seed: int) -> tuple[Any, dict[str, Any], Any, Any, list[float]]:
    """Logits with planted ties, masks, dyadic and vanishing probabilities; parameters at their boundaries."""
    r = np.random.default_rng(seed)
    V = int(r.choice([1, 2, 5, 17, 48, 500], p=[0.1, 0.1, 0.3, 0.2, 0.2, 0.1]))
    rows = (
        r.standard_normal(V) * 3.0,
        r.integers(-3, 4, V).astype(float),
        np.log(r.integers(1, 9, V) / 8.0),
        np.full(V, r.choice([0.0, -2.0])),
        r.standard_normal(V) - r.choice([0.0, 40.0, 745.0, 800.0], V),
    )
    logits = rows[r.integers(5)].astype(("float16", "float32", "float64")[r.integers(3)])
    if r.random() < 0.4:
        free = r.integers(V)
        logits[(r.random(V) < r.choice([0.2, 0.8])) & (np.arange(V) != free)] = -np.inf
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 1, 0.5, 0.7, 1.8, 0.01],
        "top_k": [1, 2, V // 2, V, V + 1, 10**30],
        "top_p": [1, 0.25, 0.5, 0.75, 0.9, 1e-9, LAST],
        "min_p": [0, 1, 0.5, 0.25, 0.05],
        "repetition_penalty": [2, 0.5, 1.3],
        "presence_penalty": [0.5, -0.25, 0.1],
        "frequency_penalty": [0.5, -0.1, 0.3],
    }
    params = {key: values[r.integers(len(values))] for key, values in choices.items() if r.random() < 0.5}
    history, prompt = (r.integers(0, V, r.choice([0, 1, 5, 20])) for _ in range(2))
    q = sampling.sampling_distribution(logits, SamplingParams(**params), history, prompt)
    edge = float(np.cumsum(q)[r.integers(V)])  # a u exactly at a running sum, and its neighbours
    uniforms = [0.0, LAST, float(r.random()), edge, math.nextafter(edge, 0.0), math.nextafter(edge, 2.0)]
    return logits, params, history.tolist(), prompt.astype(np.uint16), [u for u in uniforms if 0.0 <= u < 1.0]


def bits(value: Any) -> Any:
    """Every bit of an answer, the sign of a zero excepted."""
    if isinstance(value, np.ndarray):
        assert value.dtype == np.float64
        return (value + 0.0).tobytes()
    if isinstance(value, tuple):
        assert [type(item) for item in value] == [int, float]
        return value[0], bits(value[1])
    assert type(value) is float
    return struct.pack("<d", value + 0.0)


def answers(module: Any, logits: Any, params: Any, history: Any, prompt: Any, uniforms: Any) -> list[Any]:
    p = module.SamplingParams(**params)
    out = [bits(getattr(module, f)(logits, p, history, prompt)) for f in (*ROWS, "sampled_entropy")]
    for u in uniforms:
        rng = Scripted(u)
        out.append(bits(module.sample(logits, p, history, rng, prompt)))
        assert rng.calls == (p.temperature > 0)
    return out


def test_the_equivalents_give_the_same_bits() -> None:
    assert len(EQUIVALENTS) >= 4
    for seed in range(250):
        request = random_request(seed)
        want = answers(sampling, *request)
        for other in EQUIVALENTS:
            assert answers(other, *request) == want, (other.__name__, seed)


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    """What the spec's Shapes block says of names, order and defaults."""
    row = ["logits", "p", ("history", ()), ("prompt", ())]
    want = dict.fromkeys((*ROWS, "sampled_entropy"), row)
    want |= {"sample": ["logits", "p", "history", "rng", ("prompt", ())], "request_rng": ["seed"]}
    for f in PUBLIC:
        parameters = inspect.signature(getattr(module, f)).parameters.values()
        assert [x.name if x.default is x.empty else (x.name, x.default) for x in parameters] == want[f]
    defaults = [(f.name, f.default) for f in fields(module.SamplingParams) if f.default is not MISSING]
    assert defaults == [
        ("temperature", 1.0),
        ("top_k", 0),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("repetition_penalty", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
        ("seed", None),
        ("max_tokens", 128),
        ("logprobs", 0),
    ]


# errors

BAD = [
    ({"temperature": value} for value in (-0.1, math.nan, math.inf, True, "1", None)),
    ({"top_k": value} for value in (-1, 1.0, True, None)),
    ({"top_p": value} for value in (0, -0.1, 1.1, math.nan, True, "1")),
    ({"min_p": value} for value in (-0.1, 1.1, math.nan, False, None)),
    ({"repetition_penalty": value} for value in (0.0, -1.0, math.nan, math.inf, True)),
    ({"presence_penalty": value} for value in (math.nan, math.inf, -math.inf, True)),
    ({"frequency_penalty": value} for value in (math.nan, math.inf, -math.inf, True)),
    ({"seed": value} for value in (-1, 1.0, True, "0")),
    ({"max_tokens": value} for value in (0, 1.0, True, None)),
    ({"logprobs": value} for value in (-1, 1.0, True, None)),
]
GOOD = [
    {"temperature": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 3, "seed": 0, "max_tokens": 1},
    {"min_p": 1, "top_k": 10**30, "seed": 10**30, "presence_penalty": -2, "frequency_penalty": -2.5},
]


@pytest.mark.parametrize("params", [params for group in BAD for params in group], ids=repr)
def test_refused_parameters(module: Any, params: dict[str, Any]) -> None:
    p = module.SamplingParams(**params)  # R3: the constructor checks nothing
    with (
        pytest.raises(ValueError, match=next(iter(params)))
        if module is sampling
        else pytest.raises(ValueError)
    ):
        p.validate()
    for f in (*ROWS, "sampled_entropy"):
        with pytest.raises(ValueError):
            getattr(module, f)(np.zeros(3), p)
    rng = Scripted(0.5)
    with pytest.raises(ValueError):
        module.sample(np.zeros(3), p, [], rng)
    assert rng.calls == 0


@pytest.mark.parametrize("params", GOOD)
def test_accepted_parameters(module: Any, params: dict[str, Any]) -> None:
    p = module.SamplingParams(**params)
    before = repr(p)
    assert p.validate() is None
    assert repr(p) == before


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.zeros((1, 2)), "one axis, got 2 axes"),
        (np.array(1.0), "one axis, got 0 axes"),
        (np.zeros(0), "logits is empty"),
        (np.zeros(2, np.int64), "must be float16, float32 or float64, got int64"),
        (np.zeros(2, bool), "must be float16, float32 or float64, got bool"),
        (np.array([0.0, math.nan]), "logits holds a NaN"),
        (np.array([0.0, math.inf], np.float16), r"logits holds \+inf"),
        (np.array([-math.inf, -math.inf]), "logits masks every id"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_refused_logits(module: Any, logits: Any, message: str, temperature: float) -> None:
    p, rng = module.SamplingParams(temperature=temperature), Scripted(0.5)
    for f in (*ROWS, "sampled_entropy"):
        with pytest.raises(ValueError, match=message if module is sampling else None):
            getattr(module, f)(logits, p)
    with pytest.raises(ValueError):
        module.sample(logits, p, [], rng)
    assert rng.calls == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3], r"ids must be in \[0, 3\), got 3"),
        ([0, -1], r"ids must be in \[0, 3\), got -1"),
        ([10**30], r"ids must be in \[0, 3\)"),
        (np.array([255], np.uint8), r"ids must be in \[0, 3\), got 255"),
        ([True], "ids must be integers, got True"),
        ([np.True_], "ids must be integers"),
        ([1.0], r"ids must be integers, got 1\.0"),
        (["1"], "ids must be integers, got '1'"),
        (np.array([1.0]), "ids must be integers"),
        (np.array([True]), "ids must be integers"),
        (np.array([[1]]), "a sequence or an array with one axis"),
        (np.array(1), "a sequence or an array with one axis"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"frequency_penalty": 1.0}])
def test_refused_ids(module: Any, ids: Any, message: str, params: dict[str, Any]) -> None:
    p, match = module.SamplingParams(**params), message if module is sampling else None
    for given in ({"history": ids}, {"prompt": ids}):
        for f in (*ROWS, "sampled_entropy"):
            with pytest.raises(ValueError, match=match):
                getattr(module, f)(np.zeros(3), p, **given)
        rng = Scripted(0.5)
        with pytest.raises(ValueError):
            module.sample(np.zeros(3), p, **({"history": []} | given), rng=rng)
        assert rng.calls == 0


# what no fixture sees


@pytest.mark.parametrize("f", [*ROWS, "sampled_entropy", "sample"])
def test_parameters_are_checked_before_anything_else(module: Any, f: str) -> None:
    class Refusing(module.SamplingParams):  # type: ignore[misc]
        def validate(self) -> None:
            raise LookupError("validate was called")

    more = {"history": "nonsense"} | ({"rng": None} if f == "sample" else {})
    with pytest.raises(LookupError, match="validate was called"):
        getattr(module, f)("nonsense", Refusing(), **more)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_answers_share_no_memory_and_arguments_stay(module: Any, dtype: Any, temperature: float) -> None:
    logits, history, prompt = np.array([1.0, -2.0, 0.5], dtype), np.array([1, 1]), np.array([0])
    for array in (logits, history, prompt):
        array.setflags(write=False)
    for params in ({}, {"repetition_penalty": 2.0, "presence_penalty": 1.0, "top_k": 2, "min_p": 0.1}):
        p = module.SamplingParams(temperature=temperature, **params)
        before = repr(p)
        rows = [getattr(module, f)(logits, p, history, prompt) for f in ROWS for _ in range(2)]
        for i, row in enumerate(rows):
            assert not any(np.shares_memory(row, other) for other in (logits, *rows[:i]))
            assert row.flags.writeable
        module.sample(logits, p, history, Scripted(0.5), prompt)
        assert repr(p) == before


def test_any_layout_of_logits_will_do(module: Any) -> None:
    wide = np.array([1.0, 9.0, 3.0, 9.0, 2.0, 9.0])
    p = module.SamplingParams(temperature=0.5, top_p=0.9)
    for view, plain in (
        (wide[::2], [1.0, 3.0, 2.0]),
        (wide[::-2], [9.0, 9.0, 9.0]),
        (wide[4::-2], [2.0, 3.0, 1.0]),
    ):
        assert bits(module.process_logits(view, p)) == bits(module.process_logits(np.array(plain), p))


def test_requests_do_not_disturb_one_another(module: Any) -> None:
    def run(rows: list[Any], seeds: list[int]) -> list[list[int]]:
        p = module.SamplingParams(temperature=0.9, frequency_penalty=0.3, seed=5)
        requests: list[tuple[Any, list[int], Any]] = [
            (row, [], module.request_rng(seed)) for row, seed in zip(rows, seeds, strict=True)
        ]
        for _ in range(10):
            for row, history, rng in requests:
                history.append(module.sample(row, p, history, rng)[0])
        return [history for _, history, _ in requests]

    one, two = PCG32(1).uniforms(40), PCG32(2).uniforms(40)
    assert run([one, two], [3, 4]) == run([one], [3]) + run([two], [4])


def test_a_request_can_be_resumed(module: Any) -> None:
    logits, p = PCG32(1).uniforms(40) * 4.0, module.SamplingParams(top_k=7)
    rng = module.request_rng(9)
    ids = [module.sample(logits, p, [], rng)[0] for _ in range(6)]
    rng = module.request_rng(9)
    rng.uniforms(3)  # one uniform a token
    assert [module.sample(logits, p, [], rng)[0] for _ in range(3)] == ids[3:]


def test_the_draws_follow_the_distribution() -> None:
    """Chi-square, 2 degrees of freedom: 13.816 is exceeded with probability 0.001, and the seed is fixed."""
    logits, p, rng = np.log([0.5, 0.3, 0.2, 1e-9]), SamplingParams(top_k=3), request_rng(0)
    n, counts = 5000, [0, 0, 0]
    for _ in range(n):
        counts[sampling.sample(logits, p, [], rng)[0]] += 1
    q = sampling.sampling_distribution(logits, p)
    assert sum((counts[i] - n * q[i]) ** 2 / (n * q[i]) for i in range(3)) < 13.816


def test_a_large_vocabulary_warns_of_nothing_and_agrees_with_numpy_equivalent() -> None:
    """Preselection by partition against a whole sort, at the size and with the ties of a real float16 row."""
    logits = (PCG32(0).uniforms(32_000) * 20.0).astype(np.float16)
    other = import_file(FOLDER / "numpy_seq.py", "equivalent_large")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for params in (
            {"top_k": 1000},
            {"top_p": 0.7},
            {"temperature": 0.1, "top_k": 50, "min_p": 0.01},
            {"temperature": 0},
        ):
            assert bits(sampling.process_logits(logits, SamplingParams(**params))) == bits(
                other.process_logits(logits, other.SamplingParams(**params))
            )
            got = sampling.sample(logits, SamplingParams(**params), [], Scripted(0.7))
            assert got == other.sample(logits, other.SamplingParams(**params), [], Scripted(0.7))
