// SPDX-License-Identifier: Apache-2.0
// What the guest says of itself: see report.h.
#include "guest/report.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

char *report_info(struct agent *a)
{
    struct utsname u;
    char boot[64] = "", *text = NULL;
    int fd = openat(a->root.proc, "sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, boot, sizeof boot - 1);
    if (fd >= 0)
        close(fd);
    boot[n > 0 ? strcspn(boot, "\n") : 0] = 0;
    char hex[40];
    size_t len = 0;
    for (const char *s = boot; *s && len < sizeof hex - 1; s++)
        if (*s != '-')
            hex[len++] = *s;
    hex[len] = 0;
    uname(&u);
    return asprintf(&text, "protocol 1\nagent %s\nkernel %s\nboot-id %s\n", SPACE_VERSION, u.release, hex) < 0 ? NULL : text;
}

/* All that ever ran in a job's cgroup: not the agent, not the kernel's threads. */
static uint64_t jobs_usec(const struct agent *a)
{
    char text[512] = "";
    unsigned long long usec = 0;
    if (pread(a->root.jobs_cpu, text, sizeof text - 1, 0) > 0)
        sscanf(text, "usage_usec %llu", &usec);
    return usec;
}

struct machine_time report_machine_time(const struct root *root)
{
    char line[256] = "";
    unsigned long long user, nice, system, idle, iowait, irq, softirq;
    uint64_t tick = 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
    if (pread(root->stat, line, sizeof line - 1, 0) <= 0 ||
        sscanf(line, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq) != 7)
        return (struct machine_time){0};
    return (struct machine_time){(user + nice + system + irq + softirq) * tick, (idle + iowait) * tick};
}

/* Received and sent by all interfaces but the loopback. */
static uint64_t net_bytes(const struct agent *a)
{
    char line[512];
    uint64_t sum = 0;
    int fd = openat(a->root.proc, "1/net/dev", O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long long rx, tx;
        char *colon = strchr(line, ':');
        if (colon && !strstr(line, " lo:") && strncmp(line, "lo:", 3) != 0 &&
            sscanf(colon + 1, "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &rx, &tx) == 2)
            sum += rx + tx;
    }
    fclose(f);
    return sum;
}

char *report_activity(struct agent *a)
{
    char *text = NULL;
    struct machine_time t = report_machine_time(&a->root);
    int n = asprintf(&text,
                     "cpu_usec %" PRIu64 "\nbusy_usec %" PRIu64 "\nidle_usec %" PRIu64 "\njobs %u\nhandles %u\nnet_bytes %" PRIu64
                     "\nuptime_msec %" PRIu64 "\n",
                     jobs_usec(a), t.busy, t.idle, a->jobs.running, (unsigned)a->shared->handles, net_bytes(a), poll_now());
    return n < 0 ? NULL : text;
}
