// SPDX-License-Identifier: Apache-2.0
// Extended attributes: the guest's files have them, control files have none (docs/decisions/0001-getxattr.md).
#include "spacefs/ops.h"

#include "9p/client.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define VALUE_MAX 65536u /* XATTR_SIZE_MAX, and XATTR_LIST_MAX */

/* Before each write the kernel asks for security.capability, with size 0, whether there is something to strip. The guest's
 * kernel strips by itself, so the answer "none" may be this old. */
#define CAPABILITY         "security.capability"
#define NO_CAPABILITY_MSEC 1000u

/* --- get, list --- */

struct value {
    uint64_t size;
    char *data; /* malloc'ed, `size` bytes; NULL when only the size was asked for */
};

/* Txattrwalk and, when the value is wanted, its read, in one round trip. */
static int get_once(struct req *r, struct value *out)
{
    struct task *t = &r->task;
    struct fid_ref *ref;
    int rc = fid_get(t, r->node, r->uid, &ref);
    if (rc < 0)
        return rc;
    uint32_t fid = fid_alloc(t->fs), generation = conn_generation(t->fs->conn);
    struct p9_msg walk = {.type = P9_Txattrwalk}, read = {.type = P9_Tread};
    walk.Txattrwalk = (struct p9_Txattrwalk){.fid = ref->fid, .newfid = fid, .name = p9_str_of(r->name)};
    read.Tread = (struct p9_Tread){.fid = fid, .count = VALUE_MAX};
    struct call *walking = call_start(t, &walk);
    struct call *reading = r->size ? call_start(t, &read) : NULL;
    rc = call_wait(walking);
    if (rc == 0)
        out->size = walking->reply.Rxattrwalk.size;
    if (rc == 0 && reading && (rc = call_wait(reading)) == 0) {
        const struct p9_data *d = &reading->reply.Rread.data;
        out->size = d->len; /* what came is what counts: the value may have changed in between */
        out->data = malloc(d->len + 1u);
        if (out->data)
            memcpy(out->data, d->p, d->len);
        else
            rc = -ENOMEM;
    }
    call_end(reading);
    call_end(walking);
    fid_clunk(t->fs, generation, fid);
    return fid_finish(t, ref, rc);
}

static void note_capability(struct req *r, int rc)
{
    if (rc == -ENODATA && !strcmp(r->name, CAPABILITY))
        r->node->no_capability_until = uv_now(r->task.fs->loop) + NO_CAPABILITY_MSEC;
}

static void getxattr_(struct req *r)
{
    struct value v = {0};
    int rc;
    do
        rc = get_once(r, &v);
    while (task_again(&r->task, &rc));
    r->owned = v.data;
    note_capability(r, rc);
    if (rc == 0 && v.size > VALUE_MAX)
        rc = -E2BIG;
    if (rc == 0 && r->size && v.size > r->size)
        rc = -ERANGE;
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    if (r->size)
        fuse_reply_buf(fuse, v.data, v.size);
    else
        fuse_reply_xattr(fuse, v.size);
}

static bool known_absent(struct fs *fs, const struct node *n, const char *name, size_t size)
{
    return !node_is_guest(n) || (!size && !strcmp(name, CAPABILITY) && uv_now(fs->loop) < n->no_capability_until);
}

void ops_getxattr(fuse_req_t fuse, fuse_ino_t ino, const char *name, size_t size)
{
    struct fs *fs = fuse_req_userdata(fuse);
    if (known_absent(fs, node_of(fs, ino), name, size)) {
        fuse_reply_err(fuse, ENODATA);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r || !request_name(r, r->name, name))
        return;
    r->size = size;
    request_run(r, getxattr_);
}

void ops_listxattr(fuse_req_t fuse, fuse_ino_t ino, size_t size)
{
    struct req *r;
    if (!node_is_guest(node_of(fuse_req_userdata(fuse), ino))) {
        if (size)
            fuse_reply_buf(fuse, NULL, 0);
        else
            fuse_reply_xattr(fuse, 0);
        return;
    }
    r = request_create(fuse, ino);
    if (!r)
        return;
    r->size = size; /* the empty name asks for the list */
    request_run(r, getxattr_);
}

/* --- set, remove --- */

static int write_value(struct req *r, uint32_t fid)
{
    size_t unit = p9_client_iounit(conn_client(r->task.fs->conn));
    for (size_t done = 0; done < r->size;) {
        size_t left = r->size - done;
        struct p9_msg m = {.type = P9_Twrite}, reply;
        m.Twrite = (struct p9_Twrite){.fid = fid, .offset = done, .data = {.p = r->owned + done, .len = (uint32_t)(left < unit ? left : unit)}};
        int rc = call_run(&r->task, &m, &reply);
        if (rc < 0)
            return rc;
        if (!reply.Rwrite.count || reply.Rwrite.count > left)
            return -EIO;
        done += reply.Rwrite.count;
    }
    return 0;
}

/* The change happens at the clunk, whose answer is the result. */
static int clunk_value(struct req *r, uint32_t generation, uint32_t fid)
{
    struct p9_msg m = {.type = P9_Tclunk};
    m.Tclunk.fid = fid;
    int rc = call_run(&r->task, &m, NULL);
    if (rc == TASK_UNSENT || rc == -EINTR)
        fid_clunk(r->task.fs, generation, fid); /* to be sure */
    else
        p9_client_fid_free(conn_client(r->task.fs->conn), fid);
    return rc;
}

static int set_once(struct req *r)
{
    struct task *t = &r->task;
    struct fid_ref *ref;
    int rc = fid_get(t, r->node, r->uid, &ref);
    if (rc < 0)
        return rc;
    uint32_t fid = fid_alloc(t->fs), generation = conn_generation(t->fs->conn);
    struct p9_msg walk = {.type = P9_Twalk}, create = {.type = P9_Txattrcreate};
    walk.Twalk.fid = ref->fid;
    walk.Twalk.newfid = fid;
    create.Txattrcreate = (struct p9_Txattrcreate){.fid = fid, .name = p9_str_of(r->name), .size = r->size, .flags = (uint32_t)r->flags};
    struct call *walking = call_start(t, &walk);
    struct call *creating = call_start(t, &create);
    rc = call_wait(walking);
    if (rc == 0)
        rc = call_wait(creating);
    call_end(creating);
    call_end(walking);
    rc = fid_finish(t, ref, rc);
    if (rc == 0)
        rc = write_value(r, fid);
    if (rc == 0)
        return task_once(clunk_value(r, generation, fid));
    fid_clunk(t->fs, generation, fid);
    return task_once(rc);
}

static void setxattr_(struct req *r)
{
    int rc;
    do
        rc = set_once(r);
    while (task_again(&r->task, &rc));
    r->node->no_capability_until = 0;
    request_error(r, rc);
}

/* cp -a sets and removes ACLs on what it made; a control file has none to change. */
static bool answered_here(fuse_req_t fuse, fuse_ino_t ino, const char *name)
{
    if (node_is_guest(node_of(fuse_req_userdata(fuse), ino)))
        return false;
    fuse_reply_err(fuse, strncmp(name, "system.posix_acl_", 17) ? EOPNOTSUPP : 0);
    return true;
}

static void change(fuse_req_t fuse, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
    struct req *r;
    if (answered_here(fuse, ino, name))
        return;
    r = request_create(fuse, ino);
    if (!r || !request_name(r, r->name, name))
        return;
    r->owned = malloc(size + 1);
    if (!r->owned) {
        request_abandon(r, -ENOMEM);
        return;
    }
    if (size)
        memcpy(r->owned, value, size);
    r->size = size;
    r->flags = flags;
    request_run(r, setxattr_);
}

void ops_setxattr(fuse_req_t fuse, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
    change(fuse, ino, name, value, size, flags);
}

/* 9P's way to say it: an empty value that must replace one (as Linux's v9fs does). */
void ops_removexattr(fuse_req_t fuse, fuse_ino_t ino, const char *name)
{
    change(fuse, ino, name, NULL, 0, XATTR_REPLACE);
}
