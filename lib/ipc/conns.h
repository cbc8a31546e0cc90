// SPDX-License-Identifier: Apache-2.0
// All clients of a daemon that answers packets (conn.h): processes of one user, and root's.
#ifndef SPACE_IPC_CONNS_H
#define SPACE_IPC_CONNS_H

#include "ipc/conn.h"

#include <sys/types.h>

struct conns;

/* Whoever connects to the listening socket (taken, unless it fails) and is of `user` or root becomes a connection with these `ops` (kept, not copied) and that `data`; at most
 * `max` at a time, more are hung up on. `closed` may be NULL there. NULL: out of memory. */
struct conns *conns_open(uv_loop_t *loop, int fd, uid_t user, unsigned max, const struct conn_ops *ops, void *data);
/* Hangs up on all, and nobody comes any more. Frees. */
void conns_close(struct conns *s);
/* conn_event for each. */
void conns_event(struct conns *s, const void *event);

#endif
