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
    return asprintf(&text, "protocol 1\nagent %s\nkernel %s\nboot-id %s\n", SPACE_VERSION,
                    u.release, hex) < 0
               ? NULL
               : text;
}

static uint64_t cpu_usec(const struct agent *a)
{
    char line[256] = "";
    unsigned long long user, nice, system, idle, iowait, irq, softirq;
    if (pread(a->root.stat, line, sizeof line - 1, 0) <= 0)
        return 0;
    if (sscanf(line, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
               &iowait, &irq, &softirq) != 7)
        return 0;
    return (user + nice + system + irq + softirq) * 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

char *report_activity(struct agent *a)
{
    char *text = NULL;
    return asprintf(&text, "cpu_usec %" PRIu64 "\njobs %u\nuptime_msec %" PRIu64 "\n", cpu_usec(a),
                    a->jobs.running, poll_now()) < 0
               ? NULL
               : text;
}
