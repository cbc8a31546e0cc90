// SPDX-License-Identifier: Apache-2.0
// The tree on space.0: control and jobs (docs/protocol/guest.md).
#ifndef SPACE_GUEST_CONTROL_H
#define SPACE_GUEST_CONTROL_H

#include "9p/server.h"

/* The session's user pointer is the struct agent. */
const struct p9_backend *control_backend(void);

#endif
