// SPDX-License-Identifier: Apache-2.0
// libcurl's multi interface on libuv: see http.h.
//
// Theory of operation. curl says which sockets it waits for (watch_socket) and when it wants to be called (set_timer); libuv calls back and
// curl_multi_socket_action does the work. Exchanges that ended are taken off curl's queue in reap only, which is never inside a call of
// curl's, so that `done` may start and cancel exchanges. Whether an exchange moves is watched here: curl's own low-speed limit looks at a mean of
// several seconds, in which what the kernel buffered hides a server that stands still.
#include "hostd/volumed/backend/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONNECT_SECONDS 10u
#define SLOW_BYTES      1024u /* a second */
#define TICKS           4u    /* looks at what moves, in the time that it may stand still */
#define BUFFER_BYTES    (512L << 10)
#define CA_MAX          ((off_t)4 << 20)

struct http {
    uv_loop_t *loop;
    CURLM *multi;
    uv_timer_t timer, tick;
    TAILQ_HEAD(, http_job) jobs;
    unsigned flight, stall_s, open_handles;
    struct curl_blob ca; /* data NULL: the system's */
    bool closing;
    void (*closed)(void *user);
    void *closed_user;
};

struct watch {
    uv_poll_t poll;
    struct http *http;
    curl_socket_t fd;
};

struct http_job {
    TAILQ_ENTRY(http_job) link;
    struct http *http;
    struct http_exchange *x;
    CURL *easy;
    uint64_t at;              /* of the body */
    uint64_t moved, moved_at; /* bytes in both directions, when it was last fast enough; loop time in ms */
};

/* ---- sockets and time ---- */

static void maybe_closed(struct http *h)
{
    if (!h->closing || h->open_handles)
        return;
    void (*closed)(void *) = h->closed;
    void *user = h->closed_user;
    free(h->ca.data);
    free(h);
    closed(user);
}

static void job_free(struct http_job *j)
{
    TAILQ_REMOVE(&j->http->jobs, j, link);
    curl_multi_remove_handle(j->http->multi, j->easy);
    curl_easy_cleanup(j->easy);
    free(j);
}

static void take_figures(struct http_job *j)
{
    long status = 0;
    curl_off_t sent = 0, received = 0;
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(j->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    curl_easy_getinfo(j->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
    j->x->status = (int)status;
    j->x->sent = (uint64_t)sent;
    j->x->received = (uint64_t)received;
}

static void reap(struct http *h)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct http_job *j = NULL;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
        struct http_exchange *x = j->x;
        x->code = code;
        take_figures(j);
        job_free(j);
        x->done(x->user);
    }
}

static bool stands_still(struct http_job *j, uint64_t now)
{
    curl_off_t sent = 0, received = 0;
    curl_easy_getinfo(j->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    curl_easy_getinfo(j->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
    uint64_t moved = (uint64_t)sent + (uint64_t)received, elapsed = now - j->moved_at;
    if (moved - j->moved < SLOW_BYTES * elapsed / 1000)
        return elapsed >= 1000ull * j->http->stall_s;
    j->moved = moved;
    j->moved_at = now;
    return false;
}

/* One, since its `done` may change the list. */
static bool give_up_one(struct http *h)
{
    struct http_job *j;
    TAILQ_FOREACH(j, &h->jobs, link)
    {
        if (!stands_still(j, uv_now(h->loop)))
            continue;
        struct http_exchange *x = j->x;
        take_figures(j);
        snprintf(x->error, sizeof x->error, "less than 1 KiB/s moved for %u s", h->stall_s);
        x->code = CURLE_OPERATION_TIMEDOUT;
        job_free(j);
        x->done(x->user);
        return true;
    }
    return false;
}

static void ticked(uv_timer_t *t)
{
    struct http *h = t->data;
    while (give_up_one(h))
        ;
    if (TAILQ_EMPTY(&h->jobs))
        uv_timer_stop(t);
}

static void timer_fired(uv_timer_t *t)
{
    struct http *h = t->data;
    int running;
    curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    reap(h);
}

static int set_timer(CURLM *multi, long msec, void *user)
{
    struct http *h = user;
    (void)multi;
    if (msec < 0)
        uv_timer_stop(&h->timer);
    else
        uv_timer_start(&h->timer, timer_fired, (uint64_t)msec, 0);
    return 0;
}

static void poll_fired(uv_poll_t *p, int status, int events)
{
    struct watch *w = p->data;
    struct http *h = w->http;
    int what = status < 0 ? CURL_CSELECT_ERR : 0, running;
    if (events & UV_READABLE)
        what |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        what |= CURL_CSELECT_OUT;
    curl_multi_socket_action(h->multi, w->fd, what, &running);
    reap(h);
}

static void poll_closed(uv_handle_t *handle)
{
    struct watch *w = handle->data;
    struct http *h = w->http;
    free(w);
    h->open_handles--;
    maybe_closed(h);
}

static struct watch *watch_create(struct http *h, curl_socket_t fd)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w || uv_poll_init_socket(h->loop, &w->poll, fd) < 0) {
        free(w);
        return NULL;
    }
    w->poll.data = w;
    w->http = h;
    w->fd = fd;
    h->open_handles++;
    curl_multi_assign(h->multi, fd, w);
    return w;
}

static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_user)
{
    struct http *h = user;
    struct watch *w = socket_user;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (w) {
            uv_poll_stop(&w->poll);
            uv_close((uv_handle_t *)&w->poll, poll_closed);
            curl_multi_assign(h->multi, fd, NULL);
        }
        return 0;
    }
    if (!w && !(w = watch_create(h, fd)))
        return -1;
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&w->poll, events, poll_fired) < 0 ? -1 : 0;
}

/* ---- bytes ---- */

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct http_job *j = user;
    http_reply_line(&j->x->reply, line, size * n);
    return size * n;
}

static size_t to_text(struct http_exchange *x, const char *p, size_t n)
{
    if (n > HTTP_TEXT_MAX - x->text_len) {
        x->overflow = true;
        return 0;
    }
    char *text = realloc(x->text, x->text_len + n + 1);
    if (!text)
        return 0;
    memcpy(text + x->text_len, p, n);
    x->text = text;
    x->text_len += n;
    text[x->text_len] = 0;
    return n;
}

static size_t on_body(char *p, size_t size, size_t count, void *user)
{
    struct http_job *j = user;
    struct http_exchange *x = j->x;
    size_t n = size * count;
    long status = 0;
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!x->sink || status < 200 || status > 299)
        return to_text(x, p, n);
    if (n > x->sink_size - x->got) {
        x->overflow = true;
        return 0;
    }
    memcpy((char *)x->sink + x->got, p, n);
    x->got += n;
    return n;
}

static size_t read_body(char *to, size_t size, size_t count, void *user)
{
    struct http_job *j = user;
    const struct http_exchange *x = j->x;
    size_t room = size * count, done = 0;
    uint64_t skip = x->offset + j->at, left = x->length - j->at;
    for (size_t i = 0; i < x->body_count && room && left; i++) {
        const struct iovec *v = &x->body[i];
        if (skip >= v->iov_len) {
            skip -= v->iov_len;
            continue;
        }
        size_t n = v->iov_len - (size_t)skip;
        n = n < room ? n : room;
        n = n < left ? n : (size_t)left;
        memcpy(to + done, (const char *)v->iov_base + skip, n);
        skip = 0;
        done += n;
        room -= n;
        left -= n;
    }
    j->at += done;
    return done;
}

/* curl sends again on a new connection when a kept one was closed under it. */
static int seek_body(void *user, curl_off_t offset, int origin)
{
    struct http_job *j = user;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > j->x->length)
        return CURL_SEEKFUNC_FAIL;
    j->at = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- exchanges ---- */

#define SET(option, value) (rc == CURLE_OK ? rc = curl_easy_setopt(j->easy, option, value) : rc)

static CURLcode set_connection(struct http_job *j)
{
    const struct http *h = j->http;
    CURLcode rc = CURLE_OK;
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_PROXY, ""); /* what the environment says is not ours */
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    SET(CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    SET(CURLOPT_CONNECTTIMEOUT, (long)(h->stall_s < CONNECT_SECONDS ? h->stall_s : CONNECT_SECONDS));
    SET(CURLOPT_USERAGENT, "spacefs/" SPACE_VERSION);
    if (h->ca.data) {
        SET(CURLOPT_CAPATH, NULL); /* no other authority than that one */
        SET(CURLOPT_CAINFO_BLOB, &h->ca);
    }
    return rc;
}

static CURLcode set_request(struct http_job *j)
{
    const struct http_exchange *x = j->x;
    bool body = strcmp(x->method, "PUT") == 0 || strcmp(x->method, "POST") == 0;
    CURLcode rc = CURLE_OK;
    SET(CURLOPT_URL, x->url);
    SET(CURLOPT_HTTPHEADER, x->headers);
    SET(CURLOPT_ERRORBUFFER, j->x->error);
    SET(CURLOPT_PRIVATE, j);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, j);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, j);
    if (body) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_READFUNCTION, read_body);
        SET(CURLOPT_READDATA, j);
        SET(CURLOPT_SEEKFUNCTION, seek_body);
        SET(CURLOPT_SEEKDATA, j);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)x->length);
    }
    if (strcmp(x->method, "HEAD") == 0)
        SET(CURLOPT_NOBODY, 1L);
    else
        SET(CURLOPT_CUSTOMREQUEST, x->method);
    return rc;
}

struct http_job *http_start(struct http *h, struct http_exchange *x)
{
    struct http_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->http = h;
    j->x = x;
    j->easy = curl_easy_init();
    http_reply_init(&x->reply);
    if (j->easy && set_connection(j) == CURLE_OK && set_request(j) == CURLE_OK && curl_multi_add_handle(h->multi, j->easy) == CURLM_OK) {
        j->moved_at = uv_now(h->loop);
        TAILQ_INSERT_TAIL(&h->jobs, j, link);
        if (!uv_is_active((uv_handle_t *)&h->tick))
            uv_timer_start(&h->tick, ticked, 1000 * h->stall_s / TICKS, 1000 * h->stall_s / TICKS);
        return j;
    }
    curl_easy_cleanup(j->easy);
    free(j);
    return NULL;
}

void http_cancel(struct http_job *j)
{
    take_figures(j);
    job_free(j);
}

/* ---- life ---- */

static int read_ca(const char *path, struct curl_blob *out, struct err *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return err_sys(e, "open the certificates %s", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > CA_MAX || !(out->data = malloc((size_t)st.st_size + 1)))
        rc = err_set(e, EINVAL, "%s is not a file of certificates", path);
    else if (read(fd, out->data, (size_t)st.st_size) != st.st_size)
        rc = err_sys(e, "read the certificates %s", path);
    else
        out->len = (size_t)st.st_size;
    close(fd);
    return rc;
}

struct http *http_create(uv_loop_t *loop, const struct http_options *o, struct err *e)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(h->multi = curl_multi_init())) {
        err_set(e, ENOMEM, "libcurl does not start");
        free(h);
        return NULL;
    }
    if (o->ca && read_ca(o->ca, &h->ca, e) < 0) {
        curl_multi_cleanup(h->multi);
        free(h->ca.data);
        free(h);
        return NULL;
    }
    h->loop = loop;
    h->flight = o->flight;
    h->stall_s = o->stall_s;
    TAILQ_INIT(&h->jobs);
    uv_timer_init(loop, &h->timer);
    uv_timer_init(loop, &h->tick);
    h->timer.data = h->tick.data = h;
    h->open_handles = 2;
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)o->flight);
    return h;
}

static void timer_closed(uv_handle_t *handle)
{
    struct http *h = handle->data;
    h->open_handles--;
    maybe_closed(h);
}

void http_destroy(struct http *h, void (*closed)(void *user), void *user)
{
    h->closed = closed;
    h->closed_user = user;
    h->closing = true;
    curl_multi_cleanup(h->multi); /* closes the connections that were kept, and with them their polls */
    uv_close((uv_handle_t *)&h->timer, timer_closed);
    uv_close((uv_handle_t *)&h->tick, timer_closed);
}
