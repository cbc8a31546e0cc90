// SPDX-License-Identifier: Apache-2.0
// Credentials in space-hostd: see credential.h.
#include "hostd/credential/credential.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/client.h"
#include "hostd/credential/trust.h"
#include "hostd/lifecycle/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define DENIED_MSEC 1000u /* lines of one sandbox are told at most so often; their counts add up */

struct credentials {
    struct space *space;
    struct credd *credd;
    struct hmap by_id;
    char key[64];
    const char *answer; /* while waiters are told */
};

/* ---- references ---- */

struct credential *credential_ref(struct credential *c)
{
    c->refs++;
    return c;
}

void credential_unref(struct credential *c)
{
    if (c && --c->refs == 0)
        free(c);
}

struct scope *scope_new(const struct credd_scope *s)
{
    struct scope *scope = calloc(1, sizeof *scope);
    if (!scope)
        abort();
    scope->refs = 1;
    scope->s = *s;
    return scope;
}

struct scope *scope_ref(struct scope *s)
{
    s->refs++;
    return s;
}

void scope_unref(struct scope *s)
{
    if (s && --s->refs == 0)
        free(s);
}

/* ---- the copy of the records ---- */

static struct credential *find(const struct credentials *cs, uint64_t id)
{
    struct hmap_node *n = hmap_find(&cs->by_id, id);
    return n ? hmap_entry(n, struct credential, by_id) : NULL;
}

static void take_record(struct credentials *cs, const char *bytes, size_t len)
{
    struct credd_record rec;
    if (len != sizeof rec)
        return;
    memcpy(&rec, bytes, sizeof rec);
    struct credential *c = find(cs, rec.id);
    if (!c) {
        if (!(c = calloc(1, sizeof *c)))
            abort();
        c->refs = 1;
        c->space = cs->space;
        hmap_insert(&cs->by_id, &c->by_id, rec.id);
    }
    c->rec = rec;
}

static void drop(struct credentials *cs, struct credential *c)
{
    if (c->gone)
        return;
    c->gone = true;
    hmap_remove(&cs->by_id, &c->by_id);
    credential_unref(c);
}

struct credential *credential_by_name(const struct space *s, const struct credd_scope *scope, const char *name)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->credentials->by_id, n));) {
        struct credential *c = hmap_entry(n, struct credential, by_id);
        if (!strcmp(c->rec.name, name) && credd_scope_equal(&c->rec.scope, scope))
            return c;
    }
    return NULL;
}

void credential_each(const struct space *s, void (*each)(void *user, struct credential *c), void *user)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->credentials->by_id, n));)
        each(user, hmap_entry(n, struct credential, by_id));
}

bool credd_scope_equal(const struct credd_scope *a, const struct credd_scope *b)
{
    return a->kind == b->kind && a->tenant == b->tenant && a->sandbox == b->sandbox && !strcmp(a->label, b->label);
}

bool credd_label_valid(const char *label)
{
    size_t len = strlen(label), key = strcspn(label, "=");
    if (strncmp(label, "admin.", 6) != 0 || len >= CREDD_LABEL_SIZE || key == 6 || key == len)
        return false;
    for (const char *c = label; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f || *c == '/' || *c == ':')
            return false;
    return true;
}

/* ---- rights ---- */

bool scope_may_read(const struct credd_scope *s, const struct caller *c)
{
    return c->uid == 0 || (s->kind != CREDD_PLATFORM && c->uid == s->tenant);
}

bool scope_may_make(const struct credd_scope *s, const struct caller *c)
{
    bool own = s->kind == CREDD_TENANT || s->kind == CREDD_SANDBOX;
    return c->uid == 0 || (own && c->uid == s->tenant && c->may_create);
}

bool credential_may_change(const struct credential *c, const struct caller *caller)
{
    return caller->uid == 0 || (caller->uid == c->rec.maker && scope_may_make(&c->rec.scope, caller));
}

/* ---- requests ---- */

struct ask {
    struct credentials *cs;
    struct credential *credential; /* a reference, or NULL */
    struct wait_list waiters;      /* one, unless it was cancelled */
    bool removes, brings_record;
};

const char *credential_answer(const struct space *s)
{
    return s->credentials->answer;
}

static void answered(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct ask *a = user;
    struct credentials *cs = a->cs;
    struct err e = {0};
    if (rep->error < 0)
        err_set(&e, -rep->error, "%s", rep->sentence);
    else if (a->brings_record)
        take_record(cs, bytes, len);
    if (rep->error == 0 && a->removes)
        drop(cs, a->credential);
    if (rep->error == 0 && (a->brings_record || a->removes)) {
        net_kick(cs->space);
        trust_kick(cs->space);
    }
    cs->answer = bytes;
    wait_done_all(&a->waiters, rep->error, rep->error < 0 ? &e : NULL);
    cs->answer = "";
    credential_unref(a->credential);
    free(a);
}

static struct ask *new_ask(struct space *s, struct credential *c, struct waiter *w)
{
    struct ask *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    a->cs = s->credentials;
    a->credential = c ? credential_ref(c) : NULL;
    if (w)
        wait_add(&a->waiters, w);
    return a;
}

static void send_ask(struct ask *a, const struct credd_request *q, const char *text)
{
    credd_send(a->cs->credd, q, text, text ? strlen(text) : 0, answered, a);
}

void credential_make(struct space *s, const struct credd_scope *scope, const char *name, uint32_t uid, struct waiter *w)
{
    struct credd_request q = {.op = CREDD_MAKE, .uid = uid, .scope = *scope};
    struct ask *a = new_ask(s, NULL, w);
    str_copy(q.name, sizeof q.name, name);
    q.sandbox = scope->sandbox;
    a->brings_record = true;
    send_ask(a, &q, NULL);
}

static struct credd_request request_of(const struct credential *c, enum credd_op op, uint32_t uid)
{
    return (struct credd_request){.op = op, .credential = c->rec.id, .sandbox = c->rec.scope.sandbox, .uid = uid};
}

void credential_set(struct credential *c, enum credd_field field, const char *text, uint32_t uid, struct waiter *w)
{
    struct credd_request q = request_of(c, CREDD_SET, uid);
    struct ask *a = new_ask(c->space, c, w);
    q.field = field;
    a->brings_record = true;
    send_ask(a, &q, text);
}

void credential_value(struct credential *c, const char *text, uint32_t uid, struct waiter *w)
{
    const struct credd_request q = request_of(c, CREDD_VALUE, uid);
    struct ask *a = new_ask(c->space, c, w);
    a->brings_record = true;
    send_ask(a, &q, text);
}

void credential_remove(struct credential *c, uint32_t uid, struct waiter *w)
{
    const struct credd_request q = request_of(c, CREDD_REMOVE, uid);
    struct ask *a = new_ask(c->space, c, w);
    a->removes = true;
    send_ask(a, &q, NULL);
}

void credential_log(struct credential *c, struct waiter *w)
{
    const struct credd_request q = request_of(c, CREDD_LOG, 0);
    send_ask(new_ask(c->space, c, w), &q, NULL);
}

void credential_login(const struct sandbox *sb, const char *text, uint32_t uid, struct waiter *w)
{
    const struct credd_request q = {.op = CREDD_LOGIN, .sandbox = (uint64_t)sb->row.id, .uid = uid};
    send_ask(new_ask(sb->space, NULL, w), &q, text);
}

const char *credential_key(const struct space *s)
{
    return s->credentials->key;
}

/* ---- sandboxes ---- */

/* Of what space-credd is told; 0: nothing. */
static uint64_t state_of(const struct sandbox *sb)
{
    if (!sb->named || sb->gone)
        return 0;
    uint64_t h = XXH3_64bits_withSeed(sb->row.labels, strlen(sb->row.labels), (uint64_t)sb->row.owner);
    return h ? h : 1;
}

static void tell(struct sandbox *sb, uint64_t state)
{
    const struct credd_request q = {.op = state ? CREDD_KNOW : CREDD_FORGET, .sandbox = (uint64_t)sb->row.id, .uid = (uint32_t)sb->row.owner};
    credd_send(sb->space->credentials->credd, &q, sb->row.labels, strlen(sb->row.labels), NULL, NULL);
    sb->credentials_told = state;
}

void credential_sandbox(struct sandbox *sb)
{
    const struct credentials *cs = sb->space->credentials;
    uint64_t state = state_of(sb);
    if (!cs || !credd_up(cs->credd) || state == sb->credentials_told)
        return; /* all are told of when it is back */
    tell(sb, state);
}

/* Removes what is of sandboxes that are not there: of one only, unless `id` is 0. */
static void remove_orphans(struct credentials *cs, uint64_t id)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&cs->by_id, n));) {
        struct credential *c = hmap_entry(n, struct credential, by_id);
        const struct sandbox *sb = c->rec.scope.kind == CREDD_SANDBOX ? sandbox_by_id(cs->space, c->rec.scope.sandbox) : NULL;
        bool orphan = id ? c->rec.scope.sandbox == id : c->rec.scope.kind == CREDD_SANDBOX && !(sb && sb->named);
        if (orphan)
            credential_remove(c, c->rec.scope.tenant, NULL);
    }
}

void credential_sandbox_gone(const struct sandbox *sb)
{
    if (sb->space->credentials)
        remove_orphans(sb->space->credentials, (uint64_t)sb->row.id);
}

static bool has_label(const char *labels, const char *label)
{
    size_t len = strlen(label);
    for (const char *at = labels; *at;) {
        size_t n = strcspn(at, "\n");
        if (n == len && !memcmp(at, label, n))
            return true;
        at += n + (at[n] == '\n');
    }
    return false;
}

static bool covers(const struct credd_scope *s, const struct sandbox *sb)
{
    bool tenant = s->tenant == (uint32_t)sb->row.owner;
    switch (s->kind) {
    case CREDD_PLATFORM: return true;
    case CREDD_TENANT: return tenant;
    case CREDD_LABELLED: return tenant && has_label(sb->row.labels, s->label);
    default: return s->sandbox == (uint64_t)sb->row.id;
    }
}

void credential_hosts(const struct sandbox *sb, void (*each)(void *user, const char *host), void *user)
{
    char line[300];
    const struct credentials *cs = sb->space->credentials;
    for (struct hmap_node *n = NULL; cs && state_of(sb) && (n = hmap_iterate(&cs->by_id, n));) {
        const struct credential *c = hmap_entry(n, struct credential, by_id);
        if (!covers(&c->rec.scope, sb) || !strncmp(c->rec.method, "autofill ", 9))
            continue;
        for (const char *at = c->rec.hosts; *at;) {
            size_t len = strcspn(at, "\n");
            snprintf(line, sizeof line, "%.*s", (int)len, at);
            each(user, line);
            at += len + (at[len] == '\n');
        }
    }
}

/* ---- denials ---- */

void credential_denied(struct sandbox *sb, uint64_t total, const char *line)
{
    const struct credentials *cs = sb->space->credentials;
    uint64_t now = uv_now(sb->space->loop);
    if (total < sb->denied.told)
        sb->denied.told = 0; /* another count */
    if (!cs || total == sb->denied.told || !credd_up(cs->credd) || (sb->denied.at && now - sb->denied.at < DENIED_MSEC && !line[0]))
        return; /* it counts with the next */
    const struct credd_request q = {
        .op = CREDD_DENIED, .sandbox = (uint64_t)sb->row.id, .uid = (uint32_t)sb->row.owner, .count = total - sb->denied.told};
    const char *text = line[0] ? line : "more, of which no line was kept";
    credd_send(cs->credd, &q, text, strnlen(text, CREDD_TEXT_SIZE - 1), NULL, NULL);
    sb->denied.told = total;
    sb->denied.at = now;
}

/* ---- life ---- */

static void connected(void *user, const struct credd_reply *hello, const void *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct credentials *cs = user;
    char *out = cs->key;
    struct hmap old = cs->by_id;
    cs->by_id = (struct hmap){0};
    for (size_t at = 0; at + sizeof(struct credd_record) <= len; at += sizeof(struct credd_record)) {
        struct hmap_node *n = hmap_find(&old, ((const struct credd_record *)(const void *)((const char *)bytes + at))->id);
        if (n) { /* who holds it goes on with it */
            hmap_remove(&old, n);
            hmap_insert(&cs->by_id, n, n->key);
        }
        take_record(cs, (const char *)bytes + at, sizeof(struct credd_record));
    }
    for (struct hmap_node *n; (n = hmap_iterate(&old, NULL));) {
        struct credential *c = hmap_entry(n, struct credential, by_id);
        hmap_remove(&old, n);
        c->gone = true;
        credential_unref(c);
    }
    hmap_finish(&old);
    for (unsigned i = 0; i < CREDD_KEY_BYTES; i += 3) {
        uint32_t group = (uint32_t)hello->key[i] << 16 | (i + 1 < CREDD_KEY_BYTES ? (uint32_t)hello->key[i + 1] << 8 : 0) |
                         (i + 2 < CREDD_KEY_BYTES ? hello->key[i + 2] : 0);
        *out++ = digits[group >> 18];
        *out++ = digits[group >> 12 & 63];
        *out++ = i + 1 < CREDD_KEY_BYTES ? digits[group >> 6 & 63] : '=';
        *out++ = i + 2 < CREDD_KEY_BYTES ? digits[group & 63] : '=';
    }
    *out++ = '\n';
    *out = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&cs->space->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if (state_of(sb))
            tell(sb, state_of(sb));
    }
    remove_orphans(cs, 0);
    net_kick(cs->space);
    trust_kick(cs->space);
    log_info("space-credd keeps %zu credentials", cs->by_id.count);
}

void credential_send(const struct space *s, const struct credd_request *q, void (*done)(void *, const struct credd_reply *, const char *, size_t),
                     void *user)
{
    credd_send(s->credentials->credd, q, NULL, 0, done, user);
}

int credentials_open(struct space *s, struct err *e)
{
    struct credentials *cs = calloc(1, sizeof *cs);
    if (!cs)
        return err_set(e, ENOMEM, "connect to space-credd: out of memory");
    const struct credd_hooks hooks = {connected, cs};
    cs->space = s;
    cs->answer = "";
    s->credentials = cs;
    return credd_open(s->loop, s->config.run, &hooks, &cs->credd, e);
}
