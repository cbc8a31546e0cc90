// SPDX-License-Identifier: Apache-2.0
// The socket of space-noded: who may connect, packets in and out, requests to the work queue,
// events to every client.
#ifndef SPACE_NODED_SERVER_H
#define SPACE_NODED_SERVER_H

#include "base/err.h"
#include "hostd/noded/node.h"
#include "ipc/noded.h"

#include <uv.h>

struct server;

/*
 * Binds `name` in the directory `dir_fd` (mode 0600, `user`'s) without listening yet; needs
 * CAP_CHOWN. `run` is the directory's path, for sun_path. `node` and `loop` must outlive it.
 */
int server_open(uv_loop_t *loop, struct node *node, int dir_fd, const char *run, uid_t user, struct server **out, struct err *e);

/* Starts to accept. A second call does nothing. */
int server_listen(struct server *s, struct err *e);

/* Hangs up on all clients and refuses new ones; `stopped` is called when no operation is in
 * progress any more. */
void server_stop(struct server *s, void (*stopped)(void *user), void *user);

/* Hooks for libvirt (vm.h): `server` is the user pointer. */
void server_vm_event(void *server, uint64_t id, enum noded_vm_event what);
void server_vm_connected(void *server);

#endif
