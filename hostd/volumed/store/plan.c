// SPDX-License-Identifier: Apache-2.0
// Which chunks an upload looks at: see plan.h.
#include "hostd/volumed/store/plan.h"

#include <errno.h>
#include <sys/types.h>
#include <unistd.h>

#define RANGES 256u /* read at once; each gives three spans at most */

static void add(struct plan *p, uint64_t first, uint64_t end, enum piece_kind kind)
{
    if (first < p->next)
        first = p->next;
    if (first >= end)
        return;
    struct plan_span *last = p->count ? &p->spans[p->count - 1] : NULL;
    if (last && last->kind == kind && last->first + last->count == first)
        last->count += end - first;
    else
        p->spans[p->count++] = (struct plan_span){first, end - first, kind};
    p->next = end;
}

/* A chunk that is only in part within zeros is read: the rest of it counts, too. */
static void add_zeros(struct plan *p, uint64_t from, uint64_t to)
{
    uint64_t first = (from + CHUNK_BYTES - 1) / CHUNK_BYTES, end = to == p->size ? (to + CHUNK_BYTES - 1) / CHUNK_BYTES : to / CHUNK_BYTES;
    if (from / CHUNK_BYTES < first)
        add(p, from / CHUNK_BYTES, first, PIECE_DATA);
    if (first < end)
        add(p, first, end, PIECE_ZEROS);
    if (end * CHUNK_BYTES < to)
        add(p, end, end + 1, PIECE_DATA);
}

static void add_bytes(struct plan *p, uint64_t from, uint64_t to, enum piece_kind kind)
{
    if (from >= to)
        return;
    if (kind == PIECE_DATA)
        add(p, from / CHUNK_BYTES, (to + CHUNK_BYTES - 1) / CHUNK_BYTES, PIECE_DATA);
    else
        add_zeros(p, from, to);
}

static int fill_ranges(struct plan *p, struct err *e)
{
    struct volumed_range r[RANGES];
    ssize_t got = pread(p->ranges, r, sizeof r, (off_t)p->offset);
    if (got < 0)
        return err_sys(e, "read the changed ranges");
    if ((size_t)got % sizeof *r)
        return err_set(e, EINVAL, "the changed ranges end within one");
    for (size_t i = 0; i < (size_t)got / sizeof *r; i++) {
        if (r[i].kind != 1 && r[i].kind != 2)
            return err_set(e, EINVAL, "a changed range at %llu is of no kind", (unsigned long long)r[i].offset);
        if (r[i].offset < p->edge || r[i].length > UINT64_MAX - r[i].offset)
            return err_set(e, EINVAL, "the changed ranges are not in order: %llu comes after %llu", (unsigned long long)r[i].offset,
                           (unsigned long long)p->edge);
        p->edge = r[i].offset + r[i].length;
        add_bytes(p, r[i].offset < p->size ? r[i].offset : p->size, p->edge < p->size ? p->edge : p->size, r[i].kind == 1 ? PIECE_DATA : PIECE_ZEROS);
    }
    p->offset += (uint64_t)got;
    p->ended = got == 0;
    return 0;
}

static int fill_all(struct plan *p, struct err *e)
{
    while (p->count + 4 < PLAN_SPANS && p->offset < p->size) {
        off_t data = lseek(p->file, (off_t)p->offset, SEEK_DATA), hole = -1;
        if (data < 0 && errno != ENXIO)
            return err_sys(e, "look for holes of the file");
        uint64_t from = data < 0 || (uint64_t)data > p->size ? p->size : (uint64_t)data;
        if (p->holes)
            add_bytes(p, p->offset, from, PIECE_ZEROS);
        if (from < p->size && (hole = lseek(p->file, (off_t)from, SEEK_HOLE)) < 0)
            return err_sys(e, "look for holes of the file");
        uint64_t to = from < p->size && (uint64_t)hole < p->size ? (uint64_t)hole : p->size;
        add_bytes(p, from, to, PIECE_DATA);
        p->offset = to;
    }
    p->ended = p->offset >= p->size;
    return 0;
}

int plan_fill(struct plan *p, struct err *e)
{
    p->count = 0;
    return p->ranges >= 0 ? fill_ranges(p, e) : fill_all(p, e);
}
