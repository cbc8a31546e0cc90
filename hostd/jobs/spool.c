// SPDX-License-Identifier: Apache-2.0
// Spooled streams: see spool.h.
#include "hostd/jobs/spool.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

/* Holes are punched in steps, not for each line. */
#define DROP_STEP (1u << 20)

int spool_open(struct spool *s, const char *path, uint64_t base, struct err *e)
{
    struct stat st;
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return err_sys(e, "open the job's output %s", path);
    s->end = (uint64_t)st.st_size;
    s->base = base < s->end ? base : s->end;
    return 0;
}

void spool_close(struct spool *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

int spool_append(struct spool *s, const void *data, size_t len, uint64_t limit, struct err *e)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(s->fd, (const char *)data + done, len - done, (off_t)(s->end + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc = err_sys(e, "spool the job's output");
            if (ftruncate(s->fd, (off_t)s->end) < 0)
                return rc; /* the bytes behind `end` are rewritten by the next append */
            return rc;
        }
        done += (size_t)n;
    }
    s->end += len;
    if (s->end - s->base > limit + DROP_STEP) {
        s->base = s->end - limit;
        fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)(s->base & ~4095ULL));
    }
    return 0;
}

int spool_cut(struct spool *s, const char *path, uint64_t size, struct err *e)
{
    int rc = s->fd < 0 ? spool_open(s, path, s->base, e) : 0;
    if (rc < 0)
        return rc;
    if (ftruncate(s->fd, (off_t)size) < 0)
        return err_sys(e, "cut the job's output %s", path);
    if (size > s->end || s->base > size)
        s->base = size;
    s->end = size;
    return 0;
}

long spool_read(const struct spool *s, const char *path, uint64_t offset, void *out, size_t len)
{
    AUTO_CLOSE int opened = -1;
    if (offset >= s->end)
        return 0;
    if (s->fd < 0 && (opened = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)) < 0)
        return -errno;
    if (len > s->end - offset)
        len = (size_t)(s->end - offset);
    ssize_t n = pread(s->fd < 0 ? opened : s->fd, out, len, (off_t)offset);
    return n < 0 ? -errno : (long)n;
}
