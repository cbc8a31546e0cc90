// SPDX-License-Identifier: Apache-2.0
// The process that serves the root file system on space.1.
#ifndef SPACE_GUEST_FILES_H
#define SPACE_GUEST_FILES_H

#include "guest/root.h"

#include <sys/types.h>

/* Forks it. Its pid, or -errno. */
pid_t files_start(const struct root *root);

#endif
