// SPDX-License-Identifier: Apache-2.0
// The key under which credentials lie on the disk: 32 random bytes, wrapped by the key service that FOLDER/credentials.key (or default.key) names, as keys of
// tenants are (docs/protocol/keys.md): a file, a systemd credential, or a PKCS#11 token.
#ifndef SPACE_CREDD_MASTER_H
#define SPACE_CREDD_MASTER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define MASTER_BYTES 32u

/* Derived from it, in locked memory. */
struct master_keys {
    uint8_t record[MASTER_BYTES];                               /* of records on the disk */
    uint8_t value[MASTER_BYTES];                                /* of values, there and in memory */
    uint8_t box_secret[MASTER_BYTES], box_public[MASTER_BYTES]; /* crypto_box: values come sealed to it */
};

struct master {
    struct master_keys *keys; /* secret_alloc; NULL until master_open succeeded */
    uint8_t blob[512];        /* the wrapped key, to be written; blob_len 0: it is there already */
    uint32_t blob_len;
};

/*
 * As root: a wrapping key in a file (a systemd credential is one) may be root's: it is used here, and never again. Other services wait for
 * master_open. sodium_init was called. `folder` holds the service's file, `state` the wrapped key. Errors as keys.h has them.
 */
int master_start(struct master *m, const char *folder, const char *state, struct err *e);
/* As the daemon's user, confined: the rest; writes the wrapped key when it is new, and STATE/public for spacefs. */
int master_open(struct master *m, const char *folder, const char *state, struct err *e);

#endif
