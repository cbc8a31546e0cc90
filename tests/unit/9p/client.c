// SPDX-License-Identifier: Apache-2.0
// The 9P client against a server that the test plays by hand, and against our own server session.
#include "9p/client.h"
#include "unit/9p/backend.h"
#include "unit/check.h"

#include <errno.h>

/* What a callback got. */
struct result {
    int calls, err;
    uint8_t type;
    uint32_t data_len;
};

struct wire {
    struct p9_client *client;
    uint8_t *out; /* sent by the client; read by the test up to `out_pos` */
    size_t out_pos, out_len, out_cap;
    uint8_t *bytes;
    struct p9_msg t; /* the last message taken */
    struct result ready;
    unsigned wakes;
};

static void on_send(void *user, void *buf, size_t len)
{
    struct wire *w = user;
    if (w->out_len + len > w->out_cap) {
        w->out_cap = (w->out_len + len) * 2;
        w->out = realloc(w->out, w->out_cap);
    }
    memcpy(w->out + w->out_len, buf, len);
    w->out_len += len;
    free(buf);
}

static void on_result(void *user, int err, const struct p9_msg *r)
{
    struct result *result = user;
    CHECK_EQ(r != NULL, err == 0);
    result->calls++;
    result->err = err;
    result->type = r ? r->type : 0;
    result->data_len = r && r->type == P9_Rread ? r->Rread.data.len : 0;
}

static void on_wake(void *user)
{
    struct wire *w = user;
    w->wakes++;
}

#define expect_result(res, n, error)                                                                                                                 \
    do {                                                                                                                                             \
        CHECK_EQ((res)->calls, n);                                                                                                                   \
        CHECK_EQ((res)->err, error);                                                                                                                 \
    } while (0)

/* Takes the next message that the client sent. */
#define expect_sent(w, kind)                                                                                                                         \
    do {                                                                                                                                             \
        CHECK(take_sent(w));                                                                                                                         \
        CHECK_EQ((w)->t.type, kind);                                                                                                                 \
    } while (0)

static bool take_sent(struct wire *w)
{
    if (w->out_pos == w->out_len)
        return false;
    size_t size = p9_peek_size(w->out + w->out_pos);
    w->bytes = realloc(w->bytes, size);
    memcpy(w->bytes, w->out + w->out_pos, size);
    w->out_pos += size;
    if (w->out_pos == w->out_len)
        w->out_pos = w->out_len = 0;
    CHECK_EQ(p9_decode(w->bytes, size, &w->t), 0);
    return true;
}

static int answer(struct wire *w, const struct p9_msg *m)
{
    size_t size = p9_encoded_size(m);
    uint8_t *buf = malloc(size);
    CHECK_EQ(p9_encode(m, buf, size), size);
    int rc = p9_client_input(w->client, buf, size);
    free(buf);
    return rc;
}

static void connect_wire(struct wire *w)
{
    struct p9_transport transport = {.user = w, .send = on_send};
    p9_client_connect(w->client, &transport, 8192, on_result, &w->ready);
    expect_sent(w, P9_Tversion);
    CHECK_EQ(w->t.tag, P9_NOTAG);
}

static struct wire *wire_create(void)
{
    struct wire *w = calloc(1, sizeof *w);
    w->client = p9_client_create();
    p9_client_set_wake(w->client, on_wake, w);
    return w;
}

static void negotiate(struct wire *w)
{
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {8192, p9_str_of(P9_VERSION)}}), 0);
}

static struct wire *wire_connected(void)
{
    struct wire *w = wire_create();
    connect_wire(w);
    negotiate(w);
    expect_result(&w->ready, 1, 0);
    return w;
}

static void wire_destroy(struct wire *w)
{
    p9_client_destroy(w->client);
    free(w->out);
    free(w->bytes);
    free(w);
}

static struct p9_call *call_getattr(struct wire *w, struct result *res)
{
    return p9_client_call(w->client, &(struct p9_msg){.type = P9_Tgetattr}, on_result, res);
}

static struct p9_call *call_read(struct wire *w, uint32_t count, struct result *res)
{
    return p9_client_call(w->client, &(struct p9_msg){.type = P9_Tread, .Tread.count = count}, on_result, res);
}

static void calls_before_a_connection_fail_later(void)
{
    struct wire *w = wire_create();
    struct result res = {0};
    CHECK_EQ(p9_client_generation(w->client), 0);
    CHECK(call_getattr(w, &res));
    expect_result(&res, 0, 0);
    CHECK_EQ(w->wakes, 1);
    p9_client_run_pending(w->client);
    expect_result(&res, 1, -ENOTCONN);
    connect_wire(w); /* not before Rversion either */
    CHECK(!p9_client_is_connected(w->client));
    call_getattr(w, &res);
    negotiate(w); /* input runs what is pending */
    expect_result(&res, 2, -ENOTCONN);
    CHECK(p9_client_is_connected(w->client));
    CHECK_EQ(p9_client_generation(w->client), 1);
    CHECK_EQ(p9_client_iounit(w->client), 8192 - P9_IOHDR);
    wire_destroy(w);
}

static void replies_come_in_any_order(void)
{
    struct wire *w = wire_connected();
    struct result res[3] = {0};
    uint16_t tags[3];
    for (int i = 0; i < 3; i++) {
        call_getattr(w, &res[i]);
        expect_sent(w, P9_Tgetattr);
        tags[i] = w->t.tag;
    }
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rgetattr, .tag = tags[2]}), 0);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rlerror, .tag = tags[0], .Rlerror.ecode = ENOENT}), 0);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rgetattr, .tag = tags[1]}), 0);
    expect_result(&res[0], 1, -ENOENT);
    expect_result(&res[1], 1, 0);
    expect_result(&res[2], 1, 0);
    wire_destroy(w);
}

static void odd_error_codes_become_eio(void)
{
    static const uint32_t codes[] = {0, 4096, UINT32_MAX, 0x80000000u};
    struct wire *w = wire_connected();
    for (int i = 0; i < 4; i++) {
        struct result res = {0};
        call_getattr(w, &res);
        expect_sent(w, P9_Tgetattr);
        CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rlerror, .tag = w->t.tag, .Rlerror.ecode = codes[i]}), 0);
        expect_result(&res, 1, -EIO);
    }
    wire_destroy(w);
}

/* Sends `t`, answers with `r`, expects the connection to be broken and the call to end with the
 * disconnect. */
static void must_break(struct p9_msg t, struct p9_msg r)
{
    struct wire *w = wire_connected();
    struct result res = {0}, other = {0};
    call_getattr(w, &other);
    expect_sent(w, P9_Tgetattr);
    p9_client_call(w->client, &t, on_result, &res);
    expect_sent(w, t.type);
    r.tag = r.tag ? r.tag : w->t.tag;
    CHECK_EQ(answer(w, &r), -EPROTO);
    CHECK(!p9_client_is_connected(w->client));
    expect_result(&res, 0, 0);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rgetattr, .tag = w->t.tag}), -EPROTO);
    p9_client_disconnected(w->client);
    expect_result(&res, 1, -ECONNRESET);
    expect_result(&other, 1, -ECONNRESET);
    wire_destroy(w);
}

static void a_lying_server_breaks_the_connection(void)
{
    static const uint8_t data[101];
    struct p9_msg read = {.type = P9_Tread, .Tread.count = 100};
    struct p9_msg write = {.type = P9_Twrite, .Twrite.data = {data, 100}};
    struct p9_msg walk = {.type = P9_Twalk, .Twalk.names = {.n = 1, .v = {p9_str_of("x")}}};
    must_break(read, (struct p9_msg){.type = P9_Rread, .Rread.data = {data, 101}});
    must_break(read, (struct p9_msg){.type = P9_Rreaddir, .Rreaddir.data = {data, 10}});
    must_break(read, (struct p9_msg){.type = P9_Rread, .tag = 999, .Rread.data = {data, 1}}); /* unknown tag */
    must_break(read, (struct p9_msg){.type = P9_Rread, .tag = P9_NOTAG});
    must_break(read, (struct p9_msg){.type = P9_Tread}); /* a request from a server */
    must_break(read, (struct p9_msg){.type = P9_Rflush});
    must_break(read, (struct p9_msg){.type = P9_Rversion, .Rversion = {8192, p9_str_of(P9_VERSION)}});
    must_break(write, (struct p9_msg){.type = P9_Rwrite, .Rwrite.count = 101});
    must_break(walk, (struct p9_msg){.type = P9_Rwalk, .Rwalk.qids.n = 2});
}

static void malformed_bytes_break_the_connection(void)
{
    static const uint8_t bad[][8] = {{0, 0, 0, 0},
                                     {6, 0, 0, 0, 117, 0},
                                     {0xff, 0xff, 0xff, 0xff, 117},
                                     {1, 0x20, 0, 0, 117}, /* one above msize */
                                     {7, 0, 0, 0, 117, 0, 0},
                                     {7, 0, 0, 0, 99, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct wire *w = wire_connected();
        CHECK_EQ(p9_client_input(w->client, bad[i], 7), -EPROTO);
        CHECK_EQ(p9_client_input(w->client, bad[i], 7), -EPROTO);
        wire_destroy(w);
    }
}

static void a_bad_rversion_is_refused(void)
{
    const struct p9_msg bad[] = {
        {.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {8193, p9_str_of(P9_VERSION)}},
        {.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {P9_MSIZE_MIN - 1, p9_str_of(P9_VERSION)}},
        {.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {8192, p9_str_of("unknown")}},
        {.type = P9_Rlerror, .tag = P9_NOTAG, .Rlerror.ecode = EIO},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct wire *w = wire_create();
        connect_wire(w);
        CHECK_EQ(answer(w, &bad[i]), -EPROTO);
        expect_result(&w->ready, 1, -EPROTO);
        CHECK(!p9_client_is_connected(w->client));
        p9_client_disconnected(w->client);
        expect_result(&w->ready, 1, -EPROTO);
        wire_destroy(w);
    }
}

static void messages_larger_than_msize_are_not_sent(void)
{
    static const uint8_t data[8192];
    struct wire *w = wire_connected();
    struct result res = {0};
    p9_client_call(w->client, &(struct p9_msg){.type = P9_Twrite, .Twrite.data = {data, 8192 - P9_IOHDR + 2}}, on_result, &res);
    p9_client_run_pending(w->client);
    expect_result(&res, 1, -EMSGSIZE);
    CHECK_EQ(w->out_len, 0);
    p9_client_call(w->client, &(struct p9_msg){.type = P9_Twrite, .Twrite.data = {data, p9_client_iounit(w->client)}}, on_result, &res);
    expect_sent(w, P9_Twrite);
    wire_destroy(w);
}

static void a_cancelled_call_ends_with_rflush(void)
{
    struct wire *w = wire_connected();
    struct result res = {0};
    struct p9_call *call = call_read(w, 10, &res);
    expect_sent(w, P9_Tread);
    uint16_t tag = w->t.tag;
    p9_call_cancel(call);
    p9_call_cancel(call);
    expect_sent(w, P9_Tflush);
    CHECK_EQ(w->t.Tflush.oldtag, tag);
    CHECK_EQ(w->out_len, 0);
    expect_result(&res, 0, 0);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rflush, .tag = w->t.tag}), 0);
    expect_result(&res, 1, -EINTR);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rread, .tag = tag}), -EPROTO); /* Rflush was the last word */
    wire_destroy(w);
}

static void a_reply_before_rflush_is_the_result(void)
{
    struct wire *w = wire_connected();
    struct result res = {0}, next = {0};
    struct p9_call *call = call_read(w, 10, &res);
    expect_sent(w, P9_Tread);
    uint16_t tag = w->t.tag;
    p9_call_cancel(call);
    expect_sent(w, P9_Tflush);
    uint16_t flush = w->t.tag;
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rread, .tag = tag, .Rread.data = {"abc", 3}}), 0);
    expect_result(&res, 1, 0);
    CHECK_EQ(res.data_len, 3);
    for (int i = 0; i < 600; i++) { /* past a growth of the tag table: the old tag must not come back yet */
        call_getattr(w, &next);
        expect_sent(w, P9_Tgetattr);
        CHECK(w->t.tag != tag);
    }
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rflush, .tag = flush}), 0);
    expect_result(&res, 1, 0);
    call_getattr(w, &next);
    expect_sent(w, P9_Tgetattr);
    CHECK_EQ(w->t.tag, tag);
    wire_destroy(w);
}

static void cancel_and_reset_end_a_call_once(void)
{
    struct wire *w = wire_connected();
    struct result res = {0};
    struct p9_call *call = call_read(w, 10, &res);
    p9_call_cancel(call);
    p9_client_disconnected(w->client);
    expect_result(&res, 1, -ECONNRESET);
    call = call_read(w, 10, &res);
    p9_call_cancel(call); /* of a call that has failed already */
    p9_client_run_pending(w->client);
    expect_result(&res, 2, -ENOTCONN);
    wire_destroy(w);
}

struct chain {
    struct wire *wire;
    struct p9_call *other; /* to be cancelled inside */
    struct result next;
    bool reconnect;
};

static void on_chain(void *user, int err, const struct p9_msg *r)
{
    struct chain *c = user;
    (void)r;
    CHECK_EQ(err, -ECONNRESET);
    if (c->other)
        p9_call_cancel(c->other);
    if (c->reconnect)
        connect_wire(c->wire);
    call_getattr(c->wire, &c->next);
}

static void callbacks_may_call_cancel_and_connect(void)
{
    for (int reconnect = 0; reconnect < 2; reconnect++) {
        struct wire *w = wire_connected();
        struct result other = {0};
        struct chain chain = {.wire = w, .reconnect = reconnect};
        p9_client_call(w->client, &(struct p9_msg){.type = P9_Tgetattr}, on_chain, &chain);
        expect_sent(w, P9_Tgetattr);
        chain.other = call_getattr(w, &other);
        expect_sent(w, P9_Tgetattr);
        p9_client_disconnected(w->client);
        expect_result(&other, 1, -ECONNRESET);
        p9_client_run_pending(w->client);
        expect_result(&chain.next, 1, -ENOTCONN);
        CHECK_EQ(p9_client_generation(w->client), reconnect ? 2 : 1);
        if (reconnect) {
            negotiate(w);
            CHECK(p9_client_is_connected(w->client));
        }
        wire_destroy(w);
    }
}

static void on_reply_reconnect(void *user, int err, const struct p9_msg *r)
{
    (void)r;
    CHECK_EQ(err, 0);
    connect_wire(user);
}

static void bytes_of_an_old_connection_are_dropped(void)
{
    struct wire *w = wire_connected();
    uint8_t bytes[512];
    struct p9_msg reply = {.type = P9_Rgetattr};
    p9_client_call(w->client, &(struct p9_msg){.type = P9_Tgetattr}, on_reply_reconnect, w);
    expect_sent(w, P9_Tgetattr);
    reply.tag = w->t.tag;
    size_t n = (size_t)p9_encode(&reply, bytes, sizeof bytes);
    struct p9_msg version = {.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {8192, p9_str_of(P9_VERSION)}};
    long behind = p9_encode(&version, bytes + n, sizeof bytes - n); /* would be taken for the new one's */
    CHECK(behind > 0);
    CHECK_EQ(p9_client_input(w->client, bytes, n - 5), 0);
    /* Completes a split message, whose buffer is in use while the callback connects. */
    CHECK_EQ(p9_client_input(w->client, bytes + n - 5, 5 + (size_t)behind), 0);
    CHECK(!p9_client_is_connected(w->client));
    CHECK_EQ(p9_client_generation(w->client), 2);
    negotiate(w);
    CHECK(p9_client_is_connected(w->client));
    wire_destroy(w);
}

static void connecting_drops_the_earlier_connection(void)
{
    struct wire *w = wire_connected();
    struct result res = {0};
    call_getattr(w, &res);
    expect_sent(w, P9_Tgetattr);
    connect_wire(w);
    expect_result(&res, 1, -ECONNRESET);
    connect_wire(w); /* before Rversion: its `ready` is told */
    expect_result(&w->ready, 2, -ECONNRESET);
    negotiate(w);
    expect_result(&w->ready, 3, 0);
    CHECK_EQ(p9_client_generation(w->client), 3);
    wire_destroy(w);
}

static void fid_numbers_are_per_connection(void)
{
    struct wire *w = wire_connected();
    uint32_t a = p9_client_fid_alloc(w->client), b = p9_client_fid_alloc(w->client);
    CHECK(a != b);
    p9_client_fid_free(w->client, a);
    CHECK_EQ(p9_client_fid_alloc(w->client), a);
    for (int i = 0; i < 1000; i++)
        p9_client_fid_alloc(w->client);
    connect_wire(w);
    negotiate(w);
    uint32_t c = p9_client_fid_alloc(w->client);
    p9_client_fid_free(w->client, a); /* late frees of the old connection */
    p9_client_fid_free(w->client, b);
    p9_client_fid_free(w->client, P9_NOFID);
    for (int i = 0; i < 1000; i++)
        CHECK(p9_client_fid_alloc(w->client) != c);
    wire_destroy(w);
}

static void clunk_frees_the_number_after_its_reply(void)
{
    struct wire *w = wire_connected();
    uint32_t fid = p9_client_fid_alloc(w->client), old = p9_client_generation(w->client);
    p9_client_clunk(w->client, old, fid);
    expect_sent(w, P9_Tclunk);
    CHECK_EQ(w->t.Tclunk.fid, fid);
    CHECK(p9_client_fid_alloc(w->client) != fid);
    CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rlerror, .tag = w->t.tag, .Rlerror.ecode = EIO}), 0);
    CHECK_EQ(p9_client_fid_alloc(w->client), fid);
    connect_wire(w);
    negotiate(w);
    p9_client_clunk(w->client, old, fid); /* void */
    CHECK_EQ(w->out_len, 0);
    p9_client_clunk(w->client, p9_client_generation(w->client), p9_client_fid_alloc(w->client));
    expect_sent(w, P9_Tclunk);
    p9_client_disconnected(w->client); /* while it is in flight */
    wire_destroy(w);
}

static void all_tags_in_flight_can_be_cancelled(void)
{
    static struct result res[66000];
    static struct p9_call *calls[66000];
    struct wire *w = wire_connected();
    unsigned n = 0, failed = 0;
    for (; n < 66000; n++) {
        calls[n] = call_read(w, 1, &res[n]);
        while (take_sent(w))
            ;
    }
    p9_client_run_pending(w->client);
    for (unsigned i = 0; i < n; i++) {
        failed += res[i].err == -EAGAIN;
        CHECK_EQ(res[i].calls, res[i].err ? 1 : 0);
    }
    CHECK_EQ(n - failed, 65280);
    for (unsigned i = 0; i < n - failed; i++)
        p9_call_cancel(calls[i]);
    unsigned flushes = 0;
    while (take_sent(w)) { /* a server that answers nothing but flushes */
        CHECK_EQ(w->t.type, P9_Tflush);
        flushes++;
        CHECK_EQ(answer(w, &(struct p9_msg){.type = P9_Rflush, .tag = w->t.tag}), 0);
    }
    CHECK_EQ(flushes, 65280);
    for (unsigned i = 0; i < n; i++)
        CHECK_EQ(res[i].err, i < 65280 ? -EINTR : -EAGAIN);
    wire_destroy(w);
}

static void destroy_ends_everything(void)
{
    struct wire *w = wire_connected();
    struct result res[2] = {0};
    struct chain chain = {.wire = w};
    call_getattr(w, &res[0]);
    p9_client_call(w->client, &(struct p9_msg){.type = P9_Tgetattr}, on_chain, &chain);
    p9_call_cancel(call_read(w, 4, &res[1]));
    wire_destroy(w);
    expect_result(&res[0], 1, -ECONNRESET);
    expect_result(&res[1], 1, -ECONNRESET);
    expect_result(&chain.next, 1, -ENOTCONN);
}

/* ---- against our own server ---- */

/* Moves bytes both ways, `step` at a time, until nothing moves. */
static void pump(struct wire *w, struct peer *p, size_t step)
{
    for (bool moved = true; moved;) {
        size_t up = w->out_len - w->out_pos < step ? w->out_len - w->out_pos : step, down = p->out_len < step ? p->out_len : step;
        moved = up || down;
        if (up) {
            CHECK_EQ(peer_send_bytes(p, w->out + w->out_pos, up), 0);
            w->out_pos += up;
        }
        if (down) {
            uint8_t *bytes = malloc(down);
            memcpy(bytes, p->out, down);
            memmove(p->out, p->out + down, p->out_len - down);
            p->out_len -= down;
            CHECK_EQ(p9_client_input(w->client, bytes, down), 0);
            p9_server_sent(p->server, down);
            free(bytes);
        }
    }
}

static void a_pipelined_open_works_at_any_split(void)
{
    static const size_t steps[] = {1, 2, 7, 100, 1 << 20};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct wire *w = wire_create();
        struct peer *p = peer_create(NULL, NULL);
        struct p9_transport transport = {.user = w, .send = on_send};
        struct result res[6] = {0};
        p9_client_connect(w->client, &transport, 8192, on_result, &w->ready);
        pump(w, p, steps[i]);
        expect_result(&w->ready, 1, 0);
        struct p9_msg m[] = {
            {.type = P9_Tattach, .Tattach = {.fid = p9_client_fid_alloc(w->client), .afid = P9_NOFID}},
            {.type = P9_Twalk, .Twalk = {.newfid = p9_client_fid_alloc(w->client), .names = {1, {p9_str_of("f")}}}},
            {.type = P9_Tgetattr, .Tgetattr.fid = 1},
            {.type = P9_Tlopen, .Tlopen.fid = 1},
            {.type = P9_Tread, .Tread = {.fid = 1, .count = 8000}},
            {.type = P9_Tread, .Tread = {.fid = 17, .count = 8000}},
        };
        for (int k = 0; k < 6; k++)
            p9_client_call(w->client, &m[k], on_result, &res[k]);
        pump(w, p, steps[i]);
        for (int k = 0; k < 6; k++)
            expect_result(&res[k], 1, k == 5 ? -EBADF : 0);
        CHECK_EQ(res[4].data_len, 8000);
        p->backend.defer[P9_Tread] = true; /* cancel against the real thing, both ways it can end */
        for (p->backend.cancel = CANCEL_NOW; p->backend.cancel <= CANCEL_LATER; p->backend.cancel++) {
            struct result r = {0};
            struct p9_call *call = p9_client_call(w->client, &m[4], on_result, &r);
            pump(w, p, steps[i]);
            p9_call_cancel(call);
            pump(w, p, steps[i]);
            if (p->backend.cancel == CANCEL_LATER)
                backend_answer(&p->backend, 0, 0);
            pump(w, p, steps[i]);
            expect_result(&r, 1, p->backend.cancel == CANCEL_NOW ? -EINTR : 0);
        }
        p9_client_clunk(w->client, 1, 1);
        pump(w, p, steps[i]);
        CHECK_EQ(p9_server_fids(p->server), 1);
        peer_destroy(p);
        wire_destroy(w);
    }
}

static const struct check_test tests[] = {
    TEST(calls_before_a_connection_fail_later),
    TEST(replies_come_in_any_order),
    TEST(odd_error_codes_become_eio),
    TEST(a_lying_server_breaks_the_connection),
    TEST(malformed_bytes_break_the_connection),
    TEST(a_bad_rversion_is_refused),
    TEST(messages_larger_than_msize_are_not_sent),
    TEST(a_cancelled_call_ends_with_rflush),
    TEST(a_reply_before_rflush_is_the_result),
    TEST(cancel_and_reset_end_a_call_once),
    TEST(callbacks_may_call_cancel_and_connect),
    TEST(bytes_of_an_old_connection_are_dropped),
    TEST(connecting_drops_the_earlier_connection),
    TEST(fid_numbers_are_per_connection),
    TEST(clunk_frees_the_number_after_its_reply),
    TEST(all_tags_in_flight_can_be_cancelled),
    TEST(destroy_ends_everything),
    TEST(a_pipelined_open_works_at_any_split),
};

CHECK_MAIN(tests)
