// SPDX-License-Identifier: Apache-2.0
// Shared by pool.c and pool_file.c only.
#ifndef SPACE_NODED_POOL_IMPL_H
#define SPACE_NODED_POOL_IMPL_H

#include "hostd/noded/pool.h"

#define POOL_NAME_SIZE 13 /* 12 hex digits and NUL */

struct pool {
    char path[PATH_MAX];
    int folder[NODED_SNAPSHOT + 1]; /* by enum noded_kind */
};

const char *pool_kind_folder(enum noded_kind kind);

/* The object's name on disk. */
void pool_object_name(uint64_t id, char out[POOL_NAME_SIZE]);

/* Its directory, which must be a subvolume. -errno with "WHAT KIND ID: why". */
int pool_object_open(const struct pool *p, struct pool_object o, const char *what, struct err *e);

/* Sets errno's sentence "WHAT KIND ID: why"; returns -errno. */
int pool_fail(struct err *e, const char *what, struct pool_object o);

bool pool_has_file(int dir, enum noded_file file);

/* In the directory `dir` of an object: all files to root, the disk to nobody else; without what is
 * of the memory, if `strip`. 0 or -errno (errno set). */
int pool_files_reset(int dir, bool strip);
/* fsync of all files. 0 or -errno (errno set). */
int pool_files_sync(int dir);

#endif
