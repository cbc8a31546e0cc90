// SPDX-License-Identifier: Apache-2.0
// space-daemon: PID 1 of a guest. Boots it, then serves the host until the machine is switched off.
//
// Theory of operation. PID 1 runs one loop that never touches the root file system, so nothing that
// happens to it (frozen, full, broken) stops control. Files are served by a process of its own on
// space.1; freezing is done by another (freezer.h). Both are started again when they die. Ports
// appear a while after their driver, so uevents tell when to look again.
#include "base/err.h"
#include "base/log.h"
#include "guest/agent.h"
#include "guest/control.h"
#include "guest/files.h"
#include "guest/modules.h"
#include "guest/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTROL_PORT     "space.0"
#define FILES_MAX        65536
#define FILES_AGAIN_MSEC 100 /* a server that cannot start must not eat the machine */
#define FILES_WELL_MSEC  1000

struct boot {
    struct agent agent;
    struct poll_watch uevents;
};

void agent_power_off(struct agent *a)
{
    if (power_going(&a->power))
        return;
    power_off(&a->power);
    if (a->files > 0)
        kill(a->files, SIGKILL);
    freezer_stop(&a->freezer); /* what processes do at TERM may need the file system */
}

/* ---- signals ---- */

static void start_files(struct agent *a)
{
    a->files_since = poll_now();
    a->files = files_start(&a->root, a->shared);
    if (a->files >= 0)
        return;
    log_error("start the file server: %s", strerror((int)-a->files));
    poll_timer_start(&a->loop, &a->files_again, FILES_AGAIN_MSEC);
}

static void files_again(struct poll_timer *t)
{
    struct agent *a = (struct agent *)(void *)((char *)t - offsetof(struct agent, files_again));
    if (!power_going(&a->power))
        start_files(a);
}

static void reap(struct agent *a)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (jobs_reaped(&a->jobs, pid, status) || power_going(&a->power))
            continue;
        if (pid == a->files) {
            log_error("the file server ended (status %#x), it is started again", (unsigned)status);
            a->files = 0;
            ends_count(&a->files_ends);
            poll_timer_start(&a->loop, &a->files_again, poll_now() - a->files_since < FILES_WELL_MSEC ? FILES_AGAIN_MSEC : 0);
        } else if (pid == a->freezer.pid) {
            log_error("the freezer ended (status %#x), it is started again", (unsigned)status);
            freezer_restart(&a->freezer);
        }
    }
    jobs_sweep(&a->jobs);
    power_reaped(&a->power, pid < 0 && errno == ECHILD);
}

static void signal_ready(struct poll_watch *w, uint32_t events)
{
    struct agent *a = (struct agent *)(void *)((char *)w - offsetof(struct agent, signals));
    struct signalfd_siginfo info;
    (void)events;
    while (read(w->fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            agent_power_off(a); /* what poweroff and halt programs send to init */
    reap(a);
}

static int watch_signals(struct agent *a)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGPWR);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    a->signals = (struct poll_watch){signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), signal_ready};
    return a->signals.fd < 0 ? -errno : poll_watch_start(&a->loop, &a->signals, EPOLLIN);
}

/* ---- the control port ---- */

static void open_control(struct boot *b)
{
    struct agent *a = &b->agent;
    int rc = port_open(&a->control, &a->loop, CONTROL_PORT, control_backend(), NULL, a);
    if (rc < 0 && rc != -ENOENT)
        log_error("open port " CONTROL_PORT ": %s", strerror(-rc));
    if (rc < 0)
        return;
    a->control_open = true;
    if (b->uevents.fd >= 0) {
        poll_watch_stop(&a->loop, &b->uevents);
        close(b->uevents.fd);
        b->uevents.fd = -1;
    }
}

static void uevent_ready(struct poll_watch *w, uint32_t events)
{
    struct boot *b = (struct boot *)(void *)((char *)w - offsetof(struct boot, uevents));
    char text[4096];
    (void)events;
    while (recv(w->fd, text, sizeof text, 0) > 0)
        ;
    if (!b->agent.control_open)
        open_control(b);
}

static void watch_uevents(struct boot *b)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
    b->uevents = (struct poll_watch){socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT), uevent_ready};
    if (b->uevents.fd < 0 || bind(b->uevents.fd, (struct sockaddr *)&address, sizeof address) < 0)
        log_error("listen for uevents: %s", strerror(errno));
    else
        poll_watch_start(&b->agent.loop, &b->uevents, EPOLLIN);
}

/* ---- boot ---- */

/* Standard descriptors: input from nowhere, messages to the kernel's log. */
static void open_standard(void)
{
    int null = open("/dev/null", O_RDWR), log = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(log < 0 ? null : log, STDOUT_FILENO);
    dup2(log < 0 ? null : log, STDERR_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    if (log > STDERR_FILENO)
        close(log);
}

static void set_limits(void)
{
    struct rlimit files = {FILES_MAX, FILES_MAX};
    setrlimit(RLIMIT_NOFILE, &files);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) < 0)
        log_warn("lock memory: %s", strerror(errno));
    umask(0);
}

/*
 * What the kernel does again and again though nothing happens: it is the processor time of a host
 * full of idle guests (measured under emulation: 5.3 ms of it a second for each, 0.7 without). A
 * machine that stood still is no locked up one, either.
 */
static void calm_kernel(void)
{
    static const char *const knobs[] = {"/proc/sys/vm/compaction_proactiveness", "/proc/sys/kernel/watchdog"};
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        int fd = open(knobs[i], O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1)
            log_warn("write %s: %s", knobs[i], strerror(errno));
        if (fd >= 0)
            close(fd);
    }
}

/* Nothing can be served without a root: the host sees the machine end, and the reason is in the
 * kernel's log. */
static void give_up(const char *why)
{
    log_error("%s", why);
    sync();
    reboot(RB_POWER_OFF);
}

int main(void)
{
    static struct boot boot;
    struct agent *a = &boot.agent;
    struct err e = {0};
    if (getpid() != 1) {
        fprintf(stderr, "space-daemon %s is PID 1 of a guest and does nothing else\n", SPACE_VERSION);
        return 1;
    }
    int rc = root_prepare(&e);
    open_standard();
    if (rc == 0)
        rc = poll_init(&a->loop);
    watch_uevents(&boot);
    calm_kernel();
    modules_load("/modules/list");
    if (rc == 0)
        rc = root_switch(&a->root, &e);
    if (rc < 0)
        give_up(e.msg);
    set_limits();
    rc = net_start_loopback();
    if (rc < 0)
        log_warn("start the loopback interface: %s", strerror(-rc));
    rc = net_start_outside();
    if (rc > 0)
        rc = net_write_resolver();
    if (rc < 0)
        log_warn("set the network up: %s", strerror(-rc));
    power_init(&a->power, &a->loop);
    jobs_init(&a->jobs, &a->loop, &a->root);
    if (watch_signals(a) < 0 || freezer_start(&a->freezer, &a->loop, &a->root) < 0)
        give_up("out of descriptors at start");
    a->files_again.fire = files_again;
    ends_init(&a->files_ends);
    a->shared = files_share();
    if (!a->shared)
        give_up("out of memory at start");
    start_files(a);
    open_control(&boot);
    for (;;)
        poll_step(&a->loop);
}
