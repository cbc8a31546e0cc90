// SPDX-License-Identifier: Apache-2.0
// The process that serves the root file system on space.1: see files.h.
#include "guest/files.h"

#include "base/log.h"
#include "guest/files_backend.h"
#include "guest/port.h"
#include "guest/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES_PORT "space.1"
#define TREE_FD    3
#define PROC_FD    4

static int open_uevents(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
        log_error("listen for uevents: %s", strerror(errno));
    return fd;
}

/* Only what it needs stays open: ends of jobs' pipes here would keep them from ending. */
static void keep_two(const struct root *root)
{
    int tree = fcntl(root->tree, F_DUPFD_CLOEXEC, PROC_FD + 1), proc = fcntl(root->proc, F_DUPFD_CLOEXEC, PROC_FD + 1);
    dup3(tree, TREE_FD, O_CLOEXEC);
    dup3(proc, PROC_FD, O_CLOEXEC);
    syscall(SYS_close_range, PROC_FD + 1, ~0u, 0);
}

static void serve(struct files_shared *shared)
{
    static struct poll_loop loop;
    static struct port port;
    static struct ring ring;
    struct files_backend backend = {.tree = TREE_FD, .ring = &ring, .handles = &shared->handles};
    char text[4096];
    int uevents = open_uevents(), rc;
    /* relative paths of magic links are how an O_PATH descriptor is opened: /proc may be covered in
     * the guest */
    if (fchdir(PROC_FD) < 0 || poll_init(&loop) < 0 || files_backend_init(&backend) < 0)
        _exit(1);
    if ((rc = ring_init(&ring, &loop)) < 0) {
        log_error("set up io_uring: %s", strerror(-rc));
        _exit(1);
    }
    while ((rc = port_open(&port, &loop, FILES_PORT, files_backend(), files_backend_config(), &backend)) == -ENOENT)
        if (recv(uevents, text, sizeof text, 0) < 0 && errno != ENOBUFS && errno != EINTR)
            break;
    if (rc < 0) {
        log_error("open port " FILES_PORT ": %s", strerror(-rc));
        _exit(1);
    }
    close(uevents);
    for (;;)
        poll_step(&loop);
}

struct files_shared *files_share(void)
{
    void *p = mmap(NULL, sizeof(struct files_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

pid_t files_start(const struct root *root, struct files_shared *shared)
{
    shared->handles = 0;
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid > 0)
        return pid;
    sigset_t none;
    sigemptyset(&none);
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(0);
    root_protect(root); /* a host waits long for a file server that is gone */
    keep_two(root);
    serve(shared);
    _exit(1);
}
