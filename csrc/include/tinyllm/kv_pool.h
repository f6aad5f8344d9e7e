/* tinyllm/kv_pool.h -- a pool of paged KV blocks, format v1.  Unit kv_pool, spec/kv_pool.md.
 * One thread at a time. */
#ifndef TINYLLM_KV_POOL_H
#define TINYLLM_KV_POOL_H

#include "tinyllm/abi.h"

#define TL_KV_FORMAT_V1 1u
#define TL_KV_ENVELOPE_HEADER 28u

typedef struct tl_kv_pool tl_kv_pool;

typedef struct {
    uint32_t n_blocks, block_tokens, n_layers, n_kv_heads, head_dim;
    int32_t dtype;   /* TL_F16 */
    uint32_t format; /* TL_KV_FORMAT_V1 */
} tl_kv_cfg;

/* free + used + cached is n_blocks */
typedef struct {
    uint32_t free, used, cached;
    uint32_t evictions;
} tl_kv_stats;

/* A pool with all blocks free in *out, no allocation after but for the index of hashes; TL_EINVAL,
 * TL_EUNSUPPORTED (dtype, format), TL_ENOMEM, each with *out NULL. */
tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out);

/* Frees the pool; NULL is ignored. */
void tl_kv_pool_destroy(tl_kv_pool *p);

/* n blocks with one reference and fill 0 in ids[n], free ones before cached ones; TL_EINVAL, TL_EFULL with
 * nothing taken. */
tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids);

/* One more reference to a used block; on any other id no effect but the slot. */
void tl_kv_ref(tl_kv_pool *p, uint32_t id);

/* One reference less; at 0 a registered block is cached, another freed; TL_EINVAL when id is not in use. */
tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id);

/* A block to write to in *out: id itself with one reference, else a copy that takes over one of them;
 * TL_EINVAL, TL_EFULL. */
tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out);

/* Number of tokens held, 0 .. block_tokens; TL_EINVAL beyond, on a registered block or one not in use. */
tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens);

/* Number of tokens held; 0 with the slot set for a bad id. */
uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id);

/* FNV-1a 64 of parent (8 bytes) and toks[n] (4 bytes each), little-endian; never 0; parent of a first block
 * is 0. */
uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n);

/* Makes a full used block findable by hash != 0; TL_EINVAL, TL_EBUSY when the hash or the block is taken
 * otherwise, TL_ENOMEM. */
tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash);

/* The block of hash in *id with one more reference; TL_ENOTFOUND without setting the slot, TL_EINVAL. */
tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id);

/* The slab f16[n_kv_heads][block_tokens][head_dim] of K (is_v 0) or V; NULL with the slot set when out of
 * range. */
void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v);

/* Writes the configuration to *out. */
void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out);

/* Bytes of one block, all layers, K and V. */
size_t tl_kv_block_bytes(const tl_kv_pool *p);

/* Bytes of an envelope of n blocks. */
size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n);

/* Writes the blocks ids[n] as an envelope to buf[cap], its size to *written; TL_EINVAL, TL_EFULL (*written
 * the size needed). */
tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n, void *buf, size_t cap,
                       size_t *written);

/* Reads an envelope into new blocks, their ids in ids_out; TL_EINVAL, TL_EFORMAT, TL_ESHAPE, TL_EFULL with
 * nothing taken. */
tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out);

/* Writes the counters to *out. */
void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out);

/* CRC-32C of data[n]; crc is 0, or the result for the bytes before these. */
uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc);

#endif
