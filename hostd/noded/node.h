// SPDX-License-Identifier: Apache-2.0
// What every operation of space-noded works on: the parts of one node, made by main.c before the
// loop starts.
#ifndef SPACE_NODED_NODE_H
#define SPACE_NODED_NODE_H

#include "base/config.h"
#include "hostd/noded/host.h"

#include <limits.h>

#define NODE_FAULTS "/dev/userfaultfd"

struct channels;
struct heads;
struct memory;
struct net;
struct pool;
struct ramfds;
struct slots;
struct vms;

/* Operations run on several threads at once: nothing in here changes after start, and each part
 * locks for itself. */
struct node {
    struct config config;
    struct host_facts facts;
    int faults;             /* NODE_FAULTS, for QEMUs whose memory arrives; -1: this host has none */
    char library[PATH_MAX]; /* that each QEMU loads: qemu_ram.c */
    struct pool *pool;
    struct channels *channels;
    struct heads *heads;
    struct memory *memory;
    struct net *net;
    struct ramfds *ramfds;
    struct slots *slots;
    struct vms *vms;
};

#endif
