/* tl_map, with one mistake: see mistakes.yaml. */
#include <string.h>

#include "tinyllm/ds.h"

#define GROUP 16u
#define ROOM 14u
#define EMPTY 0x80u
#define DELETED 0xFEu
#define LOW 0x0101010101010101ull
#define HIGH 0x8080808080808080ull

typedef struct {
    uint64_t key, value;
} slot_t;

struct tl_map {
    uint8_t *ctrl;  /* 16 * groups control bytes */
    slot_t *slots;  /* 16 * groups */
    size_t groups;  /* 0 or a power of two */
    size_t created; /* groups at create */
    size_t live, dead;
};

static uint64_t hash64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static uint64_t load8(const uint8_t *p)
{
    uint64_t w = 0;
    for (int i = 7; i >= 0; i--)
        w = w << 8 | p[i];
    return w;
}

static uint64_t mask_match(uint64_t w, unsigned fp)
{
    uint64_t x = w ^ (LOW * fp);
    return (x - LOW) & ~x & HIGH;
}

static uint64_t mask_empty(uint64_t w)
{
    return w & ~(w << 6) & HIGH;
}

static unsigned first_byte(uint64_t mask)
{
    return (unsigned)__builtin_ctzll(mask) / 8;
}

static int groups_for(size_t n, size_t *out)
{
    size_t g = 1;
    if (n == 0) {
        *out = 0;
        return 1;
    }
    while (g * ROOM < n) {
        g *= 2;
        if (g > SIZE_MAX / (GROUP * (sizeof(slot_t) + 1)))
            return 0;
    }
    *out = g;
    return 1;
}

#define NONE SIZE_MAX

static size_t find(const tl_map *m, uint64_t k, size_t *spare)
{
    uint64_t h;
    size_t g, step = 0, free_slot = NONE;
    if (m->groups == 0)
        return NONE;
    h = hash64(k);
    g = (size_t)(h >> 7) & (m->groups - 1);
    for (;;) {
        const uint8_t *c = m->ctrl + g * GROUP;
        int stop = 0;
        for (unsigned half = 0; half < 2; half++) {
            uint64_t w = load8(c + 8 * half);
            uint64_t hit = mask_match(w, (unsigned)(h & 127));
            for (; hit; hit &= hit - 1) {
                size_t s = g * GROUP + 8 * half + first_byte(hit);
                if (m->slots[s].key == k)
                    return s;
            }
            if ((w & HIGH) && free_slot == NONE)
                free_slot = g * GROUP + 8 * half + first_byte(w & HIGH);
            if (mask_empty(w))
                stop = 1;
        }
        if (stop)
            break;
        g = (g + ++step) & (m->groups - 1);
    }
    if (spare) {
        /* the first DELETED of the probe, else the first EMPTY of it */
        size_t st = 0;
        *spare = free_slot;
        g = (size_t)(h >> 7) & (m->groups - 1);
        for (;;) {
            const uint8_t *c = m->ctrl + g * GROUP;
            int stop = 0;
            for (unsigned i = 0; i < GROUP; i++) {
                if (c[i] == DELETED) {
                    *spare = g * GROUP + i;
                    return NONE;
                }
                stop |= c[i] == EMPTY;
            }
            if (stop)
                return NONE;
            g = (g + ++st) & (m->groups - 1);
        }
    }
    return NONE;
}

static tl_status rebuild(tl_map *m, size_t groups)
{
    tl_map t = *m;
    t.ctrl = tl_alloc(groups * GROUP, 16);
    t.slots = t.ctrl ? tl_alloc(groups * GROUP * sizeof(slot_t), _Alignof(slot_t)) : NULL;
    if (!t.slots) {
        tl_free(t.ctrl);
        return TL_ENOMEM;
    }
    memset(t.ctrl, EMPTY, groups * GROUP);
    t.groups = groups;
    t.dead = 0;
    for (size_t i = 0; i < m->groups * GROUP; i++) {
        size_t s;
        if (m->ctrl[i] & 0x80)
            continue;
        find(&t, m->slots[i].key, &s);
        t.ctrl[s] = m->ctrl[i];
        t.slots[s] = m->slots[i];
    }
    tl_free(m->ctrl);
    tl_free(m->slots);
    *m = t;
    return TL_OK;
}

tl_status tl_map_create(size_t hint, tl_map **out)
{
    tl_map *m;
    size_t g;
    if (!out) {
        tl_set_last_error("tl_map_create: out is NULL");
        return TL_EINVAL;
    }
    *out = NULL;
    if (!groups_for(hint, &g)) {
        tl_set_last_error("tl_map_create: hint too large");
        return TL_EINVAL;
    }
    m = tl_alloc(sizeof *m, _Alignof(tl_map));
    if (m) {
        memset(m, 0, sizeof *m);
        m->created = g;
        if (g && rebuild(m, g) != TL_OK) {
            tl_free(m);
            m = NULL;
        }
    }
    if (!m) {
        tl_set_last_error("tl_map_create: no memory");
        return TL_ENOMEM;
    }
    *out = m;
    return TL_OK;
}

tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    size_t s, spare = NONE;
    if (!m) {
        tl_set_last_error("tl_map_put: m is NULL");
        return TL_EINVAL;
    }
    s = find(m, k, &spare);
    if (s != NONE) {
        m->slots[s].value = v;
        return TL_OK;
    }
    if (spare == NONE || (m->ctrl[spare] == EMPTY && m->live + m->dead >= ROOM * m->groups)) {
        size_t g;
        if (!groups_for(m->live + 1, &g))
            g = 0;
        if (g && g < m->created)
            g = m->created;
        if (!g || rebuild(m, g) != TL_OK) {
            tl_set_last_error("tl_map_put: no memory");
            return TL_ENOMEM;
        }
        find(m, k, &spare);
    }
    if (m->ctrl[spare] == DELETED)
        m->dead--;
    m->ctrl[spare] = (uint8_t)(hash64(k) & 127);
    m->slots[spare].key = k;
    m->slots[spare].value = v;
    m->live++;
    return TL_OK;
}

int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    size_t s = m ? find(m, k, NULL) : NONE;
    if (s == NONE)
        return 0;
    if (v)
        *v = m->slots[s].value;
    return 1;
}

int tl_map_del(tl_map *m, uint64_t k)
{
    size_t s = m ? find(m, k, NULL) : NONE;
    const uint8_t *c;
    if (s == NONE)
        return 0;
    c = m->ctrl + s / GROUP * GROUP;
    if (mask_empty(load8(c)) | mask_empty(load8(c + 8))) {
        m->ctrl[s] = EMPTY;
    } else {
        m->ctrl[s] = DELETED;
        m->dead++;
    }
    m->live--;
    return 1;
}

size_t tl_map_len(const tl_map *m)
{
    return m ? m->live : 0;
}

void tl_map_destroy(tl_map *m)
{
    if (!m)
        return;
    tl_free(m->ctrl);
    tl_free(m->slots);
    tl_free(m);
}
