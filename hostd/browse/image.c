// SPDX-License-Identifier: Apache-2.0
// Bytes of a disk image, and libext2fs' way to them: see image.h.
#include "hostd/browse/image.h"

#include "hostd/browse/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int image_open(struct image *img, int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    *img = (struct image){.fd = fd, .size = size < 0 ? 0 : (uint64_t)size};
    return size < 0 ? -errno : 0;
}

void image_close(struct image *img)
{
    free(img->replaced);
    *img = (struct image){.fd = -1};
}

/* ---- the table of replaced blocks ---- */

static size_t slot_of(const struct image *img, uint64_t block)
{
    size_t mask = img->slots - 1, i = (size_t)(block * 0x9e3779b97f4a7c15u >> 17) & mask;
    while (img->replaced[i].block && img->replaced[i].block != block + 1)
        i = (i + 1) & mask;
    return i;
}

static const struct image_replaced *find(const struct image *img, uint64_t block)
{
    if (!img->used)
        return NULL;
    const struct image_replaced *r = &img->replaced[slot_of(img, block)];
    return r->block ? r : NULL;
}

static int grow(struct image *img)
{
    struct image old = *img;
    size_t slots = old.slots ? old.slots * 2 : 1024;
    struct image_replaced *table = calloc(slots, sizeof *table);
    if (!table)
        return -ENOMEM;
    img->replaced = table;
    img->slots = slots;
    for (size_t i = 0; i < old.slots; i++)
        if (old.replaced[i].block)
            table[slot_of(img, old.replaced[i].block - 1)] = old.replaced[i];
    free(old.replaced);
    return 0;
}

int image_replace(struct image *img, uint64_t block, uint64_t by, bool escaped)
{
    int rc = img->used * 2 < img->slots ? 0 : grow(img);
    if (rc < 0)
        return rc;
    struct image_replaced *r = &img->replaced[slot_of(img, block)];
    img->used += !r->block;
    *r = (struct image_replaced){block + 1, by, escaped};
    return 0;
}

/* ---- reading ---- */

static int read_raw(const struct image *img, uint8_t *buf, size_t len, uint64_t offset)
{
    if (offset > img->size || len > img->size - offset)
        return -EIO;
    while (len) {
        ssize_t n = pread(img->fd, buf, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        buf += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int read_replaced(const struct image *img, const struct image_replaced *r, uint8_t *buf, size_t len, uint32_t within)
{
    int rc = read_raw(img, buf, len, r->by * img->block_size + within);
    for (uint32_t i = within; rc == 0 && r->escaped && i < 4 && i < within + len; i++)
        buf[i - within] = (uint8_t)(JOURNAL_MAGIC >> (24 - 8 * i));
    return rc;
}

int image_read(const struct image *img, void *buf, size_t len, uint64_t offset)
{
    uint8_t *at = buf;
    if (!img->used)
        return read_raw(img, buf, len, offset);
    while (len) {
        uint64_t block = offset / img->block_size;
        uint32_t within = (uint32_t)(offset % img->block_size);
        const struct image_replaced *r = find(img, block);
        size_t n = img->block_size - within;
        while (!r && n < len && !find(img, block + 1)) { /* in one piece what lies in one piece */
            block++;
            n += img->block_size;
        }
        n = n < len ? n : len;
        int rc = r ? read_replaced(img, r, at, n, within) : read_raw(img, at, n, offset);
        if (rc < 0)
            return rc;
        at += n;
        offset += n;
        len -= n;
    }
    return 0;
}

/* ---- libext2fs ---- */

/* io_manager.open gets a name only, and the image has none: who is opening is said here. */
static struct image *opening;

static errcode_t io_open(const char *name, int flags, io_channel *out);

static errcode_t io_close(io_channel c)
{
    if (--c->refcount > 0)
        return 0;
    free(c->name);
    free(c);
    return 0;
}

static errcode_t io_set_blksize(io_channel c, int size)
{
    c->block_size = size;
    return size > 0 ? 0 : EXT2_ET_INVALID_ARGUMENT;
}

/* A negative count is in bytes. */
static errcode_t io_read64(io_channel c, unsigned long long block, int count, void *buf)
{
    unsigned long long unit = (unsigned)c->block_size, len = count < 0 ? (unsigned long long)-(long long)count : (unsigned long long)count * unit;
    if (block > UINT64_MAX / unit)
        return EXT2_ET_SHORT_READ;
    int rc = image_read(c->private_data, buf, len, block * unit);
    return rc == -EIO ? EXT2_ET_SHORT_READ : -rc;
}

static errcode_t io_read(io_channel c, unsigned long block, int count, void *buf)
{
    return io_read64(c, block, count, buf);
}

static errcode_t io_write64(io_channel c, unsigned long long block, int count, const void *buf)
{
    (void)c, (void)block, (void)count, (void)buf;
    return EROFS;
}

static errcode_t io_write(io_channel c, unsigned long block, int count, const void *buf)
{
    return io_write64(c, block, count, buf);
}

static errcode_t io_flush(io_channel c)
{
    (void)c;
    return 0;
}

static struct struct_io_manager manager = {
    .magic = EXT2_ET_MAGIC_IO_MANAGER,
    .name = "image",
    .open = io_open,
    .close = io_close,
    .set_blksize = io_set_blksize,
    .read_blk = io_read,
    .write_blk = io_write,
    .flush = io_flush,
    .read_blk64 = io_read64,
    .write_blk64 = io_write64,
};

static errcode_t io_open(const char *name, int flags, io_channel *out)
{
    if (flags & IO_FLAG_RW)
        return EROFS;
    io_channel c = calloc(1, sizeof *c);
    char *copy = strdup(name);
    if (!c || !copy) {
        free(c);
        free(copy);
        return ENOMEM;
    }
    c->magic = EXT2_ET_MAGIC_IO_CHANNEL;
    c->manager = &manager;
    c->name = copy;
    c->block_size = 1024;
    c->refcount = 1;
    c->private_data = opening;
    *out = c;
    return 0;
}

errcode_t image_mount(struct image *img, int flags, ext2_filsys *out)
{
    opening = img;
    errcode_t rc = ext2fs_open2("image", NULL, flags, 0, 0, &manager, out);
    opening = NULL;
    return rc;
}
