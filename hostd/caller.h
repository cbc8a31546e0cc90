// SPDX-License-Identifier: Apache-2.0
// Who asks: the uid of an attach, its groups, and what it may do with whose things.
#ifndef SPACE_HOSTD_CALLER_H
#define SPACE_HOSTD_CALLER_H

#include "hostd/space.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CALLER_GROUPS_MAX 64

/* Requests of one attach that may wait at the same time; further ones get EAGAIN. Far below what a session holds (lib/9p: 16,384). */
#define CALLER_WAITING_MAX 4096

struct caller {
    unsigned refs;
    uint32_t uid, gid;
    unsigned waiting; /* requests that wait for something */
    bool may_create;  /* root, or in the configured group */
    int groups;
    gid_t group[CALLER_GROUPS_MAX];
};

/* Looks the uid up in the system's user database. NULL when out of memory. */
struct caller *caller_create(const struct space *s, uint32_t uid);
struct caller *caller_ref(struct caller *c);
void caller_unref(struct caller *c);

/* Rights on a thing of `owner` with group `gid` and permission bits `mode`. Root and the owner may everything. */
bool caller_may_read(const struct caller *c, int64_t owner, int64_t gid, int64_t mode);
bool caller_may_write(const struct caller *c, int64_t owner, int64_t gid, int64_t mode);
bool caller_owns(const struct caller *c, int64_t owner);

/* A user's name, or the decimal uid; `out` holds 33 bytes. */
char *caller_user_name(uint32_t uid, char out[33]);
/* The uid of a user name or a decimal uid. 0 or -ENOENT. */
int caller_uid_of(const char *name, uint32_t *out);

#endif
