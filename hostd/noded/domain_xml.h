// SPDX-License-Identifier: Apache-2.0
// The libvirt description of a sandbox's virtual machine.
#ifndef SPACE_NODED_DOMAIN_XML_H
#define SPACE_NODED_DOMAIN_XML_H

#include "ipc/noded.h"

#include <stdint.h>
#include <sys/types.h>

/* What a saved state depends on: `meta` of a head names them (docs/protocol/head.md). Whoever
 * changes the devices below changes DOMAIN_DEVICES, too. */
#define DOMAIN_MACHINE "pc-q35-7.2"
#define DOMAIN_CPU     "Nehalem"
#define DOMAIN_DEVICES "2 blk:2 serial:3 rng:4 net:5 genid pvpanic"

struct domain_spec {
    const char *name;            /* of the domain */
    const char *kernel, *initrd; /* NULL: it waits for a state to load */
    const char *library;         /* qemu_ram.c */
    const char *ram_socket;      /* where that asks for the guest's memory */
    const char *fill_file;       /* of a disk that may arrive later, and where qemu_fill.c asks for */
    const char *fill_socket;     /* what is missing of it. NULL: it cannot */
    const char *disk;            /* NULL: none, and no network either */
    const char *socket[2];       /* space.0 and space.1 */
    uint64_t memory;             /* bytes */
    uint32_t vcpus;
    enum noded_accel accel;
    uid_t uid;
    gid_t gid;
};

/* A malloc'ed document; NULL when out of memory. */
char *domain_xml(const struct domain_spec *spec);

#endif
