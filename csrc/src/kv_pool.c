/* SPDX-License-Identifier: Apache-2.0
 * Paged KV blocks: a block is free (on a vector), cached (on an LRU list) or used (on neither).
 * Spec: spec/kv_pool.md.
 * Everything that can fail is found out before anything is changed (R3), so nothing is ever undone.
 */
#include <stdbool.h>
#include <string.h>

#include "tinyllm/ds.h"
#include "tinyllm/kv_pool.h"

enum {
    HEADER = TL_KV_ENVELOPE_HEADER, /* bytes before the records */
    RECORD = 12,                    /* bytes of a record before its payload */
    CHECKSUM = 4,
    VERSION = 1,
    DATA_ALIGN = 64,
    FAST_CRC = 2048 /* bytes from which the tables of the fast CRC are worth making */
};

#define FNV_BASIS 0xCBF29CE484222325u
#define FNV_PRIME 0x100000001B3u
#define CRC_POLYNOMIAL 0x82F63B78u

typedef struct {
    tl_list_node node; /* on the list of cached blocks */
    uint64_t hash;     /* 0: not registered */
    uint32_t ref, fill;
} block;

struct tl_kv_pool {
    tl_kv_cfg cfg;
    size_t block_bytes;
    uint16_t *data; /* n_blocks times block_bytes */
    block *blocks;
    tl_vec free;   /* of uint32_t, with room for every id */
    tl_lru cached; /* oldest first */
    tl_map *index; /* hash to id */
    uint32_t evictions;
};

static tl_status fail(tl_status status, const char *text)
{
    tl_set_last_error(text);
    return status;
}

/* Is a times b a size?  The product goes to *product. */
static bool multiply(size_t a, size_t b, size_t *product)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *product = a * b;
    return true;
}

/* ---- bytes, little-endian ---- */

static void put_u16(uint8_t *at, uint16_t v)
{
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
}

static void put_u32(uint8_t *at, uint32_t v)
{
    put_u16(at, (uint16_t)v);
    put_u16(at + 2, (uint16_t)(v >> 16));
}

static void put_u64(uint8_t *at, uint64_t v)
{
    put_u32(at, (uint32_t)v);
    put_u32(at + 4, (uint32_t)(v >> 32));
}

static uint16_t get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t get_u32(const uint8_t *at)
{
    return get_u16(at) | (uint32_t)get_u16(at + 2) << 16;
}

static uint64_t get_u64(const uint8_t *at)
{
    return get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

/* ---- hash and checksum ---- */

static uint64_t fnv1a(uint64_t h, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * FNV_PRIME;
    return h;
}

uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n)
{
    uint8_t bytes[8];
    put_u64(bytes, parent);
    uint64_t h = fnv1a(FNV_BASIS, bytes, 8); /* R24 */
    for (uint32_t i = 0; i < n; i++) {
        put_u32(bytes, toks[i]);
        h = fnv1a(h, bytes, 4); /* R24 */
    }
    return h == 0 ? 1 : h; /* R25 */
}

/* The state after one more byte, bit by bit. */
static uint32_t crc_byte(uint32_t state, uint8_t byte)
{
    state ^= byte;
    for (int bit = 0; bit < 8; bit++)
        state = (state >> 1) ^ ((state & 1) ? CRC_POLYNOMIAL : 0); /* R36: reflected */
    return state;
}

/* The same for n bytes, eight at a time: t[i][b] is what byte b does to the state with i bytes after it. */
static uint32_t crc_eights(uint32_t state, const uint8_t *at, size_t n)
{
    uint32_t t[8][256];
    for (uint32_t b = 0; b < 256; b++)
        t[0][b] = crc_byte(b, 0);
    for (int i = 1; i < 8; i++)
        for (uint32_t b = 0; b < 256; b++)
            t[i][b] = (t[i - 1][b] >> 8) ^ t[0][t[i - 1][b] & 0xFF];

    for (; n >= 8; n -= 8, at += 8) {
        uint32_t low = state ^ get_u32(at);
        uint32_t high = get_u32(at + 4);
        state = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24];
        state ^= t[3][high & 0xFF] ^ t[2][high >> 8 & 0xFF] ^ t[1][high >> 16 & 0xFF] ^ t[0][high >> 24];
    }
    return state;
}

uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc)
{
    const uint8_t *at = data;
    size_t fast = n < FAST_CRC ? 0 : n - n % 8;
    uint32_t state = ~crc; /* R36: undoes the last XOR of an earlier result, and starts from ones */
    if (fast > 0)
        state = crc_eights(state, at, fast);
    for (size_t i = fast; i < n; i++)
        state = crc_byte(state, at[i]);
    return ~state;
}

/* ---- making and ending a pool ---- */

/* 2 bytes x K and V x the four dimensions; 0 when that is no size. */
static size_t payload_bytes(uint32_t layers, uint32_t heads, uint32_t tokens, uint32_t dim)
{
    size_t n = 4;
    bool fits = multiply(n, layers, &n) && multiply(n, heads, &n);
    fits = fits && multiply(n, tokens, &n) && multiply(n, dim, &n);
    return fits ? n : 0;
}

static bool has_zero_dimension(const tl_kv_cfg *c)
{
    return c->n_blocks == 0 || c->block_tokens == 0 || c->n_layers == 0 || c->n_kv_heads == 0 ||
           c->head_dim == 0;
}

/* The four allocations; false when one fails. */
static bool allocate(tl_kv_pool *p, size_t data_bytes)
{
    uint32_t n = p->cfg.n_blocks;
    size_t table_bytes = 0;
    if (!multiply(n, sizeof(block), &table_bytes))
        return false;
    p->data = tl_alloc(data_bytes, DATA_ALIGN); /* R22 */
    if (!p->data)
        return false;
    p->blocks = tl_alloc(table_bytes, _Alignof(block));
    if (!p->blocks)
        return false;
    memset(p->blocks, 0, table_bytes);
    if (tl_vec_reserve(&p->free, n) != TL_OK) /* R4: for every id, so that no push allocates */
        return false;
    return tl_map_create(n, &p->index) == TL_OK;
}

tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out)
{
    if (!out) /* R5 */
        return fail(TL_EINVAL, "tl_kv_pool_create: out is NULL");
    *out = NULL; /* R7 */
    if (!cfg)    /* R5 */
        return fail(TL_EINVAL, "tl_kv_pool_create: cfg is NULL");
    if (cfg->format != TL_KV_FORMAT_V1) /* R6 */
        return fail(TL_EUNSUPPORTED, "tl_kv_pool_create: only format 1 is supported");
    if (cfg->dtype != TL_F16) /* R6 */
        return fail(TL_EUNSUPPORTED, "tl_kv_pool_create: only TL_F16 is supported");
    if (has_zero_dimension(cfg)) /* R5 */
        return fail(TL_EINVAL, "tl_kv_pool_create: a dimension is 0");
    size_t block_bytes = payload_bytes(cfg->n_layers, cfg->n_kv_heads, cfg->block_tokens, cfg->head_dim);
    size_t data_bytes = 0;
    if (block_bytes == 0 || !multiply(block_bytes, cfg->n_blocks, &data_bytes)) /* R5 */
        return fail(TL_EINVAL, "tl_kv_pool_create: the size overflows");

    tl_kv_pool *p = tl_alloc(sizeof *p, _Alignof(tl_kv_pool));
    if (!p) /* R6 */
        return fail(TL_ENOMEM, "tl_kv_pool_create: no memory");
    *p = (tl_kv_pool){.cfg = *cfg, .block_bytes = block_bytes};
    tl_vec_init(&p->free, sizeof(uint32_t));
    tl_lru_init(&p->cached);
    if (!allocate(p, data_bytes)) {
        tl_kv_pool_destroy(p); /* R6 */
        return fail(TL_ENOMEM, "tl_kv_pool_create: no memory");
    }
    for (uint32_t id = cfg->n_blocks; id-- > 0;)
        tl_vec_push(&p->free, &id); /* the last one is taken first: 0, 1, 2, .. */
    *out = p;
    return TL_OK;
}

void tl_kv_pool_destroy(tl_kv_pool *p)
{
    if (!p) /* R8 */
        return;
    tl_map_destroy(p->index);
    tl_vec_free(&p->free);
    tl_free(p->blocks);
    tl_free(p->data);
    tl_free(p);
}

/* ---- moves between free, used and cached ---- */

/* The block of id when it is used, else NULL. */
static block *used_block(const tl_kv_pool *p, uint32_t id)
{
    if (!p || id >= p->cfg.n_blocks)
        return NULL;
    return p->blocks[id].ref > 0 ? &p->blocks[id] : NULL; /* R1 */
}

/* Can n blocks be taken? */
static bool has_room(const tl_kv_pool *p, uint32_t n)
{
    return n <= p->free.len + p->cached.len; /* R12 */
}

/* Takes the id that was freed last. */
static uint32_t pop_free(tl_kv_pool *p)
{
    const uint32_t *last = tl_vec_at(&p->free, p->free.len - 1);
    p->free.len--;
    return *last;
}

/* Takes the block that has been cached longest. */
static uint32_t evict(tl_kv_pool *p)
{
    block *b = TL_CONTAINER_OF(tl_lru_pop_oldest(&p->cached), block, node); /* R10 */
    tl_map_del(p->index, b->hash);                                          /* R11 */
    p->evictions++;                                                         /* R11 */
    return (uint32_t)(b - p->blocks);
}

/* Takes one block; has_room was true. */
static uint32_t take(tl_kv_pool *p)
{
    uint32_t id = p->free.len > 0 ? pop_free(p) : evict(p);  /* R10 */
    p->blocks[id] = (block){.ref = 1, .fill = 0, .hash = 0}; /* R9 */
    return id;
}

/* Puts the hash of an unregistered block into the index; TL_EBUSY when another block has it, TL_ENOMEM. */
static tl_status publish(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    if (tl_map_get(p->index, hash, NULL)) /* R27, R44 */
        return TL_EBUSY;
    tl_status status = tl_map_put(p->index, hash, id);
    if (status == TL_OK)
        p->blocks[id].hash = hash;
    return status;
}

tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids)
{
    if (!p || (n > 0 && !ids)) /* R9, R46 */
        return fail(TL_EINVAL, "tl_kv_alloc: a pointer is NULL");
    if (!has_room(p, n)) /* R12: before the first is taken */
        return fail(TL_EFULL, "tl_kv_alloc: not enough free and cached blocks");
    for (uint32_t i = 0; i < n; i++)
        ids[i] = take(p);
    return TL_OK;
}

void tl_kv_ref(tl_kv_pool *p, uint32_t id)
{
    block *b = used_block(p, id);
    if (!b) { /* R13 */
        tl_set_last_error("tl_kv_ref: the block is not in use");
        return;
    }
    b->ref++;
}

tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id)
{
    block *b = used_block(p, id);
    if (!b) /* R15 */
        return fail(TL_EINVAL, "tl_kv_unref: the block is not in use");
    b->ref--;
    if (b->ref > 0)
        return TL_OK;
    if (b->hash != 0) /* R14 */
        tl_lru_touch(&p->cached, &b->node);
    else
        tl_vec_push(&p->free, &id);
    return TL_OK;
}

/* ---- hashes ---- */

tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    const block *b = used_block(p, id);
    if (!b) /* R26 */
        return fail(TL_EINVAL, "tl_kv_register: the block is not in use");
    if (hash == 0) /* R26 */
        return fail(TL_EINVAL, "tl_kv_register: the hash is 0");
    if (b->fill != p->cfg.block_tokens) /* R26 */
        return fail(TL_EINVAL, "tl_kv_register: the block is not full");
    if (b->hash == hash) /* R27 */
        return TL_OK;
    if (b->hash != 0) /* R27 */
        return fail(TL_EBUSY, "tl_kv_register: the block has another hash");
    tl_status status = publish(p, id, hash);
    if (status == TL_EBUSY) /* R27 */
        return fail(TL_EBUSY, "tl_kv_register: another block has the hash");
    if (status != TL_OK) /* R31 */
        return fail(status, "tl_kv_register: no memory for the index");
    return TL_OK;
}

tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id)
{
    if (!p || !id) /* R46 */
        return fail(TL_EINVAL, "tl_kv_lookup: a pointer is NULL");
    uint64_t found = 0;
    if (!tl_map_get(p->index, hash, &found)) /* R30: 0 is never in the index */
        return TL_ENOTFOUND;
    block *b = &p->blocks[found];
    tl_lru_remove(&p->cached, &b->node); /* R29: nothing happens when it is used */
    b->ref++;                            /* R29 */
    *id = (uint32_t)found;
    return TL_OK;
}

/* ---- writing ---- */

/* The first byte of a block, as halves. */
static uint16_t *block_data(const tl_kv_pool *p, uint32_t id)
{
    return p->data + (size_t)id * (p->block_bytes / 2); /* R22 */
}

/* Halves of one layer's K, or V, in a block. */
static size_t slab_halves(const tl_kv_pool *p)
{
    return (size_t)p->cfg.n_kv_heads * p->cfg.block_tokens * p->cfg.head_dim;
}

tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out)
{
    block *b = used_block(p, id);
    if (!b) /* R20 */
        return fail(TL_EINVAL, "tl_kv_cow: the block is not in use");
    if (!out) /* R46 */
        return fail(TL_EINVAL, "tl_kv_cow: out is NULL");
    if (b->ref == 1) { /* R18 */
        *out = id;
        return TL_OK;
    }
    if (!has_room(p, 1)) /* R20 */
        return fail(TL_EFULL, "tl_kv_cow: no free or cached block for the copy");
    uint32_t copy = take(p);
    memcpy(block_data(p, copy), block_data(p, id), p->block_bytes); /* R19 */
    p->blocks[copy].fill = b->fill;
    b->ref--;
    *out = copy;
    return TL_OK;
}

tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens)
{
    block *b = used_block(p, id);
    if (!b) /* R16 */
        return fail(TL_EINVAL, "tl_kv_set_fill: the block is not in use");
    if (b->hash != 0) /* R16 */
        return fail(TL_EINVAL, "tl_kv_set_fill: the block is registered");
    if (n_tokens > p->cfg.block_tokens) /* R16 */
        return fail(TL_EINVAL, "tl_kv_set_fill: more tokens than a block holds");
    b->fill = n_tokens;
    return TL_OK;
}

uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id)
{
    const block *b = used_block(p, id);
    if (!b) { /* R17 */
        tl_set_last_error("tl_kv_fill: the block is not in use");
        return 0;
    }
    return b->fill;
}

void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v)
{
    if (!p || id >= p->cfg.n_blocks || layer >= p->cfg.n_layers) { /* R23 */
        tl_set_last_error("tl_kv_block_ptr: block or layer out of range");
        return NULL;
    }
    size_t slab = 2 * (size_t)layer + (is_v != 0); /* R22: K and V of a layer side by side */
    return block_data(p, id) + slab * slab_halves(p);
}

/* ---- counters ---- */

void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out)
{
    if (out)
        *out = p ? p->cfg : (tl_kv_cfg){.n_blocks = 0};
}

void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out)
{
    if (!out)
        return;
    *out = (tl_kv_stats){.free = 0};
    if (!p)
        return;
    out->free = (uint32_t)p->free.len;
    out->cached = (uint32_t)p->cached.len;
    out->used = p->cfg.n_blocks - out->free - out->cached; /* R1 */
    out->evictions = p->evictions;
}

size_t tl_kv_block_bytes(const tl_kv_pool *p)
{
    return p ? p->block_bytes : 0;
}

/* Bytes of an envelope of n records with that payload; 0 when that is no size. */
static size_t envelope_bytes(size_t n, size_t payload)
{
    size_t bytes = 0;
    if (payload > SIZE_MAX - RECORD || !multiply(n, RECORD + payload, &bytes))
        return 0;
    return bytes > SIZE_MAX - HEADER - CHECKSUM ? 0 : HEADER + bytes + CHECKSUM;
}

size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n)
{
    size_t bytes = p ? envelope_bytes(n, p->block_bytes) : 0;
    if (bytes == 0) /* R33 */
        tl_set_last_error("tl_kv_export_bytes: no pool, or the size overflows");
    return bytes;
}

/* ---- export ---- */

static void write_header(const tl_kv_pool *p, uint32_t n, uint8_t *at)
{
    memcpy(at, "TLKV", 4); /* R34 */
    put_u16(at + 4, VERSION);
    put_u16(at + 6, TL_F16);
    put_u32(at + 8, n);
    put_u32(at + 12, p->cfg.block_tokens);
    put_u32(at + 16, p->cfg.n_layers);
    put_u32(at + 20, p->cfg.n_kv_heads);
    put_u32(at + 24, p->cfg.head_dim);
}

/* The rows of one head in one slab: block_tokens times head_dim halves. */
static void write_rows(const uint16_t *rows, size_t filled, size_t halves, uint8_t *at)
{
    for (size_t i = 0; i < filled; i++)
        put_u16(at + 2 * i, rows[i]);
    memset(at + 2 * filled, 0, 2 * (halves - filled)); /* R37: nothing old leaves the pool */
}

static void write_record(const tl_kv_pool *p, uint32_t id, uint8_t *at)
{
    const block *b = &p->blocks[id];
    put_u64(at, b->hash); /* R35 */
    put_u32(at + 8, b->fill);
    size_t halves = (size_t)p->cfg.block_tokens * p->cfg.head_dim;
    size_t filled = (size_t)b->fill * p->cfg.head_dim;
    const uint16_t *data = block_data(p, id);
    for (size_t i = 0; i < p->block_bytes / 2; i += halves) /* memory has the order of the payload */
        write_rows(data + i, filled, halves, at + RECORD + 2 * i);
}

/* R39: every one used and not empty. */
static bool can_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const block *b = used_block(p, ids[i]);
        if (!b || b->fill == 0)
            return false;
    }
    return true;
}

tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n, void *buf, size_t cap,
                       size_t *written)
{
    if (!p || !written || (n > 0 && !ids)) /* R39, R46 */
        return fail(TL_EINVAL, "tl_kv_export: a pointer is NULL");
    if (!can_export(p, ids, n)) /* R39 */
        return fail(TL_EINVAL, "tl_kv_export: a block is not in use or empty");
    size_t bytes = envelope_bytes(n, p->block_bytes);
    if (bytes == 0)
        return fail(TL_EINVAL, "tl_kv_export: the size overflows");
    if (cap < bytes) { /* R38 */
        *written = bytes;
        return fail(TL_EFULL, "tl_kv_export: the buffer is too small");
    }
    if (!buf) /* R39 */
        return fail(TL_EINVAL, "tl_kv_export: buf is NULL");

    uint8_t *start = buf;
    write_header(p, n, start);
    for (uint32_t i = 0; i < n; i++)
        write_record(p, ids[i], start + HEADER + i * (RECORD + p->block_bytes));
    put_u32(start + bytes - CHECKSUM, tl_crc32c(start, bytes - CHECKSUM, 0)); /* R36 */
    *written = bytes;
    return TL_OK;
}

/* ---- import ---- */

typedef struct {
    uint32_t n_blocks, block_tokens, n_layers, n_kv_heads, head_dim;
    size_t record_bytes;
    const uint8_t *records;
} envelope;

static bool is_record(const uint8_t *at, uint32_t block_tokens)
{
    uint64_t hash = get_u64(at);
    uint32_t n_tokens = get_u32(at + 8);
    if (n_tokens == 0 || n_tokens > block_tokens)
        return false;
    return hash == 0 || n_tokens == block_tokens;
}

/* Reads an envelope from buf[len]; false when it is not one (R41).  R42: looks at no pool. */
static bool parse(const uint8_t *buf, size_t len, envelope *e)
{
    if (len < HEADER + CHECKSUM)
        return false;
    if (memcmp(buf, "TLKV", 4) != 0)
        return false;
    if (get_u16(buf + 4) != VERSION)
        return false;
    if (get_u16(buf + 6) != TL_F16)
        return false;
    e->n_blocks = get_u32(buf + 8);
    e->block_tokens = get_u32(buf + 12);
    e->n_layers = get_u32(buf + 16);
    e->n_kv_heads = get_u32(buf + 20);
    e->head_dim = get_u32(buf + 24);
    size_t payload = payload_bytes(e->n_layers, e->n_kv_heads, e->block_tokens, e->head_dim);
    if (payload == 0) /* a dimension is 0, or the product is no size */
        return false;
    if (len != envelope_bytes(e->n_blocks, payload)) /* 0 on overflow, which len is not */
        return false;
    if (get_u32(buf + len - CHECKSUM) != tl_crc32c(buf, len - CHECKSUM, 0))
        return false;
    e->record_bytes = RECORD + payload;
    e->records = buf + HEADER;
    for (uint32_t i = 0; i < e->n_blocks; i++)
        if (!is_record(e->records + i * e->record_bytes, e->block_tokens))
            return false;
    return true;
}

static bool has_shape(const tl_kv_cfg *c, const envelope *e)
{
    return c->block_tokens == e->block_tokens && c->n_layers == e->n_layers &&
           c->n_kv_heads == e->n_kv_heads && c->head_dim == e->head_dim;
}

static void read_record(tl_kv_pool *p, uint32_t id, const uint8_t *at)
{
    uint64_t hash = get_u64(at);
    p->blocks[id].fill = get_u32(at + 8); /* R40 */
    uint16_t *data = block_data(p, id);
    for (size_t i = 0; i < p->block_bytes / 2; i++)
        data[i] = get_u16(at + RECORD + 2 * i);
    if (hash != 0)
        publish(p, id, hash); /* R31, R44: when it does not work, the block stays private */
}

tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out)
{
    if (!buf)
        return fail(TL_EINVAL, "tl_kv_import: buf is NULL");
    envelope e;
    if (!parse(buf, len, &e)) /* R41, R42: before all that asks the pool */
        return fail(TL_EFORMAT, "tl_kv_import: not an envelope of format 1");
    if (!p || (e.n_blocks > 0 && !ids_out)) /* R40, R46 */
        return fail(TL_EINVAL, "tl_kv_import: a pointer is NULL");
    if (!has_shape(&p->cfg, &e)) /* R43 */
        return fail(TL_ESHAPE, "tl_kv_import: blocks of another shape");
    if (!has_room(p, e.n_blocks)) /* R43 */
        return fail(TL_EFULL, "tl_kv_import: not enough free and cached blocks");

    for (uint32_t i = 0; i < e.n_blocks; i++)
        ids_out[i] = take(p);
    for (uint32_t i = 0; i < e.n_blocks; i++) /* R45: taking may have evicted the holder of a hash */
        read_record(p, ids_out[i], e.records + i * e.record_bytes);
    return TL_OK;
}
