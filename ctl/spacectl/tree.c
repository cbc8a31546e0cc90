// SPDX-License-Identifier: Apache-2.0
// File operations on the mounted tree: see tree.h.
#include "spacectl/tree.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int tree_open(const char *dir, struct tree *out, struct err *e)
{
    if (!dir)
        dir = getenv("SPACE");
    out->path = dir && *dir ? dir : "/space";
    out->fd = open(out->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (out->fd < 0)
        return err_set(e, errno, "cannot open the mount %s: %s%s", out->path, strerror(errno),
                       errno == ENOTCONN ? " (spacefs has died; `ctl/quickstart` brings it back)" : "");
    return 0;
}

void tree_close(struct tree *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

int tree_path(char out[TREE_PATH_MAX], struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, TREE_PATH_MAX, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= TREE_PATH_MAX)
        return err_set(e, ENAMETOOLONG, "path too long: %s", out);
    return 0;
}

int tree_check_name(const char *what, const char *name, struct err *e)
{
    const char *colon = strchr(name, ':');
    bool owner_ok = !colon || str_name_valid(name, (size_t)(colon - name));
    const char *own = colon ? colon + 1 : name;
    if (owner_ok && str_name_valid(own, strlen(own)))
        return 0;
    return err_set(e, EINVAL,
                   "not a name of a %s: \"%.80s\" (1 to 64 letters, digits, dots, dashes and "
                   "underscores, a letter or "
                   "digit first)",
                   what, name);
}

/* The fields of a line are: time, path, errno's name, sentence; separated by single blanks. */
const char *tree_error_sentence(char *text, int code, const char *path)
{
    size_t len = strlen(text);
    while (len && text[len - 1] == '\n')
        text[--len] = 0;
    char *line = strrchr(text, '\n');
    char *rest = line ? line + 1 : text;
    const char *name = strerrorname_np(code);
    strsep(&rest, " ");
    const char *at = strsep(&rest, " ");
    const char *error = strsep(&rest, " ");
    if (!rest || !name || strcmp(error, name) != 0)
        return NULL;
    while (*at == '/')
        at++;
    return strcmp(at, path) == 0 ? rest : NULL;
}

int tree_fail(const struct tree *t, int code, const char *what, const char *path, struct err *e)
{
    char text[TREE_VALUE_MAX];
    const char *sentence = NULL;
    AUTO_CLOSE int fd = openat(t->fd, "error", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n > 0) {
        text[n] = 0;
        sentence = tree_error_sentence(text, code, path);
    } else if (fd < 0 && errno == ENOENT) {
        sentence = "spacefs is not mounted there (start it: ctl/quickstart; look: spacectl doctor)";
    }
    return err_set(e, code, "cannot %s %s/%s: %s%s%s", what, t->path, path, strerror(code), sentence ? ": " : "", sentence ? sentence : "");
}

int tree_file(const struct tree *t, const char *path, int flags, struct err *e)
{
    int fd = openat(t->fd, path, flags | O_CLOEXEC);
    return fd < 0 ? tree_fail(t, errno, "open", path, e) : fd;
}

int tree_read(const struct tree *t, const char *path, char *buf, size_t size, struct err *e)
{
    AUTO_CLOSE int fd = tree_file(t, path, O_RDONLY, e);
    if (fd < 0)
        return fd;
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, buf + len, size - len);
        if (n < 0)
            return tree_fail(t, errno, "read", path, e);
        if (n == 0)
            break;
        len += (size_t)n;
        if (len == size)
            return err_set(e, EMSGSIZE, "%s/%s holds more than %zu bytes", t->path, path, size - 1);
    }
    if (len && buf[len - 1] == '\n')
        len--;
    buf[len] = 0;
    return (int)len;
}

int tree_write(const struct tree *t, const char *path, const char *value, struct err *e)
{
    AUTO_CLOSE int fd = tree_file(t, path, O_WRONLY, e);
    if (fd < 0)
        return fd;
    size_t len = strlen(value);
    ssize_t n = write(fd, value, len);
    if (n < 0)
        return tree_fail(t, errno, "write", path, e);
    if ((size_t)n != len)
        return err_set(e, EIO, "only %zd of %zu bytes were taken by %s/%s", n, len, t->path, path);
    return 0;
}

int tree_copy_head(const struct tree *t, const char *from, const char *to, struct err *e)
{
    char ref[256];
    int rc = tree_read(t, from, ref, sizeof ref, e);
    return rc < 0 ? rc : tree_write(t, to, ref, e);
}

int tree_mkdir(const struct tree *t, const char *path, struct err *e)
{
    return mkdirat(t->fd, path, 0700) < 0 ? tree_fail(t, errno, "make", path, e) : 0;
}

int tree_rmdir(const struct tree *t, const char *path, struct err *e)
{
    return unlinkat(t->fd, path, AT_REMOVEDIR) < 0 ? tree_fail(t, errno, "remove", path, e) : 0;
}

int tree_rename(const struct tree *t, const char *from, const char *to, struct err *e)
{
    return renameat(t->fd, from, t->fd, to) < 0 ? tree_fail(t, errno, "rename", from, e) : 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int tree_list(const struct tree *t, const char *path, char ***out, struct err *e)
{
    int fd = tree_file(t, path, O_RDONLY | O_DIRECTORY, e);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return err_sys(e, "cannot list %s/%s", t->path, path);
    }
    char **names = NULL;
    int count = 0, code = 0;
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        char **grown = count % 64 ? names : reallocarray(names, (size_t)count + 64, sizeof *names);
        if (!grown || !(grown[count] = strdup(entry->d_name))) {
            names = grown ? grown : names;
            errno = ENOMEM;
            break;
        }
        names = grown;
        count++;
    }
    code = errno;
    closedir(dir);
    if (code) {
        tree_free_names(names, count);
        return tree_fail(t, code, "list", path, e);
    }
    if (count)
        qsort(names, (size_t)count, sizeof *names, compare_names);
    *out = names;
    return count;
}

void tree_free_names(char **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
