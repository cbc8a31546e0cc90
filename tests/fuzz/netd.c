// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what netd reads from guests (questions about names, first bytes of connections) and
// from users (policies). The first byte chooses.
#include "fuzz/target.h"
#include "hostd/netd/dns.h"
#include "hostd/netd/levels.h"
#include "hostd/netd/policy.h"
#include "hostd/netd/sniff.h"

#include <stdlib.h>
#include <string.h>

static void must_hold(int holds)
{
    if (!holds)
        abort();
}

static void try_policy(const uint8_t *data, size_t size)
{
    struct policy *p = NULL;
    struct err e = {0};
    struct decision d;
    int rc = policy_parse(NULL, (const char *)data, size, &p, &e);
    must_hold((rc == 0) == (p != NULL) && (rc == 0 || e.msg[0]));
    if (rc < 0)
        return;
    static const char *const names[] = {"a.b", "x.y.a.b", "pypi.org", "z"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool may = false;
        for (uint16_t port = 1; port < 5; port++) {
            policy_decide(p, NULL, &(struct destination){names[i], 0x5db8d822, true, port}, &d);
            must_hold(d.allowed || d.why[0]);
            may = may || (d.allowed && d.by == POLICY_BY_NAME);
        }
        must_hold(!may || policy_may_resolve(p, NULL, names[i]));
        must_hold(policy_may_be_at(p, names[i], 0x5db8d822));
    }
    policy_destroy(p);
}

/* The administrator's file, above an empty policy and one that uses its sets. */
static void try_levels(const uint8_t *data, size_t size)
{
    struct levels *l = NULL;
    struct err e = {0};
    struct policy_above above;
    const struct policy_context context = {.above = &above};
    static const char own[] = "allow tcp @s\nallow tcp *:*";
    int rc = levels_parse((const char *)data, size, &l, &e);
    must_hold((rc == 0) == (l != NULL) && (rc == 0 || e.msg[0]));
    if (rc < 0 || !levels_above(l, "tenant a\nlabel admin.a=b\n", &above)) {
        levels_destroy(l);
        return;
    }
    struct policy *p = NULL;
    struct decision d;
    if (policy_parse(&context, own, sizeof own - 1, &p, &e) == 0) {
        policy_decide(p, &above, &(struct destination){"a.b", 0x5db8d822, true, 1}, &d);
        must_hold(d.allowed ? !d.whose : d.why[0]);
    }
    policy_destroy(p);
    levels_destroy(l);
}

static void try_dns(const uint8_t *data, size_t size)
{
    struct dns_question q, again;
    uint8_t out[DNS_MESSAGE_MAX];
    const struct dns_answer a[3] = {{1, 2}, {3, 4}, {5, 6}};
    if (dns_read_question(data, size, &q) != DNS_OK)
        return;
    must_hold(!q.name[0] || policy_name_valid(q.name, strlen(q.name)));
    size_t n = dns_write_answer(&q, DNS_OK, a, 3, out);
    must_hold(n <= sizeof out);
    out[2] &= 0x7f;
    must_hold(dns_read_question(out, n, &again) == DNS_OK && strcmp(q.name, again.name) == 0);
}

/* More bytes change nothing of what was known. */
static void try_sniff(const uint8_t *data, size_t size)
{
    struct sniffed whole, part;
    enum sniff kind = sniff(data, size, &whole);
    must_hold(!whole.has_name || whole.name[0]);
    for (size_t n = 0; n < size && n < 600; n++) {
        enum sniff early = sniff(data, n, &part);
        if (early == SNIFF_MORE)
            continue;
        must_hold(early == kind && part.has_name == whole.has_name && strcmp(part.name, whole.name) == 0);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] % 3 == 0) {
        try_policy(data + 1, size - 1);
        try_levels(data + 1, size - 1);
    } else if (data[0] % 3 == 1) {
        try_dns(data + 1, size - 1);
    } else {
        try_sniff(data + 1, size - 1);
    }
    return 0;
}
