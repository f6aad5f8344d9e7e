/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include <math.h>

#include "tinyllm/topk.h"

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    const char *error = NULL;
    if (n > INT32_MAX || k < 0 || n < k)
        error = "tl_topk_f32: sizes";
    else if ((n > 0 && !x) || (k > 0 && (!idx || !val)))
        error = "tl_topk_f32: NULL";
    else
        for (int64_t i = 0; i < n; i++)
            if (isnan(x[i]))
                error = "tl_topk_f32: NaN";
    if (error) {
        tl_set_last_error(error);
        return TL_EINVAL;
    }
    for (int64_t p = 0; p < k; p++) {
        idx[p] = -1;
        val[p] = -INFINITY;
    }
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        int32_t id = (int32_t)i;
        if (k == 0 || !(v > val[k - 1]))
            continue;
        for (int64_t p = 0; p < k; p++) {
            if (v > val[p] || (v == val[p] && (uint32_t)id < (uint32_t)idx[p])) {
                float tv = val[p];
                int32_t ti = idx[p];
                val[p] = v;
                idx[p] = id;
                v = tv;
                id = ti;
            }
        }
    }
    return TL_OK;
}
