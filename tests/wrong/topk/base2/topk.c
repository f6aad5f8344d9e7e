/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include "tinyllm/topk.h"

static tl_status refuse(void)
{
    tl_set_last_error("tl_topk_f32: bad argument");
    return TL_EINVAL;
}

static int has_nan(const float *x, int64_t n)
{
    for (const float *p = x; p < x + n; p++)
        if (!(*p == *p))
            return 1;
    return 0;
}

/* Puts (v, i) into the sorted list of len places, cap of which exist; the new len. */
static int64_t insert(int32_t *idx, float *val, int64_t len, int64_t cap, float v, int32_t i)
{
    int64_t p = len;
    if (len == cap) {
        if (!(v > val[len - 1]))
            return len;
        p = len - 1;
    }
    while (p > 0 && v > val[p - 1]) {
        val[p] = val[p - 1];
        idx[p] = idx[p - 1];
        p--;
    }
    val[p] = v;
    idx[p] = i;
    return len < cap ? len + 1 : len;
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    int64_t len = 0;
    if (n < 0 || n > INT32_MAX)
        return refuse();
    if (k < 0 || k > n)
        return refuse();
    if (n && !x)
        return refuse();
    if (k && !(idx && val))
        return refuse();
    if (n && has_nan(x, n))
        return refuse();
    if (!k)
        return TL_OK;
    for (int64_t i = 0; i < n; i++)
        len = insert(idx, val, len, k, x[i], (int32_t)i);
    return TL_OK;
}
