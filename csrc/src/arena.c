/* SPDX-License-Identifier: Apache-2.0
 * Bump allocator over a list of blocks.  Spec: spec/arena.md, R11-R32.
 *
 *   blocks   0 .. current-1   left, each with the offset reached in it
 *            current          allocations go here, at offset
 *            the rest         free, kept for later (R25)
 *
 * Between rewinds what is used only grows, so its highest value is looked at when one begins, not at every
 * allocation: nothing but offset changes there.
 */
#include <string.h>

#include "clones.h"
#include "tinyllm/arena.h"

enum {
    DEFAULT_BLOCK_BYTES = 1 << 20,
    DEFAULT_ALIGN = 64,
    MAX_ALIGN = 4096,
    FIRST_LIST = 8 /* blocks that the first list has room for */
};

typedef struct {
    unsigned char *base;
    size_t size;
    size_t reached; /* where allocation stopped when the block was left */
} block;

struct tl_arena {
    unsigned char *base; /* of the current block; NULL while there is none */
    size_t size;         /* its bytes; 0 while there is none */
    size_t offset;       /* reached in it */
    size_t current;      /* its index; 0 while there is none */
    size_t before;       /* the sum of reached over the blocks before it */
    block *blocks;
    size_t n_blocks, cap_blocks;
    size_t reserved;
    size_t high_water; /* up to the last rewind */
    size_t block_bytes;
};

static block *alloc_list(size_t n)
{
    return tl_alloc(n * sizeof(block), sizeof(void *));
}

tl_status tl_arena_create(size_t block_bytes, tl_arena **out)
{
    if (!out) { /* R12 */
        tl_set_last_error("tl_arena_create: out is NULL");
        return TL_EINVAL;
    }
    *out = NULL; /* R12 */
    tl_arena *a = tl_alloc(sizeof *a, sizeof(void *));
    block *list = a ? alloc_list(FIRST_LIST) : NULL;
    if (!list) { /* R12: nothing is kept */
        tl_free(a);
        tl_set_last_error("tl_arena_create: no memory");
        return TL_ENOMEM;
    }
    memset(a, 0, sizeof *a); /* R11: no block yet, all counters 0 */
    a->blocks = list;
    a->cap_blocks = FIRST_LIST;
    a->block_bytes = block_bytes ? block_bytes : DEFAULT_BLOCK_BYTES; /* R19 */
    *out = a;
    return TL_OK;
}

void tl_arena_destroy(tl_arena *a)
{
    if (!a) /* R13 */
        return;
    for (size_t i = 0; i < a->n_blocks; i++)
        tl_free(a->blocks[i].base);
    tl_free(a->blocks);
    tl_free(a);
}

/* Bytes from base + offset to the next multiple of align. */
static size_t padding(const unsigned char *base, size_t offset, size_t align)
{
    return (size_t)(-((uintptr_t)base + offset) & (align - 1)); /* R15: of the address */
}

/* Do pad + n bytes fit behind offset?  No sum is formed that could overflow. */
static int fits(size_t size, size_t offset, size_t pad, size_t n)
{
    size_t room = size - offset;
    return pad <= room && n <= room - pad; /* R16: exactly is enough */
}

/* R19: the size of a new block for n bytes; 0 when it overflows. */
static size_t new_block_size(const tl_arena *a, size_t n)
{
    if (n <= a->block_bytes)
        return a->block_bytes;
    if (n > SIZE_MAX - 63) /* R21 */
        return 0;
    return (n + 63) & ~(size_t)63;
}

/* Room for one more block in the list; the list itself does not change when there is no memory. */
static int grow_list(tl_arena *a)
{
    if (a->n_blocks < a->cap_blocks)
        return 1;
    block *list = alloc_list(2 * a->cap_blocks);
    if (!list)
        return 0;
    memcpy(list, a->blocks, a->n_blocks * sizeof *list);
    tl_free(a->blocks);
    a->blocks = list;
    a->cap_blocks *= 2;
    return 1;
}

/* The index that the block after the current one has; 0 while there is none. */
static size_t next_index(const tl_arena *a)
{
    return a->n_blocks ? a->current + 1 : 0;
}

/* R17: exchange the first later block that fits with the next one. */
static int reuse_block(tl_arena *a, size_t next, size_t n, size_t align)
{
    for (size_t i = next; i < a->n_blocks; i++) {
        block b = a->blocks[i];
        if (!fits(b.size, 0, padding(b.base, 0, align), n))
            continue;
        a->blocks[i] = a->blocks[next];
        a->blocks[next] = b;
        return 1;
    }
    return 0;
}

/* R18: a block from the hook at the next index.  The list grows first: a block without a place would be
 * lost (R22). */
static int insert_block(tl_arena *a, size_t next, size_t n, size_t align)
{
    size_t size = new_block_size(a, n);
    if (size == 0 || !grow_list(a))
        return 0;
    size_t block_align = align > DEFAULT_ALIGN ? align : DEFAULT_ALIGN; /* R20 */
    unsigned char *base = tl_alloc(size, block_align);
    if (!base)
        return 0;
    memmove(a->blocks + next + 1, a->blocks + next, (a->n_blocks - next) * sizeof(block));
    a->blocks[next] = (block){base, size, 0};
    a->n_blocks++;
    a->reserved += size; /* R30 */
    return 1;
}

/* Make a block the current one, with so much of it in use. */
static void enter(tl_arena *a, size_t index, size_t offset)
{
    a->current = index;
    a->base = a->blocks[index].base;
    a->size = a->blocks[index].size;
    a->offset = offset;
}

/* Leave the current block, if there is one, for the next. */
static void advance(tl_arena *a, size_t next)
{
    a->blocks[a->current].reached = a->offset; /* R28 */
    a->before += a->offset;
    enter(a, next, 0);
}

/* Take pad + n bytes of the current block. */
static void *bump(tl_arena *a, size_t pad, size_t n)
{
    void *p = a->base + a->offset + pad;
    a->offset += pad + n; /* R28: padding counts */
    return p;
}

static void *refuse(const char *text)
{
    tl_set_last_error(text);
    return NULL;
}

/* An allocation that the current block has no room for. */
TL_RARE static void *alloc_in_next(tl_arena *a, size_t n, size_t align)
{
    size_t next = next_index(a);
    if (!reuse_block(a, next, n, align) && !insert_block(a, next, n, align)) /* R17, R18 */
        return refuse("tl_arena_alloc: no memory");                          /* R22: nothing has moved */
    advance(a, next);
    return bump(a, padding(a->base, 0, align), n);
}

void *tl_arena_alloc(tl_arena *a, size_t n, size_t align)
{
    if (!a) /* R21 */
        return refuse("tl_arena_alloc: the arena is NULL");
    if (n == 0) /* R21 */
        return refuse("tl_arena_alloc: 0 bytes");
    if (align == 0)
        align = DEFAULT_ALIGN; /* R14 */
    if (align > MAX_ALIGN || (align & (align - 1)) != 0) /* R14 */
        return refuse("tl_arena_alloc: align is not a power of two up to 4096");
    size_t pad = padding(a->base, a->offset, align);
    if (fits(a->size, a->offset, pad, n)) /* R16 */
        return bump(a, pad, n);
    return alloc_in_next(a, n, align);
}

tl_arena_mark tl_arena_mark_get(const tl_arena *a)
{
    tl_arena_mark m = {0, 0}; /* R23 */
    if (a) {
        m.block = a->current;
        m.offset = a->offset;
    }
    return m;
}

static size_t used(const tl_arena *a)
{
    return a->before + a->offset;
}

static size_t highest(const tl_arena *a)
{
    return used(a) > a->high_water ? used(a) : a->high_water; /* R31 */
}

/* R26: has the arena come as far as m?  An arena without blocks has reached (0, 0). */
static int is_reached(const tl_arena *a, tl_arena_mark m)
{
    if (m.block < a->current)
        return m.offset <= a->blocks[m.block].reached;
    return m.block == a->current && m.offset <= a->offset;
}

void tl_arena_reset_to(tl_arena *a, tl_arena_mark m)
{
    if (!a) { /* R27 */
        tl_set_last_error("tl_arena_reset_to: the arena is NULL");
        return;
    }
    if (!is_reached(a, m)) { /* R26 */
        tl_set_last_error("tl_arena_reset_to: the mark is ahead of the arena");
        return;
    }
    a->high_water = highest(a);
    if (a->n_blocks > 0)
        enter(a, m.block, m.offset); /* R24; R25: no block is freed */
    a->before = 0;                   /* R29: counted again */
    for (size_t i = 0; i < m.block; i++)
        a->before += a->blocks[i].reached;
}

void tl_arena_stats_get(const tl_arena *a, tl_arena_stats *out)
{
    if (!out) /* R32 */
        return;
    *out = (tl_arena_stats){0, 0, 0, 0};
    if (!a) /* R32 */
        return;
    out->bytes_used = used(a);
    out->bytes_reserved = a->reserved;
    out->high_water = highest(a);
    out->n_blocks = a->n_blocks;
}
