// SPDX-License-Identifier: Apache-2.0
// The operation queue of a sandbox.
//
// Theory of operation. Everything that changes a sandbox is an operation in its queue; the first one runs as a coroutine, the rest wait. A verb
// is judged against the table when its turn comes, so `pause` behind a boot means "as soon as it runs". kill and destroy go first: the running operation
// is aborted (its waits return -ECANCELED) and unwinds. Touches (root/, jobs) are no operations: they wait in `ready` until the queue is empty and are
// judged then. Invariant: a transitional state is left before the queue is empty. What was asked for after a start of space-hostd waits in the queue until
// reconciliation has looked at the sandbox, and put what it found before that.
#include "hostd/credential/trust.h"
#include "hostd/lifecycle/lifecycle.h"

#include "hostd/lifecycle/idle.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/noded_client.h"
#include "hostd/volume/fill.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* sandbox.runner while its coroutine is queued and has not begun. */
#define NOT_YET ((struct co *)(uintptr_t)1)

#define RECONNECT_PAUSE_MSEC 1000u

static void start_next(struct sandbox *sb);

struct op *op_new(enum op_kind kind)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op)
        abort();
    op->kind = kind;
    return op;
}

static int run_pause(struct sandbox *sb, struct err *e)
{
    struct noded_request req = {.op = NODED_VM_PAUSE, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    int rc = noded_call(sb->space, &req, NULL, NULL, e);
    if (rc < 0)
        return rc;
    sb->row.desired = SANDBOX_PAUSED;
    sandbox_set_state(sb, SANDBOX_PAUSED, NULL);
    return 0;
}

/* One that does not answer is asked again and again, behind what else is to be done; who waits for it hears of each failure. */
static int ask_again(struct sandbox *sb, int rc, struct err *e)
{
    guest_close(sb->guest);
    sb->guest = NULL;
    if (rc == -ECANCELED || co_sleep(sb->space->co, RECONNECT_PAUSE_MSEC) < 0)
        return -ECANCELED;
    struct op *op = op_new(rc == -EPROTO ? OP_VM_LOST : OP_RECOVER);
    op->object = sb->row.object;
    op->vm_exists = op->vm_running = true;
    str_copy(op->why, sizeof op->why, e->msg);
    op_submit(sb, op, false, NULL);
    wait_done_all(&sb->ready, rc == -EPROTO ? -ENOTCONN : -EIO, e);
    return rc;
}

/* After hostd's own start: finds the guest of a running machine again. */
static int reconnect(struct sandbox *sb, struct err *e)
{
    int rc = sb->guest ? 0 : vm_connect(sb, VM_RUNNING, e);
    return rc == 0 ? 0 : ask_again(sb, rc, e);
}

static int run_resume(struct sandbox *sb, struct err *e)
{
    struct noded_request req = {.op = NODED_VM_RESUME, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    struct err mute = {0};
    bool known = sb->guest;
    int answers = known ? 0 : vm_connect(sb, VM_STANDING, &mute); /* hostd was started while it was paused */
    int rc = answers == -ECANCELED ? answers : noded_call(sb->space, &req, NULL, NULL, e);
    if (rc < 0) {
        if (!known)
            guest_close(sb->guest);
        sb->guest = known ? sb->guest : NULL;
        return rc;
    }
    if (answers < 0)
        answers = ask_again(sb, answers, &mute);
    else if (known)
        answers = guest_ctl(sb->guest, 5000, "clock %" PRId64, space_now());
    if (answers == 0)
        trust_settle(sb, sb->guest);
    if (answers == -ECANCELED)
        return answers;
    if (answers < 0)
        log_warn("sandbox %012" PRIx64 " runs, but its guest does not answer: %s", (uint64_t)sb->row.id, mute.code ? mute.msg : strerror(-answers));
    sb->row.desired = SANDBOX_RUNNING;
    sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
    return 0;
}

static int run_start(struct sandbox *sb, struct err *e)
{
    struct ref want;
    if (suspend_holds(sb) && suspend_is_cold(sb)) {
        int rc = suspend_forget(sb, e);
        if (rc < 0)
            return rc;
    }
    if (suspend_holds(sb))
        return restore_run(sb, e);
    if (!sb->row.object) { /* it never got a disk: load what it was to be */
        if (ref_parse(sb->row.want, &want) < 0)
            return err_set(e, ENOENT, "sandbox '%s' has no disk and no head to load: write one to its head", sb->row.name);
        if (want.kind == REF_SANDBOX) /* which is another by now */
            return err_set(
                e, ESTALE,
                "'%s' was to be what another sandbox was when its head was written, and that was not captured: write a head to it, or remove it",
                sb->row.name);
        struct op load = {.kind = OP_LOAD, .ref = want, .boot = true}; /* what it failed with may have been the memory */
        return load_run(sb, &load, e);
    }
    sb->row.desired = SANDBOX_RUNNING;
    sandbox_set_state(sb, SANDBOX_STARTING, NULL);
    int rc = vm_boot(sb, e);
    if (rc < 0)
        return rc;
    sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
    return 0;
}

static int run_stop(struct sandbox *sb, struct err *e)
{
    if (sandbox_state(sb) == SANDBOX_SUSPENDED && suspend_is_cold(sb))
        return suspend_forget(sb, e);
    if (sandbox_state(sb) == SANDBOX_SUSPENDED) {
        int rc = restore_run(sb, e); /* nor can one that is nowhere */
        if (rc < 0)
            return rc;
    }
    int filled = fill_wait(sb, e); /* a stopped one is its disk */
    if (filled < 0)
        return filled;
    if (sandbox_state(sb) == SANDBOX_PAUSED) {
        int rc = run_resume(sb, e); /* a paused guest cannot shut down */
        if (rc < 0)
            return rc;
    }
    sb->row.desired = SANDBOX_STOPPED;
    sandbox_set_state(sb, SANDBOX_STOPPING, NULL);
    int rc = vm_stop(sb, e);
    if (rc < 0)
        return rc;
    sandbox_set_state(sb, SANDBOX_STOPPED, NULL);
    return 0;
}

static int run_kill(struct sandbox *sb, struct err *e)
{
    if (suspend_holds(sb))
        return suspend_forget(sb, e);
    if (suspend_fills(sb))
        return suspend_return(sb, "killed: its disk had not arrived, and it is suspended as before", e);
    int rc = vm_kill(sb, e);
    if (rc < 0)
        return rc;
    sb->row.desired = SANDBOX_STOPPED;
    sandbox_set_state(sb, SANDBOX_STOPPED, "killed");
    return 0;
}

static int run_grow(struct sandbox *sb, struct op *op, struct err *e)
{
    int64_t before = sb->row.disk;
    sb->row.disk = (int64_t)op->size;
    int rc = sb->row.object ? vm_grow(sb, sandbox_state(sb) == SANDBOX_RUNNING, e) : 0;
    if (rc < 0)
        sb->row.disk = before;
    sandbox_save(sb, NULL);
    return rc;
}

#define EVENT_MSEC  30000        /* libvirt looks after a QEMU that ended, when it has time */
#define REVIVE_NSEC 600000000000 /* three crashes within this: it stays failed */

/* The newest checkpoint that `keep` took since the last load: what was before a roll back is not its past. */
static struct snapshot *newest_checkpoint(const struct sandbox *sb)
{
    struct snapshot *newest = NULL;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&sb->space->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (sn->row.sandbox == sb->row.id && sn->row.automatic && sn->row.memory && sn->row.state == ARTIFACT_READY &&
            sn->row.generation == sb->row.generation && (!newest || sn->row.taken > newest->row.taken))
            newest = sn;
    }
    return newest;
}

static bool may_revive(struct sandbox *sb)
{
    int64_t now = space_now();
    if (sb->revived[0] && now - sb->revived[0] < REVIVE_NSEC)
        return false;
    memmove(sb->revived, sb->revived + 1, 2 * sizeof sb->revived[0]);
    sb->revived[2] = now;
    return true;
}

static void tell_revived(struct sandbox *sb, const struct snapshot *from)
{
    struct event_scope scope = sandbox_scope(sb);
    if (from)
        event_emit(sb->space, &scope, "revived", (uint64_t)sb->row.id, sb->row.name, ",\"from\":\"checkpoint\",\"snapshot\":\"%s\"", from->row.name);
    else
        event_emit(sb->space, &scope, "revived", (uint64_t)sb->row.id, sb->row.name, ",\"from\":\"disk\"");
}

/* A roll back: the disk as the crash left it is kept first. */
static int revive_from(struct sandbox *sb, struct snapshot *sn, struct err *e)
{
    struct op load = {.kind = OP_LOAD, .ref = {REF_SNAPSHOT, (uint64_t)sn->row.id, 0}};
    char kept[120] = "";
    if (sb->row.touched)
        snprintf(kept, sizeof kept, "; its disk as the crash left it is the snapshot auto-*-before-%" PRId64, sb->row.generation + 1);
    int rc = load_run(sb, &load, e);
    if (rc == 0) {
        sandbox_set_error(sb, "the QEMU of '%s' crashed, and it went on from its checkpoint %s%s", sb->row.name, sn->row.name, kept);
        sandbox_save(sb, NULL);
        tell_revived(sb, sn);
    } else if (rc != -ECANCELED) {
        log_warn("sandbox %012" PRIx64 " boots, since checkpoint '%s' could not be loaded: %s", (uint64_t)sb->row.id, sn->row.name, e->msg);
        sandbox_set_state(sb, SANDBOX_FAILED, e->msg);
        *e = (struct err){0};
    }
    return rc;
}

/* What ran runs again: as its newest checkpoint has it, whose jobs wait for that; else from its disk. */
static int revive(struct sandbox *sb, struct snapshot *from, struct err *e)
{
    int rc = from ? revive_from(sb, from, e) : -ENOENT;
    if (rc < 0) {
        jobs_keep(sb, 0);
        jobs_lost(sb);
    }
    if (rc == 0 || rc == -ECANCELED || !sb->row.object)
        return rc;
    if (from)
        vm_kill(sb, &(struct err){0}); /* what was loaded may run */
    sandbox_set_state(sb, SANDBOX_STARTING, "it crashed, and boots from its disk");
    rc = vm_boot(sb, e);
    if (rc == 0) {
        sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
        tell_revived(sb, NULL);
    }
    return rc;
}

/* QEMU ended by itself, or the guest broke its channel (`vm_exists`: nobody says that QEMU ended, and `guest` is gone). An event of an earlier QEMU of
 * the same object may come late: libvirt is asked. */
static int run_vm_lost(struct sandbox *sb, struct op *op, struct err *e)
{
    struct err why = {0};
    struct noded_request req = {.op = NODED_VM_STATS, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    if (sb->space->going_down || op->object != sb->row.object)
        return 0;
    bool broken = op->vm_exists && !sb->guest;
    if (!broken && noded_call(sb->space, &req, NULL, NULL, &why) != -ESRCH)
        return 0;
    if (sandbox_state(sb) != SANDBOX_RUNNING && sandbox_state(sb) != SANDBOX_PAUSED)
        return 0; /* it was no more, or is being removed */
    sandbox_set_error(sb, "the virtual machine of '%s' ended: %s; `echo start > state` boots it from its disk", sb->row.name, op->why);
    bool ran = sandbox_state(sb) == SANDBOX_RUNNING;
    sandbox_set_state(sb, SANDBOX_FAILED, op->why); /* told first: libvirt may take seconds to clean up */
    if (op->closed && !sb->vm_event)                /* its channel ended first; a crash, or a guest that powered itself off? */
        wait_in_list(sb->space->co, &sb->vm_gone, EVENT_MSEC);
    if (sb->row.suspended) {
        int rc = op->crashed || sb->vm_event != NODED_VM_GONE ? 1 : fill_wait(sb, e); /* one that powered itself off leaves its disk */
        if (rc < 0)
            return rc;
        if (rc > 0 || sb->row.suspended)
            return suspend_return(sb, "its disk had not arrived when its machine ended, and it is suspended as before", e);
    }
    bool again = (op->crashed || sb->vm_event == NODED_VM_CRASHED) && ran && !co_aborted(sb->runner) && may_revive(sb);
    struct snapshot *from = again ? newest_checkpoint(sb) : NULL;
    if (from)
        snapshot_ref(from)->loads++;
    jobs_keep(sb, from ? (uint64_t)from->row.id : 0);
    vm_kill(sb, &why);
    int rc = again ? revive(sb, from, e) : 0;
    if (from) {
        from->loads--;
        snapshot_unref(from);
    }
    return rc;
}

/* memory or vcpus changed before anyone used it: the same disk under a new machine */
static int run_restart(struct sandbox *sb, struct err *e)
{
    if (!sb->row.object || sandbox_state(sb) == SANDBOX_STOPPED)
        return 0;
    sandbox_set_state(sb, SANDBOX_CREATING, NULL);
    int rc = vm_kill(sb, e);
    if (rc == 0)
        rc = vm_boot(sb, e);
    if (rc == 0)
        sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
    return rc;
}

/* hostd started again (or libvirt came back): take up what the row and libvirt say. */
static int run_recover(struct sandbox *sb, struct op *op, struct err *e)
{
    switch (sandbox_state(sb)) {
    case SANDBOX_RUNNING:
    case SANDBOX_PAUSED: {
        if (!op->vm_exists) {
            struct op lost = {.kind = OP_VM_LOST, .object = sb->row.object, .crashed = true, .why = "it was gone when space-hostd looked for it"};
            return run_vm_lost(sb, &lost, e);
        }
        struct snapshot *sn = suspend_snapshot(sb);
        if (sn && !sb->fill) {
            struct fill *f = fill_start(sb->space, (uint64_t)sb->row.object, sn, true);
            fill_start_disk(f);
            fill_give(f, sb);
        }
        if (sb->fill && sandbox_state(sb) == SANDBOX_PAUSED && sb->row.desired == SANDBOX_RUNNING)
            fill_was_stalled(sb);
        if (fill_is_stalled(sb) && op->vm_running)
            return 0; /* it stands still in its memory: its resume connects */
        struct noded_request go_on = {.op = NODED_VM_RESUME, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
        if (!op->vm_running && sandbox_state(sb) == SANDBOX_RUNNING && noded_call(sb->space, &go_on, NULL, NULL, e) == 0)
            op->vm_running = true; /* daemons were killed in the middle of a capture */
        enum sandbox_state now = op->vm_running ? SANDBOX_RUNNING : SANDBOX_PAUSED;
        if (now != sandbox_state(sb))
            sandbox_set_state(sb, now, "found so");
        sandbox_known(sb);
        return op->vm_running ? reconnect(sb, e) : 0; /* one that stands still cannot answer: its resume connects */
    }
    case SANDBOX_SUSPENDING:
    case SANDBOX_SUSPENDED:
    case SANDBOX_RESTORING: {
        int rc = suspend_recover(sb, op, e);
        return rc > 0 ? run_recover(sb, op, e) : rc;
    }
    case SANDBOX_STARTING: sandbox_set_state(sb, SANDBOX_STOPPED, "interrupted"); return run_start(sb, e);
    case SANDBOX_STOPPING:
        vm_kill(sb, e);
        sandbox_set_state(sb, SANDBOX_STOPPED, NULL);
        return 0;
    case SANDBOX_STOPPED:
    case SANDBOX_FAILED: return op->vm_exists ? vm_kill(sb, e) : 0;
    default: return 0; /* creating and rolling-back are loads, queued by reconcile */
    }
}

/* All of it: what copies it, ends its machine or changes its size. */
static bool needs_disk(enum op_kind kind)
{
    return kind == OP_LOAD || kind == OP_SUSPEND || kind == OP_MOVE || kind == OP_CAPTURE || kind == OP_GROW || kind == OP_RESTART;
}

/* Captures that were asked for before this operation, and waited for the disk outside of the queue. */
static void run_waited(struct sandbox *sb, struct op *op)
{
    for (struct op *c; (c = op->next) && c->kind == OP_CAPTURE && c->waited;) {
        struct err e = {0};
        int rc = capture_run(sb, c, &e);
        op->next = c->next;
        wait_done_all(&c->waiters, rc, &e);
        free(c);
    }
}

static int run_op(struct sandbox *sb, struct op *op, struct err *e)
{
    static const enum verb verbs[] = {[OP_START] = VERB_START,     [OP_PAUSE] = VERB_PAUSE, [OP_RESUME] = VERB_RESUME,
                                      [OP_SUSPEND] = VERB_SUSPEND, [OP_STOP] = VERB_STOP,   [OP_KILL] = VERB_KILL};
    if (op->kind >= OP_START && op->kind <= OP_KILL) {
        enum verb_answer answer = verb_allowed(sandbox_state(sb), verbs[op->kind]);
        if (answer == VERB_DONE)
            return 0;
        if (answer == VERB_REFUSED)
            return err_set(e, EBUSY, "cannot %s sandbox '%s': it is %s", verb_name(verbs[op->kind]), sb->row.name, state_name(sandbox_state(sb)));
    }
    bool revives = op->kind == OP_START || op->kind == OP_RESUME || (op->kind == OP_SUSPEND && !op->here) ||
                   (op->kind == OP_STOP && sandbox_state(sb) != SANDBOX_RUNNING);
    if (revives && volume_key(sb->space, sb->row.owner, e) < 0)
        return err_wrap(e, "%s '%s'", verb_name(verbs[op->kind]), sb->row.name);
    if (needs_disk(op->kind) && sb->fill) {
        int rc = fill_wait(sb, e);
        if (rc < 0)
            return rc;
        run_waited(sb, op);
    }
    switch (op->kind) {
    case OP_LOAD: return load_run(sb, op, e);
    case OP_START: return run_start(sb, e);
    case OP_PAUSE: return run_pause(sb, e);
    case OP_RESUME: return sandbox_state(sb) == SANDBOX_SUSPENDED ? run_start(sb, e) : run_resume(sb, e);
    case OP_SUSPEND: return suspend_run(sb, op->here, e);
    case OP_STOP: return run_stop(sb, e);
    case OP_KILL: return run_kill(sb, e);
    case OP_CAPTURE: return capture_run(sb, op, e);
    case OP_GROW: return run_grow(sb, op, e);
    case OP_RESTART: return run_restart(sb, e);
    case OP_RECOVER: return run_recover(sb, op, e);
    case OP_VM_LOST: return run_vm_lost(sb, op, e);
    case OP_DESTROY: destroy_run(sb); return 0;
    case OP_PACK: return op->why[0] ? suspend_discard(sb, op->why, e) : suspend_pack(sb, e);
    case OP_MOVE: return cluster_move_run(sb, op->node, op->boot, e);
    }
    return err_set(e, EINVAL, "unknown operation");
}

/* An operation failed: no transitional state may remain. */
static void settle_failure(struct sandbox *sb, const struct op *op, int rc, const struct err *e)
{
    if (rc != -ECANCELED && op->kind != OP_CAPTURE)
        sandbox_set_error(sb, "%s", e->msg[0] ? e->msg : strerror(-rc));
    if (state_is_transitional(sandbox_state(sb)) && sandbox_state(sb) != SANDBOX_DESTROYING) {
        struct err ignored = {0};
        bool next_decides =
            op->next && (op->next->kind == OP_KILL || op->next->kind == OP_DESTROY || op->next->kind == OP_LOAD || op->next->kind == OP_RESTART);
        if (next_decides || sb->copy == COPY_HELD)
            return; /* aborted in favour of the next one, which starts from here */
        if (sb->space->going_down && sandbox_state(sb) == SANDBOX_SUSPENDING)
            return; /* its machine ended with the host: the next space-hostd brings it back */
        vm_kill(sb, &ignored);
        sandbox_set_state(sb, SANDBOX_FAILED, e->msg);
    } else {
        sandbox_save(sb, NULL);
    }
}

static void serve_ready(struct sandbox *sb)
{
    struct err e = {0};
    int rc;
    switch (sandbox_state(sb)) {
    case SANDBOX_RUNNING: wait_done_all(&sb->ready, 0, NULL); break;
    case SANDBOX_PAUSED:
    case SANDBOX_SUSPENDED:
        if (!sb->ready.first)
            break;
        if (fill_is_stalled(sb)) { /* it would be paused again; it goes on by itself */
            wait_done_all(&sb->ready, err_set(&e, EAGAIN, "%s", sb->row.error), &e);
            break;
        }
        if ((rc = volume_key(sb->space, sb->row.owner, &e)) < 0)
            wait_done_all(&sb->ready, rc, &e);
        else if (!sb->row.wake_manual)
            op_submit(sb, op_new(OP_RESUME), false, NULL);
        else
            wait_done_all(&sb->ready,
                          err_set(&e, EAGAIN, "sandbox '%s' is %s and its wake is manual: write resume to its state", sb->row.name,
                                  state_name(sandbox_state(sb))),
                          &e);
        break;
    default:
        err_set(&e, ENOTCONN, "sandbox '%s' is %s%s%s", sb->row.name, state_name(sandbox_state(sb)), sb->row.error[0] ? ": " : "", sb->row.error);
        wait_done_all(&sb->ready, -ENOTCONN, &e);
    }
}

/* Does somebody wait for a machine to run? The pool then leaves the processors alone. Ends take their time, and nobody waits for them. */
static bool is_urgent(enum op_kind kind)
{
    return kind == OP_LOAD || kind == OP_START || kind == OP_RESUME || kind == OP_CAPTURE || kind == OP_RESTART;
}

/* Nobody takes a suspended sandbox away while we are at work on it. */
static int lock(struct sandbox *sb, bool *ret_locked, struct err *e)
{
    *ret_locked = false;
    if (!sandbox_is_here(sb))
        return cluster_refuse(sb, e);
    if (sandbox_state(sb) != SANDBOX_SUSPENDED)
        return 0;
    int rc = cluster_hold(sb, e);
    if (rc < 0)
        return rc;
    sb->row.locked = 1;
    rc = sandbox_save(sb, e);
    int rc2 = db_commit(sb->space->db, rc < 0 ? NULL : e);
    *ret_locked = rc == 0 && rc2 == 0;
    sb->row.locked = *ret_locked;
    return rc < 0 ? rc : rc2;
}

static void unlock(struct sandbox *sb)
{
    if (!sb->row.locked || sb->gone || !sandbox_is_here(sb))
        return;
    sb->row.locked = 0;
    sandbox_save(sb, NULL);
}

static void runner(void *arg)
{
    struct sandbox *sb = arg;
    struct op *op = sb->ops;
    struct err e = {0};
    sb->runner = co_self(sb->space->co);
    uint32_t urgent = is_urgent(op->kind);
    sb->space->operations++;
    sb->space->urgent += urgent;
    bool locked;
    int rc = sb->aborted ? -ECANCELED : lock(sb, &locked, &e), refused = rc;
    if (rc == 0) {
        rc = run_op(sb, op, &e);
        if (locked)
            unlock(sb);
    }
    sandbox_known(sb);
    sb->aborted = false;
    sb->space->operations--;
    sb->space->urgent -= urgent;
    if (urgent && sb->space->urgent == 0)
        pool_rest(sb->space);
    if (rc < 0 && co_aborted(sb->runner))
        rc = -ECANCELED; /* whatever it met on its way out */
    if (rc < 0 && !e.code)
        err_set(&e, -rc, "%s", strerror(-rc));
    if (rc < 0 && refused == 0 && sandbox_is_here(sb))
        settle_failure(sb, op, rc, &e);
    sb->ops = op->next;
    sb->runner = NULL;
    if (rc == -ECANCELED)
        err_set(&e, ECANCELED, "another operation on '%s' took its place", sb->row.name);
    wait_done_all(&op->waiters, rc, &e);
    source_release(op->source);
    free(op);
    start_next(sb);
    sandbox_unref(sb);
}

static void start_next(struct sandbox *sb)
{
    if (sb->runner || (sb->found && !sb->space->blind))
        return;
    if (sb->ops) {
        sandbox_ref(sb);
        sb->runner = NOT_YET;
        co_spawn(sb->space->co, runner, sb);
    } else if (sandbox_is_here(sb)) {
        serve_ready(sb);
    }
}

void op_start(struct sandbox *sb)
{
    if (sb->ops)
        start_next(sb);
}

static void machine_ended(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    (void)user;
    (void)rep; /* the operation that follows asks again, and tells */
    (void)repeated;
    if (fd >= 0)
        close(fd);
}

/* What runs may wait for a QEMU that hangs, in space-noded, where no abort reaches it: its end does. */
static void end_machine(const struct sandbox *sb)
{
    struct noded_request req = {.op = NODED_VM_KILL, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    if (sb->row.object && sb->slot_taken)
        noded_send(sb->space->noded, &req, machine_ended, NULL);
}

void op_abort(struct sandbox *sb)
{
    if (sb->runner == NOT_YET)
        sb->aborted = true;
    else if (sb->runner)
        co_abort(sb->runner);
}

void op_submit(struct sandbox *sb, struct op *op, bool first, struct waiter *w)
{
    struct op **p = &sb->ops;
    bool running = sb->runner;
    if (op->kind == OP_LOAD && source_of(sb->space, &op->ref) != sb)
        op->source = source_hold(sb->space, &op->ref);
    wait_done_all(&sb->hurry, 0, NULL);
    if (w)
        wait_add(&op->waiters, w);
    if (running)
        p = &(*p)->next; /* never before the one that runs */
    if (first) {
        op->next = *p;
        *p = op;
        op_abort(sb);
        if (running && (op->kind == OP_KILL || op->kind == OP_DESTROY || op->kind == OP_RESTART))
            end_machine(sb);
    } else {
        while (*p)
            p = &(*p)->next;
        *p = op;
    }
    start_next(sb);
}

struct sandbox *source_of(const struct space *s, const struct ref *ref)
{
    const struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    uint64_t id = ref->kind == REF_SANDBOX ? ref->id : sn && sn->row.automatic ? (uint64_t)sn->row.sandbox : 0;
    return id ? sandbox_by_id(s, id) : NULL;
}

struct sandbox *source_hold(struct space *s, const struct ref *ref)
{
    struct sandbox *src = source_of(s, ref);
    if (!src || !sandbox_is_here(src) || source_state(src) == SANDBOX_DESTROYING)
        return NULL;
    src->sources++;
    return sandbox_ref(src);
}

void source_release(struct sandbox *src)
{
    if (!src)
        return;
    if (--src->sources == 0 && sandbox_state(src) == SANDBOX_DESTROYING && !src->ending && !src->gone)
        sandbox_end(src);
    sandbox_unref(src);
}

void sandbox_end(struct sandbox *sb)
{
    sb->ending = true;
    op_submit(sb, op_new(OP_DESTROY), true, NULL);
}

enum sandbox_state source_state(const struct sandbox *sb)
{
    return sandbox_state(sb) == SANDBOX_DESTROYING && sb->sources && !sb->ending ? (enum sandbox_state)sb->removed_as : sandbox_state(sb);
}

static void mark_touched(struct sandbox *sb)
{
    idle_used(sb);
    if (sb->row.touched)
        return;
    sb->row.touched = 1;
    sandbox_save(sb, NULL);
}

void sandbox_verb(struct sandbox *sb, enum verb v, struct waiter *w)
{
    static const enum op_kind kinds[] = {[VERB_START] = OP_START,     [VERB_PAUSE] = OP_PAUSE, [VERB_RESUME] = OP_RESUME,
                                         [VERB_SUSPEND] = OP_SUSPEND, [VERB_STOP] = OP_STOP,   [VERB_KILL] = OP_KILL};
    mark_touched(sb);
    op_submit(sb, op_new(kinds[v]), v == VERB_KILL, w);
}

void sandbox_touch(struct sandbox *sb, bool wake, struct waiter *w)
{
    struct err e = {0};
    if (!sandbox_is_here(sb)) {
        w->done(w, cluster_refuse(sb, &e), &e);
        return;
    }
    if ((sb->row.state == SANDBOX_PAUSED || sb->row.state == SANDBOX_SUSPENDED) && !wake) {
        w->done(w, err_set(&e, EAGAIN, "sandbox '%s' is %s and this access does not wake it", sb->row.name, state_name(sandbox_state(sb))), &e);
        return;
    }
    if (sb->copy != COPY_HELD)
        mark_touched(sb);
    wait_add(&sb->ready, w);
    wait_done_all(&sb->hurry, 0, NULL);
    if (!sb->ops && !sb->runner && sb->copy != COPY_HELD && !sb->found)
        serve_ready(sb);
}

int sandbox_grow(struct sandbox *sb, uint64_t bytes, struct waiter *w, struct err *e)
{
    if ((int64_t)bytes < sb->row.disk)
        return err_set(e, EINVAL, "the disk of '%s' has %" PRId64 " bytes and never shrinks", sb->row.name, sb->row.disk);
    struct op *op = op_new(OP_GROW);
    op->size = bytes;
    op_submit(sb, op, false, w);
    return 0;
}

static bool is_current_load(const struct sandbox *sb)
{
    return sb->ops && sb->ops->kind == OP_LOAD;
}

/* One that has not begun takes its size from the row when its time comes. */
static bool load_follows(const struct sandbox *sb)
{
    const struct op *op = sb->ops && sb->runner != NOT_YET ? sb->ops->next : sb->ops;
    return op && op->kind == OP_LOAD;
}

/* A machine that was started already is started anew, and a load that is under way begins anew. */
int sandbox_resize(struct sandbox *sb, uint64_t memory, uint32_t vcpus, struct err *e)
{
    if (sb->row.touched && sandbox_state(sb) != SANDBOX_STOPPED)
        return err_set(e, EBUSY,
                       "sandbox '%s' is in use: memory and vcpus can be set before its root/ or proc/ is first touched, or on a stopped one",
                       sb->row.name);
    int rc = memory > (uint64_t)sb->row.memory ? admit_memory(sb->space, memory - (uint64_t)sb->row.memory, e) : 0;
    if (rc < 0)
        return rc;
    if (memory)
        sb->row.memory = (int64_t)memory;
    if (vcpus)
        sb->row.vcpus = vcpus;
    rc = sandbox_save(sb, e);
    bool loading = is_current_load(sb) && sb->copy != COPY_HELD; /* perhaps into a machine of the size before */
    if (rc == 0 && (sb->slot_taken || loading) && !load_follows(sb)) {
        struct op *op = op_new(OP_RESTART);
        if (loading)
            op->ref = sb->ops->ref;
        if ((loading || ref_parse(sb->row.origin, &op->ref) == 0) && op->ref.kind == REF_TEMPLATE && load_check(sb->space, &op->ref, NULL) == 0)
            op->kind = OP_LOAD; /* a machine of that size may wait for it */
        if (op->kind == OP_LOAD || sb->slot_taken)
            op_submit(sb, op, true, NULL);
        else
            free(op);
    }
    return rc;
}

void sandbox_load(struct sandbox *sb, const struct ref *ref, struct waiter *w)
{
    struct err e = {0};
    int rc = load_check(sb->space, ref, &e);
    if (rc < 0) {
        if (w)
            w->done(w, rc, &e);
        return;
    }
    struct op *op = op_new(OP_LOAD);
    op->ref = *ref;
    op_submit(sb, op, is_current_load(sb) && !sb->row.touched, w);
}

void lifecycle_vm_event(struct space *s, uint64_t object, uint32_t vm_event)
{
    static const char *const why[] = {
        [NODED_VM_GONE] = "QEMU ended", [NODED_VM_CRASHED] = "QEMU crashed", [NODED_VM_GUEST_PANIC] = "the guest's kernel panicked"};
    struct sandbox *sb = sandbox_by_object(s, object);
    bool ended = vm_event == NODED_VM_GONE || vm_event == NODED_VM_CRASHED || vm_event == NODED_VM_GUEST_PANIC;
    if (!sb) {
        if (ended)
            pool_vm_gone(s, object);
        return;
    }
    if (vm_event == NODED_VM_IO_ERROR) {
        struct event_scope scope = sandbox_scope(sb);
        bool fills = fill_stalled(sb);
        if (!fills)
            sandbox_set_error(
                sb, "the disk of '%s' had an input/output error and the machine is paused: free space in the pool, then write resume to its state",
                sb->row.name);
        event_emit(s, &scope, "io-error", (uint64_t)sb->row.id, sb->row.name, "%s", "");
        if (sandbox_state(sb) == SANDBOX_RUNNING)
            sandbox_set_state(sb, SANDBOX_PAUSED, fills ? "a part of its disk does not arrive" : "disk error");
        return;
    }
    if (!ended)
        return;
    sb->vm_event = vm_event;
    wait_done_all(&sb->vm_gone, 0, NULL);
    struct op *op = op_new(OP_VM_LOST);
    str_copy(op->why, sizeof op->why, why[vm_event]);
    op->object = sb->row.object;
    op_submit(sb, op, false, NULL);
}
