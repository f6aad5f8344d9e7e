"""The reference of `rsqrt`: all floats of [1, 4), all subnormals, every exponent, with and without clones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler

# The worst error in ulp over all floats of [1, 4) and over all subnormals, from the array form in place;
# then R3 from one exponent to the next but one, and the scalar form against the array form.
SWEEP = r"""
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tinyllm/numerics.h"

enum { ROW = 1 << 14 };

static float row[ROW + 1];

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* The worst error in ulp over the floats from one bit pattern to before another. */
static double worst(uint32_t from, uint32_t to)
{
    double found = 0;
    for (uint32_t u = from; u < to; u += ROW) {
        int n = to - u < ROW ? (int)(to - u) : ROW;
        for (int i = 0; i < n; i++)
            row[i] = float_of(u + (uint32_t)i);
        row[n] = 7.0f;
        tl_rsqrt_f32(row, row, n);
        for (int i = 0; i < n; i++) {
            double exact = 1.0 / sqrt((double)float_of(u + (uint32_t)i));
            uint64_t power;
            memcpy(&power, &exact, sizeof power);
            power = (power & (uint64_t)0x7FF << 52) - ((uint64_t)23 << 52); /* 2^(floor(log2 exact) - 23) */
            double ulp;
            memcpy(&ulp, &power, sizeof ulp);
            double error = fabs((double)row[i] - exact) / ulp;
            if (!(error <= found)) /* also for NaN */
                found = error;
        }
        if (row[n] != 7.0f)
            return HUGE_VAL;
    }
    return found;
}

int main(void)
{
    printf("%.5f ", worst(0x3F800000, 0x40800000));
    printf("%.5f\n", worst(1, 0x00800000));
    for (uint32_t e = 1; e <= 252; e++)
        for (uint32_t m = 0; m < 1u << 23; m += 8191) {
            uint32_t u = e << 23 | m;
            if (bits_of(tl_rsqrtf(float_of(u + (2u << 23)))) != bits_of(tl_rsqrtf(float_of(u)) / 2.0f))
                return 1;
        }
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 65521) {
        row[0] = float_of((uint32_t)u);
        float alone = tl_rsqrtf(row[0]);
        int n = 1 + (int)(u % 37);
        for (int i = 1; i < n; i++)
            row[i] = row[0];
        tl_rsqrt_f32(row, row, n);
        for (int i = 0; i < n; i++)
            if (isnan(alone) ? !isnan(row[i]) : bits_of(row[i]) != bits_of(alone))
                return 2;
    }
    return 0;
}
"""


@pytest.mark.parametrize("files", ways("rsqrt", ("rsqrt.c",)), ids=named)
def test_two_ulp_over_all_of_one_to_four_and_all_subnormals(files: tuple[Path, ...], tmp_path: Path) -> None:
    # Without a sanitizer: there are 2^24 floats, and a clone for a vector unit is what is to be run.
    normal, subnormal = map(float, run(tmp_path, SWEEP, *files, sanitize=False).split())
    assert 0.49 < normal <= 2
    assert 0.49 < subnormal <= 2


@pytest.mark.parametrize("more", [(), ("-DTL_PLAIN",)], ids=["clones", "plain"])
def test_the_worst_errors_are_those_of_the_page(more: tuple[str, ...], tmp_path: Path) -> None:
    out = run(tmp_path, SWEEP, SRC / "rsqrt.c", more=more, sanitize=False)
    assert out == "0.50038 0.50032\n"


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("nm")), reason="make or nm is not installed")
def test_the_makefile_builds_it_and_all_else_is_static(tmp_path: Path) -> None:
    target = str(tmp_path / "rsqrt.o")
    subprocess.run(
        ["make", "-s", "-C", str(SRC.parent), f"BUILD={tmp_path}", target], check=True, timeout=120
    )
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", target], capture_output=True, text=True, check=True, timeout=60
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == {"tl_rsqrtf", "tl_rsqrt_f32"}
