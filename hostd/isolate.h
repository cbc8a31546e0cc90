// SPDX-License-Identifier: Apache-2.0
// Confines space-hostd before its loop starts.
#ifndef SPACE_HOSTD_ISOLATE_H
#define SPACE_HOSTD_ISOLATE_H

#include "base/config.h"

/*
 * Refuses to be root. Then, for good: no core dumps, no tracing by its own uid, no new privileges; files (Landlock): writes only below `state` and `run` of the
 * configuration, reads only there, in /etc, /usr, /proc and the folder of `egress`; system calls (seccomp): nothing is executed, traced, mounted or loaded into the kernel, no sockets but
 * unix ones. Before any thread is started. On a kernel without Landlock a warning says so. 0 or -errno with the sentence.
 */
int isolate(const struct config *c, struct err *e);

#endif
