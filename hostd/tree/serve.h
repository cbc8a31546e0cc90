// SPDX-License-Identifier: Apache-2.0
// The listener: a 9P session for each connection to RUN/hostd.sock.
#ifndef SPACE_HOSTD_SERVE_H
#define SPACE_HOSTD_SERVE_H

#include "hostd/space.h"

struct listener;

/* Binds RUN/hostd.sock (mode 0666: peers are identified, not trusted) and serves. */
int serve_open(struct space *s, struct listener **out, struct err *e);
void serve_close(struct listener *l);

#endif
