// SPDX-License-Identifier: Apache-2.0
// Confinement of space-netd: see netd.h. It holds the connections of all guests and may make more;
// beyond that it may read its policy's file and nothing else.
#include "hostd/netd/netd.h"

#include "isolate/isolate.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int become(const char *name, struct err *e)
{
    const struct passwd *pw = getpwnam(name);
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `net_user`): adduser --system %s", name, name);
    uid_t uid = pw->pw_uid;
    gid_t gid = pw->pw_gid;
    if (uid == 0)
        return err_set(e, EPERM, "space-netd must not run as root (config `net_user`)");
    if (geteuid() == uid)
        return 0;
    if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        return err_sys(e, "become user %s", name);
    return 0;
}

/* The folder of the platform's rules: an editor replaces the file. */
static int confine_files(const struct config *c, struct err *e)
{
    char folder[CONFIG_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", c->egress);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = 0;
    const struct isolate_path paths[] = {{folder, LANDLOCK_ACCESS_FS_READ_FILE}};
    return isolate_files(paths, 1, "space-netd", e);
}

static int confine_calls(struct err *e)
{
    static const int allowed[] = {SCMP_SYS(read),
                                  SCMP_SYS(write),
                                  SCMP_SYS(writev),
                                  SCMP_SYS(close),
                                  SCMP_SYS(openat),
                                  SCMP_SYS(fstat),
                                  SCMP_SYS(newfstatat),
                                  SCMP_SYS(lseek),
                                  SCMP_SYS(epoll_wait),
                                  SCMP_SYS(epoll_pwait),
                                  SCMP_SYS(epoll_ctl),
                                  SCMP_SYS(accept4),
                                  SCMP_SYS(connect),
                                  SCMP_SYS(bind),
                                  SCMP_SYS(getsockname),
                                  SCMP_SYS(getpeername),
                                  SCMP_SYS(getsockopt),
                                  SCMP_SYS(setsockopt),
                                  SCMP_SYS(shutdown),
                                  SCMP_SYS(sendto),
                                  SCMP_SYS(sendmsg),
                                  SCMP_SYS(recvfrom),
                                  SCMP_SYS(recvmsg),
                                  SCMP_SYS(splice),
                                  SCMP_SYS(pipe2),
                                  SCMP_SYS(fcntl),
                                  SCMP_SYS(ioctl),
                                  SCMP_SYS(mmap),
                                  SCMP_SYS(munmap),
                                  SCMP_SYS(mremap),
                                  SCMP_SYS(madvise),
                                  SCMP_SYS(brk),
                                  SCMP_SYS(futex),
                                  SCMP_SYS(getrandom),
                                  SCMP_SYS(clock_gettime),
                                  SCMP_SYS(gettimeofday),
                                  SCMP_SYS(time),
                                  SCMP_SYS(getpid),
                                  SCMP_SYS(gettid),
                                  SCMP_SYS(rt_sigreturn),
                                  SCMP_SYS(rt_sigprocmask),
                                  SCMP_SYS(rt_sigaction),
                                  SCMP_SYS(restart_syscall),
                                  SCMP_SYS(exit),
                                  SCMP_SYS(exit_group),
                                  SCMP_SYS(sendmmsg),
                                  SCMP_SYS(poll),
                                  SCMP_SYS(sigaltstack)};
    static const int families[] = {AF_INET, AF_NETLINK, AF_UNIX};
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc = ctx ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < sizeof allowed / sizeof allowed[0]; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, allowed[i], 0);
    for (size_t i = 0; rc == 0 && i < sizeof families / sizeof families[0]; i++)
        rc = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
    if (rc == 0)
        rc = seccomp_load(ctx);
    if (ctx)
        seccomp_release(ctx);
    return rc < 0 ? err_set(e, -rc, "load the system call filter failed") : 0;
}

int isolate(const struct config *c, struct err *e)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    int rc = become(c->net_user, e);
    if (rc == 0)
        rc = isolate_privileges(e);
    if (rc == 0)
        rc = confine_files(c, e);
    return rc < 0 ? rc : confine_calls(e);
}
