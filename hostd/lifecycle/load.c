// SPDX-License-Identifier: Apache-2.0
// Moving a sandbox to a head, and capturing heads from sandboxes.
//
// Theory of operation. A sandbox's disk lives in an object (a subvolume with an id of its own); `object` in its row says which. A load makes the new object
// beside the old one, and one row update switches: killed before it, the new object is an orphan and the sandbox is what it was; killed after it, the
// old object is the orphan. reconcile removes orphans and repeats loads that had been accepted (`want`).
#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FREEZE_LIMIT_MSEC 10000 /* the guest thaws by itself after this */
#define FREEZE_WAIT_MSEC  5000  /* how long we wait for its freeze */
#define COPY_GRACE_MSEC   30    /* a copy gesture follows its mkdir within a few milliseconds */

static int object_delete(struct space *s, uint32_t kind, uint64_t id, struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_DELETE, .kind = kind, .id = id};
    return noded_call(s, &req, NULL, NULL, e);
}

/* Snapshots the sandbox's object, frozen through the agent when the guest runs. */
static int capture_here(struct sandbox *sb, bool running, uint32_t kind, uint64_t id, bool seal, bool *consistent, struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_SNAPSHOT, .kind = kind, .id = id, .kind2 = NODED_SANDBOX,
                                .id2 = (uint64_t)sb->row.object, .flags = seal ? NODED_READ_ONLY : 0};
    if (!sb->row.object)
        return err_set(e, ENOTCONN, "sandbox '%s' has no disk yet", sb->row.name);
    bool frozen = false;
    if (running && sb->guest) {
        int rc = guest_ctl(sb->guest, FREEZE_WAIT_MSEC, "freeze %d", FREEZE_LIMIT_MSEC);
        if (rc == -ECANCELED)
            return rc;
        frozen = rc == 0;
        if (!frozen)
            log_warn("sandbox %012" PRIx64 " could not be frozen (%s): its snapshot is crash-consistent", (uint64_t)sb->row.id, strerror(-rc));
    }
    int rc = noded_call(sb->space, &req, NULL, NULL, e);
    if (frozen)
        frozen = guest_ctl(sb->guest, FREEZE_WAIT_MSEC, "thaw") == 0;
    *consistent = frozen || sandbox_state(sb) == SANDBOX_STOPPED;
    return rc;
}

int capture_run(struct sandbox *sb, struct op *op, struct err *e)
{
    return capture_here(sb, sandbox_state(sb) == SANDBOX_RUNNING, op->capture_kind, op->capture_id, op->capture_seal,
                        op->capture_consistent, e);
}

struct capture_waiter {
    struct waiter w;
    struct co *co;
    struct err *e;
    bool done;
};

static void captured(struct waiter *w, int rc, const struct err *e)
{
    struct capture_waiter *c = (struct capture_waiter *)(void *)w;
    if (rc < 0 && e && c->e)
        *c->e = *e;
    c->done = true;
    co_wake(c->co, rc);
}

/* Would waiting for `src` wait for ourselves? */
static bool waits_for(const struct sandbox *src, const struct sandbox *sb)
{
    for (; src; src = src->capturing_from)
        if (src == sb)
            return true;
    return false;
}

static int capture_sandbox(struct space *s, struct sandbox *sb, const struct ref *ref, uint32_t kind, uint64_t id, bool seal,
                           bool *consistent, struct err *e)
{
    struct sandbox *src = sandbox_by_id(s, ref->id);
    if (!src || sandbox_state(src) == SANDBOX_DESTROYING)
        return err_set(e, ESTALE, "the sandbox of ref sandbox/%012" PRIx64 " is gone", ref->id);
    if (ref->generation != (uint64_t)src->row.generation)
        return err_set(e, ESTALE, "the ref is of load %" PRIu64 " of sandbox '%s', which is at %" PRId64 " now: read its head again",
                       ref->generation, src->row.name, src->row.generation);
    if (sb && waits_for(src, sb))
        return err_set(e, EBUSY, "'%s' and '%s' are being moved to each other's state", sb->row.name, src->row.name);
    struct op *op = op_new(OP_CAPTURE);
    struct capture_waiter c = {.w.done = captured, .co = co_self(s->co), .e = e};
    op->capture_kind = kind;
    op->capture_id = id;
    op->capture_seal = seal;
    op->capture_consistent = consistent;
    if (sb)
        sb->capturing_from = src;
    op_submit(src, op, false, &c.w);
    int rc = co_wait_uncancellable(s->co); /* `consistent` and `e` are on our stack; a capture takes bounded time */
    if (sb)
        sb->capturing_from = NULL;
    return rc;
}

struct ready_waiter {
    struct waiter w;
    struct co *co;
};

static void became_ready(struct waiter *w, int rc, const struct err *e)
{
    (void)e;
    co_wake(((struct ready_waiter *)(void *)w)->co, rc);
}

static int wait_ready(struct space *s, struct wait_list *l, const int64_t *state)
{
    while (*state == ARTIFACT_CREATING) {
        struct ready_waiter r = {.w.done = became_ready, .co = co_self(s->co)};
        wait_add(l, &r.w);
        int rc = co_wait(s->co);
        wait_remove(&r.w);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int load_check(struct space *s, const struct ref *ref, struct err *e)
{
    const struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    const struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    const struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    if (src && src->named && ref->generation != (uint64_t)src->row.generation && sandbox_state(src) != SANDBOX_CREATING)
        return err_set(e, ESTALE, "the ref is of load %" PRIu64 " of sandbox '%s', which is at %" PRId64 " now: read its head again", ref->generation,
                       src->row.name, src->row.generation);
    if ((sn && sn->row.state != ARTIFACT_FAILED) || (t && !t->row.deleted && (t->row.state == ARTIFACT_READY || t->row.state == ARTIFACT_CREATING)) || (src && src->named))
        return 0;
    return err_set(e, ESTALE, "what this head names is gone or not ready");
}

int capture_ref(struct space *s, struct sandbox *sb, const struct ref *ref, uint32_t kind, uint64_t id, bool seal, bool *consistent,
                struct err *e)
{
    struct noded_request req = {.op = NODED_OBJECT_SNAPSHOT, .kind = kind, .id = id, .id2 = ref->id, .flags = seal ? NODED_READ_ONLY : 0};
    struct snapshot *sn;
    struct template *t;
    int rc = 0;
    *consistent = true;
    switch (ref->kind) {
    case REF_SANDBOX: return capture_sandbox(s, sb, ref, kind, id, seal, consistent, e);
    case REF_SNAPSHOT:
        sn = snapshot_by_id(s, ref->id);
        if (!sn)
            return err_set(e, ESTALE, "snapshot %012" PRIx64 " is gone", ref->id);
        snapshot_ref(sn);
        rc = wait_ready(s, &sn->ready, &sn->row.state);
        if (rc == 0 && (sn->gone || sn->row.state != ARTIFACT_READY))
            rc = err_set(e, ESTALE, "snapshot '%s' failed: %s", sn->row.name, sn->row.error);
        snapshot_unref(sn);
        req.kind2 = NODED_SNAPSHOT;
        break;
    case REF_TEMPLATE:
        t = template_by_id(s, ref->id);
        if (!t)
            return err_set(e, ESTALE, "template %012" PRIx64 " is gone", ref->id);
        template_ref(t);
        rc = wait_ready(s, &t->ready, &t->row.state);
        if (rc == 0 && (t->row.deleted || t->row.state != ARTIFACT_READY))
            rc = err_set(e, ESTALE, "template '%s' is gone or not ready%s%s", t->row.name, t->row.error[0] ? ": " : "", t->row.error);
        template_unref(t);
        req.kind2 = NODED_TEMPLATE;
        break;
    case REF_NONE: return err_set(e, EINVAL, "an empty head");
    }
    return rc < 0 ? rc : noded_call(s, &req, NULL, NULL, e);
}

static int64_t head_size(struct space *s, const struct ref *ref)
{
    struct snapshot *sn = ref->kind == REF_SNAPSHOT ? snapshot_by_id(s, ref->id) : NULL;
    struct template *t = ref->kind == REF_TEMPLATE ? template_by_id(s, ref->id) : NULL;
    struct sandbox *src = ref->kind == REF_SANDBOX ? sandbox_by_id(s, ref->id) : NULL;
    return sn ? sn->row.size : t ? t->row.size : src ? src->row.disk : 0;
}

/* The state before a roll back is kept: it can be undone. */
static int keep_present(struct sandbox *sb, bool was_running, struct err *e)
{
    struct snapshot *sn;
    char name[NAME_LEN_MAX + 1];
    time_t now = space_now() / 1000000000;
    struct tm tm;
    bool consistent = false;
    gmtime_r(&now, &tm);
    size_t n = strftime(name, sizeof name, "auto-%Y%m%dT%H%M%SZ-before-", &tm);
    snprintf(name + n, sizeof name - n, "%" PRId64, sb->row.generation + 1);
    struct snapshot_row row = {.id = (int64_t)space_new_id(), .sandbox = sb->row.id, .owner = sb->row.owner, .gid = sb->row.gid,
                               .mode = sb->row.mode, .created = space_now(), .state = ARTIFACT_CREATING, .automatic = 1, .size = sb->row.disk};
    str_copy(row.name, sizeof row.name, name);
    str_copy(row.sandbox_name, sizeof row.sandbox_name, sb->row.name);
    int rc = snapshot_insert(sb->space, &row, &sn, e);
    if (rc < 0)
        return rc;
    snapshot_ref(sn); /* rmdir may come meanwhile */
    rc = capture_here(sb, was_running, NODED_SNAPSHOT, (uint64_t)row.id, true, &consistent, e);
    sn->row.consistent = consistent;
    if (!sn->gone)
        snapshot_set_state(sn, rc < 0 ? ARTIFACT_FAILED : ARTIFACT_READY, rc < 0 && e ? e->msg : NULL);
    if (rc < 0 || sn->gone) {
        struct err ignored = {0};
        object_delete(sb->space, NODED_SNAPSHOT, (uint64_t)row.id, &ignored);
    }
    if (rc < 0 && !sn->gone)
        snapshot_forget(sn);
    snapshot_unref(sn);
    return rc;
}

/* The new object holds what the ref names: from here on the sandbox is that. */
static int switch_over(struct sandbox *sb, uint64_t fresh, const struct ref *ref, struct err *e)
{
    int64_t old = sb->row.object, size = head_size(sb->space, ref);
    int rc = vm_kill(sb, e);
    if (rc < 0)
        return rc;
    sb->row.object = (int64_t)fresh;
    sb->row.next_object = 0;
    sb->row.generation++;
    if (sb->row.disk < size)
        sb->row.disk = size;
    ref_format(ref, sb->row.origin);
    sb->row.error[0] = 0;
    rc = sandbox_save(sb, e);
    if (rc == 0 && old)
        object_delete(sb->space, NODED_SANDBOX, (uint64_t)old, e);
    return rc;
}

static int make_object(struct sandbox *sb, const struct ref *ref, struct err *e)
{
    uint64_t fresh = space_new_id();
    bool consistent;
    sb->row.next_object = (int64_t)fresh;
    int rc = sandbox_save(sb, e);
    if (rc == 0)
        rc = capture_ref(sb->space, sb, ref, NODED_SANDBOX, fresh, false, &consistent, e);
    if (rc == 0)
        rc = switch_over(sb, fresh, ref, e);
    if (rc < 0 && sb->row.next_object) {
        struct err ignored = {0};
        object_delete(sb->space, NODED_SANDBOX, fresh, &ignored);
        sb->row.next_object = 0;
    }
    return rc;
}

int load_run(struct sandbox *sb, struct op *op, struct err *e)
{
    enum sandbox_state before = sandbox_state(sb);
    bool touched = sb->row.touched && sb->row.object;
    int rc = 0;
    if (op->ref.kind == REF_SANDBOX && op->ref.id == (uint64_t)sb->row.id)
        return op->ref.generation == (uint64_t)sb->row.generation
                   ? 0 /* it is in that state */
                   : err_set(e, ESTALE, "the ref is of an earlier load of this sandbox: read its head again");
    rc = load_check(sb->space, &op->ref, e);
    if (rc < 0)
        return rc;
    ref_format(&op->ref, sb->row.want);
    sb->row.desired = SANDBOX_RUNNING;
    sandbox_set_state(sb, touched || before == SANDBOX_ROLLING_BACK ? SANDBOX_ROLLING_BACK : SANDBOX_CREATING, NULL);
    if (op->delay)
        rc = co_sleep(sb->space->co, COPY_GRACE_MSEC);
    if (rc == 0 && touched && before != SANDBOX_ROLLING_BACK)
        rc = keep_present(sb, before == SANDBOX_RUNNING, e);
    if (rc == 0)
        rc = make_object(sb, &op->ref, e);
    if (rc < 0) {
        bool intact = sb->guest ? before == SANDBOX_RUNNING || before == SANDBOX_PAUSED : before == SANDBOX_STOPPED;
        if (intact && rc != -ECANCELED)
            sandbox_set_state(sb, before, "the new head could not be loaded");
        return rc;
    }
    sb->row.touched = 0;
    rc = vm_boot(sb, e);
    if (rc < 0)
        return rc;
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
        object_delete(s, NODED_SANDBOX, (uint64_t)sb->row.next_object, &e);
    int rc = sb->row.object ? object_delete(s, NODED_SANDBOX, (uint64_t)sb->row.object, &e) : 0;
    for (struct hmap_node *n = NULL, *next; (next = hmap_iterate(&s->snapshots, n));) {
        struct snapshot *sn = hmap_entry(next, struct snapshot, by_id);
        n = next;
        if (sn->row.sandbox == sb->row.id && sn->row.automatic) {
            snapshot_destroy(sn);
            n = NULL; /* the map changed */
        }
    }
    jobs_forget(sb);
    if (rc < 0)
        log_error("sandbox %012" PRIx64 " leaves its disk behind until the next start: %s", (uint64_t)sb->row.id, e.msg);
    struct event_scope scope = sandbox_scope(sb);
    event_emit(s, &scope, "destroyed", (uint64_t)sb->row.id, sb->row.name, "%s", "");
    struct op *rest = sb->ops->next; /* nothing queued behind this can be done any more */
    sb->ops->next = NULL;
    while (rest) {
        struct op *next = rest->next;
        struct err gone = {0};
        err_set(&gone, ENOENT, "sandbox '%s' was removed", sb->row.name);
        wait_done_all(&rest->waiters, -ENOENT, &gone);
        free(rest);
        rest = next;
    }
    sandbox_forget(sb);
}
