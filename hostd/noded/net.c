// SPDX-License-Identifier: Apache-2.0
// space-noded's side of the network helper: see net.h.
#include "hostd/noded/net.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct net {
    pthread_mutex_t lock; /* for the conversation */
    int sock;
};

/* In the child: nothing is left but the socket, as descriptor 3, and standard error. */
static _Noreturn void become_helper(int sock, pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
        _exit(1);
    if (sock != 3 && dup2(sock, 3) < 0)
        _exit(1);
    close(0);
    close(1);
    close_range(4, ~0u, 0);
    net_helper(3);
}

int net_open(struct net **out, struct err *e)
{
    int pair[2];
    pid_t parent = getpid();
    struct net *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ENOMEM, "fork the network helper: out of memory");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(e, "make a pair of sockets"); /* main ends now */
    pid_t pid = fork();
    if (pid == 0)
        become_helper(pair[1], parent);
    close(pair[1]);
    if (pid < 0)
        return err_sys(e, "fork the network helper");
    pthread_mutex_init(&n->lock, NULL);
    n->sock = pair[0];
    *out = n;
    return 0;
}

/* ---- calls ---- */

/* What does not come along stays -1. */
static ssize_t receive(int sock, struct net_reply *rep, int fds[NET_FDS])
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(NET_FDS * sizeof(int))];
    } control = {0};
    struct iovec iov = {rep, sizeof *rep};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len <= CMSG_LEN(NET_FDS * sizeof(int)))
        memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    return n;
}

/* A dead helper is replaced by a new space-noded. */
static int gone(struct err *e)
{
    log_error("the network helper is gone; ending, to be started anew");
    raise(SIGTERM);
    return err_set(e, EPIPE, "the network helper is gone");
}

static int call(struct net *n, const struct net_request *q, struct net_reply *rep, int fds[NET_FDS], struct err *e)
{
    fds[0] = fds[1] = -1;
    pthread_mutex_lock(&n->lock);
    ssize_t done = send(n->sock, q, sizeof *q, MSG_NOSIGNAL);
    if (done == (ssize_t)sizeof *q)
        done = receive(n->sock, rep, fds);
    pthread_mutex_unlock(&n->lock);
    if (done != (ssize_t)sizeof *rep)
        return gone(e);
    rep->what[sizeof rep->what - 1] = 0;
    if (rep->error == 0 && (fds[0] < 0 || (rep->fds > 1 && fds[1] < 0)))
        return err_set(e, EMFILE, "the descriptors of a guest's network did not arrive");
    return rep->error < 0 ? err_set(e, -rep->error, "a guest's network: %s: %s", rep->what, strerror(-rep->error)) : 0;
}

int net_create(struct net *n, int *ret_tap, int *ret_ns, uint64_t *ret_number, struct err *e)
{
    const struct net_request q = {.op = NET_CREATE};
    struct net_reply rep = {0};
    int fds[NET_FDS], rc = call(n, &q, &rep, fds, e);
    *ret_tap = fds[0];
    *ret_ns = fds[1];
    *ret_number = rep.number;
    return rc;
}

int net_socket(struct net *n, pid_t pid, uint64_t number, uint32_t port, int *ret_fd, struct err *e)
{
    const struct net_request q = {.op = NET_SOCKET, .port = port, .pid = pid, .number = number};
    struct net_reply rep = {0};
    int fds[NET_FDS], rc = call(n, &q, &rep, fds, e);
    *ret_fd = fds[0];
    return rc;
}
