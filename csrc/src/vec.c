/* SPDX-License-Identifier: Apache-2.0
 * Growable array of elements of any one size.  Spec: spec/vec.md.
 * Everything that can fail happens before anything changes, so a failure needs no undoing (R18).
 */
#include <string.h>

#include "tinyllm/ds.h"

enum { FIRST_CAP = 4, ALIGN = 16 };

static tl_status fail(tl_status s, const char *text)
{
    tl_set_last_error(text);
    return s;
}

static unsigned char *place(const tl_vec *v, size_t i)
{
    return (unsigned char *)v->data + i * v->elem; /* R13 */
}

/* memcpy of an unknown size is a call; of 4 or 8 bytes it is one move. */
static void copy_element(void *to, const void *from, size_t elem)
{
    if (elem == 4)
        memcpy(to, from, 4);
    else if (elem == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, elem);
}

/* New storage for cap elements with the old ones in it; the old storage is the caller's to free (R10,
 * R12). */
static tl_status enlarged(const tl_vec *v, size_t cap, void **storage)
{
    if (cap > SIZE_MAX / v->elem) /* R16 */
        return TL_EINVAL;
    void *p = tl_alloc(cap * v->elem, ALIGN); /* R9 */
    if (!p)                                   /* R17 */
        return TL_ENOMEM;
    if (v->len > 0)
        memcpy(p, v->data, v->len * v->elem); /* R10 */
    *storage = p;
    return TL_OK;
}

static void adopt(tl_vec *v, void *storage, size_t cap)
{
    tl_free(v->data);
    v->data = storage;
    v->cap = cap;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (!v) /* R2 */
        return fail(TL_EINVAL, "tl_vec_init: v is NULL");
    if (elem == 0) /* R2 */
        return fail(TL_EINVAL, "tl_vec_init: elem is 0");
    v->data = NULL; /* R1 */
    v->len = 0;
    v->cap = 0;
    v->elem = elem;
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    if (!v) /* R15 */
        return fail(TL_EINVAL, "tl_vec_reserve: v is NULL");
    if (cap_min <= v->cap) /* R8 */
        return TL_OK;
    void *storage;
    tl_status s = enlarged(v, cap_min, &storage); /* R7: exactly cap_min */
    if (s != TL_OK)
        return fail(s, "tl_vec_reserve: no memory, or too many bytes");
    adopt(v, storage, cap_min);
    return TL_OK;
}

/* A push into a full vector.  x may lie in the old storage: it is read before that is freed (R12). */
static tl_status push_growing(tl_vec *v, const void *x)
{
    if (v->cap > SIZE_MAX / 2) /* R16 */
        return fail(TL_EINVAL, "tl_vec_push: too many elements");
    size_t cap = v->cap ? 2 * v->cap : FIRST_CAP; /* R6 */
    void *storage;
    tl_status s = enlarged(v, cap, &storage);
    if (s != TL_OK)
        return fail(s, "tl_vec_push: no memory, or too many bytes");
    copy_element((unsigned char *)storage + v->len * v->elem, x, v->elem);
    adopt(v, storage, cap);
    v->len++;
    return TL_OK;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    if (!v || !x) /* R15 */
        return fail(TL_EINVAL, "tl_vec_push: v or x is NULL");
    if (v->len == v->cap)
        return push_growing(v, x);
    copy_element(place(v, v->len), x, v->elem); /* R11 */
    v->len++;
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (!v || i >= v->len) { /* R14 */
        tl_set_last_error("tl_vec_at: no such element");
        return NULL;
    }
    return place(v, i);
}

void tl_vec_free(tl_vec *v)
{
    if (!v) /* R4 */
        return;
    tl_free(v->data); /* R3 */
    v->data = NULL;
    v->len = 0;
    v->cap = 0;
}
