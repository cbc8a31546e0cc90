// SPDX-License-Identifier: Apache-2.0
// What the guest says of itself in /info and /activity.
#ifndef SPACE_GUEST_REPORT_H
#define SPACE_GUEST_REPORT_H

#include "guest/agent.h"

/* `key value` lines, the caller's to free; NULL when out of memory. Read no file of the root file
 * system. */
char *report_info(struct agent *a);
char *report_activity(struct agent *a);

struct machine_time {
    uint64_t busy, idle; /* microseconds since boot, of all processors: busy by the tick, idle as measured */
};

/* Zeros when the kernel does not say. */
struct machine_time report_machine_time(const struct root *root);

#endif
