// SPDX-License-Identifier: Apache-2.0
// Runs the guest's hooks: see hooks.h.
#include "guest/hooks.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/poll.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOOK_FILES      1024
#define HOOK_FILES_HARD 524288
#define HOOK_PATH       "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

bool hooks_maybe(void)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_CACHED};
    AUTO_CLOSE int fd = (int)syscall(SYS_openat2, AT_FDCWD, HOOKS_DIR, &how, sizeof how);
    return fd >= 0 || (errno != ENOENT && errno != ENOTDIR);
}

static void become_hook(const char *path, const struct hooks *h)
{
    char generation[64], hostname[96];
    char *argv[] = {strdup(path), NULL};
    char *env[] = {(char[]){HOOK_PATH}, (char[]){"HOME=/root"}, generation, hostname, NULL};
    struct rlimit files = {HOOK_FILES, HOOK_FILES_HARD};
    snprintf(generation, sizeof generation, "SPACE_GENERATION=%s", h->generation);
    snprintf(hostname, sizeof hostname, "SPACE_HOSTNAME=%s", h->hostname);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    umask(022);
    setrlimit(RLIMIT_NOFILE, &files);
    execve(path, argv, env);
    log_warn("run hook %s: %s", path, strerror(errno));
    _exit(127);
}

/* How it ended as wait(2) says, or -1 when it had to be killed. */
static int wait_for(pid_t pid, int msec)
{
    AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int status = -1;
    uint64_t due = poll_now() + (uint64_t)msec, now;
    while ((now = poll_now()) < due)
        if (poll(&p, 1, (int)(due - now)) != 0 && waitpid(pid, &status, WNOHANG) == pid)
            return status;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    return -1; /* whoever cannot be killed now is PID 1's to reap */
}

static void run_hook(const char *path, const struct hooks *h, uint64_t due)
{
    uint64_t now = poll_now();
    if (now >= due) {
        log_warn("hook %s is left out: the others took %d ms", path, HOOKS_TOTAL_MSEC);
        return;
    }
    int msec = due - now < HOOKS_ONE_MSEC ? (int)(due - now) : HOOKS_ONE_MSEC;
    pid_t pid = fork();
    if (pid == 0)
        become_hook(path, h);
    if (pid < 0) {
        log_warn("start hook %s: %s", path, strerror(errno));
        return;
    }
    int status = wait_for(pid, msec);
    if (status == -1)
        log_warn("hook %s was killed after %d ms", path, msec);
    else if (status != 0)
        log_warn("hook %s ended with status %#x", path, (unsigned)status);
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

void hooks_run(const struct hooks *h)
{
    struct dirent **names;
    uint64_t due = poll_now() + HOOKS_TOTAL_MSEC;
    int n = scandir(HOOKS_DIR, &names, is_visible, alphasort);
    for (int i = 0; i < n; i++) {
        char path[sizeof HOOKS_DIR + 256];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", HOOKS_DIR, names[i]->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111))
            run_hook(path, h, due);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}
