// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of snapshots/NAME/SNAP/files: a 9P session with a space-browse for each snapshot that is being read.
#ifndef SPACE_HOSTD_BROWSER_H
#define SPACE_HOSTD_BROWSER_H

#include "9p/client.h"
#include "hostd/object.h"

struct browser;

/* Ended so long after the last use, unless files are open. */
#define BROWSER_IDLE_SEC 30
/* One that answers nothing for so long while something is asked of it is ended. */
#define BROWSER_MUTE_SEC 30
/* At most so many at once; the one not used for longest goes for another. space-browsed allows a few more. */
#define BROWSERS_MAX 60u

/* The session of a ready snapshot, if there is one that is ready. */
bool browser_ready(const struct snapshot *sn);
/* Of a ready one: its client, the fid of its root, and a number that no other session of this run has. Counts as a use. */
struct p9_client *browser_client(struct browser *b);
uint32_t browser_root(const struct browser *b);
uint64_t browser_serial(const struct browser *b);

/*
 * Starts the session of a ready snapshot, or joins in waiting for it. `w` is done, perhaps inside, with 0 when it is ready (it may be gone
 * again by then: ask), -EIO when the image cannot be read, -EAGAIN when too many are in use, -ENOTCONN without space-noded.
 */
void browser_start(struct snapshot *sn, struct waiter *w);

/* A file below it was opened (1) or closed (-1): while any are open it stays. */
void browser_hold(struct browser *b, int change);

/* Ends it: calls in flight fail with -ECONNRESET, waiters with -EIO. NULL is fine. */
void browser_close(struct browser *b);

#endif
