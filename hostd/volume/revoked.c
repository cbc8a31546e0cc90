// SPDX-License-Identifier: Apache-2.0
// What a tenant has in this pool, when its key was taken away or may be at any time. See tenants.c.
//
// Theory of operation. Guests that run are paused, killed or left alone, as the tenant's file says (docs/protocol/keys.md). What is in the store as well is
// destroyed here. A tenant with a key service of its own leaves nothing in the pool that is in the store, whether its key is good or not: a host that is switched off
// meanwhile could not destroy it.
//
// What such a tenant has here in the clear and nowhere else is packed: what is paused is suspended, of what is stopped the disk is stored (suspend_pack), snapshots
// are uploaded, and then it is destroyed here. space-volumed can do that for as long as it has the key cached: five minutes from the service's last answer at the most. Then, or when
// all is done, it is told to forget the key. What was not packed by then is kept as it is, or destroyed, as the tenant's file says. All of it is repeated at each
// look, so that what was under way, or is stopped later, is met then; and done again from the start by a space-hostd that was killed meanwhile.
//
// When the key comes back, what was stopped gets its disk and is stopped again; all else is restored when it is used.
#include "base/log.h"
#include "base/str.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/snapshot/browser.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define AGAIN_MSEC 2000u /* between two tries while there is time */

/* ---- what there is ---- */

static bool is_ours(const struct tenant_watch *t, const struct sandbox *sb)
{
    return sb->row.owner == t->owner && sandbox_is_here(sb) && !sb->gone && sandbox_state(sb) != SANDBOX_DESTROYING;
}

/* A disk, perhaps with memory, of what does not run, or is not to. */
static bool sandbox_is_clear(const struct tenant_watch *t, const struct sandbox *sb)
{
    return is_ours(t, sb) && sb->row.object && !(t->policy == KEY_CONTINUE && sandbox_state(sb) == SANDBOX_RUNNING);
}

static bool snapshot_is_clear(const struct tenant_watch *t, const struct snapshot *sn)
{
    return sn->row.owner == t->owner && sn->row.state == ARTIFACT_READY && !sn->gone && (snapshot_is_here(sn) || sn->copied);
}

static unsigned count_clear(const struct tenant_watch *t)
{
    struct space *s = t->volume->space;
    unsigned count = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));)
        count += sandbox_is_clear(t, hmap_entry(n, struct sandbox, by_id));
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));)
        count += snapshot_is_clear(t, hmap_entry(n, struct snapshot, by_id));
    return count;
}

bool revoked_has_clear(const struct tenant_watch *t)
{
    return count_clear(t) > 0;
}

/* ---- guests that run, and what is in the store, too ---- */

static void end_guest(struct sandbox *sb, const struct tenant_watch *t)
{
    enum sandbox_state state = sandbox_state(sb);
    bool pause = t->policy == KEY_PAUSE && state == SANDBOX_RUNNING,
         kill = t->policy == KEY_KILL && (state == SANDBOX_RUNNING || state == SANDBOX_PAUSED);
    if (!is_ours(t, sb) || sb->found || sb->ops || !(pause || kill))
        return;
    sandbox_set_error(sb, "the key of tenant u%" PRId64 " was revoked: '%s' is %s, as its policy has it", t->owner, sb->row.name,
                      pause ? "paused" : "killed");
    sandbox_save(sb, NULL);
    op_submit(sb, op_new(pause ? OP_PAUSE : OP_KILL), kill, NULL);
}

static void end_guests(const struct tenant_watch *t)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&t->volume->space->sandboxes, n));)
        end_guest(hmap_entry(n, struct sandbox, by_id), t);
}

/* Left in the pool by a suspend, or fetched since, by a tenant that leaves nothing there. */
static bool left_over(const struct snapshot *sn)
{
    const struct sandbox *sb = sandbox_by_id(sn->space, (uint64_t)sn->row.sandbox);
    return sb && sb->row.suspended == sn->row.id && sandbox_state(sb) == SANDBOX_SUSPENDED && !sb->ops && !sb->row.object;
}

static bool to_destroy(const struct snapshot *sn, const struct tenant_watch *t)
{
    if (!sn->row.durable || sn->row.state != ARTIFACT_READY || sn->gone || sn->loads || sn->task)
        return false;
    return t->revoked || (t->own && left_over(sn) && !sn->readers && !sn->browser);
}

static void destroy_stored(const struct tenant_watch *t)
{
    struct space *s = t->volume->space;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (sn->row.owner != t->owner)
            continue;
        if (t->revoked && sn->browser)
            browser_close(sn->browser);
        if (to_destroy(sn, t)) {
            snapshot_ref(sn);
            volume_evict(sn); /* may wait: the table may be another afterwards */
            snapshot_unref(sn);
            n = NULL;
        }
    }
}

/* ---- packing ---- */

struct packing {
    struct tenant_watch *watch;
    unsigned packed, kept, destroyed;
    struct err why; /* the last failure */
    int64_t after;  /* what this pass did is before that: sandboxes by id, snapshots backwards in time */
};

/* What is left of the time in which space-volumed may have the key; 0: none. */
static uint64_t time_left(const struct tenant_watch *t)
{
    uint64_t age = volume_boottime() - t->confirmed;
    return age < KEY_GOOD_MSEC ? KEY_GOOD_MSEC - age : 0;
}

static struct sandbox *next_sandbox(const struct tenant_watch *t, int64_t after)
{
    struct sandbox *best = NULL;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&t->volume->space->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if (sandbox_is_clear(t, sb) && !sb->found && sb->row.id > after && (!best || sb->row.id < best->row.id))
            best = sb;
    }
    return best;
}

/* The newest first: it is worth most. */
static struct snapshot *next_snapshot(const struct tenant_watch *t, int64_t before)
{
    struct snapshot *best = NULL;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&t->volume->space->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (snapshot_is_clear(t, sn) && sn->row.taken < before && (!best || sn->row.taken > best->row.taken))
            best = sn;
    }
    return best;
}

/* Runs OP_PACK; `why` as in struct op. */
static int pack_sandbox(struct sandbox *sb, const char *why, uint64_t msec, struct err *e)
{
    struct space *s = sb->space;
    struct co_waiter c = co_waiter_of(s->co, e);
    struct op *op = op_new(OP_PACK);
    str_copy(op->why, sizeof op->why, why);
    sandbox_ref(sb);
    op_submit(sb, op, false, &c.w);
    int rc = co_wait_msec(s->co, msec);
    wait_remove(&c.w);
    if (rc == -ETIMEDOUT && sb->ops && sb->ops->kind == OP_PACK)
        op_abort(sb);
    sandbox_unref(sb);
    return rc == -ETIMEDOUT && !e->code ? err_set(e, ETIMEDOUT, "it took too long") : rc;
}

/* The key is gone: the rest need not be tried. */
static bool is_hopeless(int rc)
{
    return rc == -EKEYREVOKED || rc == -ENOKEY;
}

static int done(struct packing *p, int rc, const struct err *e)
{
    p->packed += rc == 0;
    if (rc < 0)
        p->why = *e;
    return is_hopeless(rc) || !p->watch->revoked || !time_left(p->watch) ? -ECANCELED : 0;
}

/* -ECANCELED: it makes no sense to go on. */
static int pass(struct packing *p)
{
    struct tenant_watch *t = p->watch;
    int rc = time_left(t) ? 0 : err_set(&p->why, ETIMEDOUT, "its key cannot be had any more");
    struct sandbox *sb;
    struct snapshot *sn;
    end_guests(t);
    for (int64_t after = -1; rc == 0 && (sb = next_sandbox(t, after)); after = p->after) {
        struct err e = {0};
        p->after = sb->row.id;
        rc = done(p, pack_sandbox(sb, "", time_left(t), &e), &e);
    }
    for (int64_t before = INT64_MAX; rc == 0 && (sn = next_snapshot(t, before)); before = p->after) {
        struct err e = {0};
        p->after = sn->row.taken;
        snapshot_ref(sn);
        rc = done(p, volume_uploaded_msec(sn, time_left(t), &e), &e);
        snapshot_unref(sn);
    }
    destroy_stored(t);
    return rc;
}

static void destroy(struct packing *p, const char *why)
{
    struct tenant_watch *t = p->watch;
    struct sandbox *sb;
    struct snapshot *sn;
    for (int64_t after = -1; t->revoked && (sb = next_sandbox(t, after)); after = p->after) {
        struct err e = {0};
        p->after = sb->row.id;
        p->destroyed += pack_sandbox(sb, why, KEY_GOOD_MSEC, &e) == 0;
    }
    for (int64_t before = INT64_MAX; t->revoked && (sn = next_snapshot(t, before)); before = p->after) {
        struct sandbox *of = sandbox_by_id(t->volume->space, (uint64_t)sn->row.sandbox);
        struct err e = {0};
        p->after = sn->row.taken;
        p->destroyed += !sn->row.durable;
        snapshot_ref(sn);
        if (sn->row.durable) /* a copy of another node's, perhaps; somebody was at it before */
            volume_evict(sn);
        else if (of && of->row.suspended == sn->row.id)
            pack_sandbox(of, why, KEY_GOOD_MSEC, &e);
        else
            snapshot_destroy(sn);
        snapshot_unref(sn);
    }
}

static void say_kept(const struct packing *p, const char *why)
{
    struct sandbox *sb;
    for (int64_t after = -1; (sb = next_sandbox(p->watch, after)); after = sb->row.id) {
        sandbox_set_error(sb, "'%s' lies in the pool unencrypted: %s", sb->row.name, why);
        sandbox_save(sb, NULL);
    }
}

static void tell(const struct packing *p, const char *why)
{
    const struct tenant_watch *t = p->watch;
    struct event_scope scope = {t->owner, 0, 0700};
    char name[32], quoted[600];
    snprintf(name, sizeof name, "u%" PRId64, t->owner);
    if (p->kept || p->destroyed)
        log_error("tenant %s: %u things were packed, %u were destroyed, %u are in the pool unencrypted: %s", name, p->packed, p->destroyed, p->kept,
                  why);
    else
        log_info("tenant %s: %u things were packed, nothing of it is in the pool any more", name, p->packed);
    event_emit(t->volume->space, &scope, "key-packed", 0, name, ",\"packed\":%u,\"destroyed\":%u,\"kept\":%u,\"why\":%s", p->packed, p->destroyed,
               p->kept, event_quote(p->kept || p->destroyed ? why : "", quoted, sizeof quoted));
}

static void pack(void *arg)
{
    struct tenant_watch *t = arg;
    struct packing p = {.watch = t};
    char why[256];
    while (t->revoked && count_clear(t) && pass(&p) == 0 && count_clear(t))
        co_sleep(t->volume->space->co, AGAIN_MSEC);
    if (t->revoked)
        volume_forget_key(t);
    snprintf(why, sizeof why, "the key of tenant u%" PRId64 " was revoked, and it could not be encrypted before: %.150s", t->owner, p.why.msg);
    if (t->revoked && t->unpacked == UNPACKED_DESTROY)
        destroy(&p, why);
    p.kept = t->revoked ? count_clear(t) : 0;
    if (p.kept)
        say_kept(&p, why);
    if (t->revoked && (p.packed || p.destroyed || p.kept != t->kept))
        tell(&p, why);
    t->kept = p.kept;
    t->packing = false;
}

/* ---- what tenants.c calls ---- */

void revoked_apply(struct tenant_watch *t)
{
    struct space *s = t->volume->space;
    if (t->revoked && !t->packing)
        end_guests(t);
    if ((t->revoked || t->own) && !t->packing)
        destroy_stored(t);
    if (t->revoked && t->own && !t->packing && count_clear(t)) {
        t->packing = true;
        co_spawn(s->co, pack, t);
    }
}

void revoked_returned(struct tenant_watch *t)
{
    t->kept = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&t->volume->space->sandboxes, n));) {
        struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        if (is_ours(t, sb) && !sb->found && sandbox_state(sb) == SANDBOX_SUSPENDED && suspend_is_cold(sb) && sb->row.desired == SANDBOX_STOPPED)
            op_submit(sb, op_new(OP_STOP), false, NULL);
    }
}
