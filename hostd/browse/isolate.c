// SPDX-License-Identifier: Apache-2.0
// Confinement: see isolate.h. Landlock: Documentation/userspace-api/landlock.rst; seccomp by
// libseccomp.
#include "hostd/browse/isolate.h"

#include "isolate/isolate.h"

#include <errno.h>
#include <linux/capability.h>
#include <seccomp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
/* The sanitizers' own calls would kill the process; and their shadow takes terabytes of addresses.
 */
#define OTHERWISE       SCMP_ACT_ERRNO(EPERM)
#define LIMITED         false
#define SANITIZER_CALLS SCMP_SYS(sigaltstack), /* asked for by every function that does not return */
#else
#define OTHERWISE SCMP_ACT_KILL_PROCESS
#define LIMITED   true
#define SANITIZER_CALLS
#endif

static int drop_privileges(struct err *e)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    int rc = isolate_privileges(e);
    if (rc == 0 && (syscall(SYS_capset, &head, none) < 0 || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0))
        rc = err_sys(e, "give up capabilities");
    return rc;
}

static int browser_calls(int image, int connection, struct err *e)
{
    static const int plain[] = {SANITIZER_CALLS SCMP_SYS(munmap),
                                SCMP_SYS(mremap),
                                SCMP_SYS(madvise),
                                SCMP_SYS(brk),
                                SCMP_SYS(exit),
                                SCMP_SYS(exit_group),
                                SCMP_SYS(rt_sigreturn),
                                SCMP_SYS(restart_syscall),
                                SCMP_SYS(clock_gettime),
                                SCMP_SYS(gettimeofday),
                                SCMP_SYS(time),
                                SCMP_SYS(getrandom)};
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
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, on[i].call, 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)on[i].fd));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                              SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
    if (rc == 0)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (rc == 0)
        rc = seccomp_load(ctx);
    seccomp_release(ctx);
    return rc < 0 ? err_set(e, -rc, "load the system call filter: %s", strerror(-rc)) : 0;
}

int isolate_browser(int image, int connection, struct err *e)
{
    const struct rlimit memory = {ISOLATE_MEMORY, ISOLATE_MEMORY};
    int rc = drop_privileges(e);
    if (rc == 0 && LIMITED && setrlimit(RLIMIT_AS, &memory) < 0)
        rc = err_sys(e, "limit the memory");
    if (rc == 0)
        rc = isolate_files(NULL, 0, "space-browse", e);
    return rc == 0 ? browser_calls(image, connection, e) : rc;
}

int isolate_daemon(const char *folder, struct err *e)
{
    const uint64_t use = ISOLATE_READS | LANDLOCK_ACCESS_FS_EXECUTE;
    const struct isolate_path paths[] = {{folder, use}, {"/usr", use}, {"/lib", use}, {"/lib64", use}, {"/etc", ISOLATE_READS}};
    static const int denied[] = {SCMP_SYS(socket), SCMP_SYS(connect)};
    int rc = drop_privileges(e);
    if (rc == 0)
        rc = isolate_files(paths, sizeof paths / sizeof *paths, "space-browsed", e);
    return rc == 0 ? isolate_deny_calls(denied, sizeof denied / sizeof *denied, false, e) : rc;
}
