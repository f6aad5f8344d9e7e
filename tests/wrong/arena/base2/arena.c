/* tl_arena, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/arena.h"

typedef struct {
    unsigned char *base;
    size_t size;
    size_t reached;
} block;

struct tl_arena {
    block *blocks;
    size_t n, room;
    size_t cur;
    size_t before; /* sum of reached of the blocks before cur */
    size_t block_bytes;
    size_t reserved;
    size_t high;
};

static size_t padding(const unsigned char *p, size_t align)
{
    return (size_t)(0 - (uintptr_t)p) & (align - 1);
}

static int fits(const block *b, size_t from, size_t n, size_t align)
{
    size_t left = b->size - from;
    size_t pad = padding(b->base + from, align);
    return pad <= left && n <= left - pad;
}

static void *take(tl_arena *a, size_t n, size_t align)
{
    block *b = &a->blocks[a->cur];
    size_t at = b->reached + padding(b->base + b->reached, align);
    b->reached = at + n;
    if (a->before + b->reached > a->high)
        a->high = a->before + b->reached;
    return b->base + at;
}

static void enter_next(tl_arena *a)
{
    a->before += a->blocks[a->cur].reached;
    a->cur++;
    a->blocks[a->cur].reached = 0;
}

static int grow_list(tl_arena *a)
{
    size_t room = a->room == 0 ? 8 : 2 * a->room;
    block *list = tl_alloc(room * sizeof *list, sizeof(void *));
    if (list == NULL)
        return 0;
    if (a->n > 0)
        memcpy(list, a->blocks, a->n * sizeof *list);
    tl_free(a->blocks);
    a->blocks = list;
    a->room = room;
    return 1;
}

static int add_block(tl_arena *a, size_t n, size_t align)
{
    size_t size = a->block_bytes;
    if (n > size) {
        if (n > SIZE_MAX - 63)
            return 0;
        size = (n + 63) / 64 * 64;
    }
    if (a->n == a->room && !grow_list(a))
        return 0;
    unsigned char *base = tl_alloc(size, align > 64 ? align : 64);
    if (base == NULL)
        return 0;
    size_t at = a->n == 0 ? 0 : a->cur + 1;
    memmove(a->blocks + at + 1, a->blocks + at, (a->n - at) * sizeof *a->blocks);
    a->blocks[at] = (block){base, size, 0};
    a->n++;
    a->reserved += size;
    if (at > 0)
        enter_next(a);
    return 1;
}

tl_status tl_arena_create(size_t block_bytes, tl_arena **out)
{
    if (out == NULL) {
        tl_set_last_error("tl_arena_create: out is NULL");
        return TL_EINVAL;
    }
    *out = NULL;
    tl_arena *a = tl_alloc(sizeof *a, sizeof(void *));
    if (a == NULL) {
        tl_set_last_error("tl_arena_create: no memory");
        return TL_ENOMEM;
    }
    memset(a, 0, sizeof *a);
    a->block_bytes = block_bytes == 0 ? (size_t)1 << 20 : block_bytes;
    *out = a;
    return TL_OK;
}

void *tl_arena_alloc(tl_arena *a, size_t n, size_t align)
{
    if (align == 0)
        align = 64;
    if (a == NULL || n == 0 || (align & (align - 1)) != 0 || align > 4096) {
        tl_set_last_error("tl_arena_alloc: bad argument");
        return NULL;
    }
    if (a->n > 0) {
        if (fits(&a->blocks[a->cur], a->blocks[a->cur].reached, n, align))
            return take(a, n, align);
        for (size_t i = a->cur + 1; i < a->n; i++) {
            if (fits(&a->blocks[i], 0, n, align)) {
                block found = a->blocks[i];
                a->blocks[i] = a->blocks[a->cur + 1];
                a->blocks[a->cur + 1] = found;
                enter_next(a);
                return take(a, n, align);
            }
        }
    }
    if (!add_block(a, n, align)) {
        tl_set_last_error("tl_arena_alloc: no memory");
        return NULL;
    }
    return take(a, n, align);
}

tl_arena_mark tl_arena_mark_get(const tl_arena *a)
{
    tl_arena_mark m = {0, 0};
    if (a != NULL && a->n > 0) {
        m.block = a->cur;
        m.offset = a->blocks[a->cur].reached;
    }
    return m;
}

void tl_arena_reset_to(tl_arena *a, tl_arena_mark m)
{
    if (a == NULL) {
        tl_set_last_error("tl_arena_reset_to: arena is NULL");
        return;
    }
    if (m.block > a->cur || m.offset > (a->n > 0 ? a->blocks[m.block].reached : 0)) {
        tl_set_last_error("tl_arena_reset_to: the mark lies ahead");
        return;
    }
    if (a->n == 0)
        return;
    while (a->cur > m.block) {
        a->cur--;
        a->before -= a->blocks[a->cur].reached;
    }
    a->blocks[a->cur].reached = m.offset;
}

void tl_arena_stats_get(const tl_arena *a, tl_arena_stats *out)
{
    if (out == NULL)
        return;
    memset(out, 0, sizeof *out);
    if (a == NULL)
        return;
    out->bytes_used = a->before + (a->n > 0 ? a->blocks[a->cur].reached : 0);
    out->bytes_reserved = a->reserved;
    out->high_water = a->high;
    out->n_blocks = a->n;
}

void tl_arena_destroy(tl_arena *a)
{
    if (a == NULL)
        return;
    for (size_t i = 0; i < a->n; i++)
        tl_free(a->blocks[i].base);
    tl_free(a->blocks);
    tl_free(a);
}
