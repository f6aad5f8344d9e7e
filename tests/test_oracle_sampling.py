"""The sampling oracle against published vectors, the page's numbers, outside peers, and its own proofs."""

from __future__ import annotations

import ast
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import build, strict_yaml, values
from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "sampling"
LOG_4321 = np.log([0.4, 0.3, 0.2, 0.1])
oracle = import_file(FOLDER / "oracle.py", "sampling_oracle_under_test")
unit = oracle.Oracle()


def params(**fields: Any) -> Any:
    return oracle.SamplingParams(**fields)


def f64(*values: float) -> Any:
    return np.array(values, np.float64)


def kept(answer: Any) -> list[int]:
    return [int(i) for i in np.flatnonzero(answer > -np.inf)]


def scripted(*values: float) -> Any:
    return oracle.ScriptedUniforms(values)


# -- the generator and the request stream: published vectors ------------------------------------------------


def test_pcg32_gives_the_published_outputs() -> None:
    first = [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]
    rng = oracle.PCG32(42)
    assert [rng.next_u32() for _ in first] == first
    assert [oracle.PCG32(seed).next_u32() for seed in (0, 1, 2**63)] == [1203932051, 2607537577, 2341717954]


def test_pcg32_state_uniform_and_below() -> None:
    assert oracle.PCG32(0).state() == [0x9AE4F7499BA72696, 109]
    rng = oracle.PCG32(0)
    want = [0.2803122753265841, 0.4892241428740438, 0.6123542393923406, 0.34110672967546707]
    assert [rng.uniform() for _ in want] == want
    rng = oracle.PCG32(1)
    assert [rng.below(10) for _ in range(16)] == [7, 0, 9, 4, 2, 7, 6, 7, 6, 5, 8, 0, 8, 2, 6, 2]


@pytest.mark.parametrize(
    ("seed", "child"),
    [(0, 0xF88BB8A8724C81EC), (1, 0x71C18690EE42C90B), (2**63, 0x592E268383E356F9)],
)
def test_child_seed_of_sample(seed: int, child: int) -> None:
    assert oracle.child_seed(seed) == child


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (0, [3444971639, 4260714914, 2470929150, 1051028940]),
        (1, [3376753372, 3462355821, 1445319583, 3239269940]),
    ],
)
def test_request_stream_outputs(seed: int, words: list[int]) -> None:
    rng = oracle.request_rng(seed)
    assert [rng.next_u32() for _ in words] == words


@pytest.mark.parametrize(
    ("seed", "uniforms"),
    [
        (0, [0.8020949661137535, 0.5753080192559342, 0.3536325443338164, 0.15149505622840476]),
        (17, [0.4145309927204168, 0.7342969820378472, 0.5789413543003222, 0.47148648497469203]),
    ],
)
def test_request_stream_uniforms(seed: int, uniforms: list[float]) -> None:
    rng = oracle.request_rng(seed)
    assert [rng.uniform() for _ in uniforms] == uniforms


def test_u24_gives_the_values_of_the_fixture_language() -> None:
    assert oracle.u24(7, 2).tolist() == [-0.22034060955047607, -0.966423511505127]


# -- sampled requests: published vectors --------------------------------------------------------------------

SMALL = np.array([0.5, -1.25, 2, 2, 0, -0.5, 1.75, -3], np.float32)
FILTERED = [
    -1.1805874527142612, -1.0250037836802193, -1.4740059192462132, -1.0482745656018202,
    -1.261352505257793, -1.4086389859884818, -2.029977748136762, -1.5205914093365491,
]  # fmt: skip


def generated(p: Any, seed: int, n: int) -> tuple[list[int], list[float]]:
    rng, ids, logprobs = oracle.request_rng(seed), [], []
    for _ in range(n):
        chosen, logprob = unit.sample(SMALL, p, ids, rng, [1, 4])
        ids.append(chosen)
        logprobs.append(logprob)
    return ids, logprobs


def test_eight_tokens_with_the_defaults() -> None:
    ids, logprobs = generated(params(), 7, 8)
    assert ids == [2, 2, 2, 3, 3, 2, 0, 2]
    by_id = {2: -1.1832179180278493, 3: -1.1832179180278493, 0: -2.6832179180278493}
    assert logprobs == pytest.approx([by_id[i] for i in ids], rel=1e-15)


def test_eight_tokens_with_everything_on() -> None:
    p = params(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.05,
        repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.2,
    )  # fmt: skip
    ids, logprobs = generated(p, 7, 8)
    assert ids == [2, 3, 3, 6, 2, 2, 0, 2]
    assert logprobs == pytest.approx(FILTERED, rel=1e-15)


# -- the worked example of the page -------------------------------------------------------------------------

EXAMPLE, P_EXAMPLE = f64(1, 3, 2, 3, -1), {"top_k": 3, "top_p": 0.8}


def test_example_steps() -> None:
    p = params(**P_EXAMPLE)
    assert unit.apply_penalties(EXAMPLE, p).tolist() == [1, 3, 2, 3, -1]
    tied = -0.9248660042217248
    logprobs = [-2.924866004221725, tied, -1.924866004221725, tied, -4.924866004221725]
    assert unit.token_logprobs(EXAMPLE, p).tolist() == pytest.approx(logprobs, rel=1e-15)
    exponentials = [0.1353352832366127, 1.0, 0.36787944117144233, 1.0, 0.01831563888873418]
    assert [math.exp(x - 3) for x in EXAMPLE] == pytest.approx(exponentials, rel=1e-15)
    assert oracle.ascending_sum(exponentials) == 2.5215303632967894
    assert unit.process_logits(EXAMPLE, params(top_k=3)).tolist() == [-np.inf, 3, 2, 3, -np.inf]
    q = [0.0, 0.4223187982515182, 0.15536240349696362, 0.4223187982515182, 0.0]
    assert unit.sampling_distribution(EXAMPLE, params(top_k=3)).tolist() == pytest.approx(q, rel=1e-15)
    assert unit.process_logits(EXAMPLE, p).tolist() == [-np.inf, 3, -np.inf, 3, -np.inf]
    assert unit.sampling_distribution(EXAMPLE, p).tolist() == [0, 0.5, 0, 0.5, 0]


def test_example_draw() -> None:
    rng = oracle.request_rng(0)
    chosen, logprob = unit.sample(EXAMPLE, params(**P_EXAMPLE, seed=0), [], rng)
    assert (chosen, type(chosen), type(logprob)) == (3, int, float)
    assert logprob == pytest.approx(-0.9248660042217248, rel=1e-15)
    assert rng.uniform() == 0.5753080192559342
    assert unit.sampled_entropy(EXAMPLE, params(**P_EXAMPLE)) == pytest.approx(math.log(2), rel=1e-15)


def test_small_penalties() -> None:
    repeated = unit.apply_penalties(f64(2, -2, 1, 0, 4), params(repetition_penalty=2.0), [0, 0, 0], [1, 3])
    assert repeated.tolist() == [1, -4, 1, 0, 4]
    both = params(repetition_penalty=2.0, presence_penalty=1.0)
    assert unit.apply_penalties(f64(3, 0), both, [0]).tolist() == [0.5, 0]
    additive = params(frequency_penalty=0.5, presence_penalty=0.25)
    zeros = unit.apply_penalties(np.zeros(8), additive, [3], [7, 7, 3])
    assert zeros.tolist() == [0, 0, 0, -0.75, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("logits", "fields", "want"),
    [
        (f64(5, 3, 3, 3, 1), {"top_k": 2}, [0, 1]),
        (np.zeros(4), {"top_p": 0.25}, [0]),
        (np.zeros(4), {"top_p": 0.5}, [0, 1]),
        (np.zeros(4), {"top_p": 0.6}, [0, 1, 2]),
        (np.zeros(4), {"top_p": 0.75}, [0, 1, 2]),
        (np.zeros(4), {"top_p": 0.76}, [0, 1, 2, 3]),
        (LOG_4321, {"top_k": 2, "top_p": 0.55}, [0]),
        (LOG_4321, {"top_k": 3, "top_p": 0.5, "min_p": 0.6}, [0, 1]),
        (np.log([0.6, 0.3, 0.07, 0.03]), {"min_p": 0.1}, [0, 1, 2]),
        (np.log([0.5, 0.3, 0.2]), {"top_p": 0.79}, [0, 1]),
        (np.zeros(7), {"top_p": oracle.LAST}, list(range(7))),
    ],
)
def test_small_kept_sets(logits: Any, fields: dict[str, Any], want: list[int]) -> None:
    assert kept(unit.process_logits(logits, params(**fields))) == want


def test_small_distributions_and_draws() -> None:
    assert unit.sampling_distribution(f64(2, 2, 1), params(min_p=1.0)).tolist() == [0.5, 0.5, 0]
    masked = unit.sampling_distribution(f64(-np.inf, -np.inf, 2, 1), params(top_k=2))
    assert masked.tolist() == pytest.approx([0, 0, 0.7310585786300049, 0.2689414213699951], rel=1e-15)
    assert oracle.ascending_sum([1 / 6] * 6) == oracle.LAST
    assert unit.sample(np.zeros(6), params(), [], scripted(oracle.LAST))[0] == 5
    assert unit.sample(f64(0, 0, -900), params(), [], scripted(oracle.LAST))[0] == 1
    assert unit.sample(np.zeros(4), params(), [], scripted(0.25))[0] == 1
    assert unit.sample(np.zeros(4), params(), [], scripted(math.nextafter(0.25, 0)))[0] == 0


def test_draws_are_counted() -> None:
    rng = scripted(0.5, 0.5)
    unit.sample(np.zeros(3), params(temperature=0), [], rng)
    assert rng.used == 0
    unit.sample(np.zeros(3), params(top_k=1), [], rng)
    assert rng.used == 1


# -- refusals -----------------------------------------------------------------------------------------------

BAD_FIELDS: list[tuple[str, Any]] = [
    ("temperature", -0.5), ("temperature", math.nan), ("temperature", math.inf), ("temperature", True),
    ("top_p", 0.0), ("top_p", 1 + 2**-52), ("top_p", math.nan), ("top_p", "1"),
    ("min_p", -0.1), ("min_p", 1 + 2**-52), ("min_p", math.nan), ("min_p", False),
    ("repetition_penalty", 0.0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
    ("presence_penalty", math.nan), ("frequency_penalty", -math.inf), ("frequency_penalty", None),
    ("top_k", -1), ("top_k", 1.0), ("top_k", True), ("max_tokens", 0), ("max_tokens", 1.5),
    ("logprobs", -1), ("logprobs", False), ("seed", -1), ("seed", 0.5), ("seed", True),
]  # fmt: skip
PURE = ("apply_penalties", "token_logprobs", "process_logits", "sampling_distribution", "sampled_entropy")


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
def test_bad_fields_are_refused_everywhere(name: str, value: Any) -> None:
    p = params(**{name: value})
    with pytest.raises(oracle.Refused):
        p.validate()
    for function in PURE:
        with pytest.raises(oracle.Refused):
            getattr(unit, function)(np.zeros(2), p)
    rng = scripted(0.5)
    with pytest.raises(oracle.Refused):
        unit.sample(np.zeros(2), p, [], rng)
    assert rng.used == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"top_p": 1}, {"min_p": 1}, {"min_p": 0.0}, {"top_k": 10**30}, {"seed": 2**70},
        {"presence_penalty": -3, "frequency_penalty": -1.5}, {"repetition_penalty": 5e-324},
    ],
)  # fmt: skip
def test_edges_that_are_allowed(fields: dict[str, Any]) -> None:
    params(**fields).validate()


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros((1, 3)), np.zeros(()), np.zeros(0), np.zeros(3, np.int64), np.zeros(3, bool), [0.0, 0.0],
        f64(0, np.nan), f64(np.inf, 0), f64(-np.inf, -np.inf),
    ],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_are_refused(logits: Any, temperature: float) -> None:
    for function in PURE:
        with pytest.raises(oracle.Refused):
            getattr(unit, function)(logits, params(temperature=temperature))


@pytest.mark.parametrize(
    "ids",
    [[3], [-1], [True], [1.0], ["0"], np.array([0.0]), np.array([[0]]), np.array([True]), np.array([3])],
)
@pytest.mark.parametrize("where", ["history", "prompt"])
def test_bad_ids_are_refused(ids: Any, where: str) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(oracle.Refused):
            unit.apply_penalties(np.zeros(3), params(temperature=temperature), **{where: ids})


def test_good_ids_in_every_form() -> None:
    p = params(frequency_penalty=1.0)
    for ids in ([2, 0, 2], (2, 0, 2), np.array([2, 0, 2], np.uint8), np.array([2, 0, 2], np.int64)):
        assert unit.apply_penalties(np.zeros(3), p, ids).tolist() == [-1, 0, -2]


# -- peers --------------------------------------------------------------------------------------------------


def requests(n: int) -> list[dict[str, Any]]:
    """Generic requests without ties, with one or more filters on."""
    chooser, made = Chooser(20261129, 0), []
    for _ in range(n):
        given = oracle.generic_request(chooser, 8, 60)
        given["p"] = {
            "temperature": [1.0, 0.7, 1.6][chooser.below(3)],
            "top_k": [0, 3, 7, 100][chooser.below(4)],
            "top_p": [1.0, 0.9, 0.55][chooser.below(3)],
            "min_p": [0.0, 0.05, 0.3][chooser.below(3)],
            "repetition_penalty": [1.0, 1.3, 0.8][chooser.below(3)],
        }
        size = len(given["logits"])
        given["history"] = [chooser.below(size) for _ in range(chooser.below(8))]
        given["prompt"] = [chooser.below(size) for _ in range(chooser.below(8))]
        made.append(given)
    return made


def transformed(logits: Any, p: Any, ids: list[int]) -> Any:
    """The scores that transformers' processors make of float64 logits, in the order of the page."""
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    scores, seen = torch.tensor(logits.astype(np.float64))[None], torch.tensor([ids], dtype=torch.long)
    if ids:
        scores = process.RepetitionPenaltyLogitsProcessor(float(p.repetition_penalty))(seen, scores)
    steps: list[Any] = [process.TemperatureLogitsWarper(float(p.temperature))]
    if p.top_k:
        steps.append(process.TopKLogitsWarper(p.top_k))
    if p.top_p < 1:
        steps.append(process.TopPLogitsWarper(p.top_p))
    if p.min_p:
        steps.append(process.MinPLogitsWarper(p.min_p))
    for step in steps:
        scores = step(seen, scores)
    return scores[0]


@pytest.mark.slow
def test_transformers_keeps_the_same_ids() -> None:
    """Its rules differ at ties and exact hits, which do not occur here.

    TopK keeps every logit equal to the k-th, TopP cuts by the tail mass, in the order of its sort.
    """
    for given in requests(200):
        p = params(**given["p"])
        scores = transformed(given["logits"], p, [*given["prompt"], *given["history"]])
        arguments = (given["logits"], p, given["history"], given["prompt"])
        # The proof refuses a near tie, where the peer could differ.
        ours = oracle.Oracle(oracle.Prover("a request of the test")).process_logits(*arguments)
        assert ours.tolist() == scores.tolist()
        q = unit.sampling_distribution(*arguments)
        assert q.tolist() == pytest.approx(scores.softmax(-1).tolist(), rel=1e-13)


@pytest.mark.slow
def test_cases_that_name_transformers_agree_with_it() -> None:
    named = [case for _, case in cases() if "hf" in case["oracle"]]
    assert len(named) >= 10
    for case in named:
        args, want = build.plain_case(case, FOLDER)["args"], values.decode(case["expect"]["return"])
        scores = transformed(args["logits"], params(**args["p"]["args"]), [])
        assert scores.tolist() == want.tolist(), case["id"]


def test_cases_that_name_scipy_agree_with_it() -> None:
    special, stats = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")
    named = [case for _, case in cases() if "scipy" in case["oracle"]]
    assert len(named) >= 7
    for case in named:
        args, want = build.plain_case(case, FOLDER)["args"], values.decode(case["expect"]["return"])
        p = params(**args["p"]["args"])
        assert p == params(temperature=p.temperature, top_k=p.top_k)  # nothing that scipy has no word for
        scores = args["logits"].astype(np.float64) / p.temperature
        if p.top_k:
            scores[np.argsort(-scores)[p.top_k :]] = -np.inf
        q = special.softmax(scores)
        got = float(stats.entropy(q)) if case["call"] == "sampled_entropy" else q
        assert np.asarray(got).tolist() == pytest.approx(np.asarray(want).tolist(), rel=1e-14), case["id"]


@pytest.mark.slow
def test_transformers_keeps_ties_where_we_do_not() -> None:
    """Why top-k is only compared without ties: k = 2 keeps four ids there."""
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    scores = process.TopKLogitsWarper(2)(None, torch.tensor([[5.0, 3.0, 3.0, 3.0, 1.0]]))
    assert int((scores > -math.inf).sum()) == 4
    assert kept(unit.process_logits(f64(5, 3, 3, 3, 1), params(top_k=2))) == [0, 1]


def test_scipy_gives_the_same_softmax_and_entropy() -> None:
    special, stats = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")
    for given in requests(100):
        logits, p = given["logits"], params(temperature=given["p"]["temperature"])
        wide = logits.astype(np.float64)
        q = special.softmax(wide / p.temperature)
        assert unit.sampling_distribution(logits, p).tolist() == pytest.approx(q.tolist(), rel=1e-13)
        logprobs = special.log_softmax(wide)
        assert unit.token_logprobs(logits, p).tolist() == pytest.approx(logprobs.tolist(), rel=1e-13)
        assert unit.sampled_entropy(logits, p) == pytest.approx(float(stats.entropy(q)), rel=1e-12)


# -- proofs -------------------------------------------------------------------------------------------------


def proved(logits: Any, fields: dict[str, Any], u: float | None = None, flags: Any = ()) -> list[str]:
    """The exact ties that decided a request; raises where a near tie does."""
    prover = oracle.Prover("sampling/a-case", flags)
    rng = None if u is None else scripted(u)
    if rng is None:
        oracle.Oracle(prover).process_logits(logits, params(**fields))
    else:
        oracle.Oracle(prover).sample(logits, params(**fields), [], rng)
    return list(prover.ties)


def near(probabilities: list[float]) -> Any:
    return np.log(probabilities)


@pytest.mark.parametrize(
    ("logits", "fields", "u"),
    [
        (near([0.5, 0.3, 0.2]), {"top_p": 0.8}, None),  # .5 + .3 is .8 up to rounding
        (near([0.5, 0.25, 0.25]), {"min_p": 0.5}, None),
        (near([0.5, 0.3, 0.2]), {}, 0.5),
        (near([0.2, 0.3, 0.5]), {}, 1 - 2**-53),  # the last sum against u
        (f64(-745.2, 0.0), {"min_p": 0.5}, None),  # a subnormal exponential
    ],
)
def test_near_ties_are_refused_with_any_flags(logits: Any, fields: dict[str, Any], u: float | None) -> None:
    for flags in ((), ("ExactMass", "ExactUniform", "EqualLogits")):
        with pytest.raises(ValueError, match=r"sampling/a-case: .*(near tie|subnormal)"):
            proved(logits, fields, u, flags)


@pytest.mark.parametrize("logit", [-0.1 * 3, -0.3])
def test_an_order_that_rounding_decides_is_refused(logit: float) -> None:
    """0 - 0.1 * 3 meets its own rounded value, and -0.3 one ulp beside it; on paper neither is equal."""
    request = oracle.Request([0.0, logit], params(top_k=1, frequency_penalty=0.1), [0, 0, 0], [])
    assert abs(oracle.penalised(request)[0] - logit) < 1e-16
    with pytest.raises(ValueError, match=r"the order of ids \d and \d is a near tie"):
        oracle.Prover("sampling/a-case")(oracle.run(request), None)


@pytest.mark.parametrize(
    ("logits", "fields", "u"),
    [
        (np.zeros(4), {"top_p": 0.5}, None),
        (np.zeros(7), {"top_p": oracle.LAST}, None),
        (f64(2, 2, 1), {"min_p": 1.0}, None),
        (f64(5, 3, 3, 1), {"top_k": 2}, None),
        (f64(1, 1, 0), {"temperature": 0.0}, None),
        (np.zeros(4), {}, 0.25),
        (f64(0, -800, 0), {}, 0.5),
        (np.zeros(6), {}, oracle.LAST),
        (f64(1.9, math.nextafter(1.9, 2)), {"temperature": 0.9, "top_k": 1}, None),
    ],
)
def test_exact_ties_need_a_flag(logits: Any, fields: dict[str, Any], u: float | None) -> None:
    with pytest.raises(ValueError, match=r"sampling/a-case: .* tie"):
        proved(logits, fields, u)
    assert proved(logits, fields, u, ("ExactMass",))


@pytest.mark.parametrize(
    ("logits", "fields", "u"),
    [
        (near([0.5, 0.3, 0.2]), {"top_p": 0.79}, 0.3),
        (f64(3, 3, 1), {"top_k": 2}, 0.25),  # the tie is on one side of the cut
        (f64(2, 1, 0), {"min_p": 1.0}, 0.5),  # the largest q only meets itself
        (f64(-np.inf, 1, 0), {"temperature": 0.0}, None),
        (f64(-np.inf, 0, 0), {}, 0.0),
        (f64(1, 3, 2, 3, -1), {"top_k": 3, "top_p": 0.8}, 0.8020949661137535),
    ],
)
def test_clear_decisions_need_none(logits: Any, fields: dict[str, Any], u: float | None) -> None:
    assert proved(logits, fields, u) == []


def test_high_precision_agrees_with_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    given = requests(1)[0]
    tempered = [x / 0.7 for x in given["logits"].astype(float).tolist()]
    import decimal

    with decimal.localcontext(prec=oracle.DIGITS), mpmath.workdps(oracle.DIGITS):
        exponentials, exact = oracle.Prover("a").exponentials(tempered, range(len(tempered)))
        assert not exact
        for i, x in exponentials.items():
            other = mpmath.exp(mpmath.mpf(tempered[i] - max(tempered)))
            assert abs(mpmath.mpf(str(x)) / other - 1) < mpmath.mpf(10) ** (3 - oracle.DIGITS)


def test_rational_logits_round_to_the_float_ones() -> None:
    p = params(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.1, frequency_penalty=0.3)
    request = oracle.Request([0.7, -1.1, 2.3, 0.4], p, [0, 2, 2], [1])
    prover = oracle.Prover("a")
    for i, x in enumerate(oracle.run(request).tempered):
        assert 0 < abs(prover.rational(request, i) / Fraction(x) - 1) < Fraction(1, 2**49)


# -- the files ----------------------------------------------------------------------------------------------


def cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name in ("mutants.yaml", "errors.yaml"):
            continue
        document = strict_yaml.load(path.read_bytes(), path.name)
        found += [(document, case) for case in document["cases"] if "property" not in case]
    return found


def test_every_decision_of_every_case_is_proved() -> None:
    """What `author build` asks is proved; a flag that promises a tie has one, and is of kind tie."""
    for document, case in cases():
        asked = build.plain_case(case, FOLDER)
        prover = oracle.prover_of(asked)
        assert prover is not None, case["id"]
        oracle.expect(asked, prover)
        promised = oracle.TIE_FLAGS & set(case.get("flags", []))
        assert bool(prover.ties) == bool(promised), (case["id"], prover.ties, promised)
        assert all(document["flags"][name]["kind"] == "tie" for name in promised), case["id"]


def test_expect_refuses_a_case_that_a_near_tie_decides() -> None:
    args = {"logits": near([0.5, 0.3, 0.2]), "p": {"new": "SamplingParams", "args": {"top_p": 0.8}}}
    case = {"id": "sampling/close", "call": "process_logits", "args": args, "after": {}}
    with pytest.raises(ValueError, match=r"sampling/close: the mass .* near tie"):
        oracle.expect(case)
    assert "return" in oracle.expect({**case, "needs": ["libm"]})
    assert "return" in oracle.expect({key: case[key] for key in ("id", "call", "args")})


def test_expect_answers_raises_after_and_steps() -> None:
    rng = {"id": "rng", "new": "testkit.ScriptedUniforms", "args": {"values": [0.9]}}
    defaults = {"new": "SamplingParams", "args": {}}
    args = {"logits": np.zeros(2), "p": defaults, "history": [], "rng": {"ref": "rng"}}
    case = {"id": "sampling/a", "call": "sample", "args": args, "objects": [rng], "after": {}}
    told = oracle.expect(case)
    assert told["return"] == [1, pytest.approx(-math.log(2))] and told["after"] == {"rng": 1}
    bad = oracle.expect({**case, "args": {**args, "history": [2]}})
    assert bad == {"raises": "ValueError", "after": {"rng": 0}}
    steps = [
        {"new": "SamplingParams", "args": {"top_k": -1}, "save": "p"},
        {"get": "top_k", "on": "p"},
        {"do": "validate", "on": "p", "args": {}},
        {"call": "request_rng", "args": {"seed": 0}, "save": "r"},
        {"do": "uniform", "on": "r", "args": {}},
    ]
    told = oracle.expect({"id": "sampling/b", "steps": steps})
    refused, drawn = {"raises": "ValueError"}, {"return": 0.8020949661137535}
    assert told == {"steps": [{}, {"return": -1}, refused, {}, drawn]}


def test_generate_is_repeatable_and_whole() -> None:
    document = oracle.generate()["golden.gen.yaml"]
    assert document == oracle.generate()["golden.gen.yaml"]
    small = [case for case in document["cases"] if "cost" not in case]
    assert len(small) == 12 and all(len(case["steps"]) == oracle.GOLDEN_STEPS + 1 for case in small)
    wide = next(case for case in document["cases"] if "cost" in case)
    assert [step["args"]["p"]["args"]["temperature"]["f64"] for step in wide["steps"][:2]] == [0.8, 0.0]
    logits = small[-1]["steps"][0]["args"]["logits"]["f32"]
    assert [i for i, x in enumerate(logits) if x == "-inf"] == list(range(0, 48, 3))


# -- draws and laws -----------------------------------------------------------------------------------------


def test_draws_plant_what_they_promise() -> None:
    drawn = [oracle.planted_draw(Chooser(5, i)) for i in range(300)]
    tied = boundary = masked = 0
    for given in drawn:
        request = oracle.request_of(given)
        done, uniforms = oracle.run(request), given["rng"]["args"]["values"]
        assert len(uniforms) == (request.p.temperature > 0)
        assert all(0 <= u < 1 for u in uniforms)
        live = [x for x in done.tempered if x > -np.inf]
        tied += len(set(live)) < len(live)
        masked += len(live) < len(done.tempered)
        boundary += bool(uniforms) and uniforms[0] in np.cumsum(done.q).tolist()
    assert tied > 150 and masked > 50 and boundary > 40
    assert any(oracle.request_of(given).p.temperature == 0 for given in drawn)
    with_greedy_off = [oracle.planted_draw(Chooser(5, i), greedy=False) for i in range(100)]
    assert all(oracle.request_of(given).p.temperature > 0 for given in with_greedy_off)


def test_simplest_draws_are_simple() -> None:
    class Zero:
        def below(self, n: int) -> int:
            assert n >= 1
            return 0

    given = oracle.planted_draw(Zero())
    assert given["logits"].tolist() == [0, 0, 0, 0] and given["p"]["args"] == {} and given["history"] == []
    assert given["rng"]["args"]["values"] == [0.0]
    generic = oracle.generic_request(Zero())  # its digits come from one seed: only fewer logits are simpler
    assert generic["logits"].shape == (48,) and generic["p"]["args"] == {}


def test_generic_draws_show_another_order_of_sums() -> None:
    seen = 0
    for i in range(100):
        request = oracle.request_of(oracle.generic_request(Chooser(6, i)))
        assert 48 <= len(request.values) <= 500
        tempered = oracle.run(request).tempered
        e = [math.exp(x - max(tempered)) for x in tempered]
        seen += math.fsum(e) != oracle.ascending_sum(e)
    assert seen > 60


GONE = -math.inf
LAWS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ("is_distribution", {"logits": f64(0, GONE)}, f64(1, 0), f64(0.5, 0.5)),
    ("is_distribution", {"logits": f64(0, 0)}, f64(0.5, 0.5), f64(0.5, 0.5 + 2**-50)),
    ("is_distribution", {"logits": f64(0, 0)}, f64(1, 0), f64(np.nan, 1)),
    ("is_distribution", {"logits": f64(0, 0)}, f64(1, 0), f64(1.5, -0.5)),
    ("never_masked", {"logits": f64(0, GONE)}, [0, 0.0], [1, GONE]),
    ("never_masked", {"logits": f64(0, 0)}, [1, -0.5], [1, 0.5]),
    ("never_masked", {"logits": f64(0, 0)}, [1, -0.5], [2, -0.5]),
    ("never_masked", {"logits": f64(0, 0)}, [1, -0.5], [1, math.nan]),
    ("kept_in_order", {"logits": f64(1, 3, 3), "top_k": 1}, f64(GONE, 3, GONE), f64(GONE, GONE, 3)),
    ("kept_in_order", {"logits": f64(1, 3, 3), "top_k": 1}, f64(GONE, 3, GONE), f64(GONE, 3, 3)),
    ("kept_in_order", {"logits": f64(1, 3, 3)}, f64(1, 3, 3), f64(GONE, GONE, GONE)),
    ("tighter_keeps_less", {"logits": f64(0, 1, 2), "top_p": 0.5}, f64(GONE, GONE, 2), f64(0, 1, 2)),
    ("tighter_keeps_less", {"logits": f64(0, 1, 2), "min_p": 0.9}, f64(GONE, GONE, 2), f64(GONE, 1, 2)),
    ("entropy_in_range", {"logits": f64(0, 0, GONE)}, math.log(2), math.log(3)),
    ("entropy_in_range", {"logits": f64(0, 0)}, 0.0, -1e-9),
    ("entropy_in_range", {"logits": f64(0, 0)}, 0.5, math.nan),
]


@pytest.mark.parametrize(("law", "given", "right", "wrong"), LAWS)
def test_laws_hold_and_can_be_broken(law: str, given: dict[str, Any], right: Any, wrong: Any) -> None:
    fields = {name: value for name, value in given.items() if name != "logits"}
    # "any one filter off" needs a second filter: with one alone, switching it off keeps everything
    if law == "tighter_keeps_less":
        fields["top_k"] = 2 if "top_p" in fields else 1
    arguments = {"logits": given["logits"], "p": {"new": "SamplingParams", "args": fields}}
    assert getattr(oracle, law)(arguments, right) is None
    assert isinstance(getattr(oracle, law)(arguments, wrong), str)


def test_the_oracle_keeps_its_own_laws() -> None:
    for i in range(100):
        given = oracle.planted_draw(Chooser(7, i))
        case = {"id": "a", "args": {key: given[key] for key in ("logits", "p", "history", "prompt")}}
        for call, laws in (
            ("sampling_distribution", ["is_distribution"]),
            ("process_logits", ["kept_in_order", "tighter_keeps_less"]),
            ("sampled_entropy", ["entropy_in_range"]),
        ):
            answer = oracle.expect({**case, "call": call})["return"]
            assert [getattr(oracle, law)(given, answer) for law in laws] == [None] * len(laws)
        answer = oracle.expect({"id": "a", "call": "sample", "args": given})["return"]
        assert oracle.never_masked(given, answer) is None


# -- what the oracle may import -----------------------------------------------------------------------------


def test_the_oracle_imports_only_numpy_and_the_standard_library() -> None:
    tree = ast.parse((FOLDER / "oracle.py").read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names <= {*sys.stdlib_module_names, "numpy"}
