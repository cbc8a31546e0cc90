// SPDX-License-Identifier: Apache-2.0
// Suspending a sandbox to the object store, and restoring it.
//
// Theory of operation. A suspend is a checkpoint that the sandbox does not go on from: paused, captured as an automatic snapshot, stored; then one row says
// `suspended` (with the snapshot's id, which pins it), and only after that the machine and its object go. A restore is the load of that snapshot, after a
// fetch if its object is not in the pool; the row switches to the new machine and lets go of the snapshot in one step. So `suspended` in the row, the snapshot's id,
// decides what a sandbox without an object is, and what was interrupted:
//
//   state       suspended  found after a kill of space-hostd
//   suspending  0          nothing was captured: it is what it was (`desired`)
//   suspending  snapshot   captured, if the snapshot is ready: the upload goes on; else as above
//   suspended   snapshot   done; a machine or object that is left is removed. Without memory, and `desired` stopped: it came from another node, or its owner's key
//                          was revoked; it gets its disk
//   restoring   snapshot   not loaded: from the start
//   restoring   0          loaded: it runs
//   running     snapshot   loaded, but its disk or memory is still arriving (hostd/volume/fill.h); so, too, `paused`. Without its machine: suspended, as before
//
// A restore from the store fetches all but the disk, and the memory if there is much of it, loads that, and lets the guest run while they arrive. The snapshot stays what the sandbox is
// until then. What needs all of the disk waits for it: a capture (fork, snapshot, suspend, roll back), stop, a larger disk.
//
// When the host goes down all that have a machine are suspended so, but for the upload: the pool is what the next space-hostd restores them from. What ran
// is to run again (`desired`), what was paused stays suspended.
//
// The job rows of the snapshot say where its jobs go on; the sandbox's own stay `running` meanwhile.
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/account.h"
#include "hostd/volume/fill.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOCK_MSEC 5000

static struct noded_request vm_request(const struct sandbox *sb, enum noded_op op)
{
    return (struct noded_request){.op = op, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
}

struct snapshot *suspend_snapshot(const struct sandbox *sb)
{
    return sb->row.suspended ? snapshot_by_id(sb->space, (uint64_t)sb->row.suspended) : NULL;
}

bool suspend_is_cold(const struct sandbox *sb)
{
    const struct snapshot *sn = suspend_snapshot(sb);
    return sn && !sn->row.memory;
}

/* ---- suspending ---- */

static int record(struct sandbox *sb, struct snapshot **out, struct err *e)
{
    char name[NAME_LEN_MAX + 1];
    time_t now = space_now() / 1000000000;
    struct tm tm;
    gmtime_r(&now, &tm);
    size_t n = strftime(name, sizeof name, "auto-%Y%m%dT%H%M%SZ-suspend-", &tm);
    snprintf(name + n, sizeof name - n, "%" PRId64, sb->row.generation);
    if (snapshot_by_name(sb->space, (uint64_t)sb->row.id, name))
        return err_set(e, EAGAIN, "'%s' was suspended this second", sb->row.name);
    int rc = snapshot_record(sb, name, true, out, e);
    if (rc < 0)
        return rc;
    sb->row.suspended = (*out)->row.id;
    return sandbox_save(sb, e);
}

/* Pauses, and captures for that row. */
static int capture(struct sandbox *sb, struct snapshot *sn, struct err *e)
{
    struct noded_request pause = vm_request(sb, NODED_VM_PAUSE);
    struct capture c = {.kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id, .seal = true, .with_memory = true};
    int rc = noded_call(sb->space, &pause, NULL, NULL, e);
    if (rc == 0)
        rc = capture_paused(sb, &c, e);
    if (rc == 0 && !c.head.memory)
        rc = err_set(e, EIO, "its guest was lost");
    if (rc == 0)
        rc = capture_seal(sb->space, &c, e);
    if (rc < 0) {
        object_delete_later(sb->space, NODED_SNAPSHOT, c.id); /* space-noded may have been lost after it was done */
        job_rows_remove(sb->space, c.id);
        return rc;
    }
    if (sn->gone)
        return err_set(e, ENOENT, "the snapshot '%s' of this suspend was removed", sn->row.name);
    snapshot_set_head(sn, &c);
    snapshot_set_state(sn, ARTIFACT_READY, NULL);
    return 0;
}

/* The snapshot of a suspend that did not come about. */
static void drop_snapshot(struct sandbox *sb)
{
    struct snapshot *sn = suspend_snapshot(sb);
    sb->row.suspended = 0;
    sandbox_save(sb, NULL);
    if (sn)
        snapshot_destroy(sn);
}

/* It goes on as what it was before: as far as its machine knows, nothing happened, or it stands still. */
static void undo(struct sandbox *sb, bool ran, int rc, const struct err *why)
{
    struct noded_request go_on = vm_request(sb, NODED_VM_RESUME);
    struct err e = {0};
    struct snapshot *sn = suspend_snapshot(sb);
    bool captured = sn && sn->row.state == ARTIFACT_READY;
    drop_snapshot(sb);
    if (rc == -ECANCELED)
        return; /* what comes next starts from here */
    if (ran && !captured && noded_call(sb->space, &go_on, NULL, NULL, &e) < 0) {
        if (sb->space->going_down)
            return; /* its machine was ended meanwhile: the next space-hostd finds that */
        ran = false;
    }
    if (ran && !captured && sb->guest)
        guest_ctl(sb->guest, CLOCK_MSEC, "clock %" PRId64, space_now());
    sandbox_set_state(sb, ran && !captured ? SANDBOX_RUNNING : SANDBOX_PAUSED, why->msg[0] ? why->msg : "it could not be suspended");
}

/* The machine ends, and its object goes. The row said `suspended` before: done again until it is. */
static int free_machine(struct sandbox *sb, struct err *e)
{
    int64_t object = sb->row.object;
    jobs_save(sb);
    jobs_keep(sb, (uint64_t)sb->row.suspended);
    int rc = object ? vm_kill(sb, e) : 0;
    if (rc < 0 || !object)
        return rc;
    sb->row.object = sb->row.next_object = sb->row.delta = 0;
    rc = sandbox_save(sb, e);
    if (rc == 0)
        object_delete_later(sb->space, NODED_SANDBOX, (uint64_t)object);
    return rc;
}

static int suspended(struct sandbox *sb, struct snapshot *sn, enum sandbox_state desired, uint64_t began, struct err *e)
{
    struct event_scope scope = sandbox_scope(sb);
    sb->row.desired = desired;
    sb->row.error[0] = 0;
    sandbox_set_state(sb, SANDBOX_SUSPENDED, NULL);
    event_emit(sb->space, &scope, "suspend", (uint64_t)sb->row.id, sb->row.name, ",\"snapshot\":\"%s\",\"msec\":%" PRIu64, sn->row.name,
               (uv_hrtime() - began) / 1000000);
    int rc = free_machine(sb, e);
    if (rc < 0)
        log_warn("sandbox %012" PRIx64 " is suspended, and its machine ends later: %s", (uint64_t)sb->row.id, e->msg);
    else if (sn->row.durable && volume_leaves_nothing(sb->space, sb->row.owner))
        volume_evict(sn);
    return 0;
}

int suspend_run(struct sandbox *sb, bool here, struct err *e)
{
    bool ran = sandbox_state(sb) == SANDBOX_RUNNING;
    struct snapshot *sn = NULL;
    uint64_t began = uv_hrtime();
    int rc = here ? 0 : volume_check(sb->space, sb->row.owner, e);
    if (rc == 0)
        rc = vm_find_guest(sb, !ran, e);
    if (rc < 0)
        return err_wrap(e, "suspend '%s'", sb->row.name);
    sandbox_set_state(sb, SANDBOX_SUSPENDING, NULL);
    rc = record(sb, &sn, e);
    if (sn)
        snapshot_ref(sn);
    if (rc == 0 && !here)
        rc = volume_prepare(sb, e); /* the template first, while it still runs */
    if (rc == 0)
        rc = capture(sb, sn, e);
    if (rc == 0 && !here)
        rc = volume_uploaded(sn, e);
    if (co_aborted(co_self(sb->space->co)))
        rc = -ECANCELED;
    if (rc < 0) {
        err_wrap(e, "suspend '%s'", sb->row.name);
        undo(sb, ran, rc, e);
    } else {
        rc = suspended(sb, sn, here && ran ? SANDBOX_RUNNING : SANDBOX_SUSPENDED, began, e);
    }
    snapshot_unref(sn);
    return rc;
}

/* ---- a key that was revoked ---- */

int suspend_store_disk(struct sandbox *sb, const char *why, struct snapshot **out, struct err *e)
{
    int rc = volume_check(sb->space, sb->row.owner, e);
    if (rc == 0)
        rc = volume_prepare(sb, e);
    if (rc == 0)
        rc = capture_present(sb, sandbox_state(sb), why, out, e);
    if (rc < 0)
        return rc;
    (*out)->loads++;
    return volume_uploaded(*out, e);
}

static int pack_disk(struct sandbox *sb, struct err *e)
{
    struct snapshot *sn = NULL;
    uint64_t began = uv_hrtime();
    int rc = suspend_store_disk(sb, "revoked", &sn, e);
    if (sn)
        sn->loads--;
    if (rc == 0 && sn->gone)
        rc = err_set(e, ENOENT, "snapshot '%s' was removed", sn->row.name);
    if (rc == 0) {
        sb->row.suspended = sn->row.id;
        rc = suspended(sb, sn, SANDBOX_STOPPED, began, e);
    } else if (sn && !sn->gone) {
        snapshot_destroy(sn);
    }
    snapshot_unref(sn);
    return rc;
}

/* Not before its turn came in the queue: the key may be back. */
static bool is_revoked(const struct sandbox *sb)
{
    struct err e = {0};
    return volume_key(sb->space, sb->row.owner, &e) == -EKEYREVOKED;
}

int suspend_pack(struct sandbox *sb, struct err *e)
{
    if (!sb->row.object || !is_revoked(sb))
        return 0;
    if (sandbox_state(sb) == SANDBOX_RUNNING || sb->fill || suspend_fills(sb))
        return err_set(e, EAGAIN, "'%s' still runs, or its disk has not arrived", sb->row.name);
    int rc = suspend_holds(sb) ? free_machine(sb, e) : sandbox_state(sb) == SANDBOX_PAUSED ? suspend_run(sb, false, e) : pack_disk(sb, e);
    if (rc < 0)
        return rc;
    sandbox_set_error(sb, "the key of tenant u%" PRId64 " was revoked: '%s' is in the object store, encrypted, and nowhere else", sb->row.owner,
                      sb->row.name);
    return sandbox_save(sb, e);
}

int suspend_discard(struct sandbox *sb, const char *why, struct err *e)
{
    if (!is_revoked(sb))
        return 0;
    if (suspend_fills(sb))
        return suspend_return(sb, why, e);
    int64_t object = sb->row.object;
    int rc = object ? vm_kill(sb, e) : 0;
    if (rc < 0)
        return rc;
    drop_snapshot(sb);
    jobs_keep(sb, 0);
    jobs_lost(sb);
    sb->row.object = sb->row.next_object = sb->row.delta = sb->row.base = sb->row.base_kind = 0;
    sb->row.want[0] = 0;
    sb->row.desired = SANDBOX_STOPPED;
    sandbox_set_error(sb, "the disk of '%s' was destroyed: %s", sb->row.name, why);
    sandbox_set_state(sb, SANDBOX_FAILED, "its owner's key was revoked");
    if (object)
        object_delete(sb->space, NODED_SANDBOX, (uint64_t)object);
    return 0;
}

/* ---- restoring ---- */

static int load_here(struct sandbox *sb, struct snapshot *sn, struct err *e)
{
    struct ref ref = {REF_SNAPSHOT, (uint64_t)sn->row.id, 0};
    int rc = volume_fetched(sn, e);
    return rc < 0 ? rc : load_memory(sb, &ref, e);
}

static int load(struct sandbox *sb, struct snapshot *sn, struct err *e)
{
    if (sn->row.state != ARTIFACT_STORED || sn->task) /* somebody brings back all of it */
        return load_here(sb, sn, e);
    struct head h = snapshot_head(sn);
    bool arrives = head_arrives(sb->space, &h);
    int rc = volume_fetch_memory(sn, arrives, e);
    if (rc > 0)
        return load_here(sb, sn, e);
    if (rc == 0)
        rc = load_stored(sb, sn, arrives, e);
    if (rc < 0)
        return rc;
    account_gone(sb->space, NODED_SNAPSHOT, (uint64_t)sn->row.id, sn->row.parent_kind, sn->row.parent); /* nothing of its disk is here to share */
    if (sn->row.state == ARTIFACT_STORED && !sn->task)                                                  /* the machine has what it needs of it */
        object_delete(sb->space, NODED_SNAPSHOT, (uint64_t)sn->row.id);
    return 0;
}

/* The left-over is gone or damaged, and the store has what it was. */
static bool may_fetch_again(const struct snapshot *sn, int rc)
{
    return (rc == -ENOENT || rc == -EBADMSG) && sn->row.durable && sn->row.state == ARTIFACT_READY && !sn->gone;
}

static int load_somehow(struct sandbox *sb, struct snapshot *sn, const char **from, struct err *e)
{
    *from = sn->row.state == ARTIFACT_STORED ? "store" : "pool";
    int rc = load(sb, sn, e);
    if (!may_fetch_again(sn, rc) || **from == 's')
        return rc;
    log_warn("sandbox %012" PRIx64 " is restored from the store, since what was left here cannot be used: %s", (uint64_t)sb->row.id, e->msg);
    *e = (struct err){0};
    *from = "store";
    volume_evict(sn);
    return load(sb, sn, e);
}

int restore_run(struct sandbox *sb, struct err *e)
{
    struct snapshot *sn = suspend_snapshot(sb);
    char origin[sizeof sb->row.origin];
    const char *from = "";
    uint64_t began = uv_hrtime();
    if (!sn)
        return err_set(e, EIO, "the snapshot that '%s' was suspended to is not known any more", sb->row.name);
    if (sb->space->going_down) {
        int rc = err_set(e, ESHUTDOWN, "the host goes down: '%s' goes on with it", sb->row.name);
        wait_done_all(&sb->ready, rc, e);
        return rc;
    }
    memcpy(origin, sb->row.origin, sizeof origin);
    sb->row.desired = SANDBOX_RUNNING;
    sandbox_set_state(sb, SANDBOX_RESTORING, NULL);
    snapshot_ref(sn)->loads++;
    int rc = volume_key(sb->space, sb->row.owner, e);
    if (rc == 0)
        rc = load_somehow(sb, sn, &from, e);
    sn->loads--;
    bool aborted = co_aborted(co_self(sb->space->co));
    if (rc == 0 && !aborted) {
        struct event_scope scope = sandbox_scope(sb);
        memcpy(sb->row.origin, origin, sizeof origin); /* it is what it was */
        sb->row.touched = 1;
        pool_drain(sb->space, (uint64_t)sn->row.id); /* nobody else will come for it */
        sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
        event_emit(sb->space, &scope, "restore", (uint64_t)sb->row.id, sb->row.name, ",\"from\":\"%s\",\"msec\":%" PRIu64, from,
                   (uv_hrtime() - began) / 1000000);
    } else if (!aborted && sb->row.suspended) { /* else the new machine has it already, and ends */
        err_wrap(e, "restore '%s'", sb->row.name);
        sb->row.desired = SANDBOX_SUSPENDED;
        sandbox_set_error(sb, "%s", e->msg);
        sandbox_set_state(sb, SANDBOX_SUSPENDED, e->msg);
        wait_done_all(&sb->ready, rc, e); /* who woke it hears of it, and does not try again at once */
    }
    snapshot_unref(sn);
    return aborted ? -ECANCELED : rc;
}

/* ---- leaving it ---- */

int suspend_return(struct sandbox *sb, const char *why, struct err *e)
{
    fill_stop(&sb->fill);
    sb->row.desired = SANDBOX_SUSPENDED;
    sandbox_set_error(sb, "'%s': %s", sb->row.name, why);
    sandbox_set_state(sb, SANDBOX_SUSPENDED, why);
    return free_machine(sb, e);
}

int suspend_forget(struct sandbox *sb, struct err *e)
{
    struct snapshot *sn = suspend_snapshot(sb);
    struct capture c = {.kind = NODED_SANDBOX, .id = space_new_id()};
    struct ref ref = {REF_SNAPSHOT, (uint64_t)sb->row.suspended, 0};
    if (!sn)
        return err_set(e, EIO, "the snapshot that '%s' was suspended to is not known any more", sb->row.name);
    if (sandbox_state(sb) == SANDBOX_RESTORING)
        sandbox_set_state(sb, SANDBOX_SUSPENDED, "killed");
    bool memory = sn->row.memory;
    int key = volume_key(sb->space, sb->row.owner, e);
    if (key < 0)
        return err_wrap(e, "keep the disk of '%s' alone", sb->row.name);
    snapshot_ref(sn)->loads++;
    int rc = free_machine(sb, e); /* it may have failed before */
    sb->row.next_object = (int64_t)c.id;
    if (rc == 0)
        rc = sandbox_save(sb, e);
    if (rc == 0)
        rc = volume_fetched(sn, e);
    if (rc == 0)
        rc = capture_ref(sb->space, sb, &ref, &c, e);
    sn->loads--;
    snapshot_unref(sn);
    sb->row.next_object = 0;
    if (rc < 0) {
        object_delete_later(sb->space, NODED_SANDBOX, c.id);
        sandbox_save(sb, NULL);
        return err_wrap(e, "keep the disk of '%s' alone", sb->row.name);
    }
    jobs_keep(sb, 0);
    jobs_lost(sb);
    sb->row.object = (int64_t)c.id;
    sb->row.base = sb->row.base_kind = sb->row.suspended = 0;
    sb->row.error[0] = 0;
    sb->row.desired = SANDBOX_STOPPED;
    sandbox_set_state(sb, SANDBOX_STOPPED, memory ? "killed: its memory is given up" : NULL);
    return 0;
}

/* ---- after a start of space-hostd ---- */

static int go_on(struct sandbox *sb, struct snapshot *sn, const struct op *op, struct err *e)
{
    uint64_t began = uv_hrtime();
    snapshot_ref(sn);
    int rc = volume_uploaded(sn, e);
    if (rc == 0 || (!op->vm_exists && rc != -ECANCELED)) { /* without a machine the snapshot is all there is: it can be loaded, here */
        if (rc < 0)
            sandbox_set_error(sb, "'%s' is suspended, but only to this node's pool: %s; `echo upload` to the state of snapshot %s", sb->row.name,
                              e->msg, sn->row.name);
        char error[sizeof sb->row.error];
        str_copy(error, sizeof error, rc < 0 ? sb->row.error : "");
        *e = (struct err){0};
        rc = suspended(sb, sn, SANDBOX_SUSPENDED, began, e);
        str_copy(sb->row.error, sizeof sb->row.error, error);
        sandbox_save(sb, NULL);
    } else {
        undo(sb, false, rc, e);
    }
    snapshot_unref(sn);
    return rc;
}

int suspend_recover(struct sandbox *sb, struct op *op, struct err *e)
{
    struct snapshot *sn = suspend_snapshot(sb);
    switch (sandbox_state(sb)) {
    case SANDBOX_SUSPENDING:
        if (sn && (sn->row.state == ARTIFACT_READY || sn->row.state == ARTIFACT_STORED))
            return go_on(sb, sn, op, e);
        drop_snapshot(sb);
        sandbox_set_state(sb, sb->row.desired == SANDBOX_PAUSED ? SANDBOX_PAUSED : SANDBOX_RUNNING, "space-hostd ended while it was being suspended");
        return 1;
    case SANDBOX_RESTORING:
        if (!sn) {
            sb->row.touched = 1;
            sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
            return 1;
        }
        sandbox_set_state(sb, SANDBOX_SUSPENDED, "interrupted");
        free_machine(sb, e);
        return restore_run(sb, e);
    default: {
        sb->row.next_object = 0;
        int rc = free_machine(sb, e);
        if (rc == 0 && sb->row.desired == SANDBOX_STOPPED && suspend_is_cold(sb)) /* it came from another node: stopped, */
            return suspend_forget(sb, e);
        return rc == 0 && sb->row.desired == SANDBOX_RUNNING ? restore_run(sb, e) : rc; /* or to go on */
    }
    }
}
