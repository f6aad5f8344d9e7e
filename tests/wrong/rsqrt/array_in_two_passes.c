/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

static float guess(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = 0x5F3759DFu - (u >> 1);
    memcpy(&x, &u, sizeof u);
    return x;
}

static float polish(float x, float y)
{
    float h = 0.5f * x;
    y *= 1.5f - h * y * y;
    y *= 1.5f - h * y * y;
    double z = y;
    return (float)(z + 0.5 * z * (1.0 - (double)x * z * z));
}

static int plain(float x)
{
    return x >= 0x1p-126f && x < INFINITY;
}

static float rare(float x)
{
    if (x == 0.0f)
        return 1.0f / x;
    if (!(x > 0.0f))
        return NAN;
    if (x == INFINITY)
        return 0.0f;
    x *= 0x1p24f;
    return polish(x, guess(x)) * 0x1p12f;
}

float tl_rsqrtf(float x)
{
    return plain(x) ? polish(x, guess(x)) : rare(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = guess(x[i]);
    for (int64_t i = 0; i < n; i++)
        y[i] = plain(x[i]) ? polish(x[i], y[i]) : rare(x[i]);
}
