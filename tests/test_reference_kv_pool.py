"""The reference of `kv_pool`: legal choices under random use, both checksums, sizes, hostile envelopes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from grader import native
from tests.c_programs import ROOT, SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
NEEDS = tuple(SRC / name for name in ("error_slot.c", "abi.c", "vec.c", "swiss_map.c", "list.c", "lru.c"))

LAYOUT = """
#include "tinyllm/kv_pool.h"
_Static_assert(sizeof(tl_kv_cfg) == 28 && offsetof(tl_kv_cfg, dtype) == 20, "cfg");
_Static_assert(offsetof(tl_kv_cfg, format) == 24 && offsetof(tl_kv_cfg, head_dim) == 16, "cfg");
_Static_assert(sizeof(tl_kv_stats) == 16 && offsetof(tl_kv_stats, evictions) == 12, "stats");
_Static_assert(TL_KV_FORMAT_V1 == 1 && TL_KV_ENVELOPE_HEADER == 28, "numbers");

int main(void)
{
    return 0;
}
"""

# Which free block is taken is open, so the model is told the ids and says whether they were legal.
RANDOM = r"""
#include <stdio.h>
#include "tinyllm/kv_pool.h"

enum { N = 12, TOKENS = 2, HASHES = 20 };

static struct {
    unsigned ref, fill, since;
    uint64_t hash;
} want[N];
static unsigned state = 7, now, evictions;
static tl_kv_pool *pool;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

static unsigned count(int is_cached)
{
    unsigned n = 0;
    for (int i = 0; i < N; i++)
        n += want[i].ref == 0 && (want[i].hash != 0) == is_cached;
    return n;
}

static int holder(uint64_t hash)
{
    for (int i = 0; i < N; i++)
        if (hash != 0 && want[i].hash == hash)
            return i;
    return -1;
}

/* Was it right to take id now?  It is taken in the model too. */
static int took(unsigned id)
{
    if (id >= N || want[id].ref > 0 || (want[id].hash != 0 && count(0) > 0))
        return 0;
    for (int i = 0; i < N && want[id].hash != 0; i++)
        if (want[i].ref == 0 && want[i].since < want[id].since)
            return 0;
    evictions += want[id].hash != 0;
    want[id].ref = 1;
    want[id].fill = 0;
    want[id].hash = 0;
    return 1;
}

static int alloc(void)
{
    uint32_t ids[N + 1] = {0};
    unsigned n = below(4) ? below(4) : below(N + 2), room = count(0) + count(1);
    if (tl_kv_alloc(pool, n, ids) != (n <= room ? TL_OK : TL_EFULL))
        return 0;
    for (unsigned i = 0; n <= room && i < n; i++)
        if (!took(ids[i]))
            return 0;
    return 1;
}

static int unref(unsigned id)
{
    if (tl_kv_unref(pool, id) != (want[id].ref ? TL_OK : TL_EINVAL))
        return 0;
    if (want[id].ref && --want[id].ref == 0)
        want[id].since = ++now;
    return 1;
}

static int cow(unsigned id)
{
    uint32_t out = 99;
    tl_status got = tl_kv_cow(pool, id, &out);
    if (want[id].ref == 0)
        return got == TL_EINVAL && out == 99;
    if (want[id].ref == 1)
        return got == TL_OK && out == id;
    if (count(0) + count(1) == 0)
        return got == TL_EFULL && out == 99;
    if (got != TL_OK || !took(out))
        return 0;
    want[out].fill = want[id].fill;
    want[id].ref--;
    return 1;
}

static int fill(unsigned id, unsigned n)
{
    int is_legal = want[id].ref && !want[id].hash && n <= TOKENS;
    if (is_legal)
        want[id].fill = n;
    return tl_kv_set_fill(pool, id, n) == (is_legal ? TL_OK : TL_EINVAL);
}

static int reg(unsigned id, uint64_t hash)
{
    tl_status due = TL_OK;
    if (!want[id].ref || want[id].fill != TOKENS || hash == 0)
        due = TL_EINVAL;
    else if (want[id].hash != hash && (want[id].hash || holder(hash) >= 0))
        due = TL_EBUSY;
    else
        want[id].hash = hash;
    return tl_kv_register(pool, id, hash) == due;
}

static int lookup(uint64_t hash)
{
    uint32_t id = 99;
    int at = holder(hash);
    tl_status got = tl_kv_lookup(pool, hash, &id);
    if (at < 0)
        return got == TL_ENOTFOUND && id == 99;
    want[at].ref++;
    return got == TL_OK && id == (unsigned)at;
}

static int step(void)
{
    unsigned id = below(N);
    uint64_t hash = below(HASHES) * UINT64_C(0x100000001);
    switch (below(10)) {
    case 0:
        return alloc();
    case 1:
    case 2:
    case 3:
        return unref(id);
    case 4:
        return cow(id);
    case 5:
        return fill(id, below(2) ? TOKENS : below(TOKENS + 2));
    case 6:
    case 7:
        return reg(id, hash);
    case 8:
        return lookup(hash);
    default:
        tl_kv_ref(pool, id);
        want[id].ref += want[id].ref > 0;
        return 1;
    }
}

int main(void)
{
    const tl_kv_cfg cfg = {N, TOKENS, 2, 1, 2, TL_F16, 1};
    if (tl_kv_pool_create(&cfg, &pool) != TL_OK)
        return 1;
    for (int i = 0; i < 100000; i++) {
        tl_kv_stats s;
        if (!step())
            return 2;
        tl_kv_stats_get(pool, &s);
        if (s.free != count(0) || s.cached != count(1) || s.free + s.used + s.cached != N)
            return 3;
        if (s.evictions != evictions)
            return 4;
        for (unsigned id = 0; id < N; id++)
            if (tl_kv_fill(pool, id) != (want[id].ref ? want[id].fill : 0))
                return 5;
    }
    tl_kv_pool_destroy(pool);
    puts(evictions > 1000 ? "legal" : "too few evictions");
    return 0;
}
"""

# Headers and records with a right checksum, each in a piece of memory of its own length.
HOSTILE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tinyllm/kv_pool.h"

static unsigned state = 11;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

static void put(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t number(void)
{
    static const uint32_t some[] = {0,          1,          2,          3,         0xFFFF, 0x10000,
                                    0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF};
    return some[below(10)];
}

int main(void)
{
    const tl_kv_cfg cfg = {6, 2, 1, 1, 2, TL_F16, 1};
    tl_kv_pool *p;
    unsigned seen[16] = {0};
    if (tl_kv_pool_create(&cfg, &p) != TL_OK)
        return 1;
    for (int i = 0; i < 60000; i++) {
        unsigned n = below(4);
        size_t len = 32 + 28 * n + (below(8) ? 0 : below(40));
        uint8_t *envelope = malloc(len);
        uint32_t dims[] = {n, 2, 1, 1, 2};
        if (!envelope)
            return 2;
        if (below(2))
            dims[below(5)] = number();
        if (!below(4))
            for (int k = 1; k < 5; k++)
                dims[k] = number();
        for (size_t k = 0; k < len; k++)
            envelope[k] = (uint8_t)below(256);
        memcpy(envelope, "TLKV\1\0\1", 8);
        for (int k = 0; k < 5; k++)
            put(envelope + 8 + 4 * k, dims[k]);
        for (unsigned k = 0; k < n; k++) {
            memset(envelope + 28 + 28 * k, 0, 8);
            envelope[28 + 28 * k] = (uint8_t)below(3);
            put(envelope + 36 + 28 * k, below(8) ? 2 : number());
        }
        put(envelope + len - 4, tl_crc32c(envelope, len - 4, 0));
        uint32_t ids[4];
        tl_kv_stats before, after;
        tl_kv_stats_get(p, &before);
        tl_status s = tl_kv_import(p, envelope, len, ids);
        tl_kv_stats_get(p, &after);
        if (s != TL_OK && memcmp(&before, &after, sizeof before) != 0)
            return 3;
        if (s == TL_OK && after.used != before.used + n)
            return 4;
        for (unsigned k = 0; s == TL_OK && k < n; k++)
            if (below(2))
                tl_kv_unref(p, ids[k]);
        if (s == TL_EFULL) {
            tl_kv_pool_destroy(p);
            if (tl_kv_pool_create(&cfg, &p) != TL_OK)
                return 5;
        }
        seen[s]++;
        free(envelope);
    }
    tl_kv_pool_destroy(p);
    for (int i = 0; i < 16; i++)
        if (seen[i] > 100)
            printf("%s ", tl_status_str(i));
    return 0;
}
"""

CHECKSUMS = r"""
#include <stdio.h>
#include "kv_pool.c"

int main(void)
{
    static uint8_t bytes[FAST_CRC + 300];
    uint32_t slow = ~0u;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * i * 31 + (i >> 3));
    for (size_t n = 0; n <= sizeof bytes; n++) { /* fast from FAST_CRC on, with 0 to 7 bytes behind */
        if (tl_crc32c(bytes, n, 0) != ~slow)
            return 1;
        if (n < sizeof bytes)
            slow = crc_byte(slow, bytes[n]);
    }
    for (size_t at = 0; at <= 300; at++) { /* any alignment, and going on */
        uint32_t first = tl_crc32c(bytes, at, 0);
        if (tl_crc32c(bytes + at, sizeof bytes - at, first) != ~slow)
            return 2;
    }
    puts("same");
    return 0;
}
"""

SIZES = r"""
#include <inttypes.h>
#include <stdio.h>
#include "kv_pool.c"

int main(void)
{
    static const uint32_t some[] = {%s};
    const int n = sizeof some / sizeof *some;
    for (int i = 0; i < n * n * n * n; i++) {
        int j = i / (n * n);
        size_t p = payload_bytes(some[j / n], some[j %% n], some[i / n %% n], some[i %% n]);
        printf("%%zu", p);
        for (int k = 0; k < n; k++)
            printf(" %%zu", p == 0 ? 0 : envelope_bytes(some[k], p));
        printf("\n");
    }
    return 0;
}
"""
SOME = (0, 1, 3, 65536, 2**31 - 1, 2**31 + 1, 2**32 - 1)


@pytest.fixture(params=ways("kv_pool", ("kv_pool.c",)), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return (*request.param, *NEEDS)


def test_every_choice_under_random_use_is_legal(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, RANDOM, *files) == "legal\n"


def test_no_sealed_envelope_reads_or_writes_outside(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, HOSTILE, *files).split() == ["TL_OK", "TL_ESHAPE", "TL_EFULL", "TL_EFORMAT"]


def test_the_fast_checksum_is_the_plain_one(tmp_path: Path) -> None:
    assert run(tmp_path, CHECKSUMS, *NEEDS) == "same\n"


def test_sizes_are_exact_or_refused(tmp_path: Path) -> None:
    said = run(tmp_path, SIZES % ", ".join(f"{n}u" for n in SOME), *NEEDS).splitlines()
    limit = 2**64
    for dims, line in zip(itertools.product(SOME, repeat=4), said, strict=True):
        payload = 4 * dims[0] * dims[1] * dims[2] * dims[3]
        due = [payload if payload < limit else 0]
        for n in SOME:
            bytes_ = 32 + n * (12 + payload)
            due.append(bytes_ if due[0] and bytes_ < limit and payload + 12 < limit else 0)
        assert list(map(int, line.split())) == due, dims


def test_layouts_are_those_of_the_contract(tmp_path: Path) -> None:
    run(tmp_path, LAYOUT)


def test_the_file_shows_the_functions_of_the_page_only() -> None:
    shown = native.symbols(native.Builder(ROOT).object("kv_pool.c", (SRC / "kv_pool.c").read_text()))
    declared = (ROOT / "csrc" / "include" / "tinyllm" / "kv_pool.h").read_text()
    assert len(shown) == 19
    assert all(f"{name}(" in declared for name in shown)
