"""The reference of `swiss_map`: hashes of the page, masks of all pairs of bytes, its invariants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
GIVEN = (SRC / "error_slot.c", SRC / "abi.c")

MASKS = r"""
#include <inttypes.h>
#include <stdio.h>
#include "swiss_map.c"

/* The bytes that a mask marks, bit i for byte i. */
static unsigned marked(uint64_t mask)
{
    unsigned bytes = 0;
    for (; mask != 0; mask &= mask - 1)
        bytes |= 1u << first_slot(mask);
    return bytes;
}

/* What the masks should say, one byte at a time.  The one false mark that the page allows is of a full byte
 * above a true one, in the plain form alone. */
static int is_right(const uint64_t *group, uint64_t f)
{
    unsigned same = 0, empty = 0, is_free = 0, allowed = 0;
    for (int i = 0; i < GROUP; i++) {
        uint64_t byte = group[i / 8] >> (i % 8 * 8) & 0xFF;
        uint64_t below = i % 8 ? group[i / 8] >> (i % 8 * 8 - 8) & 0xFF : EMPTY;
        same |= (unsigned)(byte == f) << i;
        empty |= (unsigned)(byte == EMPTY) << i;
        is_free |= (unsigned)(byte >= EMPTY) << i;
        allowed |= (unsigned)(byte == (f ^ 1) && below == f) << i;
    }
#ifdef TL_SSE2
    allowed = 0;
#endif
    return (marked(match(group, f)) & ~allowed) == same && marked(match_empty(group)) == empty &&
           marked(match_free(group)) == is_free;
}

int main(void)
{
    for (int first = 0; first < GROUP - 1; first += 6)
        for (unsigned low = 0; low < 130; low++)
            for (unsigned high = 0; high < 130; high++) {
                uint64_t a = low == 129 ? DELETED : low, b = high == 129 ? DELETED : high;
                int shift = first % 8 * 8; /* 0 or 48 in the first word, 32 in the second */
                _Alignas(16) uint64_t group[2] = {ALL_EMPTY, ALL_EMPTY};
                group[first / 8] = (a | b << 8) << shift | (ALL_EMPTY & ~((uint64_t)0xFFFF << shift));
                for (uint64_t f = 0; f < 128; f++)
                    if (!is_right(group, f))
                        return 1;
            }
    const uint64_t said[] = {hash(0), hash(1), hash(2), hash(42), hash(UINT64_MAX)};
    for (int i = 0; i < 5; i++)
        printf("%016" PRIx64 "\n", said[i]);
#ifndef TL_SSE2
    const uint64_t bytes = 0x802A05FE2A13802A;
    printf("%016" PRIx64 "\n%016" PRIx64 "\n%016" PRIx64 "\n", match_word(bytes, 0x2A), empty_word(bytes),
           bytes & HIGH_BITS);
#endif
    return 0;
}
"""

INSIDE = r"""
#include <stdio.h>
#include "swiss_map.c"

static unsigned state = 5;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

static int is_whole(const tl_map *m)
{
    size_t full = 0, deleted = 0;
    for (size_t slot = 0; slot < GROUP * m->groups; slot++) {
        uint64_t byte = ctrl_get(m, slot);
        deleted += byte == DELETED;
        if (byte >= EMPTY)
            continue;
        full++;
        if (byte != fingerprint(hash(m->slots[slot].key)) || find(m, m->slots[slot].key) != &m->slots[slot])
            return 0; /* a wrong byte, a key that is hidden, or one that is there twice */
    }
    return full == m->len && full + deleted == m->used && m->used <= GROUP_KEYS * m->groups;
}

int main(void)
{
    for (unsigned range = 10; range <= 400; range += 39) {
        tl_map *m;
        if (tl_map_create(range / 3, &m) != TL_OK)
            return 1;
        for (int i = 0; i < 3000; i++) {
            uint64_t k = below(range);
            if (below(5) < 3 ? tl_map_put(m, k, k) != TL_OK : tl_map_del(m, k) < 0)
                return 2;
            if (!is_whole(m))
                return 3;
        }
        tl_map_destroy(m);
    }
    puts("whole");
    return 0;
}
"""

# A direct table of the keys does the same; the keys move, so that the tables fill with deleted slots.
RANDOM = r"""
#include <stdio.h>
#include "tinyllm/ds.h"

enum { KEYS = 6000 };

static uint64_t values[KEYS];
static unsigned char there[KEYS];
static unsigned state = 9;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

int main(void)
{
    tl_map *m;
    size_t len = 0;
    if (tl_map_create(0, &m) != TL_OK)
        return 1;
    for (unsigned i = 0; i < 300000; i++) {
        unsigned at = (i / 60 + below(1 + i / 300)) % KEYS;
        uint64_t k = (uint64_t)at * 0x100000001, v = 77;
        unsigned what = below(10);
        if (what < 4) {
            len += !there[at];
            there[at] = 1;
            values[at] = i;
            if (tl_map_put(m, k, i) != TL_OK)
                return 2;
        } else if (what < 7) {
            if (tl_map_get(m, k, &v) != there[at] || v != (there[at] ? values[at] : 77))
                return 3;
        } else {
            if (tl_map_del(m, k) != there[at])
                return 4;
            len -= there[at];
            there[at] = 0;
        }
        if (tl_map_len(m) != len)
            return 5;
    }
    tl_map_destroy(m);
    puts("same");
    return 0;
}
"""


@pytest.fixture(params=ways("swiss_map", ("swiss_map.c",)), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_random_use_is_that_of_a_direct_table(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, RANDOM, *files, *GIVEN) == "same\n"


@pytest.mark.parametrize("more", [(), ("-DTL_PLAIN",)], ids=["fast", "plain"])
def test_hashes_and_masks_are_those_of_the_page(more: tuple[str, ...], tmp_path: Path) -> None:
    hashes = [
        "0000000000000000", "5692161d100b05e5", "dbd238973a2b148a", "a759ea27d4727622", "b4d055fcf2cbbd7b",
    ]  # fmt: skip
    words = ["0080000080000080", "8000000000008000", "8000008000008000"]
    said = run(tmp_path, MASKS, *GIVEN, more=more).split()
    assert said[:5] == hashes
    assert said[5:] in ([], words) and (said[5:] or not more)


def test_every_key_is_found_once_and_every_slot_is_counted(tmp_path: Path) -> None:
    assert run(tmp_path, INSIDE, *GIVEN) == "whole\n"
