// SPDX-License-Identifier: Apache-2.0
// All credentials: in memory by id and by scope, on the disk a file each. docs/protocol/credd.md has the format.
//
// STATE/store/ID.cred, encrypted, replaced as a whole. A change is on the disk when the function returns, or did not happen.
//
// A sandbox's own credentials go with it to another node, as packed records in space-hostd's database (docs/decisions/0019). So each record has a number that grows
// with each change, a removal of one of them is a version of the record, and of two versions the higher number counts: what is brought back from an old copy changes
// nothing here.
#ifndef SPACE_CREDD_STORE_H
#define SPACE_CREDD_STORE_H

#include "base/err.h"
#include "base/hmap.h"
#include "hostd/credd/rules.h"

#include <stdbool.h>
#include <stdint.h>

#define STORE_MAX       16384u /* credentials */
#define STORE_SCOPE_MAX 256u   /* of one scope */
#define STORE_USES      64u    /* lines of its log */

struct master_keys;
struct store;

struct credential {
    struct hmap_node by_id, by_scope;
    struct credd_record rec;
    struct method method; /* parsed */
    uint8_t *box;         /* malloc'ed: what the back end keeps of the value */
    size_t box_len;
    bool counted;  /* uses were, of `rate`: so many were left, */
    double tokens; /* at that time (ns of CLOCK_BOOTTIME; below 0: before the host started) */
    int64_t tokens_at;
    bool busy;   /* the back end is at its value */
    char **uses; /* STORE_USES lines, a ring; NULL: none yet */
    unsigned next_use;
};

/* Loads all. -EBADMSG with a sentence: a record cannot be read; nobody is served then, since a wider scope's would be taken in its place. `keys` outlive it. */
int store_open(const char *state, const struct master_keys *keys, struct store **out, struct err *e);
void store_close(struct store *s);

/* Those that were removed are found by store_find_any, store_each and store_of_sandbox alone. */
struct credential *store_find(const struct store *s, uint64_t id);
struct credential *store_find_any(const struct store *s, uint64_t id);
struct credential *store_find_name(const struct store *s, const struct credd_scope *scope, const char *name);
/* Those of a scope, in no order; NULL starts. The store must not change meanwhile. */
struct credential *store_next(const struct store *s, const struct credd_scope *scope, const struct credential *after);
/* All of them. */
void store_each(const struct store *s, void (*each)(void *user, const struct credential *c), void *user);
/* Without removed ones. */
uint32_t store_count(const struct store *s);
/* Any of the sandbox's own; NULL: there is none. */
struct credential *store_of_sandbox(const struct store *s, uint64_t sandbox);

/* `rec` without id and times. -EEXIST, -EMFILE, -EINVAL, or what the disk said, with a sentence. */
int store_make(struct store *s, const struct credd_record *rec, struct credential **out, struct err *e);
/* Replaces record and box (copied; NULL: as it is). The id, scope and name stay. On failure all is as it was. */
int store_save(struct store *s, struct credential *c, const struct credd_record *rec, const void *box, size_t len, struct err *e);
/* Frees it, or, when it is a sandbox's own, remembers that it was removed (of a sandbox the newest CREDD_REMOVED_MAX). On failure it is still there. */
int store_remove(struct store *s, struct credential *c, struct err *e);
/* The same, and nothing is remembered. */
int store_drop(struct store *s, struct credential *c, struct err *e);

/* A sandbox's own, for another node with the same master key; and one from there. `out` is the record that counts now (never NULL on success); *ret_changed: it is the one
 * that came. -ENOKEY: of another master key; -EBADMSG, -EINVAL: damaged, not that sandbox's; -EMFILE; with a sentence. */
void store_pack(const struct store *s, const struct credential *c, char out[CREDD_PACKED_SIZE]);
int store_take(struct store *s, uint64_t sandbox, const char *text, struct credential **out, bool *ret_changed, struct err *e);

/* Remembers a line of its log. */
void store_used(struct credential *c, const char *line);

bool scope_valid(const struct credd_scope *s);
bool scope_equal(const struct credd_scope *a, const struct credd_scope *b);

#endif
