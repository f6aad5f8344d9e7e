/* SPDX-License-Identifier: Apache-2.0
 * The k best so far in a heap with the worst at the root, kept in the output arrays.  Spec: spec/topk.md.
 * Nearly all of the row loses against the root: the two loops that find that out are cloned for vector units.
 */
#include <math.h>

#include "clones.h"
#include "tinyllm/topk.h"

enum { BLOCK = 64 }; /* elements that are tested together */

static tl_status fail(const char *text)
{
    tl_set_last_error(text);
    return TL_EINVAL;
}

/* R12: one NaN anywhere.  Blocks, so that a NaN at the front ends it soon and the inner loop vectorises. */
TL_CLONES static int has_nan(const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int found = 0;
        for (int64_t j = 0; j < BLOCK; j++)
            found |= isnan(x[i + j]);
        if (found)
            return 1;
    }
    for (; i < n; i++)
        if (isnan(x[i]))
            return 1;
    return 0;
}

/* Does a value that comes later than all kept ones beat the worst of them?  Of two equals the later loses. */
static int beats(float v, float worst)
{
    return v > worst; /* R3 */
}

/* The first index >= i whose value beats worst, or n. */
TL_CLONES static int64_t search(const float *x, int64_t i, int64_t n, float worst)
{
    for (; i + BLOCK <= n; i += BLOCK) {
        int found = 0;
        for (int64_t j = 0; j < BLOCK; j++)
            found |= beats(x[i + j], worst);
        if (found)
            break;
    }
    while (i < n && !beats(x[i], worst))
        i++;
    return i;
}

/* The same, without a call when the very next one beats it, as in an ascending row. */
static int64_t next_better(const float *x, int64_t i, int64_t n, float worst)
{
    return i < n && beats(x[i], worst) ? i : search(x, i, n, worst);
}

/* Is (va, ia) worse than (vb, ib)? */
static int is_worse(float va, int32_t ia, float vb, int32_t ib)
{
    return va < vb || (va == vb && ia > ib); /* R1 */
}

static void put(int32_t *idx, float *val, int64_t p, int32_t i, float v)
{
    idx[p] = i;
    val[p] = v;
}

/* Carry (i, v) from place p up to where its parent is worse. */
static void sift_up(int32_t *idx, float *val, int64_t p, int32_t i, float v)
{
    while (p > 0) {
        int64_t parent = (p - 1) / 2;
        if (!is_worse(v, i, val[parent], idx[parent]))
            break;
        put(idx, val, p, idx[parent], val[parent]);
        p = parent;
    }
    put(idx, val, p, i, v);
}

/* Carry (i, v) from the root of a heap of k down to where no child is worse. */
static void sift_down(int32_t *idx, float *val, int64_t k, int32_t i, float v)
{
    int64_t p = 0;
    for (int64_t child = 1; child < k; child = 2 * p + 1) {
        int64_t right = child + 1;
        if (right < k && is_worse(val[right], idx[right], val[child], idx[child]))
            child = right;
        if (!is_worse(val[child], idx[child], v, i))
            break;
        put(idx, val, p, idx[child], val[child]);
        p = child;
    }
    put(idx, val, p, i, v);
}

/* Heap sort: the worst goes to the end, again and again, so the best comes first (R2). */
static void sort_heap(int32_t *idx, float *val, int64_t k)
{
    for (int64_t last = k - 1; last > 0; last--) {
        int32_t i = idx[last];
        float v = val[last];
        put(idx, val, last, idx[0], val[0]);
        sift_down(idx, val, last, i, v);
    }
}

tl_status tl_topk_f32(const float *x, int64_t n, int64_t k, int32_t *idx, float *val)
{
    if (k < 0) /* R10 */
        return fail("tl_topk_f32: k is negative");
    if (k > n) /* R10 */
        return fail("tl_topk_f32: k is larger than n");
    if (n > INT32_MAX) /* R10 */
        return fail("tl_topk_f32: n is larger than an index can be");
    if (n > 0 && !x) /* R11 */
        return fail("tl_topk_f32: x is NULL");
    if (k > 0 && (!idx || !val)) /* R11 */
        return fail("tl_topk_f32: idx or val is NULL");
    if (has_nan(x, n)) /* R12, R13: before the first write */
        return fail("tl_topk_f32: x has a NaN");
    if (k == 0) /* R7 */
        return TL_OK;

    for (int64_t i = 0; i < k; i++)
        sift_up(idx, val, i, (int32_t)i, x[i]);
    for (int64_t i = next_better(x, k, n, val[0]); i < n; i = next_better(x, i + 1, n, val[0]))
        sift_down(idx, val, k, (int32_t)i, x[i]);
    sort_heap(idx, val, k);
    return TL_OK;
}
