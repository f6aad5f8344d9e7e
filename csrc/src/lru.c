/* SPDX-License-Identifier: Apache-2.0
 * What makes the list an LRU: whoever is touched becomes the newest.  Spec: spec/lru.md, R5-R6.
 */
#include "tinyllm/ds.h"

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    tl_lru_remove(l, n); /* R6: out first, so that it is never linked twice */
    tl_list_node *newest = l->head.prev;
    n->prev = newest; /* R5: between the newest and the sentinel */
    n->next = &l->head;
    newest->next = n;
    l->head.prev = n;
    l->len++;
}
