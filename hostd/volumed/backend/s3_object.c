// SPDX-License-Identifier: Apache-2.0
// Objects in one piece: put, got, looked up, deleted; and what a check of the store does.
//
// Each object carries the SHA-256 of its bytes as metadata. A put signs it, so that the server refuses what was damaged on the way; a get of
// the whole object compares it. A second mark, random, tells a put from all others: one whose answer got lost, and whose next try is refused since
// there is such an object now, finds by it whether that is its own. (curl may try again by itself, too, when a kept connection breaks: so any such
// refusal is looked into.)
#include "hostd/volumed/backend/s3_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void s3_answer(struct backend_op *op, int rc, const struct err *e)
{
    op->result.rc = rc == -EOPNOTSUPP || rc == -ENOMEM ? -EIO : rc;
    if (rc < 0) {
        op->result.e = *e;
        op->result.total = 0;
    }
    op->result.e.code = -op->result.rc;
}

/* ---- put ---- */

/* Every S3 server gives one; a portal that says 200 to everything does not. */
static int check_put(struct s3 *s, struct s3_call *c, struct err *e)
{
    if (c->x.reply.etag[0])
        return 0;
    return err_set(e, EBADMSG, "%s in %s: the answer, HTTP %d without an ETag, is not an S3 server's", c->what, s->base.description, c->x.status);
}

static int put_bytes(struct s3 *s, struct backend_op *op, const struct s3_mark *mark, bool conditional, struct err *e)
{
    char what[BACKEND_NAME_MAX + 8];
    snprintf(what, sizeof what, "put %s", op->r.name);
    struct s3_call c = {.what = what,
                        .method = "PUT",
                        .name = op->r.name,
                        .body = op->r.iov,
                        .body_count = op->r.iov_count,
                        .length = op->length,
                        .sha256 = mark->sha256,
                        .urgent = op->r.flags & BACKEND_URGENT,
                        .check = check_put};
    if (conditional)
        c.headers[c.headers_count++] = (struct s3_header){"if-none-match", "*"};
    c.headers[c.headers_count++] = (struct s3_header){S3_HEADER_PUT, mark->put};
    c.headers[c.headers_count++] = (struct s3_header){S3_HEADER_SHA256, mark->sha256};
    int rc = s3_call(s, &c, e);
    s3_call_end(&c);
    if (rc == -EEXIST && conditional && s3_is_ours(s, op->r.name, mark))
        return 0;
    if (rc == -EEXIST && !conditional)
        return -(e->code = EIO); /* 412 to what had no condition */
    if (rc == -EEXIST)
        return err_set(e, EEXIST, "put %s in %s: it is there already", op->r.name, s->base.description);
    return rc;
}

static int head(struct s3 *s, const char *name, struct http_reply *out, struct err *e)
{
    char what[BACKEND_NAME_MAX + 16];
    snprintf(what, sizeof what, "look up %s", name);
    struct s3_call c = {.what = what, .method = "HEAD", .name = name};
    int rc = s3_call(s, &c, e);
    *out = c.x.reply;
    s3_call_end(&c);
    if (rc == -ENOENT)
        return err_set(e, ENOENT, "%s in %s: there is no such object", what, s->base.description);
    return rc;
}

bool s3_is_ours(struct s3 *s, const char *name, const struct s3_mark *mark)
{
    struct http_reply r;
    struct err e = {0};
    return head(s, name, &r, &e) == 0 && strcmp(r.put, mark->put) == 0;
}

/* Where the server cannot: looks first. Another node may be between. */
static int must_be_absent(struct s3 *s, const char *name, struct err *e)
{
    struct http_reply r;
    int rc = head(s, name, &r, e);
    if (rc == 0)
        return err_set(e, EEXIST, "put %s in %s: it is there already", name, s->base.description);
    return rc == -ENOENT ? 0 : rc;
}

static int random_mark(char out[33])
{
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        return -EIO;
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    return 0;
}

static int put(struct s3 *s, struct backend_op *op, struct err *e)
{
    struct s3_mark mark;
    bool absent = op->r.flags & BACKEND_IF_ABSENT;
    int rc = s3_sha256(s, op->r.iov, op->r.iov_count, 0, op->length, &op->cancelled, mark.sha256);
    if (rc == 0)
        rc = random_mark(mark.put);
    if (rc < 0)
        return err_set(e, -rc, "put %s: its hash: %s", op->r.name, strerror(-rc));
    if (absent && (rc = s3_probe_conditional(s, e)) < 0)
        return rc;
    if (absent && s->conditional == S3_COND_YES)
        return put_bytes(s, op, &mark, true, e);
    if (absent && (rc = must_be_absent(s, op->r.name, e)) < 0)
        return rc;
    return op->length > 2 * s->part_size ? s3_put_parts(s, op, &mark, e) : put_bytes(s, op, &mark, false, e);
}

void s3_put(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    s3_answer(op, put(s, op, &e), &e);
}

/* ---- get ---- */

static int bad_answer(struct s3 *s, struct s3_call *c, struct err *e, const char *why)
{
    return err_set(e, EBADMSG, "%s in %s: %s", c->what, s->base.description, why);
}

static int check_whole(struct s3 *s, struct s3_call *c, struct err *e)
{
    char sha256[S3_SHA256_SIZE];
    const struct backend_op *op = c->user;
    struct iovec all = {c->sink, c->x.got};
    int rc = s3_sha256(s, &all, 1, 0, c->x.got, &op->cancelled, sha256);
    if (rc < 0)
        return err_set(e, -rc, "%s: its hash: %s", c->what, strerror(-rc));
    return strcmp(sha256, c->x.reply.sha256) == 0 ? 0 : bad_answer(s, c, e, "the bytes are not those that were put: their SHA-256 is another");
}

/* That the answer is the range that was asked for, and all of it. */
static int check_get(struct s3 *s, struct s3_call *c, struct err *e)
{
    const struct backend_op *op = c->user;
    struct http_reply *r = &c->x.reply;
    if (c->x.status == 200 && op->r.offset == 0 && r->length == c->x.got) {
        r->total = r->length; /* without regard to the range, but it fits */
    } else if (c->x.status != 206 || r->first != op->r.offset || r->total == HTTP_UNKNOWN || r->last - r->first + 1 != c->x.got) {
        return bad_answer(s, c, e, "the answer is not the range that was asked for");
    } else if (c->x.got < op->r.size && r->last + 1 != r->total) {
        return bad_answer(s, c, e, "the answer is shorter than the range that was asked for");
    }
    return op->r.offset == 0 && c->x.got == r->total && r->sha256[0] ? check_whole(s, c, e) : 0;
}

/* Nothing is there: the object ends before the offset. Not all servers say how long it is. */
static int behind_the_end(struct s3 *s, struct backend_op *op, uint64_t total, struct err *e)
{
    if (total == HTTP_UNKNOWN) {
        struct http_reply r;
        struct err ignored = {0};
        total = head(s, op->r.name, &r, &ignored) == 0 ? r.length : HTTP_UNKNOWN;
    }
    if (total == HTTP_UNKNOWN || total > op->r.offset)
        return err_set(e, EIO, "get %s in %s: the server refuses a range that the object has", op->r.name, s->base.description);
    op->result.total = total;
    return 0;
}

static int get(struct s3 *s, struct backend_op *op, struct err *e)
{
    char what[BACKEND_NAME_MAX + 8], range[64];
    snprintf(what, sizeof what, "get %s", op->r.name);
    snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)op->r.offset, (unsigned long long)(op->r.offset + op->r.size - 1));
    struct s3_call c = {.what = what,
                        .method = "GET",
                        .name = op->r.name,
                        .headers = {{"range", range}},
                        .headers_count = 1,
                        .sink = op->r.buf,
                        .sink_size = op->r.size,
                        .urgent = op->r.flags & BACKEND_URGENT,
                        .check = check_get,
                        .user = op};
    int rc = s3_call(s, &c, e), status = c.x.code == CURLE_OK ? c.x.status : 0;
    op->result.got = rc == 0 ? c.x.got : 0;
    op->result.total = c.x.reply.total;
    s3_call_end(&c);
    if (rc == -ENOENT)
        return err_set(e, ENOENT, "%s in %s: there is no such object", what, s->base.description);
    return rc < 0 && status == 416 ? behind_the_end(s, op, c.x.reply.total, e) : rc;
}

void s3_get(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    if (op->r.size == 0)
        s3_stat(s, op);
    else
        s3_answer(op, get(s, op, &e), &e);
}

/* ---- stat, delete ---- */

void s3_stat(struct s3 *s, struct backend_op *op)
{
    struct http_reply r;
    struct err e = {0};
    int rc = head(s, op->r.name, &r, &e);
    if (rc == 0 && r.length == HTTP_UNKNOWN)
        rc = err_set(&e, EIO, "look up %s in %s: the server does not say how long it is", op->r.name, s->base.description);
    op->result.total = r.length;
    op->result.modified = r.modified;
    s3_answer(op, rc, &e);
}

static int delete_object(struct s3 *s, const char *name, struct err *e)
{
    char what[BACKEND_NAME_MAX + 16];
    snprintf(what, sizeof what, "delete %s", name);
    struct s3_call c = {.what = what, .method = "DELETE", .name = name};
    int rc = s3_call(s, &c, e);
    s3_call_end(&c);
    return rc == -ENOENT ? 0 : rc;
}

void s3_delete(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    s3_answer(op, delete_object(s, op->r.name, &e), &e);
}

/* ---- check ---- */

/* rc of one put with the condition; *ret_refused when the server does not know such a thing. */
static int probe_put(struct s3 *s, const char *name, bool *ret_refused, struct err *e)
{
    static char text[] = "spacefs asks whether this can be put twice";
    struct iovec iov = {text, sizeof text - 1};
    char sha256[S3_SHA256_SIZE];
    int rc = s3_sha256(s, &iov, 1, 0, iov.iov_len, NULL, sha256);
    if (rc < 0)
        return err_set(e, -rc, "the hash of a probe: %s", strerror(-rc));
    struct s3_call c = {.what = "put a probe",
                        .method = "PUT",
                        .name = name,
                        .headers = {{"if-none-match", "*"}},
                        .headers_count = 1,
                        .body = &iov,
                        .body_count = 1,
                        .length = iov.iov_len,
                        .sha256 = sha256,
                        .check = check_put};
    rc = s3_call(s, &c, e);
    *ret_refused = rc < 0 && c.x.code == CURLE_OK && (c.x.status == 501 || c.x.status == 400);
    s3_call_end(&c);
    return rc;
}

int s3_probe_conditional(struct s3 *s, struct err *e)
{
    char name[BACKEND_COMPONENT_MAX];
    uint64_t random = 0;
    bool refused;
    struct err ignored = {0};
    if (s->conditional != S3_COND_UNKNOWN)
        return 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_sys(e, "a random name");
    snprintf(name, sizeof name, BACKEND_OWN_PREFIX "%016llx", (unsigned long long)random);
    int rc = probe_put(s, name, &refused, e);
    if (rc == 0)
        rc = probe_put(s, name, &refused, e);
    if (rc == 0 || rc == -EEXIST || refused) {
        s->conditional = rc == -EEXIST ? S3_COND_YES : S3_COND_NO;
        s->base.features = rc == -EEXIST ? BACKEND_CONDITIONAL : 0;
        rc = 0;
    }
    if (!refused)
        delete_object(s, name, &ignored);
    return rc;
}

static int check(struct s3 *s, struct err *e)
{
    struct s3_call c = {.what = "look into it", .method = "GET", .query = "list-type=2&max-keys=1"};
    int rc = s3_call(s, &c, e);
    s3_call_end(&c);
    if (rc == -ENOENT)
        rc = err_set(e, ENODEV, "there is no %s", s->base.description);
    return rc < 0 ? rc : s3_probe_conditional(s, e);
}

void s3_check(struct s3 *s, struct backend_op *op)
{
    struct err e = {0};
    s3_answer(op, check(s, &e), &e);
}
