// SPDX-License-Identifier: Apache-2.0
// Which chunks of a file an upload looks at: ranges that hostd gave, or what the file system says is no hole.
#ifndef SPACE_VOLUMED_PLAN_H
#define SPACE_VOLUMED_PLAN_H

#include "base/err.h"
#include "hostd/volumed/store/manifest.h"

#define PLAN_SPANS 1024u

struct plan_span {
    uint64_t first, count; /* chunks */
    enum piece_kind kind;  /* PIECE_DATA: to be read. PIECE_ZEROS */
};

struct plan {
    int file, ranges; /* borrowed; ranges -1: all that is no hole */
    uint64_t size;
    bool holes;      /* of the file are zeros to be told; else they are nothing */
    uint64_t offset; /* where to go on: in the file, or in the ranges */
    uint64_t edge;   /* end of the last range, to see that they are in order */
    uint64_t next;   /* no chunk below this comes any more */
    bool ended;
    struct plan_span spans[PLAN_SPANS];
    unsigned count;
};

/* Fills p->spans anew, in order and without overlap; p->ended when nothing follows. May block. 0; -EINVAL ranges that are none; -EIO. */
int plan_fill(struct plan *p, struct err *e);

#endif
