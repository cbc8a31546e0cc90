// SPDX-License-Identifier: Apache-2.0
// Jobs: processes that the host started, with their streams, until it forgets them.
#ifndef SPACE_GUEST_JOB_H
#define SPACE_GUEST_JOB_H

#include "base/hmap.h"
#include "guest/input.h"
#include "guest/root.h"
#include "guest/stream.h"

#include <sys/types.h>

#define JOBS_MAX 1024

enum job_state { JOB_STARTING, JOB_RUNNING, JOB_ENDED, JOB_GONE };

struct jobs {
    struct poll_loop *loop;
    int cgroup, pts, memory; /* as in struct root; borrowed */
    struct hmap by_id, by_pid;
    struct p9_link all;    /* in the order of their start */
    struct p9_link doomed; /* cgroups to be removed when they are empty */
    unsigned running;
    struct stream_budget rings;
};

struct job {
    struct hmap_node by_id, by_pid;
    struct p9_link all;
    struct jobs *jobs;
    uint64_t id;
    pid_t pid;
    unsigned refs;
    enum job_state state;
    bool terminal, reaped, marked;
    int status;       /* as wait(2) gives it, once reaped */
    uint64_t mark[2]; /* once marked */
    struct stream output[2];
    struct input input;
    struct p9_link waits;       /* Treads of `wait` */
    struct p9_request *starter; /* the Twrite to be answered when exec went well or not; NULL when flushed */
    struct poll_watch exec;
};

void jobs_init(struct jobs *js, struct poll_loop *l, const struct root *root);

/* Starts what the record in the Twrite `r` says; answers it. A flush of it does not stop the job.
 */
void jobs_spawn(struct jobs *js, struct p9_request *r);

/* A job that started, or NULL. Borrowed; job_ref to keep. */
struct job *jobs_find(struct jobs *js, uint64_t id);

/* The end of a process of any kind; tells whether it was a job's first. */
bool jobs_reaped(struct jobs *js, pid_t pid, int status);

/* Call after processes were reaped. */
void jobs_sweep(struct jobs *js);

struct job *job_ref(struct job *j);
void job_unref(struct job *j);

/* KILLs what is left of it; open files of it see their end. */
void job_forget(struct job *j);
/* 0, -EINVAL, -ESRCH. */
int job_signal(struct job *j, int sig);
/* 0, -ENOTTY. */
int job_resize(struct job *j, unsigned short columns, unsigned short rows);
/* Answers a Tread of `wait`, now or later. */
void job_wait(struct job *j, struct p9_request *r);

#endif
