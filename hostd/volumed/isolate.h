// SPDX-License-Identifier: Apache-2.0
// Confinement of space-volumed.
#ifndef SPACE_VOLUMED_ISOLATE_H
#define SPACE_VOLUMED_ISOLATE_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>

/* From the user it runs as: only the store's directory, the cache, key tokens; the network if the store is one. Before any thread is started. */
int volumed_isolate(const struct config *c, bool online, struct err *e);

#endif
