// SPDX-License-Identifier: Apache-2.0
// A private temporary directory, and its removal with everything in it.
#ifndef SPACE_CTL_SCRATCH_H
#define SPACE_CTL_SCRATCH_H

#include "base/err.h"

#define SCRATCH_PATH_MAX 512

struct scratch {
    char path[SCRATCH_PATH_MAX]; /* empty: there is none */
};

/* Makes it (mode 0700) in $TMPDIR, else /var/tmp, which has room where /tmp often is memory. 0 or
 * -errno. */
int scratch_create(struct scratch *out, struct err *e);

/* PATH/NAME into `out`. The name is ours and short, so this cannot fail. */
void scratch_path(const struct scratch *s, const char *name, char out[SCRATCH_PATH_MAX]);

/* Opens PATH/NAME anew for reading and writing. The descriptor or -errno. */
int scratch_file(const struct scratch *s, const char *name, struct err *e);

/* First line of PATH/NAME, shortened to fit; empty when there is none. */
void scratch_first_line(const struct scratch *s, const char *name, char *out, unsigned size);

/* Removes all of it; follows no links, leaves its own file system never. */
void scratch_destroy(struct scratch *s);

#endif
