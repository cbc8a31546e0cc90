// SPDX-License-Identifier: Apache-2.0
// spacectl forward: ports of a sandbox on the host's loopback.
//
// Each connection is a process of its own with a thread for each direction, so that whatever goes
// wrong with one, its end is the end of that process. The parent only accepts, and reaps.
#include "spacectl/command.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LISTENERS_MAX   64  /* two for each port: 127.0.0.1 and ::1 */
#define CONNECTIONS_MAX 256 /* at once; more wait */
#define PIECE           (128u * 1024)

struct listener {
    int fd;
    uint16_t port; /* in the sandbox */
};

struct forward {
    const struct tree *tree;
    const char *name;
    struct listener listeners[LISTENERS_MAX];
    int count, connections;
    int signals; /* signalfd(2) */
};

/* ---- one connection, in its process ---- */

struct pair {
    int client, port;
};

/* The client hears of it as of a connection that was reset. */
static void give_up(const struct pair *p) __attribute__((noreturn));
static void give_up(const struct pair *p)
{
    const struct linger at_once = {.l_onoff = 1};
    setsockopt(p->client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    _exit(1);
}

/* Until `from` ends; false when one of them failed. */
static bool carry(int from, int to)
{
    char *buf = malloc(PIECE);
    ssize_t n = buf ? 1 : -1;
    while (buf && (n = read(from, buf, PIECE)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        for (ssize_t at = 0; at < n;) {
            ssize_t put = write(to, buf + at, (size_t)(n - at));
            if (put < 0 && errno == EINTR)
                continue;
            if (put < 0) {
                free(buf);
                return false;
            }
            at += put;
        }
    }
    free(buf);
    return n == 0;
}

static void *to_client(void *arg)
{
    const struct pair *p = arg;
    if (!carry(p->port, p->client))
        give_up(p);
    shutdown(p->client, SHUT_WR);
    return NULL;
}

static int serve(const struct forward *f, int client, uint16_t port)
{
    char path[TREE_PATH_MAX];
    struct err e = {0};
    struct pair p = {client, -1};
    pthread_t thread;
    int one = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int rc = tree_path(path, &e, "ports/%s/%u", f->name, port);
    p.port = rc < 0 ? rc : tree_file(f->tree, path, O_RDWR, &e);
    if (p.port < 0) {
        fprintf(stderr, "spacectl: %s\n", e.msg);
        give_up(&p);
    }
    if (pthread_create(&thread, NULL, to_client, &p) != 0 || !carry(client, p.port))
        give_up(&p);
    if (ftruncate(p.port, 0) < 0) /* no more will be written */
        give_up(&p);
    pthread_join(thread, NULL);
    return 0;
}

static void begin(struct forward *f, const struct listener *l)
{
    int client = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_IGN);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        for (int i = 0; i < f->count; i++)
            close(f->listeners[i].fd);
        _exit(serve(f, client, l->port));
    }
    f->connections += child > 0;
    close(client);
}

/* ---- listening ---- */

static int listen_at(int family, uint16_t *port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(*port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *at = family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t size = family == AF_INET ? sizeof four : sizeof six;
    int one = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, at, size) < 0 || listen(fd, 128) < 0 || getsockname(fd, at, &size) < 0) {
        int code = errno;
        close(fd);
        return -code;
    }
    *port = ntohs(family == AF_INET ? four.sin_port : six.sin6_port);
    return fd;
}

/* [LOCAL:]PORT. */
static int add(struct forward *f, const char *text, struct err *e)
{
    const char *colon = strchr(text, ':');
    char first[8] = "";
    uint64_t local = 0, port = 0;
    if (colon && (size_t)(colon - text) < sizeof first)
        memcpy(first, text, (size_t)(colon - text));
    bool good = str_parse_u64(colon ? colon + 1 : text, 65535, &port) == 0 && port;
    if (colon)
        good = good && str_parse_u64(first, 65535, &local) == 0;
    else
        local = port;
    if (!good)
        return err_set(e, EINVAL, "\"%s\" is not [LOCAL:]PORT, such as 8080:80", text);
    if (f->count + 2 > LISTENERS_MAX)
        return err_set(e, E2BIG, "more than %d ports", LISTENERS_MAX / 2);
    uint16_t at = (uint16_t)local;
    int fd = listen_at(AF_INET, &at);
    if (fd < 0)
        return err_set(e, -fd, "listen on 127.0.0.1:%u: %s", at, strerror(-fd));
    f->listeners[f->count++] = (struct listener){fd, (uint16_t)port};
    fd = listen_at(AF_INET6, &at);
    if (fd >= 0) /* a host without IPv6, or where that one is taken, is none the worse */
        f->listeners[f->count++] = (struct listener){fd, (uint16_t)port};
    printf("127.0.0.1:%u is port %u of %s\n", at, (unsigned)port, f->name);
    return 0;
}

static int block_signals(struct err *e)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? err_sys(e, "wait for signals") : fd;
}

/* The signal that ends the program, or 0. */
static int take_signals(struct forward *f)
{
    struct signalfd_siginfo info;
    while (read(f->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            return (int)info.ssi_signo;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        f->connections--;
    return 0;
}

static int loop(struct forward *f, struct err *e)
{
    struct pollfd fds[LISTENERS_MAX + 1];
    for (;;) {
        nfds_t n = f->connections < CONNECTIONS_MAX ? (nfds_t)f->count : 0;
        fds[0] = (struct pollfd){f->signals, POLLIN, 0};
        for (nfds_t i = 0; i < n; i++)
            fds[i + 1] = (struct pollfd){f->listeners[i].fd, POLLIN, 0};
        if (poll(fds, n + 1, -1) < 0 && errno != EINTR)
            return err_sys(e, "wait for connections");
        if (fds[0].revents && take_signals(f))
            return 0;
        for (nfds_t i = 0; i < n; i++)
            if (fds[i + 1].revents)
                begin(f, &f->listeners[i]);
    }
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct forward f = {.tree = t, .name = a->pos[0]};
    char path[TREE_PATH_MAX];
    (void)self;
    int rc = tree_check_name("sandbox", f.name, e);
    if (rc >= 0)
        rc = tree_path(path, e, "ports/%s", f.name);
    AUTO_CLOSE int dir = rc < 0 ? -1 : tree_file(t, path, O_RDONLY | O_DIRECTORY, e);
    if (rc < 0 || dir < 0)
        return rc < 0 ? rc : dir;
    f.signals = block_signals(e);
    if (f.signals < 0)
        return f.signals;
    for (int i = 1; i < a->pos_count && rc >= 0; i++)
        rc = add(&f, a->pos[i], e);
    fflush(stdout);
    return rc < 0 ? rc : loop(&f, e);
}

const struct command command_forward = {
    .name = "forward",
    .usage = "NAME [LOCAL:]PORT...",
    .summary = "ports of a sandbox on this host's loopback, until interrupted",
    .help = "Connections to 127.0.0.1:LOCAL (and ::1; LOCAL 0: a free port) reach what listens on "
            "PORT of the\nsandbox's loopback, through its channel, not its network. Everybody on "
            "this host can connect.\n",
    .pos_min = 2,
    .pos_max = -1,
    .run = run,
};
