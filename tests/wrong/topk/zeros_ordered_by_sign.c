/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/topk.h"

/* Larger floats have larger keys. */
static uint32_t key(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* One number for value and index: larger is better. */
static uint64_t rank(const float *x, int32_t i)
{
    return (uint64_t)key(x[i]) << 32 | (uint32_t)(INT32_MAX - i);
}

static void sink(const float *x, int32_t *h, int64_t len)
{
    int64_t p = 0;
    int32_t id = h[0];
    uint64_t r = rank(x, id);
    while (2 * p + 1 < len) {
        int64_t c = 2 * p + 1;
        c += c + 1 < len && rank(x, h[c + 1]) < rank(x, h[c]);
        if (rank(x, h[c]) > r)
            break;
        h[p] = h[c];
        p = c;
    }
    h[p] = id;
}

static void rise(const float *x, int32_t *h, int64_t p)
{
    int32_t id = h[p];
    for (; p > 0 && rank(x, h[(p - 1) / 2]) > rank(x, id); p = (p - 1) / 2)
        h[p] = h[(p - 1) / 2];
    h[p] = id;
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    if (k < 0 || k > n || n > INT32_MAX || (n && !x) || (k && (!idx || !val)))
        goto invalid;
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i])
            goto invalid;
    for (int64_t i = 0; i < k; i++) {
        idx[i] = (int32_t)i;
        rise(x, idx, i);
    }
    for (int64_t i = k; i < n && k; i++) {
        if (rank(x, (int32_t)i) > rank(x, idx[0])) {
            idx[0] = (int32_t)i;
            sink(x, idx, k);
        }
    }
    for (int64_t len = k - 1; len > 0; len--) {
        int32_t worst = idx[0];
        idx[0] = idx[len];
        idx[len] = worst;
        sink(x, idx, len);
    }
    for (int64_t i = 0; i < k; i++)
        val[i] = x[idx[i]];
    return TL_OK;
invalid:
    tl_set_last_error("tl_topk_f32: invalid argument");
    return TL_EINVAL;
}
