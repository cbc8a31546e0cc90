// SPDX-License-Identifier: Apache-2.0
// credentials/SCOPE/NAME: names of scopes, and the files of a credential. Rights: hostd/credential/credential.h.
#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/credential/credential.h"
#include "hostd/tree/tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- scopes ---- */

/* platform; [USER:]tenant, [USER:]label.KEY=VALUE; the sandboxes' are asked for as sandbox.NAME. */
static bool parse_scope(const struct caller *c, const char *name, struct credd_scope *out)
{
    char user[NAME_LEN_MAX + 1];
    const char *colon = strchr(name, ':');
    *out = (struct credd_scope){.kind = CREDD_TENANT, .tenant = c->uid};
    if (!strcmp(name, "platform")) {
        *out = (struct credd_scope){.kind = CREDD_PLATFORM};
        return true;
    }
    if (colon && (size_t)(colon - name) < sizeof user) {
        snprintf(user, sizeof user, "%.*s", (int)(colon - name), name);
        if (caller_uid_of(user, &out->tenant) < 0)
            return false;
        name = colon + 1;
    }
    if (!strcmp(name, "tenant"))
        return true;
    if (strncmp(name, "label.", 6) != 0 || !credd_label_valid(name + 6))
        return false;
    out->kind = CREDD_LABELLED;
    str_copy(out->label, sizeof out->label, name + 6);
    return true;
}

/* NAME or OWNER:NAME of [OWNER:]sandbox.NAME; false: it is none of these. */
static bool sandbox_part(const char *name, char *out, size_t size)
{
    const char *colon = strchr(name, ':');
    const char *rest = colon ? colon + 1 : name;
    if (strncmp(rest, "sandbox.", 8) != 0)
        return false;
    return snprintf(out, size, "%.*s%s", (int)(rest - name), name, rest + 8) < (int)size;
}

int credentials_lookup_scope(struct space *s, const struct caller *c, const char *name, struct node *out)
{
    char sandbox[2 * NAME_LEN_MAX + 2];
    struct credd_scope scope;
    struct sandbox *sb = NULL;
    if (sandbox_part(name, sandbox, sizeof sandbox)) {
        sb = node_find_sandbox(s, c, sandbox);
        if (!sb)
            return -ENOENT;
        scope = (struct credd_scope){.kind = CREDD_SANDBOX, .tenant = (uint32_t)sb->row.owner, .sandbox = (uint64_t)sb->row.id};
    } else if (!parse_scope(c, name, &scope)) {
        return -ENOENT;
    }
    if (!scope_may_read(&scope, c))
        return -ENOENT;
    *out = (struct node){.kind = NODE_SCOPE, .scope = scope_new(&scope), .sandbox = sb ? sandbox_ref(sb) : NULL};
    return 0;
}

int credentials_lookup(struct space *s, const struct node *dir, const char *name, struct node *out)
{
    struct credential *c = credential_by_name(s, &dir->scope->s, name);
    if (!c) /* nobody knows before space-credd was seen */
        return credential_key(s)[0] ? -ENOENT : -ENOTCONN;
    node_copy(out, dir);
    out->kind = NODE_CREDENTIAL;
    out->credential = credential_ref(c);
    return 0;
}

struct lister {
    struct space *space;
    const struct caller *caller;
    const struct node *dir;
    node_emit *emit;
    void *user;
};

static void scope_name(const struct caller *c, const struct credd_scope *s, const char *sandbox, char out[320])
{
    char user[33], prefix[40] = "";
    if (s->kind != CREDD_PLATFORM && s->tenant != c->uid)
        snprintf(prefix, sizeof prefix, "%s:", caller_user_name(s->tenant, user));
    switch (s->kind) {
    case CREDD_PLATFORM: str_copy(out, 320, "platform"); break;
    case CREDD_TENANT: snprintf(out, 320, "%stenant", prefix); break;
    case CREDD_LABELLED: snprintf(out, 320, "%slabel.%s", prefix, s->label); break;
    default: snprintf(out, 320, "%ssandbox.%s", prefix, sandbox);
    }
}

static void emit_scope(const struct lister *l, const struct credd_scope *s, struct sandbox *sb)
{
    char name[320];
    struct scope scope = {.refs = 1, .s = *s};
    const struct node n = {.kind = NODE_SCOPE, .scope = &scope, .sandbox = sb};
    scope_name(l->caller, s, sb ? sb->row.name : "", name);
    l->emit(l->user, name, &n);
}

struct first {
    const struct credential *c, *found;
};

static void find_first(void *user, struct credential *c)
{
    struct first *f = user;
    if (!f->found && credd_scope_equal(&c->rec.scope, &f->c->rec.scope))
        f->found = c;
}

/* Scopes that have credentials: labels', and other tenants'. One's own, the platform's and those of sandboxes are there anyway. */
static void emit_used(void *user, struct credential *c)
{
    const struct lister *l = user;
    const struct credd_scope *s = &c->rec.scope;
    struct first f = {.c = c};
    bool always = s->kind == CREDD_PLATFORM || s->kind == CREDD_SANDBOX || (s->kind == CREDD_TENANT && s->tenant == l->caller->uid);
    if (always || !scope_may_read(s, l->caller))
        return;
    credential_each(l->space, find_first, &f);
    if (f.found == c)
        emit_scope(l, s, NULL);
}

void credentials_list_scopes(struct space *s, const struct caller *c, node_emit *emit, void *user)
{
    struct lister l = {s, c, NULL, emit, user};
    const struct credd_scope platform = {.kind = CREDD_PLATFORM}, tenant = {.kind = CREDD_TENANT, .tenant = c->uid};
    if (scope_may_read(&platform, c))
        emit_scope(&l, &platform, NULL);
    emit_scope(&l, &tenant, NULL);
    credential_each(s, emit_used, &l);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        const struct credd_scope scope = {.kind = CREDD_SANDBOX, .tenant = (uint32_t)sb->row.owner, .sandbox = (uint64_t)sb->row.id};
        if (sb->named && scope_may_read(&scope, c))
            emit_scope(&l, &scope, sb);
    }
}

static void emit_credential(void *user, struct credential *c)
{
    const struct lister *l = user;
    struct node n = *l->dir;
    if (!credd_scope_equal(&c->rec.scope, &l->dir->scope->s))
        return;
    n.kind = NODE_CREDENTIAL;
    n.credential = c;
    l->emit(l->user, c->rec.name, &n);
}

void credentials_list(struct space *s, const struct node *dir, node_emit *emit, void *user)
{
    struct lister l = {s, NULL, dir, emit, user};
    credential_each(s, emit_credential, &l);
}

void credentials_path(const struct caller *c, const struct node *n, const char *file, char *out, size_t size)
{
    char name[320];
    scope_name(c, &n->scope->s, n->sandbox ? n->sandbox->row.name : "", name);
    snprintf(out, size, "credentials/%s%s%s%s%s", name, n->credential ? "/" : "", n->credential ? n->credential->rec.name : "", file[0] ? "/" : "",
             file);
}

/* ---- making and removing ---- */

static void made(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    AUTO_FREE char *name = strndup(r->t->Tmkdir.name.s, r->t->Tmkdir.name.len);
    struct credential *c = name ? credential_by_name(space_of(r), &f->node.scope->s, name) : NULL;
    struct node n = f->node;
    struct p9_msg m = {0};
    if (!c) {
        p9_fail(r, ESTALE);
        return;
    }
    n.kind = NODE_CREDENTIAL;
    n.credential = c;
    m.Rmkdir.qid = node_qid(space_of(r), &n);
    p9_reply(r, &m);
}

void credentials_mkdir(struct p9_request *r, struct tree_fid *f, const char *name)
{
    const struct credd_scope *s = &f->node.scope->s;
    if (!scope_may_make(s, f->caller))
        fail_errno(r, f, EACCES,
                   s->kind == CREDD_LABELLED ? "credentials of a label are the administrator's: labels under admin. are, too"
                                             : "this scope is not yours");
    else if (s->kind == CREDD_SANDBOX && !strcmp(name, "autofill"))
        fail_errno(r, f, EEXIST, "autofill is the file by which logins are asked for");
    else if (!str_name_valid(name, strlen(name)))
        fail_errno(r, f, EINVAL, "names are 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit");
    else
        credential_make(space_of(r), s, name, f->caller->uid, &pending_new(r, made)->w);
}

void credentials_rmdir(struct p9_request *r, struct tree_fid *f, struct credential *c)
{
    if (credential_may_change(c, f->caller))
        credential_remove(c, f->caller->uid, &pending_new(r, reply_empty)->w);
    else
        fail_errno(r, f, EACCES, "only who made it, and root, removes it");
}

/* ---- files ---- */

static const struct credd_record *rec_of(const struct tree_fid *f)
{
    return &f->node.credential->rec;
}

static bool may_change(struct p9_request *r, struct tree_fid *f)
{
    if (credential_may_change(f->node.credential, f->caller))
        return true;
    fail_errno(r, f, EACCES, "only who made it, and root, changes it");
    return false;
}

/* An accumulating file's last write is its whole value; what is written is answered for each time. */
static void set(struct p9_request *r, struct tree_fid *f, enum credd_field field, const char *value)
{
    if (may_change(r, f))
        credential_set(f->node.credential, field, value, f->caller->uid, &pending_new(r, NULL)->w);
}

static void read_hosts(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s", rec_of(f)->hosts);
}
static void write_hosts(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    set(r, f, CREDD_FIELD_HOSTS, value);
}
void credentials_emptied(struct tree_fid *f)
{
    if (credential_may_change(f->node.credential, f->caller))
        credential_set(f->node.credential, CREDD_FIELD_HOSTS, "", f->caller->uid, NULL);
}
static void read_method(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s\n", rec_of(f)->method);
}
static void write_method(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    set(r, f, CREDD_FIELD_METHOD, value);
}

static void read_expires(struct tree_fid *f, struct text *t)
{
    char stamp[32] = "never";
    time_t at = rec_of(f)->expires / 1000000000;
    struct tm tm;
    if (rec_of(f)->expires && gmtime_r(&at, &tm))
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    text_add(t, "%s\n", stamp);
}
static void write_expires(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    set(r, f, CREDD_FIELD_EXPIRES, value);
}

static void read_rate(struct tree_fid *f, struct text *t)
{
    if (rec_of(f)->rate_uses)
        text_add(t, "%u/%us\n", rec_of(f)->rate_uses, rec_of(f)->rate_seconds);
    else
        text_add(t, "none\n");
}
static void write_rate(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    (void)len;
    set(r, f, CREDD_FIELD_RATE, value);
}

/* Sealed by spacefs, or by the client itself. What is not is forgotten at once; it should not have come here. */
static void write_value(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    if (!may_change(r, f))
        return;
    if (len == 0 || !strncmp(value, CREDD_SEALED, strlen(CREDD_SEALED))) {
        credential_value(f->node.credential, value, f->caller->uid, &pending_new(r, NULL)->w);
        return;
    }
    explicit_bzero(value, len);
    explicit_bzero((void *)(uintptr_t)r->t->Twrite.data.p, r->t->Twrite.data.len);
    fail_errno(r, f, EINVAL, "a value comes sealed to credentials/key: write it through the mount, or by `spacectl credential set`");
}

static void read_state(struct tree_fid *f, struct text *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    bool expired = rec_of(f)->expires && rec_of(f)->expires <= (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    text_add(t, "%s\n", !rec_of(f)->has_value ? "empty" : expired ? "expired" : "ready");
}

static void opened_log(struct p9_request *r)
{
    text_add(&fid_of(r->fid)->open->text, "%s", credential_answer(space_of(r)));
    tree_reply_open(r);
}

void credentials_open_log(struct p9_request *r, struct tree_fid *f)
{
    credential_log(f->node.credential, &pending_new(r, opened_log)->w);
}

const struct attr credential_attrs[] = {
    {"value", 0200, 0, NULL, write_value, "The secret, one line; it cannot be read back. Sealed to space-credd on the way; an empty one revokes."},
    {"hosts", 0644, ATTR_ACCUMULATE, read_hosts, write_hosts,
     "HOST[:PORT] or *.DOMAIN[:PORT] each line: where the value may go. Once there is a value, only fewer."},
    {"method", 0644, 0, read_method, write_method,
     "header NAME [FORMAT with {}], basic USER, query NAME, or autofill USER; default header Authorization Bearer {}."},
    {"expires", 0644, 0, read_expires, write_expires, "never, a time (2026-12-31T23:59:59Z), or a duration from now."},
    {"rate", 0644, 0, read_rate, write_rate, "USES/DURATION such as 100/1m, or none."},
    {"state", 0444, 0, read_state, NULL, "empty (no value: hosts are refused), ready or expired."},
    {"log", 0444, 0, NULL, NULL, "Its last uses and refusals: time, use, login or refused, the sandbox's id, host, why."},
    {0},
};

/* ---- keys and logins ---- */

static void read_key(struct tree_fid *f, struct text *t)
{
    text_add(t, "%s", credential_key(f->session->space));
}

const struct attr credentials_attrs[] = {
    {"key", 0444, 0, read_key, NULL,
     "The public key (X25519, base64) that values are sealed to by a client that speaks 9P itself: sealed1: and crypto_box_seal's bytes in base64."},
    {0},
};

static void logged_in(struct p9_request *r)
{
    struct open_file *o = fid_of(r->fid)->open;
    free(o->text.p);
    o->text = (struct text){0};
    text_add(&o->text, "%s", credential_answer(space_of(r)));
    reply_write(r);
}

static void write_autofill(struct p9_request *r, struct tree_fid *f, char *value, size_t len)
{
    const struct sandbox *sb = f->node.sandbox;
    (void)len;
    if (sb->copy == COPY_HELD)
        fail_errno(r, f, EBUSY, "the sandbox is being copied into: no credential is bound to it yet");
    else
        credential_login(sb, value, f->caller->uid, &pending_new(r, logged_in)->w);
}

/* The answer, from the same descriptor. */
static void read_autofill(struct tree_fid *f, struct text *t)
{
    (void)f, (void)t;
}

const struct attr scope_attrs[] = {
    {"autofill", 0600, 0, read_autofill, write_autofill,
     "Write `https://HOST[:PORT] KEY`, then read from the same descriptor: the login, sealed to the public key KEY (X25519, base64)."},
    {0},
};
