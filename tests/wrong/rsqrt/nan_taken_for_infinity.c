/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/numerics.h"

/* sign, exponent, mantissa */
struct parts {
    unsigned s, e, m;
};

static struct parts split(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (struct parts){u >> 31, (u >> 23) & 255u, u & 0x7FFFFFu};
}

static float join(unsigned s, unsigned e, unsigned m)
{
    uint32_t u = (uint32_t)s << 31 | (uint32_t)e << 23 | m;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float refine(float x, double y, int steps)
{
    while (steps--)
        y = y * (1.5 - 0.5 * (double)x * y * y);
    return (float)y;
}

float tl_rsqrtf(float x)
{
    struct parts p = split(x);
    uint32_t g;
    if (p.e == 0 && p.m == 0)
        return join(p.s, 255, 0);
    if (p.s)
        return join(0, 255, 0x400000);
    if (p.e == 255)
        return 0.0f;
    if (p.e == 0)
        return tl_rsqrtf(x * 0x1p24f) * 0x1p12f;
    g = 0x5F3759DFu - ((p.e << 23 | p.m) >> 1);
    return refine(x, join(0, g >> 23, g & 0x7FFFFFu), 3);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; ++i)
        y[i] = tl_rsqrtf(x[i]);
}
