// SPDX-License-Identifier: Apache-2.0
// Sandbox states: see state.h.
#include "spacectl/state.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int state_verb(const struct tree *t, const char *name, const char *verb, struct err *e)
{
    char path[TREE_PATH_MAX], line[32];
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_path(path, e, "sandboxes/%s/state", name);
    if (rc < 0)
        return rc;
    snprintf(line, sizeof line, "%s\n", verb);
    rc = tree_write(t, path, line, e);
    return rc < 0 ? err_wrap(e, "%s %s", verb, name) : rc;
}

static int failed(const struct tree *t, const char *name, const char *state, struct err *e)
{
    char path[TREE_PATH_MAX], text[ERR_MAX] = "";
    struct err ignored;
    if (tree_path(path, &ignored, "sandboxes/%s/error", name) >= 0)
        tree_read(t, path, text, sizeof text, &ignored);
    return err_set(e, strcmp(state, "failed") ? ECANCELED : EIO, "%s is %s%s%s", name, state,
                   *text ? ": " : "", text);
}

int state_wait_running(const struct tree *t, const char *name, struct err *e)
{
    static const char *const on_the_way[] = {"creating", "starting", "restoring"};
    char path[TREE_PATH_MAX], state[64];
    int rc = tree_path(path, e, "sandboxes/%s/state", name);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int fd = tree_file(t, path, O_RDONLY, e);
    if (fd < 0)
        return fd;
    for (;;) {
        ssize_t n = pread(fd, state, sizeof state - 1, 0);
        if (n < 0)
            return tree_fail(t, errno, "read", path, e);
        while (n && state[n - 1] == '\n')
            n--;
        state[n] = 0;
        if (!strcmp(state, "running"))
            return 0;
        bool waiting = false;
        for (size_t i = 0; i < sizeof on_the_way / sizeof *on_the_way; i++)
            waiting = waiting || !strcmp(state, on_the_way[i]);
        if (!waiting)
            return failed(t, name, state, e);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 1000) < 0) /* the limit is only a net under a missed wake-up */
            return err_sys(e, "waiting for %s", name);
    }
}
