// SPDX-License-Identifier: Apache-2.0
// Files in the objects of the pool: opened, installed, grown, given to a virtual machine and taken
// back. See pool.h.
#include "hostd/noded/pool_impl.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define COPY_CHUNK (1u << 20)

struct file {
    const char *name;
    mode_t mode; /* kernel, initrd, fill and fill.ram are read by QEMUs of any uid, and are no
                    secret */
};

static const struct file files[] = {
    [NODED_DISK] = {"disk.raw", 0600}, [NODED_RAM] = {"ram.raw", 0400}, [NODED_STATE] = {"vm.state", 0600}, [NODED_KERNEL] = {"kernel", 0644},
    [NODED_INITRD] = {"initrd", 0644}, [NODED_META] = {"meta", 0600},   [NODED_FILL] = {"fill", 0644},      [NODED_FILL_RAM] = {"fill.ram", 0644},
};

void pool_file_path(const struct pool *p, struct pool_object o, enum noded_file file, char out[PATH_MAX])
{
    char name[POOL_NAME_SIZE];
    pool_object_name(o.id, name);
    /* config paths hold at most 255 bytes: never cut */
    snprintf(out, PATH_MAX, "%.255s/%s/%s/%s", p->path, pool_kind_folder(o.kind), name, files[file].name);
}

/* Opens a file in an object's directory. Only regular files are ever handed out. -errno with errno
 * set. */
static int file_open(int dir, enum noded_file file, int flags)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(dir, files[file].name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, files[file].mode);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode)) {
        errno = EINVAL;
        return -EINVAL;
    }
    if ((flags & O_CREAT) && (st.st_mode & 07777) != files[file].mode && fchmod(fd, files[file].mode) < 0)
        return -errno; /* the umask is closer than the mode of kernel and initrd */
    return steal_fd(&fd);
}

/* The sentence for a file that could not be opened. */
static int file_fail(struct err *e, const char *what, enum noded_file file, struct pool_object o)
{
    char text[64];
    snprintf(text, sizeof text, "%s %s of", what, files[file].name);
    return pool_fail(e, text, o);
}

/* Gives a file to uid and gid `owner`, with exactly `mode`. Missing is success. -errno with errno
 * set. */
static int file_own(int dir, enum noded_file file, uid_t owner, mode_t mode)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(dir, files[file].name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if ((st.st_uid != owner || st.st_gid != owner) && fchown(fd, owner, owner) < 0)
        return -errno;
    if ((st.st_mode & 07777) != mode && fchmod(fd, mode) < 0)
        return -errno;
    return 0;
}

bool pool_has_file(int dir, enum noded_file file)
{
    return faccessat(dir, files[file].name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

int pool_files_reset(int dir, bool strip)
{
    static const enum noded_file memory[] = {NODED_STATE, NODED_META, NODED_RAM, NODED_FILL, NODED_FILL_RAM};
    for (size_t i = 0; strip && i < sizeof memory / sizeof memory[0]; i++)
        if (unlinkat(dir, files[memory[i]].name, 0) < 0 && errno != ENOENT)
            return -errno;
    for (int f = NODED_DISK; f <= NODED_META; f++)
        if (file_own(dir, (enum noded_file)f, 0, files[f].mode) < 0)
            return -errno;
    return 0;
}

int pool_files_sync(int dir)
{
    for (int f = NODED_DISK; f <= NODED_META; f++) {
        AUTO_CLOSE int fd = file_open(dir, (enum noded_file)f, O_RDONLY);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0 || fsync(fd) < 0)
            return -errno;
    }
    return 0;
}

int pool_file_open(const struct pool *p, struct pool_object o, enum noded_file file, bool writable, int *ret_fd, struct err *e)
{
    AUTO_CLOSE int dir = pool_object_open(p, o, "open a file of", e);
    if (dir < 0)
        return dir;
    int fd = file_open(dir, file, writable ? O_RDWR | O_CREAT : O_RDONLY);
    if (fd < 0)
        return file_fail(e, "open", file, o);
    *ret_fd = fd;
    return 0;
}

/* Bytes that the kernel cannot move by itself, such as between two kinds of file systems. -errno
 * with errno set. */
static int copy_slowly(int from, int to)
{
    AUTO_FREE char *buf = malloc(COPY_CHUNK);
    if (!buf) {
        errno = ENOMEM;
        return -ENOMEM;
    }
    for (;;) {
        ssize_t got = read(from, buf, COPY_CHUNK);
        if (got <= 0)
            return got < 0 ? -errno : 0;
        for (ssize_t done = 0; done < got;) {
            ssize_t put = write(to, buf + done, (size_t)(got - done));
            if (put < 0)
                return -errno;
            done += put;
        }
    }
}

/* Copies to the end; shares extents where the file system can. -errno with errno set. */
static int copy(int from, int to)
{
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, 1u << 30, 0);
        if (n < 0 && (errno == EXDEV || errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS))
            return copy_slowly(from, to); /* both offsets are where the last success left them */
        if (n <= 0)
            return n < 0 ? -errno : 0;
    }
}

int pool_file_install(const struct pool *p, struct pool_object o, enum noded_file file, int from, struct err *e)
{
    AUTO_CLOSE int dir = pool_object_open(p, o, "install into", e);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int to = file_open(dir, file, O_RDWR | O_CREAT | O_TRUNC);
    if (to < 0 || lseek(from, 0, SEEK_SET) < 0 || copy(from, to) < 0)
        return file_fail(e, "install", file, o);
    return 0;
}

int pool_clone(int from_fd, int to_fd, struct pool_object to, enum noded_file file, struct err *e)
{
    if (ftruncate(to_fd, 0) < 0 || ioctl(to_fd, FICLONE, from_fd) < 0)
        return file_fail(e, "copy", file, to);
    return 0;
}

int pool_file_clone(const struct pool *p, struct pool_object from, struct pool_object to, enum noded_file file, struct err *e)
{
    AUTO_CLOSE int src_dir = pool_object_open(p, from, "copy a file of", e);
    AUTO_CLOSE int dst_dir = src_dir < 0 ? -1 : pool_object_open(p, to, "copy a file to", e);
    if (src_dir < 0 || dst_dir < 0)
        return src_dir < 0 ? src_dir : dst_dir;
    AUTO_CLOSE int src = file_open(src_dir, file, O_RDONLY);
    if (src < 0)
        return file_fail(e, "open", file, from);
    AUTO_CLOSE int dst = file_open(dst_dir, file, O_RDWR | O_CREAT);
    return dst < 0 ? file_fail(e, "open", file, to) : pool_clone(src, dst, to, file, e);
}

int pool_file_remove(const struct pool *p, struct pool_object o, enum noded_file file, struct err *e)
{
    AUTO_CLOSE int dir = pool_object_open(p, o, "remove a file of", e);
    if (dir < 0)
        return dir;
    return unlinkat(dir, files[file].name, 0) < 0 && errno != ENOENT ? file_fail(e, "remove", file, o) : 0;
}

int pool_disk_grow(const struct pool *p, uint64_t sandbox, uint64_t size, struct err *e)
{
    struct stat st;
    struct pool_object o = {NODED_SANDBOX, sandbox};
    AUTO_CLOSE int dir = pool_object_open(p, o, "grow", e);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int fd = file_open(dir, NODED_DISK, O_RDWR);
    if (fd < 0 || fstat(fd, &st) < 0)
        return file_fail(e, "grow", NODED_DISK, o);
    if ((uint64_t)st.st_size > size)
        return err_set(e, EINVAL, "grow the disk of sandbox %012llx: it has %lld bytes, a disk cannot shrink to %llu", (unsigned long long)sandbox,
                       (long long)st.st_size, (unsigned long long)size);
    if ((uint64_t)st.st_size < size && ftruncate(fd, (off_t)size) < 0)
        return file_fail(e, "grow", NODED_DISK, o);
    return 0;
}

int pool_claim(const struct pool *p, uint64_t sandbox, uid_t uid, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, sandbox};
    AUTO_CLOSE int dir = pool_object_open(p, o, "start", e);
    if (dir < 0)
        return dir;
    static const enum noded_file needed[] = {NODED_KERNEL, NODED_INITRD, NODED_DISK};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        AUTO_CLOSE int fd = file_open(dir, needed[i], O_RDONLY);
        uid_t owner = needed[i] == NODED_DISK ? uid : 0;
        if (fd < 0 || file_own(dir, needed[i], owner, files[needed[i]].mode) < 0)
            return file_fail(e, "start needs", needed[i], o);
    }
    return 0;
}

int pool_release(const struct pool *p, uint64_t sandbox, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, sandbox};
    struct err why = {0};
    AUTO_CLOSE int dir = pool_object_open(p, o, "take back", &why);
    if (dir == -ENOENT)
        return 0;
    if (dir < 0)
        return err_set(e, why.code, "%s", why.msg);
    return file_own(dir, NODED_DISK, 0, files[NODED_DISK].mode) < 0 ? file_fail(e, "take back", NODED_DISK, o) : 0;
}

uid_t pool_holder(const struct pool *p, uint64_t sandbox)
{
    char path[POOL_NAME_SIZE + 16], name[POOL_NAME_SIZE];
    struct stat st;
    pool_object_name(sandbox, name);
    snprintf(path, sizeof path, "%s/%s", name, files[NODED_DISK].name);
    return fstatat(p->folder[NODED_SANDBOX], path, &st, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : st.st_uid;
}
