/* tl_lru: the order of use. */
#include "tinyllm/ds.h"

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    tl_lru_remove(l, n);
    n->prev = l->head.prev;
    n->next = &l->head;
    n->prev->next = n;
    l->head.prev = n;
    l->len++;
}
