// SPDX-License-Identifier: Apache-2.0
// Confinement: see isolate.h. Landlock: Documentation/userspace-api/landlock.rst; seccomp by libseccomp.
#include "isolate/isolate.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
/* Looking for leaks takes ptrace and /proc, which the confined have not. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#endif

/* Everything that the first version of Landlock knows; later kinds stay as they are. */
#define HANDLED ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)

int isolate_privileges(struct err *e)
{
    struct rlimit core = {0, 0};
    if (setrlimit(RLIMIT_CORE, &core) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_sys(e, "give up privileges");
    return 0;
}

/* --- files --- */

static int allow(int ruleset, const struct isolate_path *p, struct err *e)
{
    AUTO_CLOSE int fd = open(p->path, O_PATH | O_CLOEXEC);
    struct landlock_path_beneath_attr rule = {.allowed_access = p->access, .parent_fd = fd};
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "open %s", p->path);
    if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0)
        return err_sys(e, "confine access to %s", p->path);
    return 0;
}

int isolate_files(const struct isolate_path *paths, size_t count, const char *program, struct err *e)
{
    struct landlock_ruleset_attr attr = {.handled_access_fs = HANDLED};
    AUTO_CLOSE int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (ruleset < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) {
        log_warn("this kernel has no Landlock: %s may read what its user may", program);
        return 0;
    }
    if (ruleset < 0)
        return err_sys(e, "make a Landlock ruleset");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = allow(ruleset, &paths[i], e);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
        rc = err_sys(e, "enter the Landlock ruleset");
    return rc;
}

/* --- system calls --- */

static int load(scmp_filter_ctx ctx, int rc, struct err *e)
{
    if (rc == 0)
        rc = seccomp_load(ctx);
    if (ctx)
        seccomp_release(ctx);
    return rc < 0 ? err_set(e, -rc, "load the system call filter failed") : 0;
}

static int deny(scmp_filter_ctx ctx, const int *calls, size_t count)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), calls[i], 0);
    return rc;
}

int isolate_deny_calls(const int *more, size_t count, bool online, struct err *e)
{
    static const int no_daemons[] = {SCMP_SYS(ptrace),
                                     SCMP_SYS(process_vm_readv),
                                     SCMP_SYS(process_vm_writev),
                                     SCMP_SYS(mount),
                                     SCMP_SYS(umount2),
                                     SCMP_SYS(pivot_root),
                                     SCMP_SYS(chroot),
                                     SCMP_SYS(setns),
                                     SCMP_SYS(unshare),
                                     SCMP_SYS(bpf),
                                     SCMP_SYS(keyctl),
                                     SCMP_SYS(add_key),
                                     SCMP_SYS(request_key),
                                     SCMP_SYS(init_module),
                                     SCMP_SYS(finit_module),
                                     SCMP_SYS(kexec_load),
                                     SCMP_SYS(userfaultfd),
                                     SCMP_SYS(perf_event_open),
                                     SCMP_SYS(io_uring_setup),
                                     SCMP_SYS(open_by_handle_at)};
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int rc = ctx ? deny(ctx, no_daemons, sizeof no_daemons / sizeof *no_daemons) : -ENOMEM;
    if (rc == 0)
        rc = deny(ctx, more, count);
    if (rc == 0 && !online)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    return load(ctx, rc, e);
}

int isolate_allow_calls(const int *calls, size_t count, struct err *e)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc = ctx ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, calls[i], 0);
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    if (rc == 0) /* abort */
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    return load(ctx, rc, e);
}
