// SPDX-License-Identifier: Apache-2.0
// Requests for tenants' keys: see keys.h.
//
// Theory of operation. A request that the cache does not answer becomes a job: in a thread it reads the tenant's file and the blob, and does the work
// when the service is a file. When it takes PKCS#11, it comes back and waits in a queue of its own, of which one runs at a time: so a token that
// hangs holds one thread of the pool, not all. A request ends after SERVICE_SECONDS, or what the tenant's file says, or when it is cancelled, whatever its job does; the job
// then goes on alone and its result is wiped. Answers are given by an async handle, from the loop.
//
// Every key that was unwrapped stays in one list until it expires, is forgotten or the program ends; then it is ended, whoever holds it. A tick of a
// second does that and watches the requests' time. A key that was forgotten while a job was under way is not taken from that job either.
#include "hostd/volumed/keys/keys.h"

#include "base/str.h"
#include "hostd/volumed/keys/keys_service.h"
#include "hostd/volumed/keys/tenant_key.h"
#include "hostd/volumed/secret_file.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#define SERVICE_SECONDS 30u
#define TICK_MSEC       1000u

enum keys_op_state { KEYS_OP_WORKS, KEYS_OP_DONE };

struct job {
    uv_work_t work;
    TAILQ_ENTRY(job) link; /* in the queue for PKCS#11 */
    struct keys *keys;
    struct keys_op *op; /* NULL: nobody waits any more */
    enum keys_verb verb;
    char folder[PATH_MAX], tenant[KEYS_TENANT_MAX + 1];
    uint8_t in[KEYS_BLOB_MAX];
    size_t in_len;
    bool prepared, pkcs11; /* the first step is done; the second takes PKCS#11 */
    struct key_config config;
    struct blob blob;
    uint8_t *data_key; /* locked memory */
    uint64_t began;    /* tenant_key_clock */
    uint8_t out[BLOB_SIZE];
    int rc;
    struct err e;
};

struct keys_op {
    TAILQ_ENTRY(keys_op) link;
    struct keys *keys;
    struct job *job; /* NULL: answered without, or left alone */
    enum keys_op_state state;
    char tenant[KEYS_TENANT_MAX + 1];
    uint64_t deadline;
    bool forgotten;
    uint8_t blob[BLOB_SIZE];
    struct keys_result result;
    void (*done)(void *user, const struct keys_result *r);
    void *user;
};

struct kept {
    TAILQ_ENTRY(kept) link;
    char tenant[KEYS_TENANT_MAX + 1];
    struct tenant_key *key;
};

struct keys {
    uv_loop_t *loop;
    uv_async_t kick;
    uv_timer_t tick;
    char folder[PATH_MAX];
    TAILQ_HEAD(, keys_op) working, done;
    TAILQ_HEAD(, kept) kept; /* the newest first */
    TAILQ_HEAD(, job) queue; /* for PKCS#11 */
    bool pkcs11_busy, closing, closed_called;
    unsigned jobs, handles;
    void (*closed)(void *user);
    void *closed_user;
};

/* ---- the work, in a thread ---- */

static int prepare(struct job *j)
{
    int rc = key_config_load(j->folder, j->tenant, &j->config, &j->e);
    if (rc == 0 && j->verb != KEYS_MAKE)
        rc = blob_read(j->in, j->in_len, j->tenant, &j->blob, &j->e);
    if (rc == 0 && !(j->data_key = secret_alloc(KEYS_BYTES)))
        rc = err_set(&j->e, ENOMEM, "no memory that can be locked for the key of tenant %s (see RLIMIT_MEMLOCK)", j->tenant);
    bool wraps = j->verb == KEYS_MAKE || j->verb == KEYS_WRAP;
    j->pkcs11 = (wraps && j->config.service == SERVICE_PKCS11) || (j->verb != KEYS_MAKE && j->blob.service == SERVICE_PKCS11);
    return rc;
}

/* By the service of today; and it must come back the same before anybody relies on it. */
static int wrap_anew(struct job *j)
{
    uint8_t *again = secret_alloc(KEYS_BYTES);
    if (!again)
        return err_set(&j->e, ENOMEM, "no memory that can be locked for the key of tenant %s (see RLIMIT_MEMLOCK)", j->tenant);
    j->blob.kind = BLOB_WRAPPED;
    j->blob.service = j->config.service;
    j->blob.wrapped = (uint64_t)time(NULL);
    str_copy(j->blob.tenant, sizeof j->blob.tenant, j->tenant);
    str_copy(j->blob.wrapping_key, sizeof j->blob.wrapping_key, j->config.key);
    int rc = key_wrap(&j->config, &j->blob, j->data_key, &j->e);
    if (rc == 0)
        rc = key_unwrap(&j->config, &j->blob, again, &j->e);
    if (rc == 0 && sodium_memcmp(again, j->data_key, KEYS_BYTES) != 0)
        rc = err_set(&j->e, EBADMSG, "the key service of tenant %s does not give back what it wrapped", j->tenant);
    sodium_free(again);
    if (rc == 0)
        blob_write(&j->blob, j->out);
    return rc;
}

static int carry_out(struct job *j)
{
    if (j->verb == KEYS_MAKE) {
        randombytes_buf(j->data_key, KEYS_BYTES);
        randombytes_buf(j->blob.id, sizeof j->blob.id);
        j->blob.created = (uint64_t)time(NULL);
        return wrap_anew(j);
    }
    int rc = key_unwrap(&j->config, &j->blob, j->data_key, &j->e);
    return rc == 0 && j->verb == KEYS_WRAP ? wrap_anew(j) : rc;
}

static void job_run(uv_work_t *w)
{
    struct job *j = w->data;
    if (!j->prepared)
        j->rc = prepare(j);
    if (j->rc == 0 && (j->prepared || !j->pkcs11))
        j->rc = carry_out(j);
}

static void job_free(struct job *j)
{
    sodium_free(j->data_key);
    free(j);
}

/* ---- answers ---- */

static void kick(struct keys *k)
{
    uv_async_send(&k->kick);
}

static void finish(struct keys_op *op)
{
    if (op->job)
        op->job->op = NULL;
    op->job = NULL;
    TAILQ_REMOVE(&op->keys->working, op, link);
    op->state = KEYS_OP_DONE;
    TAILQ_INSERT_TAIL(&op->keys->done, op, link);
    kick(op->keys);
}

static void answer(struct keys_op *op, int rc, const struct err *e)
{
    op->result.rc = rc;
    if (rc < 0)
        op->result.e = *e;
    finish(op);
}

static void answer_text(struct keys_op *op, int code, const char *text)
{
    struct err e = {0};
    answer(op, err_set(&e, code, "the key of tenant %s: %s", op->tenant, text), &e);
}

static void keep(struct keys *k, const char *tenant, struct tenant_key *key)
{
    struct kept *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    str_copy(t->tenant, sizeof t->tenant, tenant);
    t->key = tenant_key_ref(key);
    TAILQ_INSERT_HEAD(&k->kept, t, link);
}

static void drop(struct keys *k, struct kept *t)
{
    TAILQ_REMOVE(&k->kept, t, link);
    tenant_key_end(t->key);
    tenant_key_unref(t->key);
    free(t);
}

static struct tenant_key *cached(struct keys *k, const char *tenant, const uint8_t id[BLOB_ID_SIZE])
{
    struct kept *t;
    TAILQ_FOREACH(t, &k->kept, link)
    if (strcmp(t->tenant, tenant) == 0 && memcmp(tenant_key_id(t->key), id, BLOB_ID_SIZE) == 0 && tenant_key_clock() < tenant_key_expires(t->key))
        return tenant_key_ref(t->key);
    return NULL;
}

static int take_key(struct job *j, struct keys_op *op)
{
    uint64_t seconds = j->config.cache_s ? j->config.cache_s : KEYS_CACHE_S;
    op->result.key = j->verb == KEYS_RENEW ? cached(j->keys, j->tenant, j->blob.id) : NULL;
    if (op->result.key) {
        tenant_key_prolong(op->result.key, j->began + seconds);
        return 0;
    }
    op->result.key = tenant_key_create(j->data_key, j->blob.id, j->began + seconds);
    if (!op->result.key)
        return err_set(&j->e, ENOMEM, "no memory that can be locked for the key of tenant %s (see RLIMIT_MEMLOCK)", j->tenant);
    keep(j->keys, j->tenant, op->result.key);
    return 0;
}

static void take_result(struct job *j)
{
    struct keys_op *op = j->op;
    if (op->forgotten && j->rc == 0) {
        answer_text(op, EAGAIN, "it was dropped while it was being fetched; ask again");
        return;
    }
    if (j->rc == 0 && (j->verb == KEYS_MAKE || j->verb == KEYS_OPEN || j->verb == KEYS_RENEW))
        j->rc = take_key(j, op);
    if (j->rc == -EKEYREVOKED && j->verb == KEYS_CHECK)
        keys_forget(j->keys, j->tenant);
    if (j->rc == 0 && (j->verb == KEYS_MAKE || j->verb == KEYS_WRAP)) {
        memcpy(op->blob, j->out, BLOB_SIZE);
        op->result.blob = op->blob;
        op->result.blob_len = BLOB_SIZE;
    }
    answer(op, j->rc, &j->e);
}

/* ---- jobs ---- */

static void job_ran(uv_work_t *w, int status);

static void job_start(struct job *j)
{
    int rc = uv_queue_work(j->keys->loop, &j->work, job_run, job_ran);
    if (rc < 0)
        abort(); /* only without a function to run */
    j->keys->jobs++;
}

static void next_pkcs11(struct keys *k)
{
    while (!k->pkcs11_busy && !TAILQ_EMPTY(&k->queue)) {
        struct job *j = TAILQ_FIRST(&k->queue);
        TAILQ_REMOVE(&k->queue, j, link);
        if (!j->op) {
            job_free(j);
            continue;
        }
        k->pkcs11_busy = true;
        job_start(j);
    }
}

static void job_ran(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct keys *k = j->keys;
    (void)status;
    k->jobs--;
    if (!j->prepared && j->rc == 0 && j->pkcs11 && j->op) {
        j->prepared = true;
        if (j->config.patience_s)
            j->op->deadline = tenant_key_clock() + j->config.patience_s;
        TAILQ_INSERT_TAIL(&k->queue, j, link);
    } else {
        if (j->prepared)
            k->pkcs11_busy = false;
        if (j->op)
            take_result(j);
        job_free(j);
    }
    next_pkcs11(k);
    kick(k);
}

/* ---- requests ---- */

/* The blob is looked at even when the key is cached: it may say that it was revoked. */
static bool answer_at_once(struct keys *k, struct keys_op *op, const struct keys_request *r)
{
    struct err e = {0};
    struct blob b;
    int rc = 0;
    if (k->closing)
        rc = err_set(&e, ECANCELED, "the keys are being closed");
    else if (r->verb > KEYS_RENEW || !str_name_valid(r->tenant, strlen(r->tenant)))
        rc = err_set(&e, EINVAL, "'%.80s' is not a tenant's name, or there is no such request", r->tenant);
    else if (r->verb != KEYS_MAKE)
        rc = blob_read(r->blob, r->blob_len, r->tenant, &b, &e);
    if (rc == 0 && r->verb == KEYS_OPEN)
        op->result.key = cached(k, r->tenant, b.id);
    if (rc == -EKEYREVOKED && r->verb == KEYS_CHECK)
        keys_forget(k, r->tenant);
    if (rc == 0 && !op->result.key)
        return false;
    answer(op, rc, &e);
    return true;
}

static void start_job(struct keys *k, struct keys_op *op, const struct keys_request *r)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        abort();
    j->work.data = j;
    j->keys = k;
    j->op = op;
    j->verb = r->verb;
    j->began = tenant_key_clock();
    str_copy(j->folder, sizeof j->folder, k->folder);
    str_copy(j->tenant, sizeof j->tenant, r->tenant);
    if (r->verb != KEYS_MAKE) {
        memcpy(j->in, r->blob, r->blob_len);
        j->in_len = r->blob_len;
    }
    op->job = j;
    job_start(j);
}

static void ticked(uv_timer_t *t);

struct keys_op *keys_start(struct keys *k, const struct keys_request *r)
{
    struct keys_op *op = calloc(1, sizeof *op);
    if (!op)
        abort();
    op->keys = k;
    op->done = r->done;
    op->user = r->user;
    op->deadline = tenant_key_clock() + SERVICE_SECONDS;
    str_copy(op->tenant, sizeof op->tenant, r->tenant);
    TAILQ_INSERT_TAIL(&k->working, op, link);
    if (!answer_at_once(k, op, r))
        start_job(k, op, r);
    uv_ref((uv_handle_t *)&k->kick);
    if (!k->closing)
        uv_timer_start(&k->tick, ticked, TICK_MSEC, TICK_MSEC);
    return op;
}

void keys_cancel(struct keys_op *op)
{
    if (op->state == KEYS_OP_WORKS)
        answer_text(op, ECANCELED, "the request was cancelled");
}

void keys_forget(struct keys *k, const char *tenant)
{
    struct kept *t, *next;
    struct keys_op *op;
    for (t = TAILQ_FIRST(&k->kept); t; t = next) {
        next = TAILQ_NEXT(t, link);
        if (strcmp(t->tenant, tenant) == 0)
            drop(k, t);
    }
    TAILQ_FOREACH(op, &k->working, link)
    if (strcmp(op->tenant, tenant) == 0)
        op->forgotten = true;
}

/* ---- time ---- */

static void ticked(uv_timer_t *timer)
{
    struct keys *k = timer->data;
    uint64_t now = tenant_key_clock();
    struct keys_op *op, *next_op;
    struct kept *t, *next;
    for (t = TAILQ_FIRST(&k->kept); t; t = next) {
        next = TAILQ_NEXT(t, link);
        if (now >= tenant_key_expires(t->key))
            drop(k, t);
    }
    for (op = TAILQ_FIRST(&k->working); op; op = next_op) {
        next_op = TAILQ_NEXT(op, link);
        if (now >= op->deadline)
            answer_text(op, EAGAIN, "the key service does not answer");
    }
    if (TAILQ_EMPTY(&k->kept) && TAILQ_EMPTY(&k->working))
        uv_timer_stop(timer);
}

static void handle_closed(uv_handle_t *h)
{
    struct keys *k = h->data;
    if (--k->handles)
        return;
    void (*closed)(void *) = k->closed;
    void *user = k->closed_user;
    free(k);
    if (closed)
        closed(user);
}

static void pump(uv_async_t *async)
{
    struct keys *k = async->data;
    struct keys_op *op;
    while ((op = TAILQ_FIRST(&k->done))) {
        TAILQ_REMOVE(&k->done, op, link);
        op->done(op->user, &op->result);
        free(op);
    }
    if (!TAILQ_EMPTY(&k->working) || k->jobs)
        return;
    uv_unref((uv_handle_t *)&k->kick);
    if (k->closing && !k->closed_called) {
        k->closed_called = true;
        uv_close((uv_handle_t *)&k->kick, handle_closed);
        uv_close((uv_handle_t *)&k->tick, handle_closed);
    }
}

/* ---- life ---- */

/* Without it SoftHSM looks in /etc/softhsm, which only its own group can read. */
static void configure_softhsm(const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/softhsm2.conf", folder);
    if (access(path, R_OK) == 0)
        setenv("SOFTHSM2_CONF", path, 0);
}

struct keys *keys_create(uv_loop_t *loop, const char *folder, struct err *e)
{
    struct keys *k = calloc(1, sizeof *k);
    if (!k || sodium_init() < 0) {
        err_set(e, ENOMEM, "libsodium does not start");
        free(k);
        return NULL;
    }
    if (strlen(folder) >= sizeof k->folder - KEYS_TENANT_MAX - 16 || uv_async_init(loop, &k->kick, pump) < 0) {
        err_set(e, EINVAL, "the folder of keys cannot be used: %.200s", folder);
        free(k);
        return NULL;
    }
    uv_timer_init(loop, &k->tick);
    uv_unref((uv_handle_t *)&k->tick);
    uv_unref((uv_handle_t *)&k->kick);
    k->kick.data = k->tick.data = k;
    k->handles = 2;
    k->loop = loop;
    str_copy(k->folder, sizeof k->folder, folder);
    configure_softhsm(folder);
    TAILQ_INIT(&k->working);
    TAILQ_INIT(&k->done);
    TAILQ_INIT(&k->kept);
    TAILQ_INIT(&k->queue);
    return k;
}

void keys_destroy(struct keys *k, void (*closed)(void *user), void *user)
{
    k->closing = true;
    k->closed = closed;
    k->closed_user = user;
    while (!TAILQ_EMPTY(&k->kept))
        drop(k, TAILQ_FIRST(&k->kept));
    while (!TAILQ_EMPTY(&k->working))
        keys_cancel(TAILQ_FIRST(&k->working));
    next_pkcs11(k);
    uv_timer_stop(&k->tick);
    uv_ref((uv_handle_t *)&k->kick);
    kick(k);
}

void keys_revoked_blob(const char *tenant, uint8_t out[KEYS_BLOB_MAX], size_t *ret_len)
{
    struct blob b = {.kind = BLOB_REVOKED, .wrapped = (uint64_t)time(NULL)};
    str_copy(b.tenant, sizeof b.tenant, tenant);
    blob_write(&b, out);
    *ret_len = BLOB_SIZE;
}

bool keys_own(const struct keys *k, const char *tenant)
{
    char path[PATH_MAX + KEYS_TENANT_MAX + 8];
    snprintf(path, sizeof path, "%s/%s.key", k->folder, tenant);
    return str_name_valid(tenant, strlen(tenant)) && access(path, F_OK) == 0;
}

static struct key_config config_of(const struct keys *k, const char *tenant)
{
    struct key_config c;
    struct err e = {0};
    if (!str_name_valid(tenant, strlen(tenant)) || key_config_load(k->folder, tenant, &c, &e) < 0)
        c = (struct key_config){.revoked = KEYS_PAUSE, .unpacked = KEYS_KEEP};
    return c;
}

enum keys_policy keys_policy(const struct keys *k, const char *tenant)
{
    return config_of(k, tenant).revoked;
}

enum keys_unpacked keys_unpacked(const struct keys *k, const char *tenant)
{
    return config_of(k, tenant).unpacked;
}
