// SPDX-License-Identifier: Apache-2.0
// Shared by the files of hostd/volume: rows of artifacts, tasks, bases.
#ifndef SPACE_HOSTD_VOLUME_IMPL_H
#define SPACE_HOSTD_VOLUME_IMPL_H

#include "hostd/noded_client.h"
#include "hostd/volume/client.h"
#include "hostd/volume/volume.h"

#define VOLUME_TEMPLATES "templates" /* the tenant of templates; owners are uNUMBER */

/* Stored: never renumber. */
enum artifact_row_state { STORE_BEGUN = 1, STORE_DURABLE = 2, STORE_CONDEMNED = 3 };

struct artifact {
    struct artifact *next; /* in volume.artifacts */
    struct artifact_row row;
    bool busy; /* a request that names it is under way */
};

/* A base that is being stored, or brought back: by one coroutine, whoever waits for it. */
struct base_task {
    struct base_task *next;
    struct volume *volume;
    uint64_t id;
    bool fetch;
    struct wait_list done;
};

/* A base of another node's that was brought into this pool since we started. */
struct copied_base {
    struct copied_base *next;
    uint64_t id;
};

struct volume {
    struct space *space;
    struct volumed *conn;
    struct artifact *artifacts;
    struct base_task *bases;
    struct copied_base *copied;
    uv_timer_t timer;
    struct tenant_watch *tenants; /* tenants.c, with the following */
    uv_timer_t key_timer;
    bool looking;
    bool deleting, storing;
    bool garbage;     /* something was deleted since the last collection, */
    uint64_t collect; /* which is not before (uv_now) */
};

/* What is done for a snapshot. */
struct volume_task {
    struct snapshot *snapshot;
    struct volume *volume;
    struct co *co;
    bool fetch, repair, aborted;
    struct wait_list done;
    uint64_t bytes, total; /* progress */
    uint64_t began;        /* uv_hrtime */
    struct {
        uint64_t read, fresh, stored, fetched;
    } sum;
};

/* ---- artifacts.c ---- */

struct artifact *artifact_find(const struct volume *v, uint32_t kind, uint64_t object, uint32_t file); /* never a condemned one */
struct artifact *artifact_by_name(const struct volume *v, const char *name);
/* A new row with a new random id, saved. */
int artifact_create(struct volume *v, const struct artifact_row *like, struct artifact **out, struct err *e);
int artifact_save(struct volume *v, const struct artifact *a, struct err *e);
void artifact_condemn(struct volume *v, struct artifact *a);
/* `tenant` and `name` as space-volumed has them; both empty: none. */
struct volumed_ref artifact_ref(const char *tenant, const char *name);
const char *volume_file_name(uint32_t file);

/* ---- upload.c ---- */

int upload_run(struct volume_task *t, struct err *e);
/* The template or prepared template from which a memory with that base, and a disk with that parent, derive, and which is in this pool; 0: none. */
uint64_t upload_find_base(const struct space *s, int64_t base_kind, int64_t base, int64_t parent_kind, int64_t parent);
/* Where a file in the pool differs from that of the base, a memfd for space-volumed. */
int upload_ranges(struct space *s, const struct artifact_row *row, uint64_t base, int *ret_fd, struct err *e);
/* enum volumed_file of an enum noded_file. */
uint32_t volume_kind_of(uint32_t file);
/* Stores the files of a base that are not stored yet. */
int upload_base(struct volume *v, uint64_t id, struct err *e);

/* ---- fetch.c ---- */

int fetch_run(struct volume_task *t, struct err *e);
/* Makes a base that is in the store a template's object in the pool, under its own id. */
int fetch_base(struct volume *v, uint64_t id, struct err *e);

/* ---- pages.c ---- */

/* A memfd with one struct noded_range for each run of pages of a snapshot's memory that `before` has otherwise, and their bytes. -EBADMSG, -EINVAL, -ENOENT: they cannot be compared. */
int pages_compare(struct space *s, uint64_t snapshot, uint64_t before, int *ret_fd, uint64_t *ret_bytes, struct err *e);

/* ---- repair.c ---- */

int repair_run(struct volume_task *t, struct err *e);

/* ---- tenants.c, revoked.c ---- */

#define KEY_GOOD_MSEC 300000u /* KEYS_CACHE_S of space-volumed: how long an answer of a key service is good */

enum key_policy { KEY_PAUSE, KEY_CONTINUE, KEY_KILL }; /* of running guests, as in VOLUMED_KEY's answer */
enum key_unpacked { UNPACKED_KEEP, UNPACKED_DESTROY };

struct tenant_watch {
    struct tenant_watch *next; /* in volume.tenants; never freed */
    struct volume *volume;
    int64_t owner;
    bool own, revoked;
    uint32_t policy, unpacked;
    uint64_t confirmed; /* volume_boottime: when the key could be had last, or the first question */
    bool packing;       /* a coroutine is at it */
    unsigned kept;      /* things that could not be packed, when that was told last */
};

uint64_t volume_boottime(void); /* CLOCK_BOOTTIME in milliseconds */
/* This node's space-volumed forgets the tenant's key. From a coroutine. */
void volume_forget_key(const struct tenant_watch *t);
/* Has the tenant something in this pool, but for guests that may go on, that is in the clear? */
bool revoked_has_clear(const struct tenant_watch *t);
/* After each look, from its coroutine: what follows for what the tenant has here. */
void revoked_apply(struct tenant_watch *t);
/* The key can be had again. */
void revoked_returned(struct tenant_watch *t);

void volume_watch_keys(struct volume *v);
void volume_look_at_keys(uv_timer_t *timer);

/* ---- volume.c ---- */

/* Is the template, or prepared template, in this pool? And is it this node's own, and not one that was fetched? */
bool base_is_here(const struct space *s, uint64_t id);
bool base_is_own(const struct space *s, uint64_t id);
/* Waits until the base is stored, or fetched, by a coroutine of its own: the first who asks starts it. */
int base_wait(struct volume *v, uint64_t id, bool fetch, struct err *e);
/* wait_in_list with the sentence. */
int volume_wait(struct space *s, struct wait_list *l, struct err *e);

#endif
