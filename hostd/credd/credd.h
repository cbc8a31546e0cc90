// SPDX-License-Identifier: Apache-2.0
// space-credd: keeps secrets, and gives each to whom it is meant for. What its parts share.
//
//   server.c    space-hostd's side: credentials come, change, go; sandboxes are told
//   rules.c     pure: hosts, methods, times, rates as text
//   store.c     credentials on the disk, encrypted; in memory, encrypted too
//   find.c      which credential a sandbox uses for a host, and whether it may now
//   backend.h   where values lie: backend_local.c, backend_vault.c
//   audit.c     the log of every decision, a hash chain; audit_tally.c: of which a tenant fills no more than so much
//   haproxy.h   injection: HAProxy's certificates, its questions, and space-netd's
//
// Theory of operation. One thread, one loop. A credential belongs to a scope; a sandbox has a chain of
// scopes (its own, its labels of the administrator's, its tenant, the platform), and the closest
// scope that has a credential for a host decides: when that one is expired, has no value or was
// used too often, the answer is no, and no wider scope is asked. Values are plain only in one locked
// buffer, from cred_inject's or the login's decryption until its callback returns.
// Every decision is in the audit log before it is told; what cannot be logged is refused.
#ifndef SPACE_CREDD_CREDD_H
#define SPACE_CREDD_CREDD_H

#include "base/config.h"
#include "base/err.h"
#include "ipc/credd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct store;
struct audit;
struct audit_tally;
struct server;
struct finder;
struct haproxy;

struct credd {
    uv_loop_t *loop;
    struct config config;
    uid_t user; /* of space-hostd, who may be our client */
    struct store *store;
    struct audit *audit;
    struct audit_tally *tally;
    struct finder *finder;
    struct server *server;
    struct haproxy *haproxy; /* haproxy.h */
};

/* ---- find.c: for whoever injects ---- */

enum cred_verdict {
    CRED_FOUND,
    CRED_NONE, /* no scope of the sandbox has one for this host: nothing is to be injected */
    /* There is one, but it must not be used: the request is refused. */
    CRED_NO_VALUE, /* none was written yet, or it was revoked */
    CRED_EXPIRED,
    CRED_RATE,       /* used too often */
    CRED_NO_SANDBOX, /* space-hostd told of no such sandbox (yet), or it may not use any now */
    CRED_AWAY,       /* the back end does not answer, or the value cannot be decrypted */
    CRED_NO_AUDIT,   /* the use cannot be logged */
};

enum cred_place { CRED_HEADER, CRED_QUERY };

struct cred_answer {
    enum cred_verdict verdict;
    const char *reason; /* a sentence, without a secret; "" when found */
    /* CRED_FOUND: borrowed until the callback returns; copy nothing that you do not wipe. */
    enum cred_place place;
    const char *name;  /* of the header or query parameter; the guest's own of that name goes */
    const char *value; /* `len` bytes, whole (`Bearer ...`); no CR, LF or NUL */
    size_t len;
    uint64_t credential; /* id; also when it was refused; 0: none */
};

struct cred_query {
    uint64_t sandbox; /* id */
    const char *host; /* lower case, no final dot */
    uint16_t port;
    const char *what; /* for the log: the request's method, say; no path, no query. May be NULL */
};

/* Is there a credential to be injected for this host, usable or not? Hosts without are never decrypted. */
bool cred_wants(const struct credd *c, uint64_t sandbox, const char *host, uint16_t port);

/*
 * The credential for one request: found, the use is counted, logged and limited. `done` is called exactly once, mostly before this returns, else from the
 * loop (a back end that is far). It cannot be cancelled: `user` lives until then. One request of the guest is one call.
 */
void cred_inject(struct credd *c, const struct cred_query *q, void (*done)(void *user, const struct cred_answer *a), void *user);

/* Calls back for each HOST[:PORT] for which cred_wants says true; duplicates are possible. */
void cred_hosts(const struct credd *c, uint64_t sandbox, void (*each)(void *user, const char *host), void *user);

/* ---- audit.c: anything else that is decided on secrets (certificates made, upstreams refused, ...) ---- */

/*
 * Appends a line. `kind` is a word; `credential` and `sandbox` may be 0; `text` is quoted as it must be, and may come from a guest. 0, or -errno
 * when the line could not be written: then do not do what it tells of.
 */
int audit_note(struct audit *a, const char *kind, uint64_t credential, uint64_t sandbox, uint32_t uid, uint64_t count, const char *text);

#endif
