// SPDX-License-Identifier: Apache-2.0
// spacectl ls: the sandboxes that the caller sees.
#include "spacectl/command.h"
#include "spacectl/listing.h"

#include <errno.h>

enum { OPT_JSON };

static const struct option_def options[] = {
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

static const struct column columns[] = {
    {"name", COLUMN_TEXT, NULL},    {"state", COLUMN_TEXT, NULL},  {"memory", COLUMN_TEXT, NULL},
    {"vcpus", COLUMN_NUMBER, NULL}, {"disk", COLUMN_TEXT, NULL},   {"owner", COLUMN_TEXT, NULL},
    {"created", COLUMN_TEXT, NULL}, {"origin", COLUMN_TEXT, NULL}, {NULL, COLUMN_TEXT, NULL},
};

static int add_named(const struct tree *t, struct table *table, const struct args *a, struct err *e)
{
    for (int i = 0; i < a->pos_count; i++) {
        int rc = tree_check_name("sandbox", a->pos[i], e);
        if (rc < 0)
            return rc;
        if (!listing_add(t, table, columns, "sandboxes", a->pos[i]))
            return err_set(e, ENOENT, "no sandbox %s", a->pos[i]);
    }
    return 0;
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct table *table = table_create(columns);
    (void)self;
    int rc = a->pos_count ? add_named(t, table, a, e) : listing_add_all(t, table, columns, "sandboxes", e);
    if (rc >= 0)
        table_print(table, args_value(a, OPT_JSON) != NULL, stdout);
    table_destroy(table);
    return rc;
}

const struct command command_ls = {
    .name = "ls",
    .usage = "[--json] [NAME...]",
    .summary = "list sandboxes",
    .options = options,
    .pos_max = -1,
    .run = run,
};
