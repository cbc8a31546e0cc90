// SPDX-License-Identifier: Apache-2.0
// One client of space-volumed: a SOCK_SEQPACKET connection on the loop, with bounds in both directions, and descriptors that come with requests.
#ifndef SPACE_VOLUMED_CONN_H
#define SPACE_VOLUMED_CONN_H

#include "ipc/volumed.h"

#include <stdbool.h>
#include <uv.h>

#define CONN_FDS          2u
#define CONN_REQUESTS_MAX 256u /* that one client may have in progress; more are left in the socket */

struct conn;

struct conn_ops {
    /* A request of the right size, with its descriptors, which are the callee's. Answer it, now or later, with conn_reply. */
    void (*request)(void *user, struct conn *c, const struct volumed_request *q, int *fds, unsigned fd_count);
    /* The client is gone; no request follows. Last call. References stay valid, what is sent goes nowhere. */
    void (*closed)(void *user, struct conn *c);
};

/* Takes the descriptor. It lives until `closed`, or as long as conn_ref says. NULL: out of memory. */
struct conn *conn_open(uv_loop_t *loop, int fd, const struct conn_ops *ops, void *user);
void conn_ref(struct conn *c);
void conn_unref(struct conn *c);

/* Answers one request. Takes `fd` (-1: none). */
void conn_reply(struct conn *c, const struct volumed_reply *rep, int fd);
/* Says how far a request is; dropped when the client does not read. */
void conn_progress(struct conn *c, const struct volumed_reply *ev);
/* Hangs up; `closed` is called. A closed one is fine. */
void conn_close(struct conn *c);

bool conn_greeted(const struct conn *c);
void conn_set_greeted(struct conn *c);

#endif
