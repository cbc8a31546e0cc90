// SPDX-License-Identifier: Apache-2.0
// A volume as a 9P2000.L tree, read-only (docs/protocol/browse.md).
#ifndef SPACE_BROWSE_SERVE_H
#define SPACE_BROWSE_SERVE_H

#include "9p/server.h"
#include "hostd/browse/volume.h"

#define SERVE_FIDS_MAX 65536u

/* No attribute of ext4 has this name: what is written to it are ranges, what is then read the names
 * of files in them (changes.h). */
#define SERVE_CHANGES "space.changes"

struct serve {
    struct volume volume;
    int error;          /* of volume_open: what every attach gets; 0 when it is open */
    unsigned long work; /* odd while a request is being answered, one more at its beginning and its
                           end: for a watchdog */
    uint8_t *buf;       /* P9_MSIZE_MAX bytes, for replies */
};

/* 0 or -ENOMEM. The volume is the caller's to open and close. */
int serve_init(struct serve *s);
void serve_finish(struct serve *s);

/* A session's `user` is its struct serve. */
const struct p9_backend *serve_backend(void);
const struct p9_server_config *serve_config(void);

#endif
