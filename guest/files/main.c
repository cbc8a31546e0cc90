// SPDX-License-Identifier: Apache-2.0
// The process that serves the root file system: see files.h.
//
// It blocks in file system calls, one request after the other; a frozen or hanging disk holds up this process and nothing else. Its working directory is
// /proc/self/fd of a procfs of its own, so that "12" names descriptor 12 for the calls that take a path only (getxattr, chmod, opening anew),
// whatever the guest does to its /proc.
#include "guest/files/files.h"

#include "base/log.h"
#include "guest/files/dir.h"
#include "guest/files/handlers.h"
#include "guest/files/node.h"
#include "guest/files/xattr.h"
#include "guest/port.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_NAME   "space.1"
#define FDS_MAX     65536u
#define FIDS_MAX    65536u
#define HEAP_KEEP   (16 << 20) /* freed memory that stays ours: a reply is too large to be mapped anew each time */

const struct p9_backend files_backend = {
    .on = {
        [P9_Tattach] = files_attach,
        [P9_Twalk] = files_walk,
        [P9_Tclunk] = files_clunk,
        [P9_Tlopen] = files_lopen,
        [P9_Tlcreate] = files_lcreate,
        [P9_Tread] = files_read,
        [P9_Twrite] = files_write,
        [P9_Tfsync] = files_fsync,
        [P9_Treaddir] = dir_readdir,
        [P9_Tgetattr] = files_getattr,
        [P9_Tsetattr] = files_setattr,
        [P9_Tstatfs] = files_statfs,
        [P9_Txattrwalk] = xattr_walk,
        [P9_Txattrcreate] = xattr_create,
        [P9_Tmkdir] = files_mkdir,
        [P9_Tmknod] = files_mknod,
        [P9_Tsymlink] = files_symlink,
        [P9_Treadlink] = files_readlink,
        [P9_Tlink] = files_link,
        [P9_Trename] = files_rename,
        [P9_Trenameat] = files_renameat,
        [P9_Tunlinkat] = files_unlinkat,
        [P9_Tremove] = files_remove,
        [P9_Tlock] = files_lock,
        [P9_Tgetlock] = files_getlock,
    },
    .fid_free = files_fid_free,
};

/* The working directory becomes our own /proc/self/fd. */
static int enter_descriptors(void)
{
    int fs = fsopen("proc", FSOPEN_CLOEXEC), m = -1, dir = -1, rc = -1;
    if (fs >= 0 && fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        m = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (m >= 0)
        dir = openat(m, "self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0)
        rc = fchdir(dir);
    int code = errno;
    const int all[] = {fs, m, dir};
    for (size_t i = 0; i < 3; i++)
        if (all[i] >= 0)
            close(all[i]);
    return rc < 0 ? -code : 0;
}

static int files_init(struct files *fs, int tree)
{
    struct stat st;
    p9_link_init(&fs->used);
    fs->top = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fs->top < 0 || fstat(fs->top, &st) < 0)
        return -errno;
    fs->dev = st.st_dev;
    fs->ino = st.st_ino;
    fs->buf = aligned_alloc(4096, P9_MSIZE_MAX);
    return fs->buf ? 0 : -ENOMEM;
}

/* Ports appear some time after their driver was loaded. */
static int wait_for_port(struct port *p, struct poll_loop *l, const struct p9_server_config *config, struct files *fs)
{
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK, .nl_groups = 1};
    char event[4096];
    int rc, s = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
    if (s < 0 || bind(s, (struct sockaddr *)(void *)&groups, sizeof groups) < 0)
        return -errno;
    while ((rc = port_open(p, l, PORT_NAME, &files_backend, config, fs)) == -ENOENT)
        if (recv(s, event, sizeof event, 0) < 0 && errno != EINTR && errno != ENOBUFS)
            break;
    close(s);
    return rc;
}

static int prepare(struct files *fs, int tree)
{
    struct rlimit fds = {FDS_MAX, FDS_MAX};
    prctl(PR_SET_NAME, "space-files");
    signal(SIGPIPE, SIG_IGN);
    umask(0);
    mallopt(M_MMAP_THRESHOLD, HEAP_KEEP);
    mallopt(M_TRIM_THRESHOLD, HEAP_KEEP);
    if (setrlimit(RLIMIT_NOFILE, &fds) < 0)
        log_warn("raise the limit of descriptors: %s", strerror(errno));
    int rc = enter_descriptors();
    return rc < 0 ? rc : files_init(fs, tree);
}

_Noreturn void files_main(int tree)
{
    static const struct p9_server_config config = {.max_fids = FIDS_MAX, .max_requests = 1024};
    struct files fs = {.top = -1};
    struct poll_loop loop;
    struct port port;
    int rc = poll_init(&loop);
    if (rc == 0)
        rc = prepare(&fs, tree);
    if (rc == 0)
        rc = wait_for_port(&port, &loop, &config, &fs);
    if (rc < 0) {
        log_error("serve the root file system on " PORT_NAME ": %s", strerror(-rc));
        _exit(1);
    }
    for (;;)
        poll_step(&loop);
}
