// SPDX-License-Identifier: Apache-2.0
// Files with secrets: see secret_file.h.
#include "hostd/volumed/secret_file.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void *secret_alloc(size_t size)
{
    void *p = sodium_malloc(size);
    if (!p)
        return NULL;
    if (sodium_mlock(p, size) < 0) {
        sodium_free(p);
        return NULL;
    }
    memset(p, 0, size);
    return p;
}

static int check(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "look at %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s is not a regular file", path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return err_set(e, EACCES, "%s belongs to uid %u: it holds a secret and must be root's or this program's", path, (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return err_set(e, EACCES, "%s has mode %04o: it holds a secret; chmod 0600 it", path, (unsigned)(st.st_mode & 07777));
    return 0;
}

int secret_file_read(const char *path, char **out, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(e, "open %s", path);
    int rc = check(fd, path, e);
    if (rc < 0)
        return rc;
    char *text = secret_alloc(SECRET_FILE_MAX + 1);
    if (!text)
        return err_set(e, ENOMEM, "read %s: no memory that can be locked (see RLIMIT_MEMLOCK)", path);
    ssize_t n = read(fd, text, SECRET_FILE_MAX + 1);
    if (n < 0)
        rc = err_sys(e, "read %s", path);
    else if ((size_t)n > SECRET_FILE_MAX || memchr(text, 0, (size_t)n))
        rc = err_set(e, EINVAL, "%s is longer than %u bytes, or no text", path, SECRET_FILE_MAX);
    if (rc < 0) {
        sodium_free(text);
        return rc;
    }
    text[n] = 0;
    *out = text;
    return 0;
}

int secret_file_next(char **text, char **ret_key, char **ret_value)
{
    while (**text) {
        char *line = *text, *end = strchr(line, '\n');
        *text = end ? end + 1 : line + strlen(line);
        if (end)
            *end = 0;
        line = str_trim(line);
        if (!*line || *line == '#')
            continue;
        char *equals = strchr(line, '=');
        if (!equals)
            return -EINVAL;
        *equals = 0;
        *ret_key = str_trim(line);
        *ret_value = str_trim(equals + 1);
        return 1;
    }
    return 0;
}
