// SPDX-License-Identifier: Apache-2.0
// A job's bytes: output pumped from the guest into the spool, input into the guest, and the wait for the end.
//
// Theory of operation. While attached, exactly one read a stream is in flight at the guest, at the spool's end: asking for offset N acknowledges what is
// before N, so a byte is in the guest's ring until it is in the spool, whatever is killed in between. `epoch` counts attachments: a callback of an older one is
// void.
#include "hostd/jobs/job_private.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_SIZE   (256u * 1024) /* half of what the guest keeps: the job fills one half while the other travels */
#define RETRY_MSEC  1000u         /* a full disk under the spool */
#define STDIN_CHUNK (32u * 1024)

struct pump {
    struct job *job;
    enum job_output output;
    unsigned epoch;
};

static void pump(struct job *j, enum job_output o);

bool job_stream_at_end(const struct job *j, enum job_output o, uint64_t offset)
{
    const struct job_stream *st = &j->stream[o];
    if (offset < st->spool.end)
        return false;
    if (st->ended || j->gone || j->row.state == JOB_LOST)
        return true;
    return job_ended(j) && offset >= (uint64_t)(o == JOB_STDOUT ? j->row.out_mark : j->row.err_mark);
}

static struct pump *pump_new(struct job *j, enum job_output o)
{
    struct pump *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    *p = (struct pump){job_ref(j), o, j->epoch};
    return p;
}

static void pump_free(struct pump *p)
{
    job_unref(p->job);
    free(p);
}

static bool stale(const struct pump *p)
{
    return p->job->gone || p->job->epoch != p->epoch || !p->job->attached;
}

static void retry_closed(uv_handle_t *h)
{
    struct pump *p = h->data;
    if (!stale(p))
        pump(p->job, p->output);
    pump_free(p);
    free(h);
}

static void retry_fired(uv_timer_t *t)
{
    uv_close((uv_handle_t *)t, retry_closed);
}

/* The spool's disk is full: the guest keeps the bytes and the job waits. */
static void pump_later(struct job *j, enum job_output o)
{
    uv_timer_t *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    t->data = pump_new(j, o);
    uv_timer_init(j->sandbox->space->loop, t);
    uv_timer_start(t, retry_fired, RETRY_MSEC, 0);
}

/* job_output is the job's: a stream may have what the other one does not use, but at least half. */
static uint64_t keep_limit(const struct job *j, enum job_output o)
{
    uint64_t limit = j->sandbox->space->config.job_output;
    const struct spool *other = &j->stream[o == JOB_STDOUT ? JOB_STDERR : JOB_STDOUT].spool;
    uint64_t used = other->end - other->base;
    return limit - (used < limit / 2 ? used : limit / 2);
}

static void output_arrived(void *user, int err, const struct p9_msg *r)
{
    struct pump *p = user;
    struct job *j = p->job;
    struct job_stream *st = &j->stream[p->output];
    struct err e = {0};
    if (!stale(p)) {
        st->reading = false;
        if (err == 0 && r->Rread.data.len) {
            if (spool_append(&st->spool, r->Rread.data.p, r->Rread.data.len, keep_limit(j, p->output), &e) < 0) {
                log_error("job '%s': %s", j->row.name, e.msg);
                pump_later(j, p->output);
            } else {
                pump(j, p->output);
            }
        } else if (err != -ECONNRESET) {
            if (err < 0)
                log_warn("job '%s': its output cannot be read any more: %s", j->row.name, strerror(-err));
            st->ended = true;
            job_close_spools(j);
        }
        wait_done_all(&st->readers, 0, NULL);
    }
    pump_free(p);
}

static void pump(struct job *j, enum job_output o)
{
    struct job_stream *st = &j->stream[o];
    struct guest *g = j->sandbox->guest;
    if (!j->attached || st->ended || st->reading || !g || j->sandbox->jobs_held)
        return;
    struct p9_msg m = {.type = P9_Tread};
    m.Tread.fid = st->fid;
    m.Tread.offset = st->asked = st->spool.end;
    m.Tread.count = READ_SIZE;
    st->reading = true;
    p9_client_call(guest_client(g, GUEST_CONTROL), &m, output_arrived, pump_new(j, o));
}

void job_pump(struct job *j)
{
    pump(j, JOB_STDOUT);
    pump(j, JOB_STDERR);
}

static void ended(void *user, int err, const struct p9_msg *r)
{
    struct pump *p = user;
    struct job *j = p->job;
    char line[96], kind[8];
    int code;
    int64_t out, errors;
    if (!stale(p) && err != -ECONNRESET) {
        size_t n = err == 0 && r->Rread.data.len < sizeof line ? r->Rread.data.len : 0;
        if (n)
            memcpy(line, r->Rread.data.p, n);
        line[n] = 0;
        if (sscanf(line, "%7s %d %" SCNd64 " %" SCNd64, kind, &code, &out, &errors) == 4 && out >= 0 && errors >= 0 && code >= 0 && code < 256 &&
            (!strcmp(kind, "exit") || !strcmp(kind, "signal"))) {
            j->row.out_mark = out;
            j->row.err_mark = errors;
            job_finish(j, !strcmp(kind, "exit") ? JOB_EXITED : JOB_SIGNALED, code);
        } else {
            job_finish(j, JOB_LOST, 0); /* an exit status is never guessed */
        }
    }
    pump_free(p);
}

static void opened(void *user, int err, const struct p9_msg *r)
{
    struct pump *p = user;
    struct job *j = p->job;
    (void)r;
    if (!stale(p) && err < 0 && err != -ECONNRESET) {
        log_warn("the guest does not know job '%s': %s", j->row.name, strerror(-err));
        job_detach(j);
        j->stream[0].ended = j->stream[1].ended = true;
        if (!job_ended(j))
            job_finish(j, JOB_LOST, 0);
        job_wake_readers(j);
    }
    pump_free(p);
}

static uint32_t open_file(struct job *j, const char *file, uint32_t flags)
{
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, job_guest_id(j));
    const char *path[] = {"jobs", id, file};
    return guest_open_file(j->sandbox->guest, path, 3, flags, opened, pump_new(j, JOB_STDOUT));
}

void job_attach(struct job *j)
{
    struct guest *g = j->sandbox->guest;
    if (j->attached || !g || !guest_ready(g, GUEST_CONTROL))
        return;
    j->attached = true;
    j->epoch++;
    j->row.state = JOB_RUNNING;
    j->stream[JOB_STDOUT].fid = open_file(j, "stdout", P9_RDONLY);
    j->stream[JOB_STDERR].fid = open_file(j, "stderr", P9_RDONLY);
    j->wait_fid = open_file(j, "wait", P9_RDONLY);
    j->stdin_fid = open_file(j, "stdin", P9_WRONLY);
    pump(j, JOB_STDOUT);
    pump(j, JOB_STDERR);
    struct p9_msg m = {.type = P9_Tread};
    m.Tread.fid = j->wait_fid;
    m.Tread.count = 96;
    p9_client_call(guest_client(g, GUEST_CONTROL), &m, ended, pump_new(j, JOB_STDOUT));
    job_arm_timeout(j);
    if (j->eof && j->stdin_opens == 0)
        job_stdin_eof(j);
}

void job_detach(struct job *j)
{
    struct guest *g = j->sandbox->guest;
    if (!j->attached)
        return;
    j->attached = false;
    j->stream[0].reading = j->stream[1].reading = false;
    if (!g)
        return;
    struct p9_client *c = guest_client(g, GUEST_CONTROL);
    uint32_t fids[] = {j->stream[0].fid, j->stream[1].fid, j->wait_fid, j->stdin_fid};
    for (size_t i = 0; i < 4; i++)
        p9_client_clunk(c, p9_client_generation(c), fids[i]);
}

/* ---- stdin ---- */

struct input {
    struct job *job;
    unsigned pending;
    int err;
    struct wait_list done;
};

static void input_taken(void *user, int err, const struct p9_msg *r)
{
    struct input *in = user;
    struct err e = {0};
    (void)r;
    if (err < 0 && in->err == 0)
        in->err = err == -ECONNRESET ? -EIO : err;
    if (--in->pending > 0)
        return;
    if (in->err < 0)
        err_set(&e, -in->err, "write to stdin of job '%s': %s", in->job->row.name, strerror(-in->err));
    wait_done_all(&in->done, in->err, &e);
    job_unref(in->job);
    free(in);
}

int job_stdin(struct job *j, const void *data, size_t len, struct waiter *w, struct err *e)
{
    if (j->row.state == JOB_NEW || j->row.state == JOB_STARTING)
        return err_set(e, EAGAIN, "job '%s' has not been started: write its cmd first", j->row.name);
    if (j->row.state == JOB_RUNNING && !j->sandbox->guest)
        return err_set(e, EAGAIN, "job '%s' takes no input now: its sandbox is %s", j->row.name, state_name(sandbox_state(j->sandbox)));
    if (job_ended(j) || !j->attached)
        return err_set(e, EPIPE, "job '%s' does not take input any more", j->row.name);
    struct input *in = calloc(1, sizeof *in);
    if (!in)
        abort();
    in->job = job_ref(j);
    if (w)
        wait_add(&in->done, w);
    in->pending = (unsigned)((len + STDIN_CHUNK - 1) / STDIN_CHUNK);
    struct p9_client *c = guest_client(j->sandbox->guest, GUEST_CONTROL);
    for (size_t at = 0; at < len; at += STDIN_CHUNK) {
        struct p9_msg m = {.type = P9_Twrite};
        m.Twrite.fid = j->stdin_fid;
        m.Twrite.data.p = (const char *)data + at;
        m.Twrite.data.len = (uint32_t)(len - at < STDIN_CHUNK ? len - at : STDIN_CHUNK);
        p9_client_call(c, &m, input_taken, in);
    }
    return 0;
}

static void eof_sent(void *user, int err, const struct p9_msg *r)
{
    (void)user;
    (void)err;
    (void)r;
}

void job_stdin_eof(struct job *j)
{
    char id[24];
    j->eof = !job_ended(j) && (!j->attached || !j->sandbox->guest); /* told once it is attached again */
    if (job_ended(j) || j->eof)
        return;
    snprintf(id, sizeof id, "%" PRIu64, job_guest_id(j));
    const char *path[] = {"jobs", id, "eof"};
    guest_put(j->sandbox->guest, path, 3, "1", 1, eof_sent, NULL);
}
