/* SPDX-License-Identifier: Apache-2.0
 * e^x = 2^k e^r with |r| <= ln(2)/2: reduction in two parts, a polynomial for e^r, two powers of two for 2^k.
 * Spec: spec/expf.md.  One branch-free body serves the scalar and the array form, so both give the same bits (R11).
 */
#include <math.h>
#include <string.h>

#include "clones.h"
#include "tinyllm/numerics.h"

#define LARGEST 0x1.62e42ep+6f    /* 88.72283: the largest x with a finite e^x */
#define SMALLEST (-0x1.9fe368p+6f) /* -103.97208: the smallest x with e^x above 2^-150 */
#define LOG2_E 0x1.715476p+0f
#define LN2_HIGH 0x1.63p-1f        /* 355/512: 9 bits, so k times it is exact */
#define LN2_LOW (-0x1.bd0106p-13f) /* ln(2) - LN2_HIGH */
#define ROUNDER 0x1.8p+23f         /* a sum with it has no bits below 1 */

static inline uint32_t to_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^k for -126 <= k <= 127. */
static inline float power_of_two(int32_t k)
{
    return from_bits((uint32_t)(k + 127) << 23);
}

/* Taylor series of e^r to degree 7, innermost first: off by r^8/8!, 0.1 ulp at the ends. */
static inline float exp_reduced(float r)
{
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    return p * r + 1.0f;
}

/* e^x for SMALLEST <= x <= LARGEST. */
static inline float exp_finite(float x)
{
    float shifted = x * LOG2_E + ROUNDER; /* rounded to an integer by the addition, ties to even */
    int32_t k = (int32_t)(to_bits(shifted) - to_bits(ROUNDER));
    float k_f32 = shifted - ROUNDER;
    float r = x - k_f32 * LN2_HIGH;       /* exact: both are close and the product has no rounding */
    r = r - k_f32 * LN2_LOW;
    int32_t half = k / 2;                 /* R2, R5: 2^128 and 2^-150 are no floats, their halves are */
    float y = exp_reduced(r) * power_of_two(half);
    return y * power_of_two(k - half);
}

static inline float exp_any(float x)
{
    float low_cut = x >= SMALLEST ? x : SMALLEST;             /* also for NaN: what follows is defined */
    float y = exp_finite(low_cut <= LARGEST ? low_cut : LARGEST);
    y = x > LARGEST ? INFINITY : y; /* R3 */
    y = x < SMALLEST ? 0.0f : y;    /* R6 */
    return x == x ? y : NAN;        /* R8 */
}

TL_CLONES static void exp_all(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) /* R9, R10 */
        y[i] = exp_any(x[i]);
}

float tl_expf(float x)
{
    return exp_any(x);
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    exp_all(x, y, n);
}
