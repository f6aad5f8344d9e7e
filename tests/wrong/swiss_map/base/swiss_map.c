/* tl_map, with one mistake: see mistakes.yaml. */
#include "tinyllm/ds.h"

enum { WIDTH = 16, FULLEST = 14, FREE = 0x80, GONE = 0xFE };

struct group {
    uint8_t mark[WIDTH];
    uint64_t key[WIDTH];
    uint64_t val[WIDTH];
};

struct tl_map {
    struct group *g;
    size_t n;     /* groups */
    size_t least; /* groups at creation */
    size_t len;
    size_t used; /* live and deleted */
};

struct place {
    struct group *g;
    int i;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static int has_free(const struct group *g)
{
    for (int i = 0; i < WIDTH; i++)
        if (g->mark[i] == FREE)
            return 1;
    return 0;
}

/* The place of k (1), or the place where it would go (0); no place when there is no group. */
static int look(const tl_map *m, uint64_t k, struct place *at)
{
    uint64_t h = mix(k);
    uint8_t tag = h & 0x7F;
    size_t g = (size_t)(h >> 7), step;
    struct place deleted = {NULL, 0}, empty = {NULL, 0};
    at->g = NULL;
    for (step = 0; step < m->n && !empty.g; step++) {
        g = (g + step) & (m->n - 1);
        struct group *here = &m->g[g];
        for (int i = 0; i < WIDTH; i++) {
            if (here->mark[i] == tag && here->key[i] == k) {
                *at = (struct place){here, i};
                return 1;
            }
            if (here->mark[i] == GONE && !deleted.g)
                deleted = (struct place){here, i};
            if (here->mark[i] == FREE && !empty.g)
                empty = (struct place){here, i};
        }
    }
    *at = deleted.g ? deleted : empty;
    return 0;
}

static void store(struct place at, uint64_t k, uint64_t v)
{
    at.g->mark[at.i] = mix(k) & 0x7F;
    at.g->key[at.i] = k;
    at.g->val[at.i] = v;
}

static struct group *make_groups(size_t n)
{
    struct group *g = tl_alloc(n * sizeof *g, 64);
    for (size_t i = 0; g && i < n; i++)
        for (int j = 0; j < WIDTH; j++)
            g[i].mark[j] = FREE;
    return g;
}

static size_t enough(size_t keys)
{
    size_t n = keys != 0;
    while (n * FULLEST < keys)
        n <<= 1;
    return n;
}

static int rehash(tl_map *m)
{
    tl_map bigger = *m;
    struct place at;
    bigger.n = enough(m->len + 1);
    if (bigger.n < m->least)
        bigger.n = m->least;
    bigger.g = make_groups(bigger.n);
    if (!bigger.g)
        return 0;
    for (size_t i = 0; i < m->n; i++)
        for (int j = 0; j < WIDTH; j++)
            if (m->g[i].mark[j] < FREE) {
                look(&bigger, m->g[i].key[j], &at);
                store(at, m->g[i].key[j], m->g[i].val[j]);
            }
    bigger.used = m->len;
    tl_free(m->g);
    *m = bigger;
    return 1;
}

static tl_status error(tl_status s, const char *text)
{
    tl_set_last_error(text);
    return s;
}

tl_status tl_map_create(size_t hint, tl_map **out)
{
    tl_map *m;
    if (out == NULL)
        return error(TL_EINVAL, "tl_map_create: nowhere to put the map");
    *out = NULL;
    if (hint > ((size_t)1 << 55) * FULLEST)
        return error(TL_EINVAL, "tl_map_create: hint");
    m = tl_alloc(sizeof *m, 16);
    if (m == NULL)
        return error(TL_ENOMEM, "tl_map_create: memory");
    *m = (tl_map){NULL, enough(hint), enough(hint), 0, 0};
    if (m->n > 0) {
        m->g = make_groups(m->n);
        if (m->g == NULL) {
            tl_free(m);
            return error(TL_ENOMEM, "tl_map_create: memory");
        }
    }
    *out = m;
    return TL_OK;
}

tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    struct place at;
    if (m == NULL)
        return error(TL_EINVAL, "tl_map_put: no map");
    if (look(m, k, &at)) {
        at.g->val[at.i] = v;
        return TL_OK;
    }
    if (!at.g || (at.g->mark[at.i] == FREE && m->used == FULLEST * m->n)) {
        if (!rehash(m))
            return error(TL_ENOMEM, "tl_map_put: memory");
        look(m, k, &at);
    }
    m->used += at.g->mark[at.i] == FREE;
    m->len++;
    store(at, k, v);
    return TL_OK;
}

int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    struct place at;
    if (m == NULL || !look(m, k, &at))
        return 0;
    if (v != NULL)
        *v = at.g->val[at.i];
    return 1;
}

int tl_map_del(tl_map *m, uint64_t k)
{
    struct place at;
    if (m == NULL || !look(m, k, &at))
        return 0;
    if (has_free(at.g)) {
        at.g->mark[at.i] = FREE;
        m->used--;
    } else {
        at.g->mark[at.i] = GONE;
    }
    m->len--;
    return 1;
}

size_t tl_map_len(const tl_map *m)
{
    return m == NULL ? 0 : m->len;
}

void tl_map_destroy(tl_map *m)
{
    if (m != NULL) {
        tl_free(m->g);
        tl_free(m);
    }
}
