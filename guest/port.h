// SPDX-License-Identifier: Apache-2.0
// A virtio-serial port that carries 9P sessions, one after the other (docs/protocol/guest.md,
// "Preamble").
#ifndef SPACE_GUEST_PORT_H
#define SPACE_GUEST_PORT_H

#include "9p/server.h"
#include "guest/poll.h"

#define PORT_PREAMBLE_LEN 38 /* "SPACE1 ", 30 hex digits, newline */

struct port_buffer;

struct port {
    struct poll_loop *loop;
    struct poll_watch watch;
    const struct p9_backend *backend;
    struct p9_server_config config;
    void *user;
    struct p9_server *server; /* NULL: looking for a preamble */
    size_t matched;           /* bytes of a preamble seen */
    char preamble[PORT_PREAMBLE_LEN];
    char tail[PORT_PREAMBLE_LEN]; /* the last bytes of input, to find a preamble in after the fact */
    uint32_t have, left;          /* of the current message: bytes of its size field, bytes to come */
    uint8_t size_field[4];
    struct poll_timer stale;   /* a message stopped in its middle, with what looks like a preamble */
    struct poll_timer hang_up; /* to see whether it lasts */
    bool hung_up;              /* nobody was connected for a moment since the session began */
    struct poll_timer more;    /* input was left for the next turn */
    struct port_buffer *out, **out_end;
    bool out_blocked;
    bool connected; /* somebody on the host was seen since the last hang-up */
    char *in;
};

/*
 * Finds the port of that name, opens it and starts serving: `backend`, `config` and `user` as
 * p9_server_create wants them. Returns 0, -ENOENT when there is no such port (yet), or another
 * -errno.
 */
int port_open(struct port *p, struct poll_loop *l, const char *name, const struct p9_backend *backend, const struct p9_server_config *config,
              void *user);

#endif
