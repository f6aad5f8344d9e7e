/* tl_expf, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/numerics.h"

float tl_expf(float x)
{
    if (isnan(x))
        return x;
    if (x == 0.0f)
        return 1.0f;
    if (x > 0x1.62e42ep+6f)
        return INFINITY;
    if (x < -87.3f)
        return 0.0f;
    double line = 12102203.161561485 * x + 1064866805.0;
    uint32_t bits = line >= 2139095039.0 ? 0x7F7FFFFFu : (uint32_t)line;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

void tl_exp_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = tl_expf(x[i]);
}
