// SPDX-License-Identifier: Apache-2.0
// Starts a process: see spawn.h.
//
// Everything that reads the guest's root file system (users, working directory, the program) is
// done by the child, as it may hang while the file system is frozen; how that went comes back
// through a pipe that exec closes.
#include "guest/spawn.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "guest/trust.h"
#include "guest/user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATUS_FD     3
#define TTY_GROUP     5
#define FILES_DEFAULT 1024
#define FILES_HARD    524288
#define PATH_DEFAULT  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

extern char **environ;

/* ---- the record ---- */

int spawn_parse_size(const char *text, size_t len, unsigned short *columns, unsigned short *rows)
{
    char copy[16], *x;
    uint64_t c, r;
    while (len && (text[len - 1] == '\n' || !text[len - 1]))
        len--;
    if (len == 0 || len >= sizeof copy)
        return -EINVAL;
    memcpy(copy, text, len);
    copy[len] = 0;
    x = strchr(copy, 'x');
    if (!x)
        return -EINVAL;
    *x = 0;
    if (str_parse_u64(copy, 9999, &c) < 0 || str_parse_u64(x + 1, 9999, &r) < 0 || !c || !r)
        return -EINVAL;
    *columns = (unsigned short)c;
    *rows = (unsigned short)r;
    return 0;
}

static const char *value_of(const char *field, const char *key)
{
    size_t n = strlen(key);
    return !strncmp(field, key, n) && field[n] == '=' ? field + n + 1 : NULL;
}

static int parse_field(char *f, struct spawn *s, size_t *argc, size_t *envc)
{
    const char *v;
    if ((v = value_of(f, "arg"))) {
        s->argv[(*argc)++] = f + (v - f);
    } else if ((v = value_of(f, "env"))) {
        if (!strchr(v, '=') || *v == '=')
            return -EINVAL;
        s->env[(*envc)++] = f + (v - f);
    } else if ((v = value_of(f, "id"))) {
        return s->id != UINT64_MAX || str_parse_u64(v, SPAWN_ID_MAX, &s->id) < 0 ? -EINVAL : 0;
    } else if ((v = value_of(f, "user"))) {
        s->user = v;
    } else if ((v = value_of(f, "cwd"))) {
        s->cwd = v;
    } else if ((v = value_of(f, "tty"))) {
        s->terminal = true;
        return spawn_parse_size(v, strlen(v), &s->columns, &s->rows);
    } else {
        return -EINVAL;
    }
    return 0;
}

int spawn_parse(const void *record, size_t len, struct spawn *out)
{
    *out = (struct spawn){.id = UINT64_MAX, .user = "root"};
    if (len == 0 || len > SPAWN_RECORD_MAX || ((const char *)record)[len - 1])
        return -EINVAL;
    size_t fields = 0, argc = 0, envc = 0;
    for (size_t i = 0; i < len; i++)
        fields += !((const char *)record)[i];
    out->memory = malloc(2 * (fields + 1) * sizeof(char *) + len);
    if (!out->memory)
        return -ENOMEM;
    out->argv = out->memory;
    out->env = out->argv + fields + 1;
    char *text = memcpy(out->env + fields + 1, record, len);
    for (char *f = text; f < text + len; f += strlen(f) + 1) {
        int rc = parse_field(f, out, &argc, &envc);
        if (rc < 0)
            return rc;
    }
    out->argv[argc] = out->env[envc] = NULL;
    return argc && out->id != UINT64_MAX ? 0 : -EINVAL;
}

void spawn_finish(struct spawn *s)
{
    free(s->memory);
    s->memory = NULL;
}

/* ---- the child ---- */

static void reset_signals(void)
{
    sigset_t none;
    for (int i = 1; i < _NSIG; i++)
        signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Standard descriptors from `in`, `out`, `err`, the status pipe at STATUS_FD, all others closed. */
static int arrange(int in, int out, int err, int status)
{
    int fd[] = {in, out, err, status};
    for (int i = 0; i < 4; i++) { /* out of the way of the numbers to be filled */
        fd[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, STATUS_FD + 1);
        if (fd[i] < 0)
            return -errno;
    }
    for (int i = 0; i < 4; i++)
        if (dup3(fd[i], i, i == STATUS_FD ? O_CLOEXEC : 0) < 0 && !(fd[i] == i))
            return -errno;
    return syscall(SYS_close_range, STATUS_FD + 1, ~0u, 0) < 0 ? -errno : 0;
}

static void set_default(const char *name, const char *value)
{
    if (*value)
        setenv(name, value, 0);
}

static void set_environment(const struct spawn *s, const struct user *u)
{
    environ = s->env;
    set_default("PATH", PATH_DEFAULT);
    set_default("HOME", u->home);
    set_default("USER", u->name);
    set_default("LOGNAME", u->name);
    set_default("SHELL", u->shell);
    if (s->terminal)
        set_default("TERM", "xterm-256color");
    trust_set_environment();
}

static int become(const struct user *u, const struct spawn *s)
{
    struct rlimit files = {FILES_DEFAULT, FILES_HARD};
    setrlimit(RLIMIT_NOFILE, &files);
    if (s->terminal && fchown(STDIN_FILENO, u->uid, TTY_GROUP) < 0)
        return -errno;
    if (setgroups((size_t)u->n_groups, u->groups) < 0 || setresgid(u->gid, u->gid, u->gid) < 0 || setresuid(u->uid, u->uid, u->uid) < 0)
        return -errno;
    if (s->cwd)
        return chdir(s->cwd) < 0 ? -errno : 0;
    if (chdir(u->home) < 0 && chdir("/") < 0)
        return -errno;
    return 0;
}

static int child_run(const struct spawn *s, int in, int out, int err, int status)
{
    struct user u;
    umask(022);
    setsid();
    int rc = arrange(in, out, err, status);
    if (rc == 0 && s->terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0)
        rc = -errno;
    if (rc == 0)
        rc = user_find(s->user, &u);
    if (rc == 0)
        rc = become(&u, s);
    if (rc < 0)
        return rc;
    set_environment(s, &u);
    reset_signals();
    execvp(s->argv[0], s->argv);
    return -errno;
}

/* ---- the parent ---- */

static pid_t fork_into(int cgroup)
{
    struct clone_args a = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (__u64)(unsigned)cgroup};
    long pid = cgroup < 0 ? -1 : syscall(SYS_clone3, &a, sizeof a);
    return pid < 0 ? fork() : (pid_t)pid;
}

static void close_all(const int *fd, int n)
{
    for (int i = 0; i < n; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

static int set_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

enum { CHILD, PARENT };

/* fd[i][CHILD], fd[i][PARENT] for standard input, output and error. */
static int make_pipes(int fd[3][2])
{
    for (int i = 0; i < 3; i++) {
        int p[2];
        if (pipe2(p, O_CLOEXEC) < 0)
            return -errno;
        fd[i][CHILD] = p[i == 0 ? 0 : 1];
        fd[i][PARENT] = p[i == 0 ? 1 : 0];
        int rc = set_nonblock(fd[i][PARENT]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int make_terminal(const struct spawn *s, int pts, int fd[3][2])
{
    struct winsize size = {.ws_col = s->columns, .ws_row = s->rows};
    int unlock = 0;
    int master = openat(pts, "ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0)
        return -errno;
    fd[0][PARENT] = master;
    fd[1][PARENT] = fcntl(master, F_DUPFD_CLOEXEC, 0);
    if (fd[1][PARENT] < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0)
        return -errno;
    fd[0][CHILD] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return fd[0][CHILD] < 0 ? -errno : 0;
}

int spawn_start(const struct spawn *s, int cgroup, int pts, struct spawned *out)
{
    int fd[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, status[2] = {-1, -1};
    int rc = s->terminal ? make_terminal(s, pts, fd) : make_pipes(fd);
    if (rc == 0 && pipe2(status, O_CLOEXEC) < 0)
        rc = -errno;
    if (rc == 0)
        rc = set_nonblock(status[0]);
    pid_t pid = rc < 0 ? -1 : fork_into(cgroup);
    if (rc == 0 && pid < 0)
        rc = -errno;
    if (pid == 0) {
        int in = fd[0][CHILD];
        rc = child_run(s, in, s->terminal ? in : fd[1][CHILD], s->terminal ? in : fd[2][CHILD], status[1]);
        rc = -rc;
        (void)!write(STATUS_FD, &rc, sizeof rc);
        _exit(127);
    }
    for (int i = 0; i < 3; i++)
        close_all(&fd[i][CHILD], 1);
    close_all(&status[1], 1);
    if (rc < 0) {
        for (int i = 0; i < 3; i++)
            close_all(&fd[i][PARENT], 1);
        close_all(&status[0], 1);
        return rc;
    }
    *out = (struct spawned){pid, fd[0][PARENT], {fd[1][PARENT], fd[2][PARENT]}, status[0]};
    return 0;
}
