/* tl_vec, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/ds.h"

#define FIRST 4u
#define ALIGN 16u

#define FAIL(code, text)            \
    do {                            \
        tl_set_last_error(text);    \
        return (code);              \
    } while (0)

static char *place(const tl_vec *v, size_t i)
{
    return (char *)v->data + i * v->elem;
}

static int too_many(size_t count, size_t elem)
{
    return count > SIZE_MAX / elem;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (!v || !elem)
        FAIL(TL_EINVAL, "tl_vec_init: bad argument");
    *v = (tl_vec){.elem = elem};
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    char *fresh;

    if (!v)
        FAIL(TL_EINVAL, "tl_vec_reserve: no vector");
    if (v->cap >= cap_min)
        return TL_OK;
    if (too_many(cap_min, v->elem))
        FAIL(TL_EINVAL, "tl_vec_reserve: too large");
    fresh = tl_alloc(cap_min * v->elem, ALIGN);
    if (!fresh)
        FAIL(TL_ENOMEM, "tl_vec_reserve: out of memory");
    if (v->len)
        memcpy(fresh, v->data, v->len * v->elem);
    tl_free(v->data);
    v->data = fresh;
    v->cap = cap_min;
    return TL_OK;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    size_t cap;
    char *fresh;

    if (!v || !x)
        FAIL(TL_EINVAL, "tl_vec_push: bad argument");

    if (v->len < v->cap) {
        memcpy(place(v, v->len), x, v->elem);
        v->len += 1;
        return TL_OK;
    }

    cap = v->cap ? v->cap * 2 : FIRST;
    if (cap < v->cap || too_many(cap, v->elem))
        FAIL(TL_EINVAL, "tl_vec_push: too large");
    fresh = tl_alloc(cap * v->elem, ALIGN);
    if (!fresh)
        FAIL(TL_ENOMEM, "tl_vec_push: out of memory");
    if (v->len)
        memcpy(fresh, v->data, v->len * v->elem);
    memcpy(fresh + v->len * v->elem, x, v->elem);
    tl_free(v->data);
    v->data = fresh;
    v->cap = cap;
    v->len += 1;
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (v && i < v->len)
        return place(v, i);
    FAIL(NULL, "tl_vec_at: out of range");
}

void tl_vec_free(tl_vec *v)
{
    if (v) {
        tl_free(v->data);
        *v = (tl_vec){.elem = v->elem};
    }
}
