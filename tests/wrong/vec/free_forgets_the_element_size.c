/* tl_vec, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/ds.h"

enum { OK, BAD, EMPTY };

/* Moves v to storage for `room` elements and puts `extra`, when it is there, behind the last. */
static int move(tl_vec *v, size_t room, const void *extra)
{
    size_t bytes = room * v->elem;
    if (room != 0 && bytes / room != v->elem)
        return BAD;
    char *to = tl_alloc(bytes, 16);
    if (!to)
        return EMPTY;
    size_t in_use = v->len * v->elem;
    if (in_use)
        memcpy(to, v->data, in_use);
    if (extra)
        memcpy(to + in_use, extra, v->elem);
    tl_free(v->data);
    v->data = to;
    v->cap = room;
    return OK;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (v != NULL && elem != 0) {
        v->elem = elem;
        v->data = NULL;
        v->len = v->cap = 0;
        return TL_OK;
    }
    tl_set_last_error("tl_vec_init: NULL or 0");
    return TL_EINVAL;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    if (v == NULL) {
        tl_set_last_error("tl_vec_reserve: NULL");
        return TL_EINVAL;
    }
    if (cap_min <= v->cap)
        return TL_OK;
    int e = move(v, cap_min, NULL);
    if (e == OK)
        return TL_OK;
    tl_set_last_error(e == BAD ? "tl_vec_reserve: overflow" : "tl_vec_reserve: memory");
    return e == BAD ? TL_EINVAL : TL_ENOMEM;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    if (v == NULL || x == NULL) {
        tl_set_last_error("tl_vec_push: NULL");
        return TL_EINVAL;
    }
    if (v->len == v->cap) {
        size_t room = v->cap == 0 ? 4 : v->cap << 1;
        int e = room < v->cap ? BAD : move(v, room, x);
        if (e == BAD) {
            tl_set_last_error("tl_vec_push: overflow");
            return TL_EINVAL;
        }
        if (e == EMPTY) {
            tl_set_last_error("tl_vec_push: memory");
            return TL_ENOMEM;
        }
    } else {
        memcpy((char *)v->data + v->len * v->elem, x, v->elem);
    }
    v->len++;
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (v == NULL || i >= v->len) {
        tl_set_last_error("tl_vec_at: index");
        return NULL;
    }
    return (char *)v->data + i * v->elem;
}

void tl_vec_free(tl_vec *v)
{
    if (v == NULL)
        return;
    tl_free(v->data);
    memset(v, 0, sizeof *v);
}
