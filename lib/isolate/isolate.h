// SPDX-License-Identifier: Apache-2.0
// How a daemon confines itself before its loop starts: no new privileges, files by Landlock, system calls by seccomp.
#ifndef SPACE_ISOLATE_ISOLATE_H
#define SPACE_ISOLATE_ISOLATE_H

#include "base/err.h"

#include <linux/landlock.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ISOLATE_READS (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define ISOLATE_WRITES                                                                                                                               \
    (ISOLATE_READS | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |   \
     LANDLOCK_ACCESS_FS_MAKE_DIR)

/* What may be done at and below `path`. For a file only the bits that files have. */
struct isolate_path {
    const char *path;
    uint64_t access; /* LANDLOCK_ACCESS_FS_... of Landlock's first version */
};

/* From root to a user and a group (NULL: the user's): ids, no supplementary groups, no capability left anywhere. 0 or -errno with a sentence. */
int isolate_become(const char *user, const char *group, struct err *e);

/*
 * All of these hold for the calling thread and what it starts, for good: so call them before any thread is started, in this order. None
 * needs a privilege. 0 or -errno with a sentence.
 */

/* No core dumps, no tracing by the own uid, nothing gained by execve. */
int isolate_privileges(struct err *e);

/* Files can be opened, made and removed only where `paths` says; paths that do not exist are skipped. Descriptors that are open stay as they are. On
 * a kernel without Landlock it warns that `program` may do what its user may, and returns 0. */
int isolate_files(const struct isolate_path *paths, size_t count, const char *program, struct err *e);

/* Numbers of seccomp.h (SCMP_SYS). The first denies what no daemon calls (to trace, mount, change namespaces, load into the kernel) and `more`, the second
 * everything but `calls`; both with EPERM, and sockets that are not unix ones with EAFNOSUPPORT, but for the first when it is `online`. With the second, a
 * process can send signals to itself only. */
int isolate_deny_calls(const int *more, size_t count, bool online, struct err *e);
int isolate_allow_calls(const int *calls, size_t count, struct err *e);

#endif
