// SPDX-License-Identifier: Apache-2.0
// PROXY headers: what netd writes, and what it reads of HAProxy's.
#include "hostd/netd/proxy.h"
#include "unit/check.h"

#define ID "0123456789ab.0123456789abcdef"

static const struct proxy_header header = {.source = 0xc0000002, .address = 0x2d2d2d0a, .source_port = 5, .port = 443, .name = "api.test", .id = ID};

static void a_header_is_what_the_specification_says(void)
{
    uint8_t p[PROXY_MAX];
    static const char want[] = "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x37\xc0\0\0\x02\x2d\x2d\x2d\x0a\0\x05\x01\xbb\x02\0\x08"
                               "api.test\x05\0\x1d" ID;
    CHECK_MEM(p, proxy_write(&header, p), want, sizeof want - 1);
    CHECK_EQ(proxy_size(p), sizeof want - 1);
}

static void an_id_is_read_after_addresses_of_any_family(void)
{
    uint8_t p[PROXY_MAX];
    char id[INJECT_ID_LEN + 1];
    size_t n = proxy_write(&header, p);
    CHECK_EQ(proxy_read_id(p, n, id), 0);
    CHECK_STR(id, ID);
    static const char unknown[] = "\r\n\r\n\0\r\nQUIT\n\x21\0\0\x20\x05\0\x1d" ID; /* no addresses */
    CHECK_EQ(proxy_read_id((const uint8_t *)unknown, sizeof unknown - 1, id), 0);
}

static void a_header_without_an_id_with_two_or_cut_is_refused(void)
{
    uint8_t p[PROXY_MAX], twice[PROXY_MAX];
    char id[INJECT_ID_LEN + 1];
    size_t n = proxy_write(&header, p);
    for (size_t cut = 0; cut < n; cut++)
        CHECK(proxy_read_id(p, cut, id) < 0);
    memcpy(twice, p, n);
    memcpy(twice + n, p + n - 3 - INJECT_ID_LEN, 3 + INJECT_ID_LEN);
    CHECK(proxy_read_id(twice, n + 3 + INJECT_ID_LEN, id) < 0);
    p[n - 5] = 0;
    CHECK(proxy_read_id(p, n, id) < 0);
}

static void what_is_no_header_has_no_size(void)
{
    uint8_t p[PROXY_MAX];
    proxy_write(&header, p);
    p[12] = 0x20; /* LOCAL */
    CHECK_EQ(proxy_size(p), 0);
    proxy_write(&header, p);
    p[0] = 'G';
    CHECK_EQ(proxy_size(p), 0);
    proxy_write(&header, p);
    p[14] = 0xff;
    CHECK_EQ(proxy_size(p), 0);
}

int main(int argc, char **argv)
{
    static const struct check_test tests[] = {TEST(a_header_is_what_the_specification_says), TEST(an_id_is_read_after_addresses_of_any_family),
                                              TEST(a_header_without_an_id_with_two_or_cut_is_refused), TEST(what_is_no_header_has_no_size)};
    return check_run(tests, sizeof tests / sizeof *tests, argc, argv);
}
