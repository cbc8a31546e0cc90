// SPDX-License-Identifier: Apache-2.0
// Giving up root: see isolate.h.
#include "isolate/isolate.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int drop_capabilities(struct err *e)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    memset(data, 0, sizeof data);
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++) {
        if (prctl(PR_CAPBSET_DROP, cap) < 0)
            return err_sys(e, "cannot drop capability %d from the bounding set", cap);
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return err_sys(e, "cannot clear ambient capabilities");
    if (syscall(SYS_capset, &header, data) < 0)
        return err_sys(e, "cannot drop capabilities");
    return 0;
}

static int change_ids(const struct passwd *pw, gid_t gid, struct err *e)
{
    if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || prctl(PR_SET_KEEPCAPS, 1) < 0 || setresuid(pw->pw_uid, pw->pw_uid, pw->pw_uid) < 0)
        return err_sys(e, "cannot become user %s", pw->pw_name);
    return 0;
}

int isolate_become(const char *user, const char *group, struct err *e)
{
    const struct passwd *pw = getpwnam(user);
    const struct group *gr = group ? getgrnam(group) : NULL;
    if (!pw || (group && !gr))
        return err_set(e, ENOENT, "there is no %s %s; make it or change it in the configuration", pw ? "group" : "user", pw ? group : user);
    /* ids first, while that is allowed; the capabilities kept over it are for dropping the bounding set only */
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    memset(data, 0, sizeof data);
    int rc = change_ids(pw, gr ? gr->gr_gid : pw->pw_gid, e);
    if (rc < 0)
        return rc;
    data[0].permitted = data[0].effective = 1u << CAP_SETPCAP;
    if (syscall(SYS_capset, &header, data) < 0)
        return err_sys(e, "cannot reduce capabilities");
    return drop_capabilities(e);
}
