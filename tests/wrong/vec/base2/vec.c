/* tl_vec, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/ds.h"

/* Room for exactly cap elements; who is the caller's name for the error slot. */
static tl_status grow(tl_vec *v, size_t cap, void **old, const char *overflow, const char *memory)
{
    if (cap > SIZE_MAX / v->elem) {
        tl_set_last_error(overflow);
        return TL_EINVAL;
    }
    void *data = tl_alloc(cap * v->elem, 16);
    if (data == NULL) {
        tl_set_last_error(memory);
        return TL_ENOMEM;
    }
    if (v->len > 0)
        memcpy(data, v->data, v->len * v->elem);
    *old = v->data;
    v->data = data;
    v->cap = cap;
    return TL_OK;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (v == NULL || elem == 0) {
        tl_set_last_error("tl_vec_init: v is NULL or elem is 0");
        return TL_EINVAL;
    }
    v->data = NULL;
    v->len = 0;
    v->cap = 0;
    v->elem = elem;
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    if (v == NULL) {
        tl_set_last_error("tl_vec_reserve: v is NULL");
        return TL_EINVAL;
    }
    if (cap_min <= v->cap)
        return TL_OK;
    void *old = NULL;
    tl_status s = grow(v, cap_min, &old, "tl_vec_reserve: size overflows", "tl_vec_reserve: no memory");
    tl_free(old);
    return s;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    if (v == NULL || x == NULL) {
        tl_set_last_error("tl_vec_push: NULL");
        return TL_EINVAL;
    }
    void *old = NULL;
    if (v->len == v->cap) {
        if (v->cap > SIZE_MAX / 2) {
            tl_set_last_error("tl_vec_push: size overflows");
            return TL_EINVAL;
        }
        size_t cap = v->cap == 0 ? 4 : 2 * v->cap;
        tl_status s = grow(v, cap, &old, "tl_vec_push: size overflows", "tl_vec_push: no memory");
        if (s != TL_OK)
            return s;
    }
    memcpy((unsigned char *)v->data + v->len * v->elem, x, v->elem);
    v->len++;
    tl_free(old);
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (v == NULL || i >= v->len) {
        tl_set_last_error("tl_vec_at: no such element");
        return NULL;
    }
    return (unsigned char *)v->data + i * v->elem;
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
