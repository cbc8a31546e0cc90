// SPDX-License-Identifier: Apache-2.0
// Users and groups of the guest, from its /etc/passwd and /etc/group: a static program has no NSS.
#ifndef SPACE_GUEST_USER_H
#define SPACE_GUEST_USER_H

#include <sys/types.h>

#define USER_GROUPS_MAX 256

struct user {
    uid_t uid;
    gid_t gid;
    char name[64], home[256], shell[256];
    gid_t groups[USER_GROUPS_MAX];
    int n_groups;
};

/*
 * `spec` is a name, or uid[:gid]. A uid that /etc/passwd does not know has its own number as group,
 * home `/` and shell /bin/sh; root is known without a file. Reads the guest's files: for child
 * processes only. 0, or -EINVAL for an unknown name.
 */
int user_find(const char *spec, struct user *out);

#endif
