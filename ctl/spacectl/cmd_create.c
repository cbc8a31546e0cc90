// SPDX-License-Identifier: Apache-2.0
// spacectl create: a new sandbox, from a template or from anything that has a head.
#include "spacectl/command.h"
#include "spacectl/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { OPT_TEMPLATE, OPT_MEMORY, OPT_VCPUS, OPT_DISK, OPT_LABEL, OPT_WAIT };

static const struct option_def options[] = {
    [OPT_TEMPLATE] = {'t', "template", "NAME", "start from this template instead of the default one"},
    [OPT_MEMORY] = {'m', "memory", "SIZE", "memory, such as 256M"},
    [OPT_VCPUS] = {0, "vcpus", "N", "number of processors"},
    [OPT_DISK] = {0, "disk", "SIZE", "grow the disk to this size"},
    [OPT_LABEL] = {'l', "label", "KEY=VALUE", "a label; may be repeated"},
    [OPT_WAIT] = {'w', "wait", NULL, "return when it runs (otherwise whatever is done next waits for it)"},
    {0, NULL, NULL, NULL},
};

static int set(const struct tree *t, const char *name, const char *attribute, const char *value, struct err *e)
{
    char path[TREE_PATH_MAX];
    if (!value)
        return 0;
    int rc = tree_path(path, e, "sandboxes/%s/%s", name, attribute);
    return rc < 0 ? rc : tree_write(t, path, value, e);
}

static int set_labels(const struct tree *t, const char *name, const struct args *a, struct err *e)
{
    char lines[4096];
    size_t len = 0;
    const char *label;
    for (int at = 0; (label = args_next(a, OPT_LABEL, &at));) {
        int n = snprintf(lines + len, sizeof lines - len, "%s\n", label);
        if (n < 0 || (size_t)n >= sizeof lines - len)
            return err_set(e, E2BIG, "labels longer than %zu bytes", sizeof lines - 1);
        len += (size_t)n;
    }
    return len ? set(t, name, "labels", lines, e) : 0;
}

/* Size before head, so that the machine is made once; the disk after it, because it grows what head
 * brings. */
static int set_up(const struct tree *t, const char *name, const struct args *a, struct err *e)
{
    const char *template = args_value(a, OPT_TEMPLATE);
    char from[TREE_PATH_MAX], to[TREE_PATH_MAX];
    int rc = set(t, name, "memory", args_value(a, OPT_MEMORY), e);
    if (rc >= 0)
        rc = set(t, name, "vcpus", args_value(a, OPT_VCPUS), e);
    if (rc >= 0)
        rc = set_labels(t, name, a, e);
    if (rc >= 0 && template) {
        rc = tree_path(from, e, "templates/%s/head", template);
        if (rc >= 0)
            rc = tree_path(to, e, "sandboxes/%s/head", name);
        if (rc >= 0)
            rc = tree_copy_head(t, from, to, e);
    }
    if (rc >= 0)
        rc = set(t, name, "disk", args_value(a, OPT_DISK), e);
    return rc;
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    const char *name = a->pos[0], *template = args_value(a, OPT_TEMPLATE);
    char path[TREE_PATH_MAX];
    (void)self;
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0 && template)
        rc = tree_check_name("template", template, e);
    if (rc >= 0)
        rc = tree_path(path, e, "sandboxes/%s", name);
    if (rc >= 0)
        rc = tree_mkdir(t, path, e);
    if (rc < 0)
        return rc;
    rc = set_up(t, name, a, e);
    if (rc < 0) {
        struct err ignored; /* the first failure is what the user must read */
        tree_rmdir(t, path, &ignored);
        return rc;
    }
    return args_value(a, OPT_WAIT) ? state_wait_running(t, name, e) : 0;
}

const struct command command_create = {
    .name = "create",
    .usage = "[OPTION...] NAME",
    .summary = "make a sandbox",
    .help = "It is usable at once: the first command or file access waits until the machine is up.\n",
    .options = options,
    .pos_min = 1,
    .pos_max = 1,
    .run = run,
};
