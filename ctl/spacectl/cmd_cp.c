// SPDX-License-Identifier: Apache-2.0
// spacectl cp: files and directories into a sandbox and out of it.
//
// A side in a sandbox is resolved with openat2(RESOLVE_IN_ROOT) below root/NAME: whatever links the
// guest has made, no path can lead out of it, even if the mount did not see to that already.
#include "spacectl/command.h"
#include "spacectl/copy.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPT_RECURSIVE };

static const struct option_def options[] = {
    [OPT_RECURSIVE] = {'r', "recursive", NULL, "copy directories with what is in them"},
    {0, NULL, NULL, NULL},
};

/* One side of the copy. */
struct place {
    const char *text; /* as the user wrote it */
    bool remote;
    int root;            /* remote: root/NAME; else AT_FDCWD */
    char path[PATH_MAX]; /* below root */
};

/* "NAME:/path" is in a sandbox; a local name that looks so is written "./NAME:/path". */
static int place_parse(const struct tree *t, const char *text, struct place *out, struct err *e)
{
    const char *sep = strstr(text, ":/"), *slash = strchr(text, '/');
    char dir[TREE_PATH_MAX], name[TREE_PATH_MAX];
    *out = (struct place){.text = text, .root = AT_FDCWD, .remote = sep && slash == sep + 1};
    if ((size_t)snprintf(out->path, sizeof out->path, "%s", out->remote ? sep + 1 : text) >= sizeof out->path)
        return err_set(e, ENAMETOOLONG, "path too long: %.80s...", text);
    if (!out->remote)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(sep - text), text);
    int rc = tree_check_name("sandbox", name, e);
    if (rc >= 0)
        rc = tree_path(dir, e, "root/%s", name);
    if (rc < 0)
        return rc;
    out->root = openat(t->fd, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return out->root < 0 ? tree_fail(t, errno, "open", dir, e) : 0;
}

static void place_close(struct place *p)
{
    if (p->remote && p->root >= 0)
        close(p->root);
}

/* A rename anywhere on the host while `..` was followed: EAGAIN, "the caller may choose to retry" (openat2(2)). */
#define RACES_MAX 1000

/* open() at a place. The descriptor or -1 with errno. */
static int place_open(const struct place *p, const char *path, int flags, mode_t mode)
{
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC),
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = p->remote ? RESOLVE_IN_ROOT : 0,
    };
    int fd = -1;
    for (int i = 0; i < RACES_MAX; i++)
        if ((fd = (int)syscall(SYS_openat2, p->root, path, &how, sizeof how)) >= 0 || errno != EAGAIN)
            break;
    return fd;
}

static int place_fail(const struct tree *t, const struct place *p, const char *what, int code, struct err *e)
{
    char path[TREE_PATH_MAX];
    struct err ignored;
    if (p->remote && tree_path(path, &ignored, "root/%.*s%s", (int)(strstr(p->text, ":/") - p->text), p->text, p->path) >= 0)
        return tree_fail(t, code, what, path, e);
    return err_set(e, code, "cannot %s %s: %s", what, p->text, strerror(code));
}

/* A destination that is a directory gets the source's last name below it. */
static int aim_into_directory(struct place *to, const struct place *from, struct err *e)
{
    char copy[PATH_MAX], whole[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", from->path);
    const char *last = basename(copy);
    if (!strcmp(last, "/") || !strcmp(last, ".") || !strcmp(last, ".."))
        return 0; /* the contents go into the directory itself */
    int n = snprintf(whole, sizeof whole, "%s/%s", to->path, last);
    if (n < 0 || (size_t)n >= sizeof whole)
        return err_set(e, ENAMETOOLONG, "path too long: %s/%s", to->text, last);
    memcpy(to->path, whole, (size_t)n + 1);
    return 0;
}

/* mkdir of the last part of the path, in its parent as place_open resolves it. 0, or -1 with errno.
 */
static int place_mkdir(const struct place *p, mode_t mode)
{
    char parent[PATH_MAX], last[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", p->path);
    snprintf(last, sizeof last, "%s", p->path);
    AUTO_CLOSE int dir = place_open(p, dirname(parent), O_PATH | O_DIRECTORY, 0);
    return dir < 0 ? -1 : mkdirat(dir, basename(last), mode);
}

static int copy_directory(const struct tree *t, int in, const struct place *from, const struct place *to, struct err *e)
{
    struct stat st;
    struct copy_report report = {0};
    if (fstat(in, &st) < 0)
        return place_fail(t, from, "stat", errno, e);
    if (place_mkdir(to, (st.st_mode & 0777) | 0700) < 0 && errno != EEXIST)
        return place_fail(t, to, "make", errno, e);
    AUTO_CLOSE int out = place_open(to, to->path, O_RDONLY | O_DIRECTORY, 0);
    if (out < 0)
        return place_fail(t, to, "open", errno, e);
    int rc = copy_tree(in, out, from->text, &report, e);
    if (rc < 0)
        return rc;
    return report.failed || report.skipped ? EXIT_FAILED : 0;
}

static int copy_one(const struct tree *t, int in, const struct stat *st, const struct place *from, const struct place *to, struct err *e)
{
    AUTO_CLOSE int out = place_open(to, to->path, O_WRONLY | O_CREAT | O_TRUNC, st->st_mode & 0777);
    if (out < 0)
        return place_fail(t, to, "write", errno, e);
    int rc = copy_data(in, out, from->text, e);
    if (rc == 0 && close(steal_fd(&out)) < 0) /* some file systems tell only now */
        rc = place_fail(t, to, "write", errno, e);
    return rc;
}

static int copy(const struct tree *t, const struct place *from, struct place *to, bool recursive, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int in = place_open(from, from->path, O_RDONLY | O_NONBLOCK, 0);
    if (in < 0 || fstat(in, &st) < 0)
        return place_fail(t, from, "read", errno, e);
    if (S_ISDIR(st.st_mode) && !recursive)
        return err_set(e, EISDIR, "%s is a directory (use -r)", from->text);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s is neither a regular file nor a directory", from->text);
    AUTO_CLOSE int target = place_open(to, to->path, O_PATH | O_DIRECTORY, 0);
    if (target >= 0) {
        int rc = aim_into_directory(to, from, e);
        if (rc < 0)
            return rc;
    }
    return S_ISDIR(st.st_mode) ? copy_directory(t, in, from, to, e) : copy_one(t, in, &st, from, to, e);
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    struct place from = {.root = -1}, to = {.root = -1};
    (void)self;
    int rc = place_parse(t, a->pos[0], &from, e);
    if (rc >= 0)
        rc = place_parse(t, a->pos[1], &to, e);
    if (rc >= 0 && !from.remote && !to.remote)
        rc = err_set(e, EINVAL, "neither side is in a sandbox (NAME:/path); plain cp copies local files");
    if (rc >= 0)
        rc = copy(t, &from, &to, args_value(a, OPT_RECURSIVE) != NULL, e);
    place_close(&from);
    place_close(&to);
    return rc;
}

const struct command command_cp = {
    .name = "cp",
    .usage = "[-r] SOURCE DESTINATION",
    .summary = "copy files into a sandbox or out of it",
    .help = "One side or both are in a sandbox: NAME:/path. A destination that is a directory gets "
            "the copy below it.\n"
            "Owners, times and set-uid bits are not carried; plain cp, tar and rsync on root/NAME "
            "carry them.\n",
    .options = options,
    .pos_min = 2,
    .pos_max = 2,
    .run = run,
};
