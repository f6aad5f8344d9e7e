/* tl_topk_f32, with one mistake: see mistakes.yaml. */
#include <math.h>
#include <string.h>

#include "tinyllm/topk.h"

struct heap {
    int32_t *id;
    float *v;
    int64_t len;
};

static int before(float av, int32_t ai, float bv, int32_t bi)
{
    if (av > bv)
        return 1;
    if (av < bv)
        return 0;
    return ai < bi;
}

static void swap(struct heap *h, int64_t a, int64_t b)
{
    int32_t i = h->id[a];
    float f = h->v[a];
    h->id[a] = h->id[b];
    h->v[a] = h->v[b];
    h->id[b] = i;
    h->v[b] = f;
}

static int above(const struct heap *h, int64_t a, int64_t b)
{
    return before(h->v[b], h->id[b], h->v[a], h->id[a]);
}

static void up(struct heap *h, int64_t p)
{
    while (p > 0 && above(h, p, (p - 1) / 2)) {
        swap(h, p, (p - 1) / 2);
        p = (p - 1) / 2;
    }
}

static void down(struct heap *h, int64_t p)
{
    for (;;) {
        int64_t top = p, l = 2 * p + 1, r = l + 1;
        if (l < h->len && above(h, l, top))
            top = l;
        if (r < h->len && above(h, r, top))
            top = r;
        if (top == p)
            return;
        swap(h, p, top);
        p = top;
    }
}

static const char *wrong(const float *x, int64_t n, int64_t k, const int32_t *idx, const float *val)
{
    int nan = 0;
    if (k < 0 || n > 2147483647 || k > n)
        return "tl_topk_f32: k and n do not fit";
    if (n != 0 && x == NULL)
        return "tl_topk_f32: no x";
    if (k != 0 && (idx == NULL || val == NULL))
        return "tl_topk_f32: no place for the answer";
    for (int64_t i = 0; i < n; i++)
        nan |= isnan(x[i]) != 0;
    return nan ? "tl_topk_f32: x has a NaN" : NULL;
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    const char *text = wrong(x, n, k, idx, val);
    struct heap h = {idx, val, 0};
    if (text) {
        tl_set_last_error(text);
        return TL_EINVAL;
    }
    for (int64_t i = 0; i < n && k > 0; i++) {
        if (h.len < k) {
            idx[h.len] = (int32_t)i;
            val[h.len] = x[i];
            up(&h, h.len++);
        } else if (before(x[i], (int32_t)i, val[0], idx[0])) {
            idx[0] = (int32_t)i;
            val[0] = x[i];
            down(&h, 0);
        }
    }
    while (h.len > 1) {
        h.len--;
        swap(&h, 0, h.len);
        down(&h, 0);
    }
    return TL_OK;
}
