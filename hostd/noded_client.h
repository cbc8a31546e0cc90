// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of lib/ipc/noded.h: calls with callbacks or as coroutine steps, over a connection that comes back by itself.
#ifndef SPACE_HOSTD_NODED_CLIENT_H
#define SPACE_HOSTD_NODED_CLIENT_H

#include "base/err.h"
#include "hostd/space.h"
#include "ipc/noded.h"

/*
 * The answer to a request. rep->error says how it went; `fd` is the descriptor that came along or -1, and is the callee's to close.
 * When space-noded goes away, the request is sent again once it is back (`repeated` is then true: EEXIST may mean that the first one
 * did it); after 5 s without it the answer is -ENOTCONN.
 */
typedef void noded_callback(void *user, const struct noded_reply *rep, int fd, bool repeated);

struct noded_hooks {
    void (*event)(void *user, const struct noded_reply *ev); /* NODED_EVENT_VM and _RESYNC */
    void (*connected)(void *user);                           /* each time; nothing was lost the first time */
    void *user;
};

int noded_open(struct space *s, const struct noded_hooks *hooks, struct noded **out, struct err *e);

void noded_send(struct noded *n, const struct noded_request *req, noded_callback *cb, void *user);

/* From a coroutine: waits for the answer (aborts do not shorten it: the answer comes within bounded time). Returns 0 or -errno with the
 * sentence; `rep` and `fd` may be NULL (a descriptor is closed then). EEXIST of a repeated creation is success. */
int noded_call(struct space *s, const struct noded_request *req, struct noded_reply *rep, int *fd, struct err *e);

#endif
