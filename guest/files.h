// SPDX-License-Identifier: Apache-2.0
// The process that serves the root file system on space.1.
#ifndef SPACE_GUEST_FILES_H
#define SPACE_GUEST_FILES_H

#include "guest/root.h"

#include <stdint.h>
#include <sys/types.h>

/* What the process tells PID 1, in memory that both have. */
struct files_shared {
    _Atomic uint32_t handles; /* opened fids */
};

/* NULL when out of memory. For good. */
struct files_shared *files_share(void);

/* Forks it. Its pid, or -errno. */
pid_t files_start(const struct root *root, struct files_shared *shared);

#endif
