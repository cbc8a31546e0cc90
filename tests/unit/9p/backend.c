// SPDX-License-Identifier: Apache-2.0
// The 9P backend and raw peer for tests: see backend.h.
#include "unit/9p/backend.h"

#include "unit/check.h"

#include <errno.h>

static const uint8_t zeros[P9_MSIZE_MAX + 16];

static void give_aux(struct backend *b, struct p9_fid *f)
{
    if (f->aux)
        return;
    f->aux = malloc(1); /* leak checkers see one that is not freed */
    b->live++;
}

static void fid_free(void *user, struct p9_fid *f)
{
    struct backend *b = user;
    free(f->aux);
    b->live--;
}

/* A successful reply of the request's type. */
static void succeed(struct backend *b, struct p9_request *r)
{
    struct p9_msg m = {0};
    switch (r->t->type) {
    case P9_Tattach: give_aux(b, r->fid); break;
    case P9_Txattrwalk: give_aux(b, r->newfid); break;
    case P9_Twalk:
        give_aux(b, r->newfid);
        m.Rwalk.qids.n = r->t->Twalk.names.n < b->walk_stops_at ? r->t->Twalk.names.n : (uint16_t)b->walk_stops_at;
        break;
    case P9_Tread:
        b->last_count = r->t->Tread.count;
        m.Rread.data = (struct p9_data){zeros, r->t->Tread.count + b->read_extra};
        break;
    case P9_Treaddir: b->last_count = r->t->Treaddir.count; break;
    case P9_Twrite: m.Rwrite.count = r->t->Twrite.data.len; break;
    case P9_Tgetlock: m.Rgetlock.client_id = r->t->Tgetlock.client_id; break;
    default: break;
    }
    p9_reply(r, &m);
}

static unsigned index_of(const struct backend *b, const struct p9_request *r)
{
    unsigned i = 0;
    while (i < b->n_waiting && b->waiting[i] != r)
        i++;
    CHECK(i < b->n_waiting);
    return i;
}

static void forget(struct backend *b, unsigned i)
{
    memmove(&b->waiting[i], &b->waiting[i + 1], (b->n_waiting - i - 1) * sizeof b->waiting[0]);
    b->n_waiting--;
}

void backend_answer(struct backend *b, unsigned i, int code)
{
    CHECK(i < b->n_waiting);
    struct p9_request *r = b->waiting[i];
    forget(b, i);
    if (code)
        p9_fail(r, code);
    else
        succeed(b, r);
}

static void cancel_now(struct p9_request *r)
{
    struct backend *b = r->user;
    CHECK(r->cancelled);
    b->cancels++;
    forget(b, index_of(b, r));
    p9_fail(r, EINTR);
}

static void cancel_later(struct p9_request *r)
{
    struct backend *b = r->user;
    CHECK(r->cancelled);
    b->cancels++;
    index_of(b, r);
}

static void handle(struct p9_request *r)
{
    struct backend *b = r->user;
    CHECK(b->n_called < BACKEND_MAX);
    b->called[b->n_called++] = r->t->type;
    if (b->destroy_in_handler) {
        p9_server_destroy(b->destroy_in_handler);
        b->destroy_in_handler = NULL;
    }
    if (!b->defer[r->t->type]) {
        succeed(b, r);
        return;
    }
    CHECK(b->n_waiting < BACKEND_MAX);
    b->waiting[b->n_waiting++] = r;
    r->cancel = b->cancel == CANCEL_NOW ? cancel_now : b->cancel == CANCEL_LATER ? cancel_later : NULL;
}

const struct p9_backend *backend_table(void)
{
    static const struct p9_backend table = {
        .on = {[P9_Tattach] = handle,      [P9_Twalk] = handle,     [P9_Txattrwalk] = handle, [P9_Tlopen] = handle,   [P9_Tlcreate] = handle,
               [P9_Txattrcreate] = handle, [P9_Tclunk] = handle,    [P9_Tremove] = handle,    [P9_Tstatfs] = handle,  [P9_Tsymlink] = handle,
               [P9_Tmknod] = handle,       [P9_Trename] = handle,   [P9_Treadlink] = handle,  [P9_Tgetattr] = handle, [P9_Tsetattr] = handle,
               [P9_Treaddir] = handle,     [P9_Tfsync] = handle,    [P9_Tlock] = handle,      [P9_Tgetlock] = handle, [P9_Tlink] = handle,
               [P9_Tmkdir] = handle,       [P9_Trenameat] = handle, [P9_Tunlinkat] = handle,  [P9_Tread] = handle,    [P9_Twrite] = handle},
        .fid_free = fid_free,
    };
    return &table;
}

void backend_init(struct backend *b)
{
    memset(b, 0, sizeof *b);
    b->walk_stops_at = P9_WALK_MAX;
}

/* ---- the raw peer ---- */

static void on_send(void *user, void *buf, size_t len)
{
    struct peer *p = user;
    if (p->out_len + len > p->out_cap) {
        p->out_cap = (p->out_len + len) * 2;
        p->out = realloc(p->out, p->out_cap);
    }
    memcpy(p->out + p->out_len, buf, len);
    p->out_len += len;
    p->sent_total += len;
    free(buf);
    if (p->report_in_send)
        p9_server_sent(p->server, len);
}

static void on_resume(void *user)
{
    struct peer *p = user;
    p->resumed++;
}

struct peer *peer_create(const struct p9_server_config *config, const struct p9_backend *table)
{
    struct peer *p = calloc(1, sizeof *p);
    struct p9_transport transport = {.user = p, .send = on_send};
    backend_init(&p->backend);
    p->server = p9_server_create(table ? table : backend_table(), &transport, config, &p->backend);
    p9_server_set_resume(p->server, on_resume, p);
    return p;
}

void peer_destroy(struct peer *p)
{
    p9_server_destroy(p->server);
    while (p->backend.n_waiting)
        backend_answer(&p->backend, 0, EIO);
    CHECK_EQ(p->backend.live, 0);
    free(p->out);
    free(p->reply_bytes);
    free(p);
}

struct peer *peer_attached(const struct p9_server_config *config)
{
    struct peer *p = peer_create(config, NULL);
    struct p9_msg version = {.type = P9_Tversion, .tag = P9_NOTAG, .Tversion = {65536, p9_str_of(P9_VERSION)}};
    struct p9_msg attach = {.type = P9_Tattach, .tag = 1, .Tattach = {.fid = 0, .afid = P9_NOFID}};
    CHECK_EQ(peer_send(p, &version), 0);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK_EQ(peer_send(p, &attach), 0);
    peer_expect(p, P9_Rattach, 1);
    p->backend.n_called = 0;
    return p;
}

int peer_send_bytes(struct peer *p, const void *bytes, size_t len)
{
    void *copy = malloc(len ? len : 1); /* freed at once: a session that keeps pointers into its input is caught */
    if (len)
        memcpy(copy, bytes, len);
    int rc = p9_server_input(p->server, copy, len);
    memset(copy, 0xee, len);
    free(copy);
    return rc;
}

int peer_send(struct peer *p, const struct p9_msg *m)
{
    size_t size = p9_encoded_size(m);
    void *buf = malloc(size);
    CHECK_EQ(p9_encode(m, buf, size), size);
    int rc = peer_send_bytes(p, buf, size);
    free(buf);
    return rc;
}

void peer_expect_at(const char *file, int line, struct peer *p, uint8_t type, uint16_t tag)
{
    if (!p->out_len) {
        fprintf(stderr, "%s:%d: no reply, expected %s tag %u\n", file, line, p9_type_name(type), tag);
        exit(1);
    }
    size_t size = p9_peek_size(p->out);
    check_true(file, line, "the reply is whole", size <= p->out_len);
    free(p->reply_bytes);
    p->reply_bytes = malloc(size);
    memcpy(p->reply_bytes, p->out, size);
    memmove(p->out, p->out + size, p->out_len - size);
    p->out_len -= size;
    check_int(file, line, "decoding the reply", p9_decode(p->reply_bytes, size, &p->reply), 0);
    if (p->reply.type != type)
        fprintf(stderr, "%s:%d: got %s (code %u), expected %s\n", file, line, p9_type_name(p->reply.type),
                p->reply.type == P9_Rlerror ? p->reply.Rlerror.ecode : 0, p9_type_name(type));
    check_int(file, line, "type of the reply", p->reply.type, type);
    check_int(file, line, "tag of the reply", p->reply.tag, tag);
    if (!p->hold_output)
        p9_server_sent(p->server, p->report_in_send ? 0 : size);
}

void peer_walk(struct peer *p, uint16_t tag, uint32_t fid, uint32_t newfid, const char *name)
{
    struct p9_msg m = {.type = P9_Twalk, .tag = tag, .Twalk = {.fid = fid, .newfid = newfid}};
    if (name) {
        m.Twalk.names.n = 1;
        m.Twalk.names.v[0] = p9_str_of(name);
    }
    CHECK_EQ(peer_send(p, &m), 0);
}

void peer_getattr(struct peer *p, uint16_t tag, uint32_t fid)
{
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tgetattr, .tag = tag, .Tgetattr.fid = fid}), 0);
}

void peer_lopen(struct peer *p, uint16_t tag, uint32_t fid)
{
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tlopen, .tag = tag, .Tlopen.fid = fid}), 0);
}

void peer_read(struct peer *p, uint16_t tag, uint32_t fid, uint32_t count)
{
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tread, .tag = tag, .Tread = {.fid = fid, .count = count}}), 0);
}

void peer_clunk(struct peer *p, uint16_t tag, uint32_t fid)
{
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tclunk, .tag = tag, .Tclunk.fid = fid}), 0);
}

void peer_flush(struct peer *p, uint16_t tag, uint16_t oldtag)
{
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tflush, .tag = tag, .Tflush.oldtag = oldtag}), 0);
}
