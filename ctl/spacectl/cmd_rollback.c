// SPDX-License-Identifier: Apache-2.0
// spacectl rollback: a sandbox back to one of its snapshots, in place.
#include "spacectl/command.h"

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    const char *name = a->pos[0], *snapshot = a->pos[1];
    char from[TREE_PATH_MAX], to[TREE_PATH_MAX];
    (void)self;
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_check_name("snapshot", snapshot, e);
    if (rc >= 0)
        rc = tree_path(from, e, "snapshots/%s/%s/head", name, snapshot);
    if (rc >= 0)
        rc = tree_path(to, e, "sandboxes/%s/head", name);
    return rc < 0 ? rc : tree_copy_head(t, from, to, e);
}

const struct command command_rollback = {
    .name = "rollback",
    .usage = "NAME SNAPSHOT",
    .summary = "put a sandbox back to one of its snapshots",
    .help = "The state before is kept as an automatic snapshot (auto-...).\n",
    .pos_min = 2,
    .pos_max = 2,
    .run = run,
};
