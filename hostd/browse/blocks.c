// SPDX-License-Identifier: Apache-2.0
// Extents and indirect blocks as runs: see blocks.h.
#include "hostd/browse/blocks.h"

#include <errno.h>
#include <stdlib.h>

#define DEPTH_MAX    5   /* of an extent tree: ext4's own limit */
#define INDIRECT_RUN 256 /* blocks of a run put together from indirect blocks, one by one */

struct blocks {
    ext2_filsys fs;
    ext2_ino_t ino;
    struct ext2_inode inode;
    struct { /* nodes of the extent tree that were read last, below the one in the inode */
        uint64_t at;
        uint8_t *bytes;
    } node[DEPTH_MAX];
    char *buf; /* of indirect blocks, three */
};

static int to_errno(errcode_t rc)
{
    return rc == 0 ? 0 : rc == ENOMEM || rc == EXT2_ET_NO_MEMORY ? -ENOMEM : -EIO;
}

struct blocks *blocks_open(ext2_filsys fs, ext2_ino_t ino, const struct ext2_inode *inode, int *rc)
{
    struct blocks *b = calloc(1, sizeof *b);
    *rc = -ENOMEM;
    if (!b)
        return NULL;
    b->fs = fs;
    b->ino = ino;
    b->inode = *inode;
    b->buf = malloc(3 * (size_t)fs->blocksize);
    if (b->buf) {
        *rc = 0;
        return b;
    }
    free(b);
    return NULL;
}

void blocks_close(struct blocks *b)
{
    if (!b)
        return;
    for (unsigned i = 0; i < DEPTH_MAX; i++)
        free(b->node[i].bytes);
    free(b->buf);
    free(b);
}

/* Does the file system have all of these? */
static bool inside(ext2_filsys fs, uint64_t at, uint64_t count)
{
    uint64_t end = ext2fs_blocks_count(fs->super);
    return at >= fs->super->s_first_data_block && at < end && count <= end - at;
}

/* ---- extents ---- */

/* Of a node of `size` bytes that should have this depth. */
static bool is_node(const struct ext3_extent_header *h, size_t size, unsigned depth)
{
    size_t most = (size - sizeof *h) / sizeof(struct ext3_extent);
    return ext2fs_le16_to_cpu(h->eh_magic) == EXT3_EXT_MAGIC && ext2fs_le16_to_cpu(h->eh_max) <= most &&
           ext2fs_le16_to_cpu(h->eh_entries) <= ext2fs_le16_to_cpu(h->eh_max) && ext2fs_le16_to_cpu(h->eh_depth) == depth;
}

/* The node of this depth at block `at`. */
static int load_node(struct blocks *b, uint64_t at, unsigned depth, const struct ext3_extent_header **out)
{
    if (!inside(b->fs, at, 1))
        return -EIO;
    *out = (const void *)b->node[depth].bytes;
    if (b->node[depth].bytes && b->node[depth].at == at)
        return 0;
    if (!b->node[depth].bytes && !(b->node[depth].bytes = malloc(b->fs->blocksize)))
        return -ENOMEM;
    struct ext3_extent_header *h = (void *)b->node[depth].bytes;
    b->node[depth].at = 0;
    int rc = to_errno(io_channel_read_blk64(b->fs->io, at, 1, h));
    if (rc == 0 && (!is_node(h, b->fs->blocksize, depth) || !ext2fs_extent_block_csum_verify(b->fs, b->ino, h)))
        rc = -EIO;
    if (rc == 0)
        b->node[depth].at = at;
    *out = h;
    return rc;
}

/* The entry of an inner node below which `block` is; *limit becomes where the next one begins, if
 * that is less. 0 when it is before all. */
static uint64_t choose(const struct ext3_extent_header *h, uint64_t block, uint64_t *limit)
{
    const struct ext3_extent_idx *x = (const void *)(h + 1);
    unsigned n = ext2fs_le16_to_cpu(h->eh_entries), i = 0;
    while (i < n && ext2fs_le32_to_cpu(x[i].ei_block) <= block)
        i++;
    if (i < n && ext2fs_le32_to_cpu(x[i].ei_block) < *limit)
        *limit = ext2fs_le32_to_cpu(x[i].ei_block);
    return i ? ext2fs_le32_to_cpu(x[i - 1].ei_leaf) | (uint64_t)ext2fs_le16_to_cpu(x[i - 1].ei_leaf_hi) << 32 : 0;
}

/* What a leaf says of `block`; a hole ends where its next extent begins, or at `limit`. */
static int look_up(ext2_filsys fs, const struct ext3_extent_header *h, uint64_t block, uint64_t limit, struct run *out)
{
    const struct ext3_extent *x = (const void *)(h + 1);
    unsigned n = ext2fs_le16_to_cpu(h->eh_entries), i = 0;
    while (i < n && ext2fs_le32_to_cpu(x[i].ee_block) <= block)
        i++;
    if (i < n && ext2fs_le32_to_cpu(x[i].ee_block) < limit)
        limit = ext2fs_le32_to_cpu(x[i].ee_block);
    uint64_t first = 0, len = 0, at = 0;
    bool data = true;
    if (i) {
        x += i - 1;
        first = ext2fs_le32_to_cpu(x->ee_block);
        len = ext2fs_le16_to_cpu(x->ee_len);
        at = ext2fs_le32_to_cpu(x->ee_start) | (uint64_t)ext2fs_le16_to_cpu(x->ee_start_hi) << 32;
        data = len <= EXT_INIT_MAX_LEN;
        len -= data ? 0 : EXT_INIT_MAX_LEN;
        if (!len || !inside(fs, at, len))
            return -EIO;
    }
    uint64_t within = block - first;
    *out = within < len ? (struct run){block, len - within, at + within, data} : (struct run){.first = block, .count = limit - block};
    return out->count ? 0 : -EIO;
}

static int find_extent(struct blocks *b, uint64_t block, struct run *out)
{
    const struct ext3_extent_header *h = (const void *)b->inode.i_block;
    unsigned depth = ext2fs_le16_to_cpu(h->eh_depth);
    uint64_t limit = UINT64_MAX;
    if (depth > DEPTH_MAX || !is_node(h, sizeof b->inode.i_block, depth))
        return -EIO;
    while (depth) {
        uint64_t at = choose(h, block, &limit);
        if (!at) {
            *out = (struct run){.first = block, .count = limit - block};
            return 0;
        }
        int rc = load_node(b, at, --depth, &h);
        if (rc < 0)
            return rc;
    }
    return look_up(b->fs, h, block, limit, out);
}

/* ---- indirect blocks ---- */

static int bmap(struct blocks *b, uint64_t block, uint64_t *out)
{
    blk64_t at = 0;
    int flags = 0;
    errcode_t rc = ext2fs_bmap2(b->fs, b->ino, &b->inode, b->buf, 0, block, &flags, &at);
    *out = at;
    return rc ? to_errno(rc) : at == 0 || inside(b->fs, at, 1) ? 0 : -EIO;
}

/* Where the tree of indirect blocks ends. */
static uint64_t indirect_end(ext2_filsys fs)
{
    uint64_t per = fs->blocksize / 4;
    return EXT2_NDIR_BLOCKS + per + per * per + per * per * per;
}

static int find_indirect(struct blocks *b, uint64_t block, uint64_t most, struct run *out)
{
    uint64_t at, next, end = indirect_end(b->fs);
    if (block >= end) {
        *out = (struct run){.first = block, .count = most};
        return 0;
    }
    int rc = bmap(b, block, &at);
    *out = (struct run){.first = block, .count = 1, .at = at, .data = at != 0};
    while (rc == 0 && out->count < most && out->count < INDIRECT_RUN && block + out->count < end) {
        rc = bmap(b, block + out->count, &next);
        if (rc < 0 || (at ? next != at + out->count : next != 0))
            return 0; /* an error shows when it is asked for */
        out->count++;
    }
    return rc;
}

int blocks_find(struct blocks *b, uint64_t block, uint64_t most, struct run *out)
{
    int rc = 0;
    if (!(b->inode.i_flags & EXT4_EXTENTS_FL))
        rc = find_indirect(b, block, most, out);
    else if (block > UINT32_MAX) /* what an extent can say */
        *out = (struct run){.first = block, .count = most};
    else
        rc = find_extent(b, block, out);
    if (rc == 0 && out->count > most)
        out->count = most;
    return rc;
}
