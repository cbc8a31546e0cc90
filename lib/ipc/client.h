// SPDX-License-Identifier: Apache-2.0
// A client of a daemon that answers packets: a connection that comes back by itself (the daemon's side: conn.h). What packets mean, and what becomes of a request
// whose daemon goes away, is the caller's.
#ifndef SPACE_IPC_CLIENT_H
#define SPACE_IPC_CLIENT_H

#include "ipc/packet.h"

#include <stdbool.h>
#include <uv.h>

struct client;

/* All are called from the loop. */
struct client_ops {
    size_t packet_max; /* bytes; a longer packet ends the connection */
    bool takes_fds;    /* else the kernel drops what comes with a packet */
    /* Connected, for the first time or anew: say hello. */
    void (*up)(void *user);
    /* One packet; its bytes are followed by a NUL and stay until the next one. `fd` (-1: none) is the callee's. */
    void (*packet)(void *user, void *bytes, size_t size, int fd);
    /* All packets that were there are read, or there is room for what could not be sent. NULL: it does not matter. */
    void (*ready)(void *user);
    /* The connection is lost; it is tried to make another every `retry_msec`. */
    void (*down)(void *user);
    unsigned retry_msec;
};

/* To the socket at `path`, soon. `ops` and `user` must stay. NULL: out of memory. */
struct client *client_open(uv_loop_t *loop, const char *path, const struct client_ops *ops, void *user);
/* Without `down`. Not from inside a callback of it. Frees. */
void client_close(struct client *c);

bool client_is_up(const struct client *c);
/* As packet_send: 1 sent; 0 no room, and `ready` follows; -errno, and so does `down`. -ENOTCONN when it is not connected. */
int client_send(struct client *c, const struct iovec *parts, unsigned part_count, const int *fds, unsigned fd_count);
/* It said what it should not have said: `down`, and another one. */
void client_hang_up(struct client *c);

#endif
