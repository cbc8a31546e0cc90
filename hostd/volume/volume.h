// SPDX-License-Identifier: Apache-2.0
// Snapshots in the object store: which of their files are artifacts there, making one durable, and bringing one back.
//
// Theory of operation. A snapshot is up to four files (disk.raw, ram.raw, vm.state, meta), each of which becomes an artifact: one row of the
// database, saved with its random id before the first request that names it, so that whatever was killed asks again for the same one. The snapshot is
// `durable` when space-volumed has answered for all of them. disk.raw and ram.raw are stored as what differs from a **base**: a template, or a template
// prepared for a size, whose own files are artifacts in the tenant of templates, stored once by whoever comes first. Without a base a file is stored whole,
// and kernel and initrd with it.
//
// A row's `state`: stored or not, and condemned, which is for good: what is condemned is deleted from the store as soon as space-volumed can be reached. A
// snapshot whose object is not in the pool is `stored` (enum artifact_state); a base that is not there any more lies in the pool, under its old id, once
// something was restored from it, and goes with the last snapshot that needs it.
#ifndef SPACE_HOSTD_VOLUME_H
#define SPACE_HOSTD_VOLUME_H

#include "hostd/object.h"

/* Loads the rows and connects. After objects_load. */
int volume_open(struct space *s, struct err *e);

/* From a coroutine: can something be stored for this owner now? -ENOTCONN (after 5 s) when space-volumed is away, -ETIMEDOUT when it hangs, -EKEYREVOKED,
 * -ENOKEY. */
int volume_check(struct space *s, int64_t owner, struct err *e);

/* May what this owner has stored, paused or stopped be read or go on? -EKEYREVOKED when its key was taken away, -EAGAIN when that cannot be told any more. At once. */
int volume_key(const struct space *s, int64_t owner, struct err *e);
/* Does a suspend of this owner's leave nothing in the pool: by the configuration, or because it has a key service of its own? */
bool volume_leaves_nothing(const struct space *s, int64_t owner);

/* From a coroutine: stores what a snapshot of the sandbox will be counted from, if it is not yet. 0 too when that cannot be. */
int volume_prepare(struct sandbox *sb, struct err *e);

/*
 * Makes a ready snapshot durable, or joins whoever does. `w` ends when it is, perhaps inside; taken off the list by wait_remove, the work goes on. -EAGAIN
 * when the snapshot is not ready; what space-volumed says.
 */
void volume_upload(struct snapshot *sn, struct waiter *w);
/* Brings a stored snapshot's object into the pool: it is ready then. Otherwise as volume_upload. */
void volume_fetch(struct snapshot *sn, struct waiter *w);
/* Mends the artifacts of a durable snapshot, and of its base, in the store: from the files in the pool, or from what else the tenant has there. -EBADMSG what is lost. */
void volume_repair(struct snapshot *sn, struct waiter *w);
/* The `n`-th artifact of a snapshot, those of its base behind its own, as "FILE TENANT ID"; false: no more. */
bool volume_artifact(const struct snapshot *sn, unsigned n, char *out, size_t size);
/* The same from a coroutine, whose abort does not end the work. */
int volume_uploaded(struct snapshot *sn, struct err *e);
int volume_uploaded_msec(struct snapshot *sn, uint64_t msec, struct err *e); /* at most that long: then it ends, -ETIMEDOUT */
int volume_fetched(struct snapshot *sn, struct err *e);
/* From a coroutine: all of a stored snapshot but its disk, and, when that is to arrive later, its memory, is brought into the pool; what is there can be loaded with NODED_FILLING only. 1: all of
 * it was there, and it is ready now. Others may fetch all of it meanwhile. */
int volume_fetch_memory(struct snapshot *sn, bool arrives, struct err *e);
/* Ends what is under way for it, soon. */
void volume_abort(struct snapshot *sn);
/* Is anything, and how far is it? Bytes of what differs (upload), of the files (fetch). */
bool volume_progress(const struct snapshot *sn, uint64_t *ret_done, uint64_t *ret_total);

/* The snapshot's object was removed from the pool, or is about to be: it is in the store only. Only of a durable one. */
void volume_evict(struct snapshot *sn);

/* All artifacts of the snapshot `id` are deleted, in the background. After snapshot_forget. */
void volume_drop(struct space *s, uint64_t id);

/* Uploads that were under way when the last space-hostd ended go on, but of snapshots that a sandbox is being suspended to. Once, by reconciliation. */
void volume_resume(struct space *s);

/* From a coroutine: brings a ready template of another node into this pool, once however many ask; it may have to be stored there first. -EREMOTE when it is
 * not. */
int volume_template(struct template *t, struct err *e);
/* What other nodes did: an artifact's row, NULL when it is gone. A snapshot and its artifacts are another node's now (in the caller's transaction). */
void volume_told(struct space *s, int64_t id, const struct artifact_row *row);
void volume_moved(struct snapshot *sn, int64_t node);
/* What a node that is forgotten had in the store is ours: kept as long as something needs it. In the caller's transaction. */
void volume_inherit(struct space *s, int64_t node);
/* Look whether something is to be done, now: there is a node that may want our templates. */
void volume_kick(struct space *s);

/* Is it the object of a base that is kept for snapshots in the store? */
bool volume_has_object(const struct space *s, uint64_t id);

#endif
