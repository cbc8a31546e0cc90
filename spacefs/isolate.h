// SPDX-License-Identifier: Apache-2.0
// Giving up root.
#ifndef SPACEFS_ISOLATE_H
#define SPACEFS_ISOLATE_H

#include "base/err.h"

/* Becomes user:group for good: no supplementary groups, no capabilities, nothing gained by execve. 0 or -errno with a sentence. */
int isolate_become(const char *user, const char *group, struct err *e);

#endif
