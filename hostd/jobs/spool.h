// SPDX-License-Identifier: Apache-2.0
// A job stream's bytes on the host's disk: append at the end, read anywhere, the oldest dropped beyond a limit. Offsets are the stream's own and
// never move; dropped bytes are a hole at the front of the file.
#ifndef SPACE_HOSTD_SPOOL_H
#define SPACE_HOSTD_SPOOL_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct spool {
    int fd;        /* -1 while closed: a job that ended keeps none open */
    uint64_t base; /* bytes before it were dropped */
    uint64_t end;  /* bytes appended since ever */
};

/* Opens or creates; end is the file's size, base as given (from the job's row). */
int spool_open(struct spool *s, const char *path, uint64_t base, struct err *e);
void spool_close(struct spool *s);

/* Appends; then drops from the front what exceeds `limit` bytes. 0 or -errno (a full disk: the bytes are not taken). */
int spool_append(struct spool *s, const void *data, size_t len, uint64_t limit, struct err *e);

/* Ends at `size` bytes from now on: cut back, or (a stream whose beginning is elsewhere) with everything before dropped. Leaves it open. */
int spool_cut(struct spool *s, const char *path, uint64_t size, struct err *e);

/* Reads at `offset` (>= base). Bytes read, 0 at the end, -errno. A closed spool is opened at `path` for the moment. */
long spool_read(const struct spool *s, const char *path, uint64_t offset, void *out, size_t len);

#endif
