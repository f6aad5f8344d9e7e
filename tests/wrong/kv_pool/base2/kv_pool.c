/* kv_pool, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/kv_pool.h"

#define NONE UINT32_MAX

typedef struct {
    uint64_t hash; /* 0: not registered */
    uint32_t refs, fill;
    uint32_t prev, next; /* in the chain of cached blocks; next also in that of the free ones */
    uint32_t chain;      /* next block of the same bucket */
} block;

struct tl_kv_pool {
    tl_kv_cfg cfg;
    size_t bytes; /* of one block */
    unsigned char *slab;
    block *b;
    uint32_t *bucket;
    uint32_t mask;
    uint32_t free_head, n_free;
    uint32_t oldest, newest, n_cached;
    uint32_t evictions;
};

static tl_status fail(tl_status s, const char *msg)
{
    tl_set_last_error(msg);
    return s;
}

static int mul(size_t a, size_t b, size_t *out)
{
    if (b && a > SIZE_MAX / b)
        return 0;
    *out = a * b;
    return 1;
}

/* P of four dimensions; 0 when it overflows. */
static size_t payload(uint32_t layers, uint32_t heads, uint32_t tokens, uint32_t dim)
{
    size_t p = 4;
    if (!mul(p, layers, &p) || !mul(p, heads, &p) || !mul(p, tokens, &p) || !mul(p, dim, &p))
        return 0;
    return p;
}

/* 32 + n (12 + P); 0 when it overflows. */
static size_t envelope(size_t P, uint32_t n)
{
    size_t r;
    if (P > SIZE_MAX - 12 || !mul(P + 12, n, &r) || r > SIZE_MAX - 32)
        return 0;
    return r + 32;
}

/* ---- the index ---- */

static uint32_t *bucket_of(const tl_kv_pool *p, uint64_t hash)
{
    return &p->bucket[(hash ^ hash >> 32) & p->mask];
}

static uint32_t find(const tl_kv_pool *p, uint64_t hash)
{
    uint32_t i = *bucket_of(p, hash);
    while (i != NONE && p->b[i].hash != hash)
        i = p->b[i].chain;
    return i;
}

static void index_put(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    uint32_t *head = bucket_of(p, hash);
    p->b[id].hash = hash;
    p->b[id].chain = *head;
    *head = id;
}

static void index_del(tl_kv_pool *p, uint32_t id)
{
    uint32_t *at = bucket_of(p, p->b[id].hash);
    while (*at != id)
        at = &p->b[*at].chain;
    *at = p->b[id].chain;
    p->b[id].hash = 0;
}

/* ---- the two chains ---- */

static void free_push(tl_kv_pool *p, uint32_t id)
{
    p->b[id].next = p->free_head;
    p->free_head = id;
    p->n_free++;
}

static void cached_push(tl_kv_pool *p, uint32_t id)
{
    p->b[id].prev = p->newest;
    p->b[id].next = NONE;
    if (p->newest == NONE)
        p->oldest = id;
    else
        p->b[p->newest].next = id;
    p->newest = id;
    p->n_cached++;
}

static void cached_remove(tl_kv_pool *p, uint32_t id)
{
    block *x = &p->b[id];
    if (x->prev == NONE)
        p->oldest = x->next;
    else
        p->b[x->prev].next = x->next;
    if (x->next == NONE)
        p->newest = x->prev;
    else
        p->b[x->next].prev = x->prev;
    p->n_cached--;
}

/* One block, of which there must be one: free, else the oldest cached one. */
static uint32_t take(tl_kv_pool *p)
{
    uint32_t id = p->free_head;
    if (id != NONE) {
        p->free_head = p->b[id].next;
        p->n_free--;
    } else {
        id = p->oldest;
        cached_remove(p, id);
        index_del(p, id);
        p->evictions++;
    }
    p->b[id].refs = 1;
    p->b[id].fill = 0;
    return id;
}

static int room(const tl_kv_pool *p, uint32_t n)
{
    return (uint64_t)p->n_free + p->n_cached >= n;
}

static int in_use(const tl_kv_pool *p, uint32_t id)
{
    return id < p->cfg.n_blocks && p->b[id].refs > 0;
}

/* ---- making and ending ---- */

tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out)
{
    if (out)
        *out = NULL;
    if (!cfg || !out)
        return fail(TL_EINVAL, "tl_kv_pool_create: NULL");
    if (!cfg->n_blocks || !cfg->block_tokens || !cfg->n_layers || !cfg->n_kv_heads || !cfg->head_dim)
        return fail(TL_EINVAL, "tl_kv_pool_create: a dimension is 0");
    if (cfg->format != TL_KV_FORMAT_V1 || cfg->dtype != TL_F16)
        return fail(TL_EUNSUPPORTED, "tl_kv_pool_create: format or dtype");
    size_t P = payload(cfg->n_layers, cfg->n_kv_heads, cfg->block_tokens, cfg->head_dim), all, meta, buckets;
    uint64_t nb = 1;
    while (nb < cfg->n_blocks)
        nb *= 2;
    if (!P || !mul(P, cfg->n_blocks, &all) || !mul(sizeof(block), cfg->n_blocks, &meta) ||
        !mul(sizeof(uint32_t), nb, &buckets))
        return fail(TL_EINVAL, "tl_kv_pool_create: size overflows");
    tl_kv_pool *p = tl_alloc(sizeof *p, _Alignof(tl_kv_pool));
    if (!p)
        return fail(TL_ENOMEM, "tl_kv_pool_create: no memory");
    memset(p, 0, sizeof *p);
    p->b = tl_alloc(meta, _Alignof(block));
    p->bucket = p->b ? tl_alloc(buckets, _Alignof(uint32_t)) : NULL;
    p->slab = p->bucket ? tl_alloc(all, 64) : NULL;
    if (!p->slab) {
        tl_kv_pool_destroy(p);
        return fail(TL_ENOMEM, "tl_kv_pool_create: no memory");
    }
    p->cfg = *cfg;
    p->bytes = P;
    p->mask = (uint32_t)(nb - 1);
    p->free_head = p->oldest = p->newest = NONE;
    memset(p->b, 0, meta);
    memset(p->bucket, 0xFF, buckets);
    for (uint32_t id = cfg->n_blocks; id-- > 0;)
        free_push(p, id);
    *out = p;
    return TL_OK;
}

void tl_kv_pool_destroy(tl_kv_pool *p)
{
    if (!p)
        return;
    tl_free(p->slab);
    tl_free(p->bucket);
    tl_free(p->b);
    tl_free(p);
}

/* ---- references ---- */

tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids)
{
    if (!p || (n && !ids))
        return fail(TL_EINVAL, "tl_kv_alloc: NULL");
    if (!room(p, n))
        return fail(TL_EFULL, "tl_kv_alloc: not enough blocks");
    for (uint32_t i = 0; i < n; i++)
        ids[i] = take(p);
    return TL_OK;
}

void tl_kv_ref(tl_kv_pool *p, uint32_t id)
{
    if (!p || !in_use(p, id)) {
        tl_set_last_error("tl_kv_ref: block is not in use");
        return;
    }
    p->b[id].refs++;
}

static void drop(tl_kv_pool *p, uint32_t id)
{
    if (--p->b[id].refs > 0)
        return;
    if (p->b[id].hash)
        cached_push(p, id);
    else
        free_push(p, id);
}

tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id)
{
    if (!p || !in_use(p, id))
        return fail(TL_EINVAL, "tl_kv_unref: block is not in use");
    drop(p, id);
    return TL_OK;
}

/* ---- writing ---- */

tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out)
{
    if (!p || !out || !in_use(p, id))
        return fail(TL_EINVAL, "tl_kv_cow: block is not in use");
    if (p->b[id].refs == 1) {
        *out = id;
        return TL_OK;
    }
    if (!room(p, 1))
        return fail(TL_EFULL, "tl_kv_cow: no block for the copy");
    uint32_t to = take(p);
    memcpy(p->slab + to * p->bytes, p->slab + id * p->bytes, p->bytes);
    p->b[to].fill = p->b[id].fill;
    drop(p, id);
    *out = to;
    return TL_OK;
}

tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens)
{
    if (!p || !in_use(p, id))
        return fail(TL_EINVAL, "tl_kv_set_fill: block is not in use");
    if (p->b[id].hash)
        return fail(TL_EINVAL, "tl_kv_set_fill: block is registered");
    if (n_tokens > p->cfg.block_tokens)
        return fail(TL_EINVAL, "tl_kv_set_fill: more than a block holds");
    p->b[id].fill = n_tokens;
    return TL_OK;
}

uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id)
{
    if (!p || !in_use(p, id)) {
        tl_set_last_error("tl_kv_fill: block is not in use");
        return 0;
    }
    return p->b[id].fill;
}

void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v)
{
    if (!p || id >= p->cfg.n_blocks || layer >= p->cfg.n_layers) {
        tl_set_last_error("tl_kv_block_ptr: out of range");
        return NULL;
    }
    size_t part = p->bytes / p->cfg.n_layers / 2;
    return p->slab + id * p->bytes + (2 * (size_t)layer + (is_v != 0)) * part;
}

/* ---- hashes ---- */

static uint64_t fnv(uint64_t h, uint64_t v, int bytes)
{
    while (bytes-- > 0) {
        h = (h ^ (v & 0xFF)) * 0x100000001B3u;
        v >>= 8;
    }
    return h;
}

uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n)
{
    uint64_t h = fnv(0xCBF29CE484222325u, parent, 8);
    for (uint32_t i = 0; i < n; i++)
        h = fnv(h, toks[i], 4);
    return h ? h : 1;
}

tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    if (!p || !in_use(p, id) || !hash)
        return fail(TL_EINVAL, "tl_kv_register: block not in use, or hash 0");
    if (p->b[id].fill != p->cfg.block_tokens)
        return fail(TL_EINVAL, "tl_kv_register: block is not full");
    if (p->b[id].hash == hash)
        return TL_OK;
    if (p->b[id].hash)
        return fail(TL_EBUSY, "tl_kv_register: block has another hash");
    if (find(p, hash) != NONE)
        return fail(TL_EBUSY, "tl_kv_register: another block has the hash");
    index_put(p, id, hash);
    return TL_OK;
}

tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id)
{
    if (!p || !id)
        return fail(TL_EINVAL, "tl_kv_lookup: NULL");
    uint32_t i = hash ? find(p, hash) : NONE;
    if (i == NONE)
        return TL_ENOTFOUND;
    if (p->b[i].refs++ == 0)
        cached_remove(p, i);
    *id = i;
    return TL_OK;
}

/* ---- counters ---- */

void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out)
{
    if (out)
        *out = p ? p->cfg : (tl_kv_cfg){0};
}

size_t tl_kv_block_bytes(const tl_kv_pool *p)
{
    return p ? p->bytes : 0;
}

size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n)
{
    size_t r = p ? envelope(p->bytes, n) : 0;
    if (!r)
        tl_set_last_error("tl_kv_export_bytes: NULL, or the size overflows");
    return r;
}

void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out)
{
    if (!out)
        return;
    *out = (tl_kv_stats){0};
    if (p)
        *out = (tl_kv_stats){p->n_free, p->cfg.n_blocks - p->n_free - p->n_cached, p->n_cached, p->evictions};
}

/* ---- envelope ---- */

uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc)
{
    const unsigned char *s = data;
    crc = ~crc;
    while (n-- > 0) {
        crc ^= *s++;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}

static unsigned char *put(unsigned char *s, uint64_t v, int bytes)
{
    for (; bytes > 0; bytes--, v >>= 8)
        *s++ = (unsigned char)v;
    return s;
}

static uint64_t get(const unsigned char *s, int bytes)
{
    uint64_t v = 0;
    while (bytes-- > 0)
        v = v << 8 | s[bytes];
    return v;
}

tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n, void *buf, size_t cap,
                       size_t *written)
{
    if (!p || !written || (n && !ids))
        return fail(TL_EINVAL, "tl_kv_export: NULL");
    for (uint32_t i = 0; i < n; i++)
        if (!in_use(p, ids[i]) || p->b[ids[i]].fill == 0)
            return fail(TL_EINVAL, "tl_kv_export: block not in use or empty");
    size_t size = envelope(p->bytes, n);
    if (!size)
        return fail(TL_EINVAL, "tl_kv_export: size overflows");
    if (cap < size) {
        *written = size;
        return fail(TL_EFULL, "tl_kv_export: buf is too small");
    }
    if (!buf)
        return fail(TL_EINVAL, "tl_kv_export: buf is NULL");
    unsigned char *s = buf;
    memcpy(s, "TLKV", 4);
    s = put(s + 4, 1, 2);
    s = put(s, 1, 2);
    s = put(s, n, 4);
    s = put(s, p->cfg.block_tokens, 4);
    s = put(s, p->cfg.n_layers, 4);
    s = put(s, p->cfg.n_kv_heads, 4);
    s = put(s, p->cfg.head_dim, 4);
    size_t row = 2 * (size_t)p->cfg.head_dim, slab = row * p->cfg.block_tokens;
    for (uint32_t i = 0; i < n; i++) {
        const block *x = &p->b[ids[i]];
        s = put(s, x->hash, 8);
        s = put(s, x->fill, 4);
        memcpy(s, p->slab + ids[i] * p->bytes, p->bytes);
        for (size_t at = 0; at < p->bytes; at += slab)
            memset(s + at + row * x->fill, 0, slab - row * x->fill);
        s += p->bytes;
    }
    put(s, tl_crc32c(buf, size - 4, 0), 4);
    *written = size;
    return TL_OK;
}

tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out)
{
    const unsigned char *s = buf;
    if (len < 32)
        return fail(TL_EFORMAT, "tl_kv_import: too short");
    if (!buf)
        return fail(TL_EINVAL, "tl_kv_import: buf is NULL");
    uint32_t n = (uint32_t)get(s + 8, 4), T = (uint32_t)get(s + 12, 4), L = (uint32_t)get(s + 16, 4);
    uint32_t H = (uint32_t)get(s + 20, 4), D = (uint32_t)get(s + 24, 4);
    if (memcmp(s, "TLKV", 4) != 0 || get(s + 4, 2) != 1 || get(s + 6, 2) != 1)
        return fail(TL_EFORMAT, "tl_kv_import: magic, version or dtype");
    size_t P = payload(L, H, T, D);
    if (!P || envelope(P, n) != len)
        return fail(TL_EFORMAT, "tl_kv_import: dimensions and length");
    if (tl_crc32c(s, len - 4, 0) != get(s + len - 4, 4))
        return fail(TL_EFORMAT, "tl_kv_import: checksum");
    for (uint32_t i = 0; i < n; i++) {
        const unsigned char *r = s + 28 + i * (12 + P);
        uint64_t fill = get(r + 8, 4);
        if (fill == 0 || fill > T || (get(r, 8) && fill < T))
            return fail(TL_EFORMAT, "tl_kv_import: number of tokens");
    }
    if (!p || (n && !ids_out))
        return fail(TL_EINVAL, "tl_kv_import: NULL");
    if (T != p->cfg.block_tokens || L != p->cfg.n_layers || H != p->cfg.n_kv_heads || D != p->cfg.head_dim)
        return fail(TL_ESHAPE, "tl_kv_import: another shape");
    if (!room(p, n))
        return fail(TL_EFULL, "tl_kv_import: not enough blocks");
    for (uint32_t i = 0; i < n; i++)
        ids_out[i] = take(p);
    for (uint32_t i = 0; i < n; i++) {
        const unsigned char *r = s + 28 + i * (12 + P);
        uint64_t hash = get(r, 8);
        block *x = &p->b[ids_out[i]];
        x->fill = (uint32_t)get(r + 8, 4);
        memcpy(p->slab + ids_out[i] * P, r + 12, P);
        if (hash && find(p, hash) == NONE)
            index_put(p, ids_out[i], hash);
    }
    return TL_OK;
}
