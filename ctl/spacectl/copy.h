// SPDX-License-Identifier: Apache-2.0
// Copying file contents and directory trees by descriptors, where either side may be a hostile
// sandbox.
#ifndef SPACE_CTL_COPY_H
#define SPACE_CTL_COPY_H

#include "base/err.h"

#include <stdint.h>

#define COPY_DEPTH_MAX 256 /* levels of directories */

/* What a copy of a tree left out or could not do: each was named on standard error. */
struct copy_report {
    uint64_t skipped; /* devices, sockets, FIFOs */
    uint64_t failed;
};

/* Copies a regular file's contents; holes stay holes. `out` is empty or ends up at least as long as
 * `in`. 0 or -errno. */
int copy_data(int in, int out, const char *name, struct err *e);

/*
 * Copies the directory `from` into the directory `to` (both open descriptors, borrowed): files,
 * directories and symbolic links, permission bits within the umask; owners, times and set-uid bits
 * are not carried. Nothing in either tree is followed, so a name that changes into a link under our
 * hands leads nowhere. Goes on behind single failures. `name` is for messages. 0, or -errno when it
 * had to end.
 */
int copy_tree(int from, int to, const char *name, struct copy_report *report, struct err *e);

#endif
