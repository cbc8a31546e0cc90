// SPDX-License-Identifier: Apache-2.0
// An ext4 file system in a disk image, read-only, that nobody vouches for.
//
// Theory of operation. Everything here is read by libext2fs through image.h, or by ourselves where
// the library trusts too much. Each function answers one question about the image with bounded
// work; what contradicts itself is -EIO for that question. Objects are named by inode numbers, read
// anew for each request: the image never changes.
//
// A tree that is walked must be one: a directory is reached through exactly one name, in the
// directory that its ".." says, so that neither cycles nor 2^40 paths to one file can be made up.
#ifndef SPACE_BROWSE_VOLUME_H
#define SPACE_BROWSE_VOLUME_H

#include "base/err.h"
#include "hostd/browse/blocks.h"
#include "hostd/browse/image.h"

#include <sys/types.h>

#define VOLUME_ROOT      EXT2_ROOT_INO
#define VOLUME_BLOCKS    16u /* files whose block maps are kept open */
#define VOLUME_INDEXES   8u  /* large directories whose names are indexed */
#define VOLUME_XATTR_MAX 65536u

struct inode {
    ext2_ino_t ino;
    uint64_t size;
    union {
        struct ext2_inode_large raw;
        struct ext2_inode small; /* the same bytes, for the library */
    };
};

struct entry {
    ext2_ino_t ino;
    uint8_t type;     /* EXT2_FT_*, 0 unknown */
    const char *name; /* borrowed until the next call about any directory; neither '/' nor NUL in it */
    uint8_t len;
    uint64_t at, next; /* its place, and where to go on */
};

struct dir_index;

struct volume {
    struct image img;
    ext2_filsys fs;
    uint64_t seed, ticks, free_blocks;
    struct {
        ext2_ino_t ino;
        uint64_t used;
        struct blocks *blocks;
    } open[VOLUME_BLOCKS];
    struct { /* one block of a directory, checked; or all of one that is inline */
        ext2_ino_t ino;
        uint64_t number;
        uint32_t len;
        uint8_t *bytes;
        uint64_t *starts; /* a bit for each 4 bytes: an entry begins there */
    } dir;
    struct dir_index *indexes[VOLUME_INDEXES];
    struct seen { /* directories and the name each was reached by */
        ext2_ino_t ino;
        uint64_t name;
    } * seen;
    size_t seen_slots, seen_used;
};

/* Replays the journal (in memory) and opens the file system; `fd` stays the caller's and must
 * outlive the volume. 0 or -errno with the sentence. After a failure only volume_close is legal,
 * and needed. */
int volume_open(struct volume *v, int fd, struct err *e);
void volume_close(struct volume *v);

/* An inode in use, of a known type. 0, -EIO, -ENOMEM. */
int volume_inode(struct volume *v, ext2_ino_t ino, struct inode *out);

/* The blocks of a file without inline data; borrowed until VOLUME_BLOCKS - 1 other files were asked
 * for. NULL with *rc. */
struct blocks *volume_blocks(struct volume *v, const struct inode *n, int *rc);

/* All inline data of an inode, malloc'ed; at least 60 bytes, whatever the size of the file. 0,
 * -EIO, -ENOMEM. */
int volume_inline(struct volume *v, const struct inode *n, uint8_t **out, size_t *ret_len);

/* Reads up to `len` bytes of a file or symlink; how many (0 at the end), or -errno. -ENOKEY when
 * they are encrypted. */
ssize_t volume_read(struct volume *v, const struct inode *n, void *buf, size_t len, uint64_t offset);
/* Where after `offset` the next data (SEEK_DATA) or hole (SEEK_HOLE) is, as lseek(2) has it: the
 * end is a hole. After bounded work it may stop short of it, at a place from where to ask on: zeros
 * that are told as data, or data as a hole of no length. 0, -ENXIO behind the end, -EIO, -ENOMEM.
 */
int volume_seek(struct volume *v, const struct inode *n, int whence, uint64_t offset, uint64_t *out);
/* The target; its length or -errno. -EINVAL when it is no symlink. */
ssize_t volume_readlink(struct volume *v, const struct inode *n, char *buf, size_t size);

/* volume_dir.c. The entry at `offset` (0, or `next` of another one). 1, 0 at the end, -EINVAL for
 * an offset where none is, -EIO. */
int volume_entry(struct volume *v, const struct inode *dir, uint64_t offset, struct entry *out);
/* One step down by a name. 0, -ENOENT, -ENOTDIR, -EIO, -ENOMEM. */
int volume_step(struct volume *v, const struct inode *dir, const char *name, size_t len, struct inode *out);
void volume_dir_finish(struct volume *v);

/* volume_xattr.c. The value, or for an empty name the list of names, each with its NUL; malloc'ed.
 * 0, -ENODATA, -EIO, -ENOMEM. */
int volume_xattr(struct volume *v, const struct inode *n, const char *name, uint8_t **out, size_t *ret_len);

/* -ENOMEM or -EIO. */
static inline int volume_errno(errcode_t rc)
{
    return rc == 0 ? 0 : rc == ENOMEM || rc == EXT2_ET_NO_MEMORY ? -ENOMEM : -EIO;
}

#endif
