"""The reference of `lru`: layouts, the macro, a plain array under random use, what its files show."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader import native
from tests.c_programs import ROOT, SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler

LAYOUT = """
#include "tinyllm/ds.h"
_Static_assert(sizeof(tl_list_node) == 16 && offsetof(tl_list_node, prev) == 0, "node");
_Static_assert(offsetof(tl_list_node, next) == 8, "node");
_Static_assert(sizeof(tl_lru) == 24 && offsetof(tl_lru, head) == 0 && offsetof(tl_lru, len) == 16, "lru");

struct owner {
    char first;
    tl_list_node by_age;
    double middle;
    tl_list_node by_size;
};

int main(void)
{
    struct owner o = {0};
    tl_list_node *age = &o.by_age, *size = &o.by_size;
    struct owner *first = TL_CONTAINER_OF(age, struct owner, by_age);
    return first != &o || TL_CONTAINER_OF(size, struct owner, by_size) != &o;
}
"""

# An array in the order of use, oldest first, does the same slowly; both circles are walked after every step.
RANDOM = r"""
#include <stdio.h>
#include "tinyllm/ds.h"

enum { N = 12 };

static tl_list_node nodes[N];
static int order[N], n;
static unsigned state = 3;

static unsigned below(unsigned limit)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % limit;
}

static void drop(int which)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (order[i] != which)
            order[kept++] = order[i];
    n = kept;
}

static int is_same(const tl_lru *l)
{
    const tl_list_node *forward = l->head.next, *back = l->head.prev;
    for (int i = 0; i < n; i++, forward = forward->next, back = back->prev)
        if (forward != &nodes[order[i]] || back != &nodes[order[n - 1 - i]])
            return 0;
    int free = 0;
    for (int i = 0; i < N; i++)
        free += nodes[i].prev == NULL && nodes[i].next == NULL;
    return forward == &l->head && back == &l->head && l->len == (size_t)n && free == N - n;
}

int main(void)
{
    tl_lru l;
    tl_lru_init(&l);
    for (int i = 0; i < 200000; i++) {
        int which = (int)below(N);
        unsigned what = below(8);
        if (what < 4) {
            tl_lru_touch(&l, &nodes[which]);
            drop(which);
            order[n++] = which;
        } else if (what < 6) {
            tl_lru_remove(&l, &nodes[which]);
            drop(which);
        } else {
            const tl_list_node *oldest = n > 0 ? &nodes[order[0]] : NULL;
            if (tl_lru_pop_oldest(&l) != oldest)
                return 1;
            if (n > 0)
                drop(order[0]);
        }
        if (!is_same(&l))
            return 2;
    }
    puts("same");
    return 0;
}
"""


@pytest.fixture(params=ways("lru", ("list.c", "lru.c")), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_random_use_is_that_of_a_plain_array(files: tuple[Path, ...], tmp_path: Path) -> None:
    # Nothing else is linked: the unit needs no allocator and no error slot.
    assert run(tmp_path, RANDOM, *files) == "same\n"


def test_layouts_and_the_macro_are_those_of_the_contract(tmp_path: Path) -> None:
    run(tmp_path, LAYOUT)


def test_each_file_shows_the_functions_of_the_page_only() -> None:
    builder = native.Builder(ROOT)
    shown = {
        file: native.symbols(builder.object(file, (SRC / file).read_text())) for file in ("list.c", "lru.c")
    }
    assert shown == {
        "list.c": {"tl_lru_init", "tl_lru_remove", "tl_lru_pop_oldest"},
        "lru.c": {"tl_lru_touch"},
    }
