// SPDX-License-Identifier: Apache-2.0
// Objects of the pool: subvolumes made, snapshotted, sealed, deleted and listed. Files in them:
// pool_file.c. See pool.h.
#include "hostd/noded/pool_impl.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/noded/memfd.h"

#include <btrfsutil.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define RECLAIM_PERCENT "25"

struct kind {
    const char *name, *folder;
    mode_t mode; /* of the folder: only sandboxes hold what a QEMU opens */
};

static const struct kind kinds[] = {
    [NODED_TEMPLATE] = {"template", "templates", 0700},
    [NODED_SANDBOX] = {"sandbox", "sandboxes", 0711},
    [NODED_SNAPSHOT] = {"snapshot", "snapshots", 0700},
};

const char *pool_kind_folder(enum noded_kind kind)
{
    return kinds[kind].folder;
}

void pool_object_name(uint64_t id, char out[POOL_NAME_SIZE])
{
    snprintf(out, POOL_NAME_SIZE, "%012llx", (unsigned long long)(id & 0xffffffffffffull));
}

int pool_fail(struct err *e, const char *what, struct pool_object o)
{
    int code = errno;
    return err_set(e, code, "%s %s %012llx: %s%s", what, kinds[o.kind].name, (unsigned long long)o.id, strerror(code),
                   code == ENOSPC ? "; the pool is full: remove snapshots or sandboxes" : "");
}

int pool_object_open(const struct pool *p, struct pool_object o, const char *what, struct err *e)
{
    char name[POOL_NAME_SIZE];
    pool_object_name(o.id, name);
    AUTO_CLOSE int fd = openat(p->folder[o.kind], name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return pool_fail(e, what, o);
    if (btrfs_util_is_subvolume_fd(fd) != BTRFS_UTIL_OK)
        return err_set(e, EINVAL, "%s %s %012llx: it is not a subvolume", what, kinds[o.kind].name, (unsigned long long)o.id);
    return steal_fd(&fd);
}

/* A directory of root's that nobody else can write to. */
static int check_owner(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "pool %s", path);
    if (st.st_uid != 0 || (st.st_mode & 0022))
        return err_set(e, EPERM,
                       "pool %s: it must belong to root and not be writable by anybody else (chown "
                       "root, chmod 0711)",
                       path);
    return 0;
}

/* QEMU walks to its disk by path, as a user that owns nothing on the way. */
static void warn_untraversable(const char *path)
{
    char part[PATH_MAX];
    struct stat st;
    str_copy(part, sizeof part, path);
    for (char *slash = part + 1;; slash++) {
        if (*slash != '/' && *slash)
            continue;
        char c = *slash;
        *slash = 0;
        if (stat(part, &st) == 0 && !(st.st_mode & 0001))
            log_warn("%s cannot be traversed by others: no QEMU will reach its disk (chmod o+x %s)", part, part);
        if (!c)
            return;
        *slash = c;
    }
}

/*
 * A data block group of which less than a quarter is in use is emptied into others by the kernel,
 * so that its room can become metadata: a pool that was full of data once would otherwise have none
 * for new objects and report no free byte, however much was deleted since. Off by default in the
 * kernel; another administrator's choice is left. https://docs.kernel.org/admin-guide/btrfs.html,
 * /sys/fs/btrfs/UUID/allocation.
 */
static void let_kernel_reclaim(int root)
{
    struct btrfs_ioctl_fs_info_args info = {0};
    char path[PATH_MAX], was[16] = "";
    if (ioctl(root, BTRFS_IOC_FS_INFO, &info) < 0)
        return;
    char uuid[37];
    const uint8_t *u = info.fsid;
    snprintf(uuid, sizeof uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6],
             u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    snprintf(path, sizeof path, "/sys/fs/btrfs/%s/allocation/data/bg_reclaim_threshold", uuid);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || read(fd, was, sizeof was - 1) <= 0 || strcmp(was, "0\n") != 0)
        return; /* a kernel before 5.19 has no such file */
    if (pwrite(fd, RECLAIM_PERCENT, strlen(RECLAIM_PERCENT), 0) < 0)
        log_warn("%s: %s", path, strerror(errno));
}

static int open_folder(struct pool *p, int root, enum noded_kind k, struct err *e)
{
    if (mkdirat(root, kinds[k].folder, kinds[k].mode) < 0 && errno != EEXIST)
        return err_sys(e, "make %s/%s", p->path, kinds[k].folder);
    p->folder[k] = openat(root, kinds[k].folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (p->folder[k] < 0)
        return err_sys(e, "open %s/%s", p->path, kinds[k].folder);
    int rc = check_owner(p->folder[k], kinds[k].folder, e);
    if (rc == 0 && fchmod(p->folder[k], kinds[k].mode) < 0)
        rc = err_sys(e, "set the mode of %s/%s", p->path, kinds[k].folder);
    return rc;
}

int pool_open(const char *path, struct pool **out, struct err *e)
{
    struct statfs fs;
    AUTO_CLOSE int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_sys(e, "open the pool %s", path);
    if (fstatfs(root, &fs) < 0 || fs.f_type != BTRFS_SUPER_MAGIC)
        return err_set(e, ENOTSUP, "pool %s: it is not on btrfs (mkfs.btrfs a disk or a file, and mount it there)", path);
    int rc = check_owner(root, path, e);
    if (rc < 0)
        return rc;
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ENOMEM, "open the pool %s: out of memory", path);
    str_copy(p->path, sizeof p->path, path);
    for (int k = 0; k <= NODED_SNAPSHOT; k++)
        p->folder[k] = -1;
    for (int k = NODED_TEMPLATE; k <= NODED_SNAPSHOT && rc == 0; k++)
        rc = open_folder(p, root, (enum noded_kind)k, e);
    if (rc < 0) {
        pool_close(p);
        return rc;
    }
    warn_untraversable(path);
    let_kernel_reclaim(root);
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    for (int k = NODED_TEMPLATE; k <= NODED_SNAPSHOT; k++)
        cleanup_close(&p->folder[k]);
    free(p);
}

int pool_create(const struct pool *p, struct pool_object o, struct err *e)
{
    char name[POOL_NAME_SIZE];
    pool_object_name(o.id, name);
    if (btrfs_util_create_subvolume_fd(p->folder[o.kind], name, 0, NULL, NULL) != BTRFS_UTIL_OK)
        return pool_fail(e, "create", o);
    AUTO_CLOSE int fd = pool_object_open(p, o, "create", e);
    if (fd < 0)
        return fd;
    return fchmod(fd, 0711) < 0 ? pool_fail(e, "set the mode of", o) : 0;
}

int pool_snapshot(const struct pool *p, struct pool_object from, struct pool_object to, bool read_only, struct err *e)
{
    char name[POOL_NAME_SIZE];
    pool_object_name(to.id, name);
    AUTO_CLOSE int src = pool_object_open(p, from, "snapshot", e);
    if (src < 0)
        return src;
    /* A sandbox's memory is of another instant than its disk; without a state nothing loads it, and
     * what is sealed at once, in one transaction, may hold it: nobody but root enters that folder.
     * A base that was fetched has none either, but its memory is what others were stored against. */
    bool state = pool_has_file(src, NODED_STATE), strip = from.kind == NODED_SANDBOX || (from.kind == NODED_SNAPSHOT && !state);
    bool at_once = read_only && (from.kind != NODED_SANDBOX || !state);
    if (btrfs_util_create_snapshot_fd2(src, p->folder[to.kind], name, at_once ? BTRFS_UTIL_CREATE_SNAPSHOT_READ_ONLY : 0, NULL, NULL) !=
        BTRFS_UTIL_OK)
        return pool_fail(e, "snapshot to", to);
    if (at_once)
        return 0;
    AUTO_CLOSE int dst = pool_object_open(p, to, "snapshot to", e);
    if (dst < 0)
        return dst;
    if (pool_files_reset(dst, strip) == 0 && (!read_only || btrfs_util_set_subvolume_read_only_fd(dst, true) == BTRFS_UTIL_OK))
        return 0;
    int rc = pool_fail(e, "take over the files of", to);
    if (btrfs_util_delete_subvolume_fd(p->folder[to.kind], name, 0) != BTRFS_UTIL_OK)
        log_warn("remove the half-made %s %s: %s", kinds[to.kind].name, name, strerror(errno));
    return rc;
}

int pool_seal(const struct pool *p, struct pool_object o, struct err *e)
{
    AUTO_CLOSE int fd = pool_object_open(p, o, "seal", e);
    if (fd < 0)
        return fd;
    if (pool_files_sync(fd) < 0)
        return pool_fail(e, "write out", o);
    return btrfs_util_set_subvolume_read_only_fd(fd, true) == BTRFS_UTIL_OK ? 0 : pool_fail(e, "seal", o);
}

/* What a deletion frees comes with the next commits, which are half a minute apart: too long for
 * who waits for room. */
static void hurry_when_full(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0 && fs.f_bavail < fs.f_blocks / 16)
        btrfs_util_start_sync_fd(fd, NULL);
}

int pool_delete(const struct pool *p, struct pool_object o, struct err *e)
{
    char name[POOL_NAME_SIZE];
    pool_object_name(o.id, name);
    for (int tries = 0;; tries++) {
        if (btrfs_util_delete_subvolume_fd(p->folder[o.kind], name, 0) == BTRFS_UTIL_OK) {
            hurry_when_full(p->folder[o.kind]);
            return 0;
        }
        if (errno == ENOENT)
            return 0;
        if (errno != ENOSPC || tries == 1 || btrfs_util_sync_fd(p->folder[o.kind]) != BTRFS_UTIL_OK)
            return pool_fail(e, "delete", o);
        /* what was freed in the transaction that has just been committed can be used now */
    }
}

/* Calls back for each object of a kind. */
static int each(const struct pool *p, enum noded_kind kind, void (*cb)(void *user, struct pool_object o), void *user, struct err *e)
{
    int fd = openat(p->folder[kind], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int rc = err_sys(e, "list %s/%s", p->path, kinds[kind].folder);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        struct pool_object o = {.kind = kind};
        if (str_parse_id(d->d_name, strlen(d->d_name), &o.id) == 0 && o.id)
            cb(user, o);
    }
    closedir(dir);
    return 0;
}

struct listing {
    const struct pool *pool;
    struct memfd text;
};

static void list_one(void *user, struct pool_object o)
{
    struct listing *l = user;
    struct btrfs_util_subvolume_info info;
    AUTO_CLOSE int fd = pool_object_open(l->pool, o, "list", NULL);
    if (fd < 0 || btrfs_util_subvolume_info_fd(fd, 0, &info) != BTRFS_UTIL_OK)
        return; /* deleted meanwhile, or not ours */
    memfd_add(&l->text, "%s %012llx %lld\n", kinds[o.kind].name, (unsigned long long)o.id, (long long)info.otime.tv_sec);
}

int pool_list(const struct pool *p, int *ret_fd, struct err *e)
{
    struct listing l = {.pool = p};
    memfd_start(&l.text);
    int rc = 0;
    for (int k = NODED_TEMPLATE; k <= NODED_SNAPSHOT && rc == 0; k++)
        rc = each(p, (enum noded_kind)k, list_one, &l, e);
    if (rc < 0) {
        memfd_drop(&l.text);
        return rc;
    }
    return memfd_seal(&l.text, ret_fd, e);
}

struct sandbox_call {
    void (*cb)(void *user, uint64_t sandbox);
    void *user;
};

static void one_sandbox(void *user, struct pool_object o)
{
    const struct sandbox_call *c = user;
    c->cb(c->user, o.id);
}

int pool_each_sandbox(const struct pool *p, void (*cb)(void *user, uint64_t sandbox), void *user, struct err *e)
{
    struct sandbox_call c = {cb, user};
    return each(p, NODED_SANDBOX, one_sandbox, &c, e);
}

int pool_stat(const struct pool *p, uint64_t *ret_size, uint64_t *ret_free, struct err *e)
{
    struct statfs fs;
    if (fstatfs(p->folder[NODED_SANDBOX], &fs) < 0)
        return err_sys(e, "ask the pool %s for its size", p->path);
    *ret_size = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    *ret_free = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    return 0;
}
