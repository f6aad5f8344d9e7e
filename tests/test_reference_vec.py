"""The reference of `vec`: layout, what doubling costs, elements of every size against a plain array."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
GIVEN = (SRC / "error_slot.c", SRC / "abi.c")

LAYOUT = """
#include "tinyllm/ds.h"
_Static_assert(sizeof(tl_vec) == 32 && offsetof(tl_vec, data) == 0, "vec");
_Static_assert(offsetof(tl_vec, len) == 8 && offsetof(tl_vec, cap) == 16, "vec");
_Static_assert(offsetof(tl_vec, elem) == 24, "vec");
int main(void)
{
    return 0;
}
"""

COST = r"""
#include <stdio.h>
#include <stdlib.h>
#include "tinyllm/ds.h"

static long calls;
static size_t asked;

static void *counted(void *user, size_t n, size_t align)
{
    (void)user;
    calls++;
    asked += n;
    return aligned_alloc(align, (n + align - 1) / align * align);
}

static void released(void *user, void *p)
{
    (void)user;
    free(p);
}

int main(void)
{
    tl_allocator hook = {counted, released, NULL};
    tl_set_allocator(&hook);
    tl_vec v;
    if (tl_vec_init(&v, sizeof(uint64_t)) != TL_OK)
        return 1;
    for (uint64_t i = 0; i < 100000; i++)
        if (tl_vec_push(&v, &i) != TL_OK)
            return 2;
    for (uint64_t i = 0; i < 100000; i++)
        if (*(uint64_t *)tl_vec_at(&v, i) != i)
            return 3;
    /* All but the last storage was full when it was copied. */
    size_t copied = asked / sizeof(uint64_t) - v.cap;
    printf("%ld calls, room for %zu, fewer than 2n copies: %d", calls, v.cap, copied < 200000);
    tl_vec_free(&v);
    return 0;
}
"""

SIZES = r"""
#include <stdio.h>
#include <string.h>
#include "tinyllm/ds.h"

static unsigned state = 7;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

int main(void)
{
    static unsigned char plain[300 * 70], x[70];
    for (size_t elem = 1; elem <= 70; elem++) {
        tl_vec v;
        size_t len = 0;
        if (tl_vec_init(&v, elem) != TL_OK)
            return 1;
        while (len < 300) {
            const void *from = x;
            if (len > 0 && below(3) == 0) { /* an element of the vector itself */
                size_t i = below((unsigned)len);
                from = tl_vec_at(&v, i);
                memcpy(x, plain + i * elem, elem);
            } else {
                for (size_t i = 0; i < elem; i++)
                    x[i] = (unsigned char)below(256);
            }
            memcpy(plain + len++ * elem, x, elem);
            if (tl_vec_push(&v, from) != TL_OK || v.len != len || v.cap < len)
                return 2;
            if (below(20) == 0 && tl_vec_reserve(&v, below(400)) != TL_OK)
                return 3;
        }
        if (memcmp(v.data, plain, len * elem) != 0)
            return 4;
        tl_vec_free(&v);
    }
    puts("equal");
    return 0;
}
"""


@pytest.fixture(params=ways("vec", ("vec.c",)), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_a_hundred_thousand_pushes_make_sixteen_requests(files: tuple[Path, ...], tmp_path: Path) -> None:
    said = run(tmp_path, COST, *files, *GIVEN)
    assert said == "16 calls, room for 131072, fewer than 2n copies: 1"


def test_elements_of_every_size_are_those_of_a_plain_array(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, SIZES, *files, *GIVEN) == "equal\n"


def test_the_layout_is_that_of_the_contract(tmp_path: Path) -> None:
    run(tmp_path, LAYOUT)
