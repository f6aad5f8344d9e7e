/* tl_lru, with one mistake: see mistakes.yaml. */
#include "tinyllm/ds.h"

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    tl_lru_remove(l, n);
    n->next = l->head.next;
    n->prev = &l->head;
    n->next->prev = n;
    l->head.next = n;
    l->len++;
}
