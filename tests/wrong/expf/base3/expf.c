/* tl_expf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

static double two_to(int64_t k)
{
    uint64_t u = (uint64_t)(k + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static float wide(float x)
{
    double t = x / 0.693147180559945309417;
    int64_t k = (int64_t)(t < 0 ? t - 0.5 : t + 0.5);
    double r = x - (double)k * 0.693147180559945309417;
    double sum = 1.0, term = 1.0;
    for (int j = 1; j <= 12; j++) {
        term = term * r / j;
        sum += term;
    }
    return (float)(sum * two_to(k));
}

float tl_expf(float x)
{
    if (x != x)
        return x;
    if (x > 0x1.62e42ep+6f)
        return INFINITY;
    if (x < -0x1.9fe368p+6f)
        return 0.0f;
    return wide(x);
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 3 < n; i += 4) {
        float a = tl_expf(x[i]), b = tl_expf(x[i + 1]), c = tl_expf(x[i + 2]), d = tl_expf(x[i + 3]);
        y[i] = a, y[i + 1] = b, y[i + 2] = c, y[i + 3] = d;
    }
    for (; i < n; i++)
        y[i] = tl_expf(x[i]);
}
