// SPDX-License-Identifier: Apache-2.0
// An artifact becomes a file, or is verified only (coroutines). VOLUMED_DOWNLOAD, _FETCH and _VERIFY in lib/ipc/volumed.h say what they promise.
#ifndef SPACE_VOLUMED_DOWNLOAD_H
#define SPACE_VOLUMED_DOWNLOAD_H

#include "hostd/volumed/store/store.h"
#include "ipc/volumed.h"

enum download_flags { DOWNLOAD_HAVE = 1, DOWNLOAD_VERIFY = 2 /* fd is not used */, DOWNLOAD_NO_CHUNKS = 4 /* with VERIFY: only that all is there */ };

struct download; /* one in progress */

struct download_request {
    const char *tenant;
    uint8_t id[16];
    struct volumed_ref base;
    unsigned flags;
    int fd;   /* borrowed */
    int bits; /* borrowed; -1: nobody uses the file meanwhile. Else the file of ipc/fill.h */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void (*fetchable)(void *user, struct download *d); /* download_fetch may be used from now on; NULL: no longer. May be NULL */
    void *user;
};

/* Fills rep->download. */
int download_run(struct store *s, const struct download_request *q, struct volumed_reply *rep, struct err *e);

/* From another coroutine: returns when the bytes are in the file. ESRCH when the download ended meanwhile in failure. */
int download_fetch(struct download *d, uint64_t offset, uint64_t length, struct err *e);

#endif
