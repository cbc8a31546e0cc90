// SPDX-License-Identifier: Apache-2.0
// Streams over a socket pair: order, backpressure, pause, the other side's end, and a 9P session on
// top.
#include "loop/stream.h"
#include "9p/client.h"
#include "9p/server.h"
#include "unit/check.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEADLINE_MSEC 30000

struct end {
    struct stream *stream;
    size_t got, sent;
    unsigned char next; /* of the expected pattern */
    int closed, err;
    bool in_send;
    bool close_on_input;
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t deadline;
    struct end a, b;
    int fds[2];
};

static void on_input(void *user, const void *buf, size_t len)
{
    struct end *e = user;
    const unsigned char *p = buf;
    for (size_t i = 0; i < len; i++)
        CHECK_EQ(p[i], e->next++);
    e->got += len;
    if (e->close_on_input) {
        stream_close(e->stream);
        e->stream = NULL;
    }
}

static void on_sent(void *user, size_t len)
{
    struct end *e = user;
    e->sent += len;
}

static void on_closed(void *user, int err)
{
    struct end *e = user;
    CHECK(!e->in_send);
    e->closed++;
    e->err = err;
}

static const struct stream_ops ops = {.input = on_input, .sent = on_sent, .closed = on_closed};

static void on_deadline(uv_timer_t *t)
{
    (void)t;
    fprintf(stderr, "the deadline has passed\n");
    exit(1);
}

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, f->fds), 0);
    CHECK_EQ(uv_loop_init(&f->loop), 0);
    uv_timer_init(&f->loop, &f->deadline);
    uv_timer_start(&f->deadline, on_deadline, DEADLINE_MSEC, 0);
    f->a.stream = stream_open(&f->loop, f->fds[0], &ops, &f->a);
    CHECK(f->a.stream);
}

static void open_b(struct fixture *f)
{
    f->b.stream = stream_open(&f->loop, f->fds[1], &ops, &f->b);
    CHECK(f->b.stream);
}

static void teardown(struct fixture *f)
{
    stream_close(f->a.stream);
    stream_close(f->b.stream);
    uv_close((uv_handle_t *)&f->deadline, NULL);
    CHECK_EQ(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    CHECK_EQ(uv_loop_close(&f->loop), 0);
}

#define run_until(f, cond)                                                                                                                           \
    while (!(cond))                                                                                                                                  \
    uv_run(&(f)->loop, UV_RUN_ONCE)

static void send_pattern(struct end *e, unsigned char *next, size_t len)
{
    unsigned char *buf = malloc(len);
    for (size_t i = 0; i < len; i++)
        buf[i] = (*next)++;
    e->in_send = true;
    stream_send(e->stream, buf, len);
    e->in_send = false;
}

static void bytes_arrive_in_order_whatever_the_kernel_takes(void)
{
    struct fixture f;
    unsigned char next = 0;
    size_t total = 0;
    setup(&f);
    for (int i = 0; i < 40; i++) { /* more than a socket buffer: some goes out at once, the rest queues */
        size_t len = i % 3 ? 10 : 300000;
        send_pattern(&f.a, &next, len);
        total += len;
    }
    CHECK(f.a.sent < total);
    open_b(&f);
    run_until(&f, f.b.got == total && f.a.sent == total);
    teardown(&f);
}

static void a_paused_stream_holds_the_sender_back(void)
{
    struct fixture f;
    unsigned char next = 0;
    const size_t total = 8u << 20;
    setup(&f);
    open_b(&f);
    stream_pause(f.b.stream);
    stream_pause(f.b.stream);
    for (size_t n = 0; n < total; n += 1u << 16)
        send_pattern(&f.a, &next, 1u << 16);
    size_t before;
    do {
        before = f.a.sent;
        uv_run(&f.loop, UV_RUN_NOWAIT);
    } while (f.a.sent != before);
    CHECK(f.a.sent < total);
    CHECK_EQ(f.b.got, 0);
    stream_resume(f.b.stream);
    stream_resume(f.b.stream);
    run_until(&f, f.b.got == total);
    teardown(&f);
}

static void the_end_of_the_peer_is_told_once(void)
{
    struct fixture f;
    setup(&f);
    close(f.fds[1]);
    run_until(&f, f.a.closed);
    CHECK_EQ(f.a.err, 0);
    stream_send(f.a.stream, malloc(10), 10);
    stream_resume(f.a.stream);
    uv_run(&f.loop, UV_RUN_NOWAIT);
    CHECK_EQ(f.a.closed, 1);
    teardown(&f);
}

static void a_failed_write_is_told_after_send(void)
{
    struct fixture f;
    setup(&f);
    stream_pause(f.a.stream); /* reading does not tell */
    close(f.fds[1]);
    unsigned char next = 0;
    send_pattern(&f.a, &next, 10);
    CHECK_EQ(f.a.closed, 0);
    run_until(&f, f.a.closed);
    CHECK_EQ(f.a.err, -EPIPE);
    teardown(&f);
}

static void close_inside_input_ends_all_callbacks(void)
{
    struct fixture f;
    unsigned char next = 0;
    setup(&f);
    open_b(&f);
    f.b.close_on_input = true;
    send_pattern(&f.a, &next, 1u << 20);
    send_pattern(&f.a, &next, 1u << 20); /* queued when the other side goes */
    run_until(&f, f.a.closed);
    CHECK(f.b.got <= 1u << 18);
    CHECK_EQ(f.b.closed, 0);
    teardown(&f);
}

static void a_bad_descriptor_is_refused(void)
{
    struct fixture f;
    setup(&f);
    errno = 0;
    CHECK(!stream_open(&f.loop, -1, &ops, NULL));
    CHECK_EQ(errno, EBADF);
    teardown(&f);
}

/* ---- a 9P client and server with a socket between them ---- */

struct nine {
    struct fixture f;
    struct p9_server *server;
    struct p9_client *client;
    struct stream *server_stream;
    int replies;
    size_t bytes;
};

static void server_input(void *user, const void *buf, size_t len)
{
    struct nine *n = user;
    CHECK_EQ(p9_server_input(n->server, buf, len), 0);
    if (!p9_server_wants_input(n->server))
        stream_pause(n->server_stream);
}

static void server_sent(void *user, size_t len)
{
    struct nine *n = user;
    p9_server_sent(n->server, len);
    if (n->server_stream && p9_server_wants_input(n->server))
        stream_resume(n->server_stream);
}

static void client_input(void *user, const void *buf, size_t len)
{
    struct nine *n = user;
    CHECK_EQ(p9_client_input(n->client, buf, len), 0);
}

static void succeed(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

static void serve_read(struct p9_request *r)
{
    static const char zeros[P9_MSIZE_MAX];
    p9_reply(r, &(struct p9_msg){.Rread.data = {zeros, r->t->Tread.count}});
}

static void on_reply(void *user, int err, const struct p9_msg *r)
{
    struct nine *n = user;
    CHECK_EQ(err, 0);
    n->replies++;
    if (r->type == P9_Rread)
        n->bytes += r->Rread.data.len;
}

static void a_9p_session_runs_over_streams(void)
{
    static const struct p9_backend backend = {.on = {[P9_Tattach] = succeed, [P9_Tread] = serve_read}};
    static const struct stream_ops client_ops = {.input = client_input, .closed = on_closed};
    static const struct stream_ops server_ops = {.input = server_input, .sent = server_sent, .closed = on_closed};
    static struct nine n;
    setup(&n.f);
    stream_close(n.f.a.stream);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, n.f.fds), 0);
    n.f.a.stream = stream_open(&n.f.loop, n.f.fds[0], &client_ops, &n);
    n.f.b.stream = n.server_stream = stream_open(&n.f.loop, n.f.fds[1], &server_ops, &n);
    n.server = p9_server_create(&backend, &(struct p9_transport){n.server_stream, stream_send}, NULL, NULL);
    n.client = p9_client_create();
    p9_client_connect(n.client, &(struct p9_transport){n.f.a.stream, stream_send}, 1 << 20, on_reply, &n);
    run_until(&n.f, n.replies == 1);
    p9_client_call(n.client, &(struct p9_msg){.type = P9_Tattach, .Tattach.fid = 0}, on_reply, &n);
    for (int i = 0; i < 64; i++) /* 64 MiB of replies asked for at once: more than the session queues */
        p9_client_call(n.client, &(struct p9_msg){.type = P9_Tread, .Tread = {0, 0, 1 << 20}}, on_reply, &n);
    run_until(&n.f, n.replies == 66);
    CHECK_EQ(n.bytes, 64ull * ((1 << 20) - P9_IOHDR));
    n.server_stream = NULL;
    teardown(&n.f);
    p9_client_destroy(n.client);
    p9_server_destroy(n.server);
}

static const struct check_test tests[] = {
    TEST(bytes_arrive_in_order_whatever_the_kernel_takes),
    TEST(a_paused_stream_holds_the_sender_back),
    TEST(the_end_of_the_peer_is_told_once),
    TEST(a_failed_write_is_told_after_send),
    TEST(close_inside_input_ends_all_callbacks),
    TEST(a_bad_descriptor_is_refused),
    TEST(a_9p_session_runs_over_streams),
};

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    return check_run(tests, sizeof tests / sizeof tests[0], argc, argv);
}
