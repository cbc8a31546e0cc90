// SPDX-License-Identifier: Apache-2.0
// Tar files: see tarball.h.
#include "spacectl/tarball.h"

#include "spacectl/process.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICES_MAX 1024 /* far more than a /dev holds */

/* Undoes --quoting-style=escape in place. */
static void unescape(char *s)
{
    static const char letters[] = "abfnrtv\\?", bytes[] = "\a\b\f\n\r\t\v\\\177";
    char *out = s;
    while (*s) {
        const char *letter;
        if (*s != '\\' || !s[1]) {
            *out++ = *s++;
        } else if (s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 4;
        } else {
            letter = strchr(letters, s[1]);
            *out++ = letter ? bytes[letter - letters] : s[1];
            s += 2;
        }
    }
    *out = 0;
}

static bool climbs(const char *name)
{
    for (const char *p = name; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2]))
            return true;
    }
    return false;
}

static int check_name(const char *name, const char *what, struct err *e)
{
    if (name[0] == '/')
        return err_set(e, EINVAL, "%s is absolute: %.200s", what, name);
    if (climbs(name))
        return err_set(e, EINVAL, "%s leads out with \"..\": %.200s", what, name);
    return 0;
}

/* "block N: MODE OWNER/GROUP SIZE DATE TIME NAME": the start of NAME, or NULL. *mode points at
 * MODE. */
static char *find_name(char *line, char **mode)
{
    char *p = strchr(line, ' ');
    p = p ? strchr(p + 1, ' ') : NULL;
    if (strncmp(line, "block ", 6) || !p || p[-1] != ':')
        return NULL;
    *mode = p + 1;
    p++;
    for (int field = 0; field < 5; field++) {
        p = strchr(p, ' ');
        if (!p)
            return NULL;
        if (field < 4)
            p += strspn(p, " ");
        else
            p++; /* one blank: what follows may begin with more */
    }
    return p;
}

int tarball_judge(char *line, char **name, struct err *e)
{
    char *mode;
    if (!strncmp(line, "block ", 6) && strstr(line, ": ** Block of NULs **"))
        return TARBALL_END_MARK;
    if (!strncmp(line, "block ", 6) && strstr(line, ": ** End of File **"))
        return TARBALL_NO_END_MARK;
    char *start = find_name(line, &mode);
    if (!start)
        return TARBALL_UNKNOWN;
    const char *separator = *mode == 'l' ? " -> " : *mode == 'h' ? " link to " : NULL;
    char *target = separator ? strstr(start, separator) : NULL;
    if (target) {
        *target = 0;
        target += strlen(separator);
    }
    unescape(start);
    *name = start;
    int rc = check_name(start, "a member", e);
    if (rc == 0 && *mode == 'h' && target) { /* a symbolic link may point anywhere: it is only followed in the guest */
        unescape(target);
        rc = check_name(target, "the target of a hard link", e);
    }
    if (rc < 0)
        return rc;
    return *mode == 'b' || *mode == 'c' ? TARBALL_DEVICE : TARBALL_MEMBER;
}

/* What the listing amounts to. */
struct listing {
    bool end_mark;
    size_t members;
    size_t excluded;                /* devices to leave out */
    char *exclude[DEVICES_MAX + 1]; /* "--exclude=NAME" */
};

static void listing_finish(struct listing *l)
{
    for (size_t i = 0; i < l->excluded; i++)
        free(l->exclude[i]);
}

static int add_device(struct listing *l, const char *path, const char *name, unsigned flags, struct err *e)
{
    if (!(flags & TARBALL_SKIP_DEVICES))
        return err_set(e, EINVAL, "%s holds a device node: %.200s (--skip-devices leaves them out)", path, name);
    if (l->excluded == DEVICES_MAX)
        return err_set(e, E2BIG, "%s holds more than %d device nodes", path, DEVICES_MAX);
    if (asprintf(&l->exclude[l->excluded], "--exclude=%s", name) < 0)
        return err_set(e, ENOMEM, "out of memory");
    l->excluded++;
    return 0;
}

/* "block 1: block 5: ..." comes when tar skips what it does not understand, and then it fails
 * anyway. */
static int read_listing(FILE *f, const char *path, unsigned flags, struct listing *l, struct err *e)
{
    AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, f)) > 0) {
        char *name = NULL;
        if (line[n - 1] == '\n')
            line[n - 1] = 0;
        int rc = tarball_judge(line, &name, e);
        if (rc < 0)
            return err_wrap(e, "%s", path);
        l->members += rc == TARBALL_MEMBER || rc == TARBALL_DEVICE;
        l->end_mark = l->end_mark || rc == TARBALL_END_MARK;
        if (rc == TARBALL_DEVICE) {
            rc = add_device(l, path, name, flags, e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int tar_failed(const struct scratch *s, const char *path, const char *what, int status, struct err *e)
{
    char line[200];
    scratch_first_line(s, "log", line, sizeof line);
    if (!strncmp(line, "tar: ", 5))
        memmove(line, line + 5, strlen(line + 5) + 1);
    return err_set(e, EBADMSG, "cannot %s %s: %s (tar ended with status %d)", what, path, *line ? line : "no reason given", status);
}

/* Runs tar -t and judges what it prints. */
static int list(const char *path, const struct scratch *s, unsigned flags, struct listing *l, struct err *e)
{
    const char *const argv[] = {"tar",
                                "--list",
                                "--verbose",
                                "--block-number",
                                "--quoting-style=escape",
                                "--numeric-owner",
                                "--full-time",
                                "--absolute-names",
                                "--force-local",
                                "--file",
                                path,
                                NULL};
    AUTO_CLOSE int out = scratch_file(s, "list", e), log = scratch_file(s, "log", e);
    if (out < 0 || log < 0)
        return -e->code;
    int status = process_run(&(struct process){.argv = argv, .out = out, .err = log}, e);
    if (status < 0)
        return status;
    if (status != 0)
        return tar_failed(s, path, "read", status, e);
    lseek(out, 0, SEEK_SET);
    FILE *f = fdopen(out, "r");
    if (!f)
        return err_sys(e, "cannot read tar's listing");
    steal_fd(&out);
    int rc = read_listing(f, path, flags, l, e);
    fclose(f);
    if (rc == 0 && !l->end_mark)
        rc = err_set(e, EBADMSG, "%s is truncated: it has no end-of-archive mark", path);
    if (rc == 0 && l->members == 0)
        rc = err_set(e, EBADMSG, "%s holds nothing", path);
    return rc;
}

static int extract(const char *path, const struct scratch *s, const struct listing *l, struct err *e)
{
    bool root = geteuid() == 0;
    char dir[SCRATCH_PATH_MAX];
    const char *fixed[] = {"tar",
                           "--extract",
                           "--numeric-owner",
                           "--same-permissions",
                           root ? "--same-owner" : "--no-same-owner",
                           "--xattrs",
                           "--xattrs-include=*",
                           "--delay-directory-restore",
                           "--force-local",
                           "--anchored",
                           "--no-wildcards",
                           "--directory",
                           dir,
                           "--file",
                           path};
    size_t count = sizeof fixed / sizeof *fixed;
    AUTO_FREE const char **argv = calloc(count + l->excluded + 1, sizeof *argv);
    AUTO_CLOSE int log = scratch_file(s, "log", e);
    if (log < 0)
        return log;
    if (!argv)
        return err_set(e, ENOMEM, "out of memory");
    memcpy(argv, fixed, sizeof fixed);
    for (size_t i = 0; i < l->excluded; i++)
        argv[count + i] = l->exclude[i];
    scratch_path(s, "root", dir);
    if (mkdir(dir, 0755) < 0 || chmod(dir, 0755) < 0)
        return err_sys(e, "cannot make %s", dir);
    int status = process_run(&(struct process){.argv = argv, .out = -1, .err = log}, e);
    if (status < 0)
        return status;
    return status == 0 ? 0 : tar_failed(s, path, "unpack", status, e);
}

int tarball_unpack(const char *path, const struct scratch *s, unsigned flags, struct err *e)
{
    AUTO_FREE struct listing *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ENOMEM, "out of memory");
    int rc = list(path, s, flags, l, e);
    if (rc == 0)
        rc = extract(path, s, l, e);
    listing_finish(l);
    return rc;
}
