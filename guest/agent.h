// SPDX-License-Identifier: Apache-2.0
// The daemon's state as PID 1, shared by the control tree and main.
#ifndef SPACE_GUEST_AGENT_H
#define SPACE_GUEST_AGENT_H

#include "guest/ends.h"
#include "guest/files.h"
#include "guest/freezer.h"
#include "guest/job.h"
#include "guest/port.h"
#include "guest/power.h"
#include "guest/root.h"

struct agent {
    struct poll_loop loop;
    struct root root;
    struct port control;
    bool control_open;
    struct jobs jobs;
    struct freezer freezer;
    struct power power;
    pid_t files;                 /* the process that serves space.1 */
    struct files_shared *shared; /* what it tells */
    uint64_t files_since;
    struct ends files_ends;
    struct poll_timer files_again;
    struct poll_watch signals;
    char *trusted; /* the certificates that trust.h was told last; NULL: none */
};

/* Starts switching the machine off. */
void agent_power_off(struct agent *a);

#endif
