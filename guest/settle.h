// SPDX-License-Identifier: Apache-2.0
// Brings a guest to rest before its memory is captured for others to start from.
#ifndef SPACE_GUEST_SETTLE_H
#define SPACE_GUEST_SETTLE_H

#include "guest/root.h"

#define SETTLE_MSEC 5000 /* how long to wait for the guest to be idle */

/*
 * Waits until nothing runs any more, writes back what is dirty, and gives up what the kernel keeps
 * only to be fast: a smaller image, and no disk writes of its own after a load. For helpers. 0 or
 * -errno; a guest that is not idle in time is no error.
 */
int settle(const struct root *r);

#endif
