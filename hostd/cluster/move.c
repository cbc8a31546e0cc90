// SPDX-License-Identifier: Apache-2.0
// How a sandbox goes from one node to another. See cluster.h.
//
// Theory of operation. What moves is a row. In one transaction the sandbox, those of its snapshots that are durable, and their artifacts become the other node's;
// snapshots that only the old node's pool has stay its. One that is stopped has a snapshot of its disk stored, and moves with that; it is `suspended` there until it has its
// disk, and then stopped. Taking (to this node, from whatever node) and handing over (from this node) are the same transaction. Who
// has the row then restores the sandbox as it restores any that is suspended; what the old node had of it in its pool goes when it hears of it.
#include "hostd/cluster/cluster_impl.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/credential/credential.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/volume/volume.h"
#include "ipc/noded.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OTHER_MSEC 300000u /* how long we wait for the other node's restore */

int cluster_refuse(const struct sandbox *sb, struct err *e)
{
    const struct space *s = sb->space;
    const char *owner = cluster_name(s, sb->row.node);
    const struct node_entry *n = cluster_node(s, sb->row.node);
    if (sandbox_state(sb) == SANDBOX_SUSPENDED)
        return err_set(e, EREMOTE, "sandbox '%s' is suspended, and node %s has it: `echo %s > sandboxes/%s/node` takes it over", sb->row.name, owner,
                       s->config.node, sb->row.name);
    return err_set(e, EREMOTE, "sandbox '%s' is on node %s, which is %s: use it there", sb->row.name, owner,
                   n ? cluster_state_name(cluster_state(s, n)) : "not known");
}

/* ---- what can be moved ---- */

/* What a node that is gone for good left of a sandbox: the newest snapshot that is in the store, one with memory if there is any. */
static struct snapshot *newest_stored(const struct sandbox *sb)
{
    struct snapshot *best = NULL;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&sb->space->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        bool fits = sn->row.sandbox == sb->row.id && sn->row.durable;
        if (fits && (!best || (sn->row.memory && !best->row.memory) || (!sn->row.memory == !best->row.memory && sn->row.taken > best->row.taken)))
            best = sn;
    }
    return best;
}

static int64_t version_number(const char *text)
{
    unsigned a, b, c;
    return sscanf(text, "%4u.%4u.%4u", &a, &b, &c) == 3 ? (int64_t)a * 100000000 + (int64_t)b * 10000 + c : 0;
}

static const char *accel_name(int64_t accel)
{
    return accel == NODED_KVM ? "KVM" : "TCG";
}

/* Can that node load it? Machine type, processor model and devices are looked at when it is loaded. */
static int check_fits(const struct sandbox *sb, const struct snapshot *sn, const struct node_entry *to, struct err *e)
{
    const struct node_entry *from = cluster_node(sb->space, sb->row.node);
    char its[64] = "", ours[64] = "";
    if (!sn->row.memory)
        return 0;
    if (sn->row.accel && to->row.accel && sn->row.accel != to->row.accel) {
        snprintf(its, sizeof its, "under %s", accel_name(sn->row.accel));
        snprintf(ours, sizeof ours, "%s", accel_name(to->row.accel));
    } else if (from && version_number(from->row.qemu) > version_number(to->row.qemu) && version_number(to->row.qemu)) {
        snprintf(its, sizeof its, "by QEMU %.20s", from->row.qemu);
        snprintf(ours, sizeof ours, "QEMU %.20s", to->row.qemu);
    }
    if (!its[0])
        return 0;
    return err_set(e, ENOEXEC,
                   "sandbox '%s' cannot go on at node %s: its memory was captured %s at node %s, and %s has %s; `echo '%s boot' > sandboxes/%s/node` "
                   "boots it there from its disk",
                   sb->row.name, to->row.name, its, cluster_name(sb->space, sb->row.node), to->row.name, ours, to->row.name, sb->row.name);
}

/* What the sandbox would be restored from; inside the transaction. */
static int find_head(const struct sandbox *sb, struct snapshot **out, struct err *e)
{
    struct space *s = sb->space;
    const struct node_entry *owner = cluster_node(s, sb->row.node);
    enum node_state state = owner ? cluster_state(s, owner) : NODE_IS_DEAD;
    const char *name = cluster_name(s, sb->row.node);
    bool suspended = sandbox_state(sb) == SANDBOX_SUSPENDED, ours = sandbox_is_here(sb);
    *out = suspend_snapshot(sb);
    if (suspended && *out && (*out)->row.durable && (ours || !sb->row.locked || state == NODE_IS_DEAD))
        return 0;
    if (suspended && *out && !(*out)->row.durable && state != NODE_IS_DEAD) {
        return err_set(e, EREMOTE, "sandbox '%s' is suspended to the pool of node %s only: write `upload` to the state of its snapshot %s there",
                       sb->row.name, name, (*out)->row.name);
    }
    if (ours)
        return err_set(e, EBUSY, "sandbox '%s' is %s: only one that can be suspended, or is stopped, moves", sb->row.name,
                       state_name(sandbox_state(sb)));
    if (suspended && state != NODE_IS_DEAD)
        return err_set(e, EBUSY, "node %s is at work on sandbox '%s'", name, sb->row.name);
    if (state == NODE_IS_UP)
        return err_set(e, EREMOTE, "sandbox '%s' is %s on node %s: write %s to its `node` there", sb->row.name, state_name(sandbox_state(sb)), name,
                       s->config.node);
    if (state == NODE_IS_AWAY)
        return err_set(e, EREMOTE,
                       "sandbox '%s' is %s on node %s, which is away and may still run it: when that machine is off for sure, `echo dead > "
                       "nodes/%s/state`, as root",
                       sb->row.name, state_name(sandbox_state(sb)), name, name);
    *out = newest_stored(sb);
    return *out ? 0 : err_set(e, ENODATA, "nothing of sandbox '%s' is in the object store: it was on node %s alone", sb->row.name, name);
}

/* ---- the transaction ---- */

static void move_snapshot(struct snapshot *sn, int64_t to, struct err *e)
{
    struct space *s = sn->space;
    struct snapshot_row row = sn->row;
    if (db_take(s->db, DB_SNAPSHOTS, row.id, row.node, to, e) < 0)
        return;
    row.node = to;
    row.state = ARTIFACT_STORED;
    row.delta = 0;
    db_save_for(s->db, DB_SNAPSHOTS, &row, to, e);
    volume_moved(sn, to);
}

/* The row as the other node finds it. */
static void move_row(const struct sandbox *sb, const struct snapshot *head, bool boot, int64_t to, struct sandbox_row *row)
{
    *row = sb->row;
    row->node = to;
    row->object = row->next_object = row->locked = row->delta = 0;
    row->error[0] = 0;
    bool stopped = sandbox_state(sb) == SANDBOX_STOPPED && sandbox_is_here(sb);
    row->desired = stopped && !boot ? SANDBOX_STOPPED : SANDBOX_RUNNING;
    if ((head->row.memory || stopped) && !boot) {
        row->state = SANDBOX_SUSPENDED;
        row->suspended = head->row.id;
    } else {
        struct ref ref = {REF_SNAPSHOT, (uint64_t)head->row.id, 0};
        row->state = SANDBOX_FAILED; /* its `start` boots that disk */
        row->suspended = 0;
        ref_format(&ref, row->want);
    }
    row->changed = space_now();
}

static void tell(const struct sandbox *sb, int64_t from, int64_t to)
{
    struct event_scope scope = sandbox_scope(sb);
    char a[160], b[160];
    event_emit(sb->space, &scope, "moved", (uint64_t)sb->row.id, sb->row.name, ",\"from\":%s,\"to\":%s",
               event_quote(cluster_name(sb->space, from), a, sizeof a), event_quote(cluster_name(sb->space, to), b, sizeof b));
}

/* Does it move with the sandbox that is the node `from`'s? */
static bool goes_along(const struct sandbox *sb, const struct snapshot *sn, const struct snapshot *head, int64_t from)
{
    return sn == head || (sn->row.sandbox == sb->row.id && sn->row.node == from && sn->row.durable);
}

/* In an open transaction. In memory nothing has changed yet. */
static int move_rows(struct sandbox *sb, struct snapshot *head, bool boot, int64_t to, struct sandbox_row *row, struct err *e)
{
    struct space *s = sb->space;
    int64_t from = sb->row.node;
    move_row(sb, head, boot, to, row);
    int rc = db_take(s->db, DB_SANDBOXES, row->id, from, to, e);
    if (rc == 0)
        rc = db_save_for(s->db, DB_SANDBOXES, row, to, e);
    for (struct hmap_node *n = NULL; rc == 0 && (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (goes_along(sb, sn, head, from))
            move_snapshot(sn, to, e);
    }
    if (rc == 0)
        tell(sb, from, to);
    return rc;
}

/* Memory follows the database: as the feed would tell it, had another done it. */
static void follow(struct sandbox *sb, const struct snapshot *head, int64_t from, const struct sandbox_row *row)
{
    struct space *s = sb->space;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (goes_along(sb, sn, head, from))
            cluster_gave(sn, row->node);
    }
    if (from == s->node_id)
        cluster_left(sb);
    sandbox_replace(sb, row);
    if (row->node == s->node_id)
        cluster_arrived(sb);
    else
        credential_sandbox(sb);
}

/* `disk`: of one that is stopped here, stored; else NULL. */
static int move(struct sandbox *sb, const struct node_entry *to, bool boot, struct snapshot *disk, struct err *e)
{
    struct space *s = sb->space;
    struct snapshot *head = disk;
    struct sandbox_row row;
    struct err ignored = {0};
    db_begin(s->db);
    cluster_sync(s);
    int64_t from = sb->row.node;
    int rc = sb->gone || !sb->named ? err_set(e, ESTALE, "the sandbox is gone") : 0;
    if (rc == 0 && disk && (!sandbox_is_here(sb) || disk->gone))
        rc = err_set(e, ESTALE, "sandbox '%s' was taken by another node, or its snapshot '%s' was removed", sb->row.name, disk->row.name);
    if (rc == 0 && !disk)
        rc = find_head(sb, &head, e);
    if (rc == 0 && !boot)
        rc = check_fits(sb, head, to, e);
    if (rc == 0)
        rc = credential_check_move(sb, &to->row, e);
    if (rc == 0)
        rc = move_rows(sb, head, boot, to->row.id, &row, e);
    int rc2 = db_commit(s->db, rc < 0 ? &ignored : e);
    if (rc == 0 && rc2 == 0)
        follow(sb, head, from, &row);
    return rc < 0 ? rc : rc2;
}

/* ---- to this node ---- */

static void take(struct sandbox *sb, bool boot, struct waiter *w)
{
    struct space *s = sb->space;
    struct err e = {0};
    int rc = move(sb, cluster_node(s, s->node_id), boot, NULL, &e);
    if (rc < 0) {
        if (w)
            w->done(w, rc, &e);
        return;
    }
    cluster_go_on(sb, w);
}

/* ---- to another ---- */

/* The other has it: until it runs there, or is stopped if it was, or did not come to that. */
static int wait_for_other(struct sandbox *sb, int64_t to, enum sandbox_state wanted, struct err *e)
{
    struct space *s = sb->space;
    uint64_t until = uv_now(s->loop) + OTHER_MSEC;
    int rc = 0;
    while (rc == 0 && !sb->gone && sb->row.node == to && uv_now(s->loop) < until) {
        enum sandbox_state now = sandbox_state(sb);
        if (now == wanted || now == SANDBOX_RUNNING)
            return 0;
        if ((enum sandbox_state)sb->row.desired != wanted || now == SANDBOX_STOPPED || (wanted == SANDBOX_STOPPED && sb->row.error[0]))
            return err_set(e, EIO, "node %s: %s", cluster_name(s, to), sb->row.error[0] ? sb->row.error : state_name(now));
        rc = wait_in_list(s->co, &sb->told, 1000);
        rc = rc == -ETIMEDOUT ? 0 : rc;
    }
    return rc < 0 ? rc : err_set(e, ETIMEDOUT, "node %s has sandbox '%s', and has not restored it yet", cluster_name(s, to), sb->row.name);
}

int cluster_move_run(struct sandbox *sb, int64_t to, bool boot, struct err *e)
{
    struct space *s = sb->space;
    const struct node_entry *n = cluster_node(s, to);
    struct snapshot *disk = NULL;
    bool stopped = sandbox_state(sb) == SANDBOX_STOPPED;
    int rc = stopped ? suspend_store_disk(sb, "move", &disk, e) : 0; /* killed meanwhile, it is stopped as before, and has a snapshot more */
    if (sandbox_state(sb) == SANDBOX_RUNNING || sandbox_state(sb) == SANDBOX_PAUSED)
        rc = suspend_run(sb, false, e);
    if (rc == 0)
        rc = move(sb, n, boot, disk, e);
    if (disk) {
        disk->loads--;
        snapshot_unref(disk);
    }
    return rc < 0 ? rc : wait_for_other(sb, to, stopped && !boot ? SANDBOX_STOPPED : SANDBOX_RUNNING, e);
}

void cluster_move(struct sandbox *sb, const char *name, bool boot, struct waiter *w)
{
    struct space *s = sb->space;
    struct node_entry *to = cluster_node_named(s, name);
    struct err e = {0};
    int rc = 0;
    if (!to)
        rc = err_set(&e, EINVAL, "there is no node '%.64s': nodes/ lists them", name);
    else if (to->row.id != s->node_id && !sandbox_is_here(sb) && to->row.id != sb->row.node)
        rc = err_set(&e, EREMOTE, "sandbox '%s' is on node %s: write %s to its `node` there or at node %s", sb->row.name,
                     cluster_name(s, sb->row.node), name, name);
    else if (cluster_state(s, to) != NODE_IS_UP)
        rc = err_set(&e, EHOSTDOWN, "node %s is %s", name, cluster_state_name(cluster_state(s, to)));
    if (rc < 0 || to->row.id == sb->row.node) {
        if (w)
            w->done(w, rc, &e);
        return;
    }
    if (!sandbox_is_here(sb)) {
        take(sb, boot, w);
        return;
    }
    struct op *op = op_new(OP_MOVE);
    op->node = to->row.id;
    op->boot = boot;
    op_submit(sb, op, false, w);
}
