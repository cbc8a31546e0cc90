// SPDX-License-Identifier: Apache-2.0
// spacectl mv: another name for a sandbox, in all trees.
#include "spacectl/command.h"

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    char from[TREE_PATH_MAX], to[TREE_PATH_MAX];
    (void)self;
    int rc = tree_check_name("sandbox", a->pos[0], e);
    if (rc >= 0)
        rc = tree_check_name("sandbox", a->pos[1], e);
    if (rc >= 0)
        rc = tree_path(from, e, "sandboxes/%s", a->pos[0]);
    if (rc >= 0)
        rc = tree_path(to, e, "sandboxes/%s", a->pos[1]);
    return rc < 0 ? rc : tree_rename(t, from, to, e);
}

const struct command command_mv = {
    .name = "mv",
    .usage = "NAME NEW",
    .summary = "rename a sandbox",
    .pos_min = 2,
    .pos_max = 2,
    .run = run,
};
