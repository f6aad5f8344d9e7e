/* SPDX-License-Identifier: Apache-2.0
 * Reciprocal square root: a guess from the bits, then three Newton steps, the last in double.  Spec: spec/rsqrt.md.
 * One branch-free body serves the scalar and the array form, so both give the same bits (R8).
 */
#include <math.h>
#include <string.h>

#include "clones.h"
#include "tinyllm/numerics.h"

#define SMALLEST_NORMAL 0x1p-126f

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

/* The bits of a positive normal float, read as an integer, are its logarithm in base 2, scaled and moved, within 3 %.
 * Halved and negated they are that of the result; the constant puts the offset back and centres the error. */
static inline float guess(float x)
{
    return from_bits(0x5F3759DFu - (to_bits(x) >> 1));
}

/* One Newton step towards 1/sqrt(2h): a relative error e becomes 1.5 e^2 - 0.5 e^3. */
static inline float step(float y, float h)
{
    float t = h * y;
    t = t * y;
    t = 1.5f - t;
    return y * t;
}

static inline double step_f64(double y, double h)
{
    double t = h * y;
    t = t * y;
    t = 1.5 - t;
    return y * t;
}

/* 1/sqrt(x) of a positive normal x: in float32 the third step would end 2.2 ulp off (R1). */
static inline float rsqrt_normal(float x)
{
    float y = guess(x);
    y = step(y, 0.5f * x);
    y = step(y, 0.5f * x);
    return (float)step_f64((double)y, 0.5 * (double)x);
}

static inline float rsqrt_any(float x)
{
    int tiny = x < SMALLEST_NORMAL;
    float scaled = tiny ? x * 0x1p24f : x; /* R2: a subnormal becomes normal, exactly */
    float y = rsqrt_normal(scaled);
    y = tiny ? y * 0x1p12f : y;                     /* R2: sqrt(2^24), exact again */
    y = x == INFINITY ? 0.0f : y;                   /* R5 */
    y = x == 0.0f ? copysignf(INFINITY, x) : y;     /* R4 */
    return x >= 0.0f ? y : NAN;                     /* R6: false for negative numbers and for NaN */
}

TL_CLONES static void rsqrt_all(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) /* R7, R10 */
        y[i] = rsqrt_any(x[i]);
}

float tl_rsqrtf(float x)
{
    return rsqrt_any(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    rsqrt_all(x, y, n);
}
