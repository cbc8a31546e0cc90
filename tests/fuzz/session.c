// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a 9P server session. The input is a script of messages, raw bytes, and decisions of
// a backend that answers some requests later and is cancelled meanwhile. At the end every request
// must have ended and every fid be free.
//
// Operations (one byte, then operands): below 0x80 a T-message (the operation chooses its type;
// tag, length, body); 0x80 raw bytes, 0x81 answer a deferred request, 0x82 change whether a type is
// deferred, 0x83 how cancel behaves, 0x84 the transport has sent, 0x85 Tversion, 0x86 qids of the
// next walks, 0x87 the end.
#include "fuzz/script.h"
#include "fuzz/target.h"
#include "unit/9p/backend.h"
#include "unit/check.h"

enum { RAW = 0x80, ANSWER, DEFER, CANCEL, SENT, VERSION, WALK, END };

/* Everything that the session sent must decode, and be a reply. */
static void check_output(struct peer *p)
{
    size_t at = 0;
    while (at < p->out_len) {
        struct p9_msg m;
        CHECK(p->out_len - at >= P9_HDR);
        size_t size = p9_peek_size(p->out + at);
        CHECK(size <= p->out_len - at);
        CHECK_EQ(p9_decode(p->out + at, size, &m), 0);
        CHECK_EQ(m.type % 2, 1);
        at += size;
    }
}

static void sent(struct peer *p)
{
    size_t len = p->out_len;
    check_output(p);
    p->out_len = 0; /* first: handlers that run inside send more */
    p9_server_sent(p->server, len);
}

static int message(struct peer *p, struct script *s, uint8_t type)
{
    size_t size;
    uint16_t tag = script_byte(s);
    uint8_t *m = script_message(s, type, tag, script_byte(s), &size);
    int rc = p9_server_input(p->server, m, size);
    free(m);
    return rc;
}

static int raw(struct peer *p, struct script *s)
{
    size_t len;
    const uint8_t *bytes = script_bytes(s, script_byte(s), &len);
    return peer_send_bytes(p, bytes, len);
}

static int version(struct peer *p)
{
    return peer_send(p, &(struct p9_msg){.type = P9_Tversion, .tag = P9_NOTAG, .Tversion = {P9_MSIZE_MIN, p9_str_of(P9_VERSION)}});
}

/* One operation. Negative when the session is dead, 1 at the script's end. */
static int step(struct peer *p, struct script *s)
{
    struct backend *b = &p->backend;
    uint8_t op = script_byte(s);
    b->n_called = 0;
    if (op < 0x80)
        return message(p, s, script_type(op, 0));
    switch (op) {
    case RAW: return raw(p, s);
    case ANSWER: {
        uint8_t which = script_byte(s), code = script_byte(s) & 1;
        if (b->n_waiting)
            backend_answer(b, which % b->n_waiting, code);
        return 0;
    }
    case DEFER: {
        uint8_t type = script_type(script_byte(s), 0);
        b->defer[type] = !b->defer[type];
        return 0;
    }
    case CANCEL: b->cancel = script_byte(s) % 3; return 0;
    case SENT: sent(p); return 0;
    case VERSION: return version(p);
    case WALK: b->walk_stops_at = script_byte(s) % (P9_WALK_MAX + 1); return 0;
    case END: return 1;
    default: return 0;
    }
}

/* A session that lives must get rid of everything once its backend answers and its output is taken.
 */
static void drain(struct peer *p)
{
    struct backend *b = &p->backend;
    memset(b->defer, 0, sizeof b->defer);
    while (b->n_waiting || p->out_len) {
        b->n_called = 0;
        if (b->n_waiting)
            backend_answer(b, 0, 0);
        sent(p);
    }
    CHECK_EQ(p9_server_requests(p->server), 0);
    CHECK(p9_server_wants_input(p->server));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct p9_server_config config = {.max_fids = 40, .max_requests = 24, .max_output = 4000};
    struct script s = {data, size};
    struct peer *p = peer_create(&config, NULL);
    int rc = 0;
    p->hold_output = true;
    if (script_byte(&s) % 8)
        version(p);
    while (s.left && rc == 0)
        rc = step(p, &s);
    check_output(p);
    if (rc >= 0 && p9_server_input(p->server, NULL, 0) == 0)
        drain(p);
    peer_destroy(p);
    return 0;
}
