// SPDX-License-Identifier: Apache-2.0
// Jobs as objects: making, starting, signalling, ending; job_io.c moves their bytes.
#include "hostd/jobs/job_private.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/guest/guest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct job *job_ref(struct job *j)
{
    j->refs++;
    return j;
}

void job_unref(struct job *j)
{
    if (!j || --j->refs > 0)
        return;
    for (int i = 0; i < 2; i++)
        spool_close(&j->stream[i].spool);
    sandbox_unref(j->sandbox);
    free(j);
}

uint64_t job_guest_id(const struct job *j)
{
    return (uint64_t)(j->row.guest_id ? j->row.guest_id : j->row.id);
}

struct job *job_by_name(const struct sandbox *sb, const char *name)
{
    struct job *j = sb->jobs;
    while (j && strcmp(j->row.name, name) != 0)
        j = j->next;
    return j;
}

struct job *job_by_id(const struct sandbox *sb, uint64_t id)
{
    struct job *j = sb->jobs;
    while (j && (uint64_t)j->row.id != id)
        j = j->next;
    return j;
}

void job_spool_path(const struct job *j, enum job_output o, char out[512])
{
    snprintf(out, 512, "%.255s/spool/%012" PRIx64 ".%s", j->sandbox->space->config.state, (uint64_t)j->row.id, o == JOB_STDOUT ? "out" : "err");
}

static struct job *job_add(struct sandbox *sb, const struct job_row *row)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        abort();
    j->refs = 1;
    j->sandbox = sandbox_ref(sb);
    j->row = *row;
    j->stream[0].spool.fd = j->stream[1].spool.fd = -1;
    j->next = sb->jobs;
    sb->jobs = j;
    sb->job_count++;
    return j;
}

static int open_spools(struct job *j, struct err *e)
{
    char path[512];
    job_spool_path(j, JOB_STDOUT, path);
    int rc = spool_open(&j->stream[JOB_STDOUT].spool, path, (uint64_t)j->row.out_base, e);
    job_spool_path(j, JOB_STDERR, path);
    return rc < 0 ? rc : spool_open(&j->stream[JOB_STDERR].spool, path, (uint64_t)j->row.err_base, e);
}

long job_read(const struct job *j, enum job_output o, uint64_t offset, void *out, size_t len)
{
    char path[512];
    job_spool_path(j, o, path);
    return spool_read(&j->stream[o].spool, path, offset, out, len);
}

/* A job that ended and whose streams ended keeps no descriptors: there may be thousands. */
void job_close_spools(struct job *j)
{
    for (int i = 0; i < 2; i++)
        if (job_ended(j) && j->stream[i].ended)
            spool_close(&j->stream[i].spool);
}

void job_save(struct job *j)
{
    struct err e = {0};
    j->row.out_base = (int64_t)j->stream[JOB_STDOUT].spool.base;
    j->row.err_base = (int64_t)j->stream[JOB_STDERR].spool.base;
    j->row.out_end = (int64_t)j->stream[JOB_STDOUT].spool.end;
    j->row.err_end = (int64_t)j->stream[JOB_STDERR].spool.end;
    j->row.node = j->sandbox->space->node_id;
    if (!j->gone && db_save(j->sandbox->space->db, DB_JOBS, &j->row, &e) < 0)
        log_error("job '%s': %s", j->row.name, e.msg);
}

int job_create(struct sandbox *sb, const char *name, struct job **out, struct err *e)
{
    struct space *s = sb->space;
    if (!str_name_valid(name, strlen(name)))
        return err_set(e, EINVAL, "'%.80s' is no name: 1 to 64 of letters, digits, '.', '_' and '-', the first a letter or digit", name);
    if (job_by_name(sb, name))
        return err_set(e, EEXIST, "sandbox '%s' has a job '%s' already", sb->row.name, name);
    if (sb->job_count >= s->config.max_jobs)
        return err_set(e, EDQUOT, "sandbox '%s' has %u jobs, as many as max_jobs allows: rmdir those that ended", sb->row.name, sb->job_count);
    struct job_row row = {.id = (int64_t)space_new_id(), .sandbox = sb->row.id, .created = space_now(), .state = JOB_NEW, .node = s->node_id};
    str_copy(row.name, sizeof row.name, name);
    struct job *j = job_add(sb, &row);
    int rc = open_spools(j, e);
    if (rc == 0)
        rc = db_save(s->db, DB_JOBS, &row, e);
    if (rc < 0) {
        job_destroy(j);
        return rc;
    }
    *out = j;
    return 0;
}

static void nothing(void *user, int err, const struct p9_msg *r)
{
    (void)user;
    (void)err;
    (void)r;
}

/* One number or line to a file of the job in the guest. */
static void tell_guest(struct job *j, const char *file, const char *text, p9_callback *cb, void *user)
{
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, job_guest_id(j));
    const char *path[] = {"jobs", id, file};
    guest_put(j->sandbox->guest, path, 3, text, (uint32_t)strlen(text), cb, user);
}

static void remove_from_guest(struct job *j)
{
    struct guest *g = j->sandbox->guest;
    if (g && guest_ready(g, GUEST_CONTROL))
        guest_job_remove(g, job_guest_id(j));
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

static void stop_timeout(struct job *j)
{
    if (j->timeout)
        uv_close((uv_handle_t *)j->timeout, timer_closed);
    j->timeout = NULL;
}

void job_wake_readers(struct job *j)
{
    for (int i = 0; i < 2; i++)
        wait_done_all(&j->stream[i].readers, 0, NULL);
}

void job_finish(struct job *j, enum job_state state, int64_t code)
{
    struct event_scope scope = sandbox_scope(j->sandbox);
    char status[32];
    j->row.state = state;
    j->row.code = code;
    stop_timeout(j);
    if (!j->gone) {
        db_begin(j->sandbox->space->db);
        job_save(j);
        event_emit(j->sandbox->space, &scope, "job", (uint64_t)j->row.sandbox, j->sandbox->row.name, ",\"job\":\"%s\",\"status\":\"%s\"", j->row.name,
                   job_status(j, status));
        db_commit(j->sandbox->space->db, NULL);
    }
    job_close_spools(j);
    wait_done_all(&j->waiters, 0, NULL);
    job_wake_readers(j);
}

void job_destroy(struct job *j)
{
    struct sandbox *sb = j->sandbox;
    char path[512];
    struct job **p = &sb->jobs;
    while (*p != j)
        p = &(*p)->next;
    *p = j->next;
    sb->job_count--;
    if (j->row.state == JOB_STARTING || j->row.state == JOB_RUNNING || j->attached)
        remove_from_guest(j);
    job_detach(j);
    db_delete(sb->space->db, DB_JOBS, j->row.id, NULL);
    for (int o = 0; o < 2; o++) {
        job_spool_path(j, (enum job_output)o, path);
        unlink(path);
    }
    j->gone = true;
    if (!job_ended(j) && j->row.state != JOB_NEW)
        job_finish(j, JOB_LOST, 0);
    stop_timeout(j);
    wait_done_all(&j->waiters, 0, NULL);
    job_wake_readers(j);
    job_unref(j);
}

bool job_ended(const struct job *j)
{
    return j->row.state >= JOB_EXITED;
}

char *job_status(const struct job *j, char out[32])
{
    switch (j->row.state) {
    case JOB_NEW: return strcpy(out, "new");
    case JOB_STARTING:
    case JOB_RUNNING: return strcpy(out, "running");
    case JOB_EXITED: snprintf(out, 32, "exit %d", (int)j->row.code); return out;
    case JOB_SIGNALED: snprintf(out, 32, "signal %d", (int)j->row.code); return out;
    default: return strcpy(out, "lost");
    }
}

/* ---- attributes ---- */

static int check_tty(const char *text)
{
    unsigned columns, rows;
    char rest;
    return sscanf(text, "%5ux%5u%c", &columns, &rows, &rest) == 2 && columns > 0 && rows > 0 && columns < 65536 && rows < 65536 ? 0 : -EINVAL;
}

static int set_text(char *field, size_t size, const char *text, const char *what, struct err *e)
{
    if (strlen(text) >= size)
        return err_set(e, E2BIG, "%s is longer than %zu bytes", what, size - 1);
    str_copy(field, size, text);
    return 0;
}

static int check_env(const char *text, struct err *e)
{
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        const char *equals = memchr(line, '=', len);
        if (len && (!equals || equals == line))
            return err_set(e, EINVAL, "env takes NAME=VALUE lines");
        line += len + (line[len] == '\n');
    }
    return 0;
}

int job_set(struct job *j, const char *what, const char *text, struct err *e)
{
    uint64_t seconds = 0;
    int rc;
    if (!strcmp(what, "tty") && text[0] && check_tty(text) < 0)
        return err_set(e, EINVAL, "tty takes COLUMNSxROWS, such as 80x24");
    if (!strcmp(what, "tty") && j->row.state == JOB_RUNNING && j->row.tty[0] && j->sandbox->guest)
        tell_guest(j, "tty", text, nothing, NULL);
    else if (j->row.state != JOB_NEW)
        return err_set(e, EBUSY, "job '%s' has been started: %s cannot be changed", j->row.name, what);
    if (!strcmp(what, "tty"))
        rc = set_text(j->row.tty, sizeof j->row.tty, text, what, e);
    else if (!strcmp(what, "cwd"))
        rc = set_text(j->row.cwd, sizeof j->row.cwd, text, what, e);
    else if (!strcmp(what, "user"))
        rc = set_text(j->row.user, sizeof j->row.user, text, what, e);
    else if (!strcmp(what, "env"))
        rc = check_env(text, e) < 0 ? -EINVAL : set_text(j->row.env, sizeof j->row.env, text, what, e);
    else
        rc = str_parse_duration(text, &seconds) < 0 ? err_set(e, EINVAL, "timeout takes a time such as 90s, 5m or 1h, 0 for none") : 0;
    if (rc < 0)
        return rc;
    if (!strcmp(what, "timeout"))
        j->row.timeout = (int64_t)seconds;
    job_save(j);
    return 0;
}

/* ---- starting ---- */

struct record {
    char *p;
    size_t len;
};

static void record_add(struct record *r, const char *key, const char *value, size_t len)
{
    size_t klen = strlen(key);
    r->p = realloc(r->p, r->len + klen + len + 2);
    if (!r->p)
        abort();
    memcpy(r->p + r->len, key, klen);
    r->p[r->len + klen] = '=';
    memcpy(r->p + r->len + klen + 1, value, len);
    r->p[r->len + klen + 1 + len] = 0;
    r->len += klen + len + 2;
}

static void record_command(struct record *r, const char *cmd, size_t len)
{
    if (len && cmd[0] == 0) {
        for (size_t i = 1; i < len; i += strnlen(cmd + i, len - i) + 1)
            record_add(r, "arg", cmd + i, strnlen(cmd + i, len - i));
        return;
    }
    while (len && cmd[len - 1] == '\n')
        len--;
    record_add(r, "arg", "/bin/sh", 7);
    record_add(r, "arg", "-c", 2);
    record_add(r, "arg", cmd, strnlen(cmd, len));
}

static struct record record_of(const struct job *j, const char *cmd, size_t len)
{
    struct record r = {0};
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, job_guest_id(j));
    record_add(&r, "id", id, strlen(id));
    if (j->row.user[0])
        record_add(&r, "user", j->row.user, strlen(j->row.user));
    if (j->row.cwd[0])
        record_add(&r, "cwd", j->row.cwd, strlen(j->row.cwd));
    if (j->row.tty[0])
        record_add(&r, "tty", j->row.tty, strlen(j->row.tty));
    for (const char *line = j->row.env; *line;) {
        size_t n = strcspn(line, "\n");
        if (n)
            record_add(&r, "env", line, n);
        line += n + (line[n] == '\n');
    }
    record_command(&r, cmd, len);
    return r;
}

struct start {
    struct job *job;
    struct wait_list done;
};

static void timed_out(uv_timer_t *t)
{
    struct job *j = t->data;
    stop_timeout(j);
    if (j->row.state == JOB_RUNNING && j->sandbox->guest)
        tell_guest(j, "signal", "9", nothing, NULL);
}

void job_arm_timeout(struct job *j)
{
    if (!j->row.timeout || j->timeout)
        return;
    int64_t left = j->row.timeout * 1000 - (space_now() - j->row.started) / 1000000;
    j->timeout = calloc(1, sizeof *j->timeout);
    if (!j->timeout)
        abort();
    j->timeout->data = j;
    uv_timer_init(j->sandbox->space->loop, j->timeout);
    uv_timer_start(j->timeout, timed_out, left > 0 ? (uint64_t)left : 0, 0);
}

static void spawned(void *user, int err, const struct p9_msg *r)
{
    struct start *st = user;
    struct job *j = st->job;
    struct err e = {0};
    (void)r;
    j->spawning = false;
    if (err < 0) {
        int code = err == -ECONNRESET ? EIO : -err;
        err = err_set(&e, code, "start job '%s' in '%s': %s", j->row.name, j->sandbox->row.name,
                      code == ENOMEM ? "the guest is short of memory: end some of what runs there, or give it more `memory`" : strerror(code));
        if (j->row.state == JOB_STARTING)
            j->row.state = JOB_NEW;
    } else if (j->row.state == JOB_STARTING) {
        j->row.state = JOB_RUNNING;
        job_save(j);
        job_attach(j);
    }
    wait_done_all(&st->done, err, &e);
    job_unref(j);
    free(st);
}

int job_start(struct job *j, const void *text, size_t len, struct waiter *w, struct err *e)
{
    struct sandbox *sb = j->sandbox;
    const char *cmd = text;
    if (j->row.state != JOB_NEW)
        return err_set(e, EBUSY, "job '%s' has been started already: make another", j->row.name);
    if (!len || (cmd[0] == 0 && (len < 3 || cmd[len - 1] != 0 || !cmd[1])))
        return err_set(e, EINVAL, "cmd takes a shell line, or a NUL and an argument vector of NUL-ended strings");
    if (!sb->guest || !guest_ready(sb->guest, GUEST_CONTROL))
        return err_set(e, ENOTCONN, "the guest of '%s' is not connected", sb->row.name);
    struct record rec = record_of(j, cmd, len);
    if (rec.len > 65536) {
        free(rec.p);
        return err_set(e, E2BIG, "command and environment of job '%s' have %zu bytes, more than 64 KiB", j->row.name, rec.len);
    }
    struct start *st = calloc(1, sizeof *st);
    if (!st)
        abort();
    const char *path[] = {"spawn"};
    st->job = job_ref(j);
    if (w)
        wait_add(&st->done, w);
    j->row.state = JOB_STARTING;
    j->row.started = space_now();
    j->row.object = sb->row.object;
    job_save(j); /* before the process exists: after a crash it is looked for, or lost; never forgotten */
    j->spawning = true;
    guest_put(sb->guest, path, 1, rec.p, (uint32_t)rec.len, spawned, st);
    free(rec.p);
    return 0;
}

/* ---- signals ---- */

struct signalling {
    struct wait_list done;
};

static void signalled(void *user, int err, const struct p9_msg *r)
{
    struct signalling *s = user;
    struct err e = {0};
    (void)r;
    if (err < 0)
        err_set(&e, -err, "send the signal: %s", strerror(-err));
    wait_done_all(&s->done, err, &e);
    free(s);
}

static int signal_number(const char *text)
{
    uint64_t n;
    if (str_parse_u64(text, 64, &n) == 0)
        return n ? (int)n : -EINVAL;
    if (!strncasecmp(text, "SIG", 3))
        text += 3;
    for (int i = 1; i < NSIG; i++)
        if (sigabbrev_np(i) && !strcasecmp(sigabbrev_np(i), text))
            return i;
    return -EINVAL;
}

int job_signal_check(const char *text, struct err *e)
{
    int n = signal_number(text);
    return n < 0 ? err_set(e, EINVAL, "'%.32s' is no signal: a name such as TERM, or a number", text) : n;
}

int job_signal(struct job *j, const char *text, struct waiter *w, struct err *e)
{
    int n = job_signal_check(text, e);
    char number[12];
    if (n < 0)
        return n;
    if (j->row.state == JOB_RUNNING && !j->sandbox->guest)
        return err_set(e, EAGAIN, "job '%s' gets no signal now: its sandbox is %s", j->row.name, state_name(sandbox_state(j->sandbox)));
    if (j->row.state != JOB_RUNNING)
        return err_set(e, ESRCH, "job '%s' does not run", j->row.name);
    struct signalling *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    if (w)
        wait_add(&s->done, w);
    snprintf(number, sizeof number, "%d", n);
    tell_guest(j, "signal", number, signalled, s);
    return 0;
}

/* ---- loading ---- */

static void load_job(void *user, const void *data)
{
    struct space *s = user;
    const struct job_row *row = data;
    struct err e = {0};
    struct sandbox *sb = sandbox_by_id(s, (uint64_t)row->sandbox);
    if (!sb) {
        job_row_freeze(s, row); /* a head's */
        return;
    }
    if (!sandbox_is_here(sb))
        return;
    struct job *j = job_add(sb, row);
    if (open_spools(j, &e) < 0)
        log_error("job '%s': %s", row->name, e.msg);
    for (int i = 0; job_ended(j) && i < 2; i++)
        j->stream[i].ended = true;
    job_close_spools(j);
}

/* The ids of all jobs, as nodes alone. */
static void ids_collect(const struct space *s, struct hmap *ids)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));)
        for (const struct job *j = hmap_entry(n, struct sandbox, by_id)->jobs; j; j = j->next) {
            struct hmap_node *id = calloc(1, sizeof *id);
            if (!id)
                abort();
            hmap_insert(ids, id, (uint64_t)j->row.id);
        }
}

static void ids_finish(struct hmap *ids)
{
    for (struct hmap_node *n; (n = hmap_iterate(ids, NULL));) {
        hmap_remove(ids, n);
        free(n);
    }
    hmap_finish(ids);
}

/* A job's row goes first and its spools after: who was killed between left them. */
static void remove_orphan_spools(struct space *s)
{
    char path[512];
    struct hmap ids = {0};
    ids_collect(s, &ids);
    snprintf(path, sizeof path, "%.255s/spool", s->config.state);
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        uint64_t id;
        if (strlen(f->d_name) != 16 || str_parse_id(f->d_name, 12, &id) < 0 || hmap_find(&ids, id))
            continue;
        log_warn("spool %s belongs to no job: removed", f->d_name);
        unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d)
        closedir(d);
    ids_finish(&ids);
}

int jobs_load(struct space *s, struct err *e)
{
    int rc = db_load(s->db, DB_JOBS, load_job, s, e);
    job_rows_prune(s);
    if (rc == 0)
        remove_orphan_spools(s);
    return rc;
}

void jobs_lost(struct sandbox *sb)
{
    for (struct job *j = sb->jobs; j; j = j->next) {
        job_detach(j);
        if (j->kept)
            continue;
        if (j->row.state == JOB_RUNNING || j->row.state == JOB_STARTING)
            job_finish(j, JOB_LOST, 0);
        for (int i = 0; i < 2; i++)
            j->stream[i].ended = j->row.state != JOB_NEW;
        job_close_spools(j);
        job_wake_readers(j);
    }
}

void jobs_detach(struct sandbox *sb)
{
    for (struct job *j = sb->jobs; j; j = j->next)
        job_detach(j);
}

void jobs_attach(struct sandbox *sb)
{
    for (struct job *j = sb->jobs; j; j = j->next)
        if (!j->spawning && (j->row.state == JOB_RUNNING || j->row.state == JOB_STARTING))
            job_attach(j);
}

void jobs_save(struct sandbox *sb)
{
    for (struct job *j = sb->jobs; j; j = j->next)
        job_save(j);
}

void jobs_leave(struct sandbox *sb)
{
    char path[512];
    for (struct job *j; (j = sb->jobs);) {
        sb->jobs = j->next;
        sb->job_count--;
        job_detach(j);
        stop_timeout(j);
        for (int o = 0; o < 2; o++) {
            job_spool_path(j, (enum job_output)o, path);
            unlink(path);
        }
        spool_close(&j->stream[JOB_STDOUT].spool);
        spool_close(&j->stream[JOB_STDERR].spool);
        j->gone = true;
        wait_done_all(&j->waiters, 0, NULL);
        job_wake_readers(j);
        j->next = sb->jobs_away;
        sb->jobs_away = j;
    }
}

void jobs_forget_away(struct sandbox *sb)
{
    for (struct job *j; (j = sb->jobs_away);) {
        sb->jobs_away = j->next;
        job_unref(j);
    }
}

/* One that was here before is the same: clients hold on to it. */
static struct job *come_back(struct sandbox *sb, const struct job_row *row)
{
    struct job **at = &sb->jobs_away, *j;
    while (*at && (*at)->row.id != row->id)
        at = &(*at)->next;
    j = *at;
    if (!j)
        return job_add(sb, row);
    *at = j->next;
    j->row = *row;
    j->gone = false;
    j->next = sb->jobs;
    sb->jobs = j;
    sb->job_count++;
    return j;
}

static void arrive(void *user, const void *data)
{
    struct sandbox *sb = user;
    const struct job_row *row = data;
    const int64_t ends[2] = {row->out_end, row->err_end};
    struct job *j = job_by_id(sb, (uint64_t)row->id) ? NULL : come_back(sb, row);
    for (int o = 0; j && o < 2; o++) {
        char path[512];
        struct err e = {0};
        job_spool_path(j, (enum job_output)o, path);
        j->stream[o].ended = job_ended(j);
        if (spool_cut(&j->stream[o].spool, path, (uint64_t)ends[o], &e) < 0)
            log_error("job '%s': %s", row->name, e.msg);
    }
    if (j)
        job_close_spools(j);
}

int jobs_arrive(struct sandbox *sb, struct err *e)
{
    int rc = db_load_by(sb->space->db, DB_JOBS, "sandbox", sb->row.id, arrive, sb, e);
    jobs_forget_away(sb); /* what ended there */
    return rc;
}

void jobs_forget(struct sandbox *sb)
{
    while (sb->jobs)
        job_destroy(sb->jobs);
}
