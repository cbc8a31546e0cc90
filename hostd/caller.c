// SPDX-License-Identifier: Apache-2.0
// Identity and rights: see caller.h.
#include "hostd/caller.h"

#include "base/str.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct caller *caller_create(const struct space *s, uint32_t uid)
{
    struct caller *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->refs = 1;
    c->uid = uid;
    c->gid = (uint32_t)-1;
    struct passwd *pw = getpwuid(uid);
    if (pw) {
        c->gid = pw->pw_gid;
        c->groups = CALLER_GROUPS_MAX;
        if (getgrouplist(pw->pw_name, pw->pw_gid, c->group, &c->groups) < 0)
            c->groups = CALLER_GROUPS_MAX; /* the first ones count */
    }
    c->may_create = uid == 0;
    struct group *gr = getgrnam(s->config.group);
    for (int i = 0; gr && i < c->groups; i++)
        if (c->group[i] == gr->gr_gid)
            c->may_create = true;
    return c;
}

struct caller *caller_ref(struct caller *c)
{
    c->refs++;
    return c;
}

void caller_unref(struct caller *c)
{
    if (c && --c->refs == 0)
        free(c);
}

static bool in_group(const struct caller *c, int64_t gid)
{
    for (int i = 0; i < c->groups; i++)
        if (c->group[i] == (gid_t)gid)
            return true;
    return false;
}

bool caller_owns(const struct caller *c, int64_t owner)
{
    return c->uid == 0 || c->uid == (uint32_t)owner;
}

bool caller_may_read(const struct caller *c, int64_t owner, int64_t gid, int64_t mode)
{
    return caller_owns(c, owner) || (mode & 0050 && in_group(c, gid));
}

bool caller_may_write(const struct caller *c, int64_t owner, int64_t gid, int64_t mode)
{
    return caller_owns(c, owner) || (mode & 0020 && in_group(c, gid));
}

char *caller_user_name(uint32_t uid, char out[33])
{
    struct passwd *pw = getpwuid(uid);
    if (pw && strlen(pw->pw_name) <= 32)
        str_copy(out, 33, pw->pw_name);
    else
        snprintf(out, 33, "%u", uid);
    return out;
}

int caller_uid_of(const char *name, uint32_t *out)
{
    uint64_t uid;
    struct passwd *pw = getpwnam(name);
    if (pw) {
        *out = pw->pw_uid;
        return 0;
    }
    if (str_parse_u64(name, UINT32_MAX - 1, &uid) < 0)
        return -ENOENT;
    *out = (uint32_t)uid;
    return 0;
}
