// SPDX-License-Identifier: Apache-2.0
// space-reaper COMMAND [ARGUMENT...]: starts a daemon that puts itself into the background, and takes in what it leaves behind.
//
// For hosts without systemd. libvirtd waits for the end of a QEMU until its process id is free, and QEMUs are children of process 1; in a container that one
// often looks for ended children only every second or two, and each `kill` takes as long. So this is the process they belong to (PR_SET_CHILD_SUBREAPER):
// it does nothing but wait for them. It stays until it has no children, also when the daemon ended before they did.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOLD_FD 3

static int fail(const char *what)
{
    fprintf(stderr, "space-reaper: %s: %s\n", what, strerror(errno));
    return 125;
}

static int status_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* In the background. Says how the command ended, when it has; then reaps. */
static _Noreturn void reap(char **argv, int told)
{
    int status;
    setsid();
    if (told != TOLD_FD && dup2(told, TOLD_FD) < 0)
        _exit(fail("start"));
    fcntl(TOLD_FD, F_SETFD, FD_CLOEXEC);
    close_range(TOLD_FD + 1, ~0u, 0); /* no lock of our caller's outlives it by us */
    prctl(PR_SET_NAME, "space-reaper", 0, 0, 0);
    pid_t command = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 ? -1 : fork();
    if (command == 0) {
        execvp(argv[0], argv);
        _exit(fail(argv[0]));
    }
    if (command < 0)
        _exit(fail("start"));
    for (pid_t pid; (pid = wait(&status)) > 0 || errno == EINTR;) {
        if (pid != command)
            continue;
        unsigned char code = (unsigned char)status_of(status);
        (void)!write(TOLD_FD, &code, 1);
        close_range(0, TOLD_FD, 0); /* whoever reads our output waits for its end */
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    int p[2];
    unsigned char code = 125;
    if (argc < 2) {
        fprintf(stderr, "usage: space-reaper COMMAND [ARGUMENT...]\n");
        return 125;
    }
    if (pipe(p) < 0)
        return fail("pipe");
    pid_t pid = fork();
    if (pid < 0)
        return fail("fork");
    if (pid == 0) {
        close(p[0]);
        reap(argv + 1, p[1]);
    }
    close(p[1]);
    return read(p[0], &code, 1) == 1 ? code : 125;
}
