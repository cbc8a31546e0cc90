// SPDX-License-Identifier: Apache-2.0
// What every operation of space-noded works on: the parts of one node, made by main.c before the
// loop starts.
#ifndef SPACE_NODED_NODE_H
#define SPACE_NODED_NODE_H

#include "base/config.h"
#include "hostd/noded/host.h"

struct channels;
struct pool;
struct slots;
struct vms;

/* Operations run on several threads at once: nothing in here changes after start, and each part
 * locks for itself. */
struct node {
    struct config config;
    struct host_facts facts;
    struct pool *pool;
    struct channels *channels;
    struct slots *slots;
    struct vms *vms;
};

#endif
