// SPDX-License-Identifier: Apache-2.0
// Confinement: see isolate.h. Landlock: Documentation/userspace-api/landlock.rst; seccomp by
// libseccomp.
#include "hostd/browse/isolate.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READS (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define EVERYTHING                                                                                 \
    ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1) /* that the first version of Landlock knows */

#ifdef __SANITIZE_ADDRESS__
/* The sanitizers' own calls would kill the process; and their shadow takes terabytes of addresses.
 */
#define OTHERWISE SCMP_ACT_ERRNO(EPERM)
#define LIMITED   false
/* Looking for leaks needs ptrace. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}
#else
#define OTHERWISE SCMP_ACT_KILL_PROCESS
#define LIMITED   true
#endif

static int drop_privileges(struct err *e)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2];
    const struct rlimit no = {0, 0};
    memset(none, 0, sizeof none);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &head, none) < 0 ||
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
        setrlimit(RLIMIT_CORE, &no) < 0)
        return err_sys(e, "give up privileges");
    return 0;
}

/* ---- Landlock ---- */

static int allow(int rules, const char *path, uint64_t access)
{
    AUTO_CLOSE int fd = open(path, O_PATH | O_CLOEXEC);
    struct landlock_path_beneath_attr below = {.allowed_access = access, .parent_fd = fd};
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    return syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) < 0 ? -errno
                                                                                            : 0;
}

/* Reading and executing below these paths is all that is left. */
static int confine_files(const char *const *paths, struct err *e)
{
    const struct landlock_ruleset_attr all = {.handled_access_fs = EVERYTHING};
    AUTO_CLOSE int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    if (rules < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
        return 0; /* seccomp remains, which lets a browser open nothing */
    if (rules < 0)
        return err_sys(e, "make a Landlock ruleset");
    for (; *paths; paths++)
        if (allow(rules, *paths, READS | LANDLOCK_ACCESS_FS_EXECUTE) < 0)
            return err_sys(e, "confine access to %s", *paths);
    return syscall(SYS_landlock_restrict_self, rules, 0) < 0
               ? err_sys(e, "enter the Landlock ruleset")
               : 0;
}

/* ---- system calls ---- */

static int load(scmp_filter_ctx ctx, int rc, struct err *e)
{
    if (rc == 0)
        rc = seccomp_load(ctx);
    seccomp_release(ctx);
    return rc < 0 ? err_set(e, -rc, "load the system call filter: %s", strerror(-rc)) : 0;
}

static int browser_calls(int image, int connection, struct err *e)
{
    static const int plain[] = {SCMP_SYS(munmap),        SCMP_SYS(mremap),
                                SCMP_SYS(madvise),       SCMP_SYS(brk),
                                SCMP_SYS(exit),          SCMP_SYS(exit_group),
                                SCMP_SYS(rt_sigreturn),  SCMP_SYS(restart_syscall),
                                SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
                                SCMP_SYS(time),          SCMP_SYS(getrandom)};
    const struct {
        int call, fd;
    } on[] = {{SCMP_SYS(pread64), image},
              {SCMP_SYS(lseek), image},
              {SCMP_SYS(read), connection},
              {SCMP_SYS(write), connection},
              {SCMP_SYS(write), STDERR_FILENO}};
    scmp_filter_ctx ctx = seccomp_init(OTHERWISE);
    int rc = ctx ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < sizeof plain / sizeof *plain; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, plain[i], 0);
    for (size_t i = 0; rc == 0 && i < sizeof on / sizeof *on; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, on[i].call, 1,
                              SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)on[i].fd));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2,
                              SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                              SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                              SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    return load(ctx, rc, e);
}

static int daemon_calls(struct err *e)
{
    static const int denied[] = {SCMP_SYS(socket),
                                 SCMP_SYS(connect),
                                 SCMP_SYS(ptrace),
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
    int rc = ctx ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < sizeof denied / sizeof *denied; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), denied[i], 0);
    return load(ctx, rc, e);
}

/* ---- */

int isolate_browser(int image, int connection, struct err *e)
{
    static const char *const nothing[] = {NULL};
    const struct rlimit memory = {ISOLATE_MEMORY, ISOLATE_MEMORY};
    int rc = drop_privileges(e);
    if (rc == 0 &&
        ((LIMITED && setrlimit(RLIMIT_AS, &memory) < 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0))
        rc = err_sys(e, "set limits");
    if (rc == 0)
        rc = confine_files(nothing, e);
    return rc == 0 ? browser_calls(image, connection, e) : rc;
}

int isolate_daemon(const char *folder, struct err *e)
{
    const char *const paths[] = {
        folder, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.preload", NULL};
    int rc = drop_privileges(e);
    if (rc == 0)
        rc = confine_files(paths, e);
    return rc == 0 ? daemon_calls(e) : rc;
}
