// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a file are, for both ways that ext4 has to say so.
#ifndef SPACE_BROWSE_BLOCKS_H
#define SPACE_BROWSE_BLOCKS_H

#include <ext2fs/ext2fs.h>
#include <stdbool.h>
#include <stdint.h>

/* Blocks of a file that lie one behind the other, or are all missing. */
struct run {
    uint64_t first; /* block of the file */
    uint64_t count; /* at least 1 */
    uint64_t at;    /* block of the file system, when `data`; else it reads as zeros */
    bool data;
};

struct blocks;

/* The inode is copied. NULL with -ENOMEM in *rc. Inline data has no blocks: not for such inodes. */
struct blocks *blocks_open(ext2_filsys fs, ext2_ino_t ino, const struct ext2_inode *inode, int *rc);
void blocks_close(struct blocks *b);

/*
 * The run that begins at block `block`, at most `most` blocks. All that it says lies within the
 * file system. A file without any more data gives a run of `most`. 0, -EIO, -ENOMEM.
 */
int blocks_find(struct blocks *b, uint64_t block, uint64_t most, struct run *out);

#endif
