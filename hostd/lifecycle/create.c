// SPDX-License-Identifier: Apache-2.0
// What the directory operations do at once: create, rename, remove, the copy hold; snapshots and templates.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/jobs/job.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/account.h"
#include "hostd/snapshot/schedule.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILL_NSEC 10000000000 /* how long after its mkdir a snapshot may still become a checkpoint */

static int check_name(const char *name, struct err *e)
{
    if (!str_name_valid(name, strlen(name)))
        return err_set(e, EINVAL, "'%.80s' is no name: 1 to 64 of letters, digits, '.', '_' and '-', the first a letter or digit", name);
    return 0;
}

/* ---- sandboxes ---- */

int sandbox_create(struct space *s, struct caller *c, const char *name, struct sandbox **out, struct err *e)
{
    int rc = check_name(name, e);
    if (rc < 0)
        return rc;
    if (sandbox_by_name(s, c->uid, name))
        return err_set(e, EEXIST, "you have a sandbox '%s' already", name);
    rc = admit_create(s, c, e);
    if (rc == 0)
        rc = admit_memory(s, s->config.memory, e);
    if (rc < 0)
        return rc;
    struct template *t = template_resolve(s, c, s->config.template_);
    if (!t || t->row.state != ARTIFACT_READY)
        return err_set(e, ENOENT, "the default template '%s' is not there: `spacectl template build %s --from DIR|TAR` makes it", s->config.template_,
                       s->config.template_);
    struct op *op = op_new(OP_LOAD);
    op->ref = (struct ref){REF_TEMPLATE, (uint64_t)t->row.id, 0};
    op->delay = true;
    *out = NULL;
    struct sandbox_row row = {.id = (int64_t)space_new_id(),
                              .owner = c->uid,
                              .gid = c->gid == (uint32_t)-1 ? 0 : c->gid,
                              .mode = 0700,
                              .created = space_now(),
                              .changed = space_now(),
                              .state = SANDBOX_CREATING,
                              .desired = SANDBOX_RUNNING,
                              .memory = (int64_t)s->config.memory,
                              .vcpus = s->config.vcpus,
                              .disk = t->row.size,
                              .delta = -1};
    str_copy(row.name, sizeof row.name, name);
    ref_format(&op->ref, row.want);
    db_begin(s->db);
    cluster_sync(s);
    rc = sandbox_by_name(s, c->uid, name) ? err_set(e, EEXIST, "you have a sandbox '%s' already", name) : sandbox_insert(s, &row, out, e);
    if (rc == 0) {
        struct event_scope scope = sandbox_scope(*out);
        event_emit(s, &scope, "state", (uint64_t)row.id, name, ",\"state\":\"creating\"");
    }
    int rc2 = db_commit(s->db, e);
    if (rc == 0 && rc2 < 0)
        sandbox_forget(*out);
    if (rc < 0 || rc2 < 0) {
        free(op);
        return rc < 0 ? rc : rc2;
    }
    op_submit(*out, op, false, NULL);
    return 0;
}

int sandbox_rename(struct sandbox *sb, const char *name, struct err *e)
{
    char old[sizeof sb->row.name];
    int rc = check_name(name, e);
    if (rc < 0)
        return rc;
    if (sandbox_by_name(sb->space, (uint32_t)sb->row.owner, name))
        return err_set(e, EEXIST, "a sandbox '%s' is there already", name);
    rc = cluster_hold(sb, e);
    if (rc < 0)
        return rc;
    memcpy(old, sb->row.name, sizeof old);
    bool taken = sandbox_by_name(sb->space, (uint32_t)sb->row.owner, name);
    str_copy(sb->row.name, sizeof sb->row.name, name);
    rc = taken ? err_set(e, EEXIST, "a sandbox '%s' is there already", name) : sandbox_save(sb, e);
    int rc2 = db_commit(sb->space->db, rc < 0 ? NULL : e);
    if (rc < 0 || rc2 < 0) {
        memcpy(sb->row.name, old, sizeof old);
        return rc < 0 ? rc : rc2;
    }
    hmap_remove(&sb->space->sandbox_names, &sb->by_name);
    hmap_insert(&sb->space->sandbox_names, &sb->by_name, space_name_key((uint32_t)sb->row.owner, name));
    char quoted[160];
    struct event_scope scope = sandbox_scope(sb);
    event_emit(sb->space, &scope, "renamed", (uint64_t)sb->row.id, name, ",\"from\":%s", event_quote(old, quoted, sizeof quoted));
    return 0;
}

int sandbox_destroy(struct sandbox *sb, struct err *e)
{
    if (sandbox_state(sb) == SANDBOX_DESTROYING)
        return 0;
    int rc = cluster_hold(sb, e);
    if (rc < 0)
        return rc;
    sb->copy = COPY_NONE;
    sb->removed_as = sb->row.state;
    sb->row.desired = SANDBOX_DESTROYING;
    sandbox_set_state(sb, SANDBOX_DESTROYING, NULL);
    db_commit(sb->space->db, NULL);
    sandbox_unname(sb);
    if (!sb->sources || sb->fill) /* a disk that still arrives may do so for ever: who waits for that gets nothing */
        sandbox_end(sb);
    return 0;
}

int sandbox_copy_hold(struct sandbox *sb, struct err *e)
{
    if (sb->row.touched || sb->copy != COPY_NONE || sandbox_state(sb) == SANDBOX_DESTROYING)
        return err_set(e, EBUSY, "sandbox '%s' is in use already: a copy goes into a new one", sb->row.name);
    sb->row.want[0] = 0;   /* a restart finds a copy without a head, and removes it */
    sb->row.origin[0] = 0; /* should the default template have got as far as that */
    int rc = sandbox_save(sb, e);
    if (rc < 0)
        return rc;
    sb->copy = COPY_HELD;
    op_abort(sb); /* the load of the default template; it had hardly begun */
    return 0;
}

void sandbox_copy_head(struct sandbox *sb, const struct ref *ref)
{
    ref_format(ref, sb->row.want);
}

void sandbox_copy_commit(struct sandbox *sb, struct waiter *w)
{
    struct err e = {0};
    struct op *op;
    struct ref ref;
    if (sb->copy != COPY_HELD || ref_parse(sb->row.want, &ref) < 0) {
        if (w)
            w->done(w, err_set(&e, EINVAL, "the copy of '%s' brought no head", sb->row.name), &e);
        return;
    }
    sb->copy = COPY_COMMITTED;
    int rc = sandbox_save(sb, &e); /* what is wanted, before anybody relies on it */
    if (rc < 0) {
        sb->copy = COPY_HELD; /* removed when it is given up */
        if (w)
            w->done(w, rc, &e);
        return;
    }
    op = op_new(OP_LOAD);
    op->ref = ref;
    op_submit(sb, op, false, w);
}

void sandbox_copy_release(struct sandbox *sb)
{
    struct err e = {0};
    if (sb->copy == COPY_HELD)
        sandbox_destroy(sb, &e);
    sb->copy = COPY_NONE;
}

/* ---- snapshots ---- */

struct snapshot_work {
    struct snapshot *snapshot;
    struct ref ref;
    struct sandbox *source;
};

static void snapshot_work_end(struct snapshot_work *w)
{
    source_release(w->source);
    snapshot_unref(w->snapshot);
    free(w);
}

/* The object that was captured for it is the snapshot's; or nobody's, when that went meanwhile. */
static void taken(struct snapshot *sn, const struct capture *c, int rc, const struct err *e)
{
    if (sn->gone) { /* also after an error: space-noded may have been lost after it was done */
        object_delete_later(sn->space, NODED_SNAPSHOT, c->id);
        job_rows_remove(sn->space, c->id);
        return;
    }
    snapshot_set_head(sn, c);
    snapshot_set_state(sn, rc < 0 ? ARTIFACT_FAILED : ARTIFACT_READY, rc < 0 ? e->msg : NULL);
    account_of_snapshot(sn);
}

int snapshot_take(struct snapshot *sn, const struct ref *ref, bool with_memory, struct err *e)
{
    struct capture c = {.kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id, .seal = true, .with_memory = with_memory};
    snapshot_ref(sn);
    int rc = capture_sandbox(sn->space, NULL, ref, &c, e);
    if (rc == 0)
        rc = capture_seal(sn->space, &c, e);
    taken(sn, &c, rc, e);
    if (rc < 0 && sn->row.automatic && !sn->gone)
        snapshot_destroy(sn); /* nobody asked for it */
    snapshot_unref(sn);
    return rc;
}

static void take_snapshot(void *arg)
{
    struct snapshot_work *w = arg;
    struct err e = {0};
    snapshot_take(w->snapshot, &w->ref, false, &e);
    snapshot_work_end(w);
}

int snapshot_record(struct sandbox *sb, const char *name, bool automatic, struct snapshot **out, struct err *e)
{
    struct snapshot_row row = {.id = (int64_t)space_new_id(),
                               .sandbox = sb->row.id,
                               .owner = sb->row.owner,
                               .gid = sb->row.gid,
                               .mode = sb->row.mode,
                               .created = space_now(),
                               .state = ARTIFACT_CREATING,
                               .automatic = automatic,
                               .size = sb->row.disk,
                               .taken = schedule_now(sb->space),
                               .generation = sb->row.generation,
                               .delta = -1};
    str_copy(row.name, sizeof row.name, name);
    str_copy(row.sandbox_name, sizeof row.sandbox_name, sb->row.name);
    return snapshot_insert(sb->space, &row, out, e);
}

static void snapshot_spawn(struct snapshot *sn, const struct ref *ref, void (*work)(void *arg))
{
    struct snapshot_work *w = calloc(1, sizeof *w);
    if (!w)
        abort();
    w->snapshot = snapshot_ref(sn);
    w->ref = *ref;
    w->source = source_hold(sn->space, ref);
    co_spawn(sn->space->co, work, w);
}

int snapshot_create(struct sandbox *sb, const char *name, struct snapshot **out, struct err *e)
{
    struct space *s = sb->space;
    int rc = check_name(name, e);
    if (rc < 0)
        return rc;
    if (!strncmp(name, "auto-", 5))
        return err_set(e, EINVAL, "names that start with 'auto-' are for automatic snapshots");
    if (snapshot_by_name(s, (uint64_t)sb->row.id, name))
        return err_set(e, EEXIST, "'%s' has a snapshot '%s' already", sb->row.name, name);
    if (!sandbox_is_here(sb))
        return cluster_refuse(sb, e);
    if (!sb->row.object)
        return err_set(e, EAGAIN, "sandbox '%s' has no disk here: it is %s", sb->row.name, state_name(sandbox_state(sb)));
    rc = admit_disk(s, (uint32_t)sb->row.owner, e);
    if (rc == 0)
        rc = admit_space(s, e);
    if (rc == 0)
        rc = snapshot_record(sb, name, false, out, e);
    if (rc < 0)
        return rc;
    struct ref ref = {REF_SANDBOX, (uint64_t)sb->row.id, (uint64_t)sb->row.generation};
    (*out)->fresh = true;
    snapshot_spawn(*out, &ref, take_snapshot);
    return 0;
}

/* Takes the place of what was captured for it before. */
static void replace_snapshot(struct snapshot_work *w, bool with_memory)
{
    struct snapshot *sn = w->snapshot;
    struct noded_request remove = {.op = NODED_OBJECT_DELETE, .kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id};
    struct err e = {0};
    if (noded_call(sn->space, &remove, NULL, NULL, &e) < 0)
        snapshot_set_state(sn, ARTIFACT_FAILED, e.msg);
    else
        snapshot_take(sn, &w->ref, with_memory, &e);
    snapshot_work_end(w);
}

/* A checkpoint, in place of the disk that mkdir took. */
static void fill_snapshot(void *arg)
{
    replace_snapshot(arg, true);
}

static void retake_snapshot(void *arg)
{
    replace_snapshot(arg, false);
}

void snapshot_again(struct snapshot *sn, const struct sandbox *src)
{
    struct ref ref = {REF_SANDBOX, (uint64_t)src->row.id, (uint64_t)src->row.generation};
    snapshot_spawn(sn, &ref, retake_snapshot);
}

/* mkdir's own capture is done: now the head's. */
struct fill {
    struct waiter w;
    struct snapshot *snapshot;
    struct ref ref;
    struct wait_list done;
    struct sandbox *source;
};

static void fill_now(struct waiter *w, int rc, const struct err *e)
{
    struct fill *f = (struct fill *)(void *)w;
    struct snapshot *sn = f->snapshot;
    (void)rc;
    (void)e;
    if (sn->gone) {
        wait_done_all(&f->done, -ENOENT, NULL);
    } else {
        for (struct waiter *next; (next = f->done.first);) {
            wait_remove(next);
            wait_add(&sn->ready, next);
        }
        sn->row.state = ARTIFACT_CREATING; /* who waits for it goes on waiting */
        db_save(sn->space->db, DB_SNAPSHOTS, &sn->row, NULL);
        snapshot_spawn(sn, &f->ref, fill_snapshot);
    }
    source_release(f->source);
    snapshot_unref(sn);
    free(f);
}

int snapshot_fill(struct snapshot *sn, const struct ref *ref, struct waiter *w, struct err *e)
{
    if (!sn->fresh || space_now() - sn->row.created > FILL_NSEC)
        return err_set(e, EBUSY, "snapshot '%s' is taken and never changes: mkdir another, and write the head into that", sn->row.name);
    sn->fresh = false;
    struct fill *f = calloc(1, sizeof *f);
    if (!f)
        abort();
    *f = (struct fill){{.done = fill_now}, snapshot_ref(sn), *ref, {0}, source_hold(sn->space, ref)};
    if (w)
        wait_add(&f->done, w);
    if (sn->row.state == ARTIFACT_CREATING)
        wait_add(&sn->ready, &f->w);
    else
        fill_now(&f->w, 0, NULL);
    return 0;
}

void snapshot_destroy(struct snapshot *sn)
{
    struct event_scope scope = {sn->row.owner, sn->row.gid, sn->row.mode};
    event_emit(sn->space, &scope, "snapshot", (uint64_t)sn->row.sandbox, sn->row.sandbox_name, ",\"snapshot\":\"%s\",\"state\":\"gone\"",
               sn->row.name);
    object_delete_later(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id); /* whoever still makes it looks again at the end */
    account_gone(sn->space, NODED_SNAPSHOT, (uint64_t)sn->row.id, sn->row.parent_kind, sn->row.parent);
    job_rows_remove(sn->space, (uint64_t)sn->row.id);
    pool_drain(sn->space, (uint64_t)sn->row.id);
    volume_abort(sn);
    struct space *s = sn->space;
    uint64_t id = (uint64_t)sn->row.id;
    snapshot_forget(sn);
    volume_drop(s, id);
}

/* ---- templates ---- */

struct template_work {
    struct template *template;
    struct ref ref;
    struct sandbox *source;
};

static void create_template_object(void *arg)
{
    struct template *t = arg;
    struct err e = {0};
    struct noded_request req = {.op = NODED_OBJECT_CREATE, .kind = NODED_TEMPLATE, .id = (uint64_t)t->row.id};
    int rc = noded_call(t->space, &req, NULL, NULL, &e);
    if (t->row.deleted)
        object_delete_later(t->space, NODED_TEMPLATE, (uint64_t)t->row.id);
    else if (!t->busy && !t->copying) /* a copy that came meanwhile decides itself */
        template_set_state(t, rc < 0 ? ARTIFACT_FAILED : ARTIFACT_EMPTY, rc < 0 ? e.msg : NULL);
    template_unref(t);
}

int template_create(struct space *s, struct caller *c, const char *name, struct template **out, struct err *e)
{
    int rc = check_name(name, e);
    if (rc < 0)
        return rc;
    if (!c->may_create)
        return err_set(e, EPERM, "only root and members of the group '%s' may make things here", s->config.group);
    if (template_by_name(s, c->uid, name))
        return err_set(e, EEXIST, "you have a template '%s' already", name);
    rc = admit_disk(s, c->uid, e);
    if (rc == 0)
        rc = admit_space(s, e);
    if (rc < 0)
        return rc;
    struct template_row row = {.id = (int64_t)space_new_id(),
                               .owner = c->uid,
                               .gid = c->gid == (uint32_t)-1 ? 0 : c->gid,
                               .created = space_now(),
                               .state = ARTIFACT_CREATING,
                               .delta = -1};
    str_copy(row.name, sizeof row.name, name);
    db_begin(s->db);
    cluster_sync(s);
    rc = template_by_name(s, c->uid, name) ? err_set(e, EEXIST, "you have a template '%s' already", name) : template_insert(s, &row, out, e);
    int rc2 = db_commit(s->db, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : rc2;
    if (rc == 0)
        co_spawn(s->co, create_template_object, template_ref(*out));
    return rc;
}

/* Superblock of an ext2/3/4 file system: magic at 1080, sizes at 1024 (Linux Documentation/filesystems/ext4/super.rst). */
static int check_image(struct template *t, struct err *e)
{
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = NODED_TEMPLATE, .id = (uint64_t)t->row.id, .file = NODED_DISK};
    AUTO_CLOSE int fd = -1;
    unsigned char sb[1024];
    struct stat st;
    int rc = noded_call(t->space, &req, NULL, &fd, e);
    if (rc == -ENOENT)
        return err_set(e, EINVAL, "template '%s' has no disk.raw: write an ext4 image into it first", t->row.name);
    if (rc < 0)
        return rc;
    if (fstat(fd, &st) < 0 || pread(fd, sb, sizeof sb, 1024) != (ssize_t)sizeof sb || sb[56] != 0x53 || sb[57] != 0xef)
        return err_set(e, EINVAL, "disk.raw of template '%s' is no ext4 image", t->row.name);
    uint64_t blocks = (uint64_t)sb[4] | (uint64_t)sb[5] << 8 | (uint64_t)sb[6] << 16 | (uint64_t)sb[7] << 24;
    uint64_t size = sb[24] <= 6 ? blocks << (10 + sb[24]) : UINT64_MAX;
    if (size > (uint64_t)st.st_size || st.st_size % 4096)
        return err_set(e, EINVAL, "disk.raw of template '%s' is cut: its file system has %" PRIu64 " bytes and the file %" PRIu64, t->row.name, size,
                       (uint64_t)st.st_size);
    t->row.size = st.st_size;
    return 0;
}

static int seal_steps(struct template *t, const struct ref *ref, struct err *e)
{
    struct noded_request req = {.kind = NODED_TEMPLATE, .id = (uint64_t)t->row.id};
    struct capture c = {.kind = NODED_TEMPLATE, .id = (uint64_t)t->row.id};
    int rc = 0;
    if (ref->kind != REF_NONE) { /* published from a sandbox or snapshot: its disk replaces the empty object */
        req.op = NODED_OBJECT_DELETE;
        rc = noded_call(t->space, &req, NULL, NULL, e);
        if (rc == 0)
            rc = capture_ref(t->space, NULL, ref, &c, e);
    }
    if (rc == 0)
        rc = check_image(t, e);
    req.op = NODED_TEMPLATE_KERNEL;
    if (rc == 0)
        rc = noded_call(t->space, &req, NULL, NULL, e);
    req.op = NODED_OBJECT_SEAL;
    return rc < 0 ? rc : noded_call(t->space, &req, NULL, NULL, e);
}

static void seal_template(void *arg)
{
    struct template_work *w = arg;
    struct template *t = w->template;
    struct err e = {0};
    int rc = seal_steps(t, &w->ref, &e);
    t->busy = false;
    account_published(t, &w->ref);
    if (!t->row.deleted)
        template_set_state(t, rc < 0 ? ARTIFACT_EMPTY : ARTIFACT_READY, rc < 0 ? e.msg : NULL);
    if (rc == 0 && !t->row.deleted) {
        account_of_template(t);
        template_wish(t);
    }
    wait_done_all(&t->sealing, rc, &e);
    source_release(w->source);
    template_unref(t);
    free(w);
}

void template_load(struct template *t, const struct ref *ref, struct waiter *w)
{
    struct err e = {0};
    if (t->busy || t->row.state == ARTIFACT_READY) {
        if (w)
            w->done(w, err_set(&e, EBUSY, "template '%s' is %s and cannot be changed", t->row.name, t->busy ? "being sealed" : "sealed"), &e);
        return;
    }
    t->busy = true;
    t->row.state = ARTIFACT_CREATING; /* who wants to use it waits */
    struct template_work *work = calloc(1, sizeof *work);
    if (!work)
        abort();
    *work = (struct template_work){template_ref(t), *ref, source_hold(t->space, ref)};
    if (w)
        wait_add(&t->sealing, w);
    co_spawn(t->space->co, seal_template, work);
}

void template_seal(struct template *t, struct waiter *w)
{
    struct ref none = {0};
    template_load(t, &none, w);
}

int template_destroy(struct template *t, struct err *e)
{
    if (t->busy)
        return err_set(e, EBUSY, "template '%s' is being sealed", t->row.name);
    if (t->row.node != t->space->node_id)
        return err_set(e, EREMOTE, "template '%s' was made on node %s: remove it there", t->row.name, cluster_name(t->space, t->row.node));
    t->row.deleted = 1;
    template_unname(t);
    template_heads_remove(t);
    account_gone(t->space, NODED_TEMPLATE, (uint64_t)t->row.id, t->row.parent_kind, t->row.parent);
    object_delete_later(t->space, NODED_TEMPLATE, (uint64_t)t->row.id); /* whoever still makes it looks again at the end */
    template_forget(t);
    return 0;
}
