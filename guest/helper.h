// SPDX-License-Identifier: Apache-2.0
// Work that may block on the guest's file system, done in a child process so that PID 1 never does.
#ifndef SPACE_GUEST_HELPER_H
#define SPACE_GUEST_HELPER_H

#include "guest/poll.h"

/* Runs in the child; 0 or a negative errno. */
typedef int helper_work(void *arg);
/* In the parent: 0, the work's negative errno, or -EIO when the child died. */
typedef void helper_done(void *user, int rc);

/*
 * Forks and runs work(arg) with all of this process's memory and descriptors as they are now.
 * `done` is called once, later. 0, or -errno and no call. The child is reaped with all others.
 */
int helper_start(struct poll_loop *l, helper_work *work, void *arg, helper_done *done, void *user);

#endif
