// SPDX-License-Identifier: Apache-2.0
// Files that are not text fixed at open: job output, wait, events, and disk images.
#include "9p/seek.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/changes.h"
#include "hostd/tree/tree.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- streams ---- */

static void reply_data(struct p9_request *r, const void *p, size_t len)
{
    struct p9_msg m = {0};
    m.Rread.data.p = p;
    m.Rread.data.len = (uint32_t)len;
    p9_reply(r, &m);
}

static void read_again(struct p9_request *r)
{
    stream_read(r, fid_of(r->fid));
}

/* Waits in `l` for something new, unless the reader would rather not. */
static void wait_in(struct p9_request *r, struct tree_fid *f, struct wait_list *l)
{
    if (f->open->flags & P9_NONBLOCK)
        p9_fail(r, EAGAIN);
    else
        wait_add(l, &pending_new(r, read_again)->w);
}

static void read_events(struct p9_request *r, struct tree_fid *f)
{
    struct events *ev = space_of(r)->events;
    size_t size = r->t->Tread.count;
    char *buf = malloc(size ? size : 1);
    if (!buf)
        abort();
    uint64_t cursor = f->open->cursor;
    size_t n = events_read(ev, f->caller, &cursor, buf, size);
    if (n || cursor == events_last(ev))
        f->open->cursor = cursor;
    if (n) {
        reply_data(r, buf, n);
    } else if (cursor < events_last(ev)) {
        p9_fail(r, EINVAL); /* a buffer too small for one line */
    } else if (f->open->flags & P9_NONBLOCK) {
        p9_fail(r, EAGAIN);
    } else {
        events_wait(ev, &pending_new(r, read_again)->w);
    }
    free(buf);
}

/* Says in the reader's stream how much is missing, and goes on behind it. */
static void read_marker(struct p9_request *r, struct tree_fid *f, const struct spool *sp, uint64_t at)
{
    char line[64];
    int n = snprintf(line, sizeof line, "\n[%" PRIu64 " bytes dropped]\n", sp->base - at);
    if ((uint32_t)n > r->t->Tread.count)
        n = (int)r->t->Tread.count;
    f->open->shift = (int64_t)sp->base - (int64_t)(r->t->Tread.offset + (uint64_t)n);
    reply_data(r, line, (size_t)n);
}

static void read_output(struct p9_request *r, struct tree_fid *f, enum job_output o)
{
    struct job *j = f->node.job;
    const struct spool *sp = &j->stream[o].spool;
    uint64_t at = (uint64_t)((int64_t)r->t->Tread.offset + f->open->shift);
    struct err e = {0};
    int rc = sandbox_state(j->sandbox) == SANDBOX_RUNNING ? 0 : volume_key(j->sandbox->space, j->sandbox->row.owner, &e);
    if (rc < 0) {
        fail(r, f, rc, &e);
        return;
    }
    if (at < sp->base) {
        read_marker(r, f, sp, at);
        return;
    }
    if (at >= sp->end) {
        if (job_stream_at_end(j, o, at))
            reply_data(r, "", 0);
        else
            wait_in(r, f, &j->stream[o].readers);
        return;
    }
    char *buf = malloc(r->t->Tread.count ? r->t->Tread.count : 1);
    if (!buf)
        abort();
    long n = job_read(j, o, at, buf, r->t->Tread.count);
    if (n < 0)
        p9_fail(r, (int)-n);
    else
        reply_data(r, buf, (size_t)n);
    free(buf);
}

static void read_wait(struct p9_request *r, struct tree_fid *f)
{
    struct job *j = f->node.job;
    char line[40];
    if (!job_ended(j) && !j->gone) {
        wait_in(r, f, &j->waiters);
        return;
    }
    job_status(j, line);
    size_t len = strlen(line);
    line[len++] = '\n';
    size_t at = r->t->Tread.offset < len ? (size_t)r->t->Tread.offset : len;
    size_t n = len - at < r->t->Tread.count ? len - at : r->t->Tread.count;
    reply_data(r, line + at, n);
}

/* From where the last read ended, whatever the offset: the write before moved that, too. */
static void read_changes(struct p9_request *r, struct tree_fid *f)
{
    const struct changes *c = f->open->changes;
    size_t at = (size_t)f->open->cursor, n = c && c->done ? c->len - at : 0;
    n = n < r->t->Tread.count ? n : r->t->Tread.count;
    f->open->cursor += n;
    reply_data(r, n ? c->text + at : "", n);
}

void stream_read(struct p9_request *r, struct tree_fid *f)
{
    const char *name = attr_of(&f->node)->name;
    if (f->node.kind == NODE_SNAPSHOT_FILE) {
        read_changes(r, f);
        return;
    }
    if (f->node.kind == NODE_ROOT_FILE)
        read_events(r, f);
    else if (!strcmp(name, "wait"))
        read_wait(r, f);
    else
        read_output(r, f, !strcmp(name, "stdout") ? JOB_STDOUT : JOB_STDERR);
}

/* ---- disk images ---- */

/* Not when the owner's key was revoked. */
static bool may_read_stored(struct p9_request *r, struct tree_fid *f, const struct snapshot *sn)
{
    struct err e = {0};
    int rc = sn ? volume_key(sn->space, sn->row.owner, &e) : 0;
    if (rc < 0)
        fail(r, f, rc, &e);
    return rc == 0;
}

static void raw_opened(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    struct p9_request *r = user;
    struct tree_fid *f = fid_of(r->fid);
    struct err e = {0};
    (void)repeated;
    if (rep->error < 0) {
        err_set(&e, -rep->error, "%s", rep->sentence);
        free(f->open);
        f->open = NULL;
        fail(r, f, rep->error, &e);
        return;
    }
    f->open->fd = fd;
    if (f->node.snapshot)
        f->node.snapshot->readers++;
    if (f->open->flags & P9_TRUNC && f->node.template && ftruncate(fd, 0) < 0) {
        p9_fail(r, errno);
        return;
    }
    struct p9_msg m = {0};
    m.Rlopen.qid = node_qid(space_of(r), &f->node);
    p9_reply(r, &m);
}

static void raw_open_ready(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    bool template = f->node.template != NULL;
    struct noded_request req = {.op = NODED_FILE_OPEN,
                                .file = strcmp(attr_of(&f->node)->name, "ram.raw") ? NODED_DISK : NODED_RAM,
                                .kind = template ? NODED_TEMPLATE : NODED_SNAPSHOT};
    req.id = (uint64_t)(template ? f->node.template->row.id : f->node.snapshot->row.id);
    req.flags = template ? NODED_WRITABLE : 0;
    if (template && (f->node.template->row.state != ARTIFACT_EMPTY || f->node.template->busy)) {
        fail_errno(r, f, EPERM, "this template is sealed or failed: its image cannot be written");
        return;
    }
    if (!template && f->node.snapshot->row.state != ARTIFACT_READY) {
        fail_errno(r, f, EIO, f->node.snapshot->row.error[0] ? f->node.snapshot->row.error : "this snapshot has no image");
        return;
    }
    noded_send(space_of(r)->noded, &req, raw_opened, r);
}

void raw_open(struct p9_request *r, struct tree_fid *f)
{
    if (f->node.template && !caller_owns(f->caller, f->node.template->row.owner)) {
        fail_errno(r, f, EACCES, "only its owner writes a template's image");
        return;
    }
    if (!f->node.template && (f->open->flags & P9_ACCMODE) != P9_RDONLY) {
        fail_errno(r, f, EACCES, "snapshots never change");
        return;
    }
    if (!may_read_stored(r, f, f->node.snapshot))
        return;
    int64_t state = f->node.template ? f->node.template->row.state : f->node.snapshot->row.state;
    struct wait_list *l = f->node.template ? &f->node.template->ready : &f->node.snapshot->ready;
    if (state == ARTIFACT_CREATING)
        wait_add(l, &pending_new(r, raw_open_ready)->w);
    else if (state == ARTIFACT_STORED)
        volume_fetch(f->node.snapshot, &pending_new(r, raw_open_ready)->w);
    else
        raw_open_ready(r);
}

/* Disk I/O runs in libuv's pool; a flush waits for it (the disk answers). */
struct raw_io {
    uv_fs_t fs;
    struct p9_request *r;
    char *buf;
};

static void raw_read_done(uv_fs_t *fs)
{
    struct raw_io *io = fs->data;
    if (fs->result < 0)
        p9_fail(io->r, (int)-fs->result);
    else
        reply_data(io->r, io->buf, (size_t)fs->result);
    uv_fs_req_cleanup(fs);
    free(io->buf);
    free(io);
}

static struct raw_io *raw_io_new(struct p9_request *r, size_t buffer)
{
    struct raw_io *io = calloc(1, sizeof *io);
    if (!io)
        abort();
    io->fs.data = io;
    io->r = r;
    io->buf = buffer ? malloc(buffer) : NULL;
    if (buffer && !io->buf)
        abort();
    return io;
}

void raw_read(struct p9_request *r, struct tree_fid *f)
{
    if (!may_read_stored(r, f, f->node.snapshot))
        return;
    struct raw_io *io = raw_io_new(r, r->t->Tread.count + 1u);
    uv_buf_t b = uv_buf_init(io->buf, r->t->Tread.count);
    uv_fs_read(space_of(r)->loop, &io->fs, f->open->fd, &b, 1, (int64_t)r->t->Tread.offset, raw_read_done);
}

/* A question for the holes of an image: the file system looks at its extents, perhaps on the disk. */
struct raw_seek {
    uv_work_t work;
    struct p9_request *r;
    int fd, whence;
    int64_t at; /* offset, then the answer or -errno */
};

static void raw_seek_work(uv_work_t *w)
{
    struct raw_seek *k = w->data;
    off_t at = lseek(k->fd, k->at, k->whence);
    k->at = at < 0 ? -errno : at;
}

static void raw_seek_done(uv_work_t *w, int status)
{
    struct raw_seek *k = w->data;
    char text[P9_SEEK_TEXT_MAX];
    (void)status; /* is never cancelled */
    snprintf(text, sizeof text, "%" PRId64, k->at);
    if (k->at < 0)
        p9_fail(k->r, (int)-k->at);
    else
        tree_install_value(k->r, &fid_of(k->r->fid)->node, p9_str_of(text));
    free(k);
}

/* The image stays open as long as the request, which holds its fid; every read of it names its offset. */
void raw_seek(struct p9_request *r, struct tree_fid *f, int whence, uint64_t offset)
{
    struct raw_seek *k = calloc(1, sizeof *k);
    if (!k)
        abort();
    *k = (struct raw_seek){.r = r, .fd = f->open->fd, .whence = whence, .at = (int64_t)offset};
    k->work.data = k;
    uv_queue_work(space_of(r)->loop, &k->work, raw_seek_work, raw_seek_done);
}

static void raw_write_done(uv_fs_t *fs)
{
    struct raw_io *io = fs->data;
    struct p9_msg m = {0};
    if (fs->result < 0) {
        p9_fail(io->r, (int)-fs->result);
    } else {
        m.Rwrite.count = (uint32_t)fs->result;
        p9_reply(io->r, &m);
    }
    uv_fs_req_cleanup(fs);
    free(io);
}

void raw_write(struct p9_request *r, struct tree_fid *f)
{
    if (!f->node.template || f->node.template->row.state != ARTIFACT_EMPTY || f->node.template->busy) {
        fail_errno(r, f, EPERM, "this image cannot be written any more");
        return;
    }
    struct raw_io *io = raw_io_new(r, 0); /* the request's buffer lives until the reply */
    uv_buf_t b = {.base = (char *)(uintptr_t)r->t->Twrite.data.p, .len = r->t->Twrite.data.len};
    uv_fs_write(space_of(r)->loop, &io->fs, f->open->fd, &b, 1, (int64_t)r->t->Twrite.offset, raw_write_done);
}

void raw_truncate(struct p9_request *r, struct tree_fid *f, uint64_t size)
{
    if (!f->node.template)
        fail_errno(r, f, EACCES, "snapshots never change");
    else if (!f->open)
        reply_empty(r); /* truncate(2) before the write: the open that follows does it */
    else if (size > (1ULL << 46))
        p9_fail(r, EFBIG);
    else if (ftruncate(f->open->fd, (off_t)size) < 0)
        p9_fail(r, errno);
    else
        reply_empty(r);
}
