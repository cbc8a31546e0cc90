// SPDX-License-Identifier: Apache-2.0
// One request of S3, tried until it is answered.
//
// Theory of operation. A call runs in the coroutine of its operation. For each try it waits for its turn (s->window bounds how many are on the wire,
// and moves: one more for each window of answers, half when the server says "slow down"), signs with the time of that moment, sends, and
// judges what came (s3_policy.c). A pause between tries holds no turn. Patience bounds when the last try may begin, not how long it may
// take: a try ends by itself when nothing moves. A clock that is off is found by the server's refusal: its Date is the clock from then on.
#include "hostd/volumed/backend/s3_impl.h"

#include "base/str.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD_TRIES     4u /* answers that are no good, of one call */
#define CLOCK_TRIES   3u /* corrections of the clock, of one call */
#define SHA256_STRIDE ((size_t)1 << 20)

/* ---- turns ---- */

/* Urgent calls do not wait behind large puts: a quarter of the window is theirs, beyond it. */
static bool may_send(const struct s3 *s, bool urgent)
{
    unsigned limit = (unsigned)s->window.limit;
    return s->sending < limit + (urgent ? (limit + 3) / 4 : 0);
}

static void grant(struct s3 *s)
{
    for (;;) {
        struct s3_turn *t = TAILQ_FIRST(&s->turns[0]);
        struct s3_turns *list = t ? &s->turns[0] : &s->turns[1];
        if ((!t && !(t = TAILQ_FIRST(list))) || !may_send(s, list == &s->turns[0]))
            return;
        TAILQ_REMOVE(list, t, link);
        t->granted = true;
        s->sending++;
        co_wake(t->co, 0);
    }
}

static int take_turn(struct s3 *s, bool urgent)
{
    struct s3_turn t = {.co = co_self(s->sched)};
    struct s3_turns *list = &s->turns[urgent ? 0 : 1];
    if (may_send(s, urgent) && TAILQ_EMPTY(&s->turns[0]) && (urgent || TAILQ_EMPTY(list))) {
        s->sending++;
        return 0;
    }
    TAILQ_INSERT_TAIL(list, &t, link);
    int rc = co_wait(s->sched);
    if (rc == 0)
        return 0;
    if (t.granted) {
        s->sending--;
        grant(s);
    } else {
        TAILQ_REMOVE(list, &t, link);
    }
    return rc;
}

static void give_turn(struct s3 *s)
{
    s->sending--;
    grant(s);
}

/* ---- one try ---- */

struct pending {
    struct co *co;
    bool finished;
};

static void exchange_done(void *user)
{
    struct pending *p = user;
    p->finished = true;
    co_wake(p->co, 0);
}

/* "name: value", after what is there; false when memory is out. */
static bool add_header(struct curl_slist **list, const char *name, const char *value)
{
    char line[768];
    int n = snprintf(line, sizeof line, "%s: %s", name, value);
    struct curl_slist *longer = n < (int)sizeof line ? curl_slist_append(*list, line) : NULL;
    if (longer)
        *list = longer;
    return longer;
}

static int make_headers(struct s3 *s, const struct s3_call *c, const char *path, struct curl_slist **out)
{
    char authorization[512], date[S3_DATE_SIZE];
    const char *sha256 = c->sha256 ? c->sha256 : S3_EMPTY_SHA256;
    struct s3_signing sign = {.method = c->method,
                              .host = s->host,
                              .region = s->region,
                              .path = path,
                              .query = c->query ? c->query : "",
                              .payload_sha256 = sha256,
                              .headers = c->headers,
                              .headers_count = c->headers_count,
                              .now = time(NULL) + s->clock_offset_s};
    if (s3_sign(&sign, s->credentials, authorization, date) < 0)
        return -EINVAL;
    bool ok = add_header(out, "Host", s->host) && add_header(out, "x-amz-date", date) && add_header(out, "x-amz-content-sha256", sha256) &&
              add_header(out, "Authorization", authorization);
    for (size_t i = 0; ok && i < c->headers_count; i++)
        ok = add_header(out, c->headers[i].name, c->headers[i].value);
    struct curl_slist *longer = ok ? curl_slist_append(*out, "Expect:") : NULL;
    return longer ? 0 : -ENOMEM;
}

static void make_path(const struct s3 *s, const struct s3_call *c, char *out, size_t size)
{
    if (c->name)
        snprintf(out, size, "%s/%s%s", s->root, s->prefix, c->name);
    else
        snprintf(out, size, "%s", s->root[0] ? s->root : "/");
}

static void count_try(struct s3 *s, const struct s3_call *c)
{
    struct backend_stats *t = &s->base.stats;
    t->tries++;
    t->retries += c->tries > 1;
    t->sent += c->x.sent;
    t->received += c->x.received;
    if (c->x.code == CURLE_OK && c->x.reply.date >= 0)
        t->clock_offset_ms = (c->x.reply.date - time(NULL)) * 1000;
}

/* 0 when curl has come to an end, good or bad. */
static int send_one(struct s3 *s, struct s3_call *c)
{
    char path[S3_PREFIX_MAX + BACKEND_NAME_MAX + 128], url[S3_URL_MAX + S3_QUERY_MAX];
    struct pending p = {.co = co_self(s->sched)};
    struct curl_slist *headers = NULL;
    make_path(s, c, path, sizeof path);
    snprintf(url, sizeof url, "%s%s%s%s", s->origin, path, c->query ? "?" : "", c->query ? c->query : "");
    int rc = make_headers(s, c, path, &headers);
    free(c->x.text);
    c->x = (struct http_exchange){.method = c->method,
                                  .url = url,
                                  .headers = headers,
                                  .body = c->body,
                                  .body_count = c->body_count,
                                  .offset = c->offset,
                                  .length = c->length,
                                  .sink = c->sink,
                                  .sink_size = c->sink_size,
                                  .done = exchange_done,
                                  .user = &p};
    struct http_job *job = rc == 0 ? http_start(s->http, &c->x) : NULL;
    if (job) {
        rc = co_wait(s->sched);
        if (!p.finished)
            http_cancel(job);
        count_try(s, c);
    } else if (rc == 0) {
        rc = -ENOMEM;
    }
    curl_slist_free_all(headers);
    c->x.url = NULL;
    c->x.headers = NULL;
    return rc;
}

/* ---- the judgement ---- */

static void describe(const struct s3 *s, const struct s3_call *c, const struct s3_verdict *v, struct err *e)
{
    char came[480];
    size_t at = 0;
    if (c->x.code == CURLE_OK)
        str_append(came, sizeof came, &at, "HTTP %d%s%s%s%.150s", c->x.status, c->error.code[0] ? " " : "", c->error.code,
                   c->error.message[0] ? ": " : "", c->error.message);
    else
        str_append(came, sizeof came, &at, "%.200s", c->x.error[0] ? c->x.error : curl_easy_strerror(c->x.code));
    err_set(e, v->code, "%s in %s: %s%s%s", c->what, s->base.description, came, v->advice[0] ? "; " : "", v->advice);
}

/* An answer that is no S3 server's (a portal's, a proxy's) says nothing about objects. */
static struct s3_verdict judge(struct s3 *s, struct s3_call *c, struct err *e)
{
    c->error = (struct s3_error){0};
    if (c->x.code == CURLE_OK && c->x.text && c->x.status >= 300)
        s3_xml_error(c->x.text, c->x.text_len, &c->error);
    struct s3_verdict v = s3_judge(&c->x, &c->error);
    if (v.action == S3_FAIL && c->x.status == 404 && strcmp(c->method, "HEAD") != 0 && !c->error.code[0])
        v = (struct s3_verdict){S3_BAD, EIO, "that is not how an S3 server says that something is not there"};
    if (v.action == S3_DONE && c->check) {
        int rc = c->check(s, c, e);
        return rc < 0 ? (struct s3_verdict){S3_BAD, -rc, NULL} : v;
    }
    if (v.action != S3_DONE)
        describe(s, c, &v, e);
    return v;
}

static bool correct_clock(struct s3 *s, const struct s3_call *c)
{
    if (c->x.reply.date < 0)
        return false;
    s->clock_offset_s = c->x.reply.date - time(NULL);
    return true;
}

struct budget {
    uint64_t began, patience;
    unsigned bad, clock;
};

/* Whether there is another try; waits before it. */
static bool again(struct s3 *s, struct s3_call *c, const struct s3_verdict *v, struct budget *b, int *rc)
{
    uint64_t now = uv_now(s->base.loop), wait = s3_backoff_msec(c->tries - 1, c->x.code == CURLE_OK ? c->x.reply.retry_after : 0);
    if (v->action == S3_FAIL || v->action == S3_DONE)
        return false;
    if (v->action == S3_CLOCK)
        return ++b->clock < CLOCK_TRIES && correct_clock(s, c);
    if ((v->action == S3_BAD && ++b->bad >= BAD_TRIES) || now + wait > b->began + b->patience)
        return false;
    *rc = co_sleep(s->sched, wait);
    return *rc == 0;
}

int s3_call(struct s3 *s, struct s3_call *c, struct err *e)
{
    struct budget b = {.began = uv_now(s->base.loop), .patience = c->patience_ms ? c->patience_ms : s->patience_ms};
    struct s3_verdict v;
    int rc;
    do {
        rc = take_turn(s, c->urgent);
        if (rc < 0)
            break;
        uint64_t sent = uv_now(s->base.loop);
        c->tries++;
        rc = send_one(s, c);
        if (rc == 0 && c->x.code == CURLE_OK && c->x.status < 300)
            s3_window_ok(&s->window);
        if (rc == 0 && c->x.code == CURLE_OK && (c->x.status == 503 || c->x.status == 429)) {
            s3_window_slow(&s->window, uv_now(s->base.loop), sent);
            s->base.stats.slowed++;
        }
        s->base.stats.limit = (uint32_t)s->window.limit;
        give_turn(s);
        if (rc < 0)
            break;
        v = judge(s, c, e);
        if (v.action == S3_DONE)
            return 0;
    } while (again(s, c, &v, &b, &rc));
    if (rc == -ECANCELED)
        return err_set(e, ECANCELED, "%s in %s: cancelled", c->what, s->base.description);
    if (rc < 0)
        return err_set(e, -rc, "%s in %s: it cannot be sent: %s", c->what, s->base.description, strerror(-rc));
    if (v.action != S3_FAIL)
        err_wrap(e, "tried %u times in %llu s", c->tries, (unsigned long long)((uv_now(s->base.loop) - b.began) / 1000));
    return -v.code;
}

void s3_call_end(struct s3_call *c)
{
    free(c->x.text);
    c->x.text = NULL;
}

/* ---- hashes ---- */

struct hashing {
    uv_work_t work;
    struct co *co;
    const struct iovec *iov;
    size_t count;
    uint64_t offset, length;
    const atomic_bool *cancelled;
    char *out;
    int rc;
};

static int hash_piece(EVP_MD_CTX *ctx, const struct hashing *h, const char *p, size_t n)
{
    while (n) {
        size_t stride = n < SHA256_STRIDE ? n : SHA256_STRIDE;
        if (h->cancelled && atomic_load(h->cancelled))
            return -ECANCELED;
        if (!EVP_DigestUpdate(ctx, p, stride))
            return -EIO;
        p += stride;
        n -= stride;
    }
    return 0;
}

static int hash_all(EVP_MD_CTX *ctx, const struct hashing *h)
{
    uint64_t skip = h->offset, left = h->length;
    int rc = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? 0 : -EIO;
    for (size_t i = 0; rc == 0 && i < h->count && left; i++) {
        const struct iovec *v = &h->iov[i];
        if (skip >= v->iov_len) {
            skip -= v->iov_len;
            continue;
        }
        uint64_t n = v->iov_len - skip < left ? v->iov_len - skip : left;
        rc = hash_piece(ctx, h, (const char *)v->iov_base + skip, (size_t)n);
        skip = 0;
        left -= n;
    }
    return rc;
}

static void hash_run(uv_work_t *w)
{
    struct hashing *h = w->data;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    uint8_t sum[32];
    h->rc = ctx ? hash_all(ctx, h) : -ENOMEM;
    if (h->rc == 0 && !EVP_DigestFinal_ex(ctx, sum, NULL))
        h->rc = -EIO;
    for (size_t i = 0; h->rc == 0 && i < sizeof sum; i++)
        snprintf(h->out + 2 * i, 3, "%02x", sum[i]);
    EVP_MD_CTX_free(ctx);
}

static void hash_ran(uv_work_t *w, int status)
{
    struct hashing *h = w->data;
    co_wake(h->co, status < 0 ? status : h->rc);
}

int s3_sha256(struct s3 *s, const struct iovec *iov, size_t count, uint64_t offset, uint64_t length, const atomic_bool *cancelled,
              char out[S3_SHA256_SIZE])
{
    struct hashing h = {.co = co_self(s->sched), .iov = iov, .count = count, .offset = offset, .length = length, .cancelled = cancelled, .out = out};
    h.work.data = &h;
    int rc = uv_queue_work(s->base.loop, &h.work, hash_run, hash_ran);
    return rc < 0 ? rc : co_wait_uncancellable(s->sched);
}
