// SPDX-License-Identifier: Apache-2.0
// spacectl rm: destroys sandboxes.
#include "spacectl/command.h"

#include <errno.h>
#include <stdio.h>

enum { OPT_FORCE };

static const struct option_def options[] = {
    [OPT_FORCE] = {'f', "force", NULL, "one that is not there is no error"},
    {0, NULL, NULL, NULL},
};

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    int failures = 0;
    char path[TREE_PATH_MAX];
    (void)self;
    for (int i = 0; i < a->pos_count; i++) {
        int rc = tree_check_name("sandbox", a->pos[i], e);
        if (rc >= 0)
            rc = tree_path(path, e, "sandboxes/%s", a->pos[i]);
        if (rc >= 0)
            rc = tree_rmdir(t, path, e);
        if (rc < 0 && !(rc == -ENOENT && args_value(a, OPT_FORCE))) {
            fprintf(stderr, "spacectl: %s\n", e->msg);
            failures++;
        }
    }
    return failures ? EXIT_FAILED : 0;
}

const struct command command_rm = {
    .name = "rm",
    .usage = "[-f] NAME...",
    .summary = "destroy sandboxes",
    .help = "Works in every state. Their automatic snapshots go too; those made by hand stay in "
            "snapshots/NAME~ID.\n",
    .options = options,
    .pos_min = 1,
    .pos_max = -1,
    .run = run,
};
