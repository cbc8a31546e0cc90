// SPDX-License-Identifier: Apache-2.0
// The S3 backend: its options, and a coroutine for each operation.
#include "base/str.h"
#include "hostd/volumed/backend/s3_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLIGHT_DEFAULT   16u
#define FLIGHT_MAX       256u
#define PATIENCE_DEFAULT 120u
#define STALL_DEFAULT    20u
#define PART_DEFAULT     ((uint64_t)32 << 20)
#define PART_LEAST       ((uint64_t)5 << 20) /* of S3, for all but the last */

/* ---- operations ---- */

static void run(void *arg)
{
    static void (*const verbs[])(struct s3 * s, struct backend_op * op) = {
        [BACKEND_PUT] = s3_put,       [BACKEND_GET] = s3_get,     [BACKEND_STAT] = s3_stat,   [BACKEND_LIST] = s3_list,
        [BACKEND_DELETE] = s3_delete, [BACKEND_SWEEP] = s3_sweep, [BACKEND_CHECK] = s3_check,
    };
    struct backend_op *op = arg;
    verbs[op->r.verb]((struct s3 *)op->backend, op);
    backend_finish(op);
}

static void start(struct backend_op *op)
{
    op->own = co_spawn(((struct s3 *)op->backend)->sched, run, op);
}

static void cancel(struct backend_op *op)
{
    co_abort(op->own);
}

static void http_gone(void *user)
{
    struct s3 *s = user;
    co_sched_destroy(s->sched);
    s3_credentials_free(s->credentials);
    backend_gone(&s->base);
}

static void destroy(struct backend *b)
{
    struct s3 *s = (struct s3 *)b;
    http_destroy(s->http, http_gone, s);
}

/* ---- options ---- */

static bool bucket_valid(const char *name)
{
    size_t n = strlen(name);
    return n >= 3 && n <= 63 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n && name[0] != '.' && name[0] != '-' &&
           !strstr(name, "..");
}

static int take_parts(struct s3 *s, const struct backend_s3_options *o, CURLU *u, struct err *e)
{
    char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *other = NULL;
    int rc = 0;
    bool plain = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK && curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                 curl_url_get(u, CURLUPART_PATH, &path, 0) == CURLUE_OK && strcmp(path, "/") == 0 &&
                 (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    for (CURLUPart p = CURLUPART_URL; plain && p <= CURLUPART_FRAGMENT; p++)
        if ((p == CURLUPART_USER || p == CURLUPART_PASSWORD || p == CURLUPART_QUERY || p == CURLUPART_FRAGMENT) &&
            curl_url_get(u, p, &other, 0) == CURLUE_OK)
            plain = false;
    if (!plain || strlen(host) > 200) {
        rc = err_set(e, EINVAL, "the endpoint '%s' must be https://HOST or https://HOST:PORT (or http), and no more", o->endpoint);
    } else {
        bool named = curl_url_get(u, CURLUPART_PORT, &port, CURLU_NO_DEFAULT_PORT) == CURLUE_OK;
        const char *dot = o->style == BACKEND_S3_HOST ? "." : "", *bucket = *dot ? o->bucket : "";
        snprintf(s->host, sizeof s->host, "%s%s%s%s%s", bucket, dot, host, named ? ":" : "", named ? port : "");
        snprintf(s->origin, sizeof s->origin, "%s://%s", scheme, s->host);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(path);
    curl_free(other);
    return rc;
}

static int take_endpoint(struct s3 *s, const struct backend_s3_options *o, struct err *e)
{
    CURLU *u = curl_url();
    int rc = u && o->endpoint && curl_url_set(u, CURLUPART_URL, o->endpoint, 0) == CURLUE_OK
                 ? take_parts(s, o, u, e)
                 : err_set(e, EINVAL, "the endpoint '%s' is not a URL", o->endpoint ? o->endpoint : "");
    curl_url_cleanup(u);
    return rc;
}

static int take_options(struct s3 *s, const struct backend_s3_options *o, struct err *e)
{
    const char *prefix = o->prefix ? o->prefix : "", *region = o->region ? o->region : "us-east-1";
    size_t n = strlen(prefix);
    if (!o->bucket || !bucket_valid(o->bucket))
        return err_set(e, EINVAL, "'%s' is not a bucket's name", o->bucket ? o->bucket : "");
    if (n > S3_PREFIX_MAX || (n && (prefix[n - 1] != '/' || !backend_name_valid(prefix, true))))
        return err_set(e, EINVAL, "the prefix '%s' must be a name that ends in '/', or empty", prefix);
    if (!str_name_valid(region, strlen(region)))
        return err_set(e, EINVAL, "'%s' is not a region's name", region);
    if (o->flight > FLIGHT_MAX || (o->part_size && o->part_size < PART_LEAST) || o->part_size > BACKEND_SIZE_MAX)
        return err_set(e, EINVAL, "at most %u requests at the same time, and parts of at least 5M", FLIGHT_MAX);
    str_copy(s->prefix, sizeof s->prefix, prefix);
    str_copy(s->region, sizeof s->region, region);
    if (o->style == BACKEND_S3_PATH)
        snprintf(s->root, sizeof s->root, "/%s", o->bucket);
    s->patience_ms = 1000ull * (o->patience_s ? o->patience_s : PATIENCE_DEFAULT);
    s->part_size = o->part_size ? o->part_size : PART_DEFAULT;
    s->window.most = o->flight ? o->flight : FLIGHT_DEFAULT;
    s->window.limit = s->window.most;
    return take_endpoint(s, o, e);
}

static int open_parts(struct s3 *s, uv_loop_t *loop, const struct backend_s3_options *o, struct err *e)
{
    int rc = take_options(s, o, e);
    if (rc < 0)
        return rc;
    rc = s3_credentials_load(o->credentials, &s->credentials, e);
    if (rc < 0)
        return rc;
    const struct http_options http = {.ca = o->ca, .flight = s->window.most, .stall_s = o->stall_s ? o->stall_s : STALL_DEFAULT};
    s->http = http_create(loop, &http, e);
    return s->http ? 0 : -e->code;
}

static void nothing(void *user)
{
    (void)user;
}

struct backend *backend_s3_create(uv_loop_t *loop, const struct backend_s3_options *o, struct err *e)
{
    static const struct backend_class class = {start, cancel, destroy};
    struct s3 *s = calloc(1, sizeof *s);
    int rc = s ? open_parts(s, loop, o, e) : err_set(e, ENOMEM, "no memory for a backend");
    if (rc == 0 && !(s->sched = co_sched_create(loop)))
        rc = err_set(e, ENOMEM, "no memory for a backend");
    if (rc == 0 && (rc = backend_init(&s->base, loop, &class, 2 * s->window.most)) < 0)
        err_set(e, -rc, "watch the bucket %s: %s", o->bucket, strerror(-rc));
    if (rc == 0) {
        TAILQ_INIT(&s->turns[0]);
        TAILQ_INIT(&s->turns[1]);
        s->base.stats.limit = s->window.most;
        snprintf(s->base.description, sizeof s->base.description, "bucket %s at %s", o->bucket, o->endpoint);
        return &s->base;
    }
    if (s) {
        co_sched_destroy(s->sched);
        if (s->http)
            http_destroy(s->http, nothing, NULL);
        s3_credentials_free(s->credentials);
        free(s);
    }
    return NULL;
}
