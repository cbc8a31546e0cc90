// SPDX-License-Identifier: Apache-2.0
// HTTP exchanges by libcurl's multi interface, on a libuv loop: connections are kept, many exchanges run at the same time, one is one try.
#ifndef SPACE_VOLUMED_HTTP_H
#define SPACE_VOLUMED_HTTP_H

#include "base/err.h"
#include "hostd/volumed/backend/http_reply.h"

#include <curl/curl.h>
#include <sys/uio.h>
#include <uv.h>

#define HTTP_TEXT_MAX ((size_t)4 << 20) /* of an answer that goes to no buffer of the caller's */

struct http;
struct http_job;

struct http_options {
    const char *ca;   /* PEM file, read now; NULL: the system's */
    unsigned flight;  /* connections kept */
    unsigned stall_s; /* an exchange that moves less than 1 KiB/s for so long ends */
};

struct http_exchange {
    /* The question: borrowed until `done`, or http_cancel. */
    const char *method, *url;
    struct curl_slist *headers; /* all of them but Content-Length */
    const struct iovec *body;   /* of PUT and POST: `length` bytes from `offset` of these buffers */
    size_t body_count;
    uint64_t offset, length;
    void *sink; /* where the body of a 2xx answer goes; NULL: into `text` */
    size_t sink_size;
    void (*done)(void *user); /* from the loop, at most once */
    void *user;
    /* The answer. */
    CURLcode code; /* CURLE_OK: a whole answer came, of whatever status */
    bool overflow; /* it was longer than its buffer (code is CURLE_WRITE_ERROR then) */
    int status;
    struct http_reply reply;
    size_t got; /* bytes in `sink` */
    char *text; /* malloc'ed, with a NUL; the caller's; NULL when nothing came */
    size_t text_len;
    uint64_t sent, received;     /* bytes of bodies */
    char error[CURL_ERROR_SIZE]; /* with another code than CURLE_OK */
};

/* NULL with a sentence. The program ignores SIGPIPE. */
struct http *http_create(uv_loop_t *loop, const struct http_options *o, struct err *e);
/* No exchange is left. `closed` comes from the loop, and then all is gone. */
void http_destroy(struct http *h, void (*closed)(void *user), void *user);

/* NULL when curl takes no more: then `done` does not come. */
struct http_job *http_start(struct http *h, struct http_exchange *x);
/* Before `done`: it does not come, and buffers are free at once. */
void http_cancel(struct http_job *job);

#endif
