/* tl_vec, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/ds.h"

typedef unsigned char byte;

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (v == NULL || elem < 1) {
        tl_set_last_error("tl_vec_init");
        return TL_EINVAL;
    }
    memset(v, 0, sizeof *v);
    v->elem = elem;
    return TL_OK;
}

/* New storage in use; the old one in *old for the caller to free. */
static tl_status enlarge(tl_vec *v, size_t to, byte **old)
{
    byte *b;
    *old = NULL;
    if (SIZE_MAX / v->elem < to) {
        tl_set_last_error("tl_vec_reserve: too many elements");
        return TL_EINVAL;
    }
    b = tl_alloc(to * v->elem, 16);
    if (b == NULL) {
        tl_set_last_error("tl_vec_reserve: no memory");
        return TL_ENOMEM;
    }
    for (size_t i = 0; i < v->len * v->elem; i++)
        b[i] = ((const byte *)v->data)[i];
    *old = v->data;
    v->data = b;
    v->cap = to;
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    tl_status s = TL_OK;
    byte *old;
    if (v == NULL) {
        tl_set_last_error("tl_vec_reserve: NULL");
        return TL_EINVAL;
    }
    if (cap_min > v->cap) {
        s = enlarge(v, cap_min, &old);
        tl_free(old);
    }
    return s;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    byte *old = NULL;
    if (v == NULL || x == NULL) {
        tl_set_last_error("tl_vec_push: NULL");
        return TL_EINVAL;
    }
    if (v->len == v->cap) {
        size_t to = 4;
        if (v->cap > 0)
            to = v->cap > SIZE_MAX / 2 ? SIZE_MAX : v->cap * 2;
        tl_status s = enlarge(v, to, &old);
        if (s)
            return s;
    }
    memmove((byte *)v->data + v->elem * v->len++, x, v->elem);
    tl_free(old);
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (v == NULL || v->len <= i) {
        tl_set_last_error("tl_vec_at");
        return NULL;
    }
    return (byte *)v->data + v->elem * i;
}

void tl_vec_free(tl_vec *v)
{
    if (v == NULL)
        return;
    tl_free(v->data);
    v->data = NULL;
    v->len = v->cap = 0;
}
