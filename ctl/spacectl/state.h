// SPDX-License-Identifier: Apache-2.0
// A sandbox's `state`: verbs, and waiting for it to run.
#ifndef SPACE_CTL_STATE_H
#define SPACE_CTL_STATE_H

#include "spacectl/tree.h"

/* Writes a verb; returns when it is done. 0 or -errno. */
int state_verb(const struct tree *t, const char *name, const char *verb, struct err *e);

/* Waits while the sandbox is on its way (creating, starting, restoring). 0 when it runs; -EIO with
 * its `error` when it failed, -ECANCELED when it went elsewhere. */
int state_wait_running(const struct tree *t, const char *name, struct err *e);

#endif
