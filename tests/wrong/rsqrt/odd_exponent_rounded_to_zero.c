/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

/* 1/sqrt on [1, 4): a line as the guess, then Newton */
static double core(double m)
{
    double y = 1.08 - 0.155 * m;
    for (int i = 0; i < 5; i++)
        y += y * 0.5 * (1.0 - m * y * y);
    return y;
}

static double two_to(int e)
{
    uint64_t u = (uint64_t)(e + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

float tl_rsqrtf(float x)
{
    int e, half;
    double m;
    if (isnan(x) || x < 0)
        return NAN;
    if (x == 0)
        return 1.0f / x;
    if (isinf(x))
        return 0.0f;
    m = x;
    e = 0;
    while (m >= 2.0) {
        m *= 0.5;
        e++;
    }
    while (m < 1.0) {
        m *= 2.0;
        e--;
    }
    half = e / 2;
    if (e % 2 != 0)
        m *= 2.0;
    return (float)(core(m) * two_to(-half));
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tl_rsqrtf(x[i]);
}
