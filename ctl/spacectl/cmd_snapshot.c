// SPDX-License-Identifier: Apache-2.0
// spacectl snapshot create, ls, rm: disk snapshots and checkpoints of a sandbox.
#include "spacectl/command.h"
#include "spacectl/listing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OPT_JSON };

static const struct option_def ls_options[] = {
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

enum { OPT_FULL };

static const struct option_def create_options[] = {
    [OPT_FULL] = {'f', "full", NULL, "with its memory and processes"},
    {0, NULL, NULL, NULL},
};

static const struct column columns[] = {
    {"snapshot", COLUMN_TEXT}, {"state", COLUMN_TEXT}, {"kind", COLUMN_TEXT}, {"size", COLUMN_SIZE},
    {"created", COLUMN_TEXT},  {"head", COLUMN_TEXT},  {NULL, COLUMN_TEXT},
};

/* snapshots/NAME/SNAP, both checked. */
static int snapshot_path(char out[TREE_PATH_MAX], const char *name, const char *snapshot,
                         struct err *e)
{
    /* A destroyed sandbox's snapshots live under NAME~ID. */
    const char *tilde = strchr(name, '~');
    char plain[TREE_PATH_MAX];
    snprintf(plain, sizeof plain, "%.*s", tilde ? (int)(tilde - name) : (int)strlen(name), name);
    int rc = tree_check_name("sandbox", plain, e);
    if (rc >= 0 && tilde && strspn(tilde + 1, "0123456789abcdef") != strlen(tilde + 1))
        rc = err_set(e, EINVAL, "not a name of a sandbox: \"%.80s\"", name);
    if (rc >= 0 && snapshot)
        rc = tree_check_name("snapshot", snapshot, e);
    if (rc < 0)
        return rc;
    return snapshot ? tree_path(out, e, "snapshots/%s/%s", name, snapshot)
                    : tree_path(out, e, "snapshots/%s", name);
}

/* The snapshot that was just made becomes a checkpoint. */
static int fill(const struct tree *t, const char *name, const char *dir, struct err *e)
{
    char from[TREE_PATH_MAX], to[TREE_PATH_MAX];
    int rc = tree_path(from, e, "sandboxes/%s/head", name);
    if (rc >= 0)
        rc = tree_path(to, e, "%s/head", dir);
    if (rc >= 0)
        rc = tree_copy_head(t, from, to, e);
    if (rc < 0) {
        struct err ignored;
        tree_rmdir(t, dir, &ignored);
    }
    return rc;
}

static int create(const struct command *self, const struct tree *t, const struct args *a,
                  struct err *e)
{
    char path[TREE_PATH_MAX], dated[32];
    const char *snapshot = a->pos[1];
    (void)self;
    if (!snapshot) {
        struct tm tm;
        time_t now = time(NULL);
        strftime(dated, sizeof dated, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
        snapshot = dated;
    }
    int rc = snapshot_path(path, a->pos[0], snapshot, e);
    if (rc >= 0)
        rc = tree_mkdir(t, path, e);
    if (rc >= 0 && args_value(a, OPT_FULL))
        rc = fill(t, a->pos[0], path, e);
    if (rc >= 0)
        puts(snapshot);
    return rc;
}

static int list(const struct command *self, const struct tree *t, const struct args *a,
                struct err *e)
{
    char path[TREE_PATH_MAX];
    (void)self;
    int rc = snapshot_path(path, a->pos[0], NULL, e);
    if (rc < 0)
        return rc;
    struct table *table = table_create(columns);
    rc = listing_add_all(t, table, columns, path, e);
    if (rc >= 0)
        table_print(table, args_value(a, OPT_JSON) != NULL, stdout);
    table_destroy(table);
    return rc;
}

static int destroy(const struct command *self, const struct tree *t, const struct args *a,
                   struct err *e)
{
    char path[TREE_PATH_MAX];
    (void)self;
    for (int i = 1; i < a->pos_count; i++) {
        int rc = snapshot_path(path, a->pos[0], a->pos[i], e);
        if (rc >= 0)
            rc = tree_rmdir(t, path, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

const struct command command_snapshot_create = {
    .name = "snapshot create",
    .usage = "[--full] NAME [SNAPSHOT]",
    .summary = "take a snapshot of a sandbox's disk, or of all of it, and print its name",
    .help = "The sandbox runs on; for a full one it is paused for some milliseconds. Without SNAPSHOT the name is the time (UTC).\n",
    .options = create_options,
    .pos_min = 1,
    .pos_max = 2,
    .run = create,
};

const struct command command_snapshot_ls = {
    .name = "snapshot ls",
    .usage = "[--json] NAME",
    .summary = "list a sandbox's snapshots",
    .options = ls_options,
    .pos_min = 1,
    .pos_max = 1,
    .run = list,
};

const struct command command_snapshot_rm = {
    .name = "snapshot rm",
    .usage = "NAME SNAPSHOT...",
    .summary = "delete snapshots",
    .pos_min = 2,
    .pos_max = -1,
    .run = destroy,
};
