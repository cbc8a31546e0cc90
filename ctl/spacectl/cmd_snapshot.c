// SPDX-License-Identifier: Apache-2.0
// spacectl snapshot create, ls, rm: disk snapshots and checkpoints of a sandbox.
#include "spacectl/command.h"
#include "spacectl/listing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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
    {"snapshot", COLUMN_TEXT, NULL}, {"created", COLUMN_AGE, "age"},  {"kind", COLUMN_TEXT, NULL}, {"size", COLUMN_SIZE, NULL},
    {"delta", COLUMN_SIZE, NULL},    {"expires", COLUMN_UNTIL, NULL}, {"tier", COLUMN_TEXT, NULL}, {"state", COLUMN_TEXT, NULL},
    {"head", COLUMN_TEXT, NULL},     {NULL, COLUMN_TEXT, NULL},
};

/* snapshots/NAME/SNAP, both checked. */
static int snapshot_path(char out[TREE_PATH_MAX], const char *name, const char *snapshot, struct err *e)
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
    return snapshot ? tree_path(out, e, "snapshots/%s/%s", name, snapshot) : tree_path(out, e, "snapshots/%s", name);
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

static int create(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
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

/* A snapshot's name with the time when it was taken. */
struct moment {
    const char *name;
    char created[32];
};

static int by_time(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    int order = strcmp(x->created, y->created);
    return order ? order : strcmp(x->name, y->name);
}

/* The oldest first. */
static int add_in_order(const struct tree *t, struct table *table, const char *dir, struct err *e)
{
    char **names = NULL, path[TREE_PATH_MAX];
    int count = tree_list(t, dir, &names, e);
    struct moment *all = count > 0 ? calloc((size_t)count, sizeof *all) : NULL;
    for (int i = 0; all && i < count; i++) {
        struct err ignored = {0};
        all[i].name = names[i];
        if (tree_path(path, &ignored, "%s/%s/created", dir, names[i]) < 0 || tree_read(t, path, all[i].created, sizeof all[i].created, &ignored) < 0)
            all[i].created[0] = 0; /* it has gone: so will its row */
    }
    if (all)
        qsort(all, (size_t)count, sizeof *all, by_time);
    for (int i = 0; all && i < count; i++)
        listing_add(t, table, columns, dir, all[i].name);
    free(all);
    tree_free_names(names, count);
    return count < 0 ? count : 0;
}

static int list(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    char path[TREE_PATH_MAX];
    (void)self;
    int rc = snapshot_path(path, a->pos[0], NULL, e);
    if (rc < 0)
        return rc;
    struct table *table = table_create(columns);
    rc = add_in_order(t, table, path, e);
    if (rc >= 0)
        table_print(table, args_value(a, OPT_JSON) != NULL, stdout);
    table_destroy(table);
    return rc;
}

static int destroy(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
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

static const char timeline_help[] = "SIZE is the disk's, DELTA what the snapshot holds beyond the one before it. TIER is the line\n"
                                    "of `keep` that keeps an automatic one longest, EXPIRES in how long it goes if that stays.\n";

const struct command command_snapshot_create = {
    .name = "snapshot create",
    .usage = "[--full] NAME [SNAPSHOT]",
    .summary = "take a snapshot of a sandbox's disk, or of all of it, and print its name",
    .help = "The sandbox runs on; for a full one it is paused for some milliseconds. Without "
            "SNAPSHOT the name is the time (UTC).\n",
    .options = create_options,
    .pos_min = 1,
    .pos_max = 2,
    .run = create,
};

const struct command command_snapshot_ls = {
    .name = "snapshot ls",
    .usage = "[--json] NAME",
    .summary = "list a sandbox's snapshots, the oldest first",
    .help = timeline_help,
    .options = ls_options,
    .pos_min = 1,
    .pos_max = 1,
    .run = list,
};

const struct command command_snapshots = {
    .name = "snapshots",
    .usage = "[--json] NAME",
    .summary = "the same as snapshot ls",
    .help = timeline_help,
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
