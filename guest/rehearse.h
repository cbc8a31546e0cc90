// SPDX-License-Identifier: Apache-2.0
// Starts a job that does nothing, so that the next one starts sooner.
#ifndef SPACE_GUEST_REHEARSE_H
#define SPACE_GUEST_REHEARSE_H

#include "guest/root.h"

/*
 * Goes the way of a job from its record to its end with `/bin/sh -c :`. An emulator translates code
 * when it is first run, and a loaded guest's memory is first touched then: that is most of the time
 * a first job takes. Leaves nothing. For helpers. 0, or -errno of the job's start.
 */
int rehearse(const struct root *r);

#endif
