// SPDX-License-Identifier: Apache-2.0
// space-browse: serves the file system in one disk image, and ends with its connection.
//
// Theory of operation. Started by space-browsed with two descriptors and nothing else: 3 is the
// image, read-only; 4 a connected stream socket. It confines itself (isolate.h), replays the
// journal, opens the file system, and answers 9P until the other side closes. One thread, one
// request at a time; what cannot be opened is an error of every attach. A request that takes more
// than REQUEST_SECONDS of processor time, as only a crafted image can make one, ends the process:
// the other side sees the connection close. So does whatever else a crafted image makes go wrong.
#include "base/log.h"
#include "hostd/browse/isolate.h"
#include "hostd/browse/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define IMAGE           3
#define CONNECTION      4
#define REQUEST_SECONDS 4u
#define INPUT_SIZE      (64u << 10)

/* ---- the watchdog ---- */

static struct serve serving; /* for the signal handler; else it is passed on */

static void on_tick(int number)
{
    static const char message[] = "warning: the image takes too long to read; giving up\n";
    static unsigned long last;
    static unsigned ticks;
    unsigned long work = *(volatile unsigned long *)&serving.work;
    (void)number;
    ticks = work == last && work % 2 ? ticks + 1 : 0;
    last = work;
    if (ticks < REQUEST_SECONDS)
        return;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        _exit(4);
    _exit(3);
}

static int start_watchdog(struct err *e)
{
    const struct itimerval second = {{1, 0}, {1, 0}};
    struct sigaction act = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    if (sigaction(SIGPROF, &act, NULL) < 0 || setitimer(ITIMER_PROF, &second, NULL) < 0)
        return err_sys(e, "start the watchdog");
    return 0;
}

/* ---- the connection ---- */

struct output {
    struct p9_server *server;
    bool failed;
};

static void send_part(void *user, void *buf, const void *at, size_t len)
{
    struct output *o = user;
    const char *p = at;
    size_t left = o->failed ? 0 : len;
    while (left) {
        ssize_t n = write(CONNECTION, p, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            o->failed = true;
            break;
        }
        p += n;
        left -= (size_t)n;
    }
    free(buf);
    p9_server_sent(o->server, len);
}

static void send_all(void *user, void *buf, size_t len)
{
    send_part(user, buf, buf, len);
}

static int serve(struct err *e)
{
    static uint8_t input[INPUT_SIZE];
    struct output o = {.failed = false};
    const struct p9_transport transport = {&o, send_all};
    ssize_t n = 0;
    o.server = p9_server_create(serve_backend(), &transport, serve_config(), &serving);
    if (!o.server)
        return err_set(e, ENOMEM, "start a session: out of memory");
    p9_server_set_send_part(o.server, send_part);
    int rc = 0;
    while (rc == 0 && !o.failed && ((n = read(CONNECTION, input, sizeof input)) > 0 || (n < 0 && errno == EINTR)))
        rc = n > 0 ? p9_server_input(o.server, input, (size_t)n) : 0;
    p9_server_destroy(o.server);
    return rc < 0 ? err_set(e, -rc, "the session: %s", strerror(-rc)) : 0;
}

static int check_descriptors(struct err *e)
{
    struct stat st;
    int flags = fcntl(IMAGE, F_GETFL);
    if (flags < 0 || fstat(IMAGE, &st) < 0)
        return err_sys(e, "descriptor 3 must be the image");
    if (!S_ISREG(st.st_mode) || (flags & O_ACCMODE) != O_RDONLY)
        return err_set(e, EINVAL, "descriptor 3 must be a regular file that is open for reading only");
    if (fstat(CONNECTION, &st) < 0 || !S_ISSOCK(st.st_mode))
        return err_set(e, EINVAL, "descriptor 4 must be a socket");
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc > 1) {
        bool version = strcmp(argv[1], "--version") == 0;
        log_line(LOG_L_INFO, version ? "space-browse " SPACE_VERSION : "space-browse is started by space-browsed");
        return version ? 0 : 2;
    }
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_MMAP_THRESHOLD, 4 << 20); /* replies of up to 1 MiB come and go: keep their pages */
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
    int rc = check_descriptors(&e);
    if (rc == 0 && serve_init(&serving) < 0)
        rc = err_set(&e, ENOMEM, "out of memory");
    if (rc == 0)
        rc = start_watchdog(&e);
    if (rc == 0)
        rc = isolate_browser(IMAGE, CONNECTION, &e);
    if (rc == 0) {
        serving.work = 1;
        serving.error = volume_open(&serving.volume, IMAGE, &e);
        if (serving.error < 0)
            log_warn("%s", e.msg);
        serving.work = 2;
        rc = serve(&e);
        volume_close(&serving.volume);
        serve_finish(&serving);
    }
    if (rc < 0)
        log_error("%s", e.msg);
    return rc < 0;
}
