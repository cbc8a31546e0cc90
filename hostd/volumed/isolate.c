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
    static const int denied[] = {
        SCMP_SYS(execve),      SCMP_SYS(execveat),        SCMP_SYS(ptrace),         SCMP_SYS(process_vm_readv),  SCMP_SYS(process_vm_writev), SCMP_SYS(mount),
        SCMP_SYS(umount2),     SCMP_SYS(pivot_root),      SCMP_SYS(chroot),         SCMP_SYS(setns),             SCMP_SYS(unshare),           SCMP_SYS(bpf),
        SCMP_SYS(keyctl),      SCMP_SYS(add_key),         SCMP_SYS(request_key),    SCMP_SYS(init_module),       SCMP_SYS(finit_module),      SCMP_SYS(kexec_load),
        SCMP_SYS(userfaultfd), SCMP_SYS(perf_event_open), SCMP_SYS(io_uring_setup), SCMP_SYS(open_by_handle_at), SCMP_SYS(personality)};
    if (geteuid() == 0)
        return err_set(e, EPERM, "space-volumed must not run on as root");
    int rc = isolate_privileges(e);
    if (rc == 0)
        rc = isolate_files(paths, sizeof paths / sizeof *paths, "space-volumed", e);
    if (rc < 0)
        return rc;
    return online ? isolate_deny_calls_online(denied, sizeof denied / sizeof *denied, e) : isolate_deny_calls(denied, sizeof denied / sizeof *denied, e);
}
