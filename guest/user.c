// SPDX-License-Identifier: Apache-2.0
// Users and groups of the guest: see user.h.
#include "guest/user.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIELDS_MAX 7

/* Never blocks on what the guest put there: regular files only. */
static FILE *open_table(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return NULL;
    }
    return fdopen(fd, "r");
}

/* Cuts a line at its colons; how many fields there are. */
static int split(char *line, char *field[FIELDS_MAX])
{
    int n = 0;
    line[strcspn(line, "\n")] = 0;
    for (char *rest = line; n < FIELDS_MAX && rest;)
        field[n++] = strsep(&rest, ":");
    return n;
}

static bool number(const char *s, unsigned *out)
{
    uint64_t v;
    if (str_parse_u64(s, UINT32_MAX - 1, &v) < 0)
        return false;
    *out = (unsigned)v;
    return true;
}

/* By name, or by number when `name` is NULL. */
static bool find_passwd(const char *name, uid_t uid, struct user *out)
{
    bool found = false;
    char *line = NULL, *f[FIELDS_MAX];
    size_t size = 0;
    FILE *file = open_table("/etc/passwd");
    while (file && !found && getline(&line, &size, file) > 0) {
        unsigned u, g;
        if (split(line, f) < FIELDS_MAX || !number(f[2], &u) || !number(f[3], &g))
            continue;
        if (name ? strcmp(name, f[0]) != 0 : u != uid)
            continue;
        found = true;
        out->uid = u;
        out->gid = g;
        str_copy(out->name, sizeof out->name, f[0]);
        str_copy(out->home, sizeof out->home, *f[5] ? f[5] : "/");
        str_copy(out->shell, sizeof out->shell, *f[6] ? f[6] : "/bin/sh");
    }
    free(line);
    if (file)
        fclose(file);
    return found;
}

/* An empty list of members splits into one empty name, which is nobody's. */
static bool is_member(char *members, const char *name)
{
    for (char *rest = members, *m; (m = strsep(&rest, ","));)
        if (*m && !strcmp(m, name))
            return true;
    return false;
}

static void find_groups(struct user *u)
{
    char *line = NULL, *f[FIELDS_MAX];
    size_t size = 0;
    FILE *file = open_table("/etc/group");
    u->groups[u->n_groups++] = u->gid;
    while (file && u->n_groups < USER_GROUPS_MAX && getline(&line, &size, file) > 0) {
        unsigned g;
        if (split(line, f) >= 4 && number(f[2], &g) && g != u->gid && is_member(f[3], u->name))
            u->groups[u->n_groups++] = g;
    }
    free(line);
    if (file)
        fclose(file);
}

static void unknown(struct user *u, uid_t uid)
{
    u->uid = uid;
    u->gid = uid;
    str_copy(u->name, sizeof u->name, uid == 0 ? "root" : "");
    str_copy(u->home, sizeof u->home, uid == 0 ? "/root" : "/");
    str_copy(u->shell, sizeof u->shell, "/bin/sh");
}

int user_find(const char *spec, struct user *out)
{
    char text[64];
    unsigned uid, gid;
    memset(out, 0, sizeof *out);
    if (strlen(spec) >= sizeof text)
        return -EINVAL;
    str_copy(text, sizeof text, spec);
    char *colon = strchr(text, ':');
    if (colon)
        *colon++ = 0;
    if (number(text, &uid)) {
        if (!find_passwd(NULL, uid, out))
            unknown(out, uid);
    } else if (colon || (!find_passwd(text, 0, out) && strcmp(text, "root") != 0)) {
        return -EINVAL;
    } else if (!out->name[0]) {
        unknown(out, 0);
    }
    if (colon) {
        if (!number(colon, &gid))
            return -EINVAL;
        out->gid = gid;
    }
    find_groups(out);
    return 0;
}
