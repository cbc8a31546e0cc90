// SPDX-License-Identifier: Apache-2.0
// Garbage collection, checking and counting of what tenants have (coroutines).
#ifndef SPACE_VOLUMED_GC_H
#define SPACE_VOLUMED_GC_H

#include "hostd/volumed/store/store.h"

/* The names of tenants, one after the other: *after is the last one, "" at first; changed to the next. ENOENT at the end. */
int store_next_tenant(struct store *s, char after[KEYS_TENANT_MAX + 1], struct err *e);

/* One tenant; adds to rep->gc. claim.h says how it is safe. Nothing is deleted when a manifest cannot be read (EBADMSG). */
int gc_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e);

/* No new upload uses these packs, and they go with their last user. Sorted. */
int gc_condemn(struct session *x, const struct pack_set *packs, struct err *e);

/* A condemnation that cannot be read: nobody knows any more which packs it lists. All that are there are condemned in its place, and then it goes, so that who lists condemnations finds
 * one or the other, as with those that are put together. It costs room: later uploads store again what they come by. 0, too, when it is gone or can be read after all. */
int gc_replace_condemned(struct session *x, const struct object_id *id, struct err *e);

/* Reads all packs that the artifact needs. Those of which anything is damaged or missing are added to `bad`, which is sorted then. */
int fsck_find_bad(struct session *x, const struct manifest *m, struct pack_set *bad, struct err *e);

/* One tenant; adds to rep->fsck, writes lines to `out`. 0 also when something is wrong. `flags`: VOLUMED_READ_ALL, VOLUMED_MEND. */
int fsck_run(struct store *s, const char *tenant, unsigned flags, int out, struct volumed_reply *rep, struct err *e);

/* Adds to rep->stat. */
int stat_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e);

/* Lines of VOLUMED_LIST. */
int list_run(struct store *s, const char *tenant, int out, struct err *e);

#endif
