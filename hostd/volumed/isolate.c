// SPDX-License-Identifier: Apache-2.0
// Confinement of space-volumed: see isolate.h.
#include "hostd/volumed/isolate.h"

#include "isolate/isolate.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <unistd.h>

#define STORES (ISOLATE_WRITES | LANDLOCK_ACCESS_FS_REMOVE_DIR)

/* What this user may not read (root did, before) needs no rule. */
static const char *readable(const char *path)
{
    return *path && access(path, R_OK) == 0 ? path : "/dev/null";
}

int volumed_isolate(const struct config *c, bool online, struct err *e)
{
    char tokens[CONFIG_PATH_MAX + sizeof "/tokens"];
    snprintf(tokens, sizeof tokens, "%s/tokens", c->keys);
    const struct isolate_path paths[] = {
        {online ? "/dev/null" : c->store, online ? LANDLOCK_ACCESS_FS_READ_FILE : STORES},
        {c->store_cache, STORES},
        {c->keys, ISOLATE_READS},
        {readable(c->store_credentials), LANDLOCK_ACCESS_FS_READ_FILE},
        {readable(c->store_ca), LANDLOCK_ACCESS_FS_READ_FILE},
        {tokens, ISOLATE_WRITES}, /* of PKCS#11 in software, which write even when they are only read */
        {"/var/lib/softhsm", ISOLATE_WRITES},
        {"/run/systemd/resolve", ISOLATE_READS},
        {"/dev/urandom", LANDLOCK_ACCESS_FS_READ_FILE},
        {"/etc", ISOLATE_READS},
        {"/usr", ISOLATE_READS}, /* modules of PKCS#11, CAs */
        {"/lib", ISOLATE_READS},
        {"/lib64", ISOLATE_READS},
    };
    static const int denied[] = {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(personality)};
    if (geteuid() == 0)
        return err_set(e, EPERM, "space-volumed must not run on as root");
    int rc = isolate_privileges(e);
    if (rc == 0)
        rc = isolate_files(paths, sizeof paths / sizeof *paths, "space-volumed", e);
    if (rc < 0)
        return rc;
    return isolate_deny_calls(denied, sizeof denied / sizeof *denied, online, e);
}
