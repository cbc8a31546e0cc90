// SPDX-License-Identifier: Apache-2.0
// Index objects and runs: see index.h.
#include "hostd/volumed/store/index.h"

#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/volumed/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER        32u /* of an index object's body */
#define ENTRY         48u
#define RUN_HEADER    32u
#define RUN_MAX_PACKS (1u << 24)
#define WINDOW        128u  /* entries read at once by a search */
#define BUFFER        1024u /* entries, of a merge */

static const char run_magic[8] = "spcrun1\n";

/* ---- entries ---- */

static uint8_t *put_entry(uint8_t *p, const struct index_entry *x)
{
    p = put_bytes(p, x->e.id.b, sizeof x->e.id.b);
    return put_u32(put_u32(put_u32(put_u32(p, x->pack), x->e.offset), x->e.stored), x->e.plain | x->e.kind << 24);
}

static void take_entry(struct cursor *c, struct index_entry *x)
{
    cursor_copy(c, x->e.id.b, sizeof x->e.id.b);
    x->pack = cursor_u32(c);
    x->e.offset = cursor_u32(c);
    x->e.stored = cursor_u32(c);
    uint32_t plain = cursor_u32(c);
    x->e.plain = plain & 0xffffff;
    x->e.kind = plain >> 24;
}

static bool entry_valid(const struct index_entry *x, uint32_t packs)
{
    return x->pack < packs && x->e.offset >= PACK_HEADER && x->e.stored > CHUNK_OVERHEAD && x->e.stored <= CHUNK_RECORD_MAX &&
           x->e.offset <= PACK_MAX - x->e.stored && x->e.plain > 0 && x->e.plain <= CHUNK_MAX &&
           (x->e.kind == CHUNK_DATA || x->e.kind == CHUNK_SEGMENT);
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct chunk_id)); /* the identity is the first member */
}

/* ---- index objects ---- */

size_t index_size(uint32_t packs, uint32_t entries)
{
    return HEADER + packs * sizeof(struct object_id) + (size_t)entries * ENTRY;
}

void index_encode(const struct object_id *packs, uint32_t pack_count, struct index_entry *entries, uint32_t count, uint8_t *out)
{
    uint8_t *p = put_zeros(put_u32(put_u32(out, pack_count), count), HEADER - 8);
    if (count)
        qsort(entries, count, sizeof *entries, compare);
    p = put_bytes(p, pack_count ? (const void *)packs : "", pack_count * sizeof *packs);
    for (uint32_t i = 0; i < count; i++)
        p = put_entry(p, &entries[i]);
}

int index_decode(const uint8_t *p, size_t len, struct index_body *out)
{
    struct cursor c = cursor_of(p, len);
    memset(out, 0, sizeof *out);
    uint32_t packs = cursor_u32(&c), count = cursor_u32(&c);
    cursor_zeros(&c, HEADER - 8);
    if (c.bad || count > INDEX_ENTRIES_MAX || packs > count || index_size(packs, count) != len)
        return -EBADMSG;
    out->packs = calloc((size_t)packs + 1, sizeof *out->packs);
    out->entries = calloc((size_t)count + 1, sizeof *out->entries);
    if (!out->packs || !out->entries)
        return -ENOMEM;
    cursor_copy(&c, out->packs, packs * sizeof *out->packs);
    for (uint32_t i = 0; i < count; i++) {
        take_entry(&c, &out->entries[i]);
        if (!entry_valid(&out->entries[i], packs) || (i > 0 && compare(&out->entries[i - 1], &out->entries[i]) > 0))
            return -EBADMSG;
    }
    out->pack_count = packs;
    out->count = count;
    return 0;
}

void index_body_finish(struct index_body *b)
{
    free(b->packs);
    free(b->entries);
    memset(b, 0, sizeof *b);
}

/* ---- runs ---- */

struct index_run {
    atomic_uint refs;
    atomic_bool removed;
    int dir, fd;
    char name[NAME_LEN_MAX + 1];
    uint32_t source_count, pack_count;
    uint64_t count;
    off_t entries; /* where they begin */
    struct object_id *sources, *packs;
};

struct index_run *index_run_ref(struct index_run *r)
{
    r->refs++;
    return r;
}

void index_run_unref(struct index_run *r)
{
    if (!r || --r->refs > 0)
        return;
    if (r->removed)
        unlinkat(r->dir, r->name, 0);
    if (r->fd >= 0)
        close(r->fd);
    if (r->dir >= 0)
        close(r->dir);
    free(r->sources);
    free(r->packs);
    free(r);
}

void index_run_remove(struct index_run *r)
{
    r->removed = true;
}

uint64_t index_run_count(const struct index_run *r)
{
    return r->count;
}

const struct object_id *index_run_sources(const struct index_run *r, uint32_t *ret_count)
{
    *ret_count = r->source_count;
    return r->sources;
}

const struct object_id *index_run_packs(const struct index_run *r, uint32_t *ret_count)
{
    *ret_count = r->pack_count;
    return r->packs;
}

static bool read_all(int fd, void *buf, size_t size, off_t at)
{
    return size == 0 || pread(fd, buf, size, at) == (ssize_t)size;
}

static struct index_run *run_alloc(int dir, const char *name, uint32_t sources, uint32_t packs)
{
    struct index_run *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->refs = 1;
    r->fd = -1;
    r->dir = fcntl(dir, F_DUPFD_CLOEXEC, 3);
    r->source_count = sources;
    r->pack_count = packs;
    str_copy(r->name, sizeof r->name, name);
    r->sources = calloc((size_t)sources + 1, sizeof *r->sources);
    r->packs = calloc((size_t)packs + 1, sizeof *r->packs);
    r->entries = (off_t)(RUN_HEADER + ((size_t)sources + packs) * sizeof(struct object_id));
    if (r->dir >= 0 && r->sources && r->packs)
        return r;
    index_run_unref(r);
    return NULL;
}

int index_run_open(int dir, const char *name, struct index_run **out, struct err *e)
{
    AUTO_CLOSE int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    uint8_t head[RUN_HEADER];
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, "open the index %s", name);
    struct cursor c = cursor_of(head, sizeof head);
    if (!read_all(fd, head, sizeof head, 0) || memcmp(cursor_take(&c, 8), run_magic, 8) != 0)
        return err_set(e, EBADMSG, "%s is no index", name);
    uint32_t sources = cursor_u32(&c), packs = cursor_u32(&c);
    uint64_t count = cursor_u64(&c);
    cursor_zeros(&c, 8);
    if (c.bad || sources > RUN_MAX_PACKS || packs > RUN_MAX_PACKS || count > UINT64_MAX / (2 * ENTRY) ||
        RUN_HEADER + ((uint64_t)sources + packs) * sizeof(struct object_id) + count * ENTRY != (uint64_t)st.st_size)
        return err_set(e, EBADMSG, "the index %s is cut or damaged", name);
    struct index_run *r = run_alloc(dir, name, sources, packs);
    if (!r)
        return err_set(e, ENOMEM, "open the index %s: out of memory", name);
    if (!read_all(fd, r->sources, sources * sizeof *r->sources, RUN_HEADER) ||
        !read_all(fd, r->packs, packs * sizeof *r->packs, (off_t)(RUN_HEADER + sources * sizeof *r->sources))) {
        index_run_unref(r);
        return err_sys(e, "read the index %s", name);
    }
    r->count = count;
    r->fd = steal_fd(&fd);
    *out = r;
    return 0;
}

/* ---- writing: to NAME.new, then renamed ---- */

static FILE *begin(int dir, const char *name, const struct index_run *r, uint64_t count)
{
    char temporary[NAME_LEN_MAX + 8];
    uint8_t head[RUN_HEADER];
    snprintf(temporary, sizeof temporary, "%.64s.new", name);
    int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    uint8_t *p = put_bytes(head, run_magic, 8);
    put_u64(put_u64(put_u32(put_u32(p, r->source_count), r->pack_count), count), 0);
    fwrite(head, sizeof head, 1, f);
    fwrite(r->sources, sizeof *r->sources, r->source_count, f);
    fwrite(r->packs, sizeof *r->packs, r->pack_count, f);
    return f;
}

/* A cache: it need not be durable, only whole or of the wrong size. */
static int commit(FILE *f, int dir, const char *name, struct index_run **out, struct err *e)
{
    char temporary[NAME_LEN_MAX + 8];
    snprintf(temporary, sizeof temporary, "%.64s.new", name);
    bool bad = ferror(f) != 0;
    bad = fclose(f) != 0 || bad;
    if (!bad && renameat(dir, temporary, dir, name) == 0)
        return index_run_open(dir, name, out, e);
    int rc = err_sys(e, "write the index %s", name);
    unlinkat(dir, temporary, 0);
    return rc;
}

int index_run_write(int dir, const char *name, const struct object_id *source, const struct index_body *b, struct index_run **out, struct err *e)
{
    struct index_run *r = run_alloc(dir, name, 1, b->pack_count);
    if (!r)
        return err_set(e, ENOMEM, "write the index %s: out of memory", name);
    r->sources[0] = *source;
    memcpy(r->packs, b->packs, b->pack_count * sizeof *b->packs);
    FILE *f = begin(dir, name, r, b->count);
    index_run_unref(r);
    if (!f)
        return err_sys(e, "write the index %s", name);
    for (uint32_t i = 0; i < b->count; i++) {
        uint8_t bytes[ENTRY];
        put_entry(bytes, &b->entries[i]);
        fwrite(bytes, sizeof bytes, 1, f);
    }
    return commit(f, dir, name, out, e);
}

/* ---- merging ---- */

struct reader {
    const struct index_run *run;
    uint64_t next;
    uint32_t at, filled, shift; /* added to the packs' places */
    uint8_t bytes[BUFFER * ENTRY];
};

/* The next entry's bytes, NULL at the end. */
static const uint8_t *peek(struct reader *r)
{
    if (r->at < r->filled)
        return r->bytes + (size_t)r->at * ENTRY;
    uint64_t left = r->run->count - r->next;
    uint32_t n = left < BUFFER ? (uint32_t)left : BUFFER;
    if (n == 0 || !read_all(r->run->fd, r->bytes, (size_t)n * ENTRY, r->run->entries + (off_t)(r->next * ENTRY)))
        return NULL;
    r->next += n;
    r->filled = n;
    r->at = 0;
    return r->bytes;
}

static void move_one(struct reader *r, FILE *f)
{
    struct cursor c = cursor_of(r->bytes + (size_t)r->at++ * ENTRY, ENTRY);
    struct index_entry x;
    uint8_t out[ENTRY];
    take_entry(&c, &x);
    x.pack += r->shift;
    put_entry(out, &x);
    fwrite(out, sizeof out, 1, f);
}

static void merge_entries(struct reader *a, struct reader *b, FILE *f)
{
    for (;;) {
        const uint8_t *x = peek(a), *y = peek(b);
        if (!x && !y)
            return;
        move_one(!y || (x && compare(x, y) <= 0) ? a : b, f);
    }
}

int index_run_merge(int dir, const char *name, struct index_run *a, struct index_run *b, struct index_run **out, struct err *e)
{
    struct index_run *r = run_alloc(dir, name, a->source_count + b->source_count, a->pack_count + b->pack_count);
    struct reader *readers = calloc(2, sizeof *readers);
    FILE *f = NULL;
    int rc = r && readers ? 0 : err_set(e, ENOMEM, "merge indexes: out of memory");
    if (rc == 0) {
        memcpy(r->sources, a->sources, a->source_count * sizeof *a->sources);
        memcpy(r->sources + a->source_count, b->sources, b->source_count * sizeof *b->sources);
        memcpy(r->packs, a->packs, a->pack_count * sizeof *a->packs);
        memcpy(r->packs + a->pack_count, b->packs, b->pack_count * sizeof *b->packs);
        readers[0].run = a;
        readers[1].run = b;
        readers[1].shift = a->pack_count;
        f = begin(dir, name, r, a->count + b->count);
        if (!f)
            rc = err_sys(e, "write the index %s", name);
    }
    if (f) {
        merge_entries(&readers[0], &readers[1], f);
        rc = commit(f, dir, name, out, e);
    }
    free(readers);
    index_run_unref(r);
    return rc;
}

/* ---- finding ---- */

static uint64_t position(const uint8_t *id)
{
    uint64_t v;
    memcpy(&v, id, sizeof v);
    return be64toh(v);
}

/* Of the entries in `bytes`: whose identity it is and whose pack is not skipped. */
static int pick(const struct index_run *r, const uint8_t *skip, const struct chunk_id *id, const uint8_t *bytes, size_t n, struct pack_entry *out,
                struct object_id *ret_pack)
{
    const uint8_t *hit = bsearch(id->b, bytes, n, ENTRY, compare);
    if (!hit)
        return 0;
    while (hit > bytes && compare(hit - ENTRY, id->b) == 0)
        hit -= ENTRY;
    for (; hit < bytes + n * ENTRY && compare(hit, id->b) == 0; hit += ENTRY) {
        struct cursor c = cursor_of(hit, ENTRY);
        struct index_entry x;
        take_entry(&c, &x);
        if (!entry_valid(&x, r->pack_count))
            return -EBADMSG;
        if (skip && skip[x.pack / 8] & 1u << x.pack % 8)
            continue;
        *out = x.e;
        *ret_pack = r->packs[x.pack];
        return 1;
    }
    return 0;
}

int index_run_find(const struct index_run *r, const uint8_t *skip, const struct chunk_id *id, struct pack_entry *out, struct object_id *ret_pack)
{
    uint8_t bytes[WINDOW * ENTRY];
    uint64_t low = 0, high = r->count, below = 0, above = UINT64_MAX, want = position(id->b);
    while (low < high) {
        /* Where it is if identities between the two bounds are spread evenly; the window lies around it. */
        double part = (double)(want - below) / ((double)(above - below) + 1);
        uint64_t guess = low + (uint64_t)(part * (double)(high - low));
        uint64_t from = guess > low + WINDOW / 2 ? guess - WINDOW / 2 : low;
        uint64_t n = high - from < WINDOW ? high - from : WINDOW;
        if (!read_all(r->fd, bytes, n * ENTRY, r->entries + (off_t)(from * ENTRY)))
            return -EIO;
        const uint8_t *last = bytes + (n - 1) * ENTRY;
        if (compare(id->b, bytes) < 0) {
            high = from;
            above = position(bytes);
        } else if (compare(id->b, last) > 0) {
            low = from + n;
            below = position(last);
        } else {
            return pick(r, skip, id, bytes, n, out, ret_pack);
        }
        if (want < below || want > above)
            return 0;
    }
    return 0;
}
