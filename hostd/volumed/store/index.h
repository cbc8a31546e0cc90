// SPDX-License-Identifier: Apache-2.0
// Which chunks a tenant has already: index objects of the store, and sorted files of this node that hold what they say.
//
// Theory of operation. Each upload leaves index objects: its packs and their chunks, sorted by identity. A node keeps what it has read of them in run files, each
// of which holds what one or more index objects said. Runs are immutable; small ones are merged, so that there are few. Identities are
// spread evenly, so an entry is found by one or two reads near where it must be, and memory does not grow with the disk. An index object that
// vanished (garbage collection writes another in its place) takes the run with it. Runs are a cache: they may be removed at any time. Nothing here is secret but by the identities
// being keyed, and nothing is believed: what is found is used only in packs that nobody condemned, and whoever reads a chunk verifies it.
#ifndef SPACE_VOLUMED_INDEX_H
#define SPACE_VOLUMED_INDEX_H

#include "base/err.h"
#include "hostd/volumed/store/pack.h"

#include <pthread.h>

#define INDEX_ENTRIES_MAX 65536u /* of an index object */

/* A chunk with the pack's place in a table. */
struct index_entry {
    struct pack_entry e;
    uint32_t pack;
};

/* Body of an index object. Sorts the entries. */
size_t index_size(uint32_t packs, uint32_t entries);
void index_encode(const struct object_id *packs, uint32_t pack_count, struct index_entry *entries, uint32_t count, uint8_t *out);

struct index_body {
    struct object_id *packs;
    struct index_entry *entries; /* sorted */
    uint32_t pack_count, count;
};
/* 0, -EBADMSG, -ENOMEM; `out` is good for index_body_finish in any case. */
int index_decode(const uint8_t *p, size_t len, struct index_body *out);
void index_body_finish(struct index_body *b);

/* ---- runs: all of these may block ---- */

struct index_run;

/* Writes the run of one index object as file `name` of folder `dir`. */
int index_run_write(int dir, const char *name, const struct object_id *source, const struct index_body *b, struct index_run **out, struct err *e);
int index_run_merge(int dir, const char *name, struct index_run *a, struct index_run *b, struct index_run **out, struct err *e);
/* -EBADMSG: it is none, or cut: remove it. */
int index_run_open(int dir, const char *name, struct index_run **out, struct err *e);

/* The file goes when the last reference goes, if it was condemned by index_run_remove. */
struct index_run *index_run_ref(struct index_run *r);
void index_run_unref(struct index_run *r);
void index_run_remove(struct index_run *r);

uint64_t index_run_count(const struct index_run *r);
const struct object_id *index_run_sources(const struct index_run *r, uint32_t *ret_count);
const struct object_id *index_run_packs(const struct index_run *r, uint32_t *ret_count);

/* From any thread. 1 found, 0 not, -errno. `skip` (may be NULL) has a bit for each pack of the run that is not to be used. */
int index_run_find(const struct index_run *r, const uint8_t *skip, const struct chunk_id *id, struct pack_entry *out, struct object_id *ret_pack);

#endif
