// SPDX-License-Identifier: Apache-2.0
// Jobs: see job.h.
#include "spacectl/job.h"

#include "base/cleanup.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* The sentence of a failure on a file of the job. */
static int job_fail(const struct job *job, int code, const char *what, const char *name, struct err *e)
{
    char path[TREE_PATH_MAX];
    int rc = tree_path(path, e, "%s/%s", job->path, name);
    return rc < 0 ? rc : tree_fail(job->tree, code, what, path, e);
}

/* An open by the mount's path, for when the descriptors belong to a mount or a server that is gone.
 * -1 with errno. */
static int open_anew(const struct job *job, const char *name, int flags)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s/%s", job->tree->path, job->path, name);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, flags | O_CLOEXEC);
}

int job_open(const struct job *job, const char *name, int flags, struct err *e)
{
    int fd = openat(job->dir, name, flags | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTCONN || errno == ESTALE))
        fd = open_anew(job, name, flags);
    return fd < 0 ? job_fail(job, errno, "open", name, e) : fd;
}

static int job_write(const struct job *job, const char *name, const void *data, size_t len, struct err *e)
{
    AUTO_CLOSE int fd = job_open(job, name, O_WRONLY, e);
    if (fd < 0)
        return fd;
    ssize_t n = write(fd, data, len);
    if (n < 0)
        return job_fail(job, errno, "write", name, e);
    if ((size_t)n != len)
        return err_set(e, EIO, "only %zd of %zu bytes were taken by %s/%s", n, len, job->path, name);
    return 0;
}

static int write_if(const struct job *job, const char *name, const char *value, struct err *e)
{
    return value ? job_write(job, name, value, strlen(value), e) : 0;
}

int job_create(const struct tree *t, const struct job_spec *spec, struct job *out, struct err *e)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    *out = (struct job){.tree = t, .dir = -1};
    int rc = tree_path(out->path, e, "proc/%s/ctl-%d-%llx", spec->sandbox, (int)getpid(),
                       (unsigned long long)ts.tv_sec * 1000000000 + (unsigned long long)ts.tv_nsec);
    if (rc >= 0)
        rc = tree_mkdir(t, out->path, e);
    if (rc < 0)
        return rc;
    out->dir = openat(t->fd, out->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (out->dir < 0)
        rc = tree_fail(t, errno, "open", out->path, e);
    if (rc >= 0)
        rc = write_if(out, "env", spec->env, e);
    if (rc >= 0)
        rc = write_if(out, "cwd", spec->cwd, e);
    if (rc >= 0)
        rc = write_if(out, "user", spec->user, e);
    if (rc >= 0)
        rc = write_if(out, "timeout", spec->timeout, e);
    if (rc >= 0)
        rc = write_if(out, "tty", spec->tty, e);
    if (rc < 0)
        job_remove(out);
    return rc;
}

/* A NUL, then the arguments as NUL-ended strings. */
int job_start(struct job *job, const struct job_spec *spec, struct err *e)
{
    size_t size = 1, pos = 1;
    for (int i = 0; spec->argv[i]; i++)
        size += strlen(spec->argv[i]) + 1;
    if (size > TREE_VALUE_MAX)
        return err_set(e, E2BIG, "the command is longer than %d bytes", TREE_VALUE_MAX);
    AUTO_FREE char *cmd = calloc(1, size);
    if (!cmd)
        return err_set(e, ENOMEM, "out of memory");
    for (int i = 0; spec->argv[i]; i++) {
        size_t len = strlen(spec->argv[i]) + 1;
        memcpy(cmd + pos, spec->argv[i], len);
        pos += len;
    }
    return job_write(job, "cmd", cmd, size, e);
}

int job_signal(const struct job *job, int signal)
{
    char line[16];
    struct err ignored;
    int n = snprintf(line, sizeof line, "%d\n", signal);
    return job_write(job, "signal", line, (size_t)n, &ignored);
}

int job_resize(const struct job *job, unsigned columns, unsigned rows)
{
    char line[32];
    struct err ignored;
    int n = snprintf(line, sizeof line, "%ux%u\n", columns, rows);
    return job_write(job, "tty", line, (size_t)n, &ignored);
}

void job_remove(struct job *job)
{
    char path[PATH_MAX];
    if (unlinkat(job->tree->fd, job->path, AT_REMOVEDIR) < 0 && (errno == ENOTCONN || errno == ESTALE) &&
        (size_t)snprintf(path, sizeof path, "%s/%s", job->tree->path, job->path) < sizeof path)
        rmdir(path);
    if (job->dir >= 0)
        close(job->dir);
    job->dir = -1;
}

static ssize_t stream_try(struct stream *s, void *buf, size_t size)
{
    if (s->fd < 0) {
        int flags = O_RDONLY | O_CLOEXEC;
        s->fd = s->retried ? open_anew(s->job, s->name, flags) : openat(s->job->dir, s->name, flags);
        if (s->fd < 0)
            return -errno;
    }
    ssize_t n = pread(s->fd, buf, size, s->offset);
    return n < 0 ? -errno : n;
}

ssize_t stream_read(struct stream *s, void *buf, size_t size)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    uint64_t deadline = now_ms() + STREAM_PATIENCE_MS;
    for (;;) {
        ssize_t n = stream_try(s, buf, size);
        if (n >= 0)
            s->offset += n;
        if (n == -EINTR)
            continue;
        if (n >= 0 || n == -ENOENT)
            return n;
        stream_close(s);
        s->retried = true;
        if (now_ms() >= deadline)
            return n;
        nanosleep(&pause, NULL);
    }
}

void stream_close(struct stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

int job_end_parse(const char *line, struct job_end *out)
{
    uint64_t number;
    if (!strcmp(line, "lost")) {
        *out = (struct job_end){.kind = JOB_LOST};
        return 0;
    }
    bool exited = !strncmp(line, "exit ", 5), signaled = !strncmp(line, "signal ", 7);
    if (!(exited || signaled) || str_parse_u64(line + (exited ? 5 : 7), 255, &number) < 0)
        return -EPROTO;
    *out = (struct job_end){.kind = exited ? JOB_EXITED : JOB_SIGNALED, .number = (int)number};
    return 0;
}

int job_wait(const struct job *job, struct job_end *out, struct err *e)
{
    struct stream s = {.job = job, .name = "wait", .fd = -1};
    char line[64];
    ssize_t n = stream_read(&s, line, sizeof line - 1);
    stream_close(&s);
    if (n == -ENOENT) {
        *out = (struct job_end){.kind = JOB_LOST};
        return 0;
    }
    if (n < 0)
        return job_fail(job, (int)-n, "read", "wait", e);
    line[n] = 0;
    if (job_end_parse(str_trim(line), out) < 0)
        return err_set(e, EPROTO, "%s/wait said \"%s\"", job->path, line);
    return 0;
}
