// SPDX-License-Identifier: Apache-2.0
// An ext4 file system in an image: opening it, inodes, contents. See volume.h.
#include "hostd/browse/volume.h"

#include "hostd/browse/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOUNT_FLAGS (EXT2_FLAG_64BITS | EXT2_FLAG_SKIP_MMP)
#define INLINE_MIN  60u /* in i_block; the rest is an attribute */
#define TARGET_MAX  4095u
#define SEEK_RUNS   512u /* looked at for one question */

/* ---- opening ---- */

static uint64_t count_free(ext2_filsys fs)
{
    uint64_t n = 0;
    for (dgrp_t g = 0; g < fs->group_desc_count; g++)
        n += ext2fs_bg_free_blocks_count(fs, g);
    uint64_t all = ext2fs_blocks_count(fs->super) / EXT2FS_CLUSTER_RATIO(fs);
    return (n < all ? n : all) * EXT2FS_CLUSTER_RATIO(fs);
}

static int mount(struct volume *v, struct err *e)
{
    errcode_t rc = image_mount(&v->img, MOUNT_FLAGS, &v->fs);
    if (rc)
        v->fs = NULL;
    return rc ? err_set(e, -volume_errno(rc), "open the file system: %s",
                        rc == EXT2_ET_BAD_MAGIC        ? "there is no ext4 in it"
                        : rc == EXT2_ET_UNSUPP_FEATURE ? "it has features that are not known here"
                        : volume_errno(rc) == -ENOMEM  ? "it asks for too much memory"
                                                       : "its superblock is damaged")
              : 0;
}

int volume_open(struct volume *v, int fd, struct err *e)
{
    memset(v, 0, sizeof *v);
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) != (ssize_t)sizeof v->seed)
        v->seed = (uintptr_t)v ^ 0x9e3779b97f4a7c15u;
    int rc = image_open(&v->img, fd);
    if (rc < 0)
        return err_set(e, -rc, "open the image: %s", strerror(-rc));
    rc = mount(v, e);
    if (rc < 0)
        return rc;
    rc = journal_replay(v->fs, &v->img);
    if (rc < 0)
        return err_set(e, -rc, "replay the journal: %s", rc == -EIO ? "it is damaged" : strerror(-rc));
    if (v->img.used) { /* the superblock and the group descriptors may be among what was replayed */
        ext2fs_close_free(&v->fs);
        rc = mount(v, e);
    }
    if (rc == 0)
        v->free_blocks = count_free(v->fs);
    return rc;
}

void volume_close(struct volume *v)
{
    for (unsigned i = 0; i < VOLUME_BLOCKS; i++)
        blocks_close(v->open[i].blocks);
    volume_dir_finish(v);
    free(v->seen);
    if (v->fs)
        ext2fs_close_free(&v->fs);
    image_close(&v->img);
    memset(v, 0, sizeof *v);
}

/* ---- inodes ---- */

static bool known_type(uint16_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK: return true;
    default: return false;
    }
}

int volume_inode(struct volume *v, ext2_ino_t ino, struct inode *out)
{
    *out = (struct inode){.ino = ino};
    if (ino == 0 || ino > v->fs->super->s_inodes_count)
        return -EIO;
    int rc = volume_errno(ext2fs_read_inode_full(v->fs, ino, &out->small, sizeof out->raw));
    if (rc < 0)
        return rc;
    out->size = EXT2_I_SIZE(&out->raw);
    bool used = out->raw.i_links_count && !out->raw.i_dtime && !(out->raw.i_flags & EXT4_EA_INODE_FL);
    return used && known_type(out->raw.i_mode) && out->size <= INT64_MAX ? 0 : -EIO;
}

struct blocks *volume_blocks(struct volume *v, const struct inode *n, int *rc)
{
    unsigned oldest = 0;
    *rc = 0;
    for (unsigned i = 0; i < VOLUME_BLOCKS; i++) {
        if (v->open[i].blocks && v->open[i].ino == n->ino) {
            v->open[i].used = ++v->ticks;
            return v->open[i].blocks;
        }
        if (v->open[i].used < v->open[oldest].used)
            oldest = i;
    }
    blocks_close(v->open[oldest].blocks);
    v->open[oldest].ino = n->ino;
    v->open[oldest].used = ++v->ticks;
    v->open[oldest].blocks = blocks_open(v->fs, n->ino, &n->small, rc);
    return v->open[oldest].blocks;
}

int volume_inline(struct volume *v, const struct inode *n, uint8_t **out, size_t *ret_len)
{
    struct ext2_inode copy = n->small;
    size_t size = 0, got = 0;
    errcode_t rc = ext2fs_inline_data_size(v->fs, n->ino, &size);
    if (rc || size < INLINE_MIN || size > INLINE_MIN + VOLUME_XATTR_MAX)
        return rc ? volume_errno(rc) : -EIO;
    *out = malloc(size);
    if (!*out)
        return -ENOMEM;
    rc = ext2fs_inline_data_get(v->fs, n->ino, &copy, *out, &got);
    if (rc == 0 && got == size) {
        *ret_len = size;
        return 0;
    }
    free(*out);
    return rc ? volume_errno(rc) : -EIO;
}

/* ---- contents ---- */

static ssize_t read_inline(struct volume *v, const struct inode *n, void *buf, size_t len, uint64_t offset)
{
    uint8_t *all;
    size_t have;
    int rc = volume_inline(v, n, &all, &have);
    if (rc < 0)
        return rc;
    size_t from = offset < have ? (size_t)offset : have, some = have - from < len ? have - from : len;
    memcpy(buf, all + from, some);
    memset((uint8_t *)buf + some, 0, len - some); /* a file made longer by truncate */
    free(all);
    return (ssize_t)len;
}

static int read_blocks(struct volume *v, const struct inode *n, uint8_t *buf, size_t len, uint64_t offset)
{
    uint32_t size = v->fs->blocksize;
    int rc = 0;
    struct blocks *b = volume_blocks(v, n, &rc);
    while (b && rc == 0 && len) {
        struct run run;
        uint64_t within = offset % size, want = (within + len + size - 1) / size;
        rc = blocks_find(b, offset / size, want, &run);
        if (rc < 0)
            return rc;
        uint64_t some = run.count * size - within;
        some = some < len ? some : len;
        if (run.data)
            rc = image_read(&v->img, buf, (size_t)some, run.at * size + within);
        else
            memset(buf, 0, (size_t)some);
        buf += some;
        len -= (size_t)some;
        offset += some;
    }
    return rc;
}

ssize_t volume_read(struct volume *v, const struct inode *n, void *buf, size_t len, uint64_t offset)
{
    if (n->raw.i_flags & EXT4_ENCRYPT_FL)
        return -ENOKEY;
    if (offset >= n->size)
        return 0;
    if (len > n->size - offset)
        len = (size_t)(n->size - offset);
    if (n->raw.i_flags & EXT4_INLINE_DATA_FL)
        return read_inline(v, n, buf, len, offset);
    int rc = read_blocks(v, n, buf, len, offset);
    return rc < 0 ? rc : (ssize_t)len;
}

int volume_seek(struct volume *v, const struct inode *n, int whence, uint64_t offset, uint64_t *out)
{
    const bool data = whence == SEEK_DATA;
    uint64_t size = v->fs->blocksize, block = offset / size, end = (n->size + size - 1) / size;
    int rc = 0;
    if (offset >= n->size)
        return -ENXIO;
    if (n->raw.i_flags & (EXT4_INLINE_DATA_FL | EXT4_ENCRYPT_FL)) {
        *out = data ? offset : n->size;
        return 0;
    }
    struct blocks *b = volume_blocks(v, n, &rc);
    for (unsigned i = 0; b && rc == 0 && block < end && i < SEEK_RUNS; i++) {
        struct run run;
        rc = blocks_find(b, block, end - block, &run);
        if (rc < 0 || run.data == data)
            break;
        block += run.count;
    }
    uint64_t at = block * size < offset ? offset : block * size;
    *out = at < n->size ? at : n->size;
    return rc == 0 && data && at >= n->size ? -ENXIO : rc;
}

ssize_t volume_readlink(struct volume *v, const struct inode *n, char *buf, size_t size)
{
    ssize_t len = (ssize_t)n->size;
    if (!S_ISLNK(n->raw.i_mode))
        return -EINVAL;
    if (n->size == 0 || n->size > TARGET_MAX || n->size > size)
        return -EIO;
    if (ext2fs_is_fast_symlink((struct ext2_inode *)(uintptr_t)&n->small)) {
        if (n->size > sizeof n->raw.i_block || (n->raw.i_flags & EXT4_ENCRYPT_FL))
            return n->size > sizeof n->raw.i_block ? -EIO : -ENOKEY;
        memcpy(buf, n->raw.i_block, n->size);
    } else {
        len = volume_read(v, n, buf, n->size, 0);
    }
    return len > 0 && memchr(buf, 0, (size_t)len) ? -EIO : len;
}
