// SPDX-License-Identifier: Apache-2.0
// space-hostd's client of space-volumed against the real one: hostd_client RUN FILE COUNT. Uploads and downloads the file COUNT times, whatever happens to the daemon, and compares; then
// cancels an upload, and stops. A line for each step.
#include "hostd/volume/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct test {
    uv_loop_t *loop;
    struct co_sched *co;
    struct volumed *volumed;
    const char *file;
    int count, fd;
    uint64_t size, told;
    struct co *victim;
    int status;
};

static void say(const char *what, int rc, const struct err *e)
{
    printf("%s: %s%s%s\n", what, rc < 0 ? strerrorname_np(-rc) : "done", rc < 0 ? ": " : "", rc < 0 ? e->msg : "");
    fflush(stdout);
}

static void expect(struct test *t, int holds, const char *what)
{
    if (holds)
        return;
    printf("does not hold: %s\n", what);
    t->status = 1;
}

static struct volumed_request request(uint32_t op)
{
    struct volumed_request q = {.op = op};
    memcpy(q.object.tenant, "client", 6);
    if (getrandom(q.object.id, sizeof q.object.id, 0) < 0)
        abort();
    return q;
}

static void progress(void *user, uint64_t done, uint64_t total)
{
    struct test *t = user;
    expect(t, done <= total, "progress is not more than all");
    t->told++;
}

static int equal(int a, int b, uint64_t size)
{
    static char x[65536], y[65536];
    for (uint64_t at = 0; at < size; at += sizeof x) {
        ssize_t n = pread(a, x, sizeof x, (off_t)at);
        if (n <= 0 || pread(b, y, sizeof y, (off_t)at) != n || memcmp(x, y, (size_t)n) != 0)
            return 0;
    }
    return 1;
}

static void round_trip(struct test *t)
{
    struct err e = {0};
    struct volumed_reply rep;
    struct volumed_request q = request(VOLUMED_UPLOAD);
    q.size = t->size;
    int rc = volumed_run(t->co, t->volumed, &q, &t->fd, 1, progress, t, &rep, NULL, &e);
    say("upload", rc, &e);
    expect(t, rc == 0, "an upload succeeds though the daemon is killed");
    q.op = VOLUMED_DOWNLOAD;
    q.size = 0;
    int out = memfd_create("out", MFD_CLOEXEC);
    rc = volumed_run(t->co, t->volumed, &q, &out, 1, progress, t, &rep, NULL, &e);
    say("download", rc, &e);
    expect(t, rc == 0 && equal(t->fd, out, t->size), "the same bytes come back");
    close(out);
}

static void victim(void *arg)
{
    struct test *t = arg;
    struct err e = {0};
    struct volumed_request q = request(VOLUMED_UPLOAD);
    q.size = t->size;
    t->victim = co_self(t->co);
    int rc = volumed_run(t->co, t->volumed, &q, &t->fd, 1, NULL, NULL, NULL, NULL, &e);
    say("cancelled upload", rc, &e);
    expect(t, rc == -ECANCELED || rc == 0, "an aborted call ends as cancelled, or was faster");
    t->victim = NULL;
}

static void script(void *arg)
{
    struct test *t = arg;
    struct err e = {0};
    struct volumed_reply rep;
    int lines = -1;
    for (int i = 0; i < t->count; i++)
        round_trip(t);
    co_spawn(t->co, victim, t);
    co_sleep(t->co, 50);
    if (t->victim)
        co_abort(t->victim);
    while (t->victim)
        co_sleep(t->co, 10);
    struct volumed_request q = request(VOLUMED_LIST);
    memset(q.object.id, 0, sizeof q.object.id);
    int rc = volumed_run(t->co, t->volumed, &q, NULL, 0, NULL, NULL, &rep, &lines, &e);
    say("list", rc, &e);
    struct stat st;
    expect(t, rc == 0 && lines >= 0 && fstat(lines, &st) == 0 && st.st_size > 32 * t->count, "a list has a line for each artifact");
    q.op = VOLUMED_UPLOAD; /* without a descriptor, an id and a size */
    rc = volumed_run(t->co, t->volumed, &q, NULL, 0, NULL, NULL, &rep, NULL, &e);
    say("wrong request", rc, &e);
    expect(t, rc == -EINVAL && e.msg[0], "it is refused with a sentence");
    uv_stop(t->loop);
}

int main(int argc, char **argv)
{
    struct test t = {.loop = uv_default_loop()};
    struct stat st;
    struct err e = {0};
    if (argc != 4)
        return 2;
    t.co = co_sched_create(t.loop);
    t.fd = open(argv[2], O_RDONLY | O_CLOEXEC);
    t.count = atoi(argv[3]);
    if (t.fd < 0 || fstat(t.fd, &st) < 0 || volumed_open(t.loop, argv[1], &t.volumed, &e) < 0)
        return 2;
    t.size = (uint64_t)st.st_size;
    co_spawn(t.co, script, &t);
    uv_run(t.loop, UV_RUN_DEFAULT);
    volumed_close(t.volumed);
    uv_run(t.loop, UV_RUN_DEFAULT);
    return t.status;
}
