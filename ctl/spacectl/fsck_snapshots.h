// SPDX-License-Identifier: Apache-2.0
// What fsck knows by the mount: snapshots, and which artifacts of the store each of them needs.
#ifndef SPACECTL_FSCK_SNAPSHOTS_H
#define SPACECTL_FSCK_SNAPSHOTS_H

#include "base/config.h"
#include "base/err.h"

#include <stdio.h>

/* Writes a line "tenant TENANT: artifact ID is missing: PATH needs it" for each artifact that a snapshot needs and the store has not; `tenant` (may be NULL): only
 * of that one. `volumed` is a connection. Returns how many, or -errno. Without a mount there are none. */
int snapshots_missing(int volumed, const struct config *c, const char *tenant, FILE *out, struct err *e);

/* Asks space-hostd to mend each snapshot that has an artifact of which `said` says "artifact ID is ". */
int snapshots_repair(const struct config *c, const char *said, struct err *e);

#endif
