/* tl_expf, with one mistake: see mistakes.yaml. */
#include "tinyllm/numerics.h"

#include <float.h>
#include <math.h>

static const float top = 88.72283172607422f;
static const float bottom = -103.97207641601562f;
static const float coef[8] = {1.0f, 1.0f, 0.5f, 1.6666667e-1f, 4.1666668e-2f, 8.3333338e-3f, 1.3888889e-3f, 1.9841270e-4f};

static float scale(float p, int k)
{
    union {
        uint32_t u;
        float f;
    } lo, hi;
    int half = k >> 1;
    lo.u = (uint32_t)(127 + half) << 23;
    hi.u = (uint32_t)(127 + k - half) << 23;
    p *= lo.f;
    return p * hi.f;
}

static float finite(float x)
{
    const float shifter = 12582912.0f;
    float kf = (x * 1.4426950f + shifter) - shifter;
    float r = x - kf * 0.693359375f;
    r -= kf * -0.00021219444f;
    float p = coef[7];
    for (int i = 6; i >= 0; i--)
        p = p * r + coef[i];
    return scale(p, (int)kf);
}

float tl_expf(float x)
{
    if (isnan(x))
        return x;
    if (x > top)
        return INFINITY;
    if (x < bottom)
        return 0.0f;
    return finite(x);
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    for (const float *end = n > 0 ? x + n : x; x < end; x++, y++)
        *y = tl_expf(*x);
}
