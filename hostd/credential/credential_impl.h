// SPDX-License-Identifier: Apache-2.0
// Between the files of hostd/credential.
#ifndef SPACE_HOSTD_CREDENTIAL_IMPL_H
#define SPACE_HOSTD_CREDENTIAL_IMPL_H

#include "hostd/credential/client.h"
#include "hostd/credential/credential.h"

struct credentials {
    struct space *space;
    struct credd *credd;
    struct hmap by_id;
    char key[64];       /* in base64, with a newline; "" before the first hello */
    const char *answer; /* while waiters are told */
};

/* What space-credd says of a credential is in the copy now. */
void credentials_saw(struct credentials *cs, const struct credd_record *rec);
/* Whoever depends on which there are looks again. */
void credentials_changed(struct credentials *cs);
/* CREDD_KNOW or CREDD_FORGET, as the sandbox is. */
void credentials_tell(struct credentials *cs, struct sandbox *sb);
void credentials_forget(struct credentials *cs, uint64_t sandbox, enum credd_forget what);

/* ---- follow.c ---- */

/* A change of `credential`, of `sandbox`'s own, was answered: it is in the database when `done` is told 0, which is once. -EREMOTE: the sandbox went meanwhile, and without it. */
typedef void follow_done(void *user, int rc, const struct err *e);
void follow_keep(struct credentials *cs, uint64_t sandbox, uint64_t credential, follow_done *done, void *user);

/* After each hello, with its records: what either side has newer goes to the other, and all sandboxes are told of. */
void follow_connected(struct credentials *cs, const struct credd_record *records, size_t count);

#endif
