// SPDX-License-Identifier: Apache-2.0
// Where values lie. A back end turns a value into a box that the credential's record keeps, and a box into the value.
//
// Local (backend_local.c): the box is the value, encrypted under the master key. Vault (backend_vault.c): the value is in a KV version 2 engine, and the box
// says so. One request of a credential at a time is the caller's to see to; those of different ones may run together.
#ifndef SPACE_CREDD_BACKEND_H
#define SPACE_CREDD_BACKEND_H

#include "base/err.h"
#include "ipc/credd.h"

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define BACKEND_BOX_MAX (CREDD_VALUE_MAX + 64u)

struct backend;
struct master_keys;

struct backend_result {
    /* 0; -EAGAIN: it cannot be reached now; -ENOENT: it has no such value; -EACCES: it refuses; -EBADMSG: what came is no value; with a sentence */
    int rc;
    struct err e;
    const void *bytes; /* get: the value; put: the box. Borrowed until the callback returns. Values lie in locked memory, and are wiped then */
    size_t len;
};
typedef void backend_done(void *user, const struct backend_result *r);

struct backend_ops {
    const char *name;
    /* Each calls `done` exactly once, before it returns or from the loop. `value` and `box` are borrowed until it returns. */
    void (*put)(struct backend *b, const struct credd_record *rec, const void *value, size_t len, backend_done *done, void *user);
    void (*get)(struct backend *b, const struct credd_record *rec, const void *box, size_t len, backend_done *done, void *user);
    void (*remove)(struct backend *b, const struct credd_record *rec, backend_done *done, void *user);
};

/* Embedded first in an implementation's own. */
struct backend {
    const struct backend_ops *ops;
};

/* `keys` outlive it. NULL with a sentence. */
struct backend *backend_local_create(const struct master_keys *keys, struct err *e);

#endif
