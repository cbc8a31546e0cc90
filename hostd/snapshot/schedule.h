// SPDX-License-Identifier: Apache-2.0
// Automatic snapshots: taken when a sandbox's `keep` says so and something changed, removed when no tier wants them.
#ifndef SPACE_HOSTD_SCHEDULE_H
#define SPACE_HOSTD_SCHEDULE_H

#include "hostd/object.h"

/* Starts the clock and the ticks. After objects_load. */
int schedule_open(struct space *s, struct err *e);
/* Seconds on the schedule's clock: starts as the real time and never steps. */
int64_t schedule_now(const struct space *s);
/* A snapshot of another node is of that time on its clock: ours does not stay behind. And what is known of a sandbox that came from one. */
void schedule_saw(struct space *s, int64_t taken);
void schedule_recall(struct sandbox *sb);
/* Checks the text of `keep` and makes it the sandbox's: `default`, `none`, or tiers (keep.h). -EINVAL. */
int schedule_set(struct sandbox *sb, const char *text, struct err *e);
/* The policy's text as in force. */
const char *schedule_text(const struct sandbox *sb);

/* When an automatic snapshot goes (CLOCK_REALTIME in nanoseconds), if `keep` stays as it is. Negative: never, or with its sandbox. */
int64_t schedule_expires(struct snapshot *sn);
/* The line of `keep` that keeps it longest, in `out`; "" when there is none. */
const char *schedule_tier(struct snapshot *sn, char out[KEEP_LINE_MAX]);

#endif
