// SPDX-License-Identifier: Apache-2.0
// Credentials in space-hostd: see credential.h.
#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/credential/credential_impl.h"
#include "hostd/credential/trust.h"
#include "hostd/lifecycle/net.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define DENIED_MSEC 1000u /* lines of one sandbox are told at most so often; their counts add up */

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

static void drop(struct credentials *cs, struct credential *c)
{
    if (c->gone)
        return;
    c->gone = true;
    hmap_remove(&cs->by_id, &c->by_id);
    credential_unref(c);
}

void credentials_saw(struct credentials *cs, const struct credd_record *rec)
{
    struct credential *c = find(cs, rec->id);
    if (rec->removed) {
        if (c)
            drop(cs, c);
        return;
    }
    if (!c) {
        if (!(c = calloc(1, sizeof *c)))
            abort();
        c->refs = 1;
        c->space = cs->space;
        hmap_insert(&cs->by_id, &c->by_id, rec->id);
    }
    c->rec = *rec;
}

void credentials_changed(struct credentials *cs)
{
    net_kick(cs->space);
    trust_kick(cs->space);
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

static void finish(struct ask *a, int rc, const struct err *e, const char *bytes)
{
    a->cs->answer = bytes;
    wait_done_all(&a->waiters, rc, rc < 0 ? e : NULL);
    a->cs->answer = "";
    credential_unref(a->credential);
    free(a);
}

static void kept(void *user, int rc, const struct err *e)
{
    finish(user, rc, e, "");
}

static void answered(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct ask *a = user;
    struct credentials *cs = a->cs;
    struct credd_record rec = {0};
    struct err e = {0};
    if (rep->error < 0)
        err_set(&e, -rep->error, "%s", rep->sentence);
    if (rep->error < 0 || !(a->brings_record || a->removes)) {
        finish(a, rep->error, &e, bytes);
        return;
    }
    if (a->removes)
        rec = a->credential->rec;
    else if (len == sizeof rec)
        memcpy(&rec, bytes, sizeof rec);
    if (a->removes)
        drop(cs, a->credential);
    else if (rec.id)
        credentials_saw(cs, &rec);
    credentials_changed(cs);
    if (rec.scope.kind == CREDD_SANDBOX) /* it is done when it would follow the sandbox */
        follow_keep(cs, rec.scope.sandbox, rec.id, kept, a);
    else
        finish(a, 0, NULL, "");
}

/* A sandbox's credentials are where it is. */
static bool is_elsewhere(const struct space *s, const struct credd_scope *scope, struct waiter *w)
{
    struct sandbox *sb = scope->kind == CREDD_SANDBOX ? sandbox_by_id(s, scope->sandbox) : NULL;
    struct err e = {0};
    if (!sb || sandbox_is_here(sb))
        return false;
    int rc = cluster_refuse(sb, &e);
    if (w)
        w->done(w, rc, &e);
    return true;
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
    if (is_elsewhere(s, scope, w))
        return;
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
    if (is_elsewhere(c->space, &c->rec.scope, w))
        return;
    struct credd_request q = request_of(c, CREDD_SET, uid);
    struct ask *a = new_ask(c->space, c, w);
    q.field = field;
    a->brings_record = true;
    send_ask(a, &q, text);
}

void credential_value(struct credential *c, const char *text, uint32_t uid, struct waiter *w)
{
    if (is_elsewhere(c->space, &c->rec.scope, w))
        return;
    const struct credd_request q = request_of(c, CREDD_VALUE, uid);
    struct ask *a = new_ask(c->space, c, w);
    a->brings_record = true;
    send_ask(a, &q, text);
}

void credential_remove(struct credential *c, uint32_t uid, struct waiter *w)
{
    if (is_elsewhere(c->space, &c->rec.scope, w))
        return;
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
    const struct credd_scope own = {.kind = CREDD_SANDBOX, .sandbox = (uint64_t)sb->row.id};
    const struct credd_request q = {.op = CREDD_LOGIN, .sandbox = own.sandbox, .uid = uid};
    if (is_elsewhere(sb->space, &own, w))
        return;
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
    if (!sb->named || sb->gone || !sandbox_is_here(sb))
        return 0;
    uint64_t h = XXH3_64bits_withSeed(sb->row.labels, strlen(sb->row.labels), (uint64_t)sb->row.owner);
    return h ? h : 1;
}

void credentials_forget(struct credentials *cs, uint64_t sandbox, enum credd_forget what)
{
    const struct credd_request q = {.op = CREDD_FORGET, .sandbox = sandbox, .field = what};
    credd_send(cs->credd, &q, NULL, 0, NULL, NULL);
    for (struct hmap_node *n = NULL, *next; what != CREDD_KEEP && (next = hmap_iterate(&cs->by_id, n));) {
        struct credential *c = hmap_entry(next, struct credential, by_id);
        bool its = c->rec.scope.kind == CREDD_SANDBOX && c->rec.scope.sandbox == sandbox;
        n = its ? NULL : next; /* the map changes */
        if (its)
            drop(cs, c);
    }
}

void credentials_tell(struct credentials *cs, struct sandbox *sb)
{
    const struct credd_request q = {.op = CREDD_KNOW, .sandbox = (uint64_t)sb->row.id, .uid = (uint32_t)sb->row.owner};
    bool gone = sb->gone || sandbox_state(sb) == SANDBOX_DESTROYING;
    sb->credentials_told = state_of(sb);
    if (sb->credentials_told)
        credd_send(cs->credd, &q, sb->row.labels, strlen(sb->row.labels), NULL, NULL);
    else
        credentials_forget(cs, q.sandbox, gone ? CREDD_GONE : sandbox_is_here(sb) ? CREDD_KEEP : CREDD_MOVED);
}

void credential_sandbox(struct sandbox *sb)
{
    struct credentials *cs = sb->space->credentials;
    if (cs && credd_up(cs->credd) && !sb->settling && !sb->credentials_refused && state_of(sb) != sb->credentials_told)
        credentials_tell(cs, sb); /* else all are told of when it is back, or this one when it is settled */
}

void credential_sandbox_gone(struct sandbox *sb)
{
    struct credentials *cs = sb->space->credentials;
    if (!cs || !credd_up(cs->credd))
        return; /* when it is back they belong to nobody */
    credentials_forget(cs, (uint64_t)sb->row.id, CREDD_GONE);
    sb->credentials_told = 0;
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

/* Who holds a credential goes on with it. */
static void see_all(struct credentials *cs, const struct credd_record *records, size_t count)
{
    struct hmap old = cs->by_id;
    cs->by_id = (struct hmap){0};
    for (size_t i = 0; i < count; i++) {
        struct hmap_node *n = records[i].removed ? NULL : hmap_find(&old, records[i].id);
        if (n) {
            hmap_remove(&old, n);
            hmap_insert(&cs->by_id, n, n->key);
        }
        credentials_saw(cs, &records[i]);
    }
    for (struct hmap_node *n; (n = hmap_iterate(&old, NULL));) {
        struct credential *c = hmap_entry(n, struct credential, by_id);
        hmap_remove(&old, n);
        c->gone = true;
        credential_unref(c);
    }
    hmap_finish(&old);
}

static void write_key(const uint8_t key[CREDD_KEY_BYTES], char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned i = 0; i < CREDD_KEY_BYTES; i += 3) {
        uint32_t group =
            (uint32_t)key[i] << 16 | (i + 1 < CREDD_KEY_BYTES ? (uint32_t)key[i + 1] << 8 : 0) | (i + 2 < CREDD_KEY_BYTES ? key[i + 2] : 0);
        *out++ = digits[group >> 18];
        *out++ = digits[group >> 12 & 63];
        *out++ = i + 1 < CREDD_KEY_BYTES ? digits[group >> 6 & 63] : '=';
        *out++ = i + 2 < CREDD_KEY_BYTES ? digits[group & 63] : '=';
    }
    *out++ = '\n';
    *out = 0;
}

static void connected(void *user, const struct credd_reply *hello, const void *bytes, size_t len)
{
    struct credentials *cs = user;
    size_t count = len / sizeof(struct credd_record);
    write_key(hello->key, cs->key);
    cluster_say(cs->space);
    see_all(cs, bytes, count);
    follow_connected(cs, bytes, count);
    credentials_changed(cs);
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
