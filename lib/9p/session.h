// SPDX-License-Identifier: Apache-2.0
// Inside of a 9P server session, shared by server.c (bytes, limits, life), request.c (requests) and
// fids.c (fids). Private.
#ifndef SPACE_9P_SESSION_H
#define SPACE_9P_SESSION_H

#include "9p/framer.h"
#include "9p/link.h"
#include "9p/server.h"
#include "base/hmap.h"

struct request;

struct fid {
    struct p9_fid pub; /* first: a struct p9_fid of ours is a struct fid */
    struct hmap_node node;
    bool listed; /* in the table, which holds one reference */
    uint32_t refs;
    struct request *gate;   /* the attach, walk, open or clunk in flight that later requests wait for */
    struct p9_link waiting; /* struct request.wait, in order of arrival */
};

struct request {
    struct p9_request pub; /* first */
    struct p9_msg msg;
    struct hmap_node node; /* in the tag table, unless orphan */
    struct p9_link all;    /* in server.active or server.orphans */
    struct p9_link wait;   /* in fid.waiting, server.ready, or the `flushes` of what this Tflush flushes */
    struct p9_link flushes;
    struct fid *gated;     /* whose gate this is */
    struct p9_frame frame; /* the message's bytes: owned, or in `copy` */
    bool started;          /* its handler was called */
    bool orphan;           /* the session forgot it: no reply, no effect */
    uint8_t copy[];
};

struct p9_server {
    const struct p9_backend *backend;
    struct p9_transport transport;
    void (*send_part)(void *, void *, const void *, size_t); /* of the transport's, or NULL */
    struct p9_server_config config;
    void *user;
    void (*resume)(void *);
    void *resume_user;

    uint32_t msize; /* negotiated, 0 before Tversion */
    struct p9_framer framer;
    uint8_t *stash; /* input that came while the session was at a limit */
    size_t stash_len, stash_cap;

    struct hmap fids, tags;
    uint64_t hash_seed;    /* odd; a client cannot aim at one bucket without it */
    struct p9_link active; /* requests whose reply goes out */
    struct p9_link orphans;
    struct p9_link ready; /* waited for a gate that is open now */
    uint32_t requests;    /* active and orphans */
    size_t held;          /* bytes of their messages */
    size_t output;        /* bytes sent and not yet reported by p9_server_sent */

    int error;      /* negative errno: the session is dead */
    bool destroyed; /* lives on only for its last requests */
    unsigned depth; /* calls of ours on the stack: > 0 means handlers may be running */
};

/* fids.c. Numbers are the client's. */
struct fid *p9_fids_find(const struct p9_server *s, uint32_t id);
/* A new fid in the table, not referenced otherwise. NULL when out of memory. */
struct fid *p9_fids_add(struct p9_server *s, uint32_t id);
/* Takes it out of the table; its memory goes with the last reference. */
void p9_fids_drop(struct p9_server *s, struct fid *f);
void p9_fids_drop_all(struct p9_server *s);
void p9_fids_ref(struct fid *f);
void p9_fids_unref(struct p9_server *s, struct fid *f);

/* bind.c */
enum { P9_BIND_WAITS = 1 };
/*
 * Finds or reserves the fids that the message names, and checks new file names. 0: all bound, the
 * gate set. P9_BIND_WAITS: on the waiting list of a fid, to be tried again. Negative errno:
 * refused; what was reserved goes with the reply.
 */
int p9_bind_fids(struct request *r);
/* What the reply does to the fid that the request installs, opens or clunks. */
void p9_bind_apply(struct request *r, const struct p9_msg *reply);
/* Opens the gate and lets go of all fids; what waited is ready then. */
void p9_bind_release(struct request *r);
/* Of a request that never started: takes back the fid that it reserved. Release follows. */
void p9_bind_abandon(struct request *r);

/* request.c */
/* Takes a whole message; the frame's buffer passes. Handlers run inside. 0 or a negative errno:
 * session dead. */
int p9_request_take(struct p9_server *s, struct p9_frame *frame);
/* Runs what waited for gates that are open now. */
void p9_request_run_ready(struct p9_server *s);
/* Forgets and cancels everything in flight. Handlers' cancel runs inside. */
void p9_request_orphan_all(struct p9_server *s);

/* server.c */
/*
 * Encodes and sends; `m` was checked to fit. With `data_owner`, `m` is an Rread whose data lies in
 * that malloc'ed buffer, which passes, behind at least P9_IOHDR bytes that the header may
 * overwrite.
 */
void p9_server_send(struct p9_server *s, const struct p9_msg *m, void *data_owner);
/* Answers Tversion, which starts the session anew. */
void p9_server_version(struct p9_server *s, const struct p9_msg *t);
/* Around everything that may run handlers from outside. leave may free the session. */
void p9_server_enter(struct p9_server *s);
void p9_server_leave(struct p9_server *s);
/* The outermost leave of a reply: runs what waited, tells the owner when input is wanted again. */
void p9_server_leave_reply(struct p9_server *s, bool wanted);

#endif
