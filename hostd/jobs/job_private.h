// SPDX-License-Identifier: Apache-2.0
// Between the files of hostd/jobs.
#ifndef SPACE_HOSTD_JOB_PRIVATE_H
#define SPACE_HOSTD_JOB_PRIVATE_H

#include "9p/client.h"
#include "hostd/jobs/job.h"

/* Opens the job's files in the guest and keeps reading them; a guest that does not know the job has lost it. */
void job_attach(struct job *j);
/* Forgets the fids; reads in flight end without effect. */
void job_detach(struct job *j);
/* The end, once: saves, tells, wakes. */
void job_finish(struct job *j, enum job_state state, int64_t code);
/* Its number in the guest: that of the job it was forked from. */
uint64_t job_guest_id(const struct job *j);
void job_spool_path(const struct job *j, enum job_output o, char out[512]);
/* Reads on, after a hold. */
void job_pump(struct job *j);
/* Keeps a row whose `sandbox` is the id of a head. */
void job_row_freeze(struct space *s, const struct job_row *row);
/* Forgets those whose head is gone. */
void job_rows_prune(struct space *s);
void job_save(struct job *j);
void job_close_spools(struct job *j);
void job_wake_readers(struct job *j);
void job_arm_timeout(struct job *j);

#endif
