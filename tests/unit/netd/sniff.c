// SPDX-License-Identifier: Apache-2.0
// What the first bytes of a connection say.
#include "hostd/netd/sniff.h"
#include "unit/check.h"
#include "unit/netd/hello.h"

static enum sniff text(const char *s, struct sniffed *out)
{
    return sniff((const uint8_t *)s, strlen(s), out);
}

static void a_client_hello_gives_its_name_however_it_is_cut(void)
{
    uint8_t p[8192];
    struct sniffed s;
    for (size_t piece = 1; piece < 300; piece = piece * 2 + 1) {
        size_t n = hello_make(p, "Www.Example.org", false, piece);
        for (size_t cut = 0; cut < n; cut++)
            CHECK_EQ(sniff(p, cut, &s), SNIFF_MORE);
        CHECK_EQ(sniff(p, n, &s), SNIFF_TLS);
        CHECK_STR(s.name, "www.example.org");
        CHECK(!s.ech);
    }
}

static void a_client_hello_without_a_name_or_with_a_hidden_one_says_so(void)
{
    uint8_t p[4096];
    struct sniffed s;
    CHECK_EQ(sniff(p, hello_make(p, NULL, false, 1000), &s), SNIFF_TLS);
    CHECK(!s.has_name && !s.ech);
    CHECK_EQ(sniff(p, hello_make(p, "a.org", true, 1000), &s), SNIFF_TLS);
    CHECK(s.has_name && s.ech);
}

static void what_begins_like_tls_and_is_not_is_bad(void)
{
    uint8_t p[4096];
    struct sniffed s;
    size_t n = hello_make(p, "a.org", false, 1000);
    p[5] = 2; /* a ServerHello */
    CHECK_EQ(sniff(p, n, &s), SNIFF_BAD);
    n = hello_make(p, "a.org", false, 1000);
    p[1] = 9;
    CHECK_EQ(sniff(p, n, &s), SNIFF_BAD);
    n = hello_make(p, "a_ b", false, 1000);
    CHECK_EQ(sniff(p, n, &s), SNIFF_BAD);
    n = hello_make(p, "a.org", false, 1000);
    p[6] = 1; /* 64 KiB and more */
    CHECK_EQ(sniff(p, n, &s), SNIFF_BAD);
}

static void requests_give_their_host(void)
{
    static const struct {
        const char *request, *name;
    } good[] = {
        {"GET / HTTP/1.1\r\nHost: Example.org\r\n\r\n", "example.org"},        {"GET / HTTP/1.1\nhOsT:example.org:8080 \n\n", "example.org"},
        {"\r\n\r\nPOST /x HTTP/1.0\r\nA: b\r\nHost: a.b.\r\n\r\nbody", "a.b"}, {"GET http://a.b/x HTTP/1.1\r\nHost: a.b\r\n\r\n", "a.b"},
        {"OPTIONS * HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "10.0.0.1"},          {"get / HTTP/1.1\r\nHost: a.b\r\n\r\n", "a.b"},
    };
    struct sniffed s;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        fprintf(stderr, "  %zu\n", i);
        CHECK_EQ(text(good[i].request, &s), SNIFF_HTTP);
        CHECK_STR(s.name, good[i].name);
    }
    CHECK_EQ(text("GET / HTTP/1.0\r\n\r\n", &s), SNIFF_HTTP);
    CHECK(!s.has_name);
    CHECK_EQ(text("GET / HTTP/1.1\r\nHost: a.b\r\n", &s), SNIFF_MORE);
}

static void requests_that_servers_could_read_differently_are_bad(void)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\nHost: a.b\r\nHost: c.d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.b\r\n c.d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.b, c.d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.b:80:80\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: a\r\nHost: 0x7f.1\r\n\r\n",
        "GET http://c.d/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET http://a.b@c.d/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
        "GET http://c.d/ HTTP/1.1\r\n\r\n",
        "GET ftp://a.b/ HTTP/1.1\r\nHost: a.b\r\n\r\n",
    };
    struct sniffed s;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fprintf(stderr, "  %zu\n", i);
        CHECK_EQ(text(bad[i], &s), SNIFF_BAD);
    }
}

static void tunnels_are_seen(void)
{
    struct sniffed s;
    CHECK_EQ(text("CONNECT a.b:443 HTTP/1.1\r\n", &s), SNIFF_HTTP);
    CHECK(s.tunnel);
    CHECK_EQ(text("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &s), SNIFF_HTTP);
    CHECK(s.tunnel);
}

static void other_protocols_are_raw(void)
{
    static const char *const raw[] = {"SSH-2.0-OpenSSH_9.2\r\n", "EHLO me.example\r\n", "a1 LOGIN x y\r\n", "\x01\x02", "GET /\r\n", "PING\r\n"};
    struct sniffed s;
    for (size_t i = 0; i < sizeof raw / sizeof raw[0]; i++) {
        fprintf(stderr, "  %zu\n", i);
        CHECK_EQ(text(raw[i], &s), SNIFF_RAW);
    }
    CHECK_EQ(text("EHLO me", &s), SNIFF_MORE);
    CHECK_EQ(text("", &s), SNIFF_MORE);
}

static void nothing_is_waited_for_without_end(void)
{
    static uint8_t p[SNIFF_MAX + 100];
    struct sniffed s;
    memset(p, 'a', sizeof p);
    CHECK_EQ(sniff(p, SNIFF_MAX - 1, &s), SNIFF_MORE);
    CHECK_EQ(sniff(p, SNIFF_MAX, &s), SNIFF_BAD);
    CHECK_EQ(sniff(p, sizeof p, &s), SNIFF_BAD);
}

static const struct check_test tests[] = {
    TEST(a_client_hello_gives_its_name_however_it_is_cut),
    TEST(a_client_hello_without_a_name_or_with_a_hidden_one_says_so),
    TEST(what_begins_like_tls_and_is_not_is_bad),
    TEST(requests_give_their_host),
    TEST(requests_that_servers_could_read_differently_are_bad),
    TEST(tunnels_are_seen),
    TEST(other_protocols_are_raw),
    TEST(nothing_is_waited_for_without_end),
};
CHECK_MAIN(tests)
