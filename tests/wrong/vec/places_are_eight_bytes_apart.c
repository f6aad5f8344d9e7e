/* tl_vec, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/ds.h"

/* Bytes from one element to the next. */
static size_t stride(const tl_vec *v)
{
    size_t s = v->elem;
    while (s % 8 != 0)
        s++;
    return s;
}

static int resize(tl_vec *v, size_t cap, void **new_data)
{
    size_t s = stride(v);
    if (cap > SIZE_MAX / s)
        return TL_EINVAL;
    *new_data = tl_alloc(cap * s, 16);
    if (*new_data == NULL)
        return TL_ENOMEM;
    if (v->len != 0)
        memcpy(*new_data, v->data, v->len * s);
    return TL_OK;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (v == NULL || elem == 0) {
        tl_set_last_error("tl_vec_init: invalid");
        return TL_EINVAL;
    }
    *v = (tl_vec){NULL, 0, 0, elem};
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    void *data;
    tl_status s = TL_EINVAL;
    if (v != NULL) {
        if (cap_min <= v->cap)
            return TL_OK;
        s = resize(v, cap_min, &data);
    }
    if (s != TL_OK) {
        tl_set_last_error("tl_vec_reserve: failed");
        return s;
    }
    tl_free(v->data);
    v->data = data;
    v->cap = cap_min;
    return TL_OK;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    tl_status s = TL_EINVAL;
    if (v == NULL || x == NULL)
        goto fail;
    if (v->len == v->cap) {
        void *data, *old = v->data;
        size_t cap = v->cap == 0 ? 4 : v->cap * 2;
        if (v->cap > SIZE_MAX / 2)
            goto fail;
        s = resize(v, cap, &data);
        if (s != TL_OK)
            goto fail;
        memcpy((char *)data + v->len * stride(v), x, v->elem);
        v->data = data;
        v->cap = cap;
        tl_free(old);
    } else {
        memcpy((char *)v->data + v->len * stride(v), x, v->elem);
    }
    v->len += 1;
    return TL_OK;
fail:
    tl_set_last_error("tl_vec_push: failed");
    return s;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (v == NULL || i >= v->len) {
        tl_set_last_error("tl_vec_at: no element");
        return NULL;
    }
    return (char *)v->data + i * stride(v);
}

void tl_vec_free(tl_vec *v)
{
    if (v == NULL)
        return;
    tl_free(v->data);
    v->data = NULL;
    v->len = 0;
    v->cap = 0;
}
