// SPDX-License-Identifier: Apache-2.0
// Data keys of tenants: made, wrapped by the key service that the tenant's file names, unwrapped for at most five minutes, rotated, revoked.
//
// Each tenant has one data key of 32 random bytes. It exists wrapped, in a blob that the caller stores beside the tenant's objects (docs/protocol/keys.md), and
// for at most KEYS_CACHE_S seconds unwrapped, in this process: in memory that is locked, between guard pages, not readable but while somebody is inside
// tenant_key_enter and _leave, left out of core dumps, and wiped. What is used are keys derived from it, by purpose.
//
// Which service a tenant has, FOLDER/TENANT.key says, or FOLDER/default.key (man space-volumed). Files are read again at each use of the service.
// Requests are asynchronous, since a service may be far: they run in libuv's pool, those of one service one after the other.
#ifndef SPACE_VOLUMED_KEYS_H
#define SPACE_VOLUMED_KEYS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define KEYS_CACHE_S    300u
#define KEYS_BLOB_MAX   512u
#define KEYS_BYTES      32u
#define KEYS_TENANT_MAX 64u /* names of tenants: str_name_valid */

struct keys;
struct keys_op;
struct tenant_key; /* an unwrapped key: counted, from any thread */

/* Derived by HKDF-SHA256 from the data key, docs/protocol/keys.md. */
struct tenant_subkeys {
    uint8_t chunk_id[KEYS_BYTES]; /* HMAC key of the identity of chunks */
    uint8_t chunk[KEYS_BYTES];    /* to derive each chunk's own key from */
    uint8_t index[KEYS_BYTES];    /* the same, of packs' indexes */
    uint8_t manifest[KEYS_BYTES]; /* and of manifests */
};

/* What becomes of running guests of a tenant whose key is gone: its file's `revoked`. */
enum keys_policy { KEYS_PAUSE, KEYS_CONTINUE, KEYS_KILL };
/* And of what it has on a node that does not run and could not be encrypted any more: its file's `unpacked`. */
enum keys_unpacked { KEYS_KEEP, KEYS_DESTROY };

struct keys_result {
    /*
     * 0 or -errno, with its sentence in `e`:
     *   EKEYREVOKED the service says that there is no such wrapping key any more, or that we may not use it; or the blob says so
     *   EBADMSG     the blob is damaged, or not this tenant's, or wrapped by another key of the same name
     *   EAGAIN      the service cannot be reached now
     *   ENOKEY      no file says which service the tenant has
     *   EACCES      that file, or one it names, can be read by others
     *   EINVAL      no such tenant's name, or a file that makes no sense; ENOMEM: no memory that can be locked
     *   ECANCELED   keys_cancel, or keys_destroy
     */
    int rc;
    struct err e;
    struct tenant_key *key; /* MAKE, OPEN, RENEW: the caller's, by tenant_key_unref */
    const uint8_t *blob;    /* MAKE, WRAP: borrowed until `done` returns; to be stored before the key is used */
    size_t blob_len;
};

enum keys_verb {
    KEYS_MAKE,  /* a new data key for a tenant that has none, or whose data is all gone */
    KEYS_OPEN,  /* unwrap `blob`; answered from the cache when that is young enough and of the same data key */
    KEYS_WRAP,  /* wrap the data key of `blob` anew, by the service and the wrapping key that the tenant's file names now; the data stays as it is.
                  While it moves from one service or wrapping key to another both are needed */
    KEYS_CHECK, /* ask the service now whether it still unwraps `blob`, whatever the cache has. No key comes of it. EKEYREVOKED: as keys_forget */
    KEYS_RENEW, /* the same, and the key is kept for its time from now on. EKEYREVOKED: what is kept stays until its time is over, or keys_forget */
};

struct keys_request {
    enum keys_verb verb;
    const char *tenant;  /* copied */
    const uint8_t *blob; /* OPEN, WRAP: copied. Read it afresh from the store for each OPEN: another node may have revoked the key */
    size_t blob_len;
    void (*done)(void *user, const struct keys_result *r);
    void *user;
};

/* Initialises libsodium, tells SoftHSM of FOLDER/softhsm2.conf when there is one; before other threads run. Locks memory for keys. `folder` is copied. NULL with a sentence (-errno in e->code). */
struct keys *keys_create(uv_loop_t *loop, const char *folder, struct err *e);
/* Cancels all, wipes all keys, those that others hold too; `closed` (may be NULL) is called from the loop at the end. */
void keys_destroy(struct keys *k, void (*closed)(void *user), void *user);

/* As backend_start and backend_cancel: `done` exactly once, from the loop, never from inside these. */
struct keys_op *keys_start(struct keys *k, const struct keys_request *r);
void keys_cancel(struct keys_op *op);

/* The cached key of this tenant is gone at once, for those that hold it, too. */
void keys_forget(struct keys *k, const char *tenant);

/* A blob that says that the key of this tenant was revoked: stored in place of the wrapped key, what the tenant has is unreadable for good; nodes that
 * have the key cached stop within KEYS_CACHE_S. Call keys_forget, too. */
void keys_revoked_blob(const char *tenant, uint8_t out[KEYS_BLOB_MAX], size_t *ret_len);

/* Who wrapped a blob, as "file k1" or "pkcs11 kek1"; "" when that cannot be told. */
void keys_wrapped_by(const char *tenant, const uint8_t *blob, size_t len, char out[KEYS_TENANT_MAX + 16]);

/* Has the tenant a file of its own? The others' keys are the platform's. */
bool keys_own(const struct keys *k, const char *tenant);

/* Both read the tenant's file; KEYS_PAUSE and KEYS_KEEP when there is none. */
enum keys_policy keys_policy(const struct keys *k, const char *tenant);
enum keys_unpacked keys_unpacked(const struct keys *k, const char *tenant);

/*
 * The derived keys, from any thread; NULL when the key expired or was revoked: get it again by KEYS_OPEN. Between enter and leave they are good
 * whatever happens; be short (a chunk, not a pack), and copy nothing that you do not wipe.
 */
const struct tenant_subkeys *tenant_key_enter(struct tenant_key *key);
void tenant_key_leave(struct tenant_key *key);

const uint8_t *tenant_key_id(const struct tenant_key *key); /* 16 random bytes that name the data key; not secret */
struct tenant_key *tenant_key_ref(struct tenant_key *key);
void tenant_key_unref(struct tenant_key *key); /* NULL is fine */

#endif
