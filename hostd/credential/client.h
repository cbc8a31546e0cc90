// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of lib/ipc/credd.h: requests in order, answers by callback, over a connection that comes back by itself.
#ifndef SPACE_HOSTD_CREDENTIAL_CLIENT_H
#define SPACE_HOSTD_CREDENTIAL_CLIENT_H

#include "base/err.h"
#include "ipc/credd.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct credd;

struct credd_hooks {
    /* The connection is there, and hello was answered: `bytes` are the records. Each time. */
    void (*up)(void *user, const struct credd_reply *hello, const void *bytes, size_t len);
    void *user;
};

/* The answer, exactly once, from the loop or from inside credd_send. `bytes` came along with it (a NUL follows), borrowed. rep->error is -ENOTCONN when space-credd is away or went
 * away: then nobody knows whether it was done. */
typedef void credd_done(void *user, const struct credd_reply *rep, const char *bytes, size_t len);

/* Connects to RUN/credd.sock, now and whenever it is lost. */
int credd_open(uv_loop_t *loop, const char *run, const struct credd_hooks *hooks, struct credd **out, struct err *e);
bool credd_up(const struct credd *c);

/* Sends a request (version and tag are filled in) with a payload (copied; NULL: none). `done` may be NULL. While space-credd is away it fails at once. */
void credd_send(struct credd *c, const struct credd_request *q, const char *payload, size_t len, credd_done *done, void *user);

#endif
