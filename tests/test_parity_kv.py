"""The paged cache in Python and the block pool in C: the same chain of hashes, the same bytes of a block.

The Python cache has neither hashes nor envelopes, by its page; what turns its blocks into an envelope, and
back, is here, written from spec/kv_pool.md (R24, R34 to R37) with `struct` alone.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from grader import native
from impl.paged_kv import PagedKVCache
from tests.c_programs import ROOT, SRC, needs_compiler

pytestmark = needs_compiler

FILES = ("error_slot.c", "abi.c", "vec.c", "swiss_map.c", "list.c", "lru.c", "kv_pool.c")
OK, EFULL, ENOTFOUND, EFORMAT, F16, V1 = 0, 5, 6, 7, 1, 1
U32, U64, SIZE, POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
SHAPES = [
    (2, 1, 1, 2),
    (4, 2, 3, 5),
    (1, 3, 2, 1),
    (16, 2, 1, 8),
]  # block_tokens, n_layers, n_kv_heads, head_dim
Halves = NDArray[np.float16]


# -- from the page ------------------------------------------------------------------------------------


def block_hash(parent: int, tokens: list[int]) -> int:
    h = 0xCBF29CE484222325
    for byte in struct.pack(f"<Q{len(tokens)}I", parent, *tokens):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h or 1


def chain(tokens: list[int], block_tokens: int) -> list[int]:
    """The hash of each block; 0 for one that is not full."""
    hashes, parent = [], 0
    for start in range(0, len(tokens), block_tokens):
        part = tokens[start : start + block_tokens]
        parent = block_hash(parent, part) if len(part) == block_tokens else 0
        hashes.append(parent)
    return hashes


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ 0x82F63B78 * (state & 1)
    return state ^ 0xFFFFFFFF


def exported(cache: PagedKVCache, sequence: str, tokens: list[int], shape: tuple[int, ...]) -> bytes:
    """The sequence's blocks as an envelope."""
    B, L, H, D = shape
    hashes = chain(tokens, B)
    slabs = np.zeros((len(hashes), L, 2, H, B, D), "<f2")
    for layer in range(L):
        for is_v, values in enumerate(cache.gather(sequence, layer)):
            for i in range(len(hashes)):
                part = values[:, i * B : i * B + B]
                slabs[i, layer, is_v, :, : part.shape[1]] = part
    body = struct.pack("<4sHH5I", b"TLKV", V1, F16, len(hashes), *shape)
    for i, code in enumerate(hashes):
        body += struct.pack("<QI", code, min(B, len(tokens) - i * B)) + slabs[i].tobytes()
    return body + struct.pack("<I", crc32c(body))


def imported(envelope: bytes, sequence: str) -> tuple[PagedKVCache, list[int]]:
    """A cache with the envelope's positions as one sequence, and the hashes of its blocks."""
    body, (seal,) = envelope[:-4], struct.unpack("<I", envelope[-4:])
    assert seal == crc32c(body)
    magic, version, dtype, n, B, L, H, D = struct.unpack("<4sHH5I", body[:28])
    assert (magic, version, dtype) == (b"TLKV", V1, F16)
    size = 4 * L * H * B * D
    assert len(envelope) == 32 + n * (12 + size)
    cache, hashes = PagedKVCache(n, B, L, H, D), []
    cache.add_seq(sequence)
    for at in range(28, len(body), 12 + size):
        code, n_tokens = struct.unpack("<QI", body[at : at + 12])
        slab = np.frombuffer(body, "<f2", size // 2, at + 12).reshape(L, 2, H, B, D)
        assert not slab[..., n_tokens:, :].view(np.uint16).any()
        for layer in range(L):
            cache.append(sequence, layer, slab[layer, 0, :, :n_tokens], slab[layer, 1, :, :n_tokens])
        hashes.append(code)
    return cache, hashes


# -- the pool -----------------------------------------------------------------------------------------


class Pool:
    """One pool of the built library, with values instead of pointers."""

    def __init__(self, library: Any, n_blocks: int, shape: tuple[int, ...]) -> None:
        self.library, self.shape = library, shape
        self.handle = POINTER()
        cfg = struct.pack("<5IiI", n_blocks, *shape, F16, V1)
        assert library.tl_kv_pool_create(cfg, ctypes.byref(self.handle)) == OK

    def close(self) -> None:
        self.library.tl_kv_pool_destroy(self.handle)

    def alloc(self, n: int) -> list[int]:
        ids = (U32 * n)()
        assert self.library.tl_kv_alloc(self.handle, n, ids) == OK
        return list(ids)

    def slab(self, block: int, layer: int, is_v: int) -> Halves:
        """K or V of one layer, in place."""
        B, _, H, D = self.shape
        at = self.library.tl_kv_block_ptr(self.handle, block, layer, is_v)
        return np.frombuffer((ctypes.c_uint8 * (2 * B * H * D)).from_address(at), np.float16).reshape(H, B, D)

    def write(self, block: int, layer: int, start: int, k: Halves, v: Halves) -> None:
        for is_v, values in enumerate((k, v)):
            self.slab(block, layer, is_v)[:, start : start + values.shape[1]] = values

    def cow(self, block: int) -> int:
        out = U32()
        assert self.library.tl_kv_cow(self.handle, block, ctypes.byref(out)) == OK
        return out.value

    def lookup(self, code: int) -> int | None:
        out = U32()
        status = self.library.tl_kv_lookup(self.handle, code, ctypes.byref(out))
        assert status in (OK, ENOTFOUND)
        return out.value if status == OK else None

    def set_fill(self, block: int, n_tokens: int) -> None:
        assert self.library.tl_kv_set_fill(self.handle, block, n_tokens) == OK

    def register(self, block: int, code: int) -> None:
        assert self.library.tl_kv_register(self.handle, block, code) == OK

    def export(self, blocks: list[int]) -> bytes:
        n = len(blocks)
        size = self.library.tl_kv_export_bytes(self.handle, n)
        made, written = ctypes.create_string_buffer(size), SIZE()
        ids = (U32 * n)(*blocks)
        status = self.library.tl_kv_export(self.handle, ids, n, made, size, ctypes.byref(written))
        assert (status, written.value) == (OK, size)
        return made.raw

    def import_(self, envelope: bytes, n: int) -> tuple[int, list[int]]:
        ids = (U32 * max(n, 1))()
        return self.library.tl_kv_import(self.handle, envelope, len(envelope), ids), list(ids)[:n]

    def stats(self) -> dict[str, int]:
        out = (U32 * 4)()
        self.library.tl_kv_stats_get(self.handle, out)
        return dict(zip(("free", "used", "cached", "evictions"), out, strict=True))


@pytest.fixture(scope="module")
def library() -> Any:
    builder = native.Builder(ROOT)
    made = builder.link("libkv.so", [builder.object(name, (SRC / name).read_text()) for name in FILES])
    found = ctypes.CDLL(str(made))
    found.tl_kv_pool_create.argtypes = [ctypes.c_char_p, POINTER]
    found.tl_kv_pool_destroy.argtypes = [POINTER]
    found.tl_kv_alloc.argtypes = [POINTER, U32, POINTER]
    found.tl_kv_ref.argtypes = [POINTER, U32]
    found.tl_kv_unref.argtypes = [POINTER, U32]
    found.tl_kv_cow.argtypes = [POINTER, U32, POINTER]
    found.tl_kv_set_fill.argtypes = [POINTER, U32, U32]
    found.tl_kv_register.argtypes = [POINTER, U32, U64]
    found.tl_kv_lookup.argtypes = [POINTER, U64, POINTER]
    found.tl_kv_block_hash.argtypes, found.tl_kv_block_hash.restype = [U64, POINTER, U32], U64
    found.tl_kv_block_ptr.argtypes, found.tl_kv_block_ptr.restype = [POINTER, U32, U32, ctypes.c_int], POINTER
    found.tl_kv_export_bytes.argtypes, found.tl_kv_export_bytes.restype = [POINTER, U32], SIZE
    found.tl_kv_export.argtypes = [POINTER, POINTER, U32, POINTER, SIZE, POINTER]
    found.tl_kv_import.argtypes = [POINTER, ctypes.c_char_p, SIZE, POINTER]
    found.tl_kv_stats_get.argtypes = [POINTER, POINTER]
    return found


@pytest.fixture(params=SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return tuple(request.param)


@pytest.fixture
def pool(library: Any, shape: tuple[int, ...]) -> Iterator[Pool]:
    made = Pool(library, 12, shape)
    yield made
    made.close()


def halves(rng: np.random.Generator, *shape: int) -> Halves:
    """Any bits, infinities and NaN among them."""
    return rng.integers(0, 2**16, shape, np.uint16).view(np.float16)


def filled(rng: np.random.Generator, n: int, shape: tuple[int, ...], blocks: int = 12) -> PagedKVCache:
    """A cache whose sequence "a" has n positions on every layer."""
    B, L, H, D = shape
    cache = PagedKVCache(blocks, B, L, H, D)
    cache.add_seq("a")
    for layer in range(L):
        cache.append("a", layer, halves(rng, H, n, D), halves(rng, H, n, D))
    return cache


def numbers(rng: np.random.Generator, n: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 2**32, n, np.uint64)]


def n_positions(shape: tuple[int, ...]) -> int:
    """Two whole blocks and, where a block has room for more than one, a part of a third."""
    return 2 * shape[0] + (shape[0] + 1) // 2


# -- agreement ----------------------------------------------------------------------------------------


def test_the_chain_of_hashes_is_the_same(library: Any, shape: tuple[int, ...]) -> None:
    tokens = numbers(np.random.default_rng(1), 5 * shape[0])
    parent = 0
    for i, code in enumerate(chain(tokens, shape[0])):
        part = tokens[i * shape[0] : i * shape[0] + shape[0]]
        parent = library.tl_kv_block_hash(parent, (U32 * len(part))(*part), len(part))
        assert parent == code


def test_the_envelope_of_the_page_comes_from_the_python_cache() -> None:
    cache = PagedKVCache(1, 2, 1, 1, 2)
    cache.add_seq("a")
    cache.append("a", 0, np.array([[[1.0, 2], [3, 4]]]), np.array([[[0.5, -1], [0, 0.25]]]))
    envelope = exported(cache, "a", [1, 2], (2, 1, 1, 2))
    assert envelope.hex(" ", 4) == (
        "544c4b56 01000100 01000000 02000000 01000000 01000000 02000000 66937b02 c1b01aa9 02000000 003c0040 "
        "00420044 003800bc 00000034 1c540b4f"
    )


def test_the_pool_imports_what_the_python_cache_holds(pool: Pool, shape: tuple[int, ...]) -> None:
    B, L, _, _ = shape
    rng, n = np.random.default_rng(2), n_positions(shape)
    cache, tokens = filled(rng, n, shape), numbers(rng, n)
    hashes = chain(tokens, B)
    envelope = exported(cache, "a", tokens, shape)
    status, ids = pool.import_(envelope, len(hashes))
    assert status == OK
    assert pool.stats() == cache.stats()
    for layer in range(L):
        for is_v, values in enumerate(cache.gather("a", layer)):
            got = np.concatenate([pool.slab(block, layer, is_v) for block in ids], axis=1)
            assert got[:, :n].tobytes() == values.tobytes()
    assert [pool.lookup(code) for code in hashes if code] == ids[: n // B]
    assert pool.export(ids) == envelope


def test_the_python_cache_imports_what_the_pool_holds(pool: Pool, shape: tuple[int, ...]) -> None:
    B, L, H, D = shape
    rng, n = np.random.default_rng(3), n_positions(shape)
    tokens, hashes = numbers(rng, n), []
    blocks = pool.alloc(-(-n // B))
    for i, (block, code) in enumerate(zip(blocks, chain(tokens, B), strict=True)):
        for layer in range(L):  # all slots, those behind the fill too: they must not come out
            pool.write(block, layer, 0, halves(rng, H, B, D), halves(rng, H, B, D))
        pool.set_fill(block, min(B, n - i * B))
        if code:
            pool.register(block, code)
        hashes.append(code)
    envelope = pool.export(blocks)
    cache, found = imported(envelope, "a")
    assert found == hashes
    for layer in range(L):
        for is_v, values in enumerate(cache.gather("a", layer)):
            due = np.concatenate([pool.slab(block, layer, is_v) for block in blocks], axis=1)[:, :n]
            assert values.tobytes() == due.tobytes()
    assert exported(cache, "a", tokens, shape) == envelope


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] > 1], indirect=True)
def test_a_fork_that_writes_is_a_copy_that_writes(pool: Pool, shape: tuple[int, ...]) -> None:
    B, L, H, D = shape
    rng, n = np.random.default_rng(4), n_positions(shape)
    cache, tokens = filled(rng, n, shape), numbers(rng, n)
    _, ids = pool.import_(exported(cache, "a", tokens, shape), -(-n // B))
    cache.fork("a", "b")
    for block in ids:
        pool.library.tl_kv_ref(pool.handle, block)
    assert pool.stats() == cache.stats()

    start = n % B  # the last block has room from here on
    copies = [*ids[:-1], pool.cow(ids[-1])]
    for layer in range(L):
        k, v = halves(rng, H, 1, D), halves(rng, H, 1, D)
        cache.append("b", layer, k, v)
        pool.write(copies[-1], layer, start, k, v)
    pool.set_fill(copies[-1], start + 1)
    longer = [*tokens, 77]
    if code := chain(longer, B)[-1]:
        pool.register(copies[-1], code)
    assert pool.stats() == cache.stats()
    assert pool.export(ids) == exported(cache, "a", tokens, shape)
    assert pool.export(copies) == exported(cache, "b", longer, shape)


def test_what_does_not_fit_is_refused_by_both_and_changes_nothing(
    library: Any, shape: tuple[int, ...]
) -> None:
    B, L, _, _ = shape
    rng, n = np.random.default_rng(5), 3 * B
    cache, tokens = filled(rng, n, shape), numbers(rng, n)
    envelope = exported(cache, "a", tokens, shape)
    small = Pool(library, 2, shape)
    assert small.import_(envelope, 3)[0] == EFULL
    damaged = bytearray(envelope)
    damaged[len(damaged) // 2] ^= 1
    assert small.import_(bytes(damaged), 3)[0] == EFORMAT
    assert small.stats() == {"free": 2, "used": 0, "cached": 0, "evictions": 0}
    small.close()
    few = PagedKVCache(2, B, *shape[1:])
    few.add_seq("a")
    for layer in range(L):
        with pytest.raises(RuntimeError, match="3 blocks are needed, 2 are free"):
            few.append("a", layer, *cache.gather("a", layer))
    assert few.stats() == {"free": 2, "used": 0, "cached": 0, "evictions": 0}
