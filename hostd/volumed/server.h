// SPDX-License-Identifier: Apache-2.0
// The socket of space-volumed, and its operations as coroutines.
#ifndef SPACE_VOLUMED_SERVER_H
#define SPACE_VOLUMED_SERVER_H

#include "hostd/volumed/store/store.h"

#include <sys/types.h>

struct server;

/* Takes the listening socket. Only `user` and root are served. */
struct server *server_create(struct store *s, int fd, uid_t user, struct err *e);
/* Cancels everything; `stopped` is called from the loop when nothing runs any more. */
void server_stop(struct server *s, void (*stopped)(void *user), void *user);

#endif
