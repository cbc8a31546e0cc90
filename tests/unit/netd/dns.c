// SPDX-License-Identifier: Apache-2.0
// DNS messages between a guest and netd.
#include "hostd/netd/dns.h"
#include "unit/check.h"

static size_t question(uint8_t *p, const char *name, uint16_t type)
{
    static const uint8_t head[12] = {0x12, 0x34, 1, 0, 0, 1};
    memcpy(p, head, 12);
    size_t at = 12;
    while (*name) {
        size_t n = strcspn(name, ".");
        p[at++] = (uint8_t)n;
        memcpy(p + at, name, n);
        at += n;
        name += n + (name[n] == '.');
    }
    p[at++] = 0;
    p[at++] = (uint8_t)(type >> 8);
    p[at++] = (uint8_t)type;
    p[at++] = 0;
    p[at++] = 1;
    return at;
}

static void a_question_is_read_in_lower_case(void)
{
    uint8_t p[512];
    struct dns_question q;
    size_t n = question(p, "WwW.Example.ORG", DNS_A);
    CHECK_EQ(dns_read_question(p, n, &q), DNS_OK);
    CHECK_STR(q.name, "www.example.org");
    CHECK_EQ(q.type, DNS_A);
    CHECK_EQ(q.id, 0x1234);
}

static void names_that_are_no_host_names_are_none(void)
{
    static const char *const bad[] = {"a b.org", "10.0.0.1", "a.0x7f", "a.1", "*.org", "\xff.org"};
    uint8_t p[512];
    struct dns_question q;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ(dns_read_question(p, question(p, bad[i], DNS_A), &q), DNS_OK);
        CHECK_STR(q.name, "");
    }
    size_t n = question(p, "a.org", DNS_A);
    p[13] = '.'; /* a dot inside a label is another name than it looks */
    CHECK_EQ(dns_read_question(p, n, &q), DNS_OK);
    CHECK_STR(q.name, "");
}

static void malformed_questions_are_refused(void)
{
    uint8_t p[512];
    struct dns_question q;
    size_t n = question(p, "www.example.org", DNS_A);
    for (size_t cut = 0; cut < n; cut++)
        CHECK(dns_read_question(p, cut, &q) != DNS_OK);
    p[2] |= 0x80;
    CHECK_EQ(dns_read_question(p, n, &q), -1); /* an answer */
    n = question(p, "a.org", DNS_A);
    p[12] = 0xc0; /* a pointer */
    CHECK_EQ(dns_read_question(p, n, &q), DNS_FORMERR);
    n = question(p, "a.org", DNS_A);
    p[5] = 2;
    CHECK_EQ(dns_read_question(p, n, &q), DNS_FORMERR);
    n = question(p, "a.org", DNS_A);
    p[2] = 0x28; /* an update */
    CHECK_EQ(dns_read_question(p, n, &q), DNS_NOTIMP);
}

static void an_answer_holds_the_question_and_the_addresses(void)
{
    uint8_t p[512], out[DNS_MESSAGE_MAX];
    struct dns_question q;
    const struct dns_answer a[] = {{0x01020304, 60}, {0x05060708, 0x10000}};
    static const uint8_t first[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 1, 2, 3, 4};
    size_t n = question(p, "Www.example.org", DNS_A);
    CHECK_EQ(dns_read_question(p, n, &q), DNS_OK);
    size_t len = dns_write_answer(&q, DNS_OK, a, 2, out);
    CHECK_EQ(len, n + 32);
    CHECK_MEM(out + 12, n - 12, p + 12, n - 12);
    CHECK_MEM(out + n, 16, first, 16);
    CHECK_EQ(out[7], 2);
    CHECK_EQ(out[2] & 0x80, 0x80);
    len = dns_write_answer(&q, DNS_NXDOMAIN, NULL, 0, out);
    CHECK_EQ(len, n);
    CHECK_EQ(out[3] & 15, DNS_NXDOMAIN);
}

static void an_answer_fits_whatever_the_name(void)
{
    uint8_t p[512], out[DNS_MESSAGE_MAX];
    struct dns_question q;
    struct dns_answer a[40] = {{0}};
    char name[254];
    memset(name, 'a', sizeof name);
    for (int i = 63; i < 253; i += 64)
        name[i] = '.';
    name[253] = 0;
    CHECK_EQ(dns_read_question(p, question(p, name, DNS_A), &q), DNS_OK);
    CHECK_STR(q.name, name);
    size_t len = dns_write_answer(&q, DNS_OK, a, 40, out);
    CHECK(len <= sizeof out);
    CHECK(out[7] >= 14);
}

static const struct check_test tests[] = {
    TEST(a_question_is_read_in_lower_case), TEST(names_that_are_no_host_names_are_none),
    TEST(malformed_questions_are_refused),  TEST(an_answer_holds_the_question_and_the_addresses),
    TEST(an_answer_fits_whatever_the_name),
};
CHECK_MAIN(tests)
