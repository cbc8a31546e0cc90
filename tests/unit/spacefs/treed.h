// SPDX-License-Identifier: Apache-2.0
// A 9P server over a directory of the host with the manners of space-hostd: what spacefs is tested against without a VM.
#ifndef TEST_TREED_H
#define TEST_TREED_H

#include "9p/server.h"

#include <limits.h>
#include <stdbool.h>
#include <uv.h>

/*
 * DIR/root/NAME/... is the "guest". Everything else is control files, real files of DIR, with these manners:
 *   mkdir sandboxes/X    fills X with attributes; hidden names #ID and #copy work; a touched X refuses #copy
 *   X/state              a write of `hang` blocks until flushed or until another write `release`
 *   proc/NAME/JOB/stdout a stream: a read at the end blocks until more is there, or JOB/ended exists
 *   events               a stream of lines, one per write to a `state`
 *   X/mute               reads of it block until flushed
 */
struct treed {
    uv_loop_t *loop;
    char dir[PATH_MAX];
    struct waiting *waiting;
    struct copying *copies;
};

extern const struct p9_backend treed_backend;

/* A request that answers later: asked again on every change of anything. */
struct waiting {
    struct waiting *next;
    struct p9_request *r;
};

/* An open #copy. */
struct copying {
    struct copying *next;
    char path[PATH_MAX];
    bool committed;
};

#endif
