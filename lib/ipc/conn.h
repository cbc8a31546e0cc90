// SPDX-License-Identifier: Apache-2.0
// One client of space-noded: a SOCK_SEQPACKET connection on the loop, with bounds in both
// directions.
#ifndef SPACE_NODED_CONN_H
#define SPACE_NODED_CONN_H

#include "ipc/noded.h"

#include <stdbool.h>
#include <uv.h>

/* Requests that one client may have in progress; more are left in the socket. */
#define CONN_REQUESTS_MAX 256u
/* Replies and events that a client may leave unread beyond what the socket holds; then it is hung
 * up on. */
#define CONN_OUTPUT_MAX 1024u

struct conn;

struct conn_ops {
    /* A request of the right size. Answer it, now or later, with conn_reply. */
    void (*request)(void *user, struct conn *c, const struct noded_request *q);
    /* The client is gone; no request follows. References stay valid, what is sent goes nowhere.
     * Last call. */
    void (*closed)(void *user, struct conn *c);
};

/* Takes the descriptor (closed even on failure). The caller gets no reference: it lives until
 * `closed`, or as long as conn_ref says. */
struct conn *conn_open(uv_loop_t *loop, int fd, const struct conn_ops *ops, void *user);
void conn_ref(struct conn *c);
void conn_unref(struct conn *c);

/* Answers one request. Takes `fd` (-1: none). */
void conn_reply(struct conn *c, const struct noded_reply *rep, int fd);
/* Tells something unasked. Nothing before the client said hello. */
void conn_event(struct conn *c, const struct noded_reply *ev);
/* Hangs up; `closed` is called. A closed one is fine. */
void conn_close(struct conn *c);

/* The client said hello; kept here for the server. */
bool conn_greeted(const struct conn *c);
void conn_set_greeted(struct conn *c);

#endif
