/* tl_expf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

#define X_MAX 0x1.62e42ep+6f
#define X_MIN -0x1.9fe368p+6f

static float pow2(int k)
{
    uint32_t u = (uint32_t)(k + 127) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float tl_expf(float x)
{
    if (x != x)
        return x;
    if (x > X_MAX)
        return INFINITY;
    if (x < X_MIN)
        return 0.0f;
    float t = x * 1.44269504f;
    int k = (int)(t + (t < 0 ? -0.5f : 0.5f));
    float r = x - (float)k * 0.693359375f;
    r = r + (float)k * 2.12194440054714e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int a = k / 2;
    return p * pow2(a) * pow2(k - a);
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tl_expf(x[i]);
}
