// SPDX-License-Identifier: Apache-2.0
// Giving up what is not needed (root: lib/isolate).
#ifndef SPACEFS_ISOLATE_H
#define SPACEFS_ISOLATE_H

#include "base/config.h"
#include "base/err.h"

/*
 * After everything is opened, before the loop: no core dumps; of files only /proc can be read (who is behind a request) and what space-credd shows, nothing written, and so the mounted
 * tree is out of reach as well; only the system calls that the loop needs, no sockets but unix ones. 0 or -errno with a sentence.
 */
int isolate_confine(const struct config *c, struct err *e);

#endif
