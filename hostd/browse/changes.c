// SPDX-License-Identifier: Apache-2.0
// Mapping of changed ranges to files: see changes.h.
//
// Theory of operation. First all inodes are looked at, in the order of their numbers: those that
// lie in a range themselves, or have blocks there, are noted. Then the tree is walked once, and
// every name that leads to a noted one is told. Blocks that the journal has in a newer form count
// as changed: they may have changed without any range saying so. Both parts go on where the last
// call stopped. Nothing is compared here: a block of the inode table holds many inodes, so some
// that are told did not change; who asked looks at both sides.
#include "hostd/browse/changes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STEPS     20000u /* inodes or names looked at in one call */
#define DEPTH     1024u
#define PATH_LEN  4096u
#define LINE_ROOM (2 * PATH_LEN + 32)

struct range {
    uint64_t offset, length;
};

struct touched {
    ext2_ino_t ino;
    uint64_t bytes;
};

struct level {
    struct inode dir;
    uint64_t next;
    size_t path; /* its length */
};

enum stage { STAGE_RANGES, STAGE_INODES, STAGE_NAMES, STAGE_END };

struct changes {
    struct volume *v;
    enum stage stage;
    struct range *ranges;
    size_t count, room;
    struct touched *files;
    size_t file_count, file_room;
    unsigned steps; /* of this call */
    ext2_inode_scan scan;
    struct level *levels;
    unsigned depth;
    char path[PATH_LEN + 1];
};

struct changes *changes_create(struct volume *v)
{
    struct changes *c = calloc(1, sizeof *c);
    if (c)
        c->v = v;
    return c;
}

void changes_destroy(struct changes *c)
{
    if (!c)
        return;
    if (c->scan)
        ext2fs_close_inode_scan(c->scan);
    free(c->levels);
    free(c->files);
    free(c->ranges);
    free(c);
}

/* ---- ranges ---- */

static int add_range(struct changes *c, struct range r)
{
    if (c->count == c->room) {
        size_t room = c->room ? c->room * 2 : 256;
        if (c->count >= CHANGES_RANGES_MAX)
            return -EFBIG;
        struct range *more = realloc(c->ranges, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        c->ranges = more;
        c->room = room;
    }
    c->ranges[c->count++] = r;
    return 0;
}

int changes_add(struct changes *c, const void *buf, size_t len)
{
    const uint8_t *p = buf;
    int rc = len % sizeof(struct range) ? -EINVAL : c->stage == STAGE_RANGES ? 0 : -EBUSY;
    for (size_t i = 0; rc == 0 && i < len; i += sizeof(struct range)) {
        struct range r;
        memcpy(&r, p + i, sizeof r);
        rc = r.length > UINT64_MAX - r.offset ? -EINVAL : add_range(c, r);
    }
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int add_journal(struct changes *c)
{
    const struct image *img = &c->v->img;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < img->slots; i++)
        if (img->replaced[i].block)
            rc = add_range(c, (struct range){(img->replaced[i].block - 1) * img->block_size, img->block_size});
    return rc;
}

/* Sorted, and none overlaps another. */
static void settle(struct changes *c)
{
    size_t n = 0;
    if (c->count)
        qsort(c->ranges, c->count, sizeof *c->ranges, by_offset);
    for (size_t i = 0; i < c->count; i++) {
        struct range *r = &c->ranges[i], *last = n ? &c->ranges[n - 1] : NULL;
        if (last && r->offset <= last->offset + last->length) {
            uint64_t end = r->offset + r->length, was = last->offset + last->length;
            last->length = (end > was ? end : was) - last->offset;
        } else {
            c->ranges[n++] = *r;
        }
    }
    c->count = n;
}

/* How many of these bytes lie in the ranges. */
static uint64_t overlap(const struct changes *c, uint64_t offset, uint64_t length)
{
    size_t low = 0, high = c->count;
    uint64_t end = offset + length, sum = 0;
    while (low < high) { /* the first that ends behind `offset` */
        size_t mid = low + (high - low) / 2;
        if (c->ranges[mid].offset + c->ranges[mid].length <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < c->count && c->ranges[low].offset < end; low++) {
        uint64_t from = c->ranges[low].offset, to = from + c->ranges[low].length;
        sum += (to < end ? to : end) - (from > offset ? from : offset);
    }
    return sum;
}

/* ---- inodes ---- */

static int start_inodes(struct changes *c)
{
    int rc = add_journal(c);
    if (rc < 0)
        return rc;
    settle(c);
    c->stage = STAGE_INODES;
    return volume_errno(ext2fs_open_inode_scan(c->v->fs, 8, &c->scan));
}

static bool inode_moved(const struct changes *c, ext2_ino_t ino)
{
    ext2_filsys fs = c->v->fs;
    uint32_t per_group = EXT2_INODES_PER_GROUP(fs->super), size = EXT2_INODE_SIZE(fs->super);
    uint64_t table = ext2fs_inode_table_loc(fs, (ino - 1) / per_group);
    return overlap(c, table * fs->blocksize + (uint64_t)((ino - 1) % per_group) * size, size) > 0;
}

static int content(struct changes *c, const struct inode *n, uint64_t *ret_bytes)
{
    uint32_t size = c->v->fs->blocksize;
    uint64_t at = 0, end = n->size / size + (n->size % size > 0);
    bool plain = !(n->raw.i_flags & EXT4_INLINE_DATA_FL) &&
                 (S_ISREG(n->raw.i_mode) || S_ISDIR(n->raw.i_mode) || (S_ISLNK(n->raw.i_mode) && n->size >= sizeof n->raw.i_block));
    int rc = 0;
    *ret_bytes = 0;
    struct blocks *b = plain && end ? volume_blocks(c->v, n, &rc) : NULL;
    while (b && rc == 0 && at < end) {
        struct run run;
        rc = blocks_find(b, at, end - at, &run);
        if (rc == 0 && run.data)
            *ret_bytes += overlap(c, run.at * size, run.count * size);
        at += rc == 0 ? run.count : 0;
        c->steps++;
    }
    return rc;
}

static int note(struct changes *c, ext2_ino_t ino, uint64_t bytes)
{
    if (c->file_count == c->file_room) {
        size_t room = c->file_room ? c->file_room * 2 : 256;
        if (c->file_count >= CHANGES_FILES_MAX)
            return -EFBIG;
        struct touched *more = realloc(c->files, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        c->files = more;
        c->file_room = room;
    }
    c->files[c->file_count++] = (struct touched){ino, bytes};
    return 0;
}

/* What cannot be read cannot be walked to either, and is left out. */
static int look_at(struct changes *c, ext2_ino_t ino)
{
    struct inode n;
    uint64_t bytes = 0;
    int rc = volume_inode(c->v, ino, &n);
    if (rc == 0)
        rc = content(c, &n, &bytes);
    if (rc < 0)
        return rc == -EIO ? 0 : rc;
    return bytes || inode_moved(c, ino) ? note(c, ino, bytes) : 0;
}

static int inodes_some(struct changes *c)
{
    struct ext2_inode_large raw;
    for (c->steps = 0; c->steps < STEPS; c->steps++) {
        ext2_ino_t ino = 0;
        errcode_t rc = ext2fs_get_next_inode_full(c->scan, &ino, (struct ext2_inode *)(void *)&raw, sizeof raw);
        if (rc == EXT2_ET_BAD_BLOCK_IN_INODE_TABLE || rc == EXT2_ET_INODE_CSUM_INVALID)
            continue;
        if (rc)
            return volume_errno(rc);
        if (ino == 0) {
            c->stage = STAGE_NAMES;
            return 0;
        }
        bool special = ino < EXT2_FIRST_INO(c->v->fs->super) && ino != EXT2_ROOT_INO;
        int failed = special || !raw.i_links_count ? 0 : look_at(c, ino);
        if (failed < 0)
            return failed;
    }
    return 0;
}

/* ---- names ---- */

static const struct touched *find(const struct changes *c, ext2_ino_t ino)
{
    size_t low = 0, high = c->file_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (c->files[mid].ino < ino)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->file_count && c->files[low].ino == ino ? &c->files[low] : NULL;
}

static size_t tell(const struct touched *t, const char *path, char *out)
{
    size_t len = (size_t)sprintf(out, "%llu ", (unsigned long long)t->bytes);
    for (; *path; path++) {
        if (*path == '\n' || *path == '\\')
            out[len++] = '\\';
        out[len++] = *path == '\n' ? 'n' : *path;
    }
    out[len++] = '\n';
    return len;
}

static int start_names(struct changes *c)
{
    c->levels = malloc(DEPTH * sizeof *c->levels);
    if (!c->levels)
        return -ENOMEM;
    c->levels[0] = (struct level){.next = 0, .path = 0};
    c->depth = 1;
    return volume_inode(c->v, VOLUME_ROOT, &c->levels[0].dir);
}

static bool is_dot(const struct entry *e)
{
    return e->name[0] == '.' && (e->len == 1 || (e->len == 2 && e->name[1] == '.'));
}

/* One entry of the directory where the walk is. */
static int name_step(struct changes *c, char *out, size_t *len)
{
    struct level *l = &c->levels[c->depth - 1];
    struct entry e;
    struct inode n;
    int rc = volume_entry(c->v, &l->dir, l->next, &e);
    if (rc == -ENOMEM)
        return rc;
    if (rc <= 0) { /* the end, or damaged from here on */
        c->depth--;
        return 0;
    }
    l->next = e.next;
    size_t at = l->path + (l->path > 0);
    if (is_dot(&e) || at + e.len > PATH_LEN)
        return 0;
    if (l->path)
        c->path[l->path] = '/';
    memcpy(c->path + at, e.name, e.len);
    c->path[at + e.len] = 0;
    const struct touched *t = find(c, e.ino);
    if (t)
        *len += tell(t, c->path, out + *len);
    if (e.type != EXT2_FT_DIR || c->depth == DEPTH)
        return 0;
    rc = volume_step(c->v, &l->dir, c->path + at, strlen(c->path + at), &n);
    if (rc == 0 && S_ISDIR(n.raw.i_mode))
        c->levels[c->depth++] = (struct level){n, 0, strlen(c->path)};
    return rc == -ENOMEM ? rc : 0;
}

static int names_some(struct changes *c, char *buf, size_t size, size_t *len)
{
    int rc = c->levels ? 0 : start_names(c);
    for (unsigned i = 0; rc == 0 && i < STEPS && c->depth && size - *len > LINE_ROOM; i++)
        rc = name_step(c, buf, len);
    if (rc == 0 && !c->depth)
        c->stage = STAGE_END;
    return rc;
}

ssize_t changes_read(struct changes *c, char *buf, size_t size)
{
    size_t len = 0;
    int rc = size > LINE_ROOM ? 0 : -EINVAL;
    if (rc == 0 && c->stage == STAGE_RANGES)
        rc = start_inodes(c);
    else if (rc == 0 && c->stage == STAGE_INODES)
        rc = inodes_some(c);
    else if (rc == 0 && c->stage == STAGE_NAMES)
        rc = names_some(c, buf, size, &len);
    else if (rc == 0)
        return 0;
    if (rc == 0 && len == 0)
        buf[len++] = '\n';
    return rc < 0 ? rc : (ssize_t)len;
}
