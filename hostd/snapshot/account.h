// SPDX-License-Identifier: Apache-2.0
// What disks, snapshots and templates hold of their own, and what an owner uses of the pool with that.
//
// Each has a parent: the object that its disk was last the same as. Its `delta` is what it holds and its parent does not, so that the deltas of an owner add up
// to what would be free without them. Measured in the background from extent maps (NODED_FILE_COMPARE), kept in the rows.
#ifndef SPACE_HOSTD_ACCOUNT_H
#define SPACE_HOSTD_ACCOUNT_H

#include "hostd/object.h"

/* After objects_load: measures what was never measured. */
void account_open(struct space *s);

/* The sandbox has a new object, a copy of what `ref` names; `old` is the one it had (0: none), which goes. Before the row is saved. */
void account_loaded(struct sandbox *sb, const struct ref *ref, uint64_t old);
/* Its disk was captured as that snapshot. The rows are saved. */
void account_captured(struct sandbox *sb, struct snapshot *sn);
/* It is a copy of what `ref` names (REF_NONE: of nothing). Saved by the caller. */
void account_published(struct template *t, const struct ref *ref);
/* The object (kind, id) is about to go; (to_kind, to) is what it was the same as once, id 0: nothing. Who has it as parent gets that one. */
void account_gone(struct space *s, uint32_t kind, uint64_t id, int64_t to_kind, int64_t to);

/* Bytes as measured last, -1: not yet. Asking is what makes it measured again, soon, where it can have changed. */
int64_t account_of_sandbox(struct sandbox *sb);
int64_t account_of_snapshot(struct snapshot *sn);
int64_t account_of_template(struct template *t);
/* Bytes of its disk or memory image that take up room, shared or not: all of them until it was measured. Asking makes it so. */
uint64_t account_held(struct snapshot *sn, bool memory);

/* Bytes that the owner's sandboxes, snapshots and templates hold. */
uint64_t account_usage(const struct space *s, uint32_t owner);

#endif
