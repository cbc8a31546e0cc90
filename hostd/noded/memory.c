// SPDX-License-Identifier: Apache-2.0
// space-noded's side of the memory helpers: see memory.h.
#include "hostd/noded/memory.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct memory {
    pthread_mutex_t lock; /* for `busy` */
    pthread_cond_t free;
    bool busy[MEMORY_HELPERS];
    int sock[MEMORY_HELPERS];
};

/* In the child: nothing is left but the socket, as descriptor 3, and standard error. */
static _Noreturn void become_helper(int sock, pid_t parent, uid_t uid_base, uint32_t uid_count)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
        _exit(1);
    if (sock != 3 && dup2(sock, 3) < 0)
        _exit(1);
    close(0);
    close(1);
    close_range(4, ~0u, 0);
    memory_helper(3, uid_base, uid_count);
}

static int fork_helper(uid_t uid_base, uint32_t uid_count, int *ret_sock, struct err *e)
{
    int pair[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(e, "make a pair of sockets");
    pid_t pid = fork();
    if (pid == 0)
        become_helper(pair[1], parent, uid_base, uid_count);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return err_sys(e, "fork a memory helper");
    }
    *ret_sock = pair[0];
    return 0;
}

int memory_open(uid_t uid_base, uint32_t uid_count, struct memory **out, struct err *e)
{
    struct memory *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ENOMEM, "fork the memory helpers: out of memory");
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->free, NULL);
    for (int i = 0; i < MEMORY_HELPERS; i++) {
        int rc = fork_helper(uid_base, uid_count, &m->sock[i], e);
        if (rc < 0)
            return rc; /* main ends now, and they with it */
    }
    *out = m;
    return 0;
}

/* ---- calls ---- */

static int take(struct memory *m)
{
    pthread_mutex_lock(&m->lock);
    for (;;) {
        for (int i = 0; i < MEMORY_HELPERS; i++)
            if (!m->busy[i]) {
                m->busy[i] = true;
                pthread_mutex_unlock(&m->lock);
                return i;
            }
        pthread_cond_wait(&m->free, &m->lock);
    }
}

static void give(struct memory *m, int i)
{
    pthread_mutex_lock(&m->lock);
    m->busy[i] = false;
    pthread_cond_signal(&m->free);
    pthread_mutex_unlock(&m->lock);
}

static bool transmit(int sock, const struct memory_request *q, const int *fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(MEMORY_FDS * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)q, sizeof *q};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fds) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(MEMORY_FDS * sizeof(int));
        memcpy(CMSG_DATA(c), fds, MEMORY_FDS * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof *q;
}

/* A dead helper is replaced by a new space-noded. */
static int gone(const char *what, struct err *e)
{
    log_error("a memory helper is gone; ending, to be started anew");
    raise(SIGTERM);
    return err_set(e, EPIPE, "%s: the memory helper is gone", what);
}

static int receive(int sock, const struct memory_request *q, struct memory_reply *rep, const char *what, struct err *e)
{
    ssize_t n;
    do
        n = recv(sock, rep, sizeof *rep, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *rep)
        return gone(what, e);
    return rep->error < 0 ? err_set(e, -rep->error, "%s of QEMU %d: %s", what, (int)q->pid, strerror(-rep->error)) : 0;
}

static int call(struct memory *m, const struct memory_request *q, const int *fds, struct memory_reply *rep, const char *what, struct err *e)
{
    int i = take(m);
    int rc = transmit(m->sock[i], q, fds) ? receive(m->sock[i], q, rep, what, e) : gone(what, e);
    give(m, i);
    return rc;
}

static struct memory_request request(enum memory_op op, const struct memory_target *t)
{
    return (struct memory_request){.op = op, .pid = t->pid, .uid = t->uid, .start_time = t->start_time, .address = t->address, .length = t->length};
}

int memory_identify(struct memory *m, struct memory_target *t, struct err *e)
{
    struct memory_request q = request(MEMORY_IDENTIFY, t);
    struct memory_reply rep;
    int rc = call(m, &q, NULL, &rep, "look at the process", e);
    if (rc == 0)
        t->start_time = rep.start_time;
    return rc;
}

int memory_save(struct memory *m, const struct memory_target *t, int ram, int table_fd, uint64_t table, memory_copied *copied, void *user,
                uint64_t *ret_pages, uint64_t *ret_written, struct err *e)
{
    static const char what[] = "save the memory";
    struct memory_request q = request(MEMORY_SAVE, t);
    struct memory_reply rep;
    struct err why = {0};
    q.table = table;
    int i = take(m), then = 0;
    int rc = transmit(m->sock[i], &q, (const int[MEMORY_FDS]){ram, table_fd}) ? receive(m->sock[i], &q, &rep, what, e) : gone(what, e);
    if (rc == 0) {
        then = copied(user, &why);
        rc = receive(m->sock[i], &q, &rep, what, e);
    }
    give(m, i);
    *ret_pages = rc == 0 ? rep.pages : 0;
    *ret_written = rc == 0 ? rep.written : 0;
    return rc < 0 ? rc : then < 0 ? err_set(e, why.code, "%s", why.msg) : 0;
}

int memory_load(struct memory *m, const struct memory_target *t, int ram, int table_fd, uint64_t table, uint64_t *ret_pages, struct err *e)
{
    struct memory_request q = request(MEMORY_LOAD, t);
    struct memory_reply rep;
    q.table = table;
    int rc = call(m, &q, (const int[MEMORY_FDS]){ram, table_fd}, &rep, "load the memory", e);
    if (rc == 0)
        *ret_pages = rep.pages;
    return rc;
}

int memory_pss(struct memory *m, const struct memory_target *t, uint64_t *ret_pss, uint64_t *ret_anon, struct err *e)
{
    struct memory_request q = request(MEMORY_PSS, t);
    struct memory_reply rep;
    int rc = call(m, &q, NULL, &rep, "measure the memory", e);
    if (rc == 0) {
        *ret_pss = rep.pss;
        *ret_anon = rep.pss_anon;
    }
    return rc;
}

int memory_kill(struct memory *m, const struct memory_target *t, struct err *e)
{
    struct memory_request q = request(MEMORY_KILL, t);
    struct memory_reply rep;
    return call(m, &q, NULL, &rep, "end the process", e);
}
