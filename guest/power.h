// SPDX-License-Identifier: Apache-2.0
// Ends all processes and switches the machine off.
#ifndef SPACE_GUEST_POWER_H
#define SPACE_GUEST_POWER_H

#include "guest/poll.h"

#include <stdbool.h>
#include <sys/types.h>

enum power_step { POWER_ON, POWER_TERM, POWER_KILL, POWER_SYNC };

struct power {
    struct poll_loop *loop;
    enum power_step step;
    struct poll_timer timer;
};

void power_init(struct power *p, struct poll_loop *l);

/* TERM to all, KILL after 3 s, sync, root read-only, off. Returns at once, and there is no way
 * back. Further calls change nothing. */
void power_off(struct power *p);

/* True from then on: nothing is to be started again. */
bool power_going(const struct power *p);

/* Call when processes were reaped; `none_left`: there are no children any more. */
void power_reaped(struct power *p, bool none_left);

#endif
