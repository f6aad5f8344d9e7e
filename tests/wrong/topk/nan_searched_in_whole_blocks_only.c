/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include "tinyllm/topk.h"

static int nan_in(const float *x, int64_t n)
{
    int64_t blocks = n / 8;
    int found = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const float *p = x + 8 * b;
        int any = 0;
        for (int j = 0; j < 8; j++)
            any |= p[j] != p[j];
        found |= any;
    }
    return found;
}

static int less(const float *x, int32_t a, int32_t b)
{
    return x[a] == x[b] ? a > b : x[a] < x[b];
}

static void fix(const float *x, int32_t *h, int64_t p, int64_t len)
{
    int64_t child = 2 * p + 1;
    while (child < len) {
        if (child + 1 < len && less(x, h[child + 1], h[child]))
            child = child + 1;
        if (less(x, h[p], h[child]))
            break;
        int32_t t = h[p];
        h[p] = h[child];
        h[child] = t;
        p = child;
        child = 2 * p + 1;
    }
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    int ok = n >= 0 && n <= INT32_MAX && k >= 0 && k <= n;
    ok = ok && (x || n == 0) && (k == 0 || (idx && val));
    if (!ok || nan_in(x, n)) {
        tl_set_last_error("tl_topk_f32 refuses its arguments");
        return TL_EINVAL;
    }
    if (k > 0) {
        int32_t i = 0;
        while (i < k) {
            idx[i] = i;
            i++;
        }
        for (int64_t p = (k - 2) / 2; p >= 0; p--)
            fix(x, idx, p, k);
        for (; i < n; i++) {
            if (less(x, idx[0], i)) {
                idx[0] = i;
                fix(x, idx, 0, k);
            }
        }
        for (int64_t len = k; len > 1; len--) {
            int32_t worst = idx[0];
            idx[0] = idx[len - 1];
            idx[len - 1] = worst;
            fix(x, idx, 0, len - 1);
        }
        for (i = 0; i < k; i++)
            val[i] = x[idx[i]];
    }
    return TL_OK;
}
