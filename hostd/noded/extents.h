// SPDX-License-Identifier: Apache-2.0
// In what two files of one btrfs differ, by where their bytes lie: without reading any of them.
//
// Needs CAP_SYS_ADMIN (tree search). Any thread. Nothing that it returns says where on the disk
// anything is: such addresses change (balance) and are nobody's business.
#ifndef SPACE_NODED_EXTENTS_H
#define SPACE_NODED_EXTENTS_H

#include "base/err.h"
#include "ipc/noded.h"

#include <stdint.h>

struct extents_diff {
    uint64_t from;                                          /* in: where to begin, a multiple of 4096 */
    uint64_t most;                                          /* in: stop after so many items of both files together; at least a few thousand */
    void (*range)(void *user, const struct noded_range *r); /* in: each difference; may be NULL */
    void *user;
    uint64_t held, changed, emptied; /* out: as in struct noded_reply */
    uint64_t next;                   /* out: where to go on; 0: this was the end */
};

/* `a` and `b` are open files of one btrfs; `b` may be -1, for a file of holes. 0 or -errno. */
int extents_compare(int a, int b, struct extents_diff *d, struct err *e);

#endif
