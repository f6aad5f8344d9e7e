"""The reference of `quant`: the spec's numbers, the bits of its equivalents, memory, every message."""

from __future__ import annotations

import inspect
import math
import tracemalloc
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import impl
from grader.fixtures import import_file
from impl import llama, lowp, quant, tolerance

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "quant" / "equivalents"
EQUIVALENTS = [import_file(path, f"quant_{path.stem}") for path in sorted(FOLDER.glob("*.py"))]
ALL = [quant, *EQUIVALENTS]
TINY = Path(impl.__path__[0]).parent / "fixtures" / "models" / "tiny"
ROWS = np.array([[1.75, -0.6, 0.1, 0.3], [0.375, -0.125, 0.625, 1.75]])
SHAPE = llama.Config(
    vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=12, rms_norm_eps=1e-5, rope_theta=10000.0,
    tie_word_embeddings=False,
)  # fmt: skip


def name(module: ModuleType) -> str:
    return module.__name__


@pytest.fixture(params=ALL, ids=name)
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def bits(value: Any) -> Any:
    """Type, shape and every bit of an answer; a zero has no sign, and all NaN are one."""
    if isinstance(value, tuple):
        return [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        plain = np.where(np.isnan(value), np.nan, value + 0) if value.dtype.kind == "f" else value
        return str(value.dtype), value.shape, plain.astype(value.dtype).tobytes()
    if hasattr(value, "scales"):
        fields = ("q", "packed", "codes", "scales", "group", "shape", "fmt", "block", "elem")
        return [(field, bits(getattr(value, field))) for field in fields if hasattr(value, field)]
    return type(value), value


def model_of(seed: int, config: llama.Config = SHAPE, bias: bool = True) -> llama.Llama:
    """A Llama of random weights, with a bias in two of its layers."""
    r = np.random.default_rng(seed)
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    tensors = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = (V, D)
    for n in range(config.num_hidden_layers):
        P = f"model.layers.{n}"
        attention = {"q_proj": (q, D), "k_proj": (kv, D), "v_proj": (kv, D), "o_proj": (D, q)}
        mlp = {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
        tensors |= {f"{P}.self_attn.{short}.weight": shape for short, shape in attention.items()}
        tensors |= {f"{P}.mlp.{short}.weight": shape for short, shape in mlp.items()}
        tensors |= {f"{P}.{short}_layernorm.weight": (D,) for short in ("input", "post_attention")}
    if bias:
        tensors |= {"model.layers.0.self_attn.q_proj.bias": (q,), "model.layers.1.mlp.up_proj.bias": (F,)}
    filled = {key: r.uniform(-0.5, 0.5, shape).astype(np.float32) for key, shape in tensors.items()}
    return llama.Llama(config, filled)


def planted(seed: int, rows: int = 6, columns: int = 64) -> Any:
    """Rows of every size, with zeros, ties of each scheme and scales that underflow or nearly overflow."""
    r = np.random.default_rng(seed)
    w = r.uniform(-1, 1, (rows, columns)) ** 3
    w[0] *= 10.0 ** r.integers(-6, 4)
    w[1, ::3] = 0.0
    w[2] = r.integers(-14, 15, columns) / 2 * 2.0 ** r.integers(-10, 10)
    w[2, ::16] = 7 * 2.0**-3
    w[3] = r.choice([0.0, 1e-9, -(2.0**-149), 10 * 2.0**-24, -1.49 * 7 * 2.0**-24], columns)
    w[4] *= 2.0 ** r.integers(-140, -120)
    w[5] = r.choice([127.0, -3.5, 2.5, 0.5, -126.5, 63.5], columns)
    return w.astype([np.float64, np.float32, np.float32][seed % 3])


# the spec's own numbers


def test_worked_example(module: Any) -> None:
    t = module.quantize_int4_group(ROWS, 4)
    assert t.packed.tobytes().hex() == "e7100272"
    assert (t.scales.dtype, t.scales.tolist(), t.group, t.shape) == (np.float16, [[0.25], [0.25]], 4, (2, 4))
    assert module.dequantize(t).tolist() == [[1.75, -0.5, 0.0, 0.25], [0.5, 0.0, 0.5, 1.75]]
    assert module.nbytes(t) == 8
    stored = module.quantize_int4_group(np.array([[1, 0.4998779296875, 0, 0, 0, 0, 0, 0]]), 8)
    assert module.unpack_int4(stored.packed)[0, :2].tolist() == [7, 4]
    q, scales = module.quantize_int8_per_channel(np.array([[127, -3.5, 2.5, 0.4], [-254, 127, 63, 0]]))
    assert (q.tolist(), scales.tolist()) == ([[127, -4, 2, 0], [-127, 64, 32, 0]], [1.0, 2.0])
    layer = module.QuantLinear((q, scales), np.array([0.5, -1.0]))
    assert layer(np.array([[1.0, 2.0, 0.0, 1.0]])).tolist() == [[119.5, 1.0]]
    assert (layer.in_f, layer.out_f) == (4, 2)


def test_small_examples(module: Any) -> None:
    int8, int4, tiny = module.quantize_int8_per_channel, module.quantize_int4_group, 2.0**-149
    assert int8(np.array([[127, -1.5, -0.5, 0.5, 1.5]]))[0].tolist() == [[127, -2, 0, 0, 2]]
    q, scales = int8(np.array([[190 * tiny, -190 * tiny, tiny], [tiny, -tiny, 0]]))
    assert (q.tolist(), scales.tolist()) == ([[127, -127, 1], [0, 0, 0]], [tiny, 0.0])
    assert int4(np.array([[1e-3, 0.0]]), 2).scales.tobytes() == bytes.fromhex("ae08")
    assert int4(np.array([[458639.0, 0.0]]), 2).scales.tolist() == [[65504.0]]
    with pytest.raises(ValueError):
        int4(np.array([[458640.0, 0.0]]), 2)
    for value, scale, codes in ((10 * 2.0**-24, 2.0**-24, [-8, 7]), (1e-9, 0.0, [0, 0])):
        t = int4(np.array([[-value, value]]), 2)
        assert (t.scales.tolist(), module.unpack_int4(t.packed).tolist()) == ([[scale]], [codes])
    pairs = np.array([[-8, -8], [-8, -7], [-1, -7]])
    assert module.pack_int4(pairs).tolist() == [[0x88], [0x98], [0x9F]]
    t = module.quantize_fp8_per_channel(np.array([[0.0, 0.0, 0.0, 0.0], [448, 1.0625, -448, 0.0]]))
    assert (t.codes.tobytes().hex(), t.scales.tolist()) == ("000000007e38fe00", [1.0, 1.0])
    kv = module.quantize_kv_fp8(np.array([[[2.0, -1.0]], [[0.0, 0.0]]]))
    assert (kv.codes.tobytes().hex(), kv.scales.tolist()) == ("7ef60000", [np.float32(2 / 448), 1.0])
    w = np.ones((4, 64))
    forms = [int8(w), int4(w), module.quantize_fp8_per_channel(w), module.quantize_mx(w)]
    assert [module.nbytes(form) for form in forms] == [272, 144, 272, 136]
    assert module.nbytes(module.quantize_mx(np.ones((3, 5)), 5)) == 3 * 3 + 3


# laws, and the equivalents


def test_every_byte_is_a_pair_of_codes(module: Any) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    codes = module.unpack_int4(every)
    assert (codes.dtype, codes.shape, sorted(set(codes.ravel().tolist()))) == (
        np.int8, (16, 32), list(range(-8, 8))
    )  # fmt: skip
    for dtype in (np.int8, np.int16, np.int64):
        assert bits(module.pack_int4(codes.astype(dtype))) == bits(every)


def naive_int4(w: Any, group: int) -> tuple[list[list[int]], list[list[float]]]:
    """One weight at a time."""
    codes, scales = [], []
    for row in w.astype(np.float32):
        row_codes, row_scales = [], []
        for at in range(0, len(row), group):
            amax = max(abs(v) for v in row[at : at + group])
            s = np.float16(amax / np.float32(7))
            row_scales.append(float(s))
            for v in row[at : at + group]:
                code = round(float(v / np.float32(s))) if s > 0 else 0
                row_codes.append(min(max(code, -8), 7))
        codes.append(row_codes)
        scales.append(row_scales)
    return codes, scales


@pytest.mark.parametrize("group", [2, 16, 64])
def test_int4_is_what_a_naive_loop_gives(group: int) -> None:
    for seed in range(6):
        w = planted(seed)
        t = quant.quantize_int4_group(w, group)
        codes, scales = naive_int4(w, group)
        assert quant.unpack_int4(t.packed).tolist() == codes
        assert t.scales.tolist() == scales


def test_errors_are_within_half_a_step() -> None:
    r = np.random.default_rng(3)
    for size in (1e-3, 0.05, 1.0, 100.0):
        w = (r.uniform(-1, 1, (16, 128)) ** 3 * size).astype(np.float32)
        t = quant.quantize_int4_group(w, 16)
        step = np.repeat(t.scales.astype(np.float64), 16, axis=1)
        assert (np.abs(w - quant.dequantize(t).astype(np.float64)) <= step / 2 * (1 + 1e-6)).all()
        q, scales = quant.quantize_int8_per_channel(w)
        assert (np.abs(q).max(axis=1) == 127).all()
        off = np.abs(w - quant.dequantize((q, scales)).astype(np.float64))
        assert (off <= scales[:, None] * (0.5 + 1e-5)).all()
        f = quant.quantize_fp8_per_channel(w)
        normal = np.abs(w) >= f.scales[:, None] * 2.0**-6
        off = np.abs(w - quant.dequantize(f).astype(np.float64))
        assert (off[normal] <= np.abs(w[normal]) * 2.0**-4 * (1 + 1e-6)).all()


def test_the_equivalents_give_the_same_bits() -> None:
    assert len(EQUIVALENTS) >= 3

    def answers(m: Any, w: Any) -> list[Any]:
        forms = [m.quantize_int8_per_channel(w), *(m.quantize_int4_group(w, g) for g in (2, 8, 64))]
        forms += [m.quantize_fp8_per_channel(w, fmt) for fmt in ("e4m3", "e5m2")]
        forms += [m.quantize_mx(w, b, e) for b in (1, 16, 64) for e in ("fp4_e2m1", "fp8_e4m3")]
        heads = w.reshape(2, 3, 64)
        forms += [m.quantize_kv_fp8(heads), m.quantize_kv_fp8(heads.swapaxes(0, 1))]
        out = [(form, m.dequantize(form), m.nbytes(form)) for form in forms]
        x = np.random.default_rng(0).normal(size=(3, 64))
        bounds = [m.output_error_bound(w, form, x, "f16") for form in forms[:-2]]
        return [bits(item) for item in out] + [np.round(b / bounds[0].max(), 12).tolist() for b in bounds]

    for seed in range(12):
        want = answers(quant, planted(seed))
        for other in EQUIVALENTS:
            assert answers(other, planted(seed)) == want, (other.__name__, seed)


@pytest.mark.parametrize("scheme", quant.SCHEMES)
def test_a_layer_is_within_its_bound(module: Any, scheme: str) -> None:
    model, x = model_of(5), np.random.default_rng(6).normal(size=(7, 32)).astype(np.float32)
    before = model.named_linears()
    assert module.quantize_model(model, scheme, set()) is model
    ratios = []
    for key, layer in model.named_linears().items():
        old: Any = before[key]
        if old.weight.shape[1] != 32:
            continue
        zero = 0.0 if old.bias is None else old.bias
        limit = module.output_error_bound(old.weight, layer.q, x) + 1e-6
        ratios.append(tolerance.bound_ratio(layer(x) - zero, old(x) - zero, limit))
    assert len(ratios) == 13 and 0.05 < max(ratios) <= 1.0


# models


def test_a_failing_layer_leaves_the_model(module: Any) -> None:
    model = model_of(1)
    broken: Any = model.named_linears()["model.layers.1.mlp.down_proj"]
    broken.weight[0, 0] = math.nan
    before = model.named_linears()
    for scheme in module.SCHEMES:
        with pytest.raises(ValueError):
            module.quantize_model(model, scheme)
        assert all(layer is before[key] for key, layer in model.named_linears().items())
        with pytest.raises(ValueError):
            module.quant_ppl(model, scheme, [1, 2, 3], 2, 1)
        assert all(layer is before[key] for key, layer in model.named_linears().items())


def test_skipped_and_foreign_layers_stay(module: Any) -> None:
    model = model_of(2)
    model.set_linear("model.layers.0.mlp.up_proj", np.tanh)
    before = model.named_linears()
    module.quantize_model(model, "int8", ["self_attn", "model.layers.1.mlp.up_proj", "lm", "layers.1", "x"])
    changed = {key for key, layer in model.named_linears().items() if layer is not before[key]}
    mlp = {f"model.layers.{n}.mlp.{short}_proj" for n in (0, 1) for short in ("gate", "up", "down")}
    assert changed == mlp - {f"model.layers.{n}.mlp.up_proj" for n in (0, 1)} | {"lm_head"}


def test_export_is_what_the_file_format_takes(module: Any, tmp_path: Path) -> None:
    model = model_of(3)
    with pytest.raises(ValueError):
        module.export_q4(model)
    module.quantize_model(model, "q4_g32", ("mlp", "lm_head"))
    tensors, metadata = module.export_q4(model)
    llama.write_safetensors(tmp_path / "q4.safetensors", tensors, metadata)
    read, text = llama.read_safetensors(tmp_path / "q4.safetensors")
    assert text == {"format": "tinyllm", "quant": "int4-g32-sym"}
    assert {key: bits(value) for key, value in read.items()} == {k: bits(v) for k, v in tensors.items()}
    P = "model.layers.0.self_attn.q_proj"
    assert {f"{P}.weight.qweight", f"{P}.weight.scales", f"{P}.bias", "lm_head.weight"} <= set(read)
    assert f"{P}.weight" not in read and len(read) == 3 + 2 * (4 * 2 + 3 + 2) + 2
    model.set_linear("lm_head", module.QuantLinear(module.quantize_int4_group(np.ones((16, 32)), 16)))
    with pytest.raises(ValueError):
        module.export_q4(model)


def naive_ppl(model: Any, ids: list[int], ctx_len: int, stride: int) -> float:
    """Every id by the first window that predicts it, by one forward each."""
    losses = []
    for target in range(1, len(ids)):
        b = next(b for b in range(0, target, stride) if target <= b + ctx_len)
        row = model.forward([ids[b:target]])[0, -1].astype(np.float64)
        losses.append(math.log(sum(math.exp(v) for v in row)) - float(row[ids[target]]))
    return math.exp(sum(losses) / len(losses))


@pytest.mark.parametrize(
    ("n", "ctx_len", "stride"),
    [(2, 1, 1), (9, 3, 3), (10, 3, 3), (11, 3, 2), (11, 12, 5), (13, 12, 12), (7, 1, 1)],
)
def test_every_id_is_scored_once(module: Any, n: int, ctx_len: int, stride: int) -> None:
    model = model_of(4)
    ids = np.random.default_rng(n).integers(0, 16, n)
    got = module.quant_ppl(model, "q4_g32", ids, ctx_len, stride, ("lm_head", "q_proj"))
    want = naive_ppl(model, ids.tolist(), ctx_len, stride)
    quantized = module.quantize_model(model_of(4), "q4_g32", ("lm_head", "q_proj"))
    want_quant = naive_ppl(quantized, ids.tolist(), ctx_len, stride)
    assert got["ppl"] == pytest.approx(want, rel=1e-5)
    assert got["ppl_quant"] == pytest.approx(want_quant, rel=1e-5)
    assert got["delta"] == pytest.approx(got["ppl_quant"] - got["ppl"], rel=1e-12)
    assert got["ratio"] == pytest.approx(got["ppl_quant"] / got["ppl"], rel=1e-12)
    assert got["ppl"] != got["ppl_quant"] and {type(value) for value in got.values()} == {float}


def test_an_id_that_is_only_predicted_is_looked_at_too(module: Any) -> None:
    for last in (-1, 16):
        with pytest.raises(ValueError):
            module.quant_ppl(model_of(4), "int8", [1, 2, last], 2, 1)


# memory and shape


def test_quant_ppl_does_not_copy_the_weights() -> None:
    """The copy of the model shares what is not quantized, and gives up the rest before it is copied."""
    model = llama.load(TINY)
    weights = sum(tensor.nbytes for tensor in model.tensors().values())
    tracemalloc.start()
    quant.quant_ppl(model, "q4_g32", [1, 2, 3, 4], 2, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * weights, (peak, weights)


def test_a_layer_keeps_codes_only() -> None:
    w = np.random.default_rng(1).normal(size=(512, 1024)).astype(np.float32)
    tracemalloc.start()
    layer = quant.QuantLinear(quant.quantize_int4_group(w))
    layer(np.ones((1, 1024), np.float32))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert quant.nbytes(layer.q) == w.size // 2 + w.size // 16 <= kept < w.nbytes // 4


def test_answers_are_new_and_arguments_unchanged(module: Any) -> None:
    w = planted(1)
    w.setflags(write=False)
    q, scales = module.quantize_int8_per_channel(w)
    forms = [module.quantize_int4_group(w), module.quantize_fp8_per_channel(w), module.quantize_mx(w)]
    arrays = [q, scales, *(form.scales for form in forms), forms[0].packed, forms[1].codes, forms[2].codes]
    ones = (np.ones((2, 2), np.int8), np.ones(2, np.float32))
    read = module.dequantize(ones)
    bias, x = np.ones(2, np.float32), np.ones((2, 2), np.float32)
    layer = module.QuantLinear((ones[0], np.zeros(2, np.float32)), bias)
    y = layer(x)
    assert not any(np.shares_memory(w, a) for a in arrays)
    assert not any(np.shares_memory(a, b) for a in (read, y) for b in (*ones, x, bias, layer.bias))
    assert all(a.flags.writeable for a in (*arrays, read, y)) and (x == 1).all() and (bias == 1).all()


def test_any_layout(module: Any) -> None:
    wide = planted(2, 6, 64)
    for view in (wide.T.copy().T, wide[::2, ::-1], wide[:, 32:]):
        plain = np.array(view.tolist(), view.dtype)
        for make in (module.quantize_int8_per_channel, module.quantize_int4_group, module.quantize_mx):
            assert bits(make(view)) == bits(make(plain))
        assert bits(module.quantize_fp8_per_channel(view)) == bits(module.quantize_fp8_per_channel(plain))
    packed = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert module.unpack_int4(packed.T).tolist() == module.unpack_int4(packed.T.copy()).tolist()


def test_forward_takes_any_leading_axes(module: Any) -> None:
    layer = module.QuantLinear(module.quantize_mx(np.eye(4)[:3], 4), np.arange(3.0))
    x = np.arange(24.0).reshape(2, 3, 4)
    assert layer.forward(x).tolist() == (x[..., :3] + np.arange(3.0)).tolist()
    assert (layer(x[0, 0]).shape, layer(x[:0]).shape) == ((3,), (0, 3, 3))
    assert layer(x.astype(np.float16)).dtype == np.float32


def test_nothing_warns() -> None:
    largest = float(np.finfo(np.float32).max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in ([0.0, -0.0], [largest, -largest], [2.0**-149, 0.0]):
            w = np.array([row], np.float32)
            quant.dequantize(quant.quantize_int8_per_channel(w))
            quant.dequantize(quant.quantize_fp8_per_channel(w))
            quant.dequantize(quant.quantize_mx(w, 2))
            if row[0] < largest:
                quant.dequantize(quant.quantize_int4_group(w, 2))
        for value in (largest, 1e39, math.nan):
            with pytest.raises(ValueError):
                quant.quantize_int4_group(np.array([[value, 0.0]]), 2)


def test_names_and_parameters_are_the_same_everywhere(module: Any) -> None:
    """What the spec's Shapes block says of names, order and defaults."""
    want: dict[str, list[Any]] = {
        "quantize_int8_per_channel": ["w"],
        "pack_int4": ["q"],
        "unpack_int4": ["packed"],
        "quantize_int4_group": ["w", ("group", 32)],
        "quantize_fp8_per_channel": ["w", ("fmt", "e4m3")],
        "quantize_mx": ["w", ("block", 32), ("elem", "fp4_e2m1")],
        "quantize_kv_fp8": ["x"],
        "dequantize": ["q"],
        "nbytes": ["q"],
        "QuantLinear": ["q", ("bias", None)],
        "quantize_model": ["model", "scheme", ("skip", ("lm_head",))],
        "export_q4": ["model"],
        "output_error_bound": ["w", "q", "x", ("dtype", "f32")],
        "quant_ppl": ["model", "scheme", "ids", "ctx_len", "stride", ("skip", ("lm_head",))],
    }
    for f, names in want.items():
        parameters = inspect.signature(getattr(module, f)).parameters.values()
        assert [p.name if p.default is p.empty else (p.name, p.default) for p in parameters] == names
    assert module.SCHEMES == ("int8", "q4_g32", "fp8_e4m3", "mxfp4")
    codes, scales = np.ones((1, 2), np.uint8), np.ones(1, np.float32)
    assert module.Q8Tensor(q=codes.astype(np.int8), scales=scales).scales is scales
    assert module.Q4Tensor(packed=codes, scales=scales, group=2, shape=(1, 4)).group == 2
    assert module.FP8Tensor(codes=codes, scales=scales, fmt="e5m2").fmt == "e5m2"
    assert module.MXTensor(codes=codes, scales=codes, block=1, elem="fp4_e2m1").block == 1
    assert module.KVQuant(codes=codes[None], scales=scales).codes.shape == (1, 1, 2)


# errors

W, X = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
INT8 = (np.ones((2, 4), np.int8), np.ones(2, np.float32))
MODEL = model_of(7)
ALL_LAYERS = ("model", "lm_head")


def bad() -> list[tuple[str, tuple[Any, ...], type[Exception], str]]:
    out: list[tuple[str, tuple[Any, ...], type[Exception], str]] = []
    makers = ("quantize_int8_per_channel", "quantize_int4_group", "quantize_fp8_per_channel", "quantize_mx")
    for make in makers:
        for w in (W[0], W[None], np.float32(1), "w", None):
            out.append((make, (w,), ValueError, "the array must be an array with 2 axes, got"))
        for w in (W.astype(np.int8), W > 0, W.astype(complex)):
            out.append((make, (w,), ValueError, "the array must be a float16, float32 or float64 array, got"))
        for w in (W[:0], W[:, :0]):
            out.append((make, (w,), ValueError, "the array must not be empty, got the shape"))
        for value in (math.nan, math.inf, -math.inf, 1e39):
            w = np.array([[1.0, value]])
            out.append((make, (w,), ValueError, "the array holds a NaN or an infinity as float32"))
    for x in (W, W[None, None]):
        out.append(("quantize_kv_fp8", (x,), ValueError, "the array must be an array with 3 axes, got"))
    out.append(("quantize_kv_fp8", (W[None].astype(np.int64),), ValueError, "must be a float16, float32 or"))
    out.append(("quantize_kv_fp8", (W[None, :0],), ValueError, "must not be empty"))
    out.append(("quantize_kv_fp8", (W[None] * math.nan,), ValueError, "holds a NaN or an infinity"))
    for group in (0, -2, 1, 3, True, 2.0, None, "2"):
        out.append(("quantize_int4_group", (W, group), ValueError, "group must be an even int of at least 2"))
    out.append(("quantize_int4_group", (W, 8), ValueError, "group 8 does not divide a row of 4"))
    out.append(("quantize_int4_group", (W[:, :3], 2), ValueError, "group 2 does not divide a row of 3"))
    out.append(("quantize_int4_group", (W * 1e6, 2), ValueError, "amax 1000000.0 needs a scale beyond"))
    for q in (INT8[0][0], "q", [[1, 2]]):
        out.append(("pack_int4", (q,), ValueError, "q must be an array with 2 axes, got"))
        out.append(("unpack_int4", (q,), ValueError, "packed must be an array with 2 axes, got"))
    for q in (W, W > 0):
        out.append(("pack_int4", (q,), ValueError, "q must be an integer array, got"))
    out.append(("pack_int4", (INT8[0][:, :3],), ValueError, "q must have an even number of columns, got 3"))
    for code in (8, -9, 127):
        out.append(("pack_int4", (np.array([[code, 0]]),), ValueError, r"q must be in \[-8, 7\], got"))
    for packed in (INT8[0], W, W > 0):
        out.append(("unpack_int4", (packed,), ValueError, "packed must be a uint8 array, got"))
    for fmt in ("e3m4", "fp8_e4m3", "fp4_e2m1", None):
        out.append(("quantize_fp8_per_channel", (W, fmt), ValueError, "fmt must be one of"))
    for block in (0, True, 3, 8):
        out.append(("quantize_mx", (W, block), ValueError, "block"))
    out.append(("quantize_mx", (W, 2, "e2m1"), ValueError, "elem must be one of"))
    one = np.ones((2, 4), np.float32)
    for form in (one, INT8[0], [*INT8], INT8[:1], (*INT8, 1), (1, 2), (one, INT8[1]), None, "int8", 8):
        for f in ("dequantize", "nbytes", "QuantLinear"):
            out.append((f, (form,), TypeError, "q must be one of the quantized forms, got"))
        out.append(("output_error_bound", (W, form, X), TypeError, "q must be one of the quantized forms"))
    kv = quant.quantize_kv_fp8(W[None])
    out.append(("QuantLinear", (kv,), TypeError, "q must be one of the quantized forms, got KVQuant"))
    for bias in (np.ones(3), np.ones((1, 2)), np.float32(1)):
        out.append(("QuantLinear", (INT8, bias), ValueError, "bias must"))
    for bias in (np.ones(2, np.int64), [1.0, 2.0]):
        out.append(("QuantLinear", (INT8, bias), ValueError, "bias must be a float16, float32 or float64"))
    for scheme in ("int4", "INT8", None, ["int8"]):
        args = (MODEL, scheme, ALL_LAYERS)
        out.append(("quantize_model", args, ValueError, "scheme must be one of int8, q4_g32, fp8_e4m3"))
        out.append(("quant_ppl", (MODEL, scheme, [1, 2], 1, 1), ValueError, "scheme must be one of"))
    for skip in ("lm_head", None, {"lm_head": 1}):
        out.append(("quantize_model", (MODEL, "int8", skip), TypeError, "skip must be a tuple, list or set"))
        out.append(("quant_ppl", (MODEL, "int8", [1, 2], 1, 1, skip), TypeError, "skip must be a tuple"))
    out.append(("export_q4", (MODEL,), ValueError, r"the int4 layers must have one group, got \[\]"))
    for q in (quant.quantize_int8_per_channel(W[:1]), quant.quantize_mx(np.ones((2, 1)), 1), kv):
        out.append(("output_error_bound", (W, q, X), ValueError, "q must have the shape"))
    for x in (X[0], X[None], X[:, :3]):
        out.append(("output_error_bound", (W, INT8, x), ValueError, r"x must be \[N, 4\], got"))
    out.append(("output_error_bound", (W, INT8, X, "int8"), ValueError, "dtype must be one of"))
    out.append(("output_error_bound", (W[:, :0], INT8, X), ValueError, "must not be empty"))
    for ids in ([1], [], [[1, 2]], [1.0, 2.0], [True, False], 3, "ab", None):
        out.append(("quant_ppl", (MODEL, "int8", ids, 1, 1), ValueError, "ids must be at least 2 integers"))
    for ctx_len in (0, 13, True, 2.0, None):
        out.append(("quant_ppl", (MODEL, "int8", [1, 2], ctx_len, 1), ValueError, "ctx_len must be an int"))
    for stride in (0, 3, -1, True, 1.0):
        out.append(("quant_ppl", (MODEL, "int8", [1, 2], 2, stride), ValueError, "stride must be an int"))
    for ids in ([16, 1], [-1, 1], [1, 16], [1, -1]):
        out.append(("quant_ppl", (MODEL, "int8", ids, 2, 1), ValueError, r"ids must be in \[0, 16\)"))
    return out


@pytest.mark.parametrize(("f", "args", "kind", "message"), bad())
def test_errors(f: str, args: tuple[Any, ...], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        getattr(quant, f)(*args)


@pytest.mark.parametrize("x", [np.ones(3), np.ones((2, 3)), np.float32(1), np.ones(4, np.int64), [1.0] * 4])
def test_errors_of_forward(module: Any, x: Any) -> None:
    layer = module.QuantLinear(INT8)
    with pytest.raises(ValueError):
        layer.forward(x)
    with pytest.raises(ValueError):
        layer(x)


def test_the_message_of_a_layer_that_cannot_be_exported() -> None:
    model = quant.quantize_model(model_of(8), "q4_g32", ())
    model.set_linear("lm_head", quant.QuantLinear(quant.quantize_mx(np.ones((16, 32)))))
    with pytest.raises(ValueError, match="lm_head is neither a Linear nor in int4, and cannot be exported"):
        quant.export_q4(model)


def test_the_fp8_codes_are_those_of_lowp(module: Any) -> None:
    for seed in range(3):
        w = planted(seed)
        for fmt in ("e4m3", "e5m2"):
            t = module.quantize_fp8_per_channel(w, fmt)
            for row, codes, s in zip(w.astype(np.float32), t.codes, t.scales, strict=True):
                assert codes.tolist() == lowp.quantize_fp8(row, fmt, float(s)).tolist()
