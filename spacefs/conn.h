// SPDX-License-Identifier: Apache-2.0
// The connection to space-hostd: kept up for ever, with short backoff.
#ifndef SPACEFS_CONN_H
#define SPACEFS_CONN_H

#include "9p/client.h"

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct fs;
struct task;

/* How long a request waits for space-hostd in all, in milliseconds: together with the work around it that stays below the 5 s that
 * a caller may ever wait for a dead daemon. */
#define CONN_WAIT_MSEC 4500u

/*
 * Starts connecting to the socket at `path` and never gives up. `changed` (may be NULL) is called with fs after each change of
 * conn_is_up. Aborts when out of memory: this is the program's start.
 */
struct conn *conn_create(struct fs *fs, const char *path, void (*changed)(struct fs *fs, bool up));

/* Drops the connection; calls in flight end as lost. */
void conn_destroy(struct conn *c);

/* True between a finished version exchange and the loss of the connection. */
bool conn_is_up(const struct conn *c);

/* The 9P client; its calls are for task.c, its fid numbers for everyone. */
struct p9_client *conn_client(struct conn *c);

/* Generation of fids: p9_client_generation. */
uint32_t conn_generation(const struct conn *c);

/*
 * Waits until the connection is up, at most until the task's deadline for waiting (set here at its first wait to
 * CONN_WAIT_MSEC from now). 0, -EIO when space-hostd did not come, -EINTR. One system call can be several requests, so a thread
 * that has just waited in vain is not made to wait again at once.
 */
int conn_wait(struct conn *c, struct task *t);

#endif
