// SPDX-License-Identifier: Apache-2.0
// space-hostd: the unprivileged control plane of a node. Reads the configuration, opens the stores, serves the tree.
#include "base/log.h"
#include "base/options.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/credential/credential.h"
#include "hostd/credential/trust.h"
#include "hostd/events.h"
#include "hostd/isolate.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/idle.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/lifecycle/net.h"
#include "hostd/lifecycle/tenant.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/account.h"
#include "hostd/snapshot/schedule.h"
#include "hostd/space.h"
#include "hostd/tree/serve.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define BARRIER_MSEC 200 /* how much of the newest history a power failure may take */

uint64_t space_name_key(uint32_t owner, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), owner);
}

uint64_t space_new_id(void)
{
    uint64_t id = 0;
    while (!id) {
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
            abort();
        id &= (1ULL << 48) - 1;
    }
    return id;
}

int64_t space_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t space_qid(const struct space *s, uint32_t tree, uint64_t id1, uint64_t id2, uint8_t index)
{
    uint64_t what[3] = {tree, id1, id2};
    return (XXH3_64bits_withSeed(what, sizeof what, s->qid_seed) & ~0xffULL) | index;
}

/* ---- events of space-noded ---- */

static void noded_event(void *user, const struct noded_reply *ev)
{
    struct space *s = user;
    if (ev->event == NODED_EVENT_VM)
        lifecycle_vm_event(s, ev->id, ev->vm_event);
    else if (ev->event == NODED_EVENT_RESYNC)
        lifecycle_reconcile(s);
}

static void noded_connected(void *user)
{
    lifecycle_reconcile(user);
}

/* ---- durability ---- */

static void barrier_work(uv_work_t *w)
{
    db_barrier(w->data);
}

static void barrier_done(uv_work_t *w, int status)
{
    (void)status;
    w->data = NULL;
}

static void barrier_tick(uv_timer_t *t)
{
    static uint64_t synced;
    static uv_work_t work;
    struct space *s = t->data;
    if (work.data || synced == events_last(s->events))
        return; /* one is under way, or nothing changed: every change that matters makes an event */
    synced = events_last(s->events);
    work.data = s->db;
    uv_queue_work(s->loop, &work, barrier_work, barrier_done);
}

/* ---- start and end ---- */

static void stop(uv_signal_t *h, int number)
{
    (void)number;
    uv_stop(h->loop);
}

static void host_goes_down(uv_signal_t *h, int number)
{
    (void)number;
    lifecycle_host_down(h->data);
}

static int open_stores(struct space *s, struct err *e)
{
    char path[CONFIG_PATH_MAX + 16], seed[24], fresh[24];
    snprintf(path, sizeof path, "%s/spool", s->config.state);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, "make %s", path);
    int rc = cluster_identify(s, e);
    if (rc == 0)
        rc = db_open(s->config.database, s->node_id, &s->db, e);
    if (rc < 0)
        return rc;
    snprintf(fresh, sizeof fresh, "%" PRIu64, space_new_id());
    rc = db_meta(s->db, "qid_seed", fresh, seed, sizeof seed, e);
    if (rc == 0)
        rc = str_parse_u64(seed, UINT64_MAX, &s->qid_seed);
    if (rc == 0)
        rc = events_open(s, e);
    if (rc == 0)
        rc = objects_load(s, e);
    if (rc == 0)
        rc = heads_load(s, e);
    if (rc == 0)
        rc = tenants_load(s, e);
    if (rc == 0)
        rc = cluster_open(s, e);
    return rc == 0 ? jobs_load(s, e) : rc;
}

static int run(const char *config_path, struct err *e)
{
    static uv_timer_t barrier;
    static uv_signal_t term, interrupt, down;
    struct space *s = calloc(1, sizeof *s);
    struct listener *listener = NULL;
    if (!s)
        return err_set(e, ENOMEM, "out of memory");
    s->loop = uv_default_loop();
    s->co = co_sched_create(s->loop);
    int rc = config_load(config_path, &s->config, e);
    if (rc == 0)
        rc = isolate(&s->config, e);
    s->slots = calloc(s->config.uid_count + 1u, sizeof *s->slots);
    if (rc == 0)
        rc = open_stores(s, e);
    struct noded_hooks hooks = {noded_event, noded_connected, s};
    if (rc == 0)
        rc = noded_open(s, &hooks, &s->noded, e);
    if (rc == 0)
        rc = net_open(s, e);
    if (rc == 0)
        rc = trust_open(s, e);
    if (rc == 0)
        rc = credentials_open(s, e);
    if (rc == 0)
        rc = volume_open(s, e);
    if (rc == 0)
        lifecycle_open(s);
    if (rc == 0)
        pool_open(s);
    if (rc == 0)
        idle_open(s);
    if (rc == 0)
        rc = schedule_open(s, e);
    if (rc == 0)
        account_open(s);
    if (rc == 0)
        rc = serve_open(s, &listener, e);
    if (rc < 0)
        return rc;
    barrier.data = s;
    uv_timer_init(s->loop, &barrier);
    uv_timer_start(&barrier, barrier_tick, BARRIER_MSEC, BARRIER_MSEC);
    uv_signal_init(s->loop, &term);
    uv_signal_start(&term, stop, SIGTERM);
    uv_signal_init(s->loop, &interrupt);
    uv_signal_start(&interrupt, stop, SIGINT);
    down.data = s;
    uv_signal_init(s->loop, &down);
    uv_signal_start(&down, host_goes_down, SIGUSR1);
    log_info("space-hostd %s serves node %s", SPACE_VERSION, s->config.node);
    uv_run(s->loop, UV_RUN_DEFAULT);
    /* Nothing to wind up: every state is one that the next start takes up. */
    db_barrier(s->db);
    return s->restart ? err_set(e, EOVERFLOW, "space-hostd stood still for long: it starts anew") : 0;
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-hostd", "", &config);
    if (status >= 0)
        return status;
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_TRIM_THRESHOLD, 64 << 20); /* replies of up to 1 MiB come and go: keep their pages */
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    if (run(config, &e) < 0) {
        log_error("%s", e.msg);
        return 1;
    }
    return 0;
}
