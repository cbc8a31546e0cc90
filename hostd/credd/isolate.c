// SPDX-License-Identifier: Apache-2.0
// Confinement of space-credd: see isolate.h.
#include "hostd/credd/isolate.h"

#include "isolate/isolate.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LOCKED ((rlim_t)1 << 20) /* credentials lie encrypted in memory, too: a few buffers are all that needs it */

int credd_allow_locking(struct err *e)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_MEMLOCK, &r) < 0)
        return err_sys(e, "ask how much memory may be locked");
    if (r.rlim_cur >= LOCKED)
        return 0;
    struct rlimit more = {LOCKED, r.rlim_max > LOCKED ? r.rlim_max : LOCKED};
    if (setrlimit(RLIMIT_MEMLOCK, &more) == 0)
        return 0;
    r.rlim_cur = r.rlim_max; /* in a container root may not raise it: secret_alloc says so when it is too little */
    return setrlimit(RLIMIT_MEMLOCK, &r) < 0 ? err_sys(e, "allow locked memory") : 0;
}

int credd_isolate(const struct config *c, bool online, struct err *e)
{
    char tokens[CONFIG_PATH_MAX + sizeof "/tokens"];
    snprintf(tokens, sizeof tokens, "%s/tokens", c->credential_keys);
    char vault[CONFIG_PATH_MAX] = "/dev/null"; /* the folder of the file that says where Vault is; its token lies there, too */
    char *slash = online ? strrchr(strcpy(vault, c->credential_store), '/') : NULL;
    if (slash)
        slash[slash == vault] = 0;
    const struct isolate_path paths[] = {
        {c->credentials, ISOLATE_WRITES},
        {vault, online ? ISOLATE_READS : LANDLOCK_ACCESS_FS_READ_FILE},
        {c->credential_keys, ISOLATE_READS},
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
        return err_set(e, EPERM, "space-credd must not run on as root");
    int rc = isolate_privileges(e);
    if (rc == 0)
        rc = isolate_files(paths, sizeof paths / sizeof *paths, "space-credd", e);
    if (rc < 0)
        return rc;
    return isolate_deny_calls(denied, sizeof denied / sizeof *denied, online, e);
}
