/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float newton(float x)
{
    float y = float_of(0x5F3759DFu - (bits_of(x) >> 1));
    float half = 0.5f * x;
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    double d = y;
    d = d * (1.5 - 0.5 * (double)x * d * d);
    return (float)d;
}

float tl_rsqrtf(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return x;
    if ((u & 0x7FFFFFFFu) == 0)
        return float_of(u | 0x7F800000u);
    if (u & 0x80000000u)
        return NAN;
    if (u == 0x7F800000u)
        return 0.0f;
    if (u < 0x00800000u)
        return newton(x * 0x1p24f) * 0x1p12f;
    return newton(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tl_rsqrtf(x[i]);
}
