// SPDX-License-Identifier: Apache-2.0
// Tasks for snapshots, bases that are shared by them, and what is deleted from the store. See volume.h.
#include "hostd/volume/volume.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/pool/pool.h"
#include "hostd/snapshot/account.h"
#include "hostd/snapshot/browser.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MSEC        10000u
#define STORED_MSEC      60000u /* a template's own node may be at it */
#define STORED_LOOK_MSEC 200u
#define COLLECT_MSEC     600000u   /* garbage is collected at most so often, */
#define DAILY_MSEC       86400000u /* and at least so often */

int volume_wait(struct space *s, struct wait_list *l, struct err *e)
{
    struct co_waiter c = co_waiter_of(s->co, e);
    wait_add(l, &c.w);
    int rc = co_wait(s->co);
    wait_remove(&c.w);
    return rc;
}

/* ---- bases ---- */

bool base_is_own(const struct space *s, uint64_t id)
{
    const struct template *t = template_by_id(s, id);
    return t ? t->row.node == s->node_id && t->row.state == ARTIFACT_READY && !t->row.deleted : prepared_has_object(s, id);
}

bool base_is_here(const struct space *s, uint64_t id)
{
    const struct template *t = template_by_id(s, id);
    const struct copied_base *c = s->volume->copied;
    while (c && c->id != id)
        c = c->next;
    return c || base_is_own(s, id) || (t && t->copied_here && t->row.state == ARTIFACT_READY && !t->row.deleted);
}

static void note_copy(struct volume *v, uint64_t id)
{
    struct template *t = template_by_id(v->space, id);
    if (t) {
        struct event_scope scope = {t->row.owner, t->row.gid, 0700};
        t->copied_here = true;
        event_emit(v->space, &scope, "template", id, t->row.name, ",\"state\":\"fetched\"");
        template_wish(t);
        return;
    }
    struct copied_base *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (struct copied_base){v->copied, id};
    v->copied = c;
}

static bool in_store(const struct volume *v, uint64_t id)
{
    const struct artifact *disk = artifact_find(v, NODED_TEMPLATE, id, NODED_DISK), *kernel = artifact_find(v, NODED_TEMPLATE, id, NODED_KERNEL),
                          *initrd = artifact_find(v, NODED_TEMPLATE, id, NODED_INITRD);
    return disk && kernel && initrd && disk->row.state == STORE_DURABLE && kernel->row.state == STORE_DURABLE && initrd->row.state == STORE_DURABLE;
}

/* Its own node stores a template as soon as there is another one to want it. */
static int wait_until_stored(struct volume *v, uint64_t id, struct err *e)
{
    const struct template *t = template_by_id(v->space, id);
    const struct node_entry *owner = t ? cluster_node(v->space, t->row.node) : NULL;
    for (unsigned msec = 0; !in_store(v, id) && owner && cluster_state(v->space, owner) == NODE_IS_UP && msec < STORED_MSEC; msec += STORED_LOOK_MSEC)
        if (co_sleep(v->space->co, STORED_LOOK_MSEC) < 0)
            return -ECANCELED;
    if (in_store(v, id))
        return 0;
    t = template_by_id(v->space, id);
    return err_set(e, EREMOTE, "template '%s' is in the pool of node %s only, and not in the object store", t ? t->row.name : "?",
                   t ? cluster_name(v->space, t->row.node) : "an unknown");
}

static void base_work(void *arg)
{
    struct base_task *b = arg, **at = &b->volume->bases;
    struct err e = {0};
    int rc = b->fetch ? wait_until_stored(b->volume, b->id, &e) : upload_base(b->volume, b->id, &e);
    if (b->fetch && rc == 0)
        rc = fetch_base(b->volume, b->id, &e);
    if (b->fetch && rc == 0)
        note_copy(b->volume, b->id);
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    wait_done_all(&b->done, rc, &e);
    free(b);
}

/* All files of the base are in the store. */
static bool base_stored(const struct volume *v, uint64_t id)
{
    static const uint32_t files[] = {NODED_DISK, NODED_KERNEL, NODED_INITRD, NODED_RAM};
    for (size_t i = 0; i < (prepared_has_object(v->space, id) ? 4 : 3); i++) {
        const struct artifact *a = artifact_find(v, NODED_TEMPLATE, id, files[i]);
        if (!a || a->row.state != STORE_DURABLE)
            return false;
    }
    return true;
}

int base_wait(struct volume *v, uint64_t id, bool fetch, struct err *e)
{
    struct base_task *b = v->bases;
    if (fetch ? base_is_here(v->space, id) : base_stored(v, id))
        return 0;
    while (b && !(b->id == id && b->fetch == fetch))
        b = b->next;
    if (!b) {
        b = calloc(1, sizeof *b);
        if (!b)
            abort();
        *b = (struct base_task){.next = v->bases, .volume = v, .id = id, .fetch = fetch};
        v->bases = b;
        co_spawn(v->space->co, base_work, b); /* we are a coroutine: it begins later */
    }
    return volume_wait(v->space, &b->done, e);
}

int volume_template(struct template *t, struct err *e)
{
    return template_is_here(t) ? 0 : base_wait(t->space->volume, (uint64_t)t->row.id, true, e);
}

int volume_prepare(struct sandbox *sb, struct err *e)
{
    struct volume *v = sb->space->volume;
    uint64_t base = upload_find_base(sb->space, sb->row.base_kind, sb->row.base, sb->row.parent_kind, sb->row.parent);
    int rc = base ? base_wait(v, base, false, e) : 0;
    if (rc == 0 || rc == -ENOTCONN || rc == -ECANCELED)
        return rc;
    *e = (struct err){0}; /* the upload says it, and does without */
    return 0;
}

/* ---- tasks ---- */

static void emit(const struct volume_task *t)
{
    const struct snapshot *sn = t->snapshot;
    struct event_scope scope = {sn->row.owner, sn->row.gid, sn->row.mode};
    uint64_t msec = (uv_hrtime() - t->began) / 1000000;
    if (t->repair)
        event_emit(sn->space, &scope, "repair", (uint64_t)sn->row.sandbox, sn->row.sandbox_name,
                   ",\"snapshot\":\"%s\",\"read_bytes\":%" PRIu64 ",\"stored_bytes\":%" PRIu64 ",\"msec\":%" PRIu64, sn->row.name, t->sum.read,
                   t->sum.stored, msec);
    else if (t->fetch)
        event_emit(sn->space, &scope, "download", (uint64_t)sn->row.sandbox, sn->row.sandbox_name,
                   ",\"snapshot\":\"%s\",\"fetched_bytes\":%" PRIu64 ",\"msec\":%" PRIu64, sn->row.name, t->sum.fetched, msec);
    else
        event_emit(sn->space, &scope, "upload", (uint64_t)sn->row.sandbox, sn->row.sandbox_name,
                   ",\"snapshot\":\"%s\",\"read_bytes\":%" PRIu64 ",\"new_bytes\":%" PRIu64 ",\"stored_bytes\":%" PRIu64 ",\"msec\":%" PRIu64,
                   sn->row.name, t->sum.read, t->sum.fresh, t->sum.stored, msec);
}

static void finished(struct volume_task *t)
{
    struct snapshot *sn = t->snapshot;
    if (t->fetch && !snapshot_is_here(sn)) { /* a copy for us, of which its owner knows nothing */
        struct err e = {0};
        sn->copied = true;
        sn->copy_used = uv_now(sn->space->loop);
        sn->row.state = ARTIFACT_READY;
        if (job_rows_load(sn->space, (uint64_t)sn->row.id, &e) < 0)
            log_warn("the jobs of snapshot %012" PRIx64 " are not known: %s", (uint64_t)sn->row.id, e.msg);
    } else if (t->fetch) {
        sn->row.delta = -1;
        snapshot_set_state(sn, ARTIFACT_READY, NULL);
    } else if (!t->repair) {
        sn->row.durable = 1;
        db_save(sn->space->db, DB_SNAPSHOTS, &sn->row, NULL);
    }
    emit(t);
}

static void task_work(void *arg)
{
    struct volume_task *t = arg;
    struct snapshot *sn = t->snapshot;
    struct err e = {0};
    t->co = co_self(sn->space->co);
    int rc = t->aborted ? -ECANCELED : t->repair ? repair_run(t, &e) : t->fetch ? fetch_run(t, &e) : upload_run(t, &e);
    if (rc == 0 && sn->gone)
        rc = err_set(&e, ENOENT, "snapshot '%s' was removed", sn->row.name);
    if (rc == 0)
        finished(t);
    else if (!e.code)
        err_set(&e, -rc, "%s", strerror(-rc));
    if (sn->gone && t->fetch)
        object_delete_later(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id);
    if (sn->gone)
        volume_drop(sn->space, (uint64_t)sn->row.id); /* what was begun after its end */
    sn->task = NULL;
    sn->loads--;
    wait_done_all(&t->done, rc, &e);
    snapshot_unref(sn);
    free(t);
}

enum task_kind { TASK_UPLOAD, TASK_FETCH, TASK_REPAIR };

static struct volume_task *task_start(struct snapshot *sn, enum task_kind kind)
{
    struct volume_task *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    *t = (struct volume_task){
        .snapshot = snapshot_ref(sn), .volume = sn->space->volume, .fetch = kind == TASK_FETCH, .repair = kind == TASK_REPAIR, .began = uv_hrtime()};
    sn->task = t;
    sn->loads++; /* `keep` leaves it alone */
    return t;
}

static void task_join(struct snapshot *sn, enum task_kind kind, struct waiter *w)
{
    bool begins = !sn->task;
    struct volume_task *t = begins ? task_start(sn, kind) : sn->task;
    if (w)
        wait_add(&t->done, w);
    if (begins)
        co_spawn(sn->space->co, task_work, t);
}

static void refuse(struct waiter *w, int code, const struct snapshot *sn, const char *why)
{
    struct err e = {0};
    err_set(&e, code, "snapshot '%s' %s", sn->row.name, why);
    if (w)
        w->done(w, -code, &e);
}

void volume_upload(struct snapshot *sn, struct waiter *w)
{
    if (sn->gone)
        refuse(w, ENOENT, sn, "was removed");
    else if (sn->row.durable && w)
        w->done(w, 0, NULL);
    else if (!sn->row.durable && !snapshot_is_here(sn))
        refuse(w, EREMOTE, sn, "is in another node's pool: write `upload` to its state there");
    else if (!sn->row.durable && sn->row.state != ARTIFACT_READY)
        refuse(w, EAGAIN, sn, sn->row.state == ARTIFACT_CREATING ? "is not complete yet" : "failed: there is nothing to store");
    else if (!sn->row.durable)
        task_join(sn, TASK_UPLOAD, w);
}

void volume_fetch(struct snapshot *sn, struct waiter *w)
{
    if (sn->gone)
        refuse(w, ESTALE, sn, "was removed");
    else if (sn->row.state == ARTIFACT_READY && w)
        w->done(w, 0, NULL);
    else if (sn->row.state != ARTIFACT_READY && sn->row.state != ARTIFACT_STORED)
        refuse(w, sn->row.state == ARTIFACT_ELSEWHERE ? EREMOTE : EAGAIN, sn, "is not in the store");
    else if (sn->row.state == ARTIFACT_STORED && sn->task && sn->task->repair)
        refuse(w, EAGAIN, sn, "is being mended");
    else if (sn->row.state == ARTIFACT_STORED)
        task_join(sn, TASK_FETCH, w);
}

void volume_repair(struct snapshot *sn, struct waiter *w)
{
    if (sn->gone)
        refuse(w, ENOENT, sn, "was removed");
    else if (!sn->row.durable)
        refuse(w, EAGAIN, sn, "is not in the store");
    else if (sn->task && !sn->task->repair)
        refuse(w, EAGAIN, sn, "is being fetched: mend it afterwards");
    else
        task_join(sn, TASK_REPAIR, w);
}

bool volume_artifact(const struct snapshot *sn, unsigned n, char *out, size_t size)
{
    const struct volume *v = sn->space->volume;
    const struct artifact *disk = artifact_find(v, NODED_SNAPSHOT, (uint64_t)sn->row.id, NODED_DISK);
    const struct artifact *base = disk ? artifact_by_name(v, disk->row.base) : NULL;
    for (int of = 0; of < (base ? 2 : 1); of++)
        for (uint32_t file = NODED_DISK; file <= NODED_META; file++) {
            const struct artifact *a = of ? artifact_find(v, NODED_TEMPLATE, (uint64_t)base->row.object, file)
                                          : artifact_find(v, NODED_SNAPSHOT, (uint64_t)sn->row.id, file);
            if (!a || a->row.state != STORE_DURABLE || n-- > 0)
                continue;
            snprintf(out, size, "%s %s %s", volume_file_name(file), a->row.tenant, a->row.name);
            return true;
        }
    return false;
}

/* A waiter that may be done at once. */
struct step {
    struct waiter w;
    struct co *co; /* once it waits */
    struct err *e;
    bool done;
    int rc;
};

static void step_done(struct waiter *w, int rc, const struct err *e)
{
    struct step *st = (struct step *)(void *)w;
    st->done = true;
    st->rc = rc;
    if (rc < 0 && e)
        *st->e = *e;
    if (st->co)
        co_wake(st->co, rc);
}

#define NO_LIMIT UINT64_MAX

static int run(struct snapshot *sn, void (*start)(struct snapshot *sn, struct waiter *w), uint64_t msec, struct err *e)
{
    struct space *s = sn->space;
    struct step st = {.w.done = step_done, .e = e};
    start(sn, &st.w); /* the caller holds a reference */
    if (st.done)
        return st.rc;
    st.co = co_self(s->co);
    int rc = msec == NO_LIMIT ? co_wait(s->co) : co_wait_msec(s->co, msec);
    wait_remove(&st.w);
    if (rc == -ETIMEDOUT && !st.done)
        return err_set(e, ETIMEDOUT, "snapshot '%s' took too long", sn->row.name);
    if (st.done && st.rc == -ECANCELED) /* it was, we were not */
        return err_set(e, ESTALE, "snapshot '%s' was removed meanwhile", sn->row.name);
    return st.done ? st.rc : rc;
}

int volume_uploaded(struct snapshot *sn, struct err *e)
{
    return run(sn, volume_upload, NO_LIMIT, e);
}

int volume_uploaded_msec(struct snapshot *sn, uint64_t msec, struct err *e)
{
    int rc = run(sn, volume_upload, msec, e);
    if (rc == -ETIMEDOUT)
        volume_abort(sn);
    return rc;
}

int volume_fetched(struct snapshot *sn, struct err *e)
{
    return run(sn, volume_fetch, NO_LIMIT, e);
}

void volume_abort(struct snapshot *sn)
{
    if (!sn->task)
        return;
    sn->task->aborted = true;
    if (sn->task->co)
        co_abort(sn->task->co);
}

bool volume_progress(const struct snapshot *sn, uint64_t *done, uint64_t *total)
{
    if (!sn->task)
        return false;
    *done = sn->task->bytes;
    *total = sn->task->total;
    return true;
}

/* A copy of another node's, of which its owner knows nothing. */
static void drop_copy(struct snapshot *sn)
{
    pool_drain(sn->space, (uint64_t)sn->row.id);
    browser_close(sn->browser);
    sn->copied = false;
    sn->row.state = ARTIFACT_STORED;
    object_delete(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id);
}

void volume_evict(struct snapshot *sn)
{
    if (!snapshot_is_here(sn)) {
        drop_copy(sn);
        return;
    }
    account_gone(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id, sn->row.parent_kind, sn->row.parent);
    pool_drain(sn->space, (uint64_t)sn->row.id);
    browser_close(sn->browser);
    sn->row.delta = 0;
    snapshot_set_state(sn, ARTIFACT_STORED, NULL); /* first: what has no object is not ready */
    object_delete(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id);
}

/* ---- deleting ---- */

void volume_drop(struct space *s, uint64_t id)
{
    struct volume *v = s->volume;
    db_begin(s->db);
    for (struct artifact *a = v->artifacts; a; a = a->next)
        if (a->row.kind == NODED_SNAPSHOT && a->row.object == (int64_t)id && a->row.state != STORE_CONDEMNED)
            artifact_condemn(v, a);
    db_commit(s->db, NULL);
    volume_kick(s);
}

/* Rows of the snapshot's artifacts belong to whoever has the snapshot. */
void volume_moved(struct snapshot *sn, int64_t node)
{
    struct volume *v = sn->space->volume;
    struct err e = {0};
    for (struct artifact *a = v->artifacts; a; a = a->next)
        if (a->row.kind == NODED_SNAPSHOT && a->row.object == sn->row.id) {
            a->row.node = node;
            artifact_save(v, a, &e);
        }
}

void volume_inherit(struct space *s, int64_t node)
{
    struct err e = {0};
    for (struct artifact *a = s->volume->artifacts; a; a = a->next)
        if (a->row.node == node) {
            a->row.node = s->node_id;
            if (artifact_save(s->volume, a, &e) < 0)
                log_error("artifact %s: %s", a->row.name, e.msg);
        }
}

static bool is_needed(const struct volume *v, const struct artifact *base)
{
    for (const struct artifact *a = v->artifacts; a; a = a->next)
        if (a->row.kind == NODED_SNAPSHOT && !strcmp(a->row.base, base->row.name))
            return true; /* also while that one is deleted */
    for (const struct base_task *b = v->bases; b; b = b->next)
        if (b->id == (uint64_t)base->row.object)
            return true;
    return false;
}

/* Bases of ours of which nothing is left, here or in the store. In a transaction: another node may just be about to store something that needs one. */
static void prune_bases(struct volume *v)
{
    db_begin(v->space->db);
    cluster_sync(v->space);
    for (struct artifact *a = v->artifacts; a; a = a->next) {
        uint64_t id = (uint64_t)a->row.object;
        bool needed = false;
        if (a->row.kind != NODED_TEMPLATE || a->row.node != v->space->node_id || a->row.state == STORE_CONDEMNED || base_is_own(v->space, id))
            continue;
        for (const struct artifact *b = v->artifacts; b && !needed; b = b->next)
            needed = b->row.kind == NODED_TEMPLATE && b->row.object == a->row.object && is_needed(v, b);
        for (struct artifact *b = needed ? NULL : v->artifacts; b; b = b->next)
            if (b->row.kind == NODED_TEMPLATE && b->row.object == (int64_t)id && b->row.state != STORE_CONDEMNED)
                artifact_condemn(v, b);
        if (!needed)
            object_delete_later(v->space, NODED_TEMPLATE, id);
    }
    db_commit(v->space->db, NULL);
}

/* Other nodes want them. By itself: one may be large, and what is deleted does not wait for it. */
static void store_templates(void *arg)
{
    struct volume *v = arg;
    struct space *s = v->space;
    for (struct hmap_node *n = NULL; cluster_has_others(s) && (n = hmap_iterate(&s->templates, n));) {
        struct template *t = hmap_entry(n, struct template, by_id);
        struct err e = {0};
        if (!base_is_own(s, (uint64_t)t->row.id) || base_stored(v, (uint64_t)t->row.id))
            continue;
        template_ref(t);
        int rc = base_wait(v, (uint64_t)t->row.id, false, &e);
        if (rc < 0)
            log_warn("template '%s' is not in the object store for other nodes: %s", t->row.name, e.msg);
        template_unref(t);
        if (rc < 0)
            break;
        n = NULL; /* the map may have changed */
    }
    v->storing = false;
}

/* One that nobody has used for a while; notes which are in use. */
static struct snapshot *idle_copy(const struct volume *v)
{
    struct snapshot *idle = NULL;
    uint64_t now = uv_now(v->space->loop);
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&v->space->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (!sn->copied || sn->gone || sn->row.state != ARTIFACT_READY)
            continue;
        if (sn->readers || sn->loads || sn->browser)
            sn->copy_used = now;
        else if (now - sn->copy_used >= v->space->config.copy_keep * 1000ull)
            idle = sn;
    }
    return idle;
}

static struct artifact *next_condemned(const struct volume *v)
{
    struct artifact *a = v->artifacts;
    while (a && (a->row.state != STORE_CONDEMNED || a->busy || a->row.node != v->space->node_id))
        a = a->next;
    return a;
}

static void drop(struct volume *v, struct artifact *a)
{
    struct artifact **at = &v->artifacts;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    free(a);
}

static void forget(struct volume *v, struct artifact *a)
{
    db_delete(v->space->db, DB_ARTIFACTS, a->row.id, NULL);
    drop(v, a);
}

static void collect(struct volume *v)
{
    struct volumed_request req = {.op = VOLUMED_GC};
    struct volumed_reply rep = {0};
    struct err e = {0};
    uint64_t now = uv_now(v->space->loop);
    if (now < v->collect || !(v->garbage || now >= v->collect + DAILY_MSEC))
        return;
    int rc = volumed_run(v->space->co, v->conn, &req, NULL, 0, NULL, NULL, &rep, NULL, &e);
    v->space->counts.store_deleted += rep.gc.deleted_bytes;
    v->space->counts.store_replaced += rep.gc.replaced;
    if (rc < 0)
        log_warn("the object store was not cleared of what nobody needs: %s", e.msg);
    else
        v->garbage = false;
    v->collect = uv_now(v->space->loop) + COLLECT_MSEC;
}

static int delete_condemned(struct volume *v, struct err *e)
{
    int rc = 0;
    for (struct artifact *a; rc == 0 && (a = next_condemned(v));) {
        struct volumed_request req = {.op = VOLUMED_DELETE, .object = artifact_ref(a->row.tenant, a->row.name)};
        a->busy = true;
        rc = volumed_run(v->space->co, v->conn, &req, NULL, 0, NULL, NULL, NULL, NULL, e);
        a->busy = false;
        if (rc == 0) {
            forget(v, a);
            v->garbage = true;
        }
    }
    return rc;
}

/* A base may go once what needs it is gone. */
static void sweep(void *arg)
{
    struct volume *v = arg;
    struct err e = {0};
    int rc = delete_condemned(v, &e);
    prune_bases(v);
    for (struct snapshot *sn; (sn = idle_copy(v));) {
        snapshot_ref(sn);
        drop_copy(sn);
        snapshot_unref(sn);
    }
    if (rc == 0)
        rc = delete_condemned(v, &e);
    if (rc < 0)
        log_warn("an artifact is deleted later: %s", e.msg);
    collect(v);
    v->deleting = false;
}

static bool has_work(const struct volume *v)
{
    uint64_t now = uv_now(v->space->loop);
    return next_condemned(v) || (v->garbage && now >= v->collect) || now >= v->collect + DAILY_MSEC;
}

static void tick(uv_timer_t *timer)
{
    struct volume *v = timer->data;
    bool copies = idle_copy(v), bases = false;
    for (const struct artifact *a = v->artifacts; a && !bases; a = a->next)
        bases = a->row.kind == NODED_TEMPLATE && a->row.node == v->space->node_id && !base_is_own(v->space, (uint64_t)a->row.object);
    if (!v->storing && volumed_up(v->conn) && cluster_has_others(v->space)) {
        v->storing = true;
        co_spawn(v->space->co, store_templates, v);
    }
    if (v->deleting || !volumed_up(v->conn) || !(has_work(v) || bases || copies))
        return;
    v->deleting = true;
    co_spawn(v->space->co, sweep, v);
}

void volume_kick(struct space *s)
{
    uv_timer_start(&s->volume->timer, tick, 0, TICK_MSEC);
}

/* ---- other nodes ---- */

static void load_row(void *user, const void *row)
{
    struct volume *v = user;
    struct artifact *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    a->row = *(const struct artifact_row *)row;
    a->next = v->artifacts;
    v->artifacts = a;
}

void volume_told(struct space *s, int64_t id, const struct artifact_row *row)
{
    struct volume *v = s->volume;
    struct artifact *a = v->artifacts;
    while (a && a->row.id != id)
        a = a->next;
    bool base = row && row->kind == NODED_TEMPLATE && row->file == NODED_DISK && row->state == STORE_CONDEMNED;
    if (base && !base_is_own(s, (uint64_t)row->object) &&
        !(template_by_id(s, (uint64_t)row->object) && template_is_here(template_by_id(s, (uint64_t)row->object)))) {
        for (struct copied_base **c = &v->copied, *gone; (gone = *c);)
            if (gone->id == (uint64_t)row->object) {
                *c = gone->next;
                free(gone);
            } else {
                c = &gone->next;
            }
        object_delete_later(s, NODED_TEMPLATE, (uint64_t)row->object);
    }
    if (a && row)
        a->row = *row;
    else if (a && !a->busy)
        drop(v, a);
    else if (a)
        a->row.state = STORE_CONDEMNED;
    else if (row)
        load_row(v, row);
}

/* ---- start ---- */

bool volume_has_object(const struct space *s, uint64_t id)
{
    for (const struct artifact *a = s->volume->artifacts; a; a = a->next)
        if (a->row.kind == NODED_TEMPLATE && a->row.object == (int64_t)id && a->row.state == STORE_DURABLE)
            return true;
    return false;
}

int volume_open(struct space *s, struct err *e)
{
    struct volume *v = calloc(1, sizeof *v);
    if (!v)
        abort();
    v->space = s;
    s->volume = v;
    int rc = db_load(s->db, DB_ARTIFACTS, load_row, v, e);
    if (rc == 0)
        rc = volumed_open(s->loop, s->config.run, &v->conn, e);
    if (rc < 0)
        return rc;
    for (struct artifact *a = v->artifacts; a; a = a->next) /* of snapshots that were removed in the last moment */
        if (a->row.kind == NODED_SNAPSHOT && a->row.node == s->node_id && a->row.state != STORE_CONDEMNED &&
            !snapshot_by_id(s, (uint64_t)a->row.object))
            artifact_condemn(v, a);
    v->collect = uv_now(s->loop) + COLLECT_MSEC;
    uv_timer_init(s->loop, &v->timer);
    v->timer.data = v;
    uv_timer_start(&v->timer, tick, TICK_MSEC, TICK_MSEC);
    volume_watch_keys(v);
    return 0;
}

void volume_resume(struct space *s)
{
    for (const struct artifact *a = s->volume->artifacts; a; a = a->next) {
        struct snapshot *sn = a->row.kind == NODED_SNAPSHOT && a->row.state != STORE_CONDEMNED ? snapshot_by_id(s, (uint64_t)a->row.object) : NULL;
        const struct sandbox *sb = sn ? sandbox_by_id(s, (uint64_t)sn->row.sandbox) : NULL;
        if (sn && snapshot_is_here(sn) && !sn->row.durable && sn->row.state == ARTIFACT_READY && !(sb && sb->row.suspended == sn->row.id))
            volume_upload(sn, NULL);
    }
}
