/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include "tinyllm/topk.h"

/* i is worse than j. */
static int worse(const float *x, int32_t i, int32_t j)
{
    return x[i] < x[j] || (x[i] == x[j] && i > j);
}

static void sift_down(const float *x, int32_t *heap, int64_t size, int64_t p)
{
    int32_t moving = heap[p];
    for (;;) {
        int64_t c = 2 * p + 1;
        if (c >= size)
            break;
        if (c + 1 < size && worse(x, heap[c + 1], heap[c]))
            c++;
        if (!worse(x, heap[c], moving))
            break;
        heap[p] = heap[c];
        p = c;
    }
    heap[p] = moving;
}

static tl_status bad(const char *text)
{
    tl_set_last_error(text);
    return TL_EINVAL;
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    if (k < 0 || k > n || n > INT32_MAX)
        return bad("tl_topk_f32: need 0 <= k <= n <= 2147483647");
    if (n > 0 && !x)
        return bad("tl_topk_f32: x is NULL");
    if (k > 0 && (!idx || !val))
        return bad("tl_topk_f32: idx or val is NULL");
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i])
            return bad("tl_topk_f32: NaN in x");
    if (k == 0)
        return TL_OK;
    for (int64_t i = 0; i < k; i++)
        idx[i] = (int32_t)i;
    for (int64_t p = k / 2; p-- > 0;)
        sift_down(x, idx, k, p);
    for (int64_t i = k; i < n; i++)
        if (x[i] > x[idx[0]]) {
            idx[0] = (int32_t)i;
            sift_down(x, idx, k, 0);
        }
    for (int64_t end = k - 1; end > 0; end--) {
        int32_t t = idx[0];
        idx[0] = idx[end];
        idx[end] = t;
        sift_down(x, idx, end, 0);
    }
    for (int64_t p = 0; p < k; p++)
        val[p] = x[idx[p]];
    return TL_OK;
}
