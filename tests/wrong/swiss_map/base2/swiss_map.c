/* tl_map, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/ds.h"

#define CTRL_EMPTY 0x80
#define CTRL_DELETED 0xFE

struct tl_map {
    uint64_t *keys;
    uint64_t *vals;
    unsigned char *ctrl;
    size_t slots;
    size_t floor;  /* slots never fewer than this */
    size_t count;  /* keys */
    size_t budget; /* EMPTY slots that may still be filled */
};

typedef struct {
    size_t mask, group, jump;
} probe;

static uint64_t hash_of(uint64_t key)
{
    key ^= key >> 30;
    key *= 0xBF58476D1CE4E5B9ull;
    key ^= key >> 27;
    key *= 0x94D049BB133111EBull;
    key ^= key >> 31;
    return key;
}

static probe probe_start(const tl_map *m, uint64_t hash)
{
    size_t mask = m->slots / 16 - 1;
    return (probe){mask, (size_t)(hash >> 7) & mask, 0};
}

static void probe_next(probe *p)
{
    p->jump++;
    p->group = (p->group + p->jump) & p->mask;
}

/* Sixteen bits, one for each byte of the group that is b. */
static unsigned which(const unsigned char *group, unsigned b)
{
    unsigned bits = 0;
    for (int i = 0; i < 16; i++)
        bits |= (unsigned)(group[i] == b) << i;
    return bits;
}

static int lowest(unsigned bits)
{
    int i = 0;
    while (!(bits >> i & 1))
        i++;
    return i;
}

/* The slot of key or -1. */
static ptrdiff_t seek(const tl_map *m, uint64_t key)
{
    uint64_t hash = hash_of(key);
    if (m->slots == 0)
        return -1;
    for (probe p = probe_start(m, hash);; probe_next(&p)) {
        const unsigned char *group = m->ctrl + 16 * p.group;
        for (unsigned bits = which(group, hash & 127); bits; bits &= bits - 1) {
            size_t slot = 16 * p.group + (size_t)lowest(bits);
            if (m->keys[slot] == key)
                return (ptrdiff_t)slot;
        }
        if (which(group, CTRL_EMPTY))
            return -1;
    }
}

/* The slot for a key that is not there: the first DELETED of its probe, else the first EMPTY. */
static size_t vacancy(const tl_map *m, uint64_t hash)
{
    probe p = probe_start(m, hash);
    for (;; probe_next(&p)) {
        const unsigned char *group = m->ctrl + 16 * p.group;
        unsigned deleted = which(group, CTRL_DELETED), empty = which(group, CTRL_EMPTY);
        if (deleted)
            return 16 * p.group + (size_t)lowest(deleted);
        if (empty)
            return 16 * p.group + (size_t)lowest(empty);
    }
}

static int allocate(tl_map *m, size_t slots)
{
    uint64_t *block = tl_alloc(slots * 17, 64);
    if (!block)
        return 0;
    m->keys = block;
    m->vals = block + slots;
    m->ctrl = (unsigned char *)(block + 2 * slots);
    memset(m->ctrl, CTRL_EMPTY, slots);
    m->slots = slots;
    m->budget = slots / 8 * 7;
    return 1;
}

static void fill(tl_map *m, size_t slot, uint64_t key, uint64_t val)
{
    if (m->ctrl[slot] == CTRL_EMPTY)
        m->budget--;
    m->ctrl[slot] = (unsigned char)(hash_of(key) & 127);
    m->keys[slot] = key;
    m->vals[slot] = val;
}

static size_t slots_for(size_t keys)
{
    size_t slots = 16;
    while (slots / 8 * 7 < keys)
        slots += slots;
    return slots;
}

static int remake(tl_map *m)
{
    tl_map old = *m;
    size_t slots = slots_for(m->count + 1);
    if (!allocate(m, slots > m->floor ? slots : m->floor))
        return 0;
    for (size_t s = 0; s < old.slots; s++) {
        if (old.ctrl[s] >= CTRL_EMPTY)
            continue;
        fill(m, vacancy(m, hash_of(old.keys[s])), old.keys[s], old.vals[s]);
    }
    tl_free(old.keys);
    return 1;
}

tl_status tl_map_create(size_t hint, tl_map **out)
{
    tl_map *m = NULL;
    tl_status status = TL_ENOMEM;
    if (!out) {
        tl_set_last_error("tl_map_create(hint, NULL)");
        return TL_EINVAL;
    }
    *out = NULL;
    if (hint > (size_t)14 << 55) {
        status = TL_EINVAL;
        goto fail;
    }
    m = tl_alloc(sizeof *m, sizeof(void *));
    if (!m)
        goto fail;
    memset(m, 0, sizeof *m);
    m->floor = hint ? slots_for(hint) : 0;
    if (hint && !allocate(m, m->floor))
        goto fail;
    *out = m;
    return TL_OK;
fail:
    tl_free(m);
    tl_set_last_error(status == TL_EINVAL ? "tl_map_create: hint too large" : "tl_map_create: out of memory");
    return status;
}

tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    ptrdiff_t found;
    size_t slot = 0;
    if (!m) {
        tl_set_last_error("tl_map_put(NULL)");
        return TL_EINVAL;
    }
    found = seek(m, k);
    if (found >= 0) {
        m->vals[found] = v;
        return TL_OK;
    }
    if (m->slots)
        slot = vacancy(m, hash_of(k));
    if (!m->slots || (m->budget == 0 && m->ctrl[slot] == CTRL_EMPTY)) {
        if (!remake(m)) {
            tl_set_last_error("tl_map_put: out of memory");
            return TL_ENOMEM;
        }
        slot = vacancy(m, hash_of(k));
    }
    fill(m, slot, k, v);
    m->count++;
    return TL_OK;
}

int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    ptrdiff_t slot = m ? seek(m, k) : -1;
    if (slot >= 0 && v)
        *v = m->vals[slot];
    return slot >= 0;
}

int tl_map_del(tl_map *m, uint64_t k)
{
    ptrdiff_t slot = m ? seek(m, k) : -1;
    if (slot < 0)
        return 0;
    m->count--;
    if (which(m->ctrl + slot / 16 * 16, CTRL_EMPTY)) {
        m->ctrl[slot] = CTRL_EMPTY;
        m->budget++;
    } else {
        m->ctrl[slot] = CTRL_DELETED;
    }
    return 1;
}

size_t tl_map_len(const tl_map *m)
{
    return m ? m->count : 0;
}

void tl_map_destroy(tl_map *m)
{
    if (!m)
        return;
    tl_free(m->keys);
    tl_free(m);
}
