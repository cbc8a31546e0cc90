// SPDX-License-Identifier: Apache-2.0
// Moving a sandbox to a head, and capturing heads from sandboxes.
//
// Theory of operation. A sandbox's disk lives in an object (a subvolume with an id of its own); `object` in its row says which. A load makes the new object
// beside the old one, and one row update switches: killed before it, the new object is an orphan and the sandbox is what it was; killed after it, the
// old object is the orphan. reconcile removes orphans and repeats loads that had been accepted (`want`).
//
// A head with memory is loaded into a machine of the pool (hostd/pool), which runs when the row switches: the old machine ends only when the new one
// answers. A head without memory gives a copy of its disk, which boots after the switch. A live fork is both halves of that: the source is captured with its
// memory into an object that nobody sees, which is loaded like any other head and removed.
#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/credential/trust.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/lifecycle/net.h"
#include "hostd/noded_client.h"
#include "hostd/pool/pool.h"
#include "hostd/snapshot/account.h"
#include "hostd/volume/fill.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FREEZE_LIMIT_MSEC 10000 /* the guest thaws by itself after this */
#define FREEZE_WAIT_MSEC  5000  /* how long we wait for its freeze */
#define COPY_GRACE_MSEC   30    /* a copy gesture follows its mkdir within a few milliseconds */

/* ---- capturing ---- */

static void frozen_event(struct sandbox *sb, uint64_t freeze, uint64_t copy, uint64_t thaw)
{
    struct event_scope scope = sandbox_scope(sb);
    event_emit(sb->space, &scope, "frozen", (uint64_t)sb->row.id, sb->row.name,
               ",\"freeze_usec\":%" PRIu64 ",\"snapshot_usec\":%" PRIu64 ",\"thaw_usec\":%" PRIu64, freeze / 1000, copy / 1000, thaw / 1000);
}

/* Snapshots the sandbox's disk, frozen through the agent when the guest runs. */
static int capture_disk(struct sandbox *sb, bool running, struct capture *c, struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_SNAPSHOT,
                                .kind = c->kind,
                                .id = c->id,
                                .kind2 = NODED_SANDBOX,
                                .id2 = (uint64_t)sb->row.object,
                                .flags = c->seal ? NODED_READ_ONLY : 0};
    bool frozen = false;
    uint64_t began = uv_hrtime(), stands, taken;
    if (running && sb->guest) {
        int rc = guest_ctl(sb->guest, FREEZE_WAIT_MSEC, "freeze %d", FREEZE_LIMIT_MSEC);
        if (rc == -ECANCELED)
            return rc;
        frozen = rc == 0;
        if (!frozen)
            log_warn("sandbox %012" PRIx64 " could not be frozen (%s): its snapshot is crash-consistent", (uint64_t)sb->row.id, strerror(-rc));
    }
    stands = uv_hrtime();
    int rc = noded_call(sb->space, &req, NULL, NULL, e);
    taken = uv_hrtime();
    if (frozen)
        frozen = guest_ctl(sb->guest, FREEZE_WAIT_MSEC, "thaw") == 0;
    if (frozen)
        frozen_event(sb, stands - began, taken - stands, uv_hrtime() - taken);
    c->consistent = frozen || source_state(sb) == SANDBOX_STOPPED;
    return rc;
}

/* Disk, memory and devices of one instant. Made durable and sealed by the caller, behind the sandbox's queue. */
static int capture_machine(struct sandbox *sb, bool running, struct capture *c, struct err *e)
{
    struct space *s = sb->space;
    struct noded_request req = {.op = NODED_VM_CAPTURE, .kind = c->kind, .id = c->id, .kind2 = NODED_SANDBOX, .id2 = (uint64_t)sb->row.object};
    struct noded_request go_on = {.op = NODED_VM_RESUME, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    struct noded_reply rep;
    struct err ignored = {0};
    jobs_hold(sb, c->id);
    int rc = noded_call(s, &req, &rep, NULL, e);
    jobs_release(sb);
    if (rc < 0) {
        if (running) /* space-noded was killed in the middle, perhaps */
            noded_call(s, &go_on, NULL, NULL, &ignored);
        job_rows_remove(s, c->id);
        return rc;
    }
    c->consistent = true;
    c->head = (struct head){.kind = c->kind,
                            .id = c->id,
                            .base_kind = (uint32_t)sb->row.base_kind,
                            .base = (uint64_t)sb->row.base,
                            .changed = rep.capture.changed_bytes,
                            .memory = (uint64_t)sb->row.memory,
                            .vcpus = (uint32_t)sb->row.vcpus,
                            .disk = (uint64_t)sb->row.disk};
    struct event_scope scope = sandbox_scope(sb);
    s->counts.captures++;
    s->counts.pause_usec += rep.capture.pause_nsec / 1000;
    event_emit(s, &scope, "capture", (uint64_t)sb->row.id, sb->row.name,
               ",\"pause_usec\":%" PRIu64 ",\"changed_bytes\":%" PRIu64 ",\"state_bytes\":%" PRIu64, rep.capture.pause_nsec / 1000,
               rep.capture.changed_bytes, rep.capture.state_bytes);
    return 0;
}

static int capture_here(struct sandbox *sb, enum sandbox_state was, struct capture *c, struct err *e)
{
    if (!sb->row.object)
        return err_set(e, ENOTCONN, "sandbox '%s' has no disk here: it is %s", sb->row.name, state_name(sandbox_state(sb)));
    bool machine = c->with_memory && (was == SANDBOX_RUNNING || was == SANDBOX_PAUSED);
    struct err lost = {0};
    int found = machine ? vm_find_guest(sb, was == SANDBOX_PAUSED, &lost) : 0;
    if (found == -ECANCELED)
        return found;
    if (found < 0) {
        log_warn("sandbox %012" PRIx64 ": its disk alone is captured: %s", (uint64_t)sb->row.id, lost.msg);
        machine = false;
    }
    int rc = machine ? capture_machine(sb, was == SANDBOX_RUNNING, c, e) : capture_disk(sb, was == SANDBOX_RUNNING, c, e);
    struct snapshot *sn = rc == 0 && c->kind == NODED_SNAPSHOT ? snapshot_by_id(sb->space, c->id) : NULL; /* none: it is hidden, or removed */
    if (sn)
        account_captured(sb, sn);
    return rc;
}

int capture_paused(struct sandbox *sb, struct capture *c, struct err *e)
{
    return capture_here(sb, SANDBOX_PAUSED, c, e);
}

int capture_run(struct sandbox *sb, struct op *op, struct err *e)
{
    return capture_here(sb, source_state(sb), op->capture, e);
}

/* Would waiting for `src` wait for ourselves? */
static bool waits_for(const struct sandbox *src, const struct sandbox *sb)
{
    for (; src; src = src->capturing_from)
        if (src == sb)
            return true;
    return false;
}

/* The source that a ref names, as it is now. */
static int find_source(struct space *s, struct sandbox *sb, const struct ref *ref, struct sandbox **out, struct err *e)
{
    struct sandbox *src = sandbox_by_id(s, ref->id);
    if (!src || source_state(src) == SANDBOX_DESTROYING)
        return err_set(e, ESTALE, "the sandbox of ref sandbox/%012" PRIx64 " is gone", ref->id);
    if (!sandbox_is_here(src))
        return cluster_refuse(src, e);
    if (ref->generation != (uint64_t)src->row.generation)
        return err_set(e, ESTALE, "the ref is of load %" PRIu64 " of sandbox '%s', which is at %" PRId64 " now: read its head again", ref->generation,
                       src->row.name, src->row.generation);
    if (source_state(src) != SANDBOX_RUNNING && source_state(src) != SANDBOX_CREATING && volume_key(s, src->row.owner, e) < 0)
        return -e->code;
    if (sb && waits_for(src, sb))
        return err_set(e, EBUSY, "'%s' and '%s' are being moved to each other's state", sb->row.name, src->row.name);
    *out = src;
    return 0;
}

static int wait_filled(struct sandbox *src, struct err *e)
{
    sandbox_ref(src);
    int rc = fill_wait(src, e);
    sandbox_unref(src);
    return rc;
}

int capture_sandbox(struct space *s, struct sandbox *sb, const struct ref *ref, struct capture *c, struct err *e)
{
    struct sandbox *src;
    int rc = find_source(s, sb, ref, &src, e);
    bool waited = rc == 0 && src->fill;
    if (waited) { /* here, where it may be given up, and its queue is free for others */
        rc = wait_filled(src, e);
        if (rc == 0)
            rc = find_source(s, sb, ref, &src, e);
    }
    if (rc < 0)
        return rc;
    struct op *op = op_new(OP_CAPTURE);
    struct co_waiter w = co_waiter_of(s->co, e);
    op->capture = c;
    op->waited = waited;
    if (sb)
        sb->capturing_from = src;
    op_submit(src, op, false, &w.w);
    rc = co_wait_uncancellable(s->co); /* the capture and `e` are on our stack; it takes bounded time */
    if (sb)
        sb->capturing_from = NULL;
    return rc;
}

/* ---- heads ---- */

static int wait_ready(struct space *s, struct wait_list *l, const int64_t *state)
{
    int rc = 0;
    while (rc == 0 && *state == ARTIFACT_CREATING)
        rc = wait_in_list(s->co, l, 0);
    return rc;
}

/* Waits until what the ref names can be loaded. Not for sandboxes. */
static int wait_for(struct space *s, const struct ref *ref, struct err *e)
{
    struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    int rc;
    if (ref->kind == REF_NONE)
        return err_set(e, EINVAL, "an empty head");
    if (sn) {
        snapshot_ref(sn);
        rc = volume_key(s, sn->row.owner, e);
        if (rc == 0)
            rc = wait_ready(s, &sn->ready, &sn->row.state);
        if (rc == 0 && !sn->gone && sn->row.state == ARTIFACT_STORED && (rc = volume_fetched(sn, e)) < 0)
            err_wrap(e, "snapshot '%s' is in the object store", sn->row.name);
        if (rc == 0 && !sn->gone && sn->row.state == ARTIFACT_ELSEWHERE)
            rc = err_set(e, EREMOTE, "snapshot '%s' is in the pool of node %s only: write `upload` to its state there", sn->row.name,
                         cluster_name(s, sn->row.node));
        if (rc == 0 && (sn->gone || sn->row.state != ARTIFACT_READY))
            rc = err_set(e, ESTALE, "snapshot '%s' is gone or failed%s%s", sn->row.name, sn->row.error[0] ? ": " : "", sn->row.error);
        snapshot_unref(sn);
        return rc;
    }
    if (!t)
        return err_set(e, ESTALE, "what this head names is gone");
    template_ref(t);
    rc = wait_ready(s, &t->ready, &t->row.state);
    if (rc == 0 && (t->row.deleted || t->row.state != ARTIFACT_READY))
        rc = err_set(e, ESTALE, "template '%s' is gone or not ready%s%s", t->row.name, t->row.error[0] ? ": " : "", t->row.error);
    if (rc == 0)
        rc = volume_template(t, e);
    template_unref(t);
    return rc;
}

int load_check(struct space *s, const struct ref *ref, struct err *e)
{
    const struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    const struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    const struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    if (src && src->named && ref->generation != (uint64_t)src->row.generation && sandbox_state(src) != SANDBOX_CREATING)
        return err_set(e, ESTALE, "the ref is of load %" PRIu64 " of sandbox '%s', which is at %" PRId64 " now: read its head again", ref->generation,
                       src->row.name, src->row.generation);
    if ((sn && sn->row.state != ARTIFACT_FAILED) || (t && !t->row.deleted && (t->row.state == ARTIFACT_READY || t->row.state == ARTIFACT_CREATING)) ||
        (src && (src->named || src->sources)))
        return 0;
    return err_set(e, ESTALE, "what this head names is gone or not ready");
}

/* What a suspended sandbox is, is its snapshot. */
static void look_through(struct space *s, struct ref *ref)
{
    const struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    if (src && source_state(src) == SANDBOX_SUSPENDED && ref->generation == (uint64_t)src->row.generation && suspend_snapshot(src))
        *ref = (struct ref){REF_SNAPSHOT, (uint64_t)src->row.suspended, 0};
}

int capture_ref(struct space *s, struct sandbox *sb, const struct ref *ref, struct capture *c, struct err *e)
{
    struct ref of = *ref;
    look_through(s, &of);
    struct noded_request req = {.op = NODED_OBJECT_SNAPSHOT,
                                .kind = c->kind,
                                .id = c->id,
                                .kind2 = of.kind == REF_SNAPSHOT ? NODED_SNAPSHOT : NODED_TEMPLATE,
                                .id2 = of.id,
                                .flags = c->seal ? NODED_READ_ONLY : 0};
    if (of.kind == REF_SANDBOX)
        return capture_sandbox(s, sb, &of, c, e);
    int rc = wait_for(s, &of, e);
    c->consistent = true;
    return rc < 0 ? rc : noded_call(s, &req, NULL, NULL, e);
}

static int64_t head_size(struct space *s, const struct ref *ref)
{
    struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    return sn ? sn->row.size : t ? t->row.size : src ? src->row.disk : 0;
}

struct head snapshot_head(const struct snapshot *sn)
{
    return (struct head){.kind = NODED_SNAPSHOT,
                         .id = (uint64_t)sn->row.id,
                         .base_kind = (uint32_t)sn->row.base_kind,
                         .base = (uint64_t)sn->row.base,
                         .changed = (uint64_t)sn->row.changed_bytes,
                         .memory = (uint64_t)sn->row.memory,
                         .vcpus = (uint32_t)sn->row.vcpus,
                         .disk = (uint64_t)sn->row.size};
}

void snapshot_set_head(struct snapshot *sn, const struct capture *c)
{
    sn->row.consistent = c->consistent;
    sn->row.memory = (int64_t)c->head.memory;
    sn->row.vcpus = c->head.vcpus;
    sn->row.base_kind = c->head.base_kind;
    sn->row.base = (int64_t)c->head.base;
    sn->row.changed_bytes = (int64_t)c->head.changed;
    sn->row.accel = c->head.memory ? sn->space->accel : 0;
}

int capture_present(struct sandbox *sb, enum sandbox_state was, const char *why, struct snapshot **out, struct err *e)
{
    struct snapshot *sn;
    char name[NAME_LEN_MAX + 1];
    time_t now = space_now() / 1000000000;
    struct tm tm;
    gmtime_r(&now, &tm);
    size_t n = strftime(name, sizeof name, "auto-%Y%m%dT%H%M%SZ-", &tm);
    snprintf(name + n, sizeof name - n, "%s-%" PRId64, why, sb->row.generation + 1);
    int rc = snapshot_record(sb, name, true, &sn, e);
    if (rc < 0)
        return rc;
    struct capture c = {.kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id, .seal = true, .with_memory = true};
    snapshot_ref(sn); /* rmdir may come meanwhile */
    rc = capture_here(sb, was, &c, e);
    if (rc == 0)
        rc = capture_seal(sb->space, &c, e);
    if (!sn->gone) {
        snapshot_set_head(sn, &c);
        snapshot_set_state(sn, rc < 0 ? ARTIFACT_FAILED : ARTIFACT_READY, rc < 0 && e ? e->msg : NULL);
        account_of_snapshot(sn);
    }
    if (rc < 0 || sn->gone) {
        object_delete_later(sb->space, NODED_SNAPSHOT, c.id);
        job_rows_remove(sb->space, c.id);
    }
    if (rc < 0 && !sn->gone)
        snapshot_forget(sn);
    if (rc < 0)
        snapshot_unref(sn);
    else
        *out = sn;
    return rc;
}

/* The state before a roll back is kept: it can be undone. */
static int keep_present(struct sandbox *sb, enum sandbox_state was, struct err *e)
{
    struct snapshot *sn;
    int rc = capture_present(sb, was, "before", &sn, e);
    if (rc == 0)
        snapshot_unref(sn);
    return rc;
}

/* Was that done in this roll back already: before space-hostd was started in the middle of it, or another head was written? */
static bool present_kept(const struct sandbox *sb)
{
    char end[40];
    size_t n = (size_t)snprintf(end, sizeof end, "-before-%" PRId64, sb->row.generation + 1);
    for (struct hmap_node *at = NULL; (at = hmap_iterate(&sb->space->snapshots, at));) {
        const struct snapshot *sn = hmap_entry(at, struct snapshot, by_id);
        size_t len = strlen(sn->row.name);
        if (sn->row.sandbox == sb->row.id && sn->row.automatic && sn->row.state == ARTIFACT_READY && sn->row.created >= sb->row.changed && len > n &&
            !strcmp(sn->row.name + len - n, end))
            return true;
    }
    return false;
}

int capture_seal(struct space *s, const struct capture *c, struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_SEAL, .kind = c->kind, .id = c->id};
    return c->head.memory ? noded_call(s, &req, NULL, NULL, e) : 0; /* a disk alone is sealed as it is made */
}

/* ---- loading ---- */

/* From here on the sandbox is what `ref` names. */
static int switched(struct sandbox *sb, const struct ref *ref, uint64_t old, struct err *e)
{
    account_loaded(sb, ref, old);
    sb->row.next_object = 0;
    if (!sb->fill)
        sb->row.suspended = 0; /* else when all of its disk is there */
    sb->row.generation++;
    sb->row.touched = sb->ready.first != NULL;
    ref_format(ref, sb->row.origin);
    sb->row.error[0] = 0;
    fill_say_why(sb); /* what failed while it was loaded */
    return sandbox_save(sb, e);
}

/* A copy of the head's disk, to be booted. */
static int make_object(struct sandbox *sb, const struct ref *ref, struct err *e)
{
    struct capture c = {.kind = NODED_SANDBOX, .id = space_new_id()};
    int64_t old = sb->row.object, size = head_size(sb->space, ref);
    sb->row.next_object = (int64_t)c.id;
    int rc = sandbox_save(sb, e);
    if (rc == 0)
        rc = capture_ref(sb->space, sb, ref, &c, e);
    if (rc == 0)
        rc = vm_kill(sb, e);
    if (rc < 0) {
        object_delete(sb->space, NODED_SANDBOX, c.id);
        sb->row.next_object = 0;
        return rc;
    }
    sb->row.object = (int64_t)c.id;
    if (sb->row.disk < size)
        sb->row.disk = size;
    sb->row.base = 0; /* it boots */
    rc = switched(sb, ref, (uint64_t)old, e);
    if (rc == 0 && old)
        object_delete_later(sb->space, NODED_SANDBOX, (uint64_t)old);
    return rc;
}

/* The machine runs what `ref` names, and its agent answers. */
static int take_over(struct sandbox *sb, struct machine *m, const struct ref *ref, uint64_t jobs_of, struct err *e)
{
    int64_t disk = (int64_t)m->disk;
    uint64_t began = uv_hrtime();
    int rc = vm_introduce(m->guest, sb->row.name, e);
    if (rc == 0)
        trust_settle(sb, m->guest);
    if (rc < 0 && *fill_why(m->fill))
        err_wrap(e, "what it needs does not arrive (%s)", fill_why(m->fill));
    if (rc == 0 && co_aborted(sb->runner))
        rc = -ECANCELED; /* it may have another size now */
    if (rc == 0 && m->lost)
        rc = err_set(e, EIO, "the guest of '%s' ended right after it was loaded", sb->row.name);
    if (rc < 0) {
        machine_discard(m);
        return rc;
    }
    jobs_keep(sb, jobs_of);
    jobs_lost(sb);
    struct event_scope scope = sandbox_scope(sb);
    ++*(m->from[0] == 'r' ? &sb->space->counts.ready : m->from[0] == 's' ? &sb->space->counts.slot : &sb->space->counts.new_);
    event_emit(sb->space, &scope, "load", (uint64_t)sb->row.id, sb->row.name,
               ",\"machine\":\"%s\",\"load_usec\":%" PRIu64 ",\"hello_usec\":%" PRIu64 ",\"identity_usec\":%" PRIu64, m->from, m->load_nsec / 1000,
               m->hello_nsec / 1000, (uv_hrtime() - began) / 1000);
    struct machine *before = machine_give(m, sb);
    net_settle(sb);
    bool grow = sb->row.disk > disk;
    if (!grow)
        sb->row.disk = disk;
    grow = grow && !sb->fill; /* else when it has arrived */
    rc = switched(sb, ref, before ? before->object : 0, e);
    machine_discard(before); /* it takes its time, and is nobody's: killed now, we find it as an orphan */
    if (rc == 0 && grow)
        rc = vm_grow(sb, true, e);
    jobs_bring(sb, jobs_of);
    return rc;
}

/* A live source: captured with its memory, and loaded elsewhere. Nothing happens (and *out stays NULL) when it does not run. */
static int fork_live(struct sandbox *sb, const struct ref *ref, struct machine **out, uint64_t *hidden, struct err *e)
{
    struct space *s = sb->space;
    struct sandbox *src;
    struct machine *m = NULL;
    struct capture c = {.kind = NODED_SNAPSHOT, .id = space_new_id(), .with_memory = true};
    int rc = find_source(s, sb, ref, &src, e);
    if (rc < 0 || (source_state(src) != SANDBOX_RUNNING && source_state(src) != SANDBOX_PAUSED))
        return rc;
    struct head source = {.base_kind = (uint32_t)src->row.base_kind,
                          .base = (uint64_t)src->row.base,
                          .memory = (uint64_t)src->row.memory,
                          .vcpus = (uint32_t)src->row.vcpus,
                          .disk = (uint64_t)src->row.disk};
    struct head base = head_base(s, &source);
    if (base.id) /* before the source is stopped, so that the child follows at once */
        rc = machine_take_slot(s, &base, &m, e);
    if (rc < 0)
        return rc;
    *hidden = c.id;
    rc = capture_sandbox(s, sb, ref, &c, e);
    if (rc == 0 && !c.head.memory) { /* it stopped while we waited: its disk boots, as the caller does */
        machine_discard(m);
        return 0;
    }
    if (rc == 0 && !m)
        rc = machine_take_slot(s, &c.head, &m, e);
    if (rc == 0)
        rc = machine_load(m, &c.head, e);
    if (rc < 0)
        machine_discard(m);
    else
        *out = m;
    return rc;
}

/* A running machine at what `ref` names; none when that holds no memory. `jobs_of`: whose job rows go with it. */
static int load_machine(struct sandbox *sb, const struct ref *ref, struct machine **out, uint64_t *jobs_of, struct err *e)
{
    struct space *s = sb->space;
    struct head h;
    if (ref->kind == REF_SANDBOX)
        return fork_live(sb, ref, out, jobs_of, e);
    int rc = wait_for(s, ref, e);
    if (rc < 0)
        return rc;
    if (ref->kind == REF_SNAPSHOT) {
        h = snapshot_head(snapshot_by_id(s, ref->id));
        *jobs_of = ref->id;
        return h.memory ? machine_take(s, &h, out, e) : 0;
    }
    if (!template_head(template_by_id(s, ref->id), (uint64_t)sb->row.memory, (uint32_t)sb->row.vcpus, &h))
        return 0;
    rc = machine_take(s, &h, out, e);
    if (rc < 0 && rc != -ECANCELED) {
        log_warn("sandbox %012" PRIx64 " boots, since its template's head could not be loaded: %s", (uint64_t)sb->row.id, e->msg);
        prepared_failed(s, h.id, rc, e->msg);
        *e = (struct err){0};
        rc = 0;
    }
    return rc;
}

int load_memory(struct sandbox *sb, const struct ref *ref, struct err *e)
{
    struct machine *m = NULL;
    uint64_t jobs_of = 0;
    int rc = load_machine(sb, ref, &m, &jobs_of, e);
    if (rc == 0 && !m)
        rc = err_set(e, EIO, "the snapshot that '%s' was suspended to has no memory", sb->row.name);
    return rc < 0 ? rc : take_over(sb, m, ref, jobs_of, e);
}

int load_stored(struct sandbox *sb, const struct snapshot *sn, bool arrives, struct err *e)
{
    struct ref ref = {REF_SNAPSHOT, (uint64_t)sn->row.id, 0};
    struct head h = snapshot_head(sn);
    struct machine *m = NULL;
    h.filling = true;
    h.arrives = arrives;
    int rc = machine_take(sb->space, &h, &m, e);
    return rc < 0 ? rc : take_over(sb, m, &ref, ref.id, e);
}

static int load_into(struct sandbox *sb, const struct op *op, struct err *e)
{
    struct machine *m = NULL;
    uint64_t jobs_of = 0;
    int rc = op->boot ? 0 : load_machine(sb, &op->ref, &m, &jobs_of, e);
    if (rc == 0 && m)
        rc = take_over(sb, m, &op->ref, jobs_of, e);
    if (op->ref.kind == REF_SANDBOX && jobs_of) { /* the hidden capture */
        job_rows_remove(sb->space, jobs_of);
        object_delete_later(sb->space, NODED_SNAPSHOT, jobs_of);
    }
    if (rc < 0 || m)
        return rc;
    sb->space->counts.boot++;
    rc = make_object(sb, &op->ref, e);
    return rc < 0 ? rc : vm_boot(sb, e);
}

/* A copy gesture may take over within a moment; the first use of the sandbox says that none does. */
static int wait_for_copy(struct sandbox *sb)
{
    int rc = wait_in_list(sb->space->co, &sb->hurry, COPY_GRACE_MSEC);
    return rc == -ETIMEDOUT ? 0 : rc;
}

int load_run(struct sandbox *sb, struct op *op, struct err *e)
{
    enum sandbox_state before = sandbox_state(sb);
    int64_t object = sb->row.object;
    bool touched =
        sb->row.touched && (object || sb->row.suspended) && before != SANDBOX_CREATING; /* interrupted before anyone had it: it begins anew */
    int rc = 0;
    if (op->ref.kind == REF_SANDBOX && op->ref.id == (uint64_t)sb->row.id)
        return op->ref.generation == (uint64_t)sb->row.generation
                   ? 0 /* it is in that state */
                   : err_set(e, ESTALE, "the ref is of an earlier load of this sandbox: read its head again");
    rc = load_check(sb->space, &op->ref, e);
    if (rc < 0)
        return rc;
    look_through(sb->space, &op->ref);
    ref_format(&op->ref, sb->row.want);
    sb->row.desired = SANDBOX_RUNNING;
    sandbox_set_state(sb, touched || before == SANDBOX_ROLLING_BACK ? SANDBOX_ROLLING_BACK : SANDBOX_CREATING, NULL);
    if (op->delay)
        rc = wait_for_copy(sb);
    if (rc == 0 && touched && object && !(before == SANDBOX_ROLLING_BACK && present_kept(sb)))
        rc = keep_present(sb, before, e);
    struct snapshot *from = rc == 0 && op->ref.kind == REF_SNAPSHOT ? snapshot_by_id(sb->space, op->ref.id) : NULL;
    if (from)
        snapshot_ref(from)->loads++;
    if (rc == 0)
        rc = load_into(sb, op, e);
    if (from) {
        from->loads--;
        snapshot_unref(from);
    }
    if (rc < 0) {
        bool intact =
            object && sb->row.object == object && (sb->guest ? before == SANDBOX_RUNNING || before == SANDBOX_PAUSED : before == SANDBOX_STOPPED);
        bool stored = sb->row.suspended && !sb->row.object; /* as before, or as space-hostd found it */
        if ((intact || stored) && rc != -ECANCELED)
            sandbox_set_state(sb, stored ? SANDBOX_SUSPENDED : before, "the new head could not be loaded");
        return rc;
    }
    sandbox_set_state(sb, SANDBOX_RUNNING, NULL);
    return 0;
}

/* ---- the end ---- */

void destroy_run(struct sandbox *sb)
{
    struct space *s = sb->space;
    struct err e = {0};
    vm_kill(sb, &e);
    if (sb->row.next_object)
        object_delete(s, NODED_SANDBOX, (uint64_t)sb->row.next_object);
    if (sb->row.object)
        object_delete(s, NODED_SANDBOX, (uint64_t)sb->row.object);
    account_gone(s, NODED_SANDBOX, (uint64_t)sb->row.object, sb->row.parent_kind, sb->row.parent);
    for (struct hmap_node *n = NULL, *next; (next = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(next, struct snapshot, by_id);
        n = next;
        if (sn->row.sandbox == sb->row.id && sn->row.automatic && snapshot_is_here(sn)) { /* other nodes do the same */
            snapshot_destroy(sn);
            n = NULL; /* the map changed */
        }
    }
    jobs_forget(sb);
    struct event_scope scope = sandbox_scope(sb);
    event_emit(s, &scope, "destroyed", (uint64_t)sb->row.id, sb->row.name, "%s", "");
    struct op *rest = sb->ops->next; /* nothing queued behind this can be done any more */
    sb->ops->next = NULL;
    while (rest) {
        struct op *next = rest->next;
        struct err gone = {0};
        err_set(&gone, ENOENT, "sandbox '%s' was removed", sb->row.name);
        wait_done_all(&rest->waiters, -ENOENT, &gone);
        source_release(rest->source);
        free(rest);
        rest = next;
    }
    sandbox_forget(sb);
}
