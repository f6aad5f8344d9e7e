/* tinyllm/ds.h -- growable array, hash table, intrusive list and LRU.
 * Units vec, swiss_map, lru: spec/vec.md, spec/swiss_map.md, spec/lru.md.  One thread at a time. */
#ifndef TINYLLM_DS_H
#define TINYLLM_DS_H

#include "tinyllm/abi.h"

/* ---- vec: an array of len elements of elem bytes, room for cap; data is NULL exactly when cap is 0 ---- */

typedef struct {
    void *data;
    size_t len;  /* elements in use */
    size_t cap;  /* elements allocated */
    size_t elem; /* bytes of one element, >= 1 */
} tl_vec;

/* Empties *v without allocating; TL_EINVAL when v is NULL or elem is 0. */
tl_status tl_vec_init(tl_vec *v, size_t elem);

/* Room for cap_min elements, exactly that when it grows; TL_EINVAL v NULL or size overflow, TL_ENOMEM. */
tl_status tl_vec_reserve(tl_vec *v, size_t cap_min);

/* Appends the elem bytes at x, even those of an element of v; TL_EINVAL NULL or size overflow, TL_ENOMEM. */
tl_status tl_vec_push(tl_vec *v, const void *x);

/* The address of element i, until the next growth; NULL with the slot set when i >= len or v is NULL. */
void *tl_vec_at(const tl_vec *v, size_t i);

/* Frees the storage; the vector is empty and usable again, elem kept; NULL is ignored. */
void tl_vec_free(tl_vec *v);

/* ---- swiss_map: a hash table of uint64 to uint64; every key and value is legal ---- */

typedef struct tl_map tl_map;

/* A new table in *out, room for hint keys; TL_EINVAL out NULL or size overflow, TL_ENOMEM with *out NULL. */
tl_status tl_map_create(size_t hint, tl_map **out);

/* Sets k to v, new or overwritten; TL_EINVAL m NULL, TL_ENOMEM with the table unchanged. */
tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v);

/* 1 and the value in *v (v may be NULL) when k is there, else 0 with *v untouched; sets no error. */
int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v);

/* Removes k: 1 when it was there, else 0; allocates nothing, sets no error. */
int tl_map_del(tl_map *m, uint64_t k);

/* Number of keys; 0 for NULL. */
size_t tl_map_len(const tl_map *m);

/* Frees the table; NULL is ignored. */
void tl_map_destroy(tl_map *m);

/* ---- lru: a circular list through nodes that live in the caller's structs, oldest first ---- */

typedef struct tl_list_node {
    struct tl_list_node *prev, *next; /* both NULL while in no list */
} tl_list_node;

/* The struct of type that holds the node *ptr as its member. */
#define TL_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

typedef struct {
    tl_list_node head; /* sentinel: next is the oldest node, prev the newest */
    size_t len;
} tl_lru;

/* An empty list; must not be moved or copied afterwards. */
void tl_lru_init(tl_lru *l);

/* Makes n the newest, put in or moved; n is zeroed before its first use. */
void tl_lru_touch(tl_lru *l, tl_list_node *n);

/* Takes n out and sets its pointers to NULL; a node in no list is ignored. */
void tl_lru_remove(tl_lru *l, tl_list_node *n);

/* Takes out the oldest node and returns it; NULL when the list is empty. */
tl_list_node *tl_lru_pop_oldest(tl_lru *l);

#endif
