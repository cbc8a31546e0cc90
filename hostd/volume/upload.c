// SPDX-License-Identifier: Apache-2.0
// Making the files of a snapshot, or of a base, artifacts. See volume.h.
//
// Theory of operation. First all files are opened and the ranges in which each differs from its base are found, from extent maps and without reading; then
// they are sent one after the other, so that what is left is known. A file's row keeps the base that was chosen first, as long as that is still there to
// count from. Disk and memory may be sent as what changed since an earlier durable snapshot of the same sandbox (the parent) instead: the disk by extents, the memory by
// tables of pages (pages.c), since a capture writes all pages anew that differ from its base.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/pool/pool.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARENTS_MAX 64 /* a longer chain has lost its way */
#define TRIES       3  /* of an upload that garbage collection went past */
#define RANGES      1024u

/* One file on its way. */
struct part {
    struct artifact *a;
    int fd, ranges;
    uint64_t size, total;
    struct artifact *parent;       /* the ranges are against that, */
    struct snapshot *parent_of;    /* which is kept meanwhile, */
    struct artifact *counted_from; /* and the same, when `parent` was given up */
};

/* The files of one object. */
struct work {
    struct volume *volume;
    struct volume_task *task; /* NULL: a base */
    struct artifact_row like; /* kind, object, tenant */
    uint64_t base;            /* template id; 0: none */
    struct part part[6];
    unsigned count;
    uint64_t done; /* bytes of parts before the current one */
};

static void work_close(struct work *w)
{
    for (unsigned i = 0; i < w->count; i++) {
        w->part[i].a->busy = false;
        if (w->part[i].fd >= 0)
            close(w->part[i].fd);
        if (w->part[i].ranges >= 0)
            close(w->part[i].ranges);
        if (w->part[i].parent_of) {
            w->part[i].counted_from->busy = false;
            w->part[i].parent_of->loads--;
            snapshot_unref(w->part[i].parent_of);
        }
    }
}

/* ---- bases and parents ---- */

uint64_t upload_find_base(const struct space *s, int64_t base_kind, int64_t base, int64_t parent_kind, int64_t parent)
{
    int64_t kind = parent_kind, id = parent;
    for (int i = 0; i < PARENTS_MAX && base_kind == NODED_SNAPSHOT; i++) { /* a head that is mapped itself was counted from one, too */
        const struct snapshot *of = snapshot_by_id(s, (uint64_t)base);
        base_kind = of ? of->row.base_kind : 0;
        base = of ? of->row.base : 0;
    }
    if (base_kind == NODED_TEMPLATE && base_is_here(s, (uint64_t)base))
        return (uint64_t)base;
    for (int i = 0; i < PARENTS_MAX && id; i++) {
        if (kind == NODED_TEMPLATE)
            return base_is_here(s, (uint64_t)id) ? (uint64_t)id : 0;
        const struct snapshot *above = kind == NODED_SNAPSHOT ? snapshot_by_id(s, (uint64_t)id) : NULL;
        const struct sandbox *live = kind == NODED_SANDBOX ? sandbox_by_object(s, (uint64_t)id) : NULL;
        kind = above ? above->row.parent_kind : live ? live->row.parent_kind : 0;
        id = above ? above->row.parent : live ? live->row.parent : 0;
    }
    return 0;
}

/* That file of the newest durable snapshot of the same sandbox that is in the pool and has the same base. */
static struct artifact *find_parent(struct work *w, const struct artifact *of)
{
    const struct snapshot *sn = w->task->snapshot;
    struct artifact *best = NULL;
    int64_t newest = -1;
    for (struct artifact *a = w->volume->artifacts; a; a = a->next) {
        struct snapshot *other = a->row.kind == NODED_SNAPSHOT && a->row.file == of->row.file && a->row.state == STORE_DURABLE && !a->busy
                                     ? snapshot_by_id(w->volume->space, (uint64_t)a->row.object)
                                     : NULL;
        bool fits = other && other != sn && other->row.sandbox == sn->row.sandbox && other->row.durable && other->row.state == ARTIFACT_READY &&
                    other->row.size <= sn->row.size && !strcmp(a->row.tenant, of->row.tenant) && !strcmp(a->row.base, of->row.base);
        if (!fits || other->row.taken <= newest)
            continue;
        newest = other->row.taken;
        best = a;
    }
    return best;
}

/* ---- ranges ---- */

static int append(int from, int to, uint64_t *bytes, struct err *e)
{
    struct noded_range buf[RANGES];
    ssize_t n;
    while ((n = read(from, buf, sizeof buf)) > 0) {
        if (write(to, buf, (size_t)n) != n)
            return err_sys(e, "keep a list of ranges");
        for (size_t i = 0; i < (size_t)n / sizeof buf[0]; i++)
            *bytes += buf[i].length;
    }
    return n < 0 ? err_sys(e, "read a list of ranges") : 0;
}

/* In what the file differs from that of (kind2, id2); from a file of holes for id2 0. */
static int find_ranges(struct space *s, const struct artifact_row *row, uint32_t kind2, uint64_t id2, struct part *p, struct err *e)
{
    struct noded_request req = {.op = NODED_FILE_COMPARE,
                                .kind = (uint32_t)row->kind,
                                .id = (uint64_t)row->object,
                                .kind2 = id2 ? kind2 : 0,
                                .id2 = id2,
                                .file = (uint32_t)row->file,
                                .flags = NODED_RANGES};
    struct noded_reply rep;
    int rc;
    AUTO_CLOSE int all = memfd_create("ranges", MFD_CLOEXEC);
    if (all < 0)
        return err_sys(e, "make a list of ranges");
    p->total = 0;
    do {
        AUTO_CLOSE int fd = -1;
        rc = noded_call(s, &req, &rep, &fd, e);
        if (rc == 0)
            rc = append(fd, all, &p->total, e);
        req.size = rep.extents.next;
    } while (rc == 0 && req.size);
    if (rc == 0 && lseek(all, 0, SEEK_SET) == 0)
        p->ranges = steal_fd(&all);
    return rc;
}

int upload_ranges(struct space *s, const struct artifact_row *row, uint64_t base, int *ret_fd, struct err *e)
{
    struct part p = {.ranges = -1};
    int rc = find_ranges(s, row, NODED_TEMPLATE, base, &p, e);
    *ret_fd = p.ranges;
    return rc;
}

static bool has_ranges(int64_t file)
{
    return file == NODED_DISK || file == NODED_RAM;
}

/* With an earlier snapshot's. */
static int compare(struct space *s, struct part *p, uint64_t before)
{
    if (p->a->row.file == NODED_RAM)
        return pages_compare(s, (uint64_t)p->a->row.object, before, &p->ranges, &p->total, NULL);
    return find_ranges(s, &p->a->row, NODED_SNAPSHOT, before, p, NULL);
}

static int ranges_of(struct work *w, struct part *p, struct err *e)
{
    struct space *s = w->volume->space;
    const struct artifact *base = artifact_by_name(w->volume, p->a->row.base);
    struct artifact *parent = w->task ? find_parent(w, p->a) : NULL;
    if (parent && compare(s, p, (uint64_t)parent->row.object) == 0) {
        p->parent = p->counted_from = parent;
        parent->busy = true;
        p->parent_of = snapshot_ref(snapshot_by_id(s, (uint64_t)parent->row.object));
        p->parent_of->loads++; /* it stays until this is done */
        return 0;
    }
    return find_ranges(s, &p->a->row, NODED_TEMPLATE, base ? (uint64_t)base->row.object : 0, p, e);
}

/* ---- the plan ---- */

/* The row of a file, with its base if there is one; one of before is taken up when its base can still be counted from. */
static int row_of(struct work *w, uint32_t file, struct artifact **out, struct err *e)
{
    struct volume *v = w->volume;
    struct artifact *a = artifact_find(v, (uint32_t)w->like.kind, (uint64_t)w->like.object, file);
    struct artifact *base = a ? artifact_by_name(v, a->row.base) : NULL;
    if (a && a->row.state != STORE_DURABLE && a->row.base[0] && !(base && base_is_here(v->space, (uint64_t)base->row.object))) {
        artifact_condemn(v, a);
        a = NULL;
    }
    *out = a;
    if (a)
        return 0;
    struct artifact_row row = w->like;
    row.file = file;
    db_begin(v->space->db); /* its base is another node's, perhaps, who must not delete it in this moment */
    cluster_sync(v->space);
    base = w->base && has_ranges(file) ? artifact_find(v, NODED_TEMPLATE, w->base, file) : NULL;
    if (base && base->row.state == STORE_DURABLE)
        str_copy(row.base, sizeof row.base, base->row.name);
    int rc = artifact_create(v, &row, out, e);
    int rc2 = db_commit(v->space->db, rc < 0 ? NULL : e);
    return rc < 0 ? rc : rc2;
}

/* Adds a file, unless it is stored already. */
static int add_part(struct work *w, uint32_t file, struct err *e)
{
    struct part *p = &w->part[w->count];
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = (uint32_t)w->like.kind, .id = (uint64_t)w->like.object, .file = file};
    struct stat st;
    *p = (struct part){.fd = -1, .ranges = -1};
    int rc = row_of(w, file, &p->a, e);
    if (rc < 0 || p->a->row.state == STORE_DURABLE)
        return rc;
    w->count++;
    p->a->busy = true;
    rc = noded_call(w->volume->space, &req, NULL, &p->fd, e);
    if (rc == 0 && fstat(p->fd, &st) < 0)
        rc = err_sys(e, "look at %s", volume_file_name(file));
    if (rc < 0)
        return rc;
    p->size = p->total = (uint64_t)st.st_size;
    if (has_ranges(file))
        rc = ranges_of(w, p, e);
    if (w->task)
        w->task->total += p->total;
    return rc;
}

/* ---- sending ---- */

static void progress(void *user, uint64_t done, uint64_t total)
{
    struct work *w = user;
    (void)total;
    if (w->task)
        w->task->bytes = w->done + done;
}

uint32_t volume_kind_of(uint32_t file)
{
    static const uint32_t files[] = {[NODED_DISK] = VOLUMED_DISK,    [NODED_RAM] = VOLUMED_RAM,      [NODED_STATE] = VOLUMED_STATE,
                                     [NODED_KERNEL] = VOLUMED_STATE, [NODED_INITRD] = VOLUMED_STATE, [NODED_META] = VOLUMED_META};
    return files[file];
}

static int send_part(struct work *w, struct part *p, struct volumed_reply *rep, struct err *e)
{
    struct volumed_request req = {.op = VOLUMED_UPLOAD, .file = volume_kind_of((uint32_t)p->a->row.file), .size = p->size};
    int fds[2] = {p->fd, p->ranges}, rc = 0;
    req.object = artifact_ref(p->a->row.tenant, p->a->row.name);
    req.base = artifact_ref(VOLUME_TEMPLATES, p->a->row.base);
    if (p->parent)
        req.parent = artifact_ref(p->parent->row.tenant, p->parent->row.name);
    for (int i = 0; i < TRIES; i++) {
        *e = (struct err){0};
        if (p->ranges >= 0)
            lseek(p->ranges, 0, SEEK_SET);
        rc = volumed_run(w->volume->space->co, w->volume->conn, &req, fds, p->ranges >= 0 ? 2 : 1, progress, w, rep, NULL, e);
        if (rc != -ESTALE)
            break;
    }
    return rc;
}

static int store_part(struct work *w, struct part *p, struct err *e)
{
    struct volumed_reply rep;
    int rc = send_part(w, p, &rep, e);
    if (p->parent && (rc == -ENOENT || rc == -EINVAL || rc == -EBADMSG)) { /* it is not what we thought it is, or damaged: count from the base */
        const struct artifact *base = artifact_by_name(w->volume, p->a->row.base);
        log_info("artifact %s is stored without its parent: %s", p->a->row.name, e->msg);
        *e = (struct err){0};
        p->parent = NULL;
        close(p->ranges);
        p->ranges = -1;
        rc = find_ranges(w->volume->space, &p->a->row, NODED_TEMPLATE, base ? (uint64_t)base->row.object : 0, p, e);
        if (rc == 0)
            rc = send_part(w, p, &rep, e);
    }
    if (rc < 0)
        return err_wrap(e, "store %s of %012" PRIx64, volume_file_name((uint32_t)p->a->row.file), (uint64_t)p->a->row.object);
    if (p->a->row.state == STORE_CONDEMNED)
        return err_set(e, ECANCELED, "what it belongs to was removed");
    p->a->row.state = STORE_DURABLE;
    p->a->row.size = (int64_t)p->size;
    p->a->row.stored = (int64_t)rep.upload.stored_bytes;
    w->done += p->total;
    if (w->task) {
        w->task->bytes = w->done;
        w->task->sum.read += rep.upload.read_bytes;
        w->task->sum.fresh += rep.upload.new_bytes;
        w->task->sum.stored += rep.upload.stored_bytes;
    }
    return artifact_save(w->volume, p->a, e);
}

static int store_parts(struct work *w, struct err *e)
{
    int rc = 0;
    for (unsigned i = 0; i < w->count && rc == 0; i++)
        rc = store_part(w, &w->part[i], e);
    return rc;
}

/* ---- a base ---- */

int upload_base(struct volume *v, uint64_t id, struct err *e)
{
    static const uint32_t files[] = {NODED_DISK, NODED_KERNEL, NODED_INITRD, NODED_RAM};
    struct work w = {.volume = v, .like = {.kind = NODED_TEMPLATE, .object = (int64_t)id, .tenant = VOLUME_TEMPLATES}};
    int rc = 0;
    for (size_t i = 0; i < (prepared_has_object(v->space, id) ? 4 : 3) && rc == 0; i++)
        rc = add_part(&w, files[i], e);
    if (rc == 0)
        rc = store_parts(&w, e);
    work_close(&w);
    return rc;
}

/* ---- a snapshot ---- */

static int plan(struct work *w, struct err *e)
{
    static const uint32_t files[] = {NODED_DISK, NODED_RAM, NODED_STATE, NODED_META};
    const struct snapshot *sn = w->task->snapshot;
    int rc = 0;
    for (size_t i = 0; i < (sn->row.memory ? 4 : 1) && rc == 0; i++)
        rc = add_part(w, files[i], e);
    const struct artifact *disk = artifact_find(w->volume, NODED_SNAPSHOT, (uint64_t)sn->row.id, NODED_DISK);
    if (rc == 0 && !disk->row.base[0]) /* else the base has them */
        rc = add_part(w, NODED_KERNEL, e);
    return rc < 0 || disk->row.base[0] ? rc : add_part(w, NODED_INITRD, e);
}

int upload_run(struct volume_task *t, struct err *e)
{
    struct snapshot *sn = t->snapshot;
    struct volume *v = t->volume;
    struct work w = {.volume = v, .task = t, .like = {.kind = NODED_SNAPSHOT, .object = sn->row.id}};
    w.base = upload_find_base(v->space, sn->row.memory ? sn->row.base_kind : 0, sn->row.base, sn->row.parent_kind, sn->row.parent);
    snprintf(w.like.tenant, sizeof w.like.tenant, "u%" PRId64, sn->row.owner);
    int rc = w.base ? base_wait(v, w.base, false, e) : 0;
    if (rc < 0 && rc != -ENOTCONN && rc != -ECANCELED) {
        log_warn("snapshot %012" PRIx64 " is stored without its template: %s", (uint64_t)sn->row.id, e->msg);
        *e = (struct err){0};
        w.base = 0;
        rc = 0;
    }
    if (rc == 0 && sn->gone)
        rc = err_set(e, ENOENT, "snapshot '%s' was removed", sn->row.name);
    if (rc == 0)
        rc = plan(&w, e);
    if (rc == 0)
        rc = store_parts(&w, e);
    work_close(&w);
    return rc;
}
