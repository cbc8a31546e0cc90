// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the 9P client against a hostile server. The input is a script of calls, cancels,
// replies, raw bytes, and lost and new connections. At the end every call must have had its
// callback exactly once.
//
// Operations (one byte, then operands): below 0x40 a call (the operation chooses its type), 0x40 to
// 0x7f an R-message (tag, length, body), 0x80 raw bytes, 0x81 cancel, 0x82 disconnect, 0x83
// connect, 0x84 Rversion, 0x85 clunk, 0x86 run_pending, 0x87 callbacks make calls, 0x88 callbacks
// reconnect.
#include "9p/client.h"
#include "fuzz/script.h"
#include "fuzz/target.h"
#include "unit/check.h"

#include <errno.h>

#define MAX_CALLS 512

enum { RAW = 0x80, CANCEL, DISCONNECT, CONNECT, VERSION, CLUNK, PENDING, CALLS_INSIDE, CONNECT_INSIDE };

struct world {
    struct p9_client *client;
    struct slot {
        struct world *world;
        struct p9_call *call; /* NULL once it ended */
        uint32_t asked;
    } slots[MAX_CALLS];
    unsigned made, ended, connects, ready;
    unsigned calls_inside, connects_inside; /* that callbacks may still make */
};

static void on_send(void *user, void *buf, size_t len)
{
    struct p9_msg m;
    (void)user;
    CHECK_EQ(p9_decode(buf, len, &m), 0);
    CHECK_EQ(m.type % 2, 0);
    free(buf);
}

static void make_call(struct world *w, uint8_t type);
static void reconnect(struct world *w);

static void on_reply(void *user, int err, const struct p9_msg *r)
{
    struct slot *s = user;
    struct world *w = s->world;
    CHECK_EQ(r == NULL, err != 0);
    CHECK(s->call);
    s->call = NULL;
    w->ended++;
    if (r && r->type == P9_Rread)
        CHECK(r->Rread.data.len <= s->asked);
    if (r && r->type == P9_Rwalk)
        CHECK(r->Rwalk.qids.n <= s->asked);
    if (w->calls_inside) {
        w->calls_inside--;
        make_call(w, P9_Tgetattr);
    }
    if (w->connects_inside) {
        w->connects_inside--;
        reconnect(w);
    }
}

static void on_ready(void *user, int err, const struct p9_msg *r)
{
    struct world *w = user;
    CHECK_EQ(r == NULL, err != 0);
    w->ready++;
}

static void reconnect(struct world *w)
{
    w->connects++;
    p9_client_connect(w->client, &(struct p9_transport){w, on_send}, 8192, on_ready, w);
}

static void make_call(struct world *w, uint8_t type)
{
    struct p9_msg m = {.type = type};
    if (w->made == MAX_CALLS || type == P9_Tversion || type == P9_Tflush)
        return;
    struct slot *s = &w->slots[w->made++];
    s->world = w;
    if (type == P9_Tread)
        m.Tread.count = s->asked = 16;
    if (type == P9_Twalk) {
        m.Twalk.names.n = 2;
        s->asked = 2;
        m.Twalk.names.v[0] = m.Twalk.names.v[1] = p9_str_of("d");
    }
    s->call = p9_client_call(w->client, &m, on_reply, s);
}

static void feed(struct world *w, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);
    uint32_t before = p9_client_generation(w->client);
    if (len)
        memcpy(copy, bytes, len);
    int rc = p9_client_input(w->client, copy, len);
    free(copy);
    if (rc < 0 && before == p9_client_generation(w->client))
        p9_client_disconnected(w->client);
}

static void reply(struct world *w, struct script *s, uint8_t type)
{
    size_t size;
    uint16_t tag = script_byte(s);
    uint8_t *m = script_message(s, type, tag, script_byte(s), &size);
    feed(w, m, size);
    free(m);
}

static void rversion(struct world *w)
{
    struct p9_msg m = {.type = P9_Rversion, .tag = P9_NOTAG, .Rversion = {8192, p9_str_of(P9_VERSION)}};
    uint8_t buf[64];
    feed(w, buf, (size_t)p9_encode(&m, buf, sizeof buf));
}

static void step(struct world *w, struct script *s)
{
    uint8_t op = script_byte(s);
    size_t len;
    if (op < 0x40) {
        make_call(w, script_type(op, 0));
        return;
    }
    if (op < 0x80) {
        reply(w, s, script_type(op - 0x40u, 1));
        return;
    }
    switch (op) {
    case RAW: {
        const uint8_t *bytes = script_bytes(s, script_byte(s), &len);
        feed(w, bytes, len);
        break;
    }
    case CANCEL: {
        unsigned i = script_byte(s) | (unsigned)script_byte(s) << 8;
        if (w->made && w->slots[i % w->made].call)
            p9_call_cancel(w->slots[i % w->made].call);
        break;
    }
    case DISCONNECT: p9_client_disconnected(w->client); break;
    case CONNECT: reconnect(w); break;
    case VERSION: rversion(w); break;
    case CLUNK: p9_client_clunk(w->client, p9_client_generation(w->client), p9_client_fid_alloc(w->client)); break;
    case PENDING: p9_client_run_pending(w->client); break;
    case CALLS_INSIDE: w->calls_inside = script_byte(s) % 4; break;
    case CONNECT_INSIDE: w->connects_inside = script_byte(s) % 4; break;
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script s = {data, size};
    struct world *w = calloc(1, sizeof *w);
    w->client = p9_client_create();
    if (script_byte(&s) % 8) {
        reconnect(w);
        rversion(w);
    }
    while (s.left)
        step(w, &s);
    p9_client_destroy(w->client);
    CHECK_EQ(w->ended, w->made);
    CHECK_EQ(w->ready, w->connects);
    free(w);
    return 0;
}
