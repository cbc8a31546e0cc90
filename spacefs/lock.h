// SPDX-License-Identifier: Apache-2.0
// POSIX and flock locks on the guest's files: each owner's locks live on an opened fid of their own.
#ifndef SPACEFS_LOCK_H
#define SPACEFS_LOCK_H

#include "spacefs/handle.h"

#include <stdint.h>

/* close(2) by `owner`: all of its POSIX locks on the file go, whichever descriptor they were taken with. Never waits. */
void lock_release_owner(struct fs *fs, struct node *n, uint64_t owner);

/* The handle goes: so does its flock. */
void lock_release_handle(struct fs *fs, struct handle *h);

/* -EIO when `owner`, or the handle, had a lock that a lost connection took away; else 0. */
int lock_check(struct fs *fs, struct handle *h, uint64_t owner);

#endif
