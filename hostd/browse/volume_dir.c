// SPDX-License-Identifier: Apache-2.0
// Directories of a volume: see volume.h.
//
// Offsets are places in the directory: bytes from its beginning, which never change as the image
// does not. A block of a directory is checked as a whole before any of its entries is used, and
// where entries begin is kept as bits, so that an offset from outside leads to an entry or is
// refused. What the hash tree of a large directory says is not believed: its blocks look like empty
// ones, and names are found by an index of our own, made when a name is first asked for.
//
// An inline directory has the inode number of its parent in its first 4 bytes, then entries up to
// byte 60, then, in an attribute, more of them. "." and ".." are put at 0 and 2.
#include "hostd/browse/volume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define ENTRY_HEAD   8u
#define INLINE_FIRST 4u
#define INLINE_SPLIT 60u
#define SKIP_MAX     65536u     /* blocks without an entry that one request goes past */
#define INDEX_FROM   4u         /* blocks of a directory from which on an index is made */
#define INDEX_MAX    (1u << 20) /* names; in larger directories each is looked for */
#define INDEX_SLOTS  (4u << 20) /* of all indexes */
#define SEEN_MAX     (2u << 20) /* directories */
#define BLOCK_MAX    65536u

struct dir_index {
    ext2_ino_t ino;
    bool unusable; /* damaged or too large */
    uint64_t used;
    size_t slots, names;
    struct {
        uint64_t hash, at; /* at + 1: 0 is empty */
    } * table;
};

/* ---- a block ---- */

static bool begins(const struct volume *v, uint64_t at)
{
    return at < v->dir.len && at % 4 == 0 && v->dir.starts[at / 256] >> (at / 4 % 64) & 1;
}

/* Marks where the entries between two places begin. False when they are damaged. */
static bool mark(struct volume *v, uint32_t from, uint32_t to)
{
    while (from < to) {
        struct ext2_dir_entry *d = (void *)(v->dir.bytes + from);
        unsigned len = 0;
        if (to - from < ENTRY_HEAD || ext2fs_get_rec_len(v->fs, d, &len))
            return false;
        unsigned name = (unsigned)ext2fs_dirent_name_len(d);
        if (len < ENTRY_HEAD || len % 4 || len > to - from || (d->inode && (!name || name + ENTRY_HEAD > len)))
            return false;
        v->dir.starts[from / 256] |= 1ull << (from / 4 % 64);
        from += len;
    }
    return true;
}

static int check(struct volume *v, const struct inode *dir, uint64_t number)
{
    bool inline_data = dir->raw.i_flags & EXT4_INLINE_DATA_FL, good;
    memset(v->dir.starts, 0, (BLOCK_MAX + INLINE_SPLIT) / 32 + 8);
    if (inline_data)
        good = mark(v, INLINE_FIRST, INLINE_SPLIT) && mark(v, INLINE_SPLIT, v->dir.len);
    else
        good = mark(v, 0, v->dir.len);
    v->dir.ino = good ? dir->ino : 0;
    v->dir.number = number;
    return good ? 0 : -EIO;
}

static int make_room(struct volume *v)
{
    if (!v->dir.bytes)
        v->dir.bytes = malloc(BLOCK_MAX + INLINE_SPLIT + VOLUME_XATTR_MAX);
    if (!v->dir.starts)
        v->dir.starts = malloc((BLOCK_MAX + INLINE_SPLIT) / 32 + 8);
    return v->dir.bytes && v->dir.starts ? 0 : -ENOMEM;
}

static int load_inline(struct volume *v, const struct inode *dir)
{
    uint8_t *bytes;
    size_t len;
    int rc = volume_inline(v, dir, &bytes, &len);
    if (rc < 0)
        return rc;
    v->dir.len = len <= BLOCK_MAX ? (uint32_t)len : 0;
    memcpy(v->dir.bytes, bytes, v->dir.len);
    free(bytes);
    return v->dir.len ? check(v, dir, 0) : -EIO;
}

/* Makes block `number` of the directory the current one. 0; 1 when there is a hole of *skip blocks.
 */
static int load(struct volume *v, const struct inode *dir, uint64_t number, uint64_t *skip)
{
    struct run run;
    if (v->dir.ino == dir->ino && v->dir.number == number)
        return 0;
    int rc = make_room(v);
    v->dir.ino = 0;
    if (rc == 0 && (dir->raw.i_flags & EXT4_INLINE_DATA_FL))
        return load_inline(v, dir);
    struct blocks *b = rc < 0 ? NULL : volume_blocks(v, dir, &rc);
    if (b)
        rc = blocks_find(b, number, UINT32_MAX, &run);
    if (rc < 0)
        return rc;
    *skip = run.count;
    if (!run.data)
        return 1;
    v->dir.len = v->fs->blocksize;
    rc = volume_errno(ext2fs_read_dir_block4(v->fs, run.at, v->dir.bytes, 0, dir->ino));
    return rc < 0 ? rc : check(v, dir, number);
}

/* ---- entries ---- */

/* Of an inline directory, which does not hold its own "." and "..". */
static int dots(struct volume *v, const struct inode *dir, uint64_t offset, struct entry *out)
{
    uint32_t parent;
    uint64_t skip;
    int rc = load(v, dir, 0, &skip);
    if (rc < 0)
        return rc;
    memcpy(&parent, v->dir.bytes, sizeof parent);
    *out = (struct entry){.ino = offset ? ext2fs_le32_to_cpu(parent) : dir->ino,
                          .type = EXT2_FT_DIR,
                          .name = "..",
                          .len = offset ? 2 : 1,
                          .at = offset,
                          .next = offset + 2};
    return 1;
}

/* The entry at a place of the current block, which begins at `base` of the directory. 1, or 0 when
 * it is no name. */
static int take(const struct volume *v, uint64_t base, uint32_t at, struct entry *out)
{
    struct ext2_dir_entry *d = (void *)(v->dir.bytes + at);
    unsigned len = 0;
    ext2fs_get_rec_len(v->fs, d, &len);
    *out = (struct entry){.ino = d->inode, .name = d->name, .len = (uint8_t)ext2fs_dirent_name_len(d), .at = base + at, .next = base + at + len};
    if (ext2fs_has_feature_filetype(v->fs->super))
        out->type = (uint8_t)ext2fs_dirent_file_type(d);
    if (!d->inode)
        return 0;
    return memchr(d->name, '/', out->len) || memchr(d->name, 0, out->len) ? -EIO : 1;
}

static uint64_t end_of(const struct inode *dir)
{
    if (dir->raw.i_flags & EXT4_INLINE_DATA_FL)
        return INLINE_SPLIT + VOLUME_XATTR_MAX; /* its block says more exactly */
    return dir->size;
}

int volume_entry(struct volume *v, const struct inode *dir, uint64_t offset, struct entry *out)
{
    bool inline_data = dir->raw.i_flags & EXT4_INLINE_DATA_FL;
    uint32_t size = inline_data ? BLOCK_MAX + INLINE_SPLIT + VOLUME_XATTR_MAX : v->fs->blocksize;
    if (!inline_data && dir->size % size)
        return -EIO;
    if (inline_data && (offset == 0 || offset == 2))
        return dots(v, dir, offset, out);
    for (unsigned skipped = 0; offset < end_of(dir); skipped++) {
        uint64_t number = offset / size, base = number * size, skip = 0;
        int rc = load(v, dir, number, &skip);
        if (rc == 1) { /* where nothing is, no entry is */
            if (offset != base)
                return -EINVAL;
            offset = skip < (end_of(dir) - base) / size ? base + skip * size : end_of(dir);
            continue;
        }
        if (rc < 0)
            return rc;
        if (inline_data && offset == v->dir.len)
            return 0;
        if (!begins(v, offset - base))
            return -EINVAL;
        while (rc == 0 && offset - base < v->dir.len) {
            rc = take(v, base, (uint32_t)(offset - base), out);
            offset = out->next;
        }
        if (rc != 0)
            return rc;
        if (skipped > SKIP_MAX)
            return -EIO;
    }
    return 0;
}

/* ---- the index ---- */

static uint64_t hash_of(const struct volume *v, const char *name, size_t len)
{
    return XXH3_64bits_withSeed(name, len, v->seed);
}

static void index_free(struct dir_index *x)
{
    if (x)
        free(x->table);
    free(x);
}

static bool index_put(struct dir_index *x, uint64_t hash, uint64_t at)
{
    size_t mask = x->slots - 1, i = (size_t)hash & mask;
    if (x->names >= x->slots / 2)
        return false;
    while (x->table[i].at)
        i = (i + 1) & mask;
    x->table[i].hash = hash;
    x->table[i].at = at + 1;
    x->names++;
    return true;
}

static int index_fill(struct volume *v, const struct inode *dir, struct dir_index *x)
{
    struct entry e;
    int rc;
    for (uint64_t at = 0; (rc = volume_entry(v, dir, at, &e)) > 0; at = e.next)
        if (!index_put(x, hash_of(v, e.name, e.len), e.at))
            return -E2BIG;
    return rc;
}

static void index_make(struct volume *v, const struct inode *dir, struct dir_index *x)
{
    int rc = -E2BIG;
    x->slots = 1024;
    while (x->slots < dir->size / 12 && x->slots < 2 * INDEX_MAX) /* names of 16 bytes: half full */
        x->slots *= 2;
    for (; rc == -E2BIG && x->slots <= 2 * INDEX_MAX; x->slots *= 2) {
        free(x->table);
        x->names = 0;
        x->table = calloc(x->slots, sizeof *x->table);
        rc = x->table ? index_fill(v, dir, x) : -ENOMEM;
        if (rc == 0)
            return;
    }
    x->unusable = true;
    free(x->table);
    x->table = NULL;
    x->slots = 0;
}

/* Room for one more: the ones not used for longest go. */
static unsigned index_place(struct volume *v)
{
    for (;;) {
        size_t slots = 0;
        unsigned oldest = 0, empty = VOLUME_INDEXES;
        for (unsigned i = 0; i < VOLUME_INDEXES; i++) {
            if (!v->indexes[i]) {
                empty = i;
                continue;
            }
            slots += v->indexes[i]->slots;
            if (!v->indexes[oldest] || v->indexes[i]->used < v->indexes[oldest]->used)
                oldest = i;
        }
        if (empty < VOLUME_INDEXES && slots <= INDEX_SLOTS - 2 * INDEX_MAX)
            return empty;
        index_free(v->indexes[oldest]);
        v->indexes[oldest] = NULL;
    }
}

static struct dir_index *index_of(struct volume *v, const struct inode *dir)
{
    for (unsigned i = 0; i < VOLUME_INDEXES; i++)
        if (v->indexes[i] && v->indexes[i]->ino == dir->ino) {
            v->indexes[i]->used = ++v->ticks;
            return v->indexes[i];
        }
    unsigned place = index_place(v);
    struct dir_index *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->ino = dir->ino;
    x->used = ++v->ticks;
    index_make(v, dir, x);
    v->indexes[place] = x;
    return x;
}

void volume_dir_finish(struct volume *v)
{
    for (unsigned i = 0; i < VOLUME_INDEXES; i++)
        index_free(v->indexes[i]);
    free(v->dir.bytes);
    free(v->dir.starts);
}

/* ---- names ---- */

static bool is_named(const struct entry *e, const char *name, size_t len)
{
    return e->len == len && memcmp(e->name, name, len) == 0;
}

static int search(struct volume *v, const struct inode *dir, const char *name, size_t len, struct entry *out)
{
    int rc;
    for (uint64_t at = 0; (rc = volume_entry(v, dir, at, out)) > 0; at = out->next)
        if (is_named(out, name, len))
            return 0;
    return rc < 0 ? rc : -ENOENT;
}

/* The first entry of that name. */
static int find_name(struct volume *v, const struct inode *dir, const char *name, size_t len, struct entry *out)
{
    struct dir_index *x = dir->size > INDEX_FROM * v->fs->blocksize ? index_of(v, dir) : NULL;
    if (!x || x->unusable)
        return search(v, dir, name, len, out);
    uint64_t hash = hash_of(v, name, len);
    for (size_t mask = x->slots - 1, i = (size_t)hash & mask; x->table[i].at; i = (i + 1) & mask) {
        if (x->table[i].hash != hash)
            continue;
        int rc = volume_entry(v, dir, x->table[i].at - 1, out);
        if (rc <= 0)
            return rc < 0 ? rc : -EIO;
        if (is_named(out, name, len))
            return 0;
    }
    return -ENOENT;
}

static bool type_fits(uint8_t type, uint16_t mode)
{
    static const uint16_t modes[] = {[EXT2_FT_REG_FILE] = S_IFREG, [EXT2_FT_DIR] = S_IFDIR,   [EXT2_FT_CHRDEV] = S_IFCHR, [EXT2_FT_BLKDEV] = S_IFBLK,
                                     [EXT2_FT_FIFO] = S_IFIFO,     [EXT2_FT_SOCK] = S_IFSOCK, [EXT2_FT_SYMLINK] = S_IFLNK};
    return type == 0 || (type < sizeof modes / sizeof *modes && modes[type] == (mode & S_IFMT));
}

/* ---- is it a tree? ---- */

static int seen_grow(struct volume *v)
{
    struct seen *old = v->seen;
    size_t n = v->seen_slots, slots = n ? 2 * n : 256;
    struct seen *table = slots <= 2 * SEEN_MAX ? calloc(slots, sizeof *table) : NULL;
    if (!table)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t at = old[i].ino * 0x9e3779b1u & (slots - 1);
        while (old[i].ino && table[at].ino)
            at = (at + 1) & (slots - 1);
        if (old[i].ino)
            table[at] = old[i];
    }
    free(old);
    v->seen = table;
    v->seen_slots = slots;
    return 0;
}

/* The first name that a directory is reached by is its only one. */
static int only_name(struct volume *v, ext2_ino_t ino, uint64_t name)
{
    int rc = v->seen_used * 2 < v->seen_slots ? 0 : seen_grow(v);
    if (rc < 0)
        return rc;
    size_t mask = v->seen_slots - 1, i = ino * 0x9e3779b1u & mask;
    while (v->seen[i].ino && v->seen[i].ino != ino)
        i = (i + 1) & mask;
    if (v->seen[i].ino)
        return v->seen[i].name == name ? 0 : -EIO;
    v->seen[i] = (struct seen){ino, name};
    v->seen_used++;
    return 0;
}

static int check_child(struct volume *v, const struct inode *dir, const struct inode *child, uint64_t at)
{
    struct entry e;
    if (child->ino == VOLUME_ROOT)
        return -EIO;
    int rc = volume_entry(v, child, 0, &e);
    if (rc <= 0 || !is_named(&e, ".", 1) || e.ino != child->ino)
        return rc < 0 ? rc : -EIO;
    rc = volume_entry(v, child, e.next, &e);
    if (rc <= 0 || !is_named(&e, "..", 2) || e.ino != dir->ino)
        return rc < 0 ? rc : -EIO;
    return only_name(v, child->ino, at);
}

int volume_step(struct volume *v, const struct inode *dir, const char *name, size_t len, struct inode *out)
{
    struct entry e;
    if (!S_ISDIR(dir->raw.i_mode))
        return -ENOTDIR;
    int rc = find_name(v, dir, name, len, &e);
    if (rc < 0)
        return rc;
    if (e.ino < EXT2_FIRST_INO(v->fs->super))
        return -EIO;
    rc = volume_inode(v, e.ino, out);
    if (rc == 0 && !type_fits(e.type, out->raw.i_mode))
        rc = -EIO;
    if (rc == 0 && S_ISDIR(out->raw.i_mode))
        rc = check_child(v, dir, out, e.at);
    return rc;
}
