// SPDX-License-Identifier: Apache-2.0
// Processes behind requests: see proc.h. Formats: proc(5).
#include "spacefs/proc.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define START_FIELD 22 /* of /proc/PID/stat; 3 is the first one behind the name */

static int read_file(pid_t pid, const char *name, char *buf, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (n < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    buf[n] = '\0';
    return 0;
}

static int read_tgid(pid_t tid, pid_t *out)
{
    char buf[1024]; /* Tgid is the fourth line */
    int rc = read_file(tid, "status", buf, sizeof buf);
    const char *p = rc < 0 ? NULL : strstr(buf, "\nTgid:");
    if (rc < 0)
        return rc;
    if (!p)
        return -EIO;
    *out = (pid_t)strtol(p + 6, NULL, 10);
    return *out > 0 ? 0 : -EIO;
}

static int read_start(pid_t tgid, uint64_t *out)
{
    char buf[1024];
    int rc = read_file(tgid, "stat", buf, sizeof buf);
    char *p = rc < 0 ? NULL : strrchr(buf, ')'); /* the name may hold blanks and parentheses */
    if (rc < 0)
        return rc;
    for (int field = 2; p && field < START_FIELD; field++)
        p = strchr(p + 1, ' ');
    if (!p)
        return -EIO;
    *out = strtoull(p + 1, NULL, 10);
    return 0;
}

int proc_identify(pid_t tid, struct proc_id *out)
{
    if (tid <= 0)
        return -ESRCH;
    int rc = read_tgid(tid, &out->tgid);
    return rc < 0 ? rc : read_start(out->tgid, &out->start);
}

bool proc_has_thread(const struct proc_id *p, pid_t tid)
{
    char path[64];
    struct proc_id now;
    snprintf(path, sizeof path, "/proc/%d/task/%d", (int)p->tgid, (int)tid);
    return tid > 0 && access(path, F_OK) == 0 && proc_identify(p->tgid, &now) == 0 && proc_same(&now, p);
}

int proc_open(const struct proc_id *p)
{
    int fd = (int)syscall(SYS_pidfd_open, p->tgid, 0);
    return fd < 0 ? -errno : fd;
}
