/* tl_lru, with one mistake: see mistakes.yaml. */
#include "tinyllm/ds.h"

static void link_between(tl_list_node *left, tl_list_node *n, tl_list_node *right)
{
    n->prev = left;
    n->next = right;
    left->next = n;
    right->prev = n;
}

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    if (n->prev) { /* a move */
        n->prev->next = n->next;
        n->next->prev = n->prev;
    } else {
        l->len += 1;
    }
    link_between(l->head.prev, n, &l->head);
}
