// SPDX-License-Identifier: Apache-2.0
// Choosing a credential, and handing out its value: see credd.h and find.h.
//
// A request goes: choose (scopes from the closest), judge (value, expiry, rate), get (back end), note (audit), render, tell. Only `get` may take time; then
// the credential is looked up again by its id, since it may be gone by then: revocation is immediate.
#include "hostd/credd/find.h"

#include "base/str.h"
#include "hostd/credd/audit_tally.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RENDER_SIZE 65536u
#define LABELS_MAX  64u
#define WHAT_MAX    64u
#define WAITING_MAX 4096u /* requests that a back end is asked for at the same time */

struct known {
    struct hmap_node by_id;
    uint32_t owner;
    unsigned label_count;
    char (*labels)[CREDD_LABEL_SIZE];
};

struct finder {
    struct credd *credd;
    struct backend *backend;
    struct hmap sandboxes;
    unsigned waiting;
    char *render;  /* RENDER_SIZE, locked */
    time_t second; /* and how it is written */
    char stamp[32];
};

/* ---- sandboxes ---- */

static struct known *known_of(const struct finder *f, uint64_t sandbox)
{
    struct hmap_node *n = hmap_find(&f->sandboxes, sandbox);
    return n ? hmap_entry(n, struct known, by_id) : NULL;
}

static void take_labels(struct known *k, const char *labels)
{
    char line[CREDD_LABEL_SIZE];
    free(k->labels);
    k->label_count = 0;
    k->labels = calloc(LABELS_MAX, sizeof *k->labels);
    for (const char *at = labels; k->labels && *at && k->label_count < LABELS_MAX;) {
        size_t n = strcspn(at, "\n");
        if (n < sizeof line) {
            snprintf(line, sizeof line, "%.*s", (int)n, at);
            if (label_valid(line))
                memcpy(k->labels[k->label_count++], line, sizeof line);
        }
        at += n + (at[n] == '\n');
    }
    if (k->label_count == 0) {
        free(k->labels);
        k->labels = NULL;
    }
}

int finder_know(struct finder *f, uint64_t sandbox, uint32_t owner, const char *labels)
{
    struct known *k = known_of(f, sandbox);
    if (!k && f->sandboxes.count >= FIND_SANDBOXES_MAX)
        return -EMFILE;
    if (!k) {
        if (!(k = calloc(1, sizeof *k)))
            return -ENOMEM;
        hmap_insert(&f->sandboxes, &k->by_id, sandbox);
    }
    k->owner = owner;
    take_labels(k, labels);
    return 0;
}

static void forget(struct finder *f, struct known *k)
{
    hmap_remove(&f->sandboxes, &k->by_id);
    free(k->labels);
    free(k);
}

int finder_owner(const struct finder *f, uint64_t sandbox, uint32_t *out)
{
    const struct known *k = known_of(f, sandbox);
    if (k)
        *out = k->owner;
    return k ? 0 : -ENOENT;
}

void finder_forget(struct finder *f, uint64_t sandbox)
{
    struct known *k = known_of(f, sandbox);
    if (k)
        forget(f, k);
}

void finder_forget_all(struct finder *f)
{
    for (struct hmap_node *n; (n = hmap_iterate(&f->sandboxes, NULL));)
        forget(f, hmap_entry(n, struct known, by_id));
}

/* ---- choosing ---- */

/* The scopes of a sandbox, the closest first. False: no more. */
static bool scope_at(const struct known *k, unsigned i, struct credd_scope *out)
{
    *out = (struct credd_scope){.tenant = k->owner};
    if (i == 0) {
        out->kind = CREDD_SANDBOX;
        out->sandbox = k->by_id.key;
    } else if (i <= k->label_count) {
        out->kind = CREDD_LABELLED;
        memcpy(out->label, k->labels[i - 1], sizeof out->label);
    } else if (i == k->label_count + 1) {
        out->kind = CREDD_TENANT;
    } else if (i == k->label_count + 2) {
        out->kind = CREDD_PLATFORM;
        out->tenant = 0;
    } else {
        return false;
    }
    return true;
}

/* In one scope: the exact name before a wildcard, then the first by name. */
static struct credential *best_in(const struct store *s, const struct credd_scope *scope, const char *host, uint16_t port, bool autofill)
{
    struct credential *best = NULL;
    enum host_match match = HOST_NONE;
    for (struct credential *c = NULL; (c = store_next(s, scope, c));) {
        enum host_match m = (c->method.kind == METHOD_AUTOFILL) == autofill ? hosts_match(c->rec.hosts, host, port) : HOST_NONE;
        if (m > match || (m != HOST_NONE && m == match && strcmp(c->rec.name, best->rec.name) < 0)) {
            best = c;
            match = m;
        }
    }
    return best;
}

static struct credential *choose(const struct finder *f, const struct known *k, const char *host, uint16_t port, bool autofill)
{
    struct credd_scope scope;
    struct credential *c = NULL;
    for (unsigned i = 0; !c && k && scope_at(k, i, &scope); i++)
        c = best_in(f->credd->store, &scope, host, port, autofill);
    return c;
}

bool cred_wants(const struct credd *c, uint64_t sandbox, const char *host, uint16_t port)
{
    return choose(c->finder, known_of(c->finder, sandbox), host, port, false) != NULL;
}

static void each_line(const char *hosts, void (*each)(void *user, const char *host), void *user)
{
    char line[RULES_HOST_MAX + 16];
    for (const char *at = hosts; *at;) {
        size_t n = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, at);
        each(user, line);
        at += n + (at[n] == '\n');
    }
}

void cred_hosts(const struct credd *c, uint64_t sandbox, void (*each)(void *user, const char *host), void *user)
{
    const struct known *k = known_of(c->finder, sandbox);
    struct credd_scope scope;
    for (unsigned i = 0; k && scope_at(k, i, &scope); i++)
        for (const struct credential *cr = NULL; (cr = store_next(c->store, &scope, cr));)
            if (cr->method.kind != METHOD_AUTOFILL)
                each_line(cr->rec.hosts, each, user);
}

/* ---- judging ---- */

static int64_t time_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool is_expired(const struct credential *c)
{
    return c->rec.expires && time_of(CLOCK_REALTIME) >= c->rec.expires;
}

/* So many uses at once, and as many in each period again: how many are left at `now`. */
static void refill(struct credential *c, int64_t now)
{
    double most = c->rec.rate_uses, rate = most / c->rec.rate_seconds / 1e9;
    int64_t passed = now > c->tokens_at ? now - c->tokens_at : 0;
    c->tokens = c->counted ? c->tokens + rate * (double)passed : most;
    c->tokens = c->tokens > most ? most : c->tokens;
    c->tokens_at = now;
    c->counted = true;
}

static bool take_token(struct credential *c)
{
    if (!c->rec.rate_uses)
        return true;
    refill(c, time_of(CLOCK_BOOTTIME));
    if (c->tokens < 1)
        return false;
    c->tokens--;
    return true;
}

static const char *sentence_of(enum cred_verdict v)
{
    static const char *const sentences[] = {
        [CRED_FOUND] = "",
        [CRED_NONE] = "no credential for this host",
        [CRED_NO_VALUE] = "the credential has no value: it was not written yet, or was revoked",
        [CRED_EXPIRED] = "the credential has expired",
        [CRED_RATE] = "the credential was used too often",
        [CRED_NO_SANDBOX] = "no such sandbox may use credentials now",
        [CRED_AWAY] = "the credential's value cannot be had now",
        [CRED_NO_AUDIT] = "the use cannot be logged",
    };
    return sentences[v];
}

static enum cred_verdict judge(struct credential *c)
{
    if (!c->rec.has_value)
        return CRED_NO_VALUE;
    if (is_expired(c))
        return CRED_EXPIRED;
    return take_token(c) ? CRED_FOUND : CRED_RATE;
}

/* ---- one request ---- */

struct ask {
    struct finder *f;
    uint64_t sandbox, credential;
    uint32_t uid; /* of a login */
    bool login, asynchronous;
    char host[RULES_HOST_MAX + 1], what[WHAT_MAX];
    uint16_t port;
    uint8_t key[CREDD_KEY_BYTES];
    union {
        void (*inject)(void *user, const struct cred_answer *a);
        finder_login_done *login;
    } done;
    void *user;
};

static const char *now_text(struct finder *f)
{
    time_t now = time(NULL);
    struct tm tm;
    if (now != f->second)
        strftime(f->stamp, sizeof f->stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    f->second = now;
    return f->stamp;
}

/* In the audit log, and in the credential's own. */
static enum cred_verdict note(const struct ask *a, enum cred_verdict v)
{
    char text[AUDIT_TEXT_MAX], line[AUDIT_TEXT_MAX + 80];
    struct credential *c = store_find(a->f->credd->store, a->credential);
    const struct known *k = known_of(a->f, a->sandbox);
    snprintf(text, sizeof text, "%s:%u%s%s%s%s", a->host, a->port, a->what[0] ? " " : "", a->what, v != CRED_FOUND ? ": " : "", sentence_of(v));
    const char *kind = v != CRED_FOUND ? "refused" : a->login ? "login" : "use";
    if (audit_tally_note(a->f->credd->tally, kind, a->credential, a->sandbox, a->login ? a->uid : k ? k->owner : 0, 1, text) < 0)
        return CRED_NO_AUDIT;
    snprintf(line, sizeof line, "%s %s %012" PRIx64 " %s", now_text(a->f), kind, a->sandbox, text);
    if (c)
        store_used(c, line);
    return v;
}

static size_t percent_encode(const char *value, size_t len, char *out)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)value[i];
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_' || c == '~') {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = digits[c >> 4];
            out[n++] = digits[c & 15];
        }
    }
    return n;
}

_Static_assert(3 * CREDD_VALUE_MAX < RENDER_SIZE &&
                   sodium_base64_ENCODED_LEN(CREDD_VALUE_MAX + CREDD_METHOD_SIZE, 1) + CREDD_VALUE_MAX + CREDD_METHOD_SIZE + 8 < RENDER_SIZE,
               "rendered values");

static size_t append(char *out, const char *text)
{
    size_t n = strlen(text);
    memcpy(out, text, n);
    return n;
}

/* What is sent, in f->render, which holds nothing else then; its length. */
static size_t render(const struct finder *f, const struct method *m, const char *value, size_t len)
{
    char *out = f->render;
    size_t n = 0;
    if (m->kind == METHOD_QUERY)
        return percent_encode(value, len, out);
    if (m->kind == METHOD_BASIC) {
        char *plain = out + RENDER_SIZE - CREDD_VALUE_MAX - CREDD_METHOD_SIZE;
        size_t p = append(plain, m->name);
        plain[p++] = ':';
        memcpy(plain + p, value, len);
        n = append(out, "Basic ");
        sodium_bin2base64(out + n, RENDER_SIZE - CREDD_VALUE_MAX - CREDD_METHOD_SIZE - n, (const uint8_t *)plain, p + len,
                          sodium_base64_VARIANT_ORIGINAL);
        sodium_memzero(plain, p + len);
        return strlen(out);
    }
    n = append(out, m->before);
    memcpy(out + n, value, len);
    n += len;
    return n + append(out + n, m->after);
}

static void tell_inject(const struct ask *a, enum cred_verdict v, const struct credential *c, const char *value, size_t len)
{
    struct cred_answer answer = {.verdict = v, .reason = sentence_of(v), .credential = a->credential};
    if (v == CRED_FOUND) {
        answer.place = c->method.kind == METHOD_QUERY ? CRED_QUERY : CRED_HEADER;
        answer.name = c->method.kind == METHOD_BASIC ? "Authorization" : c->method.name;
        answer.len = render(a->f, &c->method, value, len);
        answer.value = a->f->render;
    }
    a->done.inject(a->user, &answer);
    sodium_memzero(a->f->render, answer.len);
}

/* A JSON string. The value was checked when it came: no control characters. */
static size_t append_quoted(char *out, const char *text, size_t len)
{
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"' || text[i] == '\\')
            out[n++] = '\\';
        out[n++] = text[i];
    }
    out[n++] = '"';
    return n;
}

_Static_assert(2 * CREDD_VALUE_MAX + 3 * CREDD_METHOD_SIZE + RULES_HOST_MAX + 100 < RENDER_SIZE, "logins");

/* The sealed answer, malloc'ed; NULL: out of memory, or no such key. */
static char *seal_login(const struct ask *a, const struct credential *c, const char *value, size_t len)
{
    char *out = a->f->render;
    size_t n = 0;
    n = append(out, "{\"origin\":\"https://");
    n += append(out + n, a->host);
    if (a->port != 443)
        n += (size_t)snprintf(out + n, 8, ":%u", a->port);
    n += append(out + n, "\",\"username\":");
    n += append_quoted(out + n, c->method.name, strlen(c->method.name));
    n += append(out + n, ",\"password\":");
    n += append_quoted(out + n, value, len);
    n += append(out + n, "}");
    size_t sealed = n + crypto_box_SEALBYTES, size = sodium_base64_ENCODED_LEN(sealed, sodium_base64_VARIANT_ORIGINAL);
    uint8_t *box = malloc(sealed);
    char *line = malloc(size + sizeof CREDD_SEALED);
    bool good = box && line && crypto_box_seal(box, (const uint8_t *)out, n, a->key) == 0;
    if (good) {
        size_t p = append(line, CREDD_SEALED);
        sodium_bin2base64(line + p, size, box, sealed, sodium_base64_VARIANT_ORIGINAL);
        strcat(line, "\n");
    } else {
        free(line);
    }
    free(box);
    return good ? line : NULL;
}

static int errno_of(enum cred_verdict v)
{
    static const int codes[] = {[CRED_NONE] = ENOENT,       [CRED_NO_VALUE] = EACCES, [CRED_EXPIRED] = EKEYEXPIRED, [CRED_RATE] = EAGAIN,
                                [CRED_NO_SANDBOX] = EACCES, [CRED_AWAY] = EAGAIN,     [CRED_NO_AUDIT] = EIO};
    return codes[v];
}

static void tell_login(const struct ask *a, enum cred_verdict v, const struct credential *c, const char *value, size_t len)
{
    char *line = v == CRED_FOUND ? seal_login(a, c, value, len) : NULL;
    if (v != CRED_FOUND)
        a->done.login(a->user, -errno_of(v), NULL, sentence_of(v));
    else if (!line)
        a->done.login(a->user, -EINVAL, NULL, "the public key is none that can be sealed to");
    else
        a->done.login(a->user, 0, line, "");
    free(line);
    sodium_memzero(a->f->render, RENDER_SIZE);
}

static void tell(struct ask *a, enum cred_verdict v, const struct credential *c, const char *value, size_t len)
{
    if (v != CRED_NONE)
        v = note(a, v);
    if (a->login)
        tell_login(a, v, c, value, len);
    else
        tell_inject(a, v, c, value, len);
}

static void got(void *user, const struct backend_result *r)
{
    struct ask *a = user;
    const struct credential *c = store_find(a->f->credd->store, a->credential);
    bool gone = !c || !c->rec.has_value;
    if (a->asynchronous)
        a->f->waiting--;
    tell(a, gone ? CRED_NO_VALUE : r->rc < 0 ? CRED_AWAY : CRED_FOUND, c, r->bytes, r->len);
    free(a);
}

/* Takes `a`. */
static void run(struct ask *a)
{
    struct finder *f = a->f;
    const struct known *k = known_of(f, a->sandbox);
    struct credential *c = choose(f, k, a->host, a->port, a->login);
    enum cred_verdict v = !k ? CRED_NO_SANDBOX : !c ? CRED_NONE : judge(c);
    a->credential = c ? c->rec.id : 0;
    if (v == CRED_FOUND && f->waiting >= WAITING_MAX)
        v = CRED_AWAY;
    if (v != CRED_FOUND) {
        tell(a, v, NULL, NULL, 0);
        free(a);
        return;
    }
    a->asynchronous = true;
    f->waiting++;
    f->backend->ops->get(f->backend, &c->rec, c->box, c->box_len, got, a);
}

static struct ask *new_ask(struct finder *f, uint64_t sandbox, const char *host, uint16_t port)
{
    struct ask *a = calloc(1, sizeof *a);
    if (!a)
        abort(); /* a new process starts with less */
    a->f = f;
    a->sandbox = sandbox;
    a->port = port;
    str_copy(a->host, sizeof a->host, host);
    return a;
}

void cred_inject(struct credd *c, const struct cred_query *q, void (*done)(void *user, const struct cred_answer *a), void *user)
{
    struct ask *a = new_ask(c->finder, q->sandbox, q->host, q->port);
    str_copy(a->what, sizeof a->what, q->what ? q->what : "");
    a->done.inject = done;
    a->user = user;
    run(a);
}

/* https://HOST[:PORT], nothing else. */
static bool parse_origin(const char *origin, char host[RULES_HOST_MAX + 1], uint16_t *port)
{
    char hosts[CREDD_HOSTS_SIZE];
    uint64_t n = 443;
    if (strncmp(origin, "https://", 8) != 0 || strpbrk(origin + 8, "/*\n ") || hosts_parse(origin + 8, hosts, NULL) < 0 || strlen(hosts) < 2 ||
        strlen(hosts) > RULES_HOST_MAX)
        return false;
    hosts[strlen(hosts) - 1] = 0;
    char *colon = strchr(hosts, ':');
    if (colon)
        *colon = 0;
    if (colon && str_parse_u64(colon + 1, 65535, &n) < 0)
        return false;
    str_copy(host, RULES_HOST_MAX + 1, hosts);
    *port = (uint16_t)n;
    return true;
}

void finder_login(struct finder *f, uint64_t sandbox, uint32_t uid, const char *origin, const uint8_t key[CREDD_KEY_BYTES], finder_login_done *done,
                  void *user)
{
    char host[RULES_HOST_MAX + 1];
    uint16_t port;
    if (!parse_origin(origin, host, &port)) {
        done(user, -EINVAL, NULL, "an origin is https://HOST or https://HOST:PORT");
        return;
    }
    struct ask *a = new_ask(f, sandbox, host, port);
    a->login = true;
    a->uid = uid;
    memcpy(a->key, key, sizeof a->key);
    a->done.login = done;
    a->user = user;
    run(a);
}

/* ---- life ---- */

/* Of a line of the log, in ns; on the clock that `rate` is counted by. */
static bool moment_of(const char *stamp, int64_t *out)
{
    struct tm tm = {0};
    unsigned msec = 0;
    const char *rest = strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest || sscanf(rest, ".%3uZ", &msec) != 1)
        return false;
    int64_t ago = time_of(CLOCK_REALTIME) - ((int64_t)timegm(&tm) * 1000000000 + msec * 1000000ll);
    *out = time_of(CLOCK_BOOTTIME) - (ago > 0 ? ago : 0);
    return true;
}

static void count_again(struct credential *c, const char *line, const char *stamp)
{
    char text[24];
    uint64_t uses;
    int64_t at;
    if (!c->rec.rate_uses || !moment_of(stamp, &at) || !audit_member(line, "count", text, sizeof text) || str_parse_u64(text, UINT32_MAX, &uses) < 0)
        return;
    refill(c, at);
    c->tokens = c->tokens > (double)uses ? c->tokens - (double)uses : 0;
}

/* A line of the audit log, from before the start. */
void finder_remember(struct finder *f, const char *line)
{
    char id[16], kind[16], stamp[32], sandbox[16], text[AUDIT_TEXT_MAX], out[AUDIT_TEXT_MAX + 80];
    uint64_t n;
    if (!audit_member(line, "credential", id, sizeof id) || str_parse_id(id, strlen(id), &n) < 0 || !audit_member(line, "kind", kind, sizeof kind) ||
        !audit_member(line, "time", stamp, sizeof stamp) || !audit_member(line, "sandbox", sandbox, sizeof sandbox) ||
        !audit_member(line, "text", text, sizeof text))
        return;
    struct credential *c = store_find(f->credd->store, n);
    bool used = !strcmp(kind, "use") || !strcmp(kind, "login");
    if (c && !strcmp(kind, "change") && strstr(text, ": rate = "))
        c->counted = false; /* from here on by the new one */
    if (!c || (!used && strcmp(kind, "refused") != 0))
        return;
    if (used)
        count_again(c, line, stamp);
    snprintf(out, sizeof out, "%.19sZ %s %s %s", stamp, kind, sandbox, text);
    store_used(c, out);
}

struct backend *finder_backend(const struct finder *f)
{
    return f->backend;
}

int finder_create(struct credd *c, struct backend *b, struct finder **out, struct err *e)
{
    struct finder *f = calloc(1, sizeof *f);
    if (!f || !(f->render = secret_alloc(RENDER_SIZE))) {
        free(f);
        return err_set(e, ENOMEM, "no memory that can be locked for values (see RLIMIT_MEMLOCK)");
    }
    f->credd = c;
    f->backend = b;
    *out = f;
    return 0;
}
