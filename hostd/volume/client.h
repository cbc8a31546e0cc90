// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of lib/ipc/volumed.h: calls with callbacks or as coroutine steps, over a connection that comes back by itself.
#ifndef SPACE_HOSTD_VOLUME_CLIENT_H
#define SPACE_HOSTD_VOLUME_CLIENT_H

#include "base/err.h"
#include "ipc/volumed.h"
#include "loop/co.h"

#include <stdbool.h>
#include <uv.h>

struct volumed;      /* the connection */
struct volumed_call; /* a request in progress */

struct volumed_hooks {
    /* The answer, exactly once, from the loop. rep->error says how it went; `fd` is the descriptor that came along or -1, and the callee's to close. */
    void (*done)(void *user, const struct volumed_reply *rep, int fd);
    void (*progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
    void *user;
};

/* Connects to RUN/volumed.sock, now and whenever it is lost. */
int volumed_open(uv_loop_t *loop, const char *run, struct volumed **out, struct err *e);
/* Calls in progress are not answered any more. Not from inside `done` or `progress`, nor from what they wake. */
void volumed_close(struct volumed *v);

/*
 * Sends a request (version and tag are filled in) with `fd_count` descriptors, which are duplicated: the caller's stay its own. When space-volumed goes away,
 * requests are sent again once it is back: all of them may be repeated. After 5 s without it the answer is ENOTCONN.
 */
struct volumed_call *volumed_send(struct volumed *v, const struct volumed_request *req, const int *fds, unsigned fd_count,
                                  const struct volumed_hooks *hooks);
/* The answer still comes: ECANCELED, or what it was already. */
void volumed_cancel(struct volumed *v, struct volumed_call *c);
/* For tag2 of VOLUMED_FETCH. */
uint64_t volumed_tag(const struct volumed_call *c);

/* From a coroutine: waits for the answer; an abort of the coroutine cancels the request and waits for its end. Returns 0 or -errno with the sentence. `rep`, `fd` and `progress` may
 * be NULL (a descriptor is closed then); `progress` is called with `user`. */
int volumed_run(struct co_sched *s, struct volumed *v, const struct volumed_request *req, const int *fds, unsigned fd_count,
                void (*progress)(void *user, uint64_t done, uint64_t total), void *user, struct volumed_reply *rep, int *fd, struct err *e);

/* False while it is away. */
bool volumed_up(const struct volumed *v);

#endif
