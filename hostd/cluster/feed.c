// SPDX-License-Identifier: Apache-2.0
// What other nodes did, brought into memory. See cluster.h. Nothing here writes to the database: it may be in the middle of somebody's transaction.
#include "hostd/cluster/cluster_impl.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/credential.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/lifecycle/tenant.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"
#include "hostd/snapshot/browser.h"
#include "hostd/snapshot/schedule.h"
#include "hostd/volume/fill.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MSEC 200

/* What follows from something that was told: done by a coroutine a moment later, behind whatever transaction we are in. */
struct follow {
    struct space *space;
    void (*run)(struct follow *f);
    struct sandbox *sandbox;
    struct template *template;
    int64_t id;
    bool arrived;
};

static void follow(void *arg)
{
    struct follow *f = arg;
    if (co_sleep(f->space->co, 1) == 0)
        f->run(f);
    sandbox_unref(f->sandbox);
    template_unref(f->template);
    free(f);
}

static void later(struct space *s, const struct follow *what)
{
    struct follow *f = malloc(sizeof *f);
    if (!f)
        abort();
    *f = *what;
    f->space = s;
    co_spawn(s->co, follow, f);
}

/* ---- sandboxes ---- */

/* An owner removed a sandbox: its automatic snapshots that are in our pool go, too. */
static void remove_automatic(struct follow *f)
{
    struct space *s = f->space;
    for (struct hmap_node *n = NULL, *next; (next = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(next, struct snapshot, by_id);
        n = next;
        if (sn->row.sandbox == f->id && sn->row.automatic && snapshot_is_here(sn)) {
            snapshot_destroy(sn);
            n = NULL; /* the map changed */
        }
    }
}

static void kill_machine(struct follow *f)
{
    struct noded_request req = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = (uint64_t)f->id};
    struct err e = {0};
    if (noded_call(f->space, &req, NULL, NULL, &e) < 0)
        log_warn("the machine of object %012" PRIx64 ", which is not ours any more, goes on: %s", req.id, e.msg);
    object_delete_later(f->space, NODED_SANDBOX, req.id);
}

void cluster_left(struct sandbox *sb)
{
    struct err e = {0};
    if (sb->row.object && sandbox_state(sb) == SANDBOX_STOPPED) { /* its disk is in the store */
        object_delete_later(sb->space, NODED_SANDBOX, (uint64_t)sb->row.object);
    } else if (sb->row.object) { /* we were taken for dead */
        log_warn("sandbox %012" PRIx64 " was taken by another node: its machine here is ended", (uint64_t)sb->row.id);
        fill_stop(&sb->fill);
        guest_close(sb->guest);
        sb->guest = NULL;
        vm_release(sb);
        if (sb->runner && sb->ops)
            op_abort(sb);
        later(sb->space, &(struct follow){.run = kill_machine, .id = sb->row.object});
    }
    sb->found = false;
    sandbox_known(sb);
    op_start(sb);
    jobs_leave(sb);
    err_set(&e, EREMOTE, "sandbox '%s' went to another node", sb->row.name);
    wait_done_all(&sb->ready, -EREMOTE, &e);
}

void cluster_arrived(struct sandbox *sb)
{
    struct err e = {0};
    sb->found = false;
    sandbox_known(sb);
    op_start(sb);
    credential_sandbox_arrived(sb);
    schedule_recall(sb);
    if (sb->row.suspended && job_rows_load(sb->space, (uint64_t)sb->row.suspended, &e) < 0)
        log_error("sandbox %012" PRIx64 ": the jobs that it was suspended with are not known: %s", (uint64_t)sb->row.id, e.msg);
    if (jobs_arrive(sb, &e) < 0)
        log_error("sandbox %012" PRIx64 ": its jobs are not known: %s", (uint64_t)sb->row.id, e.msg);
}

void cluster_go_on(struct sandbox *sb, struct waiter *w)
{
    bool boots = sandbox_state(sb) == SANDBOX_FAILED; /* from a disk alone */
    if (boots) {
        jobs_keep(sb, 0);
        jobs_lost(sb);
    }
    op_submit(sb, op_new(boots ? OP_START : OP_RECOVER), false, w);
}

static void go_on(struct follow *f)
{
    struct sandbox *sb = f->sandbox;
    if (f->arrived && sandbox_is_here(sb) && !sb->gone)
        cluster_go_on(sb, NULL);
    wait_done_all(&sb->told, 0, NULL);
}

static void sandbox_told(struct space *s, int64_t id, const struct sandbox_row *row)
{
    struct sandbox *sb = sandbox_by_id(s, (uint64_t)id);
    bool was = sb && sandbox_is_here(sb), is = row && row->node == s->node_id;
    if (was && is)
        return; /* ours: memory is ahead */
    if (!row && sb) {
        if (was) /* taken and removed before we heard */
            credential_sandbox_gone(sb);
        later(s, &(struct follow){.run = remove_automatic, .id = id});
        jobs_forget_away(sb);
        sandbox_drop(sb);
    }
    if (!row)
        return;
    if (was)
        cluster_left(sb);
    if (sb)
        sandbox_replace(sb, row);
    else
        sb = sandbox_learn(s, row);
    if (is)
        cluster_arrived(sb);
    else
        credential_sandbox(sb);
    later(s, &(struct follow){.run = go_on, .sandbox = sandbox_ref(sb), .arrived = is});
}

/* ---- snapshots ---- */

/* Nothing of it stays in our pool. */
static void clear(struct snapshot *sn)
{
    struct space *s = sn->space;
    pool_drain(s, (uint64_t)sn->row.id);
    browser_close(sn->browser);
    object_delete_later(s, NODED_SNAPSHOT, (uint64_t)sn->row.id);
    sn->copied = false;
}

void cluster_gave(struct snapshot *sn, int64_t to)
{
    struct space *s = sn->space;
    struct snapshot_row row = sn->row;
    if (snapshot_is_here(sn) && sn->row.state == ARTIFACT_READY)
        clear(sn);
    row.node = to;
    row.state = ARTIFACT_STORED;
    row.delta = 0;
    snapshot_replace(sn, &row);
    if (to != s->node_id || !sn->copied)
        return;
    sn->copied = false; /* what we have of it is all of it */
    snapshot_set_state(sn, ARTIFACT_READY, NULL);
}

static void snapshot_told(struct space *s, int64_t id, const struct snapshot_row *row)
{
    struct snapshot *sn = snapshot_by_id(s, (uint64_t)id);
    bool was = sn && snapshot_is_here(sn), is = row && row->node == s->node_id;
    if (was && is)
        return;
    if (sn && ((was && sn->row.state == ARTIFACT_READY) || (!row && sn->copied)))
        clear(sn);
    if (!row && sn) {
        job_rows_forget(s, (uint64_t)id);
        snapshot_drop(sn);
    }
    if (!row)
        return;
    if (sn)
        snapshot_replace(sn, row);
    else
        sn = snapshot_learn(s, row);
    schedule_saw(s, row->taken);
}

/* ---- templates ---- */

/* Heads of it that we prepared. */
static void remove_heads(struct follow *f)
{
    template_heads_remove(f->template);
}

static void template_told(struct space *s, int64_t id, const struct template_row *row)
{
    struct template *t = template_by_id(s, (uint64_t)id);
    if (t && t->row.node == s->node_id)
        return;
    if (!row && t) {
        later(s, &(struct follow){.run = remove_heads, .template = template_ref(t)});
        if (t->copied_here)
            object_delete_later(s, NODED_TEMPLATE, (uint64_t)id);
        template_drop(t);
    }
    if (!row)
        return;
    if (t)
        template_replace(t, row);
    else
        template_learn(s, row);
}

/* ---- all ---- */

static void told(void *user, enum db_table table, int64_t id, const void *row)
{
    switch (table) {
    case DB_SANDBOXES: sandbox_told(user, id, row); break;
    case DB_SNAPSHOTS: snapshot_told(user, id, row); break;
    case DB_TEMPLATES: template_told(user, id, row); break;
    case DB_ARTIFACTS: volume_told(user, id, row); break;
    case DB_NODES: cluster_node_told(user, id, row); break;
    case DB_TENANTS: tenant_told(user, id, row); break;
    default: break;
    }
}

void cluster_sync(struct space *s)
{
    struct err e = {0};
    int rc = db_feed(s->db, told, s, &e);
    if (rc == -EOVERFLOW) { /* the next start reads all, and no machine minds */
        s->restart = true;
        uv_stop(s->loop);
    }
    if (rc < 0)
        log_warn("other nodes: %s", e.msg);
}

static void tick(uv_timer_t *t)
{
    cluster_sync(t->data);
    events_sync(t->data);
}

int cluster_open(struct space *s, struct err *e)
{
    static uv_timer_t timer;
    int rc = cluster_nodes_open(s, e);
    if (rc < 0)
        return rc;
    timer.data = s;
    uv_timer_init(s->loop, &timer);
    uv_timer_start(&timer, tick, POLL_MSEC, POLL_MSEC);
    return 0;
}

int cluster_hold(struct sandbox *sb, struct err *e)
{
    db_begin(sb->space->db);
    cluster_sync(sb->space);
    if (sandbox_is_here(sb) && !sb->gone)
        return 0;
    db_commit(sb->space->db, NULL);
    return cluster_refuse(sb, e);
}
