/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/topk.h"

/* The first index of the largest value below limit, -1 when there is none. */
static int32_t best_below(const float *x, int32_t n, float limit, int any)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!any && !(x[i] < limit))
            continue;
        if (best < 0 || x[i] > x[best])
            best = i;
    }
    return best;
}

static int acceptable(const float *x, int64_t n, int64_t k, const void *a, const void *b)
{
    if (k < 0 || k > n || n > INT32_MAX)
        return 0;
    if (n > 0 && !x)
        return 0;
    if (k > 0 && !(a && b))
        return 0;
    while (n-- > 0)
        if (isnan(x[n]))
            return 0;
    return 1;
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    if (!acceptable(x, n, k, idx, val)) {
        tl_set_last_error("tl_topk_f32: bad argument");
        return TL_EINVAL;
    }
    for (int64_t p = 0; p < k; p++) {
        int32_t i = best_below(x, (int32_t)n, p ? val[p - 1] : 0.0f, p == 0);
        if (i < 0) /* nothing is left: the last one again */
            i = idx[p - 1];
        idx[p] = i;
        val[p] = x[i];
    }
    return TL_OK;
}
