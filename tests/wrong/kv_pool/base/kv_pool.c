/* kv_pool, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/ds.h"
#include "tinyllm/kv_pool.h"

enum state { FREE, USED, CACHED };

struct blk {
    tl_list_node node;
    enum state state;
    uint32_t refcount;
    uint32_t tokens;
    uint64_t key;
};

struct tl_kv_pool {
    tl_kv_cfg c;
    tl_kv_stats st;
    uint16_t *halves;
    size_t per_slab;  /* halves of one K or V of one layer */
    size_t per_block; /* halves of a block */
    struct blk *blk;
    tl_vec spare; /* ids of free blocks */
    tl_map *by_key;
    tl_lru idle;
};

/* Leaves the function with code and a text of its name. */
#define ERR(code, text)                             \
    do {                                            \
        report(__func__, text);                     \
        return (code);                              \
    } while (0)

static void report(const char *who, const char *what)
{
    char line[96];
    size_t n = strlen(who), m = strlen(what);
    memcpy(line, who, n);
    memcpy(line + n, ": ", 2);
    memcpy(line + n + 2, what, m + 1);
    tl_set_last_error(line);
}

static uint32_t crc_table[256];

static void crc_fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = (c & 1) ? (c >> 1) ^ 0x82F63B78u : c >> 1;
        crc_table[i] = c;
    }
}

uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc)
{
    const uint8_t *d = data;
    if (crc_table[1] == 0)
        crc_fill();
    crc ^= 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++)
        crc = (crc >> 8) ^ crc_table[(crc ^ d[i]) & 0xFF];
    return crc ^ 0xFFFFFFFFu;
}

uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n)
{
    const uint64_t prime = 0x100000001B3ull;
    uint64_t h = 0xCBF29CE484222325ull;
    for (int i = 0; i < 64; i += 8) {
        h ^= (parent >> i) & 0xFF;
        h *= prime;
    }
    for (uint32_t t = 0; t < n; t++) {
        for (int i = 0; i < 32; i += 8) {
            h ^= (toks[t] >> i) & 0xFF;
            h *= prime;
        }
    }
    if (h == 0)
        h = 1;
    return h;
}

void tl_kv_pool_destroy(tl_kv_pool *p)
{
    if (p == NULL)
        return;
    tl_vec_free(&p->spare);
    tl_map_destroy(p->by_key);
    tl_free(p->blk);
    tl_free(p->halves);
    tl_free(p);
}

tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out)
{
    if (out != NULL)
        *out = NULL;
    if (cfg == NULL || out == NULL)
        ERR(TL_EINVAL, "NULL");
    const uint32_t dims[] = {cfg->n_layers, cfg->n_kv_heads, cfg->block_tokens, cfg->head_dim, cfg->n_blocks};
    size_t total = 4;
    for (int i = 0; i < 5; i++) {
        if (dims[i] == 0 || total > SIZE_MAX / dims[i])
            ERR(TL_EINVAL, "dimension");
        total *= dims[i];
    }
    if (cfg->dtype != TL_F16 || cfg->format != TL_KV_FORMAT_V1)
        ERR(TL_EUNSUPPORTED, "dtype or format");

    tl_kv_pool *p = tl_alloc(sizeof *p, 16);
    if (p == NULL)
        ERR(TL_ENOMEM, "memory");
    memset(p, 0, sizeof *p);
    p->c = *cfg;
    p->per_slab = (size_t)cfg->n_kv_heads * cfg->block_tokens * cfg->head_dim;
    p->per_block = p->per_slab * 2 * cfg->n_layers;
    tl_lru_init(&p->idle);
    tl_vec_init(&p->spare, sizeof(uint32_t));
    p->blk = tl_alloc(cfg->n_blocks * sizeof(struct blk), 16);
    p->halves = tl_alloc(total, 64);
    if (p->blk == NULL || p->halves == NULL || tl_vec_reserve(&p->spare, cfg->n_blocks) != TL_OK ||
        tl_map_create(cfg->n_blocks, &p->by_key) != TL_OK) {
        tl_kv_pool_destroy(p);
        ERR(TL_ENOMEM, "memory");
    }
    memset(p->blk, 0, cfg->n_blocks * sizeof(struct blk));
    for (uint32_t i = 0; i < cfg->n_blocks; i++)
        tl_vec_push(&p->spare, &i);
    p->st.free = cfg->n_blocks;
    *out = p;
    return TL_OK;
}

static struct blk *used(const tl_kv_pool *p, uint32_t id)
{
    if (p == NULL || id >= p->c.n_blocks || p->blk[id].state != USED)
        return NULL;
    return &p->blk[id];
}

static uint32_t claim(tl_kv_pool *p)
{
    uint32_t id;
    struct blk *b;
    if (p->spare.len > 0) {
        memcpy(&id, tl_vec_at(&p->spare, p->spare.len - 1), sizeof id);
        p->spare.len--;
        b = &p->blk[id];
        p->st.free--;
    } else {
        b = TL_CONTAINER_OF(tl_lru_pop_oldest(&p->idle), struct blk, node);
        id = (uint32_t)(b - p->blk);
        tl_map_del(p->by_key, b->key);
        p->st.cached--;
        p->st.evictions++;
    }
    b->state = USED;
    b->refcount = 1;
    b->tokens = 0;
    b->key = 0;
    p->st.used++;
    return id;
}

tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids)
{
    if (p == NULL || (ids == NULL && n > 0))
        ERR(TL_EINVAL, "NULL");
    if ((uint64_t)p->st.free + p->st.cached < n)
        ERR(TL_EFULL, "full");
    while (n-- > 0)
        *ids++ = claim(p);
    return TL_OK;
}

void tl_kv_ref(tl_kv_pool *p, uint32_t id)
{
    struct blk *b = used(p, id);
    if (b != NULL)
        b->refcount++;
    else
        tl_set_last_error("tl_kv_ref");
}

static void release(tl_kv_pool *p, uint32_t id)
{
    struct blk *b = &p->blk[id];
    if (--b->refcount != 0)
        return;
    p->st.used--;
    if (b->key != 0) {
        b->state = CACHED;
        tl_lru_touch(&p->idle, &b->node);
        p->st.cached++;
    } else {
        b->state = FREE;
        tl_vec_push(&p->spare, &id);
        p->st.free++;
    }
}

tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id)
{
    if (used(p, id) == NULL)
        ERR(TL_EINVAL, "not in use");
    release(p, id);
    return TL_OK;
}

static uint16_t *at(const tl_kv_pool *p, uint32_t id)
{
    return p->halves + (size_t)id * p->per_block;
}

tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out)
{
    struct blk *b = used(p, id);
    if (b == NULL || out == NULL)
        ERR(TL_EINVAL, "not in use");
    if (b->refcount == 1) {
        *out = id;
        return TL_OK;
    }
    if (p->st.free + p->st.cached == 0)
        ERR(TL_EFULL, "full");
    uint32_t copy = claim(p);
    memcpy(at(p, copy), at(p, id), 2 * p->per_block);
    p->blk[copy].tokens = b->tokens;
    b->refcount--;
    *out = copy;
    return TL_OK;
}

tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens)
{
    struct blk *b = used(p, id);
    if (b == NULL || b->key != 0 || n_tokens > p->c.block_tokens)
        ERR(TL_EINVAL, "fill");
    b->tokens = n_tokens;
    return TL_OK;
}

uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id)
{
    struct blk *b = used(p, id);
    if (b == NULL)
        ERR(0, "not in use");
    return b->tokens;
}

void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v)
{
    if (p == NULL || id >= p->c.n_blocks || layer >= p->c.n_layers)
        ERR(NULL, "range");
    uint16_t *h = at(p, id) + 2 * (size_t)layer * p->per_slab;
    if (is_v)
        h += p->per_slab;
    return h;
}

/* The id registered under key, or -1. */
static int64_t holder(const tl_kv_pool *p, uint64_t key)
{
    uint64_t v;
    if (key == 0 || !tl_map_get(p->by_key, key, &v))
        return -1;
    return (int64_t)v;
}

tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    struct blk *b = used(p, id);
    if (b == NULL || hash == 0 || b->tokens < p->c.block_tokens)
        ERR(TL_EINVAL, "not to be registered");
    int64_t h = holder(p, hash);
    if (h == (int64_t)id)
        return TL_OK;
    if (h >= 0 || b->key != 0)
        ERR(TL_EBUSY, "taken");
    if (tl_map_put(p->by_key, hash, id) != TL_OK)
        ERR(TL_ENOMEM, "memory");
    b->key = hash;
    return TL_OK;
}

tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id)
{
    if (p == NULL || id == NULL)
        ERR(TL_EINVAL, "NULL");
    int64_t h = holder(p, hash);
    if (h < 0)
        return TL_ENOTFOUND;
    struct blk *b = &p->blk[h];
    if (b->state == CACHED) {
        tl_lru_remove(&p->idle, &b->node);
        b->state = USED;
        p->st.cached--;
        p->st.used++;
    }
    b->refcount++;
    *id = (uint32_t)h;
    return TL_OK;
}

void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out)
{
    if (out == NULL)
        return;
    memset(out, 0, sizeof *out);
    if (p != NULL)
        *out = p->c;
}

void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out)
{
    if (out == NULL)
        return;
    memset(out, 0, sizeof *out);
    if (p != NULL)
        *out = p->st;
}

size_t tl_kv_block_bytes(const tl_kv_pool *p)
{
    return p == NULL ? 0 : 2 * p->per_block;
}

size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n)
{
    if (p == NULL)
        ERR(0, "NULL");
    size_t record = 12 + 2 * p->per_block;
    if (record < 12 || n > (SIZE_MAX - 32) / record)
        ERR(0, "overflow");
    return 32 + n * record;
}

/* ---- bytes; the machine is little-endian ---- */

struct head {
    char magic[4];
    uint16_t version, dtype;
    uint32_t n, dim[4]; /* block_tokens, n_layers, n_kv_heads, head_dim */
};

_Static_assert(sizeof(struct head) == TL_KV_ENVELOPE_HEADER, "header");

static void fill_head(const tl_kv_pool *p, uint32_t n, struct head *h)
{
    *h = (struct head){{'T', 'L', 'K', 'V'}, 1, 1, n,
                       {p->c.block_tokens, p->c.n_layers, p->c.n_kv_heads, p->c.head_dim}};
}

tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n, void *buf, size_t cap,
                       size_t *written)
{
    if (p == NULL || written == NULL || (ids == NULL && n > 0))
        ERR(TL_EINVAL, "NULL");
    for (uint32_t i = 0; i < n; i++) {
        struct blk *b = used(p, ids[i]);
        if (b == NULL || b->tokens == 0)
            ERR(TL_EINVAL, "block");
    }
    size_t record = 12 + 2 * p->per_block;
    if (n > (SIZE_MAX - 32) / record)
        ERR(TL_EINVAL, "overflow");
    size_t need = 32 + n * record;
    if (cap < need) {
        *written = need;
        ERR(TL_EFULL, "cap");
    }
    if (buf == NULL)
        ERR(TL_EINVAL, "NULL");
    uint8_t *o = buf;
    struct head h;
    fill_head(p, n, &h);
    memcpy(o, &h, sizeof h);
    o += sizeof h;
    for (uint32_t i = 0; i < n; i++) {
        const struct blk *b = &p->blk[ids[i]];
        memcpy(o, &b->key, 8);
        memcpy(o + 8, &b->tokens, 4);
        o += 12;
        size_t live = 2 * (size_t)b->tokens * p->c.head_dim;
        size_t whole = 2 * (size_t)p->c.block_tokens * p->c.head_dim;
        const uint8_t *from = (const uint8_t *)at(p, ids[i]);
        for (size_t k = 0; k < 2 * (size_t)p->c.n_layers * p->c.n_kv_heads; k++) {
            memcpy(o, from, live);
            memset(o + live, 0, whole - live);
            o += whole;
            from += whole;
        }
    }
    uint32_t sum = tl_crc32c(buf, need - 4, 0);
    memcpy(o, &sum, 4);
    *written = need;
    return TL_OK;
}

/* Whether buf[len] is an envelope in itself. */
static int well_formed(const uint8_t *buf, size_t len, struct head *h, size_t *pay)
{
    uint32_t sum;
    memcpy(h, buf, sizeof *h);
    if (memcmp(h->magic, "TLKV", 4) || h->version != 1 || h->dtype != 1)
        return 0;
    *pay = 4;
    for (int i = 0; i < 4; i++) {
        if (h->dim[i] == 0 || *pay > (SIZE_MAX - 12) / h->dim[i])
            return 0;
        *pay *= h->dim[i];
    }
    size_t fit = (len - 32) / (12 + *pay);
    if (fit != h->n || 32 + fit * (12 + *pay) != len)
        return 0;
    memcpy(&sum, buf + len - 4, 4);
    if (sum != tl_crc32c(buf, len - 4, 0))
        return 0;
    const uint8_t *r = buf + sizeof *h;
    for (uint32_t i = 0; i < h->n; i++, r += 12 + *pay) {
        uint64_t key;
        uint32_t tokens;
        memcpy(&key, r, 8);
        memcpy(&tokens, r + 8, 4);
        if (tokens < 1 || tokens > h->dim[0])
            return 0;
        if (key != 0 && tokens != h->dim[0])
            return 0;
    }
    return 1;
}

tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out)
{
    struct head h, mine;
    size_t pay;
    if (len < 32)
        ERR(TL_EFORMAT, "short");
    if (buf == NULL)
        ERR(TL_EINVAL, "NULL");
    if (!well_formed(buf, len, &h, &pay))
        ERR(TL_EFORMAT, "bytes");
    if (p == NULL || (ids_out == NULL && h.n > 0))
        ERR(TL_EINVAL, "NULL");
    fill_head(p, h.n, &mine);
    if (memcmp(&mine, &h, sizeof h) != 0)
        ERR(TL_ESHAPE, "shape");
    if (h.n > (uint64_t)p->st.free + p->st.cached)
        ERR(TL_EFULL, "full");
    for (uint32_t i = 0; i < h.n; i++)
        ids_out[i] = claim(p);
    const uint8_t *r = (const uint8_t *)buf + sizeof h;
    for (uint32_t i = 0; i < h.n; i++, r += 12 + pay) {
        struct blk *b = &p->blk[ids_out[i]];
        uint64_t key;
        memcpy(&key, r, 8);
        memcpy(&b->tokens, r + 8, 4);
        memcpy(at(p, ids_out[i]), r + 12, pay);
        if (key != 0 && holder(p, key) < 0 && tl_map_put(p->by_key, key, ids_out[i]) == TL_OK)
            b->key = key;
    }
    return TL_OK;
}
