// SPDX-License-Identifier: Apache-2.0
// A 9P server session: what waits for what, flush, and the limits that push back.
#include "unit/9p/backend.h"
#include "unit/check.h"

#include <errno.h>

static void requests_wait_for_the_walk_that_makes_their_fid(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 5, "x");
    peer_getattr(p, 2, 5);
    peer_lopen(p, 3, 5);
    peer_read(p, 4, 5, 10);
    peer_expect_silence(p);
    CHECK_EQ(p->backend.n_called, 1);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 1);
    peer_expect(p, P9_Rgetattr, 2);
    peer_expect(p, P9_Rlopen, 3);
    peer_expect(p, P9_Rread, 4);
    peer_destroy(p);
}

static void they_get_ebadf_when_it_failed(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 5, "x");
    peer_getattr(p, 2, 5);
    peer_lopen(p, 3, 5);
    backend_answer(&p->backend, 0, ENOENT);
    peer_expect_error(p, 1, ENOENT);
    peer_expect_error(p, 2, EBADF);
    peer_expect_error(p, 3, EBADF);
    peer_destroy(p);
}

static void attach_and_xattrwalk_are_waited_for_too(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tattach] = p->backend.defer[P9_Txattrwalk] = true;
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1, .Tattach.fid = 1}), 0);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Txattrwalk, .tag = 2, .Txattrwalk = {.fid = 1, .newfid = 2}}), 0);
    peer_read(p, 3, 2, 10);
    CHECK_EQ(p->backend.n_called, 1);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rattach, 1);
    peer_expect_silence(p);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rxattrwalk, 2);
    peer_expect(p, P9_Rread, 3);
    peer_destroy(p);
}

static void a_walk_that_waits_keeps_its_number(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 1, "a");
    peer_walk(p, 2, 1, 2, "b"); /* waits for fid 1, and whoever names fid 2 waits for it */
    peer_walk(p, 3, 2, 3, "c");
    peer_getattr(p, 4, 3);
    peer_walk(p, 5, 0, 2, "d");
    CHECK_EQ(p->backend.n_called, 1);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 1);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 2);
    peer_expect_error(p, 5, EBADF);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 3);
    peer_expect(p, P9_Rgetattr, 4);
    peer_destroy(p);
}

static void a_walk_from_a_fid_that_failed_gives_its_number_back(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 1, "a");
    peer_walk(p, 2, 1, 2, "b");
    peer_getattr(p, 3, 2);
    peer_walk(p, 4, 1, 3, "b");
    peer_getattr(p, 5, 3);
    peer_flush(p, 6, 4); /* dropped, with what it reserved; so 5 names a fid that never was */
    peer_expect(p, P9_Rflush, 6);
    peer_expect_error(p, 5, EBADF);
    CHECK_EQ(p9_server_fids(p->server), 3);
    backend_answer(&p->backend, 0, ENOENT);
    peer_expect_error(p, 1, ENOENT);
    peer_expect_error(p, 2, EBADF);
    peer_expect_error(p, 3, EBADF);
    CHECK_EQ(p9_server_fids(p->server), 1);
    peer_walk(p, 7, 9, 9, "x"); /* in place, of no fid */
    peer_expect_error(p, 7, EBADF);
    peer_destroy(p);
}

static void requests_wait_for_an_open_of_their_fid_only(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tlopen] = true;
    peer_walk(p, 1, 0, 1, NULL);
    peer_expect(p, P9_Rwalk, 1);
    peer_lopen(p, 1, 1);
    peer_read(p, 2, 1, 10);
    peer_lopen(p, 3, 1); /* a second open: refused, but in its turn */
    peer_getattr(p, 4, 0);
    peer_expect(p, P9_Rgetattr, 4);
    peer_expect_silence(p);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rlopen, 1);
    peer_expect(p, P9_Rread, 2);
    peer_expect_error(p, 3, EBADF);
    peer_destroy(p);
}

static void an_open_that_failed_lets_the_next_one_try(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tlopen] = true;
    peer_lopen(p, 1, 0);
    peer_lopen(p, 2, 0);
    peer_getattr(p, 3, 0);
    backend_answer(&p->backend, 0, EACCES);
    peer_expect_error(p, 1, EACCES);
    peer_expect_silence(p); /* the second open is in its handler, getattr behind it */
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rlopen, 2);
    peer_expect(p, P9_Rgetattr, 3);
    peer_destroy(p);
}

static void a_number_can_be_reused_behind_its_clunk(void)
{
    struct peer *p = peer_attached(NULL);
    peer_walk(p, 1, 0, 1, NULL);
    peer_expect(p, P9_Rwalk, 1);
    p->backend.defer[P9_Tclunk] = true;
    peer_clunk(p, 1, 1);
    peer_walk(p, 2, 0, 1, NULL);
    peer_getattr(p, 3, 1);
    peer_expect_silence(p);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rclunk, 1);
    peer_expect(p, P9_Rwalk, 2);
    peer_expect(p, P9_Rgetattr, 3);
    peer_destroy(p);
}

static void a_request_on_two_fids_waits_for_both(void)
{
    struct peer *p = peer_attached(NULL);
    struct p9_msg rename = {.type = P9_Trename, .tag = 3, .Trename = {.fid = 1, .dfid = 2, .name = p9_str_of("n")}};
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 1, "a");
    peer_walk(p, 2, 0, 2, "b");
    CHECK_EQ(peer_send(p, &rename), 0);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 1);
    peer_expect_silence(p);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 2);
    peer_expect(p, P9_Rrename, 3);
    peer_destroy(p);
}

static void thousands_may_wait_for_one_gate(void)
{
    struct peer *p = peer_attached(NULL);
    const uint16_t n = 10000;
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 0, 0, 1, NULL);
    for (uint16_t tag = 1; tag <= n; tag++)
        peer_lopen(p, tag, 1); /* each takes the gate in its turn */
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 0);
    peer_expect(p, P9_Rlopen, 1);
    for (uint16_t tag = 2; tag <= n; tag++)
        peer_expect_error(p, tag, EBADF);
    peer_destroy(p);
}

static void flush_of_an_unknown_tag_is_answered_at_once(void)
{
    struct peer *p = peer_attached(NULL);
    peer_flush(p, 1, 77);
    peer_expect(p, P9_Rflush, 1);
    peer_flush(p, 1, 1); /* itself */
    peer_expect(p, P9_Rflush, 1);
    CHECK_EQ(p9_server_requests(p->server), 0);
    peer_destroy(p);
}

static void flush_cancels_and_answers_in_order(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    peer_read(p, 1, 0, 10);
    peer_flush(p, 2, 1);
    peer_expect_error(p, 1, EINTR);
    peer_expect(p, P9_Rflush, 2);
    CHECK_EQ(p->backend.cancels, 1);
    peer_destroy(p);
}

static void flush_waits_for_a_slow_cancel(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    for (p->backend.cancel = CANCEL_LATER; p->backend.cancel <= CANCEL_NONE; p->backend.cancel++) {
        peer_read(p, 1, 0, 10);
        peer_flush(p, 2, 1);
        peer_expect_silence(p);
        CHECK(p->backend.waiting[0]->cancelled);
        backend_answer(&p->backend, 0, 0); /* the work had been done already */
        peer_expect(p, P9_Rread, 1);
        peer_expect(p, P9_Rflush, 2);
    }
    CHECK_EQ(p->backend.cancels, 1);
    peer_destroy(p);
}

static void every_flush_of_a_tag_is_answered(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_read(p, 1, 0, 10);
    for (uint16_t tag = 2; tag < 6; tag++)
        peer_flush(p, tag, 1);
    CHECK_EQ(p->backend.cancels, 1);
    backend_answer(&p->backend, 0, EINTR);
    peer_expect_error(p, 1, EINTR);
    for (uint16_t tag = 2; tag < 6; tag++)
        peer_expect(p, P9_Rflush, tag);
    CHECK_EQ(p9_server_requests(p->server), 0);
    peer_destroy(p);
}

static void a_flush_of_a_flush_is_answered_after_it(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_read(p, 1, 0, 10);
    for (uint16_t tag = 2; tag < 9000; tag++) /* a long chain, each flushing the one before */
        peer_flush(p, tag, (uint16_t)(tag - 1));
    peer_expect_silence(p);
    backend_answer(&p->backend, 0, EINTR);
    peer_expect_error(p, 1, EINTR);
    for (uint16_t tag = 2; tag < 9000; tag++)
        peer_expect(p, P9_Rflush, tag);
    peer_destroy(p);
}

static void a_flushed_tag_is_taken_until_rflush(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Tread] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_read(p, 1, 0, 10);
    peer_flush(p, 2, 1);
    CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tgetattr, .tag = 1}), -EBADMSG);
    peer_destroy(p);
}

static void a_flushed_request_that_waits_is_dropped(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    peer_walk(p, 1, 0, 1, NULL);
    peer_getattr(p, 2, 1);
    peer_read(p, 3, 1, 5);
    peer_flush(p, 4, 2);
    peer_expect(p, P9_Rflush, 4);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 1);
    peer_expect(p, P9_Rread, 3);
    CHECK_EQ(p->backend.n_called, 2);
    peer_destroy(p);
}

static void a_flushed_walk_that_succeeds_has_made_its_fid(void)
{
    struct peer *p = peer_attached(NULL);
    p->backend.defer[P9_Twalk] = true;
    p->backend.cancel = CANCEL_LATER;
    peer_walk(p, 1, 0, 1, NULL);
    peer_flush(p, 2, 1);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rwalk, 1);
    peer_expect(p, P9_Rflush, 2);
    peer_getattr(p, 3, 1);
    peer_expect(p, P9_Rgetattr, 3);
    peer_destroy(p);
}

static void requests_in_flight_are_bounded(void)
{
    struct p9_server_config config = {.max_requests = 4};
    struct peer *p = peer_attached(&config);
    uint8_t bytes[1024];
    size_t n = 0;
    p->backend.defer[P9_Tgetattr] = true;
    for (uint16_t tag = 1; tag <= 10; tag++)
        n += (size_t)p9_encode(&(struct p9_msg){.type = P9_Tgetattr, .tag = tag}, bytes + n, sizeof bytes - n);
    CHECK_EQ(peer_send_bytes(p, bytes, n), 0);
    CHECK_EQ(p->backend.n_called, 4);
    CHECK(!p9_server_wants_input(p->server));
    CHECK_EQ(p->resumed, 0);
    for (uint16_t tag = 1; tag <= 10; tag++) { /* each answer takes one more from what was put aside */
        backend_answer(&p->backend, 0, 0);
        peer_expect(p, P9_Rgetattr, tag);
        CHECK_EQ(p->backend.n_called, tag + 4 < 10 ? tag + 4 : 10);
    }
    CHECK(p9_server_wants_input(p->server));
    CHECK(p->resumed >= 1);
    peer_destroy(p);
}

static void output_that_is_not_taken_stops_input(void)
{
    struct p9_server_config config = {.max_output = 100000};
    struct peer *p = peer_attached(&config);
    size_t taken = p->sent_total;
    p->hold_output = true;
    uint16_t sent = 0;
    for (uint16_t tag = 1; tag <= 10; tag++) {
        peer_read(p, tag, 0, 30000);
        sent = p9_server_wants_input(p->server) ? tag : sent;
    }
    CHECK_EQ(sent, 3);
    CHECK_EQ(p->backend.n_called, 4);
    for (uint16_t tag = 1; tag <= 10; tag++) {
        size_t before = p->out_len;
        peer_expect(p, P9_Rread, tag);
        p9_server_sent(p->server, 30011);
        CHECK(p->out_len >= before - 30011);
    }
    CHECK_EQ(p->backend.n_called, 10);
    CHECK_EQ(p->sent_total - taken, 10 * 30011);
    CHECK(p9_server_wants_input(p->server));
    peer_destroy(p);
}

static void a_transport_may_report_bytes_inside_send(void)
{
    struct peer *p = peer_attached(NULL);
    p->report_in_send = true;
    for (uint16_t tag = 1; tag <= 100; tag++) {
        peer_read(p, tag, 0, 60000);
        peer_expect(p, P9_Rread, tag);
    }
    CHECK(p9_server_wants_input(p->server));
    peer_destroy(p);
}

static void garbage_that_was_put_aside_kills_later(void)
{
    struct p9_server_config config = {.max_requests = 1};
    struct peer *p = peer_attached(&config);
    uint8_t bytes[64];
    p->backend.defer[P9_Tgetattr] = true;
    size_t n = (size_t)p9_encode(&(struct p9_msg){.type = P9_Tgetattr, .tag = 1}, bytes, sizeof bytes);
    memset(bytes + n, 0, 4);
    CHECK_EQ(peer_send_bytes(p, bytes, n + 4), 0);
    backend_answer(&p->backend, 0, 0);
    peer_expect(p, P9_Rgetattr, 1);
    CHECK_EQ(p->resumed, 1);
    CHECK(p9_server_wants_input(p->server));
    CHECK_EQ(peer_send_bytes(p, NULL, 0), -EBADMSG);
    peer_destroy(p);
}

static void input_is_not_put_aside_without_end(void)
{
    struct p9_server_config config = {.max_requests = 1};
    struct peer *p = peer_attached(&config);
    static uint8_t flood[1 << 20];
    int rc = 0, rounds = 0;
    p->backend.defer[P9_Tgetattr] = true;
    peer_getattr(p, 1, 0);
    while (rc == 0 && ++rounds < 100)
        rc = p9_server_input(p->server, flood, sizeof flood);
    CHECK_EQ(rc, -ENOBUFS);
    CHECK_EQ(rounds, 17);
    peer_destroy(p);
}

static void forgotten_requests_still_count(void)
{
    struct p9_server_config config = {.max_requests = 3};
    struct peer *p = peer_attached(&config);
    struct p9_msg version = {.type = P9_Tversion, .tag = P9_NOTAG, .Tversion = {65536, p9_str_of(P9_VERSION)}};
    p->backend.defer[P9_Tattach] = true;
    p->backend.cancel = CANCEL_LATER;
    for (int i = 0; i < 5; i++) { /* a client cannot pile up orphans by starting anew again and again */
        CHECK_EQ(peer_send(p, &version), 0);
        CHECK_EQ(peer_send(p, &(struct p9_msg){.type = P9_Tattach, .tag = 1}), 0);
    }
    CHECK_EQ(p->backend.n_waiting, 3);
    CHECK_EQ(p9_server_requests(p->server), 3);
    peer_destroy(p);
}

static const struct check_test tests[] = {
    TEST(requests_wait_for_the_walk_that_makes_their_fid),
    TEST(they_get_ebadf_when_it_failed),
    TEST(attach_and_xattrwalk_are_waited_for_too),
    TEST(a_walk_that_waits_keeps_its_number),
    TEST(a_walk_from_a_fid_that_failed_gives_its_number_back),
    TEST(requests_wait_for_an_open_of_their_fid_only),
    TEST(an_open_that_failed_lets_the_next_one_try),
    TEST(a_number_can_be_reused_behind_its_clunk),
    TEST(a_request_on_two_fids_waits_for_both),
    TEST(thousands_may_wait_for_one_gate),
    TEST(flush_of_an_unknown_tag_is_answered_at_once),
    TEST(flush_cancels_and_answers_in_order),
    TEST(flush_waits_for_a_slow_cancel),
    TEST(every_flush_of_a_tag_is_answered),
    TEST(a_flush_of_a_flush_is_answered_after_it),
    TEST(a_flushed_tag_is_taken_until_rflush),
    TEST(a_flushed_request_that_waits_is_dropped),
    TEST(a_flushed_walk_that_succeeds_has_made_its_fid),
    TEST(requests_in_flight_are_bounded),
    TEST(output_that_is_not_taken_stops_input),
    TEST(a_transport_may_report_bytes_inside_send),
    TEST(garbage_that_was_put_aside_kills_later),
    TEST(input_is_not_put_aside_without_end),
    TEST(forgotten_requests_still_count),
};

CHECK_MAIN(tests)
