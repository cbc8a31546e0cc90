// SPDX-License-Identifier: Apache-2.0
// Egress policy: the language, its errors, and decisions; against a walk of the list, too.
#include "hostd/netd/policy.h"
#include "hostd/netd/levels.h"
#include "unit/check.h"

#include <errno.h>
#include <stdbool.h>

static struct policy *parse(const char *text)
{
    struct policy *p = NULL;
    struct err e = {0};
    if (policy_parse(NULL, text, strlen(text), &p, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    return p;
}

static uint32_t ip(const char *text)
{
    uint32_t a = 0;
    CHECK(address_parse(text, strlen(text), &a));
    return a;
}

static struct decision decide(const char *text, const char *above, const char *name, const char *address, uint16_t port)
{
    struct policy *p = parse(text), *a = above ? parse(above) : NULL;
    const struct policy_above list = {a ? 1 : 0, {a}};
    struct destination d = {name, address ? ip(address) : 0, address != NULL, port};
    struct decision out;
    policy_decide(p, &list, &d, &out);
    policy_destroy(p);
    policy_destroy(a);
    return out;
}

/* What is decided on a sandbox that belongs to what `belongs` says, as a sentence; or the error. */
static const char *judge(const char *file, const char *belongs, const char *own, const char *name, uint16_t port)
{
    static char out[600];
    struct levels *l = NULL;
    struct policy *p = NULL;
    struct policy_above above;
    const struct policy_context context = {.above = &above};
    struct destination d = {name, ip("93.184.216.34"), true, port};
    struct decision made;
    struct err e = {0};
    int rc = levels_parse(file, strlen(file), &l, &e);
    if (rc == 0 && !levels_above(l, belongs, &above))
        rc = err_set(&e, E2BIG, "too many");
    if (rc == 0)
        rc = policy_parse(&context, own, strlen(own), &p, &e);
    if (rc == 0) {
        policy_decide(p, &above, &d, &made);
        policy_explain(&made, out, sizeof out);
    } else {
        snprintf(out, sizeof out, "%s", e.msg);
    }
    policy_destroy(p);
    levels_destroy(l);
    return out;
}

static bool allows(const char *text, const char *name, const char *address, uint16_t port)
{
    return decide(text, NULL, name, address, port).allowed;
}

#define PUBLIC "93.184.216.34"

static void an_empty_policy_allows_nothing(void)
{
    CHECK(!allows("", "example.org", PUBLIC, 443));
    CHECK(!allows("# only a comment\n\n", NULL, PUBLIC, 443));
}

static void a_name_rule_is_for_that_name_and_port(void)
{
    const char *rule = "allow tcp API.example.org:443\n";
    CHECK(allows(rule, "api.example.org", PUBLIC, 443));
    CHECK(!allows(rule, "api.example.org", PUBLIC, 444));
    CHECK(!allows(rule, "example.org", PUBLIC, 443));
    CHECK(!allows(rule, "x.api.example.org", PUBLIC, 443));
    CHECK(!allows(rule, "xapi.example.org", PUBLIC, 443));
    CHECK(!allows(rule, NULL, PUBLIC, 443));
}

static void a_wildcard_is_for_what_is_below(void)
{
    const char *rule = "allow tcp *.example.org:443";
    CHECK(allows(rule, "a.example.org", PUBLIC, 443));
    CHECK(allows(rule, "a.b.c.example.org", PUBLIC, 443));
    CHECK(!allows(rule, "example.org", PUBLIC, 443));
    CHECK(!allows(rule, "aexample.org", PUBLIC, 443));
    CHECK(!allows(rule, "example.org.evil.net", PUBLIC, 443));
}

static void an_address_rule_is_for_addresses(void)
{
    const char *rule = "allow tcp 93.184.216.0/24:22,80-90";
    CHECK(allows(rule, NULL, PUBLIC, 22));
    CHECK(allows(rule, NULL, PUBLIC, 85));
    CHECK(allows(rule, "any.name", PUBLIC, 90));
    CHECK(!allows(rule, NULL, PUBLIC, 91));
    CHECK(!allows(rule, NULL, "93.184.217.1", 22));
}

static void the_first_match_decides(void)
{
    const char *rules = "deny tcp bad.example.org:*\nallow tcp *.example.org:443\n"
                        "deny tcp *.example.org:*\nallow tcp *:443\n";
    CHECK(!allows(rules, "bad.example.org", PUBLIC, 443));
    CHECK(allows(rules, "good.example.org", PUBLIC, 443));
    CHECK(!allows(rules, "good.example.org", PUBLIC, 80));
    CHECK(allows(rules, "other.net", PUBLIC, 443));
    CHECK(!allows(rules, "other.net", PUBLIC, 80));
    CHECK_EQ(decide(rules, NULL, "good.example.org", PUBLIC, 443).line, 2);
    CHECK(!allows("deny tcp 93.184.216.34:*\nallow tcp a.b:443\n", "a.b", PUBLIC, 443));
    CHECK(allows("allow tcp a.b:443\ndeny tcp 93.184.216.34:*\n", "a.b", PUBLIC, 443));
}

static void the_platforms_denials_go_first(void)
{
    const char *above = "deny tcp *.evil.net:*\nallow tcp everything.org:443\n";
    struct decision d = decide("allow tcp *:*", above, "x.evil.net", PUBLIC, 443);
    CHECK(!d.allowed && !strcmp(d.why, "a policy above denies it"));
    CHECK(decide("allow tcp *:*", above, "x.good.net", PUBLIC, 443).allowed);
    CHECK(!decide("", above, "everything.org", PUBLIC, 443).allowed);
}

static const char file[] = "deny tcp *.evil.net:*\n"
                           "set mirrors one.mirror.org:80,443 93.184.216.0/24:22 # two\n"
                           "[tenant alice]\n"
                           "set inner db.alice.org:5432\n"
                           "deny tcp one.mirror.org:80\n"
                           "  [ label admin.tier=Free ] # the case of a label counts\n"
                           "set inner other.org:1\n"
                           "allow tcp good.video.org:*\n"
                           "deny tcp *.video.org:*\n"
                           "[tenant 1002]\n";

static void a_level_above_denies_and_says_which(void)
{
    const char *all = "allow tcp *:*\n", *alice = "tenant alice\ntenant 1001\nlabel admin.tier=Free\n";
    CHECK_STR(judge(file, alice, all, "x.evil.net", 1), "denied: the platform denies it (line 1 of the platform: deny tcp *.evil.net:*)");
    CHECK_STR(judge(file, alice, all, "one.mirror.org", 80), "denied: tenant alice denies it (line 5 of tenant alice: deny tcp one.mirror.org:80)");
    CHECK_STR(judge(file, alice, all, "x.video.org", 1), "denied: label admin.tier=Free denies it (line 9 of label admin.tier=Free: deny tcp "
                                                         "*.video.org:*)");
    CHECK_STR(judge(file, alice, all, "good.video.org", 1), "allowed by line 1: allow tcp *:*");
    CHECK_STR(judge(file, alice, "", "good.video.org", 1), "denied: no rule allows it");
    CHECK_STR(judge(file, "tenant alic\ntenant 100\nlabel admin.tier=free\n", all, "one.mirror.org", 80), "allowed by line 1: allow tcp *:*");
    CHECK_STR(judge(file, "tenant bob\nlabel tier=Free\n", all, "x.video.org", 1), "allowed by line 1: allow tcp *:*");
}

static void sets_are_looked_for_from_below(void)
{
    CHECK_STR(judge(file, "", "allow tcp @mirrors", "one.mirror.org", 443), "allowed by line 1: allow tcp @mirrors");
    CHECK_STR(judge(file, "", "allow tcp @mirrors", NULL, 22), "allowed by line 1: allow tcp @mirrors");
    CHECK_STR(judge(file, "tenant alice", "deny tcp @inner\nallow tcp *:*", "db.alice.org", 5432),
              "denied: the rule denies it (line 1: deny tcp @inner)");
    CHECK_STR(judge(file, "tenant alice\nlabel admin.tier=Free", "allow tcp @inner", "db.alice.org", 5432), "denied: no rule allows it");
    CHECK_STR(judge(file, "", "set mirrors a.b:1\nallow tcp @mirrors", "one.mirror.org", 443), "denied: no rule allows it");
    CHECK_STR(judge(file, "", "set pypi a.b:1\nallow tcp @pypi", "a.b", 1), "allowed by line 2: allow tcp @pypi");
    CHECK(strstr(judge(file, "tenant bob", "allow tcp @inner", "a.b", 1), "line 1, column 11: '@inner' is no set"));
}

static void what_is_wrong_in_the_administrators_file_is_named(void)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"\n[tenant alice]\nallow x\n", "line 3, column 7: 'tcp' was expected"},
               {"[user alice]", "line 1: [tenant NAME] or [label admin.KEY=VALUE] was expected, not '[user alice]'"},
               {"[tenant a b]", "line 1: [tenant NAME]"},
               {"[label tier=free]", "line 1: [tenant NAME]"},
               {"[label admin.tier]", "line 1: [tenant NAME]"},
               {"[tenant alice", "line 1: ']' was expected"},
               {"[tenant alice] allow tcp a.b:1", "line 1: ']' was expected, and nothing behind it"},
               {"[tenant alice]\n\n[tenant alice]\n", "line 3: [tenant alice] is there already"},
               {"set x", "line 1, column 6: targets were expected"},
               {"set x a.b", "line 1, column 10: ':' and a port was expected"},
               {"set x @pypi", "line 1, column 7: a set has no other sets in it"},
               {"set x a.b:1\nset x a.b:1", "line 2, column 5: the set 'x' is there already"},
               {"set a.b a.b:1", "line 1, column 5: a name of letters"},
               {"allow tcp @later\nset later a.b:1", "line 1, column 11: '@later' is no set"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *got = judge(bad[i].text, "", "", "a.b", 1);
        if (strncmp(got, bad[i].says, strlen(bad[i].says)) != 0)
            CHECK_STR(got, bad[i].says);
    }
    CHECK_STR(judge("", "tenant a", "", "a.b", 1), "denied: no rule allows it");
}

static void special_addresses_must_be_named(void)
{
    static const char *const special[] = {"0.0.0.1",         "10.1.2.3",      "100.64.0.1",     "127.0.0.1",   "169.254.1.1",
                                          "169.254.169.254", "172.16.0.1",    "172.31.255.255", "192.0.0.1",   "192.0.2.1",
                                          "192.168.1.1",     "198.18.0.1",    "198.51.100.1",   "203.0.113.1", "224.0.0.1",
                                          "255.255.255.255", "168.63.129.16", "192.88.99.1",    "240.0.0.1"};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        char rule[80];
        CHECK(!allows("allow tcp a.b:443", "a.b", special[i], 443));
        CHECK(!allows("allow tcp *:443", "a.b", special[i], 443));
        CHECK(!allows("allow tcp *:443", NULL, special[i], 443));
        CHECK(!allows("allow tcp 0.0.0.0/0:443", NULL, special[i], 443));
        snprintf(rule, sizeof rule, "allow tcp %s:443", special[i]);
        CHECK(allows(rule, NULL, special[i], 443));
        snprintf(rule, sizeof rule, "allow tcp a.b:443 at %s", special[i]);
        CHECK(allows(rule, "a.b", special[i], 443));
        CHECK(!allows(rule, "c.b", special[i], 443));
        CHECK(!allows(rule, NULL, special[i], 443));
    }
    CHECK(allows("allow tcp 10.0.0.0/8:443", NULL, "10.1.2.3", 443));
    CHECK(!allows("allow tcp 8.0.0.0/6:443", NULL, "10.1.2.3", 443));
    CHECK(!allows("allow tcp a.b:443 at 10.0.0.0/8", "a.b", "192.168.1.1", 443));
    CHECK(!allows("allow tcp a.b:443 at 0.0.0.0/0", "a.b", "192.168.1.1", 443));
    CHECK(!allows("allow tcp 169.254.0.0/16:80", NULL, "169.254.169.254", 80));
}

static bool resolves(const char *text, const char *above, const char *name)
{
    struct policy *p = parse(text), *a = above ? parse(above) : NULL;
    const struct policy_above list = {a ? 1 : 0, {a}};
    bool may = policy_may_resolve(p, &list, name);
    policy_destroy(p);
    policy_destroy(a);
    return may;
}

static void names_are_resolved_only_if_some_rule_could_allow_them(void)
{
    CHECK(!resolves("", NULL, "a.b"));
    CHECK(resolves("allow tcp a.b:22", NULL, "a.b"));
    CHECK(!resolves("allow tcp a.b:22", NULL, "x.a.b"));
    CHECK(resolves("allow tcp *.b:22", NULL, "x.a.b"));
    CHECK(resolves("allow tcp *:22", NULL, "x.a.b"));
    CHECK(!resolves("allow tcp 0.0.0.0/0:22", NULL, "a.b"));
    CHECK(!resolves("deny tcp a.b:*\nallow tcp *.b:443", NULL, "a.b"));
    CHECK(resolves("deny tcp a.b:80\nallow tcp *.b:443", NULL, "a.b"));
    CHECK(resolves("allow tcp *.b:443\ndeny tcp a.b:*", NULL, "a.b"));
    CHECK(!resolves("allow tcp a.b:443", "deny tcp *.b:*", "a.b"));
}

static void a_name_may_be_only_where_it_is_allowed(void)
{
    struct policy *p = parse("allow tcp a.b:443 at 10.0.0.0/8\nallow tcp c.d:443\n"
                             "allow tcp 192.168.1.1:80\n");
    CHECK(policy_may_be_at(p, "a.b", ip("10.1.1.1")));
    CHECK(!policy_may_be_at(p, "c.d", ip("10.1.1.1")));
    CHECK(policy_may_be_at(p, "c.d", ip(PUBLIC)));
    CHECK(policy_may_be_at(p, "c.d", ip("192.168.1.1")));
    CHECK(!policy_may_be_at(p, "c.d", ip("192.168.1.2")));
    policy_destroy(p);
}

static void sets_are_their_targets(void)
{
    struct decision d = decide("\nallow tcp @pypi # for pip\n", NULL, "pypi.org", PUBLIC, 443);
    CHECK(d.allowed);
    CHECK_EQ(d.line, 2);
    CHECK_STR(d.rule, "allow tcp @pypi");
    CHECK(allows("allow tcp @github", "raw.githubusercontent.com", PUBLIC, 443));
    CHECK(!allows("deny tcp @github\nallow tcp *:443", "github.com", PUBLIC, 443));
}

static void limits_are_the_smallest_that_are_said(void)
{
    struct policy *p = parse("limit connections 20\nlimit bytes 2M\nlimit connections 30 # more\n");
    CHECK_EQ(policy_limits(p)->connections, 20);
    CHECK_EQ(policy_limits(p)->bytes, 2 << 20);
    CHECK_EQ(policy_limits(p)->rate, 0);
    policy_destroy(p);
}

static void errors_say_where_and_what_was_expected(void)
{
    static const struct {
        const char *text, *place, *says;
    } bad[] = {
        {"alow tcp a.b:1", "line 1, column 1:", "'allow', 'deny', 'limit' or 'set' was expected"},
        {"\n\n  allow udp a.b:53", "line 3, column 9:", "'tcp' was expected, not 'udp'"},
        {"allow tcp", "line 1, column 10:", "a target was expected"},
        {"allow", "line 1, column 6:", "'tcp' was expected"},
        {"allow tcp a.b", "line 1, column 14:", "':' and a port"},
        {"allow tcp a.b:0", "line 1, column 15:", "from 1 to 65535"},
        {"allow tcp a.b:65536", "line 1, column 15:", "a port from 0 to 65535"},
        {"allow tcp a.b:80-70", "line 1, column 20:", "ends below"},
        {"allow tcp a.b:80,", "line 1, column 18:", "a port was expected"},
        {"allow tcp a.b:80x", "line 1, column 17:", "the end of the target"},
        {"allow tcp a.*.b:80", "line 1, column 11:", "'*' stands for all labels in front"},
        {"allow tcp 10.0.0.1/8:80", "line 1, column 21:", "10.0.0.0/8 was expected"},
        {"allow tcp 10.0.0/8:80", "line 1, column 11:", "four decimal numbers"},
        {"allow tcp 0177.0.0.1:80", "line 1, column 11:", "four decimal numbers"},
        {"allow tcp 0x7f000001:80", "line 1, column 11:", "a host name"},
        {"allow tcp 2130706433:80", "line 1, column 11:", "four decimal numbers"},
        {"allow tcp 10.0.0.0/33:80", "line 1, column 20:", "from 0 to 32"},
        {"allow tcp [::1]:80", "line 1, column 11:", "IPv6"},
        {"allow tcp ::ffff:10.0.0.1:80", "line 1, column 11:", "IPv6"},
        {"allow tcp @nothing", "line 1, column 11:", "is no set: "},
        {"allow tcp @pypi at 10.0.0.0/8", "line 1, column 17:", "the end of the line"},
        {"allow tcp a.b:80 at", "line 1, column 20:", "IPv4"},
        {"allow tcp a.b:80 foo", "line 1, column 18:", "'at', 'ech' or the end"},
        {"allow tcp 10.0.0.1:80 ech", "line 1, column 23:", "is for rules that allow a name"},
        {"allow tcp m\xc3\xbcller.de:80", "line 1, column 11:", "names in ASCII"},
        {"allow tcp a..b:80", "line 1, column 11:", "a host name"},
        {"allow tcp a.b:1,2,3,4,5,6,7,8,9", "line 1, column 31:", "at most 8 ports"},
        {"limit", "line 1, column 6:", "'connections', 'rate' or 'bytes'"},
        {"limit bytes many", "line 1, column 13:", "such as 500M"},
        {"limit rate 0", "line 1, column 12:", "a number from 1"},
        {"limit rate 5 a", "line 1, column 14:", "the end of the line"},
        {"allow\vtcp a.b:1", "line 1, column 6:", "a control character"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct policy *p = NULL;
        struct err e = {0};
        fprintf(stderr, "  %s\n", bad[i].text);
        CHECK_EQ(policy_parse(NULL, bad[i].text, strlen(bad[i].text), &p, &e), -EINVAL);
        CHECK_MEM(e.msg, strlen(bad[i].place), bad[i].place, strlen(bad[i].place));
        if (!strstr(e.msg, bad[i].says))
            CHECK_STR(e.msg, bad[i].says);
    }
}

/* ---- the index against the list ---- */

static uint32_t seed = 12345;

static uint32_t number(uint32_t below)
{
    seed = seed * 1103515245 + 12345;
    return (seed >> 8) % below;
}

struct simple {
    bool allow, any, wild, address;
    char name[32];
    struct range range;
    uint16_t port;
};

static bool simple_matches(const struct simple *r, const char *name, uint32_t address, uint16_t port)
{
    if (r->port != port)
        return false;
    if (r->any)
        return true;
    if (r->address)
        return range_has(&r->range, address);
    if (!r->wild)
        return strcmp(r->name, name) == 0;
    size_t n = strlen(name), m = strlen(r->name);
    return n > m + 1 && name[n - m - 1] == '.' && strcmp(name + n - m, r->name) == 0;
}

static void some_name(char out[32])
{
    int n = 0;
    for (uint32_t labels = 1 + number(3); labels; labels--)
        n += snprintf(out + n, 32 - (size_t)n, "%c.", (char)('a' + number(3)));
    snprintf(out + n, 32 - (size_t)n, "z");
}

static void the_index_decides_as_walking_the_list_would(void)
{
    enum { RULES = 60, ROUNDS = 200, ASKED = 50 };
    for (int round = 0; round < ROUNDS; round++) {
        struct simple rules[RULES];
        char text[RULES * 64];
        size_t n = 0;
        for (int i = 0; i < RULES; i++) {
            struct simple *r = &rules[i];
            *r = (struct simple){.allow = number(2), .port = (uint16_t)(1 + number(2))};
            uint32_t kind = number(20);
            r->any = kind == 0;
            r->address = kind > 0 && kind < 8;
            r->wild = kind >= 14;
            some_name(r->name);
            r->range.bits = (uint8_t)(8 + number(25));
            r->range.base = (0x5db8d800u | number(256)) & ~(uint32_t)(0xffffffffull >> r->range.bits);
            char address[ADDRESS_TEXT_MAX], target[48];
            if (r->any)
                snprintf(target, sizeof target, "*");
            else if (r->address)
                snprintf(target, sizeof target, "%s/%u", address_format(r->range.base, address), r->range.bits);
            else
                snprintf(target, sizeof target, "%s%s", r->wild ? "*." : "", r->name);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s tcp %s:%u\n", r->allow ? "allow" : "deny", target, r->port);
        }
        struct policy *p = parse(text);
        for (int i = 0; i < ASKED; i++) {
            char name[32];
            some_name(name);
            uint32_t address = 0x5db8d800u | number(256);
            uint16_t port = (uint16_t)(1 + number(2));
            struct decision d;
            policy_decide(p, NULL, &(struct destination){name, address, true, port}, &d);
            int first = 0;
            while (first < RULES && !simple_matches(&rules[first], name, address, port))
                first++;
            CHECK_EQ(d.line, first == RULES ? 0 : first + 1);
            CHECK_EQ(d.allowed, first < RULES && rules[first].allow);
        }
        policy_destroy(p);
    }
}

static const struct check_test tests[] = {
    TEST(an_empty_policy_allows_nothing),
    TEST(a_name_rule_is_for_that_name_and_port),
    TEST(a_wildcard_is_for_what_is_below),
    TEST(an_address_rule_is_for_addresses),
    TEST(the_first_match_decides),
    TEST(the_platforms_denials_go_first),
    TEST(a_level_above_denies_and_says_which),
    TEST(sets_are_looked_for_from_below),
    TEST(what_is_wrong_in_the_administrators_file_is_named),
    TEST(special_addresses_must_be_named),
    TEST(names_are_resolved_only_if_some_rule_could_allow_them),
    TEST(a_name_may_be_only_where_it_is_allowed),
    TEST(sets_are_their_targets),
    TEST(limits_are_the_smallest_that_are_said),
    TEST(errors_say_where_and_what_was_expected),
    TEST(the_index_decides_as_walking_the_list_would),
};
CHECK_MAIN(tests)
