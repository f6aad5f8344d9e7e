/* tl_expf, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/numerics.h"

static float series(float r)
{
    float term = 1.0f, sum = 1.0f;
    for (int i = 1; i < 10; i++) {
        term *= r / (float)i;
        sum += term;
    }
    return sum;
}

float tl_expf(float x)
{
    if (!(x == x))
        return x;
    if (x > 0x1.62e42ep+6f)
        return INFINITY;
    if (x < -0x1.9fe368p+6f)
        return 0.0f;
    float y = series(x / 256.0f);
    for (int i = 0; i < 8; i++)
        y *= y;
    return y;
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        y[i] = tl_expf(x[i]);
}
