// SPDX-License-Identifier: Apache-2.0
// The server: see server.h. space-hostd says who asks (`uid`), and has checked that they may; what is checked here is what a mistake there must not lead to: that a
// value goes only where it was written for.
#include "hostd/credd/server.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/credd/audit_tally.h"
#include "hostd/credd/find.h"
#include "hostd/credd/haproxy.h"
#include "hostd/credd/master.h"
#include "hostd/volumed/secret_file.h"
#include "ipc/conns.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CLIENTS_MAX 8u
#define OUTPUT_MAX  (CONN_REQUESTS_MAX + 64u)

struct server {
    struct credd *credd;
    const struct master_keys *keys;
    struct conns *clients; /* what they told of sandboxes stays true until somebody says something else */
    char *plain;           /* CREDD_VALUE_MAX and 1, locked */
};

struct request {
    struct server *server;
    struct conn *conn;
    struct credd_request q;
    struct credd_reply rep;
    char *payload; /* malloc'ed, with a NUL */
    size_t len;
    int out; /* goes with the answer; -1: none */
    struct err err;
};

#define LATER 1 /* of `run`: it is answered by somebody else, or was; the request may be gone */

struct op {
    const char *name;
    int (*run)(struct request *r);
};

/* ---- answers ---- */

static void finish(struct request *r, int rc)
{
    r->rep.version = CREDD_VERSION;
    r->rep.event = CREDD_REPLY;
    r->rep.tag = r->q.tag;
    r->rep.error = rc;
    if (rc < 0)
        str_copy(r->rep.sentence, sizeof r->rep.sentence, r->err.msg[0] ? r->err.msg : strerror(-rc));
    conn_reply(r->conn, &r->rep, r->out);
    conn_unref(r->conn);
    free(r->payload);
    free(r);
}

/* Bytes that go with the answer, in a file. */
static int attach(struct request *r, const void *bytes, size_t len)
{
    if (r->out < 0)
        r->out = memfd_create("space-credd", MFD_CLOEXEC);
    if (r->out < 0 || write(r->out, bytes, len) != (ssize_t)len)
        return err_sys(&r->err, "make a file for the answer");
    return 0;
}

static int note(struct request *r, const char *kind, uint64_t credential, const char *text)
{
    int rc = audit_note(r->server->credd->audit, kind, credential, r->q.sandbox, r->q.uid, 1, text);
    if (rc == 0)
        rc = audit_sync(r->server->credd->audit);
    return rc < 0 ? err_set(&r->err, -rc, "nothing is done that cannot be logged: the audit log cannot be written: %s", strerror(-rc)) : 0;
}

/* Root may change what it likes; whoever else asks so often gets no more lines. What ends a secret's use is always done: it cannot be done more often than what it undoes. */
static int note_change(struct request *r, const char *kind, uint64_t credential, const char *text)
{
    int rc = r->q.uid ? audit_tally_change(r->server->credd->tally, r->q.uid) : 0;
    if (rc == -EAGAIN)
        return err_set(&r->err, EAGAIN, "you changed credentials too often: try again in a minute");
    return rc < 0 ? err_set(&r->err, -rc, "nothing is done that cannot be logged: the audit log cannot be written: %s", strerror(-rc))
                  : note(r, kind, credential, text);
}

/* ---- credentials ---- */

static struct store *store_of(const struct request *r)
{
    return r->server->credd->store;
}

static int find(struct request *r, struct credential **out)
{
    *out = store_find(store_of(r), r->q.credential);
    return *out ? 0 : err_set(&r->err, ESTALE, "the credential is not there any more");
}

static void scope_text(const struct credd_scope *s, char out[200])
{
    if (s->kind == CREDD_PLATFORM)
        str_copy(out, 200, "platform");
    else if (s->kind == CREDD_SANDBOX)
        snprintf(out, 200, "sandbox %012" PRIx64, s->sandbox);
    else
        snprintf(out, 200, "tenant %u%s%s", s->tenant, s->label[0] ? " label " : "", s->label);
}

static int op_make(struct request *r)
{
    struct credd_record rec = {.scope = r->q.scope, .maker = r->q.uid};
    struct credential *c;
    char scope[200], text[300];
    str_copy(rec.name, sizeof rec.name, r->q.name);
    int rc = store_make(store_of(r), &rec, &c, &r->err);
    if (rc < 0)
        return rc;
    scope_text(&c->rec.scope, scope);
    snprintf(text, sizeof text, "%s in %s", c->rec.name, scope);
    rc = note_change(r, "make", c->rec.id, text);
    if (rc < 0)
        store_drop(store_of(r), c, NULL);
    return rc < 0 ? rc : attach(r, &c->rec, sizeof c->rec);
}

/* A value stays where it was written for: it may go to fewer hosts, later; not to others, nor in another way. */
static int may_change(const struct request *r, const struct credential *c, const struct credd_record *next, struct err *e)
{
    if (!c->rec.has_value)
        return 0;
    if (r->q.field == CREDD_FIELD_HOSTS && !hosts_cover(c->rec.hosts, next->hosts))
        return err_set(e, EPERM, "the value was written for other hosts: write an empty value first, then hosts, then the value again");
    if (r->q.field == CREDD_FIELD_METHOD && strcmp(c->rec.method, next->method) != 0)
        return err_set(e, EPERM, "the value was written for another method: write an empty value first, then method, then the value again");
    return 0;
}

static int parse_field(struct request *r, struct credd_record *next, const char **ret_name)
{
    struct timespec now;
    struct method m;
    char text[CREDD_METHOD_SIZE];
    char *value = r->payload;
    clock_gettime(CLOCK_REALTIME, &now);
    if (r->q.field == CREDD_FIELD_HOSTS) {
        *ret_name = "hosts";
        memset(next->hosts, 0, sizeof next->hosts);
        return hosts_parse(value, next->hosts, &r->err);
    }
    value = str_trim(value);
    if (r->q.field == CREDD_FIELD_METHOD) {
        *ret_name = "method";
        int rc = method_parse(*value ? value : METHOD_DEFAULT, &m, text, &r->err);
        if (rc == 0) {
            memset(next->method, 0, sizeof next->method);
            str_copy(next->method, sizeof next->method, text);
        }
        return rc;
    }
    if (r->q.field == CREDD_FIELD_EXPIRES) {
        *ret_name = "expires";
        return expires_parse(value, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, &next->expires, &r->err);
    }
    *ret_name = "rate";
    if (r->q.field != CREDD_FIELD_RATE)
        return err_set(&r->err, EINVAL, "a credential has no such field");
    return rate_parse(value, &next->rate_uses, &next->rate_seconds, &r->err);
}

static int op_set(struct request *r)
{
    struct credential *c;
    const char *name;
    char text[400];
    int rc = find(r, &c);
    if (rc < 0)
        return rc;
    struct credd_record next = c->rec;
    rc = parse_field(r, &next, &name);
    if (rc == 0)
        rc = may_change(r, c, &next, &r->err);
    if (rc == 0) {
        snprintf(text, sizeof text, "%s: %s = %.300s", c->rec.name, name, r->payload);
        rc = note_change(r, "change", c->rec.id, text);
    }
    if (rc == 0)
        rc = store_save(store_of(r), c, &next, NULL, 0, &r->err);
    if (rc < 0)
        return rc;
    c->counted = c->counted && r->q.field != CREDD_FIELD_RATE;
    return attach(r, &c->rec, sizeof c->rec);
}

/* The value, in s->plain. Whatever is wrong, nothing is said of what it may be. */
static int unseal(struct request *r, size_t *ret_len)
{
    static const char prefix[] = CREDD_SEALED;
    struct server *s = r->server;
    AUTO_FREE uint8_t *box = malloc(r->len + 1);
    size_t len = 0;
    const char *text = str_trim(r->payload);
    if (!box)
        return err_set(&r->err, ENOMEM, "out of memory");
    if (strncmp(text, prefix, sizeof prefix - 1) != 0)
        return err_set(
            &r->err, EINVAL,
            "a value comes sealed to space-credd's public key (credentials/key); write it through the mount, or by `spacectl credential set`");
    if (sodium_base642bin(box, r->len, text + sizeof prefix - 1, strlen(text) - (sizeof prefix - 1), NULL, &len, NULL,
                          sodium_base64_VARIANT_ORIGINAL) < 0 ||
        len < crypto_box_SEALBYTES || len - crypto_box_SEALBYTES > CREDD_VALUE_MAX)
        return err_set(&r->err, EINVAL, "the sealed value is damaged, or longer than %u bytes", CREDD_VALUE_MAX);
    if (crypto_box_seal_open((uint8_t *)s->plain, box, len, s->keys->box_public, s->keys->box_secret) < 0)
        return err_set(&r->err, EBADMSG, "the value is sealed to another key than space-credd's: read credentials/key again");
    *ret_len = len - crypto_box_SEALBYTES;
    return 0;
}

static void value_removed(void *user, const struct backend_result *b);

/* Gone from here already; from the back end when that answers. */
static void forget_value(struct request *r, const struct credd_record *rec)
{
    struct backend *b = finder_backend(r->server->credd->finder);
    char *name = strdup(rec->name);
    if (name)
        b->ops->remove(b, rec, value_removed, name);
}

static int drop_value(struct request *r, struct credential *c)
{
    struct credd_record next = c->rec;
    next.has_value = 0;
    if (!c->rec.has_value)
        return attach(r, &c->rec, sizeof c->rec);
    int rc = store_save(store_of(r), c, &next, "", 0, &r->err);
    if (rc == 0)
        forget_value(r, &c->rec);
    if (rc == 0)
        rc = note(r, "revoke", c->rec.id, c->rec.name);
    return rc < 0 ? rc : attach(r, &c->rec, sizeof c->rec);
}

static int keep_value(struct request *r, struct credential *c, const struct backend_result *b)
{
    struct credd_record next = c->rec;
    next.has_value = 1;
    int rc = store_save(store_of(r), c, &next, b->bytes, b->len, &r->err);
    return rc < 0 ? rc : attach(r, &c->rec, sizeof c->rec);
}

static void value_put(void *user, const struct backend_result *b)
{
    struct request *r = user;
    struct credential *c = store_find(store_of(r), r->q.credential);
    int rc = b->rc;
    if (c)
        c->busy = false;
    if (rc < 0)
        r->err = b->e;
    else
        rc = c ? keep_value(r, c, b) : err_set(&r->err, ESTALE, "the credential was removed meanwhile");
    finish(r, rc);
}

static int op_value(struct request *r)
{
    struct server *s = r->server;
    struct backend *b = finder_backend(s->credd->finder);
    struct credential *c;
    size_t len = 0;
    int rc = find(r, &c);
    if (rc == 0 && c->busy)
        rc = err_set(&r->err, EBUSY, "another value is being written");
    if (rc == 0 && !*str_trim(r->payload))
        return drop_value(r, c);
    if (rc == 0 && !c->rec.hosts[0])
        rc = err_set(&r->err, EINVAL, "write hosts and method first: a value goes where they said when it was written");
    if (rc == 0)
        rc = unseal(r, &len);
    if (rc == 0)
        rc = value_check(&c->method, s->plain, len, &r->err);
    if (rc == 0)
        rc = note_change(r, "value", c->rec.id, c->rec.name);
    if (rc == 0) {
        c->busy = true;
        b->ops->put(b, &c->rec, s->plain, len, value_put, r);
        rc = LATER;
    }
    sodium_memzero(s->plain, CREDD_VALUE_MAX + 1);
    return rc;
}

static void value_removed(void *user, const struct backend_result *b)
{
    char *name = user;
    if (b->rc < 0)
        log_warn("the value of credential %s, which is gone, stays in the back end: %s", name, b->e.msg);
    free(name);
}

static int removed(struct request *r, const struct credd_record *rec)
{
    if (rec->has_value)
        forget_value(r, rec);
    return note(r, "remove", rec->id, rec->name);
}

static int op_remove(struct request *r)
{
    struct credential *c = store_find(store_of(r), r->q.credential);
    if (!c)
        return 0;
    struct credd_record rec = c->rec;
    int rc = store_remove(store_of(r), c, &r->err);
    return rc < 0 ? rc : removed(r, &rec);
}

/* All that there is of a sandbox's own, what was removed before as well. Killed in between, space-hostd says it again. */
static int drop_all(struct request *r)
{
    int rc = 0;
    for (struct credential *c; rc == 0 && (c = store_of_sandbox(store_of(r), r->q.sandbox));) {
        struct credd_record rec = c->rec;
        rc = store_drop(store_of(r), c, &r->err);
        if (rc == 0 && !rec.removed)
            rc = r->q.field == CREDD_GONE ? removed(r, &rec) : note(r, "moved", rec.id, rec.name);
    }
    return rc;
}

static int op_log(struct request *r)
{
    struct credential *c;
    int rc = find(r, &c);
    for (unsigned i = 0; rc == 0 && c->uses && i < STORE_USES; i++) {
        const char *line = c->uses[(c->next_use + i) % STORE_USES];
        if (line && ((rc = attach(r, line, strlen(line))) < 0 || (rc = attach(r, "\n", 1)) < 0))
            break;
    }
    return rc;
}

/* ---- sandboxes, and what is told ---- */

struct collect {
    struct request *r;
    int rc;
};

static void add_record(void *user, const struct credential *c)
{
    struct collect *l = user;
    if (l->rc == 0)
        l->rc = attach(l->r, &c->rec, sizeof c->rec);
    l->r->rep.count++;
}

static int op_hello(struct request *r)
{
    struct server *s = r->server;
    struct collect l = {r, 0};
    memcpy(r->rep.key, s->keys->box_public, CREDD_KEY_BYTES);
    if (r->q.field == 1)
        finder_forget_all(s->credd->finder);
    store_each(store_of(r), add_record, &l);
    return l.rc;
}

static int op_know(struct request *r)
{
    int rc = r->q.sandbox ? finder_know(r->server->credd->finder, r->q.sandbox, r->q.uid, r->payload) : -EINVAL;
    return rc < 0 ? err_set(&r->err, -rc, "the sandbox cannot be known: %s", strerror(-rc)) : 0;
}

static int op_forget(struct request *r)
{
    finder_forget(r->server->credd->finder, r->q.sandbox);
    return r->q.field == CREDD_KEEP || !r->q.sandbox ? 0 : drop_all(r);
}

/* ---- between nodes ---- */

static int op_pack(struct request *r)
{
    char text[CREDD_PACKED_SIZE];
    const struct credential *c = store_find_any(store_of(r), r->q.credential);
    if (!c || c->rec.scope.kind != CREDD_SANDBOX)
        return err_set(&r->err, ESTALE, "the credential is not there any more");
    store_pack(store_of(r), c, text);
    int rc = attach(r, &c->rec, sizeof c->rec);
    return rc < 0 ? rc : attach(r, text, strlen(text));
}

static int op_take(struct request *r)
{
    struct credential *c;
    char text[300];
    bool changed;
    int rc = store_take(store_of(r), r->q.sandbox, r->payload, &c, &changed, &r->err);
    if (rc == 0 && changed) {
        snprintf(text, sizeof text, "%s%s of sandbox %012" PRIx64, c->rec.name, c->rec.removed ? ", removed," : "", r->q.sandbox);
        rc = note(r, "take", c->rec.id, text);
    }
    return rc < 0 ? rc : attach(r, &c->rec, sizeof c->rec);
}

static void login_done(void *user, int rc, const char *line, const char *sentence)
{
    struct request *r = user;
    if (rc == 0)
        rc = attach(r, line, strlen(line));
    else
        err_set(&r->err, -rc, "%s", sentence);
    finish(r, rc);
}

static int op_login(struct request *r)
{
    uint8_t key[CREDD_KEY_BYTES];
    size_t len = 0;
    char *origin = str_trim(r->payload), *blank = strchr(origin, ' ');
    if (!blank)
        return err_set(&r->err, EINVAL, "write ORIGIN and the public key that the answer is sealed to");
    *blank = 0;
    const char *text = str_trim(blank + 1);
    if (sodium_base642bin(key, sizeof key, text, strlen(text), NULL, &len, NULL, sodium_base64_VARIANT_ORIGINAL) < 0 || len != sizeof key)
        return err_set(&r->err, EINVAL, "the public key is not 32 bytes in base64");
    finder_login(r->server->credd->finder, r->q.sandbox, r->q.uid, origin, key, login_done, r);
    return LATER;
}

static int op_denied(struct request *r)
{
    int rc = audit_tally_note(r->server->credd->tally, "denied", 0, r->q.sandbox, r->q.uid, r->q.count, r->payload);
    return rc < 0 ? err_set(&r->err, -rc, "the audit log cannot be written: %s", strerror(-rc)) : 0;
}

static int op_audit(struct request *r)
{
    struct audit_end end = audit_end(r->server->credd->audit);
    r->rep.audit.lines = end.lines;
    memcpy(r->rep.audit.hash, end.hash, sizeof r->rep.audit.hash);
    return 0;
}

struct search {
    uint32_t tenant;
    bool found;
};

static void look_at(void *user, const struct credential *c)
{
    struct search *s = user;
    s->found = s->found || (!c->rec.removed && (c->rec.scope.kind == CREDD_PLATFORM || c->rec.scope.tenant == s->tenant));
}

static int op_trust(struct request *r)
{
    struct search s = {.tenant = r->q.uid};
    store_each(store_of(r), look_at, &s);
    if (!s.found || !r->server->credd->config.inject)
        return 0;
    AUTO_FREE char *text = haproxy_trust(r->server->credd->haproxy, r->q.uid);
    return text ? attach(r, text, strlen(text)) : err_set(&r->err, EIO, "the CA of tenant %u cannot be made", r->q.uid);
}

static const struct op ops[] = {
    [CREDD_HELLO] = {"hello", op_hello},    [CREDD_MAKE] = {"make", op_make},       [CREDD_SET] = {"set", op_set},
    [CREDD_VALUE] = {"value", op_value},    [CREDD_REMOVE] = {"remove", op_remove}, [CREDD_LOG] = {"log", op_log},
    [CREDD_KNOW] = {"know", op_know},       [CREDD_FORGET] = {"forget", op_forget}, [CREDD_LOGIN] = {"login", op_login},
    [CREDD_DENIED] = {"denied", op_denied}, [CREDD_AUDIT] = {"audit", op_audit},    [CREDD_TRUST] = {"trust", op_trust},
    [CREDD_PACK] = {"pack", op_pack},       [CREDD_TAKE] = {"take", op_take},
};

/* ---- requests ---- */

/* The text, or what is in the file that came along: read once, so that a change of it later means nothing. */
static int take_payload(struct request *r, const int *fds, unsigned fd_count)
{
    size_t room = fd_count ? CREDD_PAYLOAD_MAX + 1 : CREDD_TEXT_SIZE;
    r->payload = malloc(room + 1);
    if (!r->payload)
        return err_set(&r->err, ENOMEM, "out of memory");
    ssize_t n = (ssize_t)strnlen(r->q.text, sizeof r->q.text);
    if (fd_count)
        n = pread(fds[0], r->payload, room, 0);
    else
        memcpy(r->payload, r->q.text, (size_t)n);
    r->len = n < 0 ? 0 : (size_t)n;
    r->payload[r->len] = 0;
    if (n < 0 || r->len > CREDD_PAYLOAD_MAX || (!fd_count && r->len == sizeof r->q.text) || memchr(r->payload, 0, r->len))
        return err_set(&r->err, EINVAL, "what came with the request is no text of at most %u bytes", CREDD_PAYLOAD_MAX);
    return 0;
}

static int judge(const struct conn *c, const struct credd_request *q, struct err *e)
{
    if (q->version != CREDD_VERSION)
        return err_set(e, EPROTO, "this space-credd speaks version %u, not %u: install all daemons from one build", CREDD_VERSION, q->version);
    if (!conn_greeted(c) && q->op != CREDD_HELLO)
        return err_set(e, EPROTO, "the first request must be hello");
    if (q->op >= sizeof ops / sizeof *ops || !ops[q->op].run)
        return err_set(e, EOPNOTSUPP, "there is no operation %u", q->op);
    if (!memchr(q->name, 0, sizeof q->name) || !memchr(q->scope.label, 0, sizeof q->scope.label))
        return err_set(e, EINVAL, "%s: a text without an end", ops[q->op].name);
    return 0;
}

static void on_request(void *user, struct conn *c, const void *request, int *fds, unsigned fd_count)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        abort(); /* a new process starts with less */
    r->server = user;
    r->conn = c;
    r->out = -1;
    memcpy(&r->q, request, sizeof r->q);
    conn_ref(c);
    int rc = judge(c, &r->q, &r->err);
    if (rc == 0)
        rc = take_payload(r, fds, fd_count);
    for (unsigned i = 0; i < fd_count; i++)
        close(fds[i]);
    if (rc == 0) {
        conn_set_greeted(c);
        rc = ops[r->q.op].run(r);
    }
    if (rc != LATER)
        finish(r, rc);
}

int server_create(struct credd *c, const struct master_keys *keys, int fd, struct server **out, struct err *e)
{
    static const struct conn_ops conn_ops = {.request_size = sizeof(struct credd_request),
                                             .reply_size = sizeof(struct credd_reply),
                                             .output_max = OUTPUT_MAX,
                                             .takes_fds = true,
                                             .request = on_request};
    struct server *s = calloc(1, sizeof *s);
    if (!s || !(s->plain = secret_alloc(CREDD_VALUE_MAX + 1)) || !(s->clients = conns_open(c->loop, fd, c->user, CLIENTS_MAX, &conn_ops, s))) {
        free(s);
        return err_set(e, ENOMEM, "open the socket: out of memory, or of memory that can be locked (see RLIMIT_MEMLOCK)");
    }
    s->credd = c;
    s->keys = keys;
    *out = s;
    return 0;
}
