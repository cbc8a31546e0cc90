// SPDX-License-Identifier: Apache-2.0
// Chained hashing with power-of-two growth: see hmap.h.
#include "base/hmap.h"

#include <stdlib.h>

static size_t slot_of(const struct hmap *m, uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdULL; /* the 64-bit finaliser of MurmurHash3 */
    key ^= key >> 33;
    return (size_t)key & (m->size - 1);
}

static void grow(struct hmap *m)
{
    struct hmap bigger = {.size = m->size ? m->size * 2 : 16, .count = m->count};
    bigger.buckets = calloc(bigger.size, sizeof(struct hmap_node *));
    if (!bigger.buckets)
        abort();
    for (size_t i = 0; i < m->size; i++)
        for (struct hmap_node *n = m->buckets[i], *next; n; n = next) {
            struct hmap_node **slot = &bigger.buckets[slot_of(&bigger, n->key)];
            next = n->next;
            n->next = *slot;
            *slot = n;
        }
    free(m->buckets);
    *m = bigger;
}

void hmap_insert(struct hmap *m, struct hmap_node *n, uint64_t key)
{
    if (m->count >= m->size)
        grow(m);
    struct hmap_node **slot = &m->buckets[slot_of(m, key)];
    n->key = key;
    n->next = *slot;
    *slot = n;
    m->count++;
}

void hmap_remove(struct hmap *m, struct hmap_node *n)
{
    struct hmap_node **p = &m->buckets[slot_of(m, n->key)];
    while (*p != n)
        p = &(*p)->next;
    *p = n->next;
    m->count--;
}

struct hmap_node *hmap_find(const struct hmap *m, uint64_t key)
{
    if (!m->size)
        return NULL;
    struct hmap_node *n = m->buckets[slot_of(m, key)];
    while (n && n->key != key)
        n = n->next;
    return n;
}

struct hmap_node *hmap_find_next(const struct hmap_node *n)
{
    uint64_t key = n->key;
    struct hmap_node *next = n->next;
    while (next && next->key != key)
        next = next->next;
    return next;
}

struct hmap_node *hmap_iterate(const struct hmap *m, const struct hmap_node *n)
{
    size_t i = 0;
    if (n) {
        if (n->next)
            return n->next;
        i = slot_of(m, n->key) + 1;
    }
    for (; i < m->size; i++)
        if (m->buckets[i])
            return m->buckets[i];
    return NULL;
}

void hmap_finish(struct hmap *m)
{
    free(m->buckets);
    *m = (struct hmap){0};
}
