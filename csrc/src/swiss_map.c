/* SPDX-License-Identifier: Apache-2.0
 * Swiss table: control bytes in groups of 16, searched together.  Spec: spec/swiss_map.md.
 * Words are values here, byte i of a word is its bits 8i .. 8i+7, so no byte order of the machine enters; SSE2
 * machines have this one.
 */
#include <string.h>

#include "clones.h"
#include "tinyllm/ds.h"

#ifdef TL_SSE2
#include <emmintrin.h>
#endif

#define LOW_BITS 0x0101010101010101u
#define HIGH_BITS 0x8080808080808080u
#define ALL_EMPTY HIGH_BITS
#define NO_SLOT SIZE_MAX

enum {
    EMPTY = 0x80,
    DELETED = 0xFE,
    GROUP = 16,      /* slots of a group: two words */
    GROUP_KEYS = 14, /* R10: of them used at most, on average */
    ALIGN = 64
};

typedef struct {
    uint64_t key, value;
} pair;

struct tl_map {
    uint64_t *ctrl; /* two words a group; NULL while there is no slot */
    pair *slots;    /* in the same allocation */
    size_t groups;  /* a power of two, or 0 */
    size_t min_groups;
    size_t len;
    size_t used; /* full and deleted slots */
};

/* The finaliser of SplitMix64. */
static uint64_t hash(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t fingerprint(uint64_t h)
{
    return h & 0x7F;
}

static size_t home(uint64_t h, size_t groups)
{
    return (size_t)(h >> 7) & (groups - 1);
}

/* ---- masks: one bit for each byte of a group, and first_slot says which ---- */

#ifdef TL_SSE2

static __m128i load(const uint64_t *group)
{
    return _mm_load_si128((const __m128i *)(const void *)group);
}

/* The bytes that equal f. */
static uint64_t match(const uint64_t *group, uint64_t f)
{
    __m128i wanted = _mm_set1_epi64x((long long)(LOW_BITS * f));
    return (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(load(group), wanted));
}

static uint64_t match_empty(const uint64_t *group)
{
    return match(group, EMPTY);
}

/* EMPTY or DELETED: the high bit. */
static uint64_t match_free(const uint64_t *group)
{
    return (uint64_t)_mm_movemask_epi8(load(group));
}

static size_t first_slot(uint64_t mask)
{
    return tl_lowest_bit(mask);
}

#else

/* Two masks of high bits in one: byte i of the second word keeps bit 8i + 7, of the first it has bit 8i + 6. */
static uint64_t both(uint64_t first, uint64_t second)
{
    return first >> 1 | second;
}

/* High bits of the bytes that equal f, perhaps of a full one just above such a byte too: keys decide (R7). */
static uint64_t match_word(uint64_t w, uint64_t f)
{
    uint64_t x = w ^ (LOW_BITS * f);
    return (x - LOW_BITS) & ~x & HIGH_BITS;
}

static uint64_t empty_word(uint64_t w)
{
    return w & ~(w << 6) & HIGH_BITS;
}

/* The bytes that may equal f. */
static uint64_t match(const uint64_t *group, uint64_t f)
{
    return both(match_word(group[0], f), match_word(group[1], f));
}

static uint64_t match_empty(const uint64_t *group)
{
    return both(empty_word(group[0]), empty_word(group[1]));
}

/* EMPTY or DELETED: the high bit. */
static uint64_t match_free(const uint64_t *group)
{
    return both(group[0] & HIGH_BITS, group[1] & HIGH_BITS);
}

static size_t first_slot(uint64_t mask)
{
    size_t bit = tl_lowest_bit(mask);
    return bit % 2 * 8 + bit / 8;
}

#endif

/* ---- control bytes ---- */

static uint64_t ctrl_get(const tl_map *m, size_t slot)
{
    return (m->ctrl[slot / 8] >> (slot % 8 * 8)) & 0xFF;
}

static void ctrl_set(tl_map *m, size_t slot, uint64_t byte)
{
    uint64_t shift = slot % 8 * 8;
    m->ctrl[slot / 8] = (m->ctrl[slot / 8] & ~((uint64_t)0xFF << shift)) | byte << shift;
}

static int group_has_empty(const tl_map *m, size_t group)
{
    return match_empty(m->ctrl + 2 * group) != 0;
}

/* R10: the groups that n keys need; 0 for 0 keys, and for more than any table could hold. */
static size_t groups_for(size_t n)
{
    size_t groups = 1;
    while (groups < SIZE_MAX / 2 / (GROUP * sizeof(pair) + GROUP) && GROUP_KEYS * groups < n)
        groups *= 2;
    return n > 0 && n <= GROUP_KEYS * groups ? groups : 0;
}

/* Slots and control bytes of a table in one allocation, all EMPTY; NULL when there is no memory. */
static pair *alloc_slots(size_t groups, uint64_t **ctrl)
{
    pair *slots = tl_alloc(groups * (GROUP * sizeof(pair) + GROUP), ALIGN);
    if (!slots)
        return NULL;
    *ctrl = (uint64_t *)(void *)(slots + GROUP * groups);
    for (size_t w = 0; w < 2 * groups; w++)
        (*ctrl)[w] = ALL_EMPTY;
    return slots;
}

static void adopt(tl_map *m, pair *slots, uint64_t *ctrl, size_t groups)
{
    m->slots = slots;
    m->ctrl = ctrl;
    m->groups = groups;
    m->used = 0;
}

static tl_status fail(tl_status s, const char *text)
{
    tl_set_last_error(text);
    return s;
}

tl_status tl_map_create(size_t hint, tl_map **out)
{
    if (!out) /* R18 */
        return fail(TL_EINVAL, "tl_map_create: out is NULL");
    *out = NULL; /* R18, R19 */
    size_t groups = groups_for(hint);
    if (hint > 0 && groups == 0) /* R18 */
        return fail(TL_EINVAL, "tl_map_create: hint is too large");
    tl_map *m = tl_alloc(sizeof *m, ALIGN);
    if (!m) /* R19 */
        return fail(TL_ENOMEM, "tl_map_create: no memory");
    memset(m, 0, sizeof *m);
    m->min_groups = groups;
    if (groups > 0) { /* R11: at once, and nothing for hint 0 */
        uint64_t *ctrl;
        pair *slots = alloc_slots(groups, &ctrl);
        if (!slots) { /* R19 */
            tl_free(m);
            return fail(TL_ENOMEM, "tl_map_create: no memory");
        }
        adopt(m, slots, ctrl, groups);
    }
    *out = m;
    return TL_OK;
}

void tl_map_destroy(tl_map *m)
{
    if (!m) /* R21 */
        return;
    tl_free(m->slots); /* R23 */
    tl_free(m);
}

/* Looks for k in one group; NULL when it is not there. */
static pair *find_in_group(const tl_map *m, size_t group, uint64_t k, uint64_t f)
{
    uint64_t mask = match(m->ctrl + 2 * group, f);
    for (; TL_UNLIKELY(mask != 0); mask &= mask - 1) { /* a miss has none, and waits for none */
        pair *p = &m->slots[group * GROUP + first_slot(mask)];
        if (p->key == k) /* R7: all 64 bits */
            return p;
    }
    return NULL;
}

/* Where k is, or NULL.  m has slots. */
static pair *find(const tl_map *m, uint64_t k)
{
    uint64_t h = hash(k);
    size_t group = home(h, m->groups);
    for (size_t step = 1; step <= m->groups; step++) {
        pair *p = find_in_group(m, group, k, fingerprint(h));
        if (p)
            return p;
        if (TL_LIKELY(group_has_empty(m, group))) /* R8: a deleted slot ends no search */
            return NULL;
        group = (group + step) & (m->groups - 1);
    }
    return NULL;
}

/* The first free slot of a group, or NO_SLOT. */
static size_t free_in_group(const tl_map *m, size_t group)
{
    uint64_t mask = match_free(m->ctrl + 2 * group);
    return mask != 0 ? group * GROUP + first_slot(mask) : NO_SLOT;
}

/* Where k is, or NULL and in *vacant the first free slot of its probe (R9: the whole probe is searched). */
static pair *find_or_vacant(const tl_map *m, uint64_t k, uint64_t h, size_t *vacant)
{
    size_t group = home(h, m->groups);
    *vacant = NO_SLOT;
    for (size_t step = 1; step <= m->groups; step++) {
        pair *p = find_in_group(m, group, k, fingerprint(h));
        if (p)
            return p;
        if (*vacant == NO_SLOT)
            *vacant = free_in_group(m, group); /* R15: the first of the probe */
        if (group_has_empty(m, group))
            return NULL;
        group = (group + step) & (m->groups - 1);
    }
    return NULL;
}

/* The first free slot of the probe of h, for a key that is not in the table. */
static size_t first_free(const tl_map *m, uint64_t h)
{
    size_t group = home(h, m->groups);
    size_t slot = free_in_group(m, group);
    for (size_t step = 1; slot == NO_SLOT; step++) {
        group = (group + step) & (m->groups - 1);
        slot = free_in_group(m, group);
    }
    return slot;
}

/* Writes a key into a free slot. */
static void fill(tl_map *m, size_t slot, uint64_t h, uint64_t k, uint64_t v)
{
    if (ctrl_get(m, slot) == EMPTY) /* R15: a deleted slot was counted before */
        m->used++;
    ctrl_set(m, slot, fingerprint(h));
    m->slots[slot] = (pair){k, v};
}

/* Puts every key of old into m, which is empty. */
static void move_keys(tl_map *m, const tl_map *old)
{
    for (size_t slot = 0; slot < GROUP * old->groups; slot++) {
        if (ctrl_get(old, slot) >= EMPTY)
            continue;
        pair p = old->slots[slot];
        uint64_t h = hash(p.key);
        fill(m, first_free(m, h), h, p.key, p.value);
    }
}

/* R14: a table with room for one more key, without deleted slots.  The old arrays live until the end
 * (R20). */
static int rebuild(tl_map *m)
{
    size_t groups = groups_for(m->len + 1);
    if (groups < m->min_groups)
        groups = m->min_groups;
    uint64_t *ctrl;
    pair *slots = groups > 0 ? alloc_slots(groups, &ctrl) : NULL;
    if (!slots)
        return 0;
    tl_map old = *m;
    adopt(m, slots, ctrl, groups);
    move_keys(m, &old);
    tl_free(old.slots);
    return 1;
}

tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    if (!m) /* R21 */
        return fail(TL_EINVAL, "tl_map_put: the map is NULL");
    uint64_t h = hash(k);
    size_t vacant = NO_SLOT;
    if (m->groups > 0) {
        pair *p = find_or_vacant(m, k, h, &vacant);
        if (p) { /* R1, R13: no room is needed */
            p->value = v;
            return TL_OK;
        }
    }
    int takes_empty = vacant == NO_SLOT || ctrl_get(m, vacant) == EMPTY;
    if (takes_empty && m->used >= GROUP_KEYS * m->groups) { /* R12, R13 */
        if (!rebuild(m))
            return fail(TL_ENOMEM, "tl_map_put: no memory"); /* R20 */
        vacant = first_free(m, h);
    }
    fill(m, vacant, h, k, v);
    m->len++; /* R1 */
    return TL_OK;
}

int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    if (!m || m->groups == 0) /* R21 */
        return 0;
    const pair *p = find(m, k);
    if (!p) /* R3 */
        return 0;
    if (v) /* R2 */
        *v = p->value;
    return 1;
}

int tl_map_del(tl_map *m, uint64_t k)
{
    if (!m || m->groups == 0) /* R21 */
        return 0;
    const pair *p = find(m, k);
    if (!p) /* R4 */
        return 0;
    size_t slot = (size_t)(p - m->slots);
    if (group_has_empty(m, slot / GROUP)) { /* R16: no search goes past this group */
        ctrl_set(m, slot, EMPTY);
        m->used--;
    } else {
        ctrl_set(m, slot, DELETED);
    }
    m->len--; /* R5 */
    return 1;
}

size_t tl_map_len(const tl_map *m)
{
    return m ? m->len : 0; /* R5, R21 */
}
