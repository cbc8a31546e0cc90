// SPDX-License-Identifier: Apache-2.0
// Giving up root: see isolate.h.
#include "spacefs/isolate.h"

#include "isolate/isolate.h"

#include <seccomp.h>

/* What the loop, libuv, libfuse and the C library call from then on. An exotic one that is missing here fails with EPERM. */
static const int calls[] = {
    /* descriptors */
    SCMP_SYS(read),
    SCMP_SYS(readv),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(close),
    SCMP_SYS(fcntl),
    SCMP_SYS(ioctl),
    SCMP_SYS(lseek),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(eventfd2),
    SCMP_SYS(pipe2),
    /* /proc */
    SCMP_SYS(openat),
    SCMP_SYS(access),
    SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(pidfd_open),
    /* the connection to space-hostd; sockets: isolate_allow_calls */
    SCMP_SYS(connect),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(shutdown),
    SCMP_SYS(sendmsg),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendto),
    SCMP_SYS(recvfrom),
    /* memory, time, signals, the end */
    SCMP_SYS(brk),
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(futex),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getrandom),
    SCMP_SYS(sched_yield),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
#ifdef __SANITIZE_ADDRESS__ /* it looks for leaks from a process of its own */
    SCMP_SYS(clone),
    SCMP_SYS(wait4),
    SCMP_SYS(ptrace),
    SCMP_SYS(prctl),
    SCMP_SYS(getdents),
    SCMP_SYS(getdents64),
    SCMP_SYS(readlink),
    SCMP_SYS(getppid),
    SCMP_SYS(stat),
    SCMP_SYS(open),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(arch_prctl),
    SCMP_SYS(dup),
    SCMP_SYS(kill),
#endif
};

int isolate_confine(const struct config *c, struct err *e)
{
    const struct isolate_path readable[] = {{"/proc", ISOLATE_READS},
                                            {c->credentials, LANDLOCK_ACCESS_FS_READ_FILE}}; /* its public key; the rest is space-credd's alone */
    int rc = isolate_privileges(e);
    if (rc == 0)
        rc = isolate_files(readable, sizeof readable / sizeof readable[0], "spacefs", e);
    return rc < 0 ? rc : isolate_allow_calls(calls, sizeof calls / sizeof calls[0], e);
}
