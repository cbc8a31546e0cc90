// SPDX-License-Identifier: Apache-2.0
// space-credd's side of injection (docs/injection.md): HAProxy's certificates, what space-netd asks, and what HAProxy asks.
//
//   haproxy.c        the runtime API: slots of tenants, certificates in them
//   haproxy_ask.c    space-netd: which connections are to be decrypted; remembers them
//   haproxy_spoe.c   HAProxy: the secret of each request, for connections that space-netd handed it only
//   haproxy_log.c    what HAProxy logs
//   haproxy_conf.c   its configuration
//   spoe.c ca.c      pure: frames, certificates
#ifndef SPACE_CREDD_HAPROXY_H
#define SPACE_CREDD_HAPROXY_H

#include "base/config.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct credd;
struct haproxy;
struct grant;

/* As root, before anything is confined: makes RUN/inject, binds `ask` for space-netd's user, `spoe` and `log` for HAProxy's. */
int haproxy_bind(struct credd *c, struct haproxy **out, struct err *e);
/* Confined, once the keys are known (`secret` has CA_SECRET_BYTES, and stays): serves. */
int haproxy_serve(struct haproxy *h, const uint8_t *secret, struct err *e);

/* PEM certificates that guests of `tenant` should trust: malloc'ed. NULL: they cannot be made. */
char *haproxy_trust(struct haproxy *h, uint32_t tenant);

/* ---- inside ---- */

/* A connection that space-netd handed to HAProxy: what HAProxy may ask secrets for. */
struct grant {
    uint64_t sandbox;
    uint16_t port;
    const char *name;
};

/* What an id in HAProxy's words stands for; false: nothing that is there. */
bool haproxy_grant(struct haproxy *h, const char *id, size_t len, struct grant *out);

/*
 * A certificate for `name` of `tenant` is in a slot when `done` is told 0 and which; else -errno and a sentence. Called once, perhaps before this returns.
 */
typedef void haproxy_ready(void *user, int rc, uint32_t slot, const char *sentence);
void haproxy_prepare(struct haproxy *h, uint32_t tenant, const char *name, haproxy_ready *done, void *user);

struct haproxy_asks;
struct haproxy_spoe;
struct haproxy_asks *haproxy_asks_open(struct credd *c, struct haproxy *h, int fd);
bool haproxy_asks_find(const struct haproxy_asks *a, uint64_t token, struct grant *out);
int haproxy_spoe_open(struct credd *c, struct haproxy *h, int fd);
int haproxy_log_open(struct credd *c, int fd);

/* haproxy_conf.c: writes HAProxy's files into `folder` and creates the empty lists below RUN/inject. As root. */
int haproxy_configure(const struct config *c, const char *folder, struct err *e);

#endif
