// SPDX-License-Identifier: Apache-2.0
// Mending the artifacts of a snapshot, and of the base that they count from, in the store. See volume.h.
//
// Theory of operation. space-volumed reads all of an artifact, and stores anew what is damaged: from the file in this pool when it is there, else from
// other chunks of the tenant. A file is of a sealed object, so it is what the artifact was made of. The base comes first.
#include "base/cleanup.h"
#include "base/log.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* The file, and where it differs from its base; nothing when it is not at hand, which is no failure. */
static int open_local(struct space *s, const struct artifact *a, const struct artifact *base, int fds[2], uint64_t *ret_size)
{
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = (uint32_t)a->row.kind, .id = (uint64_t)a->row.object, .file = (uint32_t)a->row.file};
    struct err e = {0};
    struct stat st;
    AUTO_CLOSE int fd = -1;
    int rc = noded_call(s, &req, NULL, &fd, &e);
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = -errno;
    if (rc < 0)
        return rc == -ECANCELED ? rc : 0;
    if (a->row.base[0]) {
        if (!base || !base_is_here(s, (uint64_t)base->row.object) || upload_ranges(s, &a->row, (uint64_t)base->row.object, &fds[1], &e) < 0)
            return 0; /* a whole file would do, and be stored whole */
    }
    fds[0] = steal_fd(&fd);
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int repair_one(struct volume_task *t, struct artifact *a, bool local, struct err *e)
{
    struct volume *v = t->volume;
    const struct artifact *base = artifact_by_name(v, a->row.base);
    struct volumed_request req = {.op = VOLUMED_REPAIR, .file = volume_kind_of((uint32_t)a->row.file)};
    struct volumed_reply rep;
    int fds[2] = {-1, -1};
    int rc = local ? open_local(v->space, a, base, fds, &req.size) : 0;
    req.object = artifact_ref(a->row.tenant, a->row.name);
    req.base = artifact_ref(VOLUME_TEMPLATES, a->row.base);
    a->busy = true;
    if (rc == 0)
        rc = volumed_run(v->space->co, v->conn, &req, fds, fds[0] < 0 ? 0 : fds[1] < 0 ? 1 : 2, NULL, NULL, &rep, NULL, e);
    a->busy = false;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (rc < 0)
        return err_wrap(e, "mend %s of %012" PRIx64, volume_file_name((uint32_t)a->row.file), (uint64_t)a->row.object);
    t->sum.read += rep.upload.read_bytes;
    t->sum.fresh += rep.upload.new_bytes;
    t->sum.stored += rep.upload.stored_bytes;
    return 0;
}

/* All files of an object that are stored; the first failure is told, after the others' turn. */
static int repair_object(struct volume_task *t, uint32_t kind, uint64_t object, bool local, struct err *e)
{
    int failed = 0;
    for (uint32_t file = NODED_DISK; file <= NODED_META; file++) {
        struct artifact *a = artifact_find(t->volume, kind, object, file);
        struct err why = {0};
        int rc = a && a->row.state == STORE_DURABLE && !a->busy ? repair_one(t, a, local, &why) : 0;
        if (rc == -ECANCELED || rc == -ENOTCONN || (rc < 0 && failed == 0)) {
            *e = why;
            failed = rc;
        }
        if (rc == -ECANCELED || rc == -ENOTCONN)
            return rc;
        if (rc < 0)
            log_warn("%s", why.msg);
    }
    return failed;
}

int repair_run(struct volume_task *t, struct err *e)
{
    struct snapshot *sn = t->snapshot;
    struct volume *v = t->volume;
    const struct artifact *disk = artifact_find(v, NODED_SNAPSHOT, (uint64_t)sn->row.id, NODED_DISK);
    const struct artifact *base = disk ? artifact_by_name(v, disk->row.base) : NULL;
    struct err why = {0};
    int failed = base ? repair_object(t, NODED_TEMPLATE, (uint64_t)base->row.object, base_is_here(v->space, (uint64_t)base->row.object), e) : 0;
    if (failed == -ECANCELED || failed == -ENOTCONN)
        return failed;
    int rc = repair_object(t, NODED_SNAPSHOT, (uint64_t)sn->row.id, sn->row.state == ARTIFACT_READY, &why);
    if (rc < 0)
        *e = why;
    return rc < 0 ? rc : failed;
}
