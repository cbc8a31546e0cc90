// SPDX-License-Identifier: Apache-2.0
// The networks of machines: see net.h.
#include "hostd/lifecycle/net.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/credential.h"
#include "hostd/events.h"
#include "hostd/lifecycle/tenant.h"
#include "hostd/netd/levels.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"
#include "ipc/client.h"
#include "ipc/netd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define RETRY_MSEC  200u
#define ANSWER_MSEC 10000u /* a space-netd that does not answer is connected anew */
#define SETTLE_MSEC 2000u
#define EVENT_NSEC  5000000000 /* between two events of denials of one sandbox */

/* What space-netd has of a machine. */
struct net_guest {
    struct hmap_node by_key;
    uint64_t told; /* hash of the policy and whose it is; 0: none yet */
    bool wanted;   /* in this round */
};

struct net {
    struct space *space;
    struct client *client;
    struct hmap guests;
    struct wait_list waiters;
    bool running, dirty, greeted;
    struct co *asking; /* waits for the answer to `tag` */
    uint64_t tag;
    const struct netd_message *reply; /* with its text; until the next wait */
};

/* What is remembered of a sandbox. */
struct net_memory {
    uint64_t object; /* whose counts `now` are */
    struct netd_counts now, past;
    int64_t told; /* when an event was made of a denial */
    unsigned next;
    char *lines[NET_LINES];
};

/* ---- what space-netd tells ---- */

static struct net_memory *memory_of(struct sandbox *sb)
{
    if (!sb->net && !(sb->net = calloc(1, sizeof *sb->net)))
        abort();
    return sb->net;
}

static void add_counts(struct netd_counts *to, const struct netd_counts *from)
{
    to->sent_bytes += from->sent_bytes;
    to->received_bytes += from->received_bytes;
    to->allowed += from->allowed;
    to->denied += from->denied;
    to->names += from->names;
    to->names_denied += from->names_denied;
}

/* Another machine, or another space-netd, counts from 0. */
static void take_counts(struct net_memory *m, uint64_t object, const struct netd_counts *c)
{
    if (m->object != object || c->names < m->now.names || c->allowed < m->now.allowed || c->denied < m->now.denied)
        add_counts(&m->past, &m->now);
    m->object = object;
    m->now = *c;
}

static void take_line(struct sandbox *sb, const char *line, bool denied)
{
    struct net_memory *m = memory_of(sb);
    char stamped[400], quoted[300];
    time_t sec = (time_t)(space_now() / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    size_t n = strftime(stamped, sizeof stamped, "%Y-%m-%dT%H:%M:%SZ ", &tm);
    snprintf(stamped + n, sizeof stamped - n, "%s", line);
    for (char *c = stamped; *c; c++) /* names come from the guest; netd lets nothing else in */
        *c = *c >= 0x20 && *c < 0x7f ? *c : '?';
    free(m->lines[m->next]);
    m->lines[m->next] = strdup(stamped);
    m->next = (m->next + 1) % NET_LINES;
    if (!denied || space_now() - m->told < EVENT_NSEC)
        return;
    m->told = space_now();
    struct event_scope scope = sandbox_scope(sb);
    event_emit(sb->space, &scope, "denied", (uint64_t)sb->row.id, sb->row.name, ",\"what\":%s", event_quote(line, quoted, sizeof quoted));
}

static void take_event(struct net *n, const struct netd_message *m, const char *text)
{
    struct sandbox *sb = sandbox_by_object(n->space, m->key);
    if (!sb)
        return;
    take_counts(memory_of(sb), m->key, &m->counts);
    credential_denied(sb, net_sums(sb).denied, m->op == NETD_EVENT_DECISION && m->denied ? text : "");
    if (m->op == NETD_EVENT_DECISION)
        take_line(sb, text, m->denied);
}

/* ---- the connection ---- */

static void on_up(void *user)
{
    const struct net *n = user;
    net_kick(n->space);
}

static void on_down(void *user)
{
    struct net *n = user;
    struct co *co = n->asking;
    n->greeted = false;
    n->asking = NULL;
    n->reply = NULL;
    if (co)
        co_wake(co, -ENOTCONN);
}

static void on_packet(void *user, void *bytes, size_t size, int fd)
{
    struct net *n = user;
    const struct netd_message *m = bytes;
    (void)fd; /* it takes none */
    if (size < sizeof *m || m->version != NETD_VERSION || size != sizeof *m + m->len) {
        client_hang_up(n->client);
        return;
    }
    if (m->op != NETD_REPLY) {
        take_event(n, m, (const char *)(m + 1));
    } else if (n->asking && m->tag == n->tag) {
        struct co *co = n->asking;
        n->asking = NULL;
        n->reply = m;
        co_wake(co, 0);
    }
}

/* From the coroutine. The answer's error; its text is in n->reply until the next wait. */
static int ask(struct net *n, struct netd_message *m, const char *text, const int *fds)
{
    m->version = NETD_VERSION;
    m->tag = ++n->tag;
    m->len = (uint32_t)strlen(text);
    struct iovec iov[2] = {{m, sizeof *m}, {(void *)(uintptr_t)text, m->len}};
    if (client_send(n->client, iov, 2, fds, fds ? 2 : 0) <= 0) {
        client_hang_up(n->client); /* it takes nothing any more */
        return -ENOTCONN;
    }
    n->asking = co_self(n->space->co);
    int rc = co_wait_msec(n->space->co, ANSWER_MSEC);
    if (n->asking) { /* nobody woke us */
        n->asking = NULL;
        log_warn("space-netd does not answer");
        client_hang_up(n->client);
    }
    return rc < 0 ? -ENOTCONN : n->reply->error;
}

/* ---- what there is ---- */

/* What its policy is now: of one that is being copied, nothing. */
static const char *text_of(const struct sandbox *sb)
{
    return !sb || sb->copy == COPY_HELD ? "" : sb->row.egress;
}

#define BELONGS_MAX 8192u

/* What a user's sandboxes belong to, as levels.h has it: their owner, by name and by number. */
static size_t belongs_of_user(uint32_t uid, char out[BELONGS_MAX])
{
    char user[33];
    return (size_t)snprintf(out, BELONGS_MAX, "tenant %s\ntenant %u\n", caller_user_name(uid, user), uid);
}

/* And the labels of the administrator's. */
static void belongs_of(const struct sandbox *sb, char out[BELONGS_MAX])
{
    size_t at = belongs_of_user((uint32_t)sb->row.owner, out);
    for (const char *line = sb->row.labels, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        size_t len = (size_t)(end - line);
        if (strncmp(line, "admin.", 6) != 0 || at + len + 8 >= BELONGS_MAX)
            continue;
        at += (size_t)snprintf(out + at, BELONGS_MAX - at, "label %.*s\n", (int)len, line);
    }
}

static uint64_t hash_of(uint64_t id, const char *text)
{
    uint64_t h = XXH3_64bits_withSeed(text, strlen(text), id);
    return h ? h : 1;
}

static struct net_guest *known(const struct net *n, uint64_t key)
{
    struct hmap_node *it = hmap_find(&n->guests, key);
    return it ? hmap_entry(it, struct net_guest, by_key) : NULL;
}

static struct net_guest *learn(struct net *n, uint64_t key)
{
    struct net_guest *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    hmap_insert(&n->guests, &g->by_key, key);
    return g;
}

static void unlearn(struct net *n, struct net_guest *g)
{
    hmap_remove(&n->guests, &g->by_key);
    free(g);
}

static int greet(struct net *n)
{
    struct netd_message m = {.op = NETD_HELLO};
    for (struct hmap_node *it; (it = hmap_iterate(&n->guests, NULL));)
        unlearn(n, hmap_entry(it, struct net_guest, by_key));
    int rc = ask(n, &m, "", NULL);
    if (rc < 0) {
        if (rc == -EPROTO)
            log_error("space-netd: %s", (const char *)(n->reply + 1));
        client_hang_up(n->client);
        return -ENOTCONN;
    }
    const char *text = (const char *)(n->reply + 1);
    for (uint64_t key; str_parse_id(text, 12, &key) == 0; text += 13)
        learn(n, key);
    n->greeted = true;
    return 0;
}

/* A machine that is gone meanwhile has no sockets: the next round does not want it any more. */
static int add(struct net *n, uint64_t object, struct net_guest **out)
{
    struct space *s = n->space;
    int fds[2] = {-1, -1};
    struct err e = {0};
    struct noded_request q = {.op = NODED_NET_SOCKET, .kind = NODED_SANDBOX, .id = object};
    int rc = noded_call(s, &q, NULL, &fds[0], &e);
    q.port = 1;
    if (rc == 0)
        rc = noded_call(s, &q, NULL, &fds[1], &e);
    if (rc == 0) {
        struct netd_message m = {.op = NETD_ADD, .key = object};
        rc = ask(n, &m, "", fds);
        if (rc == 0)
            *out = learn(n, object);
        else if (rc != -ENOTCONN)
            log_warn("machine %012" PRIx64 " gets no network: %s", object, (const char *)(n->reply + 1));
    } else {
        if (rc != -ENOENT && rc != -ESRCH && rc != -ENODEV) /* it ended meanwhile, or is an older one */
            log_warn("machine %012" PRIx64 " gets no network: %s", object, e.msg);
        rc = 0;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return rc == -ENOTCONN ? rc : 0;
}

/* The machine's sockets, and its sandbox's policy, if it has one. */
static int make_so(struct net *n, uint64_t object)
{
    struct net_guest *g = known(n, object);
    int rc = g ? 0 : add(n, object, &g);
    if (rc < 0 || !g)
        return rc;
    g->wanted = true;
    const struct sandbox *sb = sandbox_by_object(n->space, object);
    if (!sb)
        return 0;
    char text[BELONGS_MAX + 2 * EGRESS_TEXT_MAX];
    const char *tenant = tenant_egress(n->space, sb->row.owner);
    belongs_of(sb, text);
    struct netd_message m = {
        .op = NETD_POLICY, .key = object, .id = (uint64_t)sb->row.id, .head = (uint32_t)strlen(text), .tenant = (uint32_t)strlen(tenant)};
    snprintf(text + m.head, sizeof text - m.head, "%s%s", tenant, text_of(sb));
    uint64_t id = m.id, hash = hash_of(id | (uint64_t)m.tenant << 48, text); /* where the one ends and the other begins counts */
    if (g->told == hash)
        return 0;
    rc = ask(n, &m, text, NULL);
    if (rc == -ENOTCONN)
        return rc;
    if (rc < 0)
        log_warn("sandbox %012" PRIx64 ": its policy is not taken: %s", id, (const char *)(n->reply + 1));
    g->told = hash; /* nobody but us removes it */
    return 0;
}

/* Objects of machines that run or wait; malloc'ed. They may be gone when their turn comes. */
static uint64_t *list_machines(const struct space *s, size_t *ret_count)
{
    size_t count = 0, room = s->sandboxes.count;
    for (const struct machine *m = s->machines; m; m = m->next)
        room++;
    uint64_t *list = calloc(room + 1, sizeof *list);
    if (!list)
        abort();
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&s->sandboxes, it));) {
        const struct sandbox *sb = hmap_entry(it, struct sandbox, by_id);
        if (sb->guest && sb->row.object)
            list[count++] = (uint64_t)sb->row.object;
    }
    for (const struct machine *m = s->machines; m; m = m->next)
        if (m->started && m->state != MACHINE_ENDING && !m->lost)
            list[count++] = m->object;
    *ret_count = count;
    return list;
}

static int remove_unwanted(struct net *n)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->guests, it));) {
        struct net_guest *g = hmap_entry(it, struct net_guest, by_key);
        if (g->wanted)
            continue;
        struct netd_message m = {.op = NETD_REMOVE, .key = it->key};
        int rc = ask(n, &m, "", NULL);
        if (rc == -ENOTCONN)
            return rc;
        unlearn(n, g);
        it = NULL; /* the map changed */
    }
    return 0;
}

static int look(struct net *n)
{
    size_t count;
    int rc = n->greeted ? 0 : greet(n);
    uint64_t *list = list_machines(n->space, &count);
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->guests, it));)
        hmap_entry(it, struct net_guest, by_key)->wanted = false;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = make_so(n, list[i]);
    free(list);
    return rc < 0 ? rc : remove_unwanted(n);
}

static void run(void *arg)
{
    struct net *n = arg;
    while (n->dirty) {
        struct wait_list now = n->waiters;
        n->waiters.first = NULL;
        if (now.first)
            now.first->prev = &now.first;
        n->dirty = false;
        if (client_is_up(n->client) && look(n) == -ENOTCONN)
            n->dirty = false; /* it comes back with a kick */
        wait_done_all(&now, 0, NULL);
    }
    n->running = false;
}

void net_kick(struct space *s)
{
    struct net *n = s->net;
    n->dirty = true;
    if (n->running)
        return;
    n->running = true;
    co_spawn(s->co, run, n);
}

void net_apply(struct space *s, struct waiter *w)
{
    wait_add(&s->net->waiters, w);
    net_kick(s);
}

void net_settle(struct sandbox *sb)
{
    struct space *s = sb->space;
    if (!sb->row.egress[0]) {
        net_kick(s); /* nothing is allowed either way */
        return;
    }
    struct co_waiter c = co_waiter_of(s->co, NULL);
    net_apply(s, &c.w);
    co_wait_msec(s->co, SETTLE_MSEC);
    wait_remove(&c.w);
}

int net_open(struct space *s, struct err *e)
{
    static const struct client_ops ops = {
        .packet_max = sizeof(struct netd_message) + NETD_TEXT_MAX, .up = on_up, .packet = on_packet, .down = on_down, .retry_msec = RETRY_MSEC};
    char path[108];
    struct net *n = calloc(1, sizeof *n);
    snprintf(path, sizeof path, "%s/netd.sock", s->config.run);
    if (!n || !(n->client = client_open(s->loop, path, &ops, n))) {
        free(n);
        return err_set(e, ENOMEM, "connect to space-netd: out of memory");
    }
    n->space = s;
    s->net = n;
    return 0;
}

/* ---- for the tree ---- */

/* What space-netd reads, too. */
static int read_levels(const char *path, struct levels **out, struct err *e)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t len = 0;
    if (!f)
        return errno == ENOENT ? 0 : err_sys(e, "open %s", path);
    ssize_t n = getdelim(&text, &len, 0, f);
    fclose(f);
    int rc = n > 0 ? levels_parse(text, (size_t)n, out, e) : 0;
    free(text);
    return rc < 0 ? err_wrap(e, "%s", path) : 0;
}

/* A policy, and those above it. */
struct stack {
    struct levels *levels;
    struct policy_above above;
    struct policy *tenant, *own;
};

static void stack_destroy(struct stack *st)
{
    policy_destroy(st->own);
    policy_destroy(st->tenant);
    levels_destroy(st->levels);
}

/* What is above who belongs to that, and is no sandbox's own. */
static int read_above(const struct space *s, const char *belongs, const char *tenant, struct stack *out, struct err *e)
{
    *out = (struct stack){0};
    int rc = read_levels(s->config.egress, &out->levels, e);
    if (rc == 0 && !levels_above(out->levels, belongs, &out->above))
        rc = err_set(e, E2BIG, "more than %d of the administrator's policies apply", POLICY_ABOVE_MAX);
    return rc < 0 ? rc : levels_add_tenant(&out->above, tenant, &out->tenant, e);
}

/* A policy as a sandbox's own, below the administrator's and its tenant's. */
static int read_policy(const struct sandbox *sb, const char *text, struct stack *out, struct err *e)
{
    char belongs[BELONGS_MAX];
    const struct policy_context context = {.above = &out->above};
    belongs_of(sb, belongs);
    int rc = read_above(sb->space, belongs, tenant_egress(sb->space, sb->row.owner), out, e);
    return rc < 0 ? rc : policy_parse(&context, text, strlen(text), &out->own, e);
}

int net_check(const struct sandbox *sb, const char *text, struct err *e)
{
    struct stack st;
    int rc = read_policy(sb, text, &st, e);
    stack_destroy(&st);
    return rc;
}

int net_check_tenant(const struct space *s, uint32_t uid, const char *text, struct err *e)
{
    char belongs[BELONGS_MAX];
    struct stack st;
    belongs_of_user(uid, belongs);
    int rc = read_above(s, belongs, text, &st, e);
    stack_destroy(&st);
    return rc;
}

static int parse_where(const char *where, char name[POLICY_NAME_MAX + 1], struct destination *out, struct err *e)
{
    const char *colon = strrchr(where, ':');
    size_t len = colon ? (size_t)(colon - where) : 0;
    uint64_t port = 0;
    *out = (struct destination){0};
    if (!len || len > POLICY_NAME_MAX || str_parse_u64(colon + 1, 65535, &port) < 0 || port == 0)
        return err_set(e, EINVAL, "'%.80s' is no destination: HOST:PORT", where);
    out->port = (uint16_t)port;
    out->has_address = address_parse(where, len, &out->address);
    for (size_t i = 0; i < len; i++)
        name[i] = where[i] >= 'A' && where[i] <= 'Z' ? (char)(where[i] + 32) : where[i];
    name[len] = 0;
    if (!out->has_address && !policy_name_valid(name, len))
        return err_set(e, EINVAL, "'%.80s' is neither a host name nor an IPv4 address", name);
    out->name = out->has_address ? NULL : name;
    return 0;
}

int net_explain(const struct sandbox *sb, const char *where, char *out, size_t size, struct err *e)
{
    char name[POLICY_NAME_MAX + 1];
    struct destination to;
    struct decision d;
    struct stack st;
    int rc = parse_where(where, name, &to, e);
    if (rc < 0)
        return rc;
    rc = read_policy(sb, sb->row.egress, &st, e);
    if (rc == 0) {
        policy_decide(st.own, &st.above, &to, &d);
        policy_explain(&d, out, size);
    }
    stack_destroy(&st);
    return rc;
}

struct net_sums net_sums(const struct sandbox *sb)
{
    struct net_sums sums = {0};
    if (!sb->net)
        return sums;
    struct netd_counts c = sb->net->past;
    add_counts(&c, &sb->net->now);
    return (struct net_sums){c.sent_bytes, c.received_bytes, c.allowed, c.denied, c.names, c.names_denied, sb->net->now.open};
}

void net_lines(const struct sandbox *sb, void (*each)(void *user, const char *line), void *user)
{
    for (unsigned i = 0; sb->net && i < NET_LINES; i++) {
        const char *line = sb->net->lines[(sb->net->next + i) % NET_LINES];
        if (line)
            each(user, line);
    }
}

void net_forget(struct sandbox *sb)
{
    for (unsigned i = 0; sb->net && i < NET_LINES; i++)
        free(sb->net->lines[i]);
    free(sb->net);
    sb->net = NULL;
}
