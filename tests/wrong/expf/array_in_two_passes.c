/* tl_expf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

static float whole(float x)
{
    if (x != x || x > 200.0f || x < -200.0f)
        return 0.0f;
    float t = x * 1.44269504f;
    return (float)(int)(t < 0.0f ? t - 0.5f : t + 0.5f);
}

static float power(int k)
{
    uint32_t u = ((uint32_t)k + 127u) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float with_k(float x, float kf)
{
    if (x != x)
        return x;
    if (x > 0x1.62e42ep+6f)
        return INFINITY;
    if (x < -0x1.9fe368p+6f)
        return 0.0f;
    float r = (x - kf * 0.693359375f) + kf * 0.00021219444f, p = 1.0f / 5040.0f;
    static const float c[] = {720.0f, 120.0f, 24.0f, 6.0f, 2.0f, 1.0f, 1.0f};
    for (int i = 0; i < 7; i++)
        p = p * r + 1.0f / c[i];
    int k = (int)kf, a = k / 2;
    return p * power(a) * power(k - a);
}

float tl_expf(float x)
{
    return with_k(x, whole(x));
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = whole(x[i]);
    for (int64_t i = 0; i < n; i++)
        y[i] = with_k(x[i], y[i]);
}
