// SPDX-License-Identifier: Apache-2.0
// Pages in which the memory of one head differs from that of another, by the tables of pages that both have (docs/protocol/head.md). No memory is read.
//
// An entry has 63 bits of a page's hash. A guest can make two pages of one hash; then its own restore gives it the older one, and nobody else is touched.
#include "base/cleanup.h"
#include "hostd/noded/head_format.h"
#include "hostd/volume/volume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define RANGES 1024u

struct table {
    void *map;
    size_t size;
    const uint64_t *entries;
    uint64_t pages;
};

static void table_close(struct table *t)
{
    if (t->map && t->map != MAP_FAILED)
        munmap(t->map, t->size);
}

static bool sum_is(const struct head_sum *sum, const void *p, size_t size)
{
    XXH128_canonical_t is;
    XXH128_canonicalFromHash(&is, XXH3_128bits(p, size));
    return memcmp(is.digest, sum->bytes, sizeof sum->bytes) == 0;
}

static int table_open(struct space *s, uint64_t snapshot, struct table *out, struct err *e)
{
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = NODED_SNAPSHOT, .id = snapshot, .file = NODED_META};
    AUTO_CLOSE int fd = -1;
    struct stat st;
    int rc = noded_call(s, &req, NULL, &fd, e);
    if (rc < 0)
        return rc;
    if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct head_meta))
        return err_set(e, EBADMSG, "the meta of snapshot %012" PRIx64 " is cut", snapshot);
    out->size = (size_t)st.st_size;
    out->map = mmap(NULL, out->size, PROT_READ, MAP_SHARED, fd, 0);
    if (out->map == MAP_FAILED)
        return err_sys(e, "map the meta of snapshot %012" PRIx64, snapshot);
    const struct head_meta *m = out->map;
    const uint8_t *table = (const uint8_t *)out->map + HEAD_PAGE;
    if (memcmp(m->magic, HEAD_MAGIC, sizeof m->magic) != 0 || m->version != HEAD_VERSION || !sum_is(&m->self, m, sizeof *m - sizeof m->self) ||
        m->memory % HEAD_PAGE || m->table_bytes != m->memory / HEAD_PAGE * 8 || out->size != HEAD_PAGE + m->table_bytes ||
        !sum_is(&m->table, table, m->table_bytes))
        return err_set(e, EBADMSG, "the meta of snapshot %012" PRIx64 " is damaged, or of another version", snapshot);
    out->entries = (const uint64_t *)(const void *)table;
    out->pages = m->memory / HEAD_PAGE;
    return 0;
}

static uint64_t content(uint64_t entry)
{
    return entry & ~HEAD_CHANGED;
}

/* Of pages that lie next to each other one range. */
static int write_ranges(const struct table *now, const struct table *before, int fd, uint64_t *ret_bytes, struct err *e)
{
    struct noded_range out[RANGES];
    size_t n = 0;
    for (uint64_t i = 0; i < now->pages; i++) {
        uint64_t kind = now->entries[i] ? NODED_RANGE_DATA : NODED_RANGE_ZEROS;
        struct noded_range *last = n ? &out[n - 1] : NULL;
        if (content(now->entries[i]) == content(before->entries[i]))
            continue;
        *ret_bytes += HEAD_PAGE;
        if (last && last->offset + last->length == i * HEAD_PAGE && last->kind == kind) {
            last->length += HEAD_PAGE;
            continue;
        }
        if (n == RANGES) {
            if (write(fd, out, sizeof out) != (ssize_t)sizeof out)
                return err_sys(e, "keep a list of pages");
            n = 0;
        }
        out[n++] = (struct noded_range){.offset = i * HEAD_PAGE, .length = HEAD_PAGE, .kind = kind};
    }
    if (write(fd, out, n * sizeof out[0]) != (ssize_t)(n * sizeof out[0]))
        return err_sys(e, "keep a list of pages");
    return lseek(fd, 0, SEEK_SET) < 0 ? err_sys(e, "keep a list of pages") : 0;
}

int pages_compare(struct space *s, uint64_t snapshot, uint64_t before, int *ret_fd, uint64_t *ret_bytes, struct err *e)
{
    struct table a = {0}, b = {0};
    AUTO_CLOSE int fd = memfd_create("pages", MFD_CLOEXEC);
    if (fd < 0)
        return err_sys(e, "make a list of pages");
    int rc = table_open(s, snapshot, &a, e);
    if (rc == 0)
        rc = table_open(s, before, &b, e);
    if (rc == 0 && a.pages != b.pages)
        rc = err_set(e, EINVAL, "the memory of snapshot %012" PRIx64 " has another size", before);
    *ret_bytes = 0;
    if (rc == 0)
        rc = write_ranges(&a, &b, fd, ret_bytes, e);
    table_close(&a);
    table_close(&b);
    if (rc == 0)
        *ret_fd = steal_fd(&fd);
    return rc;
}
