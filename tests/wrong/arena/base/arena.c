/* tl_arena, with one mistake: see mistakes.yaml. */
#include <stdint.h>
#include <string.h>

#include "tinyllm/arena.h"

enum { MAX_ALIGN = 4096, MIN_ALIGN = 64 };

struct tl_arena {
    char **base;
    size_t *size;
    size_t *end;
    size_t count, slots;
    size_t unit;
    size_t peak;
    tl_arena_mark pos;
};

/* The offset at or after `from` where n bytes go, or SIZE_MAX. */
static size_t spot(const char *base, size_t size, size_t from, size_t n, size_t align)
{
    size_t pad = (size_t)(-((uintptr_t)base + from) % align);
    size_t left = size - from;
    if (pad > left || n > left - pad)
        return SIZE_MAX;
    return from + pad;
}

static size_t used(const tl_arena *a)
{
    size_t sum = a->pos.offset;
    for (size_t i = 0; i < a->pos.block; i++)
        sum += a->end[i];
    return sum;
}

static void swap_blocks(tl_arena *a, size_t i, size_t j)
{
    char *b = a->base[i];
    size_t s = a->size[i];
    a->base[i] = a->base[j];
    a->size[i] = a->size[j];
    a->base[j] = b;
    a->size[j] = s;
}

/* Closes the current block at the position, and goes to the start of the one after it. */
static void step(tl_arena *a)
{
    a->end[a->pos.block] = a->pos.offset;
    a->pos.block++;
    a->pos.offset = 0;
}

/* One table of `slots` rows of three words. */
static int more_slots(tl_arena *a)
{
    size_t slots = a->slots + 16;
    char **base = tl_alloc(slots * (sizeof(char *) + 2 * sizeof(size_t)), 16);
    if (!base)
        return 0;
    size_t *size = (size_t *)(void *)(base + slots);
    size_t *end = size + slots;
    for (size_t i = 0; i < a->count; i++) {
        base[i] = a->base[i];
        size[i] = a->size[i];
        end[i] = a->end[i];
    }
    tl_free(a->base);
    a->base = base;
    a->size = size;
    a->end = end;
    a->slots = slots;
    return 1;
}

/* Puts a block at index i; the later ones move up. */
static void insert_block(tl_arena *a, size_t i, char *base, size_t size)
{
    for (size_t j = a->count; j > i; j--) {
        a->base[j] = a->base[j - 1];
        a->size[j] = a->size[j - 1];
    }
    a->base[i] = base;
    a->size[i] = size;
    a->count++;
}

tl_status tl_arena_create(size_t block_bytes, tl_arena **out)
{
    if (!out) {
        tl_set_last_error("tl_arena_create: out");
        return TL_EINVAL;
    }
    tl_arena *a = *out = tl_alloc(sizeof **out, 16);
    if (!a) {
        tl_set_last_error("tl_arena_create: memory");
        return TL_ENOMEM;
    }
    memset(a, 0, sizeof *a);
    a->unit = block_bytes ? block_bytes : 1048576;
    return TL_OK;
}

void *tl_arena_alloc(tl_arena *a, size_t n, size_t align)
{
    size_t at = SIZE_MAX;
    if (align == 0)
        align = MIN_ALIGN;
    if (!a || n == 0 || align > MAX_ALIGN || (align & (align - 1)) != 0)
        goto fail;

    if (a->count > 0) {
        size_t b = a->pos.block;
        at = spot(a->base[b], a->size[b], a->pos.offset, n, align);
        for (size_t i = b + 1; at == SIZE_MAX && i < a->count; i++) {
            at = spot(a->base[i], a->size[i], 0, n, align);
            if (at != SIZE_MAX) {
                swap_blocks(a, b + 1, i);
                step(a);
            }
        }
    }

    if (at == SIZE_MAX) {
        size_t size = a->unit;
        if (n > size) {
            if (n > SIZE_MAX - 63)
                goto fail;
            size = (n + 63) & ~(size_t)63;
        }
        if (a->count == a->slots && !more_slots(a))
            goto fail;
        char *base = tl_alloc(size, align > MIN_ALIGN ? align : MIN_ALIGN);
        if (!base)
            goto fail;
        if (a->count == 0) {
            insert_block(a, 0, base, size);
        } else {
            insert_block(a, a->pos.block + 1, base, size);
            step(a);
        }
        at = 0;
    }

    a->pos.offset = at + n;
    size_t now = used(a);
    if (now > a->peak)
        a->peak = now;
    return a->base[a->pos.block] + at;

fail:
    tl_set_last_error("tl_arena_alloc: refused");
    return NULL;
}

tl_arena_mark tl_arena_mark_get(const tl_arena *a)
{
    tl_arena_mark zero = {0, 0};
    return a ? a->pos : zero;
}

void tl_arena_reset_to(tl_arena *a, tl_arena_mark m)
{
    int ahead = 1;
    if (a) {
        if (m.block == a->pos.block)
            ahead = m.offset > a->pos.offset;
        else if (m.block < a->pos.block)
            ahead = m.offset > a->end[m.block];
    }
    if (ahead)
        tl_set_last_error("tl_arena_reset_to: no such position");
    else
        a->pos = m;
}

void tl_arena_stats_get(const tl_arena *a, tl_arena_stats *out)
{
    if (!out)
        return;
    *out = (tl_arena_stats){0, 0, 0, 0};
    if (a) {
        out->bytes_used = used(a);
        out->high_water = a->peak;
        out->n_blocks = a->count;
        for (size_t i = 0; i < a->count; i++)
            out->bytes_reserved += a->size[i];
    }
}

void tl_arena_destroy(tl_arena *a)
{
    if (!a)
        return;
    while (a->count > 0)
        tl_free(a->base[--a->count]);
    tl_free(a->base);
    tl_free(a);
}
