// SPDX-License-Identifier: Apache-2.0
// Which credential a sandbox uses for a host: see credd.h for injection; here is the rest.
#ifndef SPACE_CREDD_FIND_H
#define SPACE_CREDD_FIND_H

#include "hostd/credd/backend.h"
#include "hostd/credd/credd.h"
#include "hostd/credd/store.h"

#define FIND_SANDBOXES_MAX (1u << 20)

/* Renders values in locked memory. `b` outlives it. */
int finder_create(struct credd *c, struct backend *b, struct finder **out, struct err *e);
struct backend *finder_backend(const struct finder *f);

/* There is such a sandbox. `labels` are copied; of them those of the administrator's count. -ENOMEM, -EMFILE. */
int finder_know(struct finder *f, uint64_t sandbox, uint32_t owner, const char *labels);
/* Whose it is. -ENOENT: nobody told of it. */
int finder_owner(const struct finder *f, uint64_t sandbox, uint32_t *out);
void finder_forget(struct finder *f, uint64_t sandbox);
void finder_forget_all(struct finder *f);

/*
 * A login for an origin (https://HOST[:PORT]), as cred_inject finds, limits and logs it, among credentials whose method is autofill. `line` is a sealed box of
 * {"origin":...,"username":...,"password":...} to `key`, in text; borrowed until `done` returns. rc: -ENOENT none, -EACCES no value or no such sandbox, -EKEYEXPIRED,
 * -EAGAIN used too often or the back end is away, -EINVAL no origin, -EIO cannot be logged.
 */
typedef void finder_login_done(void *user, int rc, const char *line, const char *sentence);
void finder_login(struct finder *f, uint64_t sandbox, uint32_t uid, const char *origin, const uint8_t key[CREDD_KEY_BYTES], finder_login_done *done,
                  void *user);

/* A line of the audit log, from before the start, in order: what is about a credential goes to its log, too, and counts for its `rate`. */
void finder_remember(struct finder *f, const char *line);

#endif
