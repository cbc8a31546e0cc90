// SPDX-License-Identifier: Apache-2.0
// The directories of channel sockets: see channel.h.
#include "hostd/noded/channel.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct channels {
    int dir; /* RUN/vm */
    char path[80];
};

static void id_name(uint64_t id, char out[13])
{
    snprintf(out, 13, "%012llx", (unsigned long long)(id & 0xffffffffffffull));
}

static void port_name(uint32_t port, char out[16])
{
    snprintf(out, 16, "space.%u", port);
}

int channels_open(int run_fd, const char *run, struct channels **out, struct err *e)
{
    struct stat st;
    AUTO_FREE struct channels *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ENOMEM, "open %s/vm: out of memory", run);
    snprintf(c->path, sizeof c->path, "%.64s/vm", run);
    if (mkdirat(run_fd, "vm", 0700) < 0 && errno != EEXIST)
        return err_sys(e, "make %s", c->path);
    AUTO_CLOSE int fd = openat(run_fd, "vm", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, "open %s", c->path);
    if (st.st_uid != 0 || (st.st_mode & 0022))
        return err_set(e, EPERM, "%s: it must be a directory of root's that nobody else can write to: remove it", c->path);
    c->dir = steal_fd(&fd);
    *out = steal_ptr(c);
    return 0;
}

void channels_close(struct channels *c)
{
    if (!c)
        return;
    close(c->dir);
    free(c);
}

void channels_path(const struct channels *c, uint64_t id, uint32_t port, char out[PATH_MAX])
{
    char name[13], file[16];
    id_name(id, name);
    port_name(port, file);
    snprintf(out, PATH_MAX, "%s/%s/%s", c->path, name, file);
}

int channels_dir(const struct channels *c, uint64_t id)
{
    char name[13];
    id_name(id, name);
    int fd = openat(c->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* What is in the directory of a virtual machine. */
static int remove_files(int dir)
{
    static const char *const records[] = {CHANNEL_RECORD, CHANNEL_RECORD ".new"};
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++)
        if (unlinkat(dir, records[i], 0) < 0 && errno != ENOENT)
            return -errno;
    for (uint32_t port = 0; port < CHANNEL_PORTS; port++) {
        char file[16];
        port_name(port, file);
        if (unlinkat(dir, file, 0) < 0 && errno != ENOENT)
            return -errno;
    }
    return 0;
}

int channels_prepare(const struct channels *c, uint64_t id, uid_t uid, struct err *e)
{
    char name[13];
    id_name(id, name);
    if (mkdirat(c->dir, name, 0700) < 0 && errno != EEXIST)
        return err_sys(e, "make %s/%s", c->path, name);
    AUTO_CLOSE int dir = openat(c->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || remove_files(dir) < 0 || fchown(dir, 0, uid) < 0 || fchmod(dir, 0700) < 0)
        return err_sys(e, "prepare %s/%s", c->path, name);
    return 0;
}

bool channels_exist(const struct channels *c, uint64_t id)
{
    char name[13];
    id_name(id, name);
    return faccessat(c->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

int channels_remove(const struct channels *c, uint64_t id, struct err *e)
{
    char name[13];
    id_name(id, name);
    AUTO_CLOSE int dir = openat(c->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 && errno == ENOENT)
        return 0;
    if (dir < 0 || remove_files(dir) < 0 || unlinkat(c->dir, name, AT_REMOVEDIR) < 0)
        return err_sys(e, "remove %s/%s", c->path, name);
    return 0;
}

/* Connects to the very inode that was looked at, whatever its name leads to by now. */
static int connect_inode(int node, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d", node);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int channels_connect(const struct channels *c, uint64_t id, uint32_t port, int *ret_fd, struct err *e)
{
    char name[13], file[16];
    struct stat st;
    id_name(id, name);
    port_name(port, file);
    AUTO_CLOSE int dir = openat(c->dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    AUTO_CLOSE int node = dir < 0 ? -1 : openat(dir, file, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (node < 0 && errno == ENOENT)
        return err_set(e, ECONNREFUSED, "connect to %s of sandbox %s: it has no virtual machine", file, name);
    if (node < 0 || fstat(node, &st) < 0)
        return err_sys(e, "connect to %s of sandbox %s", file, name);
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ENOTSOCK, "connect to %s of sandbox %s: it is not a socket", file, name);
    int rc = connect_inode(node, ret_fd);
    return rc < 0 ? err_set(e, -rc, "connect to %s of sandbox %s: %s", file, name, strerror(-rc)) : 0;
}

int channels_each(const struct channels *c, void (*cb)(void *user, uint64_t id, uid_t uid), void *user, struct err *e)
{
    int fd = openat(c->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int rc = err_sys(e, "list %s", c->path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        uint64_t id;
        struct stat st;
        if (str_parse_id(d->d_name, strlen(d->d_name), &id) == 0 && id && fstatat(c->dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(st.st_mode))
            cb(user, id, st.st_gid);
    }
    closedir(dir);
    return 0;
}
