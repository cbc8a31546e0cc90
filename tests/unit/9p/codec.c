// SPDX-License-Identifier: Apache-2.0
// The wire format: every message of the table, whole, cut and damaged.
#include "9p/codec.h"
#include "unit/9p/fill.h"
#include "unit/check.h"

#include <errno.h>

#define ROUNDS 200

static const uint8_t types[] = {
#define P9_MSG(name, type, fields) type,
#include "9p/messages.def"
#undef P9_MSG
};
#define TYPES (sizeof types / sizeof types[0])

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

/* An exact-size heap copy, so that AddressSanitizer sees a read past the end. */
static int decode_copy(const uint8_t *bytes, size_t len, struct p9_msg *out, uint8_t **ret_copy)
{
    uint8_t *copy = malloc(len ? len : 1);
    memcpy(copy, bytes, len);
    int rc = p9_decode(copy, len, out);
    if (ret_copy)
        *ret_copy = copy;
    else
        free(copy);
    return rc;
}

static void every_message_survives_a_round_trip(void)
{
    uint64_t seed = 42;
    for (size_t t = 0; t < TYPES; t++)
        for (int round = 0; round < ROUNDS; round++) {
            struct p9_msg a, b;
            uint8_t buf[8192], *copy;
            CHECK(fill_message(&a, types[t], &seed));
            long n = p9_encode(&a, buf, sizeof buf);
            CHECK_EQ(n, p9_encoded_size(&a));
            CHECK_EQ(p9_peek_size(buf), n);
            CHECK_EQ(decode_copy(buf, (size_t)n, &b, &copy), 0);
            const char *differs = fill_compare(&a, &b);
            CHECK_STR(differs ? differs : "", "");
            free(copy);
        }
}

static void a_message_cut_at_any_byte_is_refused(void)
{
    uint64_t seed = 7;
    for (size_t t = 0; t < TYPES; t++) {
        struct p9_msg a, b;
        uint8_t buf[8192];
        fill_message(&a, types[t], &seed);
        size_t n = (size_t)p9_encode(&a, buf, sizeof buf);
        for (size_t cut = 0; cut < n; cut++) {
            CHECK_EQ(decode_copy(buf, cut, &b, NULL), -EBADMSG); /* size field says more */
            uint8_t fixed[8192];
            memcpy(fixed, buf, n);
            put32(fixed, (uint32_t)cut); /* size field agrees */
            CHECK_EQ(decode_copy(fixed, cut, &b, NULL), -EBADMSG);
        }
        put32(buf, (uint32_t)n + 1);
        buf[n] = 0;
        CHECK_EQ(decode_copy(buf, n + 1, &b, NULL), -EBADMSG); /* a byte too many */
    }
}

static void a_wrong_size_field_is_refused(void)
{
    uint64_t seed = 11;
    for (size_t t = 0; t < TYPES; t++) {
        struct p9_msg a, b;
        uint8_t buf[8192];
        fill_message(&a, types[t], &seed);
        size_t n = (size_t)p9_encode(&a, buf, sizeof buf);
        for (uint32_t wrong = (uint32_t)n - 2; wrong < n + 3; wrong++) {
            put32(buf, wrong);
            CHECK_EQ(decode_copy(buf, n, &b, NULL), wrong == n ? 0 : -EBADMSG);
        }
    }
}

static void encoding_needs_room_for_every_byte(void)
{
    uint64_t seed = 9;
    for (size_t t = 0; t < TYPES; t++) {
        struct p9_msg a;
        uint8_t buf[8192];
        fill_message(&a, types[t], &seed);
        size_t n = p9_encoded_size(&a);
        CHECK_EQ(p9_encode(&a, buf, n - 1), -EMSGSIZE);
        CHECK_EQ(p9_encode(&a, buf, n), n);
    }
}

static void the_layout_is_the_documented_one(void)
{
    static const uint8_t want[] = {23, 0, 0, 0, 110, 0x34, 0x12, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 4, 0, 'n', 'a', 'm', 'e'};
    struct p9_msg m = {.type = P9_Twalk, .tag = 0x1234, .Twalk = {.fid = 1, .newfid = 2, .names = {.n = 1}}};
    uint8_t buf[64];
    m.Twalk.names.v[0] = p9_str_of("name");
    long n = p9_encode(&m, buf, sizeof buf);
    CHECK_MEM(buf, (size_t)n, want, sizeof want);
}

static void counts_that_wrap_are_refused(void)
{
    static const uint32_t counts[] = {UINT32_MAX, UINT32_MAX - 4, UINT32_MAX - 22, 0x80000000u, 5};
    struct p9_msg out;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint8_t read[11 + 4] = {0, 0, 0, 0, P9_Rread};
        put32(read, sizeof read);
        put32(read + 7, counts[i]);
        CHECK_EQ(decode_copy(read, sizeof read, &out, NULL), -EBADMSG);
        uint8_t write[23 + 4] = {0, 0, 0, 0, P9_Twrite};
        put32(write, sizeof write);
        put32(write + 19, counts[i]);
        CHECK_EQ(decode_copy(write, sizeof write, &out, NULL), -EBADMSG);
    }
}

static void lists_longer_than_sixteen_are_refused(void)
{
    uint8_t walk[17 + 17 * 2] = {0, 0, 0, 0, P9_Twalk};
    struct p9_msg m = {.type = P9_Twalk, .Twalk.names.n = P9_WALK_MAX + 1};
    uint8_t buf[1024];
    put32(walk, sizeof walk);
    walk[15] = 17;
    CHECK_EQ(decode_copy(walk, sizeof walk, &m, NULL), -EBADMSG);
    m = (struct p9_msg){.type = P9_Twalk, .Twalk.names.n = P9_WALK_MAX + 1};
    CHECK_EQ(p9_encoded_size(&m), 0);
    CHECK_EQ(p9_encode(&m, buf, sizeof buf), -EINVAL);
    m = (struct p9_msg){.type = P9_Rwalk, .Rwalk.qids.n = P9_WALK_MAX + 1};
    CHECK_EQ(p9_encode(&m, buf, sizeof buf), -EINVAL);
}

static void unknown_types_are_refused(void)
{
    struct p9_msg out;
    unsigned known = 0;
    for (unsigned type = 0; type < 256; type++) {
        uint8_t bytes[7] = {7, 0, 0, 0, (uint8_t)type};
        if (p9_type_name((uint8_t)type)) {
            known++;
            continue;
        }
        out = (struct p9_msg){.type = (uint8_t)type};
        CHECK_EQ(p9_encoded_size(&out), 0);
        CHECK_EQ(decode_copy(bytes, sizeof bytes, &out, NULL), -EBADMSG);
    }
    CHECK_EQ(known, TYPES);
    CHECK_STR(p9_type_name(P9_Twalk), "Twalk");
}

static void a_nul_in_a_name_is_refused(void)
{
    struct p9_msg m = {.type = P9_Tmkdir, .Tmkdir.name = {.s = "a\0b", .len = 3}}, out;
    uint8_t buf[64];
    long n = p9_encode(&m, buf, sizeof buf);
    CHECK_EQ(decode_copy(buf, (size_t)n, &out, NULL), -EBADMSG);
}

static void random_damage_never_reads_outside(void)
{
    uint64_t seed = 99;
    for (int round = 0; round < 50000; round++) {
        struct p9_msg a, b;
        uint8_t buf[8192];
        fill_message(&a, types[fill_random(&seed) % TYPES], &seed);
        size_t n = (size_t)p9_encode(&a, buf, sizeof buf);
        for (uint64_t k = 1 + fill_random(&seed) % 3; k; k--)
            buf[4 + fill_random(&seed) % (n - 4)] = (uint8_t)fill_random(&seed);
        decode_copy(buf, n, &b, NULL);
    }
}

static void directory_entries_are_packed_whole_or_not_at_all(void)
{
    uint8_t buf[100];
    size_t pos = 0, packed = 0;
    struct p9_dirent d = {.qid = {P9_QTDIR, 3, 77}, .offset = 5, .type = 4, .name = p9_str_of("entry")}, out;
    while (p9_dirent_pack(buf, sizeof buf, &pos, &d) == 0)
        packed++;
    CHECK_EQ(packed, sizeof buf / 29);
    CHECK_EQ(pos, packed * 29);
    size_t end = pos, unpacked = 0;
    pos = 0;
    while (p9_dirent_unpack(buf, end, &pos, &out) == 1) {
        CHECK_EQ(out.qid.path, 77);
        CHECK_EQ(out.offset, 5);
        CHECK_EQ(out.type, 4);
        CHECK_MEM(out.name.s, out.name.len, "entry", 5);
        unpacked++;
    }
    CHECK_EQ(unpacked, packed);
    for (size_t cut = 1; cut < 29; cut++) {
        pos = 0;
        CHECK_EQ(p9_dirent_unpack(buf, cut, &pos, &out), -EBADMSG);
    }
    pos = 0;
    CHECK_EQ(p9_dirent_unpack(buf, 0, &pos, &out), 0);
    pos = SIZE_MAX;
    CHECK_EQ(p9_dirent_pack(buf, sizeof buf, &pos, &d), -ENOSPC);
}

static void strings_compare_whole(void)
{
    CHECK(p9_str_eq(p9_str_of("abc"), "abc"));
    CHECK(!p9_str_eq(p9_str_of("abc"), "ab"));
    CHECK(!p9_str_eq(p9_str_of("ab"), "abc"));
    CHECK(p9_str_eq((struct p9_str){0}, ""));
}

static const struct check_test tests[] = {
    TEST(every_message_survives_a_round_trip),
    TEST(a_message_cut_at_any_byte_is_refused),
    TEST(a_wrong_size_field_is_refused),
    TEST(encoding_needs_room_for_every_byte),
    TEST(the_layout_is_the_documented_one),
    TEST(counts_that_wrap_are_refused),
    TEST(lists_longer_than_sixteen_are_refused),
    TEST(unknown_types_are_refused),
    TEST(a_nul_in_a_name_is_refused),
    TEST(random_damage_never_reads_outside),
    TEST(directory_entries_are_packed_whole_or_not_at_all),
    TEST(strings_compare_whole),
};

CHECK_MAIN(tests)
