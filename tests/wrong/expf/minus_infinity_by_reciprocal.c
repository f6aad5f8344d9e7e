/* tl_expf, with one mistake: see mistakes.yaml. */
#include "tinyllm/numerics.h"

#include <float.h>
#include <math.h>

static float ldexp_twice(float p, int k)
{
    /* 2^k by repeated halving and doubling: exact until the last */
    while (k > 0) {
        p *= 2.0f;
        k--;
    }
    float q = 1.0f;
    while (k < 0 && q > FLT_MIN) {
        q *= 0.5f;
        k++;
    }
    float rest = 1.0f;
    while (k < 0) {
        rest *= 0.5f;
        k++;
    }
    return (p * rest) * q;
}

float tl_expf(float x)
{
    if (isnan(x))
        return NAN;
    if (isinf(x))
        return x > 0 ? x : 1.0f / x;
    if (x > 0x1.62e42ep6f)
        return HUGE_VALF;
    if (x < -0x1.9fe368p6f)
        return 0;
    double t = x * 1.4426950408889634;
    int k = (int)t;
    if (t - k > 0.5)
        ++k;
    else if (t - k < -0.5)
        --k;
    float r = (float)(x - k * 0.6931471805599453);
    float p = 1 + r * (1 + r * (0.5f + r * (1.f / 6 + r * (1.f / 24 + r * (1.f / 120 + r * (1.f / 720 + r / 5040))))));
    return ldexp_twice(p, k);
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tl_expf(x[i]);
}
