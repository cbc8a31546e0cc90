// SPDX-License-Identifier: Apache-2.0
// What all operations share: the backend, keys, memory, and for each tenant its key and what it has already. docs/protocol/store.md.
#ifndef SPACE_VOLUMED_STORE_H
#define SPACE_VOLUMED_STORE_H

#include "base/err.h"
#include "base/hmap.h"
#include "hostd/volumed/backend/backend.h"
#include "hostd/volumed/backend/backend_co.h"
#include "hostd/volumed/keys/keys.h"
#include "hostd/volumed/store/index.h"
#include "hostd/volumed/store/manifest.h"
#include "hostd/volumed/store/sealed.h"
#include "hostd/volumed/store/task.h"

#include <pthread.h>

/* A claim that was not renewed for store.stale_s (a day) is of an upload that died; GC takes it away. An upload that could not renew its own for half of that gives up. */
#define CLAIM_BEAT_S 60u /* or a quarter of that, if it is less */

/*
 * Memory, below 256 MiB whatever the disks: packs being filled or sent (16 MiB each), uploads at the same time (12 MiB each; small files do not wait for large ones), downloads at the
 * same time (2 MiB and a few bits a chunk each) and the requests that they share (4 MiB each).
 */
#define STORE_PACKS     5u
#define STORE_UPLOADS   4u
#define STORE_SMALL     2u
#define STORE_DOWNLOADS 16u
#define STORE_REQUESTS  12u
#define STORE_FILLS     64u /* downloads into disks of guests that run: 1 MiB each */
#define SMALL_BYTES     (4u << 20)

struct store {
    uv_loop_t *loop;
    struct co_sched *co;
    struct backend *backend;
    struct keys *keys;
    struct crypt *crypt;
    int cache;               /* folder of this node, for runs */
    int claims;              /* in it, of notes (ledger.h); -1: none are made */
    struct dead_claim *dead; /* to be deleted, when `reaper` says so */
    uv_timer_t reaper;
    uint64_t stale_s;
    struct task_pool packs, uploads, small_uploads, downloads, fills, requests;
    uint64_t hurried;     /* uv_now when a guest last waited for something of a fill, or one began */
    unsigned fill_groups; /* that are being read, of those nobody asked for */
    uint64_t replaced;    /* condemnations, since that was told */
    unsigned background;  /* coroutines and requests that nobody waits for; store_finish needs 0 */
    struct hmap tenants;
    pthread_mutex_t lock; /* of codecs */
    struct codec_link *codecs;
};

struct tenant {
    struct hmap_node node; /* by hash of the name */
    char name[KEYS_TENANT_MAX + 1];
    unsigned refs;
    struct task_pool turn; /* one at a time reads the index */
    int dir;               /* of its runs; -1 until the first upload */
    uint64_t next_run;
    struct index_run **runs; /* by size, the largest first */
    unsigned run_count, run_room;
    unsigned closing; /* revocations that wait until space-hostd has encrypted what it has: to it the key is refused, */
    bool closed;      /* and it has asked us to forget it */
};

/* One operation's use of a tenant's key. */
struct session {
    struct store *store;
    struct tenant *tenant;
    struct tenant_key *key;
};

int store_init(struct store *s, uv_loop_t *loop, struct backend *b, struct keys *k, int cache, uint64_t stale_s, struct err *e);
void store_finish(struct store *s); /* nothing may run any more. The backend and keys are not touched */

/* ---- tenants and their keys (coroutines) ---- */

enum session_flags { SESSION_CREATE = 1 /* the tenant's key is made if it has none */ };

/* ENOENT: the tenant has no key, and nothing stored. Else errors of keys.h. */
int session_open(struct store *s, const char *tenant, enum session_flags flags, struct session *out, struct err *e);
void session_close(struct session *x); /* zeroed ones are fine */
enum session_change {
    SESSION_LOOK,
    SESSION_ROTATE,
    SESSION_REVOKE,
    SESSION_FRESH, /* as LOOK, without the cache; and without an id */
    SESSION_HOLD,  /* the same by KEYS_RENEW */
    SESSION_CLOSE, /* as REVOKE, once whoever asks by HOLD, and is refused from now on, has asked for FORGET; or after KEYS_CACHE_S */
    SESSION_FORGET /* this node has nothing of the key any more, nor of its indexes */
};
/* VOLUMED_KEY. `ret_id` has 16 bytes, zeros when the key cannot be used; `ret_wrapped_by` as keys_wrapped_by. A rotation that meets a revocation is EKEYREVOKED, and changes nothing. */
int session_change_key(struct store *s, const char *tenant, enum session_change change, uint8_t *ret_id, char *ret_wrapped_by, struct err *e);
/* When the tenant's key was revoked for good on any node: sees to it that the store holds no wrapped key, and this node nothing of the tenant. EKEYREVOKED, 0 when
 * it was not, or why that cannot be told. Wrapping anew on another node may have brought a key back; so GC asks this, too. */
int session_uphold_revocation(struct store *s, const char *tenant, struct err *e);
/* After tenant_key_enter said NULL: the key again, if it may be had. */
int session_renew(struct session *x, struct err *e);
/* Keys for work on the loop; no waiting before session_leave. Renews when it must. */
int session_enter(struct session *x, struct chunk_keys *out, struct err *e);
void session_leave(struct session *x);

/* For threads: `key` is a reference of their own. False when it must be renewed. */
bool session_thread_enter(const struct store *s, const char *tenant, struct tenant_key *key, struct chunk_keys *out);

struct chunk_codec *store_codec(struct store *s); /* any thread; NULL: out of memory */
void store_codec_return(struct store *s, struct chunk_codec *c);

/* ---- objects ---- */

#define NAME_SIZE (BACKEND_NAME_MAX + 1)

enum object_kind { OBJECT_KEY, OBJECT_REVOKED, OBJECT_PACK, OBJECT_INDEX, OBJECT_MANIFEST, OBJECT_CLAIM, OBJECT_CONDEMNED };

/* `out` has NAME_SIZE bytes. Returns it. Manifests and condemnations use the first 16 bytes of the id only. */
char *store_name(char *out, const char *tenant, enum object_kind kind, const struct object_id *id);
/* The folder of the kind, with the slash at its end; of packs and indexes with `id`: of that artifact's. */
char *store_prefix(char *out, const char *tenant, enum object_kind kind, const uint8_t *id);
/* Reads the id back. False: no such name. */
bool store_parse(const char *name, const char *tenant, enum object_kind kind, struct object_id *out);
struct object_id store_id(const uint8_t id[16]); /* with zeros behind it */

/* A listing of a whole folder: malloc'ed, by name. Names that are none of ours are left out. */
struct listed {
    struct object_id id;
    uint64_t size;
    int64_t modified;
};
int store_list(struct store *s, const char *tenant, enum object_kind kind, const uint8_t *id, struct listed **out, size_t *ret_count, struct err *e);

/* Reads a whole object of at most `max` bytes; malloc'ed. EBADMSG when it is larger. */
int store_get(struct store *s, const char *name, size_t max, uint8_t **out, size_t *ret_size, struct err *e);

/* Seals `size` bytes at object + SEALED_HEADER and stores the object. `object` stays the caller's. */
int store_put_sealed(struct session *x, enum sealed_kind kind, const struct object_id *id, uint8_t *object, size_t size, unsigned flags,
                     struct err *e);
/* Reads and opens: body and size of it are in *out + SEALED_HEADER. ENOENT, EBADMSG with the object's name. */
int store_get_sealed(struct session *x, enum sealed_kind kind, const struct object_id *id, uint8_t **out, size_t *ret_size, struct err *e);
int store_get_manifest(struct session *x, const uint8_t id[16], struct manifest *out, struct err *e);
int store_delete(struct store *s, const char *tenant, enum object_kind kind, const struct object_id *id, struct err *e);

/* Reads a segment of a manifest. EBADMSG names pack and artifact. */
int store_get_segment(struct session *x, const struct manifest *m, const struct manifest_segment *ms, struct segment *out, struct err *e);

/* Ids as text, for sentences and names. */
char *hex(char *out, const uint8_t *p, size_t n);

/* ---- what a tenant has already ---- */

/* What an upload sees: runs, and in each the packs that must not be used. */
struct view {
    struct index_run **runs;
    uint8_t **skip; /* of each; NULL: none */
    unsigned count;
};

/* A sorted set of packs. */
struct pack_set {
    struct object_id *ids;
    size_t count, room;
};
bool pack_set_add(struct pack_set *s, const struct object_id *id); /* not sorted yet; false: out of memory */
void pack_set_sort(struct pack_set *s);                            /* and each once */
bool pack_set_has(const struct pack_set *s, const struct object_id *id);
void pack_set_finish(struct pack_set *s);

/* Brings this node's runs up to date with the store, and hands out what they are now. */
int view_open(struct session *x, const struct pack_set *excluded, struct view *out, struct err *e);
void view_close(struct view *v);
/* From any thread; like index_run_find. */
int view_find(const struct view *v, const struct chunk_id *id, struct pack_entry *out, struct object_id *ret_pack);

#endif
