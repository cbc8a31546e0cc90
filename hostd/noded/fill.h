// SPDX-License-Identifier: Apache-2.0
// The file `fill` of a sandbox, which says what of its disk has arrived: ipc/fill.h. This process
// writes its header, space-volumed its bits. Any thread; operations on one sandbox one after
// another.
#ifndef SPACE_NODED_FILL_H
#define SPACE_NODED_FILL_H

#include "base/err.h"
#include "hostd/noded/pool.h"
#include "ipc/fill.h"

/* An idle one, which a QEMU that starts can map. */
int fill_prepare(const struct pool *p, uint64_t sandbox, struct err *e);
/* From now on requests to its disk, which is as large as it will be, wait. */
int fill_begin(const struct pool *p, uint64_t sandbox, struct err *e);
/* The disk is written out, and its requests wait no more. EINVAL when it was never begun. */
int fill_complete(const struct pool *p, uint64_t sandbox, struct err *e);

/* Of an object without the file, or that is none: FILL_IDLE. */
enum fill_state fill_state_of(const struct pool *p, struct pool_object o);
/* EBUSY while something of the disk is missing; `what` is to be done with it. */
int fill_refuse(const struct pool *p, struct pool_object o, const char *what, struct err *e);

#endif
