/* tl_list, with one mistake: see mistakes.yaml. */
#include "tinyllm/ds.h"

void tl_lru_init(tl_lru *l)
{
    l->head.prev = &l->head;
    l->head.next = &l->head;
    l->len = 0;
}

void tl_lru_remove(tl_lru *l, tl_list_node *n)
{
    if (n->next == NULL)
        return;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->prev = NULL;
    n->next = NULL;
    l->len--;
}

tl_list_node *tl_lru_pop_oldest(tl_lru *l)
{
    tl_list_node *n = l->head.next;
    if (n == &l->head)
        return NULL;
    tl_lru_remove(l, n);
    return n;
}
