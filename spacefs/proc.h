// SPDX-License-Identifier: Apache-2.0
// Which process a FUSE request comes from, and when it ends.
#ifndef SPACEFS_PROC_H
#define SPACEFS_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process, not to be taken for a later one with the same number. */
struct proc_id {
    pid_t tgid;
    uint64_t start; /* in clock ticks since boot */
};

/*
 * The process of thread `tid` (what FUSE calls pid), read from /proc: exact while the thread waits for our answer. 0, -ESRCH for 0 (a
 * foreign pid namespace) or a thread that is gone, -EIO when /proc says something unexpected.
 */
int proc_identify(pid_t tid, struct proc_id *out);

static inline bool proc_same(const struct proc_id *a, const struct proc_id *b)
{
    return a->tgid == b->tgid && a->start == b->start;
}

/* True when thread `tid` belongs to the process, now. */
bool proc_has_thread(const struct proc_id *p, pid_t tid);

/* A descriptor that polls readable once the process has ended. -errno. */
int proc_open(const struct proc_id *p);

#endif
