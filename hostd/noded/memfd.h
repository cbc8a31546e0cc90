// SPDX-License-Identifier: Apache-2.0
// A text written line by line, or an array, into a memory file, handed out sealed, so that whoever gets it reads
// what was written.
#ifndef SPACE_NODED_MEMFD_H
#define SPACE_NODED_MEMFD_H

#include "base/err.h"

#include <stdio.h>

struct memfd {
    FILE *f; /* NULL: could not be made; the rest then does nothing and memfd_seal fails */
    int error;
};

void memfd_start(struct memfd *m);
void memfd_add(struct memfd *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void memfd_put(struct memfd *m, const void *bytes, size_t len);
/* The finished descriptor, at offset 0, or -errno. Either way `m` is used up. */
int memfd_seal(struct memfd *m, int *ret_fd, struct err *e);
void memfd_drop(struct memfd *m);

#endif
