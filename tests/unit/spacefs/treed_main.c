// SPDX-License-Identifier: Apache-2.0
// treed DIR SOCKET: serves DIR on a unix socket until killed. See treed.h.
#include "unit/spacefs/treed.h"

#include "loop/stream.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct session {
    struct p9_server *server;
    struct stream *stream;
    uv_prepare_t flusher;
    char *cork;
    size_t corked;
};

static void flush(uv_prepare_t *h)
{
    struct session *s = h->data;
    size_t len = s->corked;
    uv_prepare_stop(h);
    s->corked = 0;
    stream_send(s->stream, s->cork, len);
    s->cork = NULL;
}

/* Replies of one turn of the loop go out together. */
static void send_bytes(void *user, void *buf, size_t len)
{
    struct session *s = user;
    s->cork = realloc(s->cork, s->corked + len);
    memcpy(s->cork + s->corked, buf, len);
    s->corked += len;
    free(buf);
    uv_prepare_start(&s->flusher, flush);
}

static void on_flusher_closed(uv_handle_t *h)
{
    struct session *s = h->data;
    free(s->cork);
    free(s);
}

static void end(struct session *s)
{
    stream_close(s->stream);
    p9_server_destroy(s->server);
    uv_close((uv_handle_t *)&s->flusher, on_flusher_closed);
}

static void on_input(void *user, const void *buf, size_t len)
{
    struct session *s = user;
    if (p9_server_input(s->server, buf, len) < 0)
        end(s);
}

static void on_sent(void *user, size_t len)
{
    struct session *s = user;
    if (s->server)
        p9_server_sent(s->server, len);
}

static void on_closed(void *user, int err)
{
    (void)err;
    end(user);
}

static void on_connection(uv_poll_t *h, int status, int events)
{
    static const struct stream_ops ops = {.input = on_input, .sent = on_sent, .closed = on_closed};
    struct treed *d = h->data;
    int listening;
    (void)status;
    (void)events;
    uv_fileno((uv_handle_t *)h, &listening);
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct session *s = calloc(1, sizeof *s);
    uv_prepare_init(d->loop, &s->flusher);
    s->flusher.data = s;
    s->stream = stream_open(d->loop, fd, &ops, s);
    struct p9_transport transport = {.user = s, .send = send_bytes};
    s->server = p9_server_create(&treed_backend, &transport, NULL, d);
}

int main(int argc, char **argv)
{
    static struct treed d;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    uv_poll_t listening;
    struct rlimit files = {65536, 65536};
    if (argc != 3)
        return 2;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    umask(0);
    d.loop = uv_default_loop();
    snprintf(d.dir, sizeof d.dir, "%s", argv[1]);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", argv[2]);
    unlink(a.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || chmod(a.sun_path, 0666) < 0 || listen(fd, 64) < 0) {
        perror(argv[2]);
        return 1;
    }
    uv_poll_init(d.loop, &listening, fd);
    listening.data = &d;
    uv_poll_start(&listening, UV_READABLE, on_connection);
    return uv_run(d.loop, UV_RUN_DEFAULT);
}
