// SPDX-License-Identifier: Apache-2.0
// Confinement of space-hostd: see isolate.h. Landlock: Documentation/userspace-api/landlock.rst; seccomp by libseccomp.
#include "hostd/isolate.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READS  (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITES                                                                                     \
    (READS | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |                \
     LANDLOCK_ACCESS_FS_MAKE_DIR)
/* Everything that the first version of Landlock knows; later kinds stay as they are. */
#define HANDLED ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)

static int allow(int ruleset, const char *path, uint64_t access, struct err *e)
{
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent_fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "open %s", path);
    long rc = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    int result = rc < 0 ? err_sys(e, "confine access to %s", path) : 0;
    close(rule.parent_fd);
    return result;
}

static int confine_files(const struct config *c, struct err *e)
{
    static const char *const readable[] = {"/etc", "/usr", "/lib", "/lib64", "/proc"}; /* users, groups and NSS modules */
    struct landlock_ruleset_attr attr = {.handled_access_fs = HANDLED};
    AUTO_CLOSE int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (ruleset < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) {
        log_warn("this kernel has no Landlock: space-hostd may read what its user may");
        return 0;
    }
    if (ruleset < 0)
        return err_sys(e, "make a Landlock ruleset");
    int rc = allow(ruleset, c->state, WRITES, e);
    if (rc == 0)
        rc = allow(ruleset, c->run, WRITES, e);
    if (rc == 0)
        rc = allow(ruleset, "/dev/null", READS & ~(uint64_t)LANDLOCK_ACCESS_FS_READ_DIR, e);
    for (size_t i = 0; rc == 0 && i < sizeof readable / sizeof readable[0]; i++)
        rc = allow(ruleset, readable[i], READS, e);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
        rc = err_sys(e, "enter the Landlock ruleset");
    return rc;
}

static int confine_calls(struct err *e)
{
    static const int denied[] = {
        SCMP_SYS(execve),     SCMP_SYS(execveat),    SCMP_SYS(ptrace),      SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(mount),
        SCMP_SYS(umount2),    SCMP_SYS(pivot_root),  SCMP_SYS(chroot),      SCMP_SYS(setns),            SCMP_SYS(unshare),           SCMP_SYS(bpf),
        SCMP_SYS(keyctl),     SCMP_SYS(add_key),     SCMP_SYS(request_key), SCMP_SYS(init_module),      SCMP_SYS(finit_module),      SCMP_SYS(kexec_load),
        SCMP_SYS(userfaultfd), SCMP_SYS(perf_event_open), SCMP_SYS(io_uring_setup), SCMP_SYS(open_by_handle_at), SCMP_SYS(personality)};
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int rc = ctx ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < sizeof denied / sizeof denied[0]; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), denied[i], 0);
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    if (rc == 0)
        rc = seccomp_load(ctx);
    seccomp_release(ctx);
    return rc < 0 ? err_set(e, -rc, "load the system call filter failed") : 0;
}

int isolate(const struct config *c, struct err *e)
{
    struct rlimit core = {0, 0};
    umask(077);
    if (geteuid() == 0)
        return err_set(e, EPERM, "space-hostd must not run as root: start it as user '%s'", c->user);
    if (setrlimit(RLIMIT_CORE, &core) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_sys(e, "give up privileges");
    int rc = confine_files(c, e);
    return rc < 0 ? rc : confine_calls(e);
}
