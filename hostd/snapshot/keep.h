// SPDX-License-Identifier: Apache-2.0
// The `keep` policy: when an automatic snapshot is due, and which ones stay. Pure functions; schedule.c acts on them.
//
// A policy is lines (or, in space.conf, parts between commas) such as
//
//     disk every 5m for 1h
//     full every 1h for 1d
//
// or `none`, each line perhaps with ` to object store` behind it: what that tier wants is stored there, too. Each line is a tier: time is cut into periods of `every` seconds, one snapshot of each period is wanted, for `for` seconds. A `full` one (a
// checkpoint) holds the disk, too, and so counts for disk tiers. `phase` shifts the periods of a sandbox, so that a thousand of them do not tick together.
#ifndef SPACE_HOSTD_KEEP_H
#define SPACE_HOSTD_KEEP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEEP_TIERS_MAX 8
#define KEEP_EVERY_MIN 1u /* seconds */

struct keep_tier {
    bool full;
    bool store;               /* what it wants is to be in the object store */
    uint32_t every, keep_for; /* seconds */
};

struct keep_policy {
    unsigned count;
    struct keep_tier tier[KEEP_TIERS_MAX];
};

/* 0, or -EINVAL with what was expected. */
int keep_parse(const char *text, struct keep_policy *out, struct err *e);

enum keep_due { KEEP_NOTHING, KEEP_DISK, KEEP_FULL };

/* What is due at `now`, when the newest snapshot of any kind is of `last` and the newest full one of `last_full` (seconds; negative: none). However
 * many periods passed, one snapshot is due. */
enum keep_due keep_due(const struct keep_policy *p, uint64_t phase, int64_t now, int64_t last, int64_t last_full);

struct keep_item {
    int64_t taken; /* seconds */
    bool full;
    bool stays;    /* out */
    bool store;    /* out: a tier that stores wants it, still */
    int64_t until; /* out: when no tier wants it any more (seconds), 0: none ever did; */
    unsigned tier; /* and which one keeps it that long */
};

/* Judges snapshots, the oldest first: the first one of each period that a tier still wants stays. Returns how many go. */
size_t keep_thin(const struct keep_policy *p, uint64_t phase, int64_t now, struct keep_item *items, size_t n);

#define KEEP_LINE_MAX 64
/* A tier as a line of the policy. Returns `out`. */
char *keep_format(const struct keep_tier *t, char out[KEEP_LINE_MAX]);

#endif
