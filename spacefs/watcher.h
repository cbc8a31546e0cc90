// SPDX-License-Identifier: Apache-2.0
// Learning of changes to objects: one reader of `events` per uid, as long as anybody watches.
#ifndef SPACEFS_WATCHER_H
#define SPACEFS_WATCHER_H

#include "spacefs/fs.h"

#include <stdint.h>

struct task;
struct watch;

/*
 * Calls `changed` for every event of the object that `uid` may see, until watch_stop, from the loop; also once after each
 * reconnect, when events may have been missed. NULL when out of memory.
 */
struct watch *watch_start(struct fs *fs, uint32_t uid, uint64_t object_id, void (*changed)(void *user), void *user);

/* Waits until events are being read, so that nothing from now on is missed. 0, -EINTR, -EIO. */
int watch_wait(struct task *t, struct watch *w);

/* NULL is fine. */
void watch_stop(struct watch *w);

#endif
