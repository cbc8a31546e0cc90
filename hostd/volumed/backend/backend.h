// SPDX-License-Identifier: Apache-2.0
// Where objects lie: a directory of this host, or a bucket of an S3 server, behind one interface.
//
// An object is a name and bytes that are written at once and never changed; who needs another content takes another name, but for
// the few that are meant to be replaced. Requests are asynchronous on one libuv loop. The backend bounds how many are in flight (what
// is more waits in its queue, urgent ones first), tries again what is worth it, and answers each request exactly once.
//
// What a backend promises: a put that was answered with 0 is durable and whole, on the directory after a power cut, too. A put that failed or
// was cancelled may have happened or not, but never in part. A get gives the bytes of one put, as long as nobody damages the store: contents are
// authenticated by the caller, always.
#ifndef SPACE_VOLUMED_BACKEND_H
#define SPACE_VOLUMED_BACKEND_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <uv.h>

/* Names: components of [A-Za-z0-9._-], 1 to 128 bytes each, the first byte alphanumeric, joined by single '/'; 1 to 480 bytes in all.
 * No name may be another one's folder ("a" and "a/b" do not go together), and none begins with "probe-". */
#define BACKEND_NAME_MAX      480u
#define BACKEND_COMPONENT_MAX 128u
/* A put's buffers, and bytes. The bytes of packs (32 MiB at most) go in one piece; larger objects may go in parts. */
#define BACKEND_IOV_MAX  1024u
#define BACKEND_SIZE_MAX ((uint64_t)5 << 30)
/* Objects a page of a list. */
#define BACKEND_PAGE_MAX 1000u

struct backend;
struct backend_op; /* a request in progress */

enum backend_verb {
    BACKEND_PUT,    /* name, iov: make the object, or replace it */
    BACKEND_GET,    /* name, offset, buf, size: read at most `size` bytes from `offset` */
    BACKEND_STAT,   /* name: size and time */
    BACKEND_LIST,   /* prefix, after, max: a page of the names that begin with `prefix` and are greater than `after` */
    BACKEND_DELETE, /* name. An object that is not there is a success */
    BACKEND_SWEEP,  /* older: remove what puts that never ended left (temporary files, parts), if older than `older` seconds */
    BACKEND_CHECK,  /* is the store there, may we use it; finds out BACKEND_CONDITIONAL, too */
};

enum backend_flags {
    /* Of a put: -EEXIST when there is such an object, which then stays as it is. Atomic where backend_features has BACKEND_CONDITIONAL; elsewhere
     * of two at the same time the second may replace the first, so nothing may depend on it that other nodes can race for. A put
     * whose first try succeeded unseen and whose second finds its own bytes is a success. */
    BACKEND_IF_ABSENT = 1,
    /* Goes before what waits in the queue without it: somebody stands still until it is answered. */
    BACKEND_URGENT = 2,
};

struct backend_object {
    const char *name;
    uint64_t size;
    int64_t modified; /* Unix seconds by the store's clock */
};

/* All of it is borrowed, until `done` returns. */
struct backend_result {
    /*
     * 0 or -errno, with its sentence in `e`:
     *   ENOENT     no such object (get, stat); for any verb, ENODEV: no such bucket or directory
     *   EEXIST     BACKEND_IF_ABSENT
     *   EACCES     the store refuses our credentials, or this request
     *   ENOSPC     full, or over the bucket's quota
     *   EBADMSG    the bytes are not those that were put (length or checksum), in each of several tries
     *   ETIMEDOUT  the store did not answer, or was too busy, for as long as `patience` says
     *   EIO        it failed otherwise, for that long; or in a way that no further try mends
     *   ECANCELED  backend_cancel, or backend_destroy
     *   EINVAL, EFBIG, ENAMETOOLONG  the request is not one
     */
    int rc;
    struct err e;
    size_t got;                           /* GET: bytes in `buf`; fewer than `size` only at the end of the object, 0 behind it */
    uint64_t total;                       /* GET, STAT: size of the object */
    int64_t modified;                     /* STAT */
    const struct backend_object *objects; /* LIST, in the order of strcmp */
    size_t count;                         /* LIST: of `objects`; SWEEP: what was removed */
    bool more;                            /* LIST: go on with `after` = the last name */
};

struct backend_request {
    enum backend_verb verb;
    unsigned flags;          /* of enum backend_flags */
    const char *name;        /* copied; the prefix of a LIST, which may end anywhere in a name; NULL or "" lists all */
    const struct iovec *iov; /* PUT: the array is copied, the bytes are borrowed until `done` */
    size_t iov_count;
    void *buf; /* GET: borrowed until `done`; undefined after a failure */
    size_t size;
    uint64_t offset;
    const char *after; /* LIST: copied; NULL from the start */
    unsigned max;      /* LIST: objects, 1 to BACKEND_PAGE_MAX; 0: BACKEND_PAGE_MAX */
    uint64_t older;    /* SWEEP: seconds */
    void (*done)(void *user, const struct backend_result *r);
    void *user;
};

enum backend_features {
    BACKEND_CONDITIONAL = 1, /* BACKEND_IF_ABSENT is atomic */
    BACKEND_LOCAL = 2,       /* what a process asked for and had not been answered when it ended was done by then, or never is */
};

struct backend_stats {
    uint64_t requests, failures;      /* answered, and those with another rc than 0, ENOENT, EEXIST, ECANCELED */
    uint64_t tries, retries, slowed;  /* on the wire; of them again; answers that said "slow down" */
    uint64_t sent, received;          /* bytes of objects, tries that failed included */
    uint32_t running, waiting, limit; /* now; `limit` is the bound of `running` and moves */
    int64_t clock_offset_ms;          /* the store's clock minus ours */
};

/*
 * Starts a request. Never NULL; `done` is called exactly once, from the loop, never from inside a function of this header, also when the request
 * is wrong. The handle is good until `done` returns. Memory that is borrowed is not touched any more once `done` is called.
 */
struct backend_op *backend_start(struct backend *b, const struct backend_request *r);

/* Ends it soon: `done` still comes, with -ECANCELED or with what had happened already. Legal at any moment before `done`, and again. */
void backend_cancel(struct backend_op *op);

unsigned backend_features(const struct backend *b); /* enum backend_features; known after a CHECK */
struct backend_stats backend_stats(const struct backend *b);
const char *backend_describe(const struct backend *b); /* "directory /x", "bucket y at https://…", for sentences; borrowed */

/* Cancels all; `closed` (may be NULL) is called from the loop after the last `done`, and then nothing of the backend is left. */
void backend_destroy(struct backend *b, void (*closed)(void *user), void *user);

struct backend_dir_options {
    const char *path; /* exists; copied */
    unsigned flight;  /* requests at the same time, each in a thread of libuv's pool; 0: 4 */
};

/* Needs no privilege but to write there. NULL with a sentence (-errno in e->code). */
struct backend *backend_dir_create(uv_loop_t *loop, const struct backend_dir_options *o, struct err *e);

enum backend_s3_style { BACKEND_S3_PATH, BACKEND_S3_HOST };

struct backend_s3_options {
    const char *endpoint; /* https://HOST[:PORT], or http:// */
    const char *bucket;   /* exists */
    const char *prefix;   /* before each name, "" or a name and '/'; NULL: "" */
    const char *region;   /* NULL: us-east-1 */
    enum backend_s3_style style;
    const char *credentials; /* file, mode 0600, this process's or root's: "access_key = …" and "secret_key = …"; read once */
    const char *ca;          /* PEM file; NULL: the system's */
    unsigned flight;         /* requests at the same time at most; 0: 16 */
    unsigned patience_s;     /* how long a request is tried; 0: 120 */
    unsigned stall_s;        /* a try that moves less than 1 KiB/s for so long is given up; 0: 20 */
    uint64_t part_size;      /* objects over twice that go in parts of that; 0: 32 MiB */
};

/* Connects to nothing yet. Texts are copied. NULL with a sentence (-errno in e->code). */
struct backend *backend_s3_create(uv_loop_t *loop, const struct backend_s3_options *o, struct err *e);

#endif
