// SPDX-License-Identifier: Apache-2.0
// The files `fill` and `fill.ram` of a sandbox, which say what of its disk and its memory has
// arrived: ipc/fill.h. This process writes their headers, space-volumed its bits. Any thread;
// operations on one sandbox one after another.
#ifndef SPACE_NODED_FILL_H
#define SPACE_NODED_FILL_H

#include "base/err.h"
#include "hostd/noded/pool.h"
#include "ipc/fill.h"

/* An idle one of the disk, which a QEMU that starts can map, and none of the memory. */
int fill_prepare(const struct pool *p, uint64_t sandbox, struct err *e);
/* From now on requests to that file, which is as large as it will be, wait. Of memory: before its
 * QEMU starts. */
int fill_begin(const struct pool *p, uint64_t sandbox, enum fill_file what, struct err *e);
/* The disk is written out, and nothing waits for the file any more. EINVAL when it was never begun.
 */
int fill_complete(const struct pool *p, uint64_t sandbox, enum fill_file what, struct err *e);

/* Of an object without the file, or that is none: FILL_IDLE. */
enum fill_state fill_state_of(const struct pool *p, struct pool_object o, enum fill_file what);
/* EBUSY while something of disk or memory is missing; `what` is to be done with it. */
int fill_refuse(const struct pool *p, struct pool_object o, const char *what, struct err *e);

#endif
