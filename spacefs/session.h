// SPDX-License-Identifier: Apache-2.0
// The FUSE session: mounting, and feeding the kernel's requests to the operations.
#ifndef SPACEFS_SESSION_H
#define SPACEFS_SESSION_H

#include "base/err.h"
#include "spacefs/fs.h"

/*
 * Mounts at fs->config.mount and answers FUSE's INIT, for which the caller must be root: only then does the kernel take our limit on
 * background requests. A dead mount left there by an earlier spacefs is detached first; a live one is -EBUSY. 0 or -errno with a
 * sentence.
 */
int session_open(struct fs *fs, struct err *e);

/* Detaches what session_open mounted, while still root. */
void session_undo(struct fs *fs);

/* Serves from fs->loop; `ended` is called when the kernel is done with us (unmounted). */
int session_start(struct fs *fs, void (*ended)(struct fs *fs), struct err *e);

/* Stops serving and closes /dev/fuse: whoever waits gets ENOTCONN. The mount itself stays for root to detach: we may no longer do that. */
void session_close(struct fs *fs);

#endif
