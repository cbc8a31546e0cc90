// SPDX-License-Identifier: Apache-2.0
// Indexes of a tenant in the store: cleared of packs that are gone, and small ones put together. See gc_merge.h.
#include "hostd/volumed/store/gc_merge.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "hostd/volumed/store/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_SIZE (INDEX_ENTRIES_MAX / 4 * 48u) /* bytes of an index object below which it is put together with others, */
#define SMALL_MIN  8u                            /* when there are so many */

/* Merged indexes are no single upload's: they have this in place of an artifact's id. */
static const uint8_t merged_id[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

static int out_of_memory(struct err *e)
{
    return err_set(e, ENOMEM, "put indexes together: out of memory");
}

static bool is_small(const struct listed *l)
{
    return l->size < SMALL_SIZE;
}

/* Entries of some indexes, with `packs` unsorted and perhaps more than once. */
struct pile {
    struct gc_index *g;
    struct pack_set packs;
    struct index_entry *entries;
    uint32_t count;
    bool dropped; /* something was left out */
    struct object_id sources[INDEX_ENTRIES_MAX / 64];
    size_t source_count;
};

static int pile_init(struct pile *p, struct gc_index *g, struct err *e)
{
    memset(p, 0, sizeof *p);
    p->g = g;
    p->entries = calloc(INDEX_ENTRIES_MAX, sizeof *p->entries);
    return p->entries ? 0 : out_of_memory(e);
}

static void pile_finish(struct pile *p)
{
    pack_set_finish(&p->packs);
    free(p->entries);
}

static bool is_gone(const struct gc_index *g, const struct object_id *pack)
{
    return pack_set_has(g->deleted, pack) || pack_set_has(&g->excluded, pack);
}

static int pile_add(struct pile *p, const struct object_id *source, const struct index_body *b, struct err *e)
{
    uint32_t first = (uint32_t)p->packs.count;
    for (uint32_t i = 0; i < b->pack_count; i++)
        if (!pack_set_add(&p->packs, &b->packs[i]))
            return out_of_memory(e);
    for (uint32_t i = 0; i < b->count; i++) {
        if (is_gone(p->g, &b->packs[b->entries[i].pack])) {
            p->dropped = true;
            continue;
        }
        p->entries[p->count] = b->entries[i];
        p->entries[p->count++].pack += first;
    }
    p->sources[p->source_count++] = *source;
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct index_entry *x = a, *y = b;
    int c = memcmp(&x->e.id, &y->e.id, sizeof x->e.id);
    return c ? c : x->pack < y->pack ? -1 : x->pack > y->pack;
}

static int find_id(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct object_id));
}

/* Packs once each and only those that are used; entries once each: who was killed between putting an index and removing what it replaces left them twice. */
static int tidy(struct pile *p, struct pack_set *out, struct err *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (!pack_set_add(out, &p->packs.ids[p->entries[i].pack]))
            return out_of_memory(e);
    pack_set_sort(out);
    for (uint32_t i = 0; i < p->count; i++) {
        const struct object_id *at = bsearch(&p->packs.ids[p->entries[i].pack], out->ids, out->count, sizeof *out->ids, find_id);
        p->entries[i].pack = (uint32_t)(at - out->ids);
    }
    if (p->count)
        qsort(p->entries, p->count, sizeof *p->entries, compare);
    for (uint32_t i = 0; i < p->count; i++)
        if (n == 0 || compare(&p->entries[n - 1], &p->entries[i]) != 0)
            p->entries[n++] = p->entries[i];
    p->count = n;
    return 0;
}

static int put(struct pile *p, const uint8_t id[16], struct err *e)
{
    struct pack_set packs = {0};
    struct object_id name = store_id(id);
    int rc = tidy(p, &packs, e);
    size_t size = index_size((uint32_t)packs.count, p->count);
    AUTO_FREE uint8_t *object = rc == 0 ? malloc(SEALED_HEADER + size) : NULL;
    if (rc == 0 && !object)
        rc = out_of_memory(e);
    if (rc == 0)
        rc = claim_beat(p->g->session, &p->g->claim, e);
    if (rc == 0)
        rc = claim_still(p->g->session, &p->g->claim, e);
    if (rc == 0) {
        crypt_random(name.b + 16, 8);
        index_encode(packs.ids, (uint32_t)packs.count, p->entries, p->count, object + SEALED_HEADER);
        rc = store_put_sealed(p->g->session, SEALED_INDEX, &name, object, size, 0, e);
    }
    pack_set_finish(&packs);
    return rc;
}

/* The pile becomes one index, and what it came from goes: in this order, so that whoever lists indexes finds one or the other. */
static int replace(struct pile *p, const uint8_t id[16], struct err *e)
{
    int rc = p->count ? put(p, id, e) : 0;
    for (size_t i = 0; rc == 0 && i < p->source_count; i++) {
        rc = store_delete(p->g->session->store, p->g->session->tenant->name, OBJECT_INDEX, &p->sources[i], e);
        p->g->replaced++;
    }
    p->count = 0;
    p->packs.count = p->source_count = 0;
    p->dropped = false;
    return rc;
}

/* 1 when `out` has it; 0 when it is gone, or was of no use to anybody and is gone now. */
static int read_index(struct gc_index *g, const struct object_id *id, struct index_body *out, struct err *e)
{
    AUTO_FREE uint8_t *object = NULL;
    size_t size = 0;
    memset(out, 0, sizeof *out);
    int rc = store_get_sealed(g->session, SEALED_INDEX, id, &object, &size, e);
    if (rc == 0)
        rc = index_decode(object + SEALED_HEADER, size, out);
    if (rc == -EBADMSG) {
        log_warn("%s; it is removed, and chunks that it lists are stored again", e->msg[0] ? e->msg : "an index makes no sense");
        rc = store_delete(g->session->store, g->session->tenant->name, OBJECT_INDEX, id, e);
        return rc < 0 ? rc : 0;
    }
    return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
}

/* ---- packs that are gone ---- */

static int clean_one(struct pile *p, const struct object_id *id, struct err *e)
{
    struct index_body b;
    int rc = read_index(p->g, id, &b, e);
    bool there = rc == 1;
    p->count = 0;
    p->packs.count = p->source_count = 0;
    p->dropped = false;
    if (there)
        rc = pile_add(p, id, &b, e);
    index_body_finish(&b);
    return rc == 0 && p->dropped ? replace(p, id->b, e) : rc;
}

static int clean_folder(struct pile *p, const uint8_t id[16], struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    int rc = store_list(p->g->session->store, p->g->session->tenant->name, OBJECT_INDEX, id, &list, &count, e);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = clean_one(p, &list[i].id, e);
    return rc;
}

/* Indexes are named by the artifact whose upload made the packs, or are merged ones. */
static int clean(struct pile *p, struct err *e)
{
    const struct pack_set *gone = p->g->deleted;
    int rc = gone->count ? clean_folder(p, merged_id, e) : 0;
    for (size_t i = 0; rc == 0 && i < gone->count; i++)
        if (i == 0 || memcmp(gone->ids[i].b, gone->ids[i - 1].b, 16) != 0)
            rc = clean_folder(p, gone->ids[i].b, e);
    return rc;
}

/* ---- small ones ---- */

static int merge_list(struct pile *p, const struct listed *list, size_t count, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct index_body b;
        if (!is_small(&list[i]))
            continue;
        rc = read_index(p->g, &list[i].id, &b, e);
        bool full = p->count + b.count > INDEX_ENTRIES_MAX || p->source_count == sizeof p->sources / sizeof p->sources[0];
        bool there = rc == 1;
        if (there && full)
            rc = replace(p, merged_id, e);
        if (there && rc >= 0)
            rc = pile_add(p, &list[i].id, &b, e);
        index_body_finish(&b);
    }
    return rc == 0 && (p->source_count > 1 || p->dropped) ? replace(p, merged_id, e) : rc;
}

/* ---- all of it ---- */

static size_t count_small(const struct listed *list, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += is_small(&list[i]);
    return n;
}

int gc_indexes(struct session *x, const struct pack_set *deleted, uint64_t *ret_replaced, struct err *e)
{
    AUTO_FREE struct listed *list = NULL;
    size_t count = 0;
    struct gc_index g = {.session = x, .deleted = deleted};
    struct pile *p = NULL;
    uint8_t id[16];
    int rc = store_list(x->store, x->tenant->name, OBJECT_INDEX, NULL, &list, &count, e);
    bool many = rc == 0 && count_small(list, count) >= SMALL_MIN;
    if (rc < 0 || !(many || deleted->count))
        return rc;
    crypt_random(id, sizeof id);
    rc = claim_start(x, id, &g.claim, &g.excluded, e);
    if (rc == 0 && !(p = malloc(sizeof *p)))
        rc = out_of_memory(e);
    if (rc == 0)
        rc = pile_init(p, &g, e);
    if (rc == 0)
        rc = clean(p, e);
    if (rc == 0 && many) {
        free(list);
        list = NULL;
        rc = store_list(x->store, x->tenant->name, OBJECT_INDEX, NULL, &list, &count, e); /* as it is now */
        p->count = 0;
        p->packs.count = p->source_count = 0;
        p->dropped = false;
        if (rc == 0)
            rc = merge_list(p, list, count, e);
    }
    if (p)
        pile_finish(p);
    free(p);
    if (g.claim.put && rc == 0)
        rc = store_delete(x->store, x->tenant->name, OBJECT_CLAIM, &g.claim.id, e); /* before it is answered */
    if (g.claim.put)
        ledger_forget(x->store, x->tenant->name, &g.claim.id);
    claim_finish(&g.claim);
    pack_set_finish(&g.excluded);
    *ret_replaced += g.replaced;
    return rc;
}
