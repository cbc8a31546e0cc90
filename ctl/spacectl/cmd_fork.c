// SPDX-License-Identifier: Apache-2.0
// spacectl fork: a new sandbox that goes on from where another one is.
#include "spacectl/command.h"

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    const char *source = a->pos[0], *name = a->pos[1];
    char from[TREE_PATH_MAX], dir[TREE_PATH_MAX], to[TREE_PATH_MAX];
    (void)self;
    int rc = tree_check_name("sandbox", source, e);
    if (rc >= 0)
        rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_path(from, e, "sandboxes/%s/head", source);
    if (rc >= 0)
        rc = tree_path(dir, e, "sandboxes/%s", name);
    if (rc >= 0)
        rc = tree_path(to, e, "sandboxes/%s/head", name);
    if (rc >= 0)
        rc = tree_mkdir(t, dir, e);
    if (rc < 0)
        return rc;
    rc = tree_copy_head(t, from, to, e);
    if (rc < 0) {
        struct err ignored;
        tree_rmdir(t, dir, &ignored);
    }
    return rc;
}

const struct command command_fork = {
    .name = "fork",
    .usage = "NAME NEW",
    .summary = "make a new sandbox that goes on from another's present state",
    .help = "The same as `cp -r sandboxes/NAME sandboxes/NEW`, less its labels and limits. NAME "
            "runs on.\n",
    .pos_min = 2,
    .pos_max = 2,
    .run = run,
};
