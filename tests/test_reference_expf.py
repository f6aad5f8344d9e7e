"""The reference of `expf`: a sweep of every range in ulp, every subnormal result, the ends float by float."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler

# The worst error in ulp where e^x is normal, then in units of 2^-149 below; from the array form in place.
SWEEP = r"""
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tinyllm/numerics.h"

enum { ROW = 1 << 12 };

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

/* The worst error over every `stride`-th float from one bit pattern to another, both included. */
static double worst(uint32_t from, uint32_t to, uint32_t stride)
{
    double found = 0;
    for (uint64_t u = from; u <= to; u += (uint64_t)ROW * stride) {
        int n = 0;
        while (n < ROW && u + (uint64_t)n * stride <= to) {
            row[n] = float_of((uint32_t)(u + (uint64_t)n * stride));
            n++;
        }
        row[n] = 7.0f;
        tl_exp_f32(row, row, n);
        for (int i = 0; i < n; i++) {
            double exact = exp((double)float_of((uint32_t)(u + (uint64_t)i * stride)));
            uint64_t power;
            memcpy(&power, &exact, sizeof power);
            power = (power & (uint64_t)0x7FF << 52) - ((uint64_t)23 << 52); /* 2^(floor(log2 exact) - 23) */
            double ulp;
            memcpy(&ulp, &power, sizeof ulp);
            double error = fabs((double)row[i] - exact) / (exact < 0x1p-126 ? 0x1p-149 : ulp);
            if (exact < 0x1p-126 && bits_of(row[i]) == 0)
                error = 0;
            if (!(error <= found) || signbit(row[i])) /* also for NaN */
                found = signbit(row[i]) ? HUGE_VAL : error;
        }
        if (row[n] != 7.0f)
            return HUGE_VAL;
    }
    return found;
}

static double largest_of(double a, double b)
{
    return a > b ? a : b;
}

int main(void)
{
    uint32_t largest = bits_of(0x1.62e42ep+6f), smallest = bits_of(-0x1.9fe368p+6f);
    uint32_t last_normal = bits_of(-0x1.5d589ep+6f), minus = 0x80000000u;
    double up = largest_of(worst(0, largest, 253), worst(largest - 5000, largest, 1));
    double down = largest_of(worst(minus, last_normal, 253), worst(last_normal - 5000, last_normal, 1));
    printf("%.3f %.3f\n", largest_of(up, down), worst(last_normal + 1, smallest, 1));
    for (uint32_t u = largest + 1; u <= 0x7F800000; u += u < largest + 5000 ? 1 : 0x7FF)
        if (bits_of(tl_expf(float_of(u))) != 0x7F800000)
            return 1;
    for (uint32_t u = smallest + 1; u <= 0xFF800000; u += u < smallest + 5000 ? 1 : 0x7FF)
        if (bits_of(tl_expf(float_of(u))) != 0)
            return 2;
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 65521) {
        row[0] = float_of((uint32_t)u);
        float alone = tl_expf(row[0]);
        int n = 1 + (int)(u % 37);
        for (int i = 1; i < n; i++)
            row[i] = row[0];
        tl_exp_f32(row, row, n);
        for (int i = 0; i < n; i++)
            if (isnan(alone) ? !isnan(row[i]) : bits_of(row[i]) != bits_of(alone))
                return 3;
    }
    return 0;
}
"""


@pytest.mark.parametrize("files", ways("expf", ("expf.c",)), ids=named)
def test_two_ulp_in_the_normal_range_and_one_step_below(files: tuple[Path, ...], tmp_path: Path) -> None:
    # Without a sanitizer: a clone for a vector unit is what is to be run.
    normal, subnormal = map(float, run(tmp_path, SWEEP, *files, sanitize=False).split())
    assert 0.49 < normal <= 2
    assert subnormal <= 1


@pytest.mark.parametrize("more", [(), ("-DTL_PLAIN",)], ids=["clones", "plain"])
def test_the_worst_error_is_the_pages(more: tuple[str, ...], tmp_path: Path) -> None:
    normal, subnormal = map(float, run(tmp_path, SWEEP, SRC / "expf.c", more=more, sanitize=False).split())
    assert 1.15 < normal < 1.25
    assert 0.75 < subnormal < 0.8  # of 2^-149, over all of them: the polynomial errs before the last rounding


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("nm")), reason="make or nm is not installed")
def test_the_makefile_builds_it_and_all_else_is_static(tmp_path: Path) -> None:
    target = str(tmp_path / "expf.o")
    subprocess.run(
        ["make", "-s", "-C", str(SRC.parent), f"BUILD={tmp_path}", target], check=True, timeout=120
    )
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", target], capture_output=True, text=True, check=True, timeout=60
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == {"tl_expf", "tl_exp_f32"}
