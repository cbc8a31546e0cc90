// SPDX-License-Identifier: Apache-2.0
// Frames of HAProxy's offload protocol.
#include "hostd/credd/spoe.h"
#include "unit/check.h"

/* As HAProxy 2.6 sends them: its hello, and one request. */
static const char hello[] = "\x01\0\0\0\x01\0\0"
                            "\x12supported-versions\x08\x03"
                            "2.0\x0emax-frame-size\x03\xfc\xf0\x06"
                            "\x0c"
                            "capabilities\x08\x10pipelining,async"
                            "\x09"
                            "engine-id\x08\x04"
                            "abcd";
static const char use[] = "\x03\0\0\0\x01\x05\x01"
                          "\x03use\x04"
                          "\x02id\x08\x1d"
                          "0123456789ab.0123456789abcdef"
                          "\x04name\x08\x08"
                          "api.test"
                          "\x04port\x03\xfb\x0c"
                          "\x06method\x08\x03GET";

static int read_text(const char *bytes, size_t len, struct spoe_frame *out)
{
    return spoe_read((const uint8_t *)bytes, len, out);
}

static void a_hello_says_version_and_size(void)
{
    struct spoe_frame f;
    CHECK_EQ(read_text(hello, sizeof hello - 1, &f), 0);
    CHECK_EQ(f.type, SPOE_HAPROXY_HELLO);
    CHECK(f.version_known && !f.healthcheck);
    CHECK_EQ(f.frame_max, 0xfc + ((uint64_t)0xf0 << 4) + ((uint64_t)0x06 << 11));
}

static void a_request_says_whose_it_is(void)
{
    struct spoe_frame f;
    CHECK_EQ(read_text(use, sizeof use - 1, &f), 0);
    CHECK_EQ(f.type, SPOE_NOTIFY);
    CHECK_EQ(f.stream, 5);
    CHECK_EQ(f.frame, 1);
    CHECK_MEM(f.id.s, f.id.len, "0123456789ab.0123456789abcdef", 29);
    CHECK_MEM(f.name.s, f.name.len, "api.test", 8);
    CHECK_MEM(f.method.s, f.method.len, "GET", 3);
    CHECK_EQ(f.port, 443);
}

static void what_is_cut_or_longer_is_no_request(void)
{
    struct spoe_frame f;
    char longer[sizeof use];
    memcpy(longer, use, sizeof use); /* with its NUL */
    CHECK(read_text(longer, sizeof longer, &f) < 0);
    for (size_t n = 0; n < sizeof use - 1; n++)
        CHECK(read_text(use, n, &f) < 0);
}

static void pieces_other_messages_and_wild_numbers_are_refused(void)
{
    struct spoe_frame f;
    char copy[sizeof use];
    memcpy(copy, use, sizeof use);
    copy[4] = 0; /* more pieces follow */
    CHECK(read_text(copy, sizeof copy - 1, &f) < 0);
    memcpy(copy, use, sizeof use);
    copy[8] = 'x'; /* message xse */
    CHECK(read_text(copy, sizeof copy - 1, &f) < 0);
    static const char wild[] = "\x03\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x03use\0";
    CHECK(read_text(wild, sizeof wild - 1, &f) < 0);
}

static void an_answer_is_what_haproxy_reads(void)
{
    uint8_t buf[128];
    struct spoe_writer w = {.buf = buf, .size = sizeof buf};
    spoe_ack_begin(&w, 5, 1);
    spoe_ack_number(&w, "status", 403);
    spoe_ack_text(&w, "reason", "no", 2);
    spoe_ack_end(&w);
    static const char want[] = "\0\0\0\x22\x67\0\0\0\x01\x05\x01"
                               "\x01\x03\x02\x06status\x03\xf3\x0a"
                               "\x01\x03\x02\x06reason\x08\x02no";
    CHECK(!w.bad);
    CHECK_MEM(buf, w.len, want, sizeof want - 1);
}

static void what_has_no_room_is_never_half_there(void)
{
    uint8_t buf[64];
    for (size_t size = 0; size < 40; size++) {
        struct spoe_writer w = {.buf = buf, .size = size};
        spoe_ack_begin(&w, 5, 1);
        spoe_ack_text(&w, "value", "0123456789012345678901234567", 28);
        spoe_ack_end(&w);
        CHECK(w.bad && w.len <= size);
    }
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(a_hello_says_version_and_size),       TEST(a_request_says_whose_it_is),
                                              TEST(what_is_cut_or_longer_is_no_request), TEST(pieces_other_messages_and_wild_numbers_are_refused),
                                              TEST(an_answer_is_what_haproxy_reads),     TEST(what_has_no_room_is_never_half_there)};
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
