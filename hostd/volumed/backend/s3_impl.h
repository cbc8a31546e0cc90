// SPDX-License-Identifier: Apache-2.0
// The parts of the S3 backend: calls (one request of S3, tried until it is answered), objects in one piece, objects in parts, lists.
#ifndef SPACE_VOLUMED_S3_IMPL_H
#define SPACE_VOLUMED_S3_IMPL_H

#include "hostd/volumed/backend/backend_impl.h"
#include "hostd/volumed/backend/http.h"
#include "hostd/volumed/backend/s3_policy.h"
#include "hostd/volumed/backend/s3_sign.h"
#include "loop/co.h"

#define S3_PREFIX_MAX 256u
#define S3_URL_MAX    4096u
#define S3_QUERY_MAX  (3 * S3_KEY_MAX * 2 + 512u)

enum s3_conditional { S3_COND_UNKNOWN, S3_COND_YES, S3_COND_NO };

TAILQ_HEAD(s3_turns, s3_turn);
struct s3_turn { /* a call that waits until it may send */
    TAILQ_ENTRY(s3_turn) link;
    struct co *co;
    bool granted;
};

struct s3 {
    struct backend base;
    struct co_sched *sched;
    struct http *http;
    struct s3_credentials *credentials;
    char origin[320]; /* scheme://host[:port] as connected to; in host style with the bucket */
    char host[288];   /* the Host header */
    char root[96];    /* path of the bucket: "/bucket" or "" */
    char prefix[S3_PREFIX_MAX + 1];
    char region[65];
    uint64_t patience_ms, part_size;
    struct s3_window window;
    unsigned sending;         /* tries on the wire */
    struct s3_turns turns[2]; /* urgent, others */
    int64_t clock_offset_s;   /* added to our clock when signing */
    enum s3_conditional conditional;
};

/* One request of S3. Zero-initialise. */
struct s3_call {
    const char *what; /* for sentences: "put NAME" */
    const char *method;
    const char *name;            /* object below the prefix; NULL: the bucket */
    const char *query;           /* as signed: in order, encoded; NULL: none */
    struct s3_header headers[4]; /* besides those of the signature; in order */
    size_t headers_count;
    const struct iovec *body;
    size_t body_count;
    uint64_t offset, length; /* of the body */
    const char *sha256;      /* of the body, hex; NULL: it is empty */
    void *sink;
    size_t sink_size;
    bool urgent;
    uint64_t patience_ms; /* 0: the backend's */
    /* Looks at a 2xx answer; not 0: it is bad, with a sentence, and is asked for again (S3_BAD). */
    int (*check)(struct s3 *s, struct s3_call *c, struct err *e);
    void *user; /* of `check` */
    /* The outcome. */
    struct http_exchange x; /* of the last try; its `text` is freed by s3_call_end */
    struct s3_error error;  /* what the last answer said */
    unsigned tries;
};

/* In a coroutine of s->sched. 0, or -errno of backend.h with its sentence. */
int s3_call(struct s3 *s, struct s3_call *c, struct err *e);
void s3_call_end(struct s3_call *c);

/* SHA-256 of `length` bytes from `offset` of buffers, by a thread. 0, -ECANCELED when *cancelled became true, -EIO. Not cancellable otherwise. */
int s3_sha256(struct s3 *s, const struct iovec *iov, size_t count, uint64_t offset, uint64_t length, const atomic_bool *cancelled,
              char out[S3_SHA256_SIZE]);

/* The outcome of an operation from what a call left. */
void s3_answer(struct backend_op *op, int rc, const struct err *e);
/* What a put gives its object as metadata: the hash of its bytes, and a random number that tells this put from all others. */
struct s3_mark {
    char sha256[S3_SHA256_SIZE], put[33];
};
#define S3_HEADER_PUT    "x-amz-meta-space-put"
#define S3_HEADER_SHA256 "x-amz-meta-space-sha256"
/* Whether the object `name` is of this very put: what an earlier try, unseen, left. */
bool s3_is_ours(struct s3 *s, const char *name, const struct s3_mark *mark);

/* Each in a coroutine of its own, outcome in op->result. */
void s3_put(struct s3 *s, struct backend_op *op);
void s3_get(struct s3 *s, struct backend_op *op);
void s3_stat(struct s3 *s, struct backend_op *op);
void s3_delete(struct s3 *s, struct backend_op *op);
void s3_list(struct s3 *s, struct backend_op *op);
void s3_sweep(struct s3 *s, struct backend_op *op);
void s3_check(struct s3 *s, struct backend_op *op);

/* An object in parts. 0 or -errno with a sentence; what was uploaded of it is gone then. */
int s3_put_parts(struct s3 *s, struct backend_op *op, const struct s3_mark *mark, struct err *e);
/* Removes what an upload in parts left, tries for a few seconds; that it is not there any more is a success. In any coroutine, an aborted one too. */
int s3_abort_upload(struct s3 *s, const char *name, const char *upload, struct err *e);

/* Whether a conditional put is atomic here: asks the server, once it answered no more. 0 or -errno with a sentence. */
int s3_probe_conditional(struct s3 *s, struct err *e);

#endif
