// SPDX-License-Identifier: Apache-2.0
// Jobs that live on in a head with memory: see jobs_hold in job.h.
//
// Theory of operation. A captured guest holds its jobs, and of each stream what the host has not acknowledged. So while a capture is under way no read is
// sent (a read acknowledges what is before its offset), and the row of each live job is kept under the id of the head, with the offsets that were asked
// for last: whoever loads the head reads on from there.
#include "hostd/jobs/job_private.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct frozen_job {
    struct frozen_job *next; /* in space.frozen_jobs */
    struct job_row row;      /* `sandbox` is the head's id */
};

void job_row_freeze(struct space *s, const struct job_row *row)
{
    struct frozen_job *f = calloc(1, sizeof *f);
    if (!f)
        abort();
    f->row = *row;
    f->next = s->frozen_jobs;
    s->frozen_jobs = f;
}

static uint64_t asked_for(const struct job_stream *st)
{
    return st->reading ? st->asked : st->spool.end;
}

void jobs_hold(struct sandbox *sb, uint64_t head)
{
    struct err e = {0};
    sb->jobs_held = true;
    for (struct job *j = sb->jobs; j; j = j->next) {
        if (j->row.state != JOB_RUNNING || !j->attached)
            continue;
        struct job_row row = j->row;
        row.id = (int64_t)space_new_id();
        row.sandbox = (int64_t)head;
        row.node = sb->space->node_id;
        row.guest_id = (int64_t)job_guest_id(j);
        row.out_base = (int64_t)asked_for(&j->stream[JOB_STDOUT]);
        row.err_base = (int64_t)asked_for(&j->stream[JOB_STDERR]);
        if (db_save(sb->space->db, DB_JOBS, &row, &e) < 0)
            log_error("job '%s' will be missing from a head: %s", row.name, e.msg);
        else
            job_row_freeze(sb->space, &row);
    }
}

void jobs_release(struct sandbox *sb)
{
    sb->jobs_held = false;
    for (struct job *j = sb->jobs; j; j = j->next)
        job_pump(j);
}

static void forget_row(struct space *s, struct frozen_job **at)
{
    struct frozen_job *f = *at;
    *at = f->next;
    db_delete(s->db, DB_JOBS, f->row.id, NULL);
    free(f);
}

void job_rows_remove(struct space *s, uint64_t head)
{
    for (struct frozen_job **at = &s->frozen_jobs; *at;)
        if ((uint64_t)(*at)->row.sandbox == head)
            forget_row(s, at);
        else
            at = &(*at)->next;
}

void job_rows_forget(struct space *s, uint64_t head)
{
    for (struct frozen_job **at = &s->frozen_jobs, *f; (f = *at);)
        if ((uint64_t)f->row.sandbox == head) {
            *at = f->next;
            free(f);
        } else {
            at = &f->next;
        }
}

static void load_frozen(void *user, const void *row)
{
    job_row_freeze(user, row);
}

int job_rows_load(struct space *s, uint64_t head, struct err *e)
{
    job_rows_forget(s, head);
    return db_load_by(s->db, DB_JOBS, "sandbox", (int64_t)head, load_frozen, s, e);
}

void job_rows_prune(struct space *s)
{
    for (struct frozen_job **at = &s->frozen_jobs; *at;)
        if ((*at)->row.node == s->node_id && !snapshot_by_id(s, (uint64_t)(*at)->row.sandbox)) /* another's may be of a moment ago */
            forget_row(s, at);
        else
            at = &(*at)->next;
}

/* The sandbox's own job of which the row is an earlier moment. */
static struct job *same_job(const struct sandbox *sb, const struct job_row *row)
{
    struct job *j = sb->jobs;
    while (j && !((int64_t)job_guest_id(j) == row->guest_id && !strcmp(j->row.name, row->name) && j->row.started == row->started))
        j = j->next;
    return j;
}

void jobs_keep(struct sandbox *sb, uint64_t head)
{
    for (struct job *j = sb->jobs; j; j = j->next)
        j->kept = false;
    for (const struct frozen_job *f = sb->space->frozen_jobs; f; f = f->next) {
        struct job *j = (uint64_t)f->row.sandbox == head ? same_job(sb, &f->row) : NULL;
        if (j)
            j->kept = true;
    }
}

/* Back to where the head has it. */
static void resume(struct job *j, const struct job_row *row)
{
    const int64_t base[2] = {row->out_base, row->err_base};
    job_detach(j);
    j->row.state = JOB_RUNNING;
    j->kept = false;
    for (int o = 0; o < 2; o++) {
        char path[512];
        struct err e = {0};
        struct job_stream *st = &j->stream[o];
        st->ended = false;
        job_spool_path(j, (enum job_output)o, path);
        if (spool_cut(&st->spool, path, (uint64_t)base[o], &e) < 0)
            log_error("job '%s': %s", j->row.name, e.msg);
    }
    job_save(j);
}

static void bring(struct sandbox *sb, const struct job_row *from)
{
    struct err e = {0};
    struct job *j = same_job(sb, from);
    if (j) {
        resume(j, from);
        return;
    }
    char name[NAME_LEN_MAX + 1];
    str_copy(name, sizeof name, from->name);
    if (job_by_name(sb, name))
        snprintf(name, sizeof name, "%.40s-%012" PRIx64, from->name, (uint64_t)from->id);
    if (job_create(sb, name, &j, &e) < 0) {
        log_warn("job '%s' of a head is not listed: %s", name, e.msg);
        return;
    }
    struct job_row row = *from;
    row.id = j->row.id;
    row.sandbox = sb->row.id;
    row.object = sb->row.object;
    str_copy(row.name, sizeof row.name, name);
    j->row = row;
    resume(j, from);
    job_attach(j);
    job_stdin_eof(j); /* its writer is the other one's */
}

void jobs_bring(struct sandbox *sb, uint64_t head)
{
    for (const struct frozen_job *f = sb->space->frozen_jobs; f; f = f->next)
        if (head && (uint64_t)f->row.sandbox == head)
            bring(sb, &f->row);
    jobs_attach(sb);
}
