// SPDX-License-Identifier: Apache-2.0
// HAProxy's runtime API: see haproxy.h.
//
// Theory of operation. HAProxy listens on INJECT_SLOTS sockets, each with a list of certificates of its own that is empty at first. A tenant gets a slot when
// its first connection is to be decrypted, and certificates are put into its list as names are asked for; they exist in HAProxy's memory only. When all slots are
// taken, the one that was not used for longest changes its tenant: what it holds is removed first.
//
// Commands go one after the other, a connection each. All of them may be given twice: so nothing depends on whether HAProxy, or we, are new. A HAProxy that
// started anew is noticed by its socket's inode, before each answer; what was loaded counts for nothing then.
#include "hostd/credd/haproxy.h"

#include "base/hmap.h"
#include "base/log.h"
#include "hostd/credd/ca.h"
#include "hostd/credd/credd.h"
#include "ipc/inject.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define NAMES_MAX     1024u /* certificates in a slot */
#define COMMANDS_MAX  4096u /* that wait */
#define ANSWER_MAX    4096u
#define COMMAND_MSEC  5000u
#define LIST_SIZE     128u
#define SLOT_REST_SEC 60 /* a slot that was used so lately is not taken away */

struct waiter {
    struct waiter *next;
    haproxy_ready *done;
    void *user;
};

enum stage { SENT, LOADED }; /* the certificate's bytes; it is in the list */

/* A certificate in a slot. */
struct leaf {
    struct hmap_node by_name;
    struct haproxy *haproxy;
    uint32_t slot;
    uint64_t used;     /* order */
    int64_t renew_sec; /* 0: not loaded */
    uint64_t instance; /* of HAProxy's, that has it */
    bool loading;
    struct waiter *waiters;
    char name[INJECT_NAME_SIZE];
};

struct slot {
    bool taken;
    uint32_t tenant;
    int64_t used_sec;
    unsigned count;
    struct ca *ca;
    uint64_t epoch;
};

struct command {
    struct command *next;
    struct leaf *leaf; /* whose stage ends with it; NULL: nobody waits */
    enum stage stage;
    size_t len, sent;
    char text[]; /* wiped when it was sent */
};

struct haproxy {
    struct credd *credd;
    const uint8_t *secret;
    int ask_fd, spoe_fd, log_fd;
    struct haproxy_asks *asks;
    struct slot slots[INJECT_SLOTS];
    struct hmap leaves;
    uint64_t clock; /* of `used` */
    /* The command that is being given. */
    struct command *first, **last;
    unsigned waiting;
    uv_poll_t *poll;
    int fd;
    uv_timer_t timer;
    char answer[ANSWER_MAX];
    size_t answer_len;
};

static void give_next(struct haproxy *h);

static void path_of(const struct haproxy *h, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/" INJECT_DIR "/%s", h->credd->config.run, name);
}

/* Which HAProxy is there; 0: none. */
static uint64_t instance_of(const struct haproxy *h)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    struct stat st;
    path_of(h, INJECT_ADMIN, path, sizeof path);
    if (stat(path, &st) < 0)
        return 0;
    const uint64_t parts[] = {st.st_ino, (uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec};
    return XXH3_64bits(parts, sizeof parts) | 1;
}

/* ---- commands ---- */

static void command_free(struct command *c)
{
    sodium_memzero(c->text, c->len);
    free(c);
}

/* HAProxy has one transaction at a time: what ends it goes before what begins the next. */
static void enlist(struct haproxy *h, struct command *c)
{
    if (c->stage == LOADED) {
        c->next = h->first;
        h->first = c;
    } else {
        *h->last = c;
    }
    if (!c->next)
        h->last = &c->next;
    h->waiting++;
}

__attribute__((format(printf, 4, 5))) static int queue(struct haproxy *h, struct leaf *leaf, enum stage stage, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    struct command *c = len > 0 && h->waiting < COMMANDS_MAX ? calloc(1, sizeof *c + (size_t)len + 1) : NULL;
    if (c) {
        c->leaf = leaf;
        c->stage = stage;
        c->len = (size_t)len;
        vsnprintf(c->text, c->len + 1, fmt, again);
        enlist(h, c);
    }
    va_end(again);
    va_end(ap);
    if (c && !h->poll)
        give_next(h);
    return c ? 0 : -ENOMEM;
}

static void tell(struct leaf *l, int rc, const char *sentence)
{
    struct waiter *w = l->waiters;
    l->waiters = NULL;
    l->loading = false;
    while (w) {
        struct waiter *next = w->next;
        w->done(w->user, rc, l->slot, sentence);
        free(w);
        w = next;
    }
}

static const char *list_of(const struct leaf *l, char out[LIST_SIZE])
{
    snprintf(out, LIST_SIZE, "%s/" INJECT_DIR "/" INJECT_LIST, l->haproxy->credd->config.run, l->slot);
    return out;
}

/* The certificate's bytes are there: make them count, and put it into the slot's list, once. */
static void commit(struct leaf *l)
{
    struct haproxy *h = l->haproxy;
    char list[LIST_SIZE];
    int rc = l->instance == instance_of(h)
                 ? queue(h, l, LOADED, "commit ssl cert %u/%s\n", l->slot, l->name)
                 : queue(h, l, LOADED, "commit ssl cert %u/%s; add ssl crt-list %s %u/%s\n", l->slot, l->name, list_of(l, list), l->slot, l->name);
    if (rc < 0)
        tell(l, -ENOMEM, "out of memory");
}

/* A transaction that we began in another life: HAProxy keeps it, and puts what follows into it. */
static void abort_old(struct haproxy *h, const char *answer)
{
    const char *name = strstr(answer, "updated for certificate ");
    size_t len = name ? strcspn(name += strlen("updated for certificate "), "!\n; ") : 0;
    if (len)
        queue(h, NULL, LOADED, "abort ssl cert %.*s\n", (int)len, name);
}

static bool is_sent(const struct leaf *l, const char *answer)
{
    char want[INJECT_NAME_SIZE + 64];
    snprintf(want, sizeof want, "ransaction created for certificate %u/%s!", l->slot, l->name);
    return strstr(answer, want);
}

static void stage_done(struct haproxy *h, struct leaf *l, enum stage stage, const char *answer)
{
    if (stage == SENT && is_sent(l, answer)) {
        commit(l);
    } else if (stage == LOADED && strstr(answer, "Success!") && !strstr(answer, "an't")) {
        l->renew_sec = (int64_t)time(NULL) + CA_LEAF_SEC - CA_RENEW_SEC;
        l->instance = instance_of(h);
        tell(l, 0, "");
    } else {
        l->renew_sec = 0;
        l->instance = 0;
        abort_old(h, answer);
        log_warn("HAProxy does not take a certificate for %s: %s", l->name, answer[0] ? answer : "no answer");
        tell(l, -EIO, "HAProxy does not take its certificate");
    }
}

static void poll_closed(uv_handle_t *handle)
{
    free(handle);
}

static void hang_up(struct haproxy *h)
{
    if (!h->poll)
        return;
    uv_poll_stop(h->poll);
    uv_close((uv_handle_t *)h->poll, poll_closed);
    h->poll = NULL;
    close(h->fd);
    h->fd = -1;
    uv_timer_stop(&h->timer);
}

/* The command was given, or could not be. */
static void command_done(struct haproxy *h)
{
    struct command *c = h->first;
    h->first = c->next;
    if (!h->first)
        h->last = &h->first;
    h->waiting--;
    hang_up(h);
    h->answer[h->answer_len] = 0;
    if (c->leaf)
        stage_done(h, c->leaf, c->stage, h->answer);
    command_free(c);
    if (h->first && !h->poll)
        give_next(h);
}

static void timed_out(uv_timer_t *t)
{
    struct haproxy *h = t->data;
    h->answer_len = 0;
    command_done(h);
}

static bool send_rest(struct haproxy *h)
{
    struct command *c = h->first;
    ssize_t n = send(h->fd, c->text + c->sent, c->len - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    c->sent += (size_t)n;
    return true;
}

/* What does not fit is dropped: the beginning tells. */
static bool read_answer(struct haproxy *h)
{
    char rest[1024];
    size_t room = ANSWER_MAX - 1 - h->answer_len;
    ssize_t n = recv(h->fd, room ? h->answer + h->answer_len : rest, room ? room : sizeof rest, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    h->answer_len += room ? (size_t)n : 0;
    return n > 0;
}

static void ready(uv_poll_t *p, int status, int events)
{
    struct haproxy *h = p->data;
    bool more = status >= 0;
    if (more && events & UV_WRITABLE && h->first->sent < h->first->len)
        more = send_rest(h);
    if (more && events & (UV_READABLE | UV_DISCONNECT))
        more = read_answer(h);
    if (!more)
        command_done(h);
    else if (h->first->sent == h->first->len)
        uv_poll_start(p, UV_READABLE | UV_DISCONNECT, ready);
}

static void no_answer(uv_timer_t *t)
{
    command_done(t->data);
}

static void give_next(struct haproxy *h)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    path_of(h, INJECT_ADMIN, to.sun_path, sizeof to.sun_path);
    h->answer_len = 0;
    h->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    h->poll = calloc(1, sizeof *h->poll);
    if (!h->poll || h->fd < 0)
        abort();
    uv_poll_init(h->credd->loop, h->poll, h->fd);
    h->poll->data = h;
    if (connect(h->fd, (const struct sockaddr *)&to, sizeof to) < 0) {
        uv_timer_start(&h->timer, no_answer, 0, 0); /* not from inside of who asks */
        return;
    }
    uv_poll_start(h->poll, UV_READABLE | UV_WRITABLE | UV_DISCONNECT, ready);
    uv_timer_start(&h->timer, timed_out, COMMAND_MSEC, 0);
}

/* ---- slots ---- */

static void remove_leaf(struct haproxy *h, struct leaf *l)
{
    char list[LIST_SIZE];
    queue(h, NULL, SENT, "del ssl crt-list %s %u/%s; del ssl cert %u/%s\n", list_of(l, list), l->slot, l->name, l->slot, l->name);
    h->slots[l->slot].count--;
    hmap_remove(&h->leaves, &l->by_name);
    free(l);
}

static bool is_busy(const struct haproxy *h, uint32_t slot)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&h->leaves, it));)
        if (hmap_entry(it, struct leaf, by_name)->slot == slot && hmap_entry(it, struct leaf, by_name)->loading)
            return true;
    return false;
}

static void empty_slot(struct haproxy *h, uint32_t slot)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&h->leaves, it));) {
        struct leaf *l = hmap_entry(it, struct leaf, by_name);
        if (l->slot == slot) {
            remove_leaf(h, l);
            it = NULL; /* the map changed */
        }
    }
    ca_destroy(h->slots[slot].ca);
    h->slots[slot] = (struct slot){0};
}

/* Its own, a free one, or the one that rested longest. -EAGAIN: all are busy. */
static int find_slot(struct haproxy *h, uint32_t tenant, int64_t now)
{
    int best = -1;
    for (uint32_t i = 0; i < INJECT_SLOTS; i++)
        if (h->slots[i].taken && h->slots[i].tenant == tenant)
            return (int)i;
    for (uint32_t i = 0; i < INJECT_SLOTS; i++) {
        const struct slot *s = &h->slots[i];
        if (!s->taken)
            return (int)i;
        if (now - s->used_sec >= SLOT_REST_SEC && (best < 0 || s->used_sec < h->slots[best].used_sec) && !is_busy(h, i))
            best = (int)i;
    }
    return best < 0 ? -EAGAIN : best;
}

static int take_slot(struct haproxy *h, uint32_t tenant, uint32_t *out, struct err *e)
{
    int64_t now = (int64_t)time(NULL);
    int n = find_slot(h, tenant, now);
    if (n < 0)
        return err_set(e, EAGAIN, "too many tenants use credentials at once");
    struct slot *s = &h->slots[n];
    uint64_t epoch = ca_epoch(now);
    int rc = 0;
    if (s->taken && s->tenant != tenant)
        empty_slot(h, (uint32_t)n);
    if (!s->ca || s->epoch != epoch) {
        struct ca *ca = NULL;
        rc = ca_create(h->secret, tenant, epoch, &ca, e);
        if (rc == 0) {
            ca_destroy(s->ca);
            s->ca = ca;
            s->epoch = epoch;
        }
    }
    s->taken = true;
    s->tenant = tenant;
    s->used_sec = now;
    *out = (uint32_t)n;
    return rc;
}

/* ---- certificates ---- */

static struct leaf *find_leaf(struct haproxy *h, uint32_t slot, const char *name)
{
    uint64_t key = XXH3_64bits_withSeed(name, strlen(name), slot);
    for (struct hmap_node *n = hmap_find(&h->leaves, key); n; n = hmap_find_next(n)) {
        struct leaf *l = hmap_entry(n, struct leaf, by_name);
        if (l->slot == slot && strcmp(l->name, name) == 0)
            return l;
    }
    return NULL;
}

static void drop_oldest(struct haproxy *h, uint32_t slot)
{
    struct leaf *oldest = NULL;
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&h->leaves, it));) {
        struct leaf *l = hmap_entry(it, struct leaf, by_name);
        if (l->slot == slot && !l->loading && (!oldest || l->used < oldest->used))
            oldest = l;
    }
    if (oldest)
        remove_leaf(h, oldest);
}

static struct leaf *make_leaf(struct haproxy *h, uint32_t slot, const char *name)
{
    if (h->slots[slot].count >= NAMES_MAX)
        drop_oldest(h, slot);
    struct leaf *l = h->slots[slot].count < NAMES_MAX ? calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    l->haproxy = h;
    l->slot = slot;
    snprintf(l->name, sizeof l->name, "%s", name);
    hmap_insert(&h->leaves, &l->by_name, XXH3_64bits_withSeed(name, strlen(name), slot));
    h->slots[slot].count++;
    return l;
}

/* Issues it and begins to load it. */
static int load(struct haproxy *h, struct leaf *l, struct err *e)
{
    char *pem = NULL, list[LIST_SIZE];
    int rc = ca_issue(h->slots[l->slot].ca, l->name, (int64_t)time(NULL), &pem, e);
    if (rc < 0)
        return rc;
    l->loading = true;
    /* A payload ends with an empty line; PEM has none. What an earlier life of ours left there goes. */
    rc = l->instance == instance_of(h)
             ? queue(h, l, SENT, "set ssl cert %u/%s <<\n%s\n", l->slot, l->name, pem)
             : queue(h, l, SENT, "del ssl crt-list %s %u/%s; del ssl cert %u/%s; new ssl cert %u/%s; set ssl cert %u/%s <<\n%s\n", list_of(l, list),
                     l->slot, l->name, l->slot, l->name, l->slot, l->name, l->slot, l->name, pem);
    sodium_memzero(pem, strlen(pem));
    free(pem);
    if (rc < 0)
        l->loading = false;
    return rc < 0 ? err_set(e, -rc, "too many certificates are being made") : 0;
}

static int await(struct leaf *l, haproxy_ready *done, void *user)
{
    struct waiter *w = malloc(sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct waiter){l->waiters, done, user};
    l->waiters = w;
    return 0;
}

/* One of the future is not: the clock was wrong when it was made. */
static bool is_good(const struct haproxy *h, const struct leaf *l)
{
    int64_t left = l->renew_sec - (int64_t)time(NULL);
    return left > 0 && left <= CA_LEAF_SEC - CA_RENEW_SEC && l->instance == instance_of(h);
}

void haproxy_prepare(struct haproxy *h, uint32_t tenant, const char *name, haproxy_ready *done, void *user)
{
    struct err e = {0};
    uint32_t slot = 0;
    int rc = strlen(name) < INJECT_NAME_SIZE ? take_slot(h, tenant, &slot, &e) : err_set(&e, EINVAL, "its name is too long");
    struct leaf *l = rc < 0 ? NULL : find_leaf(h, slot, name);
    if (rc == 0 && !l && !(l = make_leaf(h, slot, name)))
        rc = err_set(&e, EAGAIN, "too many names have certificates");
    if (rc == 0)
        l->used = ++h->clock;
    if (rc == 0 && !l->loading && is_good(h, l)) {
        done(user, 0, slot, "");
        return;
    }
    if (rc == 0 && !l->loading)
        rc = load(h, l, &e);
    if (rc == 0 && await(l, done, user) < 0)
        rc = err_set(&e, ENOMEM, "out of memory");
    if (rc < 0)
        done(user, rc, 0, e.msg);
}

char *haproxy_trust(struct haproxy *h, uint32_t tenant)
{
    char *text = NULL;
    size_t size = 0;
    uint64_t epoch = ca_epoch((int64_t)time(NULL));
    FILE *f = h->secret ? open_memstream(&text, &size) : NULL;
    bool good = f;
    for (uint64_t i = epoch; f && i <= epoch + 1; i++) {
        struct ca *ca = NULL;
        good = good && ca_create(h->secret, tenant, i, &ca, NULL) == 0 &&
               fprintf(f, "# hash %08" PRIx32 "\n%s", ca_name_hash(ca), ca_certificate(ca)) > 0;
        ca_destroy(ca);
    }
    if (f && fclose(f) != 0)
        good = false;
    if (!good) {
        free(text);
        text = NULL;
    }
    return text;
}

/* Digits as INJECT_ID_FORMAT has them. */
static bool take_hex(const char *text, size_t digits, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = text[i];
        unsigned value = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 16;
        if (value > 15)
            return false;
        *out = *out << 4 | value;
    }
    return true;
}

bool haproxy_grant(struct haproxy *h, const char *id, size_t len, struct grant *out)
{
    uint64_t sandbox, token;
    return len == INJECT_ID_LEN && h->asks && take_hex(id, 12, &sandbox) && id[12] == '.' && take_hex(id + 13, 16, &token) &&
           haproxy_asks_find(h->asks, token, out) && out->sandbox == sandbox;
}

/* ---- life ---- */

static int bind_for(const struct haproxy *h, const char *name, int type, const char *user, int *out, struct err *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const struct passwd *pw = getpwnam(user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s': adduser --system --group %s", user, user);
    path_of(h, name, at.sun_path, sizeof at.sun_path);
    unlink(at.sun_path);
    *out = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t old = umask(0177);
    int rc = *out < 0 ? -1 : bind(*out, (struct sockaddr *)&at, sizeof at);
    umask(old);
    if (rc < 0 || chown(at.sun_path, pw->pw_uid, pw->pw_gid) < 0 || (type != SOCK_DGRAM && listen(*out, 256) < 0))
        return err_sys(e, "listen on %s", at.sun_path);
    return 0;
}

int haproxy_bind(struct credd *c, struct haproxy **out, struct err *e)
{
    char folder[CONFIG_PATH_MAX];
    struct haproxy *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ENOMEM, "out of memory");
    h->credd = c;
    h->last = &h->first;
    h->fd = h->ask_fd = h->spoe_fd = h->log_fd = -1;
    *out = h;
    if (!c->config.inject)
        return 0;
    snprintf(folder, sizeof folder, "%s/" INJECT_DIR, c->config.run);
    if ((mkdir(folder, 0755) < 0 && errno != EEXIST) || chmod(folder, 0755) < 0)
        return err_sys(e, "make %s", folder);
    int rc = bind_for(h, INJECT_ASK, SOCK_SEQPACKET, c->config.net_user, &h->ask_fd, e);
    if (rc == 0)
        rc = bind_for(h, INJECT_SPOE, SOCK_STREAM, c->config.inject_user, &h->spoe_fd, e);
    return rc < 0 ? rc : bind_for(h, INJECT_LOG, SOCK_DGRAM, c->config.inject_user, &h->log_fd, e);
}

int haproxy_serve(struct haproxy *h, const uint8_t *secret, struct err *e)
{
    h->secret = secret;
    if (h->ask_fd < 0)
        return 0;
    uv_timer_init(h->credd->loop, &h->timer);
    h->timer.data = h;
    h->asks = haproxy_asks_open(h->credd, h, h->ask_fd);
    if (!h->asks || haproxy_spoe_open(h->credd, h, h->spoe_fd) < 0 || haproxy_log_open(h->credd, h->log_fd) < 0)
        return err_set(e, ENOMEM, "serve space-netd and HAProxy: out of memory");
    return 0;
}
