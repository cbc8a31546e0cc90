// SPDX-License-Identifier: Apache-2.0
// Giving up root, and what else is not needed.
#ifndef SPACEFS_ISOLATE_H
#define SPACEFS_ISOLATE_H

#include "base/err.h"

/* Becomes user:group for good: no supplementary groups, no capabilities. 0 or -errno with a sentence. */
int isolate_become(const char *user, const char *group, struct err *e);

/*
 * After everything is opened, before the loop: no core dumps; of files only /proc can be read (who is behind a request), nothing written, and so the mounted
 * tree is out of reach as well; only the system calls that the loop needs, no sockets but unix ones. 0 or -errno with a sentence.
 */
int isolate_confine(struct err *e);

#endif
