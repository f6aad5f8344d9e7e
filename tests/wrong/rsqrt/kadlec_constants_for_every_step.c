/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

static float tuned(float x)
{
    uint32_t i;
    float y;
    memcpy(&i, &x, sizeof i);
    i = 0x5F1FFFF9u - (i >> 1);
    memcpy(&y, &i, sizeof y);
    y *= 0.703952253f * (2.38924456f - x * y * y);
    double d = y;
    d *= 0.703952253 * (2.38924456 - x * d * d);
    return (float)d;
}

float tl_rsqrtf(float x)
{
    if (x != x || x < 0)
        return NAN;
    if (x == 0)
        return signbit(x) ? -INFINITY : INFINITY;
    if (x > 0x1.fffffep127f)
        return 0;
    return x < 0x1p-126f ? tuned(x * 0x1p24f) * 0x1p12f : tuned(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    const float *end = n > 0 ? x + n : x;
    for (; x != end; x++, y++)
        *y = tl_rsqrtf(*x);
}
