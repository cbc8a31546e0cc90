// SPDX-License-Identifier: Apache-2.0
// space-browsed: starts a space-browse for each connection that asks for one.
//
// Theory of operation. Whoever connects to RUN/browsed.sock (root or the instance's `user`; the
// kernel says who it is) sends one byte with one descriptor: an image, open for reading. The
// connection and the image are then a new process's, which execs space-browse; this process reads
// nothing from anybody. It takes no orders, keeps no state, and counts its children: further
// connections are closed at once. Children outlive it, and end with their connections.
#include "base/cleanup.h"
#include "base/config.h"
#include "base/log.h"
#include "base/options.h"
#include "hostd/browse/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN_MAX   64u
#define HELLO_SECONDS  5 /* for the byte with the descriptor */
#define FIRST_OF_CHILD 3 /* its descriptors: 3 image, 4 connection */

struct browsed {
    uid_t user;
    int listener, signals;
    unsigned children;
    char program[PATH_MAX]; /* space-browse */
};

/* ---- the child, before it is space-browse ---- */

static int take_image(int connection)
{
    char byte;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct stat st;
    int fd;
    ssize_t n = recvmsg(connection, &m, MSG_CMSG_CLOEXEC);
    if (n == 0)
        _exit(0); /* somebody only looked whether we are there */
    if (n < 0)
        return -1;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fd) || (m.msg_flags & MSG_CTRUNC))
        return -1;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
    return good ? fd : -1;
}

/* Both are out of the way of 3 and 4 first. */
static int place(int image, int connection)
{
    int a = fcntl(image, F_DUPFD_CLOEXEC, 10), b = fcntl(connection, F_DUPFD_CLOEXEC, 10);
    if (a < 0 || b < 0 || dup2(a, FIRST_OF_CHILD) < 0 || dup2(b, FIRST_OF_CHILD + 1) < 0)
        return -1;
    return close_range(FIRST_OF_CHILD + 2, ~0u, 0);
}

static void become_browser(const struct browsed *d, int connection)
{
    const struct timeval limit = {.tv_sec = HELLO_SECONDS}, none = {0};
    char *argv[] = {"space-browse", NULL}, *envp[] = {NULL};
    sigset_t all;
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int image = take_image(connection);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    if (image < 0 || place(image, connection) < 0)
        _exit(1);
    execve(d->program, argv, envp);
    log_error("start %s: %s", d->program, strerror(errno));
    _exit(1);
}

/* ---- the daemon ---- */

static bool may_ask(const struct browsed *d, int connection)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == 0 || peer.uid == d->user);
}

static void accept_one(struct browsed *d)
{
    AUTO_CLOSE int connection = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0)
        return;
    if (!may_ask(d, connection) || d->children >= CHILDREN_MAX) {
        log_warn("a connection is refused: %s", d->children >= CHILDREN_MAX ? "too many images are open" : "not from space-hostd");
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        become_browser(d, connection);
    if (pid < 0)
        log_warn("start a browser: %s", strerror(errno));
    else
        d->children++;
}

static void reap(struct browsed *d)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0; d->children--)
        if (WIFSIGNALED(status))
            log_warn("browser %d was ended by signal %d", (int)pid, WTERMSIG(status));
        else if (WEXITSTATUS(status))
            log_warn("browser %d ended with %d", (int)pid, WEXITSTATUS(status));
}

/* False when it is time to end. */
static bool take_signals(struct browsed *d)
{
    struct signalfd_siginfo s;
    bool go_on = true;
    while (read(d->signals, &s, sizeof s) == (ssize_t)sizeof s)
        go_on = go_on && s.ssi_signo == SIGCHLD;
    reap(d);
    return go_on;
}

static void loop(struct browsed *d)
{
    struct pollfd p[] = {{.fd = d->signals, .events = POLLIN}, {.fd = d->listener, .events = POLLIN}};
    for (;;) {
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return;
        if (p[0].revents && !take_signals(d))
            return;
        if (p[1].revents)
            accept_one(d);
    }
}

/* ---- start ---- */

static int open_listener(struct browsed *d, const struct config *c, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct passwd *pw = getpwnam(c->user);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `user`)", c->user);
    d->user = pw->pw_uid;
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/browsed.sock", c->run);
    d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(addr.sun_path);
    if (d->listener < 0 || bind(d->listener, (struct sockaddr *)&addr, sizeof addr) < 0 || listen(d->listener, 64) < 0)
        return err_sys(e, "listen on %s", addr.sun_path);
    return 0;
}

static int open_signals(struct browsed *d, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    d->signals = sigprocmask(SIG_BLOCK, &set, NULL) < 0 ? -1 : signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return d->signals < 0 ? err_sys(e, "wait for signals") : 0;
}

/* space-browse lies where this program does. */
static int find_program(struct browsed *d, char folder[PATH_MAX], struct err *e)
{
    ssize_t n = readlink("/proc/self/exe", folder, PATH_MAX - sizeof "/space-browse");
    if (n < 0)
        return err_sys(e, "find where this program lies");
    folder[n] = 0;
    *strrchr(folder, '/') = 0;
    int size = snprintf(d->program, sizeof d->program, "%s/space-browse", folder);
    return size < (int)sizeof d->program ? 0 : err_set(e, ENAMETOOLONG, "%s is too long", folder);
}

static int run(const char *config_path, struct err *e)
{
    struct browsed d = {.listener = -1};
    struct config config;
    char folder[PATH_MAX];
    umask(0177);
    if (geteuid() == 0)
        return err_set(e, EPERM, "space-browsed must not run as root");
    int rc = config_load(config_path, &config, e);
    if (rc == 0)
        rc = find_program(&d, folder, e);
    if (rc == 0)
        rc = open_signals(&d, e);
    if (rc == 0)
        rc = open_listener(&d, &config, e);
    if (rc == 0)
        rc = isolate_daemon(folder, e);
    if (rc == 0)
        loop(&d);
    return rc;
}

int main(int argc, char **argv)
{
    const char *config;
    struct err e = {0};
    int status = options_parse(argc, argv, "space-browsed", "", &config);
    if (status >= 0)
        return status;
    if (run(config, &e) == 0)
        return 0;
    log_error("%s", e.msg);
    return 1;
}
