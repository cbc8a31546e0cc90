// SPDX-License-Identifier: Apache-2.0
// spacectl diff: which files differ between two snapshots of a sandbox, or one and its live disk.
//
// Each side's `changes` names the files that may differ from the other's, without the disks being
// read. Whether they do is then seen in files/ of both.
#include "spacectl/command.h"
#include "spacectl/table.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPT_JSON };

static const struct option_def options[] = {
    [OPT_JSON] = {'j', "json", NULL, "print a JSON array"},
    {0, NULL, NULL, NULL},
};

static const struct column columns[] = {
    {"change", COLUMN_TEXT, NULL},
    {"bytes", COLUMN_NUMBER, NULL},
    {"path", COLUMN_TEXT, NULL},
    {NULL, COLUMN_TEXT, NULL},
};

struct name {
    char *path;
    uint64_t bytes;
};

struct names {
    struct name *v;
    size_t n, room;
};

static void names_finish(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].path);
    free(l->v);
}
#define AUTO_NAMES __attribute__((cleanup(names_finish)))

/* \n and \\ as they were. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (*s == '\\' && s[1])
            s++, *out++ = *s == 'n' ? '\n' : *s;
        else
            *out++ = *s;
    }
    *out = 0;
}

/* Takes the path. */
static int add(struct names *l, char *path, uint64_t bytes)
{
    if (path && l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 64;
        struct name *more = reallocarray(l->v, room, sizeof *more);
        if (!more) {
            free(path);
            return -ENOMEM;
        }
        l->v = more;
        l->room = room;
    }
    if (!path)
        return -ENOMEM;
    l->v[l->n++] = (struct name){path, bytes};
    return 0;
}

/* A line of `changes`. */
static int add_line(struct names *l, char *line)
{
    char *path;
    uint64_t bytes = strtoull(line, &path, 10);
    if (*path != ' ')
        return 0;
    unescape(path + 1);
    return add(l, strdup(path + 1), bytes);
}

/* Adds what SIDE/changes says of `other`, a head. */
static int read_changes(const struct tree *t, const char *side, const char *other, struct names *l, struct err *e)
{
    char path[TREE_PATH_MAX], *line = NULL;
    size_t room = 0;
    int rc = tree_path(path, e, "%s/changes", side);
    AUTO_CLOSE int fd = rc < 0 ? -1 : tree_file(t, path, O_RDWR, e);
    if (fd < 0)
        return rc < 0 ? rc : fd;
    if (write(fd, other, strlen(other)) < 0)
        return tree_fail(t, errno, "compare by", path, e);
    FILE *f = fdopen(dup(fd), "r");
    if (!f)
        return err_sys(e, "read %s", path);
    for (ssize_t n; rc >= 0 && (n = getline(&line, &room, f)) > 0;) {
        line[n - 1] = line[n - 1] == '\n' ? 0 : line[n - 1];
        rc = add_line(l, line);
    }
    free(line);
    fclose(f);
    return rc < 0 ? err_set(e, ENOMEM, "out of memory") : 0;
}

static int by_path(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    return strcmp(x->path, y->path);
}

/* Each path once, with the larger number of bytes. */
static void settle(struct names *l)
{
    size_t n = 0;
    if (l->n)
        qsort(l->v, l->n, sizeof *l->v, by_path);
    for (size_t i = 0; i < l->n; i++) {
        if (n && !strcmp(l->v[n - 1].path, l->v[i].path)) {
            if (l->v[i].bytes > l->v[n - 1].bytes)
                l->v[n - 1].bytes = l->v[i].bytes;
            free(l->v[i].path);
        } else {
            l->v[n++] = l->v[i];
        }
    }
    l->n = n;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* But for contents. */
static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_mode == b->st_mode && a->st_uid == b->st_uid && a->st_gid == b->st_gid && a->st_nlink == b->st_nlink && a->st_rdev == b->st_rdev &&
           a->st_size == b->st_size && same_time(&a->st_mtim, &b->st_mtim) && same_time(&a->st_ctim, &b->st_ctim);
}

/* 1 when it is there, 0, or -errno. */
static int look(const struct tree *t, int dir, const char *path, struct stat *out, struct err *e)
{
    if (fstatat(dir, path, out, AT_SYMLINK_NOFOLLOW) == 0)
        return 1;
    return errno == ENOENT || errno == ENOTDIR ? 0 : tree_fail(t, errno, "look at", path, e);
}

/* Adds PREFIX/NAME for what is in the directory `path` of one side and not of the other. */
static int add_missing(int one, int other, const char *path, struct names *l)
{
    char *full;
    struct stat st;
    int rc = 0, fd = openat(one, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *e; rc == 0 && d && (e = readdir(d));) {
        bool root = !strcmp(path, ".");
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (asprintf(&full, "%s%s%s", root ? "" : path, root ? "" : "/", e->d_name) < 0)
            return closedir(d), -ENOMEM;
        if (fstatat(other, full, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
            rc = add(l, full, 0);
        else
            free(full);
    }
    if (d)
        closedir(d);
    return rc;
}

/*
 * In a directory that may differ, the names are compared. Where one side's journal alone has the
 * newest form of a block, the other side does not know that its own has become an old one.
 */
static int look_into_directories(int before, int now, struct names *l)
{
    size_t n = l->n;
    int rc = add_missing(before, now, ".", l);
    if (rc == 0)
        rc = add_missing(now, before, ".", l);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct stat a, b;
        const char *path = l->v[i].path;
        if (fstatat(before, path, &a, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(a.st_mode) || fstatat(now, path, &b, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISDIR(b.st_mode))
            continue;
        if (!l->v[i].bytes && same(&a, &b))
            continue;
        rc = add_missing(before, now, path, l);
        if (rc == 0)
            rc = add_missing(now, before, l->v[i].path, l);
    }
    return rc;
}

static int judge(const struct tree *t, int before, int now, const struct name *n, struct table *table, struct err *e)
{
    struct stat a, b;
    char bytes[24];
    int was = look(t, before, n->path, &a, e), is = was < 0 ? was : look(t, now, n->path, &b, e);
    if (is < 0)
        return is;
    if ((!was && !is) || (was && is && !n->bytes && same(&a, &b)))
        return 0;
    snprintf(bytes, sizeof bytes, "%" PRIu64, was && is ? n->bytes : (uint64_t)(is ? b.st_size : a.st_size));
    const char *cells[TABLE_COLUMNS_MAX] = {!was ? "added" : !is ? "removed" : "changed", bytes, n->path};
    table_add(table, cells);
    return 0;
}

static int compare(const struct tree *t, struct names *l, char sides[2][TREE_PATH_MAX], struct table *table, struct err *e)
{
    char path[TREE_PATH_MAX];
    int rc = tree_path(path, e, "%s/files", sides[0]);
    AUTO_CLOSE int before = rc < 0 ? rc : tree_file(t, path, O_RDONLY | O_DIRECTORY, e);
    rc = before < 0 ? before : tree_path(path, e, "%s/files", sides[1]);
    AUTO_CLOSE int now = rc < 0 ? rc : tree_file(t, path, O_RDONLY | O_DIRECTORY, e);
    rc = now < 0 ? now : 0;
    if (rc >= 0 && look_into_directories(before, now, l) < 0)
        rc = err_set(e, ENOMEM, "out of memory");
    settle(l);
    for (size_t i = 0; rc >= 0 && i < l->n; i++)
        rc = judge(t, before, now, &l->v[i], table, e);
    return rc;
}

/* Compares two snapshots of a sandbox and prints what differs. */
static int diff(const struct tree *t, const char *sandbox, const char *const names[2], bool json, struct err *e)
{
    char sides[2][TREE_PATH_MAX], heads[2][128], path[TREE_PATH_MAX];
    AUTO_NAMES struct names l = {0};
    int rc = 0;
    for (int i = 0; rc >= 0 && i < 2; i++) {
        rc = tree_check_name("snapshot", names[i], e);
        if (rc >= 0)
            rc = tree_path(sides[i], e, "snapshots/%s/%s", sandbox, names[i]);
        if (rc >= 0)
            rc = tree_path(path, e, "%s/head", sides[i]);
        if (rc >= 0)
            rc = tree_read(t, path, heads[i], sizeof heads[i], e);
    }
    for (int i = 0; rc >= 0 && i < 2; i++)
        rc = read_changes(t, sides[i], heads[!i], &l, e);
    if (rc < 0)
        return rc;
    settle(&l);
    struct table *table = table_create(columns);
    rc = compare(t, &l, sides, table, e);
    if (rc >= 0)
        table_print(table, json, stdout);
    table_destroy(table);
    return rc < 0 ? rc : 0;
}

/* The disk as it is now is compared as a snapshot that goes again. */
static int diff_live(const struct tree *t, const char *sandbox, const char *old, bool json, struct err *e)
{
    char name[32], path[TREE_PATH_MAX], files[TREE_PATH_MAX];
    const char *const names[2] = {old, name};
    struct err ignored = {0};
    snprintf(name, sizeof name, "diff-%d", (int)getpid());
    int rc = tree_path(path, e, "snapshots/%s/%s", sandbox, name);
    if (rc >= 0)
        rc = tree_path(files, e, "%s/files", path);
    if (rc >= 0)
        rc = tree_mkdir(t, path, e);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int ready = tree_file(t, files, O_RDONLY | O_DIRECTORY, e); /* which waits for it */
    rc = ready < 0 ? ready : diff(t, sandbox, names, json, e);
    int removed = tree_rmdir(t, path, rc < 0 ? &ignored : e);
    return rc < 0 ? rc : removed;
}

static int run(const struct command *self, const struct tree *t, const struct args *a, struct err *e)
{
    const char *const names[2] = {a->pos[1], a->pos_count > 2 ? a->pos[2] : NULL};
    bool json = args_value(a, OPT_JSON) != NULL;
    (void)self;
    int rc = tree_check_name("sandbox", a->pos[0], e);
    if (rc < 0)
        return rc;
    return names[1] ? diff(t, a->pos[0], names, json, e) : diff_live(t, a->pos[0], names[0], json, e);
}

const struct command command_diff = {
    .name = "diff",
    .usage = "[--json] NAME OLD [NEW]",
    .summary = "list the files that differ between two snapshots of a sandbox",
    .help = "Without NEW the disk as it is now is compared: a snapshot of it is taken, and removed "
            "again.\n"
            "BYTES is what was written anew in a changed file (whole blocks), and the size of one "
            "that was\n"
            "added or removed. The disks are not read: their extent maps are compared.\n",
    .options = options,
    .pos_min = 2,
    .pos_max = 3,
    .run = run,
};
