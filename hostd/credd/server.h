// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of space-credd: lib/ipc/credd.h.
#ifndef SPACE_CREDD_SERVER_H
#define SPACE_CREDD_SERVER_H

#include "hostd/credd/credd.h"

struct master_keys;

/* Serves the listening socket `fd` (its own from now on). `keys` outlive it. */
int server_create(struct credd *c, const struct master_keys *keys, int fd, struct server **out, struct err *e);

#endif
