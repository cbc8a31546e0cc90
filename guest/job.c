// SPDX-License-Identifier: Apache-2.0
// Jobs: see job.h.
//
// Theory of operation. STARTING (the child is on its way to exec; not listed, its id is taken) ->
// RUNNING -> ENDED (the first process was reaped) -> GONE (forgotten; lives on for open fids).
// `wait` is answered when the end marks are known: for pipes at once (what was read, and what lies
// in the pipe), for a terminal when it has been read empty after the end, which the ring's limit
// may delay until the client reads on.
#include "guest/job.h"

#include "base/log.h"
#include "base/str.h"
#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the guest's memory at most that part holds output nobody has fetched. */
#define RINGS_SHARE 16

/*
 * What must be available for another job to start. Below 8 MiB (as the kernel counts it: not all of
 * that can really be had) it throws away the text of running programs, to read it again at their
 * next step, and kills processes one by one: everything takes minutes, and the guest looks dead
 * (128 MiB and 430 sleeping shells: seen).
 */
#define RESERVE (12ull << 20)

struct pending_wait {
    struct p9_link link;
    struct p9_request *r;
};

struct doomed {
    struct p9_link link;
    uint64_t id;
};

struct job *job_ref(struct job *j)
{
    j->refs++;
    return j;
}

void job_unref(struct job *j)
{
    if (--j->refs == 0)
        free(j);
}

void jobs_init(struct jobs *js, struct poll_loop *l, const struct root *root)
{
    struct sysinfo info;
    *js = (struct jobs){.loop = l, .cgroup = root->cgroup, .pts = root->pts, .memory = root->memory};
    sysinfo(&info);
    js->rings.max = info.totalram * info.mem_unit / RINGS_SHARE;
    p9_link_init(&js->all);
    p9_link_init(&js->doomed);
}

static struct job *find_any(const struct jobs *js, uint64_t id)
{
    struct hmap_node *n = hmap_find(&js->by_id, id);
    return n ? hmap_entry(n, struct job, by_id) : NULL;
}

struct job *jobs_find(struct jobs *js, uint64_t id)
{
    struct job *j = find_any(js, id);
    return j && j->state != JOB_STARTING ? j : NULL;
}

/* ---- cgroups ---- */

static void group_path(uint64_t id, const char *file, char out[64])
{
    snprintf(out, 64, "space-%" PRIu64 "%s%s", id, *file ? "/" : "", file);
}

/* A directory descriptor of the job's new cgroup, or -1: jobs run without one, too. */
static int group_create(const struct jobs *js, uint64_t id)
{
    char path[64];
    group_path(id, "", path);
    if (js->cgroup < 0 || (mkdirat(js->cgroup, path, 0755) < 0 && errno != EEXIST))
        return -1;
    return openat(js->cgroup, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool group_remove(const struct jobs *js, uint64_t id)
{
    char path[64];
    group_path(id, "", path);
    return unlinkat(js->cgroup, path, AT_REMOVEDIR) == 0 || errno != EBUSY;
}

static void group_doom(struct jobs *js, uint64_t id)
{
    struct doomed *d;
    if (js->cgroup < 0 || group_remove(js, id) || !(d = malloc(sizeof *d)))
        return;
    d->id = id;
    p9_link_append(&js->doomed, &d->link);
}

static void group_kill(const struct jobs *js, uint64_t id)
{
    char path[64];
    group_path(id, "cgroup.kill", path);
    int fd = js->cgroup < 0 ? -1 : openat(js->cgroup, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!write(fd, "1", 1);
    close(fd);
}

/* How many processes got the signal. */
static int group_signal(const struct jobs *js, uint64_t id, int sig)
{
    char path[64], line[32];
    int n = 0;
    group_path(id, "cgroup.procs", path);
    int fd = js->cgroup < 0 ? -1 : openat(js->cgroup, path, O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        pid_t pid = atoi(line);
        n += pid > 1 && kill(pid, sig) == 0;
    }
    fclose(f);
    return n;
}

void jobs_sweep(struct jobs *js)
{
    for (struct p9_link *i = js->doomed.next, *next; i != &js->doomed; i = next) {
        struct doomed *d = p9_link_entry(i, struct doomed, link);
        next = i->next;
        if (group_remove(js, d->id)) {
            p9_link_remove(i);
            free(d);
        }
    }
}

/* ---- the end ---- */

static void answer_wait(const struct job *j, struct p9_request *r)
{
    char line[96];
    size_t n = 0;
    struct p9_msg m = {0};
    bool exited = WIFEXITED(j->status);
    str_append(line, sizeof line, &n, "%s %d %" PRIu64 " %" PRIu64 "\n", exited ? "exit" : "signal",
               exited ? WEXITSTATUS(j->status) : WTERMSIG(j->status), j->mark[0], j->mark[1]);
    uint64_t at = r->t->Tread.offset < n ? r->t->Tread.offset : n;
    m.Rread.data.p = line + at;
    m.Rread.data.len = (uint32_t)(n - at < r->t->Tread.count ? n - at : r->t->Tread.count);
    p9_reply(r, &m);
}

static void answer_waits(struct job *j, int code)
{
    while (!p9_link_empty(&j->waits)) {
        struct pending_wait *w = p9_link_entry(j->waits.next, struct pending_wait, link);
        struct p9_request *r = w->r;
        p9_link_remove(&w->link);
        free(w);
        if (code)
            p9_fail(r, code);
        else
            answer_wait(j, r);
    }
}

static void set_marks(struct job *j)
{
    if (j->state != JOB_ENDED || j->marked)
        return;
    if (j->terminal && !stream_drain(&j->output[0]))
        return; /* `drained` comes back here */
    for (int i = 0; i < 2; i++)
        j->mark[i] = j->terminal ? j->output[i].end : stream_mark(&j->output[i]);
    j->marked = true;
    answer_waits(j, 0);
}

static void output_drained(void *user)
{
    set_marks(user);
}

static void end(struct job *j)
{
    j->state = JOB_ENDED;
    j->jobs->running--;
    set_marks(j);
}

bool jobs_reaped(struct jobs *js, pid_t pid, int status)
{
    struct hmap_node *n = hmap_find(&js->by_pid, (uint64_t)pid);
    if (!n)
        return false;
    struct job *j = hmap_entry(n, struct job, by_pid);
    hmap_remove(&js->by_pid, n);
    j->reaped = true;
    j->status = status;
    if (j->state == JOB_RUNNING)
        end(j);
    return true;
}

static void wait_cancel(struct p9_request *r)
{
    struct pending_wait *w = r->aux;
    p9_link_remove(&w->link);
    free(w);
    p9_fail(r, EINTR);
}

void job_wait(struct job *j, struct p9_request *r)
{
    struct pending_wait *w;
    if (j->marked) {
        answer_wait(j, r);
    } else if (j->state == JOB_GONE) {
        p9_fail(r, ENOENT);
    } else if (!(w = malloc(sizeof *w))) {
        p9_fail(r, ENOMEM);
    } else {
        w->r = r;
        r->aux = w;
        r->cancel = wait_cancel;
        p9_link_append(&j->waits, &w->link);
    }
}

/* ---- the start ---- */

/* Out of all tables and with nothing open. The caller's reference stays. */
static void dismantle(struct job *j)
{
    struct jobs *js = j->jobs;
    if (!j->reaped)
        hmap_remove(&js->by_pid, &j->by_pid);
    hmap_remove(&js->by_id, &j->by_id);
    p9_link_remove(&j->all);
    if (j->state == JOB_RUNNING)
        js->running--;
    j->state = JOB_GONE;
    if (j->exec.fd >= 0) {
        poll_watch_stop(js->loop, &j->exec);
        close(j->exec.fd);
        j->exec.fd = -1;
    }
    input_finish(&j->input);
    for (int i = 0; i < 2; i++)
        stream_finish(&j->output[i]);
    answer_waits(j, ENOENT);
    group_doom(js, j->id);
}

static void answer_start(struct job *j, int code)
{
    struct p9_request *r = j->starter;
    struct p9_msg m = {0};
    j->starter = NULL;
    if (!r)
        return;
    m.Rwrite.count = r->t->Twrite.data.len;
    if (code)
        p9_fail(r, code);
    else
        p9_reply(r, &m);
}

static void exec_ready(struct poll_watch *w, uint32_t events)
{
    struct job *j = (struct job *)(void *)((char *)w - offsetof(struct job, exec));
    int code = 0;
    (void)events;
    ssize_t n = read(w->fd, &code, sizeof code);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    poll_watch_stop(j->jobs->loop, w);
    close(w->fd);
    w->fd = -1;
    job_ref(j);
    if (n == (ssize_t)sizeof code) {
        dismantle(j);
        job_unref(j);
        answer_start(j, code > 0 ? code : EIO);
    } else {
        j->state = JOB_RUNNING;
        j->jobs->running++;
        answer_start(j, 0);
        if (j->reaped)
            end(j);
    }
    job_unref(j);
}

static void spawn_cancel(struct p9_request *r)
{
    struct job *j = r->aux;
    j->starter = NULL;
    p9_fail(r, EINTR);
}

static void start(struct jobs *js, struct job *j, const struct spawn *s, const struct spawned *p)
{
    *j = (struct job){.jobs = js, .id = s->id, .pid = p->pid, .refs = 1, .terminal = s->terminal, .exec = {p->status, exec_ready}};
    p9_link_init(&j->waits);
    input_init(&j->input, js->loop, p->input, s->terminal);
    for (int i = 0; i < 2; i++) {
        stream_init(&j->output[i], js->loop, &js->rings, p->output[i]);
        j->output[i].drained = output_drained;
        j->output[i].user = j;
    }
    hmap_insert(&js->by_id, &j->by_id, j->id);
    hmap_insert(&js->by_pid, &j->by_pid, (uint64_t)j->pid);
    p9_link_append(&js->all, &j->all);
    poll_watch_start(js->loop, &j->exec, EPOLLIN);
}

/* What the kernel can give without swapping, as it says itself. */
static bool short_of_memory(const struct jobs *js)
{
    char text[512];
    ssize_t n = js->memory < 0 ? -1 : pread(js->memory, text, sizeof text - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    const char *at = strstr(text, "MemAvailable:");
    return at && strtoull(at + strlen("MemAvailable:"), NULL, 10) * 1024 < RESERVE;
}

static int spawn(struct jobs *js, const struct spawn *s, struct job **out)
{
    struct spawned p;
    if (find_any(js, s->id))
        return -EEXIST;
    if (js->by_id.count >= JOBS_MAX)
        return -EAGAIN;
    if (short_of_memory(js))
        return -ENOMEM;
    struct job *j = malloc(sizeof *j);
    if (!j)
        return -ENOMEM;
    int group = group_create(js, s->id);
    int rc = spawn_start(s, group, js->pts, &p);
    if (group >= 0)
        close(group);
    if (rc < 0) {
        group_doom(js, s->id);
        free(j);
        return rc;
    }
    start(js, j, s, &p);
    *out = j;
    return 0;
}

void jobs_spawn(struct jobs *js, struct p9_request *r)
{
    struct spawn s;
    struct job *j = NULL;
    int rc = spawn_parse(r->t->Twrite.data.p, r->t->Twrite.data.len, &s);
    if (rc == 0)
        rc = spawn(js, &s, &j);
    spawn_finish(&s);
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    j->starter = r;
    r->aux = j;
    r->cancel = spawn_cancel;
}

/* ---- what can be done to it ---- */

void job_forget(struct job *j)
{
    if (!j->reaped)
        kill(-j->pid, SIGKILL);
    group_kill(j->jobs, j->id);
    dismantle(j);
    job_unref(j);
}

int job_signal(struct job *j, int sig)
{
    if (sig < 1 || sig >= _NSIG)
        return -EINVAL;
    if (!j->reaped)
        return kill(-j->pid, sig) < 0 && kill(j->pid, sig) < 0 ? -errno : 0;
    if (j->state == JOB_GONE)
        return -ESRCH;
    return group_signal(j->jobs, j->id, sig) ? 0 : -ESRCH;
}

int job_resize(struct job *j, unsigned short columns, unsigned short rows)
{
    struct winsize size = {.ws_col = columns, .ws_row = rows};
    if (!j->terminal || j->input.watch.fd < 0)
        return -ENOTTY;
    return ioctl(j->input.watch.fd, TIOCSWINSZ, &size) < 0 ? -errno : 0;
}
