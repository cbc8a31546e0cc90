// SPDX-License-Identifier: Apache-2.0
// The commands that /ctl of the control tree takes.
#ifndef SPACE_GUEST_CTL_H
#define SPACE_GUEST_CTL_H

#include "guest/agent.h"

/* Runs the command in the Twrite `r` and answers it, now or later. */
void ctl_write(struct agent *a, struct p9_request *r);

#endif
