"""The reference of `topk`: with and without clones, NaN in every place, all short rows, long ones sorted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
SLOT = SRC / "error_slot.c"

# A row of n digits below base, every one of them; the plain answer picks the first best again and again.
SHORT = r"""
#include <stdio.h>
#include "tinyllm/topk.h"

static const float digits[] = {-0.0f, 0.0f, 1.0f, -1.0f};

static int is_right(const float *x, int64_t n, int64_t k)
{
    int32_t idx[8];
    float val[8];
    int taken[8] = {0};
    if (tl_topk_f32(x, n, k, idx, val) != TL_OK)
        return 0;
    for (int64_t p = 0; p < k; p++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || x[i] > x[best]))
                best = i;
        taken[best] = 1;
        int same_sign = (1 / (double)val[p] < 0) == (1 / (double)x[best] < 0);
        if (idx[p] != best || val[p] != x[best] || !same_sign)
            return 0;
    }
    return 1;
}

int main(void)
{
    long rows = 0;
    for (int64_t n = 0, count = 1; n <= 7; n++, count *= 4)
        for (int64_t code = 0; code < count; code++, rows++) {
            float x[8] = {0};
            int64_t rest = code;
            for (int64_t i = 0; i < n; i++, rest /= 4)
                x[i] = digits[rest % 4];
            for (int64_t k = 0; k <= n; k++)
                if (!is_right(x, n, k))
                    return 1;
        }
    printf("%ld rows", rows);
    return 0;
}
"""

LONG = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tinyllm/topk.h"

enum { MOST = 5000 };

static float x[MOST], val[MOST];
static int32_t idx[MOST], sorted[MOST];
static unsigned state = 11;

static unsigned below(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 8) % n;
}

static int in_order(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (x[i] != x[j])
        return x[i] > x[j] ? -1 : 1;
    return (i > j) - (i < j);
}

static int differs(int n, int k, unsigned range)
{
    for (int i = 0; i < n; i++) {
        x[i] = (float)below(range) - (float)(range / 2);
        sorted[i] = i;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, in_order);
    if (tl_topk_f32(x, n, k, idx, val) != TL_OK || memcmp(idx, sorted, (size_t)k * sizeof *idx) != 0)
        return 1;
    for (int p = 0; p < k; p++)
        if (val[p] != x[sorted[p]])
            return 1;
    return 0;
}

int main(void)
{
    for (int i = 0; i < 400; i++) {
        int n = 1 + (int)below(i % 10 ? 300 : MOST);
        if (differs(n, (int)below((unsigned)n + 1), i % 2 ? 5 : 100000))
            return 1;
    }
    for (int n = 1; n <= 200; n++)
        for (int at = 0; at < n; at++) {
            memset(x, 0, sizeof x);
            memset(idx, 1, sizeof idx);
            x[at] = at % 2 ? NAN : -NAN;
            int k = at % 3 ? n / 2 : 0;
            if (tl_topk_f32(x, n, k, idx, val) != TL_EINVAL || idx[0] != 0x01010101)
                return 2;
        }
    puts("sorted");
    return 0;
}
"""


@pytest.fixture(params=ways("topk", ("topk.c",)), ids=named)
def files(request: pytest.FixtureRequest) -> tuple[Path, ...]:
    return tuple(request.param)


def test_all_rows_of_up_to_seven_values_of_four(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, SHORT, *files, SLOT) == "21845 rows"


def test_long_rows_are_a_prefix_of_a_sort_and_no_nan_is_missed(
    files: tuple[Path, ...], tmp_path: Path
) -> None:
    assert run(tmp_path, LONG, *files, SLOT) == "sorted\n"


@pytest.mark.parametrize("more", [(), ("-DTL_PLAIN",)], ids=["clones", "plain"])
def test_the_fast_path_and_the_plain_one_agree(more: tuple[str, ...], tmp_path: Path) -> None:
    # Without a sanitizer: a clone for a vector unit is what is to be run.
    assert run(tmp_path, LONG, SRC / "topk.c", SLOT, more=more, sanitize=False) == "sorted\n"
