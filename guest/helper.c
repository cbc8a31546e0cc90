// SPDX-License-Identifier: Apache-2.0
// Work in a child process: see helper.h.
#include "guest/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

struct helper {
    struct poll_watch watch;
    struct poll_loop *loop;
    helper_done *done;
    void *user;
};

static void helper_ready(struct poll_watch *w, uint32_t events)
{
    struct helper *h = (struct helper *)(void *)((char *)w - offsetof(struct helper, watch));
    int rc = 0;
    (void)events;
    if (read(w->fd, &rc, sizeof rc) != (ssize_t)sizeof rc || rc > 0)
        rc = -EIO;
    poll_watch_stop(h->loop, w);
    close(w->fd);
    h->done(h->user, rc);
    free(h);
}

int helper_start(struct poll_loop *l, helper_work *work, void *arg, helper_done *done, void *user)
{
    int fd[2];
    struct helper *h = malloc(sizeof *h);
    if (!h)
        return -ENOMEM;
    if (pipe2(fd, O_CLOEXEC) < 0) {
        int rc = -errno;
        free(h);
        return rc;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int rc = work(arg);
        (void)!write(fd[1], &rc, sizeof rc);
        _exit(0);
    }
    int rc = pid < 0 ? -errno : 0;
    close(fd[1]);
    if (rc < 0) {
        close(fd[0]);
        free(h);
        return rc;
    }
    *h = (struct helper){{fd[0], helper_ready}, l, done, user};
    poll_watch_start(l, &h->watch, EPOLLIN);
    return 0;
}
