// SPDX-License-Identifier: Apache-2.0
// A disk image behind a read-only descriptor, seen as its file system would see it once its journal
// had been replayed. libext2fs reads it through an io_manager of ours: no path, no writing.
#ifndef SPACE_BROWSE_IMAGE_H
#define SPACE_BROWSE_IMAGE_H

#include <ext2fs/ext2fs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
    int fd;
    uint64_t size;
    /* What the journal has of blocks that the file system itself has only in an older form
     * (journal.h): a hash table of `slots` entries, a power of two or 0. */
    struct image_replaced *replaced;
    size_t slots, used;
    uint32_t block_size; /* of the blocks in that table */
};

struct image_replaced {
    uint64_t block; /* + 1: 0 is an empty slot */
    uint64_t by;    /* where the journal's copy is, in blocks */
    bool escaped;   /* its first four bytes stand for the journal's magic number */
};

/* `fd`, of a regular file, stays the caller's and must outlive the image. 0 or -errno. */
int image_open(struct image *img, int fd);
void image_close(struct image *img);

/* Reads exactly `len` bytes with the journal's blocks in place. 0, -EIO beyond the end, or -errno.
 */
int image_read(const struct image *img, void *buf, size_t len, uint64_t offset);

/* From now on block `block` reads as block `by` does on the disk. 0 or -ENOMEM. */
int image_replace(struct image *img, uint64_t block, uint64_t by, bool escaped);

/* Opens the file system. One at a time in a process. 0 or libext2fs' error. */
errcode_t image_mount(struct image *img, int flags, ext2_filsys *out);

#endif
