// SPDX-License-Identifier: Apache-2.0
// What can be done to sandboxes, snapshots and templates. Requests are admitted at once (errors come as -errno and a sentence and leave
// nothing behind); the work runs in the background, one operation at a time for each sandbox, and ends a waiter when it is done.
#ifndef SPACE_HOSTD_LIFECYCLE_H
#define SPACE_HOSTD_LIFECYCLE_H

#include "hostd/object.h"
#include "hostd/pool/pool.h"

/* ---- sandboxes ---- */

/* mkdir: a new sandbox of the default template; booting starts after a moment in which a copy may take over (sandbox_copy_hold) or
 * `head` be written. -EEXIST, -EINVAL, -EPERM, -ENOENT (no template), -ENOSPC, -ENOMEM (admission), -EDQUOT. */
int sandbox_create(struct space *s, struct caller *c, const char *name, struct sandbox **out, struct err *e);

/* mv: -EEXIST, -EINVAL. */
int sandbox_rename(struct sandbox *sb, const char *name, struct err *e);

/* rmdir: the name is free when this returns; the rest goes in the background, from every state. */
int sandbox_destroy(struct sandbox *sb, struct err *e);

/* A verb; `w` (may be NULL) ends when it is done or failed. -EBUSY by the table comes through `w` too: it is judged when its turn comes. */
void sandbox_verb(struct sandbox *sb, enum verb v, struct waiter *w);

/* A write of `head`: the caller has checked that the writer may read the source. */
void sandbox_load(struct sandbox *sb, const struct ref *ref, struct waiter *w);

/* Something needs the sandbox running: ends `w` at once with 0 when it is, else when the operation in progress ended. A paused one is resumed, if
 * `wake` and its attribute allow (-EAGAIN else); stopped or failed: -ENOTCONN. The caller removes `w` to stop waiting. */
void sandbox_touch(struct sandbox *sb, bool wake, struct waiter *w);

/* Grows the disk; `w` ends when the guest has it. -EINVAL (shrink) is returned at once and `w` not used. */
int sandbox_grow(struct sandbox *sb, uint64_t bytes, struct waiter *w, struct err *e);

/* Sets memory or vcpus of an untouched sandbox: it boots anew with the value. -EBUSY when touched. */
int sandbox_resize(struct sandbox *sb, uint64_t memory, uint32_t vcpus, struct err *e);

/* The copy gesture: hold before anything started, then commit (w as for sandbox_load) or release (which destroys an uncommitted one). */
int sandbox_copy_hold(struct sandbox *sb, struct err *e);
void sandbox_copy_commit(struct sandbox *sb, struct waiter *w);
void sandbox_copy_release(struct sandbox *sb);
/* A `head` written while held: remembered for the commit. */
void sandbox_copy_head(struct sandbox *sb, const struct ref *ref);

/* The domain of `object` changed (from space-noded). */
void lifecycle_vm_event(struct space *s, uint64_t object, uint32_t vm_event);

/* Before anything is served: snapshots and templates whose making a space-hostd did not survive have failed. */
void lifecycle_open(struct space *s);

/* On start and after a RESYNC: compares database, domains and subvolumes, goes on with what was interrupted, removes orphans. A coroutine of its own. */
void lifecycle_reconcile(struct space *s);

/* The host is about to go down: suspends all that have a machine to the pool, ends all machines, and starts no more. What ran comes back with the next
 * space-hostd: where it was, or, when that could not be captured, as after a crash. */
void lifecycle_host_down(struct space *s);

/* ---- snapshots ---- */

/* mkdir snapshots/A/S: recorded at once, taken in the background. */
int snapshot_create(struct sandbox *sb, const char *name, struct snapshot **out, struct err *e);
void snapshot_destroy(struct snapshot *sn);
/* `head` of its sandbox written into a snapshot that was just made: it becomes a full checkpoint. `w` ends when it is. -EBUSY when it is not new any more. */
int snapshot_fill(struct snapshot *sn, const struct ref *ref, struct waiter *w, struct err *e);

/* ---- templates ---- */

int template_create(struct space *s, struct caller *c, const char *name, struct template **out, struct err *e);
/* `ready` written to its state: checks the image, adds the kernel, seals. */
void template_seal(struct template *t, struct waiter *w);
int template_destroy(struct template *t, struct err *e);
/* cp -r onto a template: its disk becomes that of `ref`, and it is sealed. */
void template_load(struct template *t, const struct ref *ref, struct waiter *w);

/* ---- shared inside lifecycle/ ---- */

/* What is to be captured, and what it was. */
struct capture {
    uint32_t kind;    /* enum noded_kind of the new object, */
    uint64_t id;      /* its id, */
    bool seal;        /* read-only? (with memory: capture_seal does it, behind the queue) */
    bool with_memory; /* if it has some */
    bool consistent;  /* out: the disk needs no repair */
    struct head head; /* out: its memory is 0 when the disk alone was taken */
};

enum op_kind {
    OP_LOAD,
    OP_START,
    OP_PAUSE,
    OP_RESUME,
    OP_SUSPEND,
    OP_STOP,
    OP_KILL,
    OP_CAPTURE,
    OP_GROW,
    OP_RESTART,
    OP_RECOVER,
    OP_VM_LOST,
    OP_DESTROY,
    OP_MOVE,
    OP_PACK
};

struct op {
    struct op *next;
    enum op_kind kind;
    struct wait_list waiters;
    struct ref ref;          /* OP_LOAD */
    struct capture *capture; /* OP_CAPTURE: on its waiter's stack */
    bool waited;             /* OP_CAPTURE: for the disk, and is earlier than what waited behind it in the queue */
    uint64_t size;           /* OP_GROW */
    char why[256];           /* OP_VM_LOST: what happened, OP_PACK: why what it has is destroyed, or empty; */
    int64_t object;          /* to which domain, */
    bool crashed;            /* it was not the guest that ended it, */
    bool closed;             /* or QEMU has ended, and libvirt will say how */
    bool vm_running;         /* OP_RECOVER: what libvirt said */
    bool vm_exists;
    bool delay;             /* OP_LOAD: leave a moment for a copy to take over */
    bool boot;              /* OP_LOAD, OP_MOVE: from the disk, whatever else the head holds */
    bool here;              /* OP_SUSPEND: see suspend_run */
    int64_t node;           /* OP_MOVE: to where */
    struct sandbox *source; /* held as long as the operation is queued or runs; may be NULL */
};

/* Queues an operation. `first`: before everything that waits (the one that runs is told to stop). Takes `op` (malloc'ed). */
void op_submit(struct sandbox *sb, struct op *op, bool first, struct waiter *w);
/* The first one ends as soon as it can, with ECANCELED; also when it has not begun. */
void op_abort(struct sandbox *sb);
/* What waited in the queue until reconciliation had looked at the sandbox begins. */
void op_start(struct sandbox *sb);

/* Whose end would be that of what `ref` names: of a sandbox itself, or of an automatic snapshot. May be NULL. */
struct sandbox *source_of(const struct space *s, const struct ref *ref);
/* Somebody was promised the state of the sandbox that `ref` names: should it be removed meanwhile, its machine and disk stay until source_release. A copy is
 * safe from then on, as `cp -r A B && rmdir A` has it; also when space-hostd is killed in between. NULL when there is nothing to hold, which source_release takes. */
struct sandbox *source_hold(struct space *s, const struct ref *ref);
void source_release(struct sandbox *src);
/* Its machine and disk go, whoever waits for them. */
void sandbox_end(struct sandbox *sb);
/* Its state, or when it is removed but held, the one in which it was. */
enum sandbox_state source_state(const struct sandbox *sb);
struct op *op_new(enum op_kind kind);

/* Steps, from an operation's coroutine. */
int vm_boot(struct sandbox *sb, struct err *e);
enum vm_is { VM_BOOTING, VM_RUNNING, VM_STANDING /* and goes on */ };
int vm_connect(struct sandbox *sb, enum vm_is is, struct err *e);
/* The jobs that are captured are those that we are attached to: one that was paused when space-hostd was started has no guest yet. `paused`: it stays so. */
int vm_find_guest(struct sandbox *sb, bool paused, struct err *e);
/* Clock, identity and entropy: what a guest must be told before anyone uses it. */
int vm_introduce(struct guest *g, const char *name, struct err *e);
/* The guest's end is the sandbox's from now on. */
void vm_watch(struct sandbox *sb);
/* Brings the disk to the size in the row, and a running guest's file system with it. */
int vm_grow(struct sandbox *sb, bool running, struct err *e);
int vm_kill(struct sandbox *sb, struct err *e);
int vm_stop(struct sandbox *sb, struct err *e);
int load_run(struct sandbox *sb, struct op *op, struct err *e);
/* Can the ref be loaded as things are now? -ESTALE. Asked before anything is moved. */
int load_check(struct space *s, const struct ref *ref, struct err *e);
/* A machine at the snapshot that `ref` names, which has memory and is in the pool, becomes the sandbox's; the caller sets the state. */
int load_memory(struct sandbox *sb, const struct ref *ref, struct err *e);
/* The same of one in the store of which all but the disk was fetched, or with `arrives` all but disk and memory (volume_fetch_memory): they arrive while it runs. */
int load_stored(struct sandbox *sb, const struct snapshot *sn, bool arrives, struct err *e);
int capture_run(struct sandbox *sb, struct op *op, struct err *e);
/* Of a machine that is paused: with its memory, for the snapshot of that id. */
int capture_paused(struct sandbox *sb, struct capture *c, struct err *e);
/* From an operation of the sandbox, which was in state `was`: all that it is, as the automatic snapshot auto-TIME-WHY-GENERATION. A reference to that; it may be gone again. */
int capture_present(struct sandbox *sb, enum sandbox_state was, const char *why, struct snapshot **out, struct err *e);
/* Copies what `ref` names into a new object; for a sandbox through its queue. */
int capture_ref(struct space *s, struct sandbox *for_sandbox, const struct ref *ref, struct capture *c, struct err *e);
int capture_sandbox(struct space *s, struct sandbox *for_sandbox, const struct ref *ref, struct capture *c, struct err *e);
/* Makes a capture with memory durable and read-only. */
int capture_seal(struct space *s, const struct capture *c, struct err *e);
/* A snapshot's row of a sandbox, `creating`; and what was captured for it. */
int snapshot_record(struct sandbox *sb, const char *name, bool automatic, struct snapshot **out, struct err *e);
/* Captures for that row, from a coroutine; whatever comes out, the row says so. */
int snapshot_take(struct snapshot *sn, const struct ref *ref, bool with_memory, struct err *e);
/* Takes the disk for a row that was recorded before space-hostd ended, of a sandbox that was removed, and is held. */
void snapshot_again(struct snapshot *sn, const struct sandbox *src);
void snapshot_set_head(struct snapshot *sn, const struct capture *c);
struct head snapshot_head(const struct snapshot *sn);
/* Suspend and restore (suspend.c). On failure the sandbox is in a state that it may stay in, but after an abort. */
/* `here`: to this node's pool only, since the host goes down; what ran is restored by the next space-hostd. */
int suspend_run(struct sandbox *sb, bool here, struct err *e);
int restore_run(struct sandbox *sb, struct err *e);
/* A suspended one gives its memory up, if it has any: stopped, with the disk of that moment. */
int suspend_forget(struct sandbox *sb, struct err *e);
/* From an operation of a stopped one: its disk, in the store, as capture_present; a load of it is counted, the caller's to give back. On failure `out` may be set, too. */
int suspend_store_disk(struct sandbox *sb, const char *why, struct snapshot **out, struct err *e);
/* Its owner's key was revoked: what does not run is brought into the store and leaves this node; without memory it is `suspended`, to be stopped again. -EAGAIN it still runs. */
int suspend_pack(struct sandbox *sb, struct err *e);
/* That was not possible: it loses what it has here. One whose disk had not arrived is suspended as before, any other has failed, without a disk. */
int suspend_discard(struct sandbox *sb, const char *why, struct err *e);
/* One that was found suspending, suspended or restoring. 1: it is as if that had never been, running or paused, and to be recovered so. */
int suspend_recover(struct sandbox *sb, struct op *op, struct err *e);
/* Its disk had not arrived yet when its machine ended, or is to end: it is suspended, as it was before. */
int suspend_return(struct sandbox *sb, const char *why, struct err *e);
/* Is a snapshot all of it, in whatever state? */
static inline bool suspend_holds(const struct sandbox *sb)
{
    enum sandbox_state s = sandbox_state(sb);
    return sb->row.suspended && (!sb->row.object || s == SANDBOX_SUSPENDED || s == SANDBOX_RESTORING || s == SANDBOX_FAILED);
}
/* Does it run, with a disk that has not arrived yet? */
static inline bool suspend_fills(const struct sandbox *sb)
{
    return sb->row.suspended && sb->row.object && (sandbox_state(sb) == SANDBOX_RUNNING || sandbox_state(sb) == SANDBOX_PAUSED);
}
/* Is there no memory in that? It was stopped, and comes from another node: it gets its disk, and is stopped again. */
bool suspend_is_cold(const struct sandbox *sb);
/* What it is suspended to, or is being; NULL: nothing. */
struct snapshot *suspend_snapshot(const struct sandbox *sb);
/* Deletes an object of space-noded's, in the background or before it returns. What cannot be deleted now (the pool may be too full even for that) is
 * tried again until it can be. */
void object_delete_later(struct space *s, uint32_t kind, uint64_t id);
void object_delete(struct space *s, uint32_t kind, uint64_t id);
void destroy_run(struct sandbox *sb);
int accel_wait(struct space *s, struct err *e);
/* Waits until the host is known: its acceleration, and which uids have a machine already. -ENOTCONN when space-noded does not say. */
int survey_wait(struct space *s, struct err *e);

/* Admission (admission.c). */
int admit_create(struct space *s, const struct caller *c, struct err *e);
int admit_space(struct space *s, struct err *e);
/* -EDQUOT when what the owner has holds `max_disk` already. */
int admit_disk(const struct space *s, uint32_t owner, struct err *e);
int admit_memory(struct space *s, uint64_t bytes, struct err *e);
/* Charges a live sandbox's memory and takes a uid slot; released by vm_release. */
int vm_charge(struct sandbox *sb, struct err *e);
void vm_release(struct sandbox *sb);

#endif
