// SPDX-License-Identifier: Apache-2.0
// The guest's memory on its way into QEMU: see ramfd.h.
//
// Theory of operation. libvirt starts QEMU inside one blocking call, and QEMU asks for its memory
// inside that call: so a thread waits for it, until ramfd_finish wakes it by a pipe. One connection
// of the right uid is served; others are hung up on.
#include "hostd/noded/ramfd.h"

#include "hostd/noded/ram_wire.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define FILL_SUFFIX ".fill"
#define FILL_QUEUE  64    /* QEMU has so many threads for its disk */
#define ANSWER_MSEC 20000 /* from the descriptor's arrival until it was mapped */

struct ramfds {
    int dir;
    char path[80];
};

struct ramfd {
    const struct ramfds *all;
    char name[13];
    pthread_t thread;
    int listener, wake[2];
    struct ramfd_gifts gifts;
    uid_t uid;
    uint64_t length;
    /* The thread's, until it has ended. */
    bool mapped;
    uint64_t address;
    pid_t pid;
};

int ramfds_open(int run_fd, const char *run, struct ramfds **out, struct err *e)
{
    AUTO_FREE struct ramfds *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ENOMEM, "open %s/ram: out of memory", run);
    snprintf(r->path, sizeof r->path, "%.64s/ram", run);
    if (mkdirat(run_fd, "ram", 0711) < 0 && errno != EEXIST)
        return err_sys(e, "make %s", r->path);
    struct stat st;
    AUTO_CLOSE int fd = openat(run_fd, "ram", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, "open %s", r->path);
    if (st.st_uid != 0 || (st.st_mode & 0022))
        return err_set(e, EPERM, "%s: it must be a directory of root's: remove it", r->path);
    if (fchmod(fd, 0711) < 0)
        return err_sys(e, "set the mode of %s", r->path);
    DIR *dir = fdopendir(dup(fd));
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (!strchr(d->d_name, '.') || !strstr(d->d_name, FILL_SUFFIX)) /* those are listened at */
            unlinkat(fd, d->d_name, 0);                                 /* of an earlier process */
    if (dir)
        closedir(dir);
    r->dir = steal_fd(&fd);
    *out = steal_ptr(r);
    return 0;
}

void ramfd_path(const struct ramfd *f, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s", f->all->path, f->name);
}

/* ---- the thread ---- */

static bool readable(const struct ramfd *f, int fd, int msec)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = f->wake[0], .events = POLLIN}};
    int n;
    do
        n = poll(p, 2, msec);
    while (n < 0 && errno == EINTR);
    return n > 0 && p[0].revents;
}

static bool send_ram(const struct ramfd *f, int conn)
{
    struct ram_offer offer = {.version = RAM_WIRE_VERSION, .length = f->length};
    const struct ramfd_gifts *g = &f->gifts;
    int fds[RAM_WIRE_FDS] = {g->ram};
    size_t count = 1;
    if (g->tap >= 0) {
        offer.gifts |= RAM_HAS_NETWORK;
        fds[count++] = g->tap;
        fds[count++] = g->net;
    }
    if (g->faults >= 0) {
        offer.gifts |= RAM_ARRIVES;
        fds[count++] = g->faults;
    }
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(RAM_WIRE_FDS * sizeof(int))];
    } control = {0};
    size_t size = count * sizeof(int);
    struct iovec iov = {&offer, sizeof offer};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(size)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(c), fds, size);
    return sendmsg(conn, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof offer;
}

static void serve(struct ramfd *f, int conn)
{
    struct ucred peer;
    struct ram_mapped m;
    socklen_t len = sizeof peer;
    if (getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != f->uid) {
        log_warn("audit: refused pid %d of uid %u the memory of sandbox %s", peer.pid, peer.uid, f->name);
        return;
    }
    if (!send_ram(f, conn) || !readable(f, conn, ANSWER_MSEC) || recv(conn, &m, sizeof m, 0) != (ssize_t)sizeof m)
        return;
    if (m.version != RAM_WIRE_VERSION || m.length != f->length)
        return;
    f->address = m.address;
    f->pid = peer.pid;
    f->mapped = true;
}

static void *thread_main(void *arg)
{
    struct ramfd *f = arg;
    while (!f->mapped && readable(f, f->listener, -1)) {
        AUTO_CLOSE int conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
        if (conn >= 0)
            serve(f, conn);
    }
    return NULL;
}

/* ---- start and end ---- */

static int listen_there(const struct ramfds *r, const char *name, uid_t uid, int queue)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || (unlinkat(r->dir, name, 0) < 0 && errno != ENOENT))
        return -1;
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/%s", r->path, name);
    /* the process's umask is 077 */
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) < 0 || fchownat(r->dir, name, uid, uid, AT_SYMLINK_NOFOLLOW) < 0 || listen(fd, queue) < 0)
        return -1;
    return steal_fd(&fd);
}

static void fill_name(uint64_t id, char out[24])
{
    snprintf(out, 24, "%012llx" FILL_SUFFIX, (unsigned long long)(id & 0xffffffffffffull));
}

void ramfd_fill_path(const struct ramfds *r, uint64_t id, char out[PATH_MAX])
{
    char name[24];
    fill_name(id, name);
    snprintf(out, PATH_MAX, "%s/%s", r->path, name);
}

int ramfd_fill_listen(const struct ramfds *r, uint64_t id, uid_t uid, int *ret_fd, struct err *e)
{
    char name[24];
    fill_name(id, name);
    int fd = listen_there(r, name, uid, FILL_QUEUE);
    if (fd < 0)
        return err_sys(e, "make %s/%s", r->path, name);
    *ret_fd = fd;
    return 0;
}

void ramfd_fill_remove(const struct ramfds *r, uint64_t id)
{
    char name[24];
    fill_name(id, name);
    unlinkat(r->dir, name, 0);
}

static void drop(struct ramfd *f)
{
    unlinkat(f->all->dir, f->name, 0);
    cleanup_close(&f->listener);
    cleanup_close(&f->wake[0]);
    cleanup_close(&f->wake[1]);
    free(f);
}

int ramfd_start(const struct ramfds *r, uint64_t id, uid_t uid, const struct ramfd_gifts *gifts, uint64_t length, struct ramfd **out, struct err *e)
{
    struct ramfd *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ENOMEM, "start sandbox %012llx: out of memory", (unsigned long long)id);
    *f = (struct ramfd){.all = r, .listener = -1, .wake = {-1, -1}, .gifts = *gifts, .uid = uid, .length = length};
    snprintf(f->name, sizeof f->name, "%012llx", (unsigned long long)(id & 0xffffffffffffull));
    f->listener = listen_there(r, f->name, uid, 4);
    int rc = f->listener < 0 || pipe2(f->wake, O_CLOEXEC) < 0 ? err_sys(e, "make %s/%s", r->path, f->name) : 0;
    int error = rc < 0 ? 0 : pthread_create(&f->thread, NULL, thread_main, f);
    if (error)
        rc = err_set(e, error, "start sandbox %s: no thread for its memory: %s", f->name, strerror(error));
    if (rc < 0) {
        drop(f);
        return rc;
    }
    *out = f;
    return 0;
}

int ramfd_finish(struct ramfd *f, uint64_t *ret_address, pid_t *ret_pid)
{
    if (!f)
        return -ENODATA;
    cleanup_close(&f->wake[1]); /* wakes it */
    f->wake[1] = -1;
    pthread_join(f->thread, NULL);
    int rc = f->mapped ? 0 : -ENODATA;
    *ret_address = f->address;
    *ret_pid = f->pid;
    drop(f);
    return rc;
}
