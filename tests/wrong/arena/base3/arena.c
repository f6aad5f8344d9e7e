/* tl_arena, with one mistake: see mistakes.yaml. */
#include <stdbool.h>
#include <stdint.h>

#include "tinyllm/arena.h"

#define LINE ((size_t)64)

struct link {
    struct link *next;
    uintptr_t base;
    size_t bytes;
    size_t sum; /* used in the links before this one, right up to the current link */
    size_t top; /* offset reached */
};

struct tl_arena {
    struct link *first, *now;
    size_t index; /* of now */
    size_t count;
    size_t total;
    size_t peak;
    size_t standard;
};

static bool room_in(uintptr_t base, size_t bytes, size_t from, size_t n, size_t align, size_t *where)
{
    uintptr_t p = base + from;
    size_t skip = (align - p % align) % align;
    if (skip > bytes - from)
        return false;
    if (n > bytes - from - skip)
        return false;
    *where = from + skip;
    return true;
}

static void *hand_out(tl_arena *a, size_t where, size_t n)
{
    struct link *k = a->now;
    size_t used;
    k->top = where + n;
    used = k->sum + k->top;
    if (a->peak < used)
        a->peak = used;
    return (void *)(k->base + where);
}

static void advance(tl_arena *a)
{
    struct link *k = a->now->next;
    k->sum = a->now->sum + a->now->top;
    k->top = 0;
    a->now = k;
    a->index += 1;
}

static struct link *new_link(size_t bytes, size_t align)
{
    struct link *k = tl_alloc(sizeof *k, 16);
    void *memory;
    if (!k)
        return NULL;
    memory = tl_alloc(bytes, align < LINE ? LINE : align);
    if (!memory) {
        tl_free(k);
        return NULL;
    }
    k->next = NULL;
    k->base = (uintptr_t)memory;
    k->bytes = bytes;
    k->sum = k->top = 0;
    return k;
}

static void *refuse(const char *why)
{
    tl_set_last_error(why);
    return NULL;
}

tl_status tl_arena_create(size_t block_bytes, tl_arena **out)
{
    tl_arena *a;
    if (!out) {
        tl_set_last_error("tl_arena_create: no place for the result");
        return TL_EINVAL;
    }
    a = tl_alloc(sizeof *a, 16);
    *out = a;
    if (!a) {
        tl_set_last_error("tl_arena_create: the hook gave nothing");
        return TL_ENOMEM;
    }
    *a = (tl_arena){.standard = block_bytes ? block_bytes : (size_t)1024 * 1024};
    return TL_OK;
}

void *tl_arena_alloc(tl_arena *a, size_t n, size_t align)
{
    size_t where, bytes;
    struct link *k;

    if (!a)
        return refuse("tl_arena_alloc: no arena");
    if (!n)
        return refuse("tl_arena_alloc: n is 0");
    if (!align)
        align = LINE;
    if (align > 4096 || (align & (align - 1)))
        return refuse("tl_arena_alloc: align");

    if (a->now) {
        if (room_in(a->now->base, a->now->bytes, a->now->top, n, align, &where))
            return hand_out(a, where, n);

        for (k = a->now->next; k; k = k->next) {
            if (room_in(k->base, k->bytes, 0, n, align, &where)) {
                struct link *after = a->now->next;
                uintptr_t base = k->base;
                size_t size = k->bytes;
                k->base = after->base;
                k->bytes = after->bytes;
                after->base = base;
                after->bytes = size;
                advance(a);
                return hand_out(a, where, n);
            }
        }
    }

    bytes = a->standard;
    if (n > bytes) {
        bytes = n + (LINE - n % LINE) % LINE;
        if (bytes < n)
            return refuse("tl_arena_alloc: too large");
    }
    k = new_link(bytes, align);
    if (!k)
        return refuse("tl_arena_alloc: out of memory");
    if (!room_in(k->base, bytes, 0, n, align, &where)) {
        tl_free((void *)k->base);
        tl_free(k);
        return refuse("tl_arena_alloc: the hook gave a bad address");
    }
    a->count += 1;
    a->total += bytes;
    if (a->now) {
        k->next = a->now->next;
        a->now->next = k;
        advance(a);
    } else {
        a->first = a->now = k;
    }
    return hand_out(a, where, n);
}

tl_arena_mark tl_arena_mark_get(const tl_arena *a)
{
    if (!a || !a->now)
        return (tl_arena_mark){0, 0};
    return (tl_arena_mark){.offset = a->now->top, .block = a->index};
}

void tl_arena_reset_to(tl_arena *a, tl_arena_mark m)
{
    struct link *k;
    size_t i;

    if (!a) {
        tl_set_last_error("tl_arena_reset_to: no arena");
        return;
    }
    if (m.block > a->index || (!a->now && m.offset > 0)) {
        tl_set_last_error("tl_arena_reset_to: block not reached");
        return;
    }
    if (!a->now)
        return;
    k = a->first;
    for (i = 0; i < m.block; i++)
        k = k->next;
    if (m.offset > k->top) {
        tl_set_last_error("tl_arena_reset_to: offset not reached");
        return;
    }
    k->top = m.offset;
    a->now = k;
    a->index = m.block;
}

void tl_arena_stats_get(const tl_arena *a, tl_arena_stats *out)
{
    tl_arena_stats s = {0, 0, 0, 0};
    if (!out)
        return;
    if (a) {
        if (a->now)
            s.bytes_used = a->now->sum + a->now->top;
        s.bytes_reserved = a->total;
        s.high_water = a->peak;
        s.n_blocks = a->count;
    }
    *out = s;
}

void tl_arena_destroy(tl_arena *a)
{
    struct link *k, *next;
    if (!a)
        return;
    for (k = a->first; k; k = next) {
        next = k->next;
        tl_free((void *)k->base);
        tl_free(k);
    }
    tl_free(a);
}
