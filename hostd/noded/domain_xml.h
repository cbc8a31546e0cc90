// SPDX-License-Identifier: Apache-2.0
// The libvirt description of a sandbox's virtual machine.
#ifndef SPACE_NODED_DOMAIN_XML_H
#define SPACE_NODED_DOMAIN_XML_H

#include "ipc/noded.h"

#include <stdint.h>
#include <sys/types.h>

struct domain_spec {
    const char *name; /* of the domain */
    const char *kernel, *initrd;
    const char *disk;      /* NULL: none */
    const char *socket[2]; /* space.0 and space.1 */
    uint64_t memory;       /* bytes */
    uint32_t vcpus;
    enum noded_accel accel;
    uid_t uid;
    gid_t gid;
};

/* A malloc'ed document; NULL when out of memory. */
char *domain_xml(const struct domain_spec *spec);

#endif
