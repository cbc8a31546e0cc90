// SPDX-License-Identifier: Apache-2.0
// What the host must look like before a virtual machine can run under its own uid, and what is
// asked about it.
#ifndef SPACE_NODED_HOST_H
#define SPACE_NODED_HOST_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct host_facts {
    uint64_t memory; /* bytes */
    uint32_t cpus;
    bool kvm;           /* /dev/kvm opens, speaks the stable API, and group kvm may use it */
    gid_t kvm_gid;      /* of group `kvm`; 0 when there is none */
    bool memory_limits; /* there is a memory controller: libvirt refuses limits otherwise */
    char kernel[65];
    char cpu_model[65];
};

/*
 * Mends what would make libvirt slow or QEMU fail, once, at start, as root: /dev/kvm becomes
 * root:kvm 0660 (else libvirt probes QEMU anew at every start, 80 s), libvirt's directory of QEMU
 * state can be traversed by any uid (0711). What cannot be mended is logged as a warning, since
 * only virtual machines need it.
 */
void host_prepare(void);

/* Below it, libvirt keeps a file for each domain name that ever was. */
#define HOST_LIBVIRT_LOGS "/var/log/libvirt"

/* Removes the log of a domain that will not come again. Failure is no harm. */
void host_remove_qemu_log(const char *domain);

/* The path of the library for QEMU, which lies beside this program. A warning when QEMU's users
 * cannot read it. */
void host_find_library(char out[PATH_MAX]);

/* Reads the facts. Never fails: what is unknown is 0 or empty. */
void host_read_facts(struct host_facts *out);

#endif
