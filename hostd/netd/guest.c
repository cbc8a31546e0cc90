// SPDX-License-Identifier: Apache-2.0
// A guest, as netd sees it: see netd.h.
//
// Which guest somebody is, is known by the socket alone: it is in that guest's network namespace.
// A guest knows an address by a name only for as long as netd told it so, and the decision on a
// connection starts from those names: a name that another guest asked for, or that is at the same
// address by chance, counts for nothing.
#include "hostd/netd/netd.h"

#include "base/log.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX 512  /* at once */
#define RATE_PER_SEC    100  /* connections and questions that begin */
#define RATE_BURST      4    /* seconds' worth, at once */
#define LOG_PER_SEC     20.0 /* lines; the rest is counted */
#define LOG_BURST       100.0
#define OWN_MSEC        5000u /* how old the list of this host's addresses may be */

struct guest *guest_find(const struct netd *n, uint64_t key)
{
    struct hmap_node *it = hmap_find(&n->guests, key);
    return it ? hmap_entry(it, struct guest, by_key) : NULL;
}

/* ---- life ---- */

static void tcp_ready(struct watch *w, uint32_t events)
{
    (void)events;
    relay_ready((struct guest *)(void *)((char *)w - offsetof(struct guest, tcp)));
}

static void udp_ready(struct watch *w, uint32_t events)
{
    (void)events;
    names_ready((struct guest *)(void *)((char *)w - offsetof(struct guest, udp)));
}

/* Nobody shares the cable between netd and a guest, and it loses nothing: BBR, where that is the
 * host's choice, would cost a timer for each burst there. Connections to servers are as the
 * configuration says. Every kernel has Reno, for everybody; sockets that this one accepts inherit it. */
static void choose_congestion(int tcp)
{
    static const char algorithm[] = "reno";
    setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, algorithm, sizeof algorithm - 1);
}

int guest_add(struct netd *n, uint64_t key, int tcp, int udp)
{
    struct guest *g = calloc(1, sizeof *g);
    struct policy *nothing = NULL;
    int rc = g ? policy_parse(NULL, "", 0, &nothing, NULL) : -ENOMEM;
    if (rc < 0) {
        free(g);
        close(tcp);
        close(udp);
        return rc;
    }
    *g = (struct guest){.netd = n,
                        .key = key,
                        .policy = nothing,
                        .tcp = {tcp, tcp_ready},
                        .udp = {udp, udp_ready},
                        .rate = {RATE_PER_SEC * RATE_BURST, loop_now(n->loop)},
                        .log = {LOG_BURST, loop_now(n->loop)}};
    choose_congestion(tcp);
    rc = loop_watch(n->loop, &g->tcp, EPOLLIN);
    if (rc == 0)
        rc = loop_watch(n->loop, &g->udp, EPOLLIN);
    hmap_insert(&n->guests, &g->by_key, key);
    if (rc < 0)
        guest_remove(g);
    return rc;
}

static void free_pin(struct guest *g, struct pin *p)
{
    hmap_remove(&g->pins, &p->by_address);
    for (int i = 0; i < PIN_NAMES_MAX; i++)
        free(p->names[i].name);
    free(p);
}

void guest_remove(struct guest *g)
{
    struct netd *n = g->netd;
    relay_review(g, true);
    names_forget(g);
    loop_forget(n->loop, &g->tcp);
    loop_forget(n->loop, &g->udp);
    close(g->tcp.fd);
    close(g->udp.fd);
    hmap_remove(&n->guests, &g->by_key);
    for (struct hmap_node *it; (it = hmap_iterate(&g->pins, NULL));)
        free_pin(g, hmap_entry(it, struct pin, by_address));
    hmap_finish(&g->pins);
    policy_destroy(g->policy);
    policy_destroy(g->tenant);
    free(g->belongs);
    free(g->tenant_text);
    free(g->text);
    loop_bury(n->loop, g);
}

static const char *or_nothing(const char *text)
{
    return text ? text : "";
}

static int parse_all(struct guest *g, struct policy **ret_tenant, struct policy **ret_own, struct err *e)
{
    const struct policy_context context = {.above = &g->above};
    const char *text = or_nothing(g->text);
    *ret_tenant = *ret_own = NULL;
    if (!levels_above(g->netd->levels, or_nothing(g->belongs), &g->above))
        return err_set(e, E2BIG, "more than %d policies apply to it", POLICY_ABOVE_MAX);
    int rc = levels_add_tenant(&g->above, or_nothing(g->tenant_text), ret_tenant, e);
    return rc < 0 ? rc : policy_parse(&context, text, strlen(text), ret_own, e);
}

/* Connections that are not allowed any more go. */
int guest_set_levels(struct guest *g, struct err *e)
{
    struct policy *tenant, *own;
    int rc = parse_all(g, &tenant, &own, e);
    if (rc < 0 && policy_parse(NULL, "", 0, &own, NULL) < 0)
        abort(); /* rather than go on with the old one */
    policy_destroy(g->policy);
    policy_destroy(g->tenant);
    g->policy = own;
    g->tenant = tenant;
    g->broken = rc < 0;
    relay_review(g, false);
    return rc;
}

int guest_set_policy(struct guest *g, uint64_t id, const char *belongs, const char *tenant, const char *text, struct err *e)
{
    free(g->belongs);
    free(g->tenant_text);
    free(g->text);
    g->belongs = strdup(belongs);
    g->tenant_text = strdup(tenant);
    g->text = strdup(text);
    if (!g->belongs || !g->tenant_text || !g->text)
        abort();
    g->id = id;
    return guest_set_levels(g, e);
}

/* ---- limits ---- */

static bool take_token(struct bucket *b, uint64_t now, double per_sec, double burst)
{
    b->tokens += (double)(now - b->at) * per_sec / 1000;
    b->at = now;
    if (b->tokens > burst)
        b->tokens = burst;
    if (b->tokens < 1)
        return false;
    b->tokens -= 1;
    return true;
}

/* 0: nothing is said. */
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

struct policy_limits guest_limits(const struct guest *g)
{
    struct policy_limits l = {.connections = CONNECTIONS_MAX, .rate = RATE_PER_SEC};
    for (size_t i = 0; i <= g->above.count; i++) {
        const struct policy_limits *p = policy_limits(i < g->above.count ? g->above.policy[i] : g->policy);
        l.connections = smaller(p->connections, l.connections);
        l.rate = smaller(p->rate, l.rate);
        l.bytes = smaller(p->bytes, l.bytes);
    }
    return l;
}

bool guest_is_spent(const struct guest *g)
{
    uint64_t most = guest_limits(g).bytes;
    return most && g->counts.sent_bytes + g->counts.received_bytes >= most;
}

bool guest_may_begin(struct guest *g)
{
    double rate = (double)guest_limits(g).rate;
    return take_token(&g->rate, loop_now(g->netd->loop), rate, rate * RATE_BURST);
}

/* ---- names and addresses ---- */

static struct pin *find_pin(struct guest *g, uint32_t address)
{
    struct hmap_node *it = hmap_find(&g->pins, address);
    return it ? hmap_entry(it, struct pin, by_address) : NULL;
}

/* The one that ends first. */
static void drop_oldest(struct guest *g)
{
    struct pin *oldest = NULL;
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&g->pins, it));) {
        struct pin *p = hmap_entry(it, struct pin, by_address);
        if (!oldest || p->until < oldest->until)
            oldest = p;
    }
    if (oldest)
        free_pin(g, oldest);
}

static struct pin *make_pin(struct guest *g, uint32_t address)
{
    if (g->pins.count >= GUEST_PINS_MAX)
        drop_oldest(g);
    struct pin *p = calloc(1, sizeof *p);
    if (p)
        hmap_insert(&g->pins, &p->by_address, address);
    return p;
}

/* The name's place, else a free one, else the one that ends first. */
static int place_of(const struct pin *p, const char *name)
{
    int free_one = -1, oldest = 0;
    for (int i = 0; i < PIN_NAMES_MAX; i++) {
        if (!p->names[i].name)
            free_one = i;
        else if (strcmp(p->names[i].name, name) == 0)
            return i;
        else if (p->names[i].until < p->names[oldest].until)
            oldest = i;
    }
    return free_one >= 0 ? free_one : oldest;
}

void guest_pin(struct guest *g, const char *name, uint32_t address, uint32_t ttl)
{
    uint64_t until = loop_now(g->netd->loop) + (uint64_t)ttl * 1000 + PIN_GRACE_MSEC;
    struct pin *p = find_pin(g, address);
    if (!p)
        p = make_pin(g, address);
    char *copy = p ? strdup(name) : NULL;
    if (!copy)
        return; /* then it cannot connect, either */
    int i = place_of(p, name);
    free(p->names[i].name);
    p->names[i].name = copy;
    p->names[i].until = until;
    if (until > p->until)
        p->until = until;
}

bool guest_names(struct guest *g, uint32_t address, bool (*each)(void *user, const char *name), void *user)
{
    const struct pin *p = find_pin(g, address);
    uint64_t now = loop_now(g->netd->loop);
    for (int i = 0; p && i < PIN_NAMES_MAX; i++)
        if (p->names[i].name && p->names[i].until >= now && each(user, p->names[i].name))
            return true;
    return false;
}

/* ---- decisions ---- */

static void read_own(struct netd *n)
{
    struct ifaddrs *all = NULL;
    uint64_t now = loop_now(n->loop);
    if (n->own.addresses && now - n->own.read < OWN_MSEC)
        return;
    if (getifaddrs(&all) < 0)
        return;
    size_t count = 0;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next)
        count += a->ifa_addr && a->ifa_addr->sa_family == AF_INET;
    uint32_t *list = calloc(count + 1, sizeof *list);
    size_t at = 0;
    for (const struct ifaddrs *a = all; list && a; a = a->ifa_next)
        if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET)
            list[at++] = ntohl(((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr.s_addr);
    freeifaddrs(all);
    if (!list)
        return;
    free(n->own.addresses);
    n->own.addresses = list;
    n->own.count = count;
    n->own.read = now;
}

/* This host's own addresses are reached only by a rule for exactly that one. */
static void check_own(struct netd *n, uint32_t address, struct decision *d)
{
    read_own(n);
    bool own = !n->own.addresses; /* unknown: nothing is let out */
    for (size_t i = 0; i < n->own.count && !own; i++)
        own = n->own.addresses[i] == address;
    if (!own || (d->exact && n->own.addresses))
        return;
    d->allowed = false;
    snprintf(d->why, sizeof d->why, "it is an address of the host itself");
}

struct search {
    struct guest *guest;
    struct destination to;
    const char *only;
    char *name;
    struct decision *out;
    bool known; /* `only` is one of the names there */
};

static bool try_name(void *user, const char *name)
{
    struct search *s = user;
    struct decision d;
    if (s->only && strcmp(name, s->only) != 0)
        return false;
    s->known = true;
    s->to.name = name;
    policy_decide(s->guest->policy, &s->guest->above, &s->to, &d);
    if (d.allowed || !s->out->line) { /* of denials the first, if none allows it */
        *s->out = d;
        snprintf(s->name, POLICY_NAME_MAX + 1, "%s", name);
    }
    return d.allowed;
}

bool guest_decide(struct guest *g, uint32_t address, uint16_t port, const char *only, char name[POLICY_NAME_MAX + 1], struct decision *out)
{
    struct search s = {.guest = g, .to = {NULL, address, true, port}, .only = only, .name = name, .out = out};
    struct decision bare;
    name[0] = 0;
    *out = (struct decision){0};
    guest_names(g, address, try_name, &s);
    if (!out->allowed && !only) {
        s.to.name = NULL;
        policy_decide(g->policy, &g->above, &s.to, &bare);
        if (bare.allowed || !s.known) {
            *out = bare;
            name[0] = 0;
        }
    }
    if (only && !s.known)
        snprintf(out->why, sizeof out->why, "the name is not one that it was told is there");
    if (out->allowed)
        check_own(g->netd, address, out);
    return out->allowed;
}

/* ---- what is told ---- */

void guest_log(struct guest *g, bool allowed, const char *what, const char *why)
{
    char line[512];
    g->counts_changed = true;
    if (!take_token(&g->log, loop_now(g->netd->loop), LOG_PER_SEC, LOG_BURST)) {
        g->quiet++;
        return;
    }
    if (g->quiet)
        log_info("sandbox %012" PRIx64 ": %" PRIu64 " more decisions, not written", g->id, g->quiet);
    g->quiet = 0;
    snprintf(line, sizeof line, "%s %s: %s", allowed ? "allow" : "deny", what, why);
    log_info("sandbox %012" PRIx64 " %s", g->id, line);
    control_decision(g->netd, g, allowed, line);
}

void guest_tick(struct guest *g)
{
    relay_tick(g);
    if (!g->counts_changed)
        return;
    g->counts_changed = false;
    control_counts(g->netd, g);
}
