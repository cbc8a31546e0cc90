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

#define STATE_MAX 64

static bool on_the_way(const char *state)
{
    static const char *const names[] = {"creating", "starting", "restoring"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(state, names[i]))
            return true;
    return false;
}

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
    return err_set(e, strcmp(state, "failed") ? ECANCELED : EIO, "%s is %s%s%s", name, state, *text ? ": " : "", text);
}

/* Reads the state, and while it is on the way waits (at most a second) for the next one. 0 or
 * -errno. */
static int read_state(const struct tree *t, const char *path, char state[STATE_MAX], struct err *e)
{
    AUTO_CLOSE int fd = tree_file(t, path, O_RDONLY, e);
    if (fd < 0)
        return fd;
    ssize_t n = read(fd, state, STATE_MAX - 1);
    if (n < 0)
        return tree_fail(t, errno, "read", path, e);
    while (n && state[n - 1] == '\n')
        n--;
    state[n] = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (on_the_way(state) && poll(&p, 1, 1000) < 0)
        return err_sys(e, "waiting for %s", path);
    return 0;
}

int state_wait_running(const struct tree *t, const char *name, struct err *e)
{
    char path[TREE_PATH_MAX], state[STATE_MAX];
    int rc = tree_path(path, e, "sandboxes/%s/state", name);
    do {
        if (rc >= 0)
            rc = read_state(t, path, state, e);
    } while (rc >= 0 && on_the_way(state));
    if (rc < 0)
        return rc;
    return strcmp(state, "running") ? failed(t, name, state, e) : 0;
}
