// SPDX-License-Identifier: Apache-2.0
// Brings a guest to rest: see settle.h.
#include "guest/settle.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "guest/hooks.h"
#include "guest/poll.h"
#include "guest/rehearse.h"
#include "guest/report.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define WINDOW_MSEC 100
#define IDLE_SHARE  20            /* idle: at most one part in that of a window was used */
#define RESERVE     (256ul << 10) /* free memory that is left alone */
#define CLEAR_MAX   ((size_t)256 << 20)
#define PIECE       ((size_t)1 << 20)
#define PAGE        4096ul

/* By the time that was idle, which the kernel measures: that which was used it counts by the tick,
 * and an emulator short of time leaves ticks out. */
static bool idle_for_a_window(const struct root *r)
{
    uint64_t before = report_machine_time(r).idle, began = poll_now();
    poll(NULL, 0, WINDOW_MSEC);
    uint64_t idle = report_machine_time(r).idle - before;
    uint64_t all = (poll_now() - began) * 1000 * (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    return idle >= all - all / IDLE_SHARE;
}

static void wait_until_idle(const struct root *r)
{
    uint64_t due = poll_now() + SETTLE_MSEC;
    while (poll_now() < due && !idle_for_a_window(r))
        ;
}

static int drop_caches(const struct root *r)
{
    AUTO_CLOSE int fd = openat(r->proc, "sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, "3", 1) != 1 ? -errno : 0;
}

/* A setting of the kernel's, lowered for a while. */
struct lowered {
    const char *name, *low;
    char before[128];
};

/* What is written to it must be less than it holds. */
static void lower(const struct root *r, struct lowered *s)
{
    AUTO_CLOSE int fd = openat(r->proc, s->name, O_RDWR | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, s->before, sizeof s->before - 1);
    s->before[n < 0 ? 0 : n] = 0;
    if (n > 0 && pwrite(fd, s->low, strlen(s->low), 0) < 0)
        s->before[0] = 0;
}

static void put_back(const struct root *r, const struct lowered *s)
{
    AUTO_CLOSE int fd = s->before[0] ? openat(r->proc, s->name, O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0 && write(fd, s->before, strlen(s->before)) < 0)
        log_warn("put %s back: %s", s->name, strerror(errno));
}

/*
 * Free memory is what the boot left in it. As zeros it needs no room in the image. The kernel gives
 * out first what was used before, so that in a large guest memory nobody has touched is let be.
 */
static void clear_free_memory(void)
{
    struct sysinfo info;
    for (size_t n = 0, piece; n < CLEAR_MAX && sysinfo(&info) == 0; n += piece) {
        uint64_t free = (uint64_t)info.freeram * info.mem_unit;
        piece = free < RESERVE + PAGE ? 0 : (size_t)(free - RESERVE) / PAGE * PAGE;
        piece = piece < PIECE ? piece : PIECE;
        if (!piece || mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED)
            break;
    }
}

/*
 * In a process of its own, and waits until that is gone with its memory. The kernel keeps some free
 * memory from processes, among it the first MiB, where the boot loader put what is compressed there.
 */
static void clear_in_child(const struct root *r)
{
    struct lowered kept[] = {{.name = "sys/vm/min_free_kbytes", .low = "64"}, {.name = "sys/vm/lowmem_reserve_ratio", .low = "0 0 0 0"}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        lower(r, &kept[i]);
    pid_t pid = fork();
    if (pid == 0) {
        clear_free_memory();
        _exit(0);
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        put_back(r, &kept[i]);
}

int settle(const struct root *r)
{
    if (syncfs(r->top) < 0)
        return -errno;
    wait_until_idle(r);
    int rc = syncfs(r->top) < 0 ? -errno : drop_caches(r);
    if (rc < 0)
        return rc;
    clear_in_child(r);
    (void)rehearse(r);             /* what the first job needs is read now, and shared by all guests */
    (void)access(HOOKS_DIR, F_OK); /* so that a load need not look */
    return 0;
}
