/* tinyllm/arena.h -- bump allocator with marks.  Unit arena, spec/arena.md.  One thread at a time. */
#ifndef TINYLLM_ARENA_H
#define TINYLLM_ARENA_H

#include "tinyllm/abi.h"

typedef struct tl_arena tl_arena;

/* A position: marks are ordered by block, then offset. */
typedef struct {
    size_t offset; /* bytes from the block's base */
    size_t block;  /* index of the block */
} tl_arena_mark;

typedef struct {
    size_t bytes_used;     /* padding counted, tails of left blocks not */
    size_t bytes_reserved; /* sum of the block sizes */
    size_t high_water;     /* the largest bytes_used so far */
    size_t n_blocks;
} tl_arena_stats;

/* A new arena in *out, no block yet, block_bytes each (0: 1 MiB); TL_EINVAL, TL_ENOMEM with *out NULL. */
tl_status tl_arena_create(size_t block_bytes, tl_arena **out);

/* n raw bytes aligned to align (a power of two <= 4096, 0: 64), until a rewind below them; NULL on error. */
void *tl_arena_alloc(tl_arena *a, size_t n, size_t align);

/* The current position; (0, 0) for an arena without blocks and for NULL. */
tl_arena_mark tl_arena_mark_get(const tl_arena *a);

/* Back to m, blocks kept; a mark after the current position is ignored and sets the slot. */
void tl_arena_reset_to(tl_arena *a, tl_arena_mark m);

/* Writes the counters to *out, zeros for a NULL arena. */
void tl_arena_stats_get(const tl_arena *a, tl_arena_stats *out);

/* Frees every block and the arena; NULL is ignored. */
void tl_arena_destroy(tl_arena *a);

#endif
