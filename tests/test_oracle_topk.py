"""The topk oracle against the page, the order of bits, one place after the other, and PyTorch as a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.draw import Chooser
from grader.fixtures import import_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "topk"
oracle = import_file(FOLDER / "oracle.py", "topk_oracle_under_test")
INF, NAN = np.inf, np.nan


def row(*values: float) -> Any:
    return np.array(values, np.float32)


def called(x: Any, k: int, **more: Any) -> Any:
    size = max(k, 0)
    buffers = {"idx": {"buffer": f"i32[{size}]"}, "val": {"buffer": f"f32[{size}]"}}
    args = {"x": x, "n": 0 if x is None else len(x), "k": k, **buffers, **more}
    return oracle.expect({"call": "tl_topk_f32", "args": args})["return"]


def indices(x: Any, k: int) -> Any:
    told = called(x, k)
    assert told["status"] == "TL_OK"
    return told["idx"].tolist()


# -- the page ---------------------------------------------------------------------------------------------


def test_example_of_the_page() -> None:
    told = called(row(1, 3, 2, 3, -1), 3)
    assert (told["idx"].tolist(), told["val"].tolist()) == ([1, 3, 2], [3, 3, 2])
    assert (told["idx"].dtype, told["val"].dtype) == (np.int32, np.float32)


@pytest.mark.parametrize(
    ("x", "k", "idx"),
    [
        ((5, 1, 1, 1, 1, 0), 2, [0, 1]),
        ((0.25, -2, 7, 0.25), 4, [2, 0, 3, 1]),
        ((-INF, 2, -INF, -1, -INF), 4, [1, 3, 0, 2]),
        ((1, INF, -INF, INF), 3, [1, 3, 0]),
        ((-0.0, 0.0, -1), 2, [0, 1]),
        ((4,) * 9, 4, [0, 1, 2, 3]),
        ((2, 9, 4, 7, 9, 1), 1, [1]),
    ],
)
def test_small_ones_of_the_page(x: tuple[float, ...], k: int, idx: list[int]) -> None:
    assert indices(row(*x), k) == idx


def test_zeros_keep_their_sign() -> None:
    assert called(row(-0.0, 0.0, -1), 2)["val"].view(np.uint32).tolist() == [0x80000000, 0]


def test_what_is_refused() -> None:
    refused = {"status": "TL_EINVAL", "slot": "tl_topk_f32", "idx": "untouched", "val": "untouched"}
    x = row(1, 2)
    for told in (
        called(row(1, NAN), 1), called(row(1, NAN), 0), called(x, 3), called(x, -1), called(x, 0, n=-1),
        called(x, 1, n=2147483648), called(None, 1, n=1), called(None, 1),
    ):  # fmt: skip
        assert told == refused
    assert called(x, 1, idx=None) == {k: v for k, v in refused.items() if k != "idx"}
    assert called(x, 1, val=None) == {k: v for k, v in refused.items() if k != "val"}
    assert called(None, 0, n=1, idx=None, val=None) == {"status": "TL_EINVAL", "slot": "tl_topk_f32"}


def test_what_is_not() -> None:
    assert called(None, 0, idx=None, val=None) == "TL_OK"
    assert called(row(1, 2), 0) == {"status": "TL_OK", "idx": "untouched", "val": "untouched"}
    assert called(row(1, 2, NAN), 1, n=2)["idx"].tolist() == [1]


def test_a_longer_buffer_keeps_its_end() -> None:
    told = called(row(1, 2), 1, idx={"buffer": "i32[3]"}, val={"buffer": "f32[2]"})
    assert told["idx"].view(np.uint32).tolist() == [1, 0xA5A5A5A5, 0xA5A5A5A5]
    assert told["val"].view(np.uint32).tolist() == [0x40000000, 0xA5A5A5A5]


# -- other ways to the same answer ------------------------------------------------------------------------


KINDS = ("levels", "bits", "zeros", "equal", "ascending", "descending", "normal")


def sortable(x: Any) -> Any:
    """Bits as integers in the order of the floats, zeros of both signs one: radix-style, without floats."""
    bits = x.view(np.uint32).astype(np.int64)
    return np.where(bits >> 31, (1 << 31) - bits, bits)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_bits_is_the_same(kind: str) -> None:
    for n in (1, 2, 17, 251, 4095, 4096, 9000):  # exact below 4096, float64 from there on
        x = oracle.row_of(kind, n, n)
        assert np.array_equal(oracle.ranked(x), np.argsort(-sortable(x), kind="stable")), n


def test_one_place_after_the_other() -> None:
    for run in range(20):
        given = oracle.row(Chooser(1, run), "levels bits zeros", 60)
        x, left = given["x"].copy(), []
        taken = np.zeros(len(x), bool)
        for _ in range(given["k"]):
            best = max(x[i] for i in range(len(x)) if not taken[i])
            i = next(i for i in range(len(x)) if not taken[i] and x[i] == best)
            taken[i] = True
            left.append(i)
        assert oracle.topk(x, given["k"])[0].tolist() == left


def test_torch_sorts_alike() -> None:
    torch = pytest.importorskip("torch")
    for kind in KINDS:
        x = oracle.row_of(kind, 3000, 5)
        values, order = torch.sort(torch.from_numpy(x), descending=True, stable=True)
        idx, val = oracle.topk(x, 3000)
        assert np.array_equal(order.numpy(), idx) and np.array_equal(values.numpy(), val), kind


# -- the driver's loops -----------------------------------------------------------------------------------


def test_every_k_is_a_call_each() -> None:
    given = oracle.whole(Chooser(2, 0), 12, "levels")
    told = oracle.expect({"call": "drv_topk_every_k", "args": given})["return"]
    assert told["status"] == "TL_OK" and told["said"].tolist() == [0] * 12
    for k in range(1, 13):
        one, at = called(given["x"], k), k * (k - 1) // 2
        assert np.array_equal(told["idx"][at : at + k], one["idx"])
        assert np.array_equal(told["val"][at : at + k], one["val"])


def test_everywhere() -> None:
    x = oracle.row_of("levels", 5, 3)
    for bits, said in ((0x7F800000, 0), (0x7FC00000, 1)):
        args = {"x": x, "n": 5, "k": 2, "bits": bits}
        told = oracle.expect({"call": "drv_topk_everywhere", "args": args})["return"]
        assert told["said"].tolist() == [said] * 5
        if said:
            assert {*told["idx"].tolist(), *told["val"].view(np.uint32).tolist()} == {0x5A5A5A5A}
        else:
            assert told["idx"][::2].tolist() == [0, 1, 2, 3, 4]


# -- draws plant what they promise ------------------------------------------------------------------------


def test_rows() -> None:
    assert len(set(oracle.row_of("levels", 500, 1).tolist())) == 9
    bits = oracle.row_of("bits", 20000, 1)
    assert not np.isnan(bits).any() and np.isinf(bits).any() and (bits < 0).any()
    signs = oracle.row_of("zeros", 100, 1).view(np.uint32)
    assert {0, 0x80000000} <= set(signs.tolist())
    normal = oracle.row_of("normal", 20000, 1)
    assert abs(normal.mean()) < 0.02 and 0.5 < normal.std() < 0.65
    with pytest.raises(ValueError):
        oracle.row_of("other", 1, 1)


def test_spoiled_rows_have_a_nan_most_of_the_time() -> None:
    rows = [oracle.spoiled(Chooser(3, i))["x"] for i in range(40)]
    spoiled = sum(bool(np.isnan(x).any()) for x in rows)
    assert 25 < spoiled < 40
    assert oracle.last_is_largest(Chooser(1, 1), 50)[-3:].max() == 5


def test_what_the_page_leaves_open_is_refused() -> None:
    with pytest.raises(oracle.Ungraded):
        oracle.every_k({"x": row(1, NAN), "n": 2})
    with pytest.raises(NotImplementedError):
        oracle.answer("tl_topk_f64", {})
