// SPDX-License-Identifier: Apache-2.0
// Bringing a snapshot's object back from the store. See volume.h.
//
// Theory of operation. The object is made under its old id as a copy of its base (of which it then shares all that it has in common), or empty; each file is
// completed by space-volumed, which verifies every chunk; then it is sealed. An object that is there and not sealed was begun before and is gone on with;
// one that is sealed was complete. A base that is not in this pool is brought back first in the same way, by one coroutine however many wait for it.
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An object that is filled. */
struct target {
    struct volume *volume;
    struct volume_task *task; /* NULL: a base */
    uint32_t kind;
    uint64_t id;
    uint64_t base; /* template id of whose files it began as a copy; 0: of nothing */
    bool begun;    /* it was there already */
    uint64_t done;
};

static int make(struct target *t, struct err *e)
{
    struct space *s = t->volume->space;
    struct noded_request copy = {.op = NODED_OBJECT_SNAPSHOT, .kind = t->kind, .id = t->id, .kind2 = NODED_TEMPLATE, .id2 = t->base};
    struct noded_request empty = {.op = NODED_OBJECT_CREATE, .kind = t->kind, .id = t->id};
    int rc = noded_call(s, t->base ? &copy : &empty, NULL, NULL, e);
    t->begun = rc == -EEXIST;
    if (t->begun)
        *e = (struct err){0};
    return t->begun ? 0 : rc;
}

static void progress(void *user, uint64_t done, uint64_t total)
{
    struct target *t = user;
    (void)total;
    if (t->task)
        t->task->bytes = t->done + done;
}

static int fill(struct target *t, struct artifact *a, struct err *e)
{
    struct volume *v = t->volume;
    struct noded_request open = {.op = NODED_FILE_OPEN, .kind = t->kind, .id = t->id, .file = (uint32_t)a->row.file, .flags = NODED_WRITABLE};
    struct volumed_request req = {.op = VOLUMED_DOWNLOAD, .flags = t->begun ? VOLUMED_HAVE : 0};
    struct volumed_reply rep;
    AUTO_CLOSE int fd = -1;
    req.object = artifact_ref(a->row.tenant, a->row.name);
    req.base = artifact_ref(VOLUME_TEMPLATES, a->row.base);
    int rc = noded_call(v->space, &open, NULL, &fd, e);
    if (rc == 0 && !t->begun && !a->row.base[0] && ftruncate(fd, 0) < 0) /* the copy brought the base's */
        rc = err_sys(e, "empty %s", volume_file_name((uint32_t)a->row.file));
    if (rc < 0)
        return rc;
    rc = volumed_run(v->space->co, v->conn, &req, &fd, 1, progress, t, &rep, NULL, e);
    if (rc < 0)
        return err_wrap(e, "fetch %s of %012" PRIx64, volume_file_name((uint32_t)a->row.file), t->id);
    t->done += (uint64_t)a->row.size;
    if (t->task)
        t->task->sum.fetched += rep.download.fetched_bytes;
    return 0;
}

/* -EROFS of a file that cannot be written: all of it was done before. */
static int fill_all(struct target *t, struct err *e)
{
    struct noded_request seal = {.op = NODED_OBJECT_SEAL, .kind = t->kind, .id = t->id};
    int rc = 0;
    for (uint32_t file = NODED_DISK; file <= NODED_META && rc == 0; file++) {
        struct artifact *a = artifact_find(t->volume, t->kind, t->id, file);
        if (!a || (t->kind == NODED_TEMPLATE && a->row.state != STORE_DURABLE))
            continue; /* of a base, whoever was stored against it found what it needed */
        a->busy = true;
        rc = a->row.state == STORE_DURABLE ? fill(t, a, e)
                                           : err_set(e, ENOENT, "%s of %012" PRIx64 " is not in the store", volume_file_name(file), t->id);
        a->busy = false;
    }
    if (rc == -EROFS && t->begun) {
        *e = (struct err){0};
        return 0;
    }
    return rc < 0 ? rc : noded_call(t->volume->space, &seal, NULL, NULL, e);
}

int fetch_base(struct volume *v, uint64_t id, struct err *e)
{
    struct target t = {.volume = v, .kind = NODED_TEMPLATE, .id = id};
    int rc = make(&t, e);
    return rc < 0 ? rc : fill_all(&t, e);
}

/* Of which base are the snapshot's files? 0: of none. -ENOENT when one is not known any more. */
static int find_base(struct volume *v, uint64_t snapshot, uint64_t *out, struct err *e)
{
    const struct artifact *disk = artifact_find(v, NODED_SNAPSHOT, snapshot, NODED_DISK);
    const struct artifact *base = disk ? artifact_by_name(v, disk->row.base) : NULL;
    *out = base ? (uint64_t)base->row.object : 0;
    if (disk && disk->row.base[0] && !base)
        return err_set(e, ENOENT, "the template that snapshot %012" PRIx64 " was stored against is not in the store", snapshot);
    return disk ? 0 : err_set(e, ENOENT, "snapshot %012" PRIx64 " is not in the store", snapshot);
}

/* The object, as a copy of its base's. */
static int begin(struct target *t, struct err *e)
{
    struct volume *v = t->volume;
    int rc = admit_space(v->space, e);
    if (rc == 0)
        rc = find_base(v, t->id, &t->base, e);
    if (rc == 0 && t->base && !base_is_here(v->space, t->base))
        rc = base_wait(v, t->base, true, e);
    return rc < 0 ? rc : make(t, e);
}

/* It has its size, and what its base has; the rest is for NODED_FILLING. */
static int size_file(struct target *t, const struct artifact *a, struct err *e)
{
    const char *name = volume_file_name((uint32_t)a->row.file);
    struct noded_request open = {.op = NODED_FILE_OPEN, .kind = t->kind, .id = t->id, .file = (uint32_t)a->row.file, .flags = NODED_WRITABLE};
    AUTO_CLOSE int fd = -1;
    int rc = noded_call(t->volume->space, &open, NULL, &fd, e);
    if (rc == 0 && !t->begun && !a->row.base[0] && ftruncate(fd, 0) < 0)
        rc = err_sys(e, "empty %s", name);
    if (rc == 0 && ftruncate(fd, (off_t)a->row.size) < 0)
        rc = err_sys(e, "make %s %" PRId64 " bytes long", name, a->row.size);
    return rc;
}

int volume_fetch_memory(struct snapshot *sn, bool arrives, struct err *e)
{
    struct target t = {.volume = sn->space->volume, .kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id};
    int rc = begin(&t, e);
    for (uint32_t file = NODED_DISK; file <= NODED_META && rc == 0; file++) {
        struct artifact *a = artifact_find(t.volume, t.kind, t.id, file);
        if (!a)
            continue;
        a->busy = true;
        rc = a->row.state != STORE_DURABLE ? err_set(e, ENOENT, "%s of %012" PRIx64 " is not in the store", volume_file_name(file), t.id)
             : file == NODED_DISK || (arrives && file == NODED_RAM) ? size_file(&t, a, e)
                                                                    : fill(&t, a, e);
        a->busy = false;
    }
    if (rc == -EROFS && t.begun) { /* sealed: all of it was done before */
        *e = (struct err){0};
        sn->row.delta = -1;
        snapshot_set_state(sn, ARTIFACT_READY, NULL);
        return 1;
    }
    if (rc == 0 && sn->gone)
        rc = err_set(e, ENOENT, "snapshot '%s' was removed", sn->row.name);
    return rc;
}

int fetch_run(struct volume_task *task, struct err *e)
{
    struct snapshot *sn = task->snapshot;
    struct volume *v = task->volume;
    struct target t = {.volume = v, .task = task, .kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id};
    for (uint32_t file = NODED_DISK; file <= NODED_META; file++) {
        const struct artifact *a = artifact_find(v, t.kind, t.id, file);
        task->total += a ? (uint64_t)a->row.size : 0;
    }
    int rc = begin(&t, e);
    return rc < 0 ? rc : fill_all(&t, e);
}
