// SPDX-License-Identifier: Apache-2.0
// RUN/vm/ID/machine: what space-noded must remember of a QEMU that it started, for as long as that
// runs, across its own restarts. Nobody but root can write there.
#ifndef SPACE_NODED_RECORD_H
#define SPACE_NODED_RECORD_H

#include "base/err.h"
#include "hostd/noded/channel.h"
#include "hostd/noded/head_format.h"
#include "hostd/noded/memory.h"

enum record_phase {
    RECORD_RUNS = 1, /* it booted, or was loaded */
    RECORD_WAITS,    /* for NODED_VM_LOAD */
    RECORD_LOADS,    /* in the middle of it, or it failed: of no more use */
};

/* Set while a capture is under way: one that finds it at its start mends what another one left. */
enum record_capture { RECORD_NO_CAPTURE, RECORD_CAPTURE_PAUSED, RECORD_CAPTURE_RUNNING };

struct record {
    uint32_t version; /* RECORD_VERSION */
    uint32_t phase;   /* enum record_phase */
    uint32_t vcpus, accel;
    uint32_t capture; /* enum record_capture */
    uint32_t unused;
    struct head_id base; /* of its memory; all zero: it booted on empty memory */
    struct memory_target target;
    uint64_t net; /* number of its network namespace; 0: none */
};

#define RECORD_VERSION     3u
#define RECORD_WITHOUT_NET 2u /* an earlier one, without `net` */

/* Replaces what was there. */
int record_write(const struct channels *c, uint64_t id, const struct record *r, struct err *e);
/* ENOENT when there is none, or it is another version's. */
int record_read(const struct channels *c, uint64_t id, struct record *out, struct err *e);

#endif
