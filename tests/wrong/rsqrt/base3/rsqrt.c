/* tl_rsqrtf, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/numerics.h"

static inline float one(float x)
{
    if (x > 0.0f)
        return (float)(1.0 / sqrt((double)x));
    if (x == 0.0f)
        return 1.0f / x;
    return NAN;
}

float tl_rsqrtf(float x)
{
    return one(x);
}

void tl_rsqrt_f32(const float *x, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float a = one(x[i]), b = one(x[i + 1]), c = one(x[i + 2]), d = one(x[i + 3]);
        y[i] = a;
        y[i + 1] = b;
        y[i + 2] = c;
        y[i + 3] = d;
    }
    for (; i < n; i++)
        y[i] = one(x[i]);
}
