/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/numerics.h"

typedef union {
    float f;
    uint32_t u;
} word;

static float positive(word x)
{
    word y = {.u = 0x5F3759DFu - (x.u >> 1)};
    for (int step = 0; step < 2; step++)
        y.f *= 1.5f - 0.5f * x.f * y.f * y.f;
    const double a = y.f, h = 0.5 * x.f;
    return (float)(a * (1.5 - h * a * a));
}

float tl_rsqrtf(float value)
{
    word x = {.f = value};
    switch (fpclassify(value)) {
    case FP_NAN:
        return NAN;
    case FP_ZERO:
        return signbit(value) ? -INFINITY : INFINITY;
    case FP_INFINITE:
        return signbit(value) ? NAN : 0.0f;
    case FP_SUBNORMAL:
        if (signbit(value))
            return NAN;
        x.f *= 16777216.0f;
        return positive(x) * 4096.0f;
    default:
        return signbit(value) ? NAN : positive(x);
    }
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    for (; n > 0; n--)
        *y++ = tl_rsqrtf(*x++);
}
