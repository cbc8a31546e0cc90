// SPDX-License-Identifier: Apache-2.0
// The `idle` policy of sandboxes: what happens to one that nobody uses (docs/tree.md).
#ifndef SPACE_HOSTD_IDLE_H
#define SPACE_HOSTD_IDLE_H

#include "hostd/object.h"

/* Checks the text of `idle`: empty or `never`, or lines of a verb (pause, stop, destroy) and a duration. 0 or -EINVAL. */
int idle_check(const char *text, struct err *e);
/* Starts watching. */
void idle_open(struct space *s);
/* It is being used now. */
void idle_used(struct sandbox *sb);
/* Seconds since it was last used. */
uint64_t idle_seconds(const struct sandbox *sb);

#endif
