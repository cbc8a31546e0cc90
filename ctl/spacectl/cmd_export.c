// SPDX-License-Identifier: Apache-2.0
// A sandbox, or a snapshot of one, as a file that any instance can read: its settings and its disk. The format is described in docs/protocol/space-file.md.
// Memory is not in it: a QEMU loads only what a space-hostd captured.
#include "base/cleanup.h"
#include "base/str.h"
#include "spacectl/command.h"
#include "spacectl/process.h"
#include "spacectl/space_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a copy of the directory would carry. */
static const char *const carried[] = {"memory", "vcpus", "disk", "keep", "idle", "wake", "egress", "labels"};

/* ---- export ---- */

static int add_settings(const struct tree *t, const char *sandbox, struct space_file *f, struct err *e)
{
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++) {
        char path[TREE_PATH_MAX], value[TREE_VALUE_MAX], *save = NULL;
        int rc = tree_path(path, e, "sandboxes/%s/%s", sandbox, carried[i]);
        if (rc == 0)
            rc = tree_read(t, path, value, sizeof value, e);
        for (char *line = rc < 0 ? NULL : strtok_r(value, "\n", &save); rc >= 0 && line; line = strtok_r(NULL, "\n", &save))
            rc = space_file_put_setting(f, carried[i], line, e);
        if (rc < 0)
            return rc;
    }
    return space_file_put_setting(f, NULL, NULL, e);
}

static int write_file(const struct tree *t, const char *sandbox, const char *snapshot, int out, const char *name, struct err *e)
{
    char path[TREE_PATH_MAX];
    struct space_file f;
    int rc = tree_path(path, e, "snapshots/%s/%s/disk.raw", sandbox, snapshot);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int disk = tree_file(t, path, O_RDONLY, e);
    if (disk < 0)
        return disk;
    space_file_begin(&f, out, name);
    rc = space_file_put_header(&f, e);
    if (rc == 0)
        rc = add_settings(t, sandbox, &f, e);
    if (rc == 0)
        rc = space_file_put_disk(&f, disk, e);
    space_file_end(&f);
    return rc;
}

/* The snapshot that is exported: the one that was named, or one for this alone. */
static int make_snapshot(const struct tree *t, const char *sandbox, char snapshot[80], struct err *e)
{
    char path[TREE_PATH_MAX];
    snprintf(snapshot, 80, "export-%d", getpid());
    int rc = tree_path(path, e, "snapshots/%s/%s", sandbox, snapshot);
    return rc < 0 ? rc : tree_mkdir(t, path, e);
}

static int run_export(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    char *sandbox = a->pos[0], *slash = strchr(sandbox, '/'), snapshot[80], path[TREE_PATH_MAX], part[TREE_PATH_MAX];
    const char *name = a->pos[1];
    struct err ignored;
    (void)self;
    if (slash)
        *slash = 0;
    int rc = tree_check_name("sandbox", sandbox, e);
    if (rc >= 0 && slash)
        rc = tree_check_name("snapshot", slash + 1, e);
    if (rc < 0)
        return rc;
    process_block_signals();
    if (snprintf(part, sizeof part, "%s.part", name) >= (int)sizeof part)
        return err_set(e, ENAMETOOLONG, "%s is too long a path", name);
    AUTO_CLOSE int out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return err_sys(e, "cannot make %s", part);
    if (slash)
        str_copy(snapshot, sizeof snapshot, slash + 1);
    else
        rc = make_snapshot(t, sandbox, snapshot, e);
    if (rc >= 0)
        rc = write_file(t, sandbox, snapshot, out, name, e);
    if (!slash && rc != -EEXIST && tree_path(path, &ignored, "snapshots/%s/%s", sandbox, snapshot) == 0)
        tree_rmdir(t, path, &ignored);
    if (rc >= 0 && (fsync(out) < 0 || rename(part, name) < 0))
        rc = err_sys(e, "cannot write %s", name);
    if (rc < 0)
        unlink(part);
    return rc;
}

const struct command command_export = {
    .name = "export",
    .usage = "NAME[/SNAPSHOT] FILE",
    .summary = "write a sandbox's disk and settings into one file",
    .help = "Without a snapshot one is taken for this, and removed. The file is complete or not there. Memory and\n"
            "processes are not in it. `spacectl import` makes a sandbox of it, here or anywhere else.\n",
    .pos_min = 2,
    .pos_max = 2,
    .run = run_export,
};

/* ---- import ---- */

enum { OPT_TEMPLATE };
static const struct option_def import_options[] = {{0, "template", NULL, "make a template of it, and no sandbox"}, {0}};

static int fill_template(const struct tree *t, const char *dir, struct space_file *f, struct err *e)
{
    char path[TREE_PATH_MAX];
    int rc = tree_path(path, e, "%s/disk.raw", dir);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int disk = tree_file(t, path, O_WRONLY, e);
    if (disk < 0)
        return disk;
    rc = space_file_get_disk(f, disk, e);
    if (rc == 0)
        rc = tree_path(path, e, "%s/state", dir);
    return rc < 0 ? rc : tree_write(t, path, "ready\n", e);
}

/* All of the settings, lines of one key together. */
struct settings {
    char *value[sizeof carried / sizeof carried[0]];
};

static int take_setting(void *user, const char *key, const char *line, struct err *e)
{
    struct settings *s = user;
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++) {
        char *more;
        if (strcmp(key, carried[i]) != 0)
            continue;
        if (asprintf(&more, "%s%s\n", s->value[i] ? s->value[i] : "", line) < 0)
            return err_set(e, ENOMEM, "out of memory");
        free(s->value[i]);
        s->value[i] = more;
        return 0;
    }
    return 0; /* of a newer one */
}

static void settings_free(struct settings *s)
{
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++)
        free(s->value[i]);
}

static int make_sandbox(const struct tree *t, const char *name, const char *template_dir, const struct settings *s, struct err *e)
{
    char dir[TREE_PATH_MAX], to[TREE_PATH_MAX], from[TREE_PATH_MAX];
    struct err ignored;
    int rc = tree_path(dir, e, "sandboxes/%s", name);
    if (rc == 0)
        rc = tree_path(from, e, "%s/head", template_dir);
    if (rc == 0)
        rc = tree_path(to, e, "sandboxes/%s/head", name);
    if (rc == 0)
        rc = tree_mkdir(t, dir, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc >= 0 && i < sizeof carried / sizeof carried[0]; i++) { /* size first: nothing has used it yet */
        bool later = !strcmp(carried[i], "disk");                                /* it brings its own */
        if (!s->value[i] || later)
            continue;
        rc = tree_path(to, e, "sandboxes/%s/%s", name, carried[i]);
        if (rc == 0)
            rc = tree_write(t, to, s->value[i], e);
        if (rc == -EPERM && !strcmp(carried[i], "labels")) /* `admin.` ones are root's to give */
            rc = 0;
    }
    if (rc >= 0)
        rc = tree_path(to, e, "sandboxes/%s/head", name);
    if (rc >= 0)
        rc = tree_copy_head(t, from, to, e);
    if (rc < 0)
        tree_rmdir(t, dir, &ignored);
    return rc;
}

static int import_from(const struct tree *t, int in, const char *file, const char *name, bool template_only, struct err *e)
{
    char dir[TREE_PATH_MAX];
    struct space_file f;
    struct settings s = {0};
    struct err ignored;
    space_file_begin(&f, in, file);
    int rc = template_only ? tree_path(dir, e, "templates/%s", name) : tree_path(dir, e, "templates/import-%d", getpid());
    if (rc == 0)
        rc = space_file_get_header(&f, take_setting, &s, e);
    if (rc == 0)
        rc = tree_mkdir(t, dir, e);
    if (rc >= 0) {
        rc = fill_template(t, dir, &f, e);
        if (rc == 0 && !template_only)
            rc = make_sandbox(t, name, dir, &s, e);
        if (rc < 0 || !template_only)
            tree_rmdir(t, dir, &ignored); /* what was made from it lives on */
    }
    space_file_end(&f);
    settings_free(&s);
    return rc;
}

static int run_import(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    bool template_only = args_value(a, OPT_TEMPLATE) != NULL;
    (void)self;
    int rc = tree_check_name(template_only ? "template" : "sandbox", a->pos[1], e);
    if (rc < 0)
        return rc;
    process_block_signals();
    AUTO_CLOSE int in = open(a->pos[0], O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return err_sys(e, "cannot open %s", a->pos[0]);
    return import_from(t, in, a->pos[0], a->pos[1], template_only, e);
}

const struct command command_import = {
    .name = "import",
    .usage = "FILE NAME [--template]",
    .summary = "make a sandbox from a file that `export` wrote",
    .help = "It boots from that disk, with the settings that it had. A file that is damaged or cut is refused.\n",
    .options = import_options,
    .pos_min = 2,
    .pos_max = 2,
    .run = run_import,
};
