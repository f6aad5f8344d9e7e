/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/numerics.h"

#define LANES 8

float tl_rsqrtf(float x)
{
    if (!(x >= 0.0f))
        return NAN;
    if (x == 0.0f)
        return copysignf(INFINITY, x);
    return 1.0f / sqrtf(x);
}

static void block(const float *x, float *y)
{
    float t[LANES];
    for (int j = 0; j < LANES; j++)
        t[j] = tl_rsqrtf(x[j]);
    for (int j = 0; j < LANES; j++)
        y[j] = t[j];
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    int64_t i;
    if (n < LANES) {
        for (i = 0; i < n; i++)
            y[i] = tl_rsqrtf(x[i]);
        return;
    }
    for (i = 0; i + LANES <= n; i += LANES)
        block(x + i, y + i);
    if (i < n)
        block(x + n - LANES, y + n - LANES);
}
