// SPDX-License-Identifier: Apache-2.0
// Freezes and thaws the root file system, and thaws it by itself when nobody does.
#ifndef SPACE_GUEST_FREEZER_H
#define SPACE_GUEST_FREEZER_H

#include "9p/link.h"
#include "guest/poll.h"
#include "guest/root.h"

#include <stdbool.h>

#define FREEZER_MSEC_MAX 30000

typedef void freezer_done(void *user, int rc);

struct freezer {
    struct poll_loop *loop;
    const struct root *root; /* borrowed */
    pid_t pid;
    struct poll_watch watch; /* our end of the socket to the process */
    struct p9_link calls;    /* struct freezer_call, answered in order */
    bool used;               /* a freeze was asked for, and no thaw since */
};

/* Starts the process that does it. 0 or -errno. Also called again when it died; waiting calls then
 * fail with -EIO. */
int freezer_start(struct freezer *f, struct poll_loop *l, const struct root *root);
void freezer_restart(struct freezer *f);

/* For good: its process thaws what is frozen and ends. */
void freezer_stop(struct freezer *f);

/* `msec` 1 to FREEZER_MSEC_MAX. `done` gets 0, -EBUSY (frozen already) or another -errno. 0 or
 * -ENOMEM, -EPIPE. */
int freezer_freeze(struct freezer *f, unsigned msec, freezer_done *done, void *user);
/* `done` gets 0, or -EINVAL when it was not frozen any more. */
int freezer_thaw(struct freezer *f, freezer_done *done, void *user);
/* Whether the file system may be frozen by us: it was asked for, and not thawed since. */
bool freezer_used(const struct freezer *f);

#endif
