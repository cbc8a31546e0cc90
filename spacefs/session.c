// SPDX-License-Identifier: Apache-2.0
// The FUSE session: see session.h.
//
// Theory of operation. One thread reads requests from /dev/fuse without ever waiting for one: each either answers at once or starts a
// task (request.c) that answers later. Nothing here may touch the mounted tree: that would wait for ourselves.
#include "spacefs/session.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "spacefs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define IO_MAX     (1u << 20) /* bytes in one read or write */
#define BACKGROUND 65535u     /* readahead of one stuck guest must not use up everybody's share */
#define BATCH      16         /* requests taken before others of the loop get their turn */

struct session {
    uv_poll_t poll;
    struct fuse_buf buf;
    struct fs *fs;
    void (*ended)(struct fs *fs);
};

static void on_init(void *user, struct fuse_conn_info *conn)
{
    (void)user;
    conn->max_write = IO_MAX;
    conn->max_readahead = IO_MAX < conn->max_readahead ? IO_MAX : conn->max_readahead;
    conn->max_background = BACKGROUND;
    conn->congestion_threshold = BACKGROUND / 4 * 3;
    conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_SPLICE_READ);
    conn->want |= conn->capable & (FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                                   FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
}

/*
 * libfuse 3.14 negotiates parallel lookups and listings, and then forgets to say so to the kernel, which would serialise
 * everything in a directory behind one request that waits. And it does not know HANDLE_KILLPRIV_V2, without which the kernel
 * asks for security.capability before every write; the guest's own kernel strips it, and an owner is root there. So the answer
 * to INIT is completed on its way out.
 */
#define INIT_FLAGS_ADDED (FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2)

static ssize_t write_reply(int fd, struct iovec *iov, int count, void *user)
{
    const struct fs *fs = user;
    if (!fs->init_answered && count == 2 && iov[1].iov_len >= sizeof(struct fuse_init_out)) {
        struct fuse_init_out *out = iov[1].iov_base;
        out->flags |= fs->init_offered & INIT_FLAGS_ADDED;
    }
    return writev(fd, iov, count);
}

static ssize_t read_request(int fd, void *buf, size_t len, void *user)
{
    struct fs *fs = user;
    ssize_t n = read(fd, buf, len);
    const struct fuse_in_header *h = buf;
    if (!fs->init_answered && n >= (ssize_t)(sizeof *h + sizeof(struct fuse_init_in)) && h->opcode == FUSE_INIT)
        fs->init_offered = ((const struct fuse_init_in *)(h + 1))->flags;
    return n;
}

/* No fallocate, copy_file_range: 9P has no such thing, and the kernel does what can be done without. */
static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = ops_lookup,
    .forget = ops_forget,
    .forget_multi = ops_forget_multi,
    .getattr = ops_getattr,
    .setattr = ops_setattr,
    .readlink = ops_readlink,
    .mknod = ops_mknod,
    .mkdir = ops_mkdir,
    .unlink = ops_unlink,
    .rmdir = ops_rmdir,
    .symlink = ops_symlink,
    .rename = ops_rename,
    .link = ops_link,
    .open = ops_open,
    .create = ops_create,
    .read = ops_read,
    .write = ops_write,
    .lseek = ops_lseek,
    .flush = ops_flush,
    .release = ops_release,
    .fsync = ops_fsync,
    .opendir = ops_opendir,
    .readdir = ops_readdir,
    .releasedir = ops_releasedir,
    .fsyncdir = ops_fsyncdir,
    .statfs = ops_statfs,
    .setxattr = ops_setxattr,
    .getxattr = ops_getxattr,
    .listxattr = ops_listxattr,
    .removexattr = ops_removexattr,
    .access = ops_access,
    .getlk = ops_getlk,
    .setlk = ops_setlk,
    .flock = ops_flock,
    .poll = ops_poll,
};

/* --- the mount point --- */

/* Detaches mounts whose daemon died, which may lie on each other. */
static int clean_mount_point(const char *path, struct err *e)
{
    struct stat st;
    for (int i = 0; i < 64; i++) {
        if (stat(path, &st) == 0)
            return S_ISDIR(st.st_mode) ? 0 : err_set(e, ENOTDIR, "mount point %s is no directory", path);
        if (errno == ENOENT && mkdir(path, 0755) == 0)
            continue;
        if (errno != ENOTCONN && errno != ECONNABORTED)
            return err_sys(e, "cannot use mount point %s", path);
        log_info("detaching the dead mount at %s", path);
        if (umount2(path, MNT_DETACH) < 0)
            return err_sys(e, "cannot detach the dead mount at %s", path);
    }
    return err_set(e, EBUSY, "too many dead mounts at %s", path);
}

struct mount_entry {
    unsigned major, minor;
    char type[32];
};

/* The topmost mount at `path`. False when nothing is mounted there. */
static bool find_mount(const char *path, struct mount_entry *out)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[4096], where[1024], type[32];
    unsigned major, minor;
    bool found = false;
    while (f && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (sscanf(line, "%*d %*d %u:%u %*s %1023s", &major, &minor, where) != 3 || strcmp(where, path) || !dash ||
            sscanf(dash, " - %31s", type) != 1)
            continue;
        found = true;
        out->major = major;
        out->minor = minor;
        strcpy(out->type, type);
    }
    if (f)
        fclose(f);
    return found;
}

/* The kernel reads 128 KiB ahead by default, whatever FUSE negotiated. Not vital: without /sys it stays so. */
static void set_readahead(const char *mount)
{
    struct mount_entry m;
    char path[64];
    if (!find_mount(mount, &m))
        return;
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", m.major, m.minor);
    FILE *f = fopen(path, "we");
    if (!f || fprintf(f, "%u\n", IO_MAX / 1024) < 0)
        log_debug("cannot set %s: %s", path, strerror(errno));
    if (f)
        fclose(f);
}

/* --- requests --- */

/* Takes one request. 1, 0 when there is none now, negative when the session is over. */
static int take_one(struct fs *fs, struct fuse_buf *buf)
{
    int n = fuse_session_receive_buf(fs->session, buf);
    if (n > 0)
        fuse_session_process_buf(fs->session, buf);
    else if (n == 0)
        return -ENODEV;
    return fuse_session_exited(fs->session) ? -ENODEV : n > 0 ? 1 : n == -EAGAIN || n == -EINTR ? 0 : n;
}

static void on_readable(uv_poll_t *h, int status, int events)
{
    struct session *s = h->data;
    int rc = 1;
    (void)status; /* an error shows in the read */
    (void)events;
    for (int i = 0; i < BATCH && rc > 0; i++)
        rc = take_one(s->fs, &s->buf);
    if (rc < 0) {
        uv_poll_stop(h);
        s->ended(s->fs);
    }
}

/* The first request is INIT; answered while we are still root. */
static int answer_init(struct fs *fs, struct err *e)
{
    struct fuse_buf buf = {0};
    int rc = take_one(fs, &buf);
    free(buf.mem);
    if (rc <= 0)
        return err_set(e, rc < 0 ? -rc : EIO, "the kernel did not start the FUSE session");
    return 0;
}

/* libfuse's own mount would start fusermount3 at the end, which we may not. Options: Documentation/filesystems/fuse.rst. */
static int mount_device(const char *path, struct err *e)
{
    AUTO_CLOSE int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[128];
    if (fd < 0)
        return err_sys(e, "cannot open /dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
    if (mount("space", path, "fuse.spacefs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) < 0)
        return err_sys(e, "cannot mount at %s: are we root?", path);
    return steal_fd(&fd);
}

static int new_session(struct fs *fs, struct err *e)
{
    char program[] = "spacefs";
    char *argv[] = {program, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    const struct fuse_custom_io io = {.read = read_request, .writev = write_reply};
    fs->session = fuse_session_new(&args, &operations, sizeof operations, fs);
    fuse_opt_free_args(&args);
    if (!fs->session)
        return err_set(e, ENOMEM, "cannot create a FUSE session");
    if (fuse_session_custom_io(fs->session, &io, fs->mount_fd) < 0)
        return err_set(e, EINVAL, "this libfuse takes no I/O functions of ours");
    return 0;
}

int session_open(struct fs *fs, struct err *e)
{
    struct mount_entry m;
    const char *path = fs->config.mount;
    int rc = clean_mount_point(path, e);
    if (rc < 0)
        return rc;
    if (find_mount(path, &m) && !strcmp(m.type, "fuse.spacefs"))
        return err_set(e, EBUSY, "%s is mounted by a spacefs that is alive; stop that one first", path);
    rc = mount_device(path, e);
    if (rc < 0)
        return rc;
    fs->mount_fd = rc;
    rc = new_session(fs, e);
    if (rc == 0)
        rc = answer_init(fs, e);
    if (rc < 0)
        return rc;
    fs->init_answered = true;
    set_readahead(path);
    int flags = fcntl(fs->mount_fd, F_GETFL);
    if (flags < 0 || fcntl(fs->mount_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_sys(e, "cannot make /dev/fuse non-blocking");
    return 0;
}

void session_undo(struct fs *fs)
{
    if (fs->mount_fd > 0)
        umount2(fs->config.mount, MNT_DETACH);
}

int session_start(struct fs *fs, void (*ended)(struct fs *fs), struct err *e)
{
    struct session *s = calloc(1, sizeof *s);
    int rc = s ? uv_poll_init(fs->loop, &s->poll, fs->mount_fd) : UV_ENOMEM;
    if (rc < 0) {
        free(s);
        return err_set(e, -rc, "cannot watch /dev/fuse");
    }
    s->fs = fs;
    s->ended = ended;
    s->poll.data = s;
    fs->poller = s;
    uv_poll_start(&s->poll, UV_READABLE, on_readable);
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct session *s = h->data;
    free(s->buf.mem);
    free(s);
}

void session_close(struct fs *fs)
{
    if (fs->poller) {
        uv_poll_stop(&fs->poller->poll);
        uv_close((uv_handle_t *)&fs->poller->poll, on_closed);
        fs->poller = NULL;
    }
    fuse_session_destroy(fs->session); /* closes the descriptor */
    fs->session = NULL;
    fs->mount_fd = -1;
}
