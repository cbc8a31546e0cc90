// SPDX-License-Identifier: Apache-2.0
// spacectl net: what a sandbox did on the network, and what it might do.
#include "spacectl/command.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int recent(const struct tree *t, const char *name, struct err *e)
{
    char path[TREE_PATH_MAX], text[TREE_VALUE_MAX];
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_path(path, e, "sandboxes/%s/net", name);
    if (rc >= 0)
        rc = tree_read(t, path, text, sizeof text, e);
    if (rc > 0)
        puts(text);
    return rc < 0 ? rc : 0;
}

/* The question and the answer go through one descriptor. */
static int explain(const struct tree *t, const char *name, const char *where, struct err *e)
{
    char path[TREE_PATH_MAX], text[1024];
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_path(path, e, "sandboxes/%s/net", name);
    AUTO_CLOSE int fd = rc < 0 ? -1 : tree_file(t, path, O_RDWR, e);
    if (rc < 0 || fd < 0)
        return rc < 0 ? rc : fd;
    if (write(fd, where, strlen(where)) < 0)
        return tree_fail(t, errno, "ask", path, e);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n < 0)
        return tree_fail(t, errno, "read", path, e);
    printf("%.*s", (int)n, text);
    return 0;
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    (void)self;
    if (a->pos_count == 1)
        return recent(t, a->pos[0], e);
    if (a->pos_count == 3 && strcmp(a->pos[0], "explain") == 0)
        return explain(t, a->pos[1], a->pos[2], e);
    return err_set(e, EINVAL, "net takes NAME, or explain NAME HOST:PORT");
}

const struct command command_net = {
    .name = "net",
    .usage = "NAME | explain NAME HOST:PORT",
    .summary = "recent decisions on a sandbox's connections; or which rule would decide",
    .pos_min = 1,
    .pos_max = 3,
    .run = run,
};
