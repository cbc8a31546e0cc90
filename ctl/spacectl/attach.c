// SPDX-License-Identifier: Apache-2.0
// Joins the caller's streams to a job: see attach.h.
//
// Theory of operation
//
// Reads of a job's stdout, stderr and wait block until there is something. Each has a thread, since
// polling them first would double the round trips; the main thread takes `wait`, and one thread
// takes the signals, which all others block:
//
// Signals: SIGINT, SIGQUIT, SIGTERM and SIGHUP are passed to the job. Before it runs they remove it
// and end the program, and the third SIGINT does so too: the way out when a sandbox no longer
// answers. SIGWINCH passes on the terminal's size; SIGTSTP and SIGCONT give it back meanwhile.
//
// Feeder: stdin to the job's stdin. At the end of the file, and at once for a terminal when the job
// has none, it is closed.
//
// Pumps: stdout and stderr, each at its own offset, so that nothing is lost or doubled when a read
// has to be repeated.
//
// When the job's first process has ended, `wait` answers and both streams end, at what had been
// written by then, even if a child left behind holds them open. So both pumps end by themselves.
// Threads that cannot be ended (the feeder, in read) live on until exit, and so does the struct
// that they use.
#include "spacectl/attach.h"

#include "spacectl/command.h"
#include "spacectl/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 131072 /* what the kernel passes to a FUSE server at once */

struct attachment;

struct pump {
    struct attachment *a;
    struct stream stream;
    int to;    /* descriptor to write to */
    int error; /* negative errno of a read that failed for good */
    pthread_t thread;
    bool started;
};

struct attachment {
    struct job job;
    bool terminal;
    atomic_bool running; /* cmd was written */
    atomic_flag leaving;
    sigset_t signals;
    struct pump out, err;
};

static void *remove_main(void *arg)
{
    struct attachment *a = arg;
    job_remove(&a->job);
    return NULL;
}

/* Absolute time for the timed joins. */
static struct timespec in_ms(long ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_nsec += ms * 1000000;
    ts.tv_sec += ts.tv_nsec / 1000000000;
    ts.tv_nsec %= 1000000000;
    return ts;
}

/* Gives up on the job and ends the program, from whatever thread; within a second, even if the
 * mount no longer answers. */
static void abandon(struct attachment *a, int status)
{
    pthread_t thread;
    const struct timespec until = in_ms(1000);
    if (atomic_flag_test_and_set(&a->leaving))
        return;
    terminal_restore();
    if (pthread_create(&thread, NULL, remove_main, a) == 0)
        pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until);
    _exit(status);
}

static bool write_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* A thread per signal, because a sandbox that hangs may hang this write, and the third SIGINT must
 * still be heard. */
struct forward {
    struct attachment *a;
    int signal;
};

static void *forward_main(void *arg)
{
    struct forward f = *(struct forward *)arg;
    free(arg);
    if (f.signal == SIGWINCH) {
        unsigned columns, rows;
        terminal_size(&columns, &rows);
        job_resize(&f.a->job, columns, rows);
    } else {
        job_signal(&f.a->job, f.signal);
    }
    return NULL;
}

static void detached(void *(*start)(void *), void *arg)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, start, arg) == 0)
        pthread_detach(thread);
}

static void forward(struct attachment *a, int signal)
{
    struct forward *f = malloc(sizeof *f);
    if (!f)
        return;
    *f = (struct forward){a, signal};
    detached(forward_main, f);
}

static void *signals_main(void *arg)
{
    struct attachment *a = arg;
    int signal, interrupts = 0;
    while (sigwait(&a->signals, &signal) == 0) {
        if (signal == SIGTSTP) { /* from outside: in raw mode Ctrl-Z goes to the sandbox */
            terminal_restore();
            kill(getpid(), SIGSTOP);
            continue;
        }
        if (signal == SIGCONT && atomic_load(&a->running)) {
            struct err ignored;
            terminal_raw(&ignored);
            signal = SIGWINCH;
        }
        bool to_end = signal != SIGWINCH && signal != SIGCONT;
        if (signal == SIGINT)
            interrupts++;
        if (to_end && (!atomic_load(&a->running) || interrupts >= 3))
            abandon(a, 128 + signal);
        else if (atomic_load(&a->running))
            forward(a, signal);
    }
    return NULL;
}

static void feed_failed(const struct attachment *a)
{
    if (errno != EPIPE) /* that is only a program that wants no more */
        fprintf(stderr, "spacectl: cannot write %s/stdin: %s\n", a->job.path, strerror(errno));
}

/* Returns false when the user ended the session with `~.`. */
static bool feed(struct attachment *a, int to, struct escape *escape, const char *in, size_t len, bool *broken)
{
    char filtered[TREE_VALUE_MAX + 1];
    bool end = false;
    if (a->terminal) {
        end = escape_filter(escape, in, len, filtered, &len);
        in = filtered;
    }
    *broken = !write_all(to, in, len);
    if (*broken)
        feed_failed(a);
    return !end;
}

static void *feeder_main(void *arg)
{
    struct attachment *a = arg;
    char buf[TREE_VALUE_MAX]; /* what one write may hold */
    struct escape escape = {.fresh_line = true};
    struct err e = {0};
    int to = job_open(&a->job, "stdin", O_WRONLY, &e);
    if (to < 0)
        return NULL; /* the job has ended already */
    bool go_on = a->terminal || !isatty(STDIN_FILENO), broken = false;
    while (go_on && !broken) {
        ssize_t n = read(STDIN_FILENO, buf, sizeof buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        go_on = feed(a, to, &escape, buf, (size_t)n, &broken);
        if (!go_on)
            abandon(a, EXIT_LOST);
    }
    close(to);
    return NULL;
}

static void *pump_main(void *arg)
{
    struct pump *p = arg;
    char *buf = malloc(CHUNK);
    while (buf) {
        ssize_t n = stream_read(&p->stream, buf, CHUNK);
        if (n < 0)
            p->error = (int)n;
        if (n <= 0)
            break;
        if (!write_all(p->to, buf, (size_t)n)) {
            /* Nobody reads any more: what would have hit the program had it run here. */
            job_signal(&p->a->job, SIGPIPE);
            break;
        }
    }
    free(buf);
    stream_close(&p->stream);
    return NULL;
}

static int pump_start(struct attachment *a, struct pump *p, const char *name, int to, struct err *e)
{
    *p = (struct pump){.a = a, .stream = {.job = &a->job, .name = name, .fd = -1}, .to = to};
    int code = pthread_create(&p->thread, NULL, pump_main, p);
    p->started = code == 0;
    return code ? err_set(e, code, "cannot start a thread: %s", strerror(code)) : 0;
}

static void pump_finish(struct pump *p)
{
    if (p->started)
        pthread_join(p->thread, NULL);
}

static int prepare_signals(struct attachment *a, struct err *e)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&a->signals);
    sigaddset(&a->signals, SIGINT);
    sigaddset(&a->signals, SIGQUIT);
    sigaddset(&a->signals, SIGTERM);
    sigaddset(&a->signals, SIGHUP);
    if (a->terminal) {
        sigaddset(&a->signals, SIGWINCH);
        sigaddset(&a->signals, SIGTSTP);
        sigaddset(&a->signals, SIGCONT);
    }
    sigaction(SIGPIPE, &ignore, NULL);
    int code = pthread_sigmask(SIG_BLOCK, &a->signals, NULL);
    pthread_t thread;
    if (!code)
        code = pthread_create(&thread, NULL, signals_main, a);
    return code ? err_set(e, code, "cannot start a thread: %s", strerror(code)) : 0;
}

static int exit_status(const struct attachment *a, const struct job_end *end)
{
    if (end->kind == JOB_EXITED)
        return end->number;
    if (end->kind == JOB_SIGNALED)
        return 128 + end->number;
    fprintf(stderr,
            "spacectl: %s is lost: its machine was stopped, rolled back or destroyed, so nobody "
            "knows how it ended\n",
            a->job.path);
    return EXIT_LOST;
}

/* Everything behind the start. */
static int carry(struct attachment *a, struct err *e)
{
    struct job_end end;
    int rc = a->terminal ? terminal_raw(e) : 0;
    if (rc >= 0)
        rc = pump_start(a, &a->out, "stdout", STDOUT_FILENO, e);
    if (rc >= 0 && !a->terminal)
        rc = pump_start(a, &a->err, "stderr", STDERR_FILENO, e);
    if (rc < 0)
        return rc;
    detached(feeder_main, a);
    rc = job_wait(&a->job, &end, e);
    pump_finish(&a->out);
    pump_finish(&a->err);
    terminal_restore();
    if (rc < 0)
        return rc;
    if ((a->out.error || a->err.error) && end.kind != JOB_LOST) {
        int error = a->out.error ? a->out.error : a->err.error;
        return err_set(e, -error, "output of %s may be incomplete: %s", a->job.path, strerror(-error));
    }
    return exit_status(a, &end);
}

/* What a shell would answer when the program cannot be executed. */
static int start_failure(int rc, const struct err *e)
{
    if (rc != -ENOENT && rc != -EACCES && rc != -ENOEXEC)
        return rc;
    fprintf(stderr, "spacectl: %s\n", e->msg);
    return rc == -ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

int attach_run(const struct tree *t, const struct job_spec *spec, struct err *e)
{
    struct attachment *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(e, ENOMEM, "out of memory");
    a->terminal = spec->tty != NULL;
    int rc = job_create(t, spec, &a->job, e);
    if (rc < 0) {
        free(a);
        return rc;
    }
    rc = prepare_signals(a, e);
    if (rc >= 0) {
        rc = job_start(&a->job, spec, e);
        if (rc < 0)
            rc = start_failure(rc, e);
        else
            atomic_store(&a->running, true), rc = carry(a, e);
    }
    while (atomic_flag_test_and_set(&a->leaving))
        pause(); /* another thread is ending the program */
    job_remove(&a->job);
    return rc;
}
