// SPDX-License-Identifier: Apache-2.0
// An intrusive hash map from 64-bit keys to nodes; several nodes may share a key.
#ifndef SPACE_BASE_HMAP_H
#define SPACE_BASE_HMAP_H

#include <stddef.h>
#include <stdint.h>

struct hmap_node {
    struct hmap_node *next;
    uint64_t key;
};

struct hmap {
    struct hmap_node **buckets;
    size_t size; /* buckets, a power of two or 0 */
    size_t count;
};

#define hmap_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* Aborts when memory is out (a bucket array is a few bytes an entry). Zero-initialised maps are empty. */
void hmap_insert(struct hmap *m, struct hmap_node *n, uint64_t key);
/* `n` must be in the map. */
void hmap_remove(struct hmap *m, struct hmap_node *n);
/* First node with the key, and the next one with the same; NULL at the end. */
struct hmap_node *hmap_find(const struct hmap *m, uint64_t key);
struct hmap_node *hmap_find_next(const struct hmap_node *n);
/* Iterates in no order; the map must not change meanwhile. `n` NULL starts. */
struct hmap_node *hmap_iterate(const struct hmap *m, const struct hmap_node *n);
/* Frees the buckets, not the nodes. */
void hmap_finish(struct hmap *m);

#endif
