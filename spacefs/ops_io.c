// SPDX-License-Identifier: Apache-2.0
// Reading, writing, and looking for holes.
#include "spacefs/ops.h"

#include "9p/client.h"
#include "9p/seek.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/gesture.h"
#include "spacefs/lock.h"
#include "spacefs/poll.h"
#include "spacefs/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A request of the kernel is at most 1 MiB, a message carries a little less: two parts, four when the server offers less. */
#define PARTS_MAX 4u
/* Writes above this are copied, to go on after a short count. Below, a short count is the program's to handle. */
#define COPY_MIN  65536u
#define SEEK_STEP 4096u

static void reply_data(struct req *r, const void *data, size_t len)
{
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    r->handle->was_read = true;
    r->handle->next_offset = (uint64_t)r->off + len;
    fuse_reply_buf(fuse, data, len);
}

/* Length of each part of `size` bytes. */
static size_t part_size(struct task *t, size_t size)
{
    size_t unit = p9_client_iounit(conn_client(t->fs->conn));
    size_t parts = (size + unit - 1) / unit;
    if (parts > PARTS_MAX)
        return unit; /* the rest is not asked for: a short result */
    return parts > 1 ? (size / parts + 4095) & ~(size_t)4095 : size;
}

/* --- read --- */

/* A connection's bytes are in no place that several messages could name: one is sent, and a short result is as good. */
static void one_message(struct req *r)
{
    size_t unit = p9_client_iounit(conn_client(r->task.fs->conn));
    r->size = r->size < unit ? r->size : unit;
}

static struct call *start_read(struct task *t, uint32_t fid, uint64_t offset, size_t count)
{
    struct p9_msg m = {.type = P9_Tread};
    m.Tread = (struct p9_Tread){.fid = fid, .offset = offset, .count = (uint32_t)count};
    return call_start(t, &m);
}

/*
 * True when there is more behind `done` bytes than a short answer told: to the kernel's page cache a short read is the end of
 * the file, to a guest whose messages are smaller than ours it is not.
 */
static bool must_go_on(const struct req *r, size_t done)
{
    const struct node *n = r->handle->node;
    return (node_is_guest(n) || node_is_image(n)) && done && done < r->size && (uint64_t)r->off + done < n->size;
}

/* Reads into r->owned from `done` on, all parts at once. Bytes without a gap, or the first part's error. */
static int read_parts(struct req *r, uint32_t fid, size_t done, size_t part)
{
    struct call *calls[PARTS_MAX] = {0};
    size_t n = 0, got = 0, left = r->size - done;
    bool more = true;
    int rc = 0;
    for (size_t at = 0; at < left && n < PARTS_MAX; at += part, n++)
        calls[n] = start_read(&r->task, fid, (uint64_t)r->off + done + at, left - at < part ? left - at : part);
    for (size_t i = 0; i < n && more; i++) {
        int result = call_wait(calls[i]);
        size_t want = left - got < part ? left - got : part;
        size_t len = result < 0 ? 0 : calls[i]->reply.Rread.data.len;
        len = len < want ? len : want;
        if (len)
            memcpy(r->owned + done + got, calls[i]->reply.Rread.data.p, len);
        got += len;
        more = result == 0 && len == want;
        rc = result < 0 && i == 0 ? result : rc;
    }
    for (size_t i = 0; i < n; i++)
        call_end(calls[i]);
    return rc < 0 ? rc : (int)got;
}

static int read_long(struct req *r, uint32_t fid, size_t done, size_t part)
{
    int rc;
    do {
        rc = read_parts(r, fid, done, part);
        if (rc > 0)
            done += (size_t)rc;
    } while (rc > 0 && must_go_on(r, done));
    if (rc < 0 && !done)
        return rc;
    reply_data(r, r->owned, done);
    return 0;
}

/* One message: answered from the connection's buffer, unless it turns out to be only the beginning. */
static int read_short(struct req *r, uint32_t fid)
{
    struct call *c = start_read(&r->task, fid, (uint64_t)r->off, r->size);
    int rc = call_wait(c);
    size_t len = rc < 0 ? 0 : c->reply.Rread.data.len;
    len = len < r->size ? len : r->size;
    bool more = rc == 0 && must_go_on(r, len);
    if (more && (r->owned = malloc(r->size)))
        memcpy(r->owned, c->reply.Rread.data.p, len);
    else if (rc == 0)
        reply_data(r, c->reply.Rread.data.p, len);
    call_end(c);
    return more && r->owned ? read_long(r, fid, len, r->size - len) : rc;
}

static int read_once(struct req *r)
{
    uint32_t fid;
    int rc = handle_fid(&r->task, r->handle, (r->flags & O_NONBLOCK) != 0, &fid);
    if (rc < 0)
        return rc;
    if (node_is_port(r->handle->node))
        one_message(r);
    size_t part = part_size(&r->task, r->size);
    if (part >= r->size && !r->owned)
        return read_short(r, fid);
    if (!r->owned && !(r->owned = malloc(r->size)))
        return -ENOMEM;
    return read_long(r, fid, 0, part);
}

static void reply_text(fuse_req_t fuse, struct handle *h, size_t size, off_t off)
{
    h->was_read = true;
    size_t at = (uint64_t)off < h->text_len ? (size_t)off : h->text_len;
    size_t left = h->text_len - at;
    fuse_reply_buf(fuse, h->text + at, left < size ? left : size);
}

static void read_(struct req *r)
{
    struct handle *h = r->handle;
    int rc = lock_check(r->task.fs, r->handle, r->lock_owner);
    if (rc == 0)
        rc = poll_before_read(&r->task, h, (uint64_t)r->off, r->size, (r->flags & O_NONBLOCK) != 0);
    if (rc > 0) { /* read ahead for a poller */
        size_t len = (size_t)rc;
        reply_data(r, poll_data(h), len);
        poll_consume(h, len);
        return;
    }
    if (rc == 0 && h->text) { /* refreshed, because poll saw a change */
        fuse_req_t fuse = r->fuse;
        r->fuse = NULL;
        reply_text(fuse, h, r->size, r->off);
        return;
    }
    if (rc == 0) {
        do
            rc = read_once(r);
        while (task_again(&r->task, &rc));
    }
    if (rc < 0)
        request_error(r, rc);
}

void ops_read(fuse_req_t fuse, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    if (h->node->kind == NODE_SWALLOWED || gesture_skips(h)) {
        fuse_reply_buf(fuse, NULL, 0);
        return;
    }
    if (h->text && !poll_wants_refresh(h, off)) {
        reply_text(fuse, h, size, off);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->size = size;
    r->off = off;
    if (node_is_control(h->node) && !node_is_image(h->node))
        r->task.grace_msec = 0; /* it may block for ever by design; EINTR is an expected answer */
    request_run(r, read_);
}

/* --- write --- */

static struct call *start_write(struct task *t, uint32_t fid, uint64_t offset, const char *data, size_t len)
{
    struct p9_msg m = {.type = P9_Twrite};
    m.Twrite = (struct p9_Twrite){.fid = fid, .offset = offset, .data = {.p = data, .len = (uint32_t)len}};
    return call_start(t, &m);
}

/* Bytes written from `done` on without a gap, or the first part's error. `data` is not used after the first wait. */
static int write_parts(struct req *r, uint32_t fid, const char *data, size_t done, size_t part)
{
    struct call *calls[PARTS_MAX] = {0};
    size_t n = 0, left = r->size - done;
    long written = 0;
    bool more = true;
    for (size_t at = 0; at < left && n < PARTS_MAX; at += part, n++)
        calls[n] = start_write(&r->task, fid, (uint64_t)r->off + done + at, data + done + at, left - at < part ? left - at : part);
    for (size_t i = 0; i < n && more; i++) {
        int rc = call_wait(calls[i]);
        size_t want = left - i * part < part ? left - i * part : part;
        size_t count = rc < 0 ? 0 : calls[i]->reply.Rwrite.count;
        if (rc < 0 && i == 0)
            written = rc;
        else
            written += (long)(count < want ? count : want);
        more = count >= want;
    }
    for (size_t i = 0; i < n; i++)
        call_end(calls[i]);
    return (int)written;
}

/* May a write be several messages? Data, as against the value of an attribute, which is one or none. */
static bool may_split(const struct node *n)
{
    return node_is_guest(n) || !strcmp(n->name, "disk.raw");
}

/* Of a connection: takes what there is room for. hostd answers in order what it can answer at once, so a write that is not answered before the question
 * behind it waits for room, and is taken back. */
static int write_now(struct req *r, uint32_t fid, const char *data)
{
    struct p9_msg m = {.type = P9_Tgetattr};
    m.Tgetattr = (struct p9_Tgetattr){.fid = fid, .mask = P9_GETATTR_BASIC};
    struct call *writing = start_write(&r->task, fid, 0, data, r->size), *asking = call_start(&r->task, &m);
    int rc = call_wait(asking);
    if (rc == 0 && !writing->done)
        p9_call_cancel(writing->p9);
    int result = call_wait(writing);
    size_t count = result < 0 ? 0 : writing->reply.Rwrite.count;
    call_end(asking);
    call_end(writing);
    if (result == -EINTR && !r->task.interrupted) {
        poll_no_room(r->handle);
        return -EAGAIN;
    }
    return result < 0 ? result : (int)(count < r->size ? count : r->size);
}

/* A guest may take less at a time than a message holds: goes on as long as we have the data. */
static int write_once(struct req *r)
{
    uint32_t fid;
    int rc = handle_fid(&r->task, r->handle, (r->flags & O_NONBLOCK) != 0, &fid);
    if (rc < 0)
        return rc;
    if (node_is_port(r->handle->node))
        one_message(r);
    if (node_is_port(r->handle->node) && r->flags & O_NONBLOCK)
        return write_now(r, fid, r->owned ? r->owned : r->borrowed);
    size_t done = 0, part = part_size(&r->task, r->size);
    if (!may_split(r->handle->node) && part < r->size)
        return -EMSGSIZE;
    do {
        rc = write_parts(r, fid, r->owned ? r->owned : r->borrowed, done, part ? part : 1);
        if (rc > 0)
            done += (size_t)rc;
    } while (rc > 0 && r->owned && may_split(r->handle->node) && done < r->size);
    return done ? (int)done : rc;
}

static void write_(struct req *r)
{
    int rc = lock_check(r->task.fs, r->handle, r->lock_owner);
    if (rc == 0) {
        do {
            rc = write_once(r);
            rc = rc == TASK_UNSENT && !r->owned ? -EIO : task_once(rc);
        } while (task_again(&r->task, &rc));
    }
    if (node_is_control(r->handle->node))
        r->task.fs->changes++;
    if (rc >= 0) {
        gesture_wrote(r->handle);
        poll_written(r->handle);
    }
    fuse_req_t fuse = r->fuse;
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    r->fuse = NULL;
    fuse_reply_write(fuse, r->plain_size ? r->plain_size : (size_t)rc);
}

void ops_write(fuse_req_t fuse, fuse_ino_t ino, const char *data, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    if (h->node->kind == NODE_SWALLOWED) {
        gesture_swallowed(h);
        fuse_reply_write(fuse, size);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->size = size;
    r->off = off;
    r->borrowed = data;
    if (seal_wants(h->node)) {
        int rc = seal_value(fs, (char *)(uintptr_t)data, size, off, &r->owned, &r->size); /* wiped in libfuse's own buffer */
        r->plain_size = size;
        if (rc < 0) {
            request_abandon(r, rc);
            return;
        }
    } else if (size > COPY_MIN || !handle_is_ready(fs, h, (fi->flags & O_NONBLOCK) != 0)) { /* may wait before all of it is sent */
        r->owned = malloc(size ? size : 1);
        if (!r->owned) {
            request_abandon(r, -ENOMEM);
            return;
        }
        memcpy(r->owned, data, size);
    }
    if (node_is_control(h->node))
        r->task.grace_msec = 0;
    request_run(r, write_);
}

/* --- lseek --- */

/* What a file system without holes answers: all is data, but for the end. */
static int seek_plain(int whence, uint64_t offset, uint64_t size, uint64_t *out)
{
    *out = whence == SEEK_DATA ? offset : size;
    return offset < size ? 0 : -ENXIO;
}

/* Txattrwalk and its read in one round trip: 9p/seek.h. */
static int ask_seek(struct req *r, uint32_t fid, uint64_t *out)
{
    struct task *t = &r->task;
    char name[P9_SEEK_TEXT_MAX];
    uint32_t value = fid_alloc(t->fs), generation = conn_generation(t->fs->conn);
    struct p9_msg walk = {.type = P9_Txattrwalk};
    p9_seek_name(name, r->whence, (uint64_t)r->off);
    walk.Txattrwalk = (struct p9_Txattrwalk){.fid = fid, .newfid = value, .name = p9_str_of(name)};
    struct call *walking = call_start(t, &walk), *reading = start_read(t, value, 0, sizeof name);
    int rc = call_wait(walking);
    if (rc == 0)
        rc = call_wait(reading);
    if (rc == 0 && !p9_seek_value(reading->reply.Rread.data, out))
        rc = -EIO;
    call_end(reading);
    call_end(walking);
    fid_clunk(t->fs, generation, value);
    return rc;
}

static int ask_size(struct req *r, uint32_t fid, uint64_t *out)
{
    struct p9_msg m = {.type = P9_Tgetattr}, reply;
    m.Tgetattr = (struct p9_Tgetattr){.fid = fid, .mask = P9_GETATTR_ALL};
    int rc = call_run(&r->task, &m, &reply);
    if (rc == 0)
        *out = reply.Rgetattr.size;
    return rc;
}

/* Whoever serves the file may not know the question: then it has no holes. */
static int seek_once(struct req *r, uint64_t *out)
{
    uint32_t fid;
    uint64_t size = 0;
    int rc = handle_own_fid(&r->task, r->handle, &fid);
    if (rc == 0)
        rc = ask_seek(r, fid, out);
    if (rc != -EOPNOTSUPP && rc != -ENODATA)
        return rc;
    rc = ask_size(r, fid, &size);
    return rc < 0 ? rc : seek_plain(r->whence, (uint64_t)r->off, size, out);
}

/*
 * The answer may be a hostile guest's. Data and a hole at one place, or a place before the one asked for, would keep a copying program busy
 * for ever: the next block is data then, which is never wrong, or the answer is none.
 */
static int judge_seek(struct handle *h, int whence, uint64_t offset, uint64_t *at)
{
    if (*at < offset)
        return -EIO;
    if (whence == SEEK_DATA)
        h->data_at = *at + 1;
    else if (*at == offset && h->data_at == offset + 1)
        *at = offset + SEEK_STEP;
    return 0;
}

static void reply_seek(fuse_req_t fuse, int rc, uint64_t at)
{
    if (rc < 0)
        fuse_reply_err(fuse, -rc);
    else
        fuse_reply_lseek(fuse, (off_t)at);
}

static void seek(struct req *r)
{
    uint64_t at = 0;
    int rc;
    do
        rc = seek_once(r, &at);
    while (task_again(&r->task, &rc));
    if (rc == 0)
        rc = judge_seek(r->handle, r->whence, (uint64_t)r->off, &at);
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    reply_seek(fuse, 0, at);
}

/* The kernel sends SEEK_DATA and SEEK_HOLE only. Only what is no file of a guest and takes up its whole size is known to have no holes. */
void ops_lseek(fuse_req_t fuse, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    const struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    uint64_t size = h->attr_fixed ? (uint64_t)h->attr.st_size : 0, at;
    if (whence != SEEK_DATA && whence != SEEK_HOLE) {
        fuse_reply_err(fuse, EINVAL);
        return;
    }
    if (!node_is_guest(h->node) && (uint64_t)h->attr.st_blocks >= size / 512) {
        int rc = seek_plain(whence, (uint64_t)off, gesture_skips(h) ? 0 : size, &at);
        reply_seek(fuse, rc, at);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->off = off;
    r->whence = whence;
    request_run(r, seek);
}
