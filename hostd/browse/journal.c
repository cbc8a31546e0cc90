// SPDX-License-Identifier: Apache-2.0
// Replays an ext4 journal in memory: see journal.h. The format: Linux
// Documentation/filesystems/ext4/journal.rst.
//
// Theory of operation. The log is a ring of blocks in a file of its own. From the place that its
// superblock names, transactions of consecutive numbers follow: descriptor blocks, each with tags
// that say where the blocks behind it belong; revoke blocks; a commit block. A transaction without
// its commit block never happened. What is revoked in a transaction is not replayed from it and
// earlier ones. As the kernel does, the log is read three times: to find its end, to collect what
// is revoked, and to replay. All numbers are big-endian, and hostile: no pass takes more steps than
// the log has blocks.
//
// Fast commits (of file systems made with that feature) that follow the last whole transaction are
// not replayed: what is seen then is the state of the last whole transaction.
#include "hostd/browse/journal.h"

#include "base/hmap.h"
#include "hostd/browse/blocks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DESCRIPTOR = 1, COMMIT = 2, SUPERBLOCK_V1 = 3, SUPERBLOCK_V2 = 4, REVOKE = 5 };
enum {
    INCOMPAT_REVOKE = 1,
    INCOMPAT_64BIT = 2,
    INCOMPAT_ASYNC_COMMIT = 4,
    INCOMPAT_CSUM_V2 = 8,
    INCOMPAT_CSUM_V3 = 16,
    INCOMPAT_FAST_COMMIT = 32,
    INCOMPAT_KNOWN = 63
};
enum { TAG_ESCAPED = 1, TAG_SAME_UUID = 2, TAG_LAST = 8 };

#define HEADER       12u /* magic, type, sequence */
#define SB_SIZE      1024u
#define TAIL         4u          /* a checksum, at the end of descriptor and revoke blocks */
#define FAST_DEFAULT 256u        /* blocks for fast commits when the superblock does not say */
#define BLOCKS_MAX   (10u << 20) /* more than the kernel allows */

enum pass { PASS_SCAN, PASS_REVOKE, PASS_REPLAY };

struct revoked {
    struct hmap_node node;
    uint64_t block;
    uint32_t sequence;
};

struct journal {
    struct image *img;
    ext2_filsys fs;
    struct blocks *file;
    struct run run; /* last found */
    uint8_t *block, *data;
    uint32_t size;               /* of a block */
    uint32_t first, last, start; /* of the log; `last` is behind it */
    uint32_t sequence, end;      /* of the first transaction; of the first that is not whole */
    uint32_t incompat, seed;
    bool checksums;
    struct hmap revoked;
};

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

/* Sequence numbers wrap around. */
static bool before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* ---- blocks of the journal ---- */

/* Where block `n` of the journal is. A hole in it is damage. */
static int locate(struct journal *j, uint32_t n, uint64_t *out)
{
    if (n < j->run.first || n - j->run.first >= j->run.count) {
        int rc = blocks_find(j->file, n, BLOCKS_MAX, &j->run);
        if (rc < 0)
            return rc;
    }
    *out = j->run.at + (n - j->run.first);
    return j->run.data ? 0 : -EIO;
}

static int read_block(struct journal *j, uint32_t n, uint8_t *buf)
{
    uint64_t at = 0;
    int rc = locate(j, n, &at);
    return rc < 0 ? rc : image_read(j->img, buf, j->size, at * j->size);
}

static uint32_t next(const struct journal *j, uint32_t n)
{
    return n + 1 < j->last ? n + 1 : j->first;
}

static uint32_t crc(uint32_t seed, const void *p, size_t len)
{
    return ext2fs_crc32c_le(seed, p, len);
}

/* The checksum of a block with the checksum that is at `where` in it. */
static bool checksum_fits(const struct journal *j, uint8_t *block, uint32_t where)
{
    uint32_t said = be32(block + where);
    if (!j->checksums)
        return true;
    memset(block + where, 0, 4);
    return crc(j->seed, block, j->size) == said;
}

/* ---- tags of a descriptor block ---- */

struct tag {
    uint64_t block;
    uint32_t flags, checksum;
};

static uint32_t tag_size(const struct journal *j)
{
    if (j->incompat & INCOMPAT_CSUM_V3)
        return 16;
    return 8u + (j->incompat & INCOMPAT_CSUM_V2 ? 2u : 0) + (j->incompat & INCOMPAT_64BIT ? 4u : 0);
}

/* Takes the tag at *at of the descriptor block; false behind the last. */
static bool take_tag(const struct journal *j, uint32_t *at, struct tag *t)
{
    uint32_t size = tag_size(j), end = j->size - (j->checksums ? TAIL : 0);
    const uint8_t *p = j->block + *at;
    if (*at > end || size > end - *at)
        return false;
    bool v3 = j->incompat & INCOMPAT_CSUM_V3;
    t->block = be32(p);
    t->flags = v3 ? be32(p + 4) : be16(p + 6);
    t->checksum = v3 ? be32(p + 12) : be16(p + 4);
    if (j->incompat & INCOMPAT_64BIT)
        t->block |= (uint64_t)be32(p + 8) << 32;
    *at += size + (t->flags & TAG_SAME_UUID ? 0 : 16);
    if (t->flags & TAG_LAST)
        *at = j->size; /* the next call ends */
    return true;
}

static bool data_fits(const struct journal *j, const struct tag *t, uint32_t sequence)
{
    uint8_t number[4] = {(uint8_t)(sequence >> 24), (uint8_t)(sequence >> 16), (uint8_t)(sequence >> 8), (uint8_t)sequence};
    uint32_t sum = crc(crc(j->seed, number, 4), j->data, j->size);
    return j->incompat & INCOMPAT_CSUM_V3 ? sum == t->checksum : (sum & 0xffff) == t->checksum;
}

/* ---- revoked blocks ---- */

static struct revoked *find_revoked(const struct journal *j, uint64_t block)
{
    struct hmap_node *n = hmap_find(&j->revoked, block * 0x9e3779b97f4a7c15u);
    return n ? hmap_entry(n, struct revoked, node) : NULL;
}

static int revoke(struct journal *j, uint64_t block, uint32_t sequence)
{
    struct revoked *r = find_revoked(j, block);
    if (!r) {
        r = calloc(1, sizeof *r);
        if (!r)
            return -ENOMEM;
        r->block = block;
        r->sequence = sequence;
        hmap_insert(&j->revoked, &r->node, block * 0x9e3779b97f4a7c15u);
    } else if (before(r->sequence, sequence)) {
        r->sequence = sequence;
    }
    return 0;
}

static int take_revokes(struct journal *j, uint32_t sequence)
{
    uint32_t size = j->incompat & INCOMPAT_64BIT ? 8 : 4, used = be32(j->block + HEADER);
    int rc = used > j->size - (j->checksums ? TAIL : 0) ? -EIO : 0;
    for (uint32_t at = HEADER + 4; rc == 0 && at + size <= used; at += size) {
        uint64_t block = be32(j->block + at);
        if (size == 8)
            block = block << 32 | be32(j->block + at + 4);
        rc = revoke(j, block, sequence);
    }
    return rc;
}

/* ---- passes ---- */

/* One tag in the last pass: the block behind it in the log, `n`, takes its place. */
static int replay_tag(struct journal *j, const struct tag *t, uint32_t n, uint32_t sequence)
{
    const struct revoked *r = find_revoked(j, t->block);
    uint64_t at = 0;
    if (r && !before(r->sequence, sequence))
        return 0;
    if (t->block >= ext2fs_blocks_count(j->fs->super))
        return -EIO;
    int rc = j->checksums ? read_block(j, n, j->data) : 0;
    if (rc == 0 && j->checksums && !data_fits(j, t, sequence))
        rc = -EIO;
    if (rc == 0)
        rc = locate(j, n, &at);
    return rc < 0 ? rc : image_replace(j->img, t->block, at, t->flags & TAG_ESCAPED);
}

/* The blocks behind a descriptor; moves *n and *left behind them. */
static int take_descriptor(struct journal *j, enum pass pass, uint32_t sequence, uint32_t *n, uint32_t *left)
{
    uint32_t at = HEADER;
    struct tag t;
    int rc = 0;
    while (rc == 0 && take_tag(j, &at, &t)) {
        if (!*left)
            return -EIO;
        --*left;
        if (pass == PASS_REPLAY)
            rc = replay_tag(j, &t, *n, sequence);
        *n = next(j, *n);
    }
    return rc;
}

/* Does the block in j->block say what it is, with a checksum that fits? */
static bool is_whole(const struct journal *j, uint32_t type)
{
    if (type == COMMIT)
        return checksum_fits(j, j->block, HEADER + 4);
    if (type == REVOKE || type == DESCRIPTOR)
        return checksum_fits(j, j->block, j->size - TAIL);
    return false;
}

static int run_pass(struct journal *j, enum pass pass)
{
    uint32_t n = j->start, sequence = j->sequence, left = j->last - j->first;
    int rc = 0;
    while (left && (pass == PASS_SCAN || before(sequence, j->end))) {
        rc = read_block(j, n, j->block);
        if (rc < 0)
            return rc;
        uint32_t type = be32(j->block + 4);
        if (be32(j->block) != JOURNAL_MAGIC || be32(j->block + 8) != sequence || !is_whole(j, type))
            break;
        n = next(j, n);
        left--;
        if (type == DESCRIPTOR)
            rc = take_descriptor(j, pass, sequence, &n, &left);
        else if (type == REVOKE && pass == PASS_REVOKE)
            rc = take_revokes(j, sequence);
        else if (type == COMMIT)
            sequence++;
        if (rc < 0 && pass == PASS_SCAN)
            break; /* a transaction that goes around the whole log has no end */
        if (rc < 0)
            return rc;
    }
    if (pass == PASS_SCAN)
        j->end = sequence;
    return sequence == j->end ? 0 : -EIO;
}

/* ---- the superblock ---- */

static int read_v2(struct journal *j, uint8_t *sb, uint32_t *length)
{
    j->incompat = be32(sb + 40);
    if (j->incompat & ~(uint32_t)INCOMPAT_KNOWN)
        return -EIO;
    j->checksums = j->incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3);
    if (j->incompat & INCOMPAT_FAST_COMMIT) {
        uint32_t fast = be32(sb + 84) ? be32(sb + 84) : FAST_DEFAULT;
        *length -= fast < *length ? fast : *length;
    }
    j->seed = crc(~0u, sb + 48, 16);
    if (!j->checksums)
        return 0;
    uint32_t said = be32(sb + 252);
    memset(sb + 252, 0, 4);
    return crc(~0u, sb, SB_SIZE) == said ? 0 : -EIO;
}

/* 1 when the log holds something. */
static int read_superblock(struct journal *j, uint64_t file_size)
{
    uint8_t *sb = j->block;
    int rc = read_block(j, 0, sb);
    if (rc < 0)
        return rc;
    uint32_t type = be32(sb + 4), length = be32(sb + 16);
    if (be32(sb) != JOURNAL_MAGIC || (type != SUPERBLOCK_V1 && type != SUPERBLOCK_V2) || be32(sb + 12) != j->size || length > file_size / j->size ||
        length > BLOCKS_MAX)
        return -EIO;
    j->first = be32(sb + 20);
    j->sequence = be32(sb + 24);
    j->start = be32(sb + 28);
    if (type == SUPERBLOCK_V2)
        rc = read_v2(j, sb, &length);
    j->last = length;
    if (rc < 0 || !j->start)
        return rc;
    return j->first && j->start >= j->first && j->start < j->last ? 1 : -EIO;
}

static void free_journal(struct journal *j)
{
    for (size_t i = 0; i < j->revoked.size; i++)
        while (j->revoked.buckets[i]) {
            struct revoked *r = hmap_entry(j->revoked.buckets[i], struct revoked, node);
            hmap_remove(&j->revoked, &r->node);
            free(r);
        }
    hmap_finish(&j->revoked);
    blocks_close(j->file);
    free(j->block);
    free(j->data);
}

int journal_replay(ext2_filsys fs, struct image *img)
{
    struct journal j = {.img = img, .fs = fs, .size = fs->blocksize};
    struct ext2_inode inode;
    if (!ext2fs_has_feature_journal_needs_recovery(fs->super))
        return 0;
    if (!ext2fs_has_feature_journal(fs->super) || !fs->super->s_journal_inum || ext2fs_read_inode(fs, fs->super->s_journal_inum, &inode))
        return -EIO;
    int rc = 0;
    j.file = blocks_open(fs, fs->super->s_journal_inum, &inode, &rc);
    j.block = malloc(j.size);
    j.data = malloc(j.size);
    if (rc == 0 && (!j.block || !j.data))
        rc = -ENOMEM;
    if (rc == 0)
        rc = read_superblock(&j, EXT2_I_SIZE(&inode));
    img->block_size = j.size;
    if (rc == 1)
        rc = run_pass(&j, PASS_SCAN);
    if (rc == 0 && j.start)
        rc = run_pass(&j, PASS_REVOKE);
    if (rc == 0 && j.start)
        rc = run_pass(&j, PASS_REPLAY);
    free_journal(&j);
    return rc;
}
