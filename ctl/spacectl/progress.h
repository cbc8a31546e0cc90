// SPDX-License-Identifier: Apache-2.0
// How far an upload or download of a sandbox is, on the terminal, while the program waits for it.
#ifndef SPACE_CTL_PROGRESS_H
#define SPACE_CTL_PROGRESS_H

#include "spacectl/tree.h"

#include <sys/types.h>

/* Starts a child that draws it on standard error, if that is a terminal. 0: nothing was started. */
pid_t progress_start(const struct tree *t, const char *name);
/* Ends it, and clears its line. */
void progress_stop(pid_t child);

/* The line for the text of `stats`, without a newline; 0 when nothing is under way. Exported for
 * tests. */
int progress_line(const char *stats, const char *name, char *out, size_t size);

#endif
