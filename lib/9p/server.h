// SPDX-License-Identifier: Apache-2.0
// A 9P2000.L server session: framing, tags, fids, flush and bounds. Knows no transport and no event loop:
// bytes are fed in, whole replies are handed out. One thread per session. Used by space-hostd and space-daemon.
#ifndef SPACE_9P_SERVER_H
#define SPACE_9P_SERVER_H

#include "9p/codec.h"

#include <stdbool.h>

struct p9_server;
struct p9_request;

/* A fid of the client. `aux` is the backend's; the library never looks at it. */
struct p9_fid {
    uint32_t id;
    bool opened; /* set by the library when an Rlopen or Rlcreate for it was sent */
    void *aux;   /* set by attach, walk and xattrwalk handlers */
};

typedef void p9_handler(struct p9_request *r);

/*
 * The backend: one handler per T-message. Version and flush are the library's own; a NULL entry answers EOPNOTSUPP.
 * Every handler ends, now or later, in exactly one p9_reply or p9_fail on its request.
 *
 * What the library does around handlers:
 *  - attach: r->fid is a new fid; on Rattach it is installed, else dropped (fid_free is called when aux is set).
 *  - walk: r->fid is the source, r->newfid the target (== r->fid when the client names the same number; the handler
 *    must then change r->fid->aux only if all names were walked). On an Rwalk with qids.n == names.n it is installed,
 *    else dropped. An opened fid may be walked from (v9fs does that), but not moved: names and newfid == fid give EBADF. An
 *    Rwalk without qids for a Twalk with names becomes Rlerror ENOENT.
 *  - xattrwalk: r->newfid likewise. clunk, remove: the number is free again once the handler replied, whatever the
 *    result; fid_free follows when no request uses the fid any more. A NULL clunk handler means plain success.
 *    lopen and lcreate of an opened fid are refused with EBADF.
 *  - a request on a fid that an attach, walk or xattrwalk still in flight is about to install waits for it (clients pipeline
 *    walk, getattr, lopen); it gets EBADF when that one failed. lopen, lcreate, xattrcreate, clunk, remove and what follows on the
 *    same fid likewise: while one of them is in flight on a fid, later requests on that fid wait. Nothing else is ordered.
 *  - rename, link: r->fid is `fid`, r->dirfid is `dfid`. renameat: r->fid is olddirfid, r->dirfid is newdirfid.
 *    mkdir, mknod, symlink, lcreate, unlinkat: r->fid is the directory.
 *  - count of read and readdir is already cut to what fits msize - P9_IOHDR.
 *  - names in create-like, unlink and rename messages: "", ".", ".." or with '/' are refused with EINVAL,
 *    longer than P9_NAME_MAX with ENAMETOOLONG, before the handler. In walk the handler decides ("..", hidden names).
 */
struct p9_backend {
    p9_handler *on[P9_TYPE_MAX];
    /* Last reference to a fid with aux set is gone (clunk, remove, session end). */
    void (*fid_free)(void *user, struct p9_fid *fid);
};

struct p9_request {
    struct p9_server *server;
    const struct p9_msg *t; /* the decoded message; its buffer lives until the reply */
    struct p9_fid *fid, *newfid, *dirfid;
    void *user; /* the session's user pointer (p9_server_create) */
    /*
     * A handler that does not reply at once sets `cancel` and may use `aux`. When the client flushes the request or
     * the session ends, cancel(r) is called once; it must make the reply come soon (p9_fail(r, EINTR) directly, or
     * later when it really stopped). Legal at any moment before the reply. Work that was already done is answered
     * with its result.
     */
    void (*cancel)(struct p9_request *r);
    bool cancelled; /* set just before cancel is called, and when it would have been called but was not set */
    void *aux;
};

struct p9_server_config {
    uint32_t msize;        /* offered; 0 = P9_MSIZE_MAX */
    uint32_t max_fids;     /* 0 = 65536; further ones get ENFILE */
    uint32_t max_requests; /* 0 = 16384 in flight, Tflush included; at the limit p9_server_wants_input is false */
    size_t max_held;       /* 0 = 256 MiB of messages of requests in flight; above it p9_server_wants_input is false */
    size_t max_output;     /* 0 = 8 MiB queued; above it p9_server_wants_input is false */
};

struct p9_transport {
    void *user;
    /* Sends `len` bytes of a malloc'ed buffer; ownership passes. May call p9_server_sent, nothing else of the session. */
    void (*send)(void *user, void *buf, size_t len);
};

/*
 * NULL only when out of memory. `backend` and `config` (NULL = defaults) must outlive the session; `transport` is copied.
 * `user` is handed to every handler.
 */
struct p9_server *p9_server_create(const struct p9_backend *backend, const struct p9_transport *transport, const struct p9_server_config *config,
                                   void *user);

/*
 * Bytes from the peer, any split. Handlers run inside. Returns 0 or a negative errno (-EBADMSG malformed or a reply sent
 * by a client, a tag in use, anything but Tversion first; -EMSGSIZE larger than msize; -ENOBUFS when wants_input was ignored for
 * 16 MiB; -ENOMEM): the session is then dead, everything in flight is cancelled; close the transport and destroy it. A handler
 * may destroy the session: this returns 0 then.
 */
int p9_server_input(struct p9_server *s, const void *buf, size_t len);

/*
 * For a transport that can choose where it reads to: the place of the peer's next bytes, at most *len, when they are the rest of a large
 * message that is being received, else NULL. After reading there, and before anything else of this session, p9_server_filled says how
 * many bytes came (more than 0); it answers as p9_server_input does. The data of a large Twrite received so begins a page.
 */
void *p9_server_space(const struct p9_server *s, size_t *len);
int p9_server_filled(struct p9_server *s, size_t len);

/* The transport tells how many bytes it got rid of. Handlers that waited for room may run inside. */
void p9_server_sent(struct p9_server *s, size_t len);

/* False: stop reading from the peer until p9_server_sent or a reply made it true again. */
bool p9_server_wants_input(const struct p9_server *s);

/*
 * Called (when set) each time wants_input turned true again outside of p9_server_sent and p9_server_input; also when the
 * session died over input that it had put aside, which the next p9_server_input (of no bytes, if need be) tells.
 */
void p9_server_set_resume(struct p9_server *s, void (*resume)(void *user), void *user);

/*
 * A transport's second way to send: `len` bytes at `at` inside of the malloc'ed buffer `buf`, which passes; else as its `send`. Without it,
 * what p9_reply_data brings is copied.
 */
void p9_server_set_send_part(struct p9_server *s, void (*send_part)(void *user, void *buf, const void *at, size_t len));

/*
 * Ends the session: every request in flight is cancelled, replies after this go nowhere, every fid is freed as its last
 * request ends. The memory goes when the last request was answered. The transport is not used any more.
 */
void p9_server_destroy(struct p9_server *s);

/*
 * Answers with message `m` (type = request type + 1 set by the library, as is the tag). Data is copied. `r` is gone after.
 * Outside of a handler (a deferred reply), requests that waited for this one run inside, as its last act, and the session's last
 * reply after p9_server_destroy frees it. A message that does not fit msize becomes Rlerror EMSGSIZE; more data or qids than
 * asked for, EIO.
 */
void p9_reply(struct p9_request *r, struct p9_msg *m);

/*
 * Answers a Tread with `len` bytes at `data` in the malloc'ed buffer `owner`, which passes; the header is put before them, so at least
 * P9_IOHDR bytes of the buffer must be there. As p9_reply otherwise.
 */
void p9_reply_data(struct p9_request *r, void *owner, void *data, uint32_t len);

/* Answers Rlerror with a positive errno (Linux numbers). */
void p9_fail(struct p9_request *r, int code);

/* Numbers for a `ctl` view and tests. */
uint32_t p9_server_fids(const struct p9_server *s);
uint32_t p9_server_requests(const struct p9_server *s);

#endif
