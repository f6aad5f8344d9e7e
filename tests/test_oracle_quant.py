"""The quant oracle against the page's numbers, NumPy's own rounding, and other people's formats."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader import build, strict_yaml
from grader.draw import Chooser
from grader.fixtures import import_file
from impl import llama

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
oracle = import_file(ROOT / "quant" / "oracle.py", "quant_oracle_under_test")
unit = oracle.Oracle()
F32 = np.float32


def f32(*rows: Any) -> Any:
    return np.array(rows, F32)


def cubes(seed: int, shape: tuple[int, int], scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).uniform(-1, 1, shape) ** 3 * scale).astype(F32)


# -- the worked examples of the page ----------------------------------------------------------------------


def test_int4_example() -> None:
    form = unit.quantize_int4_group(f32([1.75, -0.6, 0.1, 0.3], [0.375, -0.125, 0.625, 1.75]), 4)
    assert form["packed"].tobytes().hex() == "e7100272"
    assert form["scales"].tolist() == [[0.25], [0.25]] and form["scales"].dtype == np.float16
    assert unit.dequantize(form).tolist() == [[1.75, -0.5, 0, 0.25], [0.5, 0, 0.5, 1.75]]
    assert unit.nbytes(form) == 8


def test_stored_scale_example() -> None:
    w = f32([1, 0.4998779296875, 0, 0, 0, 0, 0, 0])
    form = unit.quantize_int4_group(w, 8)
    assert float(form["scales"][0, 0]) == 0.142822265625
    assert w[0, 1] == 3.5 * 0.142822265625 and float(w[0, 1]) / 0.1428571492433548 < 3.49915
    assert oracle.nibbles(form["packed"]).tolist() == [[7, 4, 0, 0, 0, 0, 0, 0]]


def test_int8_and_linear_example() -> None:
    q, scales = unit.quantize_int8_per_channel(f32([127, -3.5, 2.5, 0.4], [-254, 127, 63, 0]))
    assert q.tolist() == [[127, -4, 2, 0], [-127, 64, 32, 0]] and scales.tolist() == [1, 2]
    layer = oracle.quant_linear((q, scales), f32(0.5, -1))
    assert oracle.applied(layer, f32([1, 2, 0, 1])).tolist() == [[119.5, 1]]


def test_windows_example() -> None:
    assert list(oracle.windows(6, 3, 2)) == [(0, 3, 1), (2, 3, 4)]


def test_small_examples() -> None:
    assert unit.quantize_int8_per_channel(f32([127, -1.5, -0.5, 0.5, 1.5]))[0].tolist() == [
        [127, -2, 0, 0, 2]
    ]
    tiny = 2.0**-149
    q, scales = unit.quantize_int8_per_channel(f32([190 * tiny, -190 * tiny, tiny]))
    assert q.tolist() == [[127, -127, 1]] and scales[0] == tiny
    for row in ([0, 0, 0, 0], [tiny, -tiny]):
        q, scales = unit.quantize_int8_per_channel(f32(row))
        assert not q.any() and scales.tolist() == [0]
    assert unit.quantize_int4_group(f32([1e-3, 0]), 2)["scales"].view(np.uint16)[0, 0] == 0x08AE
    assert unit.quantize_int4_group(f32([458639, 0]), 2)["scales"][0, 0] == 65504
    with pytest.raises(oracle.Refused):
        unit.quantize_int4_group(f32([458640, 0]), 2)
    form = unit.quantize_int4_group(f32([-10 * 2.0**-24, 10 * 2.0**-24]), 2)
    assert oracle.nibbles(form["packed"]).tolist() == [[-8, 7]] and form["scales"][0, 0] == 2.0**-24
    assert oracle.packed(np.array([[-8, -8], [-8, -7], [-1, -7]])).tolist() == [[0x88], [0x98], [0x9F]]
    kv = unit.quantize_kv_fp8(f32([[2, -1]], [[0, 0]]))
    assert kv["codes"].tobytes().hex() == "7ef60000" and kv["scales"].tolist() == [
        float(F32(2) / F32(448)),
        1,
    ]
    w = cubes(1, (4, 64))
    assert [unit.nbytes(oracle.Quantizer().of_scheme(w, s)) for s in oracle.SCHEMES] == [272, 144, 272, 136]


def test_recorded_pair() -> None:
    form = unit.quantize_int4_group(f32([-0.06970667093992233, 0.01674547977745533]), 2)
    assert form["packed"].tolist() == [[0x29]] and form["scales"].view(np.uint16).tolist() == [[8473]]


# -- rounding: NumPy's casts and divisions are another implementation ---------------------------------------


def test_rounded_is_a_cast() -> None:
    source = np.random.default_rng(2)
    values = source.integers(1, 1 << 53, 3000) * 2.0 ** source.integers(-210, 90, 3000)
    with np.errstate(over="ignore", under="ignore"):
        for form, dtype in ((oracle.SINGLE, F32), (oracle.HALF, np.float16)):
            for x in [*values, 65519.99, 65520.0, 2.0**-25, 2.0**-24 * 1.5, 2.0**-150, 3.4028235677973366e38]:
                assert float(oracle.rounded(Fraction(float(x)), form)) == float(dtype(x))


def naive_int8(w: Any) -> tuple[Any, Any]:
    s = np.abs(w).max(1) / F32(127)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        q = np.where(s[:, None] > 0, np.clip(np.rint(w / s[:, None]), -127, 127), 0)
    return q.astype(np.int8), s


def test_int8_is_float32_arithmetic() -> None:
    ties = 0
    for i in range(200):
        w = oracle.rows(Chooser(11, i), 127)["w"].astype(F32)
        q, s = unit.quantize_int8_per_channel(w)
        want_q, want_s = naive_int8(w)
        assert np.array_equal(q, want_q) and s.tobytes() == want_s.tobytes()
        with np.errstate(invalid="ignore", divide="ignore"):
            ties += bool((np.abs(w / s[:, None]) % 1 == 0.5).any())
    assert ties > 60


def test_int4_is_float32_arithmetic() -> None:
    low = zero = 0
    for i in range(200):
        given = oracle.grouped(Chooser(12, i))
        w, group = given["w"].astype(F32), given["group"]
        g = w.reshape(len(w), -1, group)
        s = (np.abs(g).max(2) / F32(7)).astype(np.float16)
        with np.errstate(invalid="ignore", divide="ignore"):
            q = np.clip(np.rint(g / s.astype(F32)[..., None]), -8, 7)
        q = np.where(s[..., None] > 0, q, 0).reshape(w.shape)
        form = unit.quantize_int4_group(**given)
        assert np.array_equal(oracle.nibbles(form["packed"]), q) and form["scales"].tobytes() == s.tobytes()
        assert np.array_equal(unit.dequantize(form), q * s.astype(F32).repeat(group, 1))
        low, zero = low + bool((q == -8).any()), zero + bool((s == 0).any())
    assert low > 3 and zero > 20


@pytest.mark.parametrize("scheme", oracle.SCHEMES)
def test_the_fast_form_is_the_slow_one(scheme: str) -> None:
    w = np.concatenate([cubes(3, (6, 64)), np.zeros((1, 64), F32), cubes(4, (2, 64), 1e-6)])
    slow = unit.dequantize(oracle.Quantizer().of_scheme(w, scheme))
    assert np.array_equal(slow, oracle.fast(w, scheme))


def test_near_ties_are_refused() -> None:
    strict = oracle.Oracle(ties=False)
    for w in (f32([127, 2.5]), f32([127, 2.5000005])):
        with pytest.raises(oracle.NearTie):
            strict.quantize_int8_per_channel(w)
    assert strict.quantize_int8_per_channel(f32([127, 2.5001]))[0].tolist() == [[127, 3]]
    with pytest.raises(oracle.NearTie):
        strict.quantize_fp8_per_channel(f32([448, 1.0625]))
    with pytest.raises(oracle.NearTie):
        strict.quantize_int4_group(f32([7, 2.5]), 2)


# -- what quantization costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0, 100.0])
def test_errors_are_within_their_steps(scale: float) -> None:
    w = cubes(5, (3, 64), scale)
    wide = w.astype(np.float64)
    for group in (16, 32, 64):
        form = unit.quantize_int4_group(w, group)
        half = form["scales"].astype(np.float64).repeat(group, 1) / 2
        assert (np.abs(wide - unit.dequantize(form)) <= half * (1 + 1e-6) + 1e-30).all()
    q, s = unit.quantize_int8_per_channel(w)
    assert (np.abs(q).max(1) == 127).all()
    assert (np.abs(wide - unit.dequantize((q, s))) <= s[:, None] / 2 * (1 + 1e-6)).all()
    form = unit.quantize_fp8_per_channel(w)
    large = np.abs(w) >= form["scales"][:, None] * 2.0**-6
    assert (np.abs(unit.dequantize(form) - wide)[large] <= np.abs(wide)[large] * 2.0**-4 * (1 + 1e-6)).all()
    form = unit.quantize_mx(w)
    unit_of = 2.0 ** (form["scales"].astype(np.float64) - 127).repeat(32, 1)
    assert (np.abs(unit.dequantize(form) - wide) <= 2 * unit_of).all()


def test_schemes_lose_little_and_in_order() -> None:
    w = cubes(6, (16, 64)).astype(np.float64)
    lost = {
        s: float(np.linalg.norm(oracle.fast(w.astype(F32), s) - w) / np.linalg.norm(w))
        for s in oracle.SCHEMES
    }
    limits = {"int8": 0.02, "q4_g32": 0.2, "fp8_e4m3": 0.08, "mxfp4": 0.35}
    assert all(0 < lost[s] < limits[s] for s in limits), lost


def test_the_bound_covers_the_product() -> None:
    w, x = cubes(7, (5, 64)), cubes(8, (3, 64))
    for scheme in oracle.SCHEMES:
        q = oracle.Quantizer().of_scheme(w, scheme)
        bound = unit.output_error_bound(w, q, x)
        got = x @ unit.dequantize(q).T
        ratio = np.abs(got - x.astype(np.float64) @ w.astype(np.float64).T) / bound
        assert bound.shape == (3, 5) and 0.01 < ratio.max() <= 1


# -- perplexity -------------------------------------------------------------------------------------------


def test_every_id_is_scored_once() -> None:
    for n in range(2, 14):
        for ctx_len in range(1, 15):
            for stride in range(1, ctx_len + 1):
                scored: Counter[int] = Counter()
                for b, T, first in oracle.windows(n, ctx_len, stride):
                    assert 1 <= T <= ctx_len and b % stride == 0 and first >= b + 1
                    scored.update(range(first, b + T + 1))
                assert scored == Counter(range(1, n))


def test_the_model_is_the_given_one() -> None:
    folder = ROOT / "models" / "tiny"
    ours, given = oracle.load(str(folder)), llama.load(folder)
    ids = [(37 * i + 5) % 1024 for i in range(40)]
    assert np.abs(ours.logits(ids, ours.dense()) - given.forward([ids])[0]).max() < 1e-4
    assert list(ours.named_linears()) == list(given.named_linears())
    assert ours.tensors().keys() == given.tensors().keys()


def test_perplexity_is_that_of_the_logits() -> None:
    model = oracle.load(str(ROOT / "models" / "tiny"))
    ids = [5, 9, 300, 7]
    logits = model.logits(ids[:3], model.dense())
    p = [math.exp(logits[t, ids[t + 1]]) / math.fsum(np.exp(logits[t])) for t in range(3)]
    assert math.isclose(oracle.perplexity(model, ids, 3, 1), math.prod(p) ** (-1 / 3), rel_tol=1e-12)


# -- other people's formats -------------------------------------------------------------------------------


def test_fp8_and_fp4_codes_of_ml_dtypes() -> None:
    """Inside the range the codes are the same; ml_dtypes gives NaN above 464 where the page saturates."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = np.random.default_rng(9)
    for name, kind in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("e2m1", "float4_e2m1fn")):
        edges = oracle.EDGES[name]
        top = float(oracle.LARGEST[name])
        x = np.concatenate([edges, -edges, source.uniform(-top, top, 2000), source.normal(0, 0.01, 500)])
        x = x.astype(F32)
        want = x.astype(getattr(ml_dtypes, kind)).view(np.uint8)
        encoder = oracle.Encoder(ties=True)
        got = [encoder.small(name, float(v), math.copysign(1.0, v) < 0) for v in x]
        assert got == want.tolist()
        codes = np.arange(16 if name == "e2m1" else 256, dtype=np.uint8)
        values = [oracle.decoded(name, int(c)) for c in codes]
        assert np.array_equal(values, codes.view(getattr(ml_dtypes, kind)).astype(np.float64), equal_nan=True)


def test_gguf_q8_0() -> None:
    """Same scale amax / 127, but stored as float16, and the codes are made with 1 / scale in float32 and
    halves go away from zero: equal away from ties."""
    gguf = pytest.importorskip("gguf")
    w = cubes(10, (20, 32))
    raw = gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q8_0).reshape(20, 34)
    q, s = unit.quantize_int8_per_channel(w)
    assert raw[:, :2].copy().view(np.float16)[:, 0].tolist() == s.astype(np.float16).tolist()
    away = np.abs(np.abs(w / s[:, None]) % 1 - 0.5) > 1e-4
    assert away.mean() > 0.99 and np.array_equal(raw[:, 2:].view(np.int8)[away], q[away])


def test_gguf_q4_0_read_by_our_rule() -> None:
    """There the scale is the signed largest weight / -8, codes are offset by 8, and byte j of a block holds
    the columns j and j + 16. Re-packed, the same codes and scales give the same values."""
    gguf = pytest.importorskip("gguf")
    w = cubes(11, (6, 32))
    raw = gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_0).reshape(6, 18)
    scales, data = raw[:, :2].copy().view(np.float16), raw[:, 2:]
    codes = np.concatenate([data & 15, data >> 4], 1).astype(np.int8) - 8
    form = oracle.Record("Q4Tensor", packed=unit.pack_int4(codes), scales=scales, group=32, shape=w.shape)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0).reshape(w.shape)
    assert np.array_equal(unit.dequantize(form), want)


def test_onnxruntime_matmulnbits_layout() -> None:
    """MatMulNBits has the low nibble first and zero point 8: two's complement xor 0x88 is its code."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    w, x = cubes(12, (8, 64)), cubes(13, (3, 64))
    form = unit.quantize_int4_group(w, 32)
    blob = (form["packed"] ^ 0x88).reshape(8, 2, 16)
    scales = form["scales"].astype(F32).reshape(-1)
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=64, N=8, bits=4, block_size=32
    )
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info("x", kind, [3, 64])],
        [onnx.helper.make_tensor_value_info("y", kind, [3, 8])],
        [onnx.numpy_helper.from_array(blob, "b"), onnx.numpy_helper.from_array(scales, "s")],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    want = x.astype(np.float64) @ unit.dequantize(form).astype(np.float64).T
    assert np.abs(y - want).max() < 1e-5


# -- what a case must answer; draws and laws ----------------------------------------------------------------


def test_cases_are_answered_as_they_stand() -> None:
    """Raises are raised and returns returned, without the grader's build; no case stands on a tie unsaid."""
    answered = 0
    for path in sorted((ROOT / "quant").glob("*.yaml")):
        if path.name in ("mutants.yaml", "cost.yaml"):
            continue
        for case in strict_yaml.load_marked(path.read_bytes(), path.name).value["cases"]:
            if "call" in case and "expect" in case:
                told = oracle.expect(build.plain_case(case, path.parent))
                assert told.get("raises") == case["expect"].get("raises"), case["id"]
                answered += 1
    assert answered > 200


def test_draws_are_accepted_and_varied() -> None:
    kinds: Counter[str] = Counter()
    for i in range(120):
        for name, maker in (
            ("fp8_rows", "quantize_fp8_per_channel"), ("blocks", "quantize_mx"), ("slabs", "quantize_kv_fp8"),
            ("codes", "pack_int4"), ("bytes_of", "unpack_int4"),
        ):  # fmt: skip
            given = getattr(oracle, name)(Chooser(21, i))
            got = getattr(unit, maker)(**given)
            if name in ("fp8_rows", "blocks", "slabs"):
                assert oracle.is_the_form(given, got, maker=maker) is None
        made = oracle.forms(Chooser(22, i))["q"]
        kinds[made["new"]] += 1
        q = oracle.Record(made["new"], **made["args"])
        assert np.isfinite(unit.dequantize(q)).all() and unit.nbytes(q) > 0
        given = oracle.budgets(Chooser(23, i))
        given["q"] = oracle.Record(given["q"]["new"], **given["q"]["args"])
        assert (unit.output_error_bound(**given) >= 0).all()
    assert len(kinds) == 5 and min(kinds.values()) > 8


def test_laws_hold_and_can_be_broken() -> None:
    given = oracle.normal_rows(Chooser(24, 0), group=32)
    right = unit.quantize_int4_group(**given)
    law = oracle.within_half_a_step
    assert law(given, right) is None
    assert law(given, {**right, "scales": right["scales"] * np.float16(1.2)}) is not None
    assert "no code of scale" in law({**given, "w": given["w"] * 0}, {**right, "packed": right["packed"] * 0})
    plain = {"w": given["w"]}
    q, s = unit.quantize_int8_per_channel(**plain)
    assert law(plain, [q, s]) is None and law(plain, [np.trunc(given["w"] / s[:, None]), s]) is not None
    form = oracle.is_the_form
    assert form(given, right, maker="quantize_int4_group") is None
    for name, wrong in (
        ("packed", right["packed"] ^ 1),
        ("group", 16),
        ("shape", (64, 3)),
        ("scales", right["scales"].astype(F32)),
    ):
        assert name in form(given, {**right, name: wrong}, maker="quantize_int4_group")
