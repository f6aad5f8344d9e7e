"""The reference of `lowp_c`: both sides of the middle of all neighbours, arrays, all floats."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.c_programs import SRC, named, needs_compiler, run, ways

pytestmark = needs_compiler
FORMAT_NAMES = ("e4m3", "e5m2", "bf16", "f16")

# A format by its two functions; what is said of it here is the page's table and no more.
FORMATS = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tinyllm/numerics.h"

typedef struct format {
    const char *name;
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
    void (*encode_all)(const float *, void *, int64_t);
    void (*decode_all)(const void *, float *, int64_t);
    size_t bytes;
    uint32_t sign, largest, beyond, infinity, nan;
    float limit; /* a magnitude from here on, or beyond if it is the largest finite value, does not fit */
} format;

#define WRAP(name, type) \
    static uint32_t encode_##name(float x) { return tl_f32_to_##name(x); } \
    static float decode_##name(uint32_t c) { return tl_##name##_to_f32((type)c); } \
    static void encode_all_##name(const float *x, void *y, int64_t n) { tl_f32_to_##name##_n(x, y, n); } \
    static void decode_all_##name(const void *x, float *y, int64_t n) { tl_##name##_to_f32_n(x, y, n); }
#define OF(name, type) \
    #name, encode_##name, decode_##name, encode_all_##name, decode_all_##name, sizeof(type)

WRAP(e4m3, uint8_t)
WRAP(e5m2, uint8_t)
WRAP(bf16, uint16_t)
WRAP(f16, uint16_t)

static const format formats[] = {
    {OF(e4m3, uint8_t), 0x80, 0x7E, 0x7E, 0x7E, 0x7F, 464},
    {OF(e5m2, uint8_t), 0x80, 0x7B, 0x7B, 0x7C, 0x7F, 61440},
    {OF(bf16, uint16_t), 0x8000, 0x7F7F, 0x7F80, 0x7F80, 0x7FC0, 0x1.FFp+127f},
    {OF(f16, uint16_t), 0x8000, 0x7BFF, 0x7C00, 0x7C00, 0x7E00, 65520},
};

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

static uint32_t code_at(const format *f, const void *y, int64_t i)
{
    return f->bytes == 1 ? ((const uint8_t *)y)[i] : ((const uint16_t *)y)[i];
}

static void need(int holds, const format *f, const char *what, uint32_t at)
{
    if (!holds) {
        printf("%s: %s at 0x%X\n", f->name, what, (unsigned)at);
        exit(1);
    }
}

/* The last float bits that round to the code c: the middle towards the next code belongs to the even one. */
static uint32_t last_of(const format *f, uint32_t c)
{
    double here = f->decode(c), next = c < f->largest ? f->decode(c + 1) : 2 * (double)f->limit - here;
    float middle = (float)((here + next) / 2); /* bf16 among the smallest: half a float32 step, even is c */
    return bits_of(middle) - (c % 2);
}
"""

BOUNDS = (
    FORMATS
    + r"""
static void check(const format *f)
{
    for (uint32_t c = 0; c <= f->largest; c++) {
        uint32_t last = last_of(f, c), above = c < f->largest ? c + 1 : f->beyond;
        need(c == 0 || f->decode(c) > f->decode(c - 1), f, "not larger than the one before", c);
        need(bits_of(f->decode(c | f->sign)) == (bits_of(f->decode(c)) | 0x80000000u), f, "sign", c);
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t sign = s ? f->sign : 0;
            need(f->encode(f->decode(c | sign)) == (c | sign), f, "no fixed point", c);
            need(f->encode(float_of(last | s << 31)) == (c | sign), f, "last float", c);
            need(f->encode(float_of((last + 1) | s << 31)) == (above | sign), f, "first float after", c);
        }
    }
    for (uint32_t s = 0; s < 2; s++) {
        need(f->encode(s ? -INFINITY : INFINITY) == (f->infinity | (s ? f->sign : 0)), f, "infinity", s);
        for (uint32_t u = 0x7F800001; u < 0x80000000u; u += 1021)
            need(f->encode(float_of(u | s << 31)) == f->nan, f, "NaN", u);
    }
    for (uint32_t c = f->largest + 1; c < f->sign; c++)
        for (uint32_t s = 0; s < 2; s++) {
            float v = f->decode(c | (s ? f->sign : 0));
            int is_infinity = f->infinity > f->largest && c == f->infinity;
            need(is_infinity ? isinf(v) && (v < 0) == s : isnan(v), f, "end", c);
        }
}

static float x[300], back[301];
static uint16_t codes[301];

static void check_arrays(const format *f)
{
    for (int n = 0; n < 300; n++) {
        memset(codes, 0xA5, sizeof codes);
        memset(back, 0xA5, sizeof back);
        for (int i = 0; i < n; i++)
            x[i] = float_of((uint32_t)(n * 300 + i) * 2654435761u);
        f->encode_all(x, codes, n);
        f->decode_all(codes, back, n);
        for (int i = 0; i < n; i++) {
            float alone = f->decode(f->encode(x[i]));
            need(code_at(f, codes, i) == f->encode(x[i]), f, "array of codes", bits_of(x[i]));
            int is_same = isnan(alone) ? isnan(back[i]) : bits_of(back[i]) == bits_of(alone);
            need(is_same, f, "array of floats", bits_of(x[i]));
        }
        need(code_at(f, codes, n) == (f->bytes == 1 ? 0xA5 : 0xA5A5) && bits_of(back[n]) == 0xA5A5A5A5u, f,
             "past the end", (uint32_t)n);
    }
    for (int64_t n = -3; n <= 0; n++) {
        f->encode_all(NULL, NULL, n);
        f->decode_all(NULL, NULL, n);
    }
}

int main(void)
{
    for (int i = 0; i < 4; i++) {
        check(&formats[i]);
        check_arrays(&formats[i]);
    }
    puts("right");
    return 0;
}
"""
)

EVERY = (
    FORMATS
    + r"""
enum { ROW = 1 << 14 };

static float x[ROW];
static uint16_t codes[ROW];

int main(void)
{
    for (int k = 0; k < 4; k++) {
        const format *f = &formats[k];
        uint32_t c = 0, last = last_of(f, 0);
        for (uint32_t u = 0; u < 0x7F800000; u += ROW) {
            for (uint32_t i = 0; i < ROW; i++)
                x[i] = float_of(u + i);
            f->encode_all(x, codes, ROW);
            for (uint32_t i = 0; i < ROW; i++) {
                while (c <= f->largest && u + i > last) {
                    c++;
                    last = c <= f->largest ? last_of(f, c) : 0;
                }
                uint32_t want = c <= f->largest ? c : f->beyond;
                if (code_at(f, codes, i) != want)
                    need(0, f, "code", u + i);
            }
        }
    }
    puts("right");
    return 0;
}
"""
)


@pytest.mark.parametrize("files", ways("lowp_c", ("lowp_c.c",)), ids=named)
def test_both_sides_of_the_middle_of_all_neighbours(files: tuple[Path, ...], tmp_path: Path) -> None:
    assert run(tmp_path, BOUNDS, *files) == "right\n"


@pytest.mark.parametrize("more", [(), ("-DTL_PLAIN",)], ids=["clones", "plain"])
def test_the_fast_path_and_the_plain_one_agree(more: tuple[str, ...], tmp_path: Path) -> None:
    # Without a sanitizer: a clone for a vector unit is what is to be run.
    assert run(tmp_path, BOUNDS, SRC / "lowp_c.c", more=more, sanitize=False) == "right\n"


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("nm")), reason="make or nm is not installed")
def test_the_makefile_builds_it_and_all_else_is_static(tmp_path: Path) -> None:
    one = {f"tl_f32_to_{name}" for name in FORMAT_NAMES} | {f"tl_{name}_to_f32" for name in FORMAT_NAMES}
    target = str(tmp_path / "lowp_c.o")
    subprocess.run(
        ["make", "-s", "-C", str(SRC.parent), f"BUILD={tmp_path}", target], check=True, timeout=120
    )
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", target], capture_output=True, text=True, check=True, timeout=60
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == one | {f"{name}_n" for name in one}


@pytest.mark.slow
def test_all_floats(tmp_path: Path) -> None:
    assert run(tmp_path, EVERY, SRC / "lowp_c.c", sanitize=False) == "right\n"
