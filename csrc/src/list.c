/* SPDX-License-Identifier: Apache-2.0
 * Circular list with a sentinel: no operation has a special case at the ends.
 * Spec: spec/lru.md, R1-R4, R7-R11.
 */
#include "tinyllm/ds.h"

void tl_lru_init(tl_lru *l)
{
    l->head.next = &l->head; /* R1: the circle of the sentinel alone */
    l->head.prev = &l->head;
    l->len = 0;
}

void tl_lru_remove(tl_lru *l, tl_list_node *n)
{
    if (!n->next) /* R8: in no list */
        return;
    n->prev->next = n->next; /* R7 */
    n->next->prev = n->prev;
    n->prev = NULL; /* R4 */
    n->next = NULL;
    l->len--; /* R3 */
}

tl_list_node *tl_lru_pop_oldest(tl_lru *l)
{
    if (l->head.next == &l->head) /* R10: empty */
        return NULL;
    tl_list_node *oldest = l->head.next; /* R9 */
    tl_lru_remove(l, oldest);
    return oldest;
}
