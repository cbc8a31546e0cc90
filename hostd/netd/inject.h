// SPDX-License-Identifier: Apache-2.0
// Connections to hosts that have a credential: asked for at space-credd, handed to HAProxy, and
// taken back from it on their way out (ipc/inject.h, docs/injection.md).
#ifndef SPACE_NETD_INJECT_H
#define SPACE_NETD_INJECT_H

#include "base/err.h"
#include "ipc/inject.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct netd;
struct relay;
struct injection;

/* Of one connection, until inject_end: its own part of the answer, told once, from the loop. */
typedef void inject_done(struct relay *r, enum inject_verdict verdict, const char *sentence);

/* As root, before isolate: binds RUN/inject/out, for the configuration's `inject_user`. Nothing
 * when the configuration says `inject = no`. */
int inject_open(struct netd *n, struct err *e);

/* Is there anything to ask at all? */
bool inject_is_on(const struct netd *n);

/* Asks about `name`; until the answer is there it is asked anew whenever space-credd comes back.
 * NULL: out of memory. */
struct injection *inject_ask(struct netd *n, struct relay *r, uint64_t sandbox, const char *name, uint16_t port, inject_done *done);
/* Forgets it; no callback follows. NULL is fine. */
void inject_end(struct injection *i);

/* After INJECT_SLOT: a socket that is connected to HAProxy, or -errno. */
int inject_connect(const struct injection *i);
/* What goes first on it; returns the bytes. `out` has PROXY_MAX of them. */
size_t inject_header(const struct injection *i, uint32_t address, uint8_t *out);

/* Once a second. */
void inject_tick(struct netd *n);

#endif
