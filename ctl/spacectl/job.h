// SPDX-License-Identifier: Apache-2.0
// A process in a sandbox, as a directory under proc/: made, started, waited for, removed.
#ifndef SPACE_CTL_JOB_H
#define SPACE_CTL_JOB_H

#include "spacectl/tree.h"

#include <stdbool.h>
#include <sys/types.h>

struct job_spec {
    const char *sandbox;
    char *const *argv;                      /* the program and its arguments, NULL-ended */
    const char *env;                        /* what the `env` file gets, or NULL */
    const char *cwd, *user, *timeout, *tty; /* as the files of that name take them, or NULL */
};

struct job {
    const struct tree *tree;
    int dir;                  /* its directory: later opens need not look up the whole path again */
    char path[TREE_PATH_MAX]; /* proc/SANDBOX/JOB */
};

enum job_end_kind { JOB_EXITED, JOB_SIGNALED, JOB_LOST };

struct job_end {
    enum job_end_kind kind;
    int number; /* exit status or signal */
};

/* Makes the directory under a name of its own and writes everything but the command. 0 or -errno
 * (nothing is left then). */
int job_create(const struct tree *t, const struct job_spec *spec, struct job *out, struct err *e);

/* Writes `cmd`: returns when the program runs, which may first have to wake or boot the sandbox. 0
 * or -errno. */
int job_start(struct job *job, const struct job_spec *spec, struct err *e);

/* Sends a signal. 0 or -errno. Async-signal-unsafe, but any thread may. */
int job_signal(const struct job *job, int signal);

/* Writes a new size to `tty`. 0 or -errno. */
int job_resize(const struct job *job, unsigned columns, unsigned rows);

/* Opens one of its files. The descriptor or -errno. */
int job_open(const struct job *job, const char *name, int flags, struct err *e);

/* Ends it if it runs, and removes it with its output. */
void job_remove(struct job *job);

/*
 * A file of a job, read from a given offset on. The platform keeps the output, so a read that fails
 * because a daemon is being restarted is tried again on a new descriptor, for up to
 * STREAM_PATIENCE_MS without progress.
 */
#define STREAM_PATIENCE_MS 15000

struct stream {
    const struct job *job;
    const char *name; /* stdout, stderr, wait */
    int fd;           /* -1: not open yet */
    off_t offset;
    bool retried; /* the first descriptor failed */
};

/* Bytes, 0 at the end, -ENOENT (the job is gone) or another -errno. */
ssize_t stream_read(struct stream *s, void *buf, size_t size);
void stream_close(struct stream *s);

/* Waits for the end. 0 or -errno; a job that has vanished is JOB_LOST. */
int job_wait(const struct job *job, struct job_end *out, struct err *e);

/* Reads "exit 3", "signal 9" or "lost". 0 or -EPROTO. */
int job_end_parse(const char *line, struct job_end *out);

#endif
