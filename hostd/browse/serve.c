// SPDX-License-Identifier: Apache-2.0
// The 9P side of the browser: see serve.h.
//
// Theory of operation. A fid is an inode number, or the value of an attribute. Each request reads
// the inode anew and is answered before the next one is looked at. What would change something is
// EROFS.
#include "hostd/browse/serve.h"

#include "9p/seek.h"
#include "hostd/browse/changes.h"
#include "hostd/browse/qid.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define DATA_AT       4096u /* of a reply's buffer: room for the header */
#define GETATTR_BTIME 0x0800u
#define GETATTR_GEN   0x1000u

struct file {
    ext2_ino_t ino;
    uint16_t mode;
    bool opened;
    uint8_t *value; /* of an attribute: this fid is it */
    size_t len;
    struct changes *changes; /* this fid maps ranges to files */
};

int serve_init(struct serve *s)
{
    memset(s, 0, sizeof *s);
    s->buf = malloc(P9_MSIZE_MAX);
    return s->buf ? 0 : -ENOMEM;
}

void serve_finish(struct serve *s)
{
    free(s->buf);
    s->buf = NULL;
}

static struct volume *volume_of(const struct p9_request *r)
{
    return &((struct serve *)r->user)->volume;
}

static struct file *file_of(const struct p9_fid *f)
{
    return f->aux;
}

/* Errors of the image are EIO: a program that reads it should not think that it did something
 * wrong. */
static void fail(struct p9_request *r, int rc)
{
    p9_fail(r, rc == -ENOMEM ? EIO : -rc);
}

static uint64_t qid_path(const struct inode *n)
{
    return n->ino | (S_ISDIR(n->raw.i_mode) || n->raw.i_links_count > 1 ? BROWSE_QID_OWN : 0);
}

static struct p9_qid qid_of(const struct inode *n)
{
    struct p9_qid q = {.path = qid_path(n)};
    q.version = n->raw.i_mtime * 1000003u ^ n->raw.i_mtime_extra;
    q.type = S_ISDIR(n->raw.i_mode) ? P9_QTDIR : S_ISLNK(n->raw.i_mode) ? P9_QTSYMLINK : P9_QTFILE;
    return q;
}

static struct file *file_new(const struct inode *n)
{
    struct file *f = calloc(1, sizeof *f);
    if (f) {
        f->ino = n->ino;
        f->mode = n->raw.i_mode;
    }
    return f;
}

/* The fid's inode. -EBADF for an attribute. */
static int inode_of(const struct p9_request *r, struct inode *out)
{
    const struct file *f = file_of(r->fid);
    return f->value || f->changes ? -EBADF : volume_inode(volume_of(r), f->ino, out);
}

/* ---- fids ---- */

static void on_attach(struct p9_request *r)
{
    const struct serve *s = r->user;
    struct p9_msg m = {0};
    struct inode n;
    int rc = s->error ? s->error : volume_inode(volume_of(r), VOLUME_ROOT, &n);
    if (rc == 0 && !S_ISDIR(n.raw.i_mode))
        rc = -EIO;
    if (rc == 0 && !(r->fid->aux = file_new(&n)))
        rc = -ENOMEM;
    if (rc < 0) {
        fail(r, rc);
        return;
    }
    m.Rattach.qid = qid_of(&n);
    p9_reply(r, &m);
}

/* One step; names that mean something to a path are not in a directory. */
static int step(struct volume *v, const struct inode *dir, struct p9_str name, struct inode *out)
{
    if (name.len == 0 || name.len > P9_NAME_MAX)
        return name.len ? -ENAMETOOLONG : -ENOENT;
    if (memchr(name.s, '/', name.len) || p9_str_eq(name, ".") || p9_str_eq(name, ".."))
        return -EINVAL;
    return volume_step(v, dir, name.s, name.len, out);
}

static void on_walk(struct p9_request *r)
{
    const struct p9_names *names = &r->t->Twalk.names;
    struct p9_msg m = {0};
    struct p9_qids *qids = &m.Rwalk.qids;
    struct inode n, next;
    int rc = inode_of(r, &n);
    while (rc == 0 && qids->n < names->n) {
        rc = step(volume_of(r), &n, names->v[qids->n], &next);
        if (rc == 0) {
            n = next;
            qids->v[qids->n++] = qid_of(&n);
        }
    }
    struct file *f = rc == 0 ? file_new(&n) : NULL;
    if (rc == 0 && !f)
        rc = -ENOMEM;
    if (rc < 0 && (qids->n == 0 || rc == -ENOMEM)) {
        fail(r, rc);
        return;
    }
    if (f && r->newfid == r->fid)
        free(file_of(r->fid));
    if (f)
        r->newfid->aux = f;
    p9_reply(r, &m);
}

static void on_lopen(struct p9_request *r)
{
    struct p9_msg m = {0};
    struct inode n;
    int rc = inode_of(r, &n);
    uint32_t flags = r->t->Tlopen.flags;
    if (rc == 0 && !S_ISREG(n.raw.i_mode) && !S_ISDIR(n.raw.i_mode))
        rc = S_ISLNK(n.raw.i_mode) ? -ELOOP : -ENXIO;
    if (rc == 0 && ((flags & P9_ACCMODE) != P9_RDONLY || (flags & (P9_TRUNC | P9_APPEND))))
        rc = -EROFS;
    if (rc == 0 && S_ISREG(n.raw.i_mode) && (n.raw.i_flags & EXT4_ENCRYPT_FL))
        rc = -ENOKEY;
    if (rc < 0) {
        fail(r, rc);
        return;
    }
    file_of(r->fid)->opened = true;
    m.Rlopen.qid = qid_of(&n);
    p9_reply(r, &m);
}

static void on_clunk(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

static void fid_free(void *user, struct p9_fid *fid)
{
    struct file *f = fid->aux;
    (void)user;
    changes_destroy(f->changes);
    free(f->value);
    free(f);
}

/* ---- reading ---- */

static void read_value(struct p9_request *r, const struct file *f)
{
    struct p9_msg m = {0};
    size_t at = r->t->Tread.offset < f->len ? (size_t)r->t->Tread.offset : f->len, n = f->len - at;
    m.Rread.data.p = f->value + at;
    m.Rread.data.len = n < r->t->Tread.count ? (uint32_t)n : r->t->Tread.count;
    p9_reply(r, &m);
}

static void read_changes(struct p9_request *r, const struct file *f)
{
    struct serve *s = r->user;
    struct p9_msg m = {0};
    ssize_t n = changes_read(f->changes, (char *)s->buf, r->t->Tread.count);
    if (n < 0) {
        fail(r, (int)n);
        return;
    }
    m.Rread.data = (struct p9_data){s->buf, (uint32_t)n};
    p9_reply(r, &m);
}

/* The only thing that is taken: ranges to be mapped. */
static void on_write(struct p9_request *r)
{
    const struct file *f = file_of(r->fid);
    struct p9_msg m = {0};
    int rc = f->changes ? changes_add(f->changes, r->t->Twrite.data.p, r->t->Twrite.data.len) : -EROFS;
    if (rc < 0) {
        fail(r, rc);
        return;
    }
    m.Rwrite.count = r->t->Twrite.data.len;
    p9_reply(r, &m);
}

static void on_read(struct p9_request *r)
{
    const struct file *f = file_of(r->fid);
    struct inode n;
    if (f->changes) {
        read_changes(r, f);
        return;
    }
    if (f->value) {
        read_value(r, f);
        return;
    }
    uint8_t *owner = NULL;
    ssize_t got = f->opened ? inode_of(r, &n) : -EBADF;
    if (got == 0 && !S_ISREG(n.raw.i_mode))
        got = -EISDIR;
    if (got == 0 && !(owner = malloc(DATA_AT + r->t->Tread.count)))
        got = -ENOMEM;
    if (got == 0)
        got = volume_read(volume_of(r), &n, owner + DATA_AT, r->t->Tread.count, r->t->Tread.offset);
    if (got < 0) {
        free(owner);
        fail(r, (int)got);
    } else {
        p9_reply_data(r, owner, owner + DATA_AT, (uint32_t)got);
    }
}

static uint8_t dt_of(uint8_t type)
{
    static const uint8_t dt[] = {DT_UNKNOWN, DT_REG, DT_DIR, DT_CHR, DT_BLK, DT_FIFO, DT_SOCK, DT_LNK};
    return type < sizeof dt ? dt[type] : DT_UNKNOWN;
}

/* As its attributes will say; an inode that is damaged shows when it is looked at. */
static uint64_t qid_path_of_entry(struct volume *v, const struct entry *e)
{
    struct inode n;
    if (e->type == EXT2_FT_DIR)
        return e->ino | BROWSE_QID_OWN;
    return volume_inode(v, e->ino, &n) == 0 ? qid_path(&n) : e->ino;
}

/* As many entries as fit. What is wrong with one shows when it is the first. */
static int list(struct p9_request *r, const struct inode *dir, size_t *len)
{
    struct serve *s = r->user;
    struct entry e;
    uint64_t offset = r->t->Treaddir.offset;
    int rc;
    while ((rc = volume_entry(&s->volume, dir, offset, &e)) > 0) {
        struct p9_dirent d = {.offset = e.next, .type = dt_of(e.type), .name = {e.name, e.len}};
        d.qid = (struct p9_qid){.type = e.type == EXT2_FT_DIR       ? P9_QTDIR
                                        : e.type == EXT2_FT_SYMLINK ? P9_QTSYMLINK
                                                                    : P9_QTFILE,
                                .path = qid_path_of_entry(&s->volume, &e)};
        if (p9_dirent_pack(s->buf, r->t->Treaddir.count, len, &d) < 0)
            return *len ? 0 : -EINVAL;
        offset = e.next;
    }
    return *len ? 0 : rc;
}

static void on_readdir(struct p9_request *r)
{
    const struct serve *s = r->user;
    struct p9_msg m = {0};
    struct inode n;
    size_t len = 0;
    int rc = file_of(r->fid)->opened ? inode_of(r, &n) : -EBADF;
    if (rc == 0)
        rc = S_ISDIR(n.raw.i_mode) ? list(r, &n, &len) : -ENOTDIR;
    if (rc < 0) {
        fail(r, rc);
        return;
    }
    m.Rreaddir.data = (struct p9_data){s->buf, (uint32_t)len};
    p9_reply(r, &m);
}

static void on_readlink(struct p9_request *r)
{
    struct serve *s = r->user;
    struct p9_msg m = {0};
    struct inode n;
    ssize_t len = inode_of(r, &n);
    if (len == 0)
        len = volume_readlink(&s->volume, &n, (char *)s->buf, P9_MSIZE_MAX);
    if (len < 0) {
        fail(r, (int)len);
        return;
    }
    m.Rreadlink.target = (struct p9_str){(const char *)s->buf, (uint16_t)len};
    p9_reply(r, &m);
}

/* ---- attributes ---- */

/* Seconds are signed and 32 bits wide, two more come with the nanoseconds. */
static bool set_time(const struct inode *n, size_t extra_at, uint32_t sec, uint32_t extra, uint64_t *out_sec, uint64_t *out_nsec)
{
    bool has = n->raw.i_extra_isize + (size_t)EXT2_GOOD_OLD_INODE_SIZE >= extra_at + sizeof extra;
    *out_sec = (uint64_t)((int64_t)(int32_t)sec + (has ? (int64_t)(extra & EXT4_EPOCH_MASK) << 32 : 0));
    *out_nsec = has ? extra >> EXT4_EPOCH_BITS : 0;
    return *out_nsec < 1000000000;
}

static bool set_times(const struct inode *n, struct p9_Rgetattr *a)
{
    const struct ext2_inode_large *i = &n->raw;
    if (i->i_extra_isize + (size_t)EXT2_GOOD_OLD_INODE_SIZE >= offsetof(struct ext2_inode_large, i_version_hi)) {
        a->valid |= GETATTR_BTIME;
        set_time(n, offsetof(struct ext2_inode_large, i_crtime_extra), i->i_crtime, i->i_crtime_extra, &a->btime_sec, &a->btime_nsec);
    }
    return set_time(n, offsetof(struct ext2_inode_large, i_atime_extra), i->i_atime, i->i_atime_extra, &a->atime_sec, &a->atime_nsec) &&
           set_time(n, offsetof(struct ext2_inode_large, i_mtime_extra), i->i_mtime, i->i_mtime_extra, &a->mtime_sec, &a->mtime_nsec) &&
           set_time(n, offsetof(struct ext2_inode_large, i_ctime_extra), i->i_ctime, i->i_ctime_extra, &a->ctime_sec, &a->ctime_nsec);
}

/* Both of ext4's encodings. */
static uint64_t device(const struct inode *n)
{
    uint32_t old = n->raw.i_block[0], new = n->raw.i_block[1];
    if (!S_ISCHR(n->raw.i_mode) && !S_ISBLK(n->raw.i_mode))
        return 0;
    return old ? makedev(old >> 8 & 0xff, old & 0xff) : makedev((new & 0xfff00) >> 8, (new & 0xff) | (new >> 12 & 0xfff00));
}

static void on_getattr(struct p9_request *r)
{
    struct volume *v = volume_of(r);
    struct p9_msg m = {0};
    struct p9_Rgetattr *a = &m.Rgetattr;
    struct inode n;
    int rc = inode_of(r, &n);
    if (rc == 0 && !set_times(&n, a))
        rc = -EIO;
    if (rc < 0) {
        fail(r, rc);
        return;
    }
    a->valid |= P9_GETATTR_BASIC | GETATTR_GEN;
    a->qid = qid_of(&n);
    a->mode = n.raw.i_mode;
    a->uid = inode_uid(n.raw);
    a->gid = inode_gid(n.raw);
    a->nlink = n.raw.i_links_count;
    a->rdev = device(&n);
    a->size = n.size;
    a->blksize = v->fs->blocksize;
    a->blocks = ext2fs_get_stat_i_blocks(v->fs, &n.small);
    a->gen = n.raw.i_generation;
    p9_reply(r, &m);
}

/* lseek, as an attribute of a file (9p/seek.h). */
static int answer_seek(struct volume *v, const struct inode *n, int whence, uint64_t offset, struct file *f)
{
    uint64_t at;
    char text[P9_SEEK_TEXT_MAX];
    int rc = S_ISREG(n->raw.i_mode) ? volume_seek(v, n, whence, offset, &at) : -EINVAL;
    if (rc < 0)
        return rc;
    f->len = (size_t)snprintf(text, sizeof text, "%" PRIu64, at);
    f->value = (uint8_t *)strdup(text);
    return f->value ? 0 : -ENOMEM;
}

static void on_xattrwalk(struct p9_request *r)
{
    uint64_t offset;
    int whence;
    char name[P9_NAME_MAX + 1];
    struct p9_str wanted = r->t->Txattrwalk.name;
    struct p9_msg m = {0};
    struct inode n;
    int rc = wanted.len > P9_NAME_MAX ? -ERANGE : inode_of(r, &n);
    struct file *f = rc == 0 ? file_new(&n) : NULL;
    if (rc == 0 && !f)
        rc = -ENOMEM;
    if (rc == 0 && p9_str_eq(wanted, SERVE_CHANGES)) {
        rc = (f->changes = changes_create(volume_of(r))) ? 0 : -ENOMEM;
    } else if (rc == 0 && p9_seek_parse(wanted, &whence, &offset)) {
        rc = answer_seek(volume_of(r), &n, whence, offset, f);
    } else if (rc == 0) {
        memcpy(name, wanted.s, wanted.len);
        name[wanted.len] = 0;
        rc = volume_xattr(volume_of(r), &n, name, &f->value, &f->len);
    }
    if (rc < 0) {
        free(f);
        fail(r, rc);
        return;
    }
    r->newfid->aux = f;
    m.Rxattrwalk.size = f->len;
    p9_reply(r, &m);
}

static void on_statfs(struct p9_request *r)
{
    const struct volume *v = volume_of(r);
    struct ext2_super_block *sb = v->fs->super;
    struct p9_msg m = {0};
    uint64_t all = ext2fs_blocks_count(sb), overhead = (uint64_t)sb->s_overhead_clusters * EXT2FS_CLUSTER_RATIO(v->fs),
             reserved = ext2fs_r_blocks_count(sb);
    m.Rstatfs = (struct p9_Rstatfs){.type = EXT2_SUPER_MAGIC,
                                    .bsize = v->fs->blocksize,
                                    .blocks = overhead < all ? all - overhead : all,
                                    .bfree = v->free_blocks,
                                    .bavail = reserved < v->free_blocks ? v->free_blocks - reserved : 0,
                                    .files = sb->s_inodes_count,
                                    .ffree = sb->s_free_inodes_count,
                                    .namelen = EXT2_NAME_LEN};
    memcpy(&m.Rstatfs.fsid, sb->s_uuid, sizeof m.Rstatfs.fsid);
    p9_reply(r, &m);
}

/* ---- what a read-only tree says ---- */

static void on_change(struct p9_request *r)
{
    p9_fail(r, EROFS);
}

static void on_fsync(struct p9_request *r)
{
    p9_reply(r, &(struct p9_msg){0});
}

/* Nobody can get a lock that excludes others, so that one which does not is everybody's. */
static void on_lock(struct p9_request *r)
{
    struct p9_msg m = {.Rlock.status = P9_LOCK_SUCCESS};
    if (r->t->Tlock.type == P9_LOCK_WRLCK)
        p9_fail(r, EROFS);
    else
        p9_reply(r, &m);
}

static void on_getlock(struct p9_request *r)
{
    const struct p9_Tgetlock *t = &r->t->Tgetlock;
    struct p9_msg m = {.Rgetlock = {P9_LOCK_UNLCK, t->start, t->length, t->proc_id, t->client_id}};
    p9_reply(r, &m);
}

/* ---- the table ---- */

static p9_handler *const handlers[P9_TYPE_MAX] = {
    [P9_Tattach] = on_attach,       [P9_Twalk] = on_walk,       [P9_Tlopen] = on_lopen,       [P9_Tclunk] = on_clunk,
    [P9_Tread] = on_read,           [P9_Treaddir] = on_readdir, [P9_Treadlink] = on_readlink, [P9_Tgetattr] = on_getattr,
    [P9_Txattrwalk] = on_xattrwalk, [P9_Tstatfs] = on_statfs,   [P9_Tfsync] = on_fsync,       [P9_Tlock] = on_lock,
    [P9_Tgetlock] = on_getlock,     [P9_Twrite] = on_write,     [P9_Tlcreate] = on_change,    [P9_Tsetattr] = on_change,
    [P9_Tmkdir] = on_change,        [P9_Tmknod] = on_change,    [P9_Tsymlink] = on_change,    [P9_Tlink] = on_change,
    [P9_Trename] = on_change,       [P9_Trenameat] = on_change, [P9_Tunlinkat] = on_change,   [P9_Tremove] = on_change,
    [P9_Txattrcreate] = on_change,
};

/* The watchdog sees by `work` whether it is still the same request that runs. */
static void watched(struct p9_request *r)
{
    struct serve *s = r->user;
    s->work++;
    handlers[r->t->type](r);
    s->work++;
}

const struct p9_backend *serve_backend(void)
{
    static struct p9_backend backend = {.fid_free = fid_free};
    for (unsigned type = 0; type < P9_TYPE_MAX; type++)
        backend.on[type] = handlers[type] ? watched : NULL;
    return &backend;
}

const struct p9_server_config *serve_config(void)
{
    static const struct p9_server_config config = {.max_fids = SERVE_FIDS_MAX};
    return &config;
}
