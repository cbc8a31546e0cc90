// SPDX-License-Identifier: Apache-2.0
// Garbage collection, checking and counting of what tenants have (coroutines).
#ifndef SPACE_VOLUMED_GC_H
#define SPACE_VOLUMED_GC_H

#include "hostd/volumed/store/store.h"

/* The names of tenants, one after the other: *after is the last one, "" at first; changed to the next. ENOENT at the end. */
int store_next_tenant(struct store *s, char after[KEYS_TENANT_MAX + 1], struct err *e);

/* One tenant; adds to rep->gc. claim.h says how it is safe. Nothing is deleted when a manifest cannot be read (EBADMSG). */
int gc_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e);

/* One tenant; adds to rep->fsck, writes lines to `out`. 0 also when something is wrong. */
int fsck_run(struct store *s, const char *tenant, bool read_all, int out, struct volumed_reply *rep, struct err *e);

/* Adds to rep->stat. */
int stat_run(struct store *s, const char *tenant, struct volumed_reply *rep, struct err *e);

/* Lines of VOLUMED_LIST. */
int list_run(struct store *s, const char *tenant, int out, struct err *e);

#endif
