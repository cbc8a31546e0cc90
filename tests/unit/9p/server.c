// SPDX-License-Identifier: Apache-2.0
// A 9P server session: negotiation, framing, fids, names, limits, life and death.
#include "unit/9p/backend.h"
#include "unit/check.h"

#include <errno.h>

static int send_version(struct peer *p, uint32_t msize, const char *version)
{
    struct p9_msg m = {.type = P9_Tversion, .tag = P9_NOTAG, .Tversion = {msize, p9_str_of(version)}};
    return peer_send(p, &m);
}

static void version_takes_the_smaller_msize(void)
{
    struct peer *p = peer_create(NULL, NULL);
    CHECK_EQ(send_version(p, 8192, P9_VERSION), 0);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK_EQ(p->reply.Rversion.msize, 8192);
    CHECK(p9_str_eq(p->reply.Rversion.version, P9_VERSION));
    CHECK_EQ(send_version(p, UINT32_MAX, P9_VERSION), 0);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK_EQ(p->reply.Rversion.msize, P9_MSIZE_MAX);
    peer_destroy(p);
}

static void version_refuses_what_it_does_not_speak(void)
{
    struct peer *p = peer_create(NULL, NULL);
    CHECK_EQ(send_version(p, 8192, "9P2000"), 0);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK(p9_str_eq(p->reply.Rversion.version, "unknown"));
    CHECK_EQ(send_version(p, P9_MSIZE_MIN - 1, P9_VERSION), 0);
    peer_expect_error(p, P9_NOTAG, EMSGSIZE);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tclunk, .tag = 1}), -EBADMSG);
    peer_destroy(p);
}

static void requests_before_version_kill_the_session(void)
{
    struct peer *p = peer_create(NULL, NULL);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1}), -EBADMSG);
    CHECK_EQ(send_version(p, 8192, P9_VERSION), -EBADMSG); /* dead is dead */
    peer_expect_silence(p);
    peer_destroy(p);
}

static void malformed_messages_kill_the_session(void)
{
    static const struct {
        uint8_t bytes[16];
        size_t len;
        int error;
    } bad[] = {
        {{0, 0, 0, 0}, 4, -EBADMSG},                                /* size 0 */
        {{6, 0, 0, 0, 120, 1}, 6, -EBADMSG},                        /* shorter than a header */
        {{7, 0, 0, 0, 120, 9, 0}, 7, -EBADMSG},                     /* Tclunk without a fid */
        {{0xff, 0xff, 0xff, 0xff, 120, 9, 0}, 7, -EMSGSIZE},        /* size near UINT32_MAX */
        {{1, 0, 1, 0}, 4, -EMSGSIZE},                               /* one more than msize 65536 */
        {{7, 0, 0, 0, 99, 9, 0}, 7, -EBADMSG},                      /* no such type */
        {{7, 0, 0, 0, 121, 9, 0}, 7, -EBADMSG},                     /* Rclunk from a client */
        {{11, 0, 0, 0, 7, 9, 0, 5, 0, 0, 0}, 11, -EBADMSG},         /* Rlerror from a client */
        {{11, 0, 0, 0, 120, 0xff, 0xff, 0, 0, 0, 0}, 11, -EBADMSG}, /* NOTAG */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct peer *p = peer_attached(NULL);
        CHECK_EQ(peer_send_bytes(p, bad[i].bytes, bad[i].len), bad[i].error);
        CHECK_EQ(peer_send_bytes(p, bad[i].bytes, 1), bad[i].error);
        CHECK_EQ(p9_server_fids(p->server), 0);
        peer_destroy(p);
    }
}

static void a_tag_in_use_kills_the_session(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tgetattr] = true;
    peer_getattr(p, 5, 0);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tgetattr, .tag = 5}), -EBADMSG);
    CHECK_EQ(p->backend.cancels, 1);
    peer_destroy(p);
}

static void any_split_of_the_input_works(void)
{
    struct p9_msg m[3] = {{.type = P9_Tversion, .tag = P9_NOTAG, .Tversion = {65536, p9_str_of(P9_VERSION)}},
                          {.type = P9_Tattach, .tag = 1, .Tattach = {.fid = 0, .uname = p9_str_of("someone")}},
                          {.type = P9_Twrite, .tag = 2, .Twrite = {.fid = 0}}};
    static const uint8_t payload[3000];
    uint8_t bytes[4096];
    size_t n = 0;
    m[2].Twrite.data = (struct p9_data){payload, sizeof payload};
    for (int i = 0; i < 3; i++)
        n += (size_t)p9_encode(&m[i], bytes + n, sizeof bytes - n);
    for (size_t step = 1; step <= n; step = step < 40 ? step + 1 : step * 2) {
        struct peer *p = peer_create(NULL, NULL);
        for (size_t at = 0; at < n; at += step)
            CHECK_EQ(peer_send_bytes(p, bytes + at, n - at < step ? n - at : step), 0);
        peer_expect(p, P9_Rversion, P9_NOTAG);
        peer_expect(p, P9_Rattach, 1);
        peer_expect(p, P9_Rwrite, 2);
        CHECK_EQ(p->reply.Rwrite.count, sizeof payload);
        peer_destroy(p);
    }
}

/* As a transport does that reads to where the session says; small pieces. */
static void read_to_place(struct peer *p, const uint8_t *bytes, size_t n)
{
    size_t space;
    for (uint8_t *place; n && (place = p9_server_space(p->server, &space));) {
        size_t take = space < 5000 ? space : 5000;
        take = take < n ? take : n;
        memcpy(place, bytes, take);
        CHECK_EQ(p9_server_filled(p->server, take), 0);
        bytes += take;
        n -= take;
    }
    CHECK_EQ(n, 0);
}

static void a_large_message_is_read_to_its_place(void)
{
    enum { LEN = 50000 };
    struct peer *p = peer_attached(NULL);
    static uint8_t payload[LEN], bytes[LEN + 64];
    struct p9_msg m = {.type = P9_Twrite, .tag = 3, .Twrite = {.fid = 0, .data = {payload, LEN}}};
    size_t space;
    for (size_t i = 0; i < LEN; i++)
        payload[i] = (uint8_t)(i * 7);
    size_t n = (size_t)p9_encode(&m, bytes, sizeof bytes);
    p->backend.defer[P9_Twrite] = true;
    for (uint8_t tag = 3; tag < 5; tag++) { /* the second time in a buffer that was used before */
        bytes[5] = tag;
        CHECK(!p9_server_space(p->server, &space));
        CHECK_EQ(peer_send_bytes(p, bytes, 3), 0);
        CHECK(!p9_server_space(p->server, &space));
        CHECK_EQ(peer_send_bytes(p, bytes + 3, 100), 0);
        CHECK(p9_server_space(p->server, &space));
        CHECK_EQ(space, n - 103);
        read_to_place(p, bytes + 103, n - 103);
        CHECK_EQ(p->backend.n_waiting, 1);
        const struct p9_data *d = &p->backend.waiting[0]->t->Twrite.data;
        CHECK_MEM(d->p, d->len, payload, LEN);
        CHECK_EQ((uintptr_t)d->p % 4096, 0);
        backend_answer(&p->backend, 0, 0);
        peer_expect(p, P9_Rwrite, tag);
    }
    peer_destroy(p);
}

static void small_messages_have_no_place(void)
{
    struct peer *p = peer_attached(NULL);
    struct p9_msg m = {.type = P9_Twrite, .tag = 3, .Twrite = {.fid = 0, .data = {"the bytes", 9}}};
    uint8_t bytes[64];
    size_t n = (size_t)p9_encode(&m, bytes, sizeof bytes), space;
    CHECK_EQ(peer_send_bytes(p, bytes, 20), 0);
    CHECK(!p9_server_space(p->server, &space));
    CHECK_EQ(peer_send_bytes(p, bytes + 20, n - 20), 0);
    peer_expect(p, P9_Rwrite, 3);
    peer_destroy(p);
}

static void *part_owner;

static void on_send_part(void *user, void *buf, const void *at, size_t len)
{
    struct peer *p = user;
    CHECK(buf == part_owner);
    p->out = realloc(p->out, p->out_len + len);
    memcpy(p->out + p->out_len, at, len);
    p->out_len = p->out_cap = p->out_len + len;
    free(buf);
    part_owner = NULL;
    p9_server_sent(p->server, len);
}

static void read_in_place(struct p9_request *r)
{
    char *buf = malloc(P9_IOHDR + 300);
    memset(buf + P9_IOHDR, 'x', 300);
    part_owner = buf;
    p9_reply_data(r, buf, buf + P9_IOHDR, 300);
}

static void data_is_sent_from_where_it_lies(void)
{
    struct p9_backend table = *backend_table();
    struct p9_msg m = {.type = P9_Tread, .tag = 7, .Tread = {.fid = 0, .count = 300}};
    char want[300];
    memset(want, 'x', sizeof want);
    table.on[P9_Tread] = read_in_place;
    for (int with_part = 0; with_part < 2; with_part++) {
        struct peer *p = peer_create(NULL, &table);
        send_version(p, 8192, P9_VERSION);
        peer_expect(p, P9_Rversion, P9_NOTAG);
        CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1}), 0);
        peer_expect(p, P9_Rattach, 1);
        if (with_part)
            p9_server_set_send_part(p->server, on_send_part);
        m.Tread.count = 300;
        CHECK_EQ(peer_send(p, &m), 0);
        CHECK_EQ(!part_owner, with_part); /* the transport had it, or the library freed it */
        peer_expect(p, P9_Rread, 7);
        CHECK_MEM(p->reply.Rread.data.p, p->reply.Rread.data.len, want, sizeof want);
        m.Tread.count = 299; /* more than asked for is an error, and the buffer goes */
        CHECK_EQ(peer_send(p, &m), 0);
        peer_expect_error(p, 7, EIO);
        peer_destroy(p);
    }
}

static void a_deferred_request_keeps_its_bytes(void)
{
    struct peer *p = peer_attached(NULL);
    struct p9_msg m = {.type = P9_Twrite, .tag = 3, .Twrite = {.fid = 0, .data = {"the bytes", 9}}};
    uint8_t bytes[64];
    size_t n = (size_t)p9_encode(&m, bytes, sizeof bytes);
    p->backend.defer[P9_Twrite] = true;
    CHECK_EQ(peer_send(p, &m), 0); /* the input buffer is destroyed after this */
    bytes[5] = 4;
    CHECK_EQ(peer_send_bytes(p, bytes, 10), 0); /* and once more in two pieces */
    CHECK_EQ(peer_send_bytes(p, bytes + 10, n - 10), 0);
    for (unsigned i = 0; i < 2; i++) {
        const struct p9_data *d = &p->backend.waiting[i]->t->Twrite.data;
        CHECK_MEM(d->p, d->len, "the bytes", 9);
    }
    peer_destroy(p);
}

static void missing_handlers_answer_for_themselves(void)
{
    static const struct p9_backend nothing;
    struct peer *p = peer_create(NULL, &nothing);
    send_version(p, 8192, P9_VERSION);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tauth, .tag = 1, .Tauth.afid = 4}), 0);
    peer_expect_error(p, 1, ENOENT);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1}), 0);
    peer_expect_error(p, 1, EOPNOTSUPP);
    CHECK_EQ(p9_server_fids(p->server), 0);
    peer_destroy(p);
}

static void attach_holder(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

static void clunk_needs_no_handler_and_remove_frees_the_fid_anyway(void)
{
    static const struct p9_backend table = {.on = {[P9_Tattach] = attach_holder}};
    struct peer *p = peer_create(NULL, &table);
    send_version(p, 8192, P9_VERSION);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1, .Tattach.fid = 7}), 0);
        peer_expect(p, P9_Rattach, 1);
        CHECK_EQ(p9_server_fids(p->server), 1);
        if (i == 0) {
            peer_clunk(p, 2, 7);
            peer_expect(p, P9_Rclunk, 2);
        } else {
            CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tremove, .tag = 2, .Tremove.fid = 7}), 0);
            peer_expect_error(p, 2, EOPNOTSUPP);
        }
        CHECK_EQ(p9_server_fids(p->server), 0);
    }
    peer_clunk(p, 2, 7);
    peer_expect_error(p, 2, EBADF);
    peer_destroy(p);
}

static void a_fid_number_cannot_be_taken_twice(void)
{
    struct peer *p = peer_attached(NULL);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1, .Tattach.fid = 0}), 0);
    peer_expect_error(p, 1, EBADF);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1, .Tattach.fid = P9_NOFID}), 0);
    peer_expect_error(p, 1, EBADF);
    peer_walk(p, 1, 0, 1, "x");
    peer_expect(p, P9_Rwalk, 1);
    peer_walk(p, 1, 0, 1, "x");
    peer_expect_error(p, 1, EBADF);
    CHECK_EQ(p9_server_fids(p->server), 2);
    peer_destroy(p);
}

static void a_failed_attach_leaves_nothing(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tattach] = true;
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1, .Tattach.fid = 9}), 0);
    CHECK_EQ(p9_server_fids(p->server), 2);
    p->backend.waiting[0]->fid->aux = malloc(1); /* set before the failure was known */
    p->backend.live++;
    backend_answer(&p->backend, 0, EACCES);
    peer_expect_error(p, 1, EACCES);
    CHECK_EQ(p9_server_fids(p->server), 1);
    CHECK_EQ(p->backend.live, 1);
    peer_destroy(p);
}

static void a_short_walk_makes_no_fid(void)
{
    struct peer *p = peer_attached(NULL);
    struct p9_msg walk = {.type = P9_Twalk, .tag = 1, .Twalk = {.fid = 0, .newfid = 5, .names.n = 3}};
    for (int i = 0; i < 3; i++)
        walk.Twalk.names.v[i] = p9_str_of("d");
    p->backend.walk_stops_at = 2;
    CHECK_EQ(peer_send(p, &walk), 0);
    peer_expect(p, P9_Rwalk, 1);
    CHECK_EQ(p->reply.Rwalk.qids.n, 2);
    CHECK_EQ(p9_server_fids(p->server), 1);
    CHECK_EQ(p->backend.live, 1);
    p->backend.walk_stops_at = 0; /* not even the first name: an Rwalk would look like a clone */
    CHECK_EQ(peer_send(p, &walk), 0);
    peer_expect_error(p, 1, ENOENT);
    p->backend.walk_stops_at = P9_WALK_MAX;
    CHECK_EQ(peer_send(p, &walk), 0);
    peer_expect(p, P9_Rwalk, 1);
    CHECK_EQ(p9_server_fids(p->server), 2);
    peer_destroy(p);
}

static void walks_from_and_to_opened_fids(void)
{
    struct peer *p = peer_attached(NULL);
    peer_walk(p, 1, 0, 1, NULL);
    peer_expect(p, P9_Rwalk, 1);
    peer_walk(p, 1, 1, 1, "x"); /* in place, not opened */
    peer_expect(p, P9_Rwalk, 1);
    peer_lopen(p, 1, 1);
    peer_expect(p, P9_Rlopen, 1);
    peer_walk(p, 1, 1, 1, "x");
    peer_expect_error(p, 1, EBADF);
    peer_walk(p, 1, 1, 2, "x");
    peer_expect(p, P9_Rwalk, 1);
    peer_lopen(p, 1, 1);
    peer_expect_error(p, 1, EBADF);
    CHECK_EQ(p9_server_fids(p->server), 3);
    peer_destroy(p);
}

static void a_failed_walk_in_place_keeps_the_fid(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 0, "x");
    backend_answer(&p->backend, 0, ENOENT);
    peer_expect_error(p, 1, ENOENT);
    peer_getattr(p, 1, 0);
    peer_expect(p, P9_Rgetattr, 1);
    peer_destroy(p);
}

static void fids_are_bounded(void)
{
    struct p9_server_config config = {.max_fids = 3};
    struct peer *p = peer_attached(&config);
    for (uint32_t fid = 1; fid < 3; fid++) {
        peer_walk(p, 1, 0, fid, NULL);
        peer_expect(p, P9_Rwalk, 1);
    }
    peer_walk(p, 1, 0, 3, NULL);
    peer_expect_error(p, 1, ENFILE);
    peer_clunk(p, 1, 2);
    peer_expect(p, P9_Rclunk, 1);
    peer_walk(p, 1, 0, 3, NULL);
    peer_expect(p, P9_Rwalk, 1);
    peer_destroy(p);
}

static void a_fid_lives_until_its_last_request_ends(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    peer_walk(p, 1, 0, 1, NULL);
    peer_expect(p, P9_Rwalk, 1);
    peer_read(p, 2, 1, 10);
    peer_clunk(p, 3, 1);
    peer_expect(p, P9_Rclunk, 3);
    CHECK_EQ(p9_server_fids(p->server), 1);
    CHECK_EQ(p->backend.live, 2);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rread, 2);
    CHECK_EQ(p->backend.live, 1);
    peer_destroy(p);
}

static void bad_names_are_refused_before_the_handler(void)
{
    static char longest[P9_NAME_MAX + 1], too_long[P9_NAME_MAX + 2];
    memset(longest, 'n', P9_NAME_MAX);
    memset(too_long, 'n', P9_NAME_MAX + 1);
    static const struct {
        const char *name;
        int code;
    } names[] = {{"", EINVAL}, {".", EINVAL}, {"..", EINVAL}, {"a/b", EINVAL}, {"/", EINVAL}, {too_long, ENAMETOOLONG}};
    struct peer *p = peer_attached(NULL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct p9_str bad = p9_str_of(names[i].name), good = p9_str_of("good");
        struct p9_msg m[] = {
            {.type = P9_Tlcreate, .Tlcreate.name = bad},
            {.type = P9_Tmkdir, .Tmkdir.name = bad},
            {.type = P9_Tmknod, .Tmknod.name = bad},
            {.type = P9_Tsymlink, .Tsymlink = {.name = bad, .target = good}},
            {.type = P9_Tlink, .Tlink.name = bad},
            {.type = P9_Trename, .Trename.name = bad},
            {.type = P9_Trenameat, .Trenameat = {.oldname = bad, .newname = good}},
            {.type = P9_Trenameat, .Trenameat = {.oldname = good, .newname = bad}},
            {.type = P9_Tunlinkat, .Tunlinkat.name = bad},
        };
        for (size_t k = 0; k < sizeof m / sizeof m[0]; k++) {
            m[k].tag = 1;
            CHECK_EQ(peer_send(p, &m[k]), 0);
            peer_expect_error(p, 1, names[i].code);
        }
    }
    CHECK_EQ(p->backend.n_called, 0);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tmkdir, .tag = 1, .Tmkdir.name = p9_str_of(longest)}), 0);
    peer_expect(p, P9_Rmkdir, 1);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tmkdir, .tag = 1, .Tmkdir.name = p9_str_of("...")}), 0);
    peer_expect(p, P9_Rmkdir, 1);
    peer_destroy(p);
}

static void counts_are_cut_to_msize(void)
{
    struct peer *p = peer_attached(NULL);
    peer_read(p, 1, 0, UINT32_MAX);
    peer_expect(p, P9_Rread, 1);
    CHECK_EQ(p->backend.last_count, 65536 - P9_IOHDR);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Treaddir, .tag = 1, .Treaddir.count = UINT32_MAX - 4}), 0);
    peer_expect(p, P9_Rreaddir, 1);
    CHECK_EQ(p->backend.last_count, 65536 - P9_IOHDR);
    peer_destroy(p);
}

static void a_backend_that_overdoes_it_gets_an_error_sent(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.read_extra = 1;
    peer_read(p, 1, 0, 100);
    peer_expect_error(p, 1, EIO);
    struct p9_msg m = {.type = P9_Tgetlock, .tag = 1};
    static char big[60000];
    memset(big, 'c', sizeof big - 1);
    m.Tgetlock.client_id = p9_str_of(big);
    CHECK_EQ(peer_send(p, &m), 0);
    peer_expect(p, P9_Rgetlock, 1);
    peer_destroy(p);
}

static void long_names_answer_emsgsize(struct p9_request *r)
{
    static char target[6000];
    memset(target, 't', sizeof target - 1);
    p9_reply(r, &(struct p9_msg){.Rreadlink.target = p9_str_of(target)});
}

static void a_reply_larger_than_msize_becomes_an_error(void)
{
    static const struct p9_backend table = {.on = {[P9_Tattach] = attach_holder, [P9_Treadlink] = long_names_answer_emsgsize}};
    struct peer *p = peer_create(NULL, &table);
    send_version(p, 4096, P9_VERSION);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1});
    peer_expect(p, P9_Rattach, 1);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Treadlink, .tag = 1}), 0);
    peer_expect_error(p, 1, EMSGSIZE);
    peer_destroy(p);
}

static void version_again_starts_anew(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_walk(p, 1, 0, 1, NULL);
    peer_expect(p, P9_Rwalk, 1);
    peer_read(p, 2, 1, 10);
    peer_read(p, 3, 0, 10);
    peer_flush(p, 4, 3);
    p->backend.defer[P9_Tlopen] = true;
    peer_lopen(p, 5, 1);
    peer_getattr(p, 6, 1); /* waits behind the open */
    CHECK_EQ(send_version(p, 65536, P9_VERSION), 0);
    peer_expect(p, P9_Rversion, P9_NOTAG);
    CHECK_EQ(p->backend.cancels, 3); /* the flushed one only once */
    CHECK_EQ(p9_server_fids(p->server), 0);
    CHECK_EQ(p9_server_requests(p->server), 3);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 2, .Tattach.fid = 1}), 0); /* tag, fid: free */
    peer_expect(p, P9_Rattach, 2);
    CHECK_EQ(p->backend.live, 3);
    while (p->backend.n_waiting)
        backend_answer(&p->backend, 0, 0); /* too late: goes nowhere */
    peer_expect_silence(p);
    CHECK_EQ(p->backend.live, 1);
    CHECK_EQ(p9_server_fids(p->server), 1);
    peer_getattr(p, 2, 1);
    peer_expect(p, P9_Rgetattr, 2);
    peer_destroy(p);
}

static void destroy_waits_for_requests_in_flight(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = p->backend.defer[P9_Twalk] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_read(p, 1, 0, 10);
    peer_walk(p, 2, 0, 1, NULL);
    peer_getattr(p, 3, 1); /* waits */
    peer_flush(p, 4, 1);
    p9_server_destroy(p->server);
    p->server = NULL;
    CHECK_EQ(p->backend.cancels, 2);
    CHECK_EQ(p->backend.n_waiting, 2);
    CHECK_EQ(p->backend.live, 1);
    backend_answer(&p->backend, 1, 0); /* makes an aux for a fid that nobody will have */
    backend_answer(&p->backend, 0, 0); /* frees the session */
    CHECK_EQ(p->backend.live, 0);
    peer_expect_silence(p);
    peer_destroy(p);
}

static void a_handler_may_destroy_the_session(void)
{
    struct peer *p = peer_attached(NULL);
    uint8_t bytes[64];
    size_t n = 0;
    p->backend.destroy_in_handler = p->server;
    for (uint16_t tag = 1; tag < 4; tag++)
        n += (size_t)p9_encode(&(struct p9_msg){.type = P9_Tgetattr, .tag = tag}, bytes + n, sizeof bytes - n);
    CHECK_EQ(peer_send_bytes(p, bytes, n), 0);
    p->server = NULL;
    CHECK_EQ(p->backend.n_called, 1);
    peer_expect_silence(p);
    peer_destroy(p);
}

static const struct check_test tests[] = {
    TEST(version_takes_the_smaller_msize),
    TEST(version_refuses_what_it_does_not_speak),
    TEST(requests_before_version_kill_the_session),
    TEST(malformed_messages_kill_the_session),
    TEST(a_tag_in_use_kills_the_session),
    TEST(any_split_of_the_input_works),
    TEST(a_large_message_is_read_to_its_place),
    TEST(small_messages_have_no_place),
    TEST(data_is_sent_from_where_it_lies),
    TEST(a_deferred_request_keeps_its_bytes),
    TEST(missing_handlers_answer_for_themselves),
    TEST(clunk_needs_no_handler_and_remove_frees_the_fid_anyway),
    TEST(a_fid_number_cannot_be_taken_twice),
    TEST(a_failed_attach_leaves_nothing),
    TEST(a_short_walk_makes_no_fid),
    TEST(walks_from_and_to_opened_fids),
    TEST(a_failed_walk_in_place_keeps_the_fid),
    TEST(fids_are_bounded),
    TEST(a_fid_lives_until_its_last_request_ends),
    TEST(bad_names_are_refused_before_the_handler),
    TEST(counts_are_cut_to_msize),
    TEST(a_backend_that_overdoes_it_gets_an_error_sent),
    TEST(a_reply_larger_than_msize_becomes_an_error),
    TEST(version_again_starts_anew),
    TEST(destroy_waits_for_requests_in_flight),
    TEST(a_handler_may_destroy_the_session),
};

CHECK_MAIN(tests)
