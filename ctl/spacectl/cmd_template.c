// SPDX-License-Identifier: Apache-2.0
// spacectl template ls, build, rm. A template is an image that is written into a new directory
// under templates/ and then sealed by writing "ready" to its state.
#include "spacectl/command.h"
#include "spacectl/copy.h"
#include "spacectl/image.h"
#include "spacectl/listing.h"
#include "spacectl/process.h"
#include "spacectl/scratch.h"
#include "spacectl/tarball.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPT_FROM, OPT_SIZE, OPT_SKIP_DEVICES };
enum { OPT_JSON };

static const struct option_def build_options[] = {
    [OPT_FROM] = {'f', "from", "DIR|TAR", "the root file system: a directory, or a tar file (compressed or not)"},
    [OPT_SIZE] = {'s', "size", "SIZE", "size of the disk (default 10G; only what is used takes space)"},
    [OPT_SKIP_DEVICES] = {0, "skip-devices", NULL, "leave device nodes in the tar file out"},
    {0, NULL, NULL, NULL},
};

static const struct option_def ls_options[] = {
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

static const struct column columns[] = {
    {"template", COLUMN_TEXT, NULL}, {"state", COLUMN_TEXT, NULL},   {"size", COLUMN_SIZE, NULL}, {"share", COLUMN_TEXT, NULL},
    {"owner", COLUMN_TEXT, NULL},    {"created", COLUMN_TEXT, NULL}, {"id", COLUMN_TEXT, NULL},   {NULL, COLUMN_TEXT, NULL},
};

static int parse_size(const char *text, uint64_t *out, struct err *e)
{
    int rc = str_parse_size(text ? text : "10G", out);
    if (rc < 0)
        return err_set(e, EINVAL, "--size takes a number and K, M, G or T, not \"%.40s\"", text);
    if (*out < IMAGE_SIZE_MIN || *out > IMAGE_SIZE_MAX)
        return err_set(e, ERANGE, "--size must be between 16M and 8T, not %.40s", text);
    *out = (*out + 4095) / 4096 * 4096;
    return 0;
}

/* Makes scratch/disk.raw from what --from names. */
static int make_image(const struct scratch *s, const char *name, const struct args *a, uint64_t size, struct err *e)
{
    const char *from = args_value(a, OPT_FROM);
    char root[SCRATCH_PATH_MAX];
    struct stat st;
    if (stat(from, &st) < 0)
        return err_sys(e, "cannot read %s", from);
    if (S_ISDIR(st.st_mode))
        return image_make(s, from, size, name, e);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s is neither a directory nor a file", from);
    int rc = tarball_unpack(from, s, args_value(a, OPT_SKIP_DEVICES) ? TARBALL_SKIP_DEVICES : 0u, e);
    scratch_path(s, "root", root);
    return rc < 0 ? rc : image_make(s, root, size, name, e);
}

/* The copy runs in a child, so that a signal ends it in the middle and the half-written template
 * still goes. */
struct transfer {
    int in, out;
    const char *name;
};

static int transfer_main(void *user)
{
    const struct transfer *x = user;
    struct err e = {0};
    if (copy_data(x->in, x->out, x->name, &e) == 0)
        return 0;
    fprintf(stderr, "spacectl: %s\n", e.msg);
    return 1;
}

static int write_image(const struct tree *t, const struct scratch *s, const char *dir, uint64_t size, struct err *e)
{
    char image[SCRATCH_PATH_MAX], path[TREE_PATH_MAX];
    int rc = tree_path(path, e, "%s/disk.raw", dir);
    if (rc < 0)
        return rc;
    scratch_path(s, "disk.raw", image);
    AUTO_CLOSE int in = open(image, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return err_sys(e, "cannot open %s", image);
    AUTO_CLOSE int out = tree_file(t, path, O_WRONLY, e);
    if (out < 0)
        return out;
    if (ftruncate(out, (off_t)size) < 0)
        return tree_fail(t, errno, "size", path, e);
    struct transfer x = {in, out, path};
    int status = process_run(&(struct process){.function = transfer_main, .user = &x, .out = -1, .err = -1}, e);
    if (status < 0)
        return status;
    return status == 0 ? 0 : err_set(e, EIO, "cannot write %s/%s", t->path, path);
}

static int publish(const struct tree *t, const struct scratch *s, const char *name, uint64_t size, struct err *e)
{
    char dir[TREE_PATH_MAX], state[TREE_PATH_MAX];
    int rc = tree_path(dir, e, "templates/%s", name);
    if (rc >= 0)
        rc = tree_path(state, e, "templates/%s/state", name);
    if (rc >= 0)
        rc = tree_mkdir(t, dir, e);
    if (rc < 0)
        return rc;
    rc = write_image(t, s, dir, size, e);
    if (rc >= 0)
        rc = tree_write(t, state, "ready\n", e);
    if (rc < 0) {
        struct err ignored;
        tree_rmdir(t, dir, &ignored);
    }
    return rc;
}

/* Before the long work: a name that is taken is the commonest mistake. */
static int check_free(const struct tree *t, const char *name, struct err *e)
{
    char path[TREE_PATH_MAX];
    struct stat st;
    int rc = tree_path(path, e, "templates/%s", name);
    if (rc == 0 && fstatat(t->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
        rc = err_set(e, EEXIST, "there is a template %s already", name);
    return rc;
}

static int build(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct scratch scratch = {""};
    uint64_t size;
    (void)self;
    if (!args_value(a, OPT_FROM))
        return err_set(e, EINVAL, "--from DIR|TAR is missing");
    int rc = tree_check_name("template", a->pos[0], e);
    if (rc >= 0)
        rc = parse_size(args_value(a, OPT_SIZE), &size, e);
    if (rc >= 0)
        rc = check_free(t, a->pos[0], e);
    if (rc < 0)
        return rc;
    process_block_signals();
    rc = scratch_create(&scratch, e);
    if (rc >= 0)
        rc = make_image(&scratch, a->pos[0], a, size, e);
    if (rc >= 0 && process_interrupted())
        rc = err_set(e, EINTR, "interrupted");
    if (rc >= 0)
        rc = publish(t, &scratch, a->pos[0], size, e);
    scratch_destroy(&scratch);
    return rc;
}

static int list(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct table *table = table_create(columns);
    (void)self;
    int rc = listing_add_all(t, table, columns, "templates", e);
    if (rc >= 0)
        table_print(table, args_value(a, OPT_JSON) != NULL, stdout);
    table_destroy(table);
    return rc;
}

static int destroy(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    char path[TREE_PATH_MAX];
    (void)self;
    for (int i = 0; i < a->pos_count; i++) {
        int rc = tree_check_name("template", a->pos[i], e);
        if (rc >= 0)
            rc = tree_path(path, e, "templates/%s", a->pos[i]);
        if (rc >= 0)
            rc = tree_rmdir(t, path, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

const struct command command_template_ls = {
    .name = "template ls",
    .usage = "[--json]",
    .summary = "list templates",
    .options = ls_options,
    .run = list,
};

const struct command command_template_build = {
    .name = "template build",
    .usage = "NAME --from DIR|TAR [--size SIZE] [--skip-devices]",
    .summary = "make a template from a root file system",
    .help = "Nothing is installed into it and nothing is mounted: any distribution's root works "
            "unmodified.\n"
            "Run as root, owners are kept; otherwise everything in it belongs to root. A directory "
            "is taken as it is.\n",
    .options = build_options,
    .pos_min = 1,
    .pos_max = 1,
    .run = build,
};

const struct command command_template_rm = {
    .name = "template rm",
    .usage = "NAME...",
    .summary = "delete templates",
    .help = "Sandboxes made from them live on.\n",
    .pos_min = 1,
    .pos_max = -1,
    .run = destroy,
};
