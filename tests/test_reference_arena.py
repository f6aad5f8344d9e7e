"""The reference of `arena`: layouts, its invariant under random use, the steady state, the default hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
SLOT = SRC / "error_slot.c"

LAYOUT = """
#include "tinyllm/arena.h"
_Static_assert(sizeof(tl_allocator) == 24 && offsetof(tl_allocator, free) == 8, "allocator");
_Static_assert(offsetof(tl_allocator, alloc) == 0 && offsetof(tl_allocator, user) == 16, "allocator");
_Static_assert(sizeof(tl_arena_mark) == 16 && offsetof(tl_arena_mark, block) == 8, "mark");
_Static_assert(sizeof(tl_arena_stats) == 32 && offsetof(tl_arena_stats, bytes_reserved) == 8, "stats");
_Static_assert(offsetof(tl_arena_stats, high_water) == 16, "stats");
_Static_assert(offsetof(tl_arena_stats, n_blocks) == 24, "stats");
int main(void)
{
    return 0;
}
"""

INSIDE = r"""
#include <stdio.h>
#include "arena.c"

static unsigned state = 1;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

static int is_whole(const tl_arena *a, size_t high)
{
    size_t sum = a->offset, reserved = 0;
    for (size_t i = 0; i < a->current; i++)
        sum += a->blocks[i].reached;
    for (size_t i = 0; i < a->n_blocks; i++) {
        reserved += a->blocks[i].size;
        for (size_t j = 0; j < i; j++)
            if (a->blocks[i].base == a->blocks[j].base)
                return 0;
    }
    int fitting = a->n_blocks == 0 || (a->current < a->n_blocks && a->offset <= a->size &&
                                       a->base == a->blocks[a->current].base);
    return sum == used(a) && reserved == a->reserved && highest(a) == high && fitting &&
           a->n_blocks <= a->cap_blocks;
}

int main(void)
{
    for (size_t size = 64; size <= 512; size *= 2) {
        tl_arena *a;
        if (tl_arena_create(size, &a) != TL_OK)
            return 1;
        tl_arena_mark marks[16];
        size_t then[16];
        size_t n = 0, high = 0;
        for (int i = 0; i < 4000; i++) {
            unsigned what = below(4);
            if (what == 0 && n < 16) {
                marks[n] = tl_arena_mark_get(a);
                then[n++] = used(a);
            } else if (what == 1 && n > 0) {
                tl_arena_reset_to(a, marks[--n]);
                if (used(a) != then[n])
                    return 2;
            } else {
                size_t bytes = 1 + below(700), align = (size_t)1 << below(9);
                unsigned char *p = tl_arena_alloc(a, bytes, align);
                if (!p || ((uintptr_t)p & (align - 1)) != 0)
                    return 3;
                memset(p, i & 0xFF, bytes);
                high = used(a) > high ? used(a) : high;
            }
            if (!is_whole(a, high))
                return 4;
        }
        tl_arena_destroy(a);
    }
    puts("whole");
    return 0;
}
"""

STEADY = r"""
#include <stdio.h>
#include <stdlib.h>
#include "tinyllm/arena.h"

static long calls;

static void *counted(void *user, size_t n, size_t align)
{
    (void)user;
    calls++;
    return aligned_alloc(align < 16 ? 16 : align, (n + 4095) & ~(size_t)4095);
}

static void released(void *user, void *p)
{
    (void)user;
    calls++;
    free(p);
}

int main(void)
{
    const size_t sizes[] = {1000, 3000, 64, 5000, 200, 4000};
    tl_allocator hook = {counted, released, NULL};
    tl_set_allocator(&hook);
    tl_arena *a;
    if (tl_arena_create(4096, &a) != TL_OK)
        return 1;
    tl_arena_mark start = tl_arena_mark_get(a);
    void *seen[6] = {NULL};
    for (int step = 0; step < 1000; step++) {
        if (step == 1)
            calls = 0;
        for (int i = 0; i < 6; i++) {
            void *p = tl_arena_alloc(a, sizes[i], 0);
            if (!p || (step > 0 && p != seen[i]))
                return 2;
            seen[i] = p;
        }
        tl_arena_reset_to(a, start);
    }
    printf("%ld calls", calls);
    tl_arena_destroy(a);
    return 0;
}
"""

DEFAULT = r"""
#include <stdio.h>
#include <string.h>
#include "tinyllm/abi.h"

int main(void)
{
    for (size_t align = 1; align <= 65536; align *= 2)
        for (size_t n = 1; n < 300; n += 7) {
            unsigned char *p = tl_alloc(n, align);
            if (!p || ((uintptr_t)p & (align - 1)) != 0)
                return 1;
            memset(p, 0xFF, n);
            tl_free(p);
            if (tl_alloc(SIZE_MAX - n + 1, align) != NULL && align > n)
                return 2;
        }
    puts("aligned");
    return 0;
}
"""


@pytest.fixture(params=ways("arena", ("abi.c", "arena.c")), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_after_the_first_step_no_call_reaches_the_hook(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, STEADY, *files, SLOT) == "0 calls"


def test_the_default_hook_aligns_and_refuses_what_overflows(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, DEFAULT, *files, SLOT) == "aligned\n"


def test_layouts_are_those_of_the_contract(tmp_path: Path) -> None:
    run(tmp_path, LAYOUT)


def test_the_invariant_of_the_blocks_holds_under_random_use(tmp_path: Path) -> None:
    assert run(tmp_path, INSIDE, SRC / "abi.c", SLOT) == "whole\n"
