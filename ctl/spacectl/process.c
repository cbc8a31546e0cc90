// SPDX-License-Identifier: Apache-2.0
// Child processes: see process.h. Signals stay blocked and are looked at where the program can
// clean up: no handlers, no flags.
#include "spacectl/process.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void end_signals(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGHUP);
}

void process_block_signals(void)
{
    sigset_t set;
    end_signals(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int process_interrupted(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t pending;
    sigpending(&pending);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigismember(&pending, signals[i]))
            return signals[i];
    return 0;
}

static bool write_file(const char *path, const char *text)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* Files of the caller then look like root's. Where user namespaces are forbidden, they keep the
 * caller's uid. */
static void map_root(void)
{
    char uid[64], gid[64];
    snprintf(uid, sizeof uid, "0 %u 1\n", geteuid());
    snprintf(gid, sizeof gid, "0 %u 1\n", getegid());
    if (unshare(CLONE_NEWUSER) < 0)
        return;
    write_file("/proc/self/uid_map", uid);
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/gid_map", gid);
}

static _Noreturn void child(const struct process *p)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (p->out >= 0)
        dup2(p->out, STDOUT_FILENO);
    if (p->err >= 0)
        dup2(p->err, STDERR_FILENO);
    if (p->function)
        _exit(p->function(p->user));
    if (p->flags & PROCESS_MAP_ROOT)
        map_root();
    setenv("LC_ALL", "C", 1);
    execvp(p->argv[0], (char *const *)(uintptr_t)p->argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", p->argv[0], strerror(errno));
    _exit(127);
}

int process_run(const struct process *p, struct err *e)
{
    sigset_t wanted;
    bool interrupted = false;
    int status;
    end_signals(&wanted);
    sigaddset(&wanted, SIGCHLD);
    pid_t pid = fork();
    if (pid < 0)
        return err_sys(e, "cannot start a process");
    if (pid == 0)
        child(p);
    for (;;) {
        pid_t ended = waitpid(pid, &status, interrupted ? 0 : WNOHANG);
        if (ended == pid)
            break;
        if (ended < 0 && errno != EINTR)
            return err_sys(e, "waiting for a process");
        siginfo_t info;
        sigwaitinfo(&wanted, &info);
        if (info.si_signo != SIGCHLD) {
            kill(pid, SIGTERM);
            interrupted = true;
        }
    }
    if (interrupted)
        return err_set(e, EINTR, "interrupted");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
