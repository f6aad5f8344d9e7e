/* tl_list, with one mistake: see mistakes.yaml. */
#include <stdbool.h>

#include "tinyllm/ds.h"

static bool linked(const tl_list_node *n)
{
    return n->prev != NULL && n->next != NULL;
}

/* Makes b follow a. */
static void join(tl_list_node *a, tl_list_node *b)
{
    a->next = b;
    b->prev = a;
}

static void take_out(tl_lru *l, tl_list_node *n)
{
    join(n->prev, n->next);
    n->prev = n->next = NULL;
    l->len -= 1;
}

void tl_lru_init(tl_lru *l)
{
    join(&l->head, &l->head);
    l->len = 0;
}

void tl_lru_remove(tl_lru *l, tl_list_node *n)
{
    if (linked(n))
        take_out(l, n);
}

tl_list_node *tl_lru_pop_oldest(tl_lru *l)
{
    tl_list_node *oldest = NULL;
    if (l->len > 0) {
        oldest = l->head.next;
        take_out(l, oldest);
    }
    return oldest;
}
