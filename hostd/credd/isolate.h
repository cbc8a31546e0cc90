// SPDX-License-Identifier: Apache-2.0
// Confinement of space-credd.
#ifndef SPACE_CREDD_ISOLATE_H
#define SPACE_CREDD_ISOLATE_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>

/* Still as root: so much memory can be locked as values need. */
int credd_allow_locking(struct err *e);
/* From the user it runs as: only its own folder and key tokens; the network if the back end is there. Before any thread is started. */
int credd_isolate(const struct config *c, bool online, struct err *e);

#endif
