// SPDX-License-Identifier: Apache-2.0
// Jobs: processes in a guest, whose output the host spools. Output and status outlive the process, the machine and space-hostd; only rmdir ends them.
#ifndef SPACE_HOSTD_JOB_H
#define SPACE_HOSTD_JOB_H

#include "hostd/jobs/spool.h"
#include "hostd/object.h"

/* Stored: never renumber. */
enum job_state { JOB_NEW = 1, JOB_STARTING = 2, JOB_RUNNING = 3, JOB_EXITED = 4, JOB_SIGNALED = 5, JOB_LOST = 6 };

enum job_output { JOB_STDOUT = 0, JOB_STDERR = 1 };

struct job_stream {
    struct spool spool;
    bool ended;     /* the guest's stream is at its end: no more bytes will come */
    bool reading;   /* a read at the guest is in flight */
    uint64_t asked; /* its offset: what is before it the guest has forgotten */
    uint32_t fid;
    struct wait_list readers;
};

struct job {
    struct job *next; /* in sandbox.jobs, newest first */
    unsigned refs;
    struct sandbox *sandbox;
    struct job_row row;
    bool gone;
    bool kept; /* spared by jobs_lost: the head that is being loaded has it */
    struct job_stream stream[2];
    struct wait_list waiters; /* of the end */
    bool spawning;            /* the guest was asked to start it and has not answered: its files may not be there yet */
    bool attached;            /* its files in the guest are open */
    unsigned epoch;           /* counts attachments */
    uint32_t wait_fid, stdin_fid;
    unsigned stdin_opens; /* writers that have stdin open: the last one's close is its end, */
    bool eof;             /* which the guest is told when it is there again */
    uv_timer_t *timeout;
};

struct job *job_ref(struct job *j);
void job_unref(struct job *j);
struct job *job_by_name(const struct sandbox *sb, const char *name);
struct job *job_by_id(const struct sandbox *sb, uint64_t id);

/* mkdir proc/NAME/JOB. -EEXIST, -EINVAL, -EDQUOT. */
int job_create(struct sandbox *sb, const char *name, struct job **out, struct err *e);
/* rmdir: kills what runs, forgets everything. */
void job_destroy(struct job *j);

/* Sets env, cwd, user, tty or timeout (by `what`) of a new job; tty of a running one resizes. */
int job_set(struct job *j, const char *what, const char *text, struct err *e);

/* `cmd`: a shell line, or NUL and an argument vector of NUL-ended strings. The sandbox must be running. `w` ends when the process runs. */
int job_start(struct job *j, const void *cmd, size_t len, struct waiter *w, struct err *e);

/* Its number, or -EINVAL. */
int job_signal_check(const char *text, struct err *e);
/* A signal by name (with or without SIG) or number. -EINVAL, -ESRCH when it does not run. `w` ends when it was sent. */
int job_signal(struct job *j, const char *text, struct waiter *w, struct err *e);

/* Bytes to stdin; `w` ends when the guest took them all. The data is copied. -EPIPE when it ended or does not run. */
int job_stdin(struct job *j, const void *data, size_t len, struct waiter *w, struct err *e);
/* Closes stdin behind everything written before, now or when the guest is attached again. */
void job_stdin_eof(struct job *j);

/* "new", "running", "exit N", "signal N", "lost". Returns out. */
char *job_status(const struct job *j, char out[32]);
bool job_ended(const struct job *j);
/* Spooled output from `offset` (not before the spool's base). Bytes, 0 at the end of what is there, -errno. */
long job_read(const struct job *j, enum job_output o, uint64_t offset, void *out, size_t len);
/* May a reader at `offset` of the stream be told that it is at the end? */
bool job_stream_at_end(const struct job *j, enum job_output o, uint64_t offset);

/* The guest is connected (again): continues to read the output of jobs that run there. */
void jobs_attach(struct sandbox *sb);
/* The connection went: reads stop, nothing is lost yet. */
void jobs_detach(struct sandbox *sb);
/* The machine is gone: what ran is lost. */
void jobs_lost(struct sandbox *sb);
/*
 * A capture with memory: from hold to release nothing is asked of the guest's streams, so that the captured guest still has what comes next; the live jobs
 * are recorded under the id of the head. jobs_bring makes them jobs of the sandbox into which that head was loaded: a job that it has already goes on (a roll
 * back), the others are new. job_rows_remove goes with the head.
 */
void jobs_hold(struct sandbox *sb, uint64_t head);
void jobs_release(struct sandbox *sb);
void jobs_bring(struct sandbox *sb, uint64_t head);
/* Marks the jobs that go on in that head: jobs_lost spares them until jobs_bring. */
void jobs_keep(struct sandbox *sb, uint64_t head);
void job_rows_remove(struct space *s, uint64_t head);
/* The sandbox goes: removes all of its jobs. */
void jobs_forget(struct sandbox *sb);
/* The sandbox goes to another node: its jobs are not in memory any more, and their output here goes. */
void jobs_leave(struct sandbox *sb);
/* It will not come back. */
void jobs_forget_away(struct sandbox *sb);
/* It came from one: its jobs are read from the database. What they had printed is counted as dropped. */
int jobs_arrive(struct sandbox *sb, struct err *e);
/* Saves them, with how much each has printed: for who has the sandbox next. */
void jobs_save(struct sandbox *sb);
/* The rows of a head that another node captured, from the database into memory; and out of it. */
int job_rows_load(struct space *s, uint64_t head, struct err *e);
void job_rows_forget(struct space *s, uint64_t head);
int jobs_load(struct space *s, struct err *e);

#endif
