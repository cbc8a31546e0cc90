// SPDX-License-Identifier: Apache-2.0
// Each confinement in a child of its own, for there is no way back.
#include "isolate/isolate.h"

#include "unit/check.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/isolate-XXXXXX";

/* Its failed checks go to standard error; they make the child's status, and so fail the test. */
static void in_child(void (*fn)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        fn();
        fflush(stderr);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
}

static int error_of(long rc)
{
    return rc < 0 ? errno : 0;
}

static void path_in(char *out, size_t size, const char *sub, const char *name)
{
    snprintf(out, size, "%s/%s/%s", dir, sub, name);
}

static void privileges(void)
{
    struct err e = {0};
    CHECK_EQ(isolate_privileges(&e), 0);
    CHECK_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    CHECK_EQ(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
}

static void files(void)
{
    char readable[64], writable[64], other[64], made[64];
    if (syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 0) {
        fprintf(stderr, "no Landlock in this kernel: not tested\n");
        return;
    }
    struct err e = {0};
    path_in(readable, sizeof readable, "r", "f");
    path_in(writable, sizeof writable, "w", "f");
    path_in(other, sizeof other, "n", "f");
    path_in(made, sizeof made, "n", "made");
    int kept = open(other, O_RDONLY);
    char in[2][64];
    snprintf(in[0], sizeof in[0], "%s/r", dir);
    snprintf(in[1], sizeof in[1], "%s/w", dir);
    const struct isolate_path paths[] = {{in[0], ISOLATE_READS}, {in[1], ISOLATE_WRITES}, {"/not/there", ISOLATE_READS}};
    CHECK_EQ(isolate_privileges(&e), 0);
    CHECK_EQ(isolate_files(paths, 3, "this test", &e), 0);
    CHECK_EQ(error_of(open(readable, O_RDONLY)), 0);
    CHECK_EQ(error_of(open(readable, O_WRONLY)), EACCES);
    CHECK_EQ(error_of(open(writable, O_RDWR)), 0);
    CHECK_EQ(error_of(unlink(writable)), 0);
    CHECK_EQ(error_of(open(other, O_RDONLY)), EACCES);
    CHECK_EQ(error_of(open(made, O_WRONLY | O_CREAT, 0600)), EACCES);
    CHECK_EQ(error_of(unlink(other)), EACCES);
    char byte;
    CHECK_EQ(read(kept, &byte, 1), 1); /* what is open stays open */
}

static void some_calls_denied(void)
{
    static const int denied[] = {SCMP_SYS(execve), SCMP_SYS(unshare)};
    char path[] = "/bin/true";
    char *argv[] = {path, NULL};
    struct err e = {0};
    CHECK_EQ(isolate_privileges(&e), 0);
    CHECK_EQ(isolate_deny_calls(denied, 2, false, &e), 0);
    CHECK_EQ(error_of(execv(path, argv)), EPERM);
    CHECK_EQ(error_of(socket(AF_INET, SOCK_STREAM, 0)), EAFNOSUPPORT);
    CHECK_EQ(error_of(socket(AF_UNIX, SOCK_STREAM, 0)), 0);
    CHECK_EQ(error_of(mkdir("/tmp", 0700)), EEXIST); /* a call that is not named */
}

static void most_calls_denied(void)
{
    static const int allowed[] = {SCMP_SYS(write), SCMP_SYS(writev),     SCMP_SYS(exit_group),  SCMP_SYS(getpid),
                                  SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(sigaltstack), SCMP_SYS(munmap) /* a sanitizer's, at the end */};
    char path[] = "/bin/true";
    char *argv[] = {path, NULL};
    struct err e = {0};
    CHECK_EQ(isolate_privileges(&e), 0);
    CHECK_EQ(isolate_allow_calls(allowed, sizeof allowed / sizeof allowed[0], &e), 0);
    CHECK_EQ(error_of(execv(path, argv)), EPERM);
    CHECK_EQ(error_of(open("/dev/null", O_RDONLY)), EPERM);
    CHECK_EQ(error_of(kill(getpid(), 0)), EPERM);
    CHECK_EQ(error_of(socket(AF_INET, SOCK_STREAM, 0)), EAFNOSUPPORT);
    CHECK_EQ(error_of(socket(AF_UNIX, SOCK_STREAM, 0)), 0);
    CHECK_EQ(error_of(syscall(SYS_tgkill, 1, 1, 0)), EPERM);
    CHECK_EQ(error_of(syscall(SYS_tgkill, getpid(), getpid(), 0)), 0);
}

static void make(const char *sub)
{
    char path[64];
    path_in(path, sizeof path, sub, "");
    CHECK_EQ(mkdir(path, 0755), 0);
    path_in(path, sizeof path, sub, "f");
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("text", f) >= 0 && fclose(f) == 0);
}

int main(void)
{
    char command[64];
    CHECK(mkdtemp(dir) != NULL);
    make("r");
    make("w");
    make("n");
    in_child(privileges);
    in_child(files);
    in_child(some_calls_denied);
    in_child(most_calls_denied);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK_EQ(system(command), 0);
    return 0;
}
