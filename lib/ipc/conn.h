// SPDX-License-Identifier: Apache-2.0
// One client of a daemon that answers packets (ipc/noded.h, ipc/volumed.h): a SOCK_SEQPACKET
// connection on the loop, with bounds in both directions.
#ifndef SPACE_IPC_CONN_H
#define SPACE_IPC_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

/* Requests that one client may have in progress; more are left in the socket. */
#define CONN_REQUESTS_MAX 256u
/* Descriptors that may come with a request. */
#define CONN_FDS 2u
/* Bytes of a request. */
#define CONN_REQUEST_SIZE_MAX 1024u

struct conn;

struct conn_ops {
    size_t request_size, reply_size; /* of the protocol's structures */
    /* Packets that a client may leave unread beyond what the socket holds; then it is hung up on.
     */
    unsigned output_max;
    bool takes_fds; /* else the kernel drops what comes with a request */
    /* A request of the right size, with its descriptors, which are the callee's. Answer it, now or
     * later, with conn_reply. */
    void (*request)(void *user, struct conn *c, const void *request, int *fds, unsigned fd_count);
    /* The client is gone; no request follows. References stay valid, what is sent goes nowhere.
     * Last call. */
    void (*closed)(void *user, struct conn *c);
};

/* Takes the descriptor (closed even on failure, which is NULL). The caller gets no reference: it
 * lives until `closed`, or as long as conn_ref says. */
struct conn *conn_open(uv_loop_t *loop, int fd, const struct conn_ops *ops, void *user);
void conn_ref(struct conn *c);
void conn_unref(struct conn *c);

/* Answers one request. Takes `fd` (-1: none). */
void conn_reply(struct conn *c, const void *reply, int fd);
/* Tells something unasked. Nothing before the client said hello. */
void conn_event(struct conn *c, const void *event);
/* Tells how far a request is; dropped when the client does not read. */
void conn_progress(struct conn *c, const void *event);
/* Hangs up; `closed` is called. A closed one is fine. */
void conn_close(struct conn *c);

/* The client said hello; kept here for the server. */
bool conn_greeted(const struct conn *c);
void conn_set_greeted(struct conn *c);

#endif
