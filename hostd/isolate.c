// SPDX-License-Identifier: Apache-2.0
// Confinement of space-hostd: see isolate.h.
#include "hostd/isolate.h"

#include "base/str.h"
#include "isolate/isolate.h"

#include <errno.h>
#include <libgen.h>
#include <seccomp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int confine_files(const struct config *c, struct err *e)
{
    char egress[CONFIG_PATH_MAX]; /* the folder of the administrator's policies: an editor replaces the file */
    str_copy(egress, sizeof egress, c->egress);
    char *slash = strrchr(egress, '/');
    slash[slash == egress] = 0;
    char database[CONFIG_PATH_MAX];
    memcpy(database, c->database, sizeof database);
    const struct isolate_path paths[] = {
        {egress, LANDLOCK_ACCESS_FS_READ_FILE},
        {c->state, ISOLATE_WRITES},
        {dirname(database), ISOLATE_WRITES}, /* sqlite has files beside it */
        {c->run, ISOLATE_WRITES},
        {"/dev/null", LANDLOCK_ACCESS_FS_READ_FILE},
        {"/etc", ISOLATE_READS}, /* users, groups and NSS modules */
        {"/usr", ISOLATE_READS},
        {"/lib", ISOLATE_READS},
        {"/lib64", ISOLATE_READS},
        {"/proc", ISOLATE_READS},
    };
    return isolate_files(paths, sizeof paths / sizeof paths[0], "space-hostd", e);
}

static int confine_calls(struct err *e)
{
    static const int denied[] = {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(personality)};
    return isolate_deny_calls(denied, sizeof denied / sizeof denied[0], false, e);
}

int isolate(const struct config *c, struct err *e)
{
    umask(077);
    if (geteuid() == 0)
        return err_set(e, EPERM, "space-hostd must not run as root: start it as user '%s'", c->user);
    int rc = isolate_privileges(e);
    if (rc == 0)
        rc = confine_files(c, e);
    return rc < 0 ? rc : confine_calls(e);
}
