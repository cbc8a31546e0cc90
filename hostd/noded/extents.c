// SPDX-License-Identifier: Apache-2.0
// Comparison of two files by their extents: see extents.h.
//
// Theory of operation. A file is a sequence of EXTENT_DATA items in its subvolume's tree, by
// offset (btrfs-dev-docs, "On-disk format"); what no item covers is a hole, and so is an item at
// disk address 0. Two files hold the same bytes at an offset when both have a hole there, or items
// of the same type and compression that lead to the same byte of the same place on the disk: such
// a place is never written again while anything refers to it (nothing here is NOCOW). An item may
// be split without its bytes moving, so positions are compared and not whole items. Small files
// lie in the tree itself; those bytes are compared.
//
// Each file has a cursor that holds one buffer of items and asks the kernel for the next when it
// is used up: memory does not grow with the file, and `most` bounds the time.
#include "hostd/noded/extents.h"

#include "base/cleanup.h"

#include <endian.h>
#include <errno.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define BUFFER      (64u << 10)
#define BLOCK       4096u
#define LONGEST     (256ull << 20) /* no extent that holds bytes is longer */
#define INLINE_HEAD offsetof(struct btrfs_file_extent_item, disk_bytenr)

/* Some bytes of a file that lie one behind the other, or a hole. */
struct piece {
    uint64_t offset, end;
    uint64_t at; /* 0: a hole */
    uint64_t skip;
    uint8_t type, compression;
    const uint8_t *bytes; /* of an inline one, in the cursor's buffer */
    uint32_t len;
};

struct cursor {
    int fd;
    uint64_t inode, size, asked; /* where the next question begins */
    uint32_t left;               /* items in the buffer */
    size_t pos;
    bool ended;
    struct piece piece;     /* the current one; covers where the comparison is */
    struct piece following; /* the item behind it, when that does not begin at its end */
    bool has_following;
    uint64_t items;
    struct btrfs_ioctl_search_args_v2 *args;
};

static void cursor_close(struct cursor *c)
{
    free(c->args);
}
#define AUTO_CURSOR __attribute__((cleanup(cursor_close)))

static uint64_t whole_blocks(uint64_t n)
{
    return n > UINT64_MAX - BLOCK ? UINT64_MAX : (n + BLOCK - 1) / BLOCK * BLOCK;
}

static int ask(struct cursor *c, struct err *e)
{
    *c->args = (struct btrfs_ioctl_search_args_v2){.key = {.min_objectid = c->inode,
                                                           .max_objectid = c->inode,
                                                           .min_type = BTRFS_EXTENT_DATA_KEY,
                                                           .max_type = BTRFS_EXTENT_DATA_KEY,
                                                           .min_offset = c->asked,
                                                           .max_offset = UINT64_MAX,
                                                           .max_transid = UINT64_MAX,
                                                           .nr_items = UINT32_MAX},
                                                   .buf_size = BUFFER};
    if (ioctl(c->fd, BTRFS_IOC_TREE_SEARCH_V2, c->args) < 0)
        return err_sys(e, "read the extents of a file");
    c->left = c->args->key.nr_items;
    c->pos = 0;
    c->ended = c->left == 0;
    return 0;
}

/* The item at the buffer's position. False when it makes no sense. */
static bool take_item(struct cursor *c, struct piece *out)
{
    const uint8_t *buf = (const uint8_t *)c->args->buf;
    struct btrfs_ioctl_search_header h;
    struct btrfs_file_extent_item item = {0};
    if (c->pos + sizeof h > BUFFER)
        return false;
    memcpy(&h, buf + c->pos, sizeof h);
    const uint8_t *data = buf + c->pos + sizeof h;
    if (h.len > BUFFER - c->pos - sizeof h || h.len < INLINE_HEAD)
        return false;
    c->pos += sizeof h + h.len;
    c->left--;
    c->items++;
    c->asked = h.offset + 1;
    memcpy(&item, data, h.len < sizeof item ? h.len : sizeof item);
    *out = (struct piece){.offset = h.offset, .type = item.type, .compression = item.compression};
    uint64_t length = 0;
    if (item.type == BTRFS_FILE_EXTENT_INLINE) {
        out->at = 1;
        out->bytes = data + INLINE_HEAD;
        out->len = (uint32_t)(h.len - INLINE_HEAD);
        length = whole_blocks(le64toh(item.ram_bytes));
    } else if (h.len >= sizeof item) {
        out->at = le64toh(item.disk_bytenr);
        out->skip = le64toh(item.offset);
        length = le64toh(item.num_bytes);
    }
    return !__builtin_add_overflow(h.offset, length, &out->end) && length > 0;
}

/* The next item that is not a hole and ends behind `from`. 1, 0 at the end, -errno. */
static int next_item(struct cursor *c, uint64_t from, struct piece *out, struct err *e)
{
    while (!c->ended) {
        int rc = c->left ? 0 : ask(c, e);
        if (rc < 0)
            return rc;
        if (c->ended)
            break;
        if (!take_item(c, out))
            return err_set(e, EIO, "read the extents of a file: the kernel's answer makes no sense");
        if (out->at && out->end > from)
            return 1;
    }
    return 0;
}

/* Goes on to the piece that begins at `from`, where the current one ends. */
static int advance(struct cursor *c, uint64_t from, struct err *e)
{
    int rc = 1;
    if (!c->has_following)
        rc = next_item(c, from, &c->following, e);
    if (rc < 0)
        return rc;
    c->has_following = rc > 0;
    if (!c->has_following || c->following.offset > from) {
        c->piece = (struct piece){.offset = from, .end = c->has_following ? c->following.offset : UINT64_MAX};
    } else {
        c->piece = c->following;
        c->has_following = false;
    }
    return 0;
}

static int cursor_open(struct cursor *c, int fd, uint64_t from, struct err *e)
{
    struct stat st;
    if (fd < 0) {
        c->piece = (struct piece){.end = UINT64_MAX};
        return 0;
    }
    c->fd = fd;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "look at a file");
    c->inode = (uint64_t)st.st_ino;
    c->size = (uint64_t)st.st_size;
    c->asked = from > LONGEST ? from - LONGEST : 0;
    c->args = malloc(sizeof *c->args + BUFFER);
    return c->args ? advance(c, from, e) : err_set(e, ENOMEM, "compare files: out of memory");
}

static bool same(const struct piece *a, const struct piece *b, uint64_t at)
{
    if (!a->at || !b->at)
        return !a->at && !b->at;
    if (a->type != b->type || a->compression != b->compression)
        return false;
    if (a->type == BTRFS_FILE_EXTENT_INLINE)
        return a->offset == b->offset && a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
    return a->at == b->at && a->skip + (at - a->offset) == b->skip + (at - b->offset);
}

static void flush(const struct extents_diff *d, struct noded_range *r)
{
    if (r->length && d->range)
        d->range(d->user, r);
    r->length = 0;
}

static void count(struct extents_diff *d, const struct piece *a, const struct piece *b, uint64_t at, uint64_t end, struct noded_range *r)
{
    uint64_t len = end - at;
    uint64_t kind = a->at && a->type != BTRFS_FILE_EXTENT_PREALLOC ? NODED_RANGE_DATA : NODED_RANGE_ZEROS;
    d->held += a->at ? len : 0;
    if (same(a, b, at))
        return;
    d->changed += a->at ? len : 0;
    d->emptied += a->at ? 0 : len;
    if (r->length && (r->offset + r->length != at || r->kind != kind))
        flush(d, r);
    if (!r->length)
        *r = (struct noded_range){.offset = at, .kind = kind};
    r->length += len;
}

int extents_compare(int a, int b, struct extents_diff *d, struct err *e)
{
    AUTO_CURSOR struct cursor ca = {0};
    AUTO_CURSOR struct cursor cb = {0};
    struct noded_range range = {0};
    uint64_t at = d->from;
    d->held = d->changed = d->emptied = d->next = 0;
    int rc = cursor_open(&ca, a, at, e);
    if (rc == 0)
        rc = cursor_open(&cb, b, at, e);
    while (rc == 0 && at < ca.size) {
        uint64_t end = ca.piece.end < cb.piece.end ? ca.piece.end : cb.piece.end;
        if (end > ca.size)
            end = ca.size;
        count(d, &ca.piece, &cb.piece, at, end, &range);
        at = end;
        if (at < ca.size && ca.items + cb.items > d->most) {
            d->next = at;
            break;
        }
        if (at < ca.size && ca.piece.end == at)
            rc = advance(&ca, at, e);
        if (rc == 0 && at < ca.size && cb.piece.end == at)
            rc = advance(&cb, at, e);
    }
    flush(d, &range);
    return rc;
}
