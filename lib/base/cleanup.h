// SPDX-License-Identifier: Apache-2.0
// Scope-bound cleanup, so that early returns leak nothing.
#ifndef SPACE_BASE_CLEANUP_H
#define SPACE_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

#define AUTO_FREE  __attribute__((cleanup(cleanup_free)))
#define AUTO_CLOSE __attribute__((cleanup(cleanup_close)))

/* Hands the value out of an AUTO_ variable and disarms it. */
static inline int steal_fd(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

#define steal_ptr(p)                                                                                                                                 \
    ({                                                                                                                                               \
        __typeof__(p) stolen_ = (p);                                                                                                                 \
        (p) = NULL;                                                                                                                                  \
        stolen_;                                                                                                                                     \
    })

#endif
