// SPDX-License-Identifier: Apache-2.0
// Freezes and thaws the root file system: see freezer.h.
//
// FIFREEZE waits for writers and writes back all that is dirty, so a process of its own does it.
// That process is also the watchdog: once the file system is frozen it waits for `thaw` at most as
// long as it was told, whatever became of everybody else. It touches no file.
#include "guest/freezer.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct freezer_call {
    struct p9_link link;
    freezer_done *done;
    void *user;
};

/* ---- the process; a command is a number of milliseconds to freeze for, 0 to thaw ---- */

static int thaw(int top)
{
    return ioctl(top, FITHAW, 0) < 0 ? -errno : 0;
}

/* What is dirty is written back twice: first while programs still write, so that they stand still only
 * for what they made dirty meanwhile. */
static int freeze(int top)
{
    (void)!syncfs(top); /* FIFREEZE fails as well where it does */
    return ioctl(top, FIFREEZE, 0) < 0 ? -errno : 0;
}

static void serve(int sock, int top)
{
    uint64_t due = 0; /* frozen until then */
    for (;;) {
        struct pollfd p = {.fd = sock, .events = POLLIN};
        uint64_t now = poll_now();
        uint32_t command;
        int n = due && now >= due ? 0 : poll(&p, 1, due ? (int)(due - now) : -1), rc = 0;
        if (n == 0) {
            thaw(top);
            due = 0;
        }
        if (n <= 0)
            continue;
        if (read(sock, &command, sizeof command) != (ssize_t)sizeof command)
            break;
        if (command == 0) {
            rc = due ? thaw(top) : -EINVAL;
            due = 0;
        } else {
            rc = freeze(top);
            if (rc == 0)
                due = poll_now() + command;
        }
        (void)!write(sock, &rc, sizeof rc);
    }
    if (due)
        thaw(top);
}

static void run_process(int sock, const struct root *root)
{
    root_protect(root);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (dup2(sock, STDIN_FILENO) < 0 || dup2(root->top, STDOUT_FILENO) < 0 || syscall(SYS_close_range, 3, ~0u, 0) < 0)
        _exit(1);
    thaw(STDOUT_FILENO); /* an earlier one may have died in between */
    serve(STDIN_FILENO, STDOUT_FILENO);
    _exit(0);
}

/* ---- our side ---- */

static void answer_first(struct freezer *f, int rc)
{
    struct freezer_call *c = p9_link_entry(f->calls.next, struct freezer_call, link);
    p9_link_remove(&c->link);
    c->done(c->user, rc);
    free(c);
}

/* Closes our end, which the process takes as the end of all. */
static void hang_up(struct freezer *f)
{
    if (f->watch.fd < 0)
        return;
    poll_watch_stop(f->loop, &f->watch);
    close(f->watch.fd);
    f->watch.fd = -1;
    while (!p9_link_empty(&f->calls))
        answer_first(f, -EIO);
}

static void freezer_ready(struct poll_watch *w, uint32_t events)
{
    struct freezer *f = (struct freezer *)(void *)((char *)w - offsetof(struct freezer, watch));
    int rc;
    (void)events;
    ssize_t n = read(w->fd, &rc, sizeof rc);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == (ssize_t)sizeof rc && !p9_link_empty(&f->calls)) {
        answer_first(f, rc);
        return;
    }
    hang_up(f); /* it died: its reaping starts another */
}

static int start_process(struct freezer *f)
{
    int sock[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) < 0)
        return -errno;
    f->pid = fork();
    if (f->pid == 0)
        run_process(sock[1], f->root);
    close(sock[1]);
    if (f->pid < 0) {
        int rc = -errno;
        close(sock[0]);
        return rc;
    }
    fcntl(sock[0], F_SETFL, O_RDWR | O_NONBLOCK);
    f->watch = (struct poll_watch){sock[0], freezer_ready};
    return poll_watch_start(f->loop, &f->watch, EPOLLIN);
}

int freezer_start(struct freezer *f, struct poll_loop *l, const struct root *root)
{
    *f = (struct freezer){.loop = l, .root = root, .watch.fd = -1};
    p9_link_init(&f->calls);
    return start_process(f);
}

void freezer_stop(struct freezer *f)
{
    uint32_t command = 0; /* said aloud, as a helper's copy of our end would keep it from seeing the end of all */
    if (f->watch.fd >= 0)
        (void)!send(f->watch.fd, &command, sizeof command, MSG_NOSIGNAL);
    hang_up(f);
}

void freezer_restart(struct freezer *f)
{
    hang_up(f);
    int rc = start_process(f);
    if (rc < 0)
        log_error("start the freezer: %s", strerror(-rc));
}

static int call(struct freezer *f, uint32_t command, freezer_done *done, void *user)
{
    struct freezer_call *c = f->watch.fd < 0 ? NULL : malloc(sizeof *c);
    if (!c)
        return f->watch.fd < 0 ? -EPIPE : -ENOMEM;
    *c = (struct freezer_call){.done = done, .user = user};
    if (send(f->watch.fd, &command, sizeof command, MSG_NOSIGNAL) < 0) {
        int rc = -errno;
        free(c);
        return rc;
    }
    p9_link_append(&f->calls, &c->link);
    return 0;
}

int freezer_freeze(struct freezer *f, unsigned msec, freezer_done *done, void *user)
{
    f->used = true;
    return call(f, msec, done, user);
}

int freezer_thaw(struct freezer *f, freezer_done *done, void *user)
{
    f->used = false;
    return call(f, 0, done, user);
}

bool freezer_used(const struct freezer *f)
{
    return f->used;
}
