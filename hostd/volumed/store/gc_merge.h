// SPDX-License-Identifier: Apache-2.0
// The indexes of a tenant in the store, as part of garbage collection (coroutine).
//
// Theory of operation. An index that is written anew says again that packs are there, and so may only name what nobody deletes meanwhile: a collection on another node could have deleted a
// pack, cleared all indexes that it saw, and lifted its condemnation, before ours is put; a later upload would then count on a pack that is gone. So this works as an
// upload does (claim.h): it claims, reads what is condemned, claims that it has seen that, and names no condemned pack. No pack that it names can then be deleted before
// the claim is gone, and what is condemned later is cleared out of the new index as out of any other.
//
// The new index is put before those that it replaces are removed. Killed between, entries are there twice; the next one that is put has them once.
#ifndef SPACE_VOLUMED_GC_MERGE_H
#define SPACE_VOLUMED_GC_MERGE_H

#include "hostd/volumed/store/claim.h"

struct gc_index {
    struct session *session;
    const struct pack_set *deleted; /* packs that this collection has deleted, sorted */
    struct claim claim;
    struct pack_set excluded; /* condemned */
    uint64_t replaced;
};

/* Clears indexes of packs that are `deleted` (sorted), and puts small ones together when there are many. Adds to *ret_replaced the indexes that went. */
int gc_indexes(struct session *x, const struct pack_set *deleted, uint64_t *ret_replaced, struct err *e);

#endif
