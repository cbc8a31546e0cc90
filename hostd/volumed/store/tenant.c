// SPDX-License-Identifier: Apache-2.0
// Tenants, their keys, and what they have already: see store.h.
#include "hostd/volumed/store/store.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define RACE_MSEC   2000u /* how long two nodes that make a tenant's key at once may differ, where the store has no conditional put */
#define INDEX_WIDTH 4u    /* index objects read at the same time */
#define RUNS_MAX    1024u
#define CLOSE_MSEC  200u
#define LISTINGS    4u /* of indexes that are put together meanwhile */

static void forget_runs(struct store *s, struct tenant *t);

/* ---- tenants ---- */

static struct tenant *tenant_ref(struct store *s, const char *name)
{
    uint64_t key = XXH3_64bits(name, strlen(name));
    for (struct hmap_node *n = hmap_find(&s->tenants, key); n; n = hmap_find_next(n)) {
        struct tenant *t = hmap_entry(n, struct tenant, node);
        if (strcmp(t->name, name) == 0) {
            t->refs++;
            return t;
        }
    }
    struct tenant *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    str_copy(t->name, sizeof t->name, name);
    t->refs = 1;
    t->dir = -1;
    task_pool_init(&t->turn, s->co, 1);
    hmap_insert(&s->tenants, &t->node, key);
    return t;
}

static void tenant_unref(struct store *s, struct tenant *t)
{
    if (!t || --t->refs > 0)
        return;
    hmap_remove(&s->tenants, &t->node);
    for (unsigned i = 0; i < t->run_count; i++)
        index_run_unref(t->runs[i]);
    free(t->runs);
    if (t->dir >= 0)
        close(t->dir);
    free(t);
}

/* ---- keys ---- */

struct key_step {
    struct task_event ended;
    int rc;
    struct err e;
    struct tenant_key *key;
    uint8_t blob[KEYS_BLOB_MAX];
    size_t blob_len;
};

static void key_done(void *user, const struct keys_result *r)
{
    struct key_step *st = user;
    st->rc = r->rc;
    st->e = r->e;
    st->key = r->key;
    if (r->blob && r->blob_len <= sizeof st->blob) {
        memcpy(st->blob, r->blob, r->blob_len);
        st->blob_len = r->blob_len;
    }
    task_set(&st->ended);
}

static int run_keys(struct store *s, enum keys_verb verb, const char *tenant, const uint8_t *blob, size_t len, struct key_step *st, struct err *e)
{
    *st = (struct key_step){.ended = {.sched = s->co}};
    struct keys_op *op =
        keys_start(s->keys, &(struct keys_request){.verb = verb, .tenant = tenant, .blob = blob, .blob_len = len, .done = key_done, .user = st});
    if (task_wait(&st->ended, false) < 0) {
        keys_cancel(op);
        task_wait(&st->ended, true);
        if (st->rc == 0) {
            tenant_key_unref(st->key);
            st->key = NULL;
            return err_set(e, ECANCELED, "cancelled");
        }
    }
    return st->rc < 0 ? err_set(e, -st->rc, "%s", st->e.msg) : 0;
}

static int read_key(struct session *x, struct err *e)
{
    char name[NAME_SIZE];
    AUTO_FREE uint8_t *blob = NULL;
    size_t len = 0;
    struct key_step st;
    store_name(name, x->tenant->name, OBJECT_KEY, NULL);
    int rc = store_get(x->store, name, KEYS_BLOB_MAX, &blob, &len, e);
    if (rc == 0)
        rc = run_keys(x->store, KEYS_OPEN, x->tenant->name, blob, len, &st, e);
    if (rc == 0)
        x->key = st.key;
    if (rc == -EKEYREVOKED)
        forget_runs(x->store, x->tenant);
    return rc;
}

/* Whoever's blob is in the store at the end is the tenant's: uploads of this node that come at the same time find it there (EEXIST). */
static int make_key(struct session *x, struct err *e)
{
    struct store *s = x->store;
    char name[NAME_SIZE];
    struct key_step st;
    int rc = run_keys(s, KEYS_MAKE, x->tenant->name, NULL, 0, &st, e);
    if (rc < 0)
        return rc;
    tenant_key_unref(st.key);
    const struct iovec iov = {st.blob, st.blob_len};
    store_name(name, x->tenant->name, OBJECT_KEY, NULL);
    rc = backend_run_co(s->co, s->backend,
                        &(struct backend_request){.verb = BACKEND_PUT, .flags = BACKEND_IF_ABSENT, .name = name, .iov = &iov, .iov_count = 1}, NULL,
                        e);
    if (rc == 0 && !(backend_features(s->backend) & BACKEND_CONDITIONAL))
        rc = co_sleep(s->co, RACE_MSEC);
    return rc == 0 || rc == -EEXIST ? read_key(x, e) : rc;
}

int session_open(struct store *s, const char *tenant, enum session_flags flags, struct session *out, struct err *e)
{
    *out = (struct session){.store = s, .tenant = tenant_ref(s, tenant)};
    int rc = read_key(out, e);
    if (rc == -ENOENT && (flags & SESSION_CREATE))
        rc = make_key(out, e);
    else if (rc == -ENOENT)
        rc = err_set(e, ENOENT, "tenant %s has nothing in %s", tenant, backend_describe(s->backend));
    if (rc < 0)
        session_close(out);
    return rc;
}

void session_close(struct session *x)
{
    if (!x->store)
        return;
    tenant_key_unref(x->key);
    tenant_unref(x->store, x->tenant);
    memset(x, 0, sizeof *x);
}

int session_renew(struct session *x, struct err *e)
{
    struct session fresh = {.store = x->store, .tenant = x->tenant};
    int rc = read_key(&fresh, e);
    if (rc < 0)
        return rc == -ENOENT ? err_set(e, ENOKEY, "the key of tenant %s is no longer in the store", x->tenant->name) : rc;
    if (memcmp(tenant_key_id(x->key), tenant_key_id(fresh.key), 16) != 0)
        rc = err_set(e, ENOKEY, "tenant %s has another key now", x->tenant->name);
    struct tenant_key *old = x->key; /* another coroutine may have renewed it meanwhile */
    x->key = fresh.key;
    tenant_key_unref(old);
    return rc;
}

int session_enter(struct session *x, struct chunk_keys *out, struct err *e)
{
    int rc = 0;
    for (unsigned tries = 0; tries < 3; tries++) {
        const struct tenant_subkeys *sub = tenant_key_enter(x->key);
        if (sub) {
            *out = (struct chunk_keys){x->store->crypt, sub, x->tenant->name};
            return 0;
        }
        if ((rc = session_renew(x, e)) < 0)
            return rc;
    }
    return err_set(e, EAGAIN, "the key of tenant %s expires as soon as it is there", x->tenant->name);
}

void session_leave(struct session *x)
{
    tenant_key_leave(x->key);
}

bool session_thread_enter(const struct store *s, const char *tenant, struct tenant_key *key, struct chunk_keys *out)
{
    const struct tenant_subkeys *sub = tenant_key_enter(key);
    *out = (struct chunk_keys){s->crypt, sub, tenant};
    return sub != NULL;
}

static int put_key(struct store *s, const char *name, const uint8_t *blob, size_t len, struct err *e)
{
    const struct iovec iov = {(void *)(uintptr_t)blob, len};
    return backend_run_co(s->co, s->backend, &(struct backend_request){.verb = BACKEND_PUT, .name = name, .iov = &iov, .iov_count = 1}, NULL, e);
}

static void forget_key(struct store *s, const char *tenant)
{
    keys_forget(s->keys, tenant);
    struct tenant *t = tenant_ref(s, tenant);
    forget_runs(s, t);
    tenant_unref(s, t);
}

/*
 * A revocation is two objects: a mark, which stays, and in place of the wrapped key one that says so. Who wraps anew at the same time puts a wrapped key
 * back without knowing; so the mark comes first, and who wraps looks for it afterwards. Should that one die in between, GC looks, too.
 */
static int revoke_key(struct store *s, const char *tenant, bool mark, struct err *e)
{
    char name[NAME_SIZE];
    uint8_t blob[KEYS_BLOB_MAX];
    size_t len;
    keys_revoked_blob(tenant, blob, &len);
    int rc = mark ? put_key(s, store_name(name, tenant, OBJECT_REVOKED, NULL), blob, len, e) : 0;
    if (rc == 0)
        rc = put_key(s, store_name(name, tenant, OBJECT_KEY, NULL), blob, len, e);
    forget_key(s, tenant);
    return rc;
}

int session_uphold_revocation(struct store *s, const char *tenant, struct err *e)
{
    char name[NAME_SIZE];
    store_name(name, tenant, OBJECT_REVOKED, NULL);
    int rc = backend_run_co(s->co, s->backend, &(struct backend_request){.verb = BACKEND_STAT, .name = name}, NULL, e);
    if (rc == -ENOENT)
        return 0;
    if (rc == 0)
        rc = revoke_key(s, tenant, false, e);
    return rc < 0 ? rc : err_set(e, EKEYREVOKED, "the key of tenant %s was revoked", tenant);
}

static int check_key(struct store *s, const char *tenant, const uint8_t *blob, size_t len, struct err *e)
{
    struct key_step st;
    int rc = run_keys(s, KEYS_CHECK, tenant, blob, len, &st, e);
    struct tenant *t = rc == -EKEYREVOKED ? tenant_ref(s, tenant) : NULL;
    if (t)
        forget_runs(s, t);
    tenant_unref(s, t);
    return rc;
}

static int hold_key(struct store *s, const char *tenant, const uint8_t *blob, size_t len, struct err *e)
{
    struct key_step st;
    int rc = run_keys(s, KEYS_RENEW, tenant, blob, len, &st, e);
    if (rc == 0)
        tenant_key_unref(st.key);
    return rc;
}

/* What is to be encrypted when the key is taken away needs one before. */
static int first_key(struct store *s, const char *tenant, struct err *e)
{
    struct session x;
    int rc = session_open(s, tenant, SESSION_CREATE, &x, e);
    if (rc == 0)
        session_close(&x);
    return rc;
}

/* Its space-hostd looks at each key now and then. */
static int close_key(struct store *s, const char *tenant, struct err *e)
{
    struct tenant *t = tenant_ref(s, tenant);
    int rc = 0;
    t->closing++;
    t->closed = false;
    for (uint64_t msec = 0; !t->closed && rc == 0 && msec < KEYS_CACHE_S * 1000u; msec += CLOSE_MSEC)
        rc = co_sleep(s->co, CLOSE_MSEC) < 0 ? err_set(e, ECANCELED, "cancelled: the key of tenant %s is as it was", tenant) : 0;
    if (rc == 0)
        rc = revoke_key(s, tenant, true, e);
    t->closing--;
    tenant_unref(s, t);
    return rc;
}

/* To whoever looks at the key, while it is being closed. Who asks without holding it has nothing to encrypt. */
static bool refuse_closing(struct store *s, const char *tenant, enum session_change change)
{
    struct tenant *t = tenant_ref(s, tenant);
    bool refuse = t->closing && (change == SESSION_HOLD || change == SESSION_FRESH);
    if (change == SESSION_FORGET || change == SESSION_FRESH)
        t->closed = true;
    tenant_unref(s, t);
    return refuse;
}

int session_change_key(struct store *s, const char *tenant, enum session_change change, uint8_t *ret_id, char *ret_wrapped_by, struct err *e)
{
    char name[NAME_SIZE];
    AUTO_FREE uint8_t *blob = NULL;
    size_t len = 0;
    struct key_step st;
    if (refuse_closing(s, tenant, change))
        return err_set(e, EKEYREVOKED, "the key of tenant %s is being revoked", tenant);
    if (change == SESSION_FORGET) {
        forget_key(s, tenant);
        return 0;
    }
    store_name(name, tenant, OBJECT_KEY, NULL);
    int rc = store_get(s, name, KEYS_BLOB_MAX, &blob, &len, e);
    if (rc == -ENOENT && change == SESSION_HOLD)
        return first_key(s, tenant, e);
    if (rc == -ENOENT)
        return err_set(e, ENOENT, "tenant %s has no key yet", tenant);
    if (rc < 0)
        return rc;
    keys_wrapped_by(tenant, blob, len, ret_wrapped_by);
    if (change == SESSION_REVOKE)
        return revoke_key(s, tenant, true, e);
    if (change == SESSION_CLOSE)
        return close_key(s, tenant, e);
    if (change == SESSION_FRESH)
        return check_key(s, tenant, blob, len, e);
    if (change == SESSION_HOLD)
        return hold_key(s, tenant, blob, len, e);
    rc = run_keys(s, KEYS_OPEN, tenant, blob, len, &st, e);
    if (rc == 0) {
        memcpy(ret_id, tenant_key_id(st.key), 16);
        tenant_key_unref(st.key);
    }
    if (rc == 0 && change == SESSION_ROTATE)
        rc = run_keys(s, KEYS_WRAP, tenant, blob, len, &st, e);
    if (rc == 0 && change == SESSION_ROTATE)
        rc = put_key(s, name, st.blob, st.blob_len, e);
    if (rc == 0 && change == SESSION_ROTATE) {
        keys_wrapped_by(tenant, st.blob, st.blob_len, ret_wrapped_by);
        rc = session_uphold_revocation(s, tenant, e);
    }
    return rc;
}

/* ---- sets of packs ---- */

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct object_id));
}

bool pack_set_add(struct pack_set *s, const struct object_id *id)
{
    if (s->count == s->room) {
        size_t room = s->room ? s->room * 2 : 64;
        struct object_id *ids = realloc(s->ids, room * sizeof *ids);
        if (!ids)
            return false;
        s->ids = ids;
        s->room = room;
    }
    s->ids[s->count++] = *id;
    return true;
}

void pack_set_sort(struct pack_set *s)
{
    size_t n = 0;
    if (s->count == 0)
        return;
    qsort(s->ids, s->count, sizeof *s->ids, compare_ids);
    for (size_t i = 1; i < s->count; i++)
        if (compare_ids(&s->ids[n], &s->ids[i]) != 0)
            s->ids[++n] = s->ids[i];
    s->count = n + 1;
}

bool pack_set_has(const struct pack_set *s, const struct object_id *id)
{
    return s->count && bsearch(id, s->ids, s->count, sizeof *s->ids, compare_ids) != NULL;
}

void pack_set_finish(struct pack_set *s)
{
    free(s->ids);
    memset(s, 0, sizeof *s);
}

/* ---- this node's runs ---- */

static void add_run(struct tenant *t, struct index_run *r)
{
    if (t->run_count == t->run_room) {
        t->run_room = t->run_room ? t->run_room * 2 : 16;
        t->runs = realloc(t->runs, t->run_room * sizeof(struct index_run *));
        if (!t->runs)
            abort();
    }
    unsigned at = t->run_count++;
    for (; at > 0 && index_run_count(t->runs[at - 1]) < index_run_count(r); at--)
        t->runs[at] = t->runs[at - 1];
    t->runs[at] = r;
}

static void drop_run(struct tenant *t, unsigned at)
{
    index_run_remove(t->runs[at]);
    index_run_unref(t->runs[at]);
    memmove(&t->runs[at], &t->runs[at + 1], (--t->run_count - at) * sizeof(struct index_run *));
}

/* Once in a process's life for each tenant: what an earlier one left. */
static void load_runs(void *arg)
{
    struct session *x = arg;
    struct tenant *t = x->tenant;
    mkdirat(x->store->cache, t->name, 0700);
    int fd = openat(x->store->cache, t->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    t->dir = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    for (struct dirent *entry; (entry = readdir(d));) {
        struct index_run *r = NULL;
        struct err e = {0};
        if (entry->d_name[0] == '.')
            continue;
        uint64_t number = strtoull(entry->d_name, NULL, 10);
        t->next_run = number >= t->next_run ? number + 1 : t->next_run;
        if (!strstr(entry->d_name, ".new") && t->run_count < RUNS_MAX && index_run_open(t->dir, entry->d_name, &r, &e) == 0)
            add_run(t, r);
        else
            unlinkat(t->dir, entry->d_name, 0);
    }
    closedir(d);
}

static void next_name(struct tenant *t, char out[32])
{
    snprintf(out, 32, "%llu.run", (unsigned long long)t->next_run++);
}

/* What this node knows of a tenant whose key is gone: identities of its chunks. In a coroutine of its own, since whoever found out may be reading them. */
struct forgetting {
    struct store *store;
    struct tenant *tenant;
};

static void forget_left_runs(void *arg);

static void forget_runs_now(void *arg)
{
    struct forgetting f = *(struct forgetting *)arg;
    struct tenant *t = f.tenant;
    free(arg);
    if (task_pool_take(&t->turn) == 0) {
        while (t->run_count)
            drop_run(t, t->run_count - 1);
        if (t->dir < 0)
            task_thread(f.store->co, forget_left_runs, &f);
        task_pool_give(&t->turn);
    }
    tenant_unref(f.store, t);
    f.store->background--;
}

static void forget_runs(struct store *s, struct tenant *t)
{
    struct forgetting *f = malloc(sizeof *f);
    if (!f)
        abort();
    *f = (struct forgetting){s, tenant_ref(s, t->name)};
    s->background++;
    co_spawn(s->co, forget_runs_now, f);
}

/* What an earlier process left, and was not read in this one. */
static void forget_left_runs(void *arg)
{
    const struct forgetting *f = arg;
    int fd = openat(f->store->cache, f->tenant->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.')
            unlinkat(fd, entry->d_name, 0);
    closedir(d);
    unlinkat(f->store->cache, f->tenant->name, AT_REMOVEDIR);
}

static int compare_listed(const void *a, const void *b)
{
    return memcmp(a, &((const struct listed *)b)->id, sizeof(struct object_id));
}

/* What runs hold that the store no longer lists goes; what they hold is marked in `have`. */
static void judge_runs(struct tenant *t, const struct listed *list, size_t count, bool *have)
{
    for (unsigned i = t->run_count; i-- > 0;) {
        uint32_t n;
        const struct object_id *sources = index_run_sources(t->runs[i], &n);
        bool good = true;
        for (uint32_t j = 0; good && j < n; j++) {
            const struct listed *l = count ? bsearch(&sources[j], list, count, sizeof *list, compare_listed) : NULL;
            good = l && !have[l - list];
        }
        for (uint32_t j = 0; good && j < n; j++)
            have[(const struct listed *)bsearch(&sources[j], list, count, sizeof *list, compare_listed) - list] = true;
        if (!good)
            drop_run(t, i);
    }
}

struct fetch {
    struct session *session;
    const struct listed *list;
    const bool *have;
    bool missed; /* one was gone: it is part of another now, perhaps */
};

struct write_step {
    struct tenant *tenant;
    const struct object_id *source;
    struct index_body body;
    char name[32];
    struct index_run *run;
    int rc;
    struct err e;
};

static void write_run(void *arg)
{
    struct write_step *w = arg;
    w->rc = index_run_write(w->tenant->dir, w->name, w->source, &w->body, &w->run, &w->e);
}

static int fetch_index(void *user, size_t i, struct err *e)
{
    struct fetch *f = user;
    struct session *x = f->session;
    AUTO_FREE uint8_t *object = NULL;
    size_t size = 0;
    if (f->have[i])
        return 0;
    struct write_step w = {.tenant = x->tenant, .source = &f->list[i].id};
    int rc = store_get_sealed(x, SEALED_INDEX, &f->list[i].id, &object, &size, e);
    if (rc == -ENOENT || rc == -EBADMSG) {
        if (rc == -EBADMSG)
            log_warn("%s; chunks that it lists are stored again", e->msg);
        f->missed = f->missed || rc == -ENOENT;
        return 0;
    }
    if (rc == 0 && (rc = index_decode(object + SEALED_HEADER, size, &w.body)) < 0) {
        index_body_finish(&w.body);
        return rc == -EBADMSG ? 0 : err_set(e, -rc, "read an index: %s", strerror(-rc));
    }
    if (rc < 0)
        return rc;
    next_name(x->tenant, w.name);
    task_thread(x->store->co, write_run, &w);
    index_body_finish(&w.body);
    if (w.rc == 0)
        add_run(x->tenant, w.run);
    return w.rc < 0 ? err_set(e, -w.rc, "%s", w.e.msg) : 0;
}

struct merge_step {
    struct tenant *tenant;
    struct index_run *a, *b, *out;
    char name[32];
    int rc;
    struct err e;
};

static void merge_runs(void *arg)
{
    struct merge_step *m = arg;
    m->rc = index_run_merge(m->tenant->dir, m->name, m->a, m->b, &m->out, &m->e);
}

/* Until each run is more than twice as large as the next: so there are as many as the logarithm of what they hold. */
static int compact(struct session *x, struct err *e)
{
    struct tenant *t = x->tenant;
    for (unsigned i = t->run_count; i-- > 1;) {
        struct merge_step m = {.tenant = t, .a = t->runs[i - 1], .b = t->runs[i]};
        if (index_run_count(m.a) > 2 * index_run_count(m.b))
            continue;
        next_name(t, m.name);
        task_thread(x->store->co, merge_runs, &m);
        if (m.rc < 0)
            return err_set(e, -m.rc, "%s", m.e.msg);
        drop_run(t, i);
        drop_run(t, i - 1);
        add_run(t, m.out);
        i = t->run_count;
    }
    return 0;
}

/* 1: some were gone meanwhile. */
static int read_indexes(struct session *x, struct err *e)
{
    struct tenant *t = x->tenant;
    struct listed *list = NULL;
    size_t count = 0;
    int rc = store_list(x->store, t->name, OBJECT_INDEX, NULL, &list, &count, e);
    bool *have = rc == 0 ? calloc(count + 1, sizeof *have) : NULL;
    if (rc == 0 && !have)
        rc = err_set(e, ENOMEM, "list indexes: out of memory");
    if (rc == 0) {
        struct fetch f = {x, list, have, false};
        judge_runs(t, list, count, have);
        rc = task_each(x->store->co, count, INDEX_WIDTH, fetch_index, &f, e);
        rc = rc == 0 && f.missed ? 1 : rc;
    }
    free(have);
    free(list);
    return rc;
}

static int sync_runs(struct session *x, struct err *e)
{
    int rc = 1;
    if (x->tenant->dir < 0)
        task_thread(x->store->co, load_runs, x);
    if (x->tenant->dir < 0)
        return err_set(e, EIO, "make the folder of tenant %s in the cache: is the disk full?", x->tenant->name);
    for (unsigned tries = 0; rc > 0 && tries < LISTINGS; tries++)
        rc = read_indexes(x, e);
    return rc < 0 ? rc : compact(x, e); /* what was missed costs room, no more */
}

/* ---- views ---- */

static uint8_t *skipped(const struct index_run *r, const struct pack_set *excluded)
{
    uint32_t n;
    const struct object_id *packs = index_run_packs(r, &n);
    uint8_t *bits = NULL;
    for (uint32_t i = 0; excluded->count && i < n; i++)
        if (pack_set_has(excluded, &packs[i])) {
            if (!bits && !(bits = calloc(1, n / 8 + 1)))
                abort();
            bits[i / 8] |= (uint8_t)(1u << i % 8);
        }
    return bits;
}

int view_open(struct session *x, const struct pack_set *excluded, struct view *out, struct err *e)
{
    struct tenant *t = x->tenant;
    memset(out, 0, sizeof *out);
    int rc = task_pool_take(&t->turn);
    if (rc < 0)
        return err_set(e, -rc, "cancelled");
    rc = sync_runs(x, e);
    if (rc == 0 && t->run_count) {
        out->runs = calloc(t->run_count, sizeof(struct index_run *));
        out->skip = calloc(t->run_count, sizeof(uint8_t *));
        if (!out->runs || !out->skip)
            abort();
        for (; out->count < t->run_count; out->count++) {
            out->runs[out->count] = index_run_ref(t->runs[out->count]);
            out->skip[out->count] = skipped(t->runs[out->count], excluded);
        }
    }
    task_pool_give(&t->turn);
    return rc;
}

void view_close(struct view *v)
{
    for (unsigned i = 0; i < v->count; i++) {
        index_run_unref(v->runs[i]);
        free(v->skip[i]);
    }
    free(v->runs);
    free(v->skip);
    memset(v, 0, sizeof *v);
}

int view_find(const struct view *v, const struct chunk_id *id, struct pack_entry *out, struct object_id *ret_pack)
{
    for (unsigned i = 0; i < v->count; i++) {
        int rc = index_run_find(v->runs[i], v->skip[i], id, out, ret_pack);
        if (rc != 0)
            return rc;
    }
    return 0;
}
