// SPDX-License-Identifier: Apache-2.0
// An intrusive doubly linked list.
#ifndef SPACE_9P_LINK_H
#define SPACE_9P_LINK_H

#include <stdbool.h>
#include <stddef.h>

/* A ring of links; a link that points to itself is in no list, a head that does is an empty list.
 */
struct p9_link {
    struct p9_link *prev, *next;
};

static inline void p9_link_init(struct p9_link *l)
{
    l->prev = l->next = l;
}

static inline bool p9_link_empty(const struct p9_link *l)
{
    return l->next == l;
}

static inline void p9_link_remove(struct p9_link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    p9_link_init(l);
}

static inline void p9_link_append(struct p9_link *head, struct p9_link *l)
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

/* Moves all of `from` to the end of `to`. */
static inline void p9_link_splice(struct p9_link *to, struct p9_link *from)
{
    if (p9_link_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    p9_link_init(from);
}

#define p9_link_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

#endif
