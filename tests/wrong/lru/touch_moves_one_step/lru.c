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
    if (!n->prev) {
        l->len += 1;
        link_between(l->head.prev, n, &l->head);
    } else if (n->next != &l->head) {
        tl_list_node *after = n->next;
        n->prev->next = after;
        after->prev = n->prev;
        link_between(after, n, after->next);
    }
}
