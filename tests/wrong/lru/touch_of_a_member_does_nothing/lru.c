/* tl_lru, with one mistake: see mistakes.yaml. */
#include "tinyllm/ds.h"

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    if (n->next != NULL)
        return;
    n->prev = l->head.prev;
    n->next = &l->head;
    n->prev->next = n;
    l->head.prev = n;
    l->len++;
}
